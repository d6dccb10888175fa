//! `/v1/agents/{agentId}/threads`, `/v1/agents/threads/…`, `/v1/tool-callbacks/{token}`

use std::sync::Arc;

use futures_util::future::LocalBoxFuture;
use platform_agents::{Evaluation, ThreadFilter};
use platform_core::{AccountId, Checks, Result};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::chats::{SearchQuery, partial};
use crate::{app::Services, request::Request, respond::Answer, sse};

/// Longest result that comes to an address.
pub(crate) const MOST_RESULT: usize = 1 << 20;

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

fn thread(request: &Request) -> Result<(&AccountId, &str)> {
    Ok((&request.caller()?.account, request.path("threadId")))
}

pub(crate) async fn start(request: Request) -> Result<Answer> {
    let StartQuery { reject_when_busy } = request.query()?;
    let (caller, agent, once) = (request.caller()?, request.path("agentId"), request.once.as_ref());
    let (new, source, busy) = (request.body()?, request.api_source(), reject_when_busy == Some(true));
    Answer::created(&request.services.threads.start(caller, agent, new, source, busy, once).await?)
}

pub(crate) async fn list(request: Request) -> Result<Answer> {
    let (page, filter): (_, ThreadFilter) = (request.page(10, 100)?, request.query()?);
    let account = &request.caller()?.account;
    let filter = ThreadFilter { within: request.within().await?, ..filter };
    Answer::ok(&request.services.threads.list(account, filter, &request.query_names, page).await?)
}

pub(crate) async fn list_of_agent(request: Request) -> Result<Answer> {
    let (page, filter): (_, ThreadFilter) = (request.page(10, 100)?, request.query()?);
    let (account, agent) = (&request.caller()?.account, request.path("agentId"));
    let filter = ThreadFilter { agent_id: Some(agent.to_owned()), ..filter };
    request.services.threads.known_agent(account, agent).await?;
    Answer::ok(&request.services.threads.list(account, filter, &request.query_names, page).await?)
}

pub(crate) async fn tags(request: Request) -> Result<Answer> {
    let within = request.within().await?;
    Answer::ok(&request.services.threads.tags(&request.caller()?.account, None, within.as_deref()).await?)
}

pub(crate) async fn tags_of_agent(request: Request) -> Result<Answer> {
    let (account, agent) = (&request.caller()?.account, request.path("agentId"));
    Answer::ok(&request.services.threads.tags(account, Some(agent), None).await?)
}

pub(crate) async fn get(request: Request) -> Result<Answer> {
    let (account, id) = thread(&request)?;
    let (thread, pages) = request.services.threads.get(account, id, request.query()?).await?;
    Answer::with_pages(&thread, "threadContent", pages)
}

pub(crate) async fn update(request: Request) -> Result<Answer> {
    let (account, id) = thread(&request)?;
    let (thread, pages) = request.services.threads.update(account, id, request.patch()?).await?;
    Answer::with_pages(&thread, "threadContent", pages)
}

pub(crate) async fn delete(request: Request) -> Result<Answer> {
    let (account, id) = thread(&request)?;
    request.services.threads.delete(account, id).await?;
    Answer::deleted("thread", id)
}

pub(crate) async fn stream(request: Request) -> Result<Answer> {
    let partial = partial(&request)?;
    let (account, id) = thread(&request)?;
    let place = request.services.gate.stream(request.caller()?)?;
    let watcher = request.services.threads.watch(account, id, partial).await?;
    Ok(Answer::events(sse::events(watcher, place, request)))
}

pub(crate) async fn pause(request: Request) -> Result<Answer> {
    let (caller, id, once) = (request.caller()?, request.path("threadId"), request.once.as_ref());
    Answer::ok(&request.services.threads.pause(caller, id, request.body()?, once).await?)
}

pub(crate) async fn resume(request: Request) -> Result<Answer> {
    let (caller, id, once) = (request.caller()?, request.path("threadId"), request.once.as_ref());
    Answer::ok(&request.services.threads.resume(caller, id, request.body()?, once).await?)
}

pub(crate) async fn pause_or_resume(request: Request) -> Result<Answer> {
    let (caller, id, once) = (request.caller()?, request.path("threadId"), request.once.as_ref());
    Answer::ok(&request.services.threads.pause_or_resume(caller, id, request.body()?, once).await?)
}

pub(crate) async fn complete(request: Request) -> Result<Answer> {
    let (caller, id, once) = (request.caller()?, request.path("threadId"), request.once.as_ref());
    Answer::ok(&request.services.threads.complete(caller, id, request.body()?, once).await?)
}

pub(crate) async fn approve(request: Request) -> Result<Answer> {
    let (caller, id, once) = (request.caller()?, request.path("threadId"), request.once.as_ref());
    Answer::ok(&request.services.threads.approve(caller, id, request.body()?, once).await?)
}

pub(crate) async fn say(request: Request) -> Result<Answer> {
    let (caller, id, once) = (request.caller()?, request.path("threadId"), request.once.as_ref());
    Answer::ok(&request.services.threads.say(caller, id, request.body()?, once).await?)
}

pub(crate) async fn respond(request: Request) -> Result<Answer> {
    let (caller, id, once) = (request.caller()?, request.path("threadId"), request.once.as_ref());
    Answer::ok(&request.services.threads.respond(caller, id, request.body()?, once).await?)
}

/// Whether a result may come to this address.
pub(crate) fn awaits_callback(services: Arc<Services>, token: String) -> LocalBoxFuture<'static, Result<()>> {
    Box::pin(async move { services.threads.awaits_callback(&token).await })
}

pub(crate) async fn callback(request: Request) -> Result<Answer> {
    let text = String::from_utf8_lossy(&request.body).into_owned();
    let value = platform_core::without_nul(serde_json::from_str(&text).unwrap_or(Value::String(text)));
    request.services.threads.callback(request.path("token"), value).await?;
    Answer::json(202, &json!({"accepted": true}))
}

pub(crate) async fn search(request: Request) -> Result<Answer> {
    let SearchQuery { q, .. } = request.query()?;
    let mut checks = Checks::default();
    checks.length("q", &q, 1..=200);
    checks.finish()?;
    let (account, id) = thread(&request)?;
    let limit = request.page(20, 100)?.limit;
    Answer::ok(&request.services.threads.search(account, id, &q, limit).await?)
}

pub(crate) async fn explain(request: Request) -> Result<Answer> {
    let (account, id) = thread(&request)?;
    Answer::ok(&request.services.threads.explain(account, id).await?)
}

pub(crate) async fn evaluate(request: Request) -> Result<Answer> {
    let EvaluateQuery { r#async } = request.query()?;
    let (account, id) = thread(&request)?;
    let (given, once, waits) = (request.body()?, request.once.as_ref(), r#async != Some(true));
    let evaluation = request.services.evaluations.create(account, id, given, waits, once).await?;
    let status = if evaluation.is_over() { 200 } else { 202 };
    Answer::json(status, &Evaluated { evaluation })
}

pub(crate) async fn evaluations(request: Request) -> Result<Answer> {
    let (account, id) = thread(&request)?;
    Answer::ok(&request.services.evaluations.list(account, id, request.page(20, 100)?).await?)
}

pub(crate) async fn newest_evaluation(request: Request) -> Result<Answer> {
    let (account, id) = thread(&request)?;
    Answer::ok(&request.services.evaluations.get(account, id, None).await?)
}

pub(crate) async fn evaluation(request: Request) -> Result<Answer> {
    let (account, id) = thread(&request)?;
    Answer::ok(&request.services.evaluations.get(account, id, Some(request.path("evaluationId"))).await?)
}

pub(crate) async fn list_feedback(request: Request) -> Result<Answer> {
    let (account, id) = thread(&request)?;
    Answer::ok(&request.services.threads.feedback(account, id).await?)
}

pub(crate) async fn give_feedback(request: Request) -> Result<Answer> {
    let (caller, id, once) = (request.caller()?, request.path("threadId"), request.once.as_ref());
    let (first, feedback) = request.services.threads.give_feedback(caller, id, request.body()?, once).await?;
    Answer::json(if first { 201 } else { 200 }, &feedback)
}

pub(super) mod spec {
    use platform_agents::{
        AsyncResponses, EvaluationList, NewApproval, NewCompletion, NewEvaluation, NewPause, NewResume, NewThread,
        PauseOrResume, StartedThread, Thread, ThreadFeedback, ThreadFilter, ThreadList, ThreadMessage, ThreadPatch,
        ThreadResponded, ThreadView,
    };
    use platform_conversation::{Matches, NewFeedback};

    use super::{EvaluateQuery, Evaluated, StartQuery, TakenIn};
    use crate::{
        openapi::{Deleted, Operation},
        routes::chats::{SearchQuery, StreamQuery},
    };

    pub fn start() -> Operation {
        Operation::new("Start a thread of an agent")
            .query::<StartQuery>()
            .body::<NewThread>()
            .without_effect(&["callbackUrl"])
            .aliases(&["model"])
            .answers::<StartedThread>(201)
    }
    pub fn list() -> Operation {
        Operation::new("List threads").query::<ThreadFilter>().paged().answers::<ThreadList>(200)
    }
    pub fn list_of_agent() -> Operation {
        Operation::new("List the threads of an agent").query::<ThreadFilter>().paged().answers::<ThreadList>(200)
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
        Operation::new("Follow a thread as server-sent events").query::<StreamQuery>().answers_text("text/event-stream")
    }
    pub fn pause() -> Operation {
        Operation::new("Pause a thread, after the running step or at once").body::<NewPause>().answers::<Thread>(200)
    }
    pub fn resume() -> Operation {
        Operation::new("Go on with a thread, or take a pause back").body::<NewResume>().answers::<Thread>(200)
    }
    pub fn pause_or_resume() -> Operation {
        Operation::new("Pause a thread or go on with it").body::<PauseOrResume>().answers::<Thread>(200)
    }
    pub fn complete() -> Operation {
        Operation::new("End a thread").body::<NewCompletion>().answers::<Thread>(200)
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
        Operation::new("List the evaluations of a thread").paged().answers::<EvaluationList>(200)
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
