use diesel::{
    dsl::sql,
    pg::Pg,
    prelude::*,
    sql_types::{BigInt, Jsonb},
};
use diesel_async::RunQueryDsl;
use platform_conversation::AssistantSettings;
use platform_core::{AccountId, Error, Page, Result, Timestamp};
use platform_db::Conn;
use serde_json::Value;

use super::model::{Assistant, AssistantFilter};
use crate::schema::assistants;

const MOST: i64 = 1000;

#[derive(Queryable, Selectable)]
#[diesel(table_name = assistants)]
pub(crate) struct AssistantRow {
    id: String,
    identifier: String,
    pub settings: Value,
    pub version: i64,
    pub deleted: bool,
    created_ms: i64,
    edited_ms: i64,
}

impl AssistantRow {
    pub fn into_assistant(self) -> Result<Assistant> {
        let settings: AssistantSettings = serde_json::from_value(self.settings).map_err(Error::internal)?;
        let (created, edited) = (Timestamp(self.created_ms), Timestamp(self.edited_ms));
        Assistant::new(self.id, self.identifier, settings, self.version, created, edited)
    }
}

fn json(settings: &AssistantSettings) -> Result<Value> {
    serde_json::to_value(settings).map_err(Error::internal)
}

/// `false` when the identifier is taken.
pub(crate) async fn insert(
    conn: &mut Conn,
    account: &AccountId,
    id: &str,
    identifier: &str,
    settings: &AssistantSettings,
    now: Timestamp,
) -> Result<bool> {
    let inserted = diesel::insert_into(assistants::table)
        .values((
            assistants::account_id.eq(account.as_str()),
            assistants::id.eq(id),
            assistants::identifier.eq(identifier),
            assistants::settings.eq(json(settings)?),
            assistants::created_ms.eq(now.0),
            assistants::edited_ms.eq(now.0),
        ))
        .on_conflict((assistants::account_id, assistants::identifier))
        .do_nothing()
        .execute(conn)
        .await?;
    Ok(inserted == 1)
}

/// By id, or else by identifier: no identifier hides an id. Deleted ones too.
pub(crate) async fn find(conn: &mut &Conn, account: &AccountId, name: &str) -> Result<Option<AssistantRow>> {
    let assistant = assistants::table
        .filter(assistants::account_id.eq(account.as_str()))
        .filter(assistants::identifier.eq(name).or(assistants::id.eq(name)))
        .order(assistants::id.eq(name).desc())
        .select(AssistantRow::as_select());
    Ok(assistant.first(conn).await.optional()?)
}

/// A live one, locked until the transaction ends.
pub(crate) async fn lock(conn: &mut Conn, account: &AccountId, name: &str) -> Result<Option<AssistantRow>> {
    let assistant = assistants::table
        .filter(assistants::account_id.eq(account.as_str()).and(assistants::deleted.eq(false)))
        .filter(assistants::identifier.eq(name).or(assistants::id.eq(name)))
        .order(assistants::id.eq(name).desc())
        .for_update()
        .select(AssistantRow::as_select());
    Ok(assistant.first(conn).await.optional()?)
}

type Listed<'a> = assistants::BoxedQuery<'a, Pg>;

/// Those that may pass the filter, newest first.
fn listed<'a>(account: &'a AccountId, filter: &'a AssistantFilter, page: Page) -> Listed<'a> {
    let mut of = assistants::table
        .filter(assistants::account_id.eq(account.as_str()).and(assistants::deleted.eq(false)))
        .into_boxed();
    if let Some(project) = &filter.project_id {
        of = of.filter(assistants::project_id.eq(project));
    }
    if let Some(within) = &filter.within {
        of = of.filter(assistants::project_id.is_null().or(assistants::project_id.eq_any(within)));
    }
    of.order((assistants::created_ms.desc(), assistants::id.desc())).limit(page.limit).offset(page.offset)
}

/// How many bytes a list shows of each of those that may pass the filter.
pub(crate) async fn sizes(conn: &mut &Conn, account: &AccountId, filter: &AssistantFilter) -> Result<Vec<i64>> {
    let all = listed(account, filter, Page { limit: MOST, offset: 0 });
    Ok(all.select(sql::<BigInt>("octet_length((settings - 'presets')::text)::bigint")).load(conn).await?)
}

/// A page of those that may pass the filter, without their presets, which no list shows.
pub(crate) async fn list(
    conn: &mut &Conn,
    account: &AccountId,
    filter: &AssistantFilter,
    page: Page,
) -> Result<Vec<AssistantRow>> {
    let columns = (
        assistants::id,
        assistants::identifier,
        sql::<Jsonb>("settings || '{\"presets\": \"\"}'"),
        assistants::version,
        assistants::deleted,
        assistants::created_ms,
        assistants::edited_ms,
    );
    Ok(listed(account, filter, page).select(columns).load(conn).await?)
}

/// Whether one is there, which is not deleted before this transaction ends.
pub(crate) async fn share(conn: &mut Conn, account: &AccountId, id: &str) -> Result<bool> {
    let live = assistants::table.filter(assistants::account_id.eq(account.as_str()).and(assistants::id.eq(id)));
    let live = live.filter(assistants::deleted.eq(false)).for_share().select(assistants::id);
    Ok(live.first::<String>(conn).await.optional()?.is_some())
}

pub(crate) async fn update(
    conn: &mut Conn,
    account: &AccountId,
    identifier: &str,
    settings: &AssistantSettings,
    now: Timestamp,
) -> Result<AssistantRow> {
    let assistant = assistants::table
        .filter(assistants::account_id.eq(account.as_str()).and(assistants::identifier.eq(identifier)));
    Ok(diesel::update(assistant)
        .set((
            assistants::settings.eq(json(settings)?),
            assistants::version.eq(assistants::version + 1),
            assistants::edited_ms.eq(now.0),
        ))
        .returning(AssistantRow::as_returning())
        .get_result(conn)
        .await?)
}

pub(crate) async fn delete(conn: &mut Conn, account: &AccountId, identifier: &str, now: Timestamp) -> Result<()> {
    let assistant = assistants::table
        .filter(assistants::account_id.eq(account.as_str()).and(assistants::identifier.eq(identifier)));
    diesel::update(assistant)
        .set((assistants::deleted.eq(true), assistants::edited_ms.eq(now.0)))
        .execute(conn)
        .await?;
    Ok(())
}
