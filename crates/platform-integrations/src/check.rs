//! What is wrong with a pack, each with its line.

use std::collections::HashSet;

use platform_toolservers::{REFUSED_TOOL_HEADERS, TOOL_FIELDS, check_tools};
use serde_json::Value;
use utoipa::{
    PartialSchema, ToSchema,
    openapi::{RefOr, schema::Schema},
};

use crate::{
    pack::{AuthMode, AuthScheme, EventKind, Pack, PackEventType, SignatureKind},
    template::names,
};

/// Slugs that stand for something else in addresses (contract 08).
const RESERVED: [&str; 6] = ["servers", "connected", "connections", "callback", "refresh", "accounts"];

/// Something that is wrong with a pack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Line of the file, from 1.
    pub line: usize,
    /// What is wrong, and what to do.
    pub message: String,
}

/// The JSON Schema of packs, for editors.
pub fn pack_schema() -> Value {
    let mut parts = Vec::new();
    Pack::schemas(&mut parts);
    let json = |schema: &RefOr<Schema>| serde_json::to_value(schema).unwrap_or_default();
    let definitions: platform_core::Object = parts.iter().map(|(name, schema)| (name.clone(), json(schema))).collect();
    let mut schema = json(&Pack::schema());
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema".into();
    schema["title"] = "Connector".into();
    schema["$defs"] = definitions.into();
    // Schemas of OpenAPI stand elsewhere.
    let text = schema.to_string().replace("#/components/schemas/", "#/$defs/");
    serde_json::from_str(&text).unwrap_or_default()
}

/// Reads a pack.
///
/// # Errors
/// All that is wrong with it.
pub fn read_pack(text: &str) -> Result<Pack, Vec<Problem>> {
    let unreadable = |error: serde_yaml_ng::Error| {
        let line = error.location().map_or(1, |at| at.line());
        vec![Problem { line, message: error.to_string() }]
    };
    let raw: Value = serde_yaml_ng::from_str(text).map_err(unreadable)?;
    let pack: Pack = serde_yaml_ng::from_str(text).map_err(unreadable)?;
    let mut found = Finder { text, problems: Vec::new() };
    found.pack(&pack, &raw);
    if found.problems.is_empty() {
        return Ok(pack);
    }
    found.problems.sort_by_key(|problem| problem.line);
    Err(found.problems)
}

struct Finder<'a> {
    text: &'a str,
    problems: Vec<Problem>,
}

impl Finder<'_> {
    /// The line that has the last of some texts, each after the one before it.
    fn line(&self, marks: &[&str]) -> usize {
        let mut line = 1;
        let lines: Vec<&str> = self.text.lines().collect();
        for mark in marks {
            let after = lines.iter().enumerate().skip(line - 1).find(|(_, text)| text.contains(mark));
            line = after.map_or(line, |(at, _)| at + 1);
        }
        line
    }

    fn say(&mut self, marks: &[&str], message: impl Into<String>) {
        let line = self.line(marks);
        self.problems.push(Problem { line, message: message.into() });
    }

    fn pack(&mut self, pack: &Pack, raw: &Value) {
        if !is_slug(&pack.slug, false) {
            self.say(&["slug:"], format!("slug `{}` must match ^[a-z0-9][a-z0-9-]{{0,63}}$", pack.slug));
        }
        if RESERVED.contains(&pack.slug.as_str()) {
            self.say(&["slug:"], format!("slug `{}` is reserved: {}", pack.slug, RESERVED.join(", ")));
        }
        if pack.name.trim().is_empty() {
            self.say(&["name:"], "name is empty");
        }
        let needs_url = !pack.no_auth() || pack.tools.iter().any(|tool| tool.endpoint != "${url}");
        match (&pack.base_url, pack.address()) {
            (None, _) if needs_url => self.say(&["slug:"], "baseUrl is missing: where the API of the app is"),
            (Some(url), None) => self.say(&["baseUrl:"], format!("baseUrl `{url}` is no address")),
            (Some(url), Some(address)) if !matches!(address.scheme(), "http" | "https") => {
                self.say(&["baseUrl:"], format!("baseUrl `{url}` must be http or https"));
            }
            _ => {}
        }
        let mut modes = HashSet::new();
        for scheme in &pack.auth {
            if !modes.insert(scheme.mode.as_str()) {
                self.say(&["auth:", scheme.mode.as_str()], format!("auth has {} twice", scheme.mode.as_str()));
            }
            self.scheme(scheme);
        }
        self.tools(pack, raw);
        let mut slugs = HashSet::new();
        for event in &pack.event_types {
            if !slugs.insert(event.slug.as_str()) {
                self.say(
                    &["eventTypes:", &format!("slug: {}", event.slug)],
                    format!("there are two event types `{}`", event.slug),
                );
            }
            self.event(pack, event);
        }
    }

    fn scheme(&mut self, scheme: &AuthScheme) {
        let mode = scheme.mode.as_str();
        let at = ["auth:", mode];
        if scheme.mode == AuthMode::OAuth2 {
            for (name, url) in [("authorizationUrl", &scheme.authorization_url), ("tokenUrl", &scheme.token_url)] {
                if url.as_deref().is_none_or(|url| platform_egress::Url::parse(url).is_err()) {
                    self.say(&at, format!("{mode} needs {name}, an address"));
                }
            }
        }
        let fields: Vec<&str> =
            scheme.app_fields.iter().chain(&scheme.account_fields).map(|field| field.name.as_str()).collect();
        if scheme.mode == AuthMode::Basic {
            for name in ["username", "password"] {
                if !fields.contains(&name) {
                    self.say(&at, format!("BASIC needs the field `{name}`"));
                }
            }
        }
        if scheme.mode == AuthMode::ApiKey && scheme.headers.is_empty() && scheme.query.is_empty() {
            self.say(&at, "API_KEY needs headers or query: where the key is sent");
        }
        let values = scheme.headers.iter().map(|header| &header.value).chain(scheme.query.iter().map(|of| &of.value));
        for value in values {
            for name in names(value).filter(|name| !fields.contains(name)) {
                self.say(&["auth:", mode, name], format!("`${{{name}}}` names no field of {mode}"));
            }
        }
        for header in &scheme.headers {
            if REFUSED_TOOL_HEADERS.iter().any(|refused| header.header_name.eq_ignore_ascii_case(refused)) {
                let name = &header.header_name;
                self.say(&["auth:", mode, name], format!("the header {name} cannot be set"));
            }
        }
    }

    fn tools(&mut self, pack: &Pack, raw: &Value) {
        for tool in raw["tools"].as_array().into_iter().flatten().filter_map(Value::as_object) {
            let name = tool.get("function").and_then(|of| of["name"].as_str()).unwrap_or_default().to_owned();
            for key in tool.keys().filter(|key| !TOOL_FIELDS.contains(&key.as_str())) {
                self.say(&["tools:", &name, key], format!("tool `{name}`: unknown field `{key}`"));
            }
            let function = tool.get("function").and_then(Value::as_object).into_iter().flatten();
            for (key, _) in function {
                if !["name", "description", "strict", "parameters"].contains(&key.as_str()) {
                    self.say(&["tools:", &name, key], format!("tool `{name}`: unknown field `function.{key}`"));
                }
            }
        }
        let mut seen = HashSet::new();
        for tool in &pack.tools {
            let name = &tool.function.name;
            if !seen.insert(name) {
                self.say(&["tools:", &format!("name: {name}")], format!("there are two tools `{name}`"));
            }
            if tool.endpoint == "${url}" {
                continue;
            }
            let mut one = [tool.clone()];
            if let Err(error) = check_tools(&mut one, pack.address().as_ref()) {
                let issues = error.details().get("issues").and_then(Value::as_array).cloned().unwrap_or_default();
                let reasons: Vec<&str> = issues.iter().filter_map(|issue| issue["message"].as_str()).collect();
                let reason = if reasons.is_empty() { error.message().to_owned() } else { reasons.join("; ") };
                self.say(&["tools:", &format!("name: {name}")], format!("tool `{name}`: {reason}"));
            }
            self.schema(
                &["tools:", &format!("name: {name}")],
                &format!("parameters of `{name}`"),
                &tool.function.parameters,
            );
        }
    }

    fn schema(&mut self, at: &[&str], what: &str, schema: &Value) {
        if let Err(error) = jsonschema::validator_for(schema) {
            self.say(at, format!("{what} are no JSON Schema: {error}"));
        }
    }

    fn event(&mut self, pack: &Pack, event: &PackEventType) {
        let slug = event.slug.as_str();
        let mark = format!("slug: {slug}");
        let at = ["eventTypes:", &mark];
        if !is_slug(slug, true) {
            self.say(&at, format!("slug `{slug}` must match ^[a-z0-9][a-z0-9_-]{{0,63}}$"));
        }
        self.schema(&at, &format!("config of `{slug}`"), &event.config);
        self.schema(&at, &format!("payload of `{slug}`"), &event.payload);
        if let (Some(samples), Ok(payload)) =
            (event.payload["examples"].as_array(), jsonschema::validator_for(&event.payload))
        {
            for error in samples.iter().filter_map(|sample| payload.validate(sample).err()) {
                self.say(&["eventTypes:", &mark, "examples"], format!("an example of `{slug}` does not fit: {error}"));
            }
        }
        match event.r#type {
            EventKind::Poll if event.poll.is_none() => self.say(&at, format!("`{slug}` needs poll: what is asked")),
            EventKind::Webhook | EventKind::Schedule if event.poll.is_some() => {
                self.say(&at, format!("`{slug}` has poll and is of another type"));
            }
            _ => {}
        }
        if event.interval_seconds.is_some_and(|seconds| seconds < 30) {
            self.say(&["eventTypes:", &mark, "intervalSeconds"], "intervalSeconds must be at least 30");
        }
        if event.subscribe.is_some() && event.r#type != EventKind::Webhook {
            self.say(&at, format!("`{slug}` has subscribe and is no webhook"));
        }
        if let Some(rule) = &event.signature {
            let secrets = ["${subscription.secret}", "${app.signingSecret}", "${config.secret}"];
            if !secrets.contains(&rule.secret.as_str()) {
                let message = format!("signature of `{slug}`: secret must be one of {}", secrets.join(", "));
                self.say(&["eventTypes:", &mark, "signature"], message);
            }
            let needs_header = !matches!(rule.kind, SignatureKind::StandardWebhooks | SignatureKind::Webhook);
            if needs_header && rule.header.is_empty() {
                self.say(&["eventTypes:", &mark, "signature"], format!("signature of `{slug}`: header is missing"));
            }
            if rule.kind == SignatureKind::SlackV0 && rule.timestamp_header.is_empty() {
                let message = format!("signature of `{slug}`: timestampHeader is missing");
                self.say(&["eventTypes:", &mark, "signature"], message);
            }
        }
        if let Some(rule) = &event.event_id
            && rule.header.is_some() == rule.path.is_some()
        {
            self.say(&["eventTypes:", &mark, "eventId"], format!("eventId of `{slug}` is either a header or a path"));
        }
        self.placeholders(pack, event);
    }

    /// Placeholders stand for something.
    fn placeholders(&mut self, pack: &Pack, event: &PackEventType) {
        let slug = event.slug.as_str();
        let mark = format!("slug: {slug}");
        let mut used = Vec::new();
        let requests = [
            event.subscribe.as_ref().map(|subscribe| subscribe.request.clone()),
            event.unsubscribe.clone(),
            event.poll.as_ref().map(crate::pack::Poll::request),
        ];
        for request in requests.into_iter().flatten() {
            let is_absolute = request.endpoint.contains("://");
            let origin = |url: &str| platform_egress::Url::parse(url).ok().map(|url| url.origin());
            if is_absolute && origin(&request.endpoint) != pack.base_url.as_deref().and_then(origin) {
                let message = format!("`{slug}`: {} is not of the origin of baseUrl", request.endpoint);
                self.say(&["eventTypes:", &mark, &request.endpoint], message);
            }
            if pack.base_url.is_none() && !request.endpoint.starts_with("${") {
                self.say(&["eventTypes:", &mark], format!("`{slug}` calls the app, which has no baseUrl"));
            }
            let body = request.body.as_ref().map(Value::to_string).unwrap_or_default();
            used.extend(names(&request.endpoint).chain(names(&body)).map(str::to_owned));
        }
        let properties = event.config["properties"].as_object();
        for name in used {
            let known = match name.split_once('.') {
                Some(("config", field)) => properties.is_none_or(|known| known.contains_key(field)),
                Some(("subscription", field)) => ["id", "secret"].contains(&field),
                _ => ["webhookUrl", "cursor"].contains(&name.as_str()),
            };
            if !known {
                self.say(&["eventTypes:", &mark, &name], format!("`{slug}`: `${{{name}}}` stands for nothing"));
            }
        }
    }
}

fn is_slug(slug: &str, underscores: bool) -> bool {
    let good = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || (underscores && b == b'_');
    (1..=64).contains(&slug.len()) && slug.bytes().all(good) && !slug.starts_with(['-', '_'])
}
