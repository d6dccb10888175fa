//! `/v1/agents`, `/v1/agents/agents/{agentId}/…`

use platform_agents::{Agent, AgentFilter, AgentSettings};
use platform_core::{Error, Result};
use serde::Serialize;
use utoipa::ToSchema;

use crate::{request::Request, respond::Answer};

fn etag(version: i64) -> String {
    format!("\"{version}\"")
}

pub(crate) async fn list(request: Request) -> Result<Answer> {
    let (page, filter, account) = (request.page(10, 100)?, request.query()?, &request.caller()?.account);
    let filter = AgentFilter { within: request.within().await?, ..filter };
    Answer::ok(&request.services.agents.list(account, &filter, page).await?)
}

pub(crate) async fn create(request: Request) -> Result<Answer> {
    let agents = &request.services.agents;
    let agent = agents.create(request.caller()?, request.body()?, request.once.as_ref()).await?;
    Ok(Answer::created(&agent)?.header("etag", etag(agent.version)))
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

pub(crate) async fn get(request: Request) -> Result<Answer> {
    let (account, id) = (&request.caller()?.account, request.path("agentId"));
    let agent = request.services.agents.get(account, id).await?;
    if let Some(session) = request.session() {
        if !request.services.threads.is_known_to(account, id, session).await? {
            return Err(Error::not_found(platform_agents::code::AGENT_NOT_FOUND, "agent", id));
        }
        let Agent { id, settings, .. } = agent;
        let AgentSettings { name, description, img_url, disabled, archived, .. } = settings;
        return Answer::ok(&KnownAgent { id, name, description, img_url, disabled, archived });
    }
    Ok(Answer::ok(&agent)?.header("etag", etag(agent.version)))
}

pub(crate) async fn update(request: Request) -> Result<Answer> {
    let (account, id) = (&request.caller()?.account, request.path("agentId"));
    let agent = request.services.agents.update(account, id, request.patch()?, &request.if_match()?).await?;
    Ok(Answer::ok(&agent)?.header("etag", etag(agent.version)))
}

pub(crate) async fn delete(request: Request) -> Result<Answer> {
    let (caller, id) = (request.caller()?, request.path("agentId"));
    request.services.agents.delete(caller, id, &request.if_match()?).await?;
    request.services.threads.end_all(caller, id).await?;
    Answer::deleted("agent", id)
}

pub(crate) async fn evaluation_config(request: Request) -> Result<Answer> {
    let (account, id) = (&request.caller()?.account, request.path("agentId"));
    Answer::ok(&request.services.agents.evaluation_config(account, id).await?)
}

pub(crate) async fn update_evaluation_config(request: Request) -> Result<Answer> {
    let (account, id) = (&request.caller()?.account, request.path("agentId"));
    Answer::ok(&request.services.agents.update_evaluation_config(account, id, request.patch()?).await?)
}

pub(crate) async fn daily_costs(request: Request) -> Result<Answer> {
    let (account, id) = (&request.caller()?.account, request.path("agentId"));
    Answer::ok(&request.services.agents.daily_costs(account, id, request.query()?).await?)
}

pub(crate) async fn monthly_costs(request: Request) -> Result<Answer> {
    let (account, id) = (&request.caller()?.account, request.path("agentId"));
    Answer::ok(&request.services.agents.monthly_costs(account, id, request.query()?).await?)
}

pub(crate) async fn cost_summary(request: Request) -> Result<Answer> {
    let (account, id) = (&request.caller()?.account, request.path("agentId"));
    Answer::ok(&request.services.agents.cost_summary(account, id).await?)
}

pub(super) mod spec {
    use platform_agents::{
        Agent, AgentFilter, AgentList, AgentSettings, CostRow, CostSummary, DailyRange, EvaluationConfig, MonthlyRange,
    };

    use crate::openapi::{Deleted, Operation};

    pub fn list() -> Operation {
        Operation::new("List agents").query::<AgentFilter>().paged().answers::<AgentList>(200)
    }
    pub fn create() -> Operation {
        Operation::new("Make an agent")
            .body::<AgentSettings>()
            .aliases(&["model"])
            .without_effect(&["webhookUrl"])
            .answers::<Agent>(201)
    }
    pub fn get() -> Operation {
        Operation::new("Read an agent").answers::<Agent>(200)
    }
    pub fn update() -> Operation {
        Operation::new("Change an agent; turns that run keep what they began with")
            .body::<AgentSettings>()
            .aliases(&["model"])
            .without_effect(&["webhookUrl"])
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
