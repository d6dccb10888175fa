//! Tenants and their end users, what they may take and what they took (contract 10 §1 to §5); what is spent in projects.
//!
//! **Owns** the tables `tenants`, `former_tenants`, `subtenants`, `tiers`, `usage_*`, `costs` and `tenant_audit`; the
//! endpoints `/v1/tenants`, `/v1/tenant-usage` and `/v1/tenant-admin`; the SQL functions that reserve and settle.
//! **Needs** `platform-db`, `platform-events`, and a model whose calls it meters as the runtime's `Budget`.
//!
//! **Invariants**: each model call of a tenant is reserved before it is made and settled after, in one statement
//! each, which the first and last call of a chat's turn share with the turn's own writes; all rules of a call have
//! room or it is refused; calls that race take at most one call more than the limit, on however many processes; the
//! database's clock decides on windows; a window that has ended is written to the history once.
//!
//! ```no_run
//! # use std::sync::Arc;
//! # use platform_core::{Clock, Result};
//! # use platform_db::{Bus, Db};
//! # use platform_runtime::Model;
//! # use platform_tenants::*;
//! # fn example(db: &Db, bus: &Bus, clock: Arc<dyn Clock>, model: Arc<dyn Model>) {
//! // Whoever asks a model through `quotas` has its calls reserved and settled.
//! let quotas = Arc::new(Quotas::new(db, bus, model));
//! let tenants = PgTenantService::new(db, bus, clock, Arc::clone(&quotas));
//! # }
//! ```

mod audit;
pub mod code;
mod costs;
mod quota;
mod rule;
mod schema;
mod service;
mod tenant;
mod usage;
mod windows;

pub use audit::{AuditEntry, AuditPage};
pub use costs::{CostTotals, Currency, ProjectCost, ProjectCosts, TenantCost};
pub use quota::{Quotas, RESERVE, SETTLE, refusals, settle_in};
pub use rule::{Metric, NewTier, Rule, Scope, Tier, WindowUnit};
pub use service::PgTenantService;
pub use tenant::{
    NewTenant, Subtenant, SubtenantPage, SubtenantPatch, Tenant, TenantFilter, TenantInfo, TenantPage, TenantPatch,
    TenantService,
};
pub use usage::{
    AddedUsage, HistoryFilter, HistoryRow, Limits, NewLimits, NewUsage, Reset, ResetDone, TierChange, TierChanged,
    Usage, UsageEntry, UsageService,
};
