use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use platform_core::{AccountId, Code, Error, Result, Timestamp};
use serde_json::{Value, json};

use crate::{Model, ModelSpec};

/// The port to quotas, and the only way to a model that answers: whoever asks says who pays.
#[async_trait]
pub trait Budget: Send + Sync {
    /// A model whose calls the payer's quotas bear: each is reserved before and settled after. What calls took
    /// goes to the tab, to be stored with what they were for; without a tab it is stored at once.
    fn model(&self, payer: &Payer, tab: Option<Arc<Tab>>) -> Arc<dyn Model>;

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
    /// Who works.
    pub spender: Spender,
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
}

/// A call that is to be paid.
#[derive(Debug, Clone)]
pub struct Charge {
    /// What is reserved for it; `None` when nothing has to be.
    pub reserve: Option<Value>,
    /// What is noted of it beside what it takes.
    pub settle: Value,
}

impl Charge {
    /// What is noted when its call was never made.
    pub fn unused(self) -> Value {
        let mut settle = self.settle;
        for (name, nothing) in
            [("input", json!(0)), ("output", json!(0)), ("cost", json!(0)), ("secondary", json!(false))]
        {
            settle[name] = nothing;
        }
        settle
    }
}

/// What calls took and is not stored yet; and what was reserved for the first of them.
#[derive(Debug, Default)]
pub struct Tab {
    held: Mutex<Option<Charge>>,
    took: Mutex<Vec<Value>>,
}

impl Tab {
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
            self.add(charge.unused());
        }
    }

    /// Notes what a call took.
    pub fn add(&self, took: Value) {
        self.took.lock().expect("lock").push(took);
    }

    /// What could not be stored is owed all the same.
    pub fn put_back(&self, took: Vec<Value>) {
        self.took.lock().expect("lock").extend(took);
    }

    /// What calls took since it was last asked for: whoever takes it stores it.
    pub fn take(&self) -> Vec<Value> {
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
    /// When there is room again.
    pub resets_at: Timestamp,
    /// The same in seconds from now.
    pub retry_after: u64,
}

impl Refusal {
    /// What a client is told while work stands still for it.
    pub fn details(&self) -> Value {
        json!({"message": self.message, "blockingRule": self.rule, "current": self.current,
            "limit": self.rule["limit"], "resetsAt": self.resets_at})
    }
}

impl From<&Refusal> for Error {
    fn from(refusal: &Refusal) -> Self {
        Self::new(Code::TenantLimitExceeded, refusal.message.clone())
            .with("blockingRule", &refusal.rule)
            .with("current", &refusal.current)
            .with("limit", &refusal.rule["limit"])
            .with("resetsAt", refusal.resets_at)
            .retry_after(refusal.retry_after)
    }
}

/// Nobody counts: the model as it is.
pub struct Unmetered(pub Arc<dyn Model>);

#[async_trait]
impl Budget for Unmetered {
    fn model(&self, _payer: &Payer, _tab: Option<Arc<Tab>>) -> Arc<dyn Model> {
        Arc::clone(&self.0)
    }

    async fn charge(&self, _payer: &Payer, _model: &ModelSpec) -> Result<Option<Charge>> {
        Ok(None)
    }

    async fn spent(&self, _payer: &Payer) -> Result<Option<Refusal>> {
        Ok(None)
    }
}
