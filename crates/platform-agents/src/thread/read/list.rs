//! Which threads to list, and in which order.

use std::collections::HashMap;

use chrono::NaiveDate;
use diesel::{
    dsl::sql,
    pg::Pg,
    prelude::*,
    sql_types::{Bool, Date, Nullable, Text},
};
use diesel_async::RunQueryDsl;
use platform_access::Place;
use platform_core::{AccountId, Code, Error, Owner, Page, Period, Result, Timestamp};
use platform_db::Conn;
use platform_jobs::places;

use crate::schema::{agents, threads};
use crate::thread::{
    change::request::unknown_state,
    change::state::ThreadState,
    model::ThreadFilter,
    record::{Record, queued_reason},
    row::{PROJECT, ThreadRow, by_id},
    threads::KIND,
};

const MAX_TAGS: i64 = 1000;

/// A filter that was read.
pub(crate) struct Conditions {
    states: Vec<&'static str>,
    after: Option<Timestamp>,
    before: Option<Timestamp>,
    tags: Vec<String>,
    tenant: Option<String>,
    subtenant: Option<String>,
    agent: Option<String>,
    project: Option<String>,
    within: Option<Vec<String>>,
    order: (SortKey, bool),
}

#[derive(Clone, Copy)]
enum SortKey {
    Date,
    Duration,
    Tokens,
}

impl Conditions {
    /// `names`: names of the query in the order they were given: the first order counts.
    pub fn of(filter: ThreadFilter, names: &[String]) -> Result<Self> {
        let list = |text: Option<String>| -> Vec<String> {
            let text = text.unwrap_or_default();
            text.split(',').map(str::trim).filter(|part| !part.is_empty()).map(str::to_owned).collect()
        };
        let states = list(filter.state);
        let states = states
            .iter()
            .map(|text| ThreadState::parse(text).map(ThreadState::as_str).ok_or_else(|| unknown_state(text)))
            .collect::<Result<_>>()?;
        let after = moment("startDate", filter.start_date.as_deref(), false)?;
        let before = moment("endDate", filter.end_date.as_deref(), true)?;
        if after.zip(before).is_some_and(|(after, before)| after > before) {
            return Err(Error::new(Code::INVALID_TIME_RANGE, "startDate must not be after endDate."));
        }
        let orders = [
            ("dateOrder", SortKey::Date, filter.date_order),
            ("durationOrder", SortKey::Duration, filter.duration_order),
            ("tokensOrder", SortKey::Tokens, filter.tokens_order),
        ];
        let mut given = Vec::new();
        for (name, order, text) in orders {
            let Some(text) = text else { continue };
            let ascending = match text.to_lowercase().as_str() {
                "asc" => true,
                "desc" => false,
                _ => return Err(Error::invalid(name, "enum", format!("{name} must be asc or desc"))),
            };
            let place = names.iter().position(|given| given == name).unwrap_or(usize::MAX);
            given.push((place, (order, ascending)));
        }
        let order =
            given.into_iter().min_by_key(|(place, _)| *place).map_or((SortKey::Date, false), |(_, order)| order);
        Ok(Self {
            states,
            after,
            before,
            tags: list(filter.tags),
            tenant: filter.tenant_id,
            subtenant: filter.subtenant_id,
            agent: filter.agent_id,
            project: filter.project_id,
            within: filter.within,
            order,
        })
    }

    fn query<'a>(&'a self, account: &'a AccountId) -> threads::BoxedQuery<'a, Pg> {
        let mut of = threads::table.filter(threads::account_id.eq(account.as_str())).into_boxed();
        if !self.states.is_empty() {
            of = of.filter(threads::state.eq_any(&self.states));
        }
        if let Some(after) = self.after {
            of = of.filter(threads::created_ms.ge(after.0));
        }
        if let Some(before) = self.before {
            of = of.filter(threads::created_ms.le(before.0));
        }
        if !self.tags.is_empty() {
            of = of.filter(threads::tags.overlaps_with(&self.tags));
        }
        if let Some(tenant) = &self.tenant {
            of = of.filter(threads::tenant_id.eq(tenant));
        }
        if let Some(subtenant) = &self.subtenant {
            of = of.filter(threads::subtenant_id.eq(subtenant));
        }
        if let Some(agent) = &self.agent {
            of = of.filter(threads::agent_id.eq(agent));
        }
        if let Some(project) = &self.project {
            of = of.filter(threads::agent_id.eq_any(agents_of(account, project)));
        }
        if let Some(within) = &self.within {
            of = of.filter(threads::agent_id.ne_all(agents_beyond(account, within)));
        }
        of
    }
}

/// Agents of a project.
#[diesel::dsl::auto_type(no_type_alias)]
fn agents_of<'a>(account: &'a AccountId, project: &'a str) -> _ {
    let account: &'a str = account.as_str();
    agents::table.filter(agents::account_id.eq(account).and(agents::project_id.eq(project))).select(agents::id)
}

/// Agents of all projects but these.
#[diesel::dsl::auto_type(no_type_alias)]
fn agents_beyond<'a>(account: &'a AccountId, projects: &'a [String]) -> _ {
    let account: &'a str = account.as_str();
    agents::table
        .filter(agents::account_id.eq(account).and(agents::project_id.is_not_null()))
        .filter(agents::project_id.ne_all(projects).assume_not_null())
        .select(agents::id)
}

/// ISO 8601 or milliseconds; a day alone is the whole of it.
fn moment(name: &str, given: Option<&str>, is_end: bool) -> Result<Option<Timestamp>> {
    let Some(text) = given else { return Ok(None) };
    let day = |text: &str| {
        let end = if is_end { "T23:59:59.999Z" } else { "T00:00:00Z" };
        (text.len() == 10).then(|| Timestamp::from_iso(&format!("{text}{end}"))).flatten()
    };
    let read = text.parse().ok().map(Timestamp).or_else(|| Timestamp::from_iso(text)).or_else(|| day(text));
    let wrong = || Error::new(Code::INVALID_TIME_RANGE, format!("{name} must be ISO 8601 or epoch milliseconds."));
    read.map(Some).ok_or_else(wrong)
}

/// A page of threads, and how many there are in all.
pub(crate) async fn list(
    conn: &Conn,
    account: &AccountId,
    conditions: &Conditions,
    page: Page,
) -> Result<(Vec<Record>, i64)> {
    let (mut first, mut second) = (conn, conn);
    let of = conditions.query(account).limit(page.limit).offset(page.offset);
    let of = match conditions.order {
        (SortKey::Date, false) => of.order((threads::created_ms.desc(), threads::id.desc())),
        (SortKey::Date, true) => of.order((threads::created_ms.asc(), threads::id.asc())),
        (SortKey::Duration, false) => of.order((threads::duration_ms.desc(), threads::id.desc())),
        (SortKey::Duration, true) => of.order((threads::duration_ms.asc(), threads::id.asc())),
        (SortKey::Tokens, false) => of.order((threads::total_tokens.desc(), threads::id.desc())),
        (SortKey::Tokens, true) => of.order((threads::total_tokens.asc(), threads::id.asc())),
    };
    let rows = of.select(ThreadRow::as_select());
    let total = conditions.query(account).count();
    let (rows, total) = futures_util::try_join!(rows.load(&mut first), total.get_result(&mut second))?;
    Ok((rows.into_iter().map(Record::read).collect::<Result<_>>()?, total))
}

/// Tags in use, sorted; `agent`: on the threads of one agent; `within`: as in [`ThreadFilter`].
pub(crate) async fn tags(
    conn: &Conn,
    account: &AccountId,
    agent: Option<&str>,
    within: Option<&[String]>,
) -> Result<Vec<String>> {
    let mut conn = conn;
    let mut of = threads::table
        .filter(threads::account_id.eq(account.as_str()).and(sql::<Bool>("tags <> '{}'")))
        .select(sql::<Text>("unnest(tags) AS tag"))
        .distinct()
        .order(sql::<Text>("tag"))
        .limit(MAX_TAGS)
        .into_boxed();
    if let Some(agent) = agent {
        of = of.filter(threads::agent_id.eq(agent));
    }
    if let Some(within) = within {
        of = of.filter(threads::agent_id.ne_all(agents_beyond(account, within)));
    }
    Ok(of.load(&mut conn).await?)
}

/// Which of these agents are archived.
async fn archived(conn: &Conn, account: &AccountId, agents: &[String]) -> Result<HashMap<String, bool>> {
    let mut conn = conn;
    let rows: Vec<(String, bool)> = agents::table
        .filter(agents::account_id.eq(account.as_str()).and(agents::id.eq_any(agents)))
        .select((agents::id, agents::archived))
        .load(&mut conn)
        .await?;
    Ok(rows.into_iter().collect())
}

/// Why those threads that are queued wait, and at which place, by their ids.
pub(crate) async fn queue_places(
    conn: &Conn,
    account: &AccountId,
    records: &[Record],
) -> Result<HashMap<String, (&'static str, i64)>> {
    let queued = records.iter().filter(|record| record.state == ThreadState::Queued);
    let (subjects, agents): (Vec<String>, Vec<String>) =
        queued.clone().map(|record| (record.id().to_owned(), record.agent_id().to_owned())).unzip();
    if subjects.is_empty() {
        return Ok(HashMap::new());
    }
    let waits = places(conn, account, KIND, &subjects).await?;
    let archived = archived(conn, account, &agents).await?;
    let place = |record: &Record| {
        let place = *waits.get(record.id())?;
        let archived = archived.get(record.agent_id()).copied().unwrap_or(false);
        Some((record.id().to_owned(), (queued_reason(place, archived), place.position)))
    };
    Ok(queued.filter_map(place).collect())
}

/// How many threads of each agent a tenant has.
pub(crate) async fn count_by_agent(
    conn: &Conn,
    account: &AccountId,
    tenant: &str,
    within: Option<&[String]>,
) -> Result<Vec<(String, i64)>> {
    let mut conn = conn;
    let is_within = threads::agent_id.ne_all(agents_beyond(account, within.unwrap_or_default()));
    Ok(threads::table
        .filter(threads::account_id.eq(account.as_str()).and(threads::tenant_id.eq(tenant)))
        .filter(is_within.or(within.is_none().into_sql::<Bool>()))
        .group_by(threads::agent_id)
        .order(threads::agent_id)
        .select((threads::agent_id, diesel::dsl::count_star()))
        .load(&mut conn)
        .await?)
}

/// How many threads were made in a project, by day or month.
pub(crate) async fn count_in(
    conn: &Conn,
    account: &AccountId,
    project: &str,
    tenant: Option<&str>,
    period: Period,
) -> Result<Vec<(NaiveDate, i64)>> {
    let (mut conn, moments) = (conn, period.moments());
    let begins = sql::<Date>(&period.beginning("created_ms"));
    Ok(threads::table
        .filter(threads::account_id.eq(account.as_str()).and(threads::agent_id.eq_any(agents_of(account, project))))
        .filter(threads::created_ms.ge(moments.start.0).and(threads::created_ms.lt(moments.end.0)))
        .filter(threads::tenant_id.eq(tenant).assume_not_null().or(tenant.is_none().into_sql::<Bool>()))
        .group_by(begins.clone())
        .select((begins, diesel::dsl::count_star()))
        .load(&mut conn)
        .await?)
}

/// Where a thread is, to whom it belongs and who started it.
pub(crate) async fn place(conn: &Conn, account: &AccountId, id: &str) -> Result<Option<Place>> {
    let mut conn = conn;
    let columns = (sql::<Nullable<Text>>(PROJECT), threads::tenant_id, threads::subtenant_id, threads::user_uid);
    let row = by_id(account.as_str(), id).select(columns).first(&mut conn).await.optional()?;
    Ok(row.map(|(project, tenant_id, subtenant_id, started_by)| Place {
        project,
        owner: Some(Owner { tenant_id, subtenant_id }),
        started_by: Some(started_by),
    }))
}

/// The agent of a thread.
pub(crate) async fn agent(conn: &Conn, account: &AccountId, id: &str) -> Result<Option<String>> {
    let mut conn = conn;
    Ok(by_id(account.as_str(), id).select(threads::agent_id).first(&mut conn).await.optional()?)
}

/// Whether a session's tenant has a thread of the agent.
pub(crate) async fn is_known_to(conn: &Conn, account: &AccountId, agent: &str, tenant: &str) -> Result<bool> {
    let mut conn = conn;
    let of_tenant = threads::table
        .filter(threads::account_id.eq(account.as_str()).and(threads::agent_id.eq(agent)))
        .filter(threads::tenant_id.eq(tenant));
    let found: Option<String> = of_tenant.select(threads::id).first(&mut conn).await.optional()?;
    Ok(found.is_some())
}
