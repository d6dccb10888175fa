//! Lanes: runs that share limits, decided where a run is taken.

use std::{collections::HashMap, time::Duration};

use diesel::{
    QueryableByName,
    dsl::sql,
    prelude::*,
    sql_types::{BigInt, Bool, Integer, Nullable, Text},
};
use diesel_async::RunQueryDsl;
use platform_core::{AccountId, Result, Timestamp};
use platform_db::{Conn, JsonStatement};
use serde::Serialize;

use crate::schema::{lanes, runs};

/// What the runs of a lane may do together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaneLimits {
    /// Worked at once.
    pub most_running: i32,
    /// Begun in one window; `None` = as many as there are.
    pub most_starts: Option<i32>,
    /// Length of a window in milliseconds; windows are counted from the epoch.
    pub interval_ms: i64,
    /// Nothing is taken.
    pub closed: bool,
}

/// Makes a lane, or changes its limits.
pub async fn set_lane_in(conn: &mut Conn, account: &AccountId, lane: &str, limits: LaneLimits) -> Result<()> {
    let values = (
        lanes::most_running.eq(limits.most_running),
        lanes::most_starts.eq(limits.most_starts),
        lanes::interval_ms.eq(limits.interval_ms),
        lanes::closed.eq(limits.closed),
    );
    diesel::insert_into(lanes::table)
        .values((lanes::account_id.eq(account.as_str()), lanes::id.eq(lane), values))
        .on_conflict(lanes::id)
        .do_update()
        // Windows of another length are counted anew.
        .set((
            values,
            lanes::window_no
                .eq(sql("CASE WHEN lanes.interval_ms = excluded.interval_ms THEN lanes.window_no ELSE 0 END")),
        ))
        .execute(conn)
        .await?;
    Ok(())
}

/// Takes a lane away; runs that are still in it are never taken.
pub async fn drop_lane_in(conn: &mut Conn, account: &AccountId, lane: &str) -> Result<()> {
    let lane = lanes::table.filter(lanes::account_id.eq(account.as_str()).and(lanes::id.eq(lane)));
    diesel::delete(lane).execute(conn).await?;
    Ok(())
}

/// Why one more run of a lane would have to wait, and for how long at the least; `None` when it would not. No other is
/// judged or taken before this transaction ends.
pub async fn full_in(conn: &mut Conn, account: &AccountId, lane: &str) -> Result<Option<(Hold, Duration)>> {
    let row: Option<(i32, Option<i32>, i64, i64, i32, i64)> = lanes::table
        .filter(lanes::account_id.eq(account.as_str()).and(lanes::id.eq(lane)))
        .for_update()
        .select((
            lanes::most_running,
            lanes::most_starts,
            lanes::interval_ms,
            lanes::window_no,
            lanes::starts,
            sql::<BigInt>(NOW_MS),
        ))
        .first(conn)
        .await
        .optional()?;
    let Some((most_running, most_starts, interval_ms, window_no, starts, now)) = row else { return Ok(None) };
    let of = || runs::table.filter(runs::lane.eq(lane));
    let running: i64 = of().filter(runs::owner.is_not_null()).count().get_result(conn).await?;
    let waiting = of().filter(runs::owner.is_null());
    let opening: i64 = waiting.filter(runs::opens.eq(true)).count().get_result(conn).await?;
    let here = running + waiting.count().get_result::<i64>(conn).await?;
    let started = if window_no == now / interval_ms { starts } else { 0 };
    let begun = i64::from(started) + opening;
    if most_starts.is_some_and(|most| begun >= i64::from(most)) {
        let window_ends = Timestamp((now / interval_ms + 1) * interval_ms);
        return Ok(Some((Hold::Starts, window_ends.since(Timestamp(now)))));
    }
    Ok((here >= i64::from(most_running)).then_some((Hold::Running, Duration::ZERO)))
}

const NOW_MS: &str = "floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint";

/// Why a run of a lane waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hold {
    /// The lane is closed.
    Closed,
    /// As many as may are worked.
    Running,
    /// As many as may have begun in this window.
    Starts,
    /// No process had room yet.
    Workers,
}

/// Where a run waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueuePosition {
    /// From 1.
    pub position: i64,
    /// Which limit it waits for.
    pub hold: Hold,
}

#[derive(QueryableByName)]
struct PlaceRow {
    #[diesel(sql_type = Text)]
    subject: String,
    #[diesel(sql_type = BigInt)]
    ahead: i64,
    #[diesel(sql_type = Bool)]
    closed: bool,
    #[diesel(sql_type = Bool)]
    full: bool,
    #[diesel(sql_type = Bool)]
    spent: bool,
}

/// The places of runs that wait in their lanes, by subject.
pub async fn places(
    conn: &Conn,
    account: &AccountId,
    kind: &str,
    subjects: &[String],
) -> Result<HashMap<String, QueuePosition>> {
    const SQL: &str = "WITH item AS (
            SELECT * FROM jsonb_to_recordset($1::jsonb) AS x(account text, kind text, subject text)
        )
        SELECT r.subject, l.closed,
            (SELECT count(*) FROM runs a WHERE a.lane = r.lane AND a.owner IS NULL AND (a.due, a.id) < (r.due, r.id))
                AS ahead,
            (SELECT count(*) FROM runs b WHERE b.lane = r.lane AND b.owner IS NOT NULL) >= l.most_running AS full,
            (r.opens AND l.most_starts IS NOT NULL AND l.starts >= l.most_starts
                AND l.window_no = floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint / l.interval_ms) AS spent
        FROM item JOIN runs r ON r.account_id = item.account AND r.kind = item.kind AND r.subject = item.subject
            JOIN lanes l ON l.id = r.lane
        WHERE r.owner IS NULL";
    #[derive(Serialize)]
    struct Item<'a> {
        account: &'a str,
        kind: &'a str,
        subject: &'a str,
    }
    let items: Vec<Item<'_>> =
        subjects.iter().map(|subject| Item { account: account.as_str(), kind, subject }).collect();
    let mut conn = conn;
    let rows: Vec<PlaceRow> = JsonStatement::new(SQL, &items)?.load(&mut conn).await?;
    let place = |row: PlaceRow| {
        let hold = match row {
            PlaceRow { closed: true, .. } => Hold::Closed,
            PlaceRow { full: true, .. } => Hold::Running,
            PlaceRow { spent: true, .. } => Hold::Starts,
            _ => Hold::Workers,
        };
        (row.subject, QueuePosition { position: row.ahead + 1, hold })
    };
    Ok(rows.into_iter().map(place).collect())
}

/// What was picked from the lanes, not yet taken.
#[derive(Default)]
pub(crate) struct Picked {
    /// Runs in the order in which they are to be taken: one of each lane in turn.
    pub runs: Vec<PickedRun>,
    /// The moment that decides in which window they begin.
    pub now: Option<Timestamp>,
}

pub(crate) struct PickedRun {
    pub id: String,
    lane: String,
    opens: bool,
    window_no: i64,
}

#[derive(QueryableByName)]
struct LaneRow {
    #[diesel(sql_type = Text)]
    id: String,
    #[diesel(sql_type = Nullable<Integer>)]
    most_starts: Option<i32>,
    #[diesel(sql_type = BigInt)]
    interval_ms: i64,
    #[diesel(sql_type = BigInt)]
    window_no: i64,
    #[diesel(sql_type = Integer)]
    starts: i32,
    #[diesel(sql_type = BigInt)]
    free: i64,
    #[diesel(sql_type = BigInt)]
    now_ms: i64,
}

/// Lanes in which a run waits that may be taken, the one served longest ago first. Nobody else takes from them
/// before this transaction ends. How many run is looked at again once they are locked.
const LOCK: &str = "WITH RECURSIVE item AS (
        SELECT * FROM jsonb_to_recordset($1::jsonb) AS x(most int, full_accounts jsonb)
    ), waiting(lane) AS (
        (SELECT lane FROM runs WHERE lane IS NOT NULL AND owner IS NULL ORDER BY lane LIMIT 1)
        UNION ALL
        SELECT (SELECT lane FROM runs WHERE lane > waiting.lane AND owner IS NULL ORDER BY lane LIMIT 1)
        FROM waiting WHERE waiting.lane IS NOT NULL
    )
    SELECT l.id, l.most_starts, l.interval_ms, l.window_no, l.starts,
        l.most_running - (SELECT count(*) FROM runs WHERE lane = l.id AND owner IS NOT NULL) AS free,
        floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now_ms
    FROM lanes l
    WHERE l.id IN (SELECT lane FROM waiting WHERE lane IS NOT NULL) AND NOT l.closed
        AND NOT (SELECT full_accounts FROM item) ? l.account_id
        AND (SELECT count(*) FROM runs WHERE lane = l.id AND owner IS NOT NULL) < l.most_running
        AND (l.most_starts IS NULL OR l.starts < l.most_starts
            OR l.window_no <> floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint / l.interval_ms
            OR EXISTS (SELECT FROM runs WHERE lane = l.id AND owner IS NULL AND NOT opens))
    ORDER BY l.served LIMIT (SELECT most FROM item) FOR UPDATE OF l SKIP LOCKED";

#[derive(QueryableByName)]
struct PickRow {
    #[diesel(sql_type = Text)]
    id: String,
    #[diesel(sql_type = Text)]
    lane: String,
    #[diesel(sql_type = Bool)]
    opens: bool,
    #[diesel(sql_type = BigInt)]
    free: i64,
}

/// The oldest runs of locked lanes, one of each lane in turn.
const PICK: &str = "WITH item AS (
        SELECT x.lane, x.starts, x.most, least(x.free, x.most,
            l.most_running - (SELECT count(*) FROM runs WHERE lane = l.id AND owner IS NOT NULL)) AS free
        FROM jsonb_to_recordset($1::jsonb) AS x(lane text, starts int, free bigint, most bigint)
            JOIN lanes l ON l.id = x.lane
    ), opening AS (
        SELECT run.id, item.lane, true AS opens, item.free, run.due FROM item, LATERAL (
            SELECT id, due FROM runs WHERE lane = item.lane AND owner IS NULL AND due <= now() AND opens
            ORDER BY due LIMIT greatest(least(item.free, item.starts), 0)) AS run
    ), going_on AS (
        SELECT run.id, item.lane, false AS opens, item.free, run.due FROM item, LATERAL (
            SELECT id, due FROM runs WHERE lane = item.lane AND owner IS NULL AND due <= now() AND NOT opens
            ORDER BY due LIMIT greatest(item.free, 0)) AS run
    ), ranked AS (
        SELECT *, row_number() OVER (PARTITION BY lane ORDER BY due) AS place
        FROM (SELECT * FROM opening UNION ALL SELECT * FROM going_on) AS run
    ), picked AS (
        SELECT * FROM ranked WHERE place <= free ORDER BY place, due LIMIT (SELECT max(most) FROM item)
    ) SELECT picked.id, picked.lane, picked.opens, picked.free FROM picked JOIN runs ON runs.id = picked.id
    WHERE runs.owner IS NULL ORDER BY picked.due FOR UPDATE OF runs SKIP LOCKED";

/// Picks up to `most` runs, oldest first in each lane, one of each lane in turn; none of accounts that are `full`.
pub(crate) async fn pick(conn: &mut Conn, full: &[String], most: i64) -> Result<Picked> {
    #[derive(Serialize)]
    struct Wanted<'a> {
        most: i64,
        full_accounts: &'a [String],
    }
    #[derive(Serialize)]
    struct Item<'a> {
        lane: &'a str,
        starts: i32,
        free: i64,
        most: i64,
    }
    let locked: Vec<LaneRow> = JsonStatement::new(LOCK, &[Wanted { most, full_accounts: full }])?.load(conn).await?;
    let Some(now) = locked.iter().map(|lane| lane.now_ms).max() else { return Ok(Picked::default()) };
    // A clock that went back does not open a window anew.
    let window = |lane: &LaneRow| (now / lane.interval_ms).max(lane.window_no);
    let starts = |lane: &LaneRow| {
        let begun = if lane.window_no == window(lane) { lane.starts } else { 0 };
        lane.most_starts.map_or(i32::MAX, |most| (most - begun).max(0))
    };
    // What became free after `now` is taken later: a run does not begin before the one whose place it takes has ended.
    let items = locked.iter().map(|lane| Item { lane: &lane.id, starts: starts(lane), free: lane.free, most });
    let items: Vec<Item<'_>> = items.collect();
    let rows: Vec<PickRow> = JsonStatement::new(PICK, &items)?.load(conn).await?;
    let mut by_lane: HashMap<String, Vec<PickRow>> = HashMap::new();
    for row in rows {
        let of = by_lane.entry(row.lane.clone()).or_default();
        if i64::try_from(of.len()).is_ok_and(|taken| taken < row.free) {
            of.push(row);
        }
    }
    let mut lanes: Vec<_> =
        locked.iter().filter_map(|lane| Some((window(lane), by_lane.remove(&lane.id)?.into_iter()))).collect();
    let mut picked = Vec::new();
    while !lanes.is_empty() && i64::try_from(picked.len()).is_ok_and(|count| count < most) {
        lanes.retain_mut(|(window_no, rows)| {
            let next = rows.next();
            let more = next.is_some();
            picked.extend(next.map(|row| PickedRun {
                id: row.id,
                lane: row.lane,
                opens: row.opens,
                window_no: *window_no,
            }));
            more
        });
    }
    picked.truncate(usize::try_from(most).unwrap_or(usize::MAX));
    Ok(Picked { runs: picked, now: Some(Timestamp(now)) })
}

/// Notes in the lanes which of their runs are taken.
pub(crate) async fn served(conn: &mut Conn, taken: &[&PickedRun]) -> Result<()> {
    #[derive(Serialize)]
    struct Item<'a> {
        lane: &'a str,
        window_no: i64,
        starts: i32,
    }
    const SQL: &str = "WITH item AS (
            SELECT * FROM jsonb_to_recordset($1::jsonb) AS x(lane text, window_no bigint, starts int)
        )
        UPDATE lanes SET served = nextval('lane_turns'),
            starts = CASE WHEN lanes.window_no = item.window_no THEN lanes.starts ELSE 0 END + item.starts,
            window_no = item.window_no
        FROM item WHERE lanes.id = item.lane";
    let mut items: Vec<Item<'_>> = Vec::new();
    for run in taken {
        let starts = i32::from(run.opens);
        match items.iter_mut().find(|item| item.lane == run.lane) {
            Some(item) => item.starts += starts,
            None => items.push(Item { lane: &run.lane, window_no: run.window_no, starts }),
        }
    }
    if !items.is_empty() {
        JsonStatement::new(SQL, &items)?.execute(conn).await?;
    }
    Ok(())
}
