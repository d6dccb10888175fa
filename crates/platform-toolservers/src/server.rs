use std::{
    collections::HashMap,
    sync::{Arc, OnceLock},
};

use base64::{Engine, engine::general_purpose::STANDARD};
use platform_core::{AccountId, Object};
use platform_egress::{
    Url,
    header::{AUTHORIZATION, HeaderMap, HeaderName},
    sensitive,
};
use platform_runtime::{ChildPool, Schema};
use platform_vault::Secret;
use serde_json::Value;

use crate::{
    apps::{AppCredentials, Connections},
    authentication::AuthenticationMethod,
    definition::{CustomHeader, ToolDefinition, is_plain},
    failure::Failure,
    model::{ServerType, ToolServer, ToolServerSettings},
    tokens::{Tokens, usable},
};

/// What a tool takes beside what is written into it.
const TOOL_BYTES: usize = 1024;
/// So many broken rules are told.
const MAX_ISSUES: usize = 10;

/// A tool server as calls need it: secrets open.
pub(crate) struct Server {
    pub account: AccountId,
    pub id: String,
    pub identifier: String,
    pub kind: ServerType,
    pub settings: ToolServerSettings,
    /// As it is shown, without its tools.
    pub record: ToolServer,
    /// Of the arguments of a tool, by its name, once it was called.
    schemas: HashMap<String, OnceLock<Schema>>,
}

/// With whose rights a server is asked.
#[derive(Debug, Clone)]
pub enum UpstreamCredentials {
    /// The server's own.
    Own,
    /// Those of a connection.
    Connection(String),
    /// This `Authorization`.
    Header(Secret),
}

/// What a request needs to be let in.
pub(crate) struct Credentials {
    pub headers: HeaderMap,
    /// What must not come back.
    pub secrets: Vec<Secret>,
    /// The token among them that was fetched.
    pub token: Option<Secret>,
    /// Fields of the query.
    pub query: Vec<(String, Secret)>,
}

impl Server {
    pub fn new(account: AccountId, settings: ToolServerSettings, record: ToolServer) -> Self {
        let schemas =
            settings.tool_definitions.iter().map(|tool| (tool.function.name.clone(), OnceLock::new())).collect();
        let (id, identifier, kind) = (record.id.clone(), record.identifier.clone(), record.r#type);
        Self { account, id, identifier, kind, settings, record, schemas }
    }

    /// Of memory, with all its tools called: as it is set, and in what arguments are held against.
    pub fn bytes(&self) -> usize {
        let of_tool = |tool: &ToolDefinition| {
            let texts = [&tool.function.description, &tool.body_json_template, &tool.response_post_processing_template];
            let texts: usize = texts.iter().map(|text| text.len()).sum();
            TOOL_BYTES + texts + 2 * tool.heap_bytes()
        };
        self.settings.tool_definitions.iter().map(of_tool).sum()
    }

    pub fn tool(&self, name: &str) -> Option<&ToolDefinition> {
        self.settings.tool_definitions.iter().find(|tool| tool.function.name == name)
    }

    /// The connection with whose rights it is called.
    pub fn connection<'a>(&'a self, with: &'a UpstreamCredentials) -> Option<&'a str> {
        match with {
            UpstreamCredentials::Own => self.record.integration.as_ref()?.connection_id.as_deref(),
            UpstreamCredentials::Connection(id) => Some(id),
            UpstreamCredentials::Header(_) => None,
        }
    }

    /// Whether arguments fit the parameters of a tool.
    pub async fn check(&self, children: &ChildPool, tool: &ToolDefinition, arguments: &Object) -> Result<(), Failure> {
        let Some(schema) = self.schemas.get(&tool.function.name) else { return Ok(()) };
        let schema = schema.get_or_init(|| Schema::new(tool.argument_schema()));
        let arguments = Value::Object(arguments.clone());
        let issues = schema.problems(children, &self.account, &arguments, MAX_ISSUES).await;
        if issues.is_empty() { Ok(()) } else { Err(Failure::arguments(issues)) }
    }

    /// What lets in; `stale`: a token that was refused.
    pub async fn credentials(
        self: &Arc<Self>,
        with: &UpstreamCredentials,
        tokens: &Arc<Tokens>,
        connections: &dyn Connections,
        stale: Option<&Secret>,
    ) -> Result<Credentials, Failure> {
        let connection = match (with, &self.record.integration) {
            (UpstreamCredentials::Header(value), _) => return Ok(Credentials::of_header(value)),
            (UpstreamCredentials::Own, None) => return self.own_credentials(tokens, stale).await,
            (UpstreamCredentials::Connection(id), _) => Some(id.as_str()),
            (UpstreamCredentials::Own, Some(link)) => link.connection_id.as_deref(),
        };
        let not_connected = |reason| Failure::new("NOT_CONNECTED", reason);
        let connection = connection.ok_or_else(|| not_connected("Nobody has connected an account.".to_owned()))?;
        Ok(connections.credentials(&self.account, connection, stale).await.map_err(not_connected)?.into())
    }

    /// What its `authenticationConfig` says.
    async fn own_credentials(
        self: &Arc<Self>,
        tokens: &Arc<Tokens>,
        stale: Option<&Secret>,
    ) -> Result<Credentials, Failure> {
        let auth = &self.settings.authentication_config;
        let mut all = Credentials { headers: HeaderMap::new(), secrets: Vec::new(), token: None, query: Vec::new() };
        match auth.authentication_method {
            AuthenticationMethod::None => {}
            AuthenticationMethod::Jwt => {
                all.authorize("Bearer", usable(auth.token.as_ref())?);
            }
            AuthenticationMethod::Basic => {
                let password = usable(auth.password.as_ref())?;
                let user = auth.username.as_deref().unwrap_or_default();
                all.authorize("Basic", STANDARD.encode(format!("{user}:{password}")));
                all.secrets.push(password.into());
            }
            AuthenticationMethod::CustomHeader => all.add(&auth.custom_headers)?,
            AuthenticationMethod::Oauth2 => {
                let token = tokens.get(self, stale).await?;
                all.authorize("Bearer", token.expose().to_owned());
                all.token = Some(token);
                all.secrets.extend(auth.client_secret.iter().chain(&auth.refresh_token).cloned());
            }
        }
        Ok(all)
    }
}

impl From<AppCredentials> for Credentials {
    fn from(AppCredentials { headers, query, secrets, token }: AppCredentials) -> Self {
        Self { headers, secrets, token, query }
    }
}

impl Credentials {
    /// With the headers of a tool, which win.
    pub fn for_tool(mut self, tool: &ToolDefinition) -> Result<Self, Failure> {
        self.add(&tool.custom_headers)?;
        Ok(self)
    }

    /// A value of `Authorization` as it is.
    fn of_header(value: &Secret) -> Self {
        let headers = sensitive(value.expose()).map(|header| (AUTHORIZATION, header)).into_iter().collect();
        // What comes back may be the token alone.
        let token = value.expose().split_once(' ').map(|(_, token)| Secret::from(token.trim().to_owned()));
        let secrets = std::iter::once(value.clone()).chain(token).collect();
        Self { headers, secrets, token: None, query: Vec::new() }
    }

    /// The address with what lets in.
    pub fn address(&self, url: &Url) -> Url {
        let mut url = url.clone();
        for (name, value) in &self.query {
            url.query_pairs_mut().append_pair(name, value.expose());
        }
        url
    }

    fn authorize(&mut self, scheme: &str, value: String) {
        if let Some(header) = sensitive(&format!("{scheme} {value}")) {
            self.headers.insert(AUTHORIZATION, header);
        }
        self.secrets.push(value.into());
    }

    fn add(&mut self, headers: &[CustomHeader]) -> Result<(), Failure> {
        for header in headers {
            let value = usable(Some(&header.value))?;
            let name = HeaderName::from_bytes(header.header_name.as_bytes()).ok();
            if let Some((name, value)) = name.zip(sensitive(&value)) {
                self.headers.insert(name, value);
            }
            if !is_plain(&header.header_name) {
                self.secrets.push(value.into());
            }
        }
        Ok(())
    }
}
