//! RSS, Atom and JSON feeds as lists of items.

use feed_rs::{model::Entry, parser};
use platform_core::sha256_hex;
use serde_json::{Value, json};

/// Of one text of an item, in bytes.
const MOST_TEXT: usize = 65_536;
/// Elements and objects of a feed: each is many times as large in memory.
const MOST_ELEMENTS: usize = 100_000;

/// The items of a feed: `{items: [{id, title, link, …}]}`; `None` when it is none.
pub(crate) fn read(bytes: &[u8]) -> Option<Value> {
    if elements(bytes) > MOST_ELEMENTS {
        return None;
    }
    let feed = parser::parse(bytes).ok()?;
    let items: Vec<Value> = feed.entries.into_iter().map(item).collect();
    Some(json!({"items": items}))
}

/// Elements of XML or objects of JSON, without looking further than that.
fn elements(mut bytes: &[u8]) -> usize {
    const TEXT: (&[u8], &[u8]) = (b"<![CDATA[", b"]]>");
    let mut found = 0;
    while let Some(at) = bytes.iter().position(|byte| matches!(byte, b'<' | b'{')) {
        bytes = &bytes[at..];
        let text = bytes.strip_prefix(TEXT.0);
        found += usize::from(text.is_none());
        // What is a text within is none of the feed's.
        bytes = match text {
            Some(text) => {
                let end = text.windows(TEXT.1.len()).position(|end| end == TEXT.1);
                &text[end.unwrap_or(text.len())..]
            }
            None => &bytes[1..],
        };
    }
    found
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_feed_of_very_many_elements_is_none_whatever_its_texts_hold() {
        let feed = |item: &str, times: usize| format!("<rss><channel>{}</channel></rss>", item.repeat(times));
        let item = format!("<item><title>a</title><description><![CDATA[{}]]></description></item>", "<p>".repeat(90));
        let read_of = |text: &str| read(text.as_bytes()).map(|feed| feed["items"].as_array().map_or(0, Vec::len));
        assert_eq!(read_of(&feed(&item, 2000)), Some(2000));
        assert_eq!(read_of(&feed("<item/>", 100_000)), None);
        assert_eq!(read_of(&format!("{{\"items\": [{}]}}", vec!["{}"; 100_001].join(","))), None);
    }
}
