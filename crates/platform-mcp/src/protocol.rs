//! JSON-RPC messages of both protocol families: what stands in a request, and how it is answered (MCP 2026-07-28 and
//! 2025-11-25, streamable HTTP).

use std::sync::Arc;

use base64::{Engine, engine::general_purpose::STANDARD};
use platform_core::{Object, parse};
use platform_toolservers::McpUpdate;
use serde::Serialize;
use serde_json::{Value, json, value::RawValue};

/// The family without state: everything stands in each request.
pub(crate) const MODERN: &str = "2026-07-28";
/// What an unknown version is answered with in `initialize`.
pub(crate) const NEWEST_LEGACY: &str = "2025-11-25";
const SUPPORTED: [&str; 4] = [MODERN, NEWEST_LEGACY, "2025-06-18", "2025-03-26"];
const META: &str = "io.modelcontextprotocol/";
/// Levels of logs, the least first (RFC 5424 §6.2.1).
const LEVELS: [&str; 8] = ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"];

const PARSE_ERROR: i32 = -32700;
const INVALID_REQUEST: i32 = -32600;
pub(crate) const METHOD_NOT_FOUND: i32 = -32601;
pub(crate) const INVALID_PARAMS: i32 = -32602;
const HEADER_MISMATCH: i32 = -32020;
pub(crate) const MISSING_CAPABILITY: i32 = -32021;
const UNSUPPORTED_VERSION: i32 = -32022;
const OTHER_METHOD: &str = "Mcp-Method must be the method of the message.";

/// The headers of a request that its body must agree with.
#[derive(Debug, Clone, Default)]
pub struct McpHeaders {
    /// `MCP-Protocol-Version`.
    pub version: Option<String>,
    /// `Mcp-Method`.
    pub method: Option<String>,
    /// `Mcp-Name`.
    pub name: Option<String>,
    /// Those that begin with [`PARAM_HEADER`]: the rest of their names, and their values.
    pub params: Vec<(String, String)>,
}

/// What stands before the name of a header that repeats an argument.
pub const PARAM_HEADER: &str = "mcp-param-";

/// An answer that is one message.
#[derive(Debug)]
pub(crate) struct Failure {
    pub status: u16,
    pub message: Value,
}

/// A request, read.
#[derive(Debug)]
pub(crate) struct Message {
    pub id: Value,
    pub method: String,
    pub params: Object,
    pub is_modern: bool,
    /// What the client can do.
    pub capabilities: Value,
}

/// What a body is.
pub(crate) enum Incoming {
    Request(Message),
    /// It wants no answer.
    Notification,
}

impl Message {
    /// Reads a body. A mistake is answered in the protocol's terms.
    pub fn read(body: &[u8], headers: &McpHeaders) -> Result<Incoming, Failure> {
        let value: Value = parse(body).map_err(|error| {
            Failure::new(400, &Value::Null, PARSE_ERROR, &format!("This is no JSON we read: {error}."))
        })?;
        let invalid = |reason: &str| Failure::new(400, &Value::Null, INVALID_REQUEST, reason);
        let Value::Object(mut message) = value else {
            return Err(invalid("Send one message, not a batch."));
        };
        if message.get("jsonrpc") != Some(&Value::from("2.0")) {
            return Err(invalid("jsonrpc must be \"2.0\"."));
        }
        let id = message.remove("id");
        let Some(Value::String(method)) = message.remove("method") else {
            // An answer to what nobody asked.
            return if message.contains_key("result") || message.contains_key("error") {
                Ok(Incoming::Notification)
            } else {
                Err(invalid("method is missing."))
            };
        };
        let Some(id) = id else {
            check_version(&Value::Null, headers.version.as_deref())?;
            // A notification may do without the header.
            if headers.version.as_deref() == Some(MODERN) && headers.method.as_ref().is_some_and(|of| *of != method) {
                return Err(Failure::new(400, &Value::Null, HEADER_MISMATCH, OTHER_METHOD));
            }
            return Ok(Incoming::Notification);
        };
        if !(id.is_string() || id.is_i64()) {
            return Err(invalid("id must be a string or an integer of at most 63 bits."));
        }
        let params = match message.remove("params") {
            None => Object::new(),
            Some(Value::Object(params)) => params,
            Some(_) => return Err(Failure::new(400, &id, INVALID_PARAMS, "params must be an object.")),
        };
        let (is_modern, capabilities) = family(&id, &method, &params, headers)?;
        Ok(Incoming::Request(Self { id, method, params, is_modern, capabilities }))
    }

    /// A text of the parameters.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.params.get(name)?.as_str()
    }

    /// Whether the client shows forms: one that says nothing of what it shows does (MCP, elicitation).
    pub fn can_ask_by_form(&self) -> bool {
        let shows = self.capabilities["elicitation"].as_object();
        shows.is_some_and(|modes| modes.contains_key("form") || !modes.contains_key("url"))
    }

    /// Refuses a call whose headers say something else of its arguments than it does (SEP-2243).
    pub fn check_arguments(
        &self,
        repeated: &[Repeated],
        arguments: &Object,
        headers: &McpHeaders,
    ) -> Result<(), Failure> {
        if !self.is_modern {
            return Ok(());
        }
        for Repeated { path, header } in repeated {
            let argument = path
                .split_first()
                .and_then(|(first, rest)| rest.iter().try_fold(arguments.get(first)?, |of, key| of.get(key)));
            let expected = match argument {
                Some(Value::String(text)) => Some(text.clone()),
                Some(value @ (Value::Bool(_) | Value::Number(_))) => Some(value.to_string()),
                _ => None,
            };
            let mut given = headers.params.iter().filter(|(of, _)| of.eq_ignore_ascii_case(header));
            let said = given.next().map(|(_, value)| decoded(value));
            if said != expected || given.next().is_some() {
                let reason = format!("Mcp-Param-{header} must be the argument {}.", path.join("."));
                return Err(Failure::new(400, &self.id, HEADER_MISMATCH, &reason));
            }
        }
        Ok(())
    }

    /// Who hears of progress.
    pub fn progress_token(&self) -> Option<&Value> {
        let token = self.params.get("_meta")?.get("progressToken")?;
        (token.is_string() || token.is_number()).then_some(token)
    }

    /// From which level on the log of a call is wanted: the older family sets that for a session, of which there is none.
    pub fn log_level(&self) -> Option<&str> {
        if !self.is_modern {
            return Some("info");
        }
        let level = self.params.get("_meta")?.get(format!("{META}logLevel"))?.as_str()?;
        LEVELS.contains(&level).then_some(level)
    }

    /// What an upstream tells of a call, as its caller is told; `None` when it did not ask for it.
    pub fn update(&self, update: McpUpdate) -> Option<Value> {
        let (method, params) = match update {
            McpUpdate::Progress(mut params) => {
                params["progressToken"] = self.progress_token()?.clone();
                ("notifications/progress", params)
            }
            McpUpdate::Log(params) => {
                let rank = |level: &str| LEVELS.iter().position(|of| *of == level);
                let is_wanted = rank(params["level"].as_str()?)? >= rank(self.log_level()?)?;
                ("notifications/message", Some(params).filter(|_| is_wanted)?)
            }
        };
        Some(json!({"jsonrpc": "2.0", "method": method, "params": params}))
    }

    /// A result.
    pub fn answer(&self, mut result: Value) -> Value {
        if self.is_modern {
            if result.get("resultType").is_none() {
                result["resultType"] = "complete".into();
            }
            if !result["_meta"].is_object() {
                result["_meta"] = json!({});
            }
            result["_meta"][format!("{META}serverInfo")] = server_info();
        } else if let Some(fields) = result.as_object_mut() {
            fields.remove("resultType");
            // Older clients know objects alone.
            if fields.get("structuredContent").is_some_and(|structured| !structured.is_object()) {
                say_in_text(fields);
            }
        }
        json!({"jsonrpc": "2.0", "id": self.id, "result": result})
    }

    /// A page of tools, each as it is listed; `next`: where the following one begins.
    pub fn answer_tools(&self, tools: &[Arc<RawValue>], next: Option<String>) -> platform_core::Result<String> {
        #[derive(Serialize)]
        struct Answer<'a> {
            jsonrpc: &'static str,
            id: &'a Value,
            result: Listed<'a>,
        }
        #[derive(Serialize)]
        struct Listed<'a> {
            tools: &'a [Arc<RawValue>],
            #[serde(flatten)]
            rest: &'a Value,
        }
        let mut rest = json!({});
        if let Some(next) = next {
            rest["nextCursor"] = next.into();
        }
        if self.is_modern {
            (rest["ttlMs"], rest["cacheScope"]) = (0.into(), "private".into());
        }
        let rest = &self.answer(rest)["result"];
        serde_json::to_string(&Answer { jsonrpc: "2.0", id: &self.id, result: Listed { tools, rest } })
            .map_err(platform_core::Error::internal)
    }

    /// An error; `status`: of the answer in the newer family, the older one is answered with 200.
    pub fn fail(&self, status: u16, code: i32, reason: &str) -> Failure {
        Failure::new(if self.is_modern { status } else { 200 }, &self.id, code, reason)
    }
}

impl Failure {
    pub fn new(status: u16, id: &Value, code: i32, reason: &str) -> Self {
        let error = json!({"code": code, "message": reason});
        Self { status, message: json!({"jsonrpc": "2.0", "id": id, "error": error}) }
    }

    /// With something that programs read.
    pub fn with(mut self, data: Value) -> Self {
        self.message["error"]["data"] = data;
        self
    }
}

/// Which family a request is of, and what its client can do.
fn family(id: &Value, method: &str, params: &Object, headers: &McpHeaders) -> Result<(bool, Value), Failure> {
    let meta = params.get("_meta");
    let of = |name: &str| meta.and_then(|meta| meta.get(format!("{META}{name}")));
    let in_body = of("protocolVersion").and_then(Value::as_str);
    let in_header = headers.version.as_deref();
    let mismatch = |reason: &str| Failure::new(400, id, HEADER_MISMATCH, reason);
    let wrong = |reason: &str| Failure::new(400, id, INVALID_PARAMS, reason);
    check_version(id, in_header.or(in_body))?;
    if in_body.is_some() && in_body != in_header {
        return Err(mismatch("MCP-Protocol-Version must be the protocolVersion of _meta."));
    }
    if in_header != Some(MODERN) {
        let can = params.get("capabilities").cloned().unwrap_or_else(|| json!({}));
        return Ok((false, can));
    }
    if in_body.is_none() {
        return Err(wrong("_meta must have io.modelcontextprotocol/protocolVersion."));
    }
    let Some(capabilities) = of("clientCapabilities").filter(|of| of.is_object()) else {
        return Err(wrong("_meta must have io.modelcontextprotocol/clientCapabilities."));
    };
    if headers.method.as_deref() != Some(method) {
        return Err(mismatch(OTHER_METHOD));
    }
    if method == "tools/call" {
        let name = params.get("name").and_then(Value::as_str);
        if headers.name.as_deref().map(decoded).as_deref() != name {
            return Err(mismatch("Mcp-Name must be the name of the tool."));
        }
    }
    Ok((true, capabilities.clone()))
}

/// An argument that a header repeats.
#[derive(Debug, Clone)]
pub(crate) struct Repeated {
    path: Vec<String>,
    /// What stands after [`PARAM_HEADER`].
    header: String,
}

/// Those that the schema of a tool says.
pub(crate) fn repeated_in_headers(schema: &Value) -> Vec<Repeated> {
    let mut found = Vec::new();
    for (key, property) in schema["properties"].as_object().into_iter().flatten() {
        let header = property["x-mcp-header"].as_str();
        found.extend(header.map(|header| Repeated { path: vec![key.clone()], header: header.to_owned() }));
        found.extend(repeated_in_headers(property).into_iter().map(|mut below| {
            below.path.insert(0, key.clone());
            below
        }));
    }
    found
}

/// Refuses a version that is not spoken here.
pub(crate) fn check_version(id: &Value, version: Option<&str>) -> Result<(), Failure> {
    match version.filter(|version| !SUPPORTED.contains(version)) {
        None => Ok(()),
        Some(version) => {
            let data = json!({"supported": SUPPORTED, "requested": version});
            let reason = "This protocol version is not spoken here.";
            Err(Failure::new(400, id, UNSUPPORTED_VERSION, reason).with(data))
        }
    }
}

/// A header as it was meant: what no header can carry comes in base64.
fn decoded(header: &str) -> String {
    let inner = header.strip_prefix("=?base64?").and_then(|rest| rest.strip_suffix("?="));
    let decoded = inner.and_then(|text| STANDARD.decode(text).ok()).and_then(|bytes| String::from_utf8(bytes).ok());
    decoded.unwrap_or_else(|| header.to_owned())
}

fn server_info() -> Value {
    json!({"name": "platform", "title": "Agent platform", "version": env!("CARGO_PKG_VERSION")})
}

fn capabilities() -> Value {
    json!({"tools": {"listChanged": true}, "logging": {}})
}

/// The answer to `initialize`: the version that was asked for, or the newest of its family.
pub(crate) fn initialized(asked: Option<&str>, instructions: &str) -> Value {
    let known = asked.filter(|version| *version != MODERN && SUPPORTED.contains(version));
    let version = known.unwrap_or(NEWEST_LEGACY);
    let mut result = json!({"protocolVersion": version, "capabilities": capabilities(), "serverInfo": server_info()});
    if !instructions.is_empty() {
        result["instructions"] = instructions.into();
    }
    result
}

/// The answer to `server/discover`.
pub(crate) fn discovered(instructions: &str) -> Value {
    let mut result = json!({"supportedVersions": SUPPORTED, "capabilities": capabilities(), "ttlMs": 0,
        "cacheScope": "private"});
    if !instructions.is_empty() {
        result["instructions"] = instructions.into();
    }
    result
}

/// The first message to whoever subscribes to changes.
pub(crate) fn acknowledged(subscription: &Value, wants_tools: bool) -> Value {
    let heard = if wants_tools { json!({"toolsListChanged": true}) } else { json!({}) };
    json!({"jsonrpc": "2.0", "method": "notifications/subscriptions/acknowledged", "params": {
        "notifications": heard, "_meta": {format!("{META}subscriptionId"): subscription},
    }})
}

/// The last one: the subscription is over, and nothing broke.
pub(crate) fn unsubscribed(message: &Message) -> Value {
    message.answer(json!({"_meta": {format!("{META}subscriptionId"): message.id}}))
}

/// The tools are others now; `subscription`: who asked to be told.
pub(crate) fn tools_changed(subscription: Option<&Value>) -> Value {
    let mut message = json!({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"});
    if let Some(subscription) = subscription {
        message["params"] = json!({"_meta": {format!("{META}subscriptionId"): subscription}});
    }
    message
}

/// A result that says what went wrong in one sentence.
pub(crate) fn error_text(code: &str, message: &str) -> Value {
    error_result(code, Object::from_iter([("message".to_owned(), message.into())]))
}

/// A result that says what went wrong.
pub(crate) fn error_result(code: &str, mut said: Object) -> Value {
    said.insert("error".to_owned(), code.into());
    json!({"isError": true, "content": [{"type": "text", "text": Value::Object(said.clone()).to_string()}], "structuredContent": said})
}

/// Takes what programs read out of a result, and says it in a text where that says nothing.
pub(crate) fn say_in_text(result: &mut Object) {
    let says_nothing = result.get("content").and_then(Value::as_array).is_none_or(Vec::is_empty);
    if let Some(structured) = result.remove("structuredContent").filter(|_| says_nothing) {
        result.insert("content".to_owned(), json!([{"type": "text", "text": structured.to_string()}]));
    }
}

/// A result that is one text, and what programs read.
pub(crate) fn text_result(text: &str, structured: &Value) -> Value {
    json!({"content": [{"type": "text", "text": text}], "structuredContent": structured})
}

#[cfg(test)]
mod tests {
    use rmcp::model::{CallToolResult, DiscoverResult, InitializeResult, ServerJsonRpcMessage};
    use serde_json::from_value;

    use super::*;

    fn read(body: &Value, headers: &McpHeaders) -> Result<bool, (u16, i64)> {
        match Message::read(body.to_string().as_bytes(), headers) {
            Ok(Incoming::Request(message)) => Ok(message.is_modern),
            Ok(Incoming::Notification) => Ok(false),
            Err(failure) => Err((failure.status, failure.message["error"]["code"].as_i64().unwrap_or(0))),
        }
    }

    #[test]
    fn what_is_answered_reads_as_the_types_of_the_official_sdk() {
        let is = |what: &str, read: Result<(), serde_json::Error>| assert!(read.is_ok(), "{what}: {read:?}");
        for version in SUPPORTED {
            let answer = initialized(Some(version), "Find tools.");
            is(version, from_value::<InitializeResult>(answer).map(drop));
        }
        let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "a"}});
        let Ok(Incoming::Request(message)) = Message::read(call.to_string().as_bytes(), &McpHeaders::default()) else {
            panic!("it is a request")
        };
        for (result, expected) in [
            (json!({"structuredContent": [1]}), json!({"content": [{"type": "text", "text": "[1]"}]})),
            (json!({"content": [{}], "structuredContent": 1}), json!({"content": [{}]})),
            (json!({"structuredContent": {"a": 1}}), json!({"structuredContent": {"a": 1}})),
        ] {
            assert_eq!(message.answer(result)["result"], expected, "older clients know objects alone");
        }
        let mut found = message.answer(discovered("Find tools."));
        found["result"]["resultType"] = "complete".into();
        is("discovered", from_value::<DiscoverResult>(found["result"].clone()).map(drop));
        for result in [text_result("said", &json!({"message": "said"})), error_text("NOT_CONNECTED", "Log in.")] {
            is("a result", from_value::<CallToolResult>(result).map(drop));
        }
        let failed = message.fail(404, METHOD_NOT_FOUND, "There is no such method here.").message;
        for told in
            [found, failed, tools_changed(None), tools_changed(Some(&json!("s"))), acknowledged(&json!("s"), true)]
        {
            let read = from_value::<ServerJsonRpcMessage>(told.clone()).map(drop);
            assert!(read.is_ok(), "{told}: {read:?}");
        }
    }

    #[test]
    fn headers_and_body_of_the_newer_family_must_say_the_same() {
        let meta = json!({"io.modelcontextprotocol/protocolVersion": MODERN,
            "io.modelcontextprotocol/clientCapabilities": {}});
        let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "ä", "_meta": meta}});
        let headers = |version: &str, method: &str, name: &str| McpHeaders {
            version: Some(version.to_owned()).filter(|text| !text.is_empty()),
            method: Some(method.to_owned()).filter(|text| !text.is_empty()),
            name: Some(name.to_owned()).filter(|text| !text.is_empty()),
            params: Vec::new(),
        };
        assert_eq!(read(&call, &headers(MODERN, "tools/call", "=?base64?w6Q=?=")), Ok(true));
        for (headers, code) in [
            (headers("", "tools/call", "ä"), -32020),
            (headers(NEWEST_LEGACY, "tools/call", "ä"), -32020),
            (headers(MODERN, "", "ä"), -32020),
            (headers(MODERN, "tools/list", "ä"), -32020),
            (headers(MODERN, "tools/call", ""), -32020),
            (headers(MODERN, "tools/call", "b"), -32020),
        ] {
            assert_eq!(read(&call, &headers), Err((400, code)), "{headers:?}");
        }
        let Ok(Incoming::Request(message)) =
            Message::read(call.to_string().as_bytes(), &headers(MODERN, "tools/call", "ä"))
        else {
            panic!("a call")
        };
        let schema = json!({"properties": {"region": {"x-mcp-header": "Region"},
            "at": {"properties": {"count": {"x-mcp-header": "Count"}}}}});
        for (arguments, params, is_good) in [
            (json!({"region": "ä", "at": {"count": 3}}), &[("region", "=?base64?w6Q=?="), ("count", "3")][..], true),
            (json!({"region": null}), &[], true),
            (json!({"region": "eu"}), &[], false),
            (json!({"region": "eu"}), &[("region", "us")], false),
            (json!({"region": "eu"}), &[("region", "eu"), ("region", "us")], false),
            (json!({}), &[("count", "3")], false),
        ] {
            let params = params.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
            let headers = McpHeaders { params, ..McpHeaders::default() };
            let arguments = arguments.as_object().expect("an object");
            assert_eq!(
                message.check_arguments(&repeated_in_headers(&schema), arguments, &headers).is_ok(),
                is_good,
                "{arguments:?}"
            );
        }
        let bare = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"});
        assert_eq!(read(&bare, &headers(MODERN, "tools/list", "")), Err((400, -32602)));
        assert_eq!(read(&bare, &headers("v9", "tools/list", "")), Err((400, -32022)));
        let unknown = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list",
            "params": {"_meta": {"io.modelcontextprotocol/protocolVersion": "v9"}}});
        assert_eq!(read(&unknown, &headers(MODERN, "tools/list", "")), Err((400, -32020)));
        for version in ["v9", ""] {
            assert_eq!(read(&unknown, &headers(version, "tools/list", "")), Err((400, -32022)));
        }
        let told = json!({"jsonrpc": "2.0", "method": "notifications/cancelled"});
        assert_eq!(read(&told, &headers("v9", "", "")), Err((400, -32022)));
        assert_eq!(read(&bare, &McpHeaders::default()), Ok(false), "the older family needs no header");
        assert_eq!(read(&json!([bare]), &McpHeaders::default()), Err((400, -32600)));
    }
}
