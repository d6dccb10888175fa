//! Web pages become Markdown.

use std::rc::Rc;

use encoding_rs::Encoding;
use htmd::{
    Element, HtmlToMarkdown, Node,
    element_handler::{HandlerResult, Handlers},
};
use markup5ever_rcdom::NodeData;

/// A page says within so many bytes in which encoding it is (HTML §4.2.5.4).
const HEAD: usize = 1024;
/// What a cell holds where a table is there for the looks of a page.
const BLOCKS: [&str; 9] = ["h1", "h2", "h3", "h4", "h5", "h6", "ul", "ol", "table"];
/// Elements within each other.
const MAX_NESTED: usize = 1000;
/// How far an end is looked for among those that are open.
const NEAR: usize = 64;
/// What stands in them is no markup.
const RAW: [&str; 5] = ["script", "style", "textarea", "title", "xmp"];
/// Elements that need no end.
const UNCLOSED: [&str; 28] = [
    "area", "base", "br", "col", "colgroup", "dd", "dt", "embed", "hr", "img", "input", "li", "link", "meta",
    "optgroup", "option", "p", "param", "rp", "rt", "source", "tbody", "td", "tfoot", "th", "thead", "tr", "wbr",
];
/// Elements that are open whatever their tag ends with.
const BLOCKS_THAT_OPEN: [&str; 12] =
    ["article", "aside", "blockquote", "center", "div", "dl", "main", "ol", "section", "span", "table", "ul"];
/// Cells of a row; a wider one is cut.
const MAX_CELLS: usize = 1000;

/// The text of a page as Markdown, or why it cannot be read.
pub(crate) fn html(bytes: &[u8]) -> Result<String, String> {
    let text = decoded(bytes).ok_or("it is neither text in UTF-8 nor in the encoding that it names")?;
    // Each element looks through all that it stands in.
    if is_too_deep(&text) {
        return Err(format!("it has more than {MAX_NESTED} elements within each other"));
    }
    let converter = HtmlToMarkdown::builder()
        .skip_tags(vec!["script", "style", "noscript", "template"])
        .add_handler(vec!["img"], picture)
        .add_handler(vec!["table"], |handlers: &dyn Handlers, of: Element| Some(table(handlers, of.node).into()))
        .build();
    converter.convert(&text).map_err(|error| error.to_string())
}

/// Whether elements stand deeper within each other than they may, as far as their tags tell.
fn is_too_deep(text: &str) -> bool {
    let (mut open, mut rest): (Vec<String>, &str) = (Vec::new(), text);
    while let Some((_, tag)) = rest.split_once('<') {
        rest = tag;
        if let Some(comment) = tag.strip_prefix("!--") {
            rest = comment.split_once("-->").map_or("", |(_, after)| after);
            continue;
        }
        let (name, ends) = tag.strip_prefix('/').map_or((tag, false), |name| (name, true));
        let length = name.bytes().take_while(u8::is_ascii_alphanumeric).count();
        let name = name[..length].to_ascii_lowercase();
        if !name.starts_with(|c: char| c.is_ascii_alphabetic()) {
            continue;
        }
        if ends {
            // Of those within reach alone: a page of ends that close nothing costs no more than that.
            if let Some(at) = open.iter().rev().take(NEAR).position(|of| *of == name) {
                open.truncate(open.len() - 1 - at);
            }
        } else if RAW.contains(&name.as_str()) {
            let end = format!("</{name}");
            let at = tag.char_indices().map(|(at, _)| at).find(|at| {
                tag.as_bytes()[*at..].get(..end.len()).is_some_and(|text| text.eq_ignore_ascii_case(end.as_bytes()))
            });
            rest = at.map_or("", |at| &tag[at..]);
        } else if !UNCLOSED.contains(&name.as_str()) && !is_closed(tag, &name) {
            open.push(name);
            if open.len() > MAX_NESTED {
                return true;
            }
        }
    }
    false
}

/// Whether a tag closes its element itself, as those of drawings may; of most of HTML the mark means nothing.
fn is_closed(tag: &str, name: &str) -> bool {
    let closes = tag.split('>').next().is_some_and(|inside| inside.ends_with('/'));
    closes && !BLOCKS_THAT_OPEN.contains(&name)
}

fn decoded(bytes: &[u8]) -> Option<String> {
    let marked = Encoding::for_bom(bytes).map(|(encoding, _)| encoding);
    if let (None, Ok(text)) = (marked, std::str::from_utf8(bytes)) {
        return Some(text.to_owned());
    }
    let named = || {
        let head = String::from_utf8_lossy(&bytes[..bytes.len().min(HEAD)]).to_ascii_lowercase();
        let label = head.split_once("charset=")?.1.trim_start_matches(['"', '\'']);
        Encoding::for_label(label.split(['"', '\'', ';', ' ', '/', '>']).next()?.as_bytes())
    };
    let (text, _, is_broken) = marked.or_else(named)?.decode(bytes);
    (!is_broken).then(|| text.into_owned())
}

/// A picture that stands in the page itself is no text.
fn picture(handlers: &dyn Handlers, element: Element) -> Option<HandlerResult> {
    let of = |name: &str| element.attrs.iter().find(|attr| &*attr.name.local == name).map(|attr| attr.value.trim());
    if of("src").is_some_and(|src| src.starts_with("data:")) {
        return of("alt").map(HandlerResult::from);
    }
    handlers.fallback(element)
}

/// A table with all its cells where they stand; the first row is its head.
fn table(handlers: &dyn Handlers, node: &Rc<Node>) -> String {
    let mut rows = Vec::new();
    rows_of(node, &mut rows);
    let cells: Vec<Vec<Rc<Node>>> = rows.iter().map(|row| children(row, &["td", "th"])).collect();
    let columns = cells.iter().map(Vec::len).max().unwrap_or(0);
    let has_heads = cells.iter().flatten().any(|cell| tag(cell) == Some("th"));
    let is_layout = !has_heads && (columns < 2 || cells.iter().flatten().any(|cell| holds(cell, &BLOCKS)));
    if columns == 0 || is_layout {
        let text = handlers.walk_children(node).content;
        return format!("\n\n{}\n\n", text.trim_matches('\n'));
    }
    let mut text = String::from("\n\n");
    for caption in children(node, &["caption"]) {
        text.push_str(handlers.walk_children(&caption).content.trim());
        text.push_str("\n\n");
    }
    let rows: Vec<Vec<String>> = cells
        .iter()
        .map(|row| {
            row.iter()
                .flat_map(|cell| spread(cell, cell_of(&handlers.walk_children(cell).content)))
                .take(MAX_CELLS)
                .collect()
        })
        .filter(|row: &Vec<String>| !row.is_empty())
        .collect();
    text.push_str(&table_of(&rows));
    text.push('\n');
    text
}

/// A Markdown table of rows whose cells are cleaned with `cell_of`; the first row is its head.
pub(crate) fn table_of(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let mut text = String::new();
    for (at, row) in rows.iter().enumerate() {
        let rest = std::iter::repeat_n("", columns - row.len());
        for cell in row.iter().map(String::as_str).chain(rest) {
            text.extend(["| ", cell, " "]);
        }
        text.push_str("|\n");
        if at == 0 {
            text.push_str(&"| --- ".repeat(columns));
            text.push_str("|\n");
        }
    }
    text
}

/// What a cell of a Markdown table says, in one line.
pub(crate) fn cell_of(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|")
}

/// The rows of a table, those of tables in its cells aside.
fn rows_of(node: &Rc<Node>, rows: &mut Vec<Rc<Node>>) {
    for child in node.children.borrow().iter() {
        match tag(child) {
            Some("tr") => rows.push(Rc::clone(child)),
            Some("thead" | "tbody" | "tfoot") => rows_of(child, rows),
            _ => {}
        }
    }
}

/// A cell over several columns, with empty ones for the others.
fn spread(cell: &Rc<Node>, text: String) -> impl Iterator<Item = String> {
    let span = match &cell.data {
        NodeData::Element { attrs, .. } => {
            let attrs = attrs.borrow();
            attrs.iter().find(|attr| &*attr.name.local == "colspan").and_then(|attr| attr.value.trim().parse().ok())
        }
        _ => None,
    };
    let others = span.unwrap_or(1_usize).clamp(1, MAX_CELLS) - 1;
    std::iter::once(text).chain(std::iter::repeat_n(String::new(), others))
}

fn tag(node: &Rc<Node>) -> Option<&str> {
    match &node.data {
        NodeData::Element { name, .. } => Some(&name.local),
        _ => None,
    }
}

fn children(node: &Rc<Node>, tags: &[&str]) -> Vec<Rc<Node>> {
    let is_meant = |child: &&Rc<Node>| tag(child).is_some_and(|tag| tags.contains(&tag));
    node.children.borrow().iter().filter(is_meant).map(Rc::clone).collect()
}

/// Whether anything below a node is one of these.
fn holds(node: &Rc<Node>, tags: &[&str]) -> bool {
    let is_one = |child: &Rc<Node>| tag(child).is_some_and(|tag| tags.contains(&tag)) || holds(child, tags);
    node.children.borrow().iter().any(is_one)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_becomes_markdown_without_what_runs_and_with_every_cell_of_its_tables() {
        let text =
            html(b"<h1>Title</h1><script>alert(1)</script><ul><li>one</li></ul><img src=\"data:x,y\" alt=\"A cat\">");
        let text = text.expect("text");
        assert!(text.contains("# Title") && text.contains("one") && text.contains("A cat"), "{text}");
        assert!(!text.contains("alert") && !text.contains("data:"), "{text}");
        for (page, expected) in [
            ("<ul><li>one</li><li>two<ul><li>inner</li></ul></li></ul>", "*   one\n*   two\n    *   inner"),
            ("<ol><li>first</li><li>second</li></ol>", "1.  first\n2.  second"),
            (
                "<table><tr><th>Room</th><td>Blue</td></tr><tr><th>Price</th><td>90 | 80</td></tr></table>",
                "| Room | Blue |\n| --- | --- |\n| Price | 90 \\| 80 |\n",
            ),
            (
                "<table><thead><tr><th>Shift</th><th>Mon</th></tr><tr><th>x</th><th>y</th></tr></thead>\
                 <tbody><tr><th>Early</th><td>Ann<br>Bob</td></tr></tbody></table>",
                "| Shift | Mon |\n| --- | --- |\n| x | y |\n| Early | Ann Bob |\n",
            ),
            (
                "<table><caption>Rooms</caption><tr><td>a</td><td>b</td></tr><tr><td colspan=2>c</td></tr></table>",
                "Rooms\n\n| a | b |\n| --- | --- |\n| c |  |\n",
            ),
            ("<table><tr><td><h2>In it</h2><p>text</p></td><td>aside</td></tr></table>", "## In it\n\ntext"),
        ] {
            let text = html(page.as_bytes()).expect("text");
            assert!(text.contains(expected.trim_end()), "{page}\n{text}\n{expected}");
        }
    }

    #[test]
    fn a_page_is_read_in_the_encoding_that_it_names_or_not_at_all() {
        let german = b"<meta http-equiv=Content-Type content=\"text/html; charset=windows-1252\"><p>Gr\xf6\xdfe";
        assert!(html(german).expect("text").contains("Größe"));
        let units: Vec<u8> = "\u{feff}<p>Größe".encode_utf16().flat_map(u16::to_le_bytes).collect();
        assert!(html(&units).expect("text").contains("Größe"));
        assert!(html(b"<p>Gr\xf6\xdfe").is_err());
    }
}
