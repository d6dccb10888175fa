//! `/v1/docs`, `/v1/openapi.json`, and the commands that the pages show

use std::{
    collections::BTreeSet,
    fs::{read_dir, read_to_string},
    path::{Path, PathBuf},
    process::Command,
};

use platform_testing::{TestApp, TestDb};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::support::{PROGRAM, app, text};

#[tokio::test]
async fn pages_come_as_html_json_or_markdown() {
    let app = app().await;
    let listed = app.get("/docs").await.body;
    assert_eq!(listed["total"].as_u64(), listed["docs"].as_array().map(|docs| docs.len() as u64));
    assert!(listed["docs"].as_array().expect("pages").iter().any(|page| page["filename"] == "ARCHITECTURE"));
    let html = app.get("/docs/ARCHITECTURE").await;
    assert_eq!(
        (html.header("content-type"), html.header("content-security-policy")),
        ("text/html; charset=utf-8", "sandbox")
    );
    assert!(html.body.as_str().is_some_and(|html| html.contains("<h1")));
    let request = app.request(Method::GET, "/docs/ARCHITECTURE").header("accept", "application/json");
    assert_eq!(app.send(request).await.body, html.body);
    let markdown = app.get("/docs/ARCHITECTURE?format=markdown").await;
    assert!(markdown.body.as_str().is_some_and(|text| text.starts_with("# ")));
    assert_eq!(app.get("/docs/NOTHING").await.error(), "DOC_NOT_FOUND");
}

#[tokio::test]
async fn the_document_names_every_route_and_each_reference_in_it_leads_somewhere() {
    let app = app().await;
    let document = app.send(app.anonymous(Method::GET, "/v1/openapi.json")).await;
    assert_eq!(document.status, StatusCode::OK);
    assert_eq!((&document.body["openapi"], &document.body["info"]["version"]), (&json!("3.1.0"), &json!("1.0.0")));
    for (path, item) in document.body["paths"].as_object().expect("paths") {
        for (method, operation) in item.as_object().expect("operations") {
            let method = Method::from_bytes(method.to_uppercase().as_bytes()).expect("a method");
            let filled = path.replace(['{', '}'], "");
            let reply = app.send(app.anonymous(method.clone(), &filled)).await;
            let public = operation["security"] == json!([]);
            assert_eq!(reply.status != StatusCode::UNAUTHORIZED, public, "{method} {path}");
        }
    }
    let text = document.body.to_string();
    for reference in text.split("\"$ref\":\"#/components/schemas/").skip(1) {
        let name = reference.split('"').next().expect("a name");
        assert!(document.body["components"]["schemas"].get(name).is_some(), "{name} is not described");
    }
    let tags = document.body["tags"].as_array().expect("tags");
    let names = tags.iter().filter_map(|tag| tag["name"].as_str()).collect::<std::collections::BTreeSet<_>>();
    assert_eq!(names.len(), tags.len(), "a tag is described twice");
    let page = app.send(app.anonymous(Method::GET, "/docs")).await;
    assert!(page.body.as_str().is_some_and(|html| html.contains("swagger-ui.js")));
    assert_eq!(app.send(app.anonymous(Method::GET, "/docs/swagger-ui.js")).await.status, StatusCode::OK);
}

/// Runs every `sh` block of a page that speaks to the platform, one after the other in one shell; what they print.
async fn run(app: &TestApp, page: &str) -> String {
    let path = format!("{}/../{page}", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let blocks = text.split("```sh\n").skip(1).filter_map(|rest| rest.split("```").next());
    let blocks: Vec<&str> = blocks.filter(|block| block.contains("$URL") || block.contains("call ")).collect();
    assert!(!blocks.is_empty(), "{page} shows no request");
    let script = format!("set -euo pipefail\n{}", blocks.join("\n"));
    let (url, key) = (app.url().to_owned(), app.key().to_owned());
    // A file that is there without a network: the platform's own.
    let file = format!("{url}/docs/swagger-ui.css");
    let output = tokio::task::spawn_blocking(move || {
        let mut bash = Command::new("bash");
        bash.arg("-c").arg(script).env("URL", url).env("KEY", key).env("FILE_URL", file).output().expect("bash runs")
    })
    .await
    .expect("waited");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{page}: {said}{}", String::from_utf8_lossy(&output.stderr));
    said
}

#[tokio::test]
async fn the_commands_of_the_readme_run() {
    let app = app().await;
    let said = run(&app, "README.md").await;
    assert!(said.contains("event: delta") && said.contains("\"completed\""), "{said}");
    let total: Value = app.post("/assistants/chats", json!({})).await.body["total"].clone();
    assert!(total.as_u64() >= Some(2));
}

/// Pages, and what their requests are answered with, in this order or another.
const PAGES: &[(&str, &[&str])] = &[
    (
        "QUEUE",
        &[
            "\"next_turn\"",
            "\"pendingUserMessages\":[{",
            "Hello\\nI have a question\\nabout my order",
            "\"discardedMessages\":[{",
        ],
    ),
    ("CONTEXT", &["\"compacted\":true", "\"compactedMessageCount\":4", "Quick question, no title needed."]),
    ("GUARDRAILS", &["[REDACTED:personal]", "[REDACTED:codename]", "I cannot help with that.", "\"triggered\":true"]),
    ("STRUCTURED_OUTPUT", &["\"data\":{\"city\":\"Rome\",\"degrees\":21.5}"]),
    ("FILES", &["Buy milk.\nBuy", "\"total\":1", "Demo reply: What does it say?"]),
    ("SKILLS", &["Say here what to do", "\"name\":\"code-review\"", "Read every line twice.", "[tools: load_skill="]),
    (
        "KNOWLEDGE",
        &[
            "\"fileType\":\"html\"",
            "\"headingPath\":[\"Security\",\"Keys\"]",
            "Demo reply: How often do keys rotate? [tools: search_knowledge=",
            "\"via\":\"folder\"",
            "\"changeType\":\"updated\"",
        ],
    ),
    (
        "ENVIRONMENTS",
        &[
            "ready\\n",
            "my token is [REDACTED:API_TOKEN]",
            "\"name\":\"notes\"",
            "Rotate the keys",
            "\"fromSnapshotId\":\"snap_",
            "\"envVarKeys\":[\"API_TOKEN\"]",
        ],
    ),
    (
        "MCP",
        &[
            "\"slug\":\"default\"",
            "\"name\":\"shop__search_orders\"",
            "Demo reply: Where is my order?",
            "\"outcome\":\"ok\"",
            "\"profile\":\"default\",\"tools\":[{\"",
            "\"disabled\":[\"shop__search_orders\"]",
        ],
    ),
    (
        "MEMORY",
        &[
            "\"deduped\":true",
            "Prefers answers in French",
            "\"supersedes\":1",
            "\"source\":\"assistant\"",
            "\"source\":\"conversation_start\"",
            "## instructions",
        ],
    ),
    (
        "WEBHOOKS",
        &["\"secret\":\"whsec_", "\"eventType\":\"webhook.test\"", "\"includeContent\":true", "\"configured\":false"],
    ),
    (
        "TRIGGERS",
        &[
            "{\"accepted\":true}",
            "\"outcome\":\"executed\"",
            "\"outcome\":\"duplicate\"",
            "Ada writes: Where is my order?",
            "\"triggerSource\":{",
            "\"attempt\":2",
            "\"deletedId\"",
        ],
    ),
    (
        "INTEGRATIONS",
        &[
            "\"nextCursor\":\"ey",
            "\"slug\":\"pull_request_opened\"",
            "\"stage\":\"account\"",
            "\"name\":\"http_request\"",
            "\"exposedToolCount\":null",
            "URL_NOT_ALLOWED",
        ],
    ),
    ("SPEECH", &["\"text\":\"demo transcript of", "\"contentSource\":\"dictation\"", "RIFF"]),
    (
        "TOOLS",
        &[
            "\"success\":true",
            "# Limits",
            "Demo reply: What is a queue? [tools: read_page=",
            "\"skipped\":[",
            "\"pending\":0",
        ],
    ),
    (
        "AGENTS",
        &[
            "\"finishReason\":\"COMPLETED\"",
            "\"title\":\"Read the clock\"",
            "\"state\":\"processing\",\"timestamp\":",
            "\"state\":\"paused_for_approval\"",
            "\"handOffSubThreadIds\":[\"",
            "\"politeness\":{\"",
            "\"nextRunMs\":",
            "\"threadCount\":1",
        ],
    ),
    (
        "ACCESS",
        &[
            "\"kind\":\"restricted\"",
            "\"subtenantId\":\"ann\"",
            "SESSION_ROUTE_FORBIDDEN",
            "\"revoked\":1",
            "TOKEN_REVOKED",
            "\"models\":[",
            "\"requiredScopes\":[\"agents:read\"]",
            "\"token_type\":\"Bearer\"",
        ],
    ),
    (
        "PROJECTS",
        &[
            "\"assistants\":1,",
            "\"role\":\"editor\"",
            "PROJECT_FORBIDDEN",
            "\"chatCount\":1",
            "\"archived\":true}",
            "PROJECT_ARCHIVED",
        ],
    ),
    (
        "TENANTS",
        &[
            "\"domain\":\"globex.example\"",
            "\"origin\":\"adhoc\"",
            "\"countedTowardLimits\":true",
            "TENANT_LIMIT_EXCEEDED",
            "Usage limit reached: 5K / 5K tokens per month",
            "\"previousTierId\":null",
            "\"action\":\"add_usage\"",
        ],
    ),
    ("LIMITS", &["ratelimit-remaining: ", "Second draft", "PRECONDITION_FAILED", "\"apiSource\":\"shop\""]),
];

#[tokio::test]
async fn the_requests_that_the_pages_show_do_what_the_pages_say() {
    let app = TestApp::start(PROGRAM, &TestDb::new().await, &[("PLATFORM_EGRESS_ALLOW", "127.0.0.1")]);
    for (page, expected) in PAGES {
        let said = run(&app, &format!("docs/{page}.md")).await;
        assert!(!said.contains("VALIDATION_ERROR"), "{page}: {said}");
        for text in *expected {
            assert!(said.contains(text), "{page} does not show {text}: {said}");
        }
    }
}

/// The parts of a document that say what a body may have.
struct Described(Value);

impl Described {
    fn schema<'a>(&'a self, schema: &'a Value) -> &'a Value {
        let reference = schema["$ref"].as_str();
        reference.and_then(|of| self.0.pointer(of.trim_start_matches('#'))).unwrap_or(schema)
    }

    /// The schema of a body, and the fields that it must have.
    fn body(&self, method: &str, path: &str) -> Option<(&Value, Vec<String>)> {
        let schema = &self.0["paths"][path][method]["requestBody"]["content"]["application/json"]["schema"];
        let whole = self.schema(schema);
        let names =
            [&schema["required"], &whole["required"]].into_iter().filter_map(|names| names.as_array()).flatten();
        (!schema.is_null()).then(|| (whole, names.map(text).collect()))
    }
}

#[tokio::test]
async fn the_document_says_which_fields_are_required_and_what_others_are_by_default() {
    let app = app().await;
    let document = Described(app.get("/openapi.json").await.body);
    // Something else may be given instead.
    const ONE_OF_SEVERAL: [&str; 4] = ["message", "spec", "agentId", "action"];
    let mut wrong = Vec::new();
    for (path, methods) in document.0["paths"].as_object().expect("paths") {
        let Some((_, required)) = document.body("post", path).filter(|_| methods.get("post").is_some()) else {
            continue;
        };
        let asked = path.replace(['{', '}'], "");
        let request = app.anonymous(Method::POST, &asked).bearer_auth(app.key()).json(&json!({}));
        let refused = app.send(request).await.body;
        let issues = refused["details"]["issues"].as_array().into_iter().flatten();
        let named = issues.filter(|issue| issue["code"] == "required").map(|issue| text(&issue["path"]));
        let parameters = methods["post"]["parameters"].as_array().into_iter().flatten();
        let in_query: Vec<String> = parameters.map(|parameter| text(&parameter["name"])).collect();
        let is_told = |name: &String| required.contains(name) || in_query.contains(name) || name.is_empty();
        let untold = named.filter(|name| !is_told(name) && !ONE_OF_SEVERAL.contains(&name.as_str()));
        wrong.extend(untold.map(|name| format!("POST {path} requires {name}")));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");

    let mut seen = 0;
    for (path, body) in [
        ("/assistants", json!({"name": "A"})),
        ("/agents", json!({"name": "A"})),
        ("/tool-servers", json!({"name": "A", "url": "https://a.example"})),
        ("/environments", json!({"name": "A"})),
        ("/webhooks", json!({"url": "https://a.example/hook", "events": ["*"]})),
        ("/projects", json!({"name": "A", "identifier": "a"})),
        ("/api-keys", json!({"name": "A"})),
        ("/tenants", json!({"tenantId": "a"})),
    ] {
        let made = app.post(path, body.clone()).await;
        assert_eq!(made.status, StatusCode::CREATED, "{path}: {}", made.body);
        let (schema, _) = document.body("post", &format!("/v1{path}")).expect("a body");
        let fields = schema["properties"].as_object().expect("fields");
        for (name, field) in fields.iter().filter(|(name, _)| body.get(name).is_none()) {
            if let (Some(default), Some(value)) = (field.get("default"), made.body.get(name)) {
                assert_eq!(value, default, "{path}: {name}");
                seen += 1;
            }
        }
    }
    assert!(seen > 50, "{seen} defaults");

    for (path, methods) in document.0["paths"].as_object().expect("paths") {
        let parameters = methods["get"]["parameters"].as_array().into_iter().flatten();
        let Some(limit) = parameters.clone().find(|of| of["name"] == "limit" && of["schema"].get("default").is_some())
        else {
            continue;
        };
        let listed = app.send(app.request(Method::GET, path.trim_start_matches("/v1"))).await;
        if let Some(given) = listed.body.get("limit") {
            assert_eq!(given, &limit["schema"]["default"], "{path}");
        }
    }
}

/// The README and what lies beside each other in `docs`.
fn pages(root: &Path) -> Vec<PathBuf> {
    let docs = read_dir(root.join("docs")).expect("docs").map(|entry| entry.expect("a file").path());
    docs.filter(|path| path.extension().is_some_and(|kind| kind == "md")).chain([root.join("README.md")]).collect()
}

/// What a link to a heading says of it, as GitHub and `/v1/docs` have it.
fn anchor(heading: &str) -> String {
    let words = heading.trim_start_matches('#').trim().to_lowercase().replace(' ', "-");
    words.chars().filter(|c| c.is_alphanumeric() || matches!(c, '-' | '_')).collect()
}

#[test]
fn every_link_of_the_pages_leads_somewhere_and_to_each_page_there_is_one() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the project");
    let (pages, mut reached) = (pages(root), BTreeSet::new());
    for page in &pages {
        let text = read_to_string(page).expect("a page");
        let links = text.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(link, _)| link);
        for link in links.filter(|link| !link.starts_with("http")) {
            let (file, heading) = link.split_once('#').unwrap_or((link, ""));
            let to = if file.is_empty() { page.clone() } else { page.with_file_name(file) };
            let to = to.canonicalize().unwrap_or_else(|error| panic!("{}: {link}: {error}", page.display()));
            if !heading.is_empty() {
                let there = read_to_string(&to).expect("a page");
                let is_there = there.lines().any(|line| line.starts_with('#') && anchor(line) == heading);
                assert!(is_there, "{}: {link} names no heading", page.display());
            }
            reached.insert(to);
        }
    }
    for page in pages.iter().filter(|page| !page.ends_with("README.md")) {
        assert!(reached.contains(&page.canonicalize().expect("a page")), "nothing links to {}", page.display());
    }
}

/// All Rust below a folder.
fn sources(folder: &Path) -> String {
    let entries = read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    let text = |path: PathBuf| match path.extension() {
        Some(kind) if kind == "rs" => read_to_string(path).expect("a source"),
        None if path.is_dir() => sources(&path),
        _ => String::new(),
    };
    entries.map(text).collect()
}

#[test]
fn each_test_that_shows_a_promise_is_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the project");
    let sources: String = ["tests/api", "crates"].iter().map(|folder| sources(&root.join(folder))).collect();
    let page = read_to_string(root.join("docs/RELIABILITY.md")).expect("the page");
    let experiments = read_to_string(root.join("tests/prove.sh")).expect("the experiments");
    let named: Vec<(&str, &str)> = page
        .split(|c: char| c.is_whitespace() || matches!(c, '`' | ',' | ';' | '(' | ')' | '\u{2026}'))
        .filter_map(|word| word.rsplit_once("::"))
        .collect();
    assert!(named.len() > 50, "{named:?}");
    for (modules, name) in named {
        let module = modules.split("::").next().unwrap_or_default();
        let is_run =
            !root.join(format!("tests/api/{module}.rs")).exists() || experiments.contains(&format!(" {module}::"));
        assert!(is_run, "tests/prove.sh runs nothing of {module}, of which docs/RELIABILITY.md names a test");
        let name = name.trim_end_matches('.');
        let is_there = sources.contains(&format!("fn {name}")) || sources.contains(&format!("mod {name}"));
        assert!(is_there, "docs/RELIABILITY.md names a test `{name}` that is not there");
    }
}
