//! Triggers: an event of an app starts a thread of an agent, or a message to an assistant (contract 09).
//!
//! **Owns** the tables `triggers`, `trigger_counters`, `trigger_events` and `trigger_seen`; the endpoints `/v1/triggers`
//! and `/v1/hooks`. **Needs** `platform-integrations` for apps and their events, `platform-agents` and `platform-chat`
//! for what is started.
//!
//! **Invariants**: an event is stored before its sender is answered, in one commit; it starts one run, however often it
//! comes and whatever is killed: its id is unique for seven days, and the start carries the delivery as its idempotency
//! key; what a run causes is one deeper than the run, and at five it ends.
//!
//! ```no_run
//! # use platform_core::{Caller, Result};
//! # use platform_triggers::*;
//! # async fn example(needs: TriggerNeeds, caller: Caller, new: NewTrigger, headers: &dyn RequestHeaders) -> Result<()> {
//! let triggers = PgTriggers::new(needs);
//! let trigger = triggers.create(&caller, new, None).await?;
//! let received = triggers.receive("token", headers, &"{}".into()).await?;
//! # Ok(()) }
//! ```

pub mod code;
mod feed;
mod hook;
mod model;
mod poll;
mod process;
mod repository;
mod schema;
mod service;
mod subscribe;
mod template;

pub use hook::{Received, RequestHeaders};
pub use model::{
    Delivery, DeliveryError, DeliveryFilter, DeliveryOutcome, DeliveryPage, NewTest, NewTrigger, Target, Trigger,
    TriggerFilter, TriggerPage, TriggerPatch, TriggerState,
};
pub use poll::{PollWork, ScheduleWork};
pub use process::ProcessWork;
pub use service::{PgTriggers, TRIGGER, TriggerListener, TriggerNeeds, TriggerReferrer, TriggerRules, TriggerService};
pub use subscribe::UnsubscribeWork;
