//! The built-in connectors of products that cannot be called here: their tools, called where each request is kept.

use std::{collections::BTreeMap, path::Path};

use base64::{
    Engine,
    engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD},
};
use platform_testing::{FakeToolServer, TestApp, TestDb, ToolRequest};
use reqwest::{StatusCode, Url};
use serde_json::{Value, json};

use crate::support::{PROGRAM, UNBOUNDED, text};

const PRODUCTS: [&str; 6] = ["github", "gmail", "google-drive", "linear", "notion", "slack"];

/// What products answer, by tool, and what a model is told of it.
const ANSWERS: &str = include_str!("products.json");

/// Of these arguments a product takes one.
const ONE_OF: [(&str, &str, &[&str]); 1] = [("notion", "create_comment", &["page_id", "block_id", "discussion_id"])];

#[tokio::test]
async fn each_tool_of_the_built_in_products_sends_all_that_it_is_given_and_reads_what_the_product_answers() {
    let (db, server) = (TestDb::new().await, FakeToolServer::start());
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("connectors-products");
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
    let app = TestApp::start(PROGRAM, &db, &[&settings, UNBOUNDED.as_slice()].concat());
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

/// A tool server of a product that a user has connected.
async fn connected(app: &TestApp, product: &str) -> String {
    let fields = json!({"clientId": "client", "clientSecret": "client-canary"});
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
