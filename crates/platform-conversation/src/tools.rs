//! The tools of a turn: those of the assistant, and those that the client runs.

use std::{borrow::Cow, collections::HashSet, sync::Arc, time::Duration};

use platform_core::{AccountId, Checks, Code, Error, Result};
use platform_runtime::{
    Callbacks, ChildPool, KNOWLEDGE_TOOLS, MEMORY_TOOLS, ModelSpec, Payer, SKILL_TOOLS, TENANT_APPS, TENANT_MCP, Tool,
    ToolChoice, Toolbox, TurnScope, TurnTool, check_schemas, is_function_name,
};
use serde_json::{Value, json};

use crate::{
    AssistantSettings,
    request::{ClientTool, TurnRequest},
    settings::takes_no_tools,
    sub_agents::HAND_OFF_TOOLS,
};

const MAX_CLIENT_TOOLS: usize = 50;
/// Bytes of what one of them does.
const MAX_DESCRIPTION: usize = 16 << 10;

/// For whom tools are called.
#[derive(Clone, Copy, Default)]
pub struct ToolUser<'a> {
    /// Kind and id of the agent or assistant.
    pub worker: Option<(&'static str, &'a str)>,
    /// Who pays.
    pub payer: Option<&'a Payer>,
    /// Id of the chat or thread.
    pub conversation: &'a str,
    /// Where results may come later; a chat cannot wait.
    pub callbacks: Option<&'a Arc<dyn Callbacks>>,
}

/// What the model may call in a turn.
pub async fn turn_tools(
    toolbox: &Toolbox,
    account: &AccountId,
    settings: &AssistantSettings,
    request: &TurnRequest,
    user: ToolUser<'_>,
) -> Result<Vec<TurnTool>> {
    let ToolUser { worker, payer, conversation, callbacks } = user;
    let worker = worker.map(|(kind, id)| (kind, id.to_owned()));
    let mut scope = TurnScope { depth: request.depth, worker, ..settings.scope(payer, conversation) };
    scope.tenant_apps.retain(|offer| !request.disabled_integrations.contains(&offer.app));
    let mut groups = Cow::from(&settings.available_tools_groups_uids);
    // What is attached can be looked into, whether or not somebody chose the tools for it.
    let needed = [
        (KNOWLEDGE_TOOLS, scope.has_knowledge()),
        (SKILL_TOOLS, !scope.skills.is_empty()),
        (MEMORY_TOOLS, scope.memory.is_some()),
        (TENANT_APPS, !scope.tenant_apps.is_empty()),
        (TENANT_MCP, scope.tenant_mcp.is_some()),
    ];
    for (group, is_needed) in needed {
        if is_needed && !groups.iter().any(|given| given == group) {
            groups.to_mut().push(group.to_owned());
        }
    }
    if scope.memory.is_none() && groups.iter().any(|group| group == MEMORY_TOOLS) {
        groups.to_mut().retain(|group| group != MEMORY_TOOLS);
    }
    let choice = ToolChoice {
        scope: Arc::new(scope),
        groups: &groups,
        enabled: [settings.enabled_tools.as_deref(), request.enabled_tools.as_deref()],
        approval: &settings.approval_tools,
        timeout: Duration::from_millis(settings.tool_call_timeout_ms.into()),
        callbacks,
    };
    let mut tools = if choice.groups.is_empty() { Vec::new() } else { toolbox.tools(account, &choice).await? };
    let known: HashSet<String> = tools.iter().map(|tool| tool.tool.name.clone()).collect();
    // A server tool that came by that name after the message was accepted wins.
    let new = request.tools.iter().filter(|tool| !known.contains(&tool.function.name));
    tools.extend(new.map(|tool| TurnTool {
        tool: Tool {
            name: tool.function.name.clone(),
            description: tool.function.description.clone(),
            parameters: Arc::new(parameters(tool)),
        },
        is_alias: false,
        needs_approval: false,
        is_repeatable: false,
        action: None,
    }));
    Ok(tools)
}

/// Whether a turn can have these tools of the client beside those of its assistant, with this model.
pub async fn check_turn_tools(
    toolbox: &Toolbox,
    account: &AccountId,
    settings: &AssistantSettings,
    request: &TurnRequest,
    payer: &Payer,
    spec: &ModelSpec,
) -> Result<()> {
    let has_groups = !settings.available_tools_groups_uids.is_empty()
        || settings.has_knowledge()
        || settings.has_skills()
        || settings.core_memory.of(payer).is_some();
    if (has_groups || !request.tools.is_empty()) && !spec.capabilities.tools {
        return Err(takes_no_tools(spec));
    }
    if request.tools.is_empty() {
        return Ok(());
    }
    let own = TurnRequest { tools: Vec::new(), ..request.clone() };
    let user = ToolUser { payer: Some(payer), ..ToolUser::default() };
    let own = turn_tools(toolbox, account, settings, &own, user).await?;
    let mut names: HashSet<&str> = own.iter().map(|tool| tool.tool.name.as_str()).collect();
    if !settings.subagents_ids.is_empty() {
        names.extend(HAND_OFF_TOOLS);
    }
    match request.tools.iter().find(|tool| names.contains(tool.function.name.as_str())) {
        Some(tool) => Err(twice(&tool.function.name)),
        None => Ok(()),
    }
}

/// Every rule on tools of the client but their schemas, under `path`.
pub fn check_client_tools(path: &str, tools: &[ClientTool]) -> Result<()> {
    let mut checks = Checks::default();
    checks.count(path, tools.len(), MAX_CLIENT_TOOLS);
    checks.finish()?;
    let mut checks = Checks::default();
    let mut names = HashSet::new();
    let mut double = None;
    for (i, tool) in tools.iter().enumerate() {
        let at = |field: &str| format!("{path}[{i}].{field}");
        if tool.r#type != "function" {
            checks.issue(&at("type"), "enum", "type must be function");
        }
        let name = &tool.function.name;
        if !is_function_name(name) {
            checks.issue(&at("function.name"), "format", "function.name must match ^[A-Za-z0-9_-]{1,64}$");
        }
        checks.bytes(&at("function.description"), tool.function.description.len(), MAX_DESCRIPTION);
        if !names.insert(name) {
            double = Some(name);
        }
    }
    checks.finish_as(Code::INVALID_TOOL_DEFINITION)?;
    double.map_or(Ok(()), |name| Err(twice(name)))
}

/// Whether the schemas of their arguments can be used ([`check_schemas`]); each list of tools under its path.
pub async fn check_client_schemas(
    children: &ChildPool,
    account: &AccountId,
    lists: &[(String, &[ClientTool])],
) -> Result<()> {
    let at = |path, i| format!("{path}[{i}].function.parameters");
    let tools =
        lists.iter().flat_map(|(path, tools)| tools.iter().enumerate().map(move |(i, tool)| (at(path, i), tool)));
    let schemas: Vec<(String, Value)> = tools.map(|(path, tool)| (path, parameters(tool))).collect();
    let mut checks = Checks::default();
    checks.count("tools", schemas.len(), MAX_CLIENT_TOOLS);
    checks.finish()?;
    let mut checks = Checks::default();
    let given: Vec<_> = schemas.iter().map(|(path, schema)| (path.clone(), schema)).collect();
    for (path, reason) in check_schemas(children, account, &given).await? {
        checks.issue(&path, "format", format!("{path} {reason}"));
    }
    checks.finish_as(Code::INVALID_TOOL_DEFINITION)
}

fn parameters(tool: &ClientTool) -> Value {
    match &tool.function.parameters {
        Value::Null => json!({"type": "object", "properties": {}}),
        Value::Object(fields) if !fields.contains_key("type") => {
            let mut fields = fields.clone();
            fields.insert("type".to_owned(), "object".into());
            Value::Object(fields)
        }
        given => given.clone(),
    }
}

fn twice(name: &str) -> Error {
    Error::new(Code::DUPLICATE_TOOL_NAME, format!("There are two tools named `{name}`; rename yours."))
        .with("name", name)
}
