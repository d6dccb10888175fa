//! The `Budget` of the runtime: every model call of a tenant is reserved before it is made, and settled after; so is
//! what calls in projects take, which have no quotas.

mod counters;
mod paid;

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, OnceLock},
    time::{Duration, Instant},
};

use async_trait::async_trait;
use futures_util::FutureExt;
use moka::sync::Cache;
use platform_core::{AccountId, Error, Id, Money, Result};
use platform_db::{Bus, Capacity, Db, GroupWriter, InvalidatedCache};
use platform_runtime::{Budget, Charge, Model, ModelSpec, Note, Payer, Refusal, Spender, UsageLedger};
use serde::Serialize;
use serde_json::{
    Value,
    value::{RawValue, to_raw_value},
};
use tracing::error;

use self::{
    counters::{reserve, settle_all},
    paid::Paid,
};
use crate::{
    rule::Effective,
    tenant::{self, TENANT},
};
pub(crate) use counters::{Counter, clear, counted, counters, spent};
pub use counters::{RESERVE, SETTLE, refusals, settle_in};

/// Tenants whose rules are remembered at once.
const MAX_REMEMBERED: u64 = 100_000;
/// Bytes of the rules that are remembered, of so many tenants where nothing is exempt from them; and of one rule.
const MAX_STANDINGS: u64 = 128 << 20;
const RULE: usize = 1024;
/// An estimate is the mean of so many calls.
const CALLS: usize = 20;
/// What a first call is expected to take.
const FIRST_TOKENS: u64 = 2000;
const BATCH: usize = 64;
/// What could not be counted is tried again so often, for so long: less than settled calls are known for.
const RETRY_DELAY: Duration = Duration::from_secs(2);
const OWED_FOR: Duration = Duration::from_mins(10);

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

    /// Bytes of memory, about.
    fn bytes(&self) -> usize {
        let exempt = self.excluded_assistants.iter().chain(&self.excluded_agents);
        RULE * self.rules.len() + exempt.map(|name| size_of::<String>() + name.len()).sum::<usize>()
    }

    fn counted(&self) -> (Arc<RawValue>, Arc<[Value]>) {
        let make = || {
            let counted = to_raw_value(&self.rules.iter().map(counted).collect::<Vec<_>>());
            let named = self.rules.iter().map(Effective::named).collect();
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
            Spender::Service(_) => false,
        }
    }
}

/// Whose quotas: account, tenant, end user.
pub(crate) type Payers = (AccountId, String, Option<String>);

/// Tokens and nano-dollars of the last calls.
type LastCalls = Arc<Mutex<VecDeque<(i64, i64)>>>;

enum Owner {}

/// Quotas on PostgreSQL.
pub struct Quotas {
    inner: Arc<Inner>,
}

struct Inner {
    /// Its reservations begin with the name of this process.
    owner: String,
    db: Db,
    model: Arc<dyn Model>,
    standings: Arc<InvalidatedCache<Payers, Standing>>,
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
            owner: Id::<Owner>::generate().into(),
            db: db.clone(),
            model,
            standings: InvalidatedCache::new(bus, TENANT, Capacity::Bytes(MAX_STANDINGS, Standing::bytes)),
            unlimited: Arc::default(),
            reserving: GroupWriter::new(db, BATCH, |conn, items| reserve(conn, items).boxed()),
            settling: GroupWriter::new(db, BATCH, |conn, items| settle_all(conn, items).boxed()),
            calls: Cache::new(MAX_REMEMBERED),
        };
        Self { inner: Arc::new(inner) }
    }

    /// The rules that hold for a tenant or one of its end users.
    pub(crate) async fn standing(&self, account: &AccountId, tenant: &str, of: Option<&str>) -> Result<Arc<Standing>> {
        self.inner.standing(account, tenant, of).await
    }

    /// What the ids of its reservations begin with.
    pub(crate) fn owner(&self) -> &str {
        &self.inner.owner
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

    /// What a call of the payer would be; `price`: what it takes beside tokens.
    async fn charge(&self, payer: &Payer, model: &ModelSpec, is_secondary: bool, price: Money) -> Result<Charge> {
        let tenant = payer.tenant_id.as_deref();
        let standing = match tenant {
            Some(tenant) => self.standing(&payer.account, tenant, payer.subtenant_id.as_deref()).await?,
            None => Arc::clone(&self.unlimited),
        };
        let exempt = standing.exempts(&payer.spender);
        let (counted, rules) = standing.counted();
        let id = format!("{}.{}", self.owner, Id::<Charge>::generate());
        let reserve = match tenant.filter(|_| !standing.rules.is_empty() && !exempt) {
            None => None,
            Some(tenant) => {
                let (tokens, cost) = match price {
                    Money::ZERO => self.expected(payer, model, is_secondary),
                    price => (0, price.nanos()),
                };
                let rules = &counted;
                let reserved = Reserved { id: &id, account: &payer.account, tenant, tokens, cost, rules };
                Some(to_raw_value(&reserved).map_err(Error::internal)?.into())
            }
        };
        let note = Arc::new(Note { id, payer: payer.clone(), exempt, rules: counted });
        Ok(Charge { reserve, rules, note })
    }

    /// Counts what a call took; a database that is away is waited for.
    async fn settle(&self, took: Arc<RawValue>) {
        let until = Instant::now() + OWED_FOR;
        while let Err(error) = self.settling.write(Arc::clone(&took)).await {
            if Instant::now() > until {
                return error!(%error, took = took.get(), "What a call took could not be counted.");
            }
            tokio::time::sleep(RETRY_DELAY).await;
        }
    }

    /// Tokens and nano-dollars that a call of the payer may take.
    fn expected(&self, payer: &Payer, model: &ModelSpec, is_secondary: bool) -> (i64, i64) {
        let calls = self.calls.get(&(payer.account.clone(), payer.spender.clone(), is_secondary));
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

    fn learn(&self, payer: &Payer, is_secondary: bool, tokens: i64, cost: i64) {
        let key = (payer.account.clone(), payer.spender.clone(), is_secondary);
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

#[async_trait]
impl Budget for Quotas {
    fn model(&self, payer: &Payer, ledger: Option<Arc<UsageLedger>>) -> Arc<dyn Model> {
        let model = Arc::clone(&self.inner.model).of(&payer.account);
        if !payer.is_counted() {
            return model;
        }
        let (quotas, at_once) = (Arc::clone(&self.inner), ledger.is_none());
        Arc::new(Paid { quotas, model, payer: payer.clone(), ledger: ledger.unwrap_or_default(), at_once })
    }

    async fn charge(&self, payer: &Payer, model: &ModelSpec) -> Result<Option<Charge>> {
        if !payer.is_counted() {
            return Ok(None);
        }
        self.inner.charge(payer, model, false, Money::ZERO).await.map(Some)
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
