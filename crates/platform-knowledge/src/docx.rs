//! Word files become Markdown.

use undoc::{
    model::{Block, ListInfo, ListType, Paragraph},
    render::{RenderOptions, to_markdown},
};

pub(crate) fn docx(bytes: &[u8]) -> Result<String, String> {
    let mut document = undoc::parse_bytes(bytes).map_err(|error| error.to_string())?;
    for section in &mut document.sections {
        list_by_style(&mut section.content);
    }
    let options = RenderOptions { max_heading_level: 6, preserve_line_breaks: true, ..RenderOptions::default() };
    to_markdown(&document, &options).map_err(|error| error.to_string())
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
