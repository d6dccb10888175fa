//! Columns that every owner of a conversation has: open calls, compactions, secondary calls.

use diesel::{
    dsl::{AsExprOf, sql},
    expression::{SqlLiteral, UncheckedBind},
    sql_types::{Bool, Integer, Jsonb, Nullable, Text},
};
use platform_core::{Error, Result};
use platform_runtime::{OpenCall, SecondaryCall};
use serde_json::Value;

use crate::{message::secondary, turn_store::Compaction};

/// Text for a column of type json.
pub fn json(text: &str) -> SqlLiteral<Text, UncheckedBind<SqlLiteral<Text>, AsExprOf<&str, Text>>> {
    sql::<Text>("").bind::<Text, _>(text).sql("::json")
}

type Added = SqlLiteral<Nullable<Jsonb>, UncheckedBind<SqlLiteral<Nullable<Jsonb>>, AsExprOf<Value, Jsonb>>>;

/// What is in the column `secondary` together with more secondary calls.
pub fn add_secondary(asked: &[SecondaryCall]) -> Added {
    sql::<Nullable<Jsonb>>("add_secondary(secondary, ").bind::<Jsonb, _>(Value::Object(secondary(asked))).sql(")")
}

type Known = SqlLiteral<Bool, UncheckedBind<SqlLiteral<Bool>, AsExprOf<i32, Integer>>>;
type Longer = SqlLiteral<Nullable<Text>, UncheckedBind<SqlLiteral<Nullable<Text>>, AsExprOf<String, Text>>>;

/// Whether the column `compactions` holds so many.
pub fn has_compactions(known: usize) -> Known {
    let known = i32::try_from(known).unwrap_or(i32::MAX);
    sql::<Bool>("coalesce(json_array_length(compactions), 0) = ").bind::<Integer, _>(known).sql("")
}

/// What is in the column `compactions` together with one more.
pub fn add_compaction(compaction: &Compaction) -> Result<Longer> {
    let compaction = serde_json::to_string(&[compaction]).map_err(Error::internal)?;
    Ok(sql::<Nullable<Text>>("(coalesce(compactions::jsonb, '[]') || ")
        .bind::<Text, _>(compaction)
        .sql("::jsonb)::json"))
}

/// Compactions from JSON text.
pub fn compactions(stored: Option<&str>) -> Result<Vec<Compaction>> {
    stored.map_or(Ok(Vec::new()), |stored| serde_json::from_str(stored).map_err(Error::internal))
}

/// Open calls from JSON text.
pub fn open_calls(stored: Option<&str>) -> Result<Vec<OpenCall>> {
    let Some(stored) = stored else { return Ok(Vec::new()) };
    let mut open: Vec<OpenCall> = serde_json::from_str(stored).map_err(Error::internal)?;
    // What was stored before each had its place stands in the order of the calls.
    if open.iter().all(|open| open.after == 0) {
        (0..).zip(open.iter_mut().rev()).for_each(|(after, open)| open.after = after);
    }
    Ok(open)
}

/// Positions of the results of these open calls: results stand in the order of the calls of their answer, whenever they
/// come, and `message_count` counts those that are there.
pub fn result_positions(message_count: i32, open: &[OpenCall]) -> impl Iterator<Item = i32> {
    let end = message_count + i32::try_from(open.len()).unwrap_or(i32::MAX);
    open.iter().map(move |open| end - 1 - open.after)
}

/// Open calls as they are stored; none when there is none.
pub fn open_text(open: &[OpenCall]) -> Result<Option<String>> {
    if open.is_empty() {
        return Ok(None);
    }
    serde_json::to_string(open).map(Some).map_err(Error::internal)
}
