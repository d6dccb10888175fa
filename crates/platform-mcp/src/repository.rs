use std::collections::HashMap;

use diesel::{
    dsl::{count_star, sql},
    prelude::*,
    sql_types::{Array, BigInt, Bool, Text},
};
use diesel_async::RunQueryDsl;
use platform_core::{AccountId, Error, Page, Result, Timestamp};
use platform_db::{Conn, JsonStatement};
use serde::Serialize;
use serde_json::Value;

use crate::{
    model::{AuditFilter, AuditRow, Grant, GrantFilter, Profile, ProfileSettings, SubjectType, ToolPolicy},
    schema::{mcp_audit, mcp_grants, mcp_profiles, mcp_switches},
};

/// Digests of tools as an operator last let them in: server → tool → digest.
pub(crate) type Seen = HashMap<String, HashMap<String, String>>;

#[derive(Debug, Clone, Queryable, Selectable, Insertable, AsChangeset)]
#[diesel(table_name = mcp_profiles)]
pub(crate) struct ProfileRow {
    pub account_id: String,
    pub id: String,
    pub slug: String,
    pub settings: Value,
    pub seen: Value,
    pub created_ms: i64,
    pub edited_ms: i64,
}

impl ProfileRow {
    pub fn settings(&self) -> Result<ProfileSettings> {
        serde_json::from_value(self.settings.clone()).map_err(Error::internal)
    }

    pub fn seen(&self) -> Result<Seen> {
        serde_json::from_value(self.seen.clone()).map_err(Error::internal)
    }

    pub fn shown(&self) -> Result<Profile> {
        Ok(Profile {
            id: self.id.clone(),
            settings: self.settings()?,
            creation_timestamp_ms: Timestamp(self.created_ms),
            last_edit_timestamp_ms: Timestamp(self.edited_ms),
        })
    }
}

#[derive(Debug, Clone, Queryable, Selectable, Insertable)]
#[diesel(table_name = mcp_grants)]
pub(crate) struct GrantRow {
    pub account_id: String,
    pub id: String,
    pub profile_id: String,
    pub subject_type: String,
    pub subject: String,
    pub tool_policy: String,
    pub tools: Vec<String>,
    pub created_ms: i64,
}

impl From<GrantRow> for Grant {
    fn from(row: GrantRow) -> Self {
        Self {
            id: row.id,
            profile_id: row.profile_id,
            subject_type: SubjectType::of(&row.subject_type),
            subject: row.subject,
            tool_policy: ToolPolicy::of(&row.tool_policy),
            tools: row.tools,
            creation_timestamp_ms: Timestamp(row.created_ms),
        }
    }
}

#[diesel::dsl::auto_type(no_type_alias)]
fn profile_of<'a>(account: &'a str, id: &'a str) -> _ {
    mcp_profiles::table.filter(mcp_profiles::account_id.eq(account)).filter(mcp_profiles::id.eq(id))
}

/// Whether there was none of its slug.
pub(crate) async fn insert_profile(conn: &mut Conn, row: &ProfileRow) -> Result<bool> {
    let new = diesel::insert_into(mcp_profiles::table).values(row).on_conflict_do_nothing();
    Ok(new.execute(conn).await? == 1)
}

pub(crate) async fn find_profile(conn: &Conn, account: &AccountId, id: &str) -> Result<Option<ProfileRow>> {
    let mut conn = conn;
    let row = profile_of(account.as_str(), id).select(ProfileRow::as_select());
    Ok(row.first(&mut conn).await.optional()?)
}

pub(crate) async fn lock_profile(conn: &mut Conn, account: &AccountId, id: &str) -> Result<Option<ProfileRow>> {
    let row = profile_of(account.as_str(), id).for_update().select(ProfileRow::as_select());
    Ok(row.first(conn).await.optional()?)
}

pub(crate) async fn slug_is_taken(conn: &mut Conn, account: &AccountId, slug: &str, but: &str) -> Result<bool> {
    let others = mcp_profiles::table
        .filter(mcp_profiles::account_id.eq(account.as_str()))
        .filter(mcp_profiles::slug.eq(slug).and(mcp_profiles::id.ne(but)));
    Ok(diesel::select(diesel::dsl::exists(others)).get_result(conn).await?)
}

pub(crate) async fn update_profile(conn: &mut Conn, account: &AccountId, row: &ProfileRow) -> Result<()> {
    diesel::update(profile_of(account.as_str(), &row.id)).set(row).execute(conn).await?;
    Ok(())
}

pub(crate) async fn delete_profile(conn: &mut Conn, account: &AccountId, id: &str) -> Result<()> {
    diesel::delete(profile_of(account.as_str(), id)).execute(conn).await?;
    Ok(())
}

/// Forgets what was granted to subjects that are gone, and what they switched off: `names` as switches name them.
pub(crate) async fn forget_subjects(
    conn: &mut Conn,
    account: &AccountId,
    kind: &str,
    subject: &str,
    below: bool,
) -> Result<()> {
    let grants = mcp_grants::table
        .filter(mcp_grants::account_id.eq(account.as_str()))
        .filter(mcp_grants::subject_type.eq(kind).and(mcp_grants::subject.eq(subject)));
    diesel::delete(grants).execute(conn).await?;
    let switches = mcp_switches::table.filter(mcp_switches::account_id.eq(account.as_str()));
    diesel::delete(switches.filter(mcp_switches::subject.eq(format!("{kind}:{subject}")))).execute(conn).await?;
    if below {
        let of_users = |column: &str| {
            sql::<Bool>(&format!("starts_with({column}, ")).bind::<diesel::sql_types::Text, _>(format!("{subject}/"))
        };
        let grants = mcp_grants::table
            .filter(mcp_grants::account_id.eq(account.as_str()))
            .filter(mcp_grants::subject_type.eq("subtenant"));
        diesel::delete(grants.filter(of_users("subject").sql(")"))).execute(conn).await?;
        let of_users = sql::<Bool>("starts_with(subject, ")
            .bind::<diesel::sql_types::Text, _>(format!("subtenant:{subject}/"))
            .sql(")");
        let switches = mcp_switches::table.filter(mcp_switches::account_id.eq(account.as_str()));
        diesel::delete(switches.filter(of_users)).execute(conn).await?;
    }
    Ok(())
}

/// All profiles, newest first.
pub(crate) async fn profiles(conn: &Conn, account: &AccountId) -> Result<Vec<ProfileRow>> {
    let mut conn = conn;
    let rows = mcp_profiles::table.filter(mcp_profiles::account_id.eq(account.as_str()));
    let newest = (mcp_profiles::created_ms.desc(), mcp_profiles::id.desc());
    Ok(rows.order(newest).select(ProfileRow::as_select()).load(&mut conn).await?)
}

pub(crate) async fn count_profiles(conn: &mut Conn, account: &AccountId) -> Result<i64> {
    let rows = mcp_profiles::table.filter(mcp_profiles::account_id.eq(account.as_str()));
    Ok(rows.count().get_result(conn).await?)
}

pub(crate) async fn insert_grant(conn: &mut Conn, row: &GrantRow) -> Result<()> {
    diesel::insert_into(mcp_grants::table).values(row).execute(conn).await?;
    Ok(())
}

/// Grants of an account, and names of tools in them.
pub(crate) async fn count_grants(conn: &mut Conn, account: &AccountId) -> Result<(i64, i64)> {
    let rows = mcp_grants::table.filter(mcp_grants::account_id.eq(account.as_str()));
    let names = sql::<BigInt>("coalesce(sum(cardinality(tools)), 0)::bigint");
    Ok(rows.select((count_star(), names)).get_result(conn).await?)
}

pub(crate) async fn delete_grant(conn: &mut Conn, account: &AccountId, id: &str) -> Result<bool> {
    let row = mcp_grants::table.filter(mcp_grants::account_id.eq(account.as_str()).and(mcp_grants::id.eq(id)));
    Ok(diesel::delete(row).execute(conn).await? == 1)
}

/// Every grant of an account.
pub(crate) async fn all_grants(conn: &Conn, account: &AccountId) -> Result<Vec<GrantRow>> {
    let mut conn = conn;
    let rows = mcp_grants::table.filter(mcp_grants::account_id.eq(account.as_str()));
    Ok(rows.select(GrantRow::as_select()).load(&mut conn).await?)
}

pub(crate) async fn grants(
    conn: &Conn,
    account: &AccountId,
    filter: &GrantFilter,
    page: Page,
) -> Result<(Vec<Grant>, i64)> {
    let mut conn = conn;
    let of = || {
        let mut rows = mcp_grants::table.filter(mcp_grants::account_id.eq(account.as_str().to_owned())).into_boxed();
        if let Some(profile) = filter.profile_id.clone() {
            rows = rows.filter(mcp_grants::profile_id.eq(profile));
        }
        if let Some(kind) = filter.subject_type {
            rows = rows.filter(mcp_grants::subject_type.eq(kind.as_str()));
        }
        if let Some(subject) = filter.subject.clone() {
            rows = rows.filter(mcp_grants::subject.eq(subject));
        }
        rows
    };
    let total = of().count().get_result(&mut conn).await?;
    let newest = (mcp_grants::created_ms.desc(), mcp_grants::id.desc());
    let rows = of().order(newest).limit(page.limit).offset(page.offset).select(GrantRow::as_select());
    let rows: Vec<GrantRow> = rows.load(&mut conn).await?;
    Ok((rows.into_iter().map(Grant::from).collect(), total))
}

/// What a caller switched off, by profile.
pub(crate) async fn switches(conn: &Conn, account: &AccountId, subject: &str) -> Result<HashMap<String, Vec<String>>> {
    let mut conn = conn;
    let rows = mcp_switches::table
        .filter(mcp_switches::account_id.eq(account.as_str()).and(mcp_switches::subject.eq(subject)))
        .select((mcp_switches::profile_id, mcp_switches::disabled));
    Ok(rows.load::<(String, Vec<String>)>(&mut conn).await?.into_iter().collect())
}

pub(crate) async fn set_switches(
    conn: &mut Conn,
    account: &AccountId,
    profile: &str,
    subject: &str,
    disabled: &[String],
) -> Result<()> {
    diesel::insert_into(mcp_switches::table)
        .values((
            mcp_switches::account_id.eq(account.as_str()),
            mcp_switches::profile_id.eq(profile),
            mcp_switches::subject.eq(subject),
            mcp_switches::disabled.eq(disabled),
        ))
        .on_conflict((mcp_switches::account_id, mcp_switches::profile_id, mcp_switches::subject))
        .do_update()
        .set(mcp_switches::disabled.eq(disabled))
        .execute(conn)
        .await?;
    Ok(())
}

/// Has the grants of a profile, and what its callers switched off, name tools as they are called now; whether any did not.
pub(crate) async fn rename_tools(
    conn: &mut Conn,
    account: &AccountId,
    profile: &str,
    rename: impl Fn(&str) -> String,
) -> Result<bool> {
    #[derive(QueryableByName)]
    struct Named {
        #[diesel(sql_type = Text)]
        name: String,
    }
    const NAMED: &str = "SELECT unnest(tools) AS name FROM mcp_grants WHERE account_id = $1 AND profile_id = $2 \
        UNION SELECT unnest(disabled) FROM mcp_switches WHERE account_id = $1 AND profile_id = $2";
    let named = diesel::sql_query(NAMED).bind::<Text, _>(account.as_str()).bind::<Text, _>(profile);
    let named: Vec<Named> = named.load(conn).await?;
    let renamed = named.into_iter().map(|Named { name: was }| (rename(&was), was)).filter(|(now, was)| now != was);
    let (now, was): (Vec<String>, Vec<String>) = renamed.unzip();
    if was.is_empty() {
        return Ok(false);
    }
    for (table, column) in [("mcp_grants", "tools"), ("mcp_switches", "disabled")] {
        let sql = format!(
            "UPDATE {table} SET {column} = ARRAY(SELECT coalesce(renamed.now, name) \
                FROM unnest({column}) WITH ORDINALITY AS named (name, place) \
                LEFT JOIN unnest($3, $4) AS renamed (was, now) ON renamed.was = name ORDER BY place) \
            WHERE account_id = $1 AND profile_id = $2 AND {column} && $3"
        );
        let renaming = diesel::sql_query(sql).bind::<Text, _>(account.as_str()).bind::<Text, _>(profile);
        renaming.bind::<Array<Text>, _>(&was).bind::<Array<Text>, _>(&now).execute(conn).await?;
    }
    Ok(true)
}

#[derive(Debug, Clone, Queryable, Selectable, Serialize)]
#[diesel(table_name = mcp_audit)]
pub(crate) struct CallRow {
    pub account_id: String,
    pub id: String,
    pub timestamp_ms: i64,
    pub subject: String,
    pub profile_id: String,
    pub tool_server_id: Option<String>,
    pub tool_name: String,
    pub outcome: String,
    pub duration_ms: i64,
    pub request_bytes: i64,
    pub response_bytes: i64,
    pub error_code: Option<String>,
    pub arguments: Option<String>,
    pub result: Option<String>,
}

impl From<CallRow> for AuditRow {
    fn from(row: CallRow) -> Self {
        let read = |text: String| serde_json::from_str(&text).unwrap_or(Value::String(text));
        Self {
            id: row.id,
            timestamp_ms: row.timestamp_ms,
            subject: row.subject,
            profile_id: row.profile_id,
            tool_server_id: row.tool_server_id,
            tool_name: row.tool_name,
            outcome: row.outcome,
            duration_ms: row.duration_ms,
            request_bytes: row.request_bytes,
            response_bytes: row.response_bytes,
            error_code: row.error_code,
            arguments: row.arguments.map(read),
            result: row.result.map(read),
        }
    }
}

/// One statement for any number of rows, which is planned once.
pub(crate) async fn insert_calls(conn: &mut Conn, rows: &[CallRow]) -> Result<()> {
    const SQL: &str = "INSERT INTO mcp_audit (account_id, id, timestamp_ms, subject, profile_id, tool_server_id, \
        tool_name, outcome, duration_ms, request_bytes, response_bytes, error_code, arguments, result) \
        SELECT * FROM jsonb_to_recordset($1::jsonb) AS x(account_id text, id text, timestamp_ms bigint, subject text, \
        profile_id text, tool_server_id text, tool_name text, outcome text, duration_ms bigint, request_bytes bigint, \
        response_bytes bigint, error_code text, arguments text, result text)";
    JsonStatement::new(SQL, rows)?.execute(conn).await?;
    Ok(())
}

pub(crate) async fn calls(
    conn: &Conn,
    account: &AccountId,
    filter: &AuditFilter,
    page: Page,
) -> Result<(Vec<AuditRow>, i64)> {
    let mut conn = conn;
    let of = || {
        let mut rows = mcp_audit::table.filter(mcp_audit::account_id.eq(account.as_str().to_owned())).into_boxed();
        let AuditFilter { profile_id, tool_server_id, subject, outcome, from, to } = filter.clone();
        if let Some(profile) = profile_id {
            rows = rows.filter(mcp_audit::profile_id.eq(profile));
        }
        if let Some(server) = tool_server_id {
            rows = rows.filter(mcp_audit::tool_server_id.eq(server));
        }
        if let Some(subject) = subject {
            rows = rows.filter(mcp_audit::subject.eq(subject));
        }
        if let Some(outcome) = outcome {
            rows = rows.filter(mcp_audit::outcome.eq(outcome.as_str()));
        }
        if let Some(from) = from {
            rows = rows.filter(mcp_audit::timestamp_ms.ge(from));
        }
        if let Some(to) = to {
            rows = rows.filter(mcp_audit::timestamp_ms.lt(to));
        }
        rows
    };
    let total = of().count().get_result(&mut conn).await?;
    let newest = (mcp_audit::timestamp_ms.desc(), mcp_audit::id.desc());
    let rows = of().order(newest).limit(page.limit).offset(page.offset).select(CallRow::as_select());
    let rows: Vec<CallRow> = rows.load(&mut conn).await?;
    Ok((rows.into_iter().map(AuditRow::from).collect(), total))
}

pub(crate) async fn purge_calls(conn: &mut Conn, before: Timestamp) -> Result<()> {
    // A few at a time: nobody waits for it.
    loop {
        let some = diesel::sql_query(
            "DELETE FROM mcp_audit WHERE ctid = ANY(ARRAY(SELECT ctid FROM mcp_audit WHERE timestamp_ms < $1 LIMIT 5000))",
        );
        if some.bind::<BigInt, _>(before.0).execute(conn).await? == 0 {
            return Ok(());
        }
    }
}
