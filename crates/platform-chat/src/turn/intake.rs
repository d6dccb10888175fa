use std::{sync::Arc, time::Duration};

use diesel_async::AsyncConnection;
use moka::sync::Cache;
use platform_conversation::{
    AssistantState, ChatMessage, Dictations, File, FileFetcher, MessageContent, StoredFile, TurnRequest,
    check_client_schemas, check_turn_tools, new_message_uid, restamped, screen_files,
};
use platform_core::{
    AccountId, Caller, Checks, Clock, Error, FieldLimits, Id, Object, Owner, Result, Timestamp, run_detached,
};
use platform_db::{Db, Idempotency};
use platform_guardrails::ScreenContext;
use platform_jobs::{Jobs, Run, traceparent};
use platform_runtime::{Budget, Catalog, ChildPool, ModelSpec, Payer, Role, Toolbox};
use platform_tenants::{TenantInfo, TenantService};
use tokio::sync::oneshot;
use tracing::warn;

use super::{
    accept::AcceptOutcome,
    acceptance::{Acceptance, PastRow},
    admit::{Admission, Candidate},
    message::{Accepted, NewMessage},
    queue::{Enqueued, busy, refuse_growth, refuse_stranger, wait_in_line},
    work::{KIND, TurnOutcome, payer},
};
use crate::{
    assistant::{Assistant, AssistantService},
    chat::{Chat, repository},
    code,
};

const TITLE_CHARACTERS: usize = 60;
const MAX_REFUSED: u64 = 10_000;
const REFUSED: Duration = Duration::from_secs(5);
/// A chat that is busy when a message would begin its turn, and free when it would wait, is tried so often.
const TRIES: usize = 8;

/// Takes messages in: judges them, and has them begin a turn or wait for one.
pub(crate) struct Intake {
    pub db: Db,
    pub clock: Arc<dyn Clock>,
    pub jobs: Arc<Jobs>,
    pub catalog: Arc<dyn Catalog>,
    pub budget: Arc<dyn Budget>,
    pub dictations: Arc<dyn Dictations>,
    pub tenants: Arc<dyn TenantService>,
    pub assistants: Arc<dyn AssistantService>,
    pub toolbox: Arc<Toolbox>,
    pub children: Arc<ChildPool>,
    pub files: FileFetcher,
    pub limits: FieldLimits,
    pub admission: Arc<Admission>,
    /// Who was out of quota a moment ago: they are asked about before they disturb those whose turns are accepted
    /// together with theirs.
    pub refused: Cache<Payer, ()>,
}

impl Intake {
    /// Nobody is known to be out of quota yet.
    pub fn none_refused() -> Cache<Payer, ()> {
        Cache::builder().max_capacity(MAX_REFUSED).time_to_live(REFUSED).build()
    }
}

/// A message that was taken in.
pub(crate) struct Taken {
    pub accepted: Accepted,
    /// How its turn ends, when this process works it.
    pub outcome: Option<oneshot::Receiver<TurnOutcome>>,
    /// The user message as JSON text.
    pub user_message: String,
    /// The assistant of the chat, and the revision at which the message was queued.
    pub queued_at: Option<(String, i64)>,
}

impl Intake {
    /// `wait`: somebody waits for the end of the turn, so it begins now or not at all.
    pub async fn take(
        &self,
        caller: &Caller,
        assistant: &str,
        message: NewMessage,
        source: Option<String>,
        once: Option<&Idempotency>,
        wait: bool,
    ) -> Result<Taken> {
        let dictated = message.transcript_id.clone();
        let taken = self.take_message(caller, assistant, message, source, once, wait).await?;
        if let Some(id) = dictated {
            self.charge_dictation(&caller.account, &taken.accepted.chat_uid, &id).await;
        }
        Ok(taken)
    }

    /// What a transcript took is secondary usage of the chat that it is said in first.
    async fn charge_dictation(&self, account: &AccountId, uid: &str, id: &str) {
        let (db, dictations) = (self.db.clone(), Arc::clone(&self.dictations));
        let (account, chat, id) = (account.clone(), uid.to_owned(), id.to_owned());
        let charging = run_detached("charge dictation", async move {
            let mut conn = db.conn().await?;
            conn.transaction::<_, Error, _>(async |conn| {
                let taken = dictations.take_cost_in(conn, &account, &id).await?;
                repository::charge_in(conn, &account, &chat, taken.as_slice()).await
            })
            .await
        });
        if let Err(error) = charging.await {
            warn!(chat = uid, %error, "What a transcript took could not be counted for its chat.");
        }
    }

    async fn take_message(
        &self,
        caller: &Caller,
        assistant: &str,
        mut message: NewMessage,
        source: Option<String>,
        once: Option<&Idempotency>,
        wait: bool,
    ) -> Result<Taken> {
        self.take_dictation(caller, &mut message).await?;
        message.check(&self.limits)?;
        check_client_schemas(&self.children, &caller.account, &[("tools".to_owned(), &message.tools)]).await?;
        let assistant = self.assistants.get(&caller.account, assistant).await?;
        let settings = assistant.settings();
        let spec = settings.choose(&*self.catalog, message.provider.as_deref(), message.model.as_deref())?;
        check_active(&assistant)?;
        self.register(caller, &mut message).await?;
        // Events of triggers have waited already, and have a bound of their own.
        let (had_previous, is_of_trigger) = (!message.previous_conversation.is_empty(), message.trigger.is_some());
        let mut given = std::mem::take(&mut message.files);
        let (mut item, mut request, mut body) =
            self.acceptance(caller, &assistant, &spec, message, source, &given).await?;
        let payer = payer_of(caller, &assistant, &item);
        check_turn_tools(&self.toolbox, &caller.account, settings, &request, &payer, &spec).await?;
        let mut files = Vec::new();
        if !given.is_empty() {
            // Nothing is fetched for a chat that cannot take it.
            self.refuse(caller, &item, wait).await?;
            self.adopt(caller, &mut item).await?;
            let owner = Owner { tenant_id: item.tenant_id.clone(), subtenant_id: item.subtenant_id.clone() };
            files = self.files.fetch(&caller.account, &owner, &mut given).await?;
            body.content.files = given;
            item.message = serde_json::to_string(&body).map_err(Error::internal)?;
            if let Some(screen) = assistant.profile.screen.clone() {
                screen_files(&screen, &mut files, &item.message_uid, self.clock.now(), &mut request).await?;
                item.payload = Arc::new(serde_json::to_value(&request).map_err(Error::internal)?);
            }
        }
        if !wait && !is_of_trigger && self.jobs.slot_of(&caller.account).is_none() {
            self.jobs.check_room(&caller.account, KIND, "messages").await?;
        }
        let files: Arc<[StoredFile]> = files.into();
        let mut payer = payer_of(caller, &assistant, &item);
        if wait
            && self.refused.contains_key(&payer)
            && let Some(refusal) = self.budget.spent(&payer).await?
        {
            // A chat that is busy says so first.
            self.refuse(caller, &item, wait).await?;
            return Err(Error::from(&refusal));
        }
        let (mut may_reserve, mut resumes) = (true, false);
        for _ in 0..TRIES {
            if wait || settings.input_delay_ms == 0 {
                let slot = if wait { Some(self.jobs.slot_at_once()) } else { self.jobs.slot_of(&caller.account) };
                item.owner = slot.is_some().then(|| self.jobs.owner().to_owned());
                item.lease_ms = slot.is_some().then(|| self.jobs.lease_ms());
                let reserves = may_reserve && slot.is_some();
                item.charge = if reserves { self.budget.charge(&payer, &spec).await? } else { None };
                let (account, assistant) = (caller.account.clone(), Arc::clone(&assistant));
                let (item, request, files) = (item.clone(), request.clone(), Arc::clone(&files));
                let accepted = accepted(&item);
                let (user_message, sent) = (item.message.clone(), Timestamp(item.now_ms));
                let candidate = Candidate {
                    account,
                    item,
                    assistant,
                    request,
                    files,
                    slot,
                    waits: wait,
                    resumes,
                    once: once.cloned(),
                    accepted: accepted.clone(),
                };
                match self.admission.admit(candidate).await? {
                    AcceptOutcome::Accepted(admitted) => {
                        let ignored =
                            if had_previous && !admitted.created { vec!["previousConversation"] } else { Vec::new() };
                        let accepted = Accepted { ignored, ..accepted };
                        let user_message =
                            if admitted.at > sent { restamped(&user_message, admitted.at)? } else { user_message };
                        return Ok(Taken { accepted, outcome: admitted.outcome, user_message, queued_at: None });
                    }
                    AcceptOutcome::ChatIsBusy => {}
                    AcceptOutcome::Refused(refusal) if wait => {
                        self.refused.insert(payer, ());
                        return Err(Error::from(&*refusal));
                    }
                    AcceptOutcome::Refused(_) => {
                        // It is accepted all the same; its turn finds out again.
                        may_reserve = false;
                        continue;
                    }
                }
            }
            if self.adopt(caller, &mut item).await? {
                payer = payer_of(caller, &assistant, &item);
                continue;
            }
            if wait {
                resumes = self.refuse(caller, &item, wait).await?;
                continue;
            }
            if let Some(taken) = self.wait_in_line(caller, &item, &assistant, &files, once, had_previous).await? {
                return Ok(taken);
            }
        }
        let message = "This chat is busy with other messages; send again shortly.";
        Err(Error::new(code::CHAT_BUSY, message).with("status", "processing"))
    }

    /// What was dictated is said, unless something else is.
    async fn take_dictation(&self, caller: &Caller, message: &mut NewMessage) -> Result<()> {
        let Some(id) = &message.transcript_id else { return Ok(()) };
        // A chat that goes on has its owner, whatever the message names.
        let known = match &message.chat_uid {
            Some(uid) => repository::place(self.db.read().await?.get(), &caller.account, uid).await?,
            None => None,
        };
        let named = || Owner { tenant_id: message.tenant_id.clone(), subtenant_id: message.subtenant_id.clone() };
        let owner = known.and_then(|place| place.owner).unwrap_or_else(named);
        let text = self.dictations.text(caller, &owner, id).await?;
        if message.message.as_ref().is_none_or(String::is_empty) {
            message.message = Some(text);
        }
        Ok(())
    }

    /// Has a message wait, in a task of its own so that a caller who leaves changes nothing; `None` when
    /// no turn is under way.
    async fn wait_in_line(
        &self,
        caller: &Caller,
        item: &Acceptance,
        assistant: &Arc<Assistant>,
        files: &Arc<[StoredFile]>,
        once: Option<&Idempotency>,
        had_previous: bool,
    ) -> Result<Option<Taken>> {
        let (db, jobs, account) = (self.db.clone(), Arc::clone(&self.jobs), caller.account.clone());
        let (line, once) = ((item.clone(), Arc::clone(assistant), Arc::clone(files)), once.cloned());
        let waiting = run_detached("queue", async move {
            let (item, assistant, files) = line;
            let place = wait_in_line(&db, &account, &item, assistant.settings(), &files, once.as_ref()).await?;
            if let Enqueued::Queued { due: Some(due), .. } = &place {
                jobs.announce_after(*due);
            }
            Ok(place)
        });
        let Enqueued::Queued { accepted, revision, created, .. } = waiting.await? else {
            return Ok(None);
        };
        let ignored = if had_previous && !created { vec!["previousConversation"] } else { Vec::new() };
        Ok(Some(Taken {
            accepted: Accepted { ignored, ..accepted },
            outcome: None,
            user_message: item.message.clone(),
            queued_at: Some((item.assistant.clone(), revision)),
        }))
    }

    /// Notes whose message it is, before anything else is done with it.
    async fn register(&self, caller: &Caller, message: &mut NewMessage) -> Result<()> {
        let nothing = Object::new();
        let metadata = message.metadata.as_ref().unwrap_or(&nothing);
        message.subtenant_id = TenantInfo::subtenant_of(message.subtenant_id.take(), metadata);
        let Some(tenant) = &message.tenant_id else { return Ok(()) };
        let tenant_info = TenantInfo::by(caller, tenant, message.subtenant_id.as_deref(), metadata);
        self.tenants.register(&caller.account, &tenant_info).await
    }

    /// Whether the message went to a chat that is somebody's and did not say whose: now it does, so that they pay.
    async fn adopt(&self, caller: &Caller, item: &mut Acceptance) -> Result<bool> {
        if item.tenant_id.is_some() && item.subtenant_id.is_some() {
            return Ok(false);
        }
        let conn = self.db.read().await?;
        let Some(chat) = repository::find(conn.get(), &caller.account, &item.subject).await? else { return Ok(false) };
        refuse_stranger(&chat, item)?;
        let adopts = chat.tenant_id != item.tenant_id || chat.subtenant_id != item.subtenant_id;
        (item.tenant_id, item.subtenant_id) = (chat.tenant_id, chat.subtenant_id);
        Ok(adopts)
    }

    /// Why a chat did not take a message that cannot wait; `Ok` when it has become free meanwhile, `true` when others
    /// wait there for quota.
    async fn refuse(&self, caller: &Caller, item: &Acceptance, wait: bool) -> Result<bool> {
        let conn = self.db.read().await?;
        let Some(chat) = repository::find(conn.get(), &caller.account, &item.subject).await? else { return Ok(false) };
        refuse_stranger(&chat, item)?;
        refuse_growth(conn.get(), item).await?;
        let free = !wait || chat.awaits_quota() || (chat.status().is_terminal() && chat.queued == 0);
        if free { Ok(chat.awaits_quota()) } else { Err(busy(&chat)) }
    }

    async fn acceptance(
        &self,
        caller: &Caller,
        assistant: &Assistant,
        spec: &ModelSpec,
        message: NewMessage,
        source: Option<String>,
        files: &[File],
    ) -> Result<(Acceptance, TurnRequest, ChatMessage)> {
        let now = self.clock.now();
        let subject = message.chat_uid.unwrap_or_else(|| Id::<Chat>::generate().into());
        let message_uid = new_message_uid();
        let mut text = message.message.unwrap_or_default();
        let mut request = TurnRequest {
            provider: message.provider,
            model: message.model,
            application_state: message.application_state,
            skip_summarization: message.skip_summarization,
            enabled_tools: message.enabled_tools,
            tools: message.tools,
            disabled_integrations: message.disabled_integrations,
            user_uid: caller.user_uid.clone(),
            findings: Vec::new(),
            blocked: false,
            depth: message.trigger.as_ref().map_or(0, |trigger| trigger.depth),
        };
        // What is redacted here is never stored.
        if let Some(screen) = assistant.profile.screen.clone() {
            let screening = screen.arriving(text, ScreenContext { message_uid: message_uid.clone(), now }).await?;
            (text, request.findings, request.blocked) = (screening.text, screening.findings, screening.blocked);
        }
        let mut metadata = message.metadata.unwrap_or_default();
        // The misspelt name counts as the right one, and wins where both are given (contract 02 §3).
        if let Some(params) = metadata.remove("propmptTemplateParams") {
            metadata.insert("promptTemplateParams".to_owned(), params);
        }
        if let Some(subtenant) = &message.subtenant_id {
            metadata.insert("subtenantId".to_owned(), subtenant.as_str().into());
            let mut checks = Checks::within(&self.limits);
            checks.metadata("metadata", &metadata);
            checks.finish()?;
        }
        let new = |uid: &str| ChatMessage::new(uid.to_owned(), &subject, &caller.user_uid, now);
        let json = |message: &ChatMessage| serde_json::to_string(message).map_err(Error::internal);
        let mut previous = Vec::new();
        for (position, past) in message.previous_conversation.into_iter().enumerate() {
            let uid = new_message_uid();
            let mut said = past.message;
            if let Some(screen) = assistant.profile.screen.clone().filter(|_| past.role == Role::User) {
                let screening = screen.arriving(said, ScreenContext { message_uid: uid.clone(), now }).await?;
                request.findings.extend(screening.findings);
                request.blocked |= screening.blocked;
                said = screening.text;
            }
            let content = MessageContent { message: said, ..MessageContent::default() };
            let content_source = (past.role == Role::User).then(|| "user".to_owned());
            let body = json(&ChatMessage { role: past.role, content, content_source, ..new(&uid) })?;
            previous.push(PastRow { position, uid, role: past.role.as_str(), body });
        }
        let name = title(&text, files);
        let content_source = match (&message.trigger, &message.transcript_id) {
            (Some(_), _) => "trigger",
            (None, Some(_)) => "dictation",
            (None, None) => "user",
        };
        let body = ChatMessage {
            content: MessageContent { message: text, data: None, files: files.to_vec() },
            user_name: message.user_name,
            content_source: Some(content_source.to_owned()),
            transcript_id: message.transcript_id,
            ..new(&message_uid)
        };
        let item = Acceptance {
            account: caller.account.as_str().to_owned(),
            kind: KIND,
            run: Id::<Run>::generate().into(),
            owner: None,
            lease_ms: None,
            trace: traceparent(),
            payload: Arc::new(serde_json::to_value(&request).map_err(Error::internal)?),
            assistant: assistant.identifier.clone(),
            llm: Arc::clone(&spec.llm),
            name,
            named: request.skip_summarization,
            user_uid: caller.user_uid.clone(),
            tenant_id: message.tenant_id,
            subtenant_id: message.subtenant_id,
            api_source: source,
            metadata,
            tags: message.tags,
            most_tags: bound(self.limits.tags),
            most_metadata: bound(self.limits.metadata_bytes),
            previous,
            message_uid,
            message: json(&body)?,
            now_ms: now.0,
            charge: None,
            trigger: message.trigger.map(|trigger| trigger.source),
            subject,
        };
        Ok((item, request, body))
    }
}

fn payer_of(caller: &Caller, assistant: &Assistant, item: &Acceptance) -> Payer {
    payer(&caller.account, assistant, item.tenant_id.clone(), item.subtenant_id.clone())
}

fn accepted(item: &Acceptance) -> Accepted {
    Accepted {
        chat_uid: item.subject.clone(),
        message_uid: item.message_uid.clone(),
        queued: false,
        queue_position: None,
        will_process: None,
        ignored: Vec::new(),
    }
}

/// A limit as the database compares it; 0 = no bound.
fn bound(limit: usize) -> i32 {
    if limit == 0 { i32::MAX } else { i32::try_from(limit).unwrap_or(i32::MAX) }
}

fn check_active(assistant: &Assistant) -> Result<()> {
    if assistant.settings().state == AssistantState::Active {
        return Ok(());
    }
    Err(Error::new(code::ASSISTANT_INACTIVE, "This assistant takes no messages; set its state to active."))
}

/// The first 60 characters in one line, until a better title is found.
fn title(text: &str, files: &[File]) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let line = if line.is_empty() { files.first().map(|file| file.name.clone()).unwrap_or_default() } else { line };
    let line = if line.is_empty() { "New chat".to_owned() } else { line };
    line.chars().take(TITLE_CHARACTERS).collect()
}
