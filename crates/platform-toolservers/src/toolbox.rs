use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use platform_core::{AccountId, Object, Result};
use platform_runtime::{
    Action, Callbacks, GroupTool, Later, Tool, ToolChoice, ToolGroup, ToolResult, Toolbox, TurnTool, fit_bytes,
};

use crate::{
    builtin::{BuiltInAction, BuiltInTool, GROUPS},
    calling::Calling,
    definition::ToolDefinition,
    failure::Failure,
    http::Call,
    model::ServerType,
    names::{Named, exposed},
    server::Server,
    service::PgToolServerService,
};

#[async_trait]
impl Toolbox for PgToolServerService {
    async fn groups(&self, account: &AccountId, uids: &[String]) -> Result<Vec<ToolGroup>> {
        let mut groups = Vec::with_capacity(uids.len());
        for uid in uids {
            if let Some(built_in) = GROUPS.iter().find(|group| group.uid == uid) {
                groups.push(built_in.group());
                continue;
            }
            groups.extend(self.find(account, uid).await?.map(|server| group_of(&server)));
        }
        Ok(groups)
    }

    async fn tools(&self, account: &AccountId, choice: &ToolChoice<'_>) -> Result<Vec<TurnTool>> {
        let mut sources = Vec::new();
        for uid in choice.groups {
            if let Some(built_in) = GROUPS.iter().find(|group| group.uid == uid) {
                sources.extend(built_in.tools.iter().map(Source::BuiltIn));
            } else if let Some(server) = self.find(account, uid).await?.filter(|server| server.settings.enabled) {
                self.refresh_soon(&server);
                let count = server.settings.tool_definitions.len();
                sources.extend((0..count).map(|index| Source::Server(Arc::clone(&server), index)));
            }
        }
        let named: Vec<Named<'_>> = sources.iter().map(Source::named).collect();
        let names = exposed(&named);
        let bare: Vec<String> = named.iter().map(|named| named.bare.to_owned()).collect();
        let mut tools: Vec<TurnTool> = Vec::new();
        for ((source, name), bare) in sources.into_iter().zip(names).zip(bare) {
            let is_in = |list: &[String]| list.iter().any(|given| *given == name || *given == bare);
            let enabled = choice.enabled.iter().flatten().all(|list| is_in(list));
            if enabled && tools.iter().all(|tool| tool.tool.name != name) {
                let listed = is_in(choice.approval) || choice.approval.iter().any(|given| given == "*");
                tools.push(self.tool(account, source, name, listed, choice));
            }
        }
        Ok(tools)
    }
}

impl PgToolServerService {
    fn tool(
        &self,
        account: &AccountId,
        source: Source<'_>,
        name: String,
        approval: bool,
        choice: &ToolChoice<'_>,
    ) -> TurnTool {
        match source {
            Source::BuiltIn(of) => TurnTool {
                tool: Tool { name, ..of.tool.clone() },
                is_alias: false,
                needs_approval: approval || (of.does.is_delicate() && choice.approval.is_empty()),
                is_repeatable: of.does.is_repeatable(),
                action: Some(Arc::new(BuiltInAction {
                    of: of.clone(),
                    account: account.clone(),
                    children: Arc::clone(&self.calling.children),
                    clock: Arc::clone(&self.clock),
                    egress: self.calling.egress.of(account),
                    may_wait: choice.callbacks.is_some(),
                    timeout: choice.timeout,
                    most_bytes: self.limits.tool_response_bytes,
                })),
            },
            Source::Server(server, index) => {
                let of = &server.settings.tool_definitions[index];
                let function = &of.function;
                TurnTool {
                    tool: Tool {
                        name,
                        description: function.description.clone(),
                        parameters: function.parameters.clone(),
                    },
                    is_alias: false,
                    needs_approval: approval || of.requires_approval,
                    is_repeatable: match server.kind {
                        ServerType::Http => of.is_repeatable(),
                        _ => of.idempotent,
                    },
                    action: Some(Arc::new(ServerAction {
                        calling: Arc::clone(&self.calling),
                        index,
                        timeout: longest(&server, of).min(choice.timeout),
                        server,
                        callbacks: choice.callbacks.cloned(),
                        most_bytes: self.limits.tool_response_bytes,
                    })),
                }
            }
        }
    }
}

/// Longest call of a tool.
pub(crate) fn longest(server: &Server, tool: &ToolDefinition) -> Duration {
    Duration::from_millis(tool.timeout_ms.unwrap_or(server.settings.timeout_ms).into())
}

/// A server as a group.
pub(crate) fn group_of(server: &Server) -> ToolGroup {
    let tool = |of: &ToolDefinition| GroupTool {
        name: of.function.name.clone(),
        description: of.function.description.clone(),
    };
    ToolGroup {
        uid: server.id.clone(),
        name: server.settings.name.clone(),
        description: server.settings.description.clone(),
        tools: server.settings.tool_definitions.iter().map(tool).collect(),
    }
}

/// Where a tool comes from.
enum Source<'a> {
    BuiltIn(&'a BuiltInTool),
    Server(Arc<Server>, usize),
}

impl Source<'_> {
    fn named(&self) -> Named<'_> {
        match self {
            Self::BuiltIn(of) => Named { bare: &of.tool.name, identifier: None, prefixed: false },
            Self::Server(server, index) => Named {
                bare: &server.settings.tool_definitions[*index].function.name,
                identifier: Some(&server.identifier),
                prefixed: server.kind != ServerType::Http,
            },
        }
    }
}

/// Carries out a tool of a server.
struct ServerAction {
    calling: Arc<Calling>,
    server: Arc<Server>,
    index: usize,
    timeout: Duration,
    callbacks: Option<Arc<dyn Callbacks>>,
    most_bytes: usize,
}

#[async_trait]
impl Action for ServerAction {
    async fn call(&self, id: &str, arguments: Object) -> ToolResult {
        let tool = &self.server.settings.tool_definitions[self.index];
        let callback = match self.callbacks.as_ref().filter(|_| tool.async_callback) {
            None => None,
            Some(callbacks) => match callbacks.open(id).await {
                Ok(url) => Some(url),
                Err(error) => return ToolResult::error("UPSTREAM_ERROR", error.message()),
            },
        };
        let call = Call { id, callback: callback.as_deref(), timeout: self.timeout };
        let called = self.calling.call(&self.server, tool, call, &arguments).await;
        if let (Some(202), Some(url)) = (called.status, callback) {
            return ToolResult::later(Later::Callback(url));
        }
        let result = called.result.map_or_else(Failure::into_result, |value| ToolResult::of(&value));
        ToolResult { text: fit_bytes(result.text, self.most_bytes), ..result }
    }
}
