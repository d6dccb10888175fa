//! Who changed what of a tenant's quotas; kept for ever.

use diesel::prelude::*;
use diesel_async::RunQueryDsl;
use platform_core::{AccountId, Caller, Id, Page, Result, Timestamp};
use platform_db::Conn;
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use crate::schema::tenant_audit;

/// One change.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct AuditEntry {
    /// The tenant.
    pub tenant_id: String,
    /// The end user, when it was about one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subtenant_id: Option<String>,
    /// `tier`, `reset`, `add_usage` or `limits`.
    pub action: String,
    /// `from`, `to`, `reason`, `source` and `amounts`, as far as the action has them.
    #[serde(flatten)]
    #[schema(value_type = Object)]
    pub body: Value,
    /// When it was done.
    pub timestamp_ms: Timestamp,
    /// User or key that did it.
    #[serde(rename = "userUID")]
    pub user_uid: String,
}

/// A page of changes.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct AuditPage {
    /// The changes, newest first.
    pub items: Vec<AuditEntry>,
    /// How many there are in all.
    pub total: i64,
    /// Skipped.
    pub offset: i64,
    /// At most this many.
    pub limit: i64,
}

/// Notes a change, in the transaction that makes it.
pub(crate) async fn note_in(
    conn: &mut Conn,
    caller: &Caller,
    (tenant, subtenant): (&str, Option<&str>),
    action: &str,
    mut body: Value,
    now: Timestamp,
) -> Result<()> {
    drop_nulls(&mut body);
    diesel::insert_into(tenant_audit::table)
        .values((
            tenant_audit::id.eq(String::from(Id::<AuditEntry>::generate())),
            tenant_audit::account_id.eq(caller.account.as_str()),
            tenant_audit::tenant_id.eq(tenant),
            tenant_audit::subtenant_id.eq(subtenant),
            tenant_audit::action.eq(action),
            tenant_audit::body.eq(body),
            tenant_audit::user_uid.eq(&caller.user_uid),
            tenant_audit::created_ms.eq(now.0),
        ))
        .execute(conn)
        .await?;
    Ok(())
}

/// What has no value is absent (contract 00).
fn drop_nulls(value: &mut Value) {
    let Value::Object(fields) = value else { return };
    fields.retain(|_, value| !value.is_null());
    fields.values_mut().for_each(drop_nulls);
}

pub(crate) async fn list(
    conn: &Conn,
    account: &AccountId,
    tenant: &str,
    subtenant: Option<&str>,
    page: Page,
) -> Result<AuditPage> {
    let mut conn = conn;
    let noted = || {
        let of = tenant_audit::account_id.eq(account.as_str()).and(tenant_audit::tenant_id.eq(tenant));
        let all = tenant_audit::table.filter(of).into_boxed();
        match subtenant {
            Some(subtenant) => all.filter(tenant_audit::subtenant_id.eq(subtenant)),
            None => all,
        }
    };
    let total = noted().count().get_result(&mut conn).await?;
    type Row = (String, Option<String>, String, Value, i64, String);
    let rows: Vec<Row> = noted()
        .order((tenant_audit::created_ms.desc(), tenant_audit::id.desc()))
        .limit(page.limit)
        .offset(page.offset)
        .select((
            tenant_audit::tenant_id,
            tenant_audit::subtenant_id,
            tenant_audit::action,
            tenant_audit::body,
            tenant_audit::created_ms,
            tenant_audit::user_uid,
        ))
        .load(&mut conn)
        .await?;
    let entry = |(tenant_id, subtenant_id, action, body, at, user_uid): Row| AuditEntry {
        tenant_id,
        subtenant_id,
        action,
        body,
        timestamp_ms: Timestamp(at),
        user_uid,
    };
    let items = rows.into_iter().map(entry).collect();
    Ok(AuditPage { items, total, offset: page.offset, limit: page.limit })
}
