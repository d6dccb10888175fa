use std::{collections::HashMap, sync::Arc, time::Duration};

use async_trait::async_trait;
use chrono::NaiveDate;
use diesel_async::AsyncConnection;
use platform_access::{Kind, Place, Resources};
use platform_conversation::{
    Content, ContentPages, ConversationStore, FileFetcher, Matches, NewFeedback, Ports, StoredJson, SubAgentLauncher,
    listed_contents,
};
use platform_core::{
    AccountId, Caller, Clock, Error, FieldLimits, Id, MAX_LISTED, Object, Page, Period, Result, fitting, overlay,
    run_detached,
};
use platform_db::{Db, Idempotency};
use platform_jobs::{Jobs, Work};
use platform_realtime::{Realtime, Watcher};
use platform_tenants::TenantService;

use super::{
    filter::ChatFilter,
    model::{Chat, ChatList, ChatPage, ChatPatch, Compacted, Feedback, Stopped},
    repository::{self, ChatRow},
    source::ChatSource,
};
use crate::{
    assistant::AssistantService,
    code,
    turn::{
        Accepted, Admission, Finisher, Intake, KIND, NewMessage, Responded, Returns, Sent, ToolResponses, Turns,
        abandon_in, check_responses, live_key, respond, stop,
    },
};

/// How long a stop waits for the turn to end.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// Chats of an account: sending, reading, following.
#[async_trait]
pub trait ChatService: Send + Sync {
    /// Accepts a message; its turn is worked in the background. `ASSISTANT_NOT_FOUND`, `ASSISTANT_INACTIVE`, `QUEUE_FULL`,
    /// `CHAT_HANDED_OFF`, `RATE_LIMIT_EXCEEDED` when too many wait.
    async fn send(
        &self,
        caller: &Caller,
        assistant: &str,
        message: NewMessage,
        source: Option<String>,
        once: Option<&Idempotency>,
    ) -> Result<Accepted>;
    /// Accepts a message and waits for the end of its turn, which goes on when the caller leaves. As `send`, and `CHAT_BUSY`
    /// instead of waiting in the queue of the chat, and `TENANT_LIMIT_EXCEEDED`.
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

    /// Chats that the filter keeps, with assistants that the caller may know, newest first.
    async fn list(&self, caller: &Caller, filter: ChatFilter, page: ChatPage) -> Result<ChatList>;
    /// One chat; of a large one its messages are read page by page.
    async fn get(
        &self,
        account: &AccountId,
        assistant: &str,
        uid: &Id<Chat>,
        omit_content: bool,
    ) -> Result<(Chat, Option<ContentPages>)>;
    /// Changes the given fields.
    async fn update(
        &self,
        account: &AccountId,
        assistant: &str,
        uid: &Id<Chat>,
        patch: Object,
    ) -> Result<(Chat, Option<ContentPages>)>;
    /// Takes a chat away; its turn is stopped, its streams end.
    async fn delete(&self, account: &AccountId, assistant: &str, uid: &Id<Chat>) -> Result<()>;
    /// Messages, oldest first, and how many there are.
    async fn content(
        &self,
        account: &AccountId,
        assistant: &str,
        uid: &Id<Chat>,
        page: Page,
    ) -> Result<(Vec<StoredJson>, i32)>;
    /// Messages that hold a text.
    async fn search(
        &self,
        account: &AccountId,
        assistant: &str,
        uid: &Id<Chat>,
        text: &str,
        limit: i64,
    ) -> Result<Matches>;
    /// Tags in use on chats that the caller may know, sorted; `among`, `within`: as in [`ChatFilter`].
    async fn tags(&self, caller: &Caller, among: Option<&[String]>, within: Option<&[String]>) -> Result<Vec<String>>;
    /// How many chats were made in a project, by day or month; `tenant`: by that one alone.
    async fn count_in(
        &self,
        account: &AccountId,
        project: &str,
        tenant: Option<&str>,
        period: Period,
    ) -> Result<Vec<(NaiveDate, i64)>>;
    /// How many chats a tenant has with each assistant; `within`: as in [`ChatFilter`].
    async fn count_by_assistant(
        &self,
        caller: &Caller,
        tenant: &str,
        within: Option<&[String]>,
    ) -> Result<Vec<(String, i64)>>;
    /// The realtime object as JSON.
    async fn realtime(&self, account: &AccountId, assistant: &str, uid: &Id<Chat>) -> Result<String>;
    /// Follows the realtime object.
    async fn watch(&self, account: &AccountId, assistant: &str, uid: &Id<Chat>, partial: bool) -> Result<Watcher>;
    /// Has a summary stand for the older messages, for the model.
    async fn compact(&self, account: &AccountId, assistant: &str, uid: &Id<Chat>) -> Result<Compacted>;
    /// Stops the turn and keeps what was written; what waits is discarded.
    async fn stop(&self, account: &AccountId, assistant: &str, uid: &Id<Chat>) -> Result<Stopped>;
    /// Answers tool calls that wait for the client; the turn goes on when none is left. `denied`: why the caller may not
    /// decide on calls that wait for approval.
    async fn respond(
        &self,
        account: &AccountId,
        assistant: &str,
        uid: &Id<Chat>,
        given: ToolResponses,
        denied: Option<Error>,
        once: Option<&Idempotency>,
    ) -> Result<Responded>;
    /// Feedback on the messages of a chat.
    async fn feedback(&self, account: &AccountId, assistant: &str, uid: &Id<Chat>) -> Result<Vec<Feedback>>;
    /// Gives feedback; `true` when it is the first on that message.
    async fn give_feedback(
        &self,
        caller: &Caller,
        assistant: &str,
        uid: &Id<Chat>,
        new: NewFeedback,
        once: Option<&Idempotency>,
    ) -> Result<(bool, Feedback)>;
}

/// The service on PostgreSQL.
pub struct PgChatService {
    pub(super) db: Db,
    clock: Arc<dyn Clock>,
    jobs: Arc<Jobs>,
    realtime: Arc<Realtime>,
    pub(super) assistants: Arc<dyn AssistantService>,
    pub(super) turns: Arc<Turns>,
    intake: Intake,
    pub(super) config: ChatConfig,
}

/// Settings of chats.
#[derive(Debug, Clone, Copy)]
pub struct ChatConfig {
    /// A turn whose worker was lost so often ends in error.
    pub max_attempts: i32,
    /// How long a turn waits for the client's tools and approvals.
    pub client_tool_timeout: Duration,
    /// Longest wait of a synchronous message.
    pub sync_timeout: Duration,
    /// Largest frame of a stream, in bytes; 0 = no bound.
    pub frame_bytes: usize,
    /// Sizes of fields.
    pub limits: FieldLimits,
}

impl PgChatService {
    /// Needs what turns work with, durable runs, the assistants, the tenants and what fetches files.
    pub fn new(
        ports: Ports,
        hand_offs: Arc<dyn SubAgentLauncher>,
        jobs: Arc<Jobs>,
        assistants: Arc<dyn AssistantService>,
        tenants: Arc<dyn TenantService>,
        files: FileFetcher,
        config: ChatConfig,
    ) -> Self {
        let (db, clock) = (ports.db.clone(), Arc::clone(&ports.clock));
        let turns = Arc::new(Turns {
            ports: ports.clone(),
            hand_offs,
            jobs: Arc::clone(&jobs),
            assistants: Arc::clone(&assistants),
            finisher: Finisher::new(&db),
            max_attempts: config.max_attempts,
            client_tool_timeout: config.client_tool_timeout,
        });
        let intake = Intake {
            db: db.clone(),
            clock: Arc::clone(&clock),
            jobs: Arc::clone(&jobs),
            catalog: ports.catalog,
            budget: ports.budget,
            dictations: ports.dictations,
            tenants,
            assistants: Arc::clone(&assistants),
            toolbox: ports.toolbox,
            children: ports.children,
            files,
            limits: config.limits,
            admission: Admission::new(&db, Arc::clone(&jobs), Arc::clone(&turns)),
            refused: Intake::none_refused(),
        };
        Self { db, clock, jobs, realtime: ports.realtime, assistants, turns, intake, config }
    }

    /// What carries out the runs that this process takes from the table.
    pub fn works(&self) -> Vec<Arc<dyn Work>> {
        vec![Arc::clone(&self.turns) as Arc<dyn Work>, Arc::new(Returns(Arc::clone(&self.turns)))]
    }

    /// The chat, when it is one of this assistant's.
    pub(super) async fn find(&self, account: &AccountId, assistant: &str, uid: &str) -> Result<ChatRow> {
        let identifier = self.assistants.identifier(account, assistant).await?;
        let conn = self.db.read().await?;
        let chat = repository::find(conn.get(), account, uid).await?;
        chat.filter(|chat| chat.assistant == identifier).ok_or_else(|| not_found(uid))
    }

    /// Follows a chat of this assistant.
    pub(super) async fn watcher(
        &self,
        account: &AccountId,
        assistant: &str,
        uid: &str,
        partial: bool,
    ) -> Result<Watcher> {
        let assistant = self.assistants.identifier(account, assistant).await?;
        let key = live_key(account, &assistant, uid);
        let source = self.source(account, assistant, uid);
        let mut watcher = self.realtime.watch(key, Arc::new(source), partial);
        if watcher.begin().await? { Ok(watcher) } else { Err(not_found(uid)) }
    }

    fn source(&self, account: &AccountId, assistant: String, uid: &str) -> ChatSource {
        let (db, frame_bytes) = (self.db.clone(), self.config.frame_bytes);
        ChatSource { db, account: account.clone(), assistant, uid: uid.to_owned(), frame_bytes }
    }
}

/// Chats.
pub const CHAT: Kind = Kind::placed("chat");

#[async_trait]
impl Resources for PgChatService {
    async fn place(&self, account: &AccountId, uid: &str) -> Result<Option<Place>> {
        // Its project is that of its assistant, which stands before it wherever it is named.
        repository::place(self.db.read().await?.get(), account, uid).await
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
        let taken = self.intake.take(caller, assistant, message, source, once, false).await?;
        if let Some((assistant, revision)) = taken.queued_at {
            self.realtime.changed(&live_key(&caller.account, &assistant, &taken.accepted.chat_uid), revision);
        }
        Ok(taken.accepted)
    }

    async fn send_and_wait(
        &self,
        caller: &Caller,
        assistant: &str,
        message: NewMessage,
        source: Option<String>,
        once: Option<&Idempotency>,
    ) -> Result<Sent> {
        let taken = self.intake.take(caller, assistant, message, source, once, true).await?;
        self.end_of(&caller.account, assistant, taken).await
    }

    async fn replay(&self, account: &AccountId, reference: &str) -> Result<Option<Sent>> {
        let (chat, message) = reference.split_once('/').unwrap_or((reference, ""));
        self.outcome_of(account, chat, message).await
    }

    async fn list(&self, caller: &Caller, mut filter: ChatFilter, page: ChatPage) -> Result<ChatList> {
        let account = &caller.account;
        filter.check()?;
        if let Some(assistant) = &filter.assistant_specialization_identifier {
            // Chats carry the identifier; an unknown assistant simply has none.
            if let Ok(identifier) = self.assistants.identifier(account, assistant).await {
                filter.assistant_specialization_identifier = Some(identifier);
            }
        }
        let mut conn = self.db.fair_conn(account).await?;
        let (mut rows, total) = repository::list(&mut conn, caller, &filter, page.page).await?;
        let mut limit = page.page.limit;
        if page.omit_content {
            rows.iter_mut().for_each(ChatRow::leave_memories);
        }
        let noted = fitting(rows.iter().map(ChatRow::noted_bytes), MAX_LISTED / 2);
        if noted < rows.len() {
            limit = i64::try_from(noted).unwrap_or(limit);
            rows.truncate(noted);
        }
        let mut by_chat = HashMap::new();
        if !page.omit_content {
            let uids: Vec<String> = rows.iter().map(|row| row.uid.clone()).collect();
            let (fits, contents) = listed_contents(&conn, account, &uids).await?;
            // The page is shorter then, and says so; who goes on by its limit misses nothing.
            if fits < rows.len() {
                limit = i64::try_from(fits).unwrap_or(limit);
                rows.truncate(fits);
            }
            by_chat = contents;
        }
        let chat = |row: ChatRow| {
            let content = by_chat.remove(&row.uid);
            row.into_chat(content)
        };
        let histories = rows.into_iter().map(chat).collect::<Result<_>>()?;
        Ok(ChatList { histories, total, offset: page.page.offset, limit })
    }

    async fn get(
        &self,
        account: &AccountId,
        assistant: &str,
        uid: &Id<Chat>,
        omit_content: bool,
    ) -> Result<(Chat, Option<ContentPages>)> {
        if omit_content {
            return Ok((self.find(account, assistant, uid).await?.into_chat(None)?, None));
        }
        let identifier = self.assistants.identifier(account, assistant).await?;
        let conn = self.db.read().await?;
        let found = repository::find_with_content(conn.get(), account, uid).await?;
        let found = found.filter(|(chat, _)| chat.assistant == identifier);
        let (chat, content) = found.ok_or_else(|| not_found(uid))?;
        let pages = content.is_none().then(|| ContentPages::new(&self.db, account, uid));
        Ok((chat.into_chat(content)?, pages))
    }

    async fn update(
        &self,
        account: &AccountId,
        assistant: &str,
        uid: &Id<Chat>,
        patch: Object,
    ) -> Result<(Chat, Option<ContentPages>)> {
        let given: Vec<String> = patch.keys().cloned().collect();
        // What is wrong in any case is said before the chat is looked for.
        overlay(&ChatPatch::blank(), patch.clone())?.check(&given, &self.config.limits)?;
        let identifier = self.assistants.identifier(account, assistant).await?;
        let now = self.clock.now();
        let row = self
            .db
            .conn()
            .await?
            .transaction::<_, Error, _>(async |conn| {
                let chat = repository::lock(conn, account, uid).await?;
                let chat = chat.filter(|chat| chat.assistant == identifier).ok_or_else(|| not_found(uid))?;
                let mut changed = overlay(&chat.patchable(), patch)?;
                changed.check(&given, &self.config.limits)?;
                chat.pin(&mut changed.metadata);
                let renames = given.iter().any(|name| name == "name");
                repository::update(conn, account, uid, &changed, renames, now).await
            })
            .await?;
        let (content, pages) = Content::read(&self.db, account, uid).await?.apart();
        Ok((row.into_chat(content)?, pages))
    }

    async fn delete(&self, account: &AccountId, assistant: &str, uid: &Id<Chat>) -> Result<()> {
        let identifier = self.assistants.identifier(account, assistant).await?;
        let run = loop {
            let mut conn = self.db.conn().await?;
            let deleted = conn.transaction::<_, Error, _>(async |conn| {
                // The run first, as a turn that ends does: neither waits for the other.
                let run = platform_jobs::cancel_in(conn, account, KIND, uid).await?;
                let chat = repository::lock(conn, account, uid).await?;
                let chat = chat.filter(|chat| chat.assistant == identifier).ok_or_else(|| not_found(uid))?;
                // A message was accepted in between: its run must go, too.
                if !chat.status().is_terminal() && run.is_none() {
                    return Ok(None);
                }
                for open in chat.open_calls()? {
                    abandon_in(conn, account, &open).await?;
                }
                repository::delete(conn, account, uid).await?;
                Ok(Some(run))
            });
            if let Some(run) = deleted.await? {
                break run;
            }
        };
        self.jobs.announce();
        self.realtime.deleted(&live_key(account, &identifier, uid));
        if let Some(run) = run {
            self.jobs.stopped(&run).await?;
        }
        Ok(())
    }

    async fn content(
        &self,
        account: &AccountId,
        assistant: &str,
        uid: &Id<Chat>,
        page: Page,
    ) -> Result<(Vec<StoredJson>, i32)> {
        let chat = self.find(account, assistant, uid).await?;
        let conn = self.db.read().await?;
        Ok((ConversationStore::of(account, uid).content(conn.get(), page).await?, chat.message_count))
    }

    async fn search(
        &self,
        account: &AccountId,
        assistant: &str,
        uid: &Id<Chat>,
        text: &str,
        limit: i64,
    ) -> Result<Matches> {
        self.find(account, assistant, uid).await?;
        ConversationStore::of(account, uid).search(&*self.db.fair_conn(account).await?, text, limit).await
    }

    async fn tags(&self, caller: &Caller, among: Option<&[String]>, within: Option<&[String]>) -> Result<Vec<String>> {
        repository::tags(&*self.db.fair_conn(&caller.account).await?, caller, among, within).await
    }

    async fn count_in(
        &self,
        account: &AccountId,
        project: &str,
        tenant: Option<&str>,
        period: Period,
    ) -> Result<Vec<(NaiveDate, i64)>> {
        repository::count_in(&*self.db.fair_conn(account).await?, account, project, tenant, period).await
    }

    async fn count_by_assistant(
        &self,
        caller: &Caller,
        tenant: &str,
        within: Option<&[String]>,
    ) -> Result<Vec<(String, i64)>> {
        repository::count_by_assistant(&*self.db.fair_conn(&caller.account).await?, caller, tenant, within).await
    }

    async fn realtime(&self, account: &AccountId, assistant: &str, uid: &Id<Chat>) -> Result<String> {
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

    async fn watch(&self, account: &AccountId, assistant: &str, uid: &Id<Chat>, partial: bool) -> Result<Watcher> {
        self.watcher(account, assistant, uid, partial).await
    }

    async fn compact(&self, account: &AccountId, assistant: &str, uid: &Id<Chat>) -> Result<Compacted> {
        self.compact_now(account, assistant, uid).await
    }

    async fn stop(&self, account: &AccountId, assistant: &str, uid: &Id<Chat>) -> Result<Stopped> {
        let mut watcher = self.watcher(account, assistant, uid, true).await?;
        let stopped = stop(&self.db, account, uid, self.clock.now()).await?.ok_or_else(|| not_found(uid))?;
        let identifier = self.assistants.identifier(account, assistant).await?;
        self.realtime.changed(&live_key(account, &identifier, uid), stopped.revision);
        if let Some(run) = &stopped.run {
            self.jobs.stopped(run).await?;
        }
        if !stopped.ended {
            let ended = async {
                while watcher.next().await?.is_some() {}
                Ok::<_, Error>(())
            };
            if let Ok(ended) = tokio::time::timeout(STOP_TIMEOUT, ended).await {
                ended?;
            }
        }
        let message = match stopped.discarded.len() {
            0 => "The turn was stopped; what was written is kept.".to_owned(),
            waiting => format!("The turn was stopped; what was written is kept, {waiting} waiting messages are not."),
        };
        Ok(Stopped { chat_uid: uid.to_string(), message, discarded_messages: stopped.discarded })
    }

    async fn respond(
        &self,
        account: &AccountId,
        assistant: &str,
        uid: &Id<Chat>,
        given: ToolResponses,
        denied: Option<Error>,
        once: Option<&Idempotency>,
    ) -> Result<Responded> {
        check_responses(&given, &self.intake.children, account).await?;
        let identifier = self.assistants.identifier(account, assistant).await?;
        let (db, jobs, account) = (self.db.clone(), Arc::clone(&self.jobs), account.clone());
        let (chat, name, once, now) = (uid.to_owned(), identifier.clone(), once.cloned(), self.clock.now());
        let key = live_key(&account, &identifier, uid);
        // A task of its own: a turn that was told to go on is begun when the caller leaves in between.
        let responded = run_detached("respond", async move {
            let responded = respond(&db, &account, &name, &chat, &given, denied, once.as_ref(), now).await?;
            if matches!(&responded, Some((Responded { pending: 0, .. }, _))) {
                jobs.announce();
            }
            Ok(responded)
        });
        let (responded, revision) = responded.await?.ok_or_else(|| not_found(uid))?;
        self.realtime.changed(&key, revision);
        Ok(responded)
    }

    async fn feedback(&self, account: &AccountId, assistant: &str, uid: &Id<Chat>) -> Result<Vec<Feedback>> {
        self.find(account, assistant, uid).await?;
        let conn = self.db.read().await?;
        let given = ConversationStore::of(account, uid).feedback(conn.get()).await?;
        Ok(given.into_iter().map(|given| Feedback { given, chat_uid: uid.to_string() }).collect())
    }

    async fn give_feedback(
        &self,
        caller: &Caller,
        assistant: &str,
        uid: &Id<Chat>,
        new: NewFeedback,
        once: Option<&Idempotency>,
    ) -> Result<(bool, Feedback)> {
        new.check()?;
        self.find(&caller.account, assistant, uid).await?;
        let now = self.clock.now();
        self.db
            .conn()
            .await?
            .transaction::<_, Error, _>(async |conn| {
                let (first, given) = ConversationStore::of(&caller.account, uid)
                    .give_feedback(conn, &caller.user_uid, &new, now)
                    .await?;
                let feedback = Feedback { given, chat_uid: uid.to_string() };
                if let Some(once) = once {
                    once.store(conn, if first { 201 } else { 200 }, &feedback).await?;
                }
                Ok((first, feedback))
            })
            .await
    }
}

pub(super) fn not_found(uid: &str) -> Error {
    Error::not_found(code::CHAT_NOT_FOUND, "chat", uid)
}
