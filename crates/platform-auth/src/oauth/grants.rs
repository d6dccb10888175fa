//! What users granted: codes, and the families of tokens that follow from them.

use diesel::{prelude::*, sql_types::BigInt};
use diesel_async::RunQueryDsl;
use platform_core::{AccountId, Result, Timestamp};
use platform_db::Conn;

use super::clients::ClientRow;
use crate::{
    key::repository::{OfApplications, disable_of_applications},
    schema::{oauth_clients, oauth_grants, oauth_refresh_tokens, users},
    user::repository::UserRow,
};

/// Grants that nothing follows from any more are known so long.
const KEEP_MS: i64 = 7 * 86_400_000;

#[derive(Queryable, Selectable, Insertable, Clone)]
#[diesel(table_name = oauth_grants)]
pub(crate) struct GrantRow {
    pub id: String,
    pub account_id: String,
    pub client_id: String,
    pub user_id: String,
    pub scope: String,
    pub audience: String,
    pub code_digest: String,
    pub code_expires_ms: i64,
    pub code_used_ms: Option<i64>,
    pub redirect_uri: String,
    pub challenge: String,
    pub created_ms: i64,
    pub revoked_ms: Option<i64>,
}

#[derive(Queryable, Selectable, Insertable, Clone)]
#[diesel(table_name = oauth_refresh_tokens)]
pub(crate) struct RefreshRow {
    pub digest: String,
    pub grant_id: String,
    pub expires_ms: i64,
    pub used_ms: Option<i64>,
    pub sealed_answer: Option<String>,
}

pub(crate) async fn insert(conn: &mut Conn, grant: &GrantRow) -> Result<()> {
    diesel::insert_into(oauth_grants::table).values(grant).execute(conn).await?;
    Ok(())
}

/// The grant of a code, locked: a code is used once.
pub(crate) async fn lock_by_code(conn: &mut Conn, digest: &str) -> Result<Option<GrantRow>> {
    let grant = oauth_grants::table.filter(oauth_grants::code_digest.eq(digest));
    Ok(grant.for_no_key_update().select(GrantRow::as_select()).first(conn).await.optional()?)
}

pub(crate) async fn use_code(conn: &mut Conn, id: &str, now: Timestamp) -> Result<()> {
    let grant = oauth_grants::table.filter(oauth_grants::id.eq(id));
    diesel::update(grant).set(oauth_grants::code_used_ms.eq(now.0)).execute(conn).await?;
    Ok(())
}

/// Whether there was anything to revoke.
pub(crate) async fn revoke(conn: &mut Conn, id: &str, now: Timestamp) -> Result<bool> {
    let grant = oauth_grants::table.filter(oauth_grants::id.eq(id).and(oauth_grants::revoked_ms.is_null()));
    let is_revoked = diesel::update(grant).set(oauth_grants::revoked_ms.eq(now.0)).execute(conn).await? == 1;
    disable_of_applications(conn, OfApplications::Grant(id), now).await.map(|()| is_revoked)
}

/// All that a user gave, whose keys are another matter.
pub(crate) async fn revoke_of_user(conn: &mut Conn, account: &AccountId, user: &str, now: Timestamp) -> Result<()> {
    let of_user = oauth_grants::account_id.eq(account.as_str()).and(oauth_grants::user_id.eq(user));
    let grants = oauth_grants::table.filter(of_user.and(oauth_grants::revoked_ms.is_null()));
    diesel::update(grants).set(oauth_grants::revoked_ms.eq(now.0)).execute(conn).await?;
    Ok(())
}

/// All that was given to a client.
pub(crate) async fn revoke_of_client(conn: &mut Conn, client: &str, now: Timestamp) -> Result<()> {
    let grants = oauth_grants::table.filter(oauth_grants::client_id.eq(client));
    let grants = grants.filter(oauth_grants::revoked_ms.is_null());
    diesel::update(grants).set(oauth_grants::revoked_ms.eq(now.0)).execute(conn).await?;
    disable_of_applications(conn, OfApplications::Client(client), now).await
}

/// Whether a grant was not revoked, nor is until the transaction ends. One that is forgotten was not.
pub(crate) async fn stands_in(conn: &mut Conn, id: &str) -> Result<bool> {
    let grant = oauth_grants::table.filter(oauth_grants::id.eq(id)).for_share().select(oauth_grants::revoked_ms);
    let revoked: Option<Option<i64>> = grant.first(conn).await.optional()?;
    Ok(revoked.flatten().is_none())
}

/// A grant with who gave it and to whom, as they are now.
pub(crate) async fn find(conn: &Conn, id: &str) -> Result<Option<(GrantRow, UserRow, ClientRow)>> {
    let mut conn = conn;
    let grant = oauth_grants::table
        .inner_join(users::table.on(users::id.eq(oauth_grants::user_id)))
        .inner_join(oauth_clients::table.on(oauth_clients::client_id.eq(oauth_grants::client_id)))
        .filter(oauth_grants::id.eq(id))
        .select((GrantRow::as_select(), UserRow::as_select(), ClientRow::as_select()));
    Ok(grant.first(&mut conn).await.optional()?)
}

pub(crate) async fn insert_refresh(conn: &mut Conn, token: &RefreshRow) -> Result<()> {
    diesel::insert_into(oauth_refresh_tokens::table).values(token).execute(conn).await?;
    Ok(())
}

/// Keeps a grant until the transaction ends.
pub(crate) async fn hold(conn: &mut Conn, id: &str) -> Result<()> {
    let grant = oauth_grants::table.filter(oauth_grants::id.eq(id)).for_key_share().select(oauth_grants::id);
    grant.load::<String>(conn).await?;
    Ok(())
}

/// A refresh token, locked: it is exchanged once.
pub(crate) async fn lock_refresh(conn: &mut Conn, digest: &str) -> Result<Option<RefreshRow>> {
    let token = oauth_refresh_tokens::table.filter(oauth_refresh_tokens::digest.eq(digest));
    Ok(token.for_no_key_update().select(RefreshRow::as_select()).first(conn).await.optional()?)
}

pub(crate) async fn find_refresh(conn: &Conn, digest: &str) -> Result<Option<RefreshRow>> {
    let mut conn = conn;
    let token = oauth_refresh_tokens::table.filter(oauth_refresh_tokens::digest.eq(digest));
    Ok(token.select(RefreshRow::as_select()).first(&mut conn).await.optional()?)
}

pub(crate) async fn use_refresh(conn: &mut Conn, digest: &str, answer: &str, now: Timestamp) -> Result<()> {
    let token = oauth_refresh_tokens::table.filter(oauth_refresh_tokens::digest.eq(digest));
    let used = (oauth_refresh_tokens::used_ms.eq(now.0), oauth_refresh_tokens::sealed_answer.eq(answer));
    diesel::update(token).set(used).execute(conn).await?;
    Ok(())
}

/// Forgets tokens past their time, and grants without any.
pub async fn purge(conn: &mut Conn, now: Timestamp) -> Result<()> {
    // What somebody has locked goes next time, if it is still there.
    for old in [
        "DELETE FROM oauth_refresh_tokens WHERE digest IN (
            SELECT digest FROM oauth_refresh_tokens WHERE expires_ms < $1 FOR UPDATE SKIP LOCKED)",
        "DELETE FROM oauth_grants WHERE id IN (SELECT id FROM oauth_grants WHERE created_ms < $1
            AND NOT EXISTS (SELECT FROM oauth_refresh_tokens t WHERE t.grant_id = oauth_grants.id)
            FOR UPDATE SKIP LOCKED)",
    ] {
        diesel::sql_query(old).bind::<BigInt, _>(now.0 - KEEP_MS).execute(conn).await?;
    }
    Ok(())
}
