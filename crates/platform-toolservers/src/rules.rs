//! What a change of a tool server comes to.

use platform_core::{Code, Error, Object, Result, Timestamp};
use serde_json::{Value, json};
use tracing::info;

use crate::{
    code,
    definition::{ToolDefinition, merge},
    failure::Failure,
    model::{McpAuthMode, ToolServerSettings, is_identifier},
    repository::ServerRow,
};

/// Tools that went away and are remembered.
const MAX_GUARDED: usize = 1000;
const MAX_IDENTIFIER: usize = 24;

/// `type` says the same as `mcpType`, which wins where a server is changed; `null` within a tool is what was not given.
pub(crate) fn aliased(mut patch: Object, was_mcp: bool) -> Result<Object> {
    let is_http = patch.get("type").and_then(Value::as_str).is_some_and(|kind| kind.eq_ignore_ascii_case("http"));
    if is_http && !patch.contains_key("mcpType") {
        patch.insert("mcpType".to_owned(), false.into());
    }
    if was_mcp && patch.get("mcpType") == Some(&Value::Bool(false)) {
        patch.remove("type");
    }
    if let Some(Value::Object(config)) = patch.get("authenticationConfig")
        && !config.is_empty()
        && config.get("authenticationMethod").is_none_or(Value::is_null)
    {
        let path = "authenticationConfig.authenticationMethod";
        return Err(Error::invalid(
            path,
            "required",
            format!("{path} is required: say which method the fields are of"),
        ));
    }
    if let Some(Value::Array(tools)) = patch.get_mut("toolDefinitions") {
        for tool in tools {
            if let Value::Object(given) = tool {
                *tool = merge(&ToolDefinition::default(), std::mem::take(given))?;
            }
        }
    }
    Ok(patch)
}

/// What is wrong with a definition has a code of its own.
pub(crate) fn of_definitions(error: Error) -> Error {
    let is_of_one = error.issues().first().is_some_and(|issue| issue.path.starts_with("toolDefinitions["));
    if is_of_one && error.code() == Code::VALIDATION_ERROR { error.coded(Code::INVALID_TOOL_DEFINITION) } else { error }
}

/// Of the tools of an MCP server a client sets only how they are used.
pub(crate) fn switched(mut stored: Vec<ToolDefinition>, given: &[ToolDefinition]) -> Vec<ToolDefinition> {
    for tool in &mut stored {
        if let Some(given) = given.iter().find(|given| given.function.name == tool.function.name) {
            (tool.requires_approval, tool.timeout_ms) = (given.requires_approval, given.timeout_ms);
        }
    }
    stored
}

/// Takes in what an MCP server says of its tools; whether anything about them has changed.
pub(crate) fn note_tools(
    row: &mut ServerRow,
    fetched: Result<Vec<ToolDefinition>, Failure>,
    before: &[ToolDefinition],
    now: Timestamp,
) -> Result<bool> {
    row.refreshed_ms = Some(now.0);
    let mut tools = match fetched {
        Ok(tools) => switched(tools, before),
        Err(failure) if wants_callers(&row.settings()?, &failure) => before.to_vec(),
        Err(failure) => {
            (row.health, row.last_error) = (Some("down".to_owned()), Some(failure.fit().to_line()));
            row.down_since_ms.get_or_insert(now.0);
            return Ok(false);
        }
    };
    (row.health, row.last_error, row.down_since_ms) = (Some("ok".to_owned()), None, None);
    guard(row, &mut tools, before);
    let mut changed = tools.len() != before.len();
    for tool in &mut tools {
        let Some(known) = before.iter().find(|known| known.function.name == tool.function.name) else {
            changed = true;
            continue;
        };
        tool.changed_timestamp_ms = known.changed_timestamp_ms;
        let told = |tool: &ToolDefinition| (tool.annotations.clone(), tool.title.clone(), tool.output_schema.clone());
        if known.function != tool.function || told(known) != told(tool) {
            changed = true;
            tool.changed_timestamp_ms = Some(now.0);
            info!(server = row.id, tool = tool.function.name, "An MCP server describes a tool otherwise than before.");
        }
    }
    row.set_tools(&tools)?;
    Ok(changed)
}

/// A tool that went away for a while still waits for approval.
fn guard(row: &mut ServerRow, tools: &mut [ToolDefinition], before: &[ToolDefinition]) {
    let is_in = |tools: &[ToolDefinition], name: &str| tools.iter().any(|tool| tool.function.name == name);
    for tool in tools.iter_mut().filter(|tool| !is_in(before, &tool.function.name)) {
        tool.requires_approval |= row.guarded.contains(&tool.function.name);
    }
    row.guarded.retain(|name| !is_in(tools, name));
    let gone = before.iter().filter(|tool| tool.requires_approval && !is_in(tools, &tool.function.name));
    row.guarded.extend(gone.map(|tool| tool.function.name.clone()));
    row.guarded.truncate(MAX_GUARDED);
}

/// Whether a server only wants the credentials of each caller.
pub(crate) fn wants_callers(settings: &ToolServerSettings, failure: &Failure) -> bool {
    settings.mcp_auth_mode != McpAuthMode::Shared && failure.code == "AUTH_FAILED"
}

/// What a name becomes before the names of tools: `^[a-z0-9-]{1,24}$`.
pub fn slug(name: &str) -> String {
    let mut slug = String::new();
    for c in name.chars() {
        match c {
            c if c.is_ascii_alphanumeric() => slug.push(c.to_ascii_lowercase()),
            _ if !slug.is_empty() && !slug.ends_with('-') => slug.push('-'),
            _ => {}
        }
    }
    let slug: String = slug.chars().take(MAX_IDENTIFIER).collect();
    let slug = slug.trim_end_matches('-');
    if is_identifier(slug) { slug.to_owned() } else { "server".to_owned() }
}

/// The slug, with a number from the second on.
pub fn numbered(slug: &str, n: i64) -> String {
    if n == 1 {
        return slug.to_owned();
    }
    let number = format!("-{n}");
    let room = MAX_IDENTIFIER - number.len();
    format!("{}{number}", &slug[..slug.len().min(room)])
}

pub(crate) fn masked(tools: &[ToolDefinition]) -> Result<Vec<Value>> {
    tools.iter().map(|tool| serde_json::to_value(tool).map_err(Error::internal)).collect()
}

pub(crate) fn position(stored: &ToolServerSettings, name: &str) -> Result<usize> {
    stored.tool_definitions.iter().position(|tool| tool.function.name == name).ok_or_else(|| no_tool(name))
}

/// A given definition, over the stored one of that name.
pub(crate) fn laid_over(stored: &ToolServerSettings, given: Object) -> Result<Value> {
    let name = given.get("function").and_then(|function| function.get("name"));
    let known =
        stored.tool_definitions.iter().find(|tool| name.is_some_and(|name| name == tool.function.name.as_str()));
    match known {
        Some(known) => merge(known, given),
        None => merge(&ToolDefinition::default(), given),
    }
}

pub(crate) fn own_tools_only(row: &ServerRow) -> Result<()> {
    if row.kind == "http" {
        return Ok(());
    }
    let message =
        format!("The tools of a server of type {} come from there; they cannot be made or renamed.", row.kind);
    Err(Error::new(Code::CONFLICT, message).with("type", &row.kind))
}

/// Why a tool server stays that others use; `hidden`: so many more whom whoever asks does not see.
pub fn in_use(users: &[(String, String)], hidden: usize) -> Error {
    let kinds = ["agent", "assistant", "environment", "profile", "trigger"];
    let of = |kind: &str| users.iter().filter(|user| user.0 == kind).map(|user| &user.1).collect::<Vec<_>>();
    let used_by: Object = kinds.into_iter().map(|kind| (format!("{kind}s"), json!(of(kind)))).collect();
    let named = users.iter().take(20).map(|(kind, id)| format!("{id} ({kind}s)"));
    let more = users.len().saturating_sub(20);
    let more = (more > 0).then(|| format!("{more} more"));
    let hidden = (hidden > 0).then(|| format!("{hidden} that you do not see"));
    let named = named.chain(more).chain(hidden).collect::<Vec<_>>().join(", ");
    let message = format!("This tool server is used by {named}; take it out there, or delete it with force=true.");
    Error::new(Code::CONFLICT, message).with("usedBy", used_by)
}

pub(crate) fn identifier_taken(identifier: &str) -> Error {
    Error::new(Code::IDENTIFIER_TAKEN, format!("The identifier `{identifier}` is taken; choose another."))
}

pub(crate) fn not_found(id: &str) -> Error {
    Error::not_found(code::TOOL_SERVER_NOT_FOUND, "tool server", id)
}

pub(crate) fn no_tool(name: &str) -> Error {
    Error::not_found(code::TOOL_NOT_FOUND, "tool", name)
}
