//! Windows that have ended.

use diesel::{
    pg::Pg,
    prelude::*,
    sql_types::{BigInt, Bool},
};
use diesel_async::RunQueryDsl;
use platform_core::{AccountId, Page, Result, Timestamp};
use platform_db::Conn;

use super::model::{HistoryFilter, HistoryRow, origin, percent};
use crate::{
    rule::{Metric, Scope},
    schema::usage_history,
};

/// Windows that the filter keeps, newest first, and how many there are.
pub(super) async fn list(
    conn: &Conn,
    account: &AccountId,
    tenant: &str,
    filter: &HistoryFilter,
    page: Page,
) -> Result<(Vec<HistoryRow>, i64)> {
    let mut conn = conn;
    let found = || usage_history::table.filter(condition(account, tenant, filter));
    let rows: Vec<HistoryRecord> = found()
        .order((
            usage_history::ends_ms.desc(),
            usage_history::captured_ms.desc(),
            usage_history::subtenant_id,
            usage_history::metric,
            usage_history::window_unit,
            usage_history::window_every,
        ))
        .limit(page.limit)
        .offset(page.offset)
        .select(HistoryRecord::as_select())
        .load(&mut conn)
        .await?;
    // A page that is not full says itself how many there are: a count at another moment could contradict it.
    let shown = i64::try_from(rows.len()).unwrap_or(i64::MAX);
    let total = if shown < page.limit && (shown > 0 || page.offset == 0) {
        page.offset + shown
    } else {
        found().count().get_result(&mut conn).await?
    };
    Ok((rows.into_iter().map(HistoryRow::from).collect(), total))
}

fn condition(
    account: &AccountId,
    tenant: &str,
    filter: &HistoryFilter,
) -> Box<dyn BoxableExpression<usage_history::table, Pg, SqlType = Bool>> {
    let of =
        usage_history::account_id.eq(account.as_str().to_owned()).and(usage_history::tenant_id.eq(tenant.to_owned()));
    let mut all: Box<dyn BoxableExpression<usage_history::table, Pg, SqlType = Bool>> = Box::new(of);
    if let Some(metric) = filter.metric {
        all = Box::new(all.and(usage_history::metric.eq(metric.as_str())));
    }
    if let Some(unit) = filter.window_unit {
        all = Box::new(all.and(usage_history::window_unit.eq(unit.as_str())));
    }
    match filter.scope {
        Some(Scope::Tenant) => all = Box::new(all.and(usage_history::subtenant_id.eq(""))),
        Some(Scope::Subtenant) => all = Box::new(all.and(usage_history::subtenant_id.ne(""))),
        None => {}
    }
    if let Some(subtenant) = &filter.subtenant_id {
        all = Box::new(all.and(usage_history::subtenant_id.eq(subtenant.clone())));
    }
    if let Some(from) = filter.from {
        all = Box::new(all.and(usage_history::ends_ms.ge(from.into_sql::<BigInt>())));
    }
    if let Some(to) = filter.to {
        all = Box::new(all.and(usage_history::starts_ms.le(to.into_sql::<BigInt>())));
    }
    all
}

#[derive(Queryable, Selectable)]
#[diesel(table_name = usage_history)]
struct HistoryRecord {
    account_id: String,
    tenant_id: String,
    subtenant_id: String,
    metric: String,
    window_unit: String,
    window_every: i32,
    window_key: i64,
    starts_ms: i64,
    ends_ms: i64,
    consumed: i64,
    exempt: i64,
    external: i64,
    rule_limit: i64,
    tier_id: Option<String>,
    captured_ms: i64,
}

impl From<HistoryRecord> for HistoryRow {
    fn from(row: HistoryRecord) -> Self {
        let metric = Metric::of(&row.metric);
        Self {
            scope: if row.subtenant_id.is_empty() { Scope::Tenant } else { Scope::Subtenant },
            tenant_id: row.tenant_id,
            subtenant_id: row.subtenant_id,
            metric: row.metric,
            window_unit: row.window_unit,
            window_every: row.window_every,
            window_start: Timestamp(row.starts_ms),
            window_end: Timestamp(row.ends_ms),
            consumption: metric.shown(row.consumed),
            exempt_consumption: metric.shown(row.exempt),
            external_consumption: metric.shown(row.external),
            limit: metric.shown(row.rule_limit),
            percent: percent(row.consumed, row.rule_limit),
            origin: origin(row.tier_id.as_ref()),
            tier_id: row.tier_id.unwrap_or_default(),
            client_uid: row.account_id,
            window_key: row.window_key.to_string(),
            captured_at: Timestamp(row.captured_ms),
        }
    }
}
