//! RSS, Atom and JSON feeds as lists of items.

use feed_rs::{model::Entry, parser};
use platform_core::{check_size, sha256_hex};
use serde_json::{Value, json};

/// Of one text of an item, in bytes.
const MOST_TEXT: usize = 65_536;
/// Elements of a feed: each is many times as large in memory.
const MOST_ELEMENTS: usize = 100_000;

/// The items of a feed: `{items: [{id, title, link, …}]}`; `None` when it is none.
pub(crate) fn read(bytes: &[u8]) -> Option<Value> {
    if !is_small(bytes) {
        return None;
    }
    let feed = parser::parse(bytes).ok()?;
    let items: Vec<Value> = feed.entries.into_iter().map(item).collect();
    Some(json!({"items": items}))
}

/// Whether all of a feed can be read.
fn is_small(bytes: &[u8]) -> bool {
    match bytes.iter().find(|byte| matches!(byte, b'<' | b'{')) {
        Some(b'<') => elements(bytes) <= MOST_ELEMENTS,
        _ => check_size(bytes).is_ok(),
    }
}

/// Elements of XML, without looking further than that: what is in texts and comments is none.
fn elements(mut bytes: &[u8]) -> usize {
    const SKIPPED: [(&[u8], &[u8]); 3] = [(b"<![CDATA[", b"]]>"), (b"<!--", b"-->"), (b"</", b">")];
    let mut found = 0;
    while let Some(at) = bytes.iter().position(|byte| *byte == b'<') {
        bytes = &bytes[at..];
        let skipped = SKIPPED.iter().find_map(|(begin, end)| Some((bytes.strip_prefix(*begin)?, *end)));
        bytes = if let Some((text, end)) = skipped {
            let ends = text.windows(end.len()).position(|here| here == end);
            &text[ends.unwrap_or(text.len())..]
        } else {
            found += 1;
            &bytes[1..]
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
        let feed = |item: &str, times: usize| {
            format!("<rss version=\"2.0\"><channel><title>a</title>{}</channel></rss>", item.repeat(times))
        };
        let item = format!("<item><title>a</title><description><![CDATA[{}]]></description></item>", "<p>".repeat(90));
        let read_of = |text: &str| read(text.as_bytes()).map(|feed| feed["items"].as_array().map_or(0, Vec::len));
        assert_eq!(read_of(&feed(&item, 2000)), Some(2000));
        assert_eq!(read_of(&feed("<item/>", 100_000)), None);
        assert_eq!(read_of(&format!("<!--<![CDATA[-->{}", feed("<item/>", 100_000))), None);
        let json = |item: &str, times: usize| {
            format!(
                "{{\"version\": \"https://jsonfeed.org/version/1\", \"title\": \"\", \"items\": [{}]}}",
                vec![item; times].join(",")
            )
        };
        assert_eq!(read_of(&json(r#"{"id": "1", "content_html": "<p><p><![CDATA["}"#, 900)), Some(900));
        assert_eq!(read_of(&json(r#"{"id": "1"}"#, 300_000)), None);
    }
}
