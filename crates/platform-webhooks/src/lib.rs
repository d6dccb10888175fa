//! Webhooks: events, signed, to whoever wants to be told (contract 17).
//!
//! **Owns** the tables `webhooks`, `webhook_secrets` and `webhook_deliveries`; the endpoints `/v1/webhooks`. **Needs**
//! `platform-events` for what happened, `platform-egress` for every request, [`ThreadAddresses`] for the addresses that
//! threads and agents name.
//!
//! **Invariants**: an event becomes one delivery for each who listens, in the transaction that takes it; a delivery is
//! tried until it succeeds or its attempts are over, each time with the same `webhook-id`; receivers are served apart
//! from each other, so that a slow one delays nobody else; secrets are sealed and shown once.
//!
//! ```no_run
//! # use std::sync::Arc;
//! # use platform_core::{AccountId, Result};
//! # use platform_webhooks::*;
//! # async fn example(needs: WebhookNeeds, account: AccountId, new: WebhookSettings) -> Result<()> {
//! let webhooks = Arc::new(PgWebhooks::new(needs));
//! let made = webhooks.create(&account, new, None).await?;
//! webhooks.keep().await;
//! # Ok(()) }
//! ```

mod catalog;
pub mod code;
mod deliver;
mod model;
mod repository;
mod route;
mod schema;
mod secrets;
mod service;
mod signature;

pub use model::{
    DefaultSecret, Delivery, DeliveryAttempt, DeliveryFilter, DeliveryPage, DeliveryStatus, NewDefaultSecret,
    TestDelivery, Webhook, WebhookPage, WebhookSettings, WebhookWithSecret,
};
pub use route::{ThreadAddress, ThreadAddresses, ThreadKey};
pub use service::{DeliveryRules, PgWebhooks, WEBHOOK, WebhookNeeds, WebhookService};
pub use signature::signature;
