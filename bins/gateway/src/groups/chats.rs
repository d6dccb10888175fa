//! `/v1/assistants/{identifier}/messages`, `/v1/assistants/{identifier}/chats`, `/v1/assistants/chats`

use std::sync::Arc;

use platform_chat::{
    AssistantService, CHAT, Chat, ChatFilter, ChatListQuery, ChatPage, ChatService, NewMessage, PgAssistantService,
    PgChatService,
};
use platform_conversation::{ASSISTANT, ChatMessage, ContentPages};
use platform_core::{AccountId, Checks, Error, Id, Result};
use platform_http::{Answer, Group, Request, key, session};
use serde::Deserialize;
use utoipa::ToSchema;

use crate::module::Module;

/// What the handlers use.
pub(crate) struct Services {
    pub assistants: Arc<dyn AssistantService>,
    pub chat: Arc<dyn ChatService>,
}

/// Chats.
pub(crate) fn module(chat: &Arc<PgChatService>, assistants: &Arc<PgAssistantService>) -> Module {
    let services = Services { assistants: assistants.clone(), chat: chat.clone() };
    Module {
        groups: vec![group(Arc::new(services))],
        resources: vec![(CHAT, chat.clone())],
        works: chat.works(),
        ..Module::default()
    }
}

fn group(services: Arc<Services>) -> Group {
    let chats = Arc::clone(&services);
    let mut group = Group::of("chats", "Chats with assistants: messages, turns, streams", services)
        .naming("chatUid", CHAT)
        .naming("identifier", ASSISTANT)
        .referring(&[("chatUid", CHAT)]);
    let write = key("assistants:write");
    let session_read = session("assistants:read");
    let session_write = session("assistants:write");
    group.post("/v1/assistants/chats", session_read, filter).with(spec::filter);
    group.get("/v1/assistants/tags", session_read, tags).with(spec::tags);
    group
        .post("/v1/assistants/{identifier}/messages", session_write, send)
        .with(spec::send)
        .creating()
        .cancellable()
        .replaying(move |account, run| replay(Arc::clone(&chats), account, run));
    group.get("/v1/assistants/{identifier}/chats", session_read, list).with(spec::list);
    group.get("/v1/assistants/{identifier}/chats/{chatUid}", session_read, get).with(spec::get);
    group.patch("/v1/assistants/{identifier}/chats/{chatUid}", write, update).with(spec::update);
    group.delete("/v1/assistants/{identifier}/chats/{chatUid}", write, delete).with(spec::delete);
    group.post("/v1/assistants/{identifier}/chats/{chatUid}/compact", write, compact).with(spec::compact);
    group.get("/v1/assistants/{identifier}/chats/{chatUid}/content", session_read, content).with(spec::content);
    group
        .get("/v1/assistants/{identifier}/chats/{chatUid}/feedback", session_read, list_feedback)
        .with(spec::list_feedback);
    group
        .post("/v1/assistants/{identifier}/chats/{chatUid}/feedback", session_write, give_feedback)
        .with(spec::give_feedback);
    group.get("/v1/assistants/{identifier}/chats/{chatUid}/realtime", session_read, realtime).with(spec::realtime);
    group.get("/v1/assistants/{identifier}/chats/{chatUid}/search", session_read, search).with(spec::search);
    group.post("/v1/assistants/{identifier}/chats/{chatUid}/stop", session_write, stop).with(spec::stop);
    group.get("/v1/assistants/{identifier}/chats/{chatUid}/stream", session_read, stream).with(spec::stream);
    group.post("/v1/assistants/{identifier}/chats/{chatUid}/tool-response", session_write, respond).with(spec::respond);
    group.build()
}

#[derive(Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct SendQuery {
    /// Answer at once; the reply is read or watched later.
    r#async: Option<bool>,
    /// No title and no summaries for this turn.
    skip_summarization: Option<bool>,
}

#[derive(Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ContentQuery {
    /// Leave `chatContent` out.
    omit_content: Option<bool>,
}

#[derive(Default, Deserialize, ToSchema)]
#[serde(default)]
pub(crate) struct SearchQuery {
    /// Text to find, 1 to 200 characters.
    pub q: String,
    /// At most so many matches, 100 at the most.
    #[schema(value_type = Option<i64>)]
    limit: Option<String>,
}

#[derive(Default, Deserialize, ToSchema)]
#[serde(default)]
pub(crate) struct StreamQuery {
    /// `1` or `true`: frames may hold only what is new.
    #[schema(pattern = "^(1|true)$")]
    partial: Option<String>,
}

/// A chat as it is followed: what `/realtime` answers, and what snapshots of its stream hold (contract 02 §6).
#[derive(ToSchema)]
#[expect(dead_code, reason = "describes what a chat's source writes")]
#[schema(rename_all = "camelCase")]
struct RealtimeChatHistoryDto {
    /// The chat.
    #[schema(rename = "chatUID")]
    chat_uid: String,
    /// Its account.
    #[schema(rename = "clientUID")]
    client_uid: String,
    /// `buffering`, `processing`, `completed`, `error`, `waiting_for_tool_response`, `handed_off` or `limit_exceeded`.
    status: String,
    /// The messages, without what they took.
    chat_history: Vec<ChatMessage>,
    /// What is being written: `{uid, role, content: {message}, tool_calls}`.
    #[schema(value_type = Object, required = false)]
    streaming_message: (),
    /// Last changed at, in ms.
    last_updated_at: i64,
    /// Calls that wait for the client: `{id, type, function: {name, arguments}, kind}`, of kind `client` or `approval`.
    #[schema(value_type = Vec<Object>, required = false)]
    pending_tool_calls: (),
    /// The thread to which the turn was handed off.
    #[schema(nullable = false)]
    handed_off_sub_thread_id: Option<String>,
    /// The quota that is spent: `{message, blockingRule, current, limit, resetsAt}`.
    #[schema(value_type = Object, required = false)]
    limit_exceeded: (),
    /// How many messages wait.
    queued_messages: i64,
    /// Those that wait: `{uid, role, content, timestamp, willProcess}`.
    #[schema(value_type = Vec<Object>)]
    pending_user_messages: (),
    /// What was recalled in this turn.
    #[schema(value_type = Vec<Object>, required = false)]
    recalled_memories: (),
    /// Why the turn ended.
    #[schema(nullable = false)]
    stop_reason: Option<String>,
    /// What went wrong: `{code, message}`.
    #[schema(value_type = Object, required = false)]
    error: (),
    /// Older messages are left out.
    #[schema(nullable = false)]
    truncated: Option<bool>,
}

/// The list query together with what leaves the messages out.
#[derive(ToSchema)]
#[expect(dead_code, reason = "describes what two extractors read")]
#[schema(rename_all = "camelCase")]
pub(crate) struct ChatListParameters {
    tenant_id: Option<String>,
    subtenant_id: Option<String>,
    archived: Option<bool>,
    /// Any of these, separated by commas.
    tags: Option<String>,
    search: Option<String>,
    omit_content: Option<bool>,
}

/// A page of chats, with or without their messages.
pub(super) fn chat_page(request: &Request) -> Result<ChatPage> {
    let ContentQuery { omit_content } = request.query()?;
    Ok(ChatPage { page: request.page()?, omit_content: omit_content == Some(true) })
}

/// What a message was answered with, to who sends it again.
async fn replay(services: Arc<Services>, account: AccountId, run: String) -> Result<Option<Answer>> {
    let Some(sent) = services.chat.replay(&account, &run).await? else { return Ok(None) };
    Answer::ok(&sent.messages).map(|answer| Some(answer.whole().header("x-chat-uid", sent.chat_uid)))
}

fn chat(request: &Request) -> Result<(&AccountId, &str, Id<Chat>)> {
    Ok((request.account()?, request.path("identifier"), request.id("chatUid")))
}

async fn send(services: Arc<Services>, request: Request) -> Result<Answer> {
    let query: SendQuery = request.query()?;
    let (caller, assistant) = (request.caller()?, request.path("identifier"));
    let (mut message, source, once) =
        (request.body::<NewMessage>().await?, request.api_source(), request.once.as_ref());
    message.skip_summarization |= query.skip_summarization == Some(true);
    if query.r#async == Some(true) {
        let accepted = services.chat.send(caller, assistant, message, source, once).await?;
        return Ok(Answer::ok(&accepted)?.ignoring(accepted.ignored));
    }
    let sent = services.chat.send_and_wait(caller, assistant, message, source, once).await?;
    Ok(Answer::ok(&sent.messages)?.whole().header("x-chat-uid", sent.chat_uid).ignoring(sent.ignored))
}

/// The assistants that a session is limited to.
async fn among(services: &Services, request: &Request) -> Result<Option<Vec<String>>> {
    let Some(listed) = request.session().and_then(|session| session.assistants.as_ref()) else { return Ok(None) };
    let (assistants, account) = (&services.assistants, request.account()?);
    let identifiers = listed.iter().map(|assistant| assistants.identifier(account, assistant));
    Ok(Some(futures_util::future::try_join_all(identifiers).await?))
}

async fn filter(services: Arc<Services>, request: Request) -> Result<Answer> {
    let (page, mut filter) = (chat_page(&request)?, request.body::<ChatFilter>().await?);
    filter.among = among(&services, &request).await?;
    filter.within = request.within().await?;
    let chats = services.chat.list(request.caller()?, filter, page).await?;
    Answer::created(&chats)
}

async fn list(services: Arc<Services>, request: Request) -> Result<Answer> {
    let (page, query) = (chat_page(&request)?, request.query::<ChatListQuery>()?);
    let caller = request.caller()?;
    let identifier = services.assistants.identifier(&caller.account, request.path("identifier")).await?;
    Answer::ok(&services.chat.list(caller, query.filter(identifier), page).await?)
}

async fn tags(services: Arc<Services>, request: Request) -> Result<Answer> {
    let (among, within) = (among(&services, &request).await?, request.within().await?);
    Answer::ok(&services.chat.tags(request.caller()?, among.as_deref(), within.as_deref()).await?)
}

async fn get(services: Arc<Services>, request: Request) -> Result<Answer> {
    let ContentQuery { omit_content } = request.query()?;
    let (account, assistant, uid) = chat(&request)?;
    let (chat, pages) = services.chat.get(account, assistant, &uid, omit_content == Some(true)).await?;
    Answer::with_pages(&chat, "chatContent", pages.map(ContentPages::into_stream))
}

async fn update(services: Arc<Services>, request: Request) -> Result<Answer> {
    let (account, assistant, uid) = chat(&request)?;
    let (chat, pages) = services.chat.update(account, assistant, &uid, request.patch().await?).await?;
    Answer::with_pages(&chat, "chatContent", pages.map(ContentPages::into_stream))
}

async fn delete(services: Arc<Services>, request: Request) -> Result<Answer> {
    let (account, assistant, uid) = chat(&request)?;
    services.chat.delete(account, assistant, &uid).await?;
    Answer::deleted("chat", &uid)
}

async fn content(services: Arc<Services>, request: Request) -> Result<Answer> {
    let (account, assistant, uid) = chat(&request)?;
    let page = request.page()?;
    let (messages, total) = services.chat.content(account, assistant, &uid, page).await?;
    Ok(Answer::ok(&messages)?.header("x-total-count", total.to_string()))
}

async fn search(services: Arc<Services>, request: Request) -> Result<Answer> {
    let SearchQuery { q, limit: _ } = request.query()?;
    let mut checks = Checks::default();
    checks.length("q", &q, 1..=200);
    checks.finish()?;
    let (account, assistant, uid) = chat(&request)?;
    let limit = request.limit(20, 100)?;
    Answer::ok(&services.chat.search(account, assistant, &uid, &q, limit).await?)
}

async fn realtime(services: Arc<Services>, request: Request) -> Result<Answer> {
    let (account, assistant, uid) = chat(&request)?;
    Ok(Answer::raw_json(200, services.chat.realtime(account, assistant, &uid).await?))
}

/// Whether frames may hold only what is new.
pub(super) fn partial(request: &Request) -> Result<bool> {
    let StreamQuery { partial } = request.query()?;
    match partial.as_deref() {
        None => Ok(false),
        Some("1" | "true") => Ok(true),
        Some(_) => Err(Error::invalid("partial", "enum", "partial must be 1 or true, or left out")),
    }
}

async fn stream(services: Arc<Services>, request: Request) -> Result<Answer> {
    let partial = partial(&request)?;
    let (account, assistant, uid) = chat(&request)?;
    let place = request.stream_place()?;
    let watcher = services.chat.watch(account, assistant, &uid, partial).await?;
    Ok(Answer::watched(watcher, place, request.follower()))
}

async fn compact(services: Arc<Services>, request: Request) -> Result<Answer> {
    let (account, assistant, uid) = chat(&request)?;
    Answer::ok(&services.chat.compact(account, assistant, &uid).await?)
}

async fn stop(services: Arc<Services>, request: Request) -> Result<Answer> {
    let (account, assistant, uid) = chat(&request)?;
    Answer::ok(&services.chat.stop(account, assistant, &uid).await?)
}

async fn respond(services: Arc<Services>, request: Request) -> Result<Answer> {
    let (account, assistant, uid) = chat(&request)?;
    let (responses, once) = (request.body().await?, request.once.as_ref());
    // Results of the client's own tools take no more than to use the assistant; approvals in between do.
    let denied = request.check_approval().await.err();
    Answer::ok(&services.chat.respond(account, assistant, &uid, responses, denied, once).await?)
}

async fn list_feedback(services: Arc<Services>, request: Request) -> Result<Answer> {
    let (account, assistant, uid) = chat(&request)?;
    Answer::ok(&services.chat.feedback(account, assistant, &uid).await?)
}

async fn give_feedback(services: Arc<Services>, request: Request) -> Result<Answer> {
    let (_, assistant, uid) = chat(&request)?;
    let (caller, once) = (request.caller()?, request.once.as_ref());
    let (first, feedback) = services.chat.give_feedback(caller, assistant, &uid, request.body().await?, once).await?;
    Answer::json(if first { 201 } else { 200 }, &feedback)
}

mod spec {
    use platform_chat::{
        Accepted, Chat, ChatFilter, ChatList, ChatPatch, Compacted, Feedback, NewMessage, Responded, Stopped,
        ToolResponses,
    };
    use platform_conversation::{ChatMessage, Matches, NewFeedback};

    use super::{ChatListParameters, ContentQuery, RealtimeChatHistoryDto, SearchQuery, SendQuery, StreamQuery};
    use platform_http::{Deleted, Operation};

    pub fn send() -> Operation {
        Operation::new("Send a message; the answer is the turn's messages, or with async=true the chat's id")
            .query::<SendQuery>()
            .body::<NewMessage>()
            .aliases(&["llm"])
            .any_of::<Vec<ChatMessage>, Accepted>(200)
    }
    pub fn filter() -> Operation {
        Operation::new("List chats across assistants")
            .query::<ContentQuery>()
            .paged(10, 100)
            .body::<ChatFilter>()
            .aliases(&["assistantIdentifier", "startDate", "endDate"])
            .answers::<ChatList>(201)
    }
    pub fn list() -> Operation {
        Operation::new("List the chats of an assistant")
            .query::<ChatListParameters>()
            .paged(10, 100)
            .answers::<ChatList>(200)
    }
    pub fn tags() -> Operation {
        Operation::new("List the tags in use").answers::<Vec<String>>(200)
    }
    pub fn get() -> Operation {
        Operation::new("Read a chat").query::<ContentQuery>().answers::<Chat>(200)
    }
    pub fn update() -> Operation {
        Operation::new("Change a chat").body::<ChatPatch>().answers::<Chat>(200)
    }
    pub fn delete() -> Operation {
        Operation::new("Delete a chat").answers::<Deleted>(200)
    }
    pub fn content() -> Operation {
        Operation::new("Read the messages of a chat").paged(1000, 1000).answers::<Vec<ChatMessage>>(200)
    }
    pub fn search() -> Operation {
        Operation::new("Search the messages of a chat")
            .query::<SearchQuery>()
            .requires_query(&["q"])
            .answers::<Matches>(200)
    }
    pub fn realtime() -> Operation {
        Operation::new("Read the realtime state of a chat").answers::<RealtimeChatHistoryDto>(200)
    }
    pub fn stream() -> Operation {
        Operation::new("Follow a chat as server-sent events")
            .query::<StreamQuery>()
            .answers_text(200, "text/event-stream")
    }
    pub fn compact() -> Operation {
        Operation::new("Sum up the older messages of a chat for the model").answers::<Compacted>(200)
    }
    pub fn stop() -> Operation {
        Operation::new("Stop the turn of a chat and discard what waits").answers::<Stopped>(200)
    }
    pub fn respond() -> Operation {
        Operation::new("Answer tool calls that wait for the client")
            .body::<ToolResponses>()
            .requires(&["responses"])
            .answers::<Responded>(200)
    }
    pub fn list_feedback() -> Operation {
        Operation::new("List feedback on a chat").answers::<Vec<Feedback>>(200)
    }
    pub fn give_feedback() -> Operation {
        Operation::new("Give feedback on a message")
            .body::<NewFeedback>()
            .answers::<Feedback>(201)
            .answers::<Feedback>(200)
    }
}
