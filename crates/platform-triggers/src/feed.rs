//! RSS, Atom and JSON feeds as lists of items.

use feed_rs::{model::Entry, parser};
use platform_core::sha256_hex;
use serde_json::{Value, json};

/// Of one text of an item, in bytes.
const MOST_TEXT: usize = 65_536;

/// The items of a feed: `{items: [{id, title, link, …}]}`; `None` when it is none.
pub(crate) fn read(bytes: &[u8]) -> Option<Value> {
    let feed = parser::parse(bytes).ok()?;
    let items: Vec<Value> = feed.entries.into_iter().map(item).collect();
    Some(json!({"items": items}))
}

fn item(entry: Entry) -> Value {
    let cut = |text: String| text[..text.floor_char_boundary(MOST_TEXT)].to_owned();
    let link = entry.links.first().map(|link| link.href.clone());
    let title = entry.title.map(|title| title.content);
    let id = if entry.id.is_empty() { link.clone().or_else(|| title.clone()).unwrap_or_default() } else { entry.id };
    let id = if id.len() > 512 { sha256_hex(&id) } else { id };
    json!({
        "id": id,
        "title": title.map(cut),
        "link": link,
        "summary": entry.summary.map(|summary| cut(summary.content)),
        "content": entry.content.and_then(|content| content.body).map(cut),
        "author": entry.authors.first().map(|author| author.name.clone()),
        "categories": entry.categories.into_iter().map(|category| category.term).take(50).collect::<Vec<_>>(),
        "publishedAt": entry.published.or(entry.updated).map(|at| platform_core::Timestamp(at.timestamp_millis()).to_iso()),
    })
}
