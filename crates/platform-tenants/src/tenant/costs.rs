//! What tenants cost, by day.

use std::collections::BTreeMap;

use chrono::NaiveDate;
use diesel::prelude::*;
use diesel_async::RunQueryDsl;
use platform_core::{AccountId, Money, Period, Result};
use platform_db::Conn;
use serde::Serialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use crate::schema::tenant_costs;

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

#[derive(Queryable, Selectable)]
#[diesel(table_name = tenant_costs)]
struct Row {
    day: NaiveDate,
    kind: String,
    spender: String,
    input_tokens: i64,
    output_tokens: i64,
    cost: i64,
    secondary_tokens: i64,
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
    let mut conn = conn;
    let of = tenant_costs::account_id.eq(account.as_str()).and(tenant_costs::tenant_id.eq(tenant));
    let mut rows =
        tenant_costs::table.filter(of.and(tenant_costs::day.between(period.first, period.last))).into_boxed();
    if let Some(subtenant) = subtenant {
        rows = rows.filter(tenant_costs::subtenant_id.eq(subtenant.to_owned()));
    }
    let rows: Vec<Row> = rows.select(Row::as_select()).load(&mut conn).await?;
    let mut periods: BTreeMap<String, Vec<Row>> = BTreeMap::new();
    for row in rows {
        periods.entry(period.name(row.day)).or_default().push(row);
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
    let mut conn = conn;
    let of = tenant_costs::account_id.eq(account.as_str()).and(tenant_costs::tenant_id.eq(tenant));
    let rows: Vec<Row> = tenant_costs::table.filter(of).select(Row::as_select()).load(&mut conn).await?;
    let sum = sum(&rows);
    let total_cost = sum.total_cost + sum.secondary_cost;
    Ok(TenantTotals { total_cost, input_tokens: sum.input_tokens, output_tokens: sum.output_tokens })
}
