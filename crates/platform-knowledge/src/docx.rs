//! Word files become Markdown.

use std::io::{Cursor, Read, Write};

use crate::pdf::DAMAGED;
use undoc::{
    model::{Block, ListInfo, ListType, Paragraph},
    render::{RenderOptions, to_markdown},
};
use zip::{CompressionMethod, ZipArchive, ZipWriter, result::ZipResult, write::SimpleFileOptions};

/// What the parts of a document may have together, texts once they are expanded, in bytes.
const MAX_EXPANDED: u64 = 64 << 20;

pub(crate) fn docx(bytes: &[u8]) -> Result<String, String> {
    let unreadable = |_| DAMAGED.to_owned();
    let expanded =
        expanded(bytes).map_err(|_| "it is damaged: it is no archive of parts as Word writes it".to_owned())?;
    let expanded = expanded.ok_or_else(|| format!("its parts have more than {MAX_EXPANDED} bytes"))?;
    let mut document = undoc::parse_bytes(&expanded).map_err(unreadable)?;
    for section in &mut document.sections {
        list_by_style(&mut section.content);
    }
    let options = RenderOptions { max_heading_level: 6, preserve_line_breaks: true, ..RenderOptions::default() };
    to_markdown(&document, &options).map_err(unreadable)
}

/// The same document with its texts as they are, since the library takes a table of like cells for an attack: they shrink
/// that much. `None` when they have too many bytes.
fn expanded(bytes: &[u8]) -> ZipResult<Option<Vec<u8>>> {
    let mut parts = ZipArchive::new(Cursor::new(bytes))?;
    let mut written = ZipWriter::new(Cursor::new(Vec::new()));
    let mut left = MAX_EXPANDED;
    for at in 0..parts.len() {
        let part = parts.by_index(at)?;
        let name = part.name()?.into_owned();
        if ![".xml", ".rels"].iter().any(|kind| name.to_ascii_lowercase().ends_with(kind)) {
            let Some(rest) = left.checked_sub(part.compressed_size()) else { return Ok(None) };
            left = rest;
            written.raw_copy_file(part)?;
            continue;
        }
        let mut text = Vec::new();
        part.take(left + 1).read_to_end(&mut text)?;
        let Some(rest) = left.checked_sub(text.len() as u64) else { return Ok(None) };
        left = rest;
        written.start_file(name, SimpleFileOptions::default().compression_method(CompressionMethod::Stored))?;
        written.write_all(&text)?;
    }
    Ok(Some(written.finish()?.into_inner()))
}

/// Paragraphs in Word's own styles of lists are items, also where they say nothing of a list themselves.
fn list_by_style(blocks: &mut [Block]) {
    // Of the numbered items so far, by level.
    let mut numbers: Vec<u32> = Vec::new();
    for block in blocks {
        let item = match block {
            Block::Paragraph(paragraph) => list_of_style(paragraph).map(|list| (paragraph, list)),
            _ => None,
        };
        let Some((paragraph, (list_type, level))) = item else {
            numbers.clear();
            continue;
        };
        numbers.resize(usize::from(level) + 1, 0);
        let number = (list_type == ListType::Numbered).then(|| {
            numbers[usize::from(level)] += 1;
            numbers[usize::from(level)]
        });
        paragraph.list_info.get_or_insert(ListInfo { list_type, level, number, marker_image: None });
    }
}

/// Kind and level of the list that a style is for: `List Bullet`, `List Number 2` … to 5 (ECMA-376, built-in styles).
fn list_of_style(paragraph: &Paragraph) -> Option<(ListType, u8)> {
    let style = paragraph.style_name.as_ref().or(paragraph.style_id.as_ref())?;
    let style = style.to_lowercase().replace(' ', "");
    let (list_type, level) = match (style.strip_prefix("listbullet"), style.strip_prefix("listnumber")) {
        (Some(level), _) => (ListType::Bullet, level),
        (_, Some(level)) => (ListType::Numbered, level),
        _ => return None,
    };
    match level {
        "" => Some((list_type, 0)),
        "2" | "3" | "4" | "5" => Some((list_type, level.parse::<u8>().ok()? - 1)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_table_of_like_cells_is_no_attack() {
        let row = format!("<w:tr>{}</w:tr>", "<w:tc><w:p><w:r><w:t>7</w:t></w:r></w:p></w:tc>".repeat(6));
        let table = format!("<w:tbl>{}</w:tbl>", row.repeat(1500));
        let of_word = "http://schemas.openxmlformats.org/wordprocessingml/2006/main";
        let document = format!("<w:document xmlns:w=\"{of_word}\"><w:body>{table}</w:body></w:document>");
        let types = "<Types xmlns=\"http://schemas.openxmlformats.org/package/2006/content-types\">\
            <Override PartName=\"/word/document.xml\" ContentType=\"application/vnd.openxmlformats-officedocument.wordprocessingml.document.main+xml\"/></Types>";
        let relations = "<Relationships xmlns=\"http://schemas.openxmlformats.org/package/2006/relationships\">\
            <Relationship Id=\"r1\" Type=\"http://schemas.openxmlformats.org/officeDocument/2006/relationships/officeDocument\" Target=\"word/document.xml\"/></Relationships>";
        let mut file = ZipWriter::new(Cursor::new(Vec::new()));
        for (name, text) in
            [("[Content_Types].xml", types), ("_rels/.rels", relations), ("word/document.xml", &document)]
        {
            file.start_file(name, SimpleFileOptions::default()).expect("begun");
            file.write_all(text.as_bytes()).expect("written");
        }
        let bytes = file.finish().expect("a file").into_inner();
        assert!(bytes.len() * 100 < document.len(), "{} of {}", bytes.len(), document.len());
        let read = docx(&bytes).expect("text");
        assert_eq!(read.matches('7').count(), 9000, "{}", &read[..200.min(read.len())]);
    }
}
