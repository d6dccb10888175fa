//! What agents took, by day (contract 03 §9).

use std::collections::BTreeMap;

use chrono::NaiveDate;
use diesel::{
    QueryableByName,
    sql_types::{BigInt, Date, Nullable, Text},
};
use diesel_async::RunQueryDsl;
use platform_core::{AccountId, Money, Period, Result, Timestamp, day_of};
use platform_db::{Conn, JsonStatement};
use platform_runtime::Usage;
use platform_tenants::Currency;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;

use crate::thread::Record;

/// What an agent took in a day or a month.
#[derive(Debug, Clone, Default, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct CostRow {
    /// The day, `YYYY-MM-DD` in UTC.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub date: Option<String>,
    /// The month, `YYYY-MM`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub month: Option<String>,
    /// US dollars, without what secondary calls took.
    pub total_cost: Money,
    /// Prompt tokens.
    pub input_tokens: i64,
    /// Answer tokens.
    pub output_tokens: i64,
    /// Threads that were made.
    pub thread_count: i64,
    /// Cached prompt tokens.
    pub input_cached_tokens: i64,
    /// Prompt tokens written to a cache.
    pub input_cache_write_tokens: i64,
    /// Answer tokens of reasoning.
    pub reasoning_output_tokens: i64,
    /// US dollars of evaluations, guardrails and the like.
    pub secondary_cost: Money,
    /// Always `USD`.
    #[schema(value_type = String)]
    pub currency: Currency,
}

/// Today, and the month up to now.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct CostSummary {
    /// Today, in UTC.
    pub today: CostRow,
    /// This month.
    pub current_month: CostRow,
}

/// Which days or months.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DailyRange {
    /// The first day, `YYYY-MM-DD`; absent = 29 days before the last.
    pub start_date: Option<String>,
    /// The last day; absent = today.
    pub end_date: Option<String>,
    /// Rows for days without activity, too.
    pub fill: Option<bool>,
}

/// Which months.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct MonthlyRange {
    /// The first month, `YYYY-MM`; absent = 11 months before the last.
    pub start_month: Option<String>,
    /// The last month; absent = this one.
    pub end_month: Option<String>,
    /// Rows for months without activity, too.
    pub fill: Option<bool>,
}

const ADD: &str = "WITH item AS (
        SELECT * FROM jsonb_to_recordset($1::jsonb) AS x(account text, agent text, day date, cost bigint,
            secondary bigint, input bigint, output bigint, cached bigint, written bigint, reasoning bigint, threads bigint)
    )
    INSERT INTO agent_costs AS c SELECT account, agent, day, cost, secondary, input, output, cached, written, reasoning,
        threads FROM item
    ON CONFLICT (account_id, agent_id, day) DO UPDATE SET cost = c.cost + excluded.cost,
        secondary_cost = c.secondary_cost + excluded.secondary_cost,
        input_tokens = c.input_tokens + excluded.input_tokens,
        output_tokens = c.output_tokens + excluded.output_tokens,
        input_cached_tokens = c.input_cached_tokens + excluded.input_cached_tokens,
        input_cache_write_tokens = c.input_cache_write_tokens + excluded.input_cache_write_tokens,
        reasoning_output_tokens = c.reasoning_output_tokens + excluded.reasoning_output_tokens,
        threads = c.threads + excluded.threads";

/// Adds what threads took since they were read, in the transaction that stores them. Rows are taken in one order by all.
pub(crate) async fn add_in<'a>(
    conn: &mut Conn,
    records: impl Iterator<Item = &'a Record>,
    now: Timestamp,
) -> Result<()> {
    let mut days: BTreeMap<(&str, &str), Took> = BTreeMap::new();
    for record in records {
        let took = Took::of(record);
        if took != Took::default() {
            days.entry((record.account.as_str(), record.agent_id())).or_default().add(&took);
        }
    }
    let day = day_of(now);
    let rows: Vec<Value> = days
        .into_iter()
        .map(|((account, agent), took)| {
            json!({"account": account, "agent": agent, "day": day, "cost": took.cost, "secondary": 0,
                "input": took.tokens[0], "output": took.tokens[1], "cached": took.tokens[2], "written": took.tokens[3],
                "reasoning": took.tokens[4], "threads": took.threads})
        })
        .collect();
    if !rows.is_empty() {
        JsonStatement::new(ADD, &rows)?.execute(conn).await?;
    }
    Ok(())
}

/// What threads took.
#[derive(Default, PartialEq)]
struct Took {
    cost: i64,
    /// Prompt and answer tokens, those cached, written to a cache, and of reasoning.
    tokens: [i64; 5],
    threads: i64,
}

impl Took {
    fn of(record: &Record) -> Self {
        let (before, after) = (&record.usage_before, &record.usage);
        let tokens = |of: fn(&Usage) -> u64| {
            let count = |usage: &Usage| i64::try_from(of(usage)).unwrap_or(i64::MAX);
            count(&after.tokens) - count(&before.tokens)
        };
        Self {
            cost: after.cost.total_cost.nanos() - before.cost.total_cost.nanos(),
            tokens: [
                tokens(|usage| usage.input_tokens),
                tokens(|usage| usage.output_tokens),
                tokens(|usage| usage.input_cached_tokens),
                tokens(|usage| usage.input_cache_write_tokens),
                tokens(|usage| usage.reasoning_output_tokens),
            ],
            threads: i64::from(record.is_new()),
        }
    }

    fn add(&mut self, more: &Self) {
        self.cost += more.cost;
        self.tokens.iter_mut().zip(more.tokens).for_each(|(tokens, more)| *tokens += more);
        self.threads += more.threads;
    }
}

/// Adds the price of secondary calls.
pub(crate) async fn add_secondary_in(
    conn: &mut Conn,
    account: &AccountId,
    agent: &str,
    nanos: i64,
    now: Timestamp,
) -> Result<()> {
    let row = json!({"account": account, "agent": agent, "day": day_of(now), "cost": 0, "secondary": nanos,
        "input": 0, "output": 0, "cached": 0, "written": 0, "reasoning": 0, "threads": 0});
    JsonStatement::new(ADD, &[row])?.execute(conn).await?;
    Ok(())
}

#[derive(QueryableByName)]
struct Sums {
    #[diesel(sql_type = Nullable<Date>)]
    period: Option<NaiveDate>,
    #[diesel(sql_type = BigInt)]
    cost: i64,
    #[diesel(sql_type = BigInt)]
    secondary_cost: i64,
    #[diesel(sql_type = BigInt)]
    input_tokens: i64,
    #[diesel(sql_type = BigInt)]
    output_tokens: i64,
    #[diesel(sql_type = BigInt)]
    input_cached_tokens: i64,
    #[diesel(sql_type = BigInt)]
    input_cache_write_tokens: i64,
    #[diesel(sql_type = BigInt)]
    reasoning_output_tokens: i64,
    #[diesel(sql_type = BigInt)]
    threads: i64,
}

impl Sums {
    fn into_row(self) -> CostRow {
        CostRow {
            total_cost: Money::from_nanos(self.cost),
            secondary_cost: Money::from_nanos(self.secondary_cost),
            input_tokens: self.input_tokens,
            output_tokens: self.output_tokens,
            thread_count: self.threads,
            input_cached_tokens: self.input_cached_tokens,
            input_cache_write_tokens: self.input_cache_write_tokens,
            reasoning_output_tokens: self.reasoning_output_tokens,
            ..CostRow::default()
        }
    }
}

async fn sums(conn: &Conn, account: &AccountId, agent: &str, period: Period) -> Result<Vec<(NaiveDate, CostRow)>> {
    let (mut conn, unit) = (conn, period.unit());
    let rows: Vec<Sums> = diesel::sql_query(format!(
        "SELECT date_trunc('{unit}', day)::date AS period, sum(cost)::bigint AS cost,
            sum(secondary_cost)::bigint AS secondary_cost, sum(input_tokens)::bigint AS input_tokens,
            sum(output_tokens)::bigint AS output_tokens, sum(input_cached_tokens)::bigint AS input_cached_tokens,
            sum(input_cache_write_tokens)::bigint AS input_cache_write_tokens,
            sum(reasoning_output_tokens)::bigint AS reasoning_output_tokens, sum(threads)::bigint AS threads
        FROM agent_costs WHERE account_id = $1 AND agent_id = $2 AND day BETWEEN $3 AND $4
        GROUP BY 1 ORDER BY 1"
    ))
    .bind::<Text, _>(account.as_str())
    .bind::<Text, _>(agent)
    .bind::<Date, _>(period.first)
    .bind::<Date, _>(period.last)
    .load(&mut conn)
    .await?;
    Ok(rows.into_iter().filter_map(|row| Some((row.period?, row.into_row()))).collect())
}

/// Rows by day, ascending.
pub(crate) async fn daily(
    conn: &Conn,
    account: &AccountId,
    agent: &str,
    range: &DailyRange,
    now: Timestamp,
) -> Result<Vec<CostRow>> {
    let (start, end) = (range.start_date.as_deref(), range.end_date.as_deref());
    let period = Period::days(("startDate", start), ("endDate", end), now)?;
    let rows = sums(conn, account, agent, period).await?;
    Ok(filled(rows, range.fill == Some(true), period))
}

/// Rows by month, ascending.
pub(crate) async fn monthly(
    conn: &Conn,
    account: &AccountId,
    agent: &str,
    range: &MonthlyRange,
    now: Timestamp,
) -> Result<Vec<CostRow>> {
    let (start, end) = (range.start_month.as_deref(), range.end_month.as_deref());
    let period = Period::months(("startMonth", start), ("endMonth", end), now)?;
    let rows = sums(conn, account, agent, period).await?;
    Ok(filled(rows, range.fill == Some(true), period))
}

/// Today, and this month.
pub(crate) async fn summary(conn: &Conn, account: &AccountId, agent: &str, now: Timestamp) -> Result<CostSummary> {
    let today = Some(day_of(now).to_string());
    let range = DailyRange { start_date: today.clone(), end_date: today, fill: Some(true) };
    let this = Some(day_of(now).format("%Y-%m").to_string());
    let months = MonthlyRange { start_month: this.clone(), end_month: this, fill: Some(true) };
    let today = daily(conn, account, agent, &range, now).await?;
    let month = monthly(conn, account, agent, &months, now).await?;
    Ok(CostSummary {
        today: today.into_iter().next().unwrap_or_default(),
        current_month: month.into_iter().next().unwrap_or_default(),
    })
}

fn filled(rows: Vec<(NaiveDate, CostRow)>, fill: bool, period: Period) -> Vec<CostRow> {
    let mut rows: std::collections::BTreeMap<NaiveDate, CostRow> = rows.into_iter().collect();
    if fill {
        for begins in period.each() {
            rows.entry(begins).or_default();
        }
    }
    let named = |(begins, row): (NaiveDate, CostRow)| {
        let (date, month) = period.names(begins);
        CostRow { date, month, ..row }
    };
    rows.into_iter().map(named).collect()
}
