//! PDF as Markdown: pages, headings as far as they are set larger than the text, and tables whose cells stand apart.

use std::{
    collections::BTreeMap,
    panic::{AssertUnwindSafe, catch_unwind},
};

use pdf_extract::{
    Dictionary, Document, Error as PdfError, Object,
    content::{Content, Operation},
    output_doc, output_doc_page,
};

mod drawn;
mod repair;
mod table;

use self::{
    drawn::{Drawn, Line},
    repair::repaired,
    table::table,
};
use crate::{document::MAX_TEXT, html::table_of};

/// Pages of a PDF.
const MAX_PAGES: usize = 10_000;
/// Pages that are read one by one, each of which has the library look through all.
const MAX_PAGES_ALONE: usize = 1000;
/// A line is a heading from so many times the size of the text on, and up to so many letters.
const LARGER: f64 = 1.15;
const MAX_HEADING: usize = 150;
/// Letters of all fonts of which the widths are a range.
const MAX_WIDTHS: i64 = 1 << 18;
/// Sizes of headings that are told apart.
const MAX_LEVELS: usize = 4;
pub(crate) const DAMAGED: &str = "it is damaged, or built such that reading it fails";
/// What stands before an item of a list.
const BULLETS: [char; 7] = ['\u{2022}', '\u{25e6}', '\u{25aa}', '\u{2023}', '\u{25cf}', '\u{25cb}', '\u{25a0}'];

/// A PDF as Markdown, or why it cannot be read.
pub(crate) fn pdf(bytes: &[u8]) -> Result<String, String> {
    let unreadable = |error| match error {
        PdfError::Decryption(_) => "it is locked with a password; take that off first".to_owned(),
        _ => DAMAGED.to_owned(),
    };
    let mut document = match Document::load_mem(bytes) {
        Err(error) if !matches!(error, PdfError::Decryption(_)) => repaired(bytes).ok_or_else(|| unreadable(error))?,
        Ok(document) if document.get_pages().is_empty() => repaired(bytes).unwrap_or(document),
        loaded => loaded.map_err(unreadable)?,
    };
    if document.is_encrypted() {
        document.decrypt("").map_err(unreadable)?;
    }
    if document.get_pages().len() > MAX_PAGES {
        return Err(format!("it has more than {MAX_PAGES} pages"));
    }
    list_widths(&mut document);
    spell_out_operators(&mut document);
    let (mut drawn, mut unread) = (Drawn::default(), Vec::new());
    // The library panics at what it does not know, such as an encoding.
    let read = catch_unwind(AssertUnwindSafe(|| output_doc(&document, &mut drawn)));
    if !matches!(read, Ok(Ok(()))) {
        // The pages from there on, one by one: those that can be read are text all the same.
        let first = drawn.pages.len().saturating_sub(1);
        drawn.pages.truncate(first);
        for (count, page) in (1..).zip(document.get_pages().into_keys()).skip(first).take(MAX_PAGES_ALONE) {
            let read = catch_unwind(AssertUnwindSafe(|| output_doc_page(&document, &mut drawn, page)));
            drawn.pages.resize_with(count, Vec::new);
            if !matches!(read, Ok(Ok(()))) {
                unread.push(page.to_string());
            }
        }
        let (read, all) = (drawn.pages.len(), document.get_pages().len());
        if read < all {
            unread.push(format!("{} to {all}", read + 1));
        }
    }
    if drawn.pages.iter().flatten().all(|line| line.text.trim().is_empty()) {
        let scan = "it has no text; a scan must be read by a program for that first";
        return Err(if unread.is_empty() { scan } else { DAMAGED }.to_owned());
    }
    let mut text = markdown(&drawn.pages);
    if !unread.is_empty() {
        let what = if unread.len() == 1 { "Page" } else { "Pages" };
        text.extend([what, " ", &unread.join(", "), " could not be read.\n"]);
    }
    Ok(text)
}

/// Writes `'` and `"`, which begin a line and show it, as what they stand for (ISO 32000-1, table 109): the library knows
/// only that.
fn spell_out_operators(document: &mut Document) {
    for page in document.get_pages().into_values() {
        let Ok(content) = document.get_page_content(page) else { continue };
        if !has_quotes(&content) {
            continue;
        }
        let Ok(content) = Content::decode(&content) else { continue };
        // Pictures within it are not written back as they were.
        if content.operations.iter().any(|operation| operation.operator == "BI") {
            continue;
        }
        let operations = content.operations.into_iter().flat_map(|operation| {
            let Operation { operator, operands } = operation;
            let shows = |operands| [Operation::new("T*", vec![]), Operation::new("Tj", operands)];
            match (operator.as_str(), operands.as_slice()) {
                ("'", [_]) => shows(operands).to_vec(),
                ("\"", [words, letters, text]) => {
                    let spacing = [("Tw", words), ("Tc", letters)];
                    let spacing = spacing.map(|(operator, space)| Operation::new(operator, vec![space.clone()]));
                    spacing.into_iter().chain(shows(vec![text.clone()])).collect()
                }
                _ => vec![Operation { operator, operands }],
            }
        });
        if let Ok(spelled) = (Content { operations: operations.collect::<Vec<_>>() }).encode() {
            // What cannot be changed is read as it is.
            let _ = document.change_page_content(page, spelled);
        }
    }
}

/// Whether something that looks like one of the two operators stands behind a text.
fn has_quotes(content: &[u8]) -> bool {
    let is_quote = |at: usize| {
        matches!(content[at], b'\'' | b'"')
            && content.get(at + 1).is_none_or(u8::is_ascii_whitespace)
            && matches!(content[..at].trim_ascii_end().last(), Some(b')' | b'>'))
    };
    (0..content.len()).any(is_quote)
}

/// Lists the widths of letters that are written as ranges (ISO 32000-1, 9.7.4.3), since the library reads only lists.
fn list_widths(document: &mut Document) {
    let is_font = |font: &Dictionary| {
        font.get(b"Subtype").and_then(Object::as_name).is_ok_and(|kind| kind.starts_with(b"CIDFont"))
    };
    let mut left = MAX_WIDTHS;
    let mut widths =
        |font: &Dictionary| listed(font.get_deref(b"W", document).and_then(Object::as_array).ok()?, &mut left);
    let fonts: Vec<_> = document
        .objects
        .iter()
        .filter_map(|(id, object)| object.as_dict().ok().filter(|font| is_font(font)).map(|font| (*id, widths(font))))
        .collect();
    for (id, widths) in fonts {
        if let (Ok(font), Some(widths)) = (document.get_dictionary_mut(id), widths) {
            font.set("W", widths);
        }
    }
}

/// `first [width width …]` instead of `first last width`, for as many letters as are left; none where it is neither.
fn listed(widths: &[Object], left: &mut i64) -> Option<Vec<Object>> {
    let (mut rest, mut all) = (widths, vec![]);
    while !rest.is_empty() {
        let (first, list);
        (first, list, rest) = match rest {
            [first, list @ Object::Array(_), rest @ ..] => (first, list.clone(), rest),
            [first, last, width, rest @ ..] => {
                let (count, width) = (last.as_i64().ok()?.checked_sub(first.as_i64().ok()?)?, width.as_float().ok()?);
                *left = left.checked_sub(count.max(0)).filter(|left| *left > 0)?;
                (first, Object::Array((0..=count).map(|_| width.into()).collect()), rest)
            }
            _ => return None,
        };
        all.extend([first.clone(), list]);
    }
    Some(all)
}

/// Sizes of headings, the largest first: those that are larger than most of the text.
fn heading_sizes(pages: &[Vec<Line>]) -> Vec<i64> {
    let mut letters: BTreeMap<i64, u64> = BTreeMap::new();
    for line in pages.iter().flatten() {
        *letters.entry(line.half_points()).or_default() += u64::from(line.letters);
    }
    let text = letters.iter().max_by_key(|(_, letters)| **letters).map_or(0, |(size, _)| *size);
    #[expect(clippy::cast_precision_loss, reason = "sizes of letters are small")]
    let is_larger = |size: i64| size as f64 >= text as f64 * LARGER && size > text;
    let mut sizes: Vec<i64> = pages
        .iter()
        .flatten()
        .filter(|line| is_heading(&line.text))
        .map(Line::half_points)
        .filter(|size| is_larger(*size))
        .collect();
    sizes.sort_unstable_by(|a, b| b.cmp(a));
    sizes.dedup();
    sizes.truncate(MAX_LEVELS);
    sizes
}

/// An item of a list: words after a bullet or a number.
fn is_item(line: &Line) -> bool {
    if line.text.trim_start().starts_with(BULLETS) {
        return true;
    }
    let cells = line.cells();
    let [(_, mark), _] = cells.as_slice() else { return false };
    let number = mark.trim_start_matches('(').trim_end_matches(['.', ')']);
    let is_letter = number.len() == 1 && number.chars().all(char::is_alphabetic);
    let is_number = (1..=3).contains(&number.len()) && number.chars().all(|c| c.is_ascii_digit());
    number.len() < mark.len() && (is_letter || is_number)
}

fn is_heading(text: &str) -> bool {
    text.chars().any(char::is_alphabetic) && text.chars().count() <= MAX_HEADING
}

/// A passage is found with its page and the headings above it, also those of pages before.
fn markdown(pages: &[Vec<Line>]) -> String {
    let sizes = heading_sizes(pages);
    let top = if pages.len() == 1 { 1 } else { 2 };
    let level_of = |line: &Line| {
        let level = sizes.iter().position(|size| *size == line.half_points())?;
        is_heading(&line.text).then_some(top + level)
    };
    let (mut text, mut above) = (String::new(), BTreeMap::<usize, String>::new());
    for (number, lines) in (1..).zip(pages) {
        let (mut page, mut last) = (String::new(), None);
        let mut lines = lines.as_slice();
        while let [line, ..] = lines {
            let level = level_of(line);
            let words = line.text.trim();
            let words = if level.is_some() { &words.replace('\n', " ") } else { words };
            let is_row = |line: &&Line| level_of(line).is_none() && !is_item(line);
            let begins_table = line.cells.len() > 1 && !words.is_empty();
            let (rows, taken) = if begins_table { table(lines.iter().take_while(is_row)) } else { (vec![], 0) };
            lines = &lines[taken.max(1)..];
            if let Some(level) = level.filter(|level| last != Some(*level)) {
                above.split_off(&level);
            }
            if page.is_empty() && !words.is_empty() {
                page.extend(above.iter().map(|(level, words)| format!("{} {words}\n\n", "#".repeat(*level))));
            }
            if !rows.is_empty() {
                page.truncate(page.trim_end().len());
                page.extend(["\n\n", &table_of(&rows), "\n"]);
                last = None;
                continue;
            }
            match level {
                // It goes on in the next line.
                Some(level) if last == Some(level) => match above.get_mut(&level) {
                    Some(heading) if heading.len() + words.len() <= MAX_HEADING => {
                        heading.extend([" ", words]);
                        page.truncate(page.trim_end().len());
                        page.extend([" ", words, "\n\n"]);
                    }
                    // So long is no heading.
                    _ => {
                        above.remove(&level);
                        page.extend([words, "\n"]);
                    }
                },
                Some(level) => {
                    above.insert(level, words.to_owned());
                    page.truncate(page.trim_end().len());
                    page.extend(["\n\n", &"#".repeat(level), " ", words, "\n\n"]);
                }
                None if words.is_empty() && (page.is_empty() || page.ends_with("\n\n")) => {}
                None => match words.strip_prefix(BULLETS) {
                    Some(item) => page.extend(["- ", item.trim_start(), "\n"]),
                    None => page.extend([words, "\n"]),
                },
            }
            last = level;
        }
        let page = whole_words(page.trim());
        let heading = if top == 1 || page.is_empty() { String::new() } else { format!("# Page {number}\n\n") };
        text.extend([heading.as_str(), &page, "\n\n"]);
        if text.len() > MAX_TEXT {
            break;
        }
    }
    text
}

/// Words that the end of a line cuts, in one piece.
fn whole_words(page: &str) -> String {
    let mut whole = String::with_capacity(page.len());
    let mut parts = page.split("-\n").peekable();
    while let Some(part) = parts.next() {
        whole.push_str(part);
        let is_cut = |next: &&str| part.ends_with(char::is_lowercase) && next.starts_with(char::is_lowercase);
        if parts.peek().is_some_and(|next| !is_cut(next)) {
            whole.push_str("-\n");
        }
    }
    whole
}

#[cfg(test)]
mod tests {
    use pdf_extract::{OutputDev, Transform};

    use super::*;

    fn page(lines: &[(&str, f64)]) -> Vec<Line> {
        let line = |(text, size): &(&str, f64)| {
            let letters = u32::try_from(text.len()).expect("few");
            Line { text: (*text).to_owned(), sizes: size * f64::from(letters), letters, cells: vec![] }
        };
        lines.iter().map(line).collect()
    }

    #[test]
    fn what_is_larger_than_the_text_is_a_heading_also_on_the_pages_after_it() {
        let pages = [
            page(&[("The Hand", 24.0), ("book", 24.0), ("", 0.0), ("It says what to do, and for how long.", 10.0)]),
            page(&[("Keys", 16.0), ("A key is rotated every ninety days and re-", 10.0), ("placed.", 10.0)]),
            page(&[
                ("Whoever loses one reports it.", 10.0),
                ("\u{2022} to the desk", 10.0),
                ("Doors", 16.0),
                ("x", 10.0),
            ]),
        ];
        let expected = "# Page 1\n\n## The Hand book\n\nIt says what to do, and for how long.\n\n\
            # Page 2\n\n## The Hand book\n\n### Keys\n\nA key is rotated every ninety days and replaced.\n\n\
            # Page 3\n\n## The Hand book\n\n### Keys\n\nWhoever loses one reports it.\n- to the desk\n\n\
            ### Doors\n\nx\n\n";
        assert_eq!(markdown(&pages), expected);
        assert_eq!(markdown(&pages[..1]), "# The Hand book\n\nIt says what to do, and for how long.\n\n");
        assert_eq!(
            whole_words("an exam-\nple of XML-\nfiles, well-\n\nx -\ny"),
            "an example of XML-\nfiles, well-\n\nx -\ny"
        );
        let plain = [page(&[("One size", 10.0), ("for all", 10.0)])];
        assert_eq!(markdown(&plain), "One size\nfor all\n\n");
    }

    /// A line of words of letters of ten points, each with where it begins.
    fn drawn(words: &[(f64, &str)]) -> Line {
        let (mut line, mut end) = (Line::default(), f64::MAX);
        for (left, word) in words {
            for (at, letter) in (0_u32..).zip(word.split_inclusive(|_: char| true)) {
                let left = left + f64::from(at) * 5.0;
                line.draw(letter, 10.0, (left, left + 5.0, 0.0), left - end);
                end = left + 5.0;
            }
        }
        line
    }

    #[test]
    fn cells_that_stand_below_one_another_are_a_table() {
        let lines = vec![
            drawn(&[(0.0, "Rooms"), (28.0, "and"), (46.0, "prices")]),
            drawn(&[(0.0, "Room"), (60.0, "Beds"), (100.0, "Price")]),
            // Right under its head, nothing in the middle.
            drawn(&[(0.0, "Blue"), (23.0, "room"), (115.0, "90")]),
            drawn(&[(0.0, "Red"), (70.0, "2"), (110.0, "1|0")]),
            // As many cells as columns, none of them below the others.
            drawn(&[(24.0, "\u{fb01}n"), (82.0, "-"), (140.0, "0")]),
            drawn(&[(0.0, "A line"), (45.0, "that goes on below two")]),
            drawn(&[(0.0, "left"), (300.0, "right")]),
            drawn(&[(100.0, "neither"), (200.0, "nor")]),
        ];
        let expected = "Rooms and prices\n\n\
            | Room | Beds | Price |\n| --- | --- | --- |\n| Blue room |  | 90 |\n| Red | 2 | 1\\|0 |\n| fin | - | 0 |\n\n\
            A line that goes on below two\nleft right\nneither nor\n\n";
        assert_eq!(markdown(&[lines]), expected);
    }

    /// Writes a word of letters so wide, as parts of their size.
    fn write(drawn: &mut Drawn, (x, y): (f64, f64), size: f64, width: f64, word: &str) {
        drawn.begin_word().expect("begun");
        for (at, letter) in (0_u32..).zip(word.split_inclusive(|_: char| true)) {
            let at = Transform::row_major(1.0, 0.0, 0.0, 1.0, x + f64::from(at) * width * size, y);
            drawn.output_character(&at, width, 0.0, size, letter).expect("drawn");
        }
    }

    #[test]
    fn widths_of_letters_may_be_listed_or_a_range() {
        let numbers = |numbers: &[i64]| numbers.iter().copied().map(Object::Integer).collect::<Vec<_>>();
        let list = |widths: &[i64]| Object::Array(numbers(widths));
        let mut font = Dictionary::new();
        font.set("Subtype", Object::Name(b"CIDFontType2".to_vec()));
        font.set("W", [numbers(&[1]), vec![list(&[500, 600])], numbers(&[7, 9, 611])].concat());
        let mut document = Document::new();
        let id = document.add_object(font.clone());
        list_widths(&mut document);
        let read = document.get_dictionary(id).and_then(|font| font.get(b"W")).expect("widths");
        let range = Object::Array(vec![Object::Real(611.0); 3]);
        let expected = vec![1.into(), list(&[500, 600]), 7.into(), range];
        assert_eq!(read, &Object::Array(expected));
        // What expands without end, or is no list, stays what it is.
        for broken in [vec![0, i64::MAX, 1], vec![i64::MIN, i64::MAX, 1], vec![1, 2], vec![1, MAX_WIDTHS + 1, 5]] {
            assert_eq!(listed(&numbers(&broken), &mut { MAX_WIDTHS }), None, "{broken:?}");
        }
        let many = numbers(&[0, 65_535, 500].repeat(5));
        assert_eq!(listed(&many, &mut { MAX_WIDTHS }), None, "together they are too many");
    }

    #[test]
    fn a_page_that_cannot_be_read_takes_no_other_with_it_and_lines_that_an_operator_begins_are_read() {
        let content = "BT /F 12 Tf 14 TL 10 150 Td (one) Tj (two's) ' 0 0 (four) \" ET";
        let page = |fonts: &str| {
            format!("<< /Type /Page /Parent 2 0 R /Contents 6 0 R /Resources << /Font << {fonts} >> >> >>")
        };
        let objects = [
            "<< /Type /Catalog /Pages 2 0 R >>".to_owned(),
            "<< /Type /Pages /Kids [3 0 R 4 0 R 5 0 R] /Count 3 /MediaBox [0 0 200 200] >>".to_owned(),
            page("/F 7 0 R"),
            // It names a font that is not there.
            page(""),
            page("/F 7 0 R"),
            format!("<< /Length {} >>\nstream\n{content}\nendstream", content.len()),
            "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>".to_owned(),
        ];
        let objects = (1..).zip(objects).map(|(number, object)| format!("{number} 0 obj\n{object}\nendobj\n"));
        let read = pdf(format!("%PDF-1.4\n{}", objects.collect::<String>()).as_bytes()).expect("text");
        let page = "one\ntwo\u{2019}s\nfour\n\n";
        assert_eq!(read, format!("# Page 1\n\n{page}\n\n# Page 3\n\n{page}Page 2 could not be read.\n"));
    }

    #[test]
    fn letters_are_one_line_as_far_as_they_are_set_as_one() {
        let mut drawn = Drawn::default();
        drawn.begin();
        for (at, size, width, word) in [
            ((0.0, 700.0), 36.0, 0.5, "Title"),
            ((0.0, 682.0), 12.0, 0.5, "right below it"),
            ((0.0, 650.0), 12.0, 0.5, "mc"),
            ((12.0, 654.0), 7.0, 0.5, "2"),
            ((18.0, 650.0), 12.0, 0.5, "raised"),
            ((0.0, 630.0), 12.0, 0.5, "\u{2022}"),
            ((20.0, 630.0), 12.0, 0.5, "One"),
            ((0.0, 615.0), 12.0, 0.5, "\u{2022}"),
            ((20.0, 615.0), 12.0, 0.5, "Two"),
            // An accent, and the letter below it.
            ((0.0, 590.0), 12.0, 0.5, "caf"),
            ((19.0, 590.0), 12.0, 0.4, "\u{b4}"),
            ((18.0, 590.0), 12.0, 0.5, "e"),
            // Wider than they are.
            ((60.0, 590.0), 12.0, 0.7, "Kingdom"),
            ((116.0, 590.0), 12.0, 0.7, "20"),
        ] {
            write(&mut drawn, at, size, width, word);
        }
        let expected = "# Title\n\nright below it\n\nmc2 raised\n\n- One\n- Two\n\ncaf\u{b4}e Kingdom 20\n\n";
        assert_eq!(markdown(&drawn.pages), expected);
    }

    #[test]
    fn cells_of_several_lines_are_one_cell_wherever_in_their_row_the_others_stand() {
        let mut drawn = Drawn::default();
        drawn.begin();
        let words = [
            // A paragraph, and a row of which the cells are set from the top.
            (0.0, 760.0, "Prices"),
            (0.0, 730.0, "Room"),
            (80.0, 730.0, "What it"),
            (80.0, 718.0, "has"),
            (160.0, 730.0, "Price"),
            // One of which the first has more than one line,
            (0.0, 698.0, "Blue at"),
            (0.0, 686.0, "the gar-"),
            (0.0, 674.0, "den"),
            (80.0, 698.0, "a bed"),
            (160.0, 698.0, "90 or"),
            (160.0, 686.0, "80"),
            // one in the middle of which the cells stand,
            (0.0, 648.0, "Red"),
            (80.0, 654.0, "a bed,"),
            (80.0, 642.0, "a lamp"),
            (160.0, 648.0, "110"),
            // one whose cells are full,
            (0.0, 634.0, "Grey, with two"),
            (0.0, 622.0, "beds"),
            (74.0, 634.0, "two lamps, some"),
            (74.0, 622.0, "books"),
            (154.0, 634.0, "70"),
            // and one with a tall one after it.
            (0.0, 588.0, "Green"),
            (80.0, 588.0, "nothing"),
            (160.0, 600.0, "1"),
            (160.0, 588.0, "2"),
            (160.0, 576.0, "3"),
            // Items that go on below themselves are no rows,
            (0.0, 500.0, "1."),
            (30.0, 500.0, "Open it"),
            (30.0, 488.0, "slowly"),
            (0.0, 476.0, "2."),
            (30.0, 476.0, "Close it"),
            // nor are columns of a newspaper.
            (0.0, 446.0, "Once there"),
            (0.0, 434.0, "was a king"),
            (100.0, 446.0, "who had"),
            (100.0, 434.0, "a house."),
        ];
        for (x, y, word) in words {
            write(&mut drawn, (x, y), 10.0, 0.5, word);
        }
        let expected = "Prices\n\n\
            | Room | What it has | Price |\n| --- | --- | --- |\n| Blue at the garden | a bed | 90 or 80 |\n\
            | Red | a bed, a lamp | 110 |\n| Grey, with two beds | two lamps, some books | 70 |\n| Green | nothing | 1 2 3 |\n\n\
            1. Open it\nslowly\n2. Close it\n\nOnce there\nwas a king\nwho had\na house.\n\n";
        assert_eq!(markdown(&drawn.pages), expected);
    }

    #[test]
    fn a_table_ends_at_a_heading_and_a_list_is_none() {
        let mut heading = drawn(&[(0.0, "2"), (60.0, "Methods")]);
        heading.sizes = 16.0 * f64::from(heading.letters);
        let lines = vec![
            drawn(&[(0.0, "Room"), (60.0, "Beds"), (100.0, "Price, in the currency of the country")]),
            Line::default(),
            drawn(&[(0.0, "Blue room"), (60.0, "2"), (115.0, "90")]),
            heading,
            drawn(&[(0.0, "\u{2022}"), (20.0, "One")]),
            drawn(&[(0.0, "\u{2022}"), (20.0, "Two")]),
            drawn(&[(0.0, "Jan."), (60.0, "100")]),
            drawn(&[(0.0, "Feb."), (60.0, "120")]),
        ];
        let expected = "| Room | Beds | Price, in the currency of the country |\n| --- | --- | --- |\n\
            | Blue room | 2 | 90 |\n\n# 2 Methods\n\n- One\n- Two\n\n\
            | Jan. | 100 |\n| --- | --- |\n| Feb. | 120 |\n\n";
        assert_eq!(markdown(&[lines]), expected);
    }
}
