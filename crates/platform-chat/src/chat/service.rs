use std::{collections::HashMap, sync::Arc, time::Duration};

use async_trait::async_trait;
use diesel_async::AsyncConnection;
use platform_core::{AccountId, Caller, Clock, Code, Error, Id, Object, Page, Result, Timestamp, overlay};
use platform_db::{Db, Idempotency, in_progress};
use platform_jobs::{Jobs, Work};
use platform_realtime::{Realtime, Watcher};
use platform_runtime::{FaultCode, Model};
use tokio::sync::oneshot;

use super::{
    filter::ChatFilter,
    model::{Chat, ChatId, ChatList, ChatPage, ChatPatch, Feedback, Match, Matches, NewFeedback, Stopped},
    repository::{self, ChatRow},
    source::ChatSource,
};
use crate::{
    assistant::{Assistant, AssistantService, AssistantState},
    turn::{
        Acceptance, Accepted, Admission, Candidate, ChatMessage, Finisher, KIND, MessageContent, NewMessage, PastRow,
        Sent, StoredJson, TurnOutcome, TurnRequest, Turns, live_key,
    },
};

const TITLE_CHARACTERS: usize = 60;
const SNIPPET_CHARACTERS: usize = 80;
/// How long a stop waits for the turn to end.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// Chats of an account: sending, reading, following.
#[async_trait]
pub trait ChatService: Send + Sync {
    /// Accepts a message; its turn is worked in the background.
    async fn send(
        &self,
        caller: &Caller,
        assistant: &str,
        message: NewMessage,
        source: Option<String>,
        once: Option<&Idempotency>,
    ) -> Result<Accepted>;
    /// Accepts a message and waits for the end of its turn, which goes on when the caller leaves.
    async fn send_and_wait(
        &self,
        caller: &Caller,
        assistant: &str,
        message: NewMessage,
        source: Option<String>,
        once: Option<&Idempotency>,
    ) -> Result<Sent>;
    /// What became of a message that was sent with an idempotency key before; `None` when its turn failed.
    async fn replay(&self, account: &AccountId, reference: &str) -> Result<Option<Sent>>;

    /// Chats that the filter keeps, newest first.
    async fn list(&self, account: &AccountId, filter: ChatFilter, page: ChatPage) -> Result<ChatList>;
    /// One chat.
    async fn get(&self, account: &AccountId, assistant: &str, uid: &str, omit_content: bool) -> Result<Chat>;
    /// Changes the given fields.
    async fn update(&self, account: &AccountId, assistant: &str, uid: &str, patch: Object) -> Result<Chat>;
    /// Takes a chat away; its turn is stopped, its streams end.
    async fn delete(&self, account: &AccountId, assistant: &str, uid: &str) -> Result<()>;
    /// Messages, oldest first.
    async fn content(&self, account: &AccountId, assistant: &str, uid: &str, page: Page) -> Result<Vec<StoredJson>>;
    /// Messages that hold a text.
    async fn search(&self, account: &AccountId, assistant: &str, uid: &str, text: &str, limit: i64) -> Result<Matches>;
    /// Tags in use, sorted.
    async fn tags(&self, account: &AccountId) -> Result<Vec<String>>;
    /// The realtime object as JSON.
    async fn realtime(&self, account: &AccountId, assistant: &str, uid: &str) -> Result<String>;
    /// Follows the realtime object.
    async fn watch(&self, account: &AccountId, assistant: &str, uid: &str, partial: bool) -> Result<Watcher>;
    /// Stops the turn and keeps what was written.
    async fn stop(&self, account: &AccountId, assistant: &str, uid: &str) -> Result<Stopped>;
    /// Feedback on the messages of a chat.
    async fn feedback(&self, account: &AccountId, assistant: &str, uid: &str) -> Result<Vec<Feedback>>;
    /// Gives feedback; `true` when it is the first on that message.
    async fn give_feedback(
        &self,
        caller: &Caller,
        assistant: &str,
        uid: &str,
        new: NewFeedback,
        once: Option<&Idempotency>,
    ) -> Result<(bool, Feedback)>;
}

/// The service on PostgreSQL.
pub struct PgChatService {
    db: Db,
    clock: Arc<dyn Clock>,
    jobs: Arc<Jobs>,
    realtime: Arc<Realtime>,
    assistants: Arc<dyn AssistantService>,
    model: Arc<dyn Model>,
    admission: Arc<Admission>,
    turns: Arc<Turns>,
    sync_timeout: Duration,
}

enum RunKind {}
enum MessageKind {}
enum FeedbackKind {}

/// An accepted turn that this process works.
struct Begun {
    accepted: Accepted,
    outcome: Option<oneshot::Receiver<TurnOutcome>>,
    user_message: String,
}

impl PgChatService {
    /// `max_attempts`: a turn whose worker was lost so often ends in error; `sync_timeout`: longest wait.
    #[expect(clippy::too_many_arguments, reason = "built once, in the composition root")]
    pub fn new(
        db: &Db,
        clock: Arc<dyn Clock>,
        jobs: Arc<Jobs>,
        realtime: Arc<Realtime>,
        assistants: Arc<dyn AssistantService>,
        model: Arc<dyn Model>,
        max_attempts: i32,
        sync_timeout: Duration,
    ) -> Self {
        let turns = Arc::new(Turns {
            db: db.clone(),
            clock: Arc::clone(&clock),
            model: Arc::clone(&model),
            realtime: Arc::clone(&realtime),
            assistants: Arc::clone(&assistants),
            finisher: Finisher::new(db),
            max_attempts,
        });
        let admission = Admission::new(db, Arc::clone(&jobs), Arc::clone(&turns));
        Self { db: db.clone(), clock, jobs, realtime, assistants, model, admission, turns, sync_timeout }
    }

    /// What carries out the turns that this process takes from the table.
    pub fn work(&self) -> Arc<dyn Work> {
        Arc::clone(&self.turns) as Arc<dyn Work>
    }

    async fn begin(
        &self,
        caller: &Caller,
        assistant: &str,
        mut message: NewMessage,
        source: Option<String>,
        once: Option<&Idempotency>,
        wait: bool,
    ) -> Result<Begun> {
        message.check()?;
        let assistant = self.assistants.get(&caller.account, assistant).await?;
        assistant.settings().choose(&*self.model, message.provider.as_deref(), message.model.as_deref())?;
        check_active(&assistant)?;
        let slot = if wait { Some(self.jobs.slot_at_once()) } else { self.jobs.slot() };
        let now = self.clock.now();
        let request = TurnRequest {
            provider: message.provider.take(),
            model: message.model.take(),
            application_state: message.application_state.take(),
            user_uid: caller.user_uid.clone(),
        };
        let (item, had_previous) =
            self.acceptance(caller, &assistant, message, source, &request, slot.is_some(), now)?;
        let mut accepted =
            Accepted { chat_uid: item.subject.clone(), message_uid: item.message_uid.clone(), ignored: Vec::new() };
        let candidate = Candidate {
            account: caller.account.clone(),
            item: item.clone(),
            assistant,
            request,
            slot,
            waits: wait,
            once: once.cloned(),
            accepted: accepted.clone(),
        };
        let Some(admitted) = self.admission.admit(candidate).await? else {
            return Err(self.refusal(&caller.account, &item).await?);
        };
        if had_previous && !admitted.created {
            accepted.ignored.push("previousConversation");
        }
        Ok(Begun { accepted, outcome: admitted.outcome, user_message: item.message })
    }

    #[expect(clippy::too_many_arguments, reason = "one call, all of it known there")]
    fn acceptance(
        &self,
        caller: &Caller,
        assistant: &Assistant,
        message: NewMessage,
        source: Option<String>,
        request: &TurnRequest,
        leased: bool,
        now: Timestamp,
    ) -> Result<(Acceptance, bool)> {
        let subject = message.chat_uid.unwrap_or_else(|| ChatId::generate().into());
        let text = message.message.unwrap_or_default();
        let mut metadata = message.metadata.unwrap_or_default();
        // The misspelt name counts as the right one, and wins where both are given (contract 02 §3).
        if let Some(params) = metadata.remove("propmptTemplateParams") {
            metadata.insert("promptTemplateParams".to_owned(), params);
        }
        if let Some(subtenant) = &message.subtenant_id {
            metadata.insert("subtenantId".to_owned(), subtenant.as_str().into());
        }
        let write = |uid: &str, role, content: MessageContent, user_name: Option<String>, source: Option<&str>| {
            let message = ChatMessage {
                uid: uid.to_owned(),
                chat_uid: subject.clone(),
                role,
                content,
                timestamp: now,
                user_uid: caller.user_uid.clone(),
                user_name,
                content_source: source.map(str::to_owned),
                tool_calls: Vec::new(),
                tool_call_id: None,
                latency_ms: None,
            };
            serde_json::to_string(&message).map_err(Error::internal)
        };
        let mut previous = Vec::new();
        for (position, past) in message.previous_conversation.into_iter().enumerate() {
            let uid = String::from(Id::<MessageKind>::generate());
            let content = MessageContent { message: past.message, ..MessageContent::default() };
            let source = (past.role == platform_runtime::Role::User).then_some("user");
            let body = write(&uid, past.role, content, None, source)?;
            previous.push(PastRow { position, uid, role: past.role.as_str(), body });
        }
        let message_uid = String::from(Id::<MessageKind>::generate());
        let name = title(&text, &message.files);
        let content = MessageContent { message: text, data: None, files: message.files };
        let body = write(&message_uid, platform_runtime::Role::User, content, message.user_name, Some("user"))?;
        let had_previous = !previous.is_empty();
        let item = Acceptance {
            account: caller.account.as_str().to_owned(),
            kind: KIND,
            run: Id::<RunKind>::generate().into(),
            owner: leased.then(|| self.jobs.owner().to_owned()),
            lease_ms: leased.then(|| self.jobs.lease_ms()),
            payload: Arc::new(serde_json::to_value(request).map_err(Error::internal)?),
            assistant: assistant.identifier.clone(),
            name,
            user_uid: caller.user_uid.clone(),
            tenant_id: message.tenant_id,
            subtenant_id: message.subtenant_id,
            api_source: source,
            metadata,
            tags: message.tags,
            previous,
            message_uid,
            message: body,
            now_ms: now.0,
            subject,
        };
        Ok((item, had_previous))
    }

    /// Why a chat did not take a message.
    async fn refusal(&self, account: &AccountId, item: &Acceptance) -> Result<Error> {
        let conn = self.db.read().await?;
        let chat = repository::find(conn.get(), account, &item.subject).await?;
        let Some(chat) = chat.filter(|chat| chat.assistant == item.assistant) else {
            return Ok(not_found(&item.subject));
        };
        let other = |given: &Option<String>, stored: &Option<String>| given.is_some() && given != stored;
        if other(&item.tenant_id, &chat.tenant_id) || other(&item.subtenant_id, &chat.subtenant_id) {
            return Ok(Error::new(Code::TenantMismatch, "This chat belongs to another tenant or subtenant."));
        }
        Ok(Error::new(Code::ChatBusy, "This chat is still answering; send again when its turn has ended.")
            .with("status", chat.status))
    }

    /// The chat, when it is one of this assistant's.
    async fn find(&self, account: &AccountId, assistant: &str, uid: &str) -> Result<ChatRow> {
        let identifier = self.assistants.identifier(account, assistant).await?;
        let conn = self.db.read().await?;
        let chat = repository::find(conn.get(), account, uid).await?;
        chat.filter(|chat| chat.assistant == identifier).ok_or_else(|| not_found(uid))
    }

    /// The end of a turn whose outcome nobody told us: its messages, or `None` when it failed.
    async fn outcome_of(&self, account: &AccountId, uid: &str, message: &str) -> Result<Option<Sent>> {
        let conn = self.db.read().await?;
        let chat = repository::find(conn.get(), account, uid).await?.ok_or_else(|| not_found(uid))?;
        let (position, messages, answered) = repository::turn_of(conn.get(), account, uid, message).await?;
        let is_newest = position >= chat.turn_start;
        if is_newest && chat.status == "processing" {
            return Err(in_progress());
        }
        let failed = if is_newest { chat.status == "error" } else { !answered };
        Ok((!failed).then(|| Sent { chat_uid: uid.to_owned(), messages, ignored: Vec::new() }))
    }

    /// Follows a chat of this assistant.
    async fn watcher(&self, account: &AccountId, assistant: &str, uid: &str, partial: bool) -> Result<Watcher> {
        let assistant = self.assistants.identifier(account, assistant).await?;
        let key = live_key(account, &assistant, uid);
        let source = self.source(account, assistant, uid);
        let mut watcher = self.realtime.watch(key, Arc::new(source), partial);
        if watcher.begin().await? { Ok(watcher) } else { Err(not_found(uid)) }
    }

    fn source(&self, account: &AccountId, assistant: String, uid: &str) -> ChatSource {
        ChatSource { db: self.db.clone(), account: account.clone(), assistant, uid: uid.to_owned() }
    }
}

#[async_trait]
impl ChatService for PgChatService {
    async fn send(
        &self,
        caller: &Caller,
        assistant: &str,
        message: NewMessage,
        source: Option<String>,
        once: Option<&Idempotency>,
    ) -> Result<Accepted> {
        Ok(self.begin(caller, assistant, message, source, once, false).await?.accepted)
    }

    async fn send_and_wait(
        &self,
        caller: &Caller,
        assistant: &str,
        message: NewMessage,
        source: Option<String>,
        once: Option<&Idempotency>,
    ) -> Result<Sent> {
        let begun = self.begin(caller, assistant, message, source, once, true).await?;
        let Accepted { chat_uid, message_uid, ignored } = begun.accepted;
        let outcome = begun.outcome.ok_or_else(|| Error::internal("a turn was accepted without a place"))?;
        match tokio::time::timeout(self.sync_timeout, outcome).await {
            Ok(Ok(TurnOutcome::Done(reply))) => {
                let messages = std::iter::once(StoredJson::message(begun.user_message, None)).chain(reply).collect();
                Ok(Sent { chat_uid, messages, ignored })
            }
            Ok(Ok(TurnOutcome::Failed(fault))) => {
                let code = match fault.code {
                    FaultCode::Timeout => Code::UpstreamTimeout,
                    _ => Code::UpstreamError,
                };
                Err(Error::new(code, fault.message)
                    .with("chatUid", chat_uid)
                    .with("code", fault.code.as_str())
                    .with("provider", &*fault.provider)
                    .with_some("status", fault.status))
            }
            // The lease was lost, or the process is shutting down: somebody else ends the turn.
            Ok(Err(_)) => match self.outcome_of(&caller.account, &chat_uid, &message_uid).await {
                Ok(Some(sent)) => Ok(sent),
                Ok(None) => Err(Error::new(Code::UpstreamError, "The turn failed; read the chat for the reason.")
                    .with("chatUid", &chat_uid)),
                Err(_) => {
                    let message = "The turn goes on elsewhere; read the chat for its reply.";
                    Err(Error::new(Code::ServiceUnavailable, message).with("chatUid", &chat_uid))
                }
            },
            Err(_) => {
                Err(Error::new(Code::UpstreamTimeout, "The turn takes long and goes on; read the chat for its reply.")
                    .with("chatUid", chat_uid))
            }
        }
    }

    async fn replay(&self, account: &AccountId, reference: &str) -> Result<Option<Sent>> {
        let (chat, message) = reference.split_once('/').unwrap_or((reference, ""));
        self.outcome_of(account, chat, message).await
    }

    async fn list(&self, account: &AccountId, mut filter: ChatFilter, page: ChatPage) -> Result<ChatList> {
        filter.check()?;
        if let Some(assistant) = &filter.assistant_specialization_identifier {
            // Chats carry the identifier; an unknown assistant simply has none.
            if let Ok(identifier) = self.assistants.identifier(account, assistant).await {
                filter.assistant_specialization_identifier = Some(identifier);
            }
        }
        let conn = self.db.read().await?;
        let (rows, total) = repository::list(conn.get(), account, &filter, page.page).await?;
        let mut contents: HashMap<String, Vec<StoredJson>> = HashMap::new();
        if !page.omit_content {
            let uids: Vec<String> = rows.iter().map(|row| row.uid.clone()).collect();
            for (uid, message) in repository::contents(conn.get(), account, &uids).await? {
                contents.entry(uid).or_default().push(message);
            }
        }
        let chat = |row: ChatRow| {
            let content = (!page.omit_content).then(|| contents.remove(&row.uid).unwrap_or_default());
            row.into_chat(content)
        };
        let histories = rows.into_iter().map(chat).collect();
        Ok(ChatList { histories, total, offset: page.page.offset, limit: page.page.limit })
    }

    async fn get(&self, account: &AccountId, assistant: &str, uid: &str, omit_content: bool) -> Result<Chat> {
        if omit_content {
            return Ok(self.find(account, assistant, uid).await?.into_chat(None));
        }
        let identifier = self.assistants.identifier(account, assistant).await?;
        let conn = self.db.read().await?;
        let found = repository::find_with_content(conn.get(), account, uid).await?;
        let found = found.filter(|(chat, _)| chat.assistant == identifier);
        let (chat, content) = found.ok_or_else(|| not_found(uid))?;
        Ok(chat.into_chat(Some(content)))
    }

    async fn update(&self, account: &AccountId, assistant: &str, uid: &str, patch: Object) -> Result<Chat> {
        let identifier = self.assistants.identifier(account, assistant).await?;
        let now = self.clock.now();
        let row = self
            .db
            .conn()
            .await?
            .transaction::<_, Error, _>(async |conn| {
                let chat = repository::lock(conn, account, uid).await?;
                let chat = chat.filter(|chat| chat.assistant == identifier).ok_or_else(|| not_found(uid))?;
                let given: Vec<String> = patch.keys().cloned().collect();
                let mut changed: ChatPatch = overlay(&chat.patchable(), patch)?;
                changed.check(&given)?;
                repository::update(conn, account, uid, &changed, now).await
            })
            .await?;
        let conn = self.db.read().await?;
        Ok(row.into_chat(Some(repository::all_content(conn.get(), account, uid).await?)))
    }

    async fn delete(&self, account: &AccountId, assistant: &str, uid: &str) -> Result<()> {
        let identifier = self.assistants.identifier(account, assistant).await?;
        let run = loop {
            let mut conn = self.db.conn().await?;
            let deleted = conn.transaction::<_, Error, _>(async |conn| {
                // The run first, as a turn that ends does: neither waits for the other.
                let run = platform_jobs::cancel_in(conn, account, KIND, uid).await?;
                let chat = repository::lock(conn, account, uid).await?;
                let chat = chat.filter(|chat| chat.assistant == identifier).ok_or_else(|| not_found(uid))?;
                // A message was accepted in between: its run must go, too.
                if chat.status == "processing" && run.is_none() {
                    return Ok(None);
                }
                repository::delete(conn, account, uid).await?;
                Ok(Some(run))
            });
            if let Some(run) = deleted.await? {
                break run;
            }
        };
        self.realtime.deleted(&live_key(account, &identifier, uid));
        if let Some(run) = run {
            self.jobs.cancelled(&run).await?;
        }
        Ok(())
    }

    async fn content(&self, account: &AccountId, assistant: &str, uid: &str, page: Page) -> Result<Vec<StoredJson>> {
        self.find(account, assistant, uid).await?;
        let conn = self.db.read().await?;
        repository::content(conn.get(), account, uid, page).await
    }

    async fn search(&self, account: &AccountId, assistant: &str, uid: &str, text: &str, limit: i64) -> Result<Matches> {
        self.find(account, assistant, uid).await?;
        let conn = self.db.read().await?;
        let (hits, total) = repository::search(conn.get(), account, uid, text, limit).await?;
        let found = |hit: repository::Hit| Match {
            message_uid: hit.uid,
            role: hit.role,
            timestamp: Timestamp(hit.created_ms),
            snippet: snippet(&hit.text, text),
            position: hit.position,
        };
        Ok(Matches { matches: hits.into_iter().map(found).collect(), total })
    }

    async fn tags(&self, account: &AccountId) -> Result<Vec<String>> {
        let conn = self.db.read().await?;
        repository::tags(conn.get(), account).await
    }

    async fn realtime(&self, account: &AccountId, assistant: &str, uid: &str) -> Result<String> {
        use platform_realtime::Source;
        let assistant = self.assistants.identifier(account, assistant).await?;
        // What is being written first: a commit after it is then in the head, and wins.
        let streaming = self.realtime.streaming(&live_key(account, &assistant, uid));
        let head = self.source(account, assistant, uid).head().await?.ok_or_else(|| not_found(uid))?;
        Ok(match streaming.filter(|(revision, ..)| head.revision <= *revision) {
            Some((_, at, message)) => {
                let updated = at.max(head.updated).0;
                format!("{},\"streamingMessage\":{message},\"lastUpdatedAt\":{updated}}}", head.open_object)
            }
            None => head.json(),
        })
    }

    async fn watch(&self, account: &AccountId, assistant: &str, uid: &str, partial: bool) -> Result<Watcher> {
        self.watcher(account, assistant, uid, partial).await
    }

    async fn stop(&self, account: &AccountId, assistant: &str, uid: &str) -> Result<Stopped> {
        let mut watcher = self.watcher(account, assistant, uid, true).await?;
        if !self.jobs.stop(account, KIND, uid).await? {
            return Err(Error::new(Code::ChatNotProcessing, "This chat has no turn to stop."));
        }
        let ended = async {
            while watcher.next().await?.is_some() {}
            Ok::<_, Error>(())
        };
        if let Ok(ended) = tokio::time::timeout(STOP_TIMEOUT, ended).await {
            ended?;
        }
        Ok(Stopped { chat_uid: uid.to_owned(), message: "The turn was stopped; what was written is kept.".to_owned() })
    }

    async fn feedback(&self, account: &AccountId, assistant: &str, uid: &str) -> Result<Vec<Feedback>> {
        self.find(account, assistant, uid).await?;
        let conn = self.db.read().await?;
        let rows = repository::feedback(conn.get(), account, uid).await?;
        Ok(rows.into_iter().map(Feedback::from).collect())
    }

    async fn give_feedback(
        &self,
        caller: &Caller,
        assistant: &str,
        uid: &str,
        new: NewFeedback,
        once: Option<&Idempotency>,
    ) -> Result<(bool, Feedback)> {
        new.check()?;
        self.find(&caller.account, assistant, uid).await?;
        let id = String::from(Id::<FeedbackKind>::generate());
        let now = self.clock.now();
        self.db
            .conn()
            .await?
            .transaction::<_, Error, _>(async |conn| {
                let account = &caller.account;
                if !repository::has_message(conn, account, uid, &new.message_id).await? {
                    return Err(Error::not_found(Code::MessageNotFound, "message", &new.message_id));
                }
                let (first, row) =
                    repository::upsert_feedback(conn, account, uid, &id, &caller.user_uid, &new, now).await?;
                let feedback = Feedback::from(row);
                if let Some(once) = once {
                    once.store(conn, if first { 201 } else { 200 }, &feedback).await?;
                }
                Ok((first, feedback))
            })
            .await
    }
}

fn check_active(assistant: &Assistant) -> Result<()> {
    if assistant.settings().state == AssistantState::Active {
        return Ok(());
    }
    Err(Error::new(Code::AssistantInactive, "This assistant takes no messages; set its state to active."))
}

/// The first 60 characters in one line, until a better title is found.
fn title(text: &str, files: &[crate::turn::File]) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let line = if line.is_empty() { files.first().map(|file| file.name.clone()).unwrap_or_default() } else { line };
    let line = if line.is_empty() { "New chat".to_owned() } else { line };
    line.chars().take(TITLE_CHARACTERS).collect()
}

/// The text around the first occurrence of what was searched.
fn snippet(text: &str, searched: &str) -> String {
    let lower = text.to_lowercase();
    let at = lower.find(&searched.to_lowercase()).map_or(0, |at| lower[..at].chars().count());
    let from = at.saturating_sub(SNIPPET_CHARACTERS / 2);
    text.chars().skip(from).take(SNIPPET_CHARACTERS + searched.chars().count()).collect()
}

fn not_found(uid: &str) -> Error {
    Error::not_found(Code::ChatNotFound, "chat", uid)
}
