//! Requests that are not as they should be, at every route of the OpenAPI document but the streams.

use platform_testing::TestApp;
use reqwest::{Method, RequestBuilder};
use serde_json::{Map, Value, json};

use crate::support::{MISSING, UNBOUNDED, app_with, factor, one_of_each};

/// What stands where something else should.
const TEXTS: [&str; 16] = [
    "",
    " ",
    "null",
    "-1",
    "0",
    "1e400",
    "9223372036854775808",
    "NaN",
    "2026-13-45T25:61:61Z",
    "..",
    "' OR 1=1 --",
    "{\"$ne\":1}",
    "%s%n${x}{{y}}",
    "\u{202e}\u{1f4a5}\u{e000}",
    "\u{0}",
    "018F0000-0000-7000-8000-00000000000G",
];

/// Bodies that are no object, or no JSON.
const BODIES: [&[u8]; 14] = [
    b"",
    b"null",
    b"[]",
    b"[{}]",
    b"1",
    b"\"x\"",
    b"{",
    b"{\"name\":",
    b"{\"a\":1,\"a\":2}",
    b"{\"name\":NaN}",
    b"{\"name\":\"\\ud800\"}",
    b"{\"name\":1e999}",
    b"\xff\xfe{\x00}\x00",
    b"{\"\":\"\",\"__proto__\":{},\"$where\":\"1\"}",
];

const HEADERS: [(&str, &str); 12] = [
    ("content-type", "text/plain"),
    ("content-type", "application/json; charset=utf-7"),
    ("content-type", "multipart/form-data"),
    ("content-encoding", "gzip"),
    ("accept", "image/png;q=x"),
    ("if-match", "*, \"1\", W/\"x"),
    ("if-match", "\"99999999999999999999\""),
    ("idempotency-key", "\u{e9}"),
    ("x-request-id", "a b\tc"),
    ("traceparent", "00-zz-zz-zz"),
    ("origin", "null"),
    ("last-event-id", "-1;x"),
];

fn values() -> Vec<Value> {
    let mut values: Vec<Value> = TEXTS.iter().map(|text| (*text).into()).collect();
    let deep = (0..60).fold(json!(1), |inner, _| json!([inner]));
    values.extend([json!(null), json!(true), json!(-1), json!(1.5), json!(i64::MIN), json!(u64::MAX), json!(1e308)]);
    values.extend([json!([]), json!([null]), json!({}), json!({"": null}), deep, json!(vec![0; 3000])]);
    values.extend([json!("x".repeat(70_000)), json!([[1, "2"], {"a": []}])]);
    values
}

/// A route as the document describes it.
struct Route {
    method: Method,
    path: String,
    query: Vec<String>,
    /// Fields of its body; `None` = it has none.
    fields: Option<Vec<String>>,
}

async fn routes(app: &TestApp) -> Vec<Route> {
    let document = app.get("/openapi.json").await.body;
    let mut routes = Vec::new();
    for (path, methods) in document["paths"].as_object().expect("paths") {
        for (method, operation) in methods.as_object().expect("methods") {
            let parameters = operation["parameters"].as_array().into_iter().flatten();
            let query = parameters.filter(|parameter| parameter["in"] == "query");
            let query = query.filter_map(|parameter| parameter["name"].as_str().map(str::to_owned)).collect();
            let schema = &operation["requestBody"]["content"]["application/json"]["schema"];
            let schema = match schema["$ref"].as_str() {
                Some(reference) => document.pointer(reference.trim_start_matches('#')).expect("a schema"),
                None => schema,
            };
            let fields = schema["properties"].as_object().map(|fields| fields.keys().cloned().collect());
            let method = Method::from_bytes(method.to_uppercase().as_bytes()).expect("a method");
            routes.push(Route { method, path: path.clone(), query, fields });
        }
    }
    routes
}

impl Route {
    fn path(&self, fill: impl Fn(&str) -> String) -> String {
        let segment = |segment: &str| match segment.strip_prefix('{') {
            Some(name) => fill(name.trim_end_matches('}')),
            None => segment.to_owned(),
        };
        let segments: Vec<String> = self.path.split('/').map(segment).collect();
        segments.join("/")
    }

    /// A body that the route may take, but for what is laid over it.
    fn body(&self) -> Map<String, Value> {
        let fields = self.fields.iter().flatten();
        let good = |name: &str| matches!(name, "name" | "message").then(|| json!("Hi"));
        fields.filter_map(|name| Some((name.clone(), good(name)?))).collect()
    }

    /// Everything that is wrong with it, one thing at a time; `real` fills in what is there.
    fn wrong(&self, app: &TestApp, real: &impl Fn(&str, &str) -> String) -> Vec<(String, RequestBuilder)> {
        // What is there stays there.
        let is_gone = self.method == Method::DELETE;
        let fill = |name: &str| if is_gone { MISSING.to_owned() } else { real(&self.path, name) };
        let path = self.path(fill);
        let start = |path: &str| app.anonymous(self.method.clone(), path).bearer_auth(app.key());
        let good = |path: &str| match &self.fields {
            Some(_) => start(path).json(&self.body()),
            None => start(path),
        };
        let mut all: Vec<(String, RequestBuilder)> = Vec::new();
        for (name, value) in HEADERS {
            all.push((format!("{name}: {value}"), good(&path).header(name, value)));
        }
        for text in TEXTS {
            for name in self.path.split('/').filter_map(|segment| segment.strip_prefix('{')) {
                let name = name.trim_end_matches('}');
                let odd = percent_encoded(text);
                let path = self.path(|of| if of == name { odd.clone() } else { fill(of) });
                all.push((format!("{name} = {text:?}"), good(&path)));
            }
            for name in self.query.iter().map(String::as_str).chain(["unknown"]) {
                all.push((format!("?{name}={text:?}"), good(&format!("{path}?{name}={}", percent_encoded(text)))));
            }
        }
        let Some(fields) = &self.fields else { return all };
        for body in BODIES {
            let request = start(&path).header("content-type", "application/json").body(body);
            all.push((format!("body {:?}", String::from_utf8_lossy(body)), request));
        }
        for name in fields {
            for value in values() {
                let shown: String = value.to_string().chars().take(60).collect();
                let mut body = self.body();
                body.insert(name.clone(), value);
                all.push((format!("{name} = {shown}"), start(&path).json(&body)));
            }
        }
        all
    }
}

fn percent_encoded(text: &str) -> String {
    text.bytes().fold(String::new(), |encoded, byte| format!("{encoded}%{byte:02X}"))
}

#[tokio::test]
async fn whatever_is_wrong_with_a_request_the_answer_is_the_error_object_and_never_a_5xx() {
    let app = app_with(&UNBOUNDED).await;
    let real = one_of_each(&app, "our").await;
    let (mut at, mut sent) = (0, 0);
    for route in routes(&app).await {
        // It goes on until its reader leaves, and has tests of its own; OAuth answers as its standards say.
        // Where browsers come back to, people read the answer.
        let is_page = route.path == "/v1/integrations/callback";
        if route.path.ends_with("/stream") || !route.path.starts_with("/v1/") || is_page {
            continue;
        }
        for (what, request) in route.wrong(&app, &real) {
            at += 1;
            // One in ten, others of each route; all of them where the whole is asked for.
            if at % 10 != 0 && factor(10) == 1 {
                continue;
            }
            let what = format!("{} {} {what}", route.method, route.path);
            let Ok(reply) = tokio::time::timeout(std::time::Duration::from_secs(20), app.send(request)).await else {
                panic!("{what}: no answer");
            };
            sent += 1;
            // A judge or a server of tools may fail: that is no fault of the request.
            let asks_others = ["/evaluate", "/refresh"].iter().any(|end| route.path.ends_with(end));
            let is_upstream = asks_others && reply.error() == "UPSTREAM_ERROR";
            assert!(reply.status.as_u16() < 500 || is_upstream, "{what}: {} {}", reply.status, reply.body);
            // What is wrong with a message of a protocol is said in its terms.
            let is_protocol = route.path.starts_with("/v1/mcp") && reply.body["error"]["code"].is_i64();
            if reply.status.is_client_error() && !is_protocol {
                assert_eq!(reply.body["statusCode"], reply.status.as_u16(), "{what}: {}", reply.body);
                assert!(reply.body["message"].as_str().is_some_and(|text| !text.is_empty()), "{what}: {}", reply.body);
            }
        }
    }
    println!("{sent} of {at} requests");
    assert!(sent > 1000 * factor(10), "{sent} of {at}");
    assert_eq!(app.get("/health").await.body["status"], "ok");
}
