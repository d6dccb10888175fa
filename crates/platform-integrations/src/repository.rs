use diesel::{dsl::sql, prelude::*, sql_types::Bool};
use diesel_async::RunQueryDsl;
use platform_core::{AccountId, Owner, Result, Timestamp};
use platform_db::Conn;

use crate::{
    model::Connection,
    schema::{app_credentials, connection_attempts, connections},
};

/// Stands so until a user has decided.
pub(crate) const PENDING: &str = "pending";
/// It is good.
pub(crate) const ACTIVE: &str = "active";
/// The app refuses it.
pub(crate) const NEEDS_REAUTH: &str = "needs_reauth";
/// The user did not decide, or decided against it.
pub(crate) const EXPIRED: &str = "expired";

#[derive(Debug, Clone, Queryable, Selectable, Insertable, AsChangeset)]
#[diesel(table_name = connections, treat_none_as_null = true)]
pub(crate) struct ConnectionRow {
    pub account_id: String,
    pub id: String,
    pub app: String,
    pub scheme: String,
    pub label: String,
    pub status: String,
    pub status_reason: Option<String>,
    pub tenant_id: Option<String>,
    pub subtenant_id: Option<String>,
    pub secrets: String,
    pub expires_ms: Option<i64>,
    pub refresh_ms: Option<i64>,
    pub refused: i16,
    pub connected_ms: Option<i64>,
    pub created_ms: i64,
    pub updated_ms: i64,
}

impl ConnectionRow {
    pub fn shown(&self) -> Connection {
        Connection {
            id: self.id.clone(),
            label: self.label.clone(),
            status: self.status.clone(),
            status_reason: self.status_reason.clone(),
            connected_at: self.connected_ms.map(|at| Timestamp(at).to_iso()),
            updated_at: Timestamp(self.updated_ms).to_iso(),
            needs_reconnect: [NEEDS_REAUTH, EXPIRED].contains(&self.status.as_str()),
        }
    }

    pub fn is_active(&self) -> bool {
        self.status == ACTIVE
    }
}

#[diesel::dsl::auto_type(no_type_alias)]
fn by_id<'a>(account: &'a str, id: &'a str) -> _ {
    connections::table.filter(connections::account_id.eq(account)).filter(connections::id.eq(id))
}

pub(crate) async fn insert(conn: &mut Conn, row: &ConnectionRow) -> Result<()> {
    diesel::insert_into(connections::table).values(row).execute(conn).await?;
    Ok(())
}

pub(crate) async fn find(conn: &Conn, account: &AccountId, id: &str) -> Result<Option<ConnectionRow>> {
    let mut conn = conn;
    Ok(by_id(account.as_str(), id).select(ConnectionRow::as_select()).first(&mut conn).await.optional()?)
}

pub(crate) async fn lock(conn: &mut Conn, account: &AccountId, id: &str) -> Result<Option<ConnectionRow>> {
    let row = by_id(account.as_str(), id).for_update().select(ConnectionRow::as_select());
    Ok(row.first(conn).await.optional()?)
}

pub(crate) async fn update(conn: &mut Conn, account: &AccountId, row: &ConnectionRow) -> Result<()> {
    diesel::update(by_id(account.as_str(), &row.id)).set(row).execute(conn).await?;
    Ok(())
}

/// Takes a connection away; what it was.
pub(crate) async fn delete(conn: &mut Conn, account: &AccountId, id: &str) -> Result<Option<ConnectionRow>> {
    let gone = diesel::delete(by_id(account.as_str(), id)).returning(ConnectionRow::as_returning());
    Ok(gone.get_result(conn).await.optional()?)
}

/// Connections of the account itself, or of an end user; of one app, newest first.
pub(crate) async fn list(
    conn: &Conn,
    account: &AccountId,
    app: Option<&str>,
    owner: &Owner,
) -> Result<Vec<ConnectionRow>> {
    let mut conn = conn;
    let mut rows = connections::table.filter(connections::account_id.eq(account.as_str())).into_boxed();
    if let Some(app) = app {
        rows = rows.filter(connections::app.eq(app));
    }
    rows = match &owner.tenant_id {
        None => rows.filter(connections::tenant_id.is_null()),
        Some(tenant) => rows.filter(connections::tenant_id.eq(tenant)),
    };
    if owner.tenant_id.is_some() {
        rows = match &owner.subtenant_id {
            None => rows.filter(connections::subtenant_id.is_null()),
            Some(subtenant) => rows.filter(connections::subtenant_id.eq(subtenant)),
        };
    }
    let newest = (connections::created_ms.desc(), connections::id.desc());
    Ok(rows.order(newest).limit(1000).select(ConnectionRow::as_select()).load(&mut conn).await?)
}

/// Connections of a tenant or of one of its end users.
pub(crate) async fn ids_of_tenant(
    conn: &Conn,
    account: &AccountId,
    tenant: &str,
    subtenant: Option<&str>,
) -> Result<Vec<String>> {
    let mut conn = conn;
    let mut rows = connections::table
        .filter(connections::account_id.eq(account.as_str()))
        .filter(connections::tenant_id.eq(tenant))
        .into_boxed();
    if let Some(subtenant) = subtenant {
        rows = rows.filter(connections::subtenant_id.eq(subtenant));
    }
    Ok(rows.select(connections::id).load(&mut conn).await?)
}

/// Connections to an MCP server, whoever's.
pub(crate) async fn ids_of_app(conn: &Conn, account: &AccountId, app: &str) -> Result<Vec<String>> {
    let mut conn = conn;
    let of_subjects = sql::<Bool>("starts_with(app, ").bind::<diesel::sql_types::Text, _>(format!("{app}:")).sql(")");
    let rows = connections::table
        .filter(connections::account_id.eq(account.as_str()))
        .filter(connections::app.eq(app).or(of_subjects));
    Ok(rows.select(connections::id).load(&mut conn).await?)
}

/// Connections of somebody to MCP servers.
pub(crate) async fn ids_of_subject(
    conn: &Conn,
    account: &AccountId,
    prefix: &str,
    subject: &str,
) -> Result<Vec<String>> {
    let mut conn = conn;
    let of_subject = sql::<Bool>("split_part(app, ':', 1) || ':' = ")
        .bind::<diesel::sql_types::Text, _>(prefix)
        .sql(" AND substr(app, strpos(substr(app, 5), ':') + 5) = ")
        .bind::<diesel::sql_types::Text, _>(subject);
    let rows = connections::table.filter(connections::account_id.eq(account.as_str())).filter(of_subject);
    Ok(rows.select(connections::id).load(&mut conn).await?)
}

/// Whether this process is the one that asks for another token; who had claimed that and died has lost it by then.
pub(crate) async fn claim(conn: &mut Conn, account: &AccountId, id: &str) -> Result<bool> {
    let claimed = diesel::sql_query(
        "UPDATE connections SET claimed_until = now() + interval '60 seconds' WHERE account_id = $1 AND id = $2
            AND status = 'active' AND (claimed_until IS NULL OR claimed_until < now())",
    );
    let claimed = claimed.bind::<diesel::sql_types::Text, _>(account.as_str());
    Ok(claimed.bind::<diesel::sql_types::Text, _>(id).execute(conn).await? == 1)
}

/// Has a token be asked for later.
pub(crate) async fn put_off(conn: &mut Conn, account: &AccountId, id: &str, until: i64) -> Result<()> {
    let due = by_id(account.as_str(), id).filter(connections::refresh_ms.lt(until));
    diesel::update(due).set(connections::refresh_ms.eq(Some(until))).execute(conn).await?;
    Ok(())
}

/// Nobody else connects the same app for the same end user until the end of this transaction.
pub(crate) async fn lock_owner(conn: &mut Conn, account: &AccountId, app: &str, owner: &Owner) -> Result<()> {
    let of = |text: &Option<String>| text.clone().unwrap_or_default();
    let name = platform_core::joined([account.as_str(), app, &of(&owner.tenant_id), &of(&owner.subtenant_id)]);
    let lock = sql::<Bool>("pg_advisory_xact_lock(hashtextextended(")
        .bind::<diesel::sql_types::Text, _>(name)
        .sql(", 1)) IS NULL");
    diesel::select(lock).execute(conn).await?;
    Ok(())
}

/// Attempts of an owner to connect an app that wait for its user.
const MAX_PENDING: usize = 100;

/// Forgets the oldest connections of an owner to an app that came to nothing, beyond so many.
pub(crate) async fn trim(conn: &mut Conn, account: &AccountId, app: &str, owner: &Owner, most: usize) -> Result<()> {
    let rows = list(conn, account, Some(app), owner).await?;
    // Users may still decide on those that wait for them: of these a good many are kept.
    let beyond = |status: &'static str, most| rows.iter().filter(move |row| row.status == status).skip(most);
    let old: Vec<&str> = beyond(EXPIRED, most).chain(beyond(PENDING, MAX_PENDING)).map(|row| row.id.as_str()).collect();
    let old =
        connections::table.filter(connections::account_id.eq(account.as_str())).filter(connections::id.eq_any(old));
    diesel::delete(old).execute(conn).await?;
    Ok(())
}

/// Lets others ask.
pub(crate) async fn release(conn: &mut Conn, account: &AccountId, id: &str) -> Result<()> {
    diesel::sql_query("UPDATE connections SET claimed_until = NULL WHERE account_id = $1 AND id = $2")
        .bind::<diesel::sql_types::Text, _>(account.as_str())
        .bind::<diesel::sql_types::Text, _>(id)
        .execute(conn)
        .await?;
    Ok(())
}

/// Connections whose tokens are to be asked for, and those that nobody decided on.
pub(crate) async fn due(conn: &Conn, now: Timestamp, pending_before: Timestamp) -> Result<(Vec<Due>, Vec<Due>)> {
    let (mut first, mut second) = (conn, conn);
    let keys = (connections::account_id, connections::id);
    let refresh = connections::table
        .filter(connections::status.eq(ACTIVE).and(connections::refresh_ms.le(now.0)))
        .order(connections::refresh_ms)
        .limit(100)
        .select(keys);
    let undecided = connections::table
        .filter(connections::status.eq(PENDING).and(connections::updated_ms.lt(pending_before.0)))
        .limit(100)
        .select(keys);
    Ok(futures_util::try_join!(refresh.load(&mut first), undecided.load(&mut second))?)
}

/// Account and id of a connection.
pub(crate) type Due = (String, String);

/// Counts one 401 more; how many they are one after the other.
pub(crate) async fn count_refusal(conn: &mut Conn, account: &AccountId, id: &str, counts: bool) -> Result<i16> {
    let refused = if counts { sql::<diesel::sql_types::SmallInt>("refused + 1") } else { sql("0") };
    let of = by_id(account.as_str(), id).filter(sql::<Bool>(if counts { "true" } else { "refused > 0" }));
    let count = diesel::update(of).set(connections::refused.eq(refused)).returning(connections::refused);
    Ok(count.get_result(conn).await.optional()?.unwrap_or(0))
}

#[derive(Queryable, Selectable, Insertable)]
#[diesel(table_name = connection_attempts)]
pub(crate) struct AttemptRow {
    pub state_hash: String,
    pub account_id: String,
    pub connection_id: String,
    pub sealed: String,
    pub return_to: Option<String>,
    pub made_by: String,
    pub expires_ms: i64,
}

pub(crate) async fn begin(conn: &mut Conn, row: &AttemptRow) -> Result<()> {
    diesel::insert_into(connection_attempts::table).values(row).execute(conn).await?;
    Ok(())
}

/// Takes an attempt: each can be taken once.
pub(crate) async fn take_attempt(conn: &mut Conn, state_hash: &str) -> Result<Option<AttemptRow>> {
    let gone = diesel::delete(connection_attempts::table.find(state_hash)).returning(AttemptRow::as_returning());
    Ok(gone.get_result(conn).await.optional()?)
}

pub(crate) async fn purge_attempts(conn: &mut Conn, now: Timestamp) -> Result<()> {
    let old = connection_attempts::table.filter(connection_attempts::expires_ms.lt(now.0));
    diesel::delete(old).execute(conn).await?;
    Ok(())
}

pub(crate) async fn app_secrets(conn: &Conn, account: &AccountId, app: &str, scheme: &str) -> Result<Option<String>> {
    let mut conn = conn;
    let row = app_credentials::table.find((account.as_str(), app, scheme)).select(app_credentials::sealed);
    Ok(row.first(&mut conn).await.optional()?)
}

pub(crate) async fn set_app_secrets(
    conn: &mut Conn,
    account: &AccountId,
    app: &str,
    scheme: &str,
    sealed: &str,
) -> Result<()> {
    diesel::insert_into(app_credentials::table)
        .values((
            app_credentials::account_id.eq(account.as_str()),
            app_credentials::app.eq(app),
            app_credentials::scheme.eq(scheme),
            app_credentials::sealed.eq(sealed),
        ))
        .on_conflict((app_credentials::account_id, app_credentials::app, app_credentials::scheme))
        .do_update()
        .set(app_credentials::sealed.eq(sealed))
        .execute(conn)
        .await?;
    Ok(())
}
