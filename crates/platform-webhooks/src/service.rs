use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use diesel_async::AsyncConnection;
use platform_access::Kind;
use platform_core::{AccountId, Clock, Code, Error, Id, Object, Page, Result, Timestamp, millis, overlay};
use platform_db::{Bus, Capacity, Conn, Db, Idempotency, InvalidatedCache};
use platform_egress::Egress;
use platform_events::Audience;
use platform_vault::{MASK, Secret, Vault};
use serde_json::Value;
use tokio::sync::Notify;

use crate::{
    catalog::{ALL, EVENTS, TEST, sample},
    code,
    model::{
        DefaultSecret, Delivery, DeliveryFilter, DeliveryPage, NewDefaultSecret, TestDelivery, Webhook, WebhookPage,
        WebhookSettings, WebhookWithSecret,
    },
    repository::{self, WebhookRow},
    route::{ThreadAddresses, made_up},
    secrets::{OpenSecrets, place},
    signature::new_secret,
};

/// Webhooks.
pub const WEBHOOK: Kind = Kind::of_account("webhook");

/// Accounts whose webhooks are known at once.
const MAX_KNOWN: u64 = 10_000;
const TOPIC: &str = "webhooks";
const SECRETS_TOPIC: &str = "webhook-secrets";

/// Webhooks of an account. `WEBHOOK_NOT_FOUND` comes from all that name one.
#[async_trait]
pub trait WebhookService: Send + Sync {
    /// Makes a webhook; its secret is shown this once.
    async fn create(
        &self,
        account: &AccountId,
        settings: WebhookSettings,
        once: Option<&Idempotency>,
    ) -> Result<WebhookWithSecret>;
    /// All of the account, newest first.
    async fn list(&self, account: &AccountId, page: Page) -> Result<WebhookPage>;
    /// The webhook of this id. `WEBHOOK_NOT_FOUND`.
    async fn get(&self, account: &AccountId, id: &Id<Webhook>) -> Result<Webhook>;
    /// Changes the given fields; enabling forgets why it was disabled.
    async fn update(&self, account: &AccountId, id: &Id<Webhook>, patch: Object) -> Result<Webhook>;
    /// Deletes one with what is on its way.
    async fn delete(&self, account: &AccountId, id: &Id<Webhook>) -> Result<()>;
    /// Gives it a new secret; for a day messages are signed with both.
    async fn rotate(
        &self,
        account: &AccountId,
        id: &Id<Webhook>,
        once: Option<&Idempotency>,
    ) -> Result<WebhookWithSecret>;
    /// Sends an event that is made up.
    async fn test(
        &self,
        account: &AccountId,
        id: &Id<Webhook>,
        test: TestDelivery,
        once: Option<&Idempotency>,
    ) -> Result<Delivery>;
    /// What was sent, newest first.
    async fn deliveries(
        &self,
        account: &AccountId,
        id: &Id<Webhook>,
        filter: DeliveryFilter,
        page: Page,
    ) -> Result<DeliveryPage>;
    /// Begins a delivery again, with the same event id. `DELIVERY_NOT_FOUND` when there is none.
    async fn redeliver(
        &self,
        account: &AccountId,
        id: &Id<Webhook>,
        delivery: &Id<Delivery>,
        once: Option<&Idempotency>,
    ) -> Result<Delivery>;
    /// Whether there is a secret for events of single threads and agents.
    async fn default_secret(&self, account: &AccountId) -> Result<DefaultSecret>;
    /// Makes a new one; for a day messages are signed with both.
    async fn rotate_default(&self, account: &AccountId, once: Option<&Idempotency>) -> Result<NewDefaultSecret>;
}

/// What webhooks need of others.
pub struct WebhookNeeds {
    /// Where they are kept.
    pub db: Db,
    /// Whom changes are told.
    pub bus: Bus,
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// Seals secrets.
    pub vault: Arc<Vault>,
    /// The way out.
    pub egress: Egress,
    /// Whom threads and agents name themselves.
    pub threads: Arc<dyn ThreadAddresses>,
    /// How deliveries are made.
    pub rules: DeliveryRules,
    /// Webhooks of an account; 0 = no bound.
    pub most: usize,
}

/// How deliveries are made (contract 00 §14, 17).
#[derive(Debug, Clone)]
pub struct DeliveryRules {
    /// Waits before each attempt, the first among them.
    pub waits: Vec<Duration>,
    /// A webhook that gives nothing but failures for so long is disabled.
    pub disable_after: Duration,
    /// Deliveries are kept for so long.
    pub keep: Duration,
}

/// Webhooks on PostgreSQL.
pub struct PgWebhooks {
    pub(crate) db: Db,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) vault: Arc<Vault>,
    pub(crate) egress: Egress,
    pub(crate) threads: Arc<dyn ThreadAddresses>,
    pub(crate) rules: DeliveryRules,
    most: usize,
    /// Enabled webhooks by account.
    pub(crate) known: Arc<InvalidatedCache<AccountId, Vec<WebhookRow>>>,
    /// Open secrets by account and webhook.
    secrets: Arc<InvalidatedCache<(AccountId, Option<String>), OpenSecrets>>,
    /// There is something to deliver.
    pub(crate) waiting: Notify,
}

impl PgWebhooks {
    /// Nothing is sent before [`PgWebhooks::keep`].
    pub fn new(needs: WebhookNeeds) -> Self {
        let WebhookNeeds { db, bus, clock, vault, egress, threads, rules, most } = needs;
        let known = InvalidatedCache::new(&bus, TOPIC, Capacity::Entries(MAX_KNOWN));
        let secrets = InvalidatedCache::new(&bus, SECRETS_TOPIC, Capacity::Entries(MAX_KNOWN));
        // Deliveries have shares of their own.
        Self {
            db,
            clock,
            vault,
            egress: egress.unplaced(),
            threads,
            rules,
            most,
            known,
            secrets,
            waiting: Notify::new(),
        }
    }

    /// Enabled webhooks of an account.
    pub(crate) async fn listeners(&self, account: &AccountId) -> Result<Arc<Vec<WebhookRow>>> {
        let load = async { Ok(Some(repository::enabled(self.db.read().await?.get(), account).await?)) };
        Ok(self.known.get_or_load(account, load).await?.unwrap_or_default())
    }

    /// The secrets that messages of a webhook, or of single threads and agents, are signed with now.
    pub(crate) async fn secrets(&self, account: &AccountId, webhook: Option<&str>) -> Result<Vec<Secret>> {
        let load = async {
            let conn = self.db.read().await?;
            let sealed = match webhook {
                Some(id) => repository::find(conn.get(), account, id).await?.map(WebhookRow::secrets),
                None => repository::default_secrets(conn.get(), account).await?,
            };
            sealed.map(|sealed| sealed.open(&self.vault, account, webhook)).transpose()
        };
        let key = (account.clone(), webhook.map(str::to_owned));
        let known = self.secrets.get_or_load(&key, load).await?;
        Ok(known.map(|known| known.at(self.clock.now())).unwrap_or_default())
    }

    /// Makes the secret for events of single threads and agents, when there is none.
    pub(crate) async fn make_default_secret(&self, account: &AccountId) -> Result<()> {
        if !self.secrets(account, None).await?.is_empty() {
            return Ok(());
        }
        let sealed = self.vault.seal(&place(account, None), new_secret().expose());
        repository::make_default_secret(&mut *self.db.conn().await?, account, &sealed).await
    }

    async fn check_url(&self, url: &str) -> Result<()> {
        self.egress.check(url).await.map(drop).map_err(|error| error.into_error("url"))
    }

    async fn require(&self, account: &AccountId, id: &str) -> Result<WebhookRow> {
        repository::find(self.db.read().await?.get(), account, id).await?.ok_or_else(|| not_found(id))
    }

    /// Changes a webhook that is locked.
    async fn change(
        &self,
        account: &AccountId,
        id: &str,
        once: Option<&Idempotency>,
        change: impl FnOnce(&mut WebhookRow, Timestamp) -> Result<()> + Send,
    ) -> Result<WebhookRow> {
        let now = self.clock.now();
        let mut conn = self.db.conn().await?;
        let changing = conn.transaction::<_, Error, _>(async |conn| {
            let mut row = repository::lock(conn, account, id).await?.ok_or_else(|| not_found(id))?;
            let was_enabled = row.enabled;
            change(&mut row, now)?;
            repository::update(conn, account, &row).await?;
            if row.enabled != was_enabled {
                repository::hold(conn, account, id, row.enabled.then_some(now)).await?;
            }
            let masked = WebhookWithSecret { webhook: row.shown(), secret: MASK.to_owned() };
            Idempotency::store_if(once, conn, 200, &masked).await?;
            Ok(row)
        });
        let row = changing.await?;
        drop(conn);
        self.known.changed(account.as_str()).await?;
        self.secrets.changed(id).await?;
        self.waiting.notify_one();
        Ok(row)
    }

    /// Forgets deliveries that are as old as that.
    pub async fn purge(&self, conn: &mut Conn, now: Timestamp) -> Result<()> {
        repository::purge(conn, Timestamp(now.0.saturating_sub(millis(self.rules.keep)))).await
    }
}

fn not_found(id: &str) -> Error {
    Error::not_found(code::WEBHOOK_NOT_FOUND, "webhook", id)
}

#[async_trait]
impl Audience for PgWebhooks {
    async fn hears(&self, account: &AccountId, kind: &str) -> Result<bool> {
        Ok(self.listeners(account).await?.iter().any(|webhook| webhook.hears(kind)))
    }

    async fn hears_content(&self, account: &AccountId, kind: &str) -> Result<bool> {
        let listeners = self.listeners(account).await?;
        Ok(listeners.iter().any(|webhook| webhook.include_content && webhook.hears(kind)))
    }
}

#[async_trait]
impl WebhookService for PgWebhooks {
    async fn create(
        &self,
        account: &AccountId,
        mut settings: WebhookSettings,
        once: Option<&Idempotency>,
    ) -> Result<WebhookWithSecret> {
        settings.check()?;
        self.check_url(&settings.url).await?;
        let now = self.clock.now();
        let (id, secret) = (String::from(Id::<Webhook>::generate()), new_secret());
        let mut row = WebhookRow {
            account_id: account.as_str().to_owned(),
            secret: self.vault.seal(&place(account, Some(&id)), secret.expose()),
            id,
            url: String::new(),
            events: Vec::new(),
            enabled: true,
            description: String::new(),
            project_id: None,
            tenant_id: None,
            include_content: false,
            disabled_reason: None,
            previous_secret: None,
            rotated_ms: None,
            older_secrets: Value::Array(Vec::new()),
            failing_since_ms: None,
            created_ms: now.0,
            edited_ms: now.0,
        };
        row.set(settings, now);
        let shown = WebhookWithSecret { webhook: row.shown(), secret: secret.expose().to_owned() };
        let mut conn = self.db.conn().await?;
        let creating = conn.transaction::<_, Error, _>(async |conn| {
            let most = self.most;
            let made = usize::try_from(repository::count_locked(conn, account).await?).unwrap_or(usize::MAX);
            if most > 0 && made >= most {
                let message = format!("An account has at most {most} webhooks; delete one first.");
                return Err(Error::new(Code::CONFLICT, message));
            }
            repository::insert(conn, &row).await?;
            let masked = WebhookWithSecret { secret: MASK.to_owned(), ..shown.clone() };
            Idempotency::store_if(once, conn, 201, &masked).await?;
            Ok(())
        });
        creating.await?;
        drop(conn);
        self.known.changed(account.as_str()).await?;
        Ok(shown)
    }

    async fn list(&self, account: &AccountId, page: Page) -> Result<WebhookPage> {
        let (rows, total) = repository::list(&*self.db.fair_conn(account).await?, account, page).await?;
        let items = rows.iter().map(WebhookRow::shown).collect();
        Ok(WebhookPage { items, total, offset: page.offset, limit: page.limit })
    }

    async fn get(&self, account: &AccountId, id: &Id<Webhook>) -> Result<Webhook> {
        Ok(self.require(account, id).await?.shown())
    }

    async fn update(&self, account: &AccountId, id: &Id<Webhook>, patch: Object) -> Result<Webhook> {
        // Fields are judged before it matters what they are applied to.
        let known = WebhookSettings {
            url: "https://named".to_owned(),
            events: vec![ALL.to_owned()],
            ..WebhookSettings::default()
        };
        let mut given = overlay(&known, patch.clone())?;
        given.check()?;
        let before = self.require(account, id).await?;
        if patch.contains_key("url") && given.url != before.url {
            self.check_url(&given.url).await?;
        }
        let row = self.change(account, id, None, |row, now| {
            let mut settings = overlay(&row.settings(), patch)?;
            settings.check()?;
            if settings.enabled && !row.enabled {
                (row.disabled_reason, row.failing_since_ms) = (None, None);
            }
            row.set(settings, now);
            Ok(())
        });
        Ok(row.await?.shown())
    }

    async fn delete(&self, account: &AccountId, id: &Id<Webhook>) -> Result<()> {
        let mut conn = self.db.conn().await?;
        let deleting = conn.transaction::<_, Error, _>(async |conn| {
            repository::lock(conn, account, id).await?.ok_or_else(|| not_found(id))?;
            repository::delete(conn, account, id).await
        });
        deleting.await?;
        drop(conn);
        self.known.changed(account.as_str()).await?;
        self.secrets.changed(id).await
    }

    async fn rotate(
        &self,
        account: &AccountId,
        id: &Id<Webhook>,
        once: Option<&Idempotency>,
    ) -> Result<WebhookWithSecret> {
        let secret = new_secret();
        let sealed = self.vault.seal(&place(account, Some(id)), secret.expose());
        let row = self.change(account, id, once, |row, now| row.rotate(sealed, now));
        Ok(WebhookWithSecret { webhook: row.await?.shown(), secret: secret.expose().to_owned() })
    }

    async fn test(
        &self,
        account: &AccountId,
        id: &Id<Webhook>,
        test: TestDelivery,
        once: Option<&Idempotency>,
    ) -> Result<Delivery> {
        let event = test.event_type.unwrap_or_else(|| TEST.to_owned()).to_ascii_lowercase();
        let event = event.as_str();
        if !EVENTS.contains(&event) {
            let message = format!("eventType must be one of {}", EVENTS.join(", "));
            return Err(Error::invalid("eventType", "enum", message));
        }
        self.require(account, id).await?;
        let delivery = made_up(account, id, event, sample(event, id), self.clock.now());
        let shown = Delivery {
            id: delivery.id.clone(),
            event_id: delivery.event_id.clone(),
            event_type: delivery.event_type.clone(),
            status: crate::model::DeliveryStatus::Pending,
            attempts: Vec::new(),
            next_attempt_ms: Some(delivery.next_ms),
        };
        let mut conn = self.db.conn().await?;
        let inserting = conn.transaction::<_, Error, _>(async |conn| {
            repository::insert_deliveries(conn, vec![delivery]).await?;
            Idempotency::store_if(once, conn, 202, &shown).await
        });
        inserting.await?;
        drop(conn);
        self.waiting.notify_one();
        Ok(shown)
    }

    async fn deliveries(
        &self,
        account: &AccountId,
        id: &Id<Webhook>,
        filter: DeliveryFilter,
        page: Page,
    ) -> Result<DeliveryPage> {
        self.require(account, id).await?;
        let conn = self.db.fair_conn(account).await?;
        let (rows, total) = repository::list_deliveries(&conn, account, id, filter, page).await?;
        let items = rows.into_iter().map(repository::DeliveryRow::shown).collect::<Result<_>>()?;
        Ok(DeliveryPage { items, total, offset: page.offset, limit: page.limit })
    }

    async fn redeliver(
        &self,
        account: &AccountId,
        id: &Id<Webhook>,
        delivery: &Id<Delivery>,
        once: Option<&Idempotency>,
    ) -> Result<Delivery> {
        self.require(account, id).await?;
        let mut conn = self.db.conn().await?;
        let beginning = conn.transaction::<_, Error, _>(async |conn| {
            let row = repository::redeliver(conn, account, id, delivery, self.clock.now()).await?;
            let row = row.ok_or_else(|| Error::not_found(code::DELIVERY_NOT_FOUND, "delivery", delivery))?;
            let shown = row.shown()?;
            Idempotency::store_if(once, conn, 202, &shown).await?;
            Ok(shown)
        });
        let shown = beginning.await?;
        drop(conn);
        self.waiting.notify_one();
        Ok(shown)
    }

    async fn default_secret(&self, account: &AccountId) -> Result<DefaultSecret> {
        let last4 = match self.secrets(account, None).await?.first() {
            Some(secret) => {
                let text = secret.expose();
                Some(text[text.len().saturating_sub(4)..].to_owned())
            }
            None => None,
        };
        Ok(DefaultSecret { configured: last4.is_some(), last4 })
    }

    async fn rotate_default(&self, account: &AccountId, once: Option<&Idempotency>) -> Result<NewDefaultSecret> {
        let secret = new_secret();
        let sealed = self.vault.seal(&place(account, None), secret.expose());
        let mut conn = self.db.conn().await?;
        let rotating = conn.transaction::<_, Error, _>(async |conn| {
            repository::rotate_default_secret(conn, account, sealed, self.clock.now()).await?;
            Idempotency::store_if(once, conn, 200, &NewDefaultSecret { secret: MASK.to_owned() }).await
        });
        rotating.await?;
        drop(conn);
        self.secrets.changed(account.as_str()).await?;
        Ok(NewDefaultSecret { secret: secret.expose().to_owned() })
    }
}
