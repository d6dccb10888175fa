//! What is wrong with a pack, each with its line.

use std::collections::HashSet;

use http::HeaderName;
use jsonschema::error::ValidationErrorKind;
use platform_egress::Url;
use platform_toolservers::{REFUSED_TOOL_HEADERS, TOOL_FIELDS, check_tools, wrong_templates};
use serde_json::Value;
use utoipa::{
    PartialSchema, ToSchema,
    openapi::{RefOr, schema::Schema},
};

use crate::{
    pack::{AuthMode, AuthScheme, EventKind, Pack, PackEventType, PackRequest, SignatureKind, SignatureRule},
    template::names,
};

/// Slugs that stand for something else in addresses (contract 08).
const RESERVED: [&str; 6] = ["servers", "connected", "connections", "callback", "refresh", "accounts"];

/// So many problems of the shape of a file are told.
const MAX_PROBLEMS: usize = 50;
/// Bytes of what is told of each.
const MAX_MESSAGE: usize = 400;

const SLUG: &str = "^[a-z0-9][a-z0-9-]{0,63}$";
const FIELD_TYPES: [&str; 3] = ["string", "number", "boolean"];
const METHODS: [&str; 6] = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD"];

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
    schema["properties"]["slug"]["pattern"] = SLUG.into();
    // A tool server may have been given more, a file of ours not.
    schema["$defs"]["ToolDefinition"]["additionalProperties"] = false.into();
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
        vec![Problem { line, message: cut(error.to_string()) }]
    };
    let raw: Value = serde_yaml_ng::from_str(text).map_err(unreadable)?;
    let mut pack: Pack =
        serde_yaml_ng::from_str(text).map_err(|error| shape_problems(text, &raw, unreadable(error)))?;
    pack.auth.iter_mut().filter(|scheme| scheme.mode == AuthMode::OAuth2).for_each(AuthScheme::name_client);
    let mut found = Finder { text, problems: Vec::new() };
    found.pack(&pack, &raw);
    if found.problems.is_empty() {
        return Ok(pack);
    }
    found.problems.sort_by_key(|problem| problem.line);
    Err(found.problems)
}

/// What is told of a value that may be as long as its file.
fn cut(mut message: String) -> String {
    message.truncate(message.floor_char_boundary(MAX_MESSAGE));
    message
}

/// Everything in a file that has not the shape of a pack; `first`: what was found when it was read.
fn shape_problems(text: &str, raw: &Value, first: Vec<Problem>) -> Vec<Problem> {
    let Ok(schema) = jsonschema::validator_for(&pack_schema()) else { return first };
    let told = |pointer: &str, message: &str| {
        let at = pointer.trim_start_matches('/').replace('/', ".");
        Problem { line: line_of(text, pointer), message: cut(format!("{at}: {message}")) }
    };
    let problems = |error: jsonschema::ValidationError<'_>| {
        let path = error.instance_path().to_string();
        match error.kind() {
            ValidationErrorKind::AdditionalProperties { unexpected } => {
                unexpected.iter().map(|key| told(&format!("{path}/{key}"), "there is no such key")).collect()
            }
            _ => vec![told(&path, &error.to_string())],
        }
    };
    let mut found: Vec<Problem> = schema.iter_errors(raw).flat_map(problems).take(MAX_PROBLEMS).collect();
    found.sort_by_key(|problem| problem.line);
    if found.is_empty() { first } else { found }
}

/// The line of a block of YAML at which a JSON pointer points, as far as each of its steps begins a line.
fn line_of(text: &str, pointer: &str) -> usize {
    let lines: Vec<&str> = text.lines().collect();
    let indent = |line: &str| line.len() - line.trim_start().len();
    let is_item = |line: &str| line.trim_start().starts_with("- ");
    let mut at = 0;
    for (depth, step) in pointer.split('/').skip(1).enumerate() {
        // What stands below a key, whose items may stand as far left as itself.
        let parent = lines.get(at).copied().unwrap_or_default();
        let is_below = |line: &str| {
            let is_item_of_key = is_item(line) && !is_item(parent) && indent(line) == indent(parent);
            depth == 0 || line.trim().is_empty() || indent(line) > indent(parent) || is_item_of_key
        };
        let rest = || lines.iter().enumerate().skip(at).take_while(|(line, text)| *line == at || is_below(text));
        let found = match step.parse::<usize>() {
            Ok(index) => {
                let items = || rest().filter(|(line, text)| *line != at && is_item(text));
                let first = items().next().map(|(_, line)| indent(line));
                items().filter(|(_, line)| Some(indent(line)) == first).nth(index)
            }
            Err(_) => {
                let is_key = |line: &str| {
                    let key = line.trim_start().trim_start_matches("- ");
                    key.starts_with(&format!("{step}:")) && (depth > 0 || indent(line) == 0)
                };
                rest().find(|(_, line)| is_key(line))
            }
        };
        at = found.map_or(at, |(line, _)| line);
    }
    at + 1
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
        self.problems.push(Problem { line, message: cut(message.into()) });
    }

    fn pack(&mut self, pack: &Pack, raw: &Value) {
        if !is_slug(&pack.slug, false) {
            self.say(&["slug:"], format!("slug `{}` must match {SLUG}", pack.slug));
        }
        if RESERVED.contains(&pack.slug.as_str()) {
            self.say(&["slug:"], format!("slug `{}` is reserved: {}", pack.slug, RESERVED.join(", ")));
        }
        if pack.name.trim().is_empty() {
            self.say(&["name:"], "name is empty");
        }
        let url = pack.base_url.as_deref().unwrap_or_default();
        let texts =
            [("name", pack.name.as_str()), ("description", &pack.description), ("logo", &pack.logo), ("baseUrl", url)];
        for (name, value) in texts {
            if let Some(placeholder) = names(value).next() {
                self.say(&[&format!("{name}:")], format!("{name}: `${{{placeholder}}}` is not filled in here"));
            }
        }
        let needs_url = !pack.no_auth() || pack.tools.iter().any(|tool| tool.endpoint != "${url}");
        match (&pack.base_url, pack.address()) {
            (None, _) if needs_url => self.say(&["slug:"], "baseUrl is missing: where the API of the app is"),
            (Some(url), None) => self.say(&["baseUrl:"], format!("baseUrl `{url}` is no address")),
            (Some(url), Some(address)) if !matches!(address.scheme(), "http" | "https") => {
                self.say(&["baseUrl:"], format!("baseUrl `{url}` must be http or https"));
            }
            (Some(_), Some(address)) if !address.username().is_empty() || address.password().is_some() => {
                self.say(&["baseUrl:"], "baseUrl has credentials in it; they belong to `auth`");
            }
            _ => {}
        }
        let mut modes = HashSet::new();
        for scheme in &pack.auth {
            if !modes.insert(scheme.mode.as_str()) {
                self.say(&["auth:", scheme.mode.as_str()], format!("auth has {} twice", scheme.mode.as_str()));
            }
            self.scheme(pack, scheme);
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

    fn scheme(&mut self, pack: &Pack, scheme: &AuthScheme) {
        let mode = scheme.mode.as_str();
        let at = ["auth:", mode];
        if scheme.mode == AuthMode::OAuth2 {
            for (name, url) in [("authorizationUrl", &scheme.authorization_url), ("tokenUrl", &scheme.token_url)] {
                if !url.as_deref().is_some_and(is_address) {
                    self.say(&at, format!("{mode} needs {name}, an address"));
                }
            }
        }
        for (name, url) in [("revocationUrl", &scheme.revocation_url), ("guideUrl", &scheme.guide_url)] {
            if !url.as_deref().is_none_or(is_address) {
                self.say(&["auth:", mode, name], format!("{name} of {mode} is no address"));
            }
        }
        let mut seen = HashSet::new();
        for field in scheme.app_fields.iter().chain(&scheme.account_fields) {
            if !seen.insert(&field.name) {
                self.say(&["auth:", mode, &field.name], format!("{mode} has the field `{}` twice", field.name));
            }
            if !FIELD_TYPES.contains(&field.r#type.as_str()) {
                let message = format!("type of the field `{}` must be one of {}", field.name, FIELD_TYPES.join(", "));
                self.say(&["auth:", mode, &field.name], message);
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
        let body = scheme.test.iter().flat_map(|test| &test.body).map(Value::to_string).collect::<String>();
        let tested = scheme.test.iter().map(|test| &test.endpoint).chain([&body]);
        for value in values.chain(tested) {
            for name in names(value).filter(|name| !fields.contains(name)) {
                self.say(&["auth:", mode, name], format!("`${{{name}}}` names no field of {mode}"));
            }
        }
        if let Some(test) = &scheme.test {
            self.request(pack, &["auth:", mode, &test.endpoint], &format!("test of {mode}"), test);
        }
        for header in &scheme.headers {
            if REFUSED_TOOL_HEADERS.iter().any(|refused| header.header_name.eq_ignore_ascii_case(refused)) {
                let name = &header.header_name;
                self.say(&["auth:", mode, name], format!("the header {name} cannot be set"));
            }
            if HeaderName::from_bytes(header.header_name.as_bytes()).is_err() {
                let name = &header.header_name;
                self.say(&["auth:", mode, name], format!("`{name}` is no name of a header"));
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
        for (name, field, reason) in wrong_templates(&pack.tools) {
            self.say(&["tools:", &format!("name: {name}"), field], format!("tool `{name}`: {field}: {reason}"));
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
                let reasons: Vec<&str> = error.issues().iter().map(|issue| issue.message.as_str()).collect();
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

    /// A request has a method, and goes where the app is.
    fn request(&mut self, pack: &Pack, at: &[&str], what: &str, request: &PackRequest) {
        if !METHODS.contains(&request.method.to_ascii_uppercase().as_str()) {
            let message = format!("{what}: method `{}` must be one of {}", request.method, METHODS.join(", "));
            self.say(at, message);
        }
        let origin = |url: &str| Url::parse(url).ok().map(|url| url.origin());
        let is_absolute = request.endpoint.contains("://");
        if is_absolute && origin(&request.endpoint) != pack.base_url.as_deref().and_then(origin) {
            self.say(at, format!("{what}: {} is not of the origin of baseUrl", request.endpoint));
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
        if event.unsubscribe.is_some() && event.subscribe.is_none() {
            self.say(&["eventTypes:", &mark, "unsubscribe"], format!("`{slug}` has unsubscribe and no subscribe"));
        }
        if event.config.get("type").is_some_and(|of| of != "object") {
            self.say(&["eventTypes:", &mark, "config"], format!("config of `{slug}` must be of type object"));
        }
        if let Some(rule) = &event.signature {
            for problem in signature_problems(pack, event, rule) {
                self.say(&["eventTypes:", &mark, "signature"], format!("signature of `{slug}`: {problem}"));
            }
        }
        if event.handshake.as_ref().is_some_and(|handshake| handshake.when.is_empty()) {
            let message = format!("handshake of `{slug}`: when is empty, so that nothing is one");
            self.say(&["eventTypes:", &mark, "handshake"], message);
        }
        if !(200..300).contains(&event.accepted_status) {
            let message = format!("acceptedStatus of `{slug}` must be 200 to 299");
            self.say(&["eventTypes:", &mark, "acceptedStatus"], message);
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
            self.request(pack, &["eventTypes:", &mark, &request.endpoint], &format!("`{slug}`"), &request);
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

/// What is wrong with how an event is signed.
fn signature_problems(pack: &Pack, event: &PackEventType, rule: &SignatureRule) -> Vec<String> {
    const SECRETS: [&str; 3] = ["${subscription.secret}", "${app.signingSecret}", "${config.secret}"];
    let is_of_app = |scheme: &AuthScheme| {
        scheme.app_fields.iter().chain(&scheme.account_fields).any(|field| field.name == "signingSecret")
    };
    let is_there = match rule.secret.as_str() {
        "${subscription.secret}" => event.subscribe.is_some(),
        "${app.signingSecret}" => pack.auth.iter().any(is_of_app),
        "${config.secret}" => event.config["properties"].get("secret").is_some(),
        _ => true,
    };
    let needs_header = !matches!(rule.kind, SignatureKind::StandardWebhooks | SignatureKind::Webhook);
    let needs_time = rule.kind == SignatureKind::SlackV0;
    let problems = [
        (!SECRETS.contains(&rule.secret.as_str()), format!("secret must be one of {}", SECRETS.join(", "))),
        (!is_there, format!("nothing gives its secret {}", rule.secret)),
        (needs_header && rule.header.is_empty(), "header is missing".to_owned()),
        (needs_time && rule.timestamp_header.is_empty(), "timestampHeader is missing".to_owned()),
        (rule.tolerance_seconds < 1, "toleranceSeconds must be at least 1".to_owned()),
    ];
    problems.into_iter().filter(|(is_wrong, _)| *is_wrong).map(|(_, problem)| problem).collect()
}

fn is_address(text: &str) -> bool {
    Url::parse(text).is_ok_and(|url| matches!(url.scheme(), "http" | "https"))
}

fn is_slug(slug: &str, underscores: bool) -> bool {
    let good = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || (underscores && b == b'_');
    (1..=64).contains(&slug.len()) && slug.bytes().all(good) && !slug.starts_with(['-', '_'])
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "
slug: app
name: App
baseUrl: https://a.example
auth:
  - mode: OAUTH2
    authorizationUrl: https://a.example/authorize
    tokenUrl: https://a.example/token
    accountFields: [{name: host, type: string}]
    test: {method: GET, endpoint: /me}
eventTypes:
  - slug: made
    name: Made
    type: webhook
    config: {type: object}
";

    #[test]
    fn the_schema_for_editors_takes_what_is_built_in_and_refuses_what_is_not_known() {
        let schema = jsonschema::validator_for(&pack_schema()).expect("a schema");
        let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/packs");
        let paths: Vec<_> =
            std::fs::read_dir(directory).expect("packs").map(|file| file.expect("a file").path()).collect();
        assert!(paths.len() >= 10);
        for path in paths {
            let text = std::fs::read_to_string(&path).expect("text");
            let pack: Value = serde_yaml_ng::from_str(&text).expect("YAML");
            let problems: Vec<String> = schema.iter_errors(&pack).map(|error| error.to_string()).collect();
            assert!(problems.is_empty(), "{}: {problems:?}", path.display());
        }
        let good: Value = serde_yaml_ng::from_str(GOOD).expect("YAML");
        assert!(schema.is_valid(&good));
        for (field, value) in
            [("slug", "A b".into()), ("more", true.into()), ("tools", serde_json::json!([{"metod": 1}]))]
        {
            let mut bad = good.clone();
            bad[field] = value;
            assert!(!schema.is_valid(&bad), "{field}");
        }
    }

    #[test]
    fn all_that_has_not_the_shape_of_a_pack_is_told_at_once_each_with_its_line() {
        let wrong = GOOD.replace("name: App", "name: [App]").replace("type: webhook", "type: carrier-pigeon");
        let wrong = format!(
            "{wrong}  - slug: second\n    name: Second\n    type: webhook\n    payload: 7\n    colour: red\ncolour: red\n"
        );
        let problems = read_pack(&wrong).expect_err("it is wrong");
        let lines: Vec<usize> = problems.iter().map(|problem| problem.line).collect();
        let all = problems.iter().map(|problem| problem.message.as_str()).collect::<Vec<_>>().join("; ");
        assert_eq!(lines, [3, 14, 19, 20, 21], "{all}");
        for said in ["name: [\"App\"]", "eventTypes.0.type", "eventTypes.1.colour: there", "; colour: there"] {
            assert!(all.contains(said), "{said} in {all}");
        }
    }

    #[test]
    fn whatever_would_only_fail_at_run_time_is_told_with_its_line() {
        assert_eq!(read_pack(GOOD).err(), None);
        for (good, wrong, line, said) in [
            ("https://a.example\n", "https://${host}.example\n", 4, "baseUrl: `${host}` is not filled in here"),
            ("name: App", "name: App ${x}", 3, "name: `${x}`"),
            ("https://a.example/authorize", "ftp://a.example", 6, "needs authorizationUrl"),
            ("https://a.example/token", "file:///token", 6, "needs tokenUrl"),
            ("    test:", "    revocationUrl: nonsense\n    test:", 10, "revocationUrl of OAUTH2 is no address"),
            ("type: string", "type: banana", 9, "type of the field `host` must be one of"),
            ("method: GET", "method: G E T", 10, "method `G E T` must be one of"),
            ("endpoint: /me", "endpoint: \"/me/${bogus}\"", 10, "`${bogus}` names no field"),
            ("endpoint: /me", "endpoint: https://b.example/me", 10, "not of the origin of baseUrl"),
            ("type: object", "type: string", 15, "config of `made` must be of type object"),
            ("https://a.example\n", "https://u:p@a.example\n", 4, "has credentials in it"),
            ("    test:", "    appFields: [{name: host}]\n    test:", 9, "has the field `host` twice"),
            ("    test:", "    headers: [{headerName: \"X Y\", value: z}]\n    test:", 10, "no name of a header"),
            (
                "    config:",
                "    signature: {kind: webhook, secret: \"${config.secret}\", toleranceSeconds: -1}\n    config:",
                15,
                "nothing gives its secret ${config.secret}",
            ),
            (
                "    config:",
                "    signature: {kind: webhook, secret: \"${app.signingSecret}\", toleranceSeconds: -1}\n    config:",
                15,
                "toleranceSeconds must be at least 1",
            ),
            ("    config:", "    handshake: {when: {}, answer: x}\n    config:", 15, "nothing is one"),
            ("    config:", "    acceptedStatus: 302\n    config:", 15, "200 to 299"),
            ("    config:", "    unsubscribe: {method: DELETE, endpoint: /hook}\n    config:", 15, "no subscribe"),
        ] {
            let text = GOOD.replace(good, wrong);
            let problems = read_pack(&text).expect_err(wrong);
            let is_told = |of: &Problem| of.line == line && of.message.contains(said);
            assert!(problems.iter().any(is_told), "{wrong}: {problems:?}");
        }
    }
}
