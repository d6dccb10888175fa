use std::mem::take;

use diesel::{
    dsl::sql,
    pg::Pg,
    prelude::*,
    sql_types::{Array, BigInt, SmallInt, Text},
};
use diesel_async::RunQueryDsl;
use platform_core::{AccountId, Error, Page, Result, Timestamp};
use platform_db::{Conn, JsonStatement};
use serde::Serialize;
use serde_json::Value;

use crate::{
    catalog::ALL,
    model::{Delivery, DeliveryFilter, DeliveryStatus, Webhook, WebhookSettings},
    schema::{webhook_deliveries, webhook_secrets, webhooks},
    secrets::SealedSecrets,
};

#[derive(Queryable, Selectable, Insertable, AsChangeset)]
#[diesel(table_name = webhooks, treat_none_as_null = true)]
pub(crate) struct WebhookRow {
    pub account_id: String,
    pub id: String,
    pub url: String,
    pub events: Vec<String>,
    pub enabled: bool,
    pub description: String,
    pub project_id: Option<String>,
    pub tenant_id: Option<String>,
    pub include_content: bool,
    pub disabled_reason: Option<String>,
    pub secret: String,
    pub previous_secret: Option<String>,
    pub rotated_ms: Option<i64>,
    pub older_secrets: Value,
    pub failing_since_ms: Option<i64>,
    pub created_ms: i64,
    pub edited_ms: i64,
}

impl WebhookRow {
    /// Whether it is told of events of a kind.
    pub fn hears(&self, kind: &str) -> bool {
        self.events.iter().any(|name| name == ALL || name == kind)
    }

    pub fn settings(&self) -> WebhookSettings {
        WebhookSettings {
            url: self.url.clone(),
            events: self.events.clone(),
            enabled: self.enabled,
            description: self.description.clone(),
            project_id: self.project_id.clone(),
            tenant_id: self.tenant_id.clone(),
            include_content: self.include_content,
        }
    }

    pub fn set(&mut self, settings: WebhookSettings, now: Timestamp) {
        let WebhookSettings { url, events, enabled, description, project_id, tenant_id, include_content } = settings;
        (self.url, self.events, self.enabled, self.description) = (url, events, enabled, description);
        (self.project_id, self.tenant_id, self.include_content) = (project_id, tenant_id, include_content);
        self.edited_ms = now.0;
    }

    pub fn secrets(self) -> SealedSecrets {
        SealedSecrets {
            present: self.secret,
            previous: self.previous_secret.zip(self.rotated_ms),
            older: self.older_secrets,
        }
    }

    pub fn rotate(&mut self, sealed: String, now: Timestamp) -> Result<()> {
        let secrets = SealedSecrets {
            present: take(&mut self.secret),
            previous: self.previous_secret.take().zip(self.rotated_ms),
            older: take(&mut self.older_secrets),
        };
        let rotated = secrets.rotate(sealed, now)?;
        (self.secret, self.older_secrets) = (rotated.present, rotated.older);
        (self.previous_secret, self.rotated_ms) = rotated.previous.unzip();
        self.edited_ms = now.0;
        Ok(())
    }

    pub fn shown(&self) -> Webhook {
        Webhook {
            id: self.id.clone(),
            settings: self.settings(),
            disabled_reason: self.disabled_reason.clone(),
            creation_timestamp_ms: Timestamp(self.created_ms),
            last_edit_timestamp_ms: Timestamp(self.edited_ms),
        }
    }
}

#[diesel::dsl::auto_type(no_type_alias)]
fn by_id<'a>(account: &'a str, id: &'a str) -> _ {
    webhooks::table.filter(webhooks::account_id.eq(account)).filter(webhooks::id.eq(id))
}

pub(crate) async fn insert(conn: &mut Conn, row: &WebhookRow) -> Result<()> {
    diesel::insert_into(webhooks::table).values(row).execute(conn).await?;
    Ok(())
}

/// How many an account has; nobody adds one meanwhile.
pub(crate) async fn count_locked(conn: &mut Conn, account: &AccountId) -> Result<i64> {
    let lock = sql::<diesel::sql_types::Bool>("pg_advisory_xact_lock(hashtextextended(")
        .bind::<Text, _>(format!("webhooks of {}", account.as_str()))
        .sql(", 0)) IS NULL");
    diesel::select(lock).execute(conn).await?;
    Ok(webhooks::table.filter(webhooks::account_id.eq(account.as_str())).count().get_result(conn).await?)
}

pub(crate) async fn find(conn: &Conn, account: &AccountId, id: &str) -> Result<Option<WebhookRow>> {
    let mut conn = conn;
    Ok(by_id(account.as_str(), id).select(WebhookRow::as_select()).first(&mut conn).await.optional()?)
}

pub(crate) async fn lock(conn: &mut Conn, account: &AccountId, id: &str) -> Result<Option<WebhookRow>> {
    let row = by_id(account.as_str(), id).for_update().select(WebhookRow::as_select());
    Ok(row.first(conn).await.optional()?)
}

pub(crate) async fn update(conn: &mut Conn, account: &AccountId, row: &WebhookRow) -> Result<()> {
    diesel::update(by_id(account.as_str(), &row.id)).set(row).execute(conn).await?;
    Ok(())
}

/// Deletes a webhook that is locked.
pub(crate) async fn delete(conn: &mut Conn, account: &AccountId, id: &str) -> Result<()> {
    lock_deliveries(conn, account, id).await?;
    diesel::delete(by_id(account.as_str(), id)).execute(conn).await?;
    Ok(())
}

/// Locks the deliveries of a webhook that is locked: several are locked in the order of their ids, whoever does it.
async fn lock_deliveries(conn: &mut Conn, account: &AccountId, webhook: &str) -> Result<()> {
    let all = "SELECT count(*) FROM (SELECT FROM webhook_deliveries WHERE account_id = $1 AND webhook_id = $2
        ORDER BY id FOR UPDATE) AS locked";
    let all = diesel::sql_query(all).bind::<Text, _>(account.as_str()).bind::<Text, _>(webhook);
    all.execute(conn).await?;
    Ok(())
}

pub(crate) async fn list(conn: &Conn, account: &AccountId, page: Page) -> Result<(Vec<WebhookRow>, i64)> {
    let (mut first, mut second) = (conn, conn);
    let of = || webhooks::table.filter(webhooks::account_id.eq(account.as_str()));
    let rows = of().order((webhooks::created_ms.desc(), webhooks::id.desc())).limit(page.limit).offset(page.offset);
    let rows = rows.select(WebhookRow::as_select());
    let total = of().count();
    Ok(futures_util::try_join!(rows.load(&mut first), total.get_result(&mut second))?)
}

/// Those of an account that are enabled.
pub(crate) async fn enabled(conn: &Conn, account: &AccountId) -> Result<Vec<WebhookRow>> {
    let mut conn = conn;
    let rows = webhooks::table.filter(webhooks::account_id.eq(account.as_str())).filter(webhooks::enabled);
    Ok(rows.select(WebhookRow::as_select()).load(&mut conn).await?)
}

#[derive(Queryable, Selectable, AsChangeset)]
#[diesel(table_name = webhook_secrets, treat_none_as_null = true)]
struct SecretsRow {
    secret: String,
    previous_secret: Option<String>,
    rotated_ms: Option<i64>,
    older_secrets: Value,
}

impl SecretsRow {
    fn sealed(self) -> SealedSecrets {
        SealedSecrets {
            present: self.secret,
            previous: self.previous_secret.zip(self.rotated_ms),
            older: self.older_secrets,
        }
    }
}

pub(crate) async fn default_secrets(conn: &Conn, account: &AccountId) -> Result<Option<SealedSecrets>> {
    let mut conn = conn;
    let row = webhook_secrets::table.find(account.as_str());
    let row: Option<SecretsRow> = row.select(SecretsRow::as_select()).first(&mut conn).await.optional()?;
    Ok(row.map(SecretsRow::sealed))
}

/// Stores a secret where there is none.
pub(crate) async fn make_default_secret(conn: &mut Conn, account: &AccountId, sealed: &str) -> Result<()> {
    let row = (webhook_secrets::account_id.eq(account.as_str()), webhook_secrets::secret.eq(sealed));
    diesel::insert_into(webhook_secrets::table).values(row).on_conflict_do_nothing().execute(conn).await?;
    Ok(())
}

/// Puts a secret in the place of the present one, if there is any.
pub(crate) async fn rotate_default_secret(
    conn: &mut Conn,
    account: &AccountId,
    sealed: String,
    now: Timestamp,
) -> Result<()> {
    make_default_secret(conn, account, &sealed).await?;
    let row = webhook_secrets::table.find(account.as_str());
    let kept: SecretsRow = row.select(SecretsRow::as_select()).for_update().first(conn).await?;
    if kept.secret != sealed {
        let SealedSecrets { present, previous, older } = kept.sealed().rotate(sealed, now)?;
        let (previous_secret, rotated_ms) = previous.unzip();
        let changed = SecretsRow { secret: present, previous_secret, rotated_ms, older_secrets: older };
        diesel::update(row).set(changed).execute(conn).await?;
    }
    Ok(())
}

/// A delivery to store.
#[derive(Insertable)]
#[diesel(table_name = webhook_deliveries)]
pub(crate) struct NewDelivery {
    pub account_id: String,
    pub id: String,
    pub webhook_id: Option<String>,
    pub url: Option<String>,
    pub lane: String,
    pub event_id: String,
    pub event_type: String,
    pub body: String,
    pub depth: i16,
    pub status: &'static str,
    pub next_ms: i64,
    pub forced: bool,
    pub created_ms: i64,
}

pub(crate) async fn insert_deliveries(conn: &mut Conn, rows: Vec<NewDelivery>) -> Result<()> {
    if !rows.is_empty() {
        diesel::insert_into(webhook_deliveries::table).values(rows).on_conflict_do_nothing().execute(conn).await?;
    }
    Ok(())
}

#[derive(Queryable, Selectable)]
#[diesel(table_name = webhook_deliveries)]
pub(crate) struct DeliveryRow {
    id: String,
    event_id: String,
    event_type: String,
    status: String,
    attempts: Value,
    next_ms: Option<i64>,
}

impl DeliveryRow {
    pub fn shown(self) -> Result<Delivery> {
        Ok(Delivery {
            id: self.id,
            event_id: self.event_id,
            event_type: self.event_type,
            status: match self.status.as_str() {
                "succeeded" => DeliveryStatus::Succeeded,
                "failed" => DeliveryStatus::Failed,
                _ => DeliveryStatus::Pending,
            },
            attempts: serde_json::from_value(self.attempts).map_err(Error::internal)?,
            next_attempt_ms: self.next_ms,
        })
    }
}

type Deliveries<'a> = webhook_deliveries::BoxedQuery<'a, Pg>;

fn of_webhook<'a>(account: &'a AccountId, webhook: &'a str, filter: DeliveryFilter) -> Deliveries<'a> {
    let of = webhook_deliveries::table
        .filter(webhook_deliveries::account_id.eq(account.as_str()))
        .filter(webhook_deliveries::webhook_id.eq(webhook))
        .into_boxed();
    match filter.status {
        Some(status) => of.filter(webhook_deliveries::status.eq(status.as_str())),
        None => of,
    }
}

pub(crate) async fn list_deliveries(
    conn: &Conn,
    account: &AccountId,
    webhook: &str,
    filter: DeliveryFilter,
    page: Page,
) -> Result<(Vec<DeliveryRow>, i64)> {
    let (mut first, mut second) = (conn, conn);
    let rows = of_webhook(account, webhook, filter)
        .order((webhook_deliveries::created_ms.desc(), webhook_deliveries::id.desc()))
        .limit(page.limit)
        .offset(page.offset)
        .select(DeliveryRow::as_select());
    let total = of_webhook(account, webhook, filter).count();
    Ok(futures_util::try_join!(rows.load(&mut first), total.get_result(&mut second))?)
}

/// Has a delivery begin again, now; `None` when there is none.
pub(crate) async fn redeliver(
    conn: &mut Conn,
    account: &AccountId,
    webhook: &str,
    id: &str,
    now: Timestamp,
) -> Result<Option<DeliveryRow>> {
    let row = webhook_deliveries::table
        .filter(webhook_deliveries::account_id.eq(account.as_str()))
        .filter(webhook_deliveries::webhook_id.eq(webhook).and(webhook_deliveries::id.eq(id)));
    let again = (
        webhook_deliveries::status.eq("pending"),
        webhook_deliveries::tries.eq(0),
        webhook_deliveries::next_ms.eq(now.0),
        webhook_deliveries::forced.eq(true),
    );
    Ok(diesel::update(row).set(again).returning(DeliveryRow::as_returning()).get_result(conn).await.optional()?)
}

/// A delivery that is to be tried, and to whom.
#[derive(QueryableByName)]
pub(crate) struct Claimed {
    #[diesel(sql_type = Text)]
    pub account_id: String,
    #[diesel(sql_type = Text)]
    pub id: String,
    #[diesel(sql_type = diesel::sql_types::Nullable<Text>)]
    pub webhook_id: Option<String>,
    #[diesel(sql_type = Text)]
    pub url: String,
    #[diesel(sql_type = Text)]
    pub lane: String,
    #[diesel(sql_type = Text)]
    pub event_id: String,
    #[diesel(sql_type = Text)]
    pub body: String,
    #[diesel(sql_type = SmallInt)]
    pub depth: i16,
    #[diesel(sql_type = SmallInt)]
    pub tries: i16,
    /// It is sent to a webhook that is disabled, too.
    #[diesel(sql_type = diesel::sql_types::Bool)]
    pub forced: bool,
}

/// How much of what is due a process takes.
#[derive(Serialize)]
pub(crate) struct ClaimRoom {
    pub now: i64,
    /// Until when nobody else takes it.
    pub until: i64,
    /// Deliveries together.
    pub most: usize,
    /// Of a lane that is not named below.
    pub share: usize,
    /// Of the lanes that have some under way.
    pub lanes: Value,
    /// Of an account that is not named below.
    pub share_of_account: usize,
    /// Of the accounts that have some under way.
    pub accounts: Value,
}

/// Takes what is due, the same share of each account and of each of its lanes; lanes are found by jumping from one to the
/// next in the index, and served in no order, so that none is always the last.
const CLAIM: &str = "WITH RECURSIVE room AS (
        SELECT * FROM jsonb_to_recordset($1::jsonb) AS r(
            now bigint, until bigint, most int, share int, lanes jsonb, share_of_account int, accounts jsonb)
    ), lane(name, account) AS (
        (SELECT lane, account_id FROM webhook_deliveries WHERE next_ms IS NOT NULL ORDER BY lane LIMIT 1)
        UNION ALL
        SELECT next.lane, next.account_id FROM lane CROSS JOIN LATERAL (
            SELECT d.lane, d.account_id FROM webhook_deliveries d WHERE d.next_ms IS NOT NULL AND d.lane > lane.name
            ORDER BY d.lane LIMIT 1) next
    ), due AS (
        SELECT d.id, lane.account, row_number() OVER (PARTITION BY lane.name ORDER BY d.next_ms) AS place
        FROM lane CROSS JOIN LATERAL (
            SELECT d.id, d.next_ms FROM webhook_deliveries d
            WHERE d.lane = lane.name AND d.next_ms <= (SELECT now FROM room)
            ORDER BY d.next_ms LIMIT least(
                coalesce(((SELECT lanes FROM room) ->> lane.name)::int, (SELECT share FROM room)),
                ((SELECT accounts FROM room) ->> lane.account)::int)
            FOR UPDATE OF d SKIP LOCKED
        ) d
    ), turn AS (
        SELECT id, account, row_number() OVER (PARTITION BY account ORDER BY place, random()) AS n FROM due
    ), picked AS (
        SELECT id FROM turn, room WHERE turn.n <= coalesce((room.accounts ->> turn.account)::int, room.share_of_account)
        ORDER BY random() LIMIT (SELECT most FROM room)
    ), taken AS (
        UPDATE webhook_deliveries d SET next_ms = room.until FROM picked, room WHERE d.id = picked.id RETURNING d.*
    )
    SELECT d.account_id, d.id, d.webhook_id, coalesce(w.url, d.url, '') AS url, d.lane, d.event_id, d.body, d.depth,
        d.tries, d.forced
    FROM taken d LEFT JOIN webhooks w ON w.account_id = d.account_id AND w.id = d.webhook_id";

pub(crate) async fn claim(conn: &mut Conn, room: &ClaimRoom) -> Result<Vec<Claimed>> {
    Ok(JsonStatement::new(CLAIM, std::slice::from_ref(room))?.load(conn).await?)
}

/// Makes due again what was taken with these leases, in this order.
pub(crate) async fn give_back(conn: &mut Conn, ids: &[String], leases: &[i64], now: Timestamp) -> Result<()> {
    let update = "UPDATE webhook_deliveries d SET next_ms = $3 + taken.place \
        FROM unnest($1::text[], $2::bigint[]) WITH ORDINALITY AS taken (id, lease, place) \
        WHERE d.id = taken.id AND d.next_ms = taken.lease";
    let update = diesel::sql_query(update).bind::<Array<Text>, _>(ids).bind::<Array<BigInt>, _>(leases);
    update.bind::<BigInt, _>(now.0).execute(conn).await?;
    Ok(())
}

/// What an attempt came to.
#[derive(Debug, Serialize)]
pub(crate) struct Tried {
    pub id: String,
    pub account: String,
    pub webhook: Option<String>,
    /// Until when nobody else took it.
    pub lease: i64,
    pub attempt: Value,
    pub status: &'static str,
    pub next_ms: Option<i64>,
    /// A webhook that gives nothing but failures for so long is disabled.
    pub patience_ms: i64,
    /// Why its webhook is to be disabled.
    pub disables: Option<&'static str>,
    pub now: i64,
}

/// Notes attempts; of a delivery that another took meanwhile nothing is noted. A webhook that has given nothing but
/// failures for long, or is gone, is disabled.
const NOTE: &str = "WITH tried AS (
        SELECT * FROM jsonb_to_recordset($1::jsonb) AS t(id text, account text, webhook text, lease bigint,
            attempt jsonb, status text, next_ms bigint, patience_ms bigint, disables text, now bigint)
    ), noted AS (
        UPDATE webhook_deliveries d SET status = tried.status,
            attempts = jsonb_path_query_array(d.attempts || tried.attempt, '$[last - 49 to last]'),
            tries = d.tries + 1, next_ms = CASE WHEN d.next_ms IS NOT NULL THEN tried.next_ms END
        FROM tried WHERE d.id = tried.id AND (d.next_ms = tried.lease OR d.next_ms IS NULL AND d.status = 'pending')
    ), receiver AS (
        SELECT account, webhook, bool_or(status = 'succeeded') AS succeeded, max(disables) AS disables, max(now) AS now,
            max(patience_ms) AS patience_ms
        FROM tried WHERE webhook IS NOT NULL GROUP BY account, webhook
    )
    UPDATE webhooks w SET
        failing_since_ms = CASE WHEN r.succeeded THEN NULL ELSE coalesce(w.failing_since_ms, r.now) END,
        enabled = w.enabled AND NOT (r.disables IS NOT NULL
            OR NOT r.succeeded AND coalesce(r.now - w.failing_since_ms >= r.patience_ms, false)),
        disabled_reason = CASE WHEN NOT w.enabled THEN w.disabled_reason WHEN r.disables IS NOT NULL THEN r.disables
            WHEN NOT r.succeeded AND r.now - w.failing_since_ms >= r.patience_ms
                THEN format('Nothing but failures for %s.', justify_hours(make_interval(secs => r.patience_ms / 1000))) END
    FROM receiver r WHERE w.account_id = r.account AND w.id = r.webhook
        AND (r.disables IS NOT NULL OR r.succeeded AND w.failing_since_ms IS NOT NULL
            OR NOT r.succeeded AND (w.failing_since_ms IS NULL OR r.now - w.failing_since_ms >= r.patience_ms))
    RETURNING w.account_id, w.id, w.enabled";

#[derive(QueryableByName)]
pub(crate) struct Judged {
    #[diesel(sql_type = Text)]
    pub account_id: String,
    #[diesel(sql_type = Text)]
    pub id: String,
    #[diesel(sql_type = diesel::sql_types::Bool)]
    pub enabled: bool,
}

/// Notes what attempts came to; the webhooks of which that changed something.
pub(crate) async fn note(conn: &mut Conn, tried: &[Tried]) -> Result<Vec<Judged>> {
    Ok(JsonStatement::new(NOTE, tried)?.load(conn).await?)
}

/// What waits for a webhook that is disabled waits for nothing else; enabled again, it is due. In the transaction that
/// has the webhook locked.
pub(crate) async fn hold(conn: &mut Conn, account: &AccountId, webhook: &str, due: Option<Timestamp>) -> Result<()> {
    lock_deliveries(conn, account, webhook).await?;
    let waiting = webhook_deliveries::table
        .filter(webhook_deliveries::account_id.eq(account.as_str()))
        .filter(webhook_deliveries::webhook_id.eq(webhook).and(webhook_deliveries::status.eq("pending")));
    match due {
        Some(now) => {
            let held = waiting.filter(webhook_deliveries::next_ms.is_null());
            diesel::update(held).set(webhook_deliveries::next_ms.eq(now.0)).execute(conn).await?;
        }
        None => {
            let due = waiting.filter(webhook_deliveries::forced.eq(false));
            diesel::update(due).set(webhook_deliveries::next_ms.eq(None::<i64>)).execute(conn).await?;
        }
    }
    Ok(())
}

/// Forgets deliveries from before a moment.
pub(crate) async fn purge(conn: &mut Conn, before: Timestamp) -> Result<()> {
    // What somebody has locked goes next time, if it is still there.
    let old = "DELETE FROM webhook_deliveries WHERE id IN (
        SELECT id FROM webhook_deliveries WHERE created_ms < $1 FOR UPDATE SKIP LOCKED)";
    diesel::sql_query(old).bind::<diesel::sql_types::BigInt, _>(before.0).execute(conn).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use platform_testing::TestDb;

    use super::*;

    #[tokio::test]
    async fn receivers_of_an_account_share_its_room_whoever_has_waited_longest() {
        let db = TestDb::new().await.connect();
        let mut conn = db.conn().await.expect("a connection");
        let waiting = |lane: &'static str, since: i64| {
            (0..100).map(move |n| NewDelivery {
                account_id: "a".to_owned(),
                id: format!("{lane}-{n}"),
                webhook_id: None,
                url: Some("https://example.com".to_owned()),
                lane: lane.to_owned(),
                event_id: format!("{n}"),
                event_type: "chat.completed".to_owned(),
                body: "{}".to_owned(),
                depth: 0,
                status: "pending",
                next_ms: since + n,
                forced: false,
                created_ms: since,
            })
        };
        let rows = waiting("old", 0).chain(waiting("middle", 1000)).chain(waiting("new", 2000)).collect();
        insert_deliveries(&mut conn, rows).await.expect("stored");
        let mut room = ClaimRoom {
            now: 5000,
            until: 6000,
            most: 256,
            share: 64,
            lanes: serde_json::json!({"new": 7}),
            share_of_account: 128,
            accounts: serde_json::json!({"a": 60}),
        };
        let claimed = claim(&mut conn, &room).await.expect("claimed");
        let of = |lane: &str| claimed.iter().filter(|one| one.lane == lane).count();
        assert_eq!([of("old"), of("middle"), of("new")].iter().sum::<usize>(), 60);
        assert!(of("new") == 7 && of("old").abs_diff(of("middle")) <= 1, "{} {}", of("old"), of("middle"));
        room.accounts = serde_json::json!({"a": 0});
        assert_eq!(claim(&mut conn, &room).await.expect("claimed").len(), 0, "there is no room");
    }
}
