use std::time::Duration;

use diesel::{
    dsl::sql,
    expression::SqlLiteral,
    prelude::*,
    sql_types::{Array, BigInt, Bool, Double, Integer, Text, Timestamptz},
};
use diesel_async::RunQueryDsl;
use platform_core::{AccountId, Id, Result, Timestamp};
use platform_db::{Conn, Db, JsonStatement};
use serde::Serialize;
use serde_json::{Value, json};

use crate::{lanes, schema::runs, trace::traceparent};

/// Enqueues runs: a data-modifying CTE over `accepted`, which offers `run` (id), `account`, `kind`,
/// `subject`, `payload`, `owner` and `lease_ms` (both null for a run that anybody may take), and `trace`
/// ([`traceparent`]).
pub const ENQUEUE: &str = "INSERT INTO runs (id, account_id, kind, subject, payload, trace, owner, fence, attempt, due)
    SELECT run, account, kind, subject, payload, trace, owner,
           CASE WHEN owner IS NULL THEN 0 ELSE 1 END, CASE WHEN owner IS NULL THEN 0 ELSE 1 END,
           now() + coalesce(lease_ms, 0) * interval '1 millisecond'
    FROM accepted";

/// Ends runs: a data-modifying CTE over `item`, which offers `run` and `fence`. It returns the
/// `id` of each run that has ended; what depends on it writes nothing for the others: their lease
/// is lost, or more work came for their subject ([`call_again_in`]) and [`end_in`] ends them.
pub const FINISH: &str = "DELETE FROM runs USING item WHERE runs.id = item.run AND runs.fence = item.fence
    AND NOT runs.again RETURNING runs.id";

/// Keeps runs whose lease is held: a data-modifying CTE over `item`, which offers `run`, `fence` and `sleep_ms`.
/// It returns the `id` of each; what depends on it writes nothing for the others. A step that is done starts the
/// count of attempts anew. With `sleep_ms` the lease is given up, and the run is due after that time, or when
/// [`wake_in`] says so; at once when it is to stop.
pub const STEP: &str = "UPDATE runs SET attempt = CASE WHEN item.sleep_ms IS NULL THEN 1 ELSE 0 END,
        owner = CASE WHEN item.sleep_ms IS NULL THEN runs.owner END,
        fence = runs.fence + CASE WHEN item.sleep_ms IS NULL THEN 0 ELSE 1 END,
        due = CASE WHEN item.sleep_ms IS NULL THEN runs.due WHEN runs.stop THEN now()
              ELSE now() + item.sleep_ms * interval '1 millisecond' END
    FROM item WHERE runs.id = item.run AND runs.fence = item.fence RETURNING runs.id";

/// A run as its worker holds it.
#[derive(Debug, Clone, Queryable, Selectable)]
#[diesel(table_name = runs)]
pub struct Run {
    /// Id of the run.
    pub id: String,
    #[diesel(column_name = account_id)]
    account: String,
    /// Which [`crate::Work`] carries it out.
    pub kind: String,
    /// What it works on, for example a chat.
    pub subject: String,
    /// What the one who enqueued it wanted to say.
    pub payload: Value,
    /// Rises with every lease; every write names it.
    pub fence: i64,
    /// The how-manieth try this is, from 1.
    pub attempt: i32,
    /// Somebody asked it to stop.
    pub stop: bool,
    /// The lane it stands in.
    pub lane: Option<String>,
    /// The trace of whoever enqueued it, for whoever takes it from the table.
    pub(crate) trace: Option<String>,
}

impl Run {
    /// A run whose lease was taken as it was enqueued.
    pub fn begun(id: String, account: &AccountId, kind: &str, subject: String, payload: Value) -> Self {
        let (account, kind) = (account.as_str().to_owned(), kind.to_owned());
        Self { id, account, kind, subject, payload, fence: 1, attempt: 1, stop: false, lane: None, trace: None }
    }

    /// The account it belongs to.
    pub fn account(&self) -> AccountId {
        AccountId::named(&self.account)
    }
}

const NOW: &str = "now()";
const MILLISECONDS: &str = " * interval '1 millisecond'";

/// A moment of the database's clock.
fn after(delay: Duration) -> SqlLiteral<Timestamptz> {
    sql(&format!("now() + {}{MILLISECONDS}", delay.as_millis()))
}

/// Runs that may be taken, locked, as they are when they are taken.
pub(crate) struct Due {
    pub runs: Vec<Run>,
    /// Those of them that stand in lanes.
    pub laned: Vec<lanes::PickedRun>,
    /// What counts as the start of those.
    pub now: Option<Timestamp>,
}

/// Up to `most` due runs of `kinds`: those that stand in no lane, oldest first, and one of each lane in turn;
/// `laned_first`: to which of the two an odd place goes.
pub(crate) async fn due(conn: &mut Conn, kinds: &[&str], full: &[String], most: i64, laned_first: bool) -> Result<Due> {
    // One that was worked is in its lane already: taking it over changes nothing there.
    let due = runs::table
        .filter(runs::due.le(sql::<Timestamptz>(NOW)).and(runs::kind.eq_any(kinds)))
        .filter(runs::lane.is_null().or(runs::owner.is_not_null()))
        .filter(runs::account_id.ne_all(full))
        .order(runs::due)
        .limit(most)
        .for_update()
        .skip_locked()
        .select(Run::as_select());
    let mut free: Vec<Run> = due.load(conn).await?;
    let lanes::Picked { runs: mut laned, now } = lanes::pick(conn, full, most).await?;
    // Neither keeps the other from its turn.
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    let half = if laned_first { most.div_ceil(2) } else { most / 2 };
    laned.truncate(most.saturating_sub(free.len()).max(half));
    free.truncate(most - laned.len());
    if !laned.is_empty() {
        let ids: Vec<&str> = laned.iter().map(|run| run.id.as_str()).collect();
        free.extend(runs::table.filter(runs::id.eq_any(ids)).select(Run::as_select()).load::<Run>(conn).await?);
    }
    for run in &mut free {
        run.fence += 1;
        run.attempt += 1;
    }
    Ok(Due { runs: free, laned, now })
}

/// Takes runs that are due.
pub(crate) async fn claim(
    conn: &mut Conn,
    owner: &str,
    taken: &[Run],
    laned: &[lanes::PickedRun],
    lease_ms: i64,
) -> Result<()> {
    if taken.is_empty() {
        return Ok(());
    }
    let ids: Vec<&str> = taken.iter().map(|run| run.id.as_str()).collect();
    diesel::update(runs::table.filter(runs::id.eq_any(&ids)))
        .set((
            runs::owner.eq(owner),
            runs::fence.eq(runs::fence + 1),
            runs::attempt.eq(runs::attempt + 1),
            runs::opens.eq(false),
            runs::due.eq(sql::<Timestamptz>("now() + ").bind::<BigInt, _>(lease_ms).sql(MILLISECONDS)),
        ))
        .execute(conn)
        .await?;
    let served: Vec<&lanes::PickedRun> = laned.iter().filter(|run| ids.contains(&run.id.as_str())).collect();
    lanes::served(conn, &served).await
}

/// Renews leases; returns those still held, with whether they were asked to stop.
pub(crate) async fn renew(conn: &mut Conn, owner: &str, ids: &[String], lease_ms: i64) -> Result<Vec<(String, bool)>> {
    let mut renewed = renew_some(conn, owner, ids, "SKIP LOCKED", lease_ms).await?;
    // Those that somebody has locked one by one: it waits for nobody while it holds others.
    let locked: Vec<_> = ids.iter().filter(|id| renewed.iter().all(|(renewed, _)| renewed != *id)).collect();
    for id in locked {
        renewed.extend(renew_some(conn, owner, std::slice::from_ref(id), "", lease_ms).await?);
    }
    Ok(renewed)
}

async fn renew_some(
    conn: &mut Conn,
    owner: &str,
    ids: &[String],
    waiting: &str,
    lease_ms: i64,
) -> Result<Vec<(String, bool)>> {
    let ids = sql::<Bool>("id IN (SELECT id FROM runs WHERE id = ANY(")
        .bind::<Array<Text>, _>(ids)
        .sql(&format!(") FOR UPDATE {waiting})"));
    let renewed = diesel::update(runs::table.filter(runs::owner.eq(owner)))
        .filter(ids)
        .set(runs::due.eq(sql::<Timestamptz>("now() + ").bind::<BigInt, _>(lease_ms).sql(MILLISECONDS)))
        .returning((runs::id, runs::stop))
        .get_results(conn)
        .await?;
    Ok(renewed)
}

/// Hands runs back: due at once, and the attempt does not count.
pub(crate) async fn hand_back(conn: &mut Conn, owner: &str) -> Result<Vec<Run>> {
    let all =
        sql::<Bool>("id IN (SELECT id FROM runs WHERE owner = ").bind::<Text, _>(owner).sql(" ORDER BY id FOR UPDATE)");
    let handed = diesel::update(runs::table.filter(runs::owner.eq(owner)).filter(all))
        .set((
            runs::owner.eq(None::<String>),
            runs::fence.eq(runs::fence + 1),
            runs::attempt.eq(runs::attempt - sql::<Integer>("1")),
            runs::due.eq(sql::<Timestamptz>(NOW)),
        ))
        .returning(Run::as_returning())
        .get_results(conn)
        .await?;
    Ok(handed)
}

/// Has a lease end in a second: its worker has given the run up; `counts`: the attempt does.
pub(crate) async fn give_up(conn: &mut Conn, run: &Run, counts: bool) -> Result<()> {
    let held = runs::table.filter(runs::id.eq(&run.id).and(runs::fence.eq(run.fence)).and(runs::owner.is_not_null()));
    diesel::update(held)
        .set((
            runs::due.eq(sql::<Timestamptz>("least(due, now() + interval '1 second')")),
            runs::attempt.eq(run.attempt - i32::from(!counts)),
        ))
        .execute(conn)
        .await?;
    Ok(())
}

/// Makes every lease due: for a database that no other process can be using.
pub(crate) async fn reclaim_all(conn: &mut Conn) -> Result<usize> {
    Ok(diesel::update(runs::table.filter(runs::owner.is_not_null()))
        .set(runs::due.eq(sql::<Timestamptz>(NOW)))
        .execute(conn)
        .await?)
}

/// When a run may be taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When<'a> {
    /// After so long.
    After(Duration),
    /// The same as the beginning of a trace: the clock is its cause, nobody who enqueues it.
    ByClock(Duration),
    /// When its lane has room; `opens`: it counts as a start of the lane.
    InLane {
        /// The lane.
        lane: &'a str,
        /// Whether its first lease is a start.
        opens: bool,
    },
}

/// A run for whoever is first.
#[derive(Debug)]
pub struct NewRun<'a> {
    /// Account.
    pub account: &'a AccountId,
    /// Which [`crate::Work`] carries it out.
    pub kind: &'a str,
    /// What it works on.
    pub subject: &'a str,
    /// What there is to say.
    pub payload: Value,
    /// When it may be taken.
    pub when: When<'a>,
    /// The trace that it goes on with ([`traceparent`]).
    pub trace: Option<String>,
}

/// Enqueues a run for whoever is first; returns its id.
pub async fn enqueue_in(
    conn: &mut Conn,
    account: &AccountId,
    kind: &str,
    subject: &str,
    payload: Value,
    when: When<'_>,
) -> Result<String> {
    let trace = if matches!(when, When::ByClock(_)) { None } else { traceparent() };
    let mut ids = enqueue_all_in(conn, vec![NewRun { account, kind, subject, payload, when, trace }]).await?;
    Ok(ids.remove(0))
}

/// Enqueues runs; returns their ids.
pub async fn enqueue_all_in(conn: &mut Conn, new: Vec<NewRun<'_>>) -> Result<Vec<String>> {
    const SQL: &str = "INSERT INTO runs (id, account_id, kind, subject, payload, due, lane, opens, trace)
        SELECT id, account, kind, subject, coalesce(payload, 'null'), now() + delay_ms * interval '1 millisecond', lane, opens, trace
        FROM jsonb_to_recordset($1::jsonb) AS x(id text, account text, kind text, subject text, payload jsonb,
            delay_ms bigint, lane text, opens bool, trace text)";
    #[derive(Serialize)]
    struct Item<'a> {
        id: String,
        account: &'a str,
        kind: &'a str,
        subject: &'a str,
        payload: Value,
        delay_ms: u128,
        lane: Option<&'a str>,
        opens: bool,
        trace: Option<String>,
    }
    let item = |NewRun { account, kind, subject, payload, when, trace }| {
        let (delay, lane, opens) = match when {
            When::After(delay) | When::ByClock(delay) => (delay, None, false),
            When::InLane { lane, opens } => (Duration::ZERO, Some(lane), opens),
        };
        let (id, account) = (Id::<Run>::generate().into(), account.as_str());
        Item { id, account, kind, subject, payload, delay_ms: delay.as_millis(), lane, opens, trace }
    };
    let items: Vec<Item<'_>> = new.into_iter().map(item).collect();
    if !items.is_empty() {
        JsonStatement::new(SQL, &items)?.execute(conn).await?;
    }
    Ok(items.into_iter().map(|item| item.id).collect())
}

/// Enqueues a run of a subject that is due now, or makes the one that it has due, unless somebody works that.
pub async fn enqueue_or_wake_in(conn: &mut Conn, account: &AccountId, kind: &str, subject: &str) -> Result<()> {
    let values = (
        runs::id.eq(String::from(Id::<Run>::generate())),
        runs::account_id.eq(account.as_str()),
        runs::kind.eq(kind),
        runs::subject.eq(subject),
        runs::payload.eq(Value::Null),
        runs::due.eq(after(Duration::ZERO)),
        runs::trace.eq(traceparent()),
    );
    let due = sql::<Timestamptz>("CASE WHEN runs.owner IS NULL THEN least(runs.due, excluded.due) ELSE runs.due END");
    diesel::insert_into(runs::table)
        .values(values)
        .on_conflict((runs::account_id, runs::kind, runs::subject))
        .do_update()
        .set(runs::due.eq(due))
        .execute(conn)
        .await?;
    Ok(())
}

/// More work came for the subject of a run: [`FINISH`] leaves it to [`end_in`].
pub async fn call_again_in(conn: &mut Conn, account: &AccountId, run: &str) -> Result<()> {
    let run = runs::table.filter(runs::account_id.eq(account.as_str()).and(runs::id.eq(run)));
    diesel::update(run).set(runs::again.eq(true)).execute(conn).await?;
    Ok(())
}

/// Makes a run that nobody works due after `delay`.
pub async fn delay_in(conn: &mut Conn, account: &AccountId, run: &str, delay: Duration) -> Result<()> {
    let run = runs::table.filter(runs::account_id.eq(account.as_str()).and(runs::id.eq(run)));
    diesel::update(run.filter(runs::owner.is_null())).set(runs::due.eq(after(delay))).execute(conn).await?;
    Ok(())
}

/// The run of a subject, as whoever acts on that subject finds it.
#[derive(Debug, Clone)]
pub struct FoundRun {
    /// Its id.
    pub id: String,
    /// What the one who enqueued it wanted to say.
    pub payload: Value,
    /// Nobody works it, and nobody does before this transaction ends.
    pub idle: bool,
}

/// Locks the run of a subject for this transaction, before anything else of that subject is locked.
pub async fn find_in(conn: &mut Conn, account: &AccountId, kind: &str, subject: &str) -> Result<Option<FoundRun>> {
    let run = runs::table
        .filter(runs::account_id.eq(account.as_str()))
        .filter(runs::kind.eq(kind))
        .filter(runs::subject.eq(subject))
        .select((runs::id, runs::payload, runs::owner))
        .for_update();
    Ok(run.first(conn).await.optional()?.map(found))
}

fn found((id, payload, owner): (String, Value, Option<String>)) -> FoundRun {
    FoundRun { id, payload, idle: owner.is_none() }
}

/// Gives a run that nobody works another payload; `due`: at once.
pub async fn wake_in(conn: &mut Conn, account: &AccountId, run: &FoundRun, due: bool) -> Result<()> {
    let of = runs::table.filter(runs::account_id.eq(account.as_str()).and(runs::id.eq(&run.id)));
    let at = sql::<Timestamptz>(if due { NOW } else { "due" });
    diesel::update(of).set((runs::payload.eq(&run.payload), runs::due.eq(at))).execute(conn).await?;
    Ok(())
}

/// Marks the run of a subject to be stopped and calls off what came after it.
pub async fn stop_in(conn: &mut Conn, account: &AccountId, kind: &str, subject: &str) -> Result<Option<FoundRun>> {
    let run = runs::table
        .filter(runs::account_id.eq(account.as_str()))
        .filter(runs::kind.eq(kind))
        .filter(runs::subject.eq(subject));
    let stopped = diesel::update(run).set((runs::stop.eq(true), runs::again.eq(false)));
    let run = stopped.returning((runs::id, runs::payload, runs::owner));
    Ok(run.get_result(conn).await.optional()?.map(found))
}

/// Gives a run that has taken in what came for its subject another payload, for whoever may take it over.
pub async fn describe_in(conn: &mut Conn, run: &Run, payload: Value) -> Result<()> {
    let described = (runs::payload.eq(payload), runs::again.eq(false));
    diesel::update(runs::table.filter(runs::id.eq(&run.id))).set(described).execute(conn).await?;
    Ok(())
}

/// Ends a run that leaves nothing else to store.
pub async fn end(db: &Db, run: &Run) -> Result<()> {
    end_in(&mut *db.conn().await?, run).await
}

/// Ends a run whose lease is held, even when more work came for its subject.
pub async fn end_in(conn: &mut Conn, run: &Run) -> Result<()> {
    end_all_in(conn, &[run]).await
}

/// The same for several.
pub async fn end_all_in(conn: &mut Conn, runs: &[&Run]) -> Result<()> {
    const SQL: &str = "DELETE FROM runs USING jsonb_to_recordset($1::jsonb) AS item(run text, fence bigint)
        WHERE runs.id = item.run AND runs.fence = item.fence";
    let items: Vec<Value> = runs.iter().map(|run| json!({"run": run.id, "fence": run.fence})).collect();
    if !items.is_empty() {
        JsonStatement::new(SQL, &items)?.execute(conn).await?;
    }
    Ok(())
}

/// A step of a run whose lease is held is done: its attempts are counted anew.
pub async fn step_in(conn: &mut Conn, run: &Run) -> Result<()> {
    let run = runs::table.filter(runs::id.eq(&run.id).and(runs::fence.eq(run.fence)).and(runs::attempt.ne(1)));
    diesel::update(run).set(runs::attempt.eq(1)).execute(conn).await?;
    Ok(())
}

/// Locks a run for this transaction and says whether `fence` still holds its lease.
pub async fn is_held_in(conn: &mut Conn, run: &Run) -> Result<bool> {
    Ok(!held_in(conn, &[run]).await?.is_empty())
}

/// Locks runs for this transaction; id and fence of those whose lease is held.
pub async fn held_in(conn: &mut Conn, runs: &[&Run]) -> Result<Vec<(String, i64)>> {
    let ids: Vec<&str> = runs.iter().map(|run| run.id.as_str()).collect();
    let found = runs::table.filter(runs::id.eq_any(ids)).order(runs::id).for_update().select((runs::id, runs::fence));
    let mut found: Vec<(String, i64)> = found.load(conn).await?;
    found.retain(|(id, fence)| runs.iter().any(|run| run.id == *id && run.fence == *fence));
    Ok(found)
}

/// Takes the run of a subject away, in the transaction that takes the subject away; returns its id.
pub async fn cancel_in(conn: &mut Conn, account: &AccountId, kind: &str, subject: &str) -> Result<Option<String>> {
    let run = runs::table
        .filter(runs::account_id.eq(account.as_str()))
        .filter(runs::kind.eq(kind))
        .filter(runs::subject.eq(subject));
    Ok(diesel::delete(run).returning(runs::id).get_result(conn).await.optional()?)
}

/// Runs of one kind that have not ended.
#[derive(Debug, Clone, PartialEq, QueryableByName)]
pub struct Queue {
    /// Which kind.
    #[diesel(sql_type = Text)]
    pub kind: String,
    /// A worker holds them.
    #[diesel(sql_type = BigInt)]
    pub working: i64,
    /// They are due, and nobody has taken them.
    #[diesel(sql_type = BigInt)]
    pub waiting: i64,
    /// Their time has not come.
    #[diesel(sql_type = BigInt)]
    pub sleeping: i64,
    /// Their worker is silent for longer than its lease.
    #[diesel(sql_type = BigInt)]
    pub lost: i64,
    /// For how long the oldest of those that are due, and that no lane holds back, has been so, in seconds.
    #[diesel(sql_type = Double)]
    pub oldest_seconds: f64,
}

/// Runs that are due later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PutOff {
    Counts,
    IsLeftOut,
}

/// How many runs of a kind wait for an account; no more than `most` are counted, and no more than ten times that are
/// looked at, of which some sleep.
pub(crate) async fn waiting(conn: &Conn, account: &AccountId, kind: &str, put_off: PutOff, most: i64) -> Result<i64> {
    #[derive(QueryableByName)]
    struct Waiting {
        #[diesel(sql_type = BigInt)]
        waiting: i64,
    }
    let sql = "SELECT count(*) AS waiting FROM (SELECT FROM (\
            SELECT owner, due FROM runs WHERE account_id = $1 AND kind = $2 LIMIT $3 * 10) of \
        WHERE owner IS NULL AND (due <= now() OR $4) LIMIT $3) w";
    let found = diesel::sql_query(sql).bind::<Text, _>(account.as_str()).bind::<Text, _>(kind);
    let found = found.bind::<BigInt, _>(most).bind::<Bool, _>(put_off == PutOff::Counts);
    let mut conn = conn;
    Ok(found.get_result::<Waiting>(&mut conn).await?.waiting)
}

/// All runs by kind.
pub(crate) async fn queues(conn: &Conn) -> Result<Vec<Queue>> {
    let mut conn = conn;
    let sql = "SELECT kind, count(*) FILTER (WHERE owner IS NOT NULL AND due > now()) AS working,
            count(*) FILTER (WHERE owner IS NULL AND due <= now()) AS waiting,
            count(*) FILTER (WHERE owner IS NULL AND due > now()) AS sleeping,
            count(*) FILTER (WHERE owner IS NOT NULL AND due <= now()) AS lost,
            coalesce(extract(epoch FROM now() - min(due) FILTER (
                WHERE due <= now() AND (lane IS NULL OR owner IS NOT NULL))), 0)::double precision AS oldest_seconds
        FROM runs GROUP BY kind ORDER BY kind";
    Ok(diesel::sql_query(sql).load(&mut conn).await?)
}
