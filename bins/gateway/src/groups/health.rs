//! `/v1/health`, `/livez`, `/readyz`

use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::Ordering},
};

use platform_core::{Clock, Result, SystemClock, Timestamp};
use platform_http::{Answer, Group, OpenTo, Request};
use platform_models::Models;
use serde::Serialize;
use utoipa::ToSchema;

use crate::{
    health::{Health, Store},
    module::Module,
};

/// What the handlers use.
pub(crate) struct Services {
    health: Arc<Health>,
    models: Arc<Models>,
}

/// How the process is.
pub(crate) fn module(health: &Arc<Health>, models: &Arc<Models>) -> Module {
    let services = Services { health: Arc::clone(health), models: Arc::clone(models) };
    let mut group = Group::of("health", "How the server is", Arc::new(services));
    group.get("/v1/health", OpenTo::Public, report).with(spec::health);
    Module { groups: vec![probes(health), group.build()], ..Module::default() }
}

/// What an orchestrator asks; all that a process serves which only works.
pub(crate) fn probes(health: &Arc<Health>) -> Group {
    let mut group = Group::of("probes", "Whether the process runs, and takes requests", Arc::clone(health));
    group.get("/livez", OpenTo::Public, live).with(spec::live);
    group.get("/readyz", OpenTo::Public, ready).with(spec::ready);
    group.build()
}

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

async fn live(_: Arc<Health>, _: Request) -> Result<Answer> {
    Ok(Answer::text(200, "text/plain; charset=utf-8", "ok".to_owned()))
}

async fn ready(health: Arc<Health>, _: Request) -> Result<Answer> {
    let ready = health.ready.load(Ordering::Relaxed) && !matches!(health.store().await, Store::Down | Store::ReadOnly);
    let (status, word) = if ready { (200, "ok") } else { (503, "not ready") };
    Ok(Answer::text(status, "text/plain; charset=utf-8", word.to_owned()))
}

async fn report(services: Arc<Services>, _: Request) -> Result<Answer> {
    let Services { health, models } = &*services;
    // The run queue is a table of the database, and so are all records; an object store is not asked here.
    let (database, queue, storage) = match health.store_lately().await {
        Store::Down => ("down", "down", "down"),
        Store::ReadOnly => ("degraded", "down", "down"),
        Store::Unworked => ("ok", "degraded", "ok"),
        Store::Fine => ("ok", "ok", "ok"),
    };
    let provider = match models.failing() {
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
        version: env!("CARGO_PKG_VERSION"),
        timestamp: SystemClock.now(),
        uptime_ms: u64::try_from(health.started.elapsed().as_millis()).unwrap_or(u64::MAX),
        checks,
    };
    Answer::json(if status == "down" { 503 } else { 200 }, &report)
}

mod spec {
    use super::HealthReport;
    use platform_http::Operation;

    pub fn live() -> Operation {
        Operation::new("Whether the process runs").answers_text(200, "text/plain")
    }
    pub fn ready() -> Operation {
        Operation::new("Whether the process takes requests").answers_text(200, "text/plain").answers_empty(503)
    }
    pub fn health() -> Operation {
        Operation::new("Check the server").answers::<HealthReport>(200).answers::<HealthReport>(503)
    }
}
