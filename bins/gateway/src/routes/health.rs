//! `/v1/health`, `/livez`, `/readyz`

use std::{collections::BTreeMap, sync::atomic::Ordering};

use platform_core::{Clock, Result, SystemClock, Timestamp};
use serde::Serialize;
use utoipa::ToSchema;

use crate::{health::Store, request::Request, respond::Answer};

/// How the server is (contract 16).
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct HealthReport {
    /// `ok`, `degraded` or `down`.
    status: &'static str,
    version: &'static str,
    timestamp: Timestamp,
    uptime_ms: u64,
    /// `database`, `queue`, `storage`, `provider`: `ok`, `degraded` or `down`.
    checks: BTreeMap<&'static str, &'static str>,
}

pub(crate) async fn live(_: Request) -> Result<Answer> {
    Ok(Answer::text(200, "text/plain; charset=utf-8", "ok".to_owned()))
}

pub(crate) async fn ready(request: Request) -> Result<Answer> {
    let health = &request.services.health;
    let ready = health.ready.load(Ordering::Relaxed) && !matches!(health.store().await, Store::Down | Store::ReadOnly);
    let (status, word) = if ready { (200, "ok") } else { (503, "not ready") };
    Ok(Answer::text(status, "text/plain; charset=utf-8", word.to_owned()))
}

pub(crate) async fn health(request: Request) -> Result<Answer> {
    let health = &request.services.health;
    // The run queue and all storage are tables of the database.
    let (database, queue, storage) = match health.store_lately().await {
        Store::Down => ("down", "down", "down"),
        Store::ReadOnly => ("degraded", "down", "down"),
        Store::Unworked => ("ok", "degraded", "ok"),
        Store::Fine => ("ok", "ok", "ok"),
    };
    let provider = match request.services.models.failing() {
        (_, 0) => "ok",
        (all, failing) if failing < all => "degraded",
        _ => "down",
    };
    let status = match (database, queue, provider) {
        ("down", ..) | (_, "down", _) => "down",
        ("ok", "ok", "ok") => "ok",
        _ => "degraded",
    };
    let checks =
        BTreeMap::from([("database", database), ("queue", queue), ("storage", storage), ("provider", provider)]);
    let report = HealthReport {
        status,
        version: "1.0.0",
        timestamp: SystemClock.now(),
        uptime_ms: u64::try_from(health.started.elapsed().as_millis()).unwrap_or(u64::MAX),
        checks,
    };
    Answer::json(if status == "down" { 503 } else { 200 }, &report)
}

pub(super) mod spec {
    use super::HealthReport;
    use crate::openapi::Operation;

    pub fn live() -> Operation {
        Operation::new("Whether the process runs").answers_text("text/plain")
    }
    pub fn ready() -> Operation {
        Operation::new("Whether the process takes requests").answers_text("text/plain").answers_empty(503)
    }
    pub fn health() -> Operation {
        Operation::new("Check the server").answers::<HealthReport>(200).answers::<HealthReport>(503)
    }
}
