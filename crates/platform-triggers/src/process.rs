//! An event is carried out: judged, then started, and what became of it noted (contract 09 §3).

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use diesel_async::AsyncConnection;
use platform_agents::{NewThread, ThreadStart};
use platform_chat::NewMessage;
use platform_conversation::TriggerOrigin;
use platform_core::{
    AccountId, Caller, Credential, Error, ErrorKind, Id, Object, Origin, Result, run_blocking, run_sized,
};
use platform_db::{Idempotency, Stored};
use platform_events::{Event, publish_in};
use platform_integrations::Connector;
use platform_jobs::{Run, When, Work, end, end_in, enqueue_in, is_held_in};
use platform_runtime::{Payer, Refusal, Spender};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::{
    model::{DeliveryError, DeliveryOutcome},
    repository::{self, Admission, Ended, EventRow, Paused, TriggerRow},
    service::PgTriggers,
    template::{Values, chat_uid, fill, keeps},
};

/// Kind of the runs that carry events out; the subject is the delivery.
pub(crate) const KIND: &str = "trigger-event";
/// So many runs follow each other.
const MAX_DEPTH: i16 = 5;
/// So many errors one after the other pause a trigger, and so many minutes with too many events.
const MAX_ERRORS: i32 = 20;
const MAX_LIMITED: i32 = 3;

/// Carries events out.
pub struct ProcessWork(pub Arc<PgTriggers>);

/// What the target is told of an event, and in which chat.
struct Prompt {
    message: String,
    chat_uid: Option<String>,
}

/// What a start came to.
enum Started {
    Thread(String),
    Chat(String),
    /// A quota refused the thread, which is there and has failed.
    Refused(String, Refusal),
}

#[async_trait]
impl Work for ProcessWork {
    fn kind(&self) -> &'static str {
        KIND
    }

    async fn work(&self, run: &Run, _stop: &CancellationToken) -> Result<()> {
        let (triggers, account) = (&self.0, run.account());
        let place = triggers.underway.acquire(&account).await;
        let conn = triggers.db.read().await?;
        let event = repository::event(conn.get(), &account, &run.subject).await?;
        let event = event.filter(|(event, _)| event.outcome.is_none());
        let trigger = match &event {
            Some((event, _)) => repository::find(conn.get(), &account, &event.trigger_id).await?,
            None => None,
        };
        drop(conn);
        let (Some((event, payload)), Some(trigger)) = (event, trigger) else {
            return end(&triggers.db, run).await;
        };
        let bytes = payload.len();
        let read = move || serde_json::from_str(&payload).map_err(Error::internal);
        let payload: Arc<Value> = run_sized(bytes, read).await?;
        let judged = triggers.decide(&account, &trigger, &event, &payload).await?;
        let prompt = triggers.prompt(&trigger, &event, &payload);
        drop((payload, place));
        let started = match (judged, prompt) {
            (Some(ended), _) => return triggers.end(run, &trigger, &event, ended).await,
            (None, Ok(prompt)) => triggers.begin(&account, &trigger, &event, prompt).await,
            (None, Err(error)) => Err(error),
        };
        let ended = match started {
            Ok(Started::Thread(id)) => {
                Ended { outcome: DeliveryOutcome::Executed, thread: Some(id), chat: None, error: None }
            }
            Ok(Started::Chat(id)) => {
                Ended { outcome: DeliveryOutcome::Executed, thread: None, chat: Some(id), error: None }
            }
            Ok(Started::Refused(id, refusal)) => {
                let error = Some(DeliveryError::of(&Error::from(&refusal)));
                Ended { outcome: DeliveryOutcome::Error, thread: Some(id), chat: None, error }
            }
            Err(error) => {
                let tries = usize::try_from(event.tries).unwrap_or(usize::MAX);
                if let Some(wait) = triggers.rules.waits.get(tries + 1).filter(|_| can_pass(&error)) {
                    return triggers.put_off(run, &event, *wait).await;
                }
                if error.code().kind() == ErrorKind::Internal {
                    tracing::error!(trigger = trigger.id, delivery = event.id, %error, "An event could not be carried out.");
                }
                Ended {
                    outcome: DeliveryOutcome::Error,
                    thread: None,
                    chat: None,
                    error: Some(DeliveryError::of(&error)),
                }
            }
        };
        triggers.end(run, &trigger, &event, ended).await
    }
}

/// Whether what failed may do better later.
fn can_pass(error: &Error) -> bool {
    use platform_chat::code::{CHAT_BUSY, QUEUE_FULL};
    use platform_db::code::IDEMPOTENCY_IN_PROGRESS;

    let (code, kind) = (error.code(), error.code().kind());
    [CHAT_BUSY, QUEUE_FULL, IDEMPOTENCY_IN_PROGRESS].contains(&code)
        || matches!(
            kind,
            ErrorKind::Unavailable | ErrorKind::Upstream | ErrorKind::UpstreamTimeout | ErrorKind::Internal
        )
}

impl PgTriggers {
    /// Why an event starts nothing; `None` when it is to.
    async fn decide(
        &self,
        account: &AccountId,
        trigger: &TriggerRow,
        event: &EventRow,
        payload: &Arc<Value>,
    ) -> Result<Option<Ended>> {
        let ended = |outcome| Some(Ended { outcome, thread: None, chat: None, error: None });
        if event.depth >= MAX_DEPTH {
            let message = format!("{MAX_DEPTH} runs followed each other already: the trigger answers to itself.");
            let error = Some(DeliveryError { code: "LOOP".to_owned(), message });
            return Ok(Some(Ended { outcome: DeliveryOutcome::Error, thread: None, chat: None, error }));
        }
        if event.is_test {
            return Ok(None);
        }
        let is_of_type = match self.integrations.connector(&trigger.app) {
            Ok(connector) => fits(&connector, trigger, payload).await?,
            Err(_) => true,
        };
        if !is_of_type || trigger.filter.as_ref().is_some_and(|filter| !keeps(filter, payload)) {
            return Ok(ended(DeliveryOutcome::Filtered));
        }
        if event.admitted {
            return Ok(None);
        }
        let minute = event.received_ms / 60_000;
        let mut conn = self.db.conn().await?;
        let admitting = conn.transaction::<_, Error, _>(async |conn| {
            repository::admit(conn, &trigger.id, &event.id, minute, trigger.rate_limit).await
        });
        let admission = admitting.await?;
        drop(conn);
        let Admission::Limited(minutes) = admission else { return Ok(None) };
        if minutes >= MAX_LIMITED {
            self.pause(account, &trigger.id, "RATE_LIMIT").await?;
        }
        Ok(ended(DeliveryOutcome::RateLimited))
    }

    /// What an event is to say.
    fn prompt(&self, trigger: &TriggerRow, event: &EventRow, payload: &Value) -> Result<Prompt> {
        let values = Values {
            data: payload,
            trigger: &trigger.name,
            event: &event.event_id,
            received: platform_core::Timestamp(event.received_ms),
        };
        let too_long = || {
            let message =
                "The message would be longer than a message may be; name less of the event in messageTemplate.";
            Error::invalid("messageTemplate", "length", message)
        };
        let message = if trigger.message_template.is_empty() {
            payload.to_string()
        } else {
            fill(&trigger.message_template, &values, self.limits.message_bytes).map_err(|_| too_long())?
        };
        if self.limits.message_bytes > 0 && message.len() > self.limits.message_bytes {
            return Err(too_long());
        }
        let chat_uid = Some(chat_uid(&trigger.chat_uid_template, &values)).filter(|chat| !chat.is_empty());
        Ok(Prompt { message, chat_uid })
    }

    /// Starts what an event is to start; what was started for it before is found again.
    async fn begin(
        &self,
        account: &AccountId,
        trigger: &TriggerRow,
        event: &EventRow,
        prompt: Prompt,
    ) -> Result<Started> {
        let Prompt { message, chat_uid } = prompt;
        let once =
            Idempotency { account: account.clone(), scope: format!("trigger/{}", event.id), body_hash: String::new() };
        let is_agent = trigger.target_type == "agent";
        if let Some(Stored::Answer { body, .. }) = once.find(&self.db).await? {
            let answer: Value = serde_json::from_str(&body).map_err(Error::internal)?;
            let id = |name: &str| answer[name].as_str().unwrap_or_default().to_owned();
            return Ok(if is_agent { Started::Thread(id("threadId")) } else { Started::Chat(id("chatUID")) });
        }
        let source = json!({"triggerId": trigger.id, "triggerSlug": trigger.slug, "app": trigger.app,
            "eventId": event.event_id});
        let source: Object = source.as_object().cloned().unwrap_or_default();
        let depth = u8::try_from(event.depth + 1).unwrap_or(u8::MAX);
        let origin = Some(TriggerOrigin { source, depth });
        let caller = Caller {
            account: account.clone(),
            credential: Credential::FullKey("trigger".to_owned()),
            user_uid: format!("trigger:{}", trigger.id),
            projects: None,
            origin: Origin::default(),
        };
        let (tenant_id, subtenant_id) = (trigger.tenant_id.clone(), trigger.subtenant_id.clone());
        if is_agent {
            let new = NewThread {
                message: Some(message),
                state: Some(trigger.new_threads_state.clone()),
                tenant_id,
                subtenant_id,
                trigger: origin,
                ..NewThread::default()
            };
            let started =
                self.threads.start(&caller, &Id::named(&trigger.target_id), new, None, false, Some(&once)).await?;
            return Ok(match started {
                ThreadStart::Started(started) => Started::Thread(started.thread_id),
                ThreadStart::Refused { thread_id, refusal } => Started::Refused(thread_id, refusal),
            });
        }
        // A message of a chat would be taken, and stay without an answer.
        let payer = Payer {
            account: account.clone(),
            tenant_id: tenant_id.clone(),
            subtenant_id: subtenant_id.clone(),
            project_id: None,
            spender: Spender::Service("trigger"),
        };
        if let Some(refusal) = self.budget.spent(&payer).await? {
            return Err(Error::from(&refusal));
        }
        let new = NewMessage {
            message: Some(message),
            chat_uid,
            tenant_id,
            subtenant_id,
            trigger: origin,
            ..NewMessage::default()
        };
        let accepted = self.chat.send(&caller, &trigger.target_id, new, None, Some(&once)).await?;
        Ok(Started::Chat(accepted.chat_uid))
    }

    /// Tries an event again after a while.
    async fn put_off(&self, run: &Run, event: &EventRow, wait: Duration) -> Result<()> {
        let mut conn = self.db.conn().await?;
        conn.transaction::<_, Error, _>(async |conn| {
            if !is_held_in(conn, run).await? {
                return Ok(());
            }
            repository::note_try(conn, &event.id).await?;
            end_in(conn, run).await?;
            enqueue_in(conn, &run.account(), KIND, &run.subject, Value::Null, When::After(wait)).await?;
            Ok(())
        })
        .await?;
        self.jobs.announce_after(wait);
        Ok(())
    }

    /// Notes what became of an event, with all that follows.
    async fn end(&self, run: &Run, trigger: &TriggerRow, event: &EventRow, ended: Ended) -> Result<()> {
        let (account, now) = (run.account(), self.clock.now());
        let mut conn = self.db.conn().await?;
        let ending = conn.transaction::<_, Error, _>(async |conn| {
            if !is_held_in(conn, run).await? {
                return Ok(0);
            }
            end_in(conn, run).await?;
            // A trigger comes before its counters and its events, whoever takes them.
            let errors = match ended.outcome {
                DeliveryOutcome::Executed => {
                    repository::count_event(conn, &account, event).await?;
                    repository::count_error(conn, &trigger.id, false).await?
                }
                DeliveryOutcome::Error => {
                    let data = json!({"triggerId": trigger.id, "eventId": event.event_id, "error": ended.error});
                    let failed = Event {
                        tenant: trigger.tenant_id.as_deref(),
                        project: trigger.project_id.as_deref(),
                        depth: u8::try_from(event.depth).unwrap_or(u8::MAX),
                        ..Event::new(&account, "trigger.delivery_failed", data)
                    };
                    publish_in(conn, vec![failed], now).await?;
                    repository::count_error(conn, &trigger.id, true).await?
                }
                _ => 0,
            };
            repository::end_event(conn, event, &ended, now).await?;
            Ok(errors)
        });
        let errors = ending.await?;
        drop(conn);
        if errors >= MAX_ERRORS { self.pause(&account, &trigger.id, "ERRORS").await } else { Ok(()) }
    }

    /// A trigger pauses by itself, apart from what was counted: others lock it before its counters.
    async fn pause(&self, account: &AccountId, id: &str, reason: &str) -> Result<()> {
        let now = self.clock.now();
        let mut conn = self.db.conn().await?;
        let pausing = conn.transaction::<_, Error, _>(async |conn| {
            let Some(paused) = repository::pause(conn, account, id, reason, now).await? else { return Ok(()) };
            tracing::warn!(trigger = id, reason, "A trigger paused by itself; enable it again when that is mended.");
            publish_in(conn, vec![auto_paused(account, &paused, reason)], now).await
        });
        pausing.await
    }
}

/// The event that tells of a trigger that paused by itself.
pub(crate) fn auto_paused<'a>(account: &'a AccountId, paused: &'a Paused, reason: &str) -> Event<'a> {
    let data = json!({"triggerId": paused.id, "name": paused.name, "reason": reason});
    let (tenant, project) = (paused.tenant_id.as_deref(), paused.project_id.as_deref());
    Event { tenant, project, ..Event::new(account, "trigger.auto_paused", data) }
}

/// Whether a payload is of the event type; a long one is judged beside those that others wait for.
async fn fits(connector: &Arc<Connector>, trigger: &TriggerRow, payload: &Arc<Value>) -> Result<bool> {
    let (connector, slug, payload) = (Arc::clone(connector), trigger.slug.clone(), Arc::clone(payload));
    run_blocking(move || Ok(connector.event_type(&slug).map_or(true, |event| connector.is_event(event, &payload))))
        .await
}
