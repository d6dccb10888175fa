//! `/v1/tool-servers`, `/v1/tool-groups`

use std::sync::Arc;

use platform_access::Kind;
use platform_core::{AccountId, Id, Object, Result};
use platform_http::{Answer, Group, List, Request, key};
use platform_integrations::PgIntegrations;
use platform_runtime::Toolbox;
use platform_toolservers::{
    ListedGroup, PgToolServerService, ServerType, TOOL_SERVER, TestRequest, ToolServer, ToolServerFilter,
    ToolServerService,
};
use serde_json::Value;

use super::integrations::{AppToolsQuery, shown_tools};
use crate::{
    leaving::{DeleteQuery, delete_unused, with_followers},
    module::Module,
};

/// Tools, which are where their server is.
const TOOL: Kind = Kind::of_account("tool");
/// Groups of a list (contract 00 §4).
const MAX_GROUPS: usize = 1000;

/// Tool servers.
pub(crate) fn module(
    tool_servers: &Arc<PgToolServerService>,
    toolbox: &Arc<Toolbox>,
    integrations: &Arc<PgIntegrations>,
) -> Module {
    let choosable = Choosable {
        tool_servers: tool_servers.clone(),
        toolbox: Arc::clone(toolbox),
        integrations: integrations.clone(),
    };
    Module {
        groups: vec![group(tool_servers.clone()), choosable_group(Arc::new(choosable))],
        resources: vec![(TOOL_SERVER, tool_servers.clone())],
        ..Module::default()
    }
}

fn group(services: Arc<dyn ToolServerService>) -> Group {
    let mut group = Group::of("tool-servers", "Tool servers and their tools", services)
        .naming("toolName", TOOL)
        .naming("toolServerId", TOOL_SERVER);
    let read = key("tool-servers:read");
    let write = key("tool-servers:write");
    group.post("/v1/tool-servers", write, create).with(spec::create);
    group.get("/v1/tool-servers", read, list).with(spec::list);
    group.post("/v1/tool-servers/import-openapi", write, import).with(spec::import);
    group.get("/v1/tool-servers/{toolServerId}", read, get).with(spec::get);
    group.patch("/v1/tool-servers/{toolServerId}", write, update).with(spec::update);
    group.put("/v1/tool-servers/{toolServerId}", write, update).with(spec::update);
    group.post("/v1/tool-servers/{toolServerId}/clone", write, duplicate).with(spec::duplicate).changing();
    group.get("/v1/tool-servers/{toolServerId}/definition", read, definition).with(spec::definition);
    group.patch("/v1/tool-servers/{toolServerId}/definition", write, define).with(spec::define);
    group.post("/v1/tool-servers/{toolServerId}/refresh", write, refresh).with(spec::refresh).changing();
    group.post("/v1/tool-servers/{toolServerId}/tools", write, add_tool).with(spec::add_tool).changing();
    group.get("/v1/tool-servers/{toolServerId}/tools/{toolName}", read, get_tool).with(spec::get_tool);
    group.patch("/v1/tool-servers/{toolServerId}/tools/{toolName}", write, update_tool).with(spec::update_tool);
    group.delete("/v1/tool-servers/{toolServerId}/tools/{toolName}", write, delete_tool).with(spec::delete_tool);
    group
        .post("/v1/tool-servers/{toolServerId}/tools/{toolName}/test", write, test)
        .with(spec::test)
        .approving()
        .cancellable();
    group.build()
}

/// What can be chosen, from where, and what goes with it.
struct Choosable {
    tool_servers: Arc<dyn ToolServerService>,
    toolbox: Arc<Toolbox>,
    integrations: Arc<PgIntegrations>,
}

fn choosable_group(services: Arc<Choosable>) -> Group {
    let mut group = Group::of("tool-groups", "What assistants and agents can choose of", services)
        .naming("toolServerId", TOOL_SERVER);
    let read = key("tool-servers:read");
    group.delete("/v1/tool-servers/{toolServerId}", key("tool-servers:write"), delete).with(spec::delete);
    group.get("/v1/tool-servers/{toolServerId}/tools", read, list_tools).with(spec::list_tools);
    group.get("/v1/tool-groups", key("tool-servers:read"), groups).with(spec::groups);
    group.build()
}

fn server(request: &Request) -> Result<(&AccountId, Id<ToolServer>)> {
    Ok((request.account()?, request.id("toolServerId")))
}

fn shown(server: &ToolServer) -> Result<Answer> {
    Ok(Answer::ok(server)?.etag(server.version))
}

fn made(server: &ToolServer) -> Result<Answer> {
    Ok(Answer::created(server)?.etag(server.version))
}

/// A tool comes bare, or as `{"tool": {…}}`.
async fn tool(request: &Request) -> Result<Object> {
    let mut given = request.patch().await?;
    match given.remove("tool") {
        Some(Value::Object(tool)) => Ok(tool),
        Some(other) => {
            given.insert("tool".to_owned(), other);
            Ok(given)
        }
        None => Ok(given),
    }
}

async fn create(tool_servers: Arc<dyn ToolServerService>, request: Request) -> Result<Answer> {
    let (account, once) = (request.account()?, request.once.as_ref());
    made(&tool_servers.create(account, request.patch().await?, once).await?)
}

async fn import(tool_servers: Arc<dyn ToolServerService>, request: Request) -> Result<Answer> {
    let (account, once) = (request.account()?, request.once.as_ref());
    made(&tool_servers.import(account, request.body().await?, once).await?)
}

async fn list(tool_servers: Arc<dyn ToolServerService>, request: Request) -> Result<Answer> {
    let (filter, page) = (request.query()?, request.page()?);
    let filter = ToolServerFilter { within: request.within().await?, ..filter };
    Answer::ok(&tool_servers.list(request.account()?, &filter, page).await?)
}

async fn get(tool_servers: Arc<dyn ToolServerService>, request: Request) -> Result<Answer> {
    let (account, id) = server(&request)?;
    shown(&tool_servers.get(account, &id).await?)
}

async fn update(tool_servers: Arc<dyn ToolServerService>, request: Request) -> Result<Answer> {
    let (account, id) = server(&request)?;
    shown(&tool_servers.update(account, &id, request.patch().await?, &request.if_match()?).await?)
}

async fn delete(services: Arc<Choosable>, request: Request) -> Result<Answer> {
    let (account, id) = server(&request)?;
    let deleted = delete_unused(&*services.tool_servers, &request, account, &id).await;
    with_followers(deleted, services.integrations.forget_mcp(account, &id)).await?;
    Answer::deleted("tool server", &id)
}

async fn duplicate(tool_servers: Arc<dyn ToolServerService>, request: Request) -> Result<Answer> {
    let ((account, id), once) = (server(&request)?, request.once.as_ref());
    request.check_copy().await?;
    made(&tool_servers.duplicate(account, &id, request.body().await?, once).await?)
}

async fn definition(tool_servers: Arc<dyn ToolServerService>, request: Request) -> Result<Answer> {
    let (account, id) = server(&request)?;
    let server = tool_servers.get(account, &id).await?;
    Ok(Answer::ok(&server.definition())?.etag(server.version))
}

async fn define(tool_servers: Arc<dyn ToolServerService>, request: Request) -> Result<Answer> {
    let (account, id) = server(&request)?;
    shown(&tool_servers.define(account, &id, request.patch().await?, &request.if_match()?).await?)
}

async fn refresh(tool_servers: Arc<dyn ToolServerService>, request: Request) -> Result<Answer> {
    let (account, id) = server(&request)?;
    shown(&tool_servers.refresh(account, &id).await?)
}

async fn list_tools(services: Arc<Choosable>, request: Request) -> Result<Answer> {
    let (account, id) = server(&request)?;
    if services.tool_servers.get(account, &id).await?.r#type == ServerType::Integration {
        return shown_tools(&*services.integrations, &request, &id).await;
    }
    let AppToolsQuery { search, .. } = request.query()?;
    let tools = services.tool_servers.tools(account, &id, search.as_deref()).await?;
    // All of them, on one page.
    let without_effect = ["available", "limit", "cursor"].into_iter().filter(|name| request.query.contains_key(*name));
    Ok(Answer::ok(&tools)?.ignoring(without_effect.map(|name| format!("?{name}"))))
}

async fn add_tool(tool_servers: Arc<dyn ToolServerService>, request: Request) -> Result<Answer> {
    let ((account, id), once) = (server(&request)?, request.once.as_ref());
    let (tool, expected) = (tool(&request).await?, request.if_match()?);
    let (added, version) = tool_servers.add_tool(account, &id, tool, &expected, once).await?;
    Ok(Answer::created(&added)?.etag(version))
}

async fn get_tool(tool_servers: Arc<dyn ToolServerService>, request: Request) -> Result<Answer> {
    let (account, id) = server(&request)?;
    let (tool, version) = tool_servers.tool(account, &id, request.path("toolName")).await?;
    Ok(Answer::ok(&tool)?.etag(version))
}

async fn update_tool(tool_servers: Arc<dyn ToolServerService>, request: Request) -> Result<Answer> {
    let ((account, id), name) = (server(&request)?, request.path("toolName"));
    let (patch, expected) = (tool(&request).await?, request.if_match()?);
    let (changed, version) = tool_servers.update_tool(account, &id, name, patch, &expected).await?;
    Ok(Answer::ok(&changed)?.etag(version))
}

async fn delete_tool(tool_servers: Arc<dyn ToolServerService>, request: Request) -> Result<Answer> {
    let ((account, id), name) = (server(&request)?, request.path("toolName"));
    tool_servers.delete_tool(account, &id, name, &request.if_match()?).await?;
    Answer::deleted("tool", name)
}

async fn test(tool_servers: Arc<dyn ToolServerService>, request: Request) -> Result<Answer> {
    let ((account, id), name) = (server(&request)?, request.path("toolName"));
    let TestRequest { parameters } = request.body().await?;
    Answer::ok(&tool_servers.test(account, &id, name, parameters).await?)
}

async fn groups(services: Arc<Choosable>, request: Request) -> Result<Answer> {
    let filter = ToolServerFilter { within: request.within().await?, ..ToolServerFilter::default() };
    let (servers, total) = services.tool_servers.list_groups(request.account()?, &filter).await?;
    let built_in = services.toolbox.built_in().into_iter().map(|group| ListedGroup { group, builtin: true });
    let built_in: Vec<ListedGroup> = built_in.collect();
    let mut list = List::of(built_in.len() + total);
    for group in built_in.iter().chain(&servers).take(MAX_GROUPS) {
        list.push(group)?;
    }
    Ok(list.into_answer())
}

mod spec {
    use platform_toolservers::{
        AppTools, CloneRequest, DefinitionPatch, ListedGroup, OpenApiImport, TestRequest, TestResult, ToolDefinition,
        ToolList, ToolServer, ToolServerFilter, ToolServerList, ToolServerSettings,
    };
    use serde_json::Value;

    use super::{AppToolsQuery, DeleteQuery};
    use platform_http::{Deleted, Operation};

    pub fn create() -> Operation {
        Operation::new("Make a tool server")
            .body::<ToolServerSettings>()
            .requires(&["name", "url"])
            .answers::<ToolServer>(201)
    }
    pub fn import() -> Operation {
        Operation::new("Make a tool server of an OpenAPI description")
            .body::<OpenApiImport>()
            .answers::<ToolServer>(201)
    }
    pub fn list() -> Operation {
        Operation::new("List tool servers").query::<ToolServerFilter>().paged(10, 100).answers::<ToolServerList>(200)
    }
    pub fn get() -> Operation {
        Operation::new("Read a tool server with its tools").answers::<ToolServer>(200)
    }
    pub fn update() -> Operation {
        Operation::new("Change a tool server").body::<ToolServerSettings>().answers::<ToolServer>(200)
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
        Operation::new("List the tools of a server").query::<AppToolsQuery>().any_of::<ToolList, AppTools>(200)
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
