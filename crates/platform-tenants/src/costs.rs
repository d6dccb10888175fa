//! What models cost, by day or month: of a tenant (contract 10 §1), and in a project (contract 05).

use std::collections::BTreeMap;

use chrono::NaiveDate;
use diesel::{
    QueryableByName,
    sql_types::{Array, BigInt, Date, Nullable, Text},
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
    /// US dollars, without what secondary calls took.
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

/// What was spent in a project in a day or month.
#[derive(Debug, Clone, Default, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProjectCost {
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
    /// Chats that were made.
    pub chat_count: i64,
    /// Cached prompt tokens.
    pub input_cached_tokens: i64,
    /// Prompt tokens written to a cache.
    pub input_cache_write_tokens: i64,
    /// Answer tokens of reasoning.
    pub reasoning_output_tokens: i64,
    /// US dollars of titles, evaluations, guardrails and the like.
    pub secondary_cost: Money,
    /// Always `USD`.
    #[schema(value_type = String)]
    pub currency: Currency,
    /// `{agentId, totalCost}` of each.
    #[schema(value_type = Vec<Object>)]
    pub by_agent: Vec<Value>,
    /// `{assistantIdentifier, totalCost}` of each.
    #[schema(value_type = Vec<Object>)]
    pub by_assistant: Vec<Value>,
}

/// The currency of all costs.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub enum Currency {
    /// US dollars.
    #[default]
    #[serde(rename = "USD")]
    Usd,
}

/// Costs of a project by the days, or first days of the months, of a period.
pub type ProjectCosts = BTreeMap<NaiveDate, ProjectCost>;

/// What a tenant took, or what was spent in a project, in all.
#[derive(Debug, Clone, Copy, Default, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct CostTotals {
    /// US dollars, without what secondary calls took.
    pub total_cost: Money,
    /// US dollars of titles, evaluations, guardrails and the like.
    pub secondary_cost: Money,
    /// Prompt tokens.
    pub input_tokens: i64,
    /// Answer tokens.
    pub output_tokens: i64,
}

/// Whose costs; within a tenant or project, perhaps only some.
#[derive(Clone, Copy)]
pub(crate) enum Of<'a> {
    /// Of a tenant, perhaps of one end user, and beside what is in no project perhaps only in these.
    Tenant(&'a str, Option<&'a str>, Option<&'a [String]>),
    /// In a project, perhaps of one tenant.
    Project(&'a str, Option<&'a str>),
}

impl<'a> Of<'a> {
    /// The condition over `$2` to `$4`, and what they are.
    fn condition(self) -> (&'static str, &'a str, Option<&'a str>, Option<&'a [String]>) {
        match self {
            Self::Tenant(tenant, subtenant, within) => (
                "tenant_id = $2 AND ($3 IS NULL OR subtenant_id = $3)
                    AND ($4 IS NULL OR project_id = '' OR project_id = ANY($4))",
                tenant,
                subtenant,
                within,
            ),
            Self::Project(project, tenant) => {
                ("project_id = $2 AND ($3 IS NULL OR tenant_id = $3) AND $4 IS NULL", project, tenant, None)
            }
        }
    }
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
    input_cached_tokens: i64,
    #[diesel(sql_type = BigInt)]
    input_cache_write_tokens: i64,
    #[diesel(sql_type = BigInt)]
    reasoning_output_tokens: i64,
    #[diesel(sql_type = BigInt)]
    cost: i64,
    #[diesel(sql_type = BigInt)]
    secondary_tokens: i64,
    #[diesel(sql_type = BigInt)]
    secondary_cost: i64,
}

async fn rows(conn: &Conn, account: &AccountId, of: Of<'_>, period: Period) -> Result<BTreeMap<NaiveDate, Vec<Row>>> {
    let (mut conn, unit, (condition, whose, part, within)) = (conn, period.unit(), of.condition());
    let sum = |column: &str| format!("least(sum({column}), {MOST})::bigint AS {column}");
    let sums = [
        "input_tokens",
        "output_tokens",
        "input_cached_tokens",
        "input_cache_write_tokens",
        "reasoning_output_tokens",
        "cost",
        "secondary_tokens",
        "secondary_cost",
    ];
    let sums = sums.map(sum).join(", ");
    let rows: Vec<Row> = diesel::sql_query(format!(
        "SELECT date_trunc('{unit}', day)::date AS period, kind, spender, {sums}
        FROM costs WHERE account_id = $1 AND {condition} AND day BETWEEN $5 AND $6 GROUP BY 1, 2, 3"
    ))
    .bind::<Text, _>(account.as_str())
    .bind::<Text, _>(whose)
    .bind::<Nullable<Text>, _>(part)
    .bind::<Nullable<Array<Text>>, _>(within)
    .bind::<Date, _>(period.first)
    .bind::<Date, _>(period.last)
    .load(&mut conn)
    .await?;
    let mut periods: BTreeMap<NaiveDate, Vec<Row>> = BTreeMap::new();
    for row in rows {
        periods.entry(row.period).or_default().push(row);
    }
    Ok(periods)
}

/// Of a tenant, ascending; only days or months in which something was taken.
pub(crate) async fn of_tenant(conn: &Conn, account: &AccountId, of: Of<'_>, period: Period) -> Result<Vec<TenantCost>> {
    let periods = rows(conn, account, of, period).await?;
    let cost = |(begins, rows): (NaiveDate, Vec<Row>)| {
        let (date, month) = period.names(begins);
        TenantCost { date, month, ..tenant_sum(&rows) }
    };
    Ok(periods.into_iter().map(cost).collect())
}

/// Of a project; only days or months in which something was spent.
pub(crate) async fn of_project(conn: &Conn, account: &AccountId, of: Of<'_>, period: Period) -> Result<ProjectCosts> {
    let periods = rows(conn, account, of, period).await?;
    let cost = |(begins, rows): (NaiveDate, Vec<Row>)| (begins, project_sum(&rows));
    Ok(periods.into_iter().map(cost).collect())
}

fn tenant_sum(rows: &[Row]) -> TenantCost {
    let mut sum = TenantCost::default();
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
            "platform"
        };
        let (of, cost) = sources.entry(source).or_default();
        *of = of.saturating_add(tokens);
        *cost = cost.saturating_add(row.cost).saturating_add(row.secondary_cost);
    }
    (sum.by_agent, sum.by_assistant) = by_spender(rows);
    let by_source = |(source, (tokens, cost)): (&str, (i64, i64))| json!({"source": source, "tokens": tokens, "cost": Money::from_nanos(cost)});
    sum.by_source = sources.into_iter().map(by_source).collect();
    sum
}

fn project_sum(rows: &[Row]) -> ProjectCost {
    let mut sum = ProjectCost::default();
    for row in rows {
        sum.total_cost += Money::from_nanos(row.cost);
        sum.secondary_cost += Money::from_nanos(row.secondary_cost);
        sum.input_tokens += row.input_tokens;
        sum.output_tokens += row.output_tokens;
        sum.input_cached_tokens += row.input_cached_tokens;
        sum.input_cache_write_tokens += row.input_cache_write_tokens;
        sum.reasoning_output_tokens += row.reasoning_output_tokens;
    }
    (sum.by_agent, sum.by_assistant) = by_spender(rows);
    sum
}

/// Costs of each agent, and of each assistant.
fn by_spender(rows: &[Row]) -> (Vec<Value>, Vec<Value>) {
    let mut spenders: BTreeMap<(&str, &str), i64> = BTreeMap::new();
    for row in rows {
        let of = spenders.entry((&row.kind, &row.spender)).or_default();
        *of = of.saturating_add(row.cost);
    }
    let (mut by_agent, mut by_assistant) = (Vec::new(), Vec::new());
    for ((kind, spender), cost) in spenders {
        let cost = Money::from_nanos(cost);
        match kind {
            "agent" => by_agent.push(json!({"agentId": spender, "totalCost": cost})),
            "assistant" => by_assistant.push(json!({"assistantIdentifier": spender, "totalCost": cost})),
            _ => {}
        }
    }
    (by_agent, by_assistant)
}

/// In all, or from a day on.
pub(crate) async fn totals(
    conn: &Conn,
    account: &AccountId,
    of: Of<'_>,
    since: Option<NaiveDate>,
) -> Result<CostTotals> {
    #[derive(QueryableByName)]
    struct Totals {
        #[diesel(sql_type = BigInt)]
        cost: i64,
        #[diesel(sql_type = BigInt)]
        secondary_cost: i64,
        #[diesel(sql_type = BigInt)]
        input_tokens: i64,
        #[diesel(sql_type = BigInt)]
        output_tokens: i64,
    }
    let (mut conn, (condition, whose, part, within)) = (conn, of.condition());
    let totals: Totals = diesel::sql_query(format!(
        "SELECT least(coalesce(sum(cost), 0), {MOST})::bigint AS cost,
            least(coalesce(sum(secondary_cost), 0), {MOST})::bigint AS secondary_cost,
            least(coalesce(sum(input_tokens) FILTER (WHERE kind <> 'external'), 0), {MOST})::bigint AS input_tokens,
            least(coalesce(sum(output_tokens) FILTER (WHERE kind <> 'external'), 0), {MOST})::bigint AS output_tokens
        FROM costs WHERE account_id = $1 AND {condition} AND ($5 IS NULL OR day >= $5)"
    ))
    .bind::<Text, _>(account.as_str())
    .bind::<Text, _>(whose)
    .bind::<Nullable<Text>, _>(part)
    .bind::<Nullable<Array<Text>>, _>(within)
    .bind::<Nullable<Date>, _>(since)
    .get_result(&mut conn)
    .await?;
    let Totals { cost, secondary_cost, input_tokens, output_tokens } = totals;
    let (total_cost, secondary_cost) = (Money::from_nanos(cost), Money::from_nanos(secondary_cost));
    Ok(CostTotals { total_cost, secondary_cost, input_tokens, output_tokens })
}
