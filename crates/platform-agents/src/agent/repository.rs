use diesel::{dsl::sql, prelude::*, sql_types::BigInt};
use diesel_async::RunQueryDsl;
use platform_access::Place;
use platform_core::{AccountId, Error, Page, Result, Timestamp};
use platform_db::{Conn, containing};
use serde_json::Value;

use super::model::{Agent, AgentFilter, AgentSettings};
use crate::schema::{agent_versions, agents};

#[derive(Queryable, Selectable)]
#[diesel(table_name = agents)]
pub(crate) struct AgentRow {
    account_id: String,
    pub id: String,
    settings: Value,
    pub version: i64,
    pub deleted: bool,
    last_run_ms: Option<i64>,
    created_by: String,
    created_ms: i64,
    edited_ms: i64,
}

impl AgentRow {
    pub fn settings(&self) -> Result<AgentSettings> {
        serde_json::from_value(self.settings.clone()).map_err(Error::internal)
    }

    /// The agent as it is sent; `now` says when its next run is.
    pub fn into_agent(self, now: Timestamp) -> Result<Agent> {
        let mut settings = self.settings()?;
        let periodic = &mut settings.periodic_execution;
        if periodic.enabled {
            periodic.next_run_ms = super::schedule::next(periodic, now);
        }
        periodic.last_run_ms = self.last_run_ms.map(Timestamp);
        Ok(Agent {
            id: self.id,
            client_uid: self.account_id,
            created_by: self.created_by,
            creation_timestamp_ms: Timestamp(self.created_ms),
            last_edit_timestamp_ms: Timestamp(self.edited_ms),
            settings,
            version: self.version,
        })
    }
}

fn json(settings: &AgentSettings) -> Result<Value> {
    let mut json = serde_json::to_value(settings).map_err(Error::internal)?;
    // What is read only is not stored.
    if let Some(Value::Object(periodic)) = json.get_mut("periodicExecution") {
        periodic.remove("nextRunMs");
        periodic.remove("lastRunMs");
    }
    Ok(json)
}

type Columns<'a> = (
    diesel::dsl::Eq<agents::settings, Value>,
    diesel::dsl::Eq<agents::name, &'a str>,
    diesel::dsl::Eq<agents::description, &'a str>,
    diesel::dsl::Eq<agents::disabled, bool>,
    diesel::dsl::Eq<agents::archived, bool>,
    diesel::dsl::Eq<agents::project_id, Option<&'a str>>,
);

fn columns(settings: &AgentSettings) -> Result<Columns<'_>> {
    Ok((
        agents::settings.eq(json(settings)?),
        agents::name.eq(settings.name.as_str()),
        agents::description.eq(settings.description.as_str()),
        agents::disabled.eq(settings.disabled),
        agents::archived.eq(settings.archived),
        agents::project_id.eq(settings.project_id.as_deref()),
    ))
}

pub(crate) async fn insert(
    conn: &mut Conn,
    account: &AccountId,
    id: &str,
    user_uid: &str,
    settings: &AgentSettings,
    now: Timestamp,
) -> Result<AgentRow> {
    let row = diesel::insert_into(agents::table)
        .values((
            agents::account_id.eq(account.as_str()),
            agents::id.eq(id),
            columns(settings)?,
            agents::created_by.eq(user_uid),
            agents::created_ms.eq(now.0),
            agents::edited_ms.eq(now.0),
        ))
        .returning(AgentRow::as_returning())
        .get_result(conn)
        .await?;
    keep_version(conn, account, id, &row).await?;
    Ok(row)
}

pub(crate) async fn update(
    conn: &mut Conn,
    account: &AccountId,
    id: &str,
    settings: &AgentSettings,
    now: Timestamp,
) -> Result<AgentRow> {
    let row = diesel::update(agents::table.filter(agents::account_id.eq(account.as_str()).and(agents::id.eq(id))))
        .set((columns(settings)?, agents::version.eq(agents::version + 1), agents::edited_ms.eq(now.0)))
        .returning(AgentRow::as_returning())
        .get_result(conn)
        .await?;
    keep_version(conn, account, id, &row).await?;
    Ok(row)
}

async fn keep_version(conn: &mut Conn, account: &AccountId, id: &str, row: &AgentRow) -> Result<()> {
    diesel::insert_into(agent_versions::table)
        .values((
            agent_versions::account_id.eq(account.as_str()),
            agent_versions::agent_id.eq(id),
            agent_versions::version.eq(row.version),
            agent_versions::settings.eq(&row.settings),
        ))
        .execute(conn)
        .await?;
    Ok(())
}

/// Settings of one version.
pub(crate) async fn version(conn: &Conn, account: &AccountId, id: &str, version: i64) -> Result<Option<AgentSettings>> {
    let mut conn = conn;
    let settings: Option<Value> = agent_versions::table
        .filter(agent_versions::account_id.eq(account.as_str()))
        .filter(agent_versions::agent_id.eq(id).and(agent_versions::version.eq(version)))
        .select(agent_versions::settings)
        .first(&mut conn)
        .await
        .optional()?;
    settings.map(serde_json::from_value).transpose().map_err(Error::internal)
}

/// One agent, deleted ones too.
pub(crate) async fn find(conn: &Conn, account: &AccountId, id: &str) -> Result<Option<AgentRow>> {
    let mut conn = conn;
    let agent = agents::table.filter(agents::account_id.eq(account.as_str()).and(agents::id.eq(id)));
    Ok(agent.select(AgentRow::as_select()).first(&mut conn).await.optional()?)
}

/// Where an agent is, a deleted one, too.
pub(crate) async fn place(conn: &Conn, account: &AccountId, id: &str) -> Result<Option<Place>> {
    let mut conn = conn;
    let agent = agents::table.filter(agents::account_id.eq(account.as_str()).and(agents::id.eq(id)));
    let project = agent.select(agents::project_id).first(&mut conn).await.optional()?;
    Ok(project.map(|project| Place { project, ..Place::default() }))
}

/// Those of these that are there.
pub(crate) async fn find_all(conn: &Conn, account: &AccountId, ids: &[String]) -> Result<Vec<AgentRow>> {
    let mut conn = conn;
    Ok(agents::table
        .filter(agents::account_id.eq(account.as_str()).and(agents::deleted.eq(false)))
        .filter(agents::id.eq_any(ids))
        .select(AgentRow::as_select())
        .load(&mut conn)
        .await?)
}

/// Keeps agents from being deleted before this transaction ends; the ids of those that are there.
pub(crate) async fn share(conn: &mut Conn, wanted: &[(&AccountId, &str)]) -> Result<Vec<String>> {
    let (accounts, ids): (Vec<&str>, Vec<&str>) = wanted.iter().map(|(account, id)| (account.as_str(), *id)).unzip();
    let live = agents::table
        .filter(agents::account_id.eq_any(accounts).and(agents::id.eq_any(ids)))
        .filter(agents::deleted.eq(false))
        .order((agents::account_id, agents::id))
        .for_share()
        .select((agents::account_id, agents::id));
    let mut found: Vec<(String, String)> = live.load(conn).await?;
    found.retain(|(account, id)| wanted.iter().any(|of| *account == of.0.as_str() && id == of.1));
    Ok(found.into_iter().map(|(_, id)| id).collect())
}

/// Keeps an agent for this transaction alone; whether it is there.
pub(crate) async fn hold_agent(conn: &mut Conn, account: &AccountId, id: &str) -> Result<bool> {
    Ok(lock(conn, account, id).await?.is_some())
}

/// A live one, locked until the transaction ends.
pub(crate) async fn lock(conn: &mut Conn, account: &AccountId, id: &str) -> Result<Option<AgentRow>> {
    let agent = agents::table
        .filter(agents::account_id.eq(account.as_str()).and(agents::id.eq(id)))
        .filter(agents::deleted.eq(false));
    Ok(agent.for_update().select(AgentRow::as_select()).first(conn).await.optional()?)
}

pub(crate) async fn list(
    conn: &Conn,
    account: &AccountId,
    filter: &AgentFilter,
    page: Page,
) -> Result<(Vec<AgentRow>, i64, Page)> {
    let of = || {
        let mut of = agents::table
            .filter(agents::account_id.eq(account.as_str().to_owned()).and(agents::deleted.eq(false)))
            .into_boxed();
        if filter.archived != Some(true) {
            of = of.filter(agents::archived.eq(false));
        }
        if let Some(disabled) = filter.disabled {
            of = of.filter(agents::disabled.eq(disabled));
        }
        if let Some(project) = &filter.project_id {
            of = of.filter(agents::project_id.eq(project.clone()));
        }
        if let Some(within) = &filter.within {
            of = of.filter(agents::project_id.is_null().or(agents::project_id.eq_any(within.clone())));
        }
        if let Some(search) = &filter.search {
            let pattern = containing(search);
            of = of.filter(agents::name.ilike(pattern.clone()).or(agents::description.ilike(pattern)));
        }
        of
    };
    let (mut first, mut second) = (conn, conn);
    let newest_first = (agents::created_ms.desc(), agents::id.desc());
    let sizes = of().order(newest_first).limit(page.limit).offset(page.offset);
    let sizes = sizes.select(sql::<BigInt>("octet_length(settings::text)::bigint"));
    let (sizes, total) = futures_util::try_join!(sizes.load::<i64>(&mut first), of().count().get_result(&mut second))?;
    let page = page.fitting(&sizes);
    let rows = of().order(newest_first).limit(page.limit).offset(page.offset).select(AgentRow::as_select());
    Ok((rows.load(&mut first).await?, total, page))
}

pub(crate) async fn delete(conn: &mut Conn, account: &AccountId, id: &str, now: Timestamp) -> Result<()> {
    let agent = agents::table.filter(agents::account_id.eq(account.as_str()).and(agents::id.eq(id)));
    diesel::update(agent).set((agents::deleted.eq(true), agents::edited_ms.eq(now.0))).execute(conn).await?;
    Ok(())
}

/// Notes when an agent started by itself.
pub(crate) async fn note_run(conn: &mut Conn, account: &AccountId, id: &str, now: Timestamp) -> Result<()> {
    let agent = agents::table.filter(agents::account_id.eq(account.as_str()).and(agents::id.eq(id)));
    diesel::update(agent).set(agents::last_run_ms.eq(now.0)).execute(conn).await?;
    Ok(())
}
