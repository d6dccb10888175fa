//! `/v1/agents/{agentId}/threads`, `/v1/agents/threads/…`, `/v1/tool-callbacks/{token}`

use std::sync::Arc;

use actix_web::http::Method;
use platform_access::Kind;
use platform_agents::{
    Evaluation, EvaluationService, NewApproval, NewResume, PauseOrResume, PgEvaluationService, PgThreadService, THREAD,
    Thread, ThreadFilter, ThreadService, purge_callbacks,
};
use platform_conversation::{AGENT, ContentPages};
use platform_core::{AccountId, Checks, Id, Result};
use platform_http::{Answer, Group, OpenTo, Request, key, session};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::chats::{SearchQuery, partial};
use crate::module::{Module, Purge};

/// What the handlers use.
pub(crate) struct Services {
    pub evaluations: Arc<dyn EvaluationService>,
    pub threads: Arc<dyn ThreadService>,
}

/// Evaluations of threads.
const EVALUATION: Kind = Kind::of_account("evaluation");
/// Addresses that results of tools come to.
const CALLBACK: Kind = Kind::of_account("callback");

const TOOL_RESPONSE: &str = "/v1/agents/threads/{threadId}/tool-response";

/// Threads, and how they are judged.
pub(crate) fn module(threads: &Arc<PgThreadService>, evaluations: &Arc<PgEvaluationService>) -> Module {
    let services = Services { threads: threads.clone(), evaluations: evaluations.clone() };
    let mut works = threads.works();
    works.push(evaluations.clone());
    Module {
        groups: vec![group(Arc::new(services))],
        resources: vec![(THREAD, threads.clone())],
        works,
        purges: vec![Purge::new("addresses for results", |conn, now| Box::pin(purge_callbacks(conn, now)))],
        ..Module::default()
    }
}

fn group(services: Arc<Services>) -> Group {
    let callbacks = Arc::clone(&services);
    let mut group = Group::of("threads", "Threads: the work of agents, step by step", services)
        .naming("agentId", AGENT)
        .naming("evaluationId", EVALUATION)
        .naming("threadId", THREAD)
        .naming("token", CALLBACK);
    let read = key("agents:read");
    let write = key("agents:write");
    let session_read = session("agents:read");
    let session_write = session("agents:write");
    group.get("/v1/agents/agents/{agentId}/threads/tags", read, tags_of_agent).with(spec::tags);
    group.get("/v1/agents/threads", read, list).with(spec::list);
    group.get("/v1/agents/threads/tags", read, tags).with(spec::tags);
    group.get("/v1/agents/threads/{threadId}", session_read, get).with(spec::get);
    group.patch("/v1/agents/threads/{threadId}", write, update).with(spec::update);
    group.delete("/v1/agents/threads/{threadId}", write, delete).with(spec::delete);
    group.post("/v1/agents/threads/{threadId}/approval", session_write, approve).with(spec::approve).approving();
    group.post("/v1/agents/threads/{threadId}/complete", session_write, complete).with(spec::complete).changing();
    group.post("/v1/agents/threads/{threadId}/evaluate", write, evaluate).with(spec::evaluate);
    group.get("/v1/agents/threads/{threadId}/evaluation", read, newest_evaluation).with(spec::newest_evaluation);
    group.get("/v1/agents/threads/{threadId}/evaluations", read, evaluations).with(spec::evaluations);
    group.get("/v1/agents/threads/{threadId}/evaluations/{evaluationId}", read, evaluation).with(spec::evaluation);
    group.get("/v1/agents/threads/{threadId}/explain", session_read, explain).with(spec::explain);
    group.get("/v1/agents/threads/{threadId}/feedback", session_read, list_feedback).with(spec::list_feedback);
    group.post("/v1/agents/threads/{threadId}/feedback", session_write, give_feedback).with(spec::give_feedback);
    group.post("/v1/agents/threads/{threadId}/messages", session_write, say).with(spec::say).creating();
    group.post("/v1/agents/threads/{threadId}/pause", session_write, pause).with(spec::pause);
    group
        .post("/v1/agents/threads/{threadId}/pause-resume", session_write, pause_or_resume)
        .with(spec::pause_or_resume);
    group.post("/v1/agents/threads/{threadId}/resume", session_write, resume).with(spec::resume);
    group.get("/v1/agents/threads/{threadId}/search", session_read, search).with(spec::search);
    group.get("/v1/agents/threads/{threadId}/stream", session_read, stream).with(spec::stream);
    group.post(TOOL_RESPONSE, write, respond).with(spec::respond);
    group.post("/v1/agents/{agentId}/threads", write, start).with(spec::start).creating();
    group.get("/v1/agents/{agentId}/threads", read, list_of_agent).with(spec::list_of_agent);
    group
        .post("/v1/tool-callbacks/{token}", OpenTo::Public, callback)
        .with(spec::callback)
        .raw()
        .with_token(move |token| awaits(Arc::clone(&callbacks), token), MAX_RESULT);
    group.build()
}

/// Longest result that comes to an address.
pub(crate) const MAX_RESULT: usize = 1 << 20;

#[derive(Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct StartQuery {
    /// Refuse when the agent has as many threads as it may have.
    reject_when_busy: Option<bool>,
}

#[derive(Default, Deserialize, ToSchema)]
#[serde(default)]
pub(crate) struct EvaluateQuery {
    /// Answer at once; the evaluation is read later.
    r#async: Option<bool>,
}

/// An evaluation, in an object of its own.
#[derive(Serialize, ToSchema)]
pub(crate) struct Evaluated {
    evaluation: Evaluation,
}

/// A result was taken in.
#[derive(Serialize, ToSchema)]
pub(crate) struct TakenIn {
    accepted: bool,
}

fn thread(request: &Request) -> Result<(&AccountId, Id<Thread>)> {
    Ok((request.account()?, request.id("threadId")))
}

async fn start(services: Arc<Services>, request: Request) -> Result<Answer> {
    let StartQuery { reject_when_busy } = request.query()?;
    let (caller, agent, once) = (request.caller()?, &request.id("agentId"), request.once.as_ref());
    let (new, source, busy) = (request.body().await?, request.api_source(), reject_when_busy == Some(true));
    Answer::created(&services.threads.start(caller, agent, new, source, busy, once).await?.accepted()?)
}

async fn list(services: Arc<Services>, request: Request) -> Result<Answer> {
    let (page, filter): (_, ThreadFilter) = (request.page()?, request.query()?);
    let account = request.account()?;
    let filter = ThreadFilter { within: request.within().await?, ..filter };
    let mut listed = services.threads.list(account, filter, &request.query_names, page).await?;
    show_callbacks(&request, &mut listed.threads).await;
    Answer::ok(&listed)
}

/// Where results of calls are expected is shown to who may give one through the API.
async fn show_callbacks(request: &Request, threads: &mut [Thread]) {
    if !request.opens(&Method::POST, TOOL_RESPONSE) {
        return;
    }
    for thread in threads.iter_mut().filter(|thread| !thread.pending_async_tool_calls.is_empty()) {
        if request.check_change(THREAD, &thread.id).await.is_ok() {
            thread.show_callbacks();
        }
    }
}

async fn list_of_agent(services: Arc<Services>, request: Request) -> Result<Answer> {
    let (page, filter): (_, ThreadFilter) = (request.page()?, request.query()?);
    let (account, agent) = (request.account()?, &request.id("agentId"));
    let filter = ThreadFilter { agent_id: Some(agent.to_string()), ..filter };
    // Fields are judged before it matters whether there is the agent.
    let mut listed = services.threads.list(account, filter, &request.query_names, page).await?;
    services.threads.known_agent(account, agent).await?;
    show_callbacks(&request, &mut listed.threads).await;
    Answer::ok(&listed)
}

async fn tags(services: Arc<Services>, request: Request) -> Result<Answer> {
    let within = request.within().await?;
    Answer::ok(&services.threads.tags(request.account()?, None, within.as_deref()).await?)
}

async fn tags_of_agent(services: Arc<Services>, request: Request) -> Result<Answer> {
    let (account, agent) = (request.account()?, &request.id("agentId"));
    Answer::ok(&services.threads.tags(account, Some(agent), None).await?)
}

async fn get(services: Arc<Services>, request: Request) -> Result<Answer> {
    let (account, id) = thread(&request)?;
    let (mut thread, pages) = services.threads.get(account, &id, request.query()?).await?;
    show_callbacks(&request, std::slice::from_mut(&mut thread)).await;
    Answer::with_pages(&thread, "threadContent", pages.map(ContentPages::into_stream))
}

async fn update(services: Arc<Services>, request: Request) -> Result<Answer> {
    let (account, id) = thread(&request)?;
    let (mut thread, pages) = services.threads.update(account, &id, request.patch().await?).await?;
    show_callbacks(&request, std::slice::from_mut(&mut thread)).await;
    Answer::with_pages(&thread, "threadContent", pages.map(ContentPages::into_stream))
}

async fn delete(services: Arc<Services>, request: Request) -> Result<Answer> {
    let (account, id) = thread(&request)?;
    services.threads.delete(account, &id).await?;
    Answer::deleted("thread", &id)
}

async fn stream(services: Arc<Services>, request: Request) -> Result<Answer> {
    let partial = partial(&request)?;
    let (account, id) = thread(&request)?;
    let place = request.stream_place()?;
    let watcher = services.threads.watch(account, &id, partial).await?;
    Ok(Answer::watched(watcher, place, request.follower()))
}

async fn pause(services: Arc<Services>, request: Request) -> Result<Answer> {
    let (caller, id, once) = (request.caller()?, &request.id("threadId"), request.once.as_ref());
    Answer::ok(&services.threads.pause(caller, id, request.body().await?, once).await?)
}

/// Counts what is said on the way as the message that it is (contract 00 §8).
async fn count_said(request: &Request, message: Option<&String>) -> Result<()> {
    match message.filter(|message| !message.is_empty()) {
        Some(_) => request.count_creation().await,
        None => Ok(()),
    }
}

async fn resume(services: Arc<Services>, request: Request) -> Result<Answer> {
    let (caller, id, once) = (request.caller()?, &request.id("threadId"), request.once.as_ref());
    let given: NewResume = request.body().await?;
    count_said(&request, given.message.as_ref()).await?;
    Answer::ok(&services.threads.resume(caller, id, given, once).await?)
}

async fn pause_or_resume(services: Arc<Services>, request: Request) -> Result<Answer> {
    let (caller, id, once) = (request.caller()?, &request.id("threadId"), request.once.as_ref());
    let given: PauseOrResume = request.body().await?;
    count_said(&request, given.message.as_ref()).await?;
    Answer::ok(&services.threads.pause_or_resume(caller, id, given, once).await?)
}

async fn complete(services: Arc<Services>, request: Request) -> Result<Answer> {
    let (caller, id, once) = (request.caller()?, &request.id("threadId"), request.once.as_ref());
    Answer::ok(&services.threads.complete(caller, id, request.body().await?, once).await?)
}

async fn approve(services: Arc<Services>, request: Request) -> Result<Answer> {
    let (caller, id, once) = (request.caller()?, &request.id("threadId"), request.once.as_ref());
    let given: NewApproval = request.body().await?;
    count_said(&request, given.message.as_ref()).await?;
    Answer::ok(&services.threads.approve(caller, id, given, once).await?)
}

async fn say(services: Arc<Services>, request: Request) -> Result<Answer> {
    let (caller, id, once) = (request.caller()?, &request.id("threadId"), request.once.as_ref());
    Answer::ok(&services.threads.say(caller, id, request.body().await?, once).await?)
}

async fn respond(services: Arc<Services>, request: Request) -> Result<Answer> {
    let (caller, id, once) = (request.caller()?, &request.id("threadId"), request.once.as_ref());
    Answer::ok(&services.threads.respond(caller, id, request.body().await?, once).await?)
}

/// Whether a result may come to this address.
async fn awaits(services: Arc<Services>, token: String) -> Result<()> {
    services.threads.awaits_callback(&token).await
}

async fn callback(services: Arc<Services>, request: Request) -> Result<Answer> {
    let text = || String::from_utf8_lossy(&request.body).into_owned().into();
    let value: Value = platform_core::parse(&request.body).unwrap_or_else(|_| text());
    services.threads.callback(request.path("token"), platform_core::without_nul(value)).await?;
    Answer::json(202, &json!({"accepted": true}))
}

async fn search(services: Arc<Services>, request: Request) -> Result<Answer> {
    let SearchQuery { q, .. } = request.query()?;
    let mut checks = Checks::default();
    checks.length("q", &q, 1..=200);
    checks.finish()?;
    let (account, id) = thread(&request)?;
    let limit = request.limit(20, 100)?;
    Answer::ok(&services.threads.search(account, &id, &q, limit).await?)
}

async fn explain(services: Arc<Services>, request: Request) -> Result<Answer> {
    let (account, id) = thread(&request)?;
    Answer::ok(&services.threads.explain(account, &id).await?)
}

async fn evaluate(services: Arc<Services>, request: Request) -> Result<Answer> {
    let EvaluateQuery { r#async } = request.query()?;
    let (account, id) = thread(&request)?;
    let (given, once, waits) = (request.body().await?, request.once.as_ref(), r#async != Some(true));
    let evaluation = services.evaluations.create(account, &id, given, waits, once).await?;
    let status = if evaluation.is_over() { 200 } else { 202 };
    Answer::json(status, &Evaluated { evaluation })
}

async fn evaluations(services: Arc<Services>, request: Request) -> Result<Answer> {
    let (account, id) = thread(&request)?;
    Answer::ok(&services.evaluations.list(account, &id, request.page()?).await?)
}

async fn newest_evaluation(services: Arc<Services>, request: Request) -> Result<Answer> {
    let (account, id) = thread(&request)?;
    Answer::ok(&services.evaluations.get(account, &id, None).await?)
}

async fn evaluation(services: Arc<Services>, request: Request) -> Result<Answer> {
    let (account, id) = thread(&request)?;
    Answer::ok(&services.evaluations.get(account, &id, Some(&request.id("evaluationId"))).await?)
}

async fn list_feedback(services: Arc<Services>, request: Request) -> Result<Answer> {
    let (account, id) = thread(&request)?;
    Answer::ok(&services.threads.feedback(account, &id).await?)
}

async fn give_feedback(services: Arc<Services>, request: Request) -> Result<Answer> {
    let (caller, id, once) = (request.caller()?, &request.id("threadId"), request.once.as_ref());
    let (first, feedback) = services.threads.give_feedback(caller, id, request.body().await?, once).await?;
    Answer::json(if first { 201 } else { 200 }, &feedback)
}

mod spec {
    use platform_agents::{
        AsyncResponses, EvaluationList, NewApproval, NewCompletion, NewEvaluation, NewPause, NewResume, NewThread,
        PauseOrResume, StartedThread, Thread, ThreadFeedback, ThreadFilter, ThreadList, ThreadMessage, ThreadPatch,
        ThreadResponded, ThreadView,
    };
    use platform_conversation::{Matches, NewFeedback};

    use platform_http::{Deleted, Operation};

    use super::{EvaluateQuery, Evaluated, StartQuery, TakenIn};
    use crate::groups::chats::{SearchQuery, StreamQuery};

    pub fn start() -> Operation {
        Operation::new("Start a thread of an agent")
            .query::<StartQuery>()
            .body::<NewThread>()
            .aliases(&["model"])
            .answers::<StartedThread>(201)
    }
    pub fn list() -> Operation {
        Operation::new("List threads").query::<ThreadFilter>().paged(10, 100).answers::<ThreadList>(200)
    }
    pub fn list_of_agent() -> Operation {
        Operation::new("List the threads of an agent").query::<ThreadFilter>().paged(10, 100).answers::<ThreadList>(200)
    }
    pub fn tags() -> Operation {
        Operation::new("List the tags in use on threads").answers::<Vec<String>>(200)
    }
    pub fn get() -> Operation {
        Operation::new("Read a thread").query::<ThreadView>().answers::<Thread>(200)
    }
    pub fn update() -> Operation {
        Operation::new("Change name, tags or metadata of a thread").body::<ThreadPatch>().answers::<Thread>(200)
    }
    pub fn delete() -> Operation {
        Operation::new("Delete a thread that has ended").answers::<Deleted>(200)
    }
    pub fn stream() -> Operation {
        Operation::new("Follow a thread as server-sent events")
            .query::<StreamQuery>()
            .answers_text(200, "text/event-stream")
    }
    pub fn pause() -> Operation {
        Operation::new("Pause a thread, after the running step or at once").body::<NewPause>().answers::<Thread>(200)
    }
    pub fn resume() -> Operation {
        Operation::new("Go on with a thread, or take a pause back").body::<NewResume>().answers::<Thread>(200)
    }
    pub fn pause_or_resume() -> Operation {
        Operation::new("Pause a thread or go on with it")
            .body::<PauseOrResume>()
            .requires(&["action"])
            .answers::<Thread>(200)
    }
    pub fn complete() -> Operation {
        Operation::new("End a thread").body::<NewCompletion>().requires(&["state"]).answers::<Thread>(200)
    }
    pub fn approve() -> Operation {
        Operation::new("Approve or reject calls that wait for approval").body::<NewApproval>().answers::<Thread>(200)
    }
    pub fn say() -> Operation {
        Operation::new("Say something to a thread").body::<ThreadMessage>().answers::<Thread>(200)
    }
    pub fn respond() -> Operation {
        Operation::new("Give results of asynchronous tool calls")
            .body::<AsyncResponses>()
            .requires(&["responses"])
            .answers::<ThreadResponded>(200)
    }
    pub fn callback() -> Operation {
        Operation::new("Give the result of an asynchronous tool call to its address: any JSON or text")
            .answers::<TakenIn>(202)
    }
    pub fn search() -> Operation {
        Operation::new("Search the messages of a thread").query::<SearchQuery>().answers::<Matches>(200)
    }
    pub fn explain() -> Operation {
        Operation::new("Say in words what a thread did and why it ended").answers::<String>(200)
    }
    pub fn evaluate() -> Operation {
        Operation::new("Have a model judge a thread that has ended")
            .query::<EvaluateQuery>()
            .body::<NewEvaluation>()
            .answers::<Evaluated>(200)
            .answers::<Evaluated>(202)
    }
    pub fn evaluations() -> Operation {
        Operation::new("List the evaluations of a thread").paged(20, 100).answers::<EvaluationList>(200)
    }
    pub fn evaluation() -> Operation {
        Operation::new("Read an evaluation of a thread").answers::<super::Evaluation>(200)
    }
    pub fn newest_evaluation() -> Operation {
        Operation::new("Read the newest evaluation of a thread").answers::<super::Evaluation>(200)
    }
    pub fn list_feedback() -> Operation {
        Operation::new("List feedback on a thread").answers::<Vec<ThreadFeedback>>(200)
    }
    pub fn give_feedback() -> Operation {
        Operation::new("Give feedback on a message of a thread")
            .body::<NewFeedback>()
            .answers::<ThreadFeedback>(201)
            .answers::<ThreadFeedback>(200)
    }
}
