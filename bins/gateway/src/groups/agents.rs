//! `/v1/agents`, `/v1/agents/agents/{agentId}/…`

use std::sync::Arc;

use async_trait::async_trait;
use platform_agents::{
    AGENT_DELETED, AGENT_REFERENCES, Agent, AgentFilter, AgentService, AgentSettings, PgAgentService, PgThreadService,
    ThreadService,
};
use platform_conversation::AGENT;
use platform_core::{Error, Id, Result};
use platform_db::Db;
use platform_http::{Answer, Group, Request, key, session};
use platform_jobs::{Run, Work, end_in};
use platform_triggers::{PgTriggers, TriggerService};
use serde::Serialize;
use tokio_util::sync::CancellationToken;
use utoipa::ToSchema;

use crate::{leaving::with_followers, module::Module};

/// What the handlers use.
pub(crate) struct Services {
    pub agents: Arc<dyn AgentService>,
    pub threads: Arc<dyn ThreadService>,
    pub triggers: Arc<dyn TriggerService>,
}

/// Agents.
pub(crate) fn module(
    agents: &Arc<PgAgentService>,
    threads: &Arc<PgThreadService>,
    triggers: &Arc<PgTriggers>,
    db: &Db,
) -> Module {
    let services = Services { agents: agents.clone(), threads: threads.clone(), triggers: triggers.clone() };
    Module {
        groups: vec![group(Arc::new(services))],
        resources: vec![(AGENT, agents.clone())],
        works: vec![Arc::new(Followers { agents: agents.clone(), triggers: triggers.clone(), db: db.clone() })],
        ..Module::default()
    }
}

/// What goes with an agent, beside its threads.
struct Followers {
    agents: Arc<dyn AgentService>,
    triggers: Arc<dyn TriggerService>,
    db: Db,
}

#[async_trait]
impl Work for Followers {
    fn kind(&self) -> &'static str {
        AGENT_DELETED
    }

    async fn work(&self, run: &Run, _: &CancellationToken) -> Result<()> {
        self.agents.take_out(&run.account(), &Id::named(&run.subject)).await?;
        self.triggers.end_of(&run.account(), (AGENT, &run.subject)).await?;
        end_in(&mut *self.db.conn().await?, run).await
    }
}

fn group(services: Arc<Services>) -> Group {
    let mut group = Group::of("agents", "Agents: what they are, how they are judged, what they took", services)
        .naming("agentId", AGENT)
        .referring(&AGENT_REFERENCES);
    let read = key("agents:read");
    let write = key("agents:write");
    group.post("/v1/agents", write, create).with(spec::create);
    group.get("/v1/agents", read, list).with(spec::list);
    group.get("/v1/agents/agents/{agentId}/costs/daily", read, daily_costs).with(spec::daily_costs);
    group.get("/v1/agents/agents/{agentId}/costs/monthly", read, monthly_costs).with(spec::monthly_costs);
    group.get("/v1/agents/agents/{agentId}/costs/summary", read, cost_summary).with(spec::cost_summary);
    group.get("/v1/agents/agents/{agentId}/evaluation-config", read, evaluation_config).with(spec::evaluation_config);
    group
        .put("/v1/agents/agents/{agentId}/evaluation-config", write, update_evaluation_config)
        .with(spec::update_evaluation_config);
    group.get("/v1/agents/{agentId}", session("agents:read"), get).with(spec::get);
    group.patch("/v1/agents/{agentId}", write, update).with(spec::update);
    group.put("/v1/agents/{agentId}", write, update).with(spec::update);
    group.delete("/v1/agents/{agentId}", write, delete).with(spec::delete);
    group.build()
}

async fn list(services: Arc<Services>, request: Request) -> Result<Answer> {
    let (page, filter, account) = (request.page()?, request.query()?, request.account()?);
    let filter = AgentFilter { within: request.within().await?, ..filter };
    Answer::ok(&services.agents.list(account, &filter, page).await?)
}

async fn create(services: Arc<Services>, request: Request) -> Result<Answer> {
    let agents = &services.agents;
    let agent = agents.create(request.caller()?, request.body().await?, request.once.as_ref()).await?;
    Ok(Answer::created(&agent)?.etag(agent.version))
}

/// What an end user may know of an agent that works for their tenant (contract 01 §6).
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct KnownAgent {
    #[serde(rename = "_id")]
    id: String,
    name: String,
    description: String,
    img_url: String,
    disabled: bool,
    archived: bool,
}

async fn get(services: Arc<Services>, request: Request) -> Result<Answer> {
    let (account, id) = (request.account()?, &request.id("agentId"));
    let agent = services.agents.get(account, id).await?;
    if let Some(session) = request.session() {
        if !services.threads.is_known_to(account, id, session).await? {
            return Err(Error::not_found(platform_agents::code::AGENT_NOT_FOUND, "agent", id));
        }
        let Agent { id, settings, .. } = agent;
        let AgentSettings { name, description, img_url, disabled, archived, .. } = settings;
        return Answer::ok(&KnownAgent { id, name, description, img_url, disabled, archived });
    }
    Ok(Answer::ok(&agent)?.etag(agent.version))
}

async fn update(services: Arc<Services>, request: Request) -> Result<Answer> {
    let (account, id) = (request.account()?, &request.id("agentId"));
    let agent = services.agents.update(account, id, request.patch().await?, &request.if_match()?).await?;
    Ok(Answer::ok(&agent)?.etag(agent.version))
}

async fn delete(services: Arc<Services>, request: Request) -> Result<Answer> {
    let (caller, id) = (request.caller()?, &request.id("agentId"));
    let deleted = services.agents.delete(caller, id, &request.if_match()?).await;
    let followers = async {
        services.threads.end_all(caller, id).await?;
        services.agents.take_out(&caller.account, id).await?;
        services.triggers.end_of(&caller.account, (AGENT, id)).await
    };
    with_followers(deleted, followers).await?;
    Answer::deleted("agent", id)
}

async fn evaluation_config(services: Arc<Services>, request: Request) -> Result<Answer> {
    let (account, id) = (request.account()?, &request.id("agentId"));
    Answer::ok(&services.agents.evaluation_config(account, id).await?)
}

async fn update_evaluation_config(services: Arc<Services>, request: Request) -> Result<Answer> {
    let (account, id) = (request.account()?, &request.id("agentId"));
    let (patch, expected) = (request.patch().await?, request.if_match()?);
    Answer::ok(&services.agents.update_evaluation_config(account, id, patch, &expected).await?)
}

async fn daily_costs(services: Arc<Services>, request: Request) -> Result<Answer> {
    let (account, id) = (request.account()?, &request.id("agentId"));
    Answer::ok(&services.agents.daily_costs(account, id, request.query()?).await?)
}

async fn monthly_costs(services: Arc<Services>, request: Request) -> Result<Answer> {
    let (account, id) = (request.account()?, &request.id("agentId"));
    Answer::ok(&services.agents.monthly_costs(account, id, request.query()?).await?)
}

async fn cost_summary(services: Arc<Services>, request: Request) -> Result<Answer> {
    let (account, id) = (request.account()?, &request.id("agentId"));
    Answer::ok(&services.agents.cost_summary(account, id).await?)
}

mod spec {
    use platform_agents::{
        Agent, AgentFilter, AgentList, AgentSettings, CostRow, CostSummary, DailyRange, EvaluationConfig, MonthlyRange,
    };

    use platform_http::{Deleted, Operation};

    use super::KnownAgent;

    pub fn list() -> Operation {
        Operation::new("List agents").query::<AgentFilter>().paged(10, 100).answers::<AgentList>(200)
    }
    pub fn create() -> Operation {
        Operation::new("Make an agent")
            .body::<AgentSettings>()
            .requires(&["name"])
            .aliases(&["model"])
            .answers::<Agent>(201)
    }
    pub fn get() -> Operation {
        Operation::new("Read an agent; a session sees who it is").any_of::<Agent, KnownAgent>(200)
    }
    pub fn update() -> Operation {
        Operation::new("Change an agent; turns that run keep what they began with")
            .body::<AgentSettings>()
            .aliases(&["model"])
            .answers::<Agent>(200)
    }
    pub fn delete() -> Operation {
        Operation::new("Delete an agent and end its threads, which stay readable").answers::<Deleted>(200)
    }
    pub fn evaluation_config() -> Operation {
        Operation::new("Read how the threads of an agent are judged").answers::<EvaluationConfig>(200)
    }
    pub fn update_evaluation_config() -> Operation {
        Operation::new("Change how the threads of an agent are judged")
            .body::<EvaluationConfig>()
            .aliases(&["evaluationModel", "autoEvaluate"])
            .answers::<EvaluationConfig>(200)
    }
    pub fn daily_costs() -> Operation {
        Operation::new("Read what an agent took by day").query::<DailyRange>().answers::<Vec<CostRow>>(200)
    }
    pub fn monthly_costs() -> Operation {
        Operation::new("Read what an agent took by month").query::<MonthlyRange>().answers::<Vec<CostRow>>(200)
    }
    pub fn cost_summary() -> Operation {
        Operation::new("Read what an agent took today and this month").answers::<CostSummary>(200)
    }
}
