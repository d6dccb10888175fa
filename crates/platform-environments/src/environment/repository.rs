use diesel::{
    pg::Pg,
    prelude::*,
    sql_types::{Array, BigInt, Nullable, Text},
};
use diesel_async::RunQueryDsl;
use platform_core::{AccountId, Code, Error, Page, Result, Timestamp};
use platform_db::Conn;
use platform_sandbox::Cli;
use serde::Deserialize;
use serde_json::Value;

use super::model::{Environment, EnvironmentFilter, EnvironmentSettings, PublicDomain};
use crate::schema::{environment_variables, environments};

#[derive(Debug, Clone, Queryable, Selectable, Insertable)]
#[diesel(table_name = environments)]
pub(crate) struct EnvironmentRow {
    pub account_id: String,
    pub id: String,
    pub project_id: Option<String>,
    pub settings: Value,
    /// Sealed.
    pub secrets: String,
    pub version: i64,
    pub created_ms: i64,
    pub edited_ms: i64,
}

impl EnvironmentRow {
    /// What was set; the variables are masked.
    pub fn settings(&self) -> Result<EnvironmentSettings> {
        EnvironmentSettings::deserialize(&self.settings).map_err(Error::internal)
    }

    /// As it is sent, in this state; `public`: below which its machine is reached from outside.
    pub fn shown(self, state: &'static str, public: Option<&PublicDomain>) -> Result<Environment> {
        let mut settings = self.settings()?;
        let config = &mut settings.sandbox_config;
        config.public_url = public.zip(config.public_slug.as_ref()).map(|(domain, slug)| domain.url(slug));
        Ok(Environment {
            settings,
            id: self.id,
            state,
            creation_timestamp_ms: Timestamp(self.created_ms),
            last_edit_timestamp_ms: Timestamp(self.edited_ms),
            version: self.version,
        })
    }
}

#[diesel::dsl::auto_type(no_type_alias)]
fn by_id<'a>(account: &'a str, id: &'a str) -> _ {
    environments::table.filter(environments::account_id.eq(account)).filter(environments::id.eq(id))
}

pub(crate) async fn insert(conn: &mut Conn, row: &EnvironmentRow) -> Result<()> {
    named(diesel::insert_into(environments::table).values(row).execute(conn).await)
}

/// `NAME_TAKEN` when another environment, of whichever account, has the public name.
fn named(stored: QueryResult<usize>) -> Result<()> {
    match stored {
        Err(diesel::result::Error::DatabaseError(diesel::result::DatabaseErrorKind::UniqueViolation, of))
            if of.constraint_name() == Some("environments_public_slug") =>
        {
            let message = "Another environment has this sandboxConfig.publicSlug; choose another name.";
            Err(Error::new(platform_auth::code::NAME_TAKEN, message).with("field", "sandboxConfig.publicSlug"))
        }
        stored => Ok(stored.map(|_| ())?),
    }
}

pub(crate) async fn find(conn: &Conn, account: &AccountId, id: &str) -> Result<Option<EnvironmentRow>> {
    let mut conn = conn;
    let row = by_id(account.as_str(), id).select(EnvironmentRow::as_select());
    Ok(row.first(&mut conn).await.optional()?)
}

/// What was stored for an environment. `ENVIRONMENT_NOT_FOUND` when that was deleted meanwhile.
pub(crate) fn stored_for<T>(environment: &str, result: QueryResult<T>) -> Result<T> {
    match result {
        Err(diesel::result::Error::DatabaseError(diesel::result::DatabaseErrorKind::ForeignKeyViolation, _)) => {
            Err(Error::not_found(Code::ENVIRONMENT_NOT_FOUND, "environment", environment))
        }
        result => Ok(result?),
    }
}

/// The project that it is in.
pub(crate) async fn project(conn: &mut Conn, account: &AccountId, id: &str) -> Result<Option<String>> {
    let project = by_id(account.as_str(), id).select(environments::project_id);
    Ok(project.first::<Option<String>>(conn).await.optional()?.flatten())
}

pub(crate) async fn lock(conn: &mut Conn, account: &AccountId, id: &str) -> Result<Option<EnvironmentRow>> {
    let row = by_id(account.as_str(), id).for_update().select(EnvironmentRow::as_select());
    Ok(row.first(conn).await.optional()?)
}

/// Those of some that are there, which are not deleted before this transaction ends.
pub(crate) async fn hold(conn: &mut Conn, account: &AccountId, ids: &[String]) -> Result<Vec<String>> {
    let held = environments::table.filter(environments::account_id.eq(account.as_str()));
    let held = held.filter(environments::id.eq_any(ids)).order(environments::id).select(environments::id);
    Ok(held.for_key_share().load(conn).await?)
}

pub(crate) async fn update(conn: &mut Conn, account: &AccountId, row: &EnvironmentRow) -> Result<()> {
    let set = (
        environments::project_id.eq(&row.project_id),
        environments::settings.eq(&row.settings),
        environments::secrets.eq(&row.secrets),
        environments::version.eq(row.version),
        environments::edited_ms.eq(row.edited_ms),
    );
    named(diesel::update(by_id(account.as_str(), &row.id)).set(set).execute(conn).await)
}

pub(crate) async fn delete(conn: &mut Conn, account: &AccountId, id: &str) -> Result<()> {
    diesel::delete(by_id(account.as_str(), id)).execute(conn).await?;
    Ok(())
}

pub(crate) async fn set_clis(conn: &mut Conn, account: &AccountId, id: &str, clis: &[Cli]) -> Result<()> {
    let clis = serde_json::to_value(clis).map_err(Error::internal)?;
    diesel::update(by_id(account.as_str(), id)).set(environments::clis.eq(clis)).execute(conn).await?;
    Ok(())
}

pub(crate) async fn clis(conn: &Conn, account: &AccountId, id: &str) -> Result<Option<Value>> {
    let mut conn = conn;
    let clis = by_id(account.as_str(), id).select(environments::clis);
    Ok(clis.first::<Option<Value>>(&mut conn).await.optional()?.flatten())
}

type Environments<'a> = environments::BoxedQuery<'a, Pg>;

fn listed<'a>(account: &'a AccountId, filter: &'a EnvironmentFilter) -> Environments<'a> {
    let mut rows = environments::table.filter(environments::account_id.eq(account.as_str())).into_boxed();
    if let Some(project) = &filter.project_id {
        rows = rows.filter(environments::project_id.eq(project));
    }
    if let Some(within) = &filter.within {
        rows = rows.filter(environments::project_id.is_null().or(environments::project_id.eq_any(within)));
    }
    rows
}

pub(crate) async fn list(
    conn: &Conn,
    account: &AccountId,
    filter: &EnvironmentFilter,
    page: Page,
) -> Result<(Vec<EnvironmentRow>, i64)> {
    let (mut first, mut second) = (conn, conn);
    let newest = (environments::created_ms.desc(), environments::id.desc());
    let rows = listed(account, filter).order(newest).limit(page.limit).offset(page.offset);
    let rows = rows.select(EnvironmentRow::as_select());
    let total = listed(account, filter).count();
    Ok(futures_util::try_join!(rows.load(&mut first), total.get_result(&mut second))?)
}

/// A connection, as it is stored: since when, and with which variables.
#[derive(Debug, QueryableByName)]
pub(crate) struct ConnectionRow {
    #[diesel(sql_type = Text)]
    pub user_kind: String,
    #[diesel(sql_type = Text)]
    pub user_id: String,
    #[diesel(sql_type = BigInt)]
    pub created_ms: i64,
    #[diesel(sql_type = Nullable<Array<Text>>)]
    pub names: Option<Vec<String>>,
}

pub(crate) async fn connections(conn: &mut Conn, account: &AccountId, id: &str) -> Result<Vec<ConnectionRow>> {
    let query = diesel::sql_query(
        "SELECT u.user_kind, u.user_id, u.created_ms, v.names FROM uses u \
         LEFT JOIN environment_variables v USING (account_id, target_kind, target_id, user_kind, user_id) \
         WHERE u.account_id = $1 AND u.target_kind = 'environment' AND u.target_id = $2 \
         ORDER BY u.created_ms, u.user_id",
    );
    Ok(query.bind::<Text, _>(account.as_str()).bind::<Text, _>(id).load(conn).await?)
}

/// The variables of all connections, sealed, each with its entity.
pub(crate) async fn all_variables(
    conn: &mut Conn,
    account: &AccountId,
    environment: &str,
) -> Result<Vec<(String, String)>> {
    use environment_variables as variables;
    let of =
        variables::table.filter(variables::account_id.eq(account.as_str()).and(variables::target_id.eq(environment)));
    Ok(of.select((variables::user_id, variables::secrets)).load(conn).await?)
}

/// The variables of a connection, sealed.
pub(crate) async fn variables(
    conn: &mut Conn,
    account: &AccountId,
    environment: &str,
    (kind, id): (&str, &str),
) -> Result<Option<String>> {
    use environment_variables as variables;
    let of =
        variables::table.filter(variables::account_id.eq(account.as_str()).and(variables::target_id.eq(environment)));
    let of = of.filter(variables::user_kind.eq(kind).and(variables::user_id.eq(id)));
    Ok(of.select(variables::secrets).first(conn).await.optional()?)
}

pub(crate) async fn set_variables(
    conn: &mut Conn,
    account: &AccountId,
    environment: &str,
    (kind, id): (&str, &str),
    names: Vec<String>,
    sealed: &str,
) -> Result<()> {
    use environment_variables as variables;
    let row = (
        variables::account_id.eq(account.as_str()),
        variables::user_kind.eq(kind),
        variables::user_id.eq(id),
        variables::target_kind.eq("environment"),
        variables::target_id.eq(environment),
        variables::names.eq(names.clone()),
        variables::secrets.eq(sealed),
    );
    let key =
        (variables::account_id, variables::target_kind, variables::target_id, variables::user_kind, variables::user_id);
    let now = (variables::names.eq(names), variables::secrets.eq(sealed));
    diesel::insert_into(variables::table).values(row).on_conflict(key).do_update().set(now).execute(conn).await?;
    Ok(())
}

/// The environment that a record is connected to now.
pub(crate) async fn environment_of(
    conn: &mut Conn,
    account: &AccountId,
    (kind, id): (&str, &str),
) -> Result<Option<String>> {
    #[derive(QueryableByName)]
    struct Target {
        #[diesel(sql_type = Text)]
        target_id: String,
    }
    let query = diesel::sql_query(
        "SELECT target_id FROM uses WHERE account_id = $1 AND user_kind = $2 AND user_id = $3 AND target_kind = 'environment'",
    );
    let query = query.bind::<Text, _>(account.as_str()).bind::<Text, _>(kind).bind::<Text, _>(id);
    Ok(query.get_result::<Target>(conn).await.optional()?.map(|target| target.target_id))
}
