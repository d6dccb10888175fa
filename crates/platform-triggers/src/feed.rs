//! RSS, Atom and JSON feeds as lists of items.

use feed_rs::{
    model::{Entry, Link, Text},
    parser,
};
use platform_core::{check_size, sha256_hex};
use serde_json::{Value, json};

/// Of one text of an item, in bytes.
const MAX_TEXT: usize = 65_536;
/// Elements of a feed: each is many times as large in memory.
const MAX_ELEMENTS: usize = 100_000;

/// The items of a feed: `{items: [{id, title, link, …}]}`; `None` when it is none.
pub(crate) fn read(bytes: &[u8]) -> Option<Value> {
    if !is_small(bytes) {
        return None;
    }
    // Without an id and a link an item is told by what it says, the same at every reading.
    let id = |links: &[Link], title: &Option<Text>, uri: Option<&str>| {
        if links.is_empty() { String::new() } else { parser::generate_id(links, title, uri) }
    };
    let parser = parser::Builder::new().id_generator(id).build();
    let feed = parser.parse(bytes).ok()?;
    let items: Vec<Value> = feed.entries.into_iter().map(item).collect();
    Some(json!({"items": items}))
}

/// Whether all of a feed can be read.
fn is_small(bytes: &[u8]) -> bool {
    match bytes.iter().find(|byte| matches!(byte, b'<' | b'{')) {
        Some(b'<') => elements(bytes) <= MAX_ELEMENTS,
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
    let cut = |text: String| text[..text.floor_char_boundary(MAX_TEXT)].to_owned();
    let link = entry.links.first().map(|link| link.href.clone());
    let title = entry.title.map(|title| title.content);
    let said = || {
        let summary = entry.summary.as_ref().map(|summary| &summary.content);
        sha256_hex(json!([title, summary, entry.published.map(|at| at.timestamp_millis())]).to_string())
    };
    let id = if entry.id.is_empty() { said() } else { entry.id };
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
    fn an_item_without_an_id_has_the_same_at_every_reading() {
        let feed = |items: &str| format!("<rss version=\"2.0\"><channel><title>a</title>{items}</channel></rss>");
        let ids = |items: &str| -> Vec<String> {
            let found = read(feed(items).as_bytes()).expect("a feed");
            found["items"]
                .as_array()
                .expect("items")
                .iter()
                .map(|item| item["id"].as_str().expect("an id").to_owned())
                .collect()
        };
        let plain = "<item><title>A</title><description>x</description></item><item><title>A</title></item>";
        let (first, again) = (ids(plain), ids(plain));
        assert_eq!(first, again);
        assert_ne!(first[0], first[1], "they say different things");
        let linked = "<item><title>A</title><link>https://a.example/</link></item>";
        let named = format!("<item><guid>g</guid></item>{linked}{}", linked.replace('A', "B"));
        let found = ids(&named);
        assert_eq!((found[0].as_str(), &found), ("g", &ids(&named)));
        assert_ne!(found[1], found[2], "they have one link and two titles");
    }

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
