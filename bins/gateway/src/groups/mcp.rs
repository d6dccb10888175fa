//! `/v1/mcp`, `/v1/mcp-gateway`

use std::{net::SocketAddr, sync::Arc, time::Duration};

use futures_util::{Stream, StreamExt, future::ready};
use platform_access::Access;
use platform_auth::{Identity, KeyService, PgAuthService, Role, UserService};
use platform_core::{
    AccountId, Caller, Code, Credential, Error, ErrorKind, Id, Origin, OriginUser, Result, Session, Timestamp,
    json_length, millis, run_blocking,
};
use platform_http::{Answer, Event, Follower, Group, OpenTo, Request, account_key, session};
use platform_integrations::origin_of;
use platform_mcp::{
    Change, MCP_GRANT, MCP_PROFILE, McpContext, McpHeaders, McpReply, PARAM_HEADER, PgMcpGateway, PreviewOf, Profile,
    SwitchesPut, ToolSwitches, Viewer, purge_audit,
};
use platform_runtime::ToolCall;
use platform_toolservers::TOOL_SERVER;
use platform_vault::Secret;
use serde::Deserialize;
use serde_json::Value;
use utoipa::ToSchema;

use crate::{
    config::Config,
    module::{Module, Purge},
};

const TAG: &str = "Who is shown what by the MCP endpoint, and who called what";
const MESSAGE: &str = "message";
const UPSTREAM: &str = "x-upstream-authorization";
/// A message that is longer is written beside the threads that serve others, in bytes.
const SHORT: usize = 16 << 10;
/// Id of the session, application and user that a preview makes up.
const PREVIEW: &str = "preview";

struct Services {
    gateway: Arc<PgMcpGateway>,
    keys: Arc<dyn KeyService>,
    users: Arc<dyn UserService>,
    /// Pages from which the endpoint may be called; `*` = all.
    origins: Vec<String>,
}

/// One MCP endpoint over many tool servers.
pub(crate) fn module(
    gateway: &Arc<PgMcpGateway>,
    auth: &Arc<PgAuthService>,
    config: &Config,
    addr: SocketAddr,
) -> Module {
    let own = origin_of(&config.url(addr));
    let origins = config.http.cors_origins.iter().cloned().chain(own).collect();
    let services =
        Arc::new(Services { gateway: Arc::clone(gateway), keys: auth.clone(), users: auth.clone(), origins });
    let keep = config.mcp_audit_keep;
    let purge = Purge::new("calls of the MCP gateway", move |conn, now| {
        let before = Timestamp(now.0 - millis(keep));
        Box::pin(async move { if keep > Duration::ZERO { purge_audit(conn, before).await } else { Ok(()) } })
    });
    Module {
        groups: vec![endpoint(Arc::clone(&services)), profiles(Arc::clone(&services)), management(services)],
        purges: vec![purge],
        ..Module::default()
    }
}

fn endpoint(services: Arc<Services>) -> Group {
    let mut group =
        Group::of("mcp", "One MCP endpoint over many tool servers", services).naming("profileSlug", MCP_PROFILE);
    let read = session("mcp-gateway:read");
    for path in ["/v1/mcp", "/v1/mcp/{profileSlug}"] {
        group.get(path, read, listen).with(spec::listen).resource();
        group.post(path, read, answer).with(spec::answer).raw().resource().acting(&[UPSTREAM]).cancellable();
    }
    group.build()
}

fn profiles(services: Arc<Services>) -> Group {
    let mut group = Group::of("mcp-gateway", TAG, services).naming("id", MCP_PROFILE);
    let (read, write): (OpenTo, OpenTo) = (account_key("mcp-gateway:read"), account_key("mcp-gateway:write"));
    group.get("/v1/mcp-gateway/profiles", read, list).with(spec::list);
    group.post("/v1/mcp-gateway/profiles", write, create).with(spec::create);
    group.get("/v1/mcp-gateway/profiles/{id}", read, get).with(spec::get);
    group.patch("/v1/mcp-gateway/profiles/{id}", write, update).with(spec::update);
    group.delete("/v1/mcp-gateway/profiles/{id}", write, delete).with(spec::delete);
    group.get("/v1/mcp-gateway/profiles/{id}/tools", read, tools).with(spec::tools);
    group.put("/v1/mcp-gateway/profiles/{id}/tools", write, set_tools).with(spec::set_tools);
    group.build()
}

fn management(services: Arc<Services>) -> Group {
    let mut group = Group::of("mcp-gateway", TAG, services).naming("id", MCP_GRANT).naming("toolServerId", TOOL_SERVER);
    let (read, write): (OpenTo, OpenTo) = (account_key("mcp-gateway:read"), account_key("mcp-gateway:write"));
    group.get("/v1/mcp-gateway/audit", read, audit).with(spec::audit);
    group.get("/v1/mcp-gateway/grants", read, grants).with(spec::grants);
    group.post("/v1/mcp-gateway/grants", write, grant).with(spec::grant);
    group.delete("/v1/mcp-gateway/grants/{id}", write, revoke).with(spec::revoke);
    group.get("/v1/mcp-gateway/me/tools", session("mcp-gateway:read"), own).with(spec::own);
    group.put("/v1/mcp-gateway/me/tools", session("mcp-gateway:write"), set_own).with(spec::set_own);
    group.get("/v1/mcp-gateway/preview", read, preview).with(spec::preview);
    group.get("/v1/mcp-gateway/servers", read, servers).with(spec::servers);
    group.post("/v1/mcp-gateway/servers/{toolServerId}/refresh", write, refresh).with(spec::refresh);
    group.build()
}

/// Pages of others do not get to call it with what a browser holds.
fn check_origin(services: &Services, request: &Request) -> Result<()> {
    let Some(origin) = request.headers.get("origin").map(|origin| origin.to_str().unwrap_or_default()) else {
        return Ok(());
    };
    if services.origins.iter().any(|known| known == "*" || known == origin) {
        return Ok(());
    }
    let message = "This page may not call the MCP endpoint; see PLATFORM_CORS_ORIGINS.";
    Err(Error::new(Code::FORBIDDEN, message))
}

fn viewer(request: &Request) -> Result<Viewer> {
    Ok(Viewer::new(request.caller()?.clone(), request.claims(), Arc::clone(request.access())))
}

/// Who has opened a stream, whenever the credential stands for something else.
fn viewers(follower: &Follower, access: &Arc<Access>) -> impl Stream<Item = Viewer> + use<> {
    let access = Arc::clone(access);
    let viewer = move |of: Arc<Identity>| Viewer::new(of.caller.clone(), of.claims(), Arc::clone(&access));
    follower.identities().map(viewer)
}

fn context(request: &Request) -> Result<McpContext> {
    // Of two that say different things somebody on the way may have read the other.
    for name in ["mcp-protocol-version", "mcp-method", "mcp-name", UPSTREAM] {
        let mut all = request.headers.get_all(name);
        let first = all.next();
        if all.any(|other| Some(other) != first) {
            return Err(Error::new(Code::BAD_REQUEST, format!("The header {name} is there twice, with two values.")));
        }
    }
    let text =
        |name: &str| request.headers.get(name).map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
    let params = request.headers.iter().filter_map(|(name, value)| {
        let name = name.as_str().strip_prefix(PARAM_HEADER)?;
        Some((name.to_owned(), String::from_utf8_lossy(value.as_bytes()).into_owned()))
    });
    Ok(McpContext {
        viewer: viewer(request)?,
        profile: request.path.get("profileSlug").cloned(),
        headers: McpHeaders {
            version: text("mcp-protocol-version"),
            method: text("mcp-method"),
            name: text("mcp-name"),
            params: params.collect(),
        },
        call_id: request.once.as_ref().map(|once| ToolCall::id_of(&format!("{} {}", once.scope, once.body_hash))),
        upstream: text(UPSTREAM).map(Secret::from),
        // What is kept for whoever repeats it is one message.
        reads_streams: request.once.is_none()
            && text("accept").is_some_and(|accept| accept.contains("text/event-stream")),
        last_event: text("last-event-id"),
        has_room: Arc::new(request.room_for_answers()),
    })
}

async fn answer(services: Arc<Services>, request: Request) -> Result<Answer> {
    check_origin(&services, &request)?;
    request.check_json()?;
    let count = async || request.count_creation().await;
    replied(services.gateway.answer(context(&request)?, &request.body, count).await?, &request).await
}

async fn listen(services: Arc<Services>, request: Request) -> Result<Answer> {
    check_origin(&services, &request)?;
    let context = context(&request)?;
    let reads_streams = context.reads_streams;
    let reply = services.gateway.listen(context).await?;
    if matches!(reply, McpReply::Changes(_)) && !reads_streams {
        let message = "GET opens a stream of changes: send `Accept: text/event-stream`, or POST a message.";
        return Err(Error::new(platform_http::code::METHOD_NOT_ALLOWED, message));
    }
    replied(reply, &request).await
}

/// A message as JSON: a long one is written beside the threads that serve others.
async fn written(message: Value) -> Result<String> {
    let write = |message: &Value| serde_json::to_string(message).map_err(Error::internal);
    if json_length(&message, SHORT).is_some() {
        return write(&message);
    }
    run_blocking(move || write(&message)).await
}

async fn replied(reply: McpReply, request: &Request) -> Result<Answer> {
    match reply {
        McpReply::Message(message) => Ok(Answer::raw_json(200, written(message).await?)),
        McpReply::Failed(status, message) => Ok(Answer::json(status, &message)?.not_kept()),
        McpReply::Json(message) => Ok(Answer::raw_json(200, message)),
        McpReply::Nothing(status) => Ok(Answer::empty(status)),
        McpReply::Stream(messages) => {
            // What cannot be written ends the stream, as what cannot be read does.
            let event = |message: Result<String>| Event { name: MESSAGE, id: None, data: message.unwrap_or_default() };
            let events = messages.then(written).take_while(|message| ready(message.is_ok())).map(event);
            Ok(Answer::events(Box::pin(events), None, None, request.follower()))
        }
        McpReply::Changes(mut changes) => {
            let event = |Change { id, message }| {
                let data = message.map(|message| message.to_string()).unwrap_or_default();
                Event { name: MESSAGE, id, data }
            };
            let last = changes.last.take().map(|message| Event::new(MESSAGE, &message));
            let (place, follower) = (Some(request.stream_place()?), request.follower());
            let changes = changes.stream(viewers(&follower, request.access())).map(event);
            Ok(Answer::events(Box::pin(changes), last, place, follower))
        }
    }
}

/// Who manages the gateway decides for all: no member does.
fn account(request: &Request) -> Result<&platform_core::AccountId> {
    let caller = request.caller()?;
    if caller.is_admin() {
        return Ok(&caller.account);
    }
    Err(Error::new(Code::FORBIDDEN, "Only an administrator may manage the MCP gateway."))
}

async fn list(services: Arc<Services>, request: Request) -> Result<Answer> {
    Answer::ok(&services.gateway.list(account(&request)?, request.page()?).await?)
}

async fn create(services: Arc<Services>, request: Request) -> Result<Answer> {
    let once = request.once.as_ref();
    shown(&services.gateway.create(account(&request)?, request.body().await?, once).await?, Answer::created)
}

/// A profile with its version.
fn shown(profile: &Profile, answer: impl FnOnce(&Profile) -> Result<Answer>) -> Result<Answer> {
    Ok(answer(profile)?.etag(profile.last_edit_timestamp_ms.0))
}

async fn get(services: Arc<Services>, request: Request) -> Result<Answer> {
    shown(&services.gateway.get(account(&request)?, &request.id("id")).await?, Answer::ok)
}

async fn update(services: Arc<Services>, request: Request) -> Result<Answer> {
    let (id, expected) = (&request.id("id"), request.if_match()?);
    let changed = services.gateway.update(account(&request)?, id, request.patch().await?, &expected);
    shown(&changed.await?, Answer::ok)
}

async fn delete(services: Arc<Services>, request: Request) -> Result<Answer> {
    let id = &request.id("id");
    services.gateway.delete(account(&request)?, id, &request.if_match()?).await?;
    Answer::deleted("MCP profile", id)
}

async fn tools(services: Arc<Services>, request: Request) -> Result<Answer> {
    Answer::ok(&services.gateway.tools(account(&request)?, &request.id("id")).await?)
}

async fn set_tools(services: Arc<Services>, request: Request) -> Result<Answer> {
    let ToolSwitches { tools } = request.body().await?;
    let (id, expected) = (&request.id("id"), request.if_match()?);
    let (tools, version) = services.gateway.set_tools(account(&request)?, id, tools, &expected).await?;
    Ok(Answer::ok(&tools)?.etag(version.0))
}

async fn grants(services: Arc<Services>, request: Request) -> Result<Answer> {
    let (filter, page) = (request.query()?, request.page()?);
    Answer::ok(&services.gateway.grants(account(&request)?, &filter, page).await?)
}

async fn grant(services: Arc<Services>, request: Request) -> Result<Answer> {
    let once = request.once.as_ref();
    Answer::created(&services.gateway.grant(account(&request)?, request.body().await?, once).await?)
}

async fn revoke(services: Arc<Services>, request: Request) -> Result<Answer> {
    let id = &request.id("id");
    services.gateway.revoke(account(&request)?, id).await?;
    Answer::deleted("grant", id)
}

async fn servers(services: Arc<Services>, request: Request) -> Result<Answer> {
    Answer::ok(&services.gateway.gateway_servers(account(&request)?, request.page()?).await?)
}

async fn refresh(services: Arc<Services>, request: Request) -> Result<Answer> {
    Answer::ok(&services.gateway.refresh(account(&request)?, &request.id("toolServerId")).await?)
}

async fn audit(services: Arc<Services>, request: Request) -> Result<Answer> {
    let (filter, page) = (request.query()?, request.page()?);
    Answer::ok(&services.gateway.audit(account(&request)?, &filter, page).await?)
}

async fn preview(services: Arc<Services>, request: Request) -> Result<Answer> {
    let of: PreviewOf = request.query()?;
    let (account, profile) = (account(&request)?, of.check()?);
    let (caller, claims) = match &of {
        PreviewOf { key_id: Some(key), .. } => {
            (services.keys.key_caller(request.caller()?, &Id::named(key)).await?, Vec::new())
        }
        PreviewOf { user_uid: Some(user), .. } => {
            let (caller, claims) = by_token(&*services.users, account, user).await?;
            (caller, claims.into_iter().chain(of.claims()?).collect())
        }
        PreviewOf { tenant_id, subtenant_id, .. } => {
            let session = Session {
                id: PREVIEW.to_owned(),
                tenant_id: tenant_id.clone().unwrap_or_default(),
                subtenant_id: subtenant_id.clone(),
                assistants: None,
            };
            (caller(account, Credential::Session(session), Origin::default()), Vec::new())
        }
    };
    let viewer = Viewer::new(caller, &claims, Arc::clone(request.access()));
    Answer::ok(&services.gateway.preview(&viewer, profile).await?)
}

/// Whoever shows the token of a user, and what each of their tokens says, whatever client it is for; of one who is not
/// known here, nothing.
async fn by_token(users: &dyn UserService, account: &AccountId, user: &str) -> Result<(Caller, Vec<(String, String)>)> {
    let role = match users.get_user(account, &Id::named(user)).await {
        Ok(known) => Some(known.role),
        Err(error) if error.code().kind() == ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    let behind = OriginUser { id: user.to_owned(), is_admin: role == Some(Role::Admin) };
    let credential = Credential::Token { user: user.to_owned(), client: PREVIEW.to_owned() };
    let caller = caller(account, credential, Origin { user: Some(behind), ..Origin::default() });
    let said = role.map(|role| [("cid", account.as_str()), ("sub", user), ("role", role.as_str())]);
    Ok((caller, said.into_iter().flatten().map(|(name, value)| (name.to_owned(), value.to_owned())).collect()))
}

fn caller(account: &AccountId, credential: Credential, origin: Origin) -> Caller {
    Caller { account: account.clone(), credential, user_uid: PREVIEW.to_owned(), projects: None, origin }
}

/// Of which profile.
#[derive(Default, Deserialize, ToSchema)]
#[serde(default)]
struct OfProfile {
    /// Slug of the profile; the caller's when absent.
    profile: Option<String>,
}

async fn own(services: Arc<Services>, request: Request) -> Result<Answer> {
    let OfProfile { profile } = request.query()?;
    Answer::ok(&services.gateway.switches(&viewer(&request)?, profile.as_deref()).await?)
}

async fn set_own(services: Arc<Services>, request: Request) -> Result<Answer> {
    let (OfProfile { profile }, SwitchesPut { disabled }) = (request.query()?, request.body().await?);
    let viewer = viewer(&request)?;
    Answer::ok(&services.gateway.set_switches(&viewer, profile.as_deref(), disabled).await?)
}

mod spec {
    use platform_http::{Deleted, Operation};
    use platform_mcp::{
        AuditFilter, AuditPage, GatewayServer, GatewayServerPage, Grant, GrantFilter, GrantPage, NewGrant, Preview,
        PreviewOf, Profile, ProfilePage, ProfileSettings, ProfileTool, Switches, SwitchesPut, ToolSwitches,
    };

    use super::OfProfile;

    pub fn answer() -> Operation {
        Operation::new("Answer an MCP message: JSON, or a stream while a call tells of its progress")
            .answers_object(200)
            .answers_text(200, "text/event-stream")
            .answers_empty(202)
    }
    pub fn listen() -> Operation {
        Operation::new("Be told when the tools change (MCP until 2025-11-25)").answers_text(200, "text/event-stream")
    }
    pub fn audit() -> Operation {
        Operation::new("List calls that were made through the MCP endpoint")
            .query::<AuditFilter>()
            .paged(20, 100)
            .answers::<AuditPage>(200)
    }
    pub fn own() -> Operation {
        Operation::new("Read which tools you do without").query::<OfProfile>().answers::<Switches>(200)
    }
    pub fn set_own() -> Operation {
        Operation::new("Do without some tools").query::<OfProfile>().body::<SwitchesPut>().answers::<Switches>(200)
    }
    pub fn preview() -> Operation {
        Operation::new("See what a caller would be shown").query::<PreviewOf>().answers::<Preview>(200)
    }
    pub fn list() -> Operation {
        Operation::new("List profiles of the MCP endpoint").paged(20, 100).answers::<ProfilePage>(200)
    }
    pub fn create() -> Operation {
        Operation::new("Make a profile").body::<ProfileSettings>().requires(&["name"]).answers::<Profile>(201)
    }
    pub fn get() -> Operation {
        Operation::new("Read a profile").answers::<Profile>(200)
    }
    pub fn update() -> Operation {
        Operation::new("Change a profile").body::<ProfileSettings>().answers::<Profile>(200)
    }
    pub fn delete() -> Operation {
        Operation::new("Delete a profile, with its grants").answers::<Deleted>(200)
    }
    pub fn tools() -> Operation {
        Operation::new("List the tools of a profile, those too that nobody is shown").answers::<Vec<ProfileTool>>(200)
    }
    pub fn set_tools() -> Operation {
        Operation::new("Let tools in, switch them off, name or describe them otherwise")
            .body::<ToolSwitches>()
            .answers::<Vec<ProfileTool>>(200)
    }
    pub fn grants() -> Operation {
        Operation::new("List grants").query::<GrantFilter>().paged(20, 100).answers::<GrantPage>(200)
    }
    pub fn grant() -> Operation {
        Operation::new("Let somebody see a profile, or some of its tools").body::<NewGrant>().answers::<Grant>(201)
    }
    pub fn revoke() -> Operation {
        Operation::new("Take a grant back").answers::<Deleted>(200)
    }
    pub fn servers() -> Operation {
        Operation::new("List the tool servers that take part").paged(100, 1000).answers::<GatewayServerPage>(200)
    }
    pub fn refresh() -> Operation {
        Operation::new("Read the tools of a server again").answers::<GatewayServer>(200)
    }
}
