//! Who may do what: what a credential opens, and what of it is its own (contract 01 §3, §6, §7).

use std::collections::BTreeSet;

use actix_web::http::header::{HeaderMap, ORIGIN, REFERER};
use platform_auth::{Identity, KeyRules, Rights, Scopes};
use platform_core::{Caller, Code, Error, Owner, Result, Session};
use platform_projects::{ProjectRole, Reach};
use serde_json::Value;
use url::Url;

use crate::{
    code,
    request::{Request, percent_decode},
    routes::{Access, Kind, Right, Route},
};

/// Fields that refer to other records.
const REFERENCES: [(&str, Kind); 3] =
    [("assistantIds", Kind::Assistant), ("availableToolsGroupsUids", Kind::ToolServer), ("subagentsIds", Kind::Agent)];
/// References of one request that are looked at.
const MOST_REFERENCES: usize = 500;

/// Whether a credential opens a route; `path` is the one that was asked for, decoded.
pub(crate) fn permit(identity: &Identity, route: &Route, path: &str, headers: &HeaderMap) -> Result<()> {
    match &identity.rights {
        Rights::Token { scopes, resource } => permit_token(scopes, resource.as_deref(), route, path),
        Rights::Key(rules) => permit_key(&identity.caller, rules, route, path, headers),
        Rights::Session => match route.access {
            Access::Public | Access::Key { session: true, .. } => Ok(()),
            Access::Mint { .. } => {
                let message = "A session cannot mint sessions; the backend does that with its API key.";
                Err(Error::new(code::SESSION_CANNOT_MINT, message))
            }
            _ => Err(Error::new(code::SESSION_ROUTE_FORBIDDEN, "Sessions cannot reach this endpoint.")),
        },
    }
}

fn permit_key(caller: &Caller, rules: &KeyRules, route: &Route, path: &str, headers: &HeaderMap) -> Result<()> {
    let mints = matches!(route.access, Access::Mint { .. });
    if rules.is_signed && !mints {
        let message = "This key only mints sessions (POST /v1/tenant-sessions); call with a session's token.";
        return Err(Error::new(code::KEY_REQUIRES_SESSION, message));
    }
    if mints && (headers.contains_key(ORIGIN) || !rules.domains.is_empty()) {
        let message =
            "Sessions are minted by backends: without an Origin header, with a key that is bound to no domain.";
        return Err(Error::new(code::BROWSER_MINT_FORBIDDEN, message));
    }
    if !rules.allows_origin(origin(headers)) {
        let message = "This key may not be used from here; see its allowedDomains.";
        return Err(Error::new(code::KEY_DOMAIN_FORBIDDEN, message));
    }
    let is_bound = !rules.endpoints.is_empty() || rules.preset.is_some();
    if is_bound && !rules.lists(route.method.as_str(), unmounted(path)) && !(rules.preset.is_some() && is_for_ui(route))
    {
        let message = "This key may not reach this endpoint; see its allowedEndpoints and preset.";
        return Err(Error::new(code::KEY_ENDPOINT_FORBIDDEN, message));
    }
    let full_only = match route.access {
        Access::Full { account_wide, .. } => rules.is_restricted() || (account_wide && caller.projects.is_some()),
        _ => false,
    };
    if full_only {
        let message = "Only a full API key of the whole account may do this.";
        return Err(Error::new(platform_tenants::code::FULL_KEY_REQUIRED, message));
    }
    Ok(())
}

fn permit_token(scopes: &Scopes, resource: Option<&str>, route: &Route, path: &str) -> Result<()> {
    let needed = match route.access {
        Access::Public => return Ok(()),
        Access::Key { scope, .. } | Access::Mint { scope } | Access::Full { scope: Some(scope), .. } => scope,
        Access::Full { scope: None, .. } => {
            let message = "Only a full API key may do this; no access token can.";
            return Err(Error::new(platform_tenants::code::FULL_KEY_REQUIRED, message));
        }
    };
    let address = resource.and_then(|resource| Url::parse(resource).ok());
    let is_within = |address: &Url| {
        let below = percent_decode(address.path().trim_end_matches('/'));
        path.strip_prefix(&below).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    if resource.is_some() && !address.as_ref().is_some_and(is_within) {
        let message = "This access token is good for another resource alone.";
        return Err(Error::new(Code::FORBIDDEN, message).with_some("resource", resource));
    }
    if !scopes.open(needed) {
        let message = format!("The access token does not have the scope {needed}; ask the user for it.");
        return Err(Error::new(code::INSUFFICIENT_SCOPE, message).with("requiredScopes", [needed]));
    }
    Ok(())
}

/// From where a browser asks.
fn origin(headers: &HeaderMap) -> Option<&str> {
    headers.get(ORIGIN).or_else(|| headers.get(REFERER))?.to_str().ok()
}

/// The path without its mount prefix, as lists of endpoints name it.
fn unmounted(path: &str) -> &str {
    let path = path.strip_prefix("/api").unwrap_or(path);
    path.strip_prefix("/v1").unwrap_or(path)
}

/// What the preset `ui` opens beside lists: the session surface, and some groups whole.
fn is_for_ui(route: &Route) -> bool {
    let groups = ["/v1/tenant-usage/", "/v1/memory/", "/v1/tenant-integrations", "/v1/tenant-mcp"];
    let in_group = groups.iter().any(|group| route.path.starts_with(group)) && route.path != "/v1/tenant-usage/tiers";
    matches!(route.access, Access::Key { session: true, .. }) || in_group
}

/// Imposes a session's tenant on path, query and body: absent is filled in, another is refused.
pub(crate) fn impose(request: &mut Request, route: &Route) -> Result<()> {
    let Some(session) = request.session().cloned() else { return Ok(()) };
    for (name, own) in [("tenantId", Some(&session.tenant_id)), ("subtenantId", session.subtenant_id.as_ref())] {
        let Some(own) = own else { continue };
        let in_query = request.query.get(name).cloned();
        let in_body = request.fields.text(name);
        let in_path = request.path.get(name).cloned();
        if [&in_query, &in_body, &in_path].into_iter().flatten().any(|given| given != own) {
            let message = format!("{name} is not the one of this session; leave it out.");
            return Err(Error::new(Code::TENANT_MISMATCH, message));
        }
        if route.query_fields.iter().any(|field| field == name) {
            request.query.insert(name.to_owned(), own.clone());
        }
        if route.body_fields.iter().flatten().any(|field| field == name) {
            request.set_field(name, own)?;
        }
    }
    Ok(())
}

/// Whether what the path and the body name is open to the caller; the project of what the path names, if that decided.
/// What does not exist is left to the handler.
pub(crate) async fn reach(request: &Request, route: &Route) -> Result<Option<String>> {
    let Some(identity) = &request.identity else { return Ok(None) };
    let caller = &identity.caller;
    if caller.role().is_some() || caller.session().is_some() {
        own(request, caller).await?;
    }
    let project = shared(request, route, caller).await?;
    if route.right == Right::Approve {
        approves(request).await?;
    }
    Ok(project)
}

/// What is hidden from users and sessions, and what is of another tenant than a session.
async fn own(request: &Request, caller: &Caller) -> Result<()> {
    let (services, account) = (&request.services, &caller.account);
    if let Some(assistant) = request.named(Kind::Assistant) {
        services.assistants.open_to(caller, assistant).await?;
    }
    let Some(session) = caller.session() else { return Ok(()) };
    let chat = request.named(Kind::Chat).map(str::to_owned).or_else(|| request.fields.text("chatUid"));
    if let Some(chat) = chat
        && let Some(owner) = services.chat.owner(account, &chat).await?
    {
        check_owner(session, &owner)?;
    }
    if let Some(thread) = request.named(Kind::Thread)
        && let Some(owner) = services.threads.owner(account, thread).await?
    {
        check_owner(session, &owner)?;
    }
    Ok(())
}

/// What is in projects: its members see it, editors change it and put something there.
async fn shared(request: &Request, route: &Route, caller: &Caller) -> Result<Option<String>> {
    let reach = request.services.projects.reach(caller).await?;
    let takes_project = route.body_fields.iter().flatten().any(|field| field == "projectId");
    let joins = if takes_project { request.fields.text("projectId") } else { None };
    // Who follows a stream may lose what it reaches now.
    if reach.is_whole() && caller.role().is_none() && joins.is_none() && !route.path.ends_with("/stream") {
        return Ok(None);
    }
    let mut project = None;
    for (kind, id) in &request.places {
        project = project.or(project_of(request, caller, *kind, id).await?);
    }
    if let Some(project) = &project {
        let uses = route.right == Right::Use && (route.only_reads() || is_own_thread(request, caller).await?);
        reach.check(project, if uses { ProjectRole::Viewer } else { ProjectRole::Editor })?;
    }
    if !reach.is_whole() || caller.role().is_some() {
        let mut hidden = Vec::new();
        for (kind, id) in named(request, route)? {
            if let Err(refused) = refers(request, &reach, caller, kind, &id).await {
                hidden.push(((kind, id), refused));
            }
        }
        let held = if hidden.is_empty() { References::new() } else { referred(request, caller).await? };
        if let Some((_, refused)) = hidden.into_iter().find(|(reference, _)| !held.contains(reference)) {
            return Err(refused);
        }
    }
    if let Some(joined) = joins.filter(|joined| project.as_ref() != Some(joined)) {
        reach.admits(&joined)?;
    }
    Ok(project)
}

/// Whether the thread of the path, if there is one, is one that the caller started: what others started is changed by
/// editors.
async fn is_own_thread(request: &Request, caller: &Caller) -> Result<bool> {
    let Some(thread) = request.named(Kind::Thread) else { return Ok(true) };
    let started_by = request.services.threads.started_by(&caller.account, thread).await?;
    Ok(started_by.is_none_or(|user| user == caller.user_uid))
}

/// Whether a caller may refer to a record: it knows it, and sees what is in its project.
async fn refers(request: &Request, reach: &Reach<'_>, caller: &Caller, kind: Kind, id: &str) -> Result<()> {
    if kind == Kind::Assistant && request.services.assistants.hides(caller, id).await? {
        return Err(Error::not_found(platform_chat::code::ASSISTANT_NOT_FOUND, "assistant", id));
    }
    match project_of(request, caller, kind, id).await? {
        Some(project) => reach.check(&project, ProjectRole::Viewer),
        None => Ok(()),
    }
}

/// Refuses who may not have the tools called that the assistant, agent or server of the path has: that takes an editor
/// wherever they are.
pub(crate) async fn approves(request: &Request) -> Result<()> {
    let (services, caller) = (&request.services, request.caller()?);
    let reach = services.projects.reach(caller).await?;
    if reach.is_whole() {
        return Ok(());
    }
    let mut places = Vec::new();
    for (kind, id) in &request.places {
        places.extend(project_of(request, caller, *kind, id).await?);
    }
    let servers = match (request.named(Kind::Assistant), request.named(Kind::Thread)) {
        (Some(assistant), _) => services.assistants.tool_groups(&caller.account, assistant).await?,
        (_, Some(thread)) => services.threads.tool_groups(&caller.account, thread).await?,
        _ => Vec::new(),
    };
    for server in servers {
        places.extend(project_of(request, caller, Kind::ToolServer, &server).await?);
    }
    places.iter().try_for_each(|place| reach.check(place, ProjectRole::Editor))
}

/// The project that a record is in. Of a new kind it is said here, before a route can name it.
async fn project_of(request: &Request, caller: &Caller, kind: Kind, id: &str) -> Result<Option<String>> {
    let (services, account) = (&request.services, &caller.account);
    match kind {
        Kind::Agent => services.agents.project(account, id).await,
        Kind::Thread => services.threads.project(account, id).await,
        Kind::Assistant => services.assistants.project(account, id).await,
        Kind::ToolServer => services.tool_servers.project(account, id).await,
        // Chats, evaluations and tools are where the record is that stands before them in a path; projects judge
        // for themselves, and so do keys; all others are of the whole account, or of nobody.
        Kind::ApiKey
        | Kind::Chat
        | Kind::Evaluation
        | Kind::File
        | Kind::McpProfile
        | Kind::OAuthClient
        | Kind::Project
        | Kind::Session
        | Kind::Subtenant
        | Kind::Tenant
        | Kind::Tier
        | Kind::Token
        | Kind::Tool
        | Kind::User => Ok(None),
    }
}

/// What a body refers to.
fn named(request: &Request, route: &Route) -> Result<References> {
    let reads = |field: &str| route.body_fields.iter().flatten().any(|known| known == field);
    let named = references(|field| if reads(field) { request.fields.value(field) } else { Value::Null });
    if named.len() > MOST_REFERENCES {
        let message = format!("At most {MOST_REFERENCES} other records can be referred to at once.");
        return Err(Error::new(Code::VALIDATION_ERROR, message));
    }
    Ok(named)
}

/// What the record that is changed refers to already: whoever sends it back as it was changes nothing.
async fn referred(request: &Request, caller: &Caller) -> Result<References> {
    let (services, account) = (&request.services, &caller.account);
    let record = match (request.named(Kind::Assistant), request.named(Kind::Agent)) {
        (Some(assistant), _) => serde_json::to_value(&*services.assistants.get(account, assistant).await?),
        (_, Some(agent)) => serde_json::to_value(services.agents.get(account, agent).await?),
        _ => Ok(Value::Null),
    };
    let record = record.map_err(Error::internal)?;
    Ok(references(|field| record[field].clone()))
}

/// Kind and id of each record that is referred to.
type References = BTreeSet<(Kind, String)>;

/// The references among the fields of a record, and in its specialization.
fn references(field: impl Fn(&str) -> Value) -> References {
    let within = field("assistantSpecialization");
    let mut found = References::new();
    for (list, kind) in REFERENCES {
        let own = field(list);
        let ids = [&own, &within[list]].into_iter().filter_map(Value::as_array).flatten();
        found.extend(ids.filter_map(|id| Some((kind, id.as_str()?.to_owned()))));
    }
    found.extend(within["identifier"].as_str().map(|id| (Kind::Assistant, id.to_owned())));
    found
}

fn check_owner(session: &Session, owner: &Owner) -> Result<()> {
    if session.owns(owner) {
        return Ok(());
    }
    Err(Error::new(code::NOT_OWNER, "This belongs to another tenant or subtenant."))
}
