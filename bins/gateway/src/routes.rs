//! Every URL of the platform, and who may call it. A route without a rule cannot be written down.

mod agents;
mod assistants;
mod chats;
mod docs;
mod health;
mod keys;
mod models;
mod oauth;
mod projects;
mod sessions;
mod tenants;
mod threads;
mod tool_servers;
mod usage;

use std::{collections::BTreeMap, sync::Arc};

use actix_web::http::Method;
use anyhow::bail;
use futures_util::future::{FutureExt, LocalBoxFuture};
use matchit::Router;
use platform_core::Result;

use crate::{
    app::Services,
    gate::SMALL_BODY,
    openapi::{Operation, TypeDoc},
    request::Request,
    respond::Answer,
};

/// Who may call a route (contract 01 §9).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// No credential is looked at.
    Public,
    /// A full key, or a restricted key whose lists permit the route; `session`: a tenant session, too.
    Key { session: bool, scope: &'static str },
    /// A full key only, and with `account_wide` one that is bound to no project; `scope` also opens it to OAuth.
    Full { scope: Option<&'static str>, account_wide: bool },
    /// Any key of a backend, a signed one too: here sessions are made.
    Mint { scope: &'static str },
}

/// What a route takes in the project of what its path names (contract 05).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Right {
    /// To read and use it: a viewer.
    Use,
    /// To change it: an editor.
    Change,
    /// To decide that a tool is called, or to try one: an editor of the tool's project, too.
    Approve,
}

impl Right {
    /// As the OpenAPI document names it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Use => "use",
            Self::Change => "change",
            Self::Approve => "approve",
        }
    }
}

/// What a placeholder of a path, or a field that refers to a record, stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Agent,
    ApiKey,
    Assistant,
    Chat,
    Evaluation,
    /// A file of the API reference, or a page of the documentation.
    File,
    /// A profile of the MCP gateway.
    McpProfile,
    OAuthClient,
    Project,
    Session,
    Subtenant,
    Tenant,
    Thread,
    Tier,
    /// A secret that we gave out.
    Token,
    /// A tool of a server.
    Tool,
    ToolServer,
    User,
}

impl Kind {
    /// What a placeholder of a path stands for; `None` where nobody has said it.
    fn of(path: &str, name: &str) -> Option<Self> {
        Some(match name {
            "agentId" => Self::Agent,
            "chatUid" => Self::Chat,
            "evaluationId" => Self::Evaluation,
            "file" | "filename" => Self::File,
            "identifier" => Self::Assistant,
            "sessionId" => Self::Session,
            "subtenantId" => Self::Subtenant,
            "tenantId" => Self::Tenant,
            "threadId" => Self::Thread,
            "tierId" => Self::Tier,
            "token" => Self::Token,
            "toolName" => Self::Tool,
            "toolServerId" => Self::ToolServer,
            "userUID" => Self::User,
            "id" if path.starts_with("/v1/api-keys/") => Self::ApiKey,
            "id" if path.starts_with("/v1/oauth-clients/") => Self::OAuthClient,
            "id" if path.starts_with("/v1/projects/") => Self::Project,
            "slug" if path.ends_with("/v1/mcp/{slug}") => Self::McpProfile,
            _ => return None,
        })
    }
}

type Handler = Box<dyn Fn(Request) -> LocalBoxFuture<'static, Result<Answer>> + Send + Sync>;
/// Whether the `{token}` of a path is one that we gave out.
type IsKnown = fn(Arc<Services>, String) -> LocalBoxFuture<'static, Result<()>>;

/// One line of the table.
pub(crate) struct Route {
    pub method: Method,
    pub path: &'static str,
    pub access: Access,
    pub handler: Handler,
    /// Names a query may have.
    pub query_fields: Vec<String>,
    /// Names a body may have at its top; `None` = the route reads no body.
    pub body_fields: Option<Vec<String>>,
    /// Fields of the body that are kept and have no effect yet.
    pub inert_fields: &'static [&'static str],
    /// Names of the record that it makes or changes: what was read may be sent back whole.
    pub record_fields: Vec<String>,
    /// It takes any text as its body.
    pub is_raw: bool,
    /// Bytes that a body may have; `None` = as many as the setting says.
    pub most_bytes: Option<usize>,
    /// Asked before a body is read for which nobody vouches but the token in its path.
    pub is_known: Option<IsKnown>,
    /// It makes messages or threads, which have a rate of their own.
    pub creates: bool,
    /// What it takes in the project of what its path names.
    pub right: Right,
    /// Makes what stands of it in the OpenAPI document; `None` = it does not.
    pub operation: Option<fn() -> Operation>,
}

/// The whole table.
#[expect(clippy::too_many_lines, reason = "the table is one list")]
pub(crate) fn table() -> Vec<Route> {
    use Access::{Full, Key, Mint, Public};
    let (read, write) = ("assistants:read", "assistants:write");
    let (tools_read, tools_write) = ("tool-servers:read", "tool-servers:write");
    let key = |scope| Key { session: false, scope };
    let session = |scope| Key { session: true, scope };
    let full = |scope, account_wide| Full { scope, account_wide };
    let (admin, audited) = (full(None, true), full(Some("tenant-admin:read"), true));
    let (see, act) = ("agents:read", "agents:write");
    let (look, manage) = ("projects:read", "projects:write");
    vec![
        on(GET, "/livez", Public, health::live).with(health::spec::live),
        on(GET, "/readyz", Public, health::ready).with(health::spec::ready),
        on(GET, "/.well-known/jwks.json", Public, oauth::jwks).with(oauth::spec::jwks),
        on(GET, "/.well-known/oauth-authorization-server", Public, oauth::metadata).with(oauth::spec::metadata),
        on(GET, "/.well-known/oauth-protected-resource", Public, oauth::resource).with(oauth::spec::resource),
        on(GET, "/.well-known/oauth-protected-resource/v1/mcp", Public, oauth::resource_mcp)
            .with(oauth::spec::resource),
        on(GET, "/.well-known/oauth-protected-resource/v1/mcp/{slug}", Public, oauth::resource_profile)
            .with(oauth::spec::resource),
        on(GET, "/oauth/authorize", Public, oauth::authorize).with(oauth::spec::authorize),
        on(POST, "/oauth/authorize", Public, oauth::decide).with(oauth::spec::decide).raw(),
        on(POST, "/oauth/introspect", full(None, false), oauth::introspect).with(oauth::spec::introspect).raw(),
        on(POST, "/oauth/revoke", Public, oauth::revoke).with(oauth::spec::revoke).raw(),
        on(POST, "/oauth/token", Public, oauth::token).with(oauth::spec::token).raw(),
        on(GET, "/docs", Public, docs::reference),
        on(GET, "/docs/{file}", Public, docs::asset),
        on(POST, "/v1/agents", key(act), agents::create).with(agents::spec::create),
        on(GET, "/v1/agents", key(see), agents::list).with(agents::spec::list),
        on(GET, "/v1/agents/agents/{agentId}/costs/daily", key(see), agents::daily_costs)
            .with(agents::spec::daily_costs),
        on(GET, "/v1/agents/agents/{agentId}/costs/monthly", key(see), agents::monthly_costs)
            .with(agents::spec::monthly_costs),
        on(GET, "/v1/agents/agents/{agentId}/costs/summary", key(see), agents::cost_summary)
            .with(agents::spec::cost_summary),
        on(GET, "/v1/agents/agents/{agentId}/evaluation-config", key(see), agents::evaluation_config)
            .with(agents::spec::evaluation_config),
        on(PUT, "/v1/agents/agents/{agentId}/evaluation-config", key(act), agents::update_evaluation_config)
            .with(agents::spec::update_evaluation_config),
        on(GET, "/v1/agents/agents/{agentId}/threads/tags", key(see), threads::tags_of_agent).with(threads::spec::tags),
        on(GET, "/v1/agents/threads", key(see), threads::list).with(threads::spec::list),
        on(GET, "/v1/agents/threads/tags", key(see), threads::tags).with(threads::spec::tags),
        on(GET, "/v1/agents/threads/{threadId}", session(see), threads::get).with(threads::spec::get),
        on(PATCH, "/v1/agents/threads/{threadId}", key(act), threads::update).with(threads::spec::update),
        on(DELETE, "/v1/agents/threads/{threadId}", key(act), threads::delete).with(threads::spec::delete),
        on(POST, "/v1/agents/threads/{threadId}/approval", session(act), threads::approve)
            .with(threads::spec::approve)
            .approving(),
        on(POST, "/v1/agents/threads/{threadId}/complete", session(act), threads::complete)
            .with(threads::spec::complete)
            .changing(),
        on(POST, "/v1/agents/threads/{threadId}/evaluate", key(act), threads::evaluate).with(threads::spec::evaluate),
        on(GET, "/v1/agents/threads/{threadId}/evaluation", key(see), threads::newest_evaluation)
            .with(threads::spec::newest_evaluation),
        on(GET, "/v1/agents/threads/{threadId}/evaluations", key(see), threads::evaluations)
            .with(threads::spec::evaluations),
        on(GET, "/v1/agents/threads/{threadId}/evaluations/{evaluationId}", key(see), threads::evaluation)
            .with(threads::spec::evaluation),
        on(GET, "/v1/agents/threads/{threadId}/explain", session(see), threads::explain).with(threads::spec::explain),
        on(GET, "/v1/agents/threads/{threadId}/feedback", session(see), threads::list_feedback)
            .with(threads::spec::list_feedback),
        on(POST, "/v1/agents/threads/{threadId}/feedback", session(act), threads::give_feedback)
            .with(threads::spec::give_feedback),
        on(POST, "/v1/agents/threads/{threadId}/messages", session(act), threads::say)
            .with(threads::spec::say)
            .creating(),
        on(POST, "/v1/agents/threads/{threadId}/pause", session(act), threads::pause).with(threads::spec::pause),
        on(POST, "/v1/agents/threads/{threadId}/pause-resume", session(act), threads::pause_or_resume)
            .with(threads::spec::pause_or_resume),
        on(POST, "/v1/agents/threads/{threadId}/resume", session(act), threads::resume).with(threads::spec::resume),
        on(GET, "/v1/agents/threads/{threadId}/search", session(see), threads::search).with(threads::spec::search),
        on(GET, "/v1/agents/threads/{threadId}/stream", session(see), threads::stream).with(threads::spec::stream),
        on(POST, "/v1/agents/threads/{threadId}/tool-response", key(act), threads::respond)
            .with(threads::spec::respond),
        on(GET, "/v1/agents/{agentId}", session(see), agents::get).with(agents::spec::get),
        on(PATCH, "/v1/agents/{agentId}", key(act), agents::update).with(agents::spec::update),
        on(PUT, "/v1/agents/{agentId}", key(act), agents::update).with(agents::spec::update),
        on(DELETE, "/v1/agents/{agentId}", key(act), agents::delete).with(agents::spec::delete),
        on(POST, "/v1/agents/{agentId}/threads", key(act), threads::start).with(threads::spec::start).creating(),
        on(GET, "/v1/agents/{agentId}/threads", key(see), threads::list_of_agent).with(threads::spec::list_of_agent),
        on(GET, "/v1/api-keys", full(Some("keys:read"), false), keys::list).with(keys::spec::list),
        on(POST, "/v1/api-keys", full(Some("keys:write"), false), keys::create).with(keys::spec::create),
        on(GET, "/v1/api-keys/{id}", full(Some("keys:read"), false), keys::get).with(keys::spec::get),
        on(PATCH, "/v1/api-keys/{id}", full(Some("keys:write"), false), keys::update).with(keys::spec::update),
        on(DELETE, "/v1/api-keys/{id}", full(Some("keys:write"), false), keys::delete).with(keys::spec::delete),
        on(POST, "/v1/api-keys/{id}/rotate", full(Some("keys:write"), false), keys::rotate).with(keys::spec::rotate),
        on(POST, "/v1/assistants", key(write), assistants::create).with(assistants::spec::create),
        on(GET, "/v1/assistants", session(read), assistants::list).with(assistants::spec::list),
        on(POST, "/v1/assistants/chats", session(read), chats::filter).with(chats::spec::filter),
        on(GET, "/v1/assistants/tags", session(read), chats::tags).with(chats::spec::tags),
        on(GET, "/v1/assistants/{identifier}", session(read), assistants::get).with(assistants::spec::get),
        on(PATCH, "/v1/assistants/{identifier}", key(write), assistants::update).with(assistants::spec::update),
        on(PUT, "/v1/assistants/{identifier}", key(write), assistants::update).with(assistants::spec::update),
        on(DELETE, "/v1/assistants/{identifier}", key(write), assistants::delete).with(assistants::spec::delete),
        on(POST, "/v1/assistants/{identifier}/messages", session(write), chats::send)
            .with(chats::spec::send)
            .creating(),
        on(GET, "/v1/assistants/{identifier}/chats", session(read), chats::list).with(chats::spec::list),
        on(GET, "/v1/assistants/{identifier}/chats/{chatUid}", session(read), chats::get).with(chats::spec::get),
        on(PATCH, "/v1/assistants/{identifier}/chats/{chatUid}", key(write), chats::update).with(chats::spec::update),
        on(DELETE, "/v1/assistants/{identifier}/chats/{chatUid}", key(write), chats::delete).with(chats::spec::delete),
        on(POST, "/v1/assistants/{identifier}/chats/{chatUid}/compact", key(write), chats::compact)
            .with(chats::spec::compact),
        on(GET, "/v1/assistants/{identifier}/chats/{chatUid}/content", session(read), chats::content)
            .with(chats::spec::content),
        on(GET, "/v1/assistants/{identifier}/chats/{chatUid}/feedback", session(read), chats::list_feedback)
            .with(chats::spec::list_feedback),
        on(POST, "/v1/assistants/{identifier}/chats/{chatUid}/feedback", session(write), chats::give_feedback)
            .with(chats::spec::give_feedback),
        on(GET, "/v1/assistants/{identifier}/chats/{chatUid}/realtime", session(read), chats::realtime)
            .with(chats::spec::realtime),
        on(GET, "/v1/assistants/{identifier}/chats/{chatUid}/search", session(read), chats::search)
            .with(chats::spec::search),
        on(POST, "/v1/assistants/{identifier}/chats/{chatUid}/stop", session(write), chats::stop)
            .with(chats::spec::stop),
        on(GET, "/v1/assistants/{identifier}/chats/{chatUid}/stream", session(read), chats::stream)
            .with(chats::spec::stream),
        on(POST, "/v1/assistants/{identifier}/chats/{chatUid}/tool-response", session(write), chats::respond)
            .with(chats::spec::respond),
        on(GET, "/v1/docs", key("docs:read"), docs::list).with(docs::spec::list),
        on(GET, "/v1/docs/{filename}", key("docs:read"), docs::get).with(docs::spec::get),
        on(GET, "/v1/health", Public, health::health).with(health::spec::health),
        on(GET, "/v1/models", key("models:read"), models::list).with(models::spec::list),
        on(GET, "/v1/projects", key(look), projects::list).with(projects::spec::list),
        on(POST, "/v1/projects", key(manage), projects::create).with(projects::spec::create),
        on(GET, "/v1/projects/{id}", key(look), projects::get).with(projects::spec::get),
        on(PATCH, "/v1/projects/{id}", key(manage), projects::update).with(projects::spec::update),
        on(DELETE, "/v1/projects/{id}", key(manage), projects::archive).with(projects::spec::archive),
        on(GET, "/v1/projects/{id}/conversations", key(look), projects::conversations)
            .with(projects::spec::conversations),
        on(GET, "/v1/projects/{id}/costs/daily", key(look), projects::daily_costs).with(projects::spec::daily_costs),
        on(GET, "/v1/projects/{id}/costs/monthly", key(look), projects::monthly_costs)
            .with(projects::spec::monthly_costs),
        on(GET, "/v1/projects/{id}/members", key(look), projects::members).with(projects::spec::members),
        on(POST, "/v1/projects/{id}/members", key(manage), projects::set_member).with(projects::spec::set_member),
        on(DELETE, "/v1/projects/{id}/members/{userUID}", key(manage), projects::remove_member)
            .with(projects::spec::remove_member),
        on(GET, "/v1/projects/{id}/stats", key(look), projects::stats).with(projects::spec::stats),
        on(GET, "/v1/projects/{id}/threads", key(look), projects::threads).with(projects::spec::threads),
        on(POST, "/v1/tenant-admin/tiers", admin, usage::create_tier).with(usage::spec::create_tier),
        on(PUT, "/v1/tenant-admin/tiers/{tierId}", admin, usage::replace_tier).with(usage::spec::replace_tier),
        on(DELETE, "/v1/tenant-admin/tiers/{tierId}", admin, usage::delete_tier).with(usage::spec::delete_tier),
        on(POST, "/v1/tenant-admin/{tenantId}/add-usage", admin, usage::add_usage).with(usage::spec::add_usage),
        on(GET, "/v1/tenant-admin/{tenantId}/audit", audited, usage::audit).with(usage::spec::audit),
        on(POST, "/v1/tenant-admin/{tenantId}/subtenants/{subtenantId}/add-usage", admin, usage::add_usage)
            .with(usage::spec::add_usage),
        on(GET, "/v1/tenant-admin/{tenantId}/subtenants/{subtenantId}/audit", audited, usage::audit)
            .with(usage::spec::audit),
        on(POST, "/v1/tenant-admin/{tenantId}/subtenants/{subtenantId}/tier", admin, usage::set_tier)
            .with(usage::spec::set_tier),
        on(POST, "/v1/tenant-admin/{tenantId}/subtenants/{subtenantId}/usage-limits/reset", admin, usage::reset)
            .with(usage::spec::reset),
        on(POST, "/v1/tenant-admin/{tenantId}/tier", admin, usage::set_tier).with(usage::spec::set_tier),
        on(PUT, "/v1/tenant-admin/{tenantId}/usage-limits", admin, usage::set_limits).with(usage::spec::set_limits),
        on(GET, "/v1/tenant-admin/{tenantId}/usage-limits", audited, usage::limits).with(usage::spec::limits),
        on(POST, "/v1/tenant-admin/{tenantId}/usage-limits/reset", admin, usage::reset).with(usage::spec::reset),
        on(GET, "/v1/tenant-sessions", full(Some("tenant-sessions:read"), true), sessions::list)
            .with(sessions::spec::list),
        on(DELETE, "/v1/tenant-sessions", full(Some("tenant-sessions:write"), true), sessions::revoke_all)
            .with(sessions::spec::revoke_all),
        on(POST, "/v1/tenant-sessions", Mint { scope: "tenant-sessions:write" }, sessions::mint)
            .with(sessions::spec::mint),
        on(DELETE, "/v1/tenant-sessions/{sessionId}", full(Some("tenant-sessions:write"), true), sessions::revoke)
            .with(sessions::spec::revoke),
        on(GET, "/v1/tenant-usage/tiers", key("tenant-usage:read"), usage::tiers).with(usage::spec::tiers),
        on(GET, "/v1/tenant-usage/{tenantId}", session("tenant-usage:read"), usage::usage).with(usage::spec::usage),
        on(GET, "/v1/tenant-usage/{tenantId}/history", session("tenant-usage:read"), usage::history)
            .with(usage::spec::history),
        on(GET, "/v1/tenant-usage/{tenantId}/subtenants/{subtenantId}", session("tenant-usage:read"), usage::usage)
            .with(usage::spec::usage),
        on(
            GET,
            "/v1/tenant-usage/{tenantId}/subtenants/{subtenantId}/history",
            session("tenant-usage:read"),
            usage::history,
        )
        .with(usage::spec::history),
        on(GET, "/v1/tenants", key("tenants:read"), tenants::list).with(tenants::spec::list),
        on(POST, "/v1/tenants", key("tenants:write"), tenants::create).with(tenants::spec::create),
        on(GET, "/v1/tenants/{tenantId}", key("tenants:read"), tenants::get).with(tenants::spec::get),
        on(PATCH, "/v1/tenants/{tenantId}", key("tenants:write"), tenants::update).with(tenants::spec::update),
        on(DELETE, "/v1/tenants/{tenantId}", key("tenants:write"), tenants::delete).with(tenants::spec::delete),
        on(GET, "/v1/tenants/{tenantId}/costs", key("tenants:read"), tenants::costs).with(tenants::spec::costs),
        on(GET, "/v1/tenants/{tenantId}/stats", key("tenants:read"), tenants::stats).with(tenants::spec::stats),
        on(GET, "/v1/tenants/{tenantId}/subtenants", key("tenants:read"), tenants::list_users)
            .with(tenants::spec::list_users),
        on(GET, "/v1/tenants/{tenantId}/subtenants/{subtenantId}", key("tenants:read"), tenants::get_user)
            .with(tenants::spec::get_user),
        on(PATCH, "/v1/tenants/{tenantId}/subtenants/{subtenantId}", key("tenants:write"), tenants::update_user)
            .with(tenants::spec::update_user),
        on(DELETE, "/v1/tenants/{tenantId}/subtenants/{subtenantId}", key("tenants:write"), tenants::delete_user)
            .with(tenants::spec::delete_user),
        on(POST, "/v1/tool-callbacks/{token}", Public, threads::callback)
            .with(threads::spec::callback)
            .raw()
            .with_token(threads::awaits_callback, threads::MOST_RESULT),
        on(GET, "/v1/tool-groups", key(tools_read), tool_servers::groups).with(tool_servers::spec::groups),
        on(POST, "/v1/tool-servers", key(tools_write), tool_servers::create).with(tool_servers::spec::create),
        on(GET, "/v1/tool-servers", key(tools_read), tool_servers::list).with(tool_servers::spec::list),
        on(POST, "/v1/tool-servers/import-openapi", key(tools_write), tool_servers::import)
            .with(tool_servers::spec::import),
        on(GET, "/v1/tool-servers/{toolServerId}", key(tools_read), tool_servers::get).with(tool_servers::spec::get),
        on(PATCH, "/v1/tool-servers/{toolServerId}", key(tools_write), tool_servers::update)
            .with(tool_servers::spec::update),
        on(PUT, "/v1/tool-servers/{toolServerId}", key(tools_write), tool_servers::update)
            .with(tool_servers::spec::update),
        on(DELETE, "/v1/tool-servers/{toolServerId}", key(tools_write), tool_servers::delete)
            .with(tool_servers::spec::delete),
        on(POST, "/v1/tool-servers/{toolServerId}/clone", key(tools_write), tool_servers::duplicate)
            .with(tool_servers::spec::duplicate)
            .changing(),
        on(GET, "/v1/tool-servers/{toolServerId}/definition", key(tools_read), tool_servers::definition)
            .with(tool_servers::spec::definition),
        on(PATCH, "/v1/tool-servers/{toolServerId}/definition", key(tools_write), tool_servers::define)
            .with(tool_servers::spec::define),
        on(POST, "/v1/tool-servers/{toolServerId}/refresh", key(tools_write), tool_servers::refresh)
            .with(tool_servers::spec::refresh)
            .changing(),
        on(GET, "/v1/tool-servers/{toolServerId}/tools", key(tools_read), tool_servers::list_tools)
            .with(tool_servers::spec::list_tools),
        on(POST, "/v1/tool-servers/{toolServerId}/tools", key(tools_write), tool_servers::add_tool)
            .with(tool_servers::spec::add_tool)
            .changing(),
        on(GET, "/v1/tool-servers/{toolServerId}/tools/{toolName}", key(tools_read), tool_servers::get_tool)
            .with(tool_servers::spec::get_tool),
        on(PATCH, "/v1/tool-servers/{toolServerId}/tools/{toolName}", key(tools_write), tool_servers::update_tool)
            .with(tool_servers::spec::update_tool),
        on(DELETE, "/v1/tool-servers/{toolServerId}/tools/{toolName}", key(tools_write), tool_servers::delete_tool)
            .with(tool_servers::spec::delete_tool),
        on(POST, "/v1/tool-servers/{toolServerId}/tools/{toolName}/test", key(tools_write), tool_servers::test)
            .with(tool_servers::spec::test)
            .approving(),
        on(GET, "/v1/oauth-clients", admin, oauth::list_clients).with(oauth::spec::list_clients),
        on(POST, "/v1/oauth-clients", admin, oauth::create_client).with(oauth::spec::create_client),
        on(GET, "/v1/oauth-clients/{id}", admin, oauth::get_client).with(oauth::spec::get_client),
        on(PATCH, "/v1/oauth-clients/{id}", admin, oauth::update_client).with(oauth::spec::update_client),
        on(DELETE, "/v1/oauth-clients/{id}", admin, oauth::delete_client).with(oauth::spec::delete_client),
        on(GET, "/v1/users", admin, oauth::list_users).with(oauth::spec::list_users),
        on(POST, "/v1/users", admin, oauth::create_user).with(oauth::spec::create_user),
        on(GET, "/v1/users/{userUID}", admin, oauth::get_user).with(oauth::spec::get_user),
        on(PATCH, "/v1/users/{userUID}", admin, oauth::update_user).with(oauth::spec::update_user),
        on(DELETE, "/v1/users/{userUID}", admin, oauth::delete_user).with(oauth::spec::delete_user),
        on(GET, "/v1/openapi.json", Public, docs::openapi).with(docs::spec::openapi),
    ]
}

const GET: Method = Method::GET;
const POST: Method = Method::POST;
const PUT: Method = Method::PUT;
const PATCH: Method = Method::PATCH;
const DELETE: Method = Method::DELETE;

/// A line of the table.
fn on<F, Fut>(method: Method, path: &'static str, access: Access, handler: F) -> Route
where
    F: Fn(Request) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<Answer>> + 'static,
{
    let handler: Handler = Box::new(move |request| handler(request).boxed_local());
    let right = if [PUT, PATCH, DELETE].contains(&method) { Right::Change } else { Right::Use };
    let most_bytes = (access == Access::Public).then_some(SMALL_BODY);
    Route {
        method,
        path,
        access,
        handler,
        query_fields: Vec::new(),
        body_fields: None,
        inert_fields: &[],
        record_fields: Vec::new(),
        is_raw: false,
        most_bytes,
        is_known: None,
        creates: false,
        right,
        operation: None,
    }
}

impl Route {
    /// Describes it; what the description names is what the route accepts.
    fn with(mut self, describe: fn() -> Operation) -> Self {
        let operation = describe();
        self.query_fields = operation.query_names();
        self.body_fields = operation.body.as_ref().map(TypeDoc::names);
        self.inert_fields = operation.inert;
        if self.method == PATCH || self.method == PUT || operation.makes_record() {
            self.record_fields = operation.record;
        }
        self.operation = Some(describe);
        self
    }

    fn raw(self) -> Self {
        Self { is_raw: true, ..self }
    }

    /// Its token is looked up before its body of so many bytes is read.
    fn with_token(self, is_known: IsKnown, most_bytes: usize) -> Self {
        Self { is_known: Some(is_known), most_bytes: Some(most_bytes), ..self }
    }

    fn creating(self) -> Self {
        Self { creates: true, ..self }
    }

    fn changing(self) -> Self {
        Self { right: Right::Change, ..self }
    }

    fn approving(self) -> Self {
        Self { right: Right::Approve, ..self }
    }

    /// It changes nothing: a GET, or a search by POST.
    pub fn only_reads(&self) -> bool {
        self.method == GET || matches!(self.access, Access::Key { scope, .. } if scope.ends_with(":read"))
    }

    /// HEAD works wherever GET does.
    pub fn methods(&self) -> Vec<Method> {
        if self.method == Method::GET { vec![Method::GET, Method::HEAD] } else { vec![self.method.clone()] }
    }

    /// Names of the placeholders in the path.
    pub fn parameters(&self) -> impl Iterator<Item = &'static str> + use<> {
        self.path.split('/').filter_map(|segment| segment.strip_prefix('{')?.strip_suffix('}'))
    }

    /// Placeholders of the path, each with what it stands for.
    pub fn places(&self) -> impl Iterator<Item = (&'static str, Kind)> + use<> {
        let path = self.path;
        self.parameters().filter_map(move |name| Some((name, Kind::of(path, name)?)))
    }
}

/// All methods of one path.
pub(crate) struct Resource {
    routes: Vec<Route>,
    /// The methods as the header `Allow` names them.
    pub allow: String,
}

impl Resource {
    fn new(routes: Vec<Route>) -> Self {
        let methods: Vec<String> = routes.iter().flat_map(Route::methods).map(|method| method.to_string()).collect();
        Self { routes, allow: methods.join(", ") }
    }

    /// The route of a method; HEAD works wherever GET does.
    pub fn route(&self, method: &Method) -> Option<&Route> {
        let method = if *method == Method::HEAD { &GET } else { method };
        self.routes.iter().find(|route| route.method == *method)
    }
}

/// The table by path, literal segments before placeholders.
pub(crate) struct Table(Router<Arc<Resource>>);

impl Table {
    /// Every route at `/v1` and `/api/v1`, the root ones at the root.
    ///
    /// # Errors
    /// A path with a placeholder of which nobody has said what it stands for.
    pub fn new(routes: Vec<Route>) -> anyhow::Result<Self> {
        let mut by_path: BTreeMap<&str, Vec<Route>> = BTreeMap::new();
        for route in routes {
            if let Some(name) = route.parameters().find(|name| Kind::of(route.path, name).is_none()) {
                bail!("{}: nobody has said what `{{{name}}}` stands for.", route.path);
            }
            by_path.entry(route.path).or_default().push(route);
        }
        let mut router = Router::new();
        for (path, routes) in by_path {
            let (path, resource) = (pattern(path), Arc::new(Resource::new(routes)));
            let below_api = path.starts_with("/v1/").then(|| format!("/api{path}"));
            for path in below_api.into_iter().chain([path]) {
                router.insert(path, Arc::clone(&resource)).expect("no two paths of the table are one");
            }
        }
        Ok(Self(router))
    }

    /// What is at a path that is decoded.
    pub fn find(&self, path: &str) -> Option<&Resource> {
        self.0.at(path).ok().map(|found| found.value.as_ref())
    }
}

/// A path as the router takes it: one placeholder at one place has one name there.
fn pattern(path: &str) -> String {
    let segments = path.split('/').map(|segment| if segment.starts_with('{') { "{id}" } else { segment });
    let segments = segments.enumerate().map(|(place, segment)| segment.replace("{id}", &format!("{{{place}}}")));
    segments.collect::<Vec<_>>().join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_route_whose_placeholder_stands_for_nothing_known_does_not_start() {
        let table = |path| Table::new(vec![on(GET, path, Access::Public, docs::reference)]);
        let refused = table("/v1/labels/{labelId}").err().expect("refused").to_string();
        assert_eq!(refused, "/v1/labels/{labelId}: nobody has said what `{labelId}` stands for.");
        assert!(table("/v1/labels/{id}").is_err(), "a name alone says nothing");
        assert!(table("/v1/projects/{id}").is_ok());
    }

    #[test]
    fn literal_segments_win_over_placeholders_and_both_mounts_are_alike() {
        let table = Table::new(table()).expect("a table");
        let found = |path: &str, method: &Method| {
            Some(table.find(path)?.route(method)?.path).map(|path| path.trim_start_matches("/v1/"))
        };
        for (path, route) in [
            ("agents/threads/tags", "agents/threads/tags"),
            ("agents/threads/threads", "agents/threads/{threadId}"),
            ("agents/agents/threads", "agents/{agentId}/threads"),
            ("agents/agents/a/costs/daily", "agents/agents/{agentId}/costs/daily"),
            ("assistants/tags", "assistants/tags"),
            ("assistants/chats/chats", "assistants/{identifier}/chats"),
            ("tenant-usage/tiers", "tenant-usage/tiers"),
        ] {
            for mount in ["/v1/", "/api/v1/"] {
                assert_eq!(found(&format!("{mount}{path}"), &Method::HEAD), Some(route), "{mount}{path}");
            }
        }
        assert_eq!((found("/v1/agents/", &GET), found("/api/livez", &GET)), (None, None));
    }
}
