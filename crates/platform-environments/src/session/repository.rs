use std::{collections::HashMap, time::Duration};

use diesel::{
    dsl::{exists, now, sql},
    pg::Pg,
    prelude::*,
    sql_types::{Array, BigInt, Bool, Text, Timestamptz},
};
use diesel_async::RunQueryDsl;
use platform_core::{AccountId, Page, Result, Timestamp};
use platform_db::Conn;
use serde_json::Value;

use super::model::{CommandOutput, LoggedCommand, SandboxSession, SessionFilter, StartedBy};
use crate::{
    environment::repository::stored_for,
    schema::{sandbox_calls, sandbox_commands, sandbox_sessions},
};

/// A process that is silent for so long has lost its machines.
pub(crate) const OWNED_FOR: Duration = Duration::from_secs(20);
/// The disk of a machine that was being saved is found within this, or is lost.
const FOUND_WITHIN: Duration = Duration::from_mins(1);
/// Commands that are kept of a session.
const MAX_COMMANDS: i32 = 500;
/// Sessions in which a machine runs or will.
pub(crate) const LIVE: [&str; 4] = ["pending", "creating", "running", "stopping"];

#[derive(Debug, Clone, Queryable, Selectable, Insertable)]
#[diesel(table_name = sandbox_sessions)]
pub(crate) struct SessionRow {
    pub account_id: String,
    pub id: String,
    pub sandbox_id: String,
    pub environment_id: String,
    pub tenant_id: Option<String>,
    pub lane: String,
    pub scope: String,
    pub started_by_type: String,
    pub started_by_id: String,
    pub conversation_id: Option<String>,
    pub depth: i16,
    pub status: String,
    pub runtime: String,
    pub memory_mib: i32,
    pub backend: String,
    pub isolation: String,
    pub from_snapshot_id: Option<String>,
    pub started_ms: i64,
    pub finished_ms: Option<i64>,
    pub expires_ms: i64,
    pub auto_extend: bool,
    pub stopped_reason: Option<String>,
    pub saving: bool,
    pub command_count: i32,
    pub init_script: Option<Value>,
    pub error: Option<String>,
    pub owner: String,
}

impl SessionRow {
    pub fn account(&self) -> AccountId {
        AccountId::named(&self.account_id)
    }

    pub fn shown(self, commands: Option<Vec<LoggedCommand>>) -> SandboxSession {
        SandboxSession {
            session_id: self.id.clone(),
            same_id: self.id,
            sandbox_id: self.sandbox_id,
            environment_id: self.environment_id,
            tenant_id: self.tenant_id,
            scope: self.scope,
            started_by: StartedBy { r#type: self.started_by_type, id: self.started_by_id },
            online: self.status == "running",
            status: self.status,
            runtime: self.runtime,
            memory_mib: self.memory_mib,
            backend: self.backend,
            isolation: self.isolation,
            from_snapshot_id: self.from_snapshot_id,
            started_timestamp_ms: Timestamp(self.started_ms),
            finished_timestamp_ms: self.finished_ms.map(Timestamp),
            expires_at: Timestamp(self.expires_ms),
            auto_extend: self.auto_extend,
            stopped_reason: self.stopped_reason,
            saving: self.saving,
            command_count: self.command_count,
            init_script: self.init_script,
            error: self.error,
            commands,
        }
    }
}

#[diesel::dsl::auto_type(no_type_alias)]
fn by_id<'a>(account: &'a str, id: &'a str) -> _ {
    sandbox_sessions::table.filter(sandbox_sessions::account_id.eq(account)).filter(sandbox_sessions::id.eq(id))
}

fn owned_until() -> diesel::expression::SqlLiteral<Timestamptz> {
    sql::<Timestamptz>(&format!("clock_timestamp() + interval '{} seconds'", OWNED_FOR.as_secs()))
}

/// Whether there was room for it: another session of its lane may be live.
pub(crate) async fn insert(conn: &mut Conn, row: &SessionRow) -> Result<bool> {
    use sandbox_sessions as s;
    let values = (row, s::owned_until.eq(owned_until()));
    let inserted = diesel::insert_into(s::table).values(values).on_conflict_do_nothing().execute(conn).await;
    Ok(stored_for(&row.environment_id, inserted)? > 0)
}

/// The live session of a lane.
pub(crate) async fn live(
    conn: &mut Conn,
    account: &AccountId,
    environment: &str,
    lane: &str,
) -> Result<Option<SessionRow>> {
    use sandbox_sessions as s;
    let of = s::table.filter(s::account_id.eq(account.as_str()).and(s::environment_id.eq(environment)));
    let of = of.filter(s::lane.eq(lane).and(s::status.eq_any(LIVE)));
    Ok(of.select(SessionRow::as_select()).first(conn).await.optional()?)
}

/// The running machine of the environment with this public name, of whichever account; none of a tenant's own.
pub(crate) async fn published(conn: &mut Conn, slug: &str) -> Result<Option<SessionRow>> {
    use sandbox_sessions as s;
    let of_name = sql::<Bool>(
        "(account_id, environment_id) IN \
        (SELECT account_id, id FROM environments WHERE settings #>> '{sandboxConfig,publicSlug}' = ",
    );
    let of = s::table.filter(of_name.bind::<Text, _>(slug).sql(")"));
    let of = of.filter(s::lane.eq("").and(s::status.eq("running")));
    Ok(of.select(SessionRow::as_select()).first(conn).await.optional()?)
}

/// All live sessions of an environment.
pub(crate) async fn live_of(conn: &mut Conn, account: &AccountId, environment: &str) -> Result<Vec<SessionRow>> {
    use sandbox_sessions as s;
    let of = s::table.filter(s::account_id.eq(account.as_str()).and(s::environment_id.eq(environment)));
    Ok(of.filter(s::status.eq_any(LIVE)).select(SessionRow::as_select()).load(conn).await?)
}

/// All live sessions for a tenant.
pub(crate) async fn live_for(conn: &mut Conn, account: &AccountId, tenant: &str) -> Result<Vec<SessionRow>> {
    use sandbox_sessions as s;
    let of = s::table.filter(s::account_id.eq(account.as_str()).and(s::tenant_id.eq(tenant)));
    Ok(of.filter(s::status.eq_any(LIVE)).select(SessionRow::as_select()).load(conn).await?)
}

/// The machines that these threads used last, by thread.
pub(crate) async fn last_of(conn: &Conn, account: &AccountId, threads: &[String]) -> Result<HashMap<String, String>> {
    use sandbox_sessions as s;
    let mut conn = conn;
    let of = s::table.filter(s::account_id.eq(account.as_str()).and(s::conversation_id.eq_any(threads)));
    let of = of.order(s::started_ms).select((s::conversation_id.assume_not_null(), s::sandbox_id));
    Ok(of.load::<(String, String)>(&mut conn).await?.into_iter().collect())
}

/// Environments with a live session, and whether it is being saved.
pub(crate) async fn states(conn: &mut Conn, account: &AccountId, ids: &[String]) -> Result<HashMap<String, bool>> {
    use sandbox_sessions as s;
    let of = s::table.filter(s::account_id.eq(account.as_str()).and(s::environment_id.eq_any(ids)));
    let live = of.filter(s::status.eq_any(LIVE)).select((s::environment_id, s::saving));
    let mut states = HashMap::new();
    for (id, saving) in live.load::<(String, bool)>(conn).await? {
        *states.entry(id).or_insert(false) |= saving;
    }
    Ok(states)
}

pub(crate) async fn by_sandbox(
    conn: &mut Conn,
    account: &AccountId,
    environment: &str,
    sandbox: &str,
) -> Result<Option<SessionRow>> {
    use sandbox_sessions as s;
    let of = s::table.filter(s::account_id.eq(account.as_str()).and(s::environment_id.eq(environment)));
    Ok(of.filter(s::sandbox_id.eq(sandbox)).select(SessionRow::as_select()).first(conn).await.optional()?)
}

/// One session, or the last of an environment.
pub(crate) async fn find(
    conn: &mut Conn,
    account: &AccountId,
    environment: &str,
    id: Option<&str>,
) -> Result<Option<SessionRow>> {
    use sandbox_sessions as s;
    let of = s::table.filter(s::account_id.eq(account.as_str()).and(s::environment_id.eq(environment)));
    let mut of = of.order((s::started_ms.desc(), s::id.desc())).into_boxed();
    if let Some(id) = id {
        of = of.filter(s::id.eq(id));
    }
    Ok(of.select(SessionRow::as_select()).first(conn).await.optional()?)
}

type Sessions<'a> = sandbox_sessions::BoxedQuery<'a, Pg>;

fn listed<'a>(account: &'a AccountId, environment: &'a str, filter: &'a SessionFilter) -> Sessions<'a> {
    use sandbox_sessions as s;
    let of = s::table.filter(s::account_id.eq(account.as_str()).and(s::environment_id.eq(environment)));
    let mut of = of.into_boxed();
    if let Some(tenant) = &filter.tenant_id {
        of = of.filter(s::tenant_id.eq(tenant));
    }
    if let Some(status) = &filter.status {
        of = of.filter(s::status.eq(status.to_ascii_lowercase()));
    }
    of
}

pub(crate) async fn list(
    conn: &Conn,
    account: &AccountId,
    environment: &str,
    filter: &SessionFilter,
    page: Page,
) -> Result<(Vec<SessionRow>, i64)> {
    use sandbox_sessions as s;
    let (mut first, mut second) = (conn, conn);
    let rows = listed(account, environment, filter).order((s::started_ms.desc(), s::id.desc()));
    let rows = rows.limit(page.limit).offset(page.offset).select(SessionRow::as_select());
    let total = listed(account, environment, filter).count();
    Ok(futures_util::try_join!(rows.load(&mut first), total.get_result(&mut second))?)
}

/// What changes of a session; `None` = stays.
#[derive(Debug, Default, AsChangeset)]
#[diesel(table_name = sandbox_sessions)]
pub(crate) struct SessionChange {
    pub status: Option<&'static str>,
    pub finished_ms: Option<i64>,
    pub expires_ms: Option<i64>,
    pub stopped_reason: Option<&'static str>,
    pub saving: Option<bool>,
    pub init_script: Option<Value>,
    pub from_snapshot_id: Option<String>,
    pub error: Option<String>,
}

/// Whether the session was live, and is changed.
pub(crate) async fn change(conn: &mut Conn, account: &AccountId, id: &str, change: &SessionChange) -> Result<bool> {
    let live = by_id(account.as_str(), id).filter(sandbox_sessions::status.eq_any(LIVE));
    Ok(diesel::update(live).set(change).execute(conn).await? > 0)
}

/// Says that the machines of these sessions of a process are there; those that are live, of all accounts.
pub(crate) async fn keep(conn: &mut Conn, owner: &str, sessions: &[String]) -> Result<Vec<String>> {
    use sandbox_sessions as s;
    let own = s::table.filter(s::owner.eq(owner).and(s::status.eq_any(LIVE)).and(s::id.eq_any(sessions)));
    Ok(diesel::update(own).set(s::owned_until.eq(owned_until())).returning(s::id).get_results(conn).await?)
}

/// Machines that are being saved, of all accounts.
pub(crate) async fn saving(conn: &mut Conn) -> Result<Vec<String>> {
    use sandbox_sessions as s;
    let saving = s::table.filter(s::status.eq_any(LIVE).and(s::saving));
    Ok(saving.select(s::sandbox_id).load(conn).await?)
}

/// Sessions whose machine another process was saving, which is silent, of all accounts.
pub(crate) async fn left_saving(conn: &mut Conn, owner: &str) -> Result<Vec<SessionRow>> {
    use sandbox_sessions as s;
    let left = s::table.filter(s::status.eq_any(LIVE).and(s::saving).and(s::owned_until.lt(now)));
    Ok(left.filter(s::owner.ne(owner)).select(SessionRow::as_select()).load(conn).await?)
}

/// Whether the machine of a session is this process's now: nobody else said so meanwhile.
pub(crate) async fn take_over(conn: &mut Conn, account: &AccountId, id: &str, owner: &str) -> Result<bool> {
    use sandbox_sessions as s;
    let left = by_id(account.as_str(), id).filter(s::status.eq_any(LIVE).and(s::owned_until.lt(now)));
    let taken = diesel::update(left).set((s::owner.eq(owner), s::owned_until.eq(owned_until())));
    Ok(taken.execute(conn).await? > 0)
}

/// Sessions whose process is silent, of all accounts; they are locked. Those that were being saved wait a while for a
/// process that finds their disk.
pub(crate) async fn lost(conn: &mut Conn) -> Result<Vec<SessionRow>> {
    use sandbox_sessions as s;
    let long_ago = sql::<Timestamptz>(&format!("clock_timestamp() - interval '{} seconds'", FOUND_WITHIN.as_secs()));
    let lost = s::table.filter(s::status.eq_any(LIVE).and(s::owned_until.lt(now)));
    let lost = lost.filter(diesel::dsl::not(s::saving).or(s::owned_until.lt(long_ago)));
    let lost = lost.for_update().skip_locked().select(SessionRow::as_select());
    Ok(lost.load(conn).await?)
}

/// Notes a command, and forgets what is too old.
pub(crate) async fn log(
    conn: &mut Conn,
    account: &AccountId,
    session: &str,
    (command, cwd, began): (&str, &str, Timestamp),
    output: &CommandOutput,
) -> Result<()> {
    use sandbox_commands as c;
    let count = diesel::update(by_id(account.as_str(), session))
        .set(sandbox_sessions::command_count.eq(sandbox_sessions::command_count + 1))
        .returning(sandbox_sessions::command_count);
    let Some(count) = count.get_result::<i32>(conn).await.optional()? else { return Ok(()) };
    let row = (
        c::account_id.eq(account.as_str()),
        c::session_id.eq(session),
        c::index.eq(count - 1),
        c::command.eq(command),
        c::cwd.eq(cwd),
        c::exit_code.eq(output.exit_code),
        c::duration_ms.eq(output.duration_ms),
        c::timestamp_ms.eq(began.0),
        c::stdout.eq(&output.stdout),
        c::stderr.eq(&output.stderr),
        c::truncated.eq(output.truncated),
    );
    diesel::insert_into(c::table).values(row).on_conflict_do_nothing().execute(conn).await?;
    let old = c::table.filter(c::session_id.eq(session).and(c::index.lt(count - MAX_COMMANDS)));
    diesel::delete(old).execute(conn).await?;
    Ok(())
}

pub(crate) async fn commands(conn: &mut Conn, account: &AccountId, session: &str) -> Result<Vec<LoggedCommand>> {
    use sandbox_commands as c;
    type Row = (i32, String, String, i32, i64, i64, String, String, bool);
    let of = c::table.filter(c::account_id.eq(account.as_str()).and(c::session_id.eq(session))).order(c::index);
    let rows = of.select((
        c::index,
        c::command,
        c::cwd,
        c::exit_code,
        c::duration_ms,
        c::timestamp_ms,
        c::stdout,
        c::stderr,
        c::truncated,
    ));
    let rows: Vec<Row> = rows.load(conn).await?;
    let command = |(index, command, cwd, exit_code, duration_ms, timestamp_ms, stdout, stderr, truncated): Row| {
        LoggedCommand { index, command, cwd, exit_code, duration_ms, timestamp_ms, stdout, stderr, truncated }
    };
    Ok(rows.into_iter().map(command).collect())
}

/// Asks another process.
pub(crate) async fn ask(conn: &mut Conn, account: &AccountId, id: &str, owner: &str, request: &str) -> Result<()> {
    use sandbox_calls as c;
    let row = (c::account_id.eq(account.as_str()), c::id.eq(id), c::owner.eq(owner), c::request.eq(request));
    diesel::insert_into(c::table).values(row).execute(conn).await?;
    Ok(())
}

/// What is asked of a process, of all accounts: each is given once.
pub(crate) async fn asked(conn: &mut Conn, owner: &str) -> Result<Vec<(String, String, String)>> {
    use sandbox_calls as c;
    let waiting = c::table.filter(c::owner.eq(owner).and(c::taken.eq(false)));
    let taken = diesel::update(waiting).set(c::taken.eq(true)).returning((c::account_id, c::id, c::request));
    Ok(taken.get_results(conn).await?)
}

pub(crate) async fn answer(conn: &mut Conn, account: &AccountId, id: &str, answer: &str) -> Result<()> {
    use sandbox_calls as c;
    let of = c::table.filter(c::account_id.eq(account.as_str()).and(c::id.eq(id)));
    diesel::update(of).set(c::answer.eq(answer)).execute(conn).await?;
    Ok(())
}

/// Adds to what a call says; `false`: what was said before has not been heard yet.
pub(crate) async fn say(conn: &mut Conn, account: &AccountId, id: &str, piece: &str) -> Result<bool> {
    let sql = "UPDATE sandbox_calls SET said = array_append(said, $3) \
        WHERE account_id = $1 AND id = $2 AND cardinality(said) < 4";
    let adding = diesel::sql_query(sql).bind::<Text, _>(account.as_str()).bind::<Text, _>(id).bind::<Text, _>(piece);
    Ok(adding.execute(conn).await? == 1)
}

/// Whether somebody still waits for a call, who says so every few seconds.
pub(crate) async fn is_waited_for(conn: &mut Conn, account: &AccountId, id: &str) -> Result<bool> {
    use sandbox_calls as c;
    let of = c::table.filter(c::account_id.eq(account.as_str()).and(c::id.eq(id)));
    let lately = sql::<Bool>("heard > now() - interval '1 minute'");
    Ok(diesel::select(exists(of.filter(lately))).get_result(conn).await?)
}

/// Says that somebody waits for a call.
pub(crate) async fn wait_for(conn: &mut Conn, account: &AccountId, id: &str) -> Result<()> {
    use sandbox_calls as c;
    let of = c::table.filter(c::account_id.eq(account.as_str()).and(c::id.eq(id)));
    diesel::update(of).set(c::heard.eq(now)).execute(conn).await?;
    Ok(())
}

/// What is known of a call.
#[derive(Default, Queryable, Selectable)]
#[diesel(table_name = sandbox_calls)]
pub(crate) struct CallRow {
    /// A process carries it out.
    pub taken: bool,
    pub answer: Option<String>,
    /// What it said since this was asked last.
    pub said: Vec<String>,
}

/// How a call stands; what it said is given once.
pub(crate) async fn hear(conn: &mut Conn, account: &AccountId, id: &str) -> Result<Option<CallRow>> {
    use sandbox_calls as c;
    let of = || c::table.filter(c::account_id.eq(account.as_str()).and(c::id.eq(id)));
    let found = of().select(CallRow::as_select()).first(conn).await.optional()?;
    if let Some(heard) = found.as_ref().map(|call| call.said.len()).filter(|heard| *heard > 0) {
        let rest = sql::<Array<Text>>(&format!("said[{}:]", heard + 1));
        diesel::update(of()).set(c::said.eq(rest)).execute(conn).await?;
    }
    Ok(found)
}

/// Forgets a call.
pub(crate) async fn forget(conn: &mut Conn, account: &AccountId, id: &str) -> Result<()> {
    use sandbox_calls as c;
    let of = c::table.filter(c::account_id.eq(account.as_str()).and(c::id.eq(id)));
    diesel::delete(of).execute(conn).await?;
    Ok(())
}

/// Forgets calls that nobody waits for, and sessions that ended before a moment.
pub(crate) async fn purge(conn: &mut Conn, before: Timestamp) -> Result<()> {
    diesel::sql_query("DELETE FROM sandbox_calls WHERE created < now() - interval '2 hours'").execute(conn).await?;
    diesel::sql_query(
        "DELETE FROM sandbox_sessions WHERE id IN (
        SELECT id FROM sandbox_sessions WHERE finished_ms < $1 FOR UPDATE SKIP LOCKED)",
    )
    .bind::<BigInt, _>(before.0)
    .execute(conn)
    .await?;
    Ok(())
}

/// Another machine may be started while what was on this one is saved.
pub(crate) async fn leave_lane(conn: &mut Conn, account: &AccountId, id: &str) -> Result<()> {
    let own = by_id(account.as_str(), id);
    diesel::update(own).set(sandbox_sessions::lane.eq(format!("saving {id}"))).execute(conn).await?;
    Ok(())
}

/// No process has a machine, of any account.
pub(crate) async fn disown_all(conn: &mut Conn) -> Result<()> {
    diesel::sql_query(
        "UPDATE sandbox_sessions SET owned_until = CASE WHEN saving THEN now() ELSE '-infinity' END \
         WHERE status IN ('pending', 'creating', 'running', 'stopping')",
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Whether a worker has had a machine for a chat or thread.
pub(crate) async fn had(
    conn: &mut Conn,
    account: &AccountId,
    environment: &str,
    worker: &str,
    conversation: &str,
) -> Result<bool> {
    use sandbox_sessions as s;
    let of = s::table.filter(s::account_id.eq(account.as_str()).and(s::environment_id.eq(environment)));
    let of = of.filter(s::started_by_id.eq(worker).and(s::conversation_id.eq(conversation)));
    Ok(diesel::select(diesel::dsl::exists(of)).get_result(conn).await?)
}
