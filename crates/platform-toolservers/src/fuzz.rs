//! What must hold whatever a model gives a tool: for the fuzzer, and for generated cases in the tests.

use platform_core::Object;
use platform_egress::Url;
use serde_json::Value;

use crate::{definition::ToolDefinition, request};

/// Builds an address from one value in its path and one in its query: neither changes the shape of the other parts.
pub fn address(path: &str, query: &str) {
    let server = Url::parse("https://user@shop.example:8443/v2/?k=1").expect("a URL");
    let keys = |key: &str| vec![key.to_owned()];
    let tool = ToolDefinition {
        endpoint: "orders/${id}/lines".to_owned(),
        path_parameters_keys: keys("id"),
        query_parameters_keys: keys("q"),
        ..ToolDefinition::default()
    };
    let given: Object =
        [("id", path), ("q", query)].map(|(name, text)| (name.to_owned(), Value::from(text))).into_iter().collect();
    let Ok(url) = request::address(&server, &tool, &given) else {
        assert!(matches!(path, "" | "." | ".."), "{path:?} is refused");
        return;
    };
    assert_eq!((url.origin(), url.username(), url.fragment()), (server.origin(), "user", None));
    let segments: Vec<&str> = url.path_segments().expect("a path").collect();
    let [v2, orders, id, lines] = segments[..] else { panic!("{path:?} became {segments:?}") };
    assert_eq!((v2, orders, lines), ("v2", "orders", "lines"));
    let decoded = percent_encoding::percent_decode_str(id).decode_utf8().expect("text");
    assert_eq!(decoded, path);
    let pairs: Vec<(String, String)> = url.query_pairs().into_owned().collect();
    assert_eq!(pairs, [("k".to_owned(), "1".to_owned()), ("q".to_owned(), query.to_owned())]);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn an_argument_stays_in_its_place(
            path in prop_oneof![any::<String>(), "[./\\\\?#%&=@:;+$ {}2eEfF\t\r\n]{0,12}"],
            query in any::<String>(),
        ) {
            super::address(&path, &query);
        }
    }
}
