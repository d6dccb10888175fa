use std::{collections::HashSet, sync::Arc};

use platform_core::{AccountId, Checks, Code, Error, Object, Result, heap_bytes, lower_case};
use platform_egress::Url;
use platform_runtime::{ChildPool, check_schemas, is_function_name};
use platform_vault::Secret;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;

use crate::{code, script};

/// Headers that a client sets by itself.
pub const REFUSED_HEADERS: [&str; 4] = ["host", "content-length", "transfer-encoding", "connection"];
/// Names of the fields of a definition.
pub const TOOL_FIELDS: [&str; 18] = [
    "type",
    "function",
    "endpoint",
    "method",
    "pathParametersKeys",
    "queryParametersKeys",
    "bodyMode",
    "bodyPropertyKey",
    "bodyJsonTemplate",
    "isFormDataBody",
    "customHeaders",
    "responsePostProcessingEnabled",
    "responsePostProcessingTemplate",
    "requiresApproval",
    "idempotent",
    "asyncCallback",
    "timeoutMs",
    "annotations",
];
const TEMPLATE_BYTES: usize = 65_536;
/// Bytes of memory that the parameters of all tools of a server take.
pub(crate) const MAX_MEMORY: usize = 10 << 20;

/// A tool of a server, and the request that calls it (contract 04 §2).
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
#[expect(clippy::struct_excessive_bools, reason = "the wire has these flags")]
pub struct ToolDefinition {
    /// Always `function`.
    #[serde(deserialize_with = "lower_case")]
    pub r#type: String,
    /// What the model is told.
    pub function: FunctionDefinition,
    /// Path below the server's address, with `${name}` for parameters; or an address of the same origin.
    pub endpoint: String,
    /// HTTP method.
    pub method: HttpMethod,
    /// Parameters that stand in the path.
    pub path_parameters_keys: Vec<String>,
    /// Parameters that stand in the query.
    pub query_parameters_keys: Vec<String>,
    /// How the body is made.
    pub body_mode: BodyMode,
    /// `simple`: the parameter whose value is the body; empty: all that stand nowhere else.
    pub body_property_key: String,
    /// `advanced`: a JavaScript expression over `params` whose value is the body.
    pub body_json_template: String,
    /// The body is `multipart/form-data`, a part for each property.
    pub is_form_data_body: bool,
    /// Headers of the request; their values are masked in answers.
    pub custom_headers: Vec<CustomHeader>,
    /// Whether the result goes through the template below.
    pub response_post_processing_enabled: bool,
    /// A JavaScript expression over `response.body` and `response.status`.
    pub response_post_processing_template: String,
    /// Calls wait for approval.
    pub requires_approval: bool,
    /// A call may be repeated after a crash.
    pub idempotent: bool,
    /// The result may come later, to `X-Callback-Url` (agents).
    pub async_callback: bool,
    /// Longest call, 1000 to 300000 ms; absent = the server's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u32>,
    /// Hints, as MCP servers give them.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub annotations: Option<Object>,
    /// What people call a tool of an MCP server.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(read_only)]
    pub title: Option<String>,
    /// JSON Schema of what a tool of an MCP server answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>, read_only)]
    pub output_schema: Option<Object>,
    /// When description or parameters of a tool of an MCP server were last found changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(read_only)]
    pub changed_timestamp_ms: Option<i64>,
}

impl Default for ToolDefinition {
    fn default() -> Self {
        Self {
            r#type: "function".to_owned(),
            function: FunctionDefinition::default(),
            endpoint: String::new(),
            method: HttpMethod::Get,
            path_parameters_keys: Vec::new(),
            query_parameters_keys: Vec::new(),
            body_mode: BodyMode::Simple,
            body_property_key: String::new(),
            body_json_template: String::new(),
            is_form_data_body: false,
            custom_headers: Vec::new(),
            response_post_processing_enabled: false,
            response_post_processing_template: String::new(),
            requires_approval: false,
            idempotent: false,
            async_callback: false,
            timeout_ms: None,
            annotations: None,
            title: None,
            output_schema: None,
            changed_timestamp_ms: None,
        }
    }
}

/// What a model is told of a tool.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct FunctionDefinition {
    /// Name, `^[A-Za-z0-9_-]{1,64}$`.
    pub name: String,
    /// What it does.
    pub description: String,
    /// Unknown arguments are refused.
    pub strict: bool,
    /// JSON Schema of the arguments, of type object.
    #[schema(value_type = Object)]
    pub parameters: Arc<Value>,
}

impl FunctionDefinition {
    /// Whether all words of a search stand in its name or description.
    pub fn says(&self, words: &str) -> bool {
        if words.is_empty() {
            return true;
        }
        let text = format!("{} {}", self.name, self.description).to_lowercase();
        words.to_lowercase().split_whitespace().all(|word| text.contains(word))
    }
}

impl Default for FunctionDefinition {
    fn default() -> Self {
        Self { name: String::new(), description: String::new(), strict: false, parameters: Arc::new(no_parameters()) }
    }
}

fn no_parameters() -> Value {
    json!({"type": "object", "properties": {}, "required": []})
}

/// HTTP methods of tools.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "UPPERCASE")]
#[expect(missing_docs, reason = "the names are HTTP's")]
pub enum HttpMethod {
    Get,
    Post,
    Put,
    Patch,
    Delete,
}

impl HttpMethod {
    /// The name on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Post => "POST",
            Self::Put => "PUT",
            Self::Patch => "PATCH",
            Self::Delete => "DELETE",
        }
    }
}

/// How the body of a request is made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum BodyMode {
    /// Of one parameter, or of all that stand nowhere else.
    #[default]
    Simple,
    /// By a template.
    Advanced,
}

/// A header of outgoing requests.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct CustomHeader {
    /// Name.
    pub header_name: String,
    /// Value; masked in answers, kept when the mask comes back.
    pub value: Secret,
}

impl CustomHeader {
    pub(crate) fn check(&self, checks: &mut Checks, path: &str) {
        let name = &self.header_name;
        let is_token = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
        if name.is_empty() || name.len() > 128 || !name.bytes().all(is_token) {
            checks.issue(&format!("{path}.headerName"), "format", format!("`{name}` is no name of a header"));
        } else if REFUSED_HEADERS.iter().any(|refused| name.eq_ignore_ascii_case(refused)) {
            checks.issue(&format!("{path}.headerName"), "conflict", format!("the header {name} cannot be set"));
        }
        check_secret(checks, &format!("{path}.value"), &self.value);
    }
}

/// Headers that say how to read, and are no secret.
pub(crate) fn is_plain(header: &str) -> bool {
    ["accept", "content-type"].iter().any(|plain| header.eq_ignore_ascii_case(plain))
}

/// Parameters of a tool that go into its address.
const MAX_KEYS: usize = 200;

/// What goes into a header must be one line.
pub(crate) fn check_secret(checks: &mut Checks, path: &str, secret: &Secret) {
    let text = secret.expose();
    if text.len() > 16_384 {
        checks.issue(path, "length", format!("{path} must have at most 16384 bytes"));
    }
    if !secret.is_mask() && text.bytes().any(|b| b < b' ' && b != b'\t' || b == 0x7f) {
        checks.issue(path, "format", format!("{path} must be one line without control characters"));
    }
}

/// The same header twice would leave open which one counts.
pub fn check_headers(checks: &mut Checks, path: &str, headers: &[CustomHeader]) {
    checks.count(path, headers.len(), 50);
    let mut seen = HashSet::new();
    for (i, header) in headers.iter().enumerate() {
        header.check(checks, &format!("{path}[{i}]"));
        if !seen.insert(header.header_name.to_ascii_lowercase()) {
            let message = format!("the header {} stands twice", header.header_name);
            checks.issue(&format!("{path}[{i}].headerName"), "unique", message);
        }
    }
}

impl ToolDefinition {
    /// Every rule of contract 04 §2, under `path`. What is missing of the parameters is put in.
    pub(crate) fn check(&mut self, checks: &mut Checks, path: &str, server: Option<&Url>) {
        let at = |field: &str| format!("{path}.{field}");
        // Only an MCP server says them of its tools.
        (self.title, self.output_schema, self.changed_timestamp_ms) = (None, None, None);
        if self.r#type != "function" {
            checks.issue(&at("type"), "enum", "type must be function");
        }
        let name = &self.function.name;
        if !is_function_name(name) {
            let code = if name.is_empty() { "required" } else { "format" };
            checks.issue(&at("function.name"), code, "function.name must match ^[A-Za-z0-9_-]{1,64}$");
        }
        checks.length(&at("function.description"), &self.function.description, 0..=4000);
        match complete(Arc::make_mut(&mut self.function.parameters)) {
            Ok(()) => {}
            Err(reason) => checks.issue(&at("function.parameters"), "type", reason),
        }
        self.check_request(checks, path, server);
        checks.names(&at("pathParametersKeys"), &self.path_parameters_keys, MAX_KEYS);
        checks.names(&at("queryParametersKeys"), &self.query_parameters_keys, MAX_KEYS);
        checks.bytes(&at("bodyPropertyKey"), self.body_property_key.len(), 256);
        check_headers(checks, &at("customHeaders"), &self.custom_headers);
        for (field, template) in [
            ("bodyJsonTemplate", &self.body_json_template),
            ("responsePostProcessingTemplate", &self.response_post_processing_template),
        ] {
            checks.bytes(&at(field), template.len(), TEMPLATE_BYTES);
        }
        self.check_timeout(checks, &at("timeoutMs"));
    }

    fn check_timeout(&self, checks: &mut Checks, path: &str) {
        if let Some(timeout) = self.timeout_ms {
            checks.range(path, timeout, &(1000..=300_000));
        }
    }

    fn check_request(&self, checks: &mut Checks, path: &str, server: Option<&Url>) {
        let at = |field: &str| format!("{path}.{field}");
        checks.bytes(&at("endpoint"), self.endpoint.len(), 4096);
        if self.endpoint.contains(char::is_control) {
            checks.issue(&at("endpoint"), "format", "the endpoint has a control character, such as a line feed");
        }
        let known = |key: &str| self.function.parameters["properties"].get(key).is_some();
        match placeholders(&self.endpoint) {
            Ok(names) => {
                for name in names {
                    if !self.path_parameters_keys.iter().any(|key| key == name) {
                        let message = format!("`${{{name}}}` must be in pathParametersKeys");
                        checks.issue(&at("pathParametersKeys"), "required", message);
                    } else if !known(name) {
                        let message = format!("`${{{name}}}` must be one of the parameters' properties");
                        checks.issue(&at("function.parameters"), "required", message);
                    }
                }
            }
            Err(reason) => checks.issue(&at("endpoint"), "format", reason),
        }
        if is_absolute(&self.endpoint) {
            let own = Url::parse(&self.endpoint).ok().map(|url| url.origin());
            if own.is_none() || own != server.map(Url::origin) {
                let message = "an absolute endpoint must have the scheme, host and port of the server's url";
                checks.issue(&at("endpoint"), "conflict", message);
            }
        }
        for key in &self.query_parameters_keys {
            if self.path_parameters_keys.contains(key) {
                let message = format!("`{key}` stands in pathParametersKeys, too");
                checks.issue(&at("queryParametersKeys"), "conflict", message);
            }
        }
        if self.body_mode == BodyMode::Advanced && self.body_json_template.trim().is_empty() {
            checks.issue(&at("bodyJsonTemplate"), "required", "bodyMode advanced needs a bodyJsonTemplate");
        }
        if self.response_post_processing_enabled && self.response_post_processing_template.trim().is_empty() {
            let message = "responsePostProcessingEnabled needs a responsePostProcessingTemplate";
            checks.issue(&at("responsePostProcessingTemplate"), "required", message);
        }
    }

    /// A call may be made again when nobody knows whether it was made.
    pub(crate) fn is_repeatable(&self) -> bool {
        self.idempotent || self.method == HttpMethod::Get
    }

    /// The schema that arguments must satisfy.
    pub(crate) fn argument_schema(&self) -> Arc<Value> {
        let mut schema = Arc::clone(&self.function.parameters);
        if self.function.strict
            && let Some(fields) = Arc::make_mut(&mut schema).as_object_mut()
        {
            fields.insert("additionalProperties".to_owned(), Value::Bool(false));
        }
        schema
    }
}

impl ToolDefinition {
    /// Bytes of memory that its schemas and annotations take, about.
    pub(crate) fn heap_bytes(&self) -> usize {
        let objects = self.annotations.iter().chain(&self.output_schema).flatten();
        heap_bytes(&self.function.parameters) + objects.map(|(_, value)| heap_bytes(value)).sum::<usize>()
    }
}

/// Checks all tools of a server: each by itself, and their names.
pub(crate) fn check_all(tools: &mut [ToolDefinition], most: usize, server: Option<&Url>) -> Result<()> {
    let mut checks = Checks::default();
    checks.count("toolDefinitions", tools.len(), most);
    checks.finish()?;
    let mut checks = Checks::default();
    for (i, tool) in tools.iter_mut().enumerate() {
        tool.check(&mut checks, &format!("toolDefinitions[{i}]"), server);
    }
    if tools.iter().map(ToolDefinition::heap_bytes).sum::<usize>() > MAX_MEMORY {
        let message = "the parameters of all tools together have too many parts; make two servers of it";
        checks.issue("toolDefinitions", "length", message);
    }
    checks.finish_as(Code::INVALID_TOOL_DEFINITION)?;
    let mut names = HashSet::new();
    if let Some(twice) = tools.iter().find(|tool| !names.insert(tool.function.name.as_str())) {
        let name = &twice.function.name;
        return Err(
            Error::new(Code::DUPLICATE_TOOL_NAME, format!("There are two tools named `{name}`.")).with("name", name)
        );
    }
    Ok(())
}

/// Whether schemas and templates of definitions as a client gave them can be used, which child processes find out:
/// to be asked before a transaction begins. `INVALID_TOOL_DEFINITION`, `TEMPLATE_ERROR`.
pub(crate) async fn check_written(children: &ChildPool, account: &AccountId, given: &[(String, &Value)]) -> Result<()> {
    let mut checks = Checks::default();
    let mut schemas = Vec::new();
    for (path, tool) in given {
        let Some(mut parameters) = tool.get("function").and_then(|function| function.get("parameters")).cloned() else {
            continue;
        };
        let path = format!("{path}function.parameters");
        match complete(&mut parameters) {
            Ok(()) => schemas.push((path, parameters)),
            Err(reason) => checks.issue(&path, "type", reason),
        }
    }
    let schemas: Vec<(String, &Value)> = schemas.iter().map(|(path, schema)| (path.clone(), schema)).collect();
    for (path, reason) in check_schemas(children, account, &schemas).await? {
        checks.issue(&path, "format", format!("{path} {reason}"));
    }
    checks.finish_as(Code::INVALID_TOOL_DEFINITION)?;
    let mut templates = Vec::new();
    for (_, tool) in given {
        for field in ["bodyJsonTemplate", "responsePostProcessingTemplate"] {
            let text = tool.get(field).and_then(Value::as_str);
            let text = text.filter(|text| !text.trim().is_empty() && text.len() <= TEMPLATE_BYTES);
            templates.extend(text.map(|text| (field, tool, text)));
        }
    }
    let texts: Vec<&str> = templates.iter().map(|(_, _, text)| *text).collect();
    for ((field, tool, _), reason) in templates.iter().zip(script::check(children, account, &texts).await?) {
        if let Some(reason) = reason {
            // A patch of one tool does not name it again.
            let name = tool["function"]["name"].as_str();
            let of = name.map_or_else(String::new, |name| format!(" of `{name}`"));
            return Err(Error::new(code::TEMPLATE_ERROR, format!("{field}{of}: {reason}"))
                .with_some("tool", name)
                .with("field", field));
        }
    }
    Ok(())
}

/// What a client sets of the tools of an MCP server.
pub(crate) fn check_switches(tools: &[ToolDefinition]) -> Result<()> {
    let mut checks = Checks::default();
    for (i, tool) in tools.iter().enumerate() {
        tool.check_timeout(&mut checks, &format!("toolDefinitions[{i}].timeoutMs"));
    }
    checks.finish_as(Code::INVALID_TOOL_DEFINITION)
}

/// Puts in what parameters need to be a schema of an object.
fn complete(parameters: &mut Value) -> Result<(), &'static str> {
    if parameters.is_null() {
        *parameters = json!({});
    }
    let Value::Object(fields) = parameters else { return Err("parameters must be a JSON Schema of type object") };
    fields.entry("type").or_insert_with(|| "object".into());
    fields.entry("properties").or_insert_with(|| json!({}));
    fields.entry("required").or_insert_with(|| json!([]));
    let strings = |value: &Value| value.as_array().is_some_and(|all| all.iter().all(Value::is_string));
    match () {
        () if fields["type"] != "object" => Err("parameters.type must be object"),
        () if !fields["properties"].is_object() => Err("parameters.properties must be an object"),
        () if !strings(&fields["required"]) => Err("parameters.required must be a list of names"),
        () => Ok(()),
    }
}

/// Whether an endpoint names its scheme.
pub(crate) fn is_absolute(endpoint: &str) -> bool {
    let is_scheme = |text: &str| text.bytes().all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b));
    endpoint.split_once("://").is_some_and(|(scheme, _)| is_scheme(scheme))
}

/// The names in `${name}` of an endpoint.
pub(crate) fn placeholders(endpoint: &str) -> Result<Vec<&str>, &'static str> {
    let mut names = Vec::new();
    let mut rest = endpoint;
    while let Some((_, after)) = rest.split_once("${") {
        let (name, after) = after.split_once('}').ok_or("a `${` in the endpoint has no `}`")?;
        names.push(name);
        rest = after;
    }
    Ok(names)
}

/// Lays given fields over a stored definition: what is left out stays (contract 04 §5).
pub(crate) fn merge(stored: &ToolDefinition, given: Object) -> Result<Value> {
    let mut merged = serde_json::to_value(stored).map_err(Error::internal)?;
    for (name, value) in given {
        match (name.as_str(), value) {
            ("function", Value::Object(fields)) => {
                for (name, value) in fields {
                    put(&mut merged["function"], name, value);
                }
            }
            (_, value) => put(&mut merged, name, value),
        }
    }
    Ok(merged)
}

/// `null` brings the default back.
fn put(object: &mut Value, name: String, value: Value) {
    let Some(fields) = object.as_object_mut() else { return };
    if value.is_null() {
        fields.remove(&name);
    } else {
        fields.insert(name, value);
    }
}
