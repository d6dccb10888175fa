use diesel::prelude::*;
use diesel_async::RunQueryDsl;
use platform_core::{AccountId, Result, Timestamp};
use platform_db::Conn;
use serde::Serialize;
use utoipa::ToSchema;

use crate::schema::accounts;

/// An account (workspace); everything else belongs to one.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct AccountRecord {
    /// Id of the account.
    #[serde(rename = "clientUID")]
    #[schema(value_type = String)]
    pub id: AccountId,
    /// Unique name.
    pub name: String,
}

/// `false` when the name is taken.
pub(crate) async fn insert(conn: &mut Conn, account: &AccountRecord, now: Timestamp) -> Result<bool> {
    let inserted = diesel::insert_into(accounts::table)
        .values((
            accounts::id.eq(account.id.as_str()),
            accounts::name.eq(&account.name),
            accounts::created_ms.eq(now.0),
            accounts::edited_ms.eq(now.0),
        ))
        .on_conflict(accounts::name)
        .do_nothing()
        .execute(conn)
        .await?;
    Ok(inserted == 1)
}

pub(crate) async fn list(conn: &mut Conn) -> Result<Vec<(String, String)>> {
    Ok(accounts::table.select((accounts::id, accounts::name)).order(accounts::created_ms).load(conn).await?)
}

pub(crate) async fn find(conn: &mut Conn, id_or_name: &str) -> Result<Option<String>> {
    let account = accounts::table.filter(accounts::id.eq(id_or_name).or(accounts::name.eq(id_or_name)));
    Ok(account.select(accounts::id).first(conn).await.optional()?)
}
