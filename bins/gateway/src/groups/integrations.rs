//! `/v1/integrations`

use std::sync::Arc;

use actix_web::http::header::ORIGIN;
use platform_access::Kind;
use platform_auth::{ClientService, PgAuthService};
use platform_core::{Id, Owner, Result};
use platform_http::{Answer, Group, List, OpenTo, Request, key};
use platform_integrations::{
    APP, CONNECTION, Callback, Connecting, IntegrationService, Listed, LoginOutcome, NewConnection, PgIntegrations,
    Revocations, origin_of, purge_attempts,
};
use platform_toolservers::{TOOL_SERVER, TestRequest, ToolServerService};
use serde::Deserialize;
use utoipa::ToSchema;

use super::oauth::page::notice;
use crate::{
    leaving::{DeleteQuery, delete_unused},
    module::{Keeper, Module, Purge},
};

const EVENT_TYPE: Kind = Kind::of_account("event type");
const APP_TOOL: Kind = Kind::of_account("tool of an app");

struct Services {
    integrations: Arc<PgIntegrations>,
    clients: Arc<dyn ClientService>,
    tool_servers: Arc<dyn ToolServerService>,
}

/// Apps, connections to them, and tool servers made of them.
pub(crate) fn module(
    integrations: &Arc<PgIntegrations>,
    auth: &Arc<PgAuthService>,
    tool_servers: Arc<dyn ToolServerService>,
) -> Module {
    let connections = integrations.connections();
    let services = Services { integrations: Arc::clone(integrations), clients: auth.clone(), tool_servers };
    Module {
        groups: vec![group(Arc::new(services))],
        works: vec![Arc::new(Revocations(Arc::clone(connections)))],
        keepers: vec![
            Keeper::new("connections", Arc::clone(connections).keep()).ending_early(),
            Keeper::new("tools of apps", Arc::clone(integrations).renew_servers()),
        ],
        purges: vec![Purge::new("attempts to connect", |conn, now| Box::pin(purge_attempts(conn, now)))],
        ..Module::default()
    }
}

fn group(services: Arc<Services>) -> Group {
    let mut group = Group::of("integrations", "Apps, connections to them, and tool servers made of them", services)
        .naming("app", APP)
        .naming("slug", EVENT_TYPE)
        .naming("tool", APP_TOOL)
        .naming("connectionId", CONNECTION)
        .naming("id", TOOL_SERVER);
    let (read, write) = (key("integrations:read"), key("integrations:write"));
    group.get("/v1/integrations", read, list).with(spec::list);
    group.get("/v1/integrations/connected", read, connected).with(spec::connected);
    group.get("/v1/integrations/callback", OpenTo::Public, callback).with(spec::callback).with_effect();
    group.delete("/v1/integrations/connections/{connectionId}", write, disconnect).with(spec::disconnect);
    group.delete("/v1/integrations/servers/{id}", write, delete_server).with(spec::delete_server);
    group.get("/v1/integrations/servers/{id}/tools", read, tools).with(spec::tools);
    group.patch("/v1/integrations/servers/{id}/tools", write, expose).with(spec::expose);
    group
        .post("/v1/integrations/servers/{id}/tools/{tool}/test", write, test)
        .with(spec::test)
        .approving()
        .cancellable();
    group.get("/v1/integrations/{app}", read, get).with(spec::get);
    group.get("/v1/integrations/{app}/auth", read, schemes).with(spec::schemes);
    group.post("/v1/integrations/{app}/connect", write, connect).with(spec::connect);
    group.get("/v1/integrations/{app}/connection-status", read, status).with(spec::status);
    group.post("/v1/integrations/{app}/servers", write, create_server).with(spec::create_server);
    group.get("/v1/integrations/{app}/triggers", read, event_types).with(spec::event_types);
    group.get("/v1/integrations/{app}/triggers/{slug}", read, event_type).with(spec::event_type);
    group.build()
}

#[derive(Default, Deserialize, ToSchema)]
#[serde(default)]
pub(crate) struct CatalogQuery {
    /// Words that must occur.
    search: Option<String>,
    /// What apps are for.
    category: Option<String>,
    /// Page size, at most 100.
    #[schema(value_type = Option<i64>)]
    limit: Option<String>,
    /// `nextCursor` of the page before.
    cursor: Option<String>,
}

#[derive(Default, Deserialize, ToSchema)]
#[serde(default)]
pub(crate) struct AppToolsQuery {
    /// Browse all tools of the app.
    available: Option<bool>,
    /// Words that must occur.
    pub search: Option<String>,
    /// Page size, at most 100.
    #[schema(value_type = Option<i64>)]
    limit: Option<String>,
    /// `nextCursor` of the page before.
    cursor: Option<String>,
}

#[derive(Default, Deserialize, ToSchema)]
#[serde(default)]
struct CallbackQuery {
    /// What was given out.
    state: String,
    /// What becomes tokens.
    code: Option<String>,
    /// Why there is none.
    error: Option<String>,
    /// Who says so (RFC 9207).
    iss: Option<String>,
}

/// The page that a query asks for.
pub(crate) fn listed(
    request: &Request,
    (search, category): (Option<String>, Option<String>),
    cursor: Option<String>,
) -> Result<Listed> {
    let limit = request.limit(20, 100)?;
    Ok(Listed { search, category, limit: usize::try_from(limit).unwrap_or(0), cursor })
}

/// The tools of a server of an app, as its own address and that of tool servers show them.
pub(crate) async fn shown_tools(
    integrations: &dyn IntegrationService,
    request: &Request,
    server: &str,
) -> Result<Answer> {
    let AppToolsQuery { available, search, cursor, .. } = request.query()?;
    let listed = listed(request, (search, None), cursor)?;
    Answer::ok(&integrations.tools(request.account()?, &Id::named(server), available.unwrap_or(false), &listed).await?)
}

async fn list(services: Arc<Services>, request: Request) -> Result<Answer> {
    let CatalogQuery { search, category, cursor, .. } = request.query()?;
    Answer::ok(&services.integrations.apps(request.account()?, &listed(&request, (search, category), cursor)?)?)
}

async fn connected(services: Arc<Services>, request: Request) -> Result<Answer> {
    let servers = services.integrations.connected(request.account()?, request.within().await?).await?;
    let mut list = List::of(servers.len());
    for server in &servers {
        if !list.push(server)? {
            break;
        }
    }
    Ok(list.into_answer())
}

async fn get(services: Arc<Services>, request: Request) -> Result<Answer> {
    Answer::ok(&services.integrations.app(request.path("app"))?)
}

async fn schemes(services: Arc<Services>, request: Request) -> Result<Answer> {
    Answer::ok(&services.integrations.schemes(request.path("app"))?)
}

/// Origins to which a browser may be sent back: the page that asks, and those of the account's OAuth clients.
pub(crate) async fn origins(clients: &dyn ClientService, request: &Request, return_to: bool) -> Result<Vec<String>> {
    let asks = request.headers.get(ORIGIN).and_then(|origin| origin.to_str().ok()).map(str::to_owned);
    let mut origins: Vec<String> = asks.into_iter().collect();
    if return_to {
        let known = clients.redirect_uris(request.account()?).await?;
        origins.extend(known.iter().filter_map(|uri| origin_of(uri)));
    }
    Ok(origins)
}

async fn connect(services: Arc<Services>, request: Request) -> Result<Answer> {
    let new: NewConnection = request.body().await?;
    let caller = request.caller()?;
    let connecting = Connecting {
        by: caller.user_uid.clone(),
        origins: origins(&*services.clients, &request, new.return_to.is_some()).await?,
        owner: Owner::default(),
    };
    Answer::ok(&services.integrations.connect(&caller.account, request.path("app"), new, &connecting).await?)
}

async fn status(services: Arc<Services>, request: Request) -> Result<Answer> {
    Answer::ok(&services.integrations.status(request.account()?, request.path("app")).await?)
}

async fn callback(services: Arc<Services>, request: Request) -> Result<Answer> {
    let CallbackQuery { state, code, error, iss } = request.query()?;
    Ok(match services.integrations.finish_login(Callback { state, code, error, iss }).await? {
        LoginOutcome::Redirect(url) => Answer::empty(302).header("location", url),
        LoginOutcome::Message { status, message } => notice(status, &message),
    })
}

async fn disconnect(services: Arc<Services>, request: Request) -> Result<Answer> {
    let id = &request.id("connectionId");
    services.integrations.disconnect(request.account()?, id).await?;
    Answer::deleted("connection", id)
}

async fn create_server(services: Arc<Services>, request: Request) -> Result<Answer> {
    let (app, once) = (request.path("app"), request.once.as_ref());
    let server = services.integrations.create_server(request.account()?, app, request.body().await?, once).await?;
    Ok(Answer::created(&server)?.etag(server.version))
}

async fn delete_server(services: Arc<Services>, request: Request) -> Result<Answer> {
    let (account, id) = (request.account()?, &request.id("id"));
    request.query::<DeleteQuery>()?;
    services.integrations.check_server(account, id).await?;
    delete_unused(&*services.tool_servers, &request, account, id).await?;
    Answer::deleted("tool server", id)
}

async fn tools(services: Arc<Services>, request: Request) -> Result<Answer> {
    shown_tools(&*services.integrations, &request, request.path("id")).await
}

async fn expose(services: Arc<Services>, request: Request) -> Result<Answer> {
    let (change, expected) = (request.body().await?, request.if_match()?);
    Answer::ok(&services.integrations.expose(request.account()?, &request.id("id"), change, &expected).await?)
}

async fn test(services: Arc<Services>, request: Request) -> Result<Answer> {
    let TestRequest { parameters } = request.body().await?;
    let (id, tool) = (&request.id("id"), request.path("tool"));
    Answer::ok(&services.integrations.test(request.account()?, id, tool, parameters).await?)
}

async fn event_types(services: Arc<Services>, request: Request) -> Result<Answer> {
    let CatalogQuery { search, cursor, .. } = request.query()?;
    let listed = listed(&request, (search, None), cursor)?;
    Answer::ok(&services.integrations.event_types(request.account()?, request.path("app"), &listed)?)
}

async fn event_type(services: Arc<Services>, request: Request) -> Result<Answer> {
    Answer::ok(&services.integrations.event_type(request.path("app"), request.path("slug"))?)
}

mod spec {
    use platform_http::{Deleted, Operation};
    use platform_integrations::{
        App, AppPage, Connected, ConnectedServer, ConnectionStatus, EventType, EventTypePage, ExposedTools,
        NewConnection, NewServer, Schemes,
    };
    use platform_toolservers::{AppTools, TestRequest, TestResult, ToolServer};

    use super::{AppToolsQuery, CallbackQuery, CatalogQuery};
    use crate::leaving::DeleteQuery;

    pub fn list() -> Operation {
        Operation::new("List the apps that accounts can connect").query::<CatalogQuery>().answers::<AppPage>(200)
    }
    pub fn connected() -> Operation {
        Operation::new("List the tool servers that were made from apps").answers::<Vec<ConnectedServer>>(200)
    }
    pub fn get() -> Operation {
        Operation::new("Read an app").answers::<App>(200)
    }
    pub fn schemes() -> Operation {
        Operation::new("Read how accounts connect to an app").answers::<Schemes>(200)
    }
    pub fn connect() -> Operation {
        Operation::new("Connect an account, or begin to: open authorizationUrl in a browser")
            .body::<NewConnection>()
            .answers::<Connected>(200)
    }
    pub fn status() -> Operation {
        Operation::new("Read how the account stands with an app").answers::<ConnectionStatus>(200)
    }
    pub fn callback() -> Operation {
        Operation::new("Where browsers come back to from apps").query::<CallbackQuery>().answers_text(200, "text/html")
    }
    pub fn disconnect() -> Operation {
        Operation::new("Take a connection away, here and at the app").answers::<Deleted>(200)
    }
    pub fn create_server() -> Operation {
        Operation::new("Make a tool server from an app").body::<NewServer>().answers::<ToolServer>(201)
    }
    pub fn delete_server() -> Operation {
        Operation::new("Delete a tool server that was made from an app").query::<DeleteQuery>().answers::<Deleted>(200)
    }
    pub fn tools() -> Operation {
        Operation::new("List the tools that a server of an app exposes, or all it could")
            .query::<AppToolsQuery>()
            .answers::<AppTools>(200)
    }
    pub fn expose() -> Operation {
        Operation::new("Change which tools a server of an app exposes").body::<ExposedTools>().answers::<AppTools>(200)
    }
    pub fn test() -> Operation {
        Operation::new("Call a tool of an app for real").body::<TestRequest>().answers::<TestResult>(200)
    }
    pub fn event_types() -> Operation {
        Operation::new("List what an app tells of")
            .query::<CatalogQuery>()
            .without(&["category"])
            .answers::<EventTypePage>(200)
    }
    pub fn event_type() -> Operation {
        Operation::new("Read an event type").answers::<EventType>(200)
    }
}
