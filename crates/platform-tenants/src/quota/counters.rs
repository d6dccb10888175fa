//! The counters of rules, in SQL functions that other statements call.

use std::sync::Arc;

use diesel::{
    QueryableByName,
    sql_types::{BigInt, Integer, Jsonb, Nullable, Text},
};
use diesel_async::RunQueryDsl;
use platform_core::{AccountId, Error, Result, Timestamp};
use platform_db::{Conn, JsonStatement};
use platform_runtime::{Charge, Refusal};
use serde::Serialize;
use serde_json::{Value, json, value::RawValue};

use crate::{
    rule::{Effective, Metric, Rule, WindowUnit},
    usage::Reset,
};

/// Reserves in the statement of the caller: an expression over a JSON array of [`Charge::reserve`], each with its
/// index `n`. When one has no room the statement fails, and [`refusals`] says which.
pub const RESERVE: (&str, &str) = ("reserve_usage(coalesce(", ", '[]'), true)");
/// Settles in the statement of the caller: an expression over a JSON array of what a [`platform_runtime::UsageLedger`] gave.
pub const SETTLE: (&str, &str) = ("settle_usage(coalesce(", ", '[]'))");

/// What calls under way hold of a quota that is not spent is settled soon.
const HELD_SECONDS: u64 = 15;

/// A charge at its place in a group.
#[derive(Serialize)]
struct Numbered<'a> {
    n: usize,
    charge: &'a RawValue,
}

/// A rule as the SQL functions read it.
pub(crate) fn counted(found: &Effective) -> Value {
    let Rule { metric, window_unit, window_every, .. } = &found.rule;
    json!({"subtenant": found.subtenant, "metric": metric, "unit": window_unit, "every": window_every,
        "most": found.rule.most(), "tier": found.tier})
}

#[derive(QueryableByName)]
struct Refused {
    #[diesel(sql_type = Jsonb)]
    refused: Value,
}

pub(super) async fn reserve(conn: &mut Conn, charges: &[Charge]) -> Result<Vec<Option<Refusal>>> {
    let items: Vec<_> = charges
        .iter()
        .enumerate()
        .filter_map(|(n, charge)| Some(Numbered { n, charge: charge.reserve.as_ref()? }))
        .collect();
    let sql = "SELECT reserve_usage((SELECT jsonb_agg(x.charge || jsonb_build_object('n', x.n))
        FROM jsonb_to_recordset($1::jsonb) AS x(n integer, charge jsonb)), false) AS refused";
    let rows: Vec<Refused> = JsonStatement::new(sql, &items)?.load(conn).await?;
    let mut outcomes = vec![None; charges.len()];
    for row in rows {
        for (n, refusal) in read_refusals(&charges.iter().map(Some).collect::<Vec<_>>(), &row.refused) {
            outcomes[n] = Some(refusal);
        }
    }
    Ok(outcomes)
}

/// Which charges of a statement with [`RESERVE`] had no room, by their index; `None` when it failed for another reason.
pub fn refusals(charges: &[Option<&Charge>], error: &Error) -> Option<Vec<(usize, Refusal)>> {
    let diesel::result::Error::DatabaseError(_, info) = error.cause()?.downcast_ref()? else { return None };
    if info.message() != "USAGE_REFUSED" {
        return None;
    }
    let refused: Value = serde_json::from_str(info.details()?).ok()?;
    Some(read_refusals(charges, &refused))
}

fn read_refusals(charges: &[Option<&Charge>], refused: &Value) -> Vec<(usize, Refusal)> {
    let read = |found: &Value| {
        let n = usize::try_from(found["n"].as_u64()?).ok()?;
        let rule = usize::try_from(found["rule"].as_u64()?).ok()?;
        let named = (*charges.get(n)?)?.rules.get(rule)?.clone();
        let waits = found["waits"].as_u64().unwrap_or(1).max(1);
        let refusal = refusal(named, found["current"].as_i64()?, Timestamp(found["resets"].as_i64()?), waits);
        let is_held = refusal.current.as_f64()? < refusal.rule["limit"].as_f64()?;
        let retry_after = if is_held { waits.min(HELD_SECONDS) } else { waits };
        Some((n, Refusal { retry_after, ..refusal }))
    };
    refused.as_array().into_iter().flatten().filter_map(read).collect()
}

/// A refusal by a rule as it is named.
fn refusal(rule: Value, consumed: i64, resets_at: Timestamp, retry_after: u64) -> Refusal {
    let metric = Metric::of(rule["metric"].as_str().unwrap_or_default());
    let current = metric.shown(consumed);
    let every = match rule["windowEvery"].as_i64() {
        Some(1) | None => String::new(),
        Some(every) => format!("{every} "),
    };
    let unit = rule["windowUnit"].as_str().unwrap_or_default();
    let plural = if every.is_empty() { "" } else { "s" };
    let of = if metric == Metric::Cost { "USD" } else { "tokens" };
    let (taken, limit) = (short(&current), short(&rule["limit"]));
    let message = format!("Usage limit reached: {taken} / {limit} {of} per {every}{unit}{plural}");
    Refusal { message, rule, current, resets_at, retry_after }
}

/// A number for people: `115K`, `1.5M`, `0.25`.
fn short(number: &Value) -> String {
    let number = number.as_f64().unwrap_or_default();
    let (scaled, unit) = match number {
        n if n >= 1e9 => (n / 1e9, "B"),
        n if n >= 1e6 => (n / 1e6, "M"),
        n if n >= 1e3 => (n / 1e3, "K"),
        n => (n, ""),
    };
    let digits = if unit.is_empty() { 4 } else { 1 };
    let text = format!("{scaled:.digits$}");
    let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    format!("{text}{unit}")
}

pub(super) async fn settle_all(conn: &mut Conn, took: &[Arc<RawValue>]) -> Result<Vec<()>> {
    settle_in(conn, took).await?;
    Ok(vec![(); took.len()])
}

/// Writes down what a [`platform_runtime::UsageLedger`] gave, in the caller's transaction.
pub async fn settle_in(conn: &mut Conn, took: &[Arc<RawValue>]) -> Result<()> {
    if took.is_empty() {
        return Ok(());
    }
    #[derive(QueryableByName)]
    struct Done {
        #[diesel(sql_type = Integer)]
        #[expect(dead_code, reason = "a row that nobody reads")]
        settled: i32,
    }
    let sql = "SELECT settle_usage($1::jsonb) AS settled";
    let _: Vec<Done> = JsonStatement::new(sql, took)?.load(conn).await?;
    Ok(())
}

/// What a rule has counted in its window of now.
#[derive(QueryableByName)]
pub(crate) struct Counter {
    #[diesel(sql_type = BigInt)]
    pub consumed: i64,
    #[diesel(sql_type = BigInt)]
    pub external: i64,
    #[diesel(sql_type = BigInt)]
    pub resets_ms: i64,
    #[diesel(sql_type = BigInt)]
    pub waits: i64,
}

impl Counter {
    pub fn has_spent(&self, found: &Effective) -> bool {
        self.consumed >= found.rule.most()
    }
}

/// The refusal of a tenant one of whose rules is spent, by the one that is so for longest.
pub(crate) async fn spent(
    conn: &Conn,
    account: &AccountId,
    tenant: &str,
    rules: &[Effective],
) -> Result<Option<Refusal>> {
    let counters = counters(conn, account, rules.iter().map(|found| (tenant, found))).await?;
    let spent = rules.iter().zip(&counters).filter(|(found, counter)| counter.has_spent(found));
    Ok(spent.max_by_key(|(_, counter)| counter.resets_ms).map(|(found, counter)| {
        let (resets, waits) = (Timestamp(counter.resets_ms), counter.waits.unsigned_abs().max(1));
        refusal(found.named(), counter.consumed, resets, waits)
    }))
}

/// The counters of rules of these tenants in the windows of now.
pub(crate) async fn counters(
    conn: &Conn,
    account: &AccountId,
    rules: impl Iterator<Item = (&str, &Effective)>,
) -> Result<Vec<Counter>> {
    let mut conn = conn;
    let of = |(tenant, found): (&str, &Effective)| json!({"tenant": tenant, "rule": counted(found)});
    let rules: Vec<Value> = rules.map(of).collect();
    if rules.is_empty() {
        return Ok(Vec::new());
    }
    let sql = "SELECT coalesce(c.consumed, 0) AS consumed, coalesce(c.external, 0) AS external,
            usage_start(r.unit, r.every, r.key + 1) AS resets_ms,
            ceil((usage_start(r.unit, r.every, r.key + 1) - extract(epoch FROM usage_clock()) * 1000) / 1000)::bigint
                AS waits
        FROM (SELECT tenant, body ->> 'subtenant' AS subtenant, body ->> 'metric' AS metric, body ->> 'unit' AS unit,
                (body ->> 'every')::integer AS every, position,
                usage_window(body ->> 'unit', (body ->> 'every')::integer, usage_clock()) AS key
            FROM jsonb_array_elements($2) WITH ORDINALITY AS x(of, position),
                LATERAL (SELECT of ->> 'tenant' AS tenant, of -> 'rule' AS body) AS named) AS r
        LEFT JOIN usage_counters c ON c.account_id = $1 AND c.tenant_id = r.tenant AND c.subtenant_id = r.subtenant
            AND c.metric = r.metric AND c.window_unit = r.unit AND c.window_every = r.every AND c.window_key = r.key
        ORDER BY r.position";
    Ok(diesel::sql_query(sql)
        .bind::<Text, _>(account.as_str())
        .bind::<Jsonb, _>(Value::from(rules))
        .load(&mut conn)
        .await?)
}

/// Clears the counters of the windows of now; how many held something.
pub(crate) async fn clear(
    conn: &mut Conn,
    account: &AccountId,
    tenant: &str,
    subtenant: Option<&str>,
    which: &Reset,
) -> Result<usize> {
    diesel::sql_query("SELECT lock_usage($1, $2)")
        .bind::<Text, _>(account.as_str())
        .bind::<Text, _>(tenant)
        .execute(conn)
        .await?;
    let sql = "UPDATE usage_counters SET consumed = 0, exempt = 0, external = 0
        WHERE account_id = $1 AND tenant_id = $2 AND subtenant_id = $3 AND ($4 IS NULL OR metric = $4)
            AND ($5 IS NULL OR window_unit = $5) AND (consumed > 0 OR exempt > 0)
            AND ends_ms > extract(epoch FROM usage_clock()) * 1000";
    Ok(diesel::sql_query(sql)
        .bind::<Text, _>(account.as_str())
        .bind::<Text, _>(tenant)
        .bind::<Text, _>(subtenant.unwrap_or_default())
        .bind::<Nullable<Text>, _>(which.metric.map(Metric::as_str))
        .bind::<Nullable<Text>, _>(which.window_unit.map(WindowUnit::as_str))
        .execute(conn)
        .await?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_says_how_much_of_what_was_taken() {
        let message = |rule: Value, consumed: i64| refusal(rule, consumed, Timestamp(0), 1).message;
        let tokens = json!({"metric": "tokens", "windowUnit": "month", "windowEvery": 1, "limit": 100_000});
        assert_eq!(message(tokens, 115_000), "Usage limit reached: 115K / 100K tokens per month");
        let dollars = json!({"metric": "cost", "windowUnit": "day", "windowEvery": 7, "limit": 0.5});
        assert_eq!(message(dollars, 510_000_000), "Usage limit reached: 0.51 / 0.5 USD per 7 days");
    }
}
