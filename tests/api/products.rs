//! The built-in connectors of products that cannot be called here: their tools, called where each request is kept.

use std::{collections::BTreeMap, path::Path};

use base64::{
    Engine,
    engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD},
};
use platform_testing::{FakeToolServer, TestApp, TestDb, ToolRequest};
use reqwest::{Method, StatusCode, Url};
use serde_json::{Value, json};

use crate::{
    support::{PROGRAM, UNBOUNDED, agent, eventually, text},
    triggers::{hex, hook, outcomes, tag, trigger},
};

const PRODUCTS: [&str; 6] = ["github", "gmail", "google-drive", "linear", "notion", "slack"];

/// What products answer, by tool, and what a model is told of it.
const ANSWERS: &str = include_str!("products.json");

/// Payloads that GitHub publishes, by event type (github.com/octokit/webhooks, MIT); a pull request that was closed is
/// not merged.
const GITHUB: &str = include_str!("github_events.json");

/// Of these arguments a product takes one.
const ONE_OF: [(&str, &str, &[&str]); 1] = [("notion", "create_comment", &["page_id", "block_id", "discussion_id"])];

#[tokio::test]
async fn each_tool_of_the_built_in_products_sends_all_that_it_is_given_and_reads_what_the_product_answers() {
    let (app, server, packs, _db) = products("products", &[]).await;
    let answers: Value = serde_json::from_str(ANSWERS).expect("JSON");
    let mut wrong = Vec::new();
    for (product, pack) in packs {
        server.tell(200, json!({"ok": true}));
        let tools = format!("/integrations/servers/{}/tools", connected(&app, product).await);
        for tool in pack["tools"].as_array().expect("tools") {
            let name = text(&tool["function"]["name"]);
            let parameters = example("", &tool["function"]["parameters"]);
            let call = async || {
                let called = app.post(&format!("{tools}/{name}/test"), json!({"parameters": parameters})).await;
                assert_eq!(called.status, StatusCode::OK, "{product} {name}: {}", called.body);
                called.body
            };
            let (answer, expected) = match &answers[product][&name] {
                Value::Null => (json!({"ok": true, "is": name}), json!({"ok": true, "is": name})),
                of if of["told"].is_array() => (of["answer"].clone(), json!({"result": of["told"]})),
                of => (of["answer"].clone(), of["told"].clone()),
            };
            let has_template = tool["responsePostProcessingTemplate"].is_string();
            assert_eq!(has_template, answers[product][&name].is_object(), "{product} {name} has an answer to read");
            server.tell(200, answer);
            let called = call().await;
            if called["success"] != true || called["data"] != expected {
                wrong.push(format!("{product} {name} told {called}, not {expected}"));
            }
            let problems = problems(&server.last(), tool, &parameters);
            let is_one_of =
                |of: &str| ONE_OF.iter().any(|(p, t, all)| (*p, *t) == (product, &name) && all.contains(&of));
            wrong.extend(
                problems.iter().filter(|(of, _)| !is_one_of(of)).map(|(_, of)| format!("{product} {name}: {of}")),
            );
            if has_template {
                server.tell(404, json!({"message": "Not Found"}));
                let refused = call().await.to_string();
                assert!(refused.contains("Not Found"), "{product} {name} tells of a refusal: {refused}");
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[tokio::test]
async fn a_product_that_refuses_a_credential_with_200_breaks_the_connection_and_an_address_of_anybody_breaks_none() {
    let (app, server, ..) = products("products-refuse", &[]).await;
    server.tell(200, json!({"ok": true}));
    let slack = connected(&app, "slack").await;
    let call = async |of: &str, tool: &str, parameters: Value| {
        let path = format!("/integrations/servers/{of}/tools/{tool}/test");
        app.post(&path, json!({"parameters": parameters})).await.body
    };
    let says = async |error: &str| {
        server.tell(200, json!({"ok": false, "error": error}));
        call(&slack, "send_message", json!({"channel": "C1", "text": "Hello"})).await;
        let status = app.get("/integrations/slack/connection-status").await.body;
        text(&status["connections"][0]["status"])
    };
    // Three times one after the other, and of what refuses the credential alone.
    for error in ["token_revoked", "invalid_auth", "channel_not_found", "token_revoked", "account_inactive"] {
        assert_eq!(says(error).await, "active", "{error}");
    }
    assert_eq!(says("invalid_auth").await, "needs_reauth");

    let connected = app.post("/integrations/http/connect", json!({})).await;
    assert_eq!(connected.body["connected"], true, "{}", connected.body);
    let made = app.post("/integrations/http/servers", json!({})).await;
    let http = text(&made.body["_id"]);
    for _ in 0..4 {
        let url = format!("{}/status/401", server.url());
        let refused = call(&http, "http_request", json!({"method": "GET", "url": url})).await;
        assert_eq!(refused["statusCode"], 401, "{refused}");
    }
    assert_eq!(app.get("/integrations/http/connection-status").await.body["connected"], true);
}

/// Each of a trigger's types, with what the product's reference says that it sends or lists.
#[tokio::test]
async fn each_event_type_of_the_built_in_products_is_asked_for_and_starts_a_run() {
    let (app, server, packs, db) = products("events", &[("PLATFORM_TRIGGER_POLL_INTERVAL", "50ms")]).await;
    let of = agent(&app, json!({"name": "A"})).await;
    let published: Value = serde_json::from_str(GITHUB).expect("JSON");
    let mut wrong = Vec::new();
    for (product, pack) in packs {
        let connected = connected(&app, product).await;
        for event in pack["eventTypes"].as_array().expect("event types") {
            let slug = text(&event["slug"]);
            let mut sample = event["payload"]["examples"][0].clone();
            let given = json!({"agentId": of, "triggerConfig": config(&event["config"])});
            let at = format!("{product} {slug}");
            let (path, expected) = if event["type"] == "poll" {
                let items = text(&event["poll"]["items"]);
                server.tell(200, nested(&items, json!([])));
                let made = trigger(&app, &connected, &slug, given).await;
                // What is there when it begins is no news; one that has just ended may ask once more meanwhile.
                let begun = format!(
                    "SELECT count(*) AS n FROM triggers WHERE id = '{}' AND cursor IS NOT NULL",
                    text(&made["id"])
                );
                eventually("its first list", async || (db.number(&begun).await == 1).then_some(())).await;
                let is_open = |asked: &&ToolRequest| asked.path.contains("${") || asked.body.contains("${");
                if let Some(asked) = server.recorded().iter().find(is_open) {
                    wrong.push(format!("{at} asks {} {}", asked.path, asked.body));
                }
                server.tell(200, nested(&items, json!([sample])));
                (format!("/triggers/{}", text(&made["id"])), vec!["executed"])
            } else {
                let subscribe = &event["subscribe"];
                server.tell(201, nested(subscribe["id"].as_str().unwrap_or("id"), json!("4711")));
                let made = trigger(&app, &connected, &slug, given).await;
                let path = format!("/triggers/{}", text(&made["id"]));
                let (url, secret) = if subscribe.is_object() {
                    let subscribes = |asked: &ToolRequest| asked.body.contains("/v1/hooks/");
                    let asked = server.recorded().into_iter().rfind(subscribes).expect("it subscribes").json();
                    let said = |placeholder: &str| {
                        let at = pointer(&subscribe["request"]["body"], placeholder, "").expect("it is sent");
                        text(asked.pointer(&at).unwrap_or_else(|| panic!("{placeholder} is not in {asked}")))
                    };
                    (said("${webhookUrl}"), said("${subscription.secret}"))
                } else {
                    (text(&made["webhookUrl"]), "signing-canary".to_owned())
                };
                let (signature, now) = (&event["signature"], made["creationTimestampMs"].as_i64().expect("a time"));
                if let Some(field) = signature["timestampPath"].as_str() {
                    sample[field] = now.into();
                }
                let url = url.strip_prefix(app.url()).expect("ours");
                let id = event["eventId"]["header"].as_str().unwrap_or("X-Id");
                let send = async |what: &Value, id_is: &str, secret: &str| {
                    let body = what.to_string();
                    let headers = signed(signature, secret, now, &body);
                    let headers = headers.iter().map(|(name, value)| (name.as_str(), value.as_str()));
                    hook(&app, url, &headers.chain([(id, id_is)]).collect::<Vec<_>>(), &body).await.status
                };
                assert_eq!(send(&sample, "1", "another secret").await, StatusCode::UNAUTHORIZED, "{at}");
                // Linear takes anything but 200 for a failure (its reference, How does a Webhook work).
                let taken = if product == "linear" { StatusCode::OK } else { StatusCode::ACCEPTED };
                assert_eq!(send(&sample, "1", &secret).await, taken, "{at}");
                // What GitHub says when a webhook is made, and others say like it.
                let mut ping = json!({"zen": "Keep it logically awesome.", "event_id": "2"});
                ping["webhookTimestamp"] = now.into();
                assert_eq!(send(&ping, "2", &secret).await, taken, "{at}");
                let mut expected = vec!["executed", "filtered"];
                if let Some(published) = published.get(&slug).filter(|_| product == "github") {
                    assert_eq!(send(published, "3", &secret).await, taken, "{at}");
                    expected.push(if slug == "pull_request_merged" { "filtered" } else { "executed" });
                }
                (path, expected)
            };
            let all = outcomes(&app, &path, expected.len()).await;
            let outcomes: Vec<&str> = all.iter().filter_map(|of| of["outcome"].as_str()).collect();
            if outcomes != expected {
                wrong.push(format!("{at} came to {all:?}"));
            }
            let before = server.recorded().len();
            assert_eq!(app.delete(&path).await.status, StatusCode::OK);
            if event["unsubscribe"].is_object() {
                let ends = |asked: &ToolRequest| asked.path.contains("4711") || asked.body.contains("4711");
                let ended = async || server.recorded()[before..].iter().any(ends).then_some(());
                eventually(&format!("the end of {at}"), ended).await;
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// From an account at GitHub to a signed word that the work is done.
#[tokio::test]
async fn an_issue_at_github_starts_an_agent_that_answers_there_and_a_webhook_tells_of_its_end() {
    let (app, server, packs, _) = products("journey", &[]).await;
    let hooked = json!({"url": format!("{}/echo/done", server.url()), "events": ["thread.finished"]});
    let secret = text(&app.post("/webhooks", hooked).await.body["secret"]);
    server.tell(201, json!({"id": 4711, "ok": true}));
    let github = connected(&app, "github").await;
    let chosen = json!({"all": false, "enable": ["add_issue_comment"]});
    let tools =
        app.send(app.request(Method::PATCH, &format!("/integrations/servers/{github}/tools")).json(&chosen)).await;
    assert_eq!(tools.status, StatusCode::OK, "{}", tools.body);
    let given = json!({"name": "Support", "assistantSpecialization": {"availableToolsGroupsUids": [github]}});
    let of = agent(&app, given).await;
    let answer = "/tool github__add_issue_comment {\"owner\": \"octo\", \"repo\": \"hello\", \"issue_number\": \
        {{data.issue.number}}, \"body\": \"Thanks, {{data.issue.user.login}}\"}\nDone";
    let given = json!({"agentId": of, "messageTemplate": answer, "triggerConfig": {"owner": "octo", "repo": "hello"}});
    trigger(&app, &github, "issue_opened", given).await;
    let asked = server.last().json();
    let (url, signs) = (text(&asked["config"]["url"]), text(&asked["config"]["secret"]));
    // What GitHub publishes of an issue.
    let types = packs["github"]["eventTypes"].as_array().expect("event types");
    let opened = types.iter().find(|event| event["slug"] == "issue_opened").expect("it");
    let body = opened["payload"]["examples"][0].to_string();
    let signed = format!("sha256={}", hex(&tag(&signs, &body)));
    let headers = [("X-Hub-Signature-256", signed.as_str()), ("X-GitHub-Delivery", "d1"), ("X-GitHub-Event", "issues")];
    let accepted = hook(&app, url.strip_prefix(app.url()).expect("ours"), &headers, &body).await;
    assert_eq!(accepted.status, StatusCode::ACCEPTED, "{}", accepted.body);
    let told = eventually("its end", async || server.recorded().into_iter().find(|of| of.path == "/echo/done")).await;
    assert!(crate::webhooks::signed(&told, &secret).is_some());
    assert_eq!(told.json()["data"]["state"], "completed", "{told:?}");
    let comment = server.recorded().into_iter().find(|of| of.path == "/told/repos/octo/hello/issues/1/comments");
    let comment = comment.expect("a comment");
    assert_eq!((comment.method.as_str(), comment.json()["body"].as_str()), ("POST", Some("Thanks, Codertocat")));
}

/// The platform with the built-in connectors, which go to a server that keeps what it is sent.
async fn products(
    name: &str,
    more: &[(&str, &str)],
) -> (TestApp, FakeToolServer, BTreeMap<&'static str, Value>, TestDb) {
    let (db, server) = (TestDb::new().await, FakeToolServer::start());
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("connectors-{name}"));
    std::fs::create_dir_all(&directory).expect("a directory");
    let mut packs = BTreeMap::new();
    for product in PRODUCTS {
        let file =
            Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../crates/platform-integrations/packs/{product}.yaml"));
        let mut pack: Value = serde_yaml_ng::from_str(&std::fs::read_to_string(file).expect("a pack")).expect("YAML");
        pack["baseUrl"] = json!(format!("{}/told", server.url()));
        pack["auth"][0]["tokenUrl"] = json!(format!("{}/token", server.url()));
        std::fs::write(directory.join(format!("{product}.yaml")), pack.to_string()).expect("a file");
        packs.insert(product, pack);
    }
    let directory = directory.display().to_string();
    let settings = [("PLATFORM_EGRESS_ALLOW", "127.0.0.0/8"), ("PLATFORM_CONNECTORS_DIR", directory.as_str())];
    let app = TestApp::start(PROGRAM, &db, &[&settings, UNBOUNDED.as_slice(), more].concat());
    (app, server, packs, db)
}

/// What a trigger needs to be told.
fn config(schema: &Value) -> Value {
    let required = schema["required"].as_array().or_else(|| schema["anyOf"][0]["required"].as_array());
    let names = required.into_iter().flatten().map(text);
    names.map(|name| (name, json!("abc123"))).collect::<serde_json::Map<_, _>>().into()
}

/// A value under a path of names.
fn nested(path: &str, value: Value) -> Value {
    path.rsplit('.').fold(value, |inner, name| json!({name: inner}))
}

/// Where a text stands in a value, as a JSON pointer.
fn pointer(value: &Value, sought: &str, at: &str) -> Option<String> {
    match value {
        Value::String(text) => (text == sought).then(|| at.to_owned()),
        Value::Object(fields) => fields.iter().find_map(|(name, of)| pointer(of, sought, &format!("{at}/{name}"))),
        _ => None,
    }
}

/// The headers that sign a body, as the products' references say.
fn signed(rule: &Value, secret: &str, now: i64, body: &str) -> Vec<(String, String)> {
    let (header, now) = (text(&rule["header"]), now / 1000);
    match rule["kind"].as_str() {
        Some("slack-v0") => {
            let tag = hex(&tag(secret, &format!("v0:{now}:{body}")));
            vec![(header, format!("v0={tag}")), (text(&rule["timestampHeader"]), now.to_string())]
        }
        _ => vec![(header, format!("{}{}", rule["prefix"].as_str().unwrap_or_default(), hex(&tag(secret, body))))],
    }
}

/// A tool server of a product that a user has connected.
async fn connected(app: &TestApp, product: &str) -> String {
    let mut fields = json!({"clientId": "client", "clientSecret": "client-canary"});
    if product == "slack" {
        fields["signingSecret"] = json!("signing-canary");
    }
    let begun = app
        .post(&format!("/integrations/{product}/connect"), json!({"authScheme": "OAUTH2", "appFields": fields}))
        .await;
    let url = Url::parse(begun.body["authorizationUrl"].as_str().unwrap_or_default());
    let url = url.unwrap_or_else(|_| panic!("{product}: {}", begun.body));
    let state = url.query_pairs().find(|(name, _)| name == "state").expect("a state").1.into_owned();
    let callback = format!("{}/v1/integrations/callback?code=good&state={state}", app.url());
    let back = reqwest::get(callback).await.expect("an answer");
    assert!(back.status().is_success(), "{product}: {}", back.text().await.expect("text"));
    let made = app.post(&format!("/integrations/{product}/servers"), json!({})).await;
    assert_eq!(made.status, StatusCode::CREATED, "{product}: {}", made.body);
    text(&made.body["_id"])
}

/// An argument of a schema, of which each text can be found again.
fn example(name: &str, schema: &Value) -> Value {
    let kind = schema["type"].as_str().or_else(|| schema["type"][0].as_str()).unwrap_or("string");
    match kind {
        _ if schema["enum"].is_array() => schema["enum"][0].clone(),
        "integer" | "number" => schema["maximum"].as_i64().unwrap_or(4_711).into(),
        "boolean" => true.into(),
        "array" => json!([example(name, &schema["items"])]),
        "object" => match schema["properties"].as_object() {
            Some(properties) => properties.iter().map(|(name, of)| (name.clone(), example(name, of))).collect(),
            None => json!({"inner": format!("<the-{name}>")}),
        },
        _ => format!("<the-{name}&more/less>").into(),
    }
}

/// What is wrong with a request, each with the argument that is not in it.
fn problems(request: &ToolRequest, tool: &Value, parameters: &Value) -> Vec<(String, String)> {
    let mut problems = Vec::new();
    if !request.header("authorization").starts_with("Bearer access-") {
        problems.push((String::new(), "it shows no token".to_owned()));
    }
    if request.method != tool["method"].as_str().unwrap_or("GET") {
        problems.push((String::new(), format!("it is a {}", request.method)));
    }
    let path = |path: &str| path.split('?').next().unwrap_or_default().matches('/').count();
    let endpoint = tool["endpoint"].as_str().expect("an endpoint");
    if path(&request.path) != path(endpoint) + 1 || request.path.contains("${") {
        problems.push((String::new(), format!("it goes to {}", request.path)));
    }
    let url = Url::parse(&format!("http://product{}", request.path)).expect("a URL");
    let mut said: Vec<String> = url.query_pairs().map(|(_, value)| value.into_owned()).collect();
    said.push(percent_decoded(url.path()));
    leaves(&request.json(), &mut said);
    let decoded: Vec<String> = said.iter().flat_map(|text| decoded(text)).collect();
    said.extend(decoded);
    for (name, value) in parameters.as_object().expect("parameters") {
        let mut given = Vec::new();
        leaves(value, &mut given);
        let is_said = |value: &String| said.iter().any(|text| text.contains(value.as_str()));
        if !given.iter().all(is_said) {
            problems.push((name.clone(), format!("{name} is not in {said:?}")));
        }
    }
    let body = request.json();
    if let Some(query) = body["query"].as_str().filter(|_| endpoint == "/graphql") {
        problems.extend(graphql(query, &body["variables"]).map(|problem| (String::new(), problem)));
    }
    problems
}

/// What is wrong with a GraphQL document and its variables.
fn graphql(query: &str, variables: &Value) -> Option<String> {
    let count = |of: char| query.matches(of).count();
    let given: Vec<&String> = variables.as_object()?.keys().collect();
    let declared = query.split_once('{').map(|(head, _)| head.matches('$').count())?;
    let is_used = |name: &&String| query.matches(&format!("${name}")).count() >= 2;
    let is_good =
        count('{') == count('}') && count('(') == count(')') && declared == given.len() && given.iter().all(is_used);
    (!is_good).then(|| format!("{query} does not go with {variables}"))
}

/// The texts and numbers of a value.
fn leaves(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Array(values) => values.iter().for_each(|value| leaves(value, found)),
        Value::Object(fields) => fields.values().for_each(|value| leaves(value, found)),
        Value::String(text) => found.push(text.clone()),
        Value::Number(number) => found.push(number.to_string()),
        Value::Bool(_) | Value::Null => {}
    }
}

fn percent_decoded(path: &str) -> String {
    let pairs = format!("x={}", path.replace('+', "%2B"));
    let url = Url::parse(&format!("http://product/?{pairs}")).expect("a URL");
    url.query_pairs().map(|(_, value)| value.into_owned()).collect()
}

/// What stands in a text as base64: of a file, or of a mail and its body.
fn decoded(text: &str) -> Vec<String> {
    let read = |bytes: Option<Vec<u8>>| bytes.and_then(|bytes| String::from_utf8(bytes).ok());
    let Some(outer) = read(STANDARD.decode(text).or_else(|_| URL_SAFE_NO_PAD.decode(text.trim_end_matches('='))).ok())
    else {
        return Vec::new();
    };
    let body = outer.split_once("\r\n\r\n").map(|(_, body)| body.split_whitespace().collect::<String>());
    let inner = read(body.and_then(|body| STANDARD.decode(body).ok()));
    [Some(outer), inner].into_iter().flatten().collect()
}
