//! Secrets of a server: kept together, each with the origins that may get it.

use std::collections::{BTreeMap, HashSet};

use platform_core::{Checks, Error, Result};
use platform_egress::Url;
use platform_vault::Secret;

use crate::{
    definition::{ToolDefinition, is_plain},
    model::ToolServerSettings,
};

impl ToolServerSettings {
    /// Each secret with the name it is kept under and the origins it may be sent to.
    pub(crate) fn secrets(&mut self) -> Vec<(String, &mut Secret, Vec<String>)> {
        let origin = |url: Option<&str>| {
            url.and_then(|url| Url::parse(url).ok()).map(|url| url.origin().ascii_serialization()).unwrap_or_default()
        };
        let server = vec![origin(self.url.as_deref())];
        let auth = &mut self.authentication_config;
        let token_server = vec![server[0].clone(), origin(auth.refresh_token_endpoint.as_deref())];
        let mut secrets = Vec::new();
        for (name, secret, origins) in [
            ("auth.token", &mut auth.token, &server),
            ("auth.password", &mut auth.password, &server),
            ("auth.clientSecret", &mut auth.client_secret, &token_server),
            ("auth.refreshToken", &mut auth.refresh_token, &token_server),
        ] {
            if let Some(secret) = secret {
                secrets.push((name.to_owned(), secret, origins.clone()));
            }
        }
        // What is no secret goes anywhere.
        let origins = |header: &str| if is_plain(header) { Vec::new() } else { server.clone() };
        for header in &mut auth.custom_headers {
            let name = format!("auth.header.{}", header.header_name.to_ascii_lowercase());
            secrets.push((name, &mut header.value, origins(&header.header_name)));
        }
        for tool in &mut self.tool_definitions {
            for header in &mut tool.custom_headers {
                let name = header_secret(&tool.function.name, &header.header_name);
                secrets.push((name, &mut header.value, origins(&header.header_name)));
            }
        }
        secrets
    }
}

fn header_secret(tool: &str, header: &str) -> String {
    format!("tool.{tool}.header.{}", header.to_ascii_lowercase())
}

/// A secret as it is kept: where it may be sent is part of it.
#[derive(Debug, Clone)]
pub(crate) struct StoredSecret {
    pub value: Secret,
    /// Scheme, host and port of those who may get it.
    pub origins: Vec<String>,
}

/// The secrets of a server by name; sealed as one text.
#[derive(Debug, Clone, Default)]
pub(crate) struct KeptSecrets(BTreeMap<String, StoredSecret>);

impl KeptSecrets {
    /// Reads what [`KeptSecrets::to_text`] wrote.
    pub fn parse(text: &Secret) -> Result<Self> {
        let stored: BTreeMap<String, (String, Vec<String>)> =
            serde_json::from_str(text.expose()).map_err(Error::internal)?;
        let kept = |(name, (value, origins)): (String, (String, Vec<String>))| {
            (name, StoredSecret { value: value.into(), origins })
        };
        Ok(Self(stored.into_iter().map(kept).collect()))
    }

    /// All of it, to be sealed; `None` when there is nothing to seal.
    pub fn to_text(&self) -> Option<Secret> {
        let stored: BTreeMap<&str, (&str, &[String])> =
            self.0.iter().map(|(name, kept)| (name.as_str(), (kept.value.expose(), &kept.origins[..]))).collect();
        let text = serde_json::to_string(&stored).ok().filter(|_| !self.0.is_empty())?;
        Some(text.into())
    }

    /// Puts the values where they may be sent; what was given for another address stays masked.
    pub fn fill(&self, settings: &mut ToolServerSettings) {
        for (name, secret, origins) in settings.secrets() {
            if let Some(kept) = self.0.get(&name).filter(|kept| kept.origins == origins) {
                *secret = kept.value.clone();
            }
        }
    }

    /// What is kept of changed settings: what is given, and where the mask came back what was there. `before`:
    /// the tools as they were, of which a renamed one keeps its headers.
    pub fn of(&self, settings: &mut ToolServerSettings, before: &[ToolDefinition]) -> Result<Self> {
        let renamed = renamed(&settings.tool_definitions, before);
        let mut kept = BTreeMap::new();
        let mut checks = Checks::default();
        for (name, secret, origins) in settings.secrets() {
            if !secret.is_mask() {
                kept.insert(name, StoredSecret { value: secret.clone(), origins });
                continue;
            }
            let stored = self.0.get(&name).or_else(|| self.0.get(renamed.get(&name)?));
            match stored {
                Some(stored) => {
                    kept.insert(name, stored.clone());
                }
                None => {
                    let path = path_of(&name);
                    let message = format!("{path} is masked, and nothing is stored for it; give the value");
                    checks.issue(&path, "required", message);
                }
            }
        }
        checks.finish()?;
        Ok(Self(kept))
    }
}

/// Where a secret stands in a request.
fn path_of(name: &str) -> String {
    match name.strip_prefix("auth.") {
        Some(header) if header.starts_with("header.") => "authenticationConfig.customHeaders".to_owned(),
        Some(field) => format!("authenticationConfig.{field}"),
        None => "toolDefinitions.customHeaders".to_owned(),
    }
}

/// Names of header secrets of renamed tools, with the names they had: a new name at the place of a stored
/// tool whose name is gone.
fn renamed(now: &[ToolDefinition], before: &[ToolDefinition]) -> BTreeMap<String, String> {
    let names = |tools: &[ToolDefinition]| tools.iter().map(|tool| tool.function.name.clone()).collect::<HashSet<_>>();
    let (known, left) = (names(before), names(now));
    let pairs = now
        .iter()
        .zip(before)
        .filter(|(now, before)| !known.contains(&now.function.name) && !left.contains(&before.function.name));
    let headers = pairs.flat_map(|(now, before)| {
        now.custom_headers.iter().map(|header| {
            let of = |tool: &ToolDefinition| header_secret(&tool.function.name, &header.header_name);
            (of(now), of(before))
        })
    });
    headers.collect()
}
