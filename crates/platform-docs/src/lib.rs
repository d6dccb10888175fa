//! Documentation pages, rendered.
//!
//! **Owns** no table; the endpoints `/v1/docs`. **Needs** nothing: the project's own pages are
//! compiled in, a directory of the operator's may add to them or replace them.
//!
//! **Invariants** (contract 16): a page is found in a table built at start, no path is ever made
//! from a request; raw HTML is escaped, links are http, https, mailto or relative.
//!
//! ```
//! # use platform_docs::Docs;
//! let docs = Docs::load(None).unwrap();
//! assert!(docs.list().docs.iter().any(|page| page.filename == "API"));
//! assert!(docs.html("API").unwrap().contains("<h1"));
//! assert_eq!(docs.markdown("../Cargo").unwrap_err().code().as_str(), "DOC_NOT_FOUND");
//! ```

pub mod code;
use std::{collections::BTreeMap, io, path::Path, time::UNIX_EPOCH};

use comrak::{Arena, Options, format_html, nodes::NodeValue, parse_document};
use platform_core::{Error, Result, Timestamp};
use serde::Serialize;
use utoipa::ToSchema;

#[expect(clippy::unreadable_literal, reason = "written by build.rs")]
/// Name, text and last change of each page of the project, and of each picture.
const BUNDLED: &[(&str, &str, u128)] = include!(concat!(env!("OUT_DIR"), "/pages.rs"));

/// A page in the table of contents.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct DocEntry {
    /// Name without extension.
    pub filename: String,
    /// Its first heading.
    pub title: String,
    /// When it was last changed.
    pub last_edit_timestamp_ms: Timestamp,
}

/// Answer of `GET /v1/docs`.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct DocList {
    /// All pages by name.
    pub docs: Vec<DocEntry>,
    /// How many.
    pub total: usize,
}

struct Page {
    entry: DocEntry,
    markdown: String,
    html: String,
}

/// All pages there are.
pub struct Docs(BTreeMap<String, Page>);

impl Docs {
    /// The bundled pages, and those of `extra`, which win.
    pub fn load(extra: Option<&Path>) -> io::Result<Self> {
        let mut pages = BTreeMap::new();
        for (file, text, edited_ms) in BUNDLED {
            if let Some(filename) = file.strip_suffix(".md") {
                add(&mut pages, filename, text, *edited_ms);
            }
        }
        for entry in extra.map(std::fs::read_dir).transpose()?.into_iter().flatten() {
            let path = entry?.path();
            if path.extension().is_none_or(|extension| extension != "md") {
                continue;
            }
            if let Some(filename) = path.file_stem().and_then(|stem| stem.to_str()) {
                let edited = std::fs::metadata(&path)?.modified()?.duration_since(UNIX_EPOCH).unwrap_or_default();
                add(&mut pages, filename, &std::fs::read_to_string(&path)?, edited.as_millis());
            }
        }
        Ok(Self(pages))
    }

    /// The table of contents.
    pub fn list(&self) -> DocList {
        DocList { docs: self.0.values().map(|page| page.entry.clone()).collect(), total: self.0.len() }
    }

    /// A page as an HTML fragment.
    pub fn html(&self, filename: &str) -> Result<&str> {
        Ok(&self.page(filename)?.html)
    }

    /// The source of a page.
    pub fn markdown(&self, filename: &str) -> Result<&str> {
        Ok(&self.page(filename)?.markdown)
    }

    fn page(&self, filename: &str) -> Result<&Page> {
        self.0.get(filename).ok_or_else(|| Error::not_found(code::DOC_NOT_FOUND, "page", filename))
    }
}

fn add(pages: &mut BTreeMap<String, Page>, filename: &str, markdown: &str, edited_ms: u128) {
    let good = (1..=100).contains(&filename.len())
        && filename.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
    if !good {
        return;
    }
    let heading = markdown.lines().find_map(|line| line.strip_prefix("# "));
    let entry = DocEntry {
        filename: filename.to_owned(),
        title: heading.unwrap_or(filename).trim().to_owned(),
        last_edit_timestamp_ms: Timestamp(i64::try_from(edited_ms).unwrap_or(0)),
    };
    let page = Page { entry, markdown: markdown.to_owned(), html: render(markdown) };
    pages.insert(filename.to_owned(), page);
}

fn render(markdown: &str) -> String {
    let mut options = Options::default();
    options.extension.table = true;
    options.extension.strikethrough = true;
    options.extension.autolink = true;
    options.extension.header_id_prefix = Some(String::new());
    options.render.escape = true;
    let arena = Arena::new();
    let root = parse_document(&arena, markdown, &options);
    for node in root.descendants() {
        if let NodeValue::Link(link) | NodeValue::Image(link) = &mut node.data.borrow_mut().value {
            if !is_allowed(&link.url) {
                link.url.clear();
            } else if !link.url.contains('/') {
                // Another page stands beside this one, under its bare name.
                link.url = link.url.replacen(".md", "", 1);
            }
        }
    }
    let mut html = String::new();
    // Writing to a String cannot fail.
    let _ = format_html(root, &options, &mut html);
    with_pictures(html)
}

/// The pictures that lie beside the bundled pages, in the place of what refers to them: a page has no others.
fn with_pictures(mut html: String) -> String {
    for (name, svg, _) in BUNDLED.iter().filter(|(file, ..)| file.strip_suffix(".svg").is_some()) {
        let Some(at) = html.find(&format!("<img src=\"{name}\"")) else { continue };
        let end = html[at..].find('>').map_or(html.len(), |end| at + end + 1);
        html.replace_range(at..end, svg);
    }
    html
}

fn is_allowed(url: &str) -> bool {
    let scheme = url.split_once(':').map(|(scheme, _)| scheme).filter(|scheme| !scheme.contains(['/', '?', '#']));
    scheme.is_none_or(|scheme| ["http", "https", "mailto"].iter().any(|good| scheme.eq_ignore_ascii_case(good)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_rendered_without_what_could_harm() {
        let html = render("# Hi\n\n<script>x</script>\n\n[a](javascript:alert(1)) [b](https://x.y) [c](PAGE.md#d)");
        assert!(!html.contains("<script>") && !html.contains("javascript:"), "{html}");
        assert!(
            html.contains("https://x.y") && html.contains("\"PAGE#d\"") && html.contains("&lt;script&gt;"),
            "{html}"
        );
    }
}
