//! What integrations show (contract 08).

use platform_core::Object;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::pack::{EventKind, Field};

/// An app that accounts can connect.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct App {
    /// Its name in addresses.
    pub slug: String,
    /// Its name.
    pub name: String,
    /// What it is.
    pub description: String,
    /// Address of its picture; empty when it has none.
    pub logo: String,
    /// It is connected without credentials.
    pub no_auth: bool,
    /// What it is for.
    pub categories: Vec<String>,
    /// How many tools it has.
    pub tools_count: usize,
    /// How many event types it has.
    pub triggers_count: usize,
    /// `builtin`, or `custom` when it comes from the operator.
    pub provider: String,
}

/// A page of apps.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct AppPage {
    /// The apps, by name.
    pub items: Vec<App>,
    /// How many there are.
    pub total_items: usize,
    /// Where the next page begins.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// Something that an app tells of.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct EventType {
    /// Its name in addresses.
    pub slug: String,
    /// Its name.
    pub name: String,
    /// Its app.
    pub app: String,
    /// What happened.
    pub description: String,
    /// What is to be done by hand.
    pub instructions: String,
    /// How it comes.
    pub r#type: EventKind,
    /// JSON Schema of `triggerConfig`.
    #[schema(value_type = Object)]
    pub config: Value,
    /// JSON Schema of what it carries.
    #[schema(value_type = Object)]
    pub payload: Value,
}

/// A page of event types.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct EventTypePage {
    /// The event types.
    pub items: Vec<EventType>,
    /// How many there are.
    pub total_items: usize,
    /// Where the next page begins.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// The ways to connect to an app.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct Schemes {
    /// Each way.
    pub schemes: Vec<Scheme>,
}

/// A way to connect to an app.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = AuthScheme)]
pub struct Scheme {
    /// `OAUTH2`, `API_KEY`, `BASIC` or `NONE`.
    pub mode: String,
    /// This server has its own client at the app: nothing of it need be given.
    pub managed: bool,
    /// A user decides in a browser.
    pub redirect: bool,
    /// What the operator of the app gives.
    pub app_fields: Vec<Field>,
    /// What each account gives.
    pub account_fields: Vec<Field>,
    /// Where it is told how to get them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub guide_url: Option<String>,
}

/// A connection to make, or to make again.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NewConnection {
    /// `OAUTH2`, `API_KEY`, `BASIC` or `NONE`; absent: what needs the least of you.
    pub auth_scheme: Option<String>,
    /// What the operator of the app gives, by name of the field.
    #[schema(value_type = Option<Object>)]
    pub app_fields: Object,
    /// What the account gives, by name of the field.
    #[schema(value_type = Option<Object>)]
    pub account_fields: Object,
    /// Where the browser goes afterwards.
    pub return_to: Option<String>,
    /// Its name, at most 100 characters.
    pub label: Option<String>,
    /// The connection that is made again.
    pub connection_id: Option<String>,
}

/// A connection that was begun, or made.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Connected {
    /// It is good.
    pub connected: bool,
    /// The connection.
    pub connection_id: String,
    /// Where the user is to decide.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub authorization_url: Option<String>,
}

/// A connection to an app.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = AppConnection)]
pub struct Connection {
    /// Id.
    pub id: String,
    /// Its name.
    pub label: String,
    /// `pending`, `active`, `needs_reauth` or `expired`.
    pub status: String,
    /// Why it stands so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status_reason: Option<String>,
    /// When it was first good.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connected_at: Option<String>,
    /// When it last changed.
    pub updated_at: String,
    /// It is to be made again.
    pub needs_reconnect: bool,
}

/// How an account stands with an app.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct ConnectionStatus {
    /// A connection is good.
    pub connected: bool,
    /// All connections, newest first.
    pub connections: Vec<Connection>,
}

/// A tool server that was made from an app.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ConnectedServer {
    /// Id of the tool server.
    pub id: String,
    /// Slug of its app.
    pub app: String,
    /// Its name.
    pub name: String,
    /// Its connection is good.
    pub connected: bool,
    /// How many tools it exposes; `null` = all.
    pub exposed_tool_count: Option<usize>,
    /// How its connection stands.
    pub status: String,
    /// Its connection.
    pub connection_id: Option<String>,
}

/// A tool server to make from an app.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NewServer {
    /// Its name; that of the app when absent.
    pub name: Option<String>,
    /// Names of the tools that it exposes; absent = all.
    pub tools: Option<Vec<String>>,
    /// The connection; the newest that is good when absent.
    pub connection_id: Option<String>,
}

/// A change of the tools that a server exposes: one of three.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(default)]
pub struct ExposedTools {
    /// Names of tools to expose, too.
    pub enable: Option<Vec<String>>,
    /// Names of tools to expose no longer.
    pub disable: Option<Vec<String>>,
    /// Expose all, also those that come later.
    pub all: Option<bool>,
}
