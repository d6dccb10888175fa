use diesel::{
    dsl::sql,
    pg::Pg,
    prelude::*,
    sql_types::{Array, BigInt, Bool, Jsonb, Nullable, Text},
};
use diesel_async::RunQueryDsl;
use platform_access::RecordRef;
use platform_core::{AccountId, Error, Page, Result, Timestamp};
use platform_db::Conn;
use serde_json::{Value, json};

use crate::{
    code,
    definition::ToolDefinition,
    kinds::TOOL_SERVER,
    model::{AppLink, ServerType, ToolServer, ToolServerFilter, ToolServerSettings},
    schema::{tool_servers, tool_tokens},
};

/// Servers of an account that are offered as groups.
const MAX_GROUPS: i64 = 1000;

#[derive(Queryable, Selectable, Insertable)]
#[diesel(table_name = tool_servers)]
pub(crate) struct ServerRow {
    pub account_id: String,
    pub id: String,
    pub identifier: String,
    pub kind: String,
    name: String,
    description: String,
    project_id: Option<String>,
    enabled: bool,
    settings: Value,
    tools: Value,
    tool_count: i32,
    /// Sealed.
    pub secrets: Option<String>,
    app: Option<Value>,
    pub health: Option<String>,
    pub last_error: Option<String>,
    pub refreshed_ms: Option<i64>,
    /// When it did not answer first, as long as it has not since.
    pub down_since_ms: Option<i64>,
    /// Tools whose calls wait for approval, should the server have them again.
    pub guarded: Vec<String>,
    pub version: i64,
    created_ms: i64,
    edited_ms: i64,
}

impl ServerRow {
    /// A server of which nothing is set yet.
    pub fn blank(account: &AccountId, id: &str, now: Timestamp) -> Result<Self> {
        let mut row = Self {
            account_id: account.as_str().to_owned(),
            id: id.to_owned(),
            identifier: String::new(),
            kind: String::new(),
            name: String::new(),
            description: String::new(),
            project_id: None,
            enabled: true,
            settings: Value::Null,
            tools: Value::Null,
            tool_count: 0,
            secrets: None,
            app: None,
            health: None,
            last_error: None,
            refreshed_ms: None,
            down_since_ms: None,
            guarded: Vec::new(),
            version: 0,
            created_ms: now.0,
            edited_ms: now.0,
        };
        row.set(&ToolServerSettings::default(), now)?;
        row.version = 0;
        Ok(row)
    }

    /// Takes in what a client set; secrets show their mask.
    pub fn set(&mut self, settings: &ToolServerSettings, now: Timestamp) -> Result<()> {
        settings.kind().as_str().clone_into(&mut self.kind);
        self.name.clone_from(&settings.name);
        self.description.clone_from(&settings.description);
        self.project_id.clone_from(&settings.project_id);
        self.enabled = settings.enabled;
        self.settings = serde_json::to_value(settings).map_err(Error::internal)?;
        if let Some(fields) = self.settings.as_object_mut() {
            fields.remove("toolDefinitions");
            fields.remove("identifier");
        }
        self.set_tools(&settings.tool_definitions)?;
        self.version += 1;
        self.edited_ms = now.0;
        Ok(())
    }

    pub fn set_tools(&mut self, tools: &[ToolDefinition]) -> Result<()> {
        self.tools = serde_json::to_value(tools).map_err(Error::internal)?;
        self.tool_count = i32::try_from(tools.len()).unwrap_or(i32::MAX);
        Ok(())
    }

    /// What the client set; secrets are masked.
    pub fn settings(&self) -> Result<ToolServerSettings> {
        let mut settings = self.settings.clone();
        settings["toolDefinitions"] = self.tools.clone();
        if !self.identifier.is_empty() {
            settings["identifier"] = self.identifier.as_str().into();
        }
        let settings: ToolServerSettings = serde_json::from_value(settings).map_err(Error::internal)?;
        Ok(ToolServerSettings { is_app: self.app.is_some(), ..settings })
    }

    /// The app that it was made from.
    pub fn link(&self) -> Result<Option<AppLink>> {
        self.app.clone().map(serde_json::from_value).transpose().map_err(Error::internal)
    }

    pub fn set_link(&mut self, link: &AppLink) {
        self.app = Some(link.stored());
    }

    /// The record as it is sent.
    pub fn shown(&self) -> ToolServer {
        let mut shown = self.without_tools();
        shown.settings["toolDefinitions"] = self.tools.clone();
        shown.tool_server_definition = Some(json!({"_id": self.id, "toolDefinitions": self.tools}));
        shown
    }

    pub fn without_tools(&self) -> ToolServer {
        ToolServer {
            id: self.id.clone(),
            identifier: self.identifier.clone(),
            r#type: match self.kind.as_str() {
                "mcp" => ServerType::Mcp,
                "integration" => ServerType::Integration,
                _ => ServerType::Http,
            },
            tool_count: self.tool_count,
            integration: self.link().ok().flatten(),
            health: self.health.clone(),
            last_refresh_ms: self.refreshed_ms,
            down_since_ms: self.down_since_ms,
            last_error: self.last_error.clone(),
            tool_server_definition_id: self.id.clone(),
            tool_server_definition: None,
            creation_timestamp_ms: Timestamp(self.created_ms),
            last_edit_timestamp_ms: Timestamp(self.edited_ms),
            settings: self.settings.clone(),
            skipped: None,
            version: self.version,
        }
    }
}

#[diesel::dsl::auto_type(no_type_alias)]
fn by_id<'a>(account: &'a str, id: &'a str) -> _ {
    tool_servers::table.filter(tool_servers::account_id.eq(account)).filter(tool_servers::id.eq(id))
}

pub(crate) async fn find(conn: &Conn, account: &AccountId, id: &str) -> Result<Option<ServerRow>> {
    let mut conn = conn;
    Ok(by_id(account.as_str(), id).select(ServerRow::as_select()).first(&mut conn).await.optional()?)
}

/// Notes that a server which was well did not answer; whether it was well.
pub(crate) async fn degrade(conn: &mut Conn, account: &AccountId, id: &str, why: &str) -> Result<bool> {
    let server = diesel::update(by_id(account.as_str(), id).filter(tool_servers::health.eq("ok")));
    let set = (tool_servers::health.eq("degraded"), tool_servers::last_error.eq(why));
    Ok(server.set(set).execute(conn).await? > 0)
}

pub(crate) async fn lock(conn: &mut Conn, account: &AccountId, id: &str) -> Result<Option<ServerRow>> {
    let server = by_id(account.as_str(), id).for_update().select(ServerRow::as_select());
    Ok(server.first(conn).await.optional()?)
}

/// `false` when the identifier is taken.
pub(crate) async fn insert(conn: &mut Conn, row: &ServerRow) -> Result<bool> {
    let inserted = diesel::insert_into(tool_servers::table)
        .values(row)
        .on_conflict((tool_servers::account_id, tool_servers::identifier))
        .do_nothing()
        .execute(conn)
        .await?;
    Ok(inserted == 1)
}

/// The number after the largest of up to six digits that identifiers of this beginning have.
pub(crate) async fn next_number(conn: &mut Conn, account: &AccountId, base: &str) -> Result<i64> {
    let number = "coalesce(max(substring(identifier from '-([0-9]{1,6})$')::bigint), 1) + 1";
    let numbered = sql::<Bool>("identifier ~ ('^' || ").bind::<Text, _>(base).sql(" || '-[0-9]{1,6}$')");
    Ok(tool_servers::table
        .filter(tool_servers::account_id.eq(account.as_str()))
        .filter(numbered)
        .select(sql::<BigInt>(number))
        .first(conn)
        .await?)
}

/// Stores a changed row; `false` when its identifier is taken.
pub(crate) async fn update(conn: &mut Conn, account: &AccountId, row: &ServerRow) -> Result<bool> {
    let taken = tool_servers::table
        .filter(tool_servers::account_id.eq(account.as_str()).and(tool_servers::identifier.eq(&row.identifier)))
        .filter(tool_servers::id.ne(&row.id));
    if diesel::select(diesel::dsl::exists(taken)).get_result::<bool>(conn).await? {
        return Ok(false);
    }
    diesel::update(by_id(account.as_str(), &row.id))
        .set((
            (
                tool_servers::identifier.eq(&row.identifier),
                tool_servers::kind.eq(&row.kind),
                tool_servers::name.eq(&row.name),
                tool_servers::description.eq(&row.description),
                tool_servers::project_id.eq(&row.project_id),
                tool_servers::enabled.eq(row.enabled),
                tool_servers::settings.eq(&row.settings),
                tool_servers::tools.eq(&row.tools),
            ),
            (
                tool_servers::tool_count.eq(row.tool_count),
                tool_servers::secrets.eq(&row.secrets),
                tool_servers::app.eq(&row.app),
                tool_servers::health.eq(&row.health),
                tool_servers::last_error.eq(&row.last_error),
                tool_servers::refreshed_ms.eq(row.refreshed_ms),
                tool_servers::down_since_ms.eq(row.down_since_ms),
                tool_servers::guarded.eq(&row.guarded),
                tool_servers::version.eq(row.version),
                tool_servers::edited_ms.eq(row.edited_ms),
            ),
        ))
        .execute(conn)
        .await?;
    Ok(true)
}

pub(crate) async fn list(
    conn: &Conn,
    account: &AccountId,
    filter: &ToolServerFilter,
    page: Page,
) -> Result<(Vec<ServerRow>, i64, Page)> {
    let (mut first, mut second) = (conn, conn);
    let newest_first = (tool_servers::created_ms.desc(), tool_servers::id.desc());
    let sizes = listed(account, filter).order(newest_first).limit(page.limit).offset(page.offset);
    let sizes = sizes.select(sql::<BigInt>("octet_length(settings::text)::bigint"));
    let total = listed(account, filter).count();
    let (sizes, total) = futures_util::try_join!(sizes.load::<i64>(&mut first), total.get_result(&mut second))?;
    let page = page.fitting(&sizes);
    let rows = listed(account, filter).order(newest_first).limit(page.limit).offset(page.offset).select((
        tool_servers::account_id,
        tool_servers::id,
        tool_servers::identifier,
        tool_servers::kind,
        tool_servers::name,
        tool_servers::description,
        tool_servers::project_id,
        tool_servers::enabled,
        tool_servers::settings,
        // A list shows neither.
        sql::<Jsonb>("'[]'::jsonb"),
        tool_servers::tool_count,
        sql::<Nullable<Text>>("NULL"),
        tool_servers::app,
        tool_servers::health,
        tool_servers::last_error,
        tool_servers::refreshed_ms,
        tool_servers::down_since_ms,
        tool_servers::guarded,
        tool_servers::version,
        tool_servers::created_ms,
        tool_servers::edited_ms,
    ));
    Ok((rows.load(&mut first).await?, total, page))
}

type Listed<'a> = tool_servers::BoxedQuery<'a, Pg>;

fn listed<'a>(account: &'a AccountId, filter: &'a ToolServerFilter) -> Listed<'a> {
    let mut servers = tool_servers::table.filter(tool_servers::account_id.eq(account.as_str())).into_boxed();
    if let Some(project) = &filter.project_id {
        servers = servers.filter(tool_servers::project_id.eq(project));
    }
    if let Some(within) = &filter.within {
        servers = servers.filter(tool_servers::project_id.is_null().or(tool_servers::project_id.eq_any(within)));
    }
    if let Some(kind) = filter.r#type {
        servers = servers.filter(tool_servers::kind.eq(kind.as_str()));
    }
    if let Some(search) = &filter.search {
        let found =
            sql::<Bool>("strpos(lower(name || chr(10) || description), lower(").bind::<Text, _>(search).sql(")) > 0");
        servers = servers.filter(found);
    }
    servers
}

/// Ids of the enabled servers that the filter keeps, newest first.
pub(crate) async fn enabled(conn: &Conn, account: &AccountId, filter: &ToolServerFilter) -> Result<Vec<String>> {
    let mut conn = conn;
    Ok(listed(account, filter)
        .filter(tool_servers::enabled)
        .order((tool_servers::created_ms.desc(), tool_servers::id.desc()))
        .limit(MAX_GROUPS)
        .select(tool_servers::id)
        .load(&mut conn)
        .await?)
}

/// Notes with the servers of a connection whether it is good.
pub(crate) async fn set_connected(
    conn: &mut Conn,
    account: &AccountId,
    connection: &str,
    connected: bool,
) -> Result<()> {
    let of = tool_servers::table
        .filter(tool_servers::account_id.eq(account.as_str()))
        .filter(sql::<Bool>("app ->> 'connectionId' = ").bind::<Text, _>(connection));
    let app = sql::<Nullable<Jsonb>>("app || jsonb_build_object('connected', ").bind::<Bool, _>(connected).sql(")");
    diesel::update(of).set(tool_servers::app.eq(app)).execute(conn).await?;
    Ok(())
}

/// Servers of apps whose tools were made from other packs than these, a few of them behind this one.
pub(crate) async fn made_otherwise(
    conn: &mut Conn,
    (apps, packs): (&[&str], &[&str]),
    (account, id): (&str, &str),
) -> Result<Vec<(String, String)>> {
    #[derive(QueryableByName)]
    struct Found {
        #[diesel(sql_type = Text)]
        account_id: String,
        #[diesel(sql_type = Text)]
        id: String,
    }
    let found = diesel::sql_query(
        "SELECT s.account_id, s.id FROM tool_servers s \
         JOIN unnest($1::text[], $2::text[]) AS now(app, pack) ON s.app ->> 'app' = now.app \
         WHERE s.app ->> 'pack' IS DISTINCT FROM now.pack AND (s.account_id, s.id) > ($3, $4) \
         ORDER BY s.account_id, s.id LIMIT 100",
    );
    let found = found.bind::<Array<Text>, _>(apps).bind::<Array<Text>, _>(packs);
    let found = found.bind::<Text, _>(account).bind::<Text, _>(id).load::<Found>(conn).await?;
    Ok(found.into_iter().map(|Found { account_id, id }| (account_id, id)).collect())
}

/// Deletes a server with its tokens; who refers to it loses the reference.
pub(crate) async fn delete(conn: &mut Conn, account: &AccountId, id: &str) -> Result<()> {
    forget_token(conn, account, id).await?;
    diesel::delete(by_id(account.as_str(), id)).execute(conn).await?;
    Ok(())
}

pub(crate) async fn forget_token(conn: &mut Conn, account: &AccountId, id: &str) -> Result<()> {
    let token =
        tool_tokens::table.filter(tool_tokens::account_id.eq(account.as_str()).and(tool_tokens::server_id.eq(id)));
    diesel::delete(token).execute(conn).await?;
    Ok(())
}

/// Locks servers that a record refers to or is to refer to, before that record is locked, as whoever deletes a server
/// does.
pub async fn hold_in(conn: &mut Conn, account: &AccountId, uids: &[String]) -> Result<()> {
    let servers = tool_servers::table
        .filter(tool_servers::account_id.eq(account.as_str()).and(tool_servers::id.eq_any(uids)))
        .order(tool_servers::id)
        .select(tool_servers::id)
        .for_key_share();
    servers.load::<String>(conn).await?;
    Ok(())
}

/// Stores to which servers a record refers, in the transaction that stores it. `TOOL_SERVER_NOT_FOUND` for one that is
/// not there.
pub async fn use_in(conn: &mut Conn, account: &AccountId, user: RecordRef<'_>, uids: &[String]) -> Result<()> {
    let known: Vec<String> = tool_servers::table
        .filter(tool_servers::account_id.eq(account.as_str()).and(tool_servers::id.eq_any(uids)))
        .select(tool_servers::id)
        .for_key_share()
        .load(conn)
        .await?;
    let missing = uids.iter().filter(|uid| !known.contains(uid));
    Error::check_none_missing(code::TOOL_SERVER_NOT_FOUND, "tool server", missing)?;
    platform_access::use_in(conn, account, user, TOOL_SERVER, &known).await
}
