//! What tenants may take and took: tiers, limits, usage, history (contract 10 §2 to §5).

mod history;
mod model;
mod service;
mod tiers;

pub(crate) use model::percent;
pub use model::{
    AddedUsage, HistoryFilter, HistoryRow, Limits, NewLimits, NewUsage, Reset, ResetDone, TierChange, TierChanged,
    Usage, UsageEntry,
};
pub use service::UsageService;
