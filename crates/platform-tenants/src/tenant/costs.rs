//! What tenants cost, by day.

use std::collections::BTreeMap;

use chrono::NaiveDate;
use diesel::{
    QueryableByName,
    sql_types::{BigInt, Date, Nullable, Text},
};
use diesel_async::RunQueryDsl;
use platform_core::{AccountId, Money, Period, Result};
use platform_db::Conn;
use serde::Serialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

/// Sums beyond this are shown as this.
const MOST: i64 = i64::MAX;

/// What a tenant cost in a day or month.
#[derive(Debug, Clone, Default, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct TenantCost {
    /// The day, `YYYY-MM-DD` in UTC.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub date: Option<String>,
    /// The month, `YYYY-MM`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub month: Option<String>,
    /// US dollars, without what calls beside the turns took.
    pub total_cost: Money,
    /// Prompt tokens.
    pub input_tokens: i64,
    /// Answer tokens.
    pub output_tokens: i64,
    /// US dollars of titles, evaluations, guardrails and the like.
    pub secondary_cost: Money,
    /// `{agentId, totalCost}` of each.
    #[schema(value_type = Vec<Object>)]
    pub by_agent: Vec<Value>,
    /// `{assistantIdentifier, totalCost}` of each.
    #[schema(value_type = Vec<Object>)]
    pub by_assistant: Vec<Value>,
    /// `{source, tokens, cost}`: `platform` for what was measured here, and each source that was added from outside.
    #[schema(value_type = Vec<Object>)]
    pub by_source: Vec<Value>,
}

/// What a tenant took in all.
#[derive(Debug, Clone, Copy, Default, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct TenantTotals {
    /// US dollars, calls beside the turns included.
    pub total_cost: Money,
    /// Prompt tokens.
    pub input_tokens: i64,
    /// Answer tokens.
    pub output_tokens: i64,
}

/// What an assistant, agent or source took in a day or month.
#[derive(QueryableByName)]
struct Row {
    #[diesel(sql_type = Date)]
    period: NaiveDate,
    #[diesel(sql_type = Text)]
    kind: String,
    #[diesel(sql_type = Text)]
    spender: String,
    #[diesel(sql_type = BigInt)]
    input_tokens: i64,
    #[diesel(sql_type = BigInt)]
    output_tokens: i64,
    #[diesel(sql_type = BigInt)]
    cost: i64,
    #[diesel(sql_type = BigInt)]
    secondary_tokens: i64,
    #[diesel(sql_type = BigInt)]
    secondary_cost: i64,
}

/// By day or month, ascending; only those in which something was taken.
pub(crate) async fn price_in(
    conn: &Conn,
    account: &AccountId,
    tenant: &str,
    subtenant: Option<&str>,
    period: Period,
) -> Result<Vec<TenantCost>> {
    let (mut conn, unit) = (conn, period.unit());
    let rows: Vec<Row> = diesel::sql_query(format!(
        "SELECT date_trunc('{unit}', day)::date AS period, kind, spender,
            least(sum(input_tokens), {MOST})::bigint AS input_tokens,
            least(sum(output_tokens), {MOST})::bigint AS output_tokens, least(sum(cost), {MOST})::bigint AS cost,
            least(sum(secondary_tokens), {MOST})::bigint AS secondary_tokens,
            least(sum(secondary_cost), {MOST})::bigint AS secondary_cost
        FROM tenant_costs WHERE account_id = $1 AND tenant_id = $2 AND day BETWEEN $3 AND $4
            AND ($5 IS NULL OR subtenant_id = $5)
        GROUP BY 1, 2, 3"
    ))
    .bind::<Text, _>(account.as_str())
    .bind::<Text, _>(tenant)
    .bind::<Date, _>(period.first)
    .bind::<Date, _>(period.last)
    .bind::<Nullable<Text>, _>(subtenant)
    .load(&mut conn)
    .await?;
    let mut periods: BTreeMap<String, Vec<Row>> = BTreeMap::new();
    for row in rows {
        periods.entry(period.name(row.period)).or_default().push(row);
    }
    let by_month = period.unit() == "month";
    let cost = |(name, rows): (String, Vec<Row>)| {
        let (date, month) = if by_month { (None, Some(name)) } else { (Some(name), None) };
        TenantCost { date, month, ..sum(&rows) }
    };
    Ok(periods.into_iter().map(cost).collect())
}

fn sum(rows: &[Row]) -> TenantCost {
    let mut sum = TenantCost::default();
    let mut spenders: BTreeMap<(&str, &str), i64> = BTreeMap::new();
    let mut sources: BTreeMap<&str, (i64, i64)> = BTreeMap::new();
    for row in rows {
        sum.total_cost += Money::from_nanos(row.cost);
        sum.secondary_cost += Money::from_nanos(row.secondary_cost);
        let tokens = row.input_tokens.saturating_add(row.output_tokens).saturating_add(row.secondary_tokens);
        let source = if row.kind == "external" {
            row.spender.as_str()
        } else {
            sum.input_tokens += row.input_tokens;
            sum.output_tokens += row.output_tokens;
            let of = spenders.entry((&row.kind, &row.spender)).or_default();
            *of = of.saturating_add(row.cost);
            "platform"
        };
        let (of, cost) = sources.entry(source).or_default();
        *of = of.saturating_add(tokens);
        *cost = cost.saturating_add(row.cost).saturating_add(row.secondary_cost);
    }
    for ((kind, spender), cost) in spenders {
        let cost = Money::from_nanos(cost);
        match kind {
            "agent" => sum.by_agent.push(json!({"agentId": spender, "totalCost": cost})),
            _ => sum.by_assistant.push(json!({"assistantIdentifier": spender, "totalCost": cost})),
        }
    }
    let by_source = |(source, (tokens, cost)): (&str, (i64, i64))| json!({"source": source, "tokens": tokens, "cost": Money::from_nanos(cost)});
    sum.by_source = sources.into_iter().map(by_source).collect();
    sum
}

/// In all.
pub(crate) async fn totals(conn: &Conn, account: &AccountId, tenant: &str) -> Result<TenantTotals> {
    #[derive(QueryableByName)]
    struct Totals {
        #[diesel(sql_type = BigInt)]
        cost: i64,
        #[diesel(sql_type = BigInt)]
        input_tokens: i64,
        #[diesel(sql_type = BigInt)]
        output_tokens: i64,
    }
    let mut conn = conn;
    let totals: Totals = diesel::sql_query(format!(
        "SELECT least(coalesce(sum(cost) + sum(secondary_cost), 0), {MOST})::bigint AS cost,
            least(coalesce(sum(input_tokens) FILTER (WHERE kind <> 'external'), 0), {MOST})::bigint AS input_tokens,
            least(coalesce(sum(output_tokens) FILTER (WHERE kind <> 'external'), 0), {MOST})::bigint AS output_tokens
        FROM tenant_costs WHERE account_id = $1 AND tenant_id = $2"
    ))
    .bind::<Text, _>(account.as_str())
    .bind::<Text, _>(tenant)
    .get_result(&mut conn)
    .await?;
    let Totals { cost, input_tokens, output_tokens } = totals;
    Ok(TenantTotals { total_cost: Money::from_nanos(cost), input_tokens, output_tokens })
}
