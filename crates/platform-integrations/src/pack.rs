//! Packs: apps as YAML (contract 08 §3).

use std::collections::BTreeMap;

use platform_core::Object;
use platform_egress::{Method, Origin, Url};
use platform_toolservers::ToolDefinition;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

/// An app: what it is, how accounts connect, what can be called, and what it tells of.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schema(as = Connector)]
pub struct Pack {
    /// Its name in addresses, `^[a-z0-9][a-z0-9-]{0,63}$`.
    pub slug: String,
    /// Its name.
    pub name: String,
    /// What it is.
    #[serde(default)]
    pub description: String,
    /// Address of its picture.
    #[serde(default)]
    pub logo: String,
    /// What it is for, such as `communication`.
    #[serde(default)]
    pub categories: Vec<String>,
    /// Where its API is; endpoints are below it, or addresses of the same origin.
    #[serde(default)]
    pub base_url: Option<String>,
    /// How accounts connect; none = without credentials.
    #[serde(default)]
    pub auth: Vec<AuthScheme>,
    /// What can be called, as tools of tool servers are defined.
    #[serde(default)]
    pub tools: Vec<ToolDefinition>,
    /// What it tells of.
    #[serde(default)]
    pub event_types: Vec<PackEventType>,
}

/// How an account connects.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schema(as = ConnectorAuth)]
pub struct AuthScheme {
    /// `OAUTH2`, `API_KEY`, `BASIC` or `NONE`.
    pub mode: AuthMode,
    /// OAuth: where the user decides; may have a query of its own.
    #[serde(default)]
    pub authorization_url: Option<String>,
    /// OAuth: where codes and refresh tokens become access tokens.
    #[serde(default)]
    pub token_url: Option<String>,
    /// OAuth: where tokens are revoked (RFC 7009).
    #[serde(default)]
    pub revocation_url: Option<String>,
    /// OAuth: the `iss` that the callback must have when it has one (RFC 9207).
    #[serde(default)]
    pub issuer: Option<String>,
    /// OAuth: for what the tokens are to be good (RFC 8707).
    #[serde(default)]
    pub resource: Option<String>,
    /// OAuth: what is asked for, joined by a space.
    #[serde(default)]
    pub scopes: Vec<String>,
    /// OAuth: with PKCE (RFC 7636).
    #[serde(default = "yes")]
    pub pkce: bool,
    /// What the operator of the app gives, once for all accounts.
    #[serde(default)]
    pub app_fields: Vec<Field>,
    /// What each account gives.
    #[serde(default)]
    pub account_fields: Vec<Field>,
    /// Headers of every request; `${field}` stands for what was given.
    #[serde(default)]
    pub headers: Vec<PackHeader>,
    /// Fields of the query of every request, likewise.
    #[serde(default)]
    pub query: Vec<PackQuery>,
    /// A request that proves credentials as they are given: 2xx.
    #[serde(default)]
    pub test: Option<PackRequest>,
    /// What short answers of other statuses than 401 hold that refuse the credentials, where the app has such:
    /// `{path: [value]}`.
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    pub refusals: BTreeMap<String, Vec<Value>>,
    /// Where it is told how to get the fields.
    #[serde(default)]
    pub guide_url: Option<String>,
}

impl AuthScheme {
    /// OAuth has a client (RFC 6749 §2.2), whether its fields are named or not; public ones have no secret.
    pub(crate) fn name_client(&mut self) {
        let field = |name: &str, label: &str| Field {
            name: name.to_owned(),
            label: label.to_owned(),
            r#type: string(),
            required: name == "clientId",
            secret: name != "clientId",
            ..Field::default()
        };
        if let Some(id) = self.app_fields.iter_mut().find(|field| field.name == "clientId") {
            id.required = true;
            return;
        }
        self.app_fields.insert(0, field("clientId", "Client ID"));
        if self.app_fields.iter().all(|field| field.name != "clientSecret") {
            self.app_fields.insert(1, field("clientSecret", "Client secret"));
        }
    }

    /// Whether a callback came of its app: `iss` is its issuer, or where that is not told of the origin that the user was
    /// sent to (RFC 9207 §2.4).
    pub fn is_of_issuer(&self, iss: &str) -> bool {
        let origin = |url: &str| Url::parse(url).ok().map(|url| url.origin()).filter(Origin::is_tuple);
        match &self.issuer {
            Some(issuer) => issuer == iss,
            None => origin(iss).is_some_and(|of| self.authorization_url.as_deref().and_then(origin) == Some(of)),
        }
    }
}

fn yes() -> bool {
    true
}

/// How requests are let in.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum AuthMode {
    /// `Authorization: Bearer`, by the authorization code grant.
    #[serde(rename = "OAUTH2")]
    OAuth2,
    /// What `headers` or `query` say.
    ApiKey,
    /// Basic, of the fields `username` and `password`.
    Basic,
    /// Not at all.
    #[default]
    None,
}

impl AuthMode {
    /// The name on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::OAuth2 => "OAUTH2",
            Self::ApiKey => "API_KEY",
            Self::Basic => "BASIC",
            Self::None => "NONE",
        }
    }
}

/// A field that somebody fills in.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schema(as = ConnectorField)]
pub struct Field {
    /// Its name, as placeholders have it.
    pub name: String,
    /// Its name for people.
    #[serde(default)]
    pub label: String,
    /// `string`, `number` or `boolean`.
    #[serde(default = "string")]
    pub r#type: String,
    /// It must be given.
    #[serde(default)]
    pub required: bool,
    /// Where it is found.
    #[serde(default)]
    pub description: String,
    /// What counts when it is not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default: Option<Value>,
    /// It is never shown again.
    #[serde(default)]
    pub secret: bool,
}

fn string() -> String {
    "string".to_owned()
}

/// A header.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schema(as = ConnectorHeader)]
pub struct PackHeader {
    /// Name.
    pub header_name: String,
    /// Value.
    pub value: String,
}

/// A field of the query.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ConnectorQuery)]
pub struct PackQuery {
    /// Name.
    pub name: String,
    /// Value.
    pub value: String,
}

/// A request to the app.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ConnectorRequest)]
pub struct PackRequest {
    /// HTTP method.
    #[serde(default = "get")]
    pub method: String,
    /// Path below `baseUrl`, or an address of its origin.
    pub endpoint: String,
    /// JSON body.
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    pub body: Option<Value>,
    /// What the answer must hold, for apps that answer 200 to everything: `{path: value}`.
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    pub expect: Object,
}

fn get() -> String {
    "GET".to_owned()
}

impl PackRequest {
    /// Adds a parameter to the query; the value may have placeholders.
    pub fn add_parameter(&mut self, name: &str, value: &str) {
        let mark = if self.endpoint.contains('?') { '&' } else { '?' };
        self.endpoint = format!("{}{mark}{name}={value}", self.endpoint);
    }

    /// The method, read.
    pub fn method(&self) -> Method {
        Method::from_bytes(self.method.to_uppercase().as_bytes()).unwrap_or_default()
    }
}

/// How events come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = EventDelivery)]
pub enum EventKind {
    /// The app calls us.
    Webhook,
    /// We ask the app.
    Poll,
    /// Times come by themselves.
    Schedule,
}

/// Something an app tells of.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schema(as = ConnectorEventType)]
pub struct PackEventType {
    /// Its name in addresses, `^[a-z0-9][a-z0-9_-]{0,63}$`.
    pub slug: String,
    /// Its name.
    pub name: String,
    /// What happened.
    #[serde(default)]
    pub description: String,
    /// What is to be done by hand.
    #[serde(default)]
    pub instructions: String,
    /// How it comes.
    pub r#type: EventKind,
    /// JSON Schema of what a trigger must say (`triggerConfig`).
    #[serde(default = "any_object")]
    #[schema(value_type = Object)]
    pub config: Value,
    /// JSON Schema of what an event carries; what does not fit is not of this type.
    #[serde(default = "any_object")]
    #[schema(value_type = Object)]
    pub payload: Value,
    /// How a webhook shows that it is the app's.
    #[serde(default)]
    pub signature: Option<SignatureRule>,
    /// Where the id of an event stands.
    #[serde(default)]
    pub event_id: Option<EventIdRule>,
    /// How the app is told where to call; none = by hand.
    #[serde(default)]
    pub subscribe: Option<Subscribe>,
    /// How it is told to stop.
    #[serde(default)]
    pub unsubscribe: Option<PackRequest>,
    /// A question of the app that is answered, not an event.
    #[serde(default)]
    pub handshake: Option<Handshake>,
    /// The status that tells the app that its event was taken, 200 to 299 (202): some take only one.
    #[serde(default = "accepted")]
    pub accepted_status: u16,
    /// How often the app is asked, at least 30.
    #[serde(default)]
    pub interval_seconds: Option<u32>,
    /// What it is asked.
    #[serde(default)]
    pub poll: Option<Poll>,
}

fn accepted() -> u16 {
    202
}

fn any_object() -> Value {
    serde_json::json!({"type": "object"})
}

/// How a webhook is signed.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schema(as = ConnectorSignature)]
pub struct SignatureRule {
    /// `standard-webhooks`, `hmac-sha256-hex`, `hmac-sha256-base64`, `slack-v0`, `stripe-v1` (`t=` and `v1=` in one
    /// header), or `webhook`: Standard Webhooks or `X-Webhook-Signature`, where the trigger has a secret.
    pub kind: SignatureKind,
    /// The header with the signature.
    #[serde(default)]
    pub header: String,
    /// What stands before it.
    #[serde(default)]
    pub prefix: String,
    /// The header with the time, where that is signed.
    #[serde(default)]
    pub timestamp_header: String,
    /// Where the payload has the time, in Unix milliseconds or seconds, where that is signed.
    #[serde(default)]
    pub timestamp_path: String,
    /// How old a request may be.
    #[serde(default = "tolerance")]
    pub tolerance_seconds: i64,
    /// `${subscription.secret}`, `${app.signingSecret}` or `${config.secret}`.
    #[serde(default)]
    pub secret: String,
}

fn tolerance() -> i64 {
    300
}

/// The ways to sign.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
#[expect(missing_docs, reason = "their names say it")]
pub enum SignatureKind {
    StandardWebhooks,
    #[serde(rename = "hmac-sha256-hex")]
    HmacSha256Hex,
    #[serde(rename = "hmac-sha256-base64")]
    HmacSha256Base64,
    #[serde(rename = "slack-v0")]
    SlackV0,
    #[serde(rename = "stripe-v1")]
    StripeV1,
    Webhook,
}

/// Where the id of an event stands: a header, or a path in the payload.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ConnectorEventId)]
pub struct EventIdRule {
    /// Name of a header.
    #[serde(default)]
    pub header: Option<String>,
    /// Names of fields, joined by dots.
    #[serde(default)]
    pub path: Option<String>,
}

/// How an app is told where to call.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ConnectorSubscribe)]
pub struct Subscribe {
    /// What it is told.
    pub request: PackRequest,
    /// Where its answer has the id of the subscription.
    pub id: String,
}

/// A question that is answered with a part of itself.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ConnectorHandshake)]
pub struct Handshake {
    /// Fields that show that it is one, with their values.
    #[schema(value_type = Object)]
    pub when: Object,
    /// The field that is sent back.
    pub answer: String,
}

/// What an app is asked.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schema(as = ConnectorPoll)]
pub struct Poll {
    /// HTTP method.
    #[serde(default = "get")]
    pub method: String,
    /// Path below `baseUrl`; `${cursor}` stands for where the last poll ended.
    pub endpoint: String,
    /// JSON body.
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    pub body: Option<Value>,
    /// Where the answer has its list; empty = it is one.
    #[serde(default)]
    pub items: String,
    /// Where an element has its id: a path, or several that together are one.
    #[serde(deserialize_with = "one_or_more")]
    #[schema(value_type = OneOrMore)]
    pub event_id: Vec<String>,
    /// Where the answer says where the next one begins.
    #[serde(default)]
    pub cursor: Option<String>,
    /// The list begins with what is newest: what turns up behind what is known is older, and no event.
    #[serde(default)]
    pub newest_first: bool,
    /// How further pages of the list are asked for; absent = there are none.
    #[serde(default)]
    pub next_page: Option<NextPage>,
}

/// How the page after one is asked for.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schema(as = ConnectorNextPage)]
pub struct NextPage {
    /// Where the answer says where it begins.
    pub from: String,
    /// The field of the body, or where there is none the parameter, that says so.
    #[serde(rename = "as")]
    pub field: String,
}

impl Poll {
    /// The request of a first page.
    pub fn request(&self) -> PackRequest {
        PackRequest {
            method: self.method.clone(),
            endpoint: self.endpoint.clone(),
            body: self.body.clone(),
            expect: Object::new(),
        }
    }

    /// The request of a page after it: `${page}` stands for where that begins.
    pub fn request_next(&self, NextPage { field, .. }: &NextPage) -> PackRequest {
        let mut request = self.request();
        match &mut request.body {
            Some(Value::Object(body)) => drop(body.insert(field.clone(), "${page}".into())),
            _ => request.add_parameter(field, "${page}"),
        }
        request
    }
}

/// A path, or several.
#[derive(Deserialize, ToSchema)]
#[serde(untagged)]
#[schema(as = ConnectorPaths)]
enum OneOrMore {
    /// One path.
    One(String),
    /// Several.
    More(Vec<String>),
}

fn one_or_more<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    Ok(match OneOrMore::deserialize(deserializer)? {
        OneOrMore::One(path) => vec![path],
        OneOrMore::More(paths) => paths,
    })
}

impl Pack {
    /// Its address, read.
    pub fn address(&self) -> Option<Url> {
        self.base_url.as_deref().and_then(|url| Url::parse(url).ok())
    }

    /// The ways to connect; one without credentials when it names none.
    pub fn schemes(&self) -> Vec<AuthScheme> {
        if self.auth.is_empty() { vec![AuthScheme::default()] } else { self.auth.clone() }
    }

    /// It is connected without credentials.
    pub fn no_auth(&self) -> bool {
        self.auth.iter().all(|scheme| scheme.mode == AuthMode::None)
    }

    /// One of its tools.
    pub fn tool(&self, name: &str) -> Option<&ToolDefinition> {
        self.tools.iter().find(|tool| tool.function.name == name)
    }

    /// One of its event types.
    pub fn event_type(&self, slug: &str) -> Option<&PackEventType> {
        self.event_types.iter().find(|event| event.slug == slug)
    }
}

/// What stands at a path of names and indexes, joined by dots; the value itself at the empty path.
pub fn at_path<'a>(value: &'a Value, path: &str) -> Option<&'a Value> {
    path.split('.').filter(|name| !name.is_empty()).try_fold(value, |value, name| match value {
        Value::Array(items) => items.get(name.parse::<usize>().ok()?),
        value => value.get(name),
    })
}
