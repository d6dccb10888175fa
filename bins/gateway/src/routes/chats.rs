//! `/v1/assistants/{identifier}/messages`, `/v1/assistants/{identifier}/chats`, `/v1/assistants/chats`

use platform_chat::{ChatFilter, ChatListQuery, NewMessage};
use platform_core::{AccountId, Checks, Error, Result};
use serde::Deserialize;
use utoipa::ToSchema;

use crate::{access::approves, request::Request, respond::Answer, sse};

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
    partial: Option<String>,
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

fn chat(request: &Request) -> Result<(&AccountId, &str, &str)> {
    Ok((&request.caller()?.account, request.path("identifier"), request.path("chatUid")))
}

pub(crate) async fn send(request: Request) -> Result<Answer> {
    let query: SendQuery = request.query()?;
    let (caller, assistant) = (request.caller()?, request.path("identifier"));
    let (mut message, source, once) = (request.body::<NewMessage>()?, request.api_source(), request.once.as_ref());
    message.skip_summarization |= query.skip_summarization == Some(true);
    if query.r#async == Some(true) {
        let accepted = request.services.chat.send(caller, assistant, message, source, once).await?;
        return Ok(Answer::ok(&accepted)?.ignoring(accepted.ignored));
    }
    let sent = request.services.chat.send_and_wait(caller, assistant, message, source, once).await?;
    Ok(Answer::ok(&sent.messages)?.header("x-chat-uid", sent.chat_uid).ignoring(sent.ignored))
}

pub(crate) async fn filter(request: Request) -> Result<Answer> {
    let (page, mut filter) = (request.chat_page()?, request.body::<ChatFilter>()?);
    if let Some(listed) = request.session().and_then(|session| session.assistants.as_ref()) {
        let (assistants, account) = (&request.services.assistants, &request.caller()?.account);
        let identifiers = listed.iter().map(|assistant| assistants.identifier(account, assistant));
        filter.among = Some(futures_util::future::try_join_all(identifiers).await?);
    }
    filter.within = request.within().await?;
    let chats = request.services.chat.list(request.caller()?, filter, page).await?;
    Answer::created(&chats)
}

pub(crate) async fn list(request: Request) -> Result<Answer> {
    let (page, query) = (request.chat_page()?, request.query::<ChatListQuery>()?);
    let caller = request.caller()?;
    let identifier = request.services.assistants.identifier(&caller.account, request.path("identifier")).await?;
    Answer::ok(&request.services.chat.list(caller, query.filter(identifier), page).await?)
}

pub(crate) async fn tags(request: Request) -> Result<Answer> {
    let within = request.within().await?;
    Answer::ok(&request.services.chat.tags(request.caller()?, within.as_deref()).await?)
}

pub(crate) async fn get(request: Request) -> Result<Answer> {
    let ContentQuery { omit_content } = request.query()?;
    let (account, assistant, uid) = chat(&request)?;
    let (chat, pages) = request.services.chat.get(account, assistant, uid, omit_content == Some(true)).await?;
    Answer::with_pages(&chat, "chatContent", pages)
}

pub(crate) async fn update(request: Request) -> Result<Answer> {
    let (account, assistant, uid) = chat(&request)?;
    let (chat, pages) = request.services.chat.update(account, assistant, uid, request.patch()?).await?;
    Answer::with_pages(&chat, "chatContent", pages)
}

pub(crate) async fn delete(request: Request) -> Result<Answer> {
    let (account, assistant, uid) = chat(&request)?;
    request.services.chat.delete(account, assistant, uid).await?;
    Answer::deleted("chat", uid)
}

pub(crate) async fn content(request: Request) -> Result<Answer> {
    let (account, assistant, uid) = chat(&request)?;
    let page = request.page(1000, 1000)?;
    let (messages, total) = request.services.chat.content(account, assistant, uid, page).await?;
    Ok(Answer::ok(&messages)?.header("x-total-count", total.to_string()))
}

pub(crate) async fn search(request: Request) -> Result<Answer> {
    let SearchQuery { q, limit: _ } = request.query()?;
    let mut checks = Checks::default();
    checks.length("q", &q, 1..=200);
    checks.finish()?;
    let (account, assistant, uid) = chat(&request)?;
    let limit = request.page(20, 100)?.limit;
    Answer::ok(&request.services.chat.search(account, assistant, uid, &q, limit).await?)
}

pub(crate) async fn realtime(request: Request) -> Result<Answer> {
    let (account, assistant, uid) = chat(&request)?;
    Ok(Answer::raw_json(200, request.services.chat.realtime(account, assistant, uid).await?))
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

pub(crate) async fn stream(request: Request) -> Result<Answer> {
    let partial = partial(&request)?;
    let (account, assistant, uid) = chat(&request)?;
    let place = request.services.gate.stream(request.caller()?)?;
    let watcher = request.services.chat.watch(account, assistant, uid, partial).await?;
    Ok(Answer::events(sse::events(watcher, place, request)))
}

pub(crate) async fn compact(request: Request) -> Result<Answer> {
    let (account, assistant, uid) = chat(&request)?;
    Answer::ok(&request.services.chat.compact(account, assistant, uid).await?)
}

pub(crate) async fn stop(request: Request) -> Result<Answer> {
    let (account, assistant, uid) = chat(&request)?;
    Answer::ok(&request.services.chat.stop(account, assistant, uid).await?)
}

pub(crate) async fn respond(request: Request) -> Result<Answer> {
    let (account, assistant, uid) = chat(&request)?;
    let (responses, once) = (request.body()?, request.once.as_ref());
    // Results of the client's own tools take no more than to use the assistant; approvals in between do.
    let denied = approves(&request).await.err();
    Answer::ok(&request.services.chat.respond(account, assistant, uid, responses, denied, once).await?)
}

pub(crate) async fn list_feedback(request: Request) -> Result<Answer> {
    let (account, assistant, uid) = chat(&request)?;
    Answer::ok(&request.services.chat.feedback(account, assistant, uid).await?)
}

pub(crate) async fn give_feedback(request: Request) -> Result<Answer> {
    let (_, assistant, uid) = chat(&request)?;
    let (caller, once) = (request.caller()?, request.once.as_ref());
    let (first, feedback) = request.services.chat.give_feedback(caller, assistant, uid, request.body()?, once).await?;
    Answer::json(if first { 201 } else { 200 }, &feedback)
}

pub(super) mod spec {
    use platform_chat::{
        Accepted, Chat, ChatFilter, ChatList, ChatPatch, Compacted, Feedback, NewMessage, Responded, Stopped,
        ToolResponses,
    };
    use platform_conversation::{ChatMessage, Matches, NewFeedback};
    use serde_json::Value;

    use super::{ChatListParameters, ContentQuery, SearchQuery, SendQuery, StreamQuery};
    use crate::openapi::{Deleted, Operation};

    pub fn send() -> Operation {
        Operation::new("Send a message; the answer is the turn's messages, or with async=true the chat's id")
            .query::<SendQuery>()
            .body::<NewMessage>()
            .aliases(&["llm"])
            .one_of::<Vec<ChatMessage>, Accepted>(200)
    }
    pub fn filter() -> Operation {
        Operation::new("List chats across assistants")
            .query::<ContentQuery>()
            .paged()
            .body::<ChatFilter>()
            .aliases(&["assistantIdentifier", "startDate", "endDate"])
            .answers::<ChatList>(201)
    }
    pub fn list() -> Operation {
        Operation::new("List the chats of an assistant").query::<ChatListParameters>().paged().answers::<ChatList>(200)
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
        Operation::new("Read the messages of a chat").paged().answers::<Vec<ChatMessage>>(200)
    }
    pub fn search() -> Operation {
        Operation::new("Search the messages of a chat").query::<SearchQuery>().answers::<Matches>(200)
    }
    pub fn realtime() -> Operation {
        Operation::new("Read the realtime state of a chat").answers::<Value>(200)
    }
    pub fn stream() -> Operation {
        Operation::new("Follow a chat as server-sent events").query::<StreamQuery>().answers_text("text/event-stream")
    }
    pub fn compact() -> Operation {
        Operation::new("Sum up the older messages of a chat for the model").answers::<Compacted>(200)
    }
    pub fn stop() -> Operation {
        Operation::new("Stop the turn of a chat and discard what waits").answers::<Stopped>(200)
    }
    pub fn respond() -> Operation {
        Operation::new("Answer tool calls that wait for the client").body::<ToolResponses>().answers::<Responded>(200)
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
