//! Lists of at most so many bytes: a page is shorter then, and says so.

use std::collections::BTreeMap;

use platform_core::{Error, Result, fitting};
use serde_json::value::{RawValue, to_raw_value};

/// Bytes that a list has at most; one record there is in any case.
pub(crate) const MAX_BYTES: usize = 8 << 20;

type Items = Vec<Box<RawValue>>;

/// A list within its bound, and how many there are in all where only its length said so. The `limit` of a page is as
/// many as it has, so that who goes on by it misses nothing; what is no list stays as it is.
pub(crate) fn bounded(json: String) -> Result<(String, Option<usize>)> {
    if json.len() <= MAX_BYTES {
        return Ok((json, None));
    }
    if json.starts_with('[') {
        let items: Items = serde_json::from_str(&json).map_err(Error::internal)?;
        let kept = &items[..kept(&items, MAX_BYTES)];
        return Ok((serde_json::to_string(kept).map_err(Error::internal)?, Some(items.len())));
    }
    let mut page: BTreeMap<String, Box<RawValue>> = serde_json::from_str(&json).map_err(Error::internal)?;
    let number = |name: &str| page.get(name).and_then(|value| serde_json::from_str::<usize>(value.get()).ok());
    let (Some(total), Some(_), Some(offset)) = (number("total"), number("limit"), number("offset")) else {
        return Ok((json, None));
    };
    let lists: Vec<String> =
        page.iter().filter(|(_, value)| value.get().starts_with('[')).map(|(name, _)| name.clone()).collect();
    let mut fits = usize::MAX;
    for name in &lists {
        let items: Items = serde_json::from_str(page[name].get()).map_err(Error::internal)?;
        fits = fits.min(kept(&items, MAX_BYTES / lists.len()));
    }
    for name in &lists {
        let items: Items = serde_json::from_str(page[name].get()).map_err(Error::internal)?;
        let items = to_raw_value(&items[..fits.min(items.len())]).map_err(Error::internal)?;
        page.insert(name.clone(), items);
    }
    page.insert("limit".to_owned(), to_raw_value(&fits).map_err(Error::internal)?);
    if let Some(has_more) = page.get_mut("hasMore") {
        *has_more = to_raw_value(&(offset + fits < total)).map_err(Error::internal)?;
    }
    Ok((serde_json::to_string(&page).map_err(Error::internal)?, None))
}

/// How many of the first items a list of so many bytes has.
fn kept(items: &Items, most: usize) -> usize {
    fitting(items.iter().map(|item| item.get().len() + 1), most).min(items.len())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_list_that_is_too_large_is_shorter_and_says_so() {
        let items: Vec<Value> = (0..40).map(|at| json!({"at": at, "text": "x".repeat(400_000)})).collect();
        let page = json!({"agents": items, "total": 90, "offset": 50, "limit": 40, "hasMore": false});
        let (cut, _) = bounded(page.to_string()).expect("a page");
        let cut: Value = serde_json::from_str(&cut).expect("JSON");
        let kept = cut["agents"].as_array().expect("items").len();
        assert!((15..21).contains(&kept), "{kept}");
        assert_eq!((&cut["limit"], &cut["total"], &cut["hasMore"]), (&json!(kept), &json!(90), &json!(true)));
        let (cut, total) = bounded(Value::from(items.clone()).to_string()).expect("a list");
        assert!(cut.len() <= MAX_BYTES && total == Some(40));
        let record = json!({"_id": "a", "items": items}).to_string();
        assert_eq!(bounded(record.clone()).expect("a record"), (record, None));
        let (one, _) = bounded(json!(["x".repeat(MAX_BYTES), "y"]).to_string()).expect("a list");
        assert_eq!(serde_json::from_str::<Vec<String>>(&one).expect("JSON").len(), 1);
    }
}
