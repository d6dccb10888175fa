//! `/oauth`, `/.well-known`, `/v1/oauth-clients`, `/v1/users`

use std::collections::BTreeMap;
use std::sync::Arc;

use actix_web::http::header::{AUTHORIZATION, CONTENT_TYPE};
use base64::{Engine, engine::general_purpose::STANDARD};
use platform_access::Kind;
use platform_auth::{
    Authorization, AuthorizeRequest, ClientService, Granted, OAuthError, OAuthOutcome, OAuthService, PgAuthService,
    SignIn, TokenRequest, UserService, purge_grants, purge_log_ins, purge_old_values, purge_unused_clients,
};
use platform_core::{Error, Result};
use platform_http::{Answer, Group, OpenTo, Request, code, percent_decode};
use platform_mcp::MCP_PROFILE;
use platform_projects::{PgProjectService, ProjectService};
use secrecy::ExposeSecret;
use serde_json::{Value, json};
use utoipa::ToSchema;

use crate::{
    leaving::{Leaving, with_followers},
    module::{Module, Purge},
};

/// What the handlers of users use.
struct UserServices {
    users: Arc<dyn UserService>,
    projects: Arc<dyn ProjectService>,
    leaving: Arc<Leaving>,
}

mod browser;
pub(crate) mod page;

/// Applications.
const OAUTH_CLIENT: Kind = Kind::of_account("OAuth client");
/// Where it is told who grants access to a resource.
const RESOURCE: &str = "/.well-known/oauth-protected-resource";
/// Users.
pub(crate) const USER: Kind = Kind::of_account("user");

/// The OAuth server, its applications, and users.
pub(crate) fn module(auth: &Arc<PgAuthService>, projects: &Arc<PgProjectService>, leaving: &Arc<Leaving>) -> Module {
    let users = UserServices { users: auth.clone(), projects: projects.clone(), leaving: Arc::clone(leaving) };
    Module {
        groups: vec![
            group(auth.clone()),
            resources_group(auth.clone()),
            clients_group(auth.clone()),
            users_group(Arc::new(users)),
        ],
        purges: vec![
            Purge::new("grants", |conn, now| Box::pin(purge_grants(conn, now))),
            Purge::new("log-ins", |conn, now| Box::pin(purge_log_ins(conn, now))),
            Purge::new("unused applications", |conn, now| Box::pin(purge_unused_clients(conn, now))),
            Purge::new("values of keys", |conn, now| {
                Box::pin(async move { purge_old_values(conn, now).await.map(drop) })
            }),
        ],
        ..Module::default()
    }
}

fn group(services: Arc<dyn OAuthService>) -> Group {
    let mut group = Group::of("oauth", "Users let applications act for them (OAuth 2.1)", services);
    group.get("/.well-known/jwks.json", OpenTo::Public, jwks).with(spec::jwks);
    group.get("/.well-known/oauth-authorization-server", OpenTo::Public, metadata).with(spec::metadata);
    group.get("/.well-known/oauth-protected-resource", OpenTo::Public, resource).with(spec::resource);
    group.get("/oauth/authorize", OpenTo::Public, authorize).with(spec::authorize);
    group.post("/oauth/authorize", OpenTo::Public, decide).with(spec::decide).raw();
    group
        .post("/oauth/introspect", OpenTo::FullKey { scope: None, account_wide: false }, introspect)
        .with(spec::introspect)
        .raw();
    group.post("/oauth/register", OpenTo::Public, register).with(spec::register).raw();
    group.post("/oauth/revoke", OpenTo::Public, revoke).with(spec::revoke).raw();
    group.post("/oauth/token", OpenTo::Public, token).with(spec::token).raw();
    group.build()
}

/// Who grants access to the MCP endpoint, below both mounts.
fn resources_group(services: Arc<dyn OAuthService>) -> Group {
    let mut group = Group::of("oauth", "Users let applications act for them (OAuth 2.1)", services)
        .naming("slug", MCP_PROFILE)
        .also_at(RESOURCE, "/.well-known/oauth-protected-resource/api");
    for path in ["/.well-known/oauth-protected-resource/v1/mcp", "/.well-known/oauth-protected-resource/v1/mcp/{slug}"]
    {
        group.get(path, OpenTo::Public, resource_below).with(spec::resource);
    }
    group.build()
}

fn clients_group(services: Arc<dyn ClientService>) -> Group {
    let mut group =
        Group::of("oauth-clients", "Applications that users let act for them", services).naming("id", OAUTH_CLIENT);
    group.get("/v1/oauth-clients", OpenTo::ADMIN, list_clients).with(spec::list_clients);
    group.post("/v1/oauth-clients", OpenTo::ADMIN, create_client).with(spec::create_client);
    group.get("/v1/oauth-clients/{id}", OpenTo::ADMIN, get_client).with(spec::get_client);
    group.patch("/v1/oauth-clients/{id}", OpenTo::ADMIN, update_client).with(spec::update_client);
    group.delete("/v1/oauth-clients/{id}", OpenTo::ADMIN, delete_client).with(spec::delete_client);
    group.build()
}

fn users_group(services: Arc<UserServices>) -> Group {
    let mut group = Group::of("users", "Users of the account", services).naming("userUID", USER);
    group.get("/v1/users", OpenTo::ADMIN, list_users).with(spec::list_users);
    group.post("/v1/users", OpenTo::ADMIN, create_user).with(spec::create_user);
    group.get("/v1/users/{userUID}", OpenTo::ADMIN, get_user).with(spec::get_user);
    group.patch("/v1/users/{userUID}", OpenTo::ADMIN, update_user).with(spec::update_user);
    group.delete("/v1/users/{userUID}", OpenTo::ADMIN, delete_user).with(spec::delete_user);
    group.build()
}

type Fields = BTreeMap<String, String>;

/// The fields of a body: a form, or JSON whose names may be in camel case.
fn fields(request: &Request) -> Result<Fields> {
    let kind = request.headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    if kind.starts_with("application/json") && !request.body.is_empty() {
        let json: Value = platform_core::parse(&request.body)
            .map_err(|error| Error::new(code::INVALID_JSON, format!("The body is not the JSON we read: {error}.")))?;
        let named = json.as_object().into_iter().flatten();
        return Ok(named.filter_map(|(name, value)| Some((snake(name), without_nul(value.as_str()?)))).collect());
    }
    let text = String::from_utf8_lossy(&request.body);
    let decode = |text: &str| without_nul(&percent_decode(&text.replace('+', " ")));
    let pairs = text.split('&').filter_map(|pair| pair.split_once('='));
    Ok(pairs.map(|(name, value)| (decode(name), decode(value))).collect())
}

/// What no text of the database can hold is in none that is looked for there.
fn without_nul(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}

fn snake(name: &str) -> String {
    name.chars().fold(String::new(), |mut snake, c| {
        if c.is_ascii_uppercase() {
            snake.push('_');
        }
        snake.push(c.to_ascii_lowercase());
        snake
    })
}

fn asked(fields: &Fields) -> AuthorizeRequest {
    let text = |name: &str| fields.get(name).filter(|text| !text.is_empty()).cloned();
    AuthorizeRequest {
        response_type: text("response_type"),
        client_id: text("client_id"),
        redirect_uri: text("redirect_uri"),
        scope: text("scope"),
        state: text("state"),
        code_challenge: text("code_challenge"),
        code_challenge_method: text("code_challenge_method"),
        resource: text("resource"),
    }
}

/// Shows who asks for what, and where to log in.
async fn authorize(oauth: Arc<dyn OAuthService>, request: Request) -> Result<Answer> {
    let asked = asked(&request.query);
    count_document(&request, &asked).await?;
    match oauth.authorization(&asked).await? {
        OAuthOutcome::Granted(authorization) => {
            let prompt = request.query.get("prompt").map(String::as_str);
            if prompt != Some("login")
                && !browser::is_elsewhere(&*oauth, &request)
                && let Some(log_in) = browser::log_in(&*oauth, &request)
                && let Some(granted) = oauth.grant(&authorization, SignIn::Browser(log_in)).await?
            {
                return Ok(redirect(&granted.redirect));
            }
            match prompt {
                Some("none") => Ok(redirect(&oauth.refused(&authorization, "login_required"))),
                _ => Ok(page::form(200, &authorization, &request.query, None)),
            }
        }
        OAuthOutcome::Refused(error) => Ok(refuse(&error)),
    }
}

/// An application whose name is an address is looked up there, not any number of times.
async fn count_document(request: &Request, asked: &AuthorizeRequest) -> Result<()> {
    match &asked.client_id {
        Some(id) if id.contains(':') => request.gate().document(request.client).await,
        _ => Ok(()),
    }
}

/// What the user decided.
async fn decide(oauth: Arc<dyn OAuthService>, request: Request) -> Result<Answer> {
    let fields = fields(&request)?;
    let asked = asked(&fields);
    count_document(&request, &asked).await?;
    let authorization = match oauth.authorization(&asked).await? {
        OAuthOutcome::Granted(authorization) => authorization,
        OAuthOutcome::Refused(error) => return Ok(refuse(&error)),
    };
    if fields.get("decision").is_none_or(|decision| decision != "allow") {
        return Ok(redirect(&oauth.refused(&authorization, "access_denied")));
    }
    // Nobody is logged in to the console by a page of somebody else's.
    if authorization.is_console() && browser::is_elsewhere(&*oauth, &request) {
        return Ok(page::form(403, &authorization, &fields, Some("Log in here, not on another page.")));
    }
    let gate = request.gate();
    let (name, way, wrong) = signing_in(&fields);
    let account = authorization.account().map(platform_core::Id::as_str).unwrap_or_default();
    let tried = match gate.log_in(request.client, account, &name).await {
        Ok(tried) => tried,
        Err(error) => return Ok(page::form(429, &authorization, &fields, Some(error.message()))),
    };
    match oauth.grant(&authorization, way).await? {
        Some(Granted { redirect: address, log_in }) => {
            gate.logged_in(tried).await;
            let answer = redirect(&address);
            Ok(match log_in {
                Some(log_in) => browser::holding(answer, &*oauth, log_in.expose_secret()),
                None => answer,
            })
        }
        None => Ok(page::form(401, &authorization, &fields, Some(wrong))),
    }
}

/// How a form signs in: under which name tries are counted, the way, and what to say when it is wrong.
fn signing_in(fields: &Fields) -> (String, SignIn, &'static str) {
    let text = |name: &str| fields.get(name).cloned().unwrap_or_default();
    if let Some(link) = fields.get("link") {
        let wrong = "This link was used, or is past its time. Log in with your password, or have the server's `users link` \
            make another.";
        return (link.clone(), SignIn::Link(link.clone().into()), wrong);
    }
    let email = text("email").trim().to_owned();
    let way = SignIn::Password { email: email.clone(), password: text("password").into() };
    (email, way, "This e-mail address or password is wrong.")
}

fn redirect(address: &str) -> Answer {
    Answer::text(303, "text/plain; charset=utf-8", String::new()).header("location", address)
}

/// Errors go to the application where it is proven, else they are shown (RFC 6749 §4.1.2.1).
fn refuse(error: &OAuthError) -> Answer {
    match &error.redirect {
        Some(address) => redirect(address),
        None => page::error(&error.description),
    }
}

async fn register(oauth: Arc<dyn OAuthService>, request: Request) -> Result<Answer> {
    if oauth.metadata().get("registration_endpoint").is_none() {
        let message =
            "Applications do not register themselves here; an operator makes them with POST /v1/oauth-clients.";
        return Err(Error::new(platform_core::Code::FORBIDDEN, message));
    }
    request.gate().registration(request.client).await?;
    match oauth.register(&request.body).await? {
        OAuthOutcome::Granted(client) => Ok(Answer::created(&client)?.header("cache-control", "no-store")),
        OAuthOutcome::Refused(error) => failed(error.error, &error.description),
    }
}

async fn token(oauth: Arc<dyn OAuthService>, request: Request) -> Result<Answer> {
    let mut fields = match fields(&request) {
        Ok(fields) => fields,
        Err(error) => return failed("invalid_request", error.message()),
    };
    let by_basic = basic(&request);
    if let Some((client, secret)) = by_basic.clone() {
        fields.insert("client_id".to_owned(), client);
        fields.insert("client_secret".to_owned(), secret);
    }
    let text = |name: &str| fields.get(name).filter(|text| !text.is_empty()).cloned();
    let asked = TokenRequest {
        grant_type: text("grant_type"),
        client_id: text("client_id"),
        client_secret: text("client_secret"),
        redirect_uri: text("redirect_uri"),
        code: text("code"),
        code_verifier: text("code_verifier"),
        refresh_token: text("refresh_token"),
        scope: text("scope"),
    };
    match oauth.token(&asked).await? {
        OAuthOutcome::Granted(tokens) => Ok(Answer::ok(&tokens)?.header("pragma", "no-cache")),
        OAuthOutcome::Refused(error) => {
            // A code or secret that is no good is a credential that is none.
            if matches!(error.error, "invalid_grant" | "invalid_client") {
                let counted = Error::new(platform_auth::code::UNAUTHENTICATED, error.error);
                let counted = request.gate().bad_credential(request.client, counted).await;
                if counted.code() == code::RATE_LIMIT_EXCEEDED {
                    return Err(counted);
                }
            }
            failed(error.error, &error.description)
        }
    }
}

/// An error of the token endpoint (RFC 6749 §5.2).
fn failed(error: &str, description: &str) -> Result<Answer> {
    let status = if error == "invalid_client" { 401 } else { 400 };
    let answer = Answer::json(status, &json!({"error": error, "error_description": description}))?;
    Ok(if status == 401 { answer.header("www-authenticate", "Basic realm=\"oauth\"") } else { answer })
}

/// Name and secret of a client in the header (RFC 6749 §2.3.1).
fn basic(request: &Request) -> Option<(String, String)> {
    let header = request.headers.get(AUTHORIZATION)?.to_str().ok()?;
    let (scheme, encoded) = header.split_once(' ')?;
    let decoded = scheme.eq_ignore_ascii_case("basic").then(|| STANDARD.decode(encoded.trim()).ok()).flatten()?;
    let text = String::from_utf8(decoded).ok()?;
    let (client, secret) = text.split_once(':')?;
    let decode = |text: &str| without_nul(&percent_decode(&text.replace('+', " ")));
    Some((decode(client), decode(secret)))
}

async fn revoke(oauth: Arc<dyn OAuthService>, request: Request) -> Result<Answer> {
    // What cannot be read names no token: there is nothing to revoke (RFC 7009 §2.2).
    let fields = fields(&request).unwrap_or_default();
    let client = basic(&request).map(|(client, _)| client).or_else(|| fields.get("client_id").cloned());
    if let Some(token) = fields.get("token") {
        oauth.revoke(token, client.as_deref()).await?;
    }
    let answer = Answer::ok(&json!({}))?;
    // Who ends their token in the console logs out of it; no other page logs anybody out.
    match browser::log_in(&*oauth, &request) {
        Some(log_in) if !browser::is_elsewhere(&*oauth, &request) => {
            oauth.log_out(&log_in).await?;
            Ok(browser::holding(answer, &*oauth, ""))
        }
        _ => Ok(answer),
    }
}

async fn introspect(oauth: Arc<dyn OAuthService>, request: Request) -> Result<Answer> {
    let fields = fields(&request)?;
    let token = fields.get("token").map(String::as_str).unwrap_or_default();
    Answer::ok(&oauth.introspect(request.account()?, token).await?)
}

async fn jwks(oauth: Arc<dyn OAuthService>, _: Request) -> Result<Answer> {
    Answer::ok(&oauth.jwks().await?)
}

async fn metadata(oauth: Arc<dyn OAuthService>, _: Request) -> Result<Answer> {
    Answer::ok(&oauth.metadata())
}

async fn resource(oauth: Arc<dyn OAuthService>, _: Request) -> Result<Answer> {
    Answer::ok(&oauth.resource_metadata(""))
}

async fn resource_below(oauth: Arc<dyn OAuthService>, request: Request) -> Result<Answer> {
    Answer::ok(&oauth.resource_metadata(request.asked.trim_start_matches(RESOURCE)))
}

async fn create_client(clients: Arc<dyn ClientService>, request: Request) -> Result<Answer> {
    let (account, once) = (request.account()?, request.once.as_ref());
    Answer::created(&clients.create_client(account, request.body().await?, once).await?)
}

async fn list_clients(clients: Arc<dyn ClientService>, request: Request) -> Result<Answer> {
    let (account, page) = (request.account()?, request.page()?);
    Answer::ok(&clients.list_clients(account, page).await?)
}

async fn get_client(clients: Arc<dyn ClientService>, request: Request) -> Result<Answer> {
    Answer::ok(&clients.get_client(request.account()?, &request.id("id")).await?)
}

async fn update_client(clients: Arc<dyn ClientService>, request: Request) -> Result<Answer> {
    let (account, id) = (request.account()?, &request.id("id"));
    Answer::ok(&clients.update_client(account, id, request.patch().await?).await?)
}

async fn delete_client(clients: Arc<dyn ClientService>, request: Request) -> Result<Answer> {
    let id = &request.id("id");
    clients.delete_client(request.account()?, id).await?;
    Answer::deleted("OAuth client", id)
}

async fn create_user(services: Arc<UserServices>, request: Request) -> Result<Answer> {
    let (account, once) = (request.account()?, request.once.as_ref());
    Answer::created(&services.users.create_user(account, request.body().await?, once).await?)
}

async fn list_users(services: Arc<UserServices>, request: Request) -> Result<Answer> {
    let (account, page) = (request.account()?, request.page()?);
    Answer::ok(&services.users.list_users(account, page).await?)
}

async fn get_user(services: Arc<UserServices>, request: Request) -> Result<Answer> {
    Answer::ok(&services.users.get_user(request.account()?, &request.id("userUID")).await?)
}

async fn update_user(services: Arc<UserServices>, request: Request) -> Result<Answer> {
    let (account, id) = (request.account()?, &request.id("userUID"));
    Answer::ok(&services.users.update_user(account, id, request.patch().await?).await?)
}

async fn delete_user(services: Arc<UserServices>, request: Request) -> Result<Answer> {
    let (account, id) = (request.account()?, &request.id("userUID"));
    let followers = async {
        services.leaving.user(account, id).await?;
        services.projects.user_deleted(id).await
    };
    with_followers(services.users.delete_user(account, id).await, followers).await?;
    Answer::deleted("user", id)
}

/// What an application asks for (RFC 6749 §4.1.1, RFC 7636, RFC 8707).
#[derive(ToSchema)]
#[expect(dead_code, reason = "describes what asked reads")]
struct AuthorizeQuery {
    response_type: String,
    client_id: String,
    redirect_uri: String,
    scope: Option<String>,
    state: Option<String>,
    code_challenge: String,
    code_challenge_method: String,
    resource: Option<String>,
    /// `none`: nothing is shown, `error=login_required` when it would have to be; `login`: logged in anew.
    prompt: Option<String>,
}

/// What the token endpoint fails with (RFC 6749 §5.2).
#[derive(ToSchema)]
#[expect(dead_code, reason = "describes what failed builds")]
struct OAuthFailure {
    error: String,
    error_description: String,
}

/// What a client asks the token endpoint; as JSON the names may be in camel case, too.
#[derive(ToSchema)]
#[expect(dead_code, reason = "describes what token reads")]
struct TokenBody {
    grant_type: String,
    client_id: Option<String>,
    client_secret: Option<String>,
    redirect_uri: Option<String>,
    code: Option<String>,
    code_verifier: Option<String>,
    refresh_token: Option<String>,
    scope: Option<String>,
}

/// A token to end or to ask about.
#[derive(ToSchema)]
#[expect(dead_code, reason = "describes what revoke and introspect read")]
struct OneToken {
    token: String,
    token_type_hint: Option<String>,
}

mod spec {
    use platform_auth::{ClientPage, ClientWithSecret, NewClient, NewUser, OAuthClient, Tokens, User, UserPage};

    use super::{AuthorizeQuery, OAuthFailure, OneToken, TokenBody};
    use platform_http::{Deleted, Operation};

    pub fn authorize() -> Operation {
        Operation::new("Show the user who asks for what").query::<AuthorizeQuery>().answers_text(200, "text/html")
    }
    pub fn decide() -> Operation {
        let operation = Operation::new("Grant it, or not, and go back to the application");
        // The page once more, with what was wrong.
        operation.answers_empty(303).answers_otherwise("text/html")
    }
    pub fn token() -> Operation {
        let operation = Operation::new("Exchange a code or a refresh token (RFC 6749)").url_encoded::<TokenBody>();
        let operation = operation.aliases(&[
            "grantType",
            "clientId",
            "clientSecret",
            "redirectUri",
            "codeVerifier",
            "refreshToken",
        ]);
        operation.answers::<Tokens>(200).fails_with::<OAuthFailure>()
    }
    pub fn revoke() -> Operation {
        let operation = Operation::new("End what a token follows from (RFC 7009)").url_encoded::<OneToken>();
        operation.answers_object(200).fails_with::<OAuthFailure>()
    }
    pub fn register() -> Operation {
        Operation::new("Make an application known that is to use the MCP endpoint (RFC 7591)").answers_object(201)
    }
    pub fn introspect() -> Operation {
        Operation::new("What a token is good for (RFC 7662)").url_encoded::<OneToken>().answers_object(200)
    }
    pub fn jwks() -> Operation {
        Operation::new("Keys that verify access tokens (RFC 7517)").answers_object(200)
    }
    pub fn metadata() -> Operation {
        Operation::new("What the authorization server can do (RFC 8414)").answers_object(200)
    }
    pub fn resource() -> Operation {
        Operation::new("Who grants access to this resource (RFC 9728)").answers_object(200)
    }

    pub fn create_client() -> Operation {
        Operation::new("Make an OAuth client; its secret is shown this once")
            .body::<NewClient>()
            .requires(&["name", "redirectUris"])
            .answers::<ClientWithSecret>(201)
    }
    pub fn list_clients() -> Operation {
        Operation::new("List OAuth clients").paged(20, 100).answers::<ClientPage>(200)
    }
    pub fn get_client() -> Operation {
        Operation::new("Read an OAuth client").answers::<OAuthClient>(200)
    }
    pub fn update_client() -> Operation {
        Operation::new("Change an OAuth client").body::<NewClient>().answers::<OAuthClient>(200)
    }
    pub fn delete_client() -> Operation {
        Operation::new("Delete an OAuth client, with all that was granted it").answers::<Deleted>(200)
    }
    pub fn create_user() -> Operation {
        Operation::new("Make a user").body::<NewUser>().requires(&["email", "password"]).answers::<User>(201)
    }
    pub fn list_users() -> Operation {
        Operation::new("List users").paged(20, 100).answers::<UserPage>(200)
    }
    pub fn get_user() -> Operation {
        Operation::new("Read a user").answers::<User>(200)
    }
    pub fn update_user() -> Operation {
        Operation::new("Change a user; who is disabled is out at once").body::<NewUser>().answers::<User>(200)
    }
    pub fn delete_user() -> Operation {
        Operation::new("Delete a user, with all that they granted").answers::<Deleted>(200)
    }
}

/// Where the user is sent back to, for the policy of the page.
fn origin_of(authorization: &Authorization) -> String {
    let origin = url::Url::parse(&authorization.redirect_uri).map(|url| {
        let origin = url.origin();
        if origin.is_tuple() { origin.ascii_serialization() } else { format!("{}:", url.scheme()) }
    });
    origin.unwrap_or_default()
}
