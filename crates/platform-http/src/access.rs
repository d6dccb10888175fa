//! Who may do what: what a credential opens, and what of it is its own (contract 01 §3, §6, §7).

use actix_web::http::header::{HeaderMap, ORIGIN, REFERER};
use platform_access::{Demand, references};
use platform_auth::{
    Identity, KeyRules, Rights, Scopes,
    code::{FULL_KEY_REQUIRED, UNAUTHENTICATED},
};
use platform_core::{Caller, Code, Error, Result};
use url::Url;

use crate::{
    code,
    request::{Request, percent_decode},
    route::{OpenTo, Route},
};

/// References of one request that are looked at.
const MAX_REFERENCES: usize = 500;

/// Whether a credential opens a route; `path` is the one that was asked for, decoded and without aliases.
pub(crate) fn permit(identity: &Identity, route: &Route, path: &str, headers: &HeaderMap) -> Result<()> {
    match &identity.rights {
        Rights::Token { scopes, resource, .. } => permit_token(scopes, resource.as_deref(), route, path, headers),
        Rights::Key(rules) => permit_key(&identity.caller, rules, route, path, headers),
        Rights::Session => match route.open_to {
            OpenTo::Public | OpenTo::Key { session: true, .. } => Ok(()),
            OpenTo::Minting { .. } => {
                let message = "A session cannot mint sessions; the backend does that with its API key.";
                Err(Error::new(code::SESSION_CANNOT_MINT, message))
            }
            _ => Err(Error::new(code::SESSION_ROUTE_FORBIDDEN, "Sessions cannot reach this endpoint.")),
        },
    }
}

fn permit_key(caller: &Caller, rules: &KeyRules, route: &Route, path: &str, headers: &HeaderMap) -> Result<()> {
    let mints = matches!(route.open_to, OpenTo::Minting { .. });
    if rules.is_signed && !mints {
        let message = "This key only mints sessions (POST /v1/tenant-sessions); call with a session's token.";
        return Err(Error::new(code::KEY_REQUIRES_SESSION, message));
    }
    if mints && (headers.contains_key(ORIGIN) || !rules.domains.is_empty()) {
        return Err(minted_in_browser());
    }
    if !rules.allows_origin(origin(headers)) {
        let message = "This key may not be used from here; see its allowedDomains.";
        return Err(Error::new(code::KEY_DOMAIN_FORBIDDEN, message));
    }
    if !opens(rules, route, rules.lists(route.method.as_str(), unmounted(path), alias(route))) {
        let message = "This key may not reach this endpoint; see its allowedEndpoints and preset.";
        return Err(Error::new(code::KEY_ENDPOINT_FORBIDDEN, message));
    }
    let full_only = match route.open_to {
        OpenTo::FullKey { account_wide, .. } => rules.is_restricted() || (account_wide && caller.projects.is_some()),
        _ => false,
    };
    if full_only {
        let message = "Only a full API key of the whole account may do this.";
        return Err(Error::new(FULL_KEY_REQUIRED, message));
    }
    Ok(())
}

/// Whether the lists and the preset of a key open a route; `lists`: they name it.
fn opens(rules: &KeyRules, route: &Route, lists: bool) -> bool {
    let is_bound = !rules.endpoints.is_empty() || rules.preset.is_some();
    // The preset `ui` opens what sessions reach, too.
    let is_of_ui = matches!(route.open_to, OpenTo::Key { session: true, .. }) || route.is_of_ui;
    !is_bound || lists || (rules.preset.is_some() && is_of_ui)
}

fn minted_in_browser() -> Error {
    let message = "Sessions are minted by backends: without an Origin header, with a key that is bound to no domain.";
    Error::new(code::BROWSER_MINT_FORBIDDEN, message)
}

fn permit_token(scopes: &Scopes, resource: Option<&str>, route: &Route, path: &str, headers: &HeaderMap) -> Result<()> {
    if matches!(route.open_to, OpenTo::Minting { .. }) && headers.contains_key(ORIGIN) {
        return Err(minted_in_browser());
    }
    let needed = match route.open_to {
        OpenTo::Public => return Ok(()),
        OpenTo::Key { scope, .. } | OpenTo::Minting { scope } | OpenTo::FullKey { scope: Some(scope), .. } => scope,
        OpenTo::FullKey { scope: None, .. } => {
            let message = "Only a full API key may do this; no access token can.";
            return Err(Error::new(FULL_KEY_REQUIRED, message));
        }
    };
    let address = resource.and_then(|resource| Url::parse(resource).ok());
    // Both mounts are one resource.
    let path = path.strip_prefix("/api").unwrap_or(path);
    let is_within = |address: &Url| {
        let below = percent_decode(address.path().trim_end_matches('/'));
        let below = below.strip_prefix("/api").unwrap_or(&below);
        // What is a resource of its own is none of those above it, such as one profile of tools; else all below an address.
        let is_exact = route.is_resource && route.path.split("/{").next().is_some_and(|above| below.starts_with(above));
        path.strip_prefix(below).is_some_and(|rest| rest.is_empty() || (rest.starts_with('/') && !is_exact))
    };
    if resource.is_some() && !address.as_ref().is_some_and(is_within) {
        // Where a client logs in by itself it is asked to do so again, for this resource (RFC 6750, 8707).
        let code = if route.is_resource { UNAUTHENTICATED } else { Code::FORBIDDEN };
        let message = "This access token is good for another resource alone.";
        return Err(Error::new(code, message).with_some("resource", resource));
    }
    if !scopes.open(needed) {
        let message = format!("The access token does not have the scope {needed}; ask the user for it.");
        return Err(Error::new(code::INSUFFICIENT_SCOPE, message).with("requiredScopes", [needed]));
    }
    Ok(())
}

/// Refuses what would be a key that reaches more than the token that makes it (contract 01 §3).
pub(crate) fn check_key<'a>(
    identity: &Identity,
    rules: &KeyRules,
    mut routes: impl Iterator<Item = &'a Route>,
) -> Result<()> {
    let Rights::Token { scopes, .. } = &identity.rights else { return Ok(()) };
    let wider = routes.find_map(|route| scope_of_key(rules, route).filter(|needed| !scopes.open(needed)));
    let Some(needed) = wider else { return Ok(()) };
    let message = format!("This key would reach what the access token does not: that takes the scope {needed}.");
    Err(Error::new(Code::FORBIDDEN, message).with("requiredScopes", [needed]))
}

/// The scope that a token needs for a route which a restricted or signed key opens; `None` = it does not open it.
fn scope_of_key(rules: &KeyRules, route: &Route) -> Option<&'static str> {
    let scope = match route.open_to {
        OpenTo::Minting { scope } if rules.is_signed => return Some(scope),
        OpenTo::Minting { scope } | OpenTo::Key { scope, .. } => scope,
        OpenTo::Public | OpenTo::FullKey { .. } => return None,
    };
    let lists = rules.may_list(route.method.as_str(), unmounted(route.path), alias(route));
    (!rules.is_signed && opens(rules, route, lists)).then_some(scope)
}

/// From where a browser asks.
fn origin(headers: &HeaderMap) -> Option<&str> {
    headers.get(ORIGIN).or_else(|| headers.get(REFERER))?.to_str().ok()
}

/// The beginnings of its main and its other place.
fn alias(route: &Route) -> Option<(&'static str, &'static str)> {
    route.alias.map(|(main, alias)| (unmounted(main), unmounted(alias)))
}

/// The path without its mount prefix, as lists of endpoints name it.
fn unmounted(path: &str) -> &str {
    let path = path.strip_prefix("/api").unwrap_or(path);
    path.strip_prefix("/v1").unwrap_or(path)
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
        // A value of another type is the handler's to refuse.
        let is_other_type = request.fields.text(name).is_none() && !request.fields.value(name).is_null();
        if !is_other_type && route.body_fields.iter().flatten().any(|field| field == name) {
            request.set_field(name, own)?;
        }
    }
    Ok(())
}

/// Puts the id of a project in place of its identifier, wherever `projectId` stands.
pub(crate) async fn resolve_project(request: &mut Request) -> Result<()> {
    const NAME: &str = "projectId";
    let (in_query, in_body) = (request.query.get(NAME), request.fields.text(NAME));
    if request.identity.is_none() || (in_query.is_none() && in_body.is_none()) {
        return Ok(());
    }
    let reach = request.reach().await?;
    let id_of = |name: &String| reach.id_of(name).map(str::to_owned);
    let (in_query, in_body) = (in_query.and_then(id_of), in_body.as_ref().and_then(id_of));
    drop(reach);
    if let Some(id) = in_query {
        request.query.insert(NAME.to_owned(), id);
    }
    in_body.map_or(Ok(()), |id| request.set_field(NAME, &id))
}

/// Whether what the path and the body name is open to the caller.
pub(crate) async fn reach(request: &Request, route: &Route) -> Result<()> {
    let Some(identity) = &request.identity else { return Ok(()) };
    let caller = &identity.caller;
    // What others refer to is nothing to who reaches all.
    let is_bound = caller.session().is_some() || caller.role().is_some() || caller.projects.is_some();
    let fields = if is_bound { route.references.as_slice() } else { &[] };
    let references = references(fields, |field| request.fields.value(field));
    if references.len() > MAX_REFERENCES {
        let message = format!("At most {MAX_REFERENCES} other records can be referred to at once.");
        return Err(Error::new(Code::VALIDATION_ERROR, message));
    }
    let takes_project = !route.only_reads() && route.body_fields.iter().flatten().any(|field| field == "projectId");
    let demand = Demand {
        named: &request.named,
        references,
        joins: if takes_project { request.fields.text("projectId") } else { None },
        right: route.right,
        reads: route.only_reads(),
    };
    request.http.access.check(caller, demand).await
}
