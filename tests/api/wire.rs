//! What clients send and get, by type: every body of the OpenAPI document field by field, and records that come back
//! as the contract writes them.

use std::{
    collections::BTreeSet,
    net::TcpListener,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use platform_testing::{Reply, TestApp};
use reqwest::{Method, StatusCode};
use serde_json::{Map, Value, json};

use crate::support::{UNBOUNDED, agent, app, app_with, one_of_each, text, thread, thread_in, tool, tool_server};

/// One place in a body, as names of fields; `[]` is an element of a list.
type JsonPath = Vec<String>;

/// Follows references, and takes what may be absent as what it is when it is there.
fn resolved<'a>(document: &'a Value, schema: &'a Value) -> &'a Value {
    if let Some(reference) = schema["$ref"].as_str() {
        return resolved(document, document.pointer(reference.trim_start_matches('#')).expect("a schema"));
    }
    let of = |name: &str| schema[name].as_array().into_iter().flatten().find(|part| part["type"] != "null");
    match of("oneOf").or_else(|| of("allOf")) {
        Some(part) if schema["properties"].is_null() => resolved(document, part),
        _ => schema,
    }
}

fn kind(schema: &Value) -> &str {
    let kinds = schema["type"].as_array().into_iter().flatten().filter_map(Value::as_str);
    schema["type"].as_str().or_else(|| kinds.into_iter().find(|kind| *kind != "null")).unwrap_or_default()
}

/// Every place of a schema with what must not stand there.
fn places(document: &Value, schema: &Value, at: &JsonPath, into: &mut Vec<(JsonPath, Vec<Value>)>) {
    let schema = resolved(document, schema);
    let below = |name: &str| at.iter().cloned().chain([name.to_owned()]).collect::<JsonPath>();
    let wrong = match kind(schema) {
        "object" => json!([[], [3, true], ["x"], 5, "x", true]),
        "array" => json!([{}, 5, "x", true]),
        "string" if schema["enum"].is_array() => json!([5, true, [], {}, "no such name", {"x": null}]),
        "string" => json!([5, true, [], {}]),
        "boolean" => json!(["true", 1, [], {}]),
        "integer" => json!(["1", 1.5, true, [], {}]),
        "number" => json!(["1", true, [], {}]),
        _ => json!([]),
    };
    let mut wrong = wrong.as_array().expect("a list").clone();
    if kind(schema) == "integer" && schema["minimum"] == 0 {
        wrong.push(json!(-1));
    }
    if !at.is_empty() && !wrong.is_empty() {
        into.push((at.clone(), wrong));
    }
    // Schemas within schemas would never end.
    if at.len() < 6 {
        // What the server alone sets is sent back as it may be.
        let fields = schema["properties"].as_object().into_iter().flatten();
        for (name, field) in fields.filter(|(_, field)| field["readOnly"] != true) {
            places(document, field, &below(name), into);
        }
        if schema["items"].is_object() {
            places(document, &schema["items"], &below("[]"), into);
        }
    }
}

/// Values without which nothing else of a body would be looked at.
fn needed() -> Map<String, Value> {
    let needed = json!({"name": "x", "url": "https://a.example", "tierId": "our-canary-tier", "tokens": 1,
        "tenantId": "our-canary-tenant", "authenticationMethod": "none", "tool_call_id": "x",
        "message": "x"});
    needed.as_object().expect("fields").clone()
}

/// A body that holds a value at a place, and beside it what is needed.
fn body(document: &Value, schema: &Value, place: &[String], value: &Value) -> Value {
    let Some((name, rest)) = place.split_first() else { return value.clone() };
    let schema = resolved(document, schema);
    if name == "[]" {
        return json!([body(document, &schema["items"], rest, value)]);
    }
    let mut fields = needed();
    fields.retain(|name, _| schema["properties"].get(name).is_some());
    fields.insert(name.clone(), body(document, &schema["properties"][name], rest, value));
    Value::Object(fields)
}

/// Every operation below `/v1`, its route and what its JSON is; what stands at the root answers in the form of RFC 6749.
fn bodies(document: &Value) -> Vec<(Method, &str, &Value)> {
    let mut bodies = Vec::new();
    let routes = document["paths"].as_object().expect("paths").iter().filter(|(route, _)| route.starts_with("/v1/"));
    for (route, methods) in routes {
        for (method, operation) in methods.as_object().expect("methods") {
            let method = Method::from_bytes(method.to_uppercase().as_bytes()).expect("a method");
            bodies.push((method, route.as_str(), &operation["requestBody"]["content"]["application/json"]["schema"]));
        }
    }
    bodies
}

/// A route with values for its placeholders.
fn filled(route: &str, value: impl Fn(&str) -> String) -> String {
    let segment = |segment: &str| match segment.strip_prefix('{') {
        Some(name) => value(name.trim_end_matches('}')),
        None => segment.to_owned(),
    };
    route.split('/').map(segment).collect::<Vec<_>>().join("/")
}

/// The place as issues name it.
fn path(place: &[String]) -> String {
    place.iter().fold(String::new(), |path, name| match name.as_str() {
        "[]" => format!("{path}[0]"),
        name if path.is_empty() => name.to_owned(),
        name => format!("{path}.{name}"),
    })
}

/// Fields whose wrong values have a code of their own (contract 00 §7).
fn own_code(path: &str) -> Option<&'static str> {
    Some(match path {
        "ttlSeconds" => "INVALID_TTL",
        "tokens" | "cost" => "INVALID_USAGE_AMOUNT",
        "source" => "INVALID_USAGE_SOURCE",
        "subAgentConfig.inputStructure" | "subAgentConfig.outputStructure" => "INVALID_SUBAGENT_CONFIG",
        _ => return None,
    })
}

fn is_refused(reply: &Reply, place: &str) -> bool {
    let issues = reply.body["details"]["issues"].as_array().into_iter().flatten();
    // A tool is judged as one of its server.
    let of_tool =
        |path: &str| path.starts_with("toolDefinitions[") && path.split_once("].").is_some_and(|of| of.1 == place);
    let is_named = |path: &str| path.starts_with(place) || of_tool(path);
    let named = issues.filter_map(|issue| issue["path"].as_str()).any(is_named);
    reply.status == StatusCode::BAD_REQUEST && (named || own_code(place) == Some(reply.error()))
}

#[tokio::test]
async fn every_field_of_every_body_is_of_its_type_however_deep_it_stands() {
    let app = app_with(&UNBOUNDED).await;
    let real = one_of_each(&app, "our").await;
    let document = app.get("/openapi.json").await.body;
    let mut tried = 0;
    let mut passed = Vec::new();
    for (method, route, schema) in bodies(&document) {
        let address = filled(route, |name| real(route, name));
        // Fields are judged before it matters whether there is what the path names.
        let nowhere = filled(route, |_| "nobody".to_owned());
        let mut all = Vec::new();
        places(&document, schema, &Vec::new(), &mut all);
        for (place, wrong) in all {
            let at_nobody = wrong.first().filter(|_| nowhere != address).map(|value| (&nowhere, value));
            for (address, value) in wrong.iter().map(|value| (&address, value)).chain(at_nobody) {
                let request = app.anonymous(method.clone(), address).bearer_auth(app.key());
                let reply = app.send(request.json(&body(&document, schema, &place, value))).await;
                tried += 1;
                if !is_refused(&reply, &path(&place)) {
                    passed.push(format!("{method} {address} {} = {value}: {}", path(&place), reply.body));
                }
            }
            // `null` counts as absent where a field may be, below the top level, too.
            if place.len() > 1 && place.last().is_some_and(|name| name != "[]") {
                let request = app.anonymous(method.clone(), &nowhere).bearer_auth(app.key());
                let reply = app.send(request.json(&body(&document, schema, &place, &Value::Null))).await;
                if reply.body["message"].as_str().is_some_and(|message| message.contains("not null")) {
                    passed.push(format!("{method} {nowhere} {} = null: {}", path(&place), reply.body));
                }
            }
        }
    }
    assert!(passed.is_empty(), "{} of {tried}:\n{}", passed.len(), passed.join("\n"));
    assert!(tried > 1000, "{tried}");
}

#[tokio::test]
async fn every_text_and_every_list_of_texts_that_is_kept_has_a_bound_of_its_own() {
    let app = app_with(&UNBOUNDED).await;
    let real = one_of_each(&app, "our").await;
    let document = app.get("/openapi.json").await.body;
    let long = json!("x".repeat(300_000));
    let many: Vec<String> = (0..30_000).map(|n| format!("n{n}")).collect();
    let (mut tried, mut kept) = (0, Vec::new());
    for (method, route, schema) in bodies(&document) {
        let address = filled(route, |name| real(route, name));
        let mut all = Vec::new();
        places(&document, schema, &Vec::new(), &mut all);
        for (place, wrong) in all {
            let is_list = wrong.contains(&json!("x")) && wrong.contains(&json!({}));
            let is_kept = route != "/v1/assistants/chats" && !UNKEPT.contains(&(route, path(&place).as_str()));
            if !is_kept || wrong.iter().any(Value::is_string) && !is_list {
                continue;
            }
            let value = if is_list { json!(many) } else { long.clone() };
            let request = app.anonymous(method.clone(), &address).bearer_auth(app.key());
            let reply = app.send(request.json(&body(&document, schema, &place, &value))).await;
            tried += 1;
            if !reply.status.is_client_error() {
                kept.push(format!("{method} {route} {}: {}", path(&place), reply.status));
            }
        }
    }
    assert!(kept.is_empty(), "{} of {tried}:\n{}", kept.len(), kept.join("\n"));
    assert!(tried > 400, "{tried}");
}

/// Texts that may be as long as that, or that nobody reads; a list of chats is asked for with a body.
const UNKEPT: [(&str, &str); 4] = [
    ("/v1/documents", "markdownContent"),
    ("/v1/documents/{id}", "markdownContent"),
    ("/v1/tenant-admin/tiers/{tierId}", "tierId"),
    ("/v1/tool-servers/{toolServerId}/tools/{toolName}", "title"),
];

/// Puts addresses into every text of every body of the document; how many times.
async fn name_everywhere(app: &TestApp, addresses: &[String]) -> usize {
    let real = one_of_each(app, "our").await;
    let document = app.get("/openapi.json").await.body;
    let mut named = 0;
    for (method, route, schema) in bodies(&document) {
        let at = filled(route, |name| real(route, name));
        let mut all = Vec::new();
        places(&document, schema, &Vec::new(), &mut all);
        // Where no text is wrong there is text.
        let is_text = |wrong: &[Value]| !wrong.iter().any(|value| value.is_string() || value.is_null());
        for (place, _) in all.into_iter().filter(|(_, wrong)| is_text(wrong)) {
            for address in addresses {
                let request = app.anonymous(method.clone(), &at).bearer_auth(app.key());
                let reply = app.send(request.json(&body(&document, schema, &place, &json!(address)))).await;
                assert!(!reply.status.is_server_error(), "{at} {}: {}", path(&place), reply.body);
                named += 1;
            }
        }
    }
    named
}

/// A server of this host: its port, and how often somebody came.
fn inside() -> (u16, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let (port, visits) = (listener.local_addr().expect("an address").port(), Arc::new(AtomicUsize::new(0)));
    let counts = Arc::clone(&visits);
    std::thread::spawn(move || {
        for _ in listener.incoming() {
            counts.fetch_add(1, Ordering::Relaxed);
        }
    });
    (port, visits)
}

#[tokio::test]
async fn an_inner_address_in_any_text_of_any_body_is_never_called() {
    let (port, visits) = inside();
    let addresses = ["127.0.0.1", "localhost", "[::ffff:7f00:1]"].map(|host| format!("http://{host}:{port}/"));
    let named = name_everywhere(&app_with(&UNBOUNDED).await, &addresses).await;
    assert!(named > 600, "{named}");
    assert_eq!(visits.load(Ordering::Relaxed), 0);
    // Where it is allowed it is called: the doors are there.
    let open = app_with(&[&UNBOUNDED[..], &[("PLATFORM_EGRESS_ALLOW", "127.0.0.1")]].concat()).await;
    name_everywhere(&open, &addresses[..1]).await;
    assert!(visits.load(Ordering::Relaxed) >= 5, "{visits:?}");
}

/// Every text of a value that is one of `words`, whatever its case.
fn named<'a>(value: &'a Value, words: &[&str], into: &mut Vec<&'a str>) {
    match value {
        Value::String(text) if words.iter().any(|word| word.eq_ignore_ascii_case(text)) => into.push(text),
        Value::Array(items) => items.iter().for_each(|item| named(item, words, into)),
        Value::Object(fields) => fields.values().for_each(|field| named(field, words, into)),
        _ => {}
    }
}

#[tokio::test]
async fn enumerations_come_out_as_the_contract_writes_them_however_they_were_given() {
    let app = app_with(&UNBOUNDED).await;
    let assistant = json!({"name": "A", "state": "COMING_SOON", "reasoningEffort": "High",
        "coreMemory": {"enabled": true, "scope": "SUBTENANT"},
        "tenantIntegrationsConfig": {"enabled": true, "identityMode": "SIGNED", "apps": [{"app": "slack"}]},
        "guardrailsConfiguration": {"enabled": true, "input": [
            {"name": "a", "kind": "PII", "action": "REDACT", "config": {"types": ["EMAIL", "Iban"]}},
            {"name": "b", "kind": "Prompt_Injection", "action": "WARN", "config": {}}]}});
    let specialization =
        json!({"reasoningEffort": "HIGH", "guardrailsConfiguration": assistant["guardrailsConfiguration"]});
    let agent = json!({"name": "A", "assistantSpecialization": specialization,
        "subAgentConfig": {"enabled": true, "inputFormat": "TEXT", "outputFormat": "Text"}});
    let tools = json!({"name": "T", "url": "https://a.example", "type": "HTTP", "mcpAuthMode": "PER_USER",
        "authenticationConfig": {"authenticationMethod": "OAUTH2", "clientId": "c", "clientSecret": "s",
            "refreshTokenEndpoint": "https://a.example/t", "grant_type": "CLIENT_CREDENTIALS", "requestFormat": "JSON"},
        "toolDefinitions": [{"type": "FUNCTION", "function": {"name": "f"}, "method": "post", "bodyMode": "ADVANCED",
            "bodyJsonTemplate": "params"}]});
    let key = json!({"name": "K", "identityMode": "OPEN", "preset": "UI",
        "allowedEndpoints": [{"method": "get", "path": "/assistants"}]});
    let rule = json!({"scope": "TENANT", "metric": "COST", "windowUnit": "MONTH", "limit": 5});
    let tier = json!({"tierId": "pro", "name": "P", "rules": [rule]});
    let user = json!({"email": "a@b.example", "password": "correct horse battery", "role": "ADMIN"});
    let project = json!({"name": "P", "identifier": "p", "visibility": "PUBLIC"});
    for (path, given, words) in [
        (
            "/assistants",
            assistant,
            &[
                "coming_soon",
                "high",
                "subtenant",
                "signed",
                "pii",
                "redact",
                "email",
                "iban",
                "prompt_injection",
                "warn",
            ][..],
        ),
        ("/agents", agent, &["high", "pii", "redact", "email", "iban", "prompt_injection", "warn", "text", "text"]),
        (
            "/tool-servers",
            tools,
            &["http", "per_user", "oauth2", "client_credentials", "json", "function", "POST", "advanced"],
        ),
        ("/api-keys", key, &["open", "ui", "GET"]),
        ("/tenant-admin/tiers", tier, &["tenant", "cost", "month"]),
        ("/users", user, &["admin"]),
        ("/projects", project, &["public"]),
    ] {
        let made = app.post(path, given).await;
        assert_eq!(made.status, StatusCode::CREATED, "{path}: {}", made.body);
        let mut shown = Vec::new();
        named(&made.body, words, &mut shown);
        for word in words {
            assert!(shown.contains(word), "{path}: `{word}` is not in {}", made.body);
        }
        assert!(shown.iter().all(|text| words.contains(text)), "{path}: {shown:?}");
    }
    // Where they are asked for, and in queries.
    let member = text(
        &app.post("/users", json!({"email": "m@b.example", "password": "correct horse battery"})).await.body["userUID"],
    );
    let added = app.post("/projects/p/members", json!({"userUID": member, "role": "EDITOR"})).await;
    assert_eq!((added.status, &added.body["role"]), (StatusCode::CREATED, &json!("editor")));
    let past = json!([{"role": "USER", "message": "Hi"}, {"role": "Assistant", "message": "Hello"}]);
    let files = json!({"message": "x", "previousConversation": past, "tenantId": "acme"});
    assert_eq!(app.post("/assistants/default/messages", files).await.status, StatusCode::OK);
    for path in [
        "/tool-servers?type=HTTP",
        "/tenant-usage/acme/history?metric=TOKENS&windowUnit=Day&scope=TENANT",
        "/tenants/acme/costs?granularity=MONTHLY",
        "/agents/threads?state=RUNNING,completed&dateOrder=ASC",
    ] {
        let reply = app.get(path).await;
        assert_eq!(reply.status, StatusCode::OK, "{path}: {}", reply.body);
    }
    let unknown = app.get("/tenant-usage/acme/history?metric=apples").await;
    assert_eq!(unknown.body["details"]["issues"][0]["code"], "enum", "{}", unknown.body);
}

/// What an answer says had no effect.
fn ignored(reply: &Reply) -> &str {
    assert!(reply.status.is_success(), "{} {}", reply.status, reply.body);
    reply.header("x-ignored-fields")
}

#[tokio::test]
async fn a_record_that_was_read_can_be_sent_back_whole() {
    let app = app_with(&UNBOUNDED).await;
    let real = one_of_each(&app, "our").await;
    let id = |path: &str, name: &str| real(path, name);
    let started = json!({"message": "Work", "name": "T", "tags": ["a"], "tenantId": "acme", "subtenantId": "ann"});
    let started = app.post(&format!("/agents/{}/threads", id("", "agentId")), started).await.body;
    let worked = text(&started["threadId"]);
    thread_in(&app, &worked, "completed").await;
    app.post(&format!("/agents/threads/{worked}/evaluate"), json!({})).await;
    let server = id("", "toolServerId");
    for path in [
        format!("/agents/threads/{worked}"),
        format!("/agents/threads/{worked}?withTasks=true&omitContent=true"),
        format!("/assistants/{}/chats/{}", id("", "identifier"), id("", "chatUid")),
        format!("/assistants/{}", id("", "identifier")),
        format!("/agents/{}", id("", "agentId")),
        format!("/tool-servers/{server}"),
        format!("/tool-servers/{server}/tools/canary"),
        format!("/projects/{}", id("projects", "id")),
        format!("/api-keys/{}", id("api-keys", "id")),
        format!("/oauth-clients/{}", id("oauth-clients", "id")),
        format!("/users/{}", id("", "userUID")),
        format!("/tenants/{}", id("", "tenantId")),
        format!("/tenants/{}/subtenants/{}", id("", "tenantId"), id("", "subtenantId")),
    ] {
        let read = app.get(&path).await;
        assert_eq!(read.status, StatusCode::OK, "{path}: {}", read.body);
        let back = app.patch(path.split('?').next().expect("a path"), read.body).await;
        assert_eq!(ignored(&back), "", "{path}");
    }
    // Of an action, which makes no record, each name that does nothing is told.
    let paused = json!({"mode": "graceful", "pauseUntil": 5, "state": "paused"});
    let held = thread(&app, &id("", "agentId"), "/wait 20s\nx").await;
    let paused = app.post(&format!("/agents/threads/{held}/pause"), paused).await;
    assert_eq!(ignored(&paused), "pauseUntil,state");
}

#[tokio::test]
async fn what_nothing_reads_is_said_and_what_is_kept_is_not() {
    let app = app_with(&UNBOUNDED).await;
    let hook = "https://93.184.216.34/hook";
    let made = app.post("/agents?strict=true", json!({"name": "A", "webhookUrl": hook})).await;
    assert_eq!(ignored(&made), "");
    let agent = format!("/agents/{}", text(&made.body["_id"]));
    assert_eq!(ignored(&app.patch(&agent, json!({"webhookUrl": null})).await), "");
    let task = json!({"message": "x", "callbackUrl": hook, "colour": "red"});
    assert_eq!(ignored(&app.post(&format!("{agent}/threads"), task).await), "colour");
    let parts = json!({"name": "A", "identifier": "a", "coreMemory": {"enabled": true},
        "tenantIntegrationsConfig": {"enabled": true}, "tenantMcpConfig": {"enabled": false}});
    assert_eq!(ignored(&app.post("/assistants", parts).await), "");
    assert_eq!(ignored(&app.patch("/assistants/a", json!({"tenantMcpConfig": {"enabled": true}})).await), "");
    assert_eq!(ignored(&app.patch("/assistants/a", json!({"name": "B"})).await), "");
    let tools = json!({"name": "T", "url": "https://a.example", "mcpExposed": true});
    assert_eq!(ignored(&app.post("/tool-servers", tools).await), "");
}

/// Sends a message with tags and metadata to the chat `c` of an assistant.
async fn note(app: &TestApp, assistant: &str, how: &str, tags: &[String], metadata: Value) -> Reply {
    let message = json!({"message": "Hi", "chatUid": "c", "tags": tags, "metadata": metadata,
        "skipSummarization": true});
    app.post(&format!("/assistants/{assistant}/messages{how}"), message).await
}

#[tokio::test]
async fn tags_and_metadata_of_a_chat_are_bounded_as_they_become_with_each_message() {
    // A chat that takes messages at once, one that gathers them, and one that queues them.
    for (assistant, how, delay) in [("sync", "", 0), ("async", "?async=true", 0), ("gathers", "?async=true", 30_000)] {
        let app = app_with(&UNBOUNDED).await;
        app.post("/assistants", json!({"name": "A", "identifier": assistant, "inputDelayMs": delay})).await;
        let tags = |range: std::ops::Range<usize>| range.map(|i| format!("tag{i}")).collect::<Vec<_>>();
        let chat = format!("/assistants/{assistant}/chats/c");
        let first = note(&app, assistant, how, &tags(0..40), json!({"a": "x".repeat(40_000)})).await;
        assert_eq!(first.status, StatusCode::OK, "{}", first.body);
        if delay == 0 {
            crate::support::finished_of(&app, assistant, "c").await;
        }
        let before = app.get(&chat).await.body;
        for (tags, metadata, path) in [
            (tags(35..51), json!({}), "tags"),
            (tags(0..1), json!({"b": "x".repeat(30_000)}), "metadata"),
            (tags(40..60), json!({"b": "x".repeat(30_000)}), "tags"),
        ] {
            let refused = note(&app, assistant, how, &tags, metadata).await;
            assert_eq!((refused.status, refused.error()), (StatusCode::BAD_REQUEST, "VALIDATION_ERROR"), "{how}");
            assert_eq!(refused.body["details"]["issues"][0]["path"], path, "{}", refused.body);
        }
        assert_eq!(app.get(&chat).await.body, before, "what is refused changes nothing");
        // To the last one there is room, in as many bytes as the record is sent with.
        let rest = 65_536 - before["metadata"].to_string().len() - r#","b":"""#.len();
        let (over, full) = (json!({"b": "y".repeat(rest + 1)}), json!({"b": "y".repeat(rest)}));
        assert_eq!(note(&app, assistant, how, &[], over).await.status, StatusCode::BAD_REQUEST);
        assert_eq!(note(&app, assistant, how, &tags(30..50), full).await.status, StatusCode::OK);
        let now = app.get(&chat).await.body;
        assert_eq!((now["tags"].as_array().map(Vec::len), now["metadata"].to_string().len()), (Some(50), 65_536));
        assert_eq!(ignored(&app.patch(&chat, now).await), "", "it can be sent back");
        // What changes nothing fits, also where there is no room.
        assert_eq!(note(&app, assistant, how, &tags(0..50), json!({})).await.status, StatusCode::OK, "{how}");
    }
    let app = app_with(&[("PLATFORM_LIMIT_TAGS", "0"), ("PLATFORM_LIMIT_METADATA_BYTES", "0")]).await;
    for i in 0..3 {
        let tags: Vec<String> = (0..40).map(|n| format!("{i}-{n}")).collect();
        let metadata = json!({format!("{i}"): "x".repeat(40_000)});
        assert_eq!(note(&app, "default", "", &tags, metadata).await.status, StatusCode::OK, "0 is no bound");
    }
}

#[tokio::test]
async fn what_an_error_is_about_stands_in_its_sentence() {
    let app = app_with(&UNBOUNDED).await;
    let closed = agent(&app, json!({})).await;
    let server = tool_server(&app, "https://a.example", &[tool("f", "/x", &json!({}))]).await;
    let user = json!({"name": "U", "identifier": "u", "availableToolsGroupsUids": [server]});
    let user = text(&app.post("/assistants", user).await.body["_id"]);
    let delete = app.delete(&format!("/tool-servers/{server}")).await;
    assert!(delete.error() == "CONFLICT" && delete.body["message"].to_string().contains(&user), "{}", delete.body);
    for (body, code, names) in [
        (json!({"subagentsIds": [closed, "nobody"]}), "INVALID_SUBAGENTS", [closed.as_str(), "nobody"]),
        (json!({"knowledgeSkills": [{"id": "s1"}, {"id": "s2", "type": "Folder"}]}), "INVALID_SKILLS", ["s1", "s2"]),
        (json!({"availableToolsGroupsUids": ["no-such"]}), "TOOL_SERVER_NOT_FOUND", ["no-such", "no-such"]),
        (json!({"provider": "acme", "model": "m9"}), "PROVIDER_NOT_CONFIGURED", ["acme", "acme"]),
        (json!({"provider": "demo", "model": "m9"}), "MODEL_NOT_SUPPORTED", ["m9", "demo"]),
        (json!({"environmentId": "e1"}), "ENVIRONMENT_NOT_FOUND", ["e1", "e1"]),
        (json!({"knowledgeDocumentIds": ["d1"]}), "DOCUMENT_NOT_FOUND", ["d1", "d1"]),
        (json!({"projectId": "p1"}), "PROJECT_NOT_FOUND", ["p1", "p1"]),
    ] {
        let mut body = body;
        body["name"] = "A".into();
        let refused = app.post("/assistants", body).await;
        assert_eq!(refused.error(), code, "{}", refused.body);
        let message = refused.body["message"].as_str().expect("a message");
        assert!(names.iter().all(|name| message.contains(name)), "{message}");
    }
}

#[tokio::test]
async fn a_credential_that_would_not_count_is_refused_by_its_name() {
    let app = app_with(&UNBOUNDED).await;
    let server = tool_server(&app, "https://a.example", &[tool("f", "/x", &json!({}))]).await;
    for (config, path) in [
        (json!({"authenticationMethod": "jwt", "token": "t", "bearer": "t"}), "authenticationConfig.bearer"),
        (json!({"authenticationMethod": "none", "apiKey": "k"}), "authenticationConfig.apiKey"),
        (json!({"token": "t"}), "authenticationConfig.authenticationMethod"),
        (json!({"authenticationMethod": null, "token": "t"}), "authenticationConfig.authenticationMethod"),
    ] {
        let new = json!({"name": "T", "url": "https://a.example", "authenticationConfig": config});
        let changed = app.patch(&format!("/tool-servers/{server}"), json!({"authenticationConfig": config})).await;
        for refused in [app.post("/tool-servers", new).await, changed] {
            assert_eq!((refused.status, refused.error()), (StatusCode::BAD_REQUEST, "VALIDATION_ERROR"), "{config}");
            assert_eq!(refused.body["details"]["issues"][0]["path"], path, "{}", refused.body);
            let message = refused.body["message"].as_str().expect("a message");
            assert!(path.ends_with("Method") || message.contains("`clientSecret`"), "the names that exist: {message}");
        }
    }
    for config in [
        json!({}),
        json!({"authenticationMethod": "Custom Headers", "custom_headers": [{"headerName": "X", "value": "v"}]}),
    ] {
        let changed = app.patch(&format!("/tool-servers/{server}"), json!({"authenticationConfig": config})).await;
        assert_eq!(changed.status, StatusCode::OK, "{}", changed.body);
    }
}

#[tokio::test]
async fn fields_are_judged_before_the_record_and_its_version() {
    let app = app_with(&UNBOUNDED).await;
    let wrong = [
        ("environments", json!({"name": ""})),
        ("environments", json!({"sandboxConfig": {"cpus": 99}})),
        ("environments", json!({"name": null})),
        ("documents", json!({"name": ""})),
        ("documents", json!({"summary": "x".repeat(4001)})),
        ("document-folders", json!({"name": ""})),
        ("assistants", json!({"name": ""})),
        ("agents", json!({"name": ""})),
        ("agents", json!({"description": "x".repeat(4001)})),
        ("projects", json!({"name": ""})),
        ("api-keys", json!({"name": ""})),
        ("users", json!({"email": "nobody"})),
        ("oauth-clients", json!({"name": ""})),
        ("webhooks", json!({"events": ["nothing"]})),
        ("triggers", json!({"rateLimitPerMinute": 0})),
        ("mcp-gateway/profiles", json!({"name": ""})),
        ("tenants", json!({"displayName": "x".repeat(201)})),
    ];
    let mut late = Vec::new();
    for (path, patch) in wrong {
        let request = app.request(Method::PATCH, &format!("/{path}/nobody")).header("if-match", "\"99\"");
        let refused = app.send(request.json(&patch)).await;
        if (refused.status, refused.error()) != (StatusCode::BAD_REQUEST, "VALIDATION_ERROR") {
            late.push(format!("{path} {patch}: {}", refused.body));
        }
    }
    for query in
        ["agents/nobody/threads?state=zz", "agents/nobody/threads?startDate=x", "projects/nobody/threads?state=zz"]
    {
        let refused = app.get(&format!("/{query}")).await;
        if refused.status != StatusCode::BAD_REQUEST {
            late.push(format!("{query}: {}", refused.body));
        }
    }
    assert!(late.is_empty(), "{late:#?}");
    let right = app.patch("/environments/nobody", json!({"name": "x"})).await;
    assert_eq!(right.error(), "ENVIRONMENT_NOT_FOUND");
}

#[tokio::test]
async fn a_name_that_is_not_given_is_said_to_be_required_wherever_there_is_one() {
    let app = app_with(&UNBOUNDED).await;
    for path in [
        "agents",
        "api-keys",
        "assistants",
        "document-folders",
        "documents",
        "environments",
        "mcp-gateway/profiles",
        "oauth-clients",
        "projects",
        "skills/scaffold",
        "tenant-admin/tiers",
        "tool-servers",
    ] {
        for mut blank in [json!({}), json!({"name": "  "})] {
            blank["markdownContent"] = "Of documents alone".into();
            let refused = app.post(&format!("/{path}"), blank).await;
            assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{path}: {}", refused.body);
            let issues = refused.body["details"]["issues"].as_array().cloned().unwrap_or_default();
            let is_said = issues.iter().any(|issue| issue["path"] == "name" && issue["code"] == "required");
            assert!(is_said, "{path}: {}", refused.body);
        }
    }
}

/// Names of the fields of a schema and of what it refers to.
fn fields_of(schema: &Value, schemas: &Value, entered: &mut BTreeSet<String>, into: &mut BTreeSet<String>) {
    if let Some(name) = schema["$ref"].as_str().and_then(|of| of.rsplit('/').next()) {
        if entered.insert(name.to_owned()) {
            fields_of(&schemas[name], schemas, entered, into);
        }
        return;
    }
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        into.insert(name.clone());
        fields_of(field, schemas, entered, into);
    }
    let parts = ["allOf", "oneOf", "anyOf"].iter().flat_map(|of| schema[*of].as_array().into_iter().flatten());
    for part in parts.chain([&schema["items"], &schema["additionalProperties"]]).filter(|part| part.is_object()) {
        fields_of(part, schemas, entered, into);
    }
}

#[tokio::test]
async fn every_field_that_a_request_may_have_is_sent_by_a_test() {
    // Kept without effect (contract 02), set by the server alone, a hint that nothing depends on (RFC 7662).
    const UNSENT: [&str; 4] = ["availableSkillIds", "changedTimestampMs", "codeSnippetIds", "token_type_hint"];
    let document = app().await.get("/openapi.json").await.body;
    let mut fields = BTreeSet::new();
    for operation in document["paths"].as_object().expect("paths").values().filter_map(Value::as_object).flatten() {
        let parameters = operation.1["parameters"].as_array().into_iter().flatten();
        let queries = parameters.filter(|parameter| parameter["in"] == "query");
        fields.extend(queries.filter_map(|parameter| parameter["name"].as_str().map(str::to_owned)));
        for body in operation.1["requestBody"]["content"].as_object().into_iter().flatten() {
            fields_of(&body.1["schema"], &document["components"]["schemas"], &mut BTreeSet::new(), &mut fields);
        }
    }
    let mut tests = String::new();
    let mut folders = vec![std::path::PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/api"))];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
            if entry.path().is_dir() {
                folders.push(entry.path());
            } else if entry.path().extension().is_some_and(|kind| kind == "rs") && !entry.path().ends_with("wire.rs") {
                tests.push_str(&std::fs::read_to_string(entry.path()).expect("text"));
            }
        }
    }
    assert!(fields.len() > 300, "{}", fields.len());
    // In JSON, in JSON within a text, as a field of a form or in a query.
    let is_sent = |name: &&String| {
        [format!("\"{name}\""), format!("\"{name}\\\""), format!("{name}=")].iter().any(|of| tests.contains(of))
    };
    let unsent: Vec<&String> = fields.iter().filter(|name| !is_sent(name)).collect();
    assert_eq!(unsent, UNSENT, "no test sends them");
}

/// Whether an answer shows something that could have been left out.
fn shows_some(body: &Value) -> bool {
    match body {
        Value::Array(items) => !items.is_empty(),
        Value::Object(fields) => fields.values().any(shows_some),
        _ => false,
    }
}

#[tokio::test]
async fn what_a_query_may_say_changes_the_answer_or_is_refused_or_is_told_to_be_ignored() {
    let app = app_with(&UNBOUNDED).await;
    let real = one_of_each(&app, "our").await;
    let document = app.get("/openapi.json").await.body;
    let (mut compared, mut without_effect) = (0, Vec::new());
    for (path, methods) in document["paths"].as_object().expect("paths") {
        let parameters: Vec<&Value> = methods["get"]["parameters"].as_array().into_iter().flatten().collect();
        let of_query =
            |parameter: &&&Value| parameter["in"] == "query" && !parameter["schema"].to_string().contains("integer");
        let names: Vec<String> = parameters.iter().filter(of_query).map(|parameter| text(&parameter["name"])).collect();
        let fill = |part: &str| match part.strip_prefix('{').and_then(|part| part.strip_suffix('}')) {
            Some("app") => "github".to_owned(),
            Some(name) => real(path, name),
            None => part.to_owned(),
        };
        let at = path.trim_start_matches("/v1").split('/').map(fill).collect::<Vec<_>>().join("/");
        if !path.starts_with("/v1") || names.is_empty() || path.ends_with("/stream") {
            continue;
        }
        let whose = if path.contains("/memory/") { "tenantId=our-canary-tenant" } else { "q=canary" };
        let base = app.get(&format!("{at}?{whose}")).await;
        if base.status != StatusCode::OK || !shows_some(&base.body) {
            continue;
        }
        for name in names.iter().filter(|name| !whose.starts_with(name.as_str())) {
            let said = app.get(&format!("{at}?{whose}&{name}=zzz-nothing")).await;
            let is_told = said.header("x-ignored-fields").split(',').any(|told| told == format!("?{name}"));
            compared += 1;
            // It has one where an assistant remembers by end user (contract 11).
            let is_of_others = path.contains("/memory/") && name == "subtenantId";
            if said.status == StatusCode::OK && said.body == base.body && !is_told && !is_of_others {
                without_effect.push(format!("GET {path} {name}"));
            }
        }
    }
    assert!(compared > 80, "{compared}");
    assert!(without_effect.is_empty(), "{without_effect:#?}");
}
