//! `/v1/triggers`, `/v1/hooks/{token}`

use std::sync::Arc;

use actix_web::http::{Method, header::HeaderMap};
use platform_access::Kind;
use platform_conversation::{AGENT, ASSISTANT};
use platform_core::{ErrorKind, Result};
use platform_http::{Answer, Group, OpenTo, Request, key};
use platform_toolservers::TOOL_SERVER;
use platform_triggers::{
    NewTest, NewTrigger, PgTriggers, PollWork, ProcessWork, Received, RequestHeaders, ScheduleWork, TRIGGER, Trigger,
    TriggerFilter, TriggerService, UnsubscribeWork,
};
use serde_json::json;

use crate::module::{Module, Purge};

const TEST: &str = "/v1/triggers/{id}/test";
const HOOK: Kind = Kind::of_account("hook");
const EVENT: Kind = Kind::of_account("event of a trigger");
/// Longest event (contract 09 §2).
const MAX_EVENT: usize = 1 << 20;

/// Triggers, and what carries their events out.
pub(crate) fn module(triggers: &Arc<PgTriggers>) -> Module {
    Module {
        groups: vec![group(triggers.clone()), hooks_group(triggers)],
        resources: vec![(TRIGGER, triggers.clone())],
        works: vec![
            Arc::new(ProcessWork(Arc::clone(triggers))),
            Arc::new(PollWork(Arc::clone(triggers))),
            Arc::new(ScheduleWork(Arc::clone(triggers))),
            Arc::new(UnsubscribeWork(Arc::clone(triggers))),
        ],
        purges: vec![Purge::new("events of triggers", {
            let triggers = Arc::clone(triggers);
            move |conn, now| {
                let triggers = Arc::clone(&triggers);
                Box::pin(async move { triggers.purge(conn, now).await })
            }
        })],
        ..Module::default()
    }
}

fn group(services: Arc<dyn TriggerService>) -> Group {
    let mut group = Group::of("triggers", "Events of apps that start agents and assistants", services)
        .naming("id", TRIGGER)
        .naming("eventId", EVENT)
        .referring(&[("toolServerId", TOOL_SERVER), ("agentId", AGENT), ("assistantId", ASSISTANT)]);
    let (read, write) = (key("triggers:read"), key("triggers:write"));
    group.get("/v1/triggers", read, list).with(spec::list);
    group.post("/v1/triggers", write, create).with(spec::create);
    group.get("/v1/triggers/{id}", read, get).with(spec::get);
    group.patch("/v1/triggers/{id}", write, update).with(spec::update);
    group.delete("/v1/triggers/{id}", write, delete).with(spec::delete);
    group.get("/v1/triggers/{id}/events", read, events).with(spec::events);
    group.post(TEST, write, test).with(spec::test).changing();
    group.post("/v1/triggers/{id}/events/{eventId}/replay", write, replay).with(spec::replay).changing();
    group.build()
}

fn hooks_group(triggers: &Arc<PgTriggers>) -> Group {
    let known = Arc::clone(triggers);
    let mut group = Group::of("hooks", "Where apps send events", Arc::clone(triggers)).naming("token", HOOK);
    group.post("/v1/hooks/{token}", OpenTo::Public, receive).with(spec::receive).raw().with_token(
        move |token| {
            let known = Arc::clone(&known);
            async move { known.knows(&token).await }
        },
        MAX_EVENT,
    );
    group.build()
}

struct Headers<'a>(&'a HeaderMap);

impl RequestHeaders for Headers<'_> {
    fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name)?.to_str().ok()
    }
}

async fn receive(triggers: Arc<PgTriggers>, request: Request) -> Result<Answer> {
    match triggers.receive(request.path("token"), &Headers(&request.headers), &request.body).await? {
        Received::Accepted(status) => Answer::json(status, &json!({"accepted": true})),
        Received::Answer(answer) => Answer::ok(&answer),
    }
}

async fn list(triggers: Arc<dyn TriggerService>, request: Request) -> Result<Answer> {
    let (filter, page) = (request.query()?, request.page()?);
    let filter = TriggerFilter { within: request.within().await?, ..filter };
    let mut listed = triggers.list(request.account()?, filter, page).await?;
    hide_addresses(&request, &mut listed.items).await?;
    Answer::ok(&listed)
}

/// Whoever knows where the events of a trigger come in starts it, also later: only editors of its project and of what it
/// starts do. What it starts has a name only for who may use that.
async fn hide_addresses(request: &Request, shown: &mut [Trigger]) -> Result<()> {
    let starts = request.opens(&Method::POST, TEST);
    let editable = request.reach().await?.editable();
    for trigger in shown {
        if !starts {
            trigger.webhook_url = None;
        }
        let Some(editable) = &editable else { continue };
        let (kind, id) = target(trigger);
        let (changes, uses) = (request.may_change(kind, id).await?, request.may_use(kind, id).await?);
        let is_of_others = trigger.project_id.as_ref().is_some_and(|project| !editable.contains(project));
        if is_of_others || !changes {
            trigger.webhook_url = None;
        }
        if !uses {
            trigger.target.name.clear();
        }
    }
    Ok(())
}

/// What a trigger starts.
fn target(trigger: &Trigger) -> (Kind, &str) {
    (if trigger.target_type == "agent" { AGENT } else { ASSISTANT }, &trigger.target_id)
}

/// Refuses who may not change what the trigger starts, wherever the trigger itself is: carried out, it works with the
/// rights of nobody.
async fn check_target(triggers: &dyn TriggerService, request: &Request) -> Result<()> {
    match triggers.get(request.account()?, &request.id("id")).await {
        Ok(trigger) => {
            let (kind, id) = target(&trigger);
            request.check_change(kind, id).await
        }
        // That there is none is said once what was sent is judged.
        Err(error) if error.code().kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

async fn create(triggers: Arc<dyn TriggerService>, request: Request) -> Result<Answer> {
    let new: NewTrigger = request.body().await?;
    // What starts work by itself, also when its maker is gone, takes more than who starts it once.
    let targets = [(AGENT, &new.agent_id), (ASSISTANT, &new.assistant_id)];
    for (kind, id) in targets.into_iter().filter_map(|(kind, id)| Some((kind, id.as_deref()?))) {
        request.check_change(kind, id).await?;
    }
    Answer::created(&triggers.create(request.caller()?, new, request.once.as_ref()).await?)
}

async fn get(triggers: Arc<dyn TriggerService>, request: Request) -> Result<Answer> {
    let mut found = triggers.get(request.account()?, &request.id("id")).await?;
    let (kind, id) = target(&found);
    request.check_use(kind, id).await?;
    hide_addresses(&request, std::slice::from_mut(&mut found)).await?;
    Answer::ok(&found)
}

async fn update(triggers: Arc<dyn TriggerService>, request: Request) -> Result<Answer> {
    check_target(&*triggers, &request).await?;
    Answer::ok(&triggers.update(request.account()?, &request.id("id"), request.patch().await?).await?)
}

async fn delete(triggers: Arc<dyn TriggerService>, request: Request) -> Result<Answer> {
    let id = &request.id("id");
    triggers.delete(request.account()?, id).await?;
    Answer::deleted("trigger", id)
}

async fn events(triggers: Arc<dyn TriggerService>, request: Request) -> Result<Answer> {
    let (filter, page) = (request.query()?, request.page()?);
    let trigger = triggers.get(request.account()?, &request.id("id")).await?;
    let (kind, id) = target(&trigger);
    request.check_use(kind, id).await?;
    Answer::ok(&triggers.events(request.account()?, &request.id("id"), filter, page).await?)
}

async fn test(triggers: Arc<dyn TriggerService>, request: Request) -> Result<Answer> {
    let test: NewTest = request.body().await?;
    check_target(&*triggers, &request).await?;
    Answer::json(202, &triggers.test(request.account()?, &request.id("id"), test, request.once.as_ref()).await?)
}

async fn replay(triggers: Arc<dyn TriggerService>, request: Request) -> Result<Answer> {
    let (id, event) = (&request.id("id"), &request.id("eventId"));
    check_target(&*triggers, &request).await?;
    Answer::json(202, &triggers.replay(request.account()?, id, event, request.once.as_ref()).await?)
}

mod spec {
    use platform_http::{Deleted, Operation};
    use platform_triggers::{
        Delivery, DeliveryFilter, DeliveryPage, NewTest, NewTrigger, Trigger, TriggerFilter, TriggerPage, TriggerPatch,
    };

    pub fn list() -> Operation {
        Operation::new("List triggers").query::<TriggerFilter>().paged(20, 100).answers::<TriggerPage>(200)
    }
    pub fn create() -> Operation {
        Operation::new("Have events of an app start an agent or write to an assistant")
            .body::<NewTrigger>()
            .requires(&["toolServerId", "triggerSlug"])
            .answers::<Trigger>(201)
    }
    pub fn get() -> Operation {
        Operation::new("Read a trigger").answers::<Trigger>(200)
    }
    pub fn update() -> Operation {
        Operation::new("Change a trigger; enabling it forgets what it paused for")
            .body::<TriggerPatch>()
            .answers::<Trigger>(200)
    }
    pub fn delete() -> Operation {
        Operation::new("Delete a trigger; the app is told to stop").answers::<Deleted>(200)
    }
    pub fn events() -> Operation {
        Operation::new("List what came to a trigger, newest first")
            .query::<DeliveryFilter>()
            .paged(20, 100)
            .answers::<DeliveryPage>(200)
    }
    pub fn test() -> Operation {
        Operation::new("Carry out an event that is made up, or given").body::<NewTest>().answers::<Delivery>(202)
    }
    pub fn replay() -> Operation {
        Operation::new("Carry out an event again").answers::<Delivery>(202)
    }
    pub fn receive() -> Operation {
        Operation::new("Where an app sends its events, signed as its pack says").answers_object(202)
    }
}
