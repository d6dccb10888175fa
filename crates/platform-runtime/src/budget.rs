use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use platform_core::{AccountId, Error, Money, Owner, Result, Timestamp, joined};
use serde::{Serialize, Serializer};
use serde_json::{
    Value, json,
    value::{RawValue, to_raw_value},
};

use crate::{Model, ModelSpec, Usage, code};

/// The port to quotas, and the only way to a model that answers: whoever asks says who pays.
#[async_trait]
pub trait Budget: Send + Sync {
    /// A model whose calls the payer's quotas bear: each is reserved before and settled after. What calls took
    /// goes to the ledger, to be stored with what they were for; without one it is stored at once.
    fn model(&self, payer: &Payer, ledger: Option<Arc<UsageLedger>>) -> Arc<dyn Model>;

    /// What the payer's next call would be, to be reserved in the caller's own transaction; `None` when nobody counts.
    async fn charge(&self, payer: &Payer, model: &ModelSpec) -> Result<Option<Charge>>;

    /// The quota of the payer that is spent now, if one is; nothing is reserved.
    async fn spent(&self, payer: &Payer) -> Result<Option<Refusal>>;
}

/// Who pays for model calls, and for whose work (contract 10 §3).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Payer {
    /// The account.
    pub account: AccountId,
    /// The tenant whose quotas count.
    pub tenant_id: Option<String>,
    /// Its end user.
    pub subtenant_id: Option<String>,
    /// The project of who works.
    pub project_id: Option<String>,
    /// Who works.
    pub spender: Spender,
}

impl Payer {
    /// The tenant and its end user.
    pub fn owner(&self) -> Owner {
        Owner { tenant_id: self.tenant_id.clone(), subtenant_id: self.subtenant_id.clone() }
    }

    /// A name of the end user, or of the tenant where there is none, within the account; `None` for its own.
    pub fn end_user(&self) -> Option<String> {
        let tenant = self.tenant_id.as_deref()?;
        Some(joined([tenant, self.subtenant_id.as_deref().unwrap_or_default()]))
    }

    /// Whether anybody wants to know what its calls take.
    pub fn is_counted(&self) -> bool {
        self.tenant_id.is_some() || self.project_id.is_some()
    }
}

/// An assistant or agent that has models called.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Spender {
    /// An assistant.
    Assistant {
        /// Its identifier.
        identifier: String,
        /// Its id.
        id: String,
    },
    /// An agent, by its id.
    Agent(String),
    /// A part of the platform, by its name.
    Service(&'static str),
}

/// A call that is to be paid. As JSON it is what is reserved for it.
#[derive(Debug, Clone)]
pub struct Charge {
    /// What is reserved; `None` when nothing has to be.
    pub reserve: Option<Arc<RawValue>>,
    /// The rules that must have room, as they are named in a refusal.
    pub rules: Arc<[Value]>,
    /// Whose it is.
    pub note: Arc<Note>,
}

impl Serialize for Charge {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        self.reserve.serialize(serializer)
    }
}

/// What is noted of a call beside what it took.
#[derive(Debug, Clone)]
pub struct Note {
    /// Id of the reservation.
    pub id: String,
    /// Whose quotas count.
    pub payer: Payer,
    /// It does not count toward them.
    pub exempt: bool,
    /// The rules that count it, as JSON.
    pub rules: Arc<RawValue>,
}

/// A call as it is settled.
#[derive(Serialize)]
struct Settlement<'a> {
    id: &'a str,
    account: &'a AccountId,
    tenant: &'a str,
    subtenant: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    project: Option<&'a str>,
    kind: &'static str,
    spender: &'a str,
    exempt: bool,
    external: bool,
    rules: &'a RawValue,
    input: u64,
    output: u64,
    cached: u64,
    written: u64,
    reasoning: u64,
    /// Nano-dollars.
    cost: i64,
    secondary: bool,
}

impl Note {
    /// What the call took; `is_secondary`: it was none of a turn.
    pub fn took(&self, usage: &Usage, cost: Money, is_secondary: bool) -> Arc<RawValue> {
        let (kind, spender) = match &self.payer.spender {
            Spender::Assistant { identifier, .. } => ("assistant", identifier.as_str()),
            Spender::Agent(id) => ("agent", id.as_str()),
            Spender::Service(name) => ("service", *name),
        };
        let settlement = Settlement {
            id: &self.id,
            account: &self.payer.account,
            tenant: self.payer.tenant_id.as_deref().unwrap_or_default(),
            subtenant: self.payer.subtenant_id.as_deref().unwrap_or_default(),
            project: self.payer.project_id.as_deref(),
            kind,
            spender,
            exempt: self.exempt,
            external: false,
            rules: &self.rules,
            input: usage.input_tokens,
            output: usage.output_tokens,
            cached: usage.input_cached_tokens,
            written: usage.input_cache_write_tokens,
            reasoning: usage.reasoning_output_tokens,
            cost: cost.nanos(),
            secondary: is_secondary,
        };
        to_raw_value(&settlement).expect("text and numbers are JSON").into()
    }

    /// The same of a call that was never made.
    pub fn unused(&self) -> Arc<RawValue> {
        self.took(&Usage::default(), Money::ZERO, false)
    }
}

/// What calls took and is not stored yet; and what was reserved for the first of them.
#[derive(Debug, Default)]
pub struct UsageLedger {
    held: Mutex<Option<Charge>>,
    took: Mutex<Vec<Arc<RawValue>>>,
}

impl UsageLedger {
    /// With what was reserved for the first call.
    pub fn holding(charge: Option<Charge>) -> Arc<Self> {
        Arc::new(Self { held: Mutex::new(charge), took: Mutex::default() })
    }

    /// What was reserved for the first call, once.
    pub fn held(&self) -> Option<Charge> {
        self.held.lock().expect("lock").take()
    }

    /// The first call is to be reserved anew.
    pub fn let_go(&self) {
        if let Some(charge) = self.held() {
            self.add(charge.note.unused());
        }
    }

    /// Notes what a call took.
    pub fn add(&self, took: Arc<RawValue>) {
        self.took.lock().expect("lock").push(took);
    }

    /// What could not be stored is owed all the same.
    pub fn put_back(&self, took: Vec<Arc<RawValue>>) {
        self.took.lock().expect("lock").extend(took);
    }

    /// What calls took since it was last asked for: whoever takes it stores it.
    pub fn take(&self) -> Vec<Arc<RawValue>> {
        std::mem::take(&mut self.took.lock().expect("lock"))
    }
}

/// A quota that is spent.
#[derive(Debug, Clone, PartialEq)]
pub struct Refusal {
    /// One sentence for a client.
    pub message: String,
    /// `{scope, subtenantId?, metric, windowUnit, windowEvery, limit}`.
    pub rule: Value,
    /// What was taken, in the unit of the rule.
    pub current: Value,
    /// When its window ends.
    pub resets_at: Timestamp,
    /// Seconds until there may be room: until then, or until calls under way are settled that hold the rest.
    pub retry_after: u64,
}

impl Refusal {
    /// When there may be room.
    pub fn retry_at(&self, now: Timestamp) -> Timestamp {
        let wait = i64::try_from(self.retry_after).unwrap_or(i64::MAX).saturating_mul(1000);
        Timestamp(now.0.saturating_add(wait).min(self.resets_at.0))
    }

    /// What a client is told while work stands still for it.
    pub fn details(&self) -> Value {
        json!({"message": self.message, "blockingRule": self.rule, "current": self.current,
            "limit": self.rule["limit"], "resetsAt": self.resets_at})
    }
}

impl From<&Refusal> for Error {
    fn from(refusal: &Refusal) -> Self {
        Self::new(code::TENANT_LIMIT_EXCEEDED, refusal.message.clone())
            .with("blockingRule", &refusal.rule)
            .with("current", &refusal.current)
            .with("limit", &refusal.rule["limit"])
            .with("resetsAt", refusal.resets_at)
            .retry_after(refusal.retry_after)
    }
}
