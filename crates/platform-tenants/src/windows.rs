//! What happens to windows by themselves: they end, calls that never came back are let go, limits are told of.

use std::{sync::Arc, time::Duration};

use diesel::{
    QueryableByName,
    sql_types::{BigInt, Integer, Nullable, Text},
};
use diesel_async::{AsyncConnection, RunQueryDsl, SimpleAsyncConnection};
use platform_core::{AccountId, Error, Result};
use platform_events::{Event, publish_in};
use serde_json::json;
use tracing::warn;

use crate::{
    PgTenantService,
    rule::{Effective, Metric},
    usage::percent,
};

const EVERY: Duration = Duration::from_secs(5);

/// Writes windows that have ended to the history, each once whoever does it.
const CAPTURE: &str = "WITH closed AS (
        UPDATE usage_counters SET captured = true WHERE ctid = ANY (ARRAY(SELECT ctid FROM usage_counters
            WHERE NOT captured AND ends_ms <= extract(epoch FROM usage_clock()) * 1000 FOR UPDATE SKIP LOCKED)) RETURNING *
    )
    INSERT INTO usage_history (account_id, tenant_id, subtenant_id, metric, window_unit, window_every, window_key,
        starts_ms, ends_ms, consumed, exempt, external, rule_limit, tier_id, captured_ms)
    SELECT account_id, tenant_id, subtenant_id, metric, window_unit, window_every, window_key,
        usage_start(window_unit, window_every, window_key), ends_ms, consumed, exempt, external, rule_limit, tier_id,
        (extract(epoch FROM usage_clock()) * 1000)::bigint
    FROM closed WHERE consumed > 0 OR exempt > 0 ON CONFLICT DO NOTHING";

/// What this process has reserved is in use.
const RENEW: &str = "UPDATE usage_reservations SET seen_at = now() WHERE id IN (
        SELECT id FROM usage_reservations WHERE starts_with(id, $1) FOR NO KEY UPDATE SKIP LOCKED)";

/// Locks the usage of tenants for whom was reserved what is released next, as whoever settles does.
const LOCK_RELEASED: &str = "SELECT lock_usage(account_id, tenant_id) FROM (
        SELECT DISTINCT h.account_id, h.tenant_id
        FROM usage_reservations, jsonb_to_recordset(holds) AS h(account_id text, tenant_id text)
        WHERE made_at < usage_clock() - interval '15 minutes' OR seen_at < now() - $1 * interval '1 ms'
        ORDER BY 1, 2
    ) AS released";

/// Gives back what was reserved for calls that never came back, and by processes that are silent for so many milliseconds.
const RELEASE: &str = "WITH old AS (
        DELETE FROM usage_reservations
        WHERE made_at < usage_clock() - interval '15 minutes' OR seen_at < now() - $1 * interval '1 ms'
        RETURNING holds
    ), held AS (
        SELECT account_id, tenant_id, subtenant_id, metric, window_unit, window_every, window_key, sum(amount) AS amount
        FROM old, jsonb_to_recordset(holds) AS h(account_id text, tenant_id text, subtenant_id text, metric text,
            window_unit text, window_every integer, window_key bigint, amount bigint)
        GROUP BY 1, 2, 3, 4, 5, 6, 7
    )
    UPDATE usage_counters c SET reserved = greatest(0, c.reserved - held.amount) FROM held
    WHERE c.account_id = held.account_id AND c.tenant_id = held.tenant_id AND c.subtenant_id = held.subtenant_id
        AND c.metric = held.metric AND c.window_unit = held.window_unit AND c.window_every = held.window_every
        AND c.window_key = held.window_key";

/// Forgets counters of windows that are in the history for long, and calls that nobody settles again.
const PURGE: &str = "DELETE FROM usage_settled WHERE settled_at < now() - interval '15 minutes';
    DELETE FROM usage_counters
        WHERE captured AND reserved = 0 AND ends_ms < (extract(epoch FROM usage_clock()) - 172800) * 1000;
    DELETE FROM usage_crossings WHERE told AND ends_ms < (extract(epoch FROM usage_clock()) - 172800) * 1000";

#[derive(QueryableByName)]
struct Crossing {
    #[diesel(sql_type = Text)]
    account_id: String,
    #[diesel(sql_type = Text)]
    tenant_id: String,
    #[diesel(sql_type = Text)]
    subtenant_id: String,
    #[diesel(sql_type = Text)]
    metric: String,
    #[diesel(sql_type = Text)]
    window_unit: String,
    #[diesel(sql_type = Integer)]
    window_every: i32,
    #[diesel(sql_type = Integer)]
    percent: i32,
    #[diesel(sql_type = BigInt)]
    consumed: i64,
    #[diesel(sql_type = BigInt)]
    rule_limit: i64,
    #[diesel(sql_type = Nullable<Text>)]
    tier_id: Option<String>,
    #[diesel(sql_type = BigInt)]
    ends_ms: i64,
}

impl PgTenantService {
    /// Keeps windows for as long as the process lives.
    pub async fn keep(self: Arc<Self>) {
        loop {
            if let Err(error) = self.keep_once().await {
                warn!(%error, "Windows of usage could not be looked after; trying again shortly.");
            }
            tokio::time::sleep(EVERY).await;
        }
    }

    /// Keeps what this process has reserved, and gives back what others did that are gone, well within the lease of a run: what
    /// a run reserved must not stand in the way of the same run that was taken over.
    pub async fn keep_reservations(self: Arc<Self>, lease: Duration) {
        loop {
            tokio::time::sleep(lease / 12).await;
            let keeping = async {
                diesel::sql_query(RENEW)
                    .bind::<Text, _>(self.quotas.owner())
                    .execute(&mut *self.db.conn().await?)
                    .await?;
                self.release_reservations(lease / 4).await
            };
            if let Err(error) = keeping.await {
                warn!(%error, "Reservations of usage could not be looked after; trying again shortly.");
            }
        }
    }

    /// Gives back what was reserved by processes that are silent for so long.
    pub async fn release_reservations(&self, silence: Duration) -> Result<()> {
        let silence = i64::try_from(silence.as_millis()).unwrap_or(i64::MAX);
        let mut conn = self.db.conn().await?;
        let releasing = conn.transaction::<_, Error, _>(async |conn| {
            diesel::sql_query(LOCK_RELEASED).bind::<BigInt, _>(silence).execute(conn).await?;
            Ok(diesel::sql_query(RELEASE).bind::<BigInt, _>(silence).execute(conn).await?)
        });
        releasing.await.map(|_| ())
    }

    async fn keep_once(&self) -> Result<()> {
        let mut conn = self.db.conn().await?;
        diesel::sql_query(CAPTURE).execute(&mut conn).await?;
        let telling = conn.transaction::<_, Error, _>(async |conn| {
            let crossed = "UPDATE usage_crossings SET told = true WHERE NOT told
                RETURNING account_id, tenant_id, subtenant_id, metric, window_unit, window_every, percent, consumed,
                    rule_limit, tier_id, ends_ms";
            let crossed: Vec<Crossing> = diesel::sql_query(crossed).load(conn).await?;
            let accounts: Vec<Option<AccountId>> =
                crossed.iter().map(|of| AccountId::parse(&of.account_id).ok()).collect();
            let mut events = Vec::new();
            for (of, account) in crossed.iter().zip(&accounts) {
                let Some(account) = account else { continue };
                let kind = if of.percent >= 100 { "tenant.limit_reached" } else { "tenant.limit_warning" };
                let subtenant = Some(of.subtenant_id.as_str()).filter(|subtenant| !subtenant.is_empty());
                let standing = self.quotas.standing(account, &of.tenant_id, subtenant).await?;
                let data = json!({"tenantId": of.tenant_id, "rule": of.rule(&standing.rules)});
                events.push(Event { tenant: Some(&of.tenant_id), ..Event::new(account, kind, data) });
            }
            publish_in(conn, events, self.clock.now()).await
        });
        telling.await?;
        conn.batch_execute(PURGE).await?;
        Ok(())
    }
}

impl Crossing {
    /// The rule as it is shown (contract 10 §4).
    fn rule(&self, rules: &[Effective]) -> serde_json::Value {
        let metric = Metric::of(&self.metric);
        let in_tier = self.tier_id.is_some();
        let subtenant = Some(&self.subtenant_id).filter(|subtenant| !subtenant.is_empty());
        let counts_so = |of: &&Effective| {
            of.rule.metric == metric
                && of.rule.window_unit.as_str() == self.window_unit
                && of.rule.window_every == self.window_every
                && of.subtenant == self.subtenant_id
        };
        // A rule that was taken away meanwhile has no id.
        let rule_id = rules.iter().find(counts_so).map(|of| of.rule.rule_id.as_str()).unwrap_or_default();
        let mut rule = json!({"ruleId": rule_id, "subtenantId": subtenant,
            "scope": if subtenant.is_some() { "subtenant" } else { "tenant" }, "metric": self.metric,
            "windowUnit": self.window_unit, "windowEvery": self.window_every, "limit": metric.shown(self.rule_limit),
            "current": metric.shown(self.consumed), "percent": percent(self.consumed, self.rule_limit).min(100.0),
            "resetsAt": self.ends_ms, "origin": if in_tier { "tier" } else { "adhoc" }});
        if let Some(tier) = &self.tier_id {
            rule["tierId"] = tier.clone().into();
        }
        rule
    }
}
