use platform_core::Checks;
use platform_vault::Secret;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::definition::{CustomHeader, check_headers, check_secret};

/// Bytes of what is no secret of it.
const MAX_TEXT: usize = 4096;

/// How calls authenticate themselves (contract 04 §3); only the fields of the method are kept. Other names are refused:
/// a credential that silently does not count is worse than an error.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct AuthenticationConfig {
    /// The method.
    #[serde(deserialize_with = "method")]
    pub authentication_method: AuthenticationMethod,
    /// `jwt`: the bearer token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token: Option<Secret>,
    /// `basic`: user name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub username: Option<String>,
    /// `basic`: password.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub password: Option<Secret>,
    /// `customHeader`: the headers.
    #[serde(alias = "custom_headers", skip_serializing_if = "Vec::is_empty")]
    pub custom_headers: Vec<CustomHeader>,
    /// `oauth2`: client id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_id: Option<String>,
    /// `oauth2`: client secret.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_secret: Option<Secret>,
    /// `oauth2`: where tokens are fetched.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refresh_token_endpoint: Option<String>,
    /// `oauth2`: `client_credentials` or `refresh_token`.
    #[serde(rename = "grant_type", alias = "grantType", skip_serializing_if = "Option::is_none")]
    pub grant_type: Option<String>,
    /// `oauth2`: refresh token, for that grant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refresh_token: Option<Secret>,
    /// `oauth2`: scope that is asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scope: Option<String>,
    /// `oauth2`: `form` or `json`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_format: Option<String>,
}

impl Default for AuthenticationConfig {
    fn default() -> Self {
        Self::of(AuthenticationMethod::None)
    }
}

/// Methods of authentication.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub enum AuthenticationMethod {
    /// Nothing is added.
    None,
    /// A bearer token.
    Jwt,
    /// User name and password.
    Basic,
    /// Headers.
    CustomHeader,
    /// A token that is fetched.
    Oauth2,
}

/// In any case, and with or without what stands between the words.
fn method<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<AuthenticationMethod, D::Error> {
    let text = String::deserialize(deserializer)?;
    let bare: String = text.chars().filter(|c| !matches!(c, '_' | '-' | ' ')).collect();
    match bare.to_lowercase().as_str() {
        "none" => Ok(AuthenticationMethod::None),
        "jwt" => Ok(AuthenticationMethod::Jwt),
        "basic" => Ok(AuthenticationMethod::Basic),
        "customheader" | "customheaders" => Ok(AuthenticationMethod::CustomHeader),
        "oauth2" => Ok(AuthenticationMethod::Oauth2),
        _ => Err(serde::de::Error::unknown_variant(&text, &["none", "jwt", "basic", "customHeader", "oauth2"])),
    }
}

impl AuthenticationConfig {
    /// These headers; nothing when there are none.
    pub(crate) fn of_headers(custom_headers: Vec<CustomHeader>) -> Self {
        if custom_headers.is_empty() {
            return Self::default();
        }
        Self { custom_headers, ..Self::of(AuthenticationMethod::CustomHeader) }
    }

    fn of(authentication_method: AuthenticationMethod) -> Self {
        Self {
            authentication_method,
            token: None,
            username: None,
            password: None,
            custom_headers: Vec::new(),
            client_id: None,
            client_secret: None,
            refresh_token_endpoint: None,
            grant_type: None,
            refresh_token: None,
            scope: None,
            request_format: None,
        }
    }

    /// Keeps the fields of the method, with their defaults, and checks them.
    pub(crate) fn check(&mut self, checks: &mut Checks) {
        let given = std::mem::replace(self, Self::of(self.authentication_method));
        let at = |field: &str| format!("authenticationConfig.{field}");
        for (field, text) in [
            ("username", &given.username),
            ("clientId", &given.client_id),
            ("refreshTokenEndpoint", &given.refresh_token_endpoint),
            ("grant_type", &given.grant_type),
            ("scope", &given.scope),
            ("requestFormat", &given.request_format),
        ] {
            checks.bytes(&at(field), text.as_ref().map_or(0, String::len), MAX_TEXT);
        }
        for (field, secret) in [
            ("token", &given.token),
            ("password", &given.password),
            ("clientSecret", &given.client_secret),
            ("refreshToken", &given.refresh_token),
        ] {
            if let Some(secret) = secret {
                check_secret(checks, &at(field), secret);
            }
        }
        let mut missing = |field: &str, is_there: bool| {
            if !is_there {
                checks.issue(&at(field), "required", format!("{field} is required"));
            }
        };
        let text = |text: &Option<String>| text.as_ref().is_some_and(|text| !text.is_empty());
        let secret = |secret: &Option<Secret>| secret.as_ref().is_some_and(|secret| !secret.expose().is_empty());
        match self.authentication_method {
            AuthenticationMethod::None => {}
            AuthenticationMethod::Jwt => {
                missing("token", secret(&given.token));
                self.token = given.token;
            }
            AuthenticationMethod::Basic => {
                missing("username", text(&given.username));
                missing("password", secret(&given.password));
                (self.username, self.password) = (given.username, given.password);
                if self.username.as_ref().is_some_and(|name| name.contains(':')) {
                    checks.issue(&at("username"), "format", "username must not contain a colon");
                }
            }
            AuthenticationMethod::CustomHeader => {
                missing("customHeaders", !given.custom_headers.is_empty());
                self.custom_headers = given.custom_headers;
            }
            AuthenticationMethod::Oauth2 => {
                missing("clientId", text(&given.client_id));
                missing("clientSecret", secret(&given.client_secret));
                missing("refreshTokenEndpoint", text(&given.refresh_token_endpoint));
                let grant = given.grant_type.as_deref().unwrap_or("client_credentials").to_lowercase();
                if grant == "refresh_token" {
                    missing("refreshToken", secret(&given.refresh_token));
                    self.refresh_token = given.refresh_token;
                }
                let format = given.request_format.as_deref().unwrap_or("form").to_lowercase();
                for (field, value, allowed) in [
                    ("grant_type", &grant, ["client_credentials", "refresh_token"]),
                    ("requestFormat", &format, ["form", "json"]),
                ] {
                    if !allowed.contains(&value.as_str()) {
                        let message = format!("{field} must be {} or {}", allowed[0], allowed[1]);
                        checks.issue(&at(field), "enum", message);
                    }
                }
                (self.grant_type, self.request_format) = (Some(grant), Some(format));
                (self.client_id, self.client_secret) = (given.client_id, given.client_secret);
                (self.refresh_token_endpoint, self.scope) = (given.refresh_token_endpoint, given.scope);
            }
        }
        check_headers(checks, "authenticationConfig.customHeaders", &self.custom_headers);
    }
}
