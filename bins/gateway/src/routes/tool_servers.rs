//! `/v1/tool-servers`, `/v1/tool-groups`

use platform_core::{AccountId, Code, Error, Object, Result};
use platform_toolservers::{TestRequest, ToolServer, ToolServerFilter};
use serde::Deserialize;
use serde_json::Value;
use utoipa::ToSchema;

use crate::{
    request::Request,
    respond::{Answer, List},
};

#[derive(Default, Deserialize, ToSchema)]
#[serde(default)]
pub(crate) struct DeleteQuery {
    /// Take it out of what uses it, too.
    force: Option<bool>,
}

/// Has an effect on servers of type integration only.
#[derive(Default, Deserialize, ToSchema)]
#[serde(default)]
pub(crate) struct ToolsQuery {
    /// Browse the whole catalogue of the app.
    available: Option<bool>,
    /// Page size.
    limit: Option<i64>,
    /// Where the last page ended.
    cursor: Option<String>,
}

fn server(request: &Request) -> Result<(&AccountId, &str)> {
    Ok((&request.caller()?.account, request.path("toolServerId")))
}

fn versioned(answer: Answer, version: i64) -> Answer {
    answer.header("etag", format!("\"{version}\""))
}

fn shown(server: &ToolServer) -> Result<Answer> {
    Ok(versioned(Answer::ok(server)?, server.version))
}

fn made(server: &ToolServer) -> Result<Answer> {
    Ok(versioned(Answer::created(server)?, server.version))
}

/// A tool comes bare, or as `{"tool": {…}}`.
fn tool(request: &Request) -> Result<Object> {
    let mut given = request.patch()?;
    match given.remove("tool") {
        Some(Value::Object(tool)) => Ok(tool),
        Some(other) => {
            given.insert("tool".to_owned(), other);
            Ok(given)
        }
        None => Ok(given),
    }
}

pub(crate) async fn create(request: Request) -> Result<Answer> {
    let (account, once) = (&request.caller()?.account, request.once.as_ref());
    made(&request.services.tool_servers.create(account, request.patch()?, once).await?)
}

pub(crate) async fn import(request: Request) -> Result<Answer> {
    let (account, once) = (&request.caller()?.account, request.once.as_ref());
    made(&request.services.tool_servers.import(account, request.body()?, once).await?)
}

pub(crate) async fn list(request: Request) -> Result<Answer> {
    let (filter, page) = (request.query()?, request.page(10, 100)?);
    let filter = ToolServerFilter { within: request.within().await?, ..filter };
    Answer::ok(&request.services.tool_servers.list(&request.caller()?.account, &filter, page).await?)
}

pub(crate) async fn get(request: Request) -> Result<Answer> {
    let (account, id) = server(&request)?;
    shown(&request.services.tool_servers.get(account, id).await?)
}

pub(crate) async fn update(request: Request) -> Result<Answer> {
    let (account, id) = server(&request)?;
    shown(&request.services.tool_servers.update(account, id, request.patch()?, &request.if_match()?).await?)
}

pub(crate) async fn delete(request: Request) -> Result<Answer> {
    let DeleteQuery { force } = request.query()?;
    let (account, id) = server(&request)?;
    let reach = request.services.projects.reach(request.caller()?).await?;
    if force == Some(true) && !reach.is_whole() {
        let message = "Who is bound to projects cannot take a tool server out of what uses it; change those first.";
        return Err(Error::new(Code::FORBIDDEN, message));
    }
    request.services.tool_servers.delete(account, id, force == Some(true), &request.if_match()?).await?;
    Answer::deleted("tool server", id)
}

pub(crate) async fn duplicate(request: Request) -> Result<Answer> {
    let ((account, id), once) = (server(&request)?, request.once.as_ref());
    if let Some(project) = request.services.tool_servers.project(account, id).await? {
        request.services.projects.reach(request.caller()?).await?.admits(&project)?;
    }
    made(&request.services.tool_servers.duplicate(account, id, request.body()?, once).await?)
}

pub(crate) async fn definition(request: Request) -> Result<Answer> {
    let (account, id) = server(&request)?;
    let server = request.services.tool_servers.get(account, id).await?;
    Ok(versioned(Answer::ok(&server.definition())?, server.version))
}

pub(crate) async fn define(request: Request) -> Result<Answer> {
    let (account, id) = server(&request)?;
    shown(&request.services.tool_servers.define(account, id, request.patch()?, &request.if_match()?).await?)
}

pub(crate) async fn refresh(request: Request) -> Result<Answer> {
    let (account, id) = server(&request)?;
    shown(&request.services.tool_servers.refresh(account, id).await?)
}

pub(crate) async fn list_tools(request: Request) -> Result<Answer> {
    let _: ToolsQuery = request.query()?;
    let (account, id) = server(&request)?;
    Answer::ok(&request.services.tool_servers.tools(account, id).await?)
}

pub(crate) async fn add_tool(request: Request) -> Result<Answer> {
    let ((account, id), once) = (server(&request)?, request.once.as_ref());
    let (tool, expected) = (tool(&request)?, request.if_match()?);
    let (added, version) = request.services.tool_servers.add_tool(account, id, tool, &expected, once).await?;
    Ok(versioned(Answer::created(&added)?, version))
}

pub(crate) async fn get_tool(request: Request) -> Result<Answer> {
    let (account, id) = server(&request)?;
    let (tool, version) = request.services.tool_servers.tool(account, id, request.path("toolName")).await?;
    Ok(versioned(Answer::ok(&tool)?, version))
}

pub(crate) async fn update_tool(request: Request) -> Result<Answer> {
    let ((account, id), name) = (server(&request)?, request.path("toolName"));
    let (patch, expected) = (tool(&request)?, request.if_match()?);
    let (changed, version) = request.services.tool_servers.update_tool(account, id, name, patch, &expected).await?;
    Ok(versioned(Answer::ok(&changed)?, version))
}

pub(crate) async fn delete_tool(request: Request) -> Result<Answer> {
    let ((account, id), name) = (server(&request)?, request.path("toolName"));
    request.services.tool_servers.delete_tool(account, id, name, &request.if_match()?).await?;
    Answer::deleted("tool", name)
}

pub(crate) async fn test(request: Request) -> Result<Answer> {
    let ((account, id), name) = (server(&request)?, request.path("toolName"));
    let TestRequest { parameters } = request.body()?;
    Answer::ok(&request.services.tool_servers.test(account, id, name, parameters).await?)
}

pub(crate) async fn groups(request: Request) -> Result<Answer> {
    let filter = ToolServerFilter { within: request.within().await?, ..ToolServerFilter::default() };
    let (groups, total) = request.services.tool_servers.list_groups(&request.caller()?.account, &filter).await?;
    let mut list = List::of(total);
    for group in &groups {
        list.push(group)?;
    }
    Ok(list.into_answer())
}

pub(super) mod spec {
    use platform_toolservers::{
        CloneRequest, DefinitionPatch, ListedGroup, OpenApiImport, TestRequest, TestResult, ToolDefinition, ToolList,
        ToolServer, ToolServerFilter, ToolServerList, ToolServerSettings,
    };
    use serde_json::Value;

    use super::{DeleteQuery, ToolsQuery};
    use crate::openapi::{Deleted, Operation};

    pub fn create() -> Operation {
        Operation::new("Make a tool server")
            .body::<ToolServerSettings>()
            .without_effect(&["mcpExposed"])
            .answers::<ToolServer>(201)
    }
    pub fn import() -> Operation {
        Operation::new("Make a tool server of an OpenAPI description")
            .body::<OpenApiImport>()
            .answers::<ToolServer>(201)
    }
    pub fn list() -> Operation {
        Operation::new("List tool servers").query::<ToolServerFilter>().paged().answers::<ToolServerList>(200)
    }
    pub fn get() -> Operation {
        Operation::new("Read a tool server with its tools").answers::<ToolServer>(200)
    }
    pub fn update() -> Operation {
        Operation::new("Change a tool server")
            .body::<ToolServerSettings>()
            .without_effect(&["mcpExposed"])
            .answers::<ToolServer>(200)
    }
    pub fn delete() -> Operation {
        Operation::new("Delete a tool server").query::<DeleteQuery>().answers::<Deleted>(200)
    }
    pub fn duplicate() -> Operation {
        Operation::new("Copy a tool server, secrets included").body::<CloneRequest>().answers::<ToolServer>(201)
    }
    pub fn definition() -> Operation {
        Operation::new("Read the tools of a server").answers::<Value>(200)
    }
    pub fn define() -> Operation {
        Operation::new("Change the tools of a server").body::<DefinitionPatch>().answers::<ToolServer>(200)
    }
    pub fn refresh() -> Operation {
        Operation::new("Fetch the tools of an MCP server anew").answers::<ToolServer>(200)
    }
    pub fn list_tools() -> Operation {
        Operation::new("List the tools of a server").query::<ToolsQuery>().answers::<ToolList>(200)
    }
    pub fn add_tool() -> Operation {
        Operation::new("Add a tool").body::<ToolDefinition>().aliases(&["tool"]).answers::<ToolDefinition>(201)
    }
    pub fn get_tool() -> Operation {
        Operation::new("Read a tool").answers::<ToolDefinition>(200)
    }
    pub fn update_tool() -> Operation {
        Operation::new("Change a tool").body::<ToolDefinition>().aliases(&["tool"]).answers::<ToolDefinition>(200)
    }
    pub fn delete_tool() -> Operation {
        Operation::new("Take a tool away").answers::<Deleted>(200)
    }
    pub fn test() -> Operation {
        Operation::new("Call a tool for real, to try it").body::<TestRequest>().answers::<TestResult>(200)
    }
    pub fn groups() -> Operation {
        Operation::new("List what assistants can choose of: built-in groups and tool servers")
            .answers::<Vec<ListedGroup>>(200)
    }
}
