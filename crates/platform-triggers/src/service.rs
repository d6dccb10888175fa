use std::{
    sync::{Arc, atomic::AtomicUsize},
    time::Duration,
};

use async_trait::async_trait;
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use diesel_async::AsyncConnection;
use platform_access::{Kind, Place, RecordRef, Referrer, Resources, use_in};
use platform_agents::{AgentService, ThreadService, code::INVALID_CRON, time_problem};
use platform_chat::{AssistantService, ChatService};
use platform_core::{
    AccountId, Caller, Checks, Clock, Code, Error, FairSemaphore, FieldLimits, Id, Object, Page, Result, Timestamp,
    heap_bytes, millis, overlay, sha256_hex,
};
use platform_db::{Bus, Capacity, Conn, Db, GroupWriter, Idempotency, InvalidatedCache};
use platform_events::publish_in;
use platform_integrations::{
    ConnectionListener, Connector, EventKind, PackEventType, PgIntegrations, SignatureRule, sample_of,
};
use platform_jobs::{Jobs, When, cancel_in, enqueue_in};
use platform_runtime::Budget;
use platform_tenants::{TenantInfo, TenantService};
use platform_toolservers::{PgToolServerService, TOOL_SERVER, hold_in};
use platform_vault::{MASK, Secret, SecretLocation, Vault, random_bytes};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json, value::RawValue};

use crate::{
    code,
    hook::{HOUR, acceptor},
    model::{
        Delivery, DeliveryFilter, DeliveryPage, NewTest, NewTrigger, Target, Trigger, TriggerFilter, TriggerPage,
        TriggerPatch, TriggerState,
    },
    poll::{POLL, SCHEDULE, next, timezone},
    process::auto_paused,
    repository::{self, Accepted, NewEvent, TriggerRow},
    subscribe::{keep_in, subscribe, unsubscribe_in},
};

/// Triggers.
pub const TRIGGER: Kind = Kind::placed("trigger");

const TOPIC: &str = "triggers";
const MAX_KNOWN: u64 = 10_000;
/// Events that are carried out at once, in all and of one account: each is in memory meanwhile.
const UNDERWAY: (usize, usize) = (8, 2);
/// Bytes of the triggers that are remembered at once.
const MAX_OPEN: u64 = 64 << 20;

/// Triggers of an account. `TRIGGER_NOT_FOUND` comes from all that name one.
#[async_trait]
pub trait TriggerService: Send + Sync {
    /// Makes a trigger; the app is told where to call. `TOOL_SERVER_NOT_FOUND`, `NOT_AN_INTEGRATION`,
    /// `EVENT_TYPE_NOT_FOUND`, `AGENT_NOT_FOUND`, `ASSISTANT_NOT_FOUND`, `CONFLICT`, `UPSTREAM_ERROR`.
    async fn create(&self, caller: &Caller, new: NewTrigger, once: Option<&Idempotency>) -> Result<Trigger>;
    /// Those that the filter keeps, newest first.
    async fn list(&self, account: &AccountId, filter: TriggerFilter, page: Page) -> Result<TriggerPage>;
    /// The trigger of this id. `TRIGGER_NOT_FOUND`.
    async fn get(&self, account: &AccountId, id: &Id<Trigger>) -> Result<Trigger>;
    /// Changes the given fields; enabling forgets what it paused for.
    async fn update(&self, account: &AccountId, id: &Id<Trigger>, patch: Object) -> Result<Trigger>;
    /// Deletes one; its subscription at the app ends.
    async fn delete(&self, account: &AccountId, id: &Id<Trigger>) -> Result<()>;
    /// What came to it, newest first.
    async fn events(
        &self,
        account: &AccountId,
        id: &Id<Trigger>,
        filter: DeliveryFilter,
        page: Page,
    ) -> Result<DeliveryPage>;
    /// Carries out an event that is made up, or given.
    async fn test(
        &self,
        account: &AccountId,
        id: &Id<Trigger>,
        test: NewTest,
        once: Option<&Idempotency>,
    ) -> Result<Delivery>;
    /// Carries out an event again, by the id of a delivery or its own. `EVENT_NOT_FOUND`.
    async fn replay(
        &self,
        account: &AccountId,
        id: &Id<Trigger>,
        event: &Id<Delivery>,
        once: Option<&Idempotency>,
    ) -> Result<Delivery>;
    /// What an agent or assistant that is gone was started by ends.
    async fn end_of(&self, account: &AccountId, target: RecordRef<'_>) -> Result<()>;
}

/// What triggers need of others.
pub struct TriggerNeeds {
    /// Where they are kept.
    pub db: Db,
    /// Whom changes are told.
    pub bus: Bus,
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// Seals addresses and secrets.
    pub vault: Arc<Vault>,
    /// Runs.
    pub jobs: Arc<Jobs>,
    /// Apps and connections.
    pub integrations: Arc<PgIntegrations>,
    /// Tool servers that were made from apps.
    pub tool_servers: Arc<PgToolServerService>,
    /// Agents.
    pub agents: Arc<dyn AgentService>,
    /// What agents are started with.
    pub threads: Arc<dyn ThreadService>,
    /// Assistants.
    pub assistants: Arc<dyn AssistantService>,
    /// What assistants are written with.
    pub chat: Arc<dyn ChatService>,
    /// Who tenants are.
    pub tenants: Arc<dyn TenantService>,
    /// What is left of their quotas.
    pub budget: Arc<dyn Budget>,
    /// Sizes of fields.
    pub limits: FieldLimits,
    /// Where this server is.
    pub public_url: String,
    /// How events are taken.
    pub rules: TriggerRules,
}

/// How events are taken and carried out (contract 00 §14, 09).
#[derive(Debug, Clone)]
pub struct TriggerRules {
    /// Waits before each try of a start, the first among them.
    pub waits: Vec<Duration>,
    /// The id of an event is unique for so long.
    pub duplicate_window: Duration,
    /// Apps that say nothing else are polled so often.
    pub poll_interval: Duration,
    /// Events are kept for so long.
    pub keep: Duration,
    /// Bytes of events that an account takes within an hour, in each process; 0 = no bound.
    pub bytes_an_hour: usize,
}

/// A trigger, open.
pub(crate) struct OpenTrigger {
    pub row: TriggerRow,
    /// What stands in its address.
    pub token: Secret,
    /// With what its subscription signs.
    pub secret: Secret,
}

impl OpenTrigger {
    /// Of memory.
    fn bytes(&self) -> usize {
        let TriggerRow { config, filter, cursor, message_template, chat_uid_template, .. } = &self.row;
        let values = [Some(config), filter.as_ref(), cursor.as_ref()];
        message_template.len() + chat_uid_template.len() + values.into_iter().flatten().map(heap_bytes).sum::<usize>()
    }
}

/// Triggers on PostgreSQL.
pub struct PgTriggers {
    pub(crate) db: Db,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) vault: Arc<Vault>,
    pub(crate) jobs: Arc<Jobs>,
    pub(crate) integrations: Arc<PgIntegrations>,
    tool_servers: Arc<PgToolServerService>,
    agents: Arc<dyn AgentService>,
    pub(crate) threads: Arc<dyn ThreadService>,
    assistants: Arc<dyn AssistantService>,
    pub(crate) chat: Arc<dyn ChatService>,
    tenants: Arc<dyn TenantService>,
    pub(crate) budget: Arc<dyn Budget>,
    pub(crate) limits: FieldLimits,
    public_url: String,
    pub(crate) rules: TriggerRules,
    pub(crate) acceptor: GroupWriter<NewEvent, Accepted>,
    /// Bytes of the events that an account was sent within an hour.
    pub(crate) sent: moka::sync::Cache<AccountId, Arc<AtomicUsize>>,
    /// Events that are carried out.
    pub(crate) underway: FairSemaphore,
    /// By the hash of its address.
    known: Arc<InvalidatedCache<String, OpenTrigger>>,
}

/// What is sealed of a trigger.
#[derive(Serialize, Deserialize)]
struct Sealed {
    token: String,
    secret: String,
    /// The `secret` of its config.
    #[serde(default)]
    of_config: Option<String>,
}
pub(crate) fn not_found(id: &str) -> Error {
    Error::not_found(code::TRIGGER_NOT_FOUND, "trigger", id)
}

pub(crate) fn no_address() -> Error {
    Error::new(code::TRIGGER_NOT_FOUND, "No trigger has this address: it was replaced, or its trigger is gone.")
}

/// 32 bytes that nobody can guess.
fn token() -> Secret {
    URL_SAFE_NO_PAD.encode(random_bytes().as_slice()).into()
}

fn place<'a>(account: &'a AccountId, id: &'a str) -> SecretLocation<'a> {
    SecretLocation { account, table: "triggers", column: "secrets", row: id }
}

impl PgTriggers {
    /// Nothing is carried out before its works are.
    pub fn new(needs: TriggerNeeds) -> Self {
        let TriggerNeeds {
            db,
            bus,
            clock,
            vault,
            jobs,
            integrations,
            tool_servers,
            agents,
            threads,
            assistants,
            chat,
            tenants,
            budget,
            limits,
            public_url,
            rules,
        } = needs;
        Self {
            known: InvalidatedCache::new(&bus, TOPIC, Capacity::Bytes(MAX_OPEN, OpenTrigger::bytes)),
            acceptor: acceptor(&db),
            sent: moka::sync::Cache::builder().max_capacity(MAX_KNOWN).time_to_live(HOUR).build(),
            underway: FairSemaphore::new(UNDERWAY.0, UNDERWAY.1),
            db,
            clock,
            vault,
            jobs,
            integrations,
            tool_servers,
            agents,
            threads,
            assistants,
            chat,
            tenants,
            budget,
            limits,
            public_url,
            rules,
        }
    }

    fn open(&self, mut row: TriggerRow) -> Result<OpenTrigger> {
        let opened = self.vault.open(&place(&row.account(), &row.id), &row.secrets)?;
        let Sealed { token, secret, of_config } = serde_json::from_str(opened.expose()).map_err(Error::internal)?;
        if let Some(of_config) = of_config {
            row.config["secret"] = of_config.into();
        }
        Ok(OpenTrigger { row, token: token.into(), secret: secret.into() })
    }

    /// Seals what is secret of a trigger, and leaves a mask in its config for what is so there.
    fn seal(&self, row: &mut TriggerRow, event: &PackEventType, token: &Secret, secret: &Secret) -> Result<()> {
        let is_signed = event.signature.as_ref().is_some_and(signs_by_config);
        let in_config = row.config.get_mut("secret").filter(|value| is_signed && value.is_string());
        let of_config = in_config.map(|value| std::mem::replace(value, MASK.into()));
        let of_config = of_config.as_ref().and_then(Value::as_str).map(str::to_owned);
        let sealed = Sealed { token: token.expose().to_owned(), secret: secret.expose().to_owned(), of_config };
        let text = Secret::from(serde_json::to_string(&sealed).map_err(Error::internal)?);
        row.secrets = self.vault.seal(&place(&row.account(), &row.id), text.expose());
        Ok(())
    }

    /// The trigger of an address. `TRIGGER_NOT_FOUND`.
    pub(crate) async fn by_token(&self, token: &str) -> Result<Arc<OpenTrigger>> {
        let hash = sha256_hex(token);
        let load = async {
            let row = repository::by_token(self.db.read().await?.get(), &hash).await?;
            row.map(|row| self.open(row)).transpose()
        };
        self.known.get_or_load(&hash, load).await?.ok_or_else(no_address)
    }

    /// Addresses in a configuration are judged when they are given, not when they are asked.
    async fn check_addresses(&self, event: &PackEventType, config: &Object) -> Result<()> {
        for (name, schema) in event.config["properties"].as_object().into_iter().flatten() {
            if let (Some("uri"), Some(url)) = (schema["format"].as_str(), config.get(name).and_then(Value::as_str)) {
                self.integrations.check_address(&format!("triggerConfig.{name}"), url).await?;
            }
        }
        Ok(())
    }

    /// Whether an address is one that we gave out. `TRIGGER_NOT_FOUND`.
    pub async fn knows(&self, token: &str) -> Result<()> {
        self.by_token(token).await.map(drop)
    }

    pub(crate) async fn open_of(&self, account: &AccountId, id: &str) -> Result<Option<OpenTrigger>> {
        let row = repository::find(self.db.read().await?.get(), account, id).await?;
        row.map(|row| self.open(row)).transpose()
    }

    /// Says, after the commit, that a trigger changed.
    pub(crate) async fn forget(&self, id: &str) -> Result<()> {
        self.known.changed(id).await
    }

    async fn require(&self, account: &AccountId, id: &str) -> Result<TriggerRow> {
        repository::find(self.db.read().await?.get(), account, id).await?.ok_or_else(|| not_found(id))
    }

    fn webhook_url(&self, token: &Secret) -> String {
        format!("{}/v1/hooks/{}", self.public_url.trim_end_matches('/'), token.expose())
    }

    /// Switches off a trigger whose app is gone.
    async fn switch_off(&self, account: &AccountId, id: &str) -> Result<Trigger> {
        let mut conn = self.db.conn().await?;
        let switching = conn.transaction::<_, Error, _>(async |conn| {
            let mut row = repository::lock(conn, account, id).await?.ok_or_else(|| not_found(id))?;
            TriggerState::Disabled.as_str().clone_into(&mut row.state);
            (row.auto_paused_ms, row.auto_pause_reason, row.edited_ms) = (None, None, self.clock.now().0);
            repository::update(conn, account, &row).await?;
            Ok(row)
        });
        let row = switching.await?;
        drop(conn);
        self.forget(id).await?;
        self.shown(row).await
    }

    /// A trigger as it is sent.
    async fn shown(&self, row: TriggerRow) -> Result<Trigger> {
        let account = row.account();
        let name = if row.target_type == "agent" {
            self.agents.get(&account, &Id::named(&row.target_id)).await.map(|agent| agent.settings.name)
        } else {
            self.assistants.get(&account, &row.target_id).await.map(|assistant| assistant.settings().name.clone())
        };
        // Whoever was started may be gone.
        let name = name.unwrap_or_default();
        let connector = self.integrations.connector(&row.app).ok();
        let event = connector.as_ref().and_then(|connector| connector.pack.event_type(&row.slug));
        let by_hand = event.is_some_and(|event| event.r#type == EventKind::Webhook && event.subscribe.is_none());
        let webhook_url = if by_hand { Some(self.webhook_url(&self.open(row.clone())?.token)) } else { None };
        let state = TriggerState::of(&row.state);
        Ok(Trigger {
            same_id: row.id.clone(),
            id: row.id,
            name: row.name,
            app: row.app,
            trigger_slug: row.slug,
            tool_server_id: row.tool_server_id,
            target_type: row.target_type,
            target: Target { id: row.target_id.clone(), name },
            target_id: row.target_id,
            enabled: state != TriggerState::Disabled,
            state,
            new_threads_state: row.new_threads_state,
            rate_limit_per_minute: row.rate_limit,
            message_template: row.message_template,
            chat_uid_template: row.chat_uid_template,
            trigger_config: row.config,
            filter: row.filter,
            tenant_id: row.tenant_id,
            subtenant_id: row.subtenant_id,
            project_id: row.project_id,
            event_count: row.event_count,
            last_event_at: row.last_event_ms,
            auto_paused_at: row.auto_paused_ms,
            auto_pause_reason: row.auto_pause_reason,
            last_error: row.last_error,
            webhook_url,
            creation_timestamp_ms: Timestamp(row.created_ms),
            last_edit_timestamp_ms: Timestamp(row.edited_ms),
        })
    }

    /// What runs by itself begins, in the transaction that stores the trigger.
    async fn begin_in(&self, conn: &mut Conn, row: &TriggerRow, event: &PackEventType) -> Result<()> {
        let (account, now) = (row.account(), self.clock.now());
        match event.r#type {
            EventKind::Webhook => {}
            EventKind::Poll => {
                cancel_in(conn, &account, POLL, &row.id).await?;
                enqueue_in(conn, &account, POLL, &row.id, Value::Null, When::ByClock(Duration::ZERO)).await?;
            }
            EventKind::Schedule => {
                cancel_in(conn, &account, SCHEDULE, &row.id).await?;
                if let Some(next) = next(&row.config, now) {
                    let when = When::ByClock(next.since(now));
                    enqueue_in(conn, &account, SCHEDULE, &row.id, json!({"at": next}), when).await?;
                }
            }
        }
        Ok(())
    }

    /// Has what begins at once begin, and what begins soon be looked for in time.
    fn announce(&self, row: &TriggerRow, event: &PackEventType) {
        match event.r#type {
            EventKind::Webhook => {}
            EventKind::Poll => self.jobs.announce(),
            EventKind::Schedule => {
                let now = self.clock.now();
                let wait = next(&row.config, now).map(|next| next.since(now));
                if let Some(wait) = wait.filter(|wait| *wait < Duration::from_mins(2)) {
                    self.jobs.announce_after(wait);
                }
            }
        }
    }

    /// Forgets what is old.
    pub async fn purge(&self, conn: &mut Conn, now: Timestamp) -> Result<()> {
        let before = |age: Duration| Timestamp(now.0.saturating_sub(millis(age)));
        repository::purge(conn, before(self.rules.keep), before(self.rules.duplicate_window)).await
    }
}

/// Whether events are signed with the `secret` of the config.
fn signs_by_config(rule: &SignatureRule) -> bool {
    rule.secret == "${config.secret}"
}

/// Puts the secret in the place of a mask that came back. A mask of nothing is an error.
fn unmask(event: &PackEventType, patch: &mut TriggerPatch, before: &Value) -> Result<()> {
    let given = patch.trigger_config.get_mut("secret").filter(|given| *given == MASK);
    if let Some(given) = given.filter(|_| event.signature.as_ref().is_some_and(signs_by_config)) {
        let missing = "triggerConfig.secret is a mask, and there is no secret behind it yet: send the secret";
        let secret = before.get("secret").ok_or_else(|| Error::invalid("triggerConfig.secret", "format", missing))?;
        given.clone_from(secret);
    }
    Ok(())
}

/// Whether a trigger says what its event type wants to be told.
fn check_config(connector: &Connector, event: &PackEventType, patch: &TriggerPatch) -> Result<()> {
    let config = Value::Object(patch.trigger_config.clone());
    let mut checks = Checks::default();
    for (path, problem) in connector.config_problems(event, &config) {
        let path = if path.is_empty() { "triggerConfig".to_owned() } else { format!("triggerConfig.{path}") };
        checks.issue(&path, "format", format!("{path}: {problem}"));
    }
    checks.finish()?;
    if event.r#type == EventKind::Schedule {
        let expression = config["cronExpression"].as_str().unwrap_or_default();
        if let Some((field, problem)) = time_problem(expression, timezone(&config)) {
            return Err(Error::new(INVALID_CRON, problem).with("field", format!("triggerConfig.{field}")));
        }
    }
    Ok(())
}

#[async_trait]
impl Resources for PgTriggers {
    async fn place(&self, account: &AccountId, id: &str) -> Result<Option<Place>> {
        let row = repository::find(self.db.read().await?.get(), account, id).await?;
        Ok(row.map(|row| Place { project: row.project_id, ..Place::default() }))
    }
}

#[async_trait]
impl TriggerService for PgTriggers {
    async fn create(&self, caller: &Caller, new: NewTrigger, once: Option<&Idempotency>) -> Result<Trigger> {
        new.check()?;
        let account = &caller.account;
        let server = new.tool_server_id.clone().unwrap_or_default();
        let link = self.tool_servers.app_link(account, &server).await?;
        let link = link.ok_or_else(|| {
            let message = format!("The tool server `{server}` is not made from an app; see /v1/integrations.");
            Error::new(code::NOT_AN_INTEGRATION, message)
        })?;
        let connector = self.integrations.connector(&link.app)?;
        let event = connector.event_type(new.trigger_slug.as_deref().unwrap_or_default())?;
        let (target_type, target_id) = match (&new.agent_id, &new.assistant_id) {
            (Some(agent), _) => ("agent", self.agents.get(account, &Id::named(agent)).await?.id),
            (None, assistant) => {
                let name = assistant.as_deref().unwrap_or_default();
                ("assistant", self.assistants.get(account, name).await?.id.clone())
            }
        };
        let mut patch = new.patch();
        unmask(event, &mut patch, &Value::Null)?;
        check_config(&connector, event, &patch)?;
        self.check_addresses(event, &patch.trigger_config).await?;
        let connection = link.connection_id.clone().filter(|_| link.connected).ok_or_else(|| {
            let message = format!("The account of {} is not connected; connect it again.", connector.pack.name);
            Error::new(Code::CONFLICT, message)
        })?;
        if let Some(tenant) = &new.tenant_id {
            let tenant_info = TenantInfo::by(caller, tenant, new.subtenant_id.as_deref(), &Object::new());
            self.tenants.register(account, &tenant_info).await?;
        }
        let now = self.clock.now();
        let id = String::from(Id::<Trigger>::generate());
        let (token, secret) = (token(), token());
        let state = if patch.enabled { TriggerState::Active } else { TriggerState::Disabled };
        let mut row = TriggerRow {
            account_id: account.as_str().to_owned(),
            secrets: String::new(),
            id,
            name: String::new(),
            app: link.app.clone(),
            slug: event.slug.clone(),
            tool_server_id: server.clone(),
            connection_id: connection.clone(),
            target_type: target_type.to_owned(),
            target_id,
            state: state.as_str().to_owned(),
            new_threads_state: String::new(),
            rate_limit: 0,
            message_template: String::new(),
            chat_uid_template: String::new(),
            config: Value::Null,
            filter: None,
            tenant_id: new.tenant_id.clone(),
            subtenant_id: new.subtenant_id.clone(),
            project_id: new.project_id.clone(),
            event_count: 0,
            last_event_ms: None,
            auto_paused_ms: None,
            auto_pause_reason: None,
            token_hash: (event.r#type == EventKind::Webhook).then(|| sha256_hex(token.expose())),
            subscription_id: None,
            cursor: None,
            last_error: None,
            created_ms: now.0,
            edited_ms: now.0,
        };
        row.set(patch, &event.name, now);
        let url = self.webhook_url(&token);
        let connections = self.integrations.connections();
        row.subscription_id =
            subscribe(connections, account, &connection, (&connector, event), &row.config, (&url, &secret)).await?;
        self.seal(&mut row, event, &token, &secret)?;
        let shown = self.shown(row.clone()).await?;
        let mut conn = self.db.conn().await?;
        let storing = conn.transaction::<_, Error, _>(async |conn| {
            hold_in(conn, account, std::slice::from_ref(&server)).await?;
            if row.target_type == "agent" {
                self.agents.hold_in(conn, account, &row.target_id).await?;
            } else {
                self.assistants.hold_in(conn, account, &row.target_id).await?;
            }
            repository::insert(conn, &row).await?;
            platform_toolservers::use_in(conn, account, (TRIGGER, &row.id), std::slice::from_ref(&server)).await?;
            self.begin_in(conn, &row, event).await?;
            Idempotency::store_if(once, conn, 201, &shown).await?;
            Ok(())
        });
        if let Err(error) = storing.await {
            // The app is told that nobody listens.
            conn.transaction::<_, Error, _>(async |conn| unsubscribe_in(conn, account, &row).await).await?;
            self.jobs.announce();
            return Err(error);
        }
        drop(conn);
        self.announce(&row, event);
        Ok(shown)
    }

    async fn list(&self, account: &AccountId, mut filter: TriggerFilter, page: Page) -> Result<TriggerPage> {
        if let Some(assistant) = &filter.assistant_id
            && let Ok(known) = self.assistants.get(account, assistant).await
        {
            filter.assistant_id = Some(known.id.clone());
        }
        let conn = self.db.fair_conn(account).await?;
        let (rows, total) = repository::list(&conn, account, &filter, page).await?;
        drop(conn);
        let mut items = Vec::with_capacity(rows.len());
        for row in rows {
            items.push(self.shown(row).await?);
        }
        Ok(TriggerPage { items, total, offset: page.offset, limit: page.limit })
    }

    async fn get(&self, account: &AccountId, id: &Id<Trigger>) -> Result<Trigger> {
        self.shown(self.require(account, id).await?).await
    }

    async fn update(&self, account: &AccountId, id: &Id<Trigger>, patch: Object) -> Result<Trigger> {
        // Fields are judged before it matters what they are applied to.
        let mut checks = Checks::default();
        overlay(&TriggerPatch::default(), patch.clone())?.check(&mut checks);
        checks.finish()?;
        let before = self.require(account, id).await?;
        let open = self.open(before.clone())?;
        let connector = match self.integrations.connector(&before.app) {
            Ok(connector) => connector,
            Err(_) if patch.len() == 1 && patch.get("enabled") == Some(&Value::Bool(false)) => {
                return self.switch_off(account, id).await;
            }
            Err(error) => return Err(error),
        };
        let event = connector.event_type(&before.slug)?;
        let mut changed = overlay(&before.patchable(), patch.clone())?;
        unmask(event, &mut changed, &open.row.config)?;
        check_config(&connector, event, &changed)?;
        if open.row.config.as_object() != Some(&changed.trigger_config) {
            self.check_addresses(event, &changed.trigger_config).await?;
        }
        let config = Value::Object(changed.trigger_config);
        let mut subscription = None;
        if config != open.row.config && event.subscribe.is_some() {
            let url = self.webhook_url(&open.token);
            let connections = self.integrations.connections();
            let of = (connector.as_ref(), event);
            subscription =
                subscribe(connections, account, &before.connection_id, of, &config, (&url, &open.secret)).await?;
        }
        let made = subscription.clone();
        let now = self.clock.now();
        let mut conn = self.db.conn().await?;
        let changing = conn.transaction::<_, Error, _>(async |conn| {
            let mut row = repository::lock(conn, account, id).await?.ok_or_else(|| not_found(id))?;
            let open = self.open(row.clone())?;
            let mut changed = overlay(&row.patchable(), patch.clone())?;
            unmask(event, &mut changed, &open.row.config)?;
            let (enabled, is_given) = (changed.enabled, patch.contains_key("enabled"));
            // Some apps have one subscription for each address, and say its id again.
            if let Some(new) = subscription.filter(|new| row.subscription_id.as_ref() != Some(new)) {
                unsubscribe_in(conn, account, &row).await?;
                keep_in(conn, account, id, &new).await?;
                row.subscription_id = Some(new);
            }
            row.set(changed, &event.name, now);
            let new_config = row.config != open.row.config;
            self.seal(&mut row, event, &open.token, &open.secret)?;
            if is_given {
                let state = if enabled { TriggerState::Active } else { TriggerState::Disabled };
                state.as_str().clone_into(&mut row.state);
                (row.auto_paused_ms, row.auto_pause_reason) = (None, None);
                repository::clear_counters(conn, id).await?;
            }
            if new_config {
                (row.cursor, row.last_error) = (None, None);
                self.begin_in(conn, &row, event).await?;
            }
            repository::update(conn, account, &row).await?;
            Ok((row, new_config))
        });
        let changed = changing.await;
        if changed.is_err() && made.is_some() && made != before.subscription_id {
            // The app is told that nobody listens.
            let unused = TriggerRow { subscription_id: made, ..before };
            conn.transaction::<_, Error, _>(async |conn| unsubscribe_in(conn, account, &unused).await).await?;
            self.jobs.announce();
        }
        let (row, is_new) = changed?;
        drop(conn);
        self.forget(id).await?;
        if is_new {
            self.announce(&row, event);
            self.jobs.announce();
        }
        self.shown(row).await
    }

    async fn delete(&self, account: &AccountId, id: &Id<Trigger>) -> Result<()> {
        let mut conn = self.db.conn().await?;
        let deleting = conn.transaction::<_, Error, _>(async |conn| {
            let row = repository::lock(conn, account, id).await?.ok_or_else(|| not_found(id))?;
            delete_in(conn, account, &row).await
        });
        deleting.await?;
        drop(conn);
        self.forget(id).await?;
        self.jobs.announce();
        Ok(())
    }

    async fn events(
        &self,
        account: &AccountId,
        id: &Id<Trigger>,
        filter: DeliveryFilter,
        page: Page,
    ) -> Result<DeliveryPage> {
        self.require(account, id).await?;
        let conn = self.db.fair_conn(account).await?;
        let (items, total, page) = repository::list_events(&conn, account, id, filter, page).await?;
        Ok(DeliveryPage { items, total, offset: page.offset, limit: page.limit })
    }

    async fn test(
        &self,
        account: &AccountId,
        id: &Id<Trigger>,
        test: NewTest,
        once: Option<&Idempotency>,
    ) -> Result<Delivery> {
        let trigger = self.open(self.require(account, id).await?)?;
        let connector = self.integrations.connector(&trigger.row.app)?;
        let event = connector.event_type(&trigger.row.slug)?;
        let payload = test.payload.unwrap_or_else(|| sample_of(&event.payload));
        let mut new = NewEvent::of(&self.rules, &trigger, String::new(), payload, self.clock.now());
        new.event = format!("test-{}", new.id);
        new.is_test = true;
        self.carry_out(account, id, new, once).await
    }

    async fn replay(
        &self,
        account: &AccountId,
        id: &Id<Trigger>,
        event: &Id<Delivery>,
        once: Option<&Idempotency>,
    ) -> Result<Delivery> {
        let trigger = self.open(self.require(account, id).await?)?;
        let conn = self.db.fair_conn(account).await?;
        let newest = repository::newest_of(&conn, account, id, event).await?;
        drop(conn);
        let (newest, payload) = newest.ok_or_else(|| Error::not_found(code::EVENT_NOT_FOUND, "event", event))?;
        let mut new = NewEvent::of(&self.rules, &trigger, newest.event_id, Value::Null, self.clock.now());
        new.payload = RawValue::from_string(payload).map_err(Error::internal)?;
        new.attempt = newest.attempt + 1;
        new.depth = u8::try_from(newest.depth).unwrap_or(u8::MAX);
        new.is_test = newest.is_test;
        self.carry_out(account, id, new, once).await
    }

    async fn end_of(&self, account: &AccountId, (kind, target): RecordRef<'_>) -> Result<()> {
        let ids = repository::of_target(self.db.read().await?.get(), account, kind.name(), target).await?;
        for id in ids {
            match self.delete(account, &Id::named(&id)).await {
                Err(error) if error.code() != code::TRIGGER_NOT_FOUND => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }
}

/// Deletes a trigger that is locked, with its runs and its subscription.
async fn delete_in(conn: &mut Conn, account: &AccountId, row: &TriggerRow) -> Result<()> {
    unsubscribe_in(conn, account, row).await?;
    for kind in [POLL, SCHEDULE] {
        cancel_in(conn, account, kind, &row.id).await?;
    }
    use_in(conn, account, (TRIGGER, &row.id), TOOL_SERVER, &[]).await?;
    repository::delete(conn, account, &row.id).await
}

/// Triggers, as far as they refer to tool servers: one whose server goes, goes with it.
#[derive(Debug)]
pub struct TriggerReferrer;

#[async_trait]
impl Referrer for TriggerReferrer {
    fn kind(&self) -> Kind {
        TRIGGER
    }

    async fn lock_in(&self, conn: &mut Conn, account: &AccountId, name: &str) -> Result<String> {
        Ok(repository::lock(conn, account, name).await?.ok_or_else(|| not_found(name))?.id)
    }

    async fn refer_in(&self, _: &mut Conn, _: &AccountId, _: &str, _: RecordRef<'_>) -> Result<()> {
        Err(Error::invalid("targetType", "enum", "nothing can be attached to a trigger"))
    }

    async fn describe_in(&self, conn: &mut Conn, account: &AccountId, id: &str) -> Result<Option<(String, String)>> {
        let row = repository::find(conn, account, id).await?;
        Ok(row.map(|row| (row.id, row.name)))
    }

    async fn forget_in(&self, conn: &mut Conn, account: &AccountId, id: &str, _: RecordRef<'_>) -> Result<()> {
        match repository::lock(conn, account, id).await? {
            Some(row) => delete_in(conn, account, &row).await,
            None => Ok(()),
        }
    }
}

/// Pauses what a broken connection feeds, and has it go on.
pub struct TriggerListener(pub Arc<dyn Clock>);

#[async_trait]
impl ConnectionListener for TriggerListener {
    async fn changed_in(&self, conn: &mut Conn, account: &AccountId, connection: &str, is_active: bool) -> Result<()> {
        let now = self.0.now();
        let changed = repository::follow_connection(conn, account, connection, is_active, now).await?;
        if is_active {
            return Ok(());
        }
        let paused = changed.iter().map(|paused| auto_paused(account, paused, "CONNECTION"));
        publish_in(conn, paused.collect(), now).await
    }
}
