//! Handing work to other agents (contract 03 §8).

use std::sync::Arc;

use async_trait::async_trait;
use diesel_async::AsyncConnection;
use platform_conversation::{HAND_OFF_TOOLS, HandOff, SubAgentLauncher};
use platform_core::{Error, Object, Result, run_detached};
use platform_runtime::{Action, Later, Schema, Tool, ToolResult, TurnTool};
use serde_json::{Value, json};

use crate::thread::{
    change::model::ThreadSpec,
    change::state::Source,
    facts::Parent,
    model::ParentLink,
    repository,
    threads::{Threads, not_found},
};
use crate::{agent::ReadyAgent, code};

/// Offers agents to chats and threads.
pub(crate) struct ThreadLauncher(pub Arc<Threads>);

#[async_trait]
impl SubAgentLauncher for ThreadLauncher {
    async fn tools(&self, ids: &[String], parent: &HandOff) -> Result<Vec<TurnTool>> {
        let mut agents = Vec::new();
        for id in ids {
            match self.0.agents.live(&parent.account, id).await {
                Ok(agent) if agent.settings.takes_work() => agents.push(agent),
                // It was deleted, or takes no work now.
                Ok(_) => {}
                Err(error) if error.code() == code::AGENT_NOT_FOUND => {}
                Err(error) => return Err(error),
            }
        }
        if agents.is_empty() {
            return Ok(Vec::new());
        }
        let (tool, action) =
            (tool(&agents), HandOffAction { threads: Arc::clone(&self.0), parent: parent.clone(), agents });
        let action: Arc<dyn Action> = Arc::new(action);
        let needs_approval =
            parent.own_approvals.iter().any(|name| name == "*" || HAND_OFF_TOOLS.contains(&name.as_str()));
        let named = |name: &&str| TurnTool {
            tool: Tool { name: (*name).to_owned(), ..tool.clone() },
            is_alias: *name != HAND_OFF_TOOLS[0],
            needs_approval,
            // A call makes its thread once, however often it is made.
            is_repeatable: true,
            action: Some(Arc::clone(&action)),
        };
        Ok(HAND_OFF_TOOLS.iter().map(named).collect())
    }
}

/// What the model is told of the agents.
fn tool(agents: &[Arc<ReadyAgent>]) -> Tool {
    let ids: Vec<&str> = agents.iter().map(|agent| agent.id.as_str()).collect();
    let about = |agent: &Arc<ReadyAgent>| {
        let input = match &agent.settings.sub_agent_config.input_structure {
            Some(schema) => format!(" Its input is JSON of this schema: {schema}"),
            None => String::new(),
        };
        format!("- {} ({}): {}{input}", agent.id, agent.settings.name, agent.settings.description)
    };
    let agents: Vec<String> = agents.iter().map(about).collect();
    Tool {
        name: HAND_OFF_TOOLS[0].to_owned(),
        description: format!(
            "Hands a piece of work to another agent and gives its result. Say everything it must know.\n{}",
            agents.join("\n")
        ),
        parameters: Arc::new(json!({
            "type": "object",
            "properties": {
                "agentId": {"type": "string", "enum": ids},
                "input": {"description": "The work: text, or an object where the agent wants one"},
            },
            "required": ["agentId", "input"],
        })),
    }
}

/// Hands the work of one call over.
struct HandOffAction {
    threads: Arc<Threads>,
    parent: HandOff,
    agents: Vec<Arc<ReadyAgent>>,
}

#[async_trait]
impl Action for HandOffAction {
    async fn call(&self, id: &str, arguments: Object) -> ToolResult {
        let wanted = arguments.get("agentId").and_then(Value::as_str).unwrap_or_default();
        let Some(agent) = self.agents.iter().find(|agent| agent.id == wanted) else {
            return ToolResult::error("INVALID_ARGUMENTS", format!("There is no sub-agent `{wanted}`."));
        };
        match self.hand_off(agent, id, arguments.get("input").unwrap_or(&Value::Null)).await {
            Ok(result) => result,
            Err(error) => {
                tracing::warn!(agent = agent.id, %error, "Work could not be handed to a sub-agent.");
                let message = error.message().to_owned();
                ToolResult::of(&json!({"error": "SUBAGENT_FAILED", "message": message}))
            }
        }
    }
}

impl HandOffAction {
    async fn hand_off(&self, agent: &ReadyAgent, call: &str, input: &Value) -> Result<ToolResult> {
        let config = &agent.settings.sub_agent_config;
        // A model may give JSON as text.
        let parsed = input.as_str().and_then(|text| serde_json::from_str(text).ok());
        let input = match (&config.input_structure, parsed) {
            (Some(_), Some(parsed)) => parsed,
            _ => input.clone(),
        };
        if let Some(schema) = &config.input_structure {
            let (children, account) = (&self.threads.ports.children, &self.parent.account);
            let issues = Schema::new(schema.clone()).problems(children, account, &input, 10).await;
            if !issues.is_empty() {
                return Ok(ToolResult::of(&json!({"error": "INVALID_ARGUMENTS", "issues": issues})));
            }
        }
        let message = input.as_str().map_or_else(|| input.to_string(), str::to_owned);
        if message.trim().is_empty() {
            return Ok(ToolResult::error("INVALID_ARGUMENTS", "input is empty: say what the agent is to do."));
        }
        let (above, ancestors) = self.ancestors().await?;
        let depth = ancestors.len() + usize::from(self.parent.chat.is_some());
        if ancestors.contains(&agent.id) || depth > self.threads.config.max_depth {
            let message = "Work cannot be handed to an agent above, or so deep.";
            return Ok(ToolResult::error("SUBAGENT_DEPTH", message));
        }
        let link = ParentLink {
            thread: self.parent.thread.clone(),
            agent: above,
            chat: self.parent.chat.clone(),
            tool_call: Some(call.to_owned()),
        };
        let parent = Parent { link, ancestors, approval_tools: self.parent.approval_tools.clone() };
        let source = Source::SubAgent;
        // Work that an agent hands over is the agent's; a chat's is that of its user.
        let user =
            parent.link.agent.as_ref().map_or_else(|| self.parent.user_uid.clone(), |agent| format!("agent:{agent}"));
        let order = ThreadSpec {
            tenant_id: self.parent.tenant_id.clone(),
            subtenant_id: self.parent.subtenant_id.clone(),
            parent: Some(parent),
            depth: self.parent.depth,
            ..ThreadSpec::of(source, user, message)
        };
        let account = &self.parent.account;
        let mut start = self.threads.prepare(account, agent, order).await?;
        let threads = Arc::clone(&self.threads);
        // A task of its own: the turn stores results of other calls meanwhile, and waits for locks that this holds.
        let starting = run_detached("hand off", async move {
            let mut conn = threads.ports.db.conn().await?;
            let told = conn.transaction::<_, Error, _>(async |conn| threads.start_in(conn, &mut start).await).await?;
            drop(conn);
            threads.tell(&told).await?;
            Ok(start.record.id().to_owned())
        });
        let thread = match starting.await {
            Ok(thread) => thread,
            // The call was made before: its thread is there, and gives its result by itself.
            Err(error) => self.made_before(call).await?.ok_or(error)?,
        };
        Ok(ToolResult::later(Later::Thread(thread)))
    }

    /// The agent that hands over, and all agents above the new thread.
    async fn ancestors(&self) -> Result<(Option<String>, Vec<String>)> {
        let Some(thread) = &self.parent.thread else { return Ok((None, Vec::new())) };
        let conn = self.threads.ports.db.read().await?;
        let found = repository::find(conn.get(), &self.parent.account, thread).await?;
        let found = found.ok_or_else(|| not_found(thread))?;
        let mut ancestors = found.facts.parent.clone().unwrap_or_default().ancestors;
        ancestors.push(found.agent_id().to_owned());
        Ok((Some(found.agent_id().to_owned()), ancestors))
    }

    async fn made_before(&self, call: &str) -> Result<Option<String>> {
        let of_chat = || self.parent.chat.as_ref().map(|chat| format!("chat:{chat}"));
        let Some(above) = self.parent.thread.clone().or_else(of_chat) else { return Ok(None) };
        let conn = self.threads.ports.db.read().await?;
        repository::handed_to(conn.get(), &self.parent.account, &above, call).await
    }
}
