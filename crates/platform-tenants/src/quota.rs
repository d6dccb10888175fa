//! The `Budget` of the runtime: every model call of a tenant is reserved before it is made, and settled after; so is
//! what calls in projects take, which have no quotas.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, OnceLock},
};

use async_trait::async_trait;
use diesel::{
    QueryableByName,
    sql_types::{Jsonb, Text},
};
use diesel_async::RunQueryDsl;
use futures_util::FutureExt;
use moka::sync::Cache;
use platform_core::{AccountId, Error, Id, Money, Result, Timestamp, spawn};
use platform_db::{Bus, Conn, Db, GroupWriter, JsonStatement, Remembered};
use platform_runtime::{
    Answer, Budget, Catalog, Charge, Delta, Fault, FaultCode, Model, ModelSpec, Note, Operation, Payer, Prompt,
    Refusal, Spender, Tab, Usage,
};
use serde::Serialize;
use serde_json::{
    Value, json,
    value::{RawValue, to_raw_value},
};
use tracing::error;

use crate::{
    rule::{Effective, Metric, Rule},
    tenant::{self, TENANT},
};

/// Reserves in the statement of the caller: an expression over a JSON array of [`Charge::reserve`], each with its
/// index `n`. When one has no room the statement fails, and [`refusals`] says which.
pub const RESERVE: (&str, &str) = ("reserve_usage(coalesce(", ", '[]'), true)");
/// Settles in the statement of the caller: an expression over a JSON array of what a [`Tab`] gave.
pub const SETTLE: (&str, &str) = ("settle_usage(coalesce(", ", '[]'))");

/// Tenants whose rules are remembered at once.
const MOST_REMEMBERED: u64 = 100_000;
/// An estimate is the mean of so many calls.
const CALLS: usize = 20;
/// What a first call is expected to take.
const FIRST_TOKENS: u64 = 2000;
const TOGETHER: usize = 64;

/// Rules of a tenant or end user, as they hold now.
#[derive(Debug, Default)]
pub(crate) struct Standing {
    pub rules: Vec<Effective>,
    pub excluded_assistants: Vec<String>,
    pub excluded_agents: Vec<String>,
    /// The rules as they are counted, and as they are named, made once.
    counted: OnceLock<(Arc<RawValue>, Arc<[Value]>)>,
}

impl Standing {
    pub fn new(rules: Vec<Effective>, excluded_assistants: Vec<String>, excluded_agents: Vec<String>) -> Self {
        Self { rules, excluded_assistants, excluded_agents, counted: OnceLock::new() }
    }

    fn counted(&self) -> (Arc<RawValue>, Arc<[Value]>) {
        let make = || {
            let counted = to_raw_value(&self.rules.iter().map(counted).collect::<Vec<_>>());
            let named = self.rules.iter().map(|found| found.rule.named()).collect();
            (counted.expect("values are JSON").into(), named)
        };
        self.counted.get_or_init(make).clone()
    }

    /// What the assistant or agent takes is not counted.
    fn exempts(&self, spender: &Spender) -> bool {
        match spender {
            Spender::Assistant { identifier, id } => {
                self.excluded_assistants.iter().any(|name| name == identifier || name == id)
            }
            Spender::Agent(id) => self.excluded_agents.contains(id),
        }
    }
}

/// Whose quotas: account, tenant, end user.
pub(crate) type Payers = (AccountId, String, Option<String>);

/// Tokens and nano-dollars of the last calls.
type LastCalls = Arc<Mutex<VecDeque<(i64, i64)>>>;

/// Quotas on PostgreSQL.
pub struct Quotas {
    inner: Arc<Inner>,
}

struct Inner {
    db: Db,
    model: Arc<dyn Model>,
    standings: Arc<Remembered<Payers, Standing>>,
    /// Of whoever has no tenant.
    unlimited: Arc<Standing>,
    reserving: GroupWriter<Charge, Option<Refusal>>,
    settling: GroupWriter<Arc<RawValue>, ()>,
    /// By assistant or agent, those beside its turns apart.
    calls: Cache<(AccountId, Spender, bool), LastCalls>,
}

impl Quotas {
    /// Meters the calls of `model`; hears over the bus when rules change.
    pub fn new(db: &Db, bus: &Bus, model: Arc<dyn Model>) -> Self {
        let inner = Inner {
            db: db.clone(),
            model,
            standings: Remembered::new(bus, TENANT, MOST_REMEMBERED),
            unlimited: Arc::default(),
            reserving: GroupWriter::new(db, TOGETHER, |conn, items| reserve(conn, items).boxed()),
            settling: GroupWriter::new(db, TOGETHER, |conn, items| settle_all(conn, items).boxed()),
            calls: Cache::new(MOST_REMEMBERED),
        };
        Self { inner: Arc::new(inner) }
    }

    /// The rules that hold for a tenant or one of its end users.
    pub(crate) async fn standing(&self, account: &AccountId, tenant: &str, of: Option<&str>) -> Result<Arc<Standing>> {
        self.inner.standing(account, tenant, of).await
    }

    /// Rules have changed: all processes read them anew.
    pub(crate) async fn changed(&self, tenant: &str) -> Result<()> {
        self.inner.standings.changed(tenant).await
    }
}

impl Inner {
    async fn standing(&self, account: &AccountId, tenant: &str, of: Option<&str>) -> Result<Arc<Standing>> {
        let key = (account.clone(), tenant.to_owned(), of.map(str::to_owned));
        let load = async {
            let conn = self.db.read().await?;
            tenant::standing(conn.get(), account, tenant, of).await.map(Some)
        };
        Ok(self.standings.get_or_load(&key, load).await?.unwrap_or_default())
    }

    /// What a call of the payer would be.
    async fn charge(&self, payer: &Payer, model: &ModelSpec, beside: bool) -> Result<Charge> {
        let tenant = payer.tenant_id.as_deref();
        let standing = match tenant {
            Some(tenant) => self.standing(&payer.account, tenant, payer.subtenant_id.as_deref()).await?,
            None => Arc::clone(&self.unlimited),
        };
        let exempt = standing.exempts(&payer.spender);
        let (counted, rules) = standing.counted();
        let id = String::from(Id::<Charge>::generate());
        let reserve = match tenant.filter(|_| !standing.rules.is_empty() && !exempt) {
            None => None,
            Some(tenant) => {
                let (tokens, cost) = self.expected(payer, model, beside);
                let rules = &counted;
                let reserved = Reserved { id: &id, account: &payer.account, tenant, tokens, cost, rules };
                Some(to_raw_value(&reserved).map_err(Error::internal)?.into())
            }
        };
        let note = Arc::new(Note { id, payer: payer.clone(), exempt, rules: counted });
        Ok(Charge { reserve, rules, note })
    }

    /// Tokens and nano-dollars that a call of the payer may take.
    fn expected(&self, payer: &Payer, model: &ModelSpec, beside: bool) -> (i64, i64) {
        let calls = self.calls.get(&(payer.account.clone(), payer.spender.clone(), beside));
        let mean = calls.and_then(|calls| {
            let calls = calls.lock().expect("lock");
            let count = i64::try_from(calls.len()).ok().filter(|count| *count > 0)?;
            let sum = calls
                .iter()
                .fold((0_i64, 0_i64), |sum, call| (sum.0.saturating_add(call.0), sum.1.saturating_add(call.1)));
            Some((sum.0 / count, sum.1 / count))
        });
        let first = || (FIRST_TOKENS.cast_signed(), model.prices.input.per_million(FIRST_TOKENS).nanos());
        mean.unwrap_or_else(first)
    }

    fn learn(&self, payer: &Payer, beside: bool, tokens: i64, cost: i64) {
        let key = (payer.account.clone(), payer.spender.clone(), beside);
        let calls = self.calls.get_with(key, Arc::default);
        let mut calls = calls.lock().expect("lock");
        calls.push_back((tokens, cost));
        if calls.len() > CALLS {
            calls.pop_front();
        }
    }
}

/// What is reserved for a call, as the SQL function reads it.
#[derive(Serialize)]
struct Reserved<'a> {
    id: &'a str,
    account: &'a AccountId,
    tenant: &'a str,
    tokens: i64,
    cost: i64,
    rules: &'a RawValue,
}

/// The same at its place in a group.
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

#[async_trait]
impl Budget for Quotas {
    fn model(&self, payer: &Payer, tab: Option<Arc<Tab>>) -> Arc<dyn Model> {
        if !payer.is_counted() {
            return Arc::clone(&self.inner.model);
        }
        let at_once = tab.is_none();
        Arc::new(Paid { quotas: Arc::clone(&self.inner), payer: payer.clone(), tab: tab.unwrap_or_default(), at_once })
    }

    async fn charge(&self, payer: &Payer, model: &ModelSpec) -> Result<Option<Charge>> {
        if !payer.is_counted() {
            return Ok(None);
        }
        self.inner.charge(payer, model, false).await.map(Some)
    }

    async fn spent(&self, payer: &Payer) -> Result<Option<Refusal>> {
        let Some(tenant) = &payer.tenant_id else { return Ok(None) };
        let standing = self.inner.standing(&payer.account, tenant, payer.subtenant_id.as_deref()).await?;
        if standing.rules.is_empty() || standing.exempts(&payer.spender) {
            return Ok(None);
        }
        let conn = self.inner.db.read().await?;
        spent(conn.get(), &payer.account, tenant, &standing.rules).await
    }
}

/// A model whose calls are counted.
struct Paid {
    quotas: Arc<Inner>,
    payer: Payer,
    tab: Arc<Tab>,
    /// Nobody else stores what calls took.
    at_once: bool,
}

impl Catalog for Paid {
    fn choose(&self, provider: Option<&str>, llm: Option<&str>) -> Result<ModelSpec> {
        self.quotas.model.choose(provider, llm)
    }

    fn count(&self, model: &ModelSpec, text: &str) -> u64 {
        self.quotas.model.count(model, text)
    }

    fn helper(&self, operation: Operation, own: &ModelSpec) -> ModelSpec {
        self.quotas.model.helper(operation, own)
    }
}

#[async_trait]
impl Model for Paid {
    async fn answer(
        &self,
        prompt: &Prompt,
        on: &mut (dyn for<'d> FnMut(Delta<'d>) + Send),
    ) -> std::result::Result<Answer, Fault> {
        let charge = match self.tab.held() {
            Some(charge) => charge,
            None => self.reserve(prompt).await?,
        };
        let mut call = Call { paid: self, prompt, charge: Some(charge), written: 0 };
        let mut count = |delta: Delta<'_>| {
            call.written += match delta {
                Delta::Text(text) => text.len(),
                Delta::ToolCall { arguments, .. } => arguments.len(),
            };
            on(delta);
        };
        let answer = self.quotas.model.answer(prompt, &mut count).await;
        let took = match &answer {
            Ok(answer) => Some(answer),
            Err(fault) => fault.partial.as_deref(),
        };
        let took = took.map_or((Usage::default(), Money::ZERO), |answer| (answer.usage, answer.cost.total_cost));
        call.settle(took.0, took.1);
        drop(call);
        if self.at_once {
            self.store().await;
        }
        answer
    }
}

impl Paid {
    async fn reserve(&self, prompt: &Prompt) -> std::result::Result<Charge, Fault> {
        let (model, beside) = (&prompt.model, prompt.operation.is_some());
        let away = |error: Error| {
            error!(%error, "A quota could not be looked at; the call is not made.");
            Fault::of(FaultCode::Unavailable, "The quotas cannot be reached at the moment.", &model.provider)
        };
        let charge = self.quotas.charge(&self.payer, model, beside).await.map_err(away)?;
        if charge.reserve.is_some()
            && let Some(refusal) = self.quotas.reserving.write(charge.clone()).await.map_err(away)?
        {
            return Err(Fault::refused(refusal, &model.provider));
        }
        Ok(charge)
    }

    /// Stores what calls took and nobody has stored.
    async fn store(&self) {
        for took in self.tab.take() {
            if let Err(error) = self.quotas.settling.write(took).await {
                error!(%error, "What a call took could not be counted.");
            }
        }
    }
}

impl Drop for Paid {
    fn drop(&mut self) {
        self.tab.let_go();
        let left = self.tab.take();
        if left.is_empty() {
            return;
        }
        let quotas = Arc::clone(&self.quotas);
        spawn("settle", async move {
            for took in left {
                if let Err(error) = quotas.settling.write(took).await {
                    error!(%error, "What a call took could not be counted.");
                }
            }
        });
    }
}

/// A call under way. One that is broken off is settled by what it was asked and what it wrote.
struct Call<'a> {
    paid: &'a Paid,
    prompt: &'a Prompt,
    charge: Option<Charge>,
    written: usize,
}

impl Call<'_> {
    fn settle(&mut self, usage: Usage, cost: Money) {
        let Some(charge) = self.charge.take() else { return };
        let (tokens, nanos) = (usage.input_tokens.saturating_add(usage.output_tokens), cost.nanos());
        let beside = self.prompt.operation.is_some();
        if tokens > 0 && self.paid.payer.tenant_id.is_some() {
            self.paid.quotas.learn(&self.paid.payer, beside, i64::try_from(tokens).unwrap_or(i64::MAX), nanos);
        }
        self.paid.tab.add(charge.note.took(&usage, cost, beside));
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        if self.charge.is_some() {
            let mut usage = Usage::estimated(self.prompt, "", &[]);
            usage.output_tokens = self.written.div_ceil(4) as u64;
            let usage = usage.normalised();
            let cost = usage.cost(&self.prompt.model.prices).total_cost;
            self.settle(usage, cost);
        }
    }
}

#[derive(QueryableByName)]
struct Refused {
    #[diesel(sql_type = Jsonb)]
    refused: Value,
}

async fn reserve(conn: &mut Conn, charges: &[Charge]) -> Result<Vec<Option<Refusal>>> {
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
        Some((n, refusal(named, found["current"].as_i64()?, Timestamp(found["resets"].as_i64()?), waits)))
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

async fn settle_all(conn: &mut Conn, took: &[Arc<RawValue>]) -> Result<Vec<()>> {
    settle_in(conn, took).await?;
    Ok(vec![(); took.len()])
}

/// Writes down what a [`Tab`] gave, in the caller's transaction.
pub async fn settle_in(conn: &mut Conn, took: &[Arc<RawValue>]) -> Result<()> {
    if took.is_empty() {
        return Ok(());
    }
    #[derive(QueryableByName)]
    struct Done {
        #[diesel(sql_type = diesel::sql_types::Integer)]
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
    #[diesel(sql_type = diesel::sql_types::BigInt)]
    pub consumed: i64,
    #[diesel(sql_type = diesel::sql_types::BigInt)]
    pub external: i64,
    #[diesel(sql_type = diesel::sql_types::BigInt)]
    pub resets_ms: i64,
    #[diesel(sql_type = diesel::sql_types::BigInt)]
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
        refusal(found.rule.named(), counter.consumed, resets, waits)
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
