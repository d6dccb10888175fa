use chrono::NaiveDate;
use diesel::{
    define_sql_function,
    dsl::sql,
    prelude::*,
    result::Error as DieselError,
    sql_types::{BigInt, Bool, Date, Text},
};
use diesel_async::{AsyncConnection, RunQueryDsl};
use platform_access::Place;
use platform_conversation::{
    Compaction, Conversation, ConversationStore, StoredJson, Texts, TextsRead, TokenUsage, UserMessage, add_secondary,
    compactions, has_compactions, open_calls,
};
use platform_core::{AccountId, Caller, Error, Object, Owner, Page, Period, Result, Timestamp};
use platform_db::{Conn, Db};
use platform_runtime::{CallState, Later, MemoryPrompt, OpenCall, Payer, SecondaryCall, Spender};
use serde::Deserialize;
use serde_json::{Value, json};

pub(crate) use super::model::{HANDED_OFF, LIMIT_EXCEEDED, Status, WAITING, waiting_reason};
use super::{
    filter::{ChatFilter, assistants_beyond, assistants_of, known_to},
    model::{Chat, ChatPatch, GuardrailResults},
};
use crate::{schema::chats, turn::TurnChat};

const MAX_TAGS: i64 = 1000;

define_sql_function! {
    /// When a chat was last changed is never set back, so that the times of its messages only rise.
    fn greatest(a: BigInt, b: BigInt) -> BigInt;
}

#[derive(Queryable, Selectable)]
#[diesel(table_name = chats)]
pub(crate) struct ChatRow {
    account_id: String,
    pub uid: String,
    pub assistant: String,
    name: String,
    archived: bool,
    pub status: String,
    pub stop_reason: Option<String>,
    pub error: Option<String>,
    user_uid: String,
    pub tenant_id: Option<String>,
    pub subtenant_id: Option<String>,
    api_source: Option<String>,
    metadata: Value,
    tags: Vec<String>,
    provider: Option<String>,
    llm: Option<String>,
    context_window: i64,
    input_tokens: i64,
    output_tokens: i64,
    usage: Option<String>,
    pub revision: i64,
    pub message_count: i32,
    pub turn_start: i32,
    created_ms: i64,
    pub edited_ms: i64,
    named: bool,
    pub queued: i32,
    guardrails: Option<String>,
    compactions: Option<String>,
    secondary: Option<Value>,
    open_calls: Option<String>,
    noted: Option<Value>,
}

impl ChatRow {
    /// What its turns were told from memory is not shown.
    pub fn leave_memories(&mut self) {
        if let Some(noted) = self.noted.as_mut().and_then(Value::as_object_mut) {
            noted.retain(|name, _| name == "trigger");
        }
    }

    /// What was recalled in it.
    pub fn recalled(&self) -> Vec<Object> {
        self.noted.as_ref().map_or_else(Vec::new, |noted| memories_of(noted, "recalled"))
    }

    /// Bytes of that.
    pub fn noted_bytes(&self) -> usize {
        self.noted.as_ref().map_or(0, |noted| noted.to_string().len())
    }

    pub fn status(&self) -> Status {
        Status::of(&self.status)
    }

    /// Messages wait until there is quota again.
    pub fn awaits_quota(&self) -> bool {
        self.status == LIMIT_EXCEEDED && self.queued > 0
    }

    fn token_usage(&self) -> StoredJson {
        let Some(secondary) = self.secondary.clone() else {
            return StoredJson::from_text(self.usage.clone().unwrap_or_else(no_usage));
        };
        let usage = self.usage.as_deref().and_then(|usage| serde_json::from_str::<TokenUsage>(usage).ok());
        let usage = usage.unwrap_or_default().with_secondary(&object(secondary));
        StoredJson::from_text(serde_json::to_string(&usage).unwrap_or_else(|_| no_usage()))
    }

    /// While the chat waits for a sub-agent: its thread, and the call that gave it the work.
    pub fn handed_off(&self) -> Result<Option<(String, String)>> {
        if self.status() != Status::HandedOff {
            return Ok(None);
        }
        Ok(self.open_calls()?.into_iter().find_map(|open| match open.state {
            CallState::Awaits(Later::Thread(thread)) => Some((thread, open.call.id)),
            _ => None,
        }))
    }

    pub fn into_chat(self, content: Option<Vec<StoredJson>>) -> Result<Chat> {
        let (sub_thread, tool_call) = self.handed_off()?.unzip();
        let is_limited = self.status == LIMIT_EXCEEDED;
        let limit = self.error.as_deref().filter(|_| is_limited).and_then(|of| serde_json::from_str::<Value>(of).ok());
        let resets_at = limit.and_then(|limit| limit["resetsAt"].as_i64()).map(Timestamp);
        Ok(Chat {
            recalled_memories: self.recalled(),
            paused_until: resets_at,
            paused_reason: is_limited.then_some(platform_runtime::code::TENANT_LIMIT_EXCEEDED.as_str()),
            handed_off: sub_thread.is_some(),
            handed_off_sub_thread_id: sub_thread,
            handed_off_tool_call_id: tool_call,
            token_usage: self.token_usage(),
            guardrail_results: self.guardrails.as_deref().map(GuardrailResults::of),
            compactions: compactions(self.compactions.as_deref())?,
            uid: self.uid,
            client_uid: self.account_id,
            user_uid: self.user_uid,
            name: self.name,
            archived: self.archived,
            assistant_specialization_identifier: self.assistant,
            chat_content: content,
            creation_timestamp_ms: Timestamp(self.created_ms),
            last_edit_timestamp_ms: Timestamp(self.edited_ms),
            // Until a provider has answered it is the model that is asked.
            llm: self.llm.filter(|_| self.provider.is_some()).unwrap_or_default(),
            provider: self.provider.unwrap_or_default(),
            context_window: self.context_window,
            input_tokens: self.input_tokens,
            output_tokens: self.output_tokens,
            metadata: object(self.metadata),
            tags: self.tags,
            tenant_id: self.tenant_id,
            subtenant_id: self.subtenant_id,
            api_source: self.api_source,
            status: self.status,
            stop_reason: self.stop_reason,
            trigger_source: self.noted.as_ref().and_then(|noted| noted["trigger"].as_object().cloned()),
            core_memories: self.noted.as_ref().map_or_else(Vec::new, |noted| memories_of(noted, "core")),
        })
    }

    /// The end user it belongs to stays noted, whatever else is.
    pub fn pin(&self, metadata: &mut Object) {
        if let Some(subtenant) = &self.subtenant_id {
            metadata.insert("subtenantId".to_owned(), subtenant.as_str().into());
        }
    }

    pub fn patchable(&self) -> ChatPatch {
        ChatPatch {
            name: self.name.clone(),
            archived: self.archived,
            tags: self.tags.clone(),
            metadata: object(self.metadata.clone()),
        }
    }

    /// Calls of the newest answer that have no result yet.
    pub fn open_calls(&self) -> Result<Vec<OpenCall>> {
        open_calls(self.open_calls.as_deref())
    }

    pub fn into_turn_chat(self) -> Result<TurnChat> {
        let usage = self.usage.as_deref().map(serde_json::from_str).transpose().map_err(Error::internal)?;
        let (status, open) = (self.status(), self.open_calls()?);
        let answered =
            |open: &OpenCall| matches!(open.state, CallState::Approved | CallState::Rejected | CallState::Answered(_));
        Ok(TurnChat {
            conversation: Conversation {
                is_late: status == Status::Waiting,
                has_waited: status == Status::Waiting || open.iter().any(answered),
                account: AccountId::named(&self.account_id),
                key: self.uid.clone(),
                uid: self.uid,
                open,
                newest: Timestamp(self.edited_ms),
                revision: self.revision,
                message_count: self.message_count,
                turn_start: self.turn_start,
                usage: usage.unwrap_or_default(),
                metadata: object(self.metadata),
                guardrails: self.guardrails,
                compactions: compactions(self.compactions.as_deref())?,
                memory_prompt: self.noted.as_ref().and_then(|noted| memory_prompt(noted, self.turn_start)),
                payer: Payer {
                    account: AccountId::named(&self.account_id),
                    tenant_id: self.tenant_id,
                    subtenant_id: self.subtenant_id,
                    // Whoever works on the chat knows its assistant.
                    project_id: None,
                    spender: Spender::Assistant { identifier: self.assistant.clone(), id: self.assistant.clone() },
                },
            },
            assistant: self.assistant,
            status,
            named: self.named,
        })
    }
}

fn no_usage() -> String {
    serde_json::to_string(&TokenUsage::default()).expect("numbers are JSON")
}

/// What is noted of memory under a name.
fn memories_of(noted: &Value, name: &str) -> Vec<Object> {
    let noted = noted[name].as_array().into_iter().flatten();
    noted.filter_map(|record| record.as_object().cloned()).collect()
}

/// What the turn that begins at a position was told of memory, if it waited since.
fn memory_prompt(noted: &Value, turn_start: i32) -> Option<MemoryPrompt> {
    MemoryPrompt::deserialize(&noted["prompt"]).ok().filter(|prompt| prompt.turn_start == turn_start)
}

fn object(value: Value) -> Object {
    match value {
        Value::Object(object) => object,
        _ => Object::new(),
    }
}

/// Notes the trigger that a chat began with.
pub(crate) async fn note_trigger(conn: &mut Conn, account: &AccountId, uid: &str, trigger: &Object) -> Result<()> {
    let noted = chats::noted.eq(json!({"trigger": trigger}));
    diesel::update(by_uid(account.as_str(), uid)).set(noted).execute(conn).await?;
    Ok(())
}

#[diesel::dsl::auto_type(no_type_alias)]
pub(crate) fn by_uid<'a>(account: &'a str, uid: &'a str) -> _ {
    chats::table.filter(chats::account_id.eq(account)).filter(chats::uid.eq(uid))
}

pub(crate) async fn find(conn: &Conn, account: &AccountId, uid: &str) -> Result<Option<ChatRow>> {
    let mut conn = conn;
    Ok(by_uid(account.as_str(), uid).select(ChatRow::as_select()).first(&mut conn).await.optional()?)
}

pub(crate) async fn turn_chat(conn: &Conn, account: &AccountId, uid: &str) -> Result<Option<TurnChat>> {
    find(conn, account, uid).await?.map(ChatRow::into_turn_chat).transpose()
}

pub(crate) async fn lock(conn: &mut Conn, account: &AccountId, uid: &str) -> Result<Option<ChatRow>> {
    let chat = by_uid(account.as_str(), uid).for_update().select(ChatRow::as_select());
    Ok(chat.first(conn).await.optional()?)
}

pub(crate) async fn revision(conn: &Conn, account: &AccountId, uid: &str) -> Result<Option<i64>> {
    let mut conn = conn;
    Ok(by_uid(account.as_str(), uid).select(chats::revision).first(&mut conn).await.optional()?)
}

/// How long it is looked through what chats say or note, in a transaction.
pub(crate) const LOOK_TIMEOUT: &str = "SET LOCAL statement_timeout = '3s'";

pub(crate) async fn list(
    conn: &mut Conn,
    caller: &Caller,
    filter: &ChatFilter,
    page: Page,
) -> Result<(Vec<ChatRow>, i64)> {
    // PostgreSQL holds each element of a list against each that is stored.
    if filter.listed_elements() == 0 {
        return Ok(page_of(conn, caller, filter, page).await?);
    }
    let listing = conn.transaction::<_, Error, _>(async |conn| {
        diesel::sql_query(LOOK_TIMEOUT).execute(conn).await?;
        match page_of(conn, caller, filter, page).await {
            Err(DieselError::DatabaseError(_, told)) if told.message().ends_with("due to statement timeout") => {
                let message = "metadata: to look for its lists takes more than 3 s; ask for less, or for fewer chats";
                Err(Error::invalid("metadata", "limit", message))
            }
            found => Ok(found?),
        }
    });
    listing.await
}

async fn page_of(conn: &Conn, caller: &Caller, filter: &ChatFilter, page: Page) -> QueryResult<(Vec<ChatRow>, i64)> {
    let (mut first, mut second) = (conn, conn);
    let rows = chats::table
        .filter(filter.condition(caller))
        .order((chats::created_ms.desc(), chats::uid.desc()))
        .limit(page.limit)
        .offset(page.offset)
        .select(ChatRow::as_select());
    let total = chats::table.filter(filter.condition(caller)).count();
    futures_util::try_join!(rows.load(&mut first), total.get_result(&mut second))
}

pub(crate) async fn update(
    conn: &mut Conn,
    account: &AccountId,
    uid: &str,
    patch: &ChatPatch,
    renames: bool,
    now: Timestamp,
) -> Result<ChatRow> {
    let chat = chats::table.filter(chats::account_id.eq(account.as_str()).and(chats::uid.eq(uid)));
    Ok(diesel::update(chat)
        .set((
            chats::name.eq(&patch.name),
            chats::named.eq(sql::<Bool>("named OR ").bind::<Bool, _>(renames)),
            chats::archived.eq(patch.archived),
            chats::tags.eq(&patch.tags),
            chats::metadata.eq(Value::Object(patch.metadata.clone())),
            chats::edited_ms.eq(greatest(chats::edited_ms, now.0)),
        ))
        .returning(ChatRow::as_returning())
        .get_result(conn)
        .await?)
}

pub(crate) async fn delete(conn: &mut Conn, account: &AccountId, uid: &str) -> Result<()> {
    ConversationStore::of(account, uid).delete(conn).await?;
    let chat = chats::table.filter(chats::account_id.eq(account.as_str()).and(chats::uid.eq(uid)));
    diesel::delete(chat).execute(conn).await?;
    Ok(())
}

/// Chats of an assistant that have a turn under way, or messages that wait for one.
pub(crate) async fn at_work(conn: &mut Conn, account: &AccountId, assistant: &str) -> Result<Vec<String>> {
    Ok(chats::table
        .filter(chats::account_id.eq(account.as_str()).and(chats::assistant.eq(assistant)))
        .filter(chats::status.ne_all(["completed", "error", "limit_exceeded"]).or(chats::queued.gt(0)))
        .select(chats::uid)
        .load(conn)
        .await?)
}

/// How many chats a tenant has with each assistant that the caller may know.
pub(crate) async fn count_by_assistant(
    conn: &Conn,
    caller: &Caller,
    tenant: &str,
    within: Option<&[String]>,
) -> Result<Vec<(String, i64)>> {
    let (mut conn, account) = (conn, &caller.account);
    let is_known = known_to(account, caller).unwrap_or_else(|| Box::new(true.into_sql::<Bool>()));
    let is_within = chats::assistant.ne_all(assistants_beyond(account, within.unwrap_or_default()));
    Ok(chats::table
        .filter(chats::account_id.eq(account.as_str()).and(chats::tenant_id.eq(tenant)))
        .filter(is_within.or(within.is_none().into_sql::<Bool>()))
        .filter(is_known)
        .group_by(chats::assistant)
        .order(chats::assistant)
        .select((chats::assistant, diesel::dsl::count_star()))
        .load(&mut conn)
        .await?)
}

/// How many chats were made in a project, by day or month.
pub(crate) async fn count_in(
    conn: &Conn,
    account: &AccountId,
    project: &str,
    tenant: Option<&str>,
    period: Period,
) -> Result<Vec<(NaiveDate, i64)>> {
    let (mut conn, moments) = (conn, period.moments());
    let begins = sql::<Date>(&period.beginning("created_ms"));
    Ok(chats::table
        .filter(chats::account_id.eq(account.as_str()).and(chats::archived.eq_any([false, true])))
        .filter(chats::assistant.eq_any(assistants_of(account, project)))
        .filter(chats::created_ms.ge(moments.start.0).and(chats::created_ms.lt(moments.end.0)))
        .filter(chats::tenant_id.eq(tenant).assume_not_null().or(tenant.is_none().into_sql::<Bool>()))
        .group_by(begins.clone())
        .select((begins, diesel::dsl::count_star()))
        .load(&mut conn)
        .await?)
}

/// Where a chat is: whose it is, and who began it.
pub(crate) async fn place(conn: &Conn, account: &AccountId, uid: &str) -> Result<Option<Place>> {
    let mut conn = conn;
    let columns = (chats::tenant_id, chats::subtenant_id, chats::user_uid);
    let row = by_uid(account.as_str(), uid).select(columns).first(&mut conn).await.optional()?;
    Ok(row.map(|(tenant_id, subtenant_id, user)| Place {
        project: None,
        owner: Some(Owner { tenant_id, subtenant_id }),
        started_by: Some(user),
    }))
}

/// Tags in use; `among`, `within`: as in [`ChatFilter`].
pub(crate) async fn tags(
    conn: &Conn,
    caller: &Caller,
    among: Option<&[String]>,
    within: Option<&[String]>,
) -> Result<Vec<String>> {
    let (mut conn, account) = (conn, &caller.account);
    let mut tagged =
        chats::table.filter(chats::account_id.eq(account.as_str()).and(sql::<Bool>("tags <> '{}'"))).into_boxed();
    if let Some(known) = known_to(account, caller) {
        tagged = tagged.filter(known);
    }
    if let Some(session) = caller.session() {
        tagged = tagged.filter(chats::tenant_id.eq(&session.tenant_id));
        if let Some(subtenant) = &session.subtenant_id {
            tagged = tagged.filter(chats::subtenant_id.eq(subtenant));
        }
    }
    if let Some(among) = among {
        tagged = tagged.filter(chats::assistant.eq_any(among));
    }
    if let Some(within) = within {
        tagged = tagged.filter(chats::assistant.ne_all(assistants_beyond(account, within)));
    }
    Ok(tagged
        .select(sql::<Text>("unnest(tags) AS tag"))
        .distinct()
        .order(sql::<Text>("tag"))
        .limit(MAX_TAGS)
        .load(&mut conn)
        .await?)
}

/// A chat with all its messages, in one statement.
pub(crate) async fn find_with_content(
    conn: &Conn,
    account: &AccountId,
    uid: &str,
) -> Result<Option<(ChatRow, Option<Vec<StoredJson>>)>> {
    let mut conn = conn;
    let (content, took) = (Texts::messages(account, uid).unless_large(), Texts::accountings(account, uid));
    let row: Option<(ChatRow, Option<TextsRead>, TextsRead)> = by_uid(account.as_str(), uid)
        .select((ChatRow::as_select(), content, took))
        .first(&mut conn)
        .await
        .optional()?;
    Ok(row.map(|(chat, bodies, took)| (chat, bodies.map(|bodies| StoredJson::messages(bodies, took)))))
}

/// A chat as watchers see it, at one moment: its messages without what they took, and what is queued.
pub(crate) async fn find_with_queue(
    conn: &Conn,
    account: &AccountId,
    uid: &str,
) -> Result<Option<(ChatRow, Vec<String>, Vec<String>)>> {
    let mut conn = conn;
    let (content, queue) = (Texts::shown(account, uid), Texts::queued(account, uid));
    let row: Option<(ChatRow, TextsRead, TextsRead)> = by_uid(account.as_str(), uid)
        .select((ChatRow::as_select(), content, queue))
        .first(&mut conn)
        .await
        .optional()?;
    let whole = |texts: TextsRead| texts.into_iter().flatten().collect();
    Ok(row.map(|(chat, bodies, queue)| (chat, whole(bodies), whole(queue))))
}

/// Adds secondary calls to what the chat took.
pub(crate) async fn charge(db: &Db, account: &AccountId, uid: &str, asked: &[SecondaryCall]) -> Result<()> {
    if asked.is_empty() {
        return Ok(());
    }
    charge_in(&mut *db.conn().await?, account, uid, asked).await
}

/// The same in the caller's transaction.
pub(crate) async fn charge_in(conn: &mut Conn, account: &AccountId, uid: &str, asked: &[SecondaryCall]) -> Result<()> {
    if asked.is_empty() {
        return Ok(());
    }
    let chat = by_uid(account.as_str(), uid);
    let charged = diesel::update(chat).set(chats::secondary.eq(add_secondary(asked)));
    charged.execute(conn).await?;
    Ok(())
}

/// Keeps a compaction on top of the `known` ones; `false` when another was faster.
pub(crate) async fn add_compaction(
    db: &Db,
    account: &AccountId,
    uid: &str,
    known: usize,
    compaction: &Compaction,
) -> Result<bool> {
    let chat = by_uid(account.as_str(), uid).filter(has_compactions(known));
    let kept = diesel::update(chat).set(chats::compactions.eq(platform_conversation::add_compaction(compaction)?));
    Ok(kept.execute(&mut *db.conn().await?).await? == 1)
}

/// Keeps the title and the summaries of messages that secondary calls made, and what they took.
pub(crate) async fn note(
    db: &Db,
    account: &AccountId,
    uid: &str,
    title: Option<(&UserMessage, &str)>,
    summaries: &[(&UserMessage, &str)],
    asked: &[SecondaryCall],
) -> Result<()> {
    let mut conn = db.conn().await?;
    conn.transaction::<_, Error, _>(async |conn| {
        let chat = || by_uid(account.as_str(), uid);
        // Another chat may have taken the name of one that was deleted.
        if let Some((first, title)) = title
            && ConversationStore::of(account, uid).has_message(conn, &first.uid).await?
        {
            let untitled = chat().filter(chats::named.eq(false));
            diesel::update(untitled).set((chats::name.eq(title), chats::named.eq(true))).execute(conn).await?;
        }
        if !asked.is_empty() {
            diesel::update(chat()).set(chats::secondary.eq(add_secondary(asked))).execute(conn).await?;
        }
        for (user_messages, summary) in summaries {
            ConversationStore::of(account, uid)
                .summarise(conn, (user_messages.position, &user_messages.uid), summary)
                .await?;
        }
        Ok(())
    })
    .await
}
