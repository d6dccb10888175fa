use std::collections::HashMap;

use diesel::{dsl::sql, prelude::*, sql_types::Text};
use diesel_async::RunQueryDsl;
use platform_core::{AccountId, OriginUser, Page, Result, Timestamp};
use platform_db::Conn;

use super::model::{Role, User};
use crate::schema::users;

/// So many users with one address are tried.
const MAX_OF_ADDRESS: i64 = 5;

#[derive(Queryable, Selectable, Insertable, Clone)]
#[diesel(table_name = users)]
pub(crate) struct UserRow {
    pub id: String,
    pub account_id: String,
    pub email: Option<String>,
    pub password: Option<String>,
    pub issuer: Option<String>,
    pub subject: Option<String>,
    pub name: String,
    pub role: String,
    pub disabled: bool,
    pub created_ms: i64,
    pub edited_ms: i64,
}

impl UserRow {
    pub fn role(&self) -> Role {
        Role::of(&self.role)
    }
}

impl From<UserRow> for User {
    fn from(row: UserRow) -> Self {
        Self {
            role: row.role(),
            id: row.id,
            email: row.email,
            name: row.name,
            disabled: row.disabled,
            creation_timestamp_ms: Timestamp(row.created_ms),
            last_edit_timestamp_ms: Timestamp(row.edited_ms),
        }
    }
}

/// `false` when the address, or the subject of the issuer, is there already.
pub(crate) async fn insert(conn: &mut Conn, user: &UserRow) -> Result<bool> {
    let inserted = diesel::insert_into(users::table).values(user).on_conflict_do_nothing().execute(conn).await?;
    Ok(inserted == 1)
}

pub(crate) async fn lock(conn: &mut Conn, account: &AccountId, id: &str) -> Result<Option<UserRow>> {
    let user = users::table.filter(users::account_id.eq(account.as_str()).and(users::id.eq(id)));
    Ok(user.for_no_key_update().select(UserRow::as_select()).first(conn).await.optional()?)
}

pub(crate) async fn find(conn: &Conn, account: &AccountId, id: &str) -> Result<Option<UserRow>> {
    let mut conn = conn;
    let user = users::table.filter(users::account_id.eq(account.as_str()).and(users::id.eq(id)));
    Ok(user.select(UserRow::as_select()).first(&mut conn).await.optional()?)
}

/// The user behind a credential as they are now; `None` when they are gone, or shut out.
pub(crate) async fn behind(conn: &Conn, account: &AccountId, id: &str) -> Result<Option<OriginUser>> {
    let user = find(conn, account, id).await?.filter(|user| !user.disabled);
    Ok(user.map(|user| OriginUser { is_admin: user.role() == Role::Admin, id: user.id }))
}

/// Users with an address: the one of an account, or some of all accounts, oldest first.
pub(crate) async fn by_email(conn: &Conn, account: Option<&AccountId>, email: &str) -> Result<Vec<UserRow>> {
    let mut conn = conn;
    let same = sql::<diesel::sql_types::Bool>("lower(email) = lower(").bind::<Text, _>(email).sql(")");
    let mut all = users::table.filter(same).filter(users::disabled.eq(false)).into_boxed();
    if let Some(account) = account {
        all = all.filter(users::account_id.eq(account.as_str()));
    }
    let all = all.order((users::created_ms, users::id)).limit(MAX_OF_ADDRESS);
    Ok(all.select(UserRow::as_select()).load(&mut conn).await?)
}

pub(crate) async fn by_subject(
    conn: &Conn,
    account: &AccountId,
    issuer: &str,
    subject: &str,
) -> Result<Option<UserRow>> {
    let mut conn = conn;
    let user = users::account_id.eq(account.as_str()).and(users::issuer.eq(issuer)).and(users::subject.eq(subject));
    Ok(users::table.filter(user).select(UserRow::as_select()).first(&mut conn).await.optional()?)
}

pub(crate) async fn list(conn: &Conn, account: &AccountId, page: Page) -> Result<(Vec<UserRow>, i64)> {
    let mut conn = conn;
    let of = || users::table.filter(users::account_id.eq(account.as_str()));
    let total = of().count().get_result(&mut conn).await?;
    let rows = of()
        .order((users::created_ms.desc(), users::id.desc()))
        .limit(page.limit)
        .offset(page.offset)
        .select(UserRow::as_select())
        .load(&mut conn)
        .await?;
    Ok((rows, total))
}

pub(crate) async fn emails(conn: &Conn, account: &AccountId, ids: &[&str]) -> Result<HashMap<String, String>> {
    let mut conn = conn;
    let rows: Vec<(String, String)> = users::table
        .filter(users::account_id.eq(account.as_str()).and(users::id.eq_any(ids)).and(users::email.is_not_null()))
        .select((users::id, users::email.assume_not_null()))
        .load(&mut conn)
        .await?;
    Ok(rows.into_iter().collect())
}

/// `false` when the address is there already.
pub(crate) async fn update(conn: &mut Conn, account: &AccountId, user: &UserRow) -> Result<bool> {
    let updated =
        diesel::update(users::table.filter(users::account_id.eq(account.as_str()).and(users::id.eq(&user.id))))
            .set((
                users::email.eq(&user.email),
                users::password.eq(&user.password),
                users::name.eq(&user.name),
                users::role.eq(&user.role),
                users::disabled.eq(user.disabled),
                users::edited_ms.eq(user.edited_ms),
            ))
            .execute(conn)
            .await;
    match updated {
        Ok(_) => Ok(true),
        Err(diesel::result::Error::DatabaseError(diesel::result::DatabaseErrorKind::UniqueViolation, _)) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

pub(crate) async fn delete(conn: &mut Conn, account: &AccountId, id: &str) -> Result<bool> {
    let user = users::table.filter(users::account_id.eq(account.as_str()).and(users::id.eq(id)));
    Ok(diesel::delete(user).execute(conn).await? == 1)
}
