use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use platform_core::{AccountId, Object, Result};
use platform_runtime::{
    Action, Approval, Callbacks, GroupTool, Later, NamePrefix, Payer, SourceTool, Tool, ToolGroup, ToolResult,
    ToolSource, ToolTurn, TurnScope, fit_bytes,
};
use platform_vault::Vault;

use crate::{
    calling::Calling,
    definition::ToolDefinition,
    failure::Failure,
    http::{Call, ForWhom},
    model::ServerType,
    server::{Server, UpstreamCredentials},
    service::PgToolServerService,
};

#[async_trait]
impl ToolSource for PgToolServerService {
    async fn group(&self, account: &AccountId, uid: &str) -> Result<Option<ToolGroup>> {
        Ok(self.find(account, uid).await?.map(|server| group_of(&server)))
    }

    async fn tools(&self, account: &AccountId, uid: &str, turn: &ToolTurn<'_>) -> Result<Option<Vec<SourceTool>>> {
        let Some(server) = self.find(account, uid).await? else { return Ok(None) };
        if !server.settings.enabled {
            return Ok(Some(Vec::new()));
        }
        self.refresh_soon(&server, &UpstreamCredentials::Own);
        let count = server.settings.tool_definitions.len();
        Ok(Some((0..count).map(|index| self.offer(&server, index, turn)).collect()))
    }
}

impl PgToolServerService {
    pub(crate) fn offer(&self, server: &Arc<Server>, index: usize, turn: &ToolTurn<'_>) -> SourceTool {
        let of = &server.settings.tool_definitions[index];
        let (function, identifier) = (&of.function, server.identifier.clone());
        let is_http = server.kind == ServerType::Http;
        SourceTool {
            tool: Tool {
                name: function.name.clone(),
                description: function.description.clone(),
                parameters: function.parameters.clone(),
            },
            prefix: if is_http { NamePrefix::OnClash(identifier) } else { NamePrefix::Always(identifier) },
            approval: if of.requires_approval { Approval::Yes } else { Approval::No },
            is_repeatable: if server.kind == ServerType::Mcp { of.idempotent } else { of.is_repeatable() },
            action: Arc::new(ServerAction {
                calling: Arc::clone(&self.calling),
                index,
                timeout: longest(server, of).min(turn.timeout),
                server: Arc::clone(server),
                callbacks: turn.callbacks.cloned(),
                most_bytes: self.limits.tool_response_bytes,
                depth: depth_header(&self.vault, turn.scope),
                end_user: turn.scope.payer.as_ref().and_then(Payer::end_user),
            }),
        }
    }
}

/// What requests of a turn carry that triggers led to.
pub(crate) fn depth_header(vault: &Vault, scope: &TurnScope) -> Option<String> {
    let account = &scope.payer.as_ref()?.account;
    (scope.depth > 0).then(|| vault.depth_header(account, scope.depth))
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

/// Carries out a tool of a server.
struct ServerAction {
    calling: Arc<Calling>,
    server: Arc<Server>,
    index: usize,
    timeout: Duration,
    callbacks: Option<Arc<dyn Callbacks>>,
    most_bytes: usize,
    /// How many triggers led to the turn, signed.
    depth: Option<String>,
    /// For whom it is.
    end_user: Option<String>,
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
        let call = Call {
            id,
            callback: callback.as_deref(),
            depth: self.depth.as_deref(),
            timeout: self.timeout,
            with: &UpstreamCredentials::Own,
            who: ForWhom { end_user: self.end_user.as_deref(), has_room: None },
        };
        let called = self.calling.call(&self.server, tool, call, &arguments).await;
        if let (Some(202), Some(url)) = (called.status, callback) {
            return ToolResult::later(Later::Callback(url));
        }
        let result = called.result.map_or_else(Failure::into_result, |value| ToolResult::of(&value));
        ToolResult { text: fit_bytes(result.text, self.most_bytes), ..result }
    }
}
