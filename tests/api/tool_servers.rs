//! Contract 04: tool servers, their tools, and calls to try them.

use std::time::Duration;

use platform_testing::{FakeToolServer, TestApp};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::{
    mcp_gateway,
    support::{app, app_with_tools, tool, tool_server},
};

const MASK: &str = "••••••••";

fn get_order() -> Value {
    let parameters = json!({"type": "object", "required": ["id"], "additionalProperties": false, "properties": {
        "id": {"type": "string"}, "expand": {"type": "boolean"}}});
    let function = json!({"description": "Read one order", "parameters": parameters});
    let headers = json!([{"headerName": "X-Shop", "value": "header-canary"}]);
    tool(
        "get_order",
        "/echo/orders/${id}",
        &json!({"function": function, "pathParametersKeys": ["id"],
        "queryParametersKeys": ["expand"], "customHeaders": headers}),
    )
}

async fn test(app: &TestApp, server: &str, tool: &str, parameters: Value) -> Value {
    let path = format!("/tool-servers/{server}/tools/{tool}/test");
    let result = app.post(&path, json!({"parameters": parameters})).await;
    assert_eq!(result.status, StatusCode::OK, "{:?}", result.body);
    result.body
}

#[tokio::test]
async fn a_tool_server_is_made_read_listed_changed_cloned_and_deleted() {
    let app = app().await;
    let made = app.post("/tool-servers", json!({"name": "My Shop!", "url": "https://shop.example/v1"})).await;
    assert_eq!((made.status, made.header("etag")), (StatusCode::CREATED, "\"1\""), "{:?}", made.body);
    for (field, value) in [
        ("identifier", json!("my-shop")),
        ("type", json!("http")),
        ("mcpType", json!(false)),
        ("enabled", json!(true)),
        ("description", json!("")),
        ("timeoutMs", json!(60000)),
        ("mcpExposed", json!(false)),
        ("mcpAuthMode", json!("shared")),
        ("toolCount", json!(0)),
        ("toolDefinitions", json!([])),
        ("authenticationConfig", json!({"authenticationMethod": "none"})),
        ("health", Value::Null),
    ] {
        assert_eq!(made.body[field], value, "{field}");
    }
    let id = made.body["_id"].as_str().expect("an id").to_owned();
    let path = format!("/tool-servers/{id}");
    assert_eq!(made.body["toolServerDefinitionId"], id.as_str());
    let second = app.post("/tool-servers", json!({"name": "my shop", "url": "https://shop.example"})).await;
    assert_eq!(second.body["identifier"], "my-shop-2");
    let taken = json!({"name": "x", "url": "https://shop.example", "identifier": "my-shop"});
    assert_eq!(app.post("/tool-servers", taken).await.error(), "IDENTIFIER_TAKEN");
    let nameless = app.post("/tool-servers", json!({"name": "!!!", "url": "https://shop.example"})).await;
    assert_eq!(nameless.body["identifier"], "server");

    let defined = app.patch(&format!("{path}/definition"), json!({"_id": id, "toolDefinitions": [get_order()]})).await;
    assert_eq!(defined.status, StatusCode::OK, "{:?}", defined.body);
    let shown = &defined.body["toolDefinitions"][0];
    assert_eq!(
        (&shown["method"], &shown["bodyMode"], &shown["type"]),
        (&json!("GET"), &json!("simple"), &json!("function"))
    );
    assert_eq!(shown["customHeaders"], json!([{"headerName": "X-Shop", "value": MASK}]));
    assert_eq!(defined.body["toolServerDefinition"]["toolDefinitions"], defined.body["toolDefinitions"]);
    let definition = app.get(&format!("{path}/definition")).await.body;
    let keys: Vec<&String> = definition.as_object().expect("an object").keys().collect();
    assert_eq!(keys, ["_id", "description", "name", "toolDefinitions"]);

    // What a definition leaves out stays; a list without a tool takes it away.
    let patched = json!({"toolDefinitions": [{"function": {"name": "get_order", "strict": true}, "timeoutMs": 5000}]});
    let patched = app.patch(&format!("{path}/definition"), patched).await.body;
    let kept = &patched["toolDefinitions"][0];
    assert_eq!(
        (&kept["function"]["strict"], &kept["function"]["description"]),
        (&json!(true), &json!("Read one order"))
    );
    assert_eq!((&kept["timeoutMs"], &kept["endpoint"]), (&json!(5000), &json!("/echo/orders/${id}")));
    for bad in [json!({"_id": "other"}), json!({"name": null})] {
        assert_eq!(app.patch(&format!("{path}/definition"), bad.clone()).await.error(), "VALIDATION_ERROR", "{bad}");
    }
    let nulls =
        json!({"description": null, "toolDefinitions": [{"function": {"name": "get_order"}, "timeoutMs": null}]});
    let nulls = app.patch(&format!("{path}/definition"), nulls).await.body;
    assert_eq!((&nulls["description"], nulls["toolDefinitions"][0].get("timeoutMs")), (&json!(""), None), "{nulls}");

    let page = app.get("/tool-servers?limit=1&search=SHOP&type=http").await.body;
    assert_eq!((&page["total"], &page["hasMore"], &page["limit"]), (&json!(2), &json!(true), &json!(1)));
    assert_eq!(page["toolServers"][0].get("toolDefinitions"), None);
    assert_eq!(app.get("/tool-servers?type=mcp").await.body["total"], 0);

    let current = app.get(&path).await;
    let stale = app.request(Method::PATCH, &path).header("if-match", "\"1\"").json(&json!({"name": "x"}));
    let stale = app.send(stale).await;
    assert_eq!(
        (stale.error(), &stale.body["details"]["current"]),
        ("PRECONDITION_FAILED", &json!(current.header("etag").trim_matches('"').parse::<i64>().expect("a number")))
    );
    let back = app.request(Method::PUT, &format!("{path}?strict=true")).json(&current.body);
    let back = app.send(back).await;
    assert_eq!(back.status, StatusCode::OK, "what was read may be sent back: {:?}", back.body);
    assert_eq!(back.body["toolDefinitions"], current.body["toolDefinitions"]);

    let copy = app.post(&format!("{path}/clone"), json!({})).await;
    assert_eq!(
        (copy.status, &copy.body["name"], &copy.body["identifier"]),
        (StatusCode::CREATED, &json!("My Shop! (Copy)"), &json!("my-shop-copy"))
    );
    assert_eq!(copy.body["toolDefinitions"], current.body["toolDefinitions"]);
    let groups = app.get("/tool-groups").await.body;
    let uids: Vec<&str> = groups.as_array().expect("groups").iter().filter_map(|group| group["uid"].as_str()).collect();
    let built_in = ["time", "tasks", "http", "files", "knowledge", "skills", "memory", "sandbox", "finish"]
        .map(|of| format!("builtin-{of}"));
    assert_eq!(uids[..built_in.len()], built_in);
    assert!(uids.contains(&id.as_str()) && groups[0]["builtin"] == true && groups[built_in.len()]["builtin"] == false);

    assert_eq!(app.delete(&path).await.body["deletedId"], id.as_str());
    for (method, path) in
        [(Method::GET, path.clone()), (Method::DELETE, path.clone()), (Method::GET, format!("{path}/tools"))]
    {
        assert_eq!(app.send(app.request(method, &path)).await.error(), "TOOL_SERVER_NOT_FOUND");
    }
    let once = app
        .request(Method::POST, "/tool-servers")
        .header("idempotency-key", "k")
        .json(&json!({"name": "once", "url": "https://shop.example"}));
    let twice = once.try_clone().expect("a copy");
    let (first, second) = (app.send(once).await, app.send(twice).await);
    assert_eq!((first.body["_id"].clone(), second.header("idempotent-replayed")), (second.body["_id"].clone(), "true"));
}

#[tokio::test]
async fn tools_of_a_server_are_added_changed_renamed_and_taken_away() {
    let app = app().await;
    let path = format!("/tool-servers/{}", tool_server(&app, "https://shop.example", &[get_order()]).await);
    let added =
        app.post(&format!("{path}/tools"), json!({"tool": tool("ping", "/ping", &json!({"method": "post"}))})).await;
    assert_eq!((added.status, &added.body["method"]), (StatusCode::CREATED, &json!("POST")), "{:?}", added.body);
    let bare = app.post(&format!("{path}/tools"), tool("bare", "/", &json!({"endpoint": null}))).await;
    assert_eq!((bare.status, &bare.body["endpoint"]), (StatusCode::CREATED, &json!("")), "null is what was not given");
    assert_eq!(app.delete(&format!("{path}/tools/bare")).await.status, StatusCode::OK);
    let nothing = json!({"function": {"name": "nothing", "parameters": null}, "endpoint": "/"});
    assert_eq!(app.post(&format!("{path}/tools"), nothing).await.status, StatusCode::CREATED, "it takes nothing");
    assert_eq!(app.delete(&format!("{path}/tools/nothing")).await.status, StatusCode::OK);
    let missing = app.request(reqwest::Method::DELETE, &format!("{path}/tools/none")).header("if-match", "\"77\"");
    assert_eq!(app.send(missing).await.error(), "TOOL_NOT_FOUND", "what is there is judged before its version");
    // A name that many have goes on where its numbers end.
    let named = async |given: Value| app.post("/tool-servers", given).await.body["identifier"].clone();
    assert_eq!(
        named(json!({"name": "Bulk", "identifier": "bulk-1000", "url": "https://a.example"})).await,
        "bulk-1000"
    );
    let few = std::iter::once("bulk".to_owned()).chain((2..20).map(|n| format!("bulk-{n}")));
    for expected in few.chain(["bulk-1001".to_owned()]) {
        assert_eq!(named(json!({"name": "Bulk", "url": "https://a.example"})).await, json!(expected));
    }
    assert!(!app.get(&format!("{path}/tools/ping")).await.header("etag").is_empty());
    let again = app.post(&format!("{path}/tools"), tool("ping", "/ping", &json!({}))).await;
    assert_eq!(again.error(), "DUPLICATE_TOOL_NAME");
    let renamed = json!({"function": {"name": "pong"}, "idempotent": true});
    let renamed = app.patch(&format!("{path}/tools/ping"), renamed).await.body;
    assert_eq!((&renamed["function"]["name"], &renamed["method"]), (&json!("pong"), &json!("POST")));
    assert_eq!(app.get(&format!("{path}/tools")).await.body["total"], 2);
    assert_eq!(app.get(&format!("{path}/tools/ping")).await.error(), "TOOL_NOT_FOUND");
    assert_eq!(app.delete(&format!("{path}/tools/pong")).await.body["deletedId"], "pong");
}

#[tokio::test]
async fn what_cannot_be_a_tool_server_is_refused_with_its_code() {
    let app = app().await;
    let with = |more: Value| {
        let mut server = json!({"name": "s", "url": "https://shop.example"});
        more.as_object().expect("an object").iter().for_each(|(name, value)| server[name] = value.clone());
        server
    };
    let tools = |more: Value| with(json!({"toolDefinitions": [tool("t", "/t", &more)]}));
    let properties = json!({"properties": {"id": {"type": "string"}}});
    let needs_id = json!({"function": {"parameters": properties}, "pathParametersKeys": ["id"]});
    let mut unlisted = needs_id.clone();
    unlisted["pathParametersKeys"] = json!([]);
    unlisted["endpoint"] = json!("/x/${id}");
    for (body, code) in [
        (json!({"url": "https://shop.example"}), "VALIDATION_ERROR"),
        (json!({"name": "s"}), "VALIDATION_ERROR"),
        (with(json!({"url": "ftp://shop.example"})), "URL_NOT_ALLOWED"),
        (with(json!({"url": "https://user:pass@shop.example"})), "URL_NOT_ALLOWED"),
        (with(json!({"url": "http://127.0.0.1/"})), "URL_NOT_ALLOWED"),
        (with(json!({"url": "http://localhost:5432/"})), "URL_NOT_ALLOWED"),
        (with(json!({"url": "http://[::ffff:10.0.0.1]/"})), "URL_NOT_ALLOWED"),
        (with(json!({"url": "http://169.254.169.254/latest"})), "URL_NOT_ALLOWED"),
        (with(json!({"url": "http://0x7f.1/"})), "URL_NOT_ALLOWED"),
        (with(json!({"identifier": "No Good"})), "VALIDATION_ERROR"),
        (with(json!({"timeoutMs": 999})), "VALIDATION_ERROR"),
        (with(json!({"type": "integration"})), "VALIDATION_ERROR"),
        (with(json!({"projectId": "p"})), "PROJECT_NOT_FOUND"),
        (with(json!({"mcpAuthMode": "magic"})), "VALIDATION_ERROR"),
        (with(json!({"authenticationConfig": {"authenticationMethod": "jwt"}})), "VALIDATION_ERROR"),
        (with(json!({"authenticationConfig": {"authenticationMethod": "jwt", "token": MASK}})), "VALIDATION_ERROR"),
        (with(json!({"authenticationConfig": {"authenticationMethod": "jwt", "token": "a\nb"}})), "VALIDATION_ERROR"),
        (
            with(
                json!({"authenticationConfig": {"authenticationMethod": "customHeader", "customHeaders": [{"headerName": "Host", "value": "x"}]}}),
            ),
            "VALIDATION_ERROR",
        ),
        (
            with(
                json!({"authenticationConfig": {"authenticationMethod": "oauth2", "clientId": "c", "clientSecret": "s", "refreshTokenEndpoint": "http://10.0.0.1/token"}}),
            ),
            "URL_NOT_ALLOWED",
        ),
        (
            with(
                json!({"authenticationConfig": {"authenticationMethod": "oauth2", "clientId": "c", "clientSecret": "s", "refreshTokenEndpoint": "https://a.example", "grant_type": "password"}}),
            ),
            "VALIDATION_ERROR",
        ),
        (with(json!({"toolDefinitions": [{"endpoint": "/nameless"}]})), "INVALID_TOOL_DEFINITION"),
        (with(json!({"toolDefinitions": [tool("no good", "/", &json!({}))]})), "INVALID_TOOL_DEFINITION"),
        (with(json!({"toolDefinitions": [{"function": "text"}]})), "INVALID_TOOL_DEFINITION"),
        (
            with(json!({"toolDefinitions": [tool("t", "/", &json!({})), tool("t", "/", &json!({}))]})),
            "DUPLICATE_TOOL_NAME",
        ),
        (tools(json!({"method": "TRACE"})), "INVALID_TOOL_DEFINITION"),
        (tools(unlisted), "INVALID_TOOL_DEFINITION"),
        (tools(json!({"endpoint": "/x/${id}", "pathParametersKeys": ["id"]})), "INVALID_TOOL_DEFINITION"),
        (tools(json!({"endpoint": "/x/${id"})), "INVALID_TOOL_DEFINITION"),
        (tools(json!({"endpoint": "https://evil.example/x"})), "INVALID_TOOL_DEFINITION"),
        (tools(json!({"function": {"parameters": {"type": "array"}}})), "INVALID_TOOL_DEFINITION"),
        (
            tools(json!({"function": {"parameters": {"properties": {"a": {"$ref": "https://evil.example"}}}}})),
            "INVALID_TOOL_DEFINITION",
        ),
        (
            tools(json!({"customHeaders": [{"headerName": "Transfer-Encoding", "value": "x"}]})),
            "INVALID_TOOL_DEFINITION",
        ),
        (tools(json!({"timeoutMs": 1})), "INVALID_TOOL_DEFINITION"),
        (tools(json!({"bodyMode": "advanced"})), "INVALID_TOOL_DEFINITION"),
        (tools(json!({"bodyMode": "advanced", "bodyJsonTemplate": "{a: }"})), "TEMPLATE_ERROR"),
        (
            tools(json!({"responsePostProcessingEnabled": true, "responsePostProcessingTemplate": "return 1"})),
            "TEMPLATE_ERROR",
        ),
    ] {
        let refused = app.post("/tool-servers", body.clone()).await;
        assert_eq!(
            (refused.status, refused.error()),
            (if code.ends_with("FOUND") { StatusCode::NOT_FOUND } else { StatusCode::BAD_REQUEST }, code),
            "{body} {:?}",
            refused.body
        );
        let has_issues = refused.body["details"]["issues"].is_array();
        assert!(has_issues || !matches!(code, "VALIDATION_ERROR" | "INVALID_TOOL_DEFINITION"), "{body}");
    }
    assert_eq!(app.get("/tool-servers").await.body["total"], 0, "nothing was stored");
    let many: Vec<Value> = (0..201).map(|n| tool(&format!("t{n}"), "/", &json!({}))).collect();
    assert_eq!(app.post("/tool-servers", with(json!({"toolDefinitions": many}))).await.error(), "VALIDATION_ERROR");
    assert_eq!(app.get("/tool-servers?limit=0").await.error(), "INVALID_PAGINATION");
}

/// Tools whose requests differ in each way that a definition can say.
fn described() -> Vec<Value> {
    let open = json!({"type": "object", "properties": {"id": {"type": "string"}, "n": {"type": "integer"}}});
    let with = |more: Value| {
        let mut all = json!({"function": {"parameters": open}});
        more.as_object().expect("an object").iter().for_each(|(name, value)| all[name] = value.clone());
        all
    };
    vec![
        get_order(),
        tool("rest", "echo/a", &with(json!({"method": "POST", "queryParametersKeys": ["q", "o"]}))),
        tool("one", "/echo/b", &with(json!({"method": "PUT", "bodyPropertyKey": "text"}))),
        tool(
            "made",
            "/echo/c",
            &with(
                json!({"method": "PATCH", "bodyMode": "advanced", "bodyJsonTemplate": "{sum: params.n + 1, id: params.id}"}),
            ),
        ),
        tool("form", "/echo/d", &with(json!({"method": "POST", "isFormDataBody": true}))),
        tool("gone", "/echo/e", &with(json!({"method": "DELETE"}))),
        tool(
            "bad_template",
            "/echo/f",
            &with(json!({"method": "POST", "bodyMode": "advanced", "bodyJsonTemplate": "params.none.deeper"})),
        ),
        tool(
            "own_header",
            "/echo/g",
            &with(json!({"customHeaders": [{"headerName": "authorization", "value": "Own canary-3"}]})),
        ),
    ]
}

#[tokio::test]
async fn a_call_becomes_the_request_that_its_definition_says() {
    let (app, server, _db) = app_with_tools(&[]).await;
    let tools = described();
    let id = tool_server(&app, server.url(), &tools).await;
    let auth = json!({"authenticationMethod": "JWT", "token": "token-canary"});
    let set = app.patch(&format!("/tool-servers/{id}"), json!({"authenticationConfig": auth})).await;
    assert_eq!(set.body["authenticationConfig"], json!({"authenticationMethod": "jwt", "token": MASK}));

    let path = format!("/tool-servers/{id}/tools/get_order/test");
    let request = app
        .request(Method::POST, &path)
        .header("x-secret-of-caller", "caller-canary")
        .json(&json!({"parameters": {"id": "a/1", "expand": true}}));
    let result = app.send(request).await.body;
    assert_eq!(
        (&result["success"], &result["statusCode"], &result["requestMethod"]),
        (&json!(true), &json!(200), &json!("GET")),
        "{result}"
    );
    assert_eq!(result["requestUrl"], format!("{}/echo/orders/a%2F1?expand=true", server.url()));
    assert!(result["executionTimeMs"].is_u64());
    let sent = server.last();
    assert_eq!((sent.header("authorization"), sent.header("x-shop")), ("Bearer token-canary", "header-canary"));
    assert!(sent.header("user-agent").starts_with("platform/") && sent.header("idempotency-key").starts_with("call_"));
    assert!(!sent.header("x-request-id").is_empty() && sent.header("x-secret-of-caller").is_empty());
    assert!(!format!("{:?}", sent.headers).contains(app.key()), "nothing of the caller's request is passed on");

    let nested = json!({"n": 1});
    test(&app, &id, "rest", json!({"q": ["a&b", 2, "ü"], "o": nested, "id": "x", "n": 5})).await;
    assert_eq!(server.last().path, "/echo/a?q=a%26b&q=2&q=%C3%BC&o=%7B%22n%22%3A1%7D");
    assert_eq!(
        (server.last().json(), server.last().header("content-type")),
        (json!({"id": "x", "n": 5}), "application/json")
    );
    test(&app, &id, "rest", json!({"q": "only"})).await;
    assert_eq!(
        (server.last().body.as_str(), server.last().path.as_str()),
        ("", "/echo/a?q=only"),
        "nothing is left for a body"
    );
    test(&app, &id, "one", json!({"text": "plain \"text\""})).await;
    assert_eq!(server.last().body, r#""plain \"text\"""#, "a string too is sent as JSON");
    test(&app, &id, "made", json!({"n": 41, "id": "${evil}"})).await;
    assert_eq!(server.last().json(), json!({"sum": 42, "id": "${evil}"}));
    test(&app, &id, "gone", json!({"id": "x"})).await;
    assert_eq!((server.last().method.as_str(), server.last().json()), ("DELETE", json!({"id": "x"})));
    test(&app, &id, "own_header", json!({})).await;
    assert_eq!(server.last().header("authorization"), "Own canary-3", "a tool's header wins");

    let file = json!({"donwloadUrl": format!("{}/text", server.url()), "name": "a\"b.txt"});
    test(&app, &id, "form", json!({"id": "x\r\ny", "files": [file], "n": 3})).await;
    let sent = server.last();
    assert!(sent.header("content-type").starts_with("multipart/form-data; boundary="), "{:?}", sent.headers);
    assert_eq!(
        sent.body.matches("content-disposition: form-data").count()
            + sent.body.matches("Content-Disposition: form-data").count(),
        3,
        "{}",
        sent.body
    );
    assert!(sent.body.contains("just text") && sent.body.contains(r#"filename="a\"b.txt""#), "{}", sent.body);

    // A name cannot write headers, or another part.
    let file = json!({"downloadUrl": format!("{}/text", server.url()), "name": "a\r\nX-Evil: 1\r\n\r\nb\u{85}\n.txt"});
    test(&app, &id, "form", json!({"id": "x", "files": [file], "n": 3})).await;
    let sent = server.last().body;
    assert!(sent.contains("filename=\"a__X-Evil: 1____b__.txt\"") && !sent.contains("\nX-Evil"), "{sent:?}");

    let before = server.recorded().len();
    for (tool, arguments, code) in [
        ("get_order", json!({}), "INVALID_ARGUMENTS"),
        ("get_order", json!({"id": ".."}), "INVALID_ARGUMENTS"),
        ("get_order", json!({"id": "x", "surprise": 1}), "INVALID_ARGUMENTS"),
        ("made", json!({"n": "four"}), "INVALID_ARGUMENTS"),
        ("bad_template", json!({}), "TEMPLATE_ERROR"),
        ("form", json!({"f": {"downloadUrl": "http://10.0.0.1/a"}}), "URL_NOT_ALLOWED"),
    ] {
        let result = test(&app, &id, tool, arguments).await;
        let error = result["error"].as_str().unwrap_or_default();
        assert!(result["success"] == false && error.starts_with(&format!("{code}: ")), "{tool}: {result}");
        assert!(result["requestUrl"].as_str().is_some_and(|url| url.starts_with(server.url())), "{result}");
    }
    assert_eq!(server.recorded().len(), before, "no request was made");
    assert_eq!(app.post(&format!("/tool-servers/{id}/tools/none/test"), json!({})).await.error(), "TOOL_NOT_FOUND");
}

#[tokio::test]
async fn an_answer_becomes_the_result_that_the_contract_says() {
    let (app, server, _db) = app_with_tools(&[
        ("PLATFORM_LIMIT_EGRESS_BYTES", "2000000"),
        ("PLATFORM_LIMIT_TOOL_RESPONSE_BYTES", "1000000"),
    ])
    .await;
    let processed =
        |template: &str| json!({"responsePostProcessingEnabled": true, "responsePostProcessingTemplate": template});
    let tools = [
        tool("text", "/text", &json!({})),
        tool("missing", "/missing", &json!({})),
        tool("failed", "/status/500", &processed("({status: response.status, was: response.body.status})")),
        tool("short", "/echo/x", &processed("response.body.path")),
        tool("broken", "/echo/x", &processed("response.body.a.b")),
        tool("endless", "/echo/x", &processed("(() => { for (;;) {} })()")),
        tool("long", "/big/1500000", &json!({})),
        tool("too_long", "/big/2500000", &json!({})),
        tool("late", "/slow/3000", &json!({"timeoutMs": 1000})),
        tool("flaky", "/flaky/1", &json!({})),
        tool("flaky_post", "/flaky/01", &json!({"method": "POST"})),
        tool("away", "/to?http://10.0.0.1/", &json!({})),
        tool("round", "/to?/to", &json!({})),
        tool("there", "/to?/text", &json!({})),
    ];
    let id = tool_server(&app, server.url(), &tools).await;
    let wrapped = |value: Value| json!({"result": value});
    for (tool, success, data, error) in [
        ("text", true, wrapped(json!("just text")), ""),
        ("missing", false, wrapped(json!("no such order")), "HTTP_404"),
        ("failed", false, json!({"status": 500, "was": "500"}), "HTTP_500"),
        ("short", true, wrapped(json!("/echo/x")), ""),
        ("there", true, wrapped(json!("just text")), ""),
        ("flaky", true, json!({"again": false}), ""),
        ("flaky_post", false, json!({"again": true}), "HTTP_503"),
        ("broken", false, Value::Null, "TEMPLATE_ERROR: "),
        ("endless", false, Value::Null, "TEMPLATE_ERROR: "),
        ("too_long", false, Value::Null, "RESPONSE_TOO_LARGE: "),
        ("late", false, Value::Null, "UPSTREAM_TIMEOUT: "),
        ("away", false, Value::Null, "URL_NOT_ALLOWED: "),
        ("round", false, Value::Null, "URL_NOT_ALLOWED: "),
    ] {
        let result = test(&app, &id, tool, json!({})).await;
        assert_eq!((&result["success"], &result["data"]), (&json!(success), &data), "{tool}: {result}");
        assert!(result["error"].as_str().unwrap_or_default().starts_with(error), "{tool}: {result}");
        assert_eq!(result["error"].is_string(), !success, "{tool}: {result}");
    }
    let long = test(&app, &id, "long", json!({})).await;
    assert_eq!(long["data"]["truncated"], true);
    assert!(long["data"]["content"].as_str().is_some_and(|text| (900_000..=1_000_000).contains(&text.len())));
    app.patch(&format!("/tool-servers/{id}"), json!({"url": "http://127.0.0.1:1"})).await;
    let nobody = test(&app, &id, "text", json!({})).await;
    assert!(nobody["error"].as_str().is_some_and(|error| error.starts_with("UPSTREAM_ERROR: ")), "{nobody}");
}

#[tokio::test]
async fn secrets_are_sealed_masked_kept_and_sent_only_where_they_were_given_for() {
    let (app, server, db) = app_with_tools(&[]).await;
    let other = platform_testing::FakeToolServer::start();
    let id = tool_server(&app, server.url(), &[get_order(), tool("echo", "/echo", &json!({}))]).await;
    let path = format!("/tool-servers/{id}");
    for (auth, header, value) in [
        (
            json!({"authenticationMethod": "Basic", "username": "me", "password": "password-canary"}),
            "authorization",
            "Basic bWU6cGFzc3dvcmQtY2FuYXJ5",
        ),
        (
            json!({"authenticationMethod": "Custom Headers", "custom_headers": [{"headerName": "X-Key", "value": "custom-canary"}]}),
            "x-key",
            "custom-canary",
        ),
        (json!({"authenticationMethod": "jwt", "token": "token-canary"}), "authorization", "Bearer token-canary"),
    ] {
        let set = app.patch(&path, json!({"authenticationConfig": auth})).await;
        assert_eq!(set.status, StatusCode::OK, "{:?}", set.body);
        assert!(!set.body.to_string().contains("canary"), "{}", set.body);
        let kept = app
            .patch(&path, json!({"name": "Renamed", "authenticationConfig": set.body["authenticationConfig"]}))
            .await;
        assert_eq!(kept.body["authenticationConfig"], set.body["authenticationConfig"]);
        test(&app, &id, "echo", json!({})).await;
        assert_eq!(server.last().header(header), value);
    }
    // What a tool echoes comes back without them.
    let echoed = test(&app, &id, "get_order", json!({"id": "x"})).await;
    assert!(!echoed.to_string().contains("canary") && echoed.to_string().contains(MASK), "{echoed}");

    let renamed = app.patch(&format!("{path}/tools/get_order"), json!({"function": {"name": "read_order"}})).await;
    assert_eq!(renamed.body["customHeaders"], json!([{"headerName": "X-Shop", "value": MASK}]));
    test(&app, &id, "read_order", json!({"id": "x"})).await;
    assert_eq!(server.last().header("x-shop"), "header-canary", "a renamed tool keeps its secrets");

    let copy = app.post(&format!("{path}/clone"), json!({})).await.body["_id"].as_str().expect("an id").to_owned();
    test(&app, &copy, "read_order", json!({"id": "x"})).await;
    assert_eq!(
        (server.last().header("authorization"), server.last().header("x-shop")),
        ("Bearer token-canary", "header-canary")
    );

    assert!(!db.dump().await.contains("canary"), "nothing is stored in the clear");

    // Moved to another port: the secrets stay behind.
    let moved = app.patch(&path, json!({"url": other.url()})).await;
    assert_eq!(moved.status, StatusCode::OK, "{:?}", moved.body);
    for tool in ["echo", "read_order"] {
        let refused = test(&app, &id, tool, json!({"id": "x"})).await;
        assert!(refused["error"].as_str().is_some_and(|error| error.starts_with("AUTH_FAILED: ")), "{refused}");
    }
    let masked =
        app.patch(&path, json!({"authenticationConfig": {"authenticationMethod": "jwt", "token": MASK}})).await;
    assert_eq!(masked.status, StatusCode::OK);
    test(&app, &id, "echo", json!({})).await;
    assert!(other.recorded().is_empty(), "a mask is not a secret given again: {:?}", other.recorded());
    app.patch(&path, json!({"authenticationConfig": {"authenticationMethod": "jwt", "token": "second-canary"}})).await;
    test(&app, &id, "echo", json!({})).await;
    assert_eq!(other.last().header("authorization"), "Bearer second-canary");
}

fn oauth(endpoint: &str, more: &Value) -> Value {
    let mut auth = json!({"authenticationMethod": "OAuth2", "clientId": "me", "clientSecret": "client-canary", "refreshTokenEndpoint": endpoint});
    more.as_object().expect("an object").iter().for_each(|(name, value)| auth[name] = value.clone());
    json!({"authenticationConfig": auth})
}

#[tokio::test]
async fn a_token_is_fetched_once_for_all_who_wait_and_again_when_it_is_refused() {
    let (mut app, server, db) = app_with_tools(&[]).await;
    let id = tool_server(
        &app,
        server.url(),
        &[tool("in", "/guarded", &json!({})), tool("post", "/guarded", &json!({"method": "POST"}))],
    )
    .await;
    let (path, endpoint) = (format!("/tool-servers/{id}"), format!("{}/token", server.url()));
    app.patch(&path, oauth(&endpoint, &json!({"scope": "a b"}))).await;
    let calls = (0..100).map(|_| test(&app, &id, "in", json!({})));
    let results = futures_util::future::join_all(calls).await;
    assert!(results.iter().all(|result| result["success"] == true), "{:?}", results[0]);
    assert_eq!(server.calls("/token"), 1, "one request for a hundred calls");
    let asked = server.recorded().into_iter().find(|request| request.path == "/token").expect("asked");
    assert_eq!(asked.body, "grant_type=client_credentials&client_id=me&client_secret=client-canary&scope=a+b");

    server.revoke_tokens();
    assert_eq!(
        test(&app, &id, "post", json!({})).await["success"],
        true,
        "a refused token is replaced, and the call made again"
    );
    assert_eq!(server.calls("/token"), 2);
    app.crash();
    assert_eq!(test(&app, &id, "in", json!({})).await["success"], true);
    assert_eq!(server.calls("/token"), 2, "the token outlives the process");
    server.tokens_live(0);
    server.revoke_tokens();
    test(&app, &id, "in", json!({})).await;
    test(&app, &id, "in", json!({})).await;
    assert_eq!(server.calls("/token"), 4, "one whose time is over is not used");

    // Rotation: each refresh token is good once, and the newest is stored before its access token is used.
    let rotating = platform_testing::FakeToolServer::start();
    let id = tool_server(&app, rotating.url(), &[tool("in", "/guarded", &json!({}))]).await;
    let refresh = json!({"grant_type": "refresh_token", "refreshToken": "refresh-first", "requestFormat": "JSON"});
    app.patch(&format!("/tool-servers/{id}"), oauth(&format!("{}/token", rotating.url()), &refresh)).await;
    for turn in 1..=3 {
        assert_eq!(test(&app, &id, "in", json!({})).await["success"], true, "turn {turn}");
        rotating.revoke_tokens();
        app.crash();
    }
    let asked: Vec<Value> = rotating
        .recorded()
        .iter()
        .filter(|request| request.path == "/token")
        .map(|request| request.json()["refresh_token"].clone())
        .collect();
    assert_eq!(asked, ["refresh-first", "refresh-1", "refresh-2"]);
    let shown = app.get(&format!("/tool-servers/{id}")).await.body;
    assert_eq!(
        (&shown["authenticationConfig"]["grant_type"], &shown["authenticationConfig"]["refreshToken"]),
        (&json!("refresh_token"), &json!(MASK))
    );
    let dump = db.dump().await;
    assert!(!["client-canary", "refresh-first", "access-1", "refresh-3"].iter().any(|secret| dump.contains(secret)));

    let wrong = oauth(&endpoint, &json!({"clientSecret": "guessed-wrong"}));
    app.patch(&path, wrong).await;
    let refused = test(&app, path.rsplit('/').next().unwrap_or_default(), "in", json!({})).await;
    assert_eq!(
        refused["error"],
        "AUTH_FAILED: No token could be fetched: the token server answers 401: invalid_client."
    );
}

#[tokio::test]
async fn a_server_in_use_is_deleted_only_with_force_and_leaves_no_reference() {
    let (app, server, _db) = app_with_tools(&[]).await;
    let id = tool_server(&app, server.url(), &[tool("echo", "/echo", &json!({}))]).await;
    let missing = json!({"name": "a", "availableToolsGroupsUids": ["nothing"]});
    assert_eq!(app.post("/assistants", missing).await.error(), "TOOL_SERVER_NOT_FOUND");
    let made = json!({"name": "a", "identifier": "helper", "availableToolsGroupsUids": [id, "builtin-time", id]});
    let made = app.post("/assistants", made).await.body;
    assert_eq!(made["availableToolsGroupsUids"], json!([id, "builtin-time"]));
    assert_eq!(
        made["availableToolsGroups"][0],
        json!({"uid": id, "name": "Tools", "description": "", "tools": [{"name": "echo", "description": ""}]})
    );
    assert_eq!(made["availableToolsGroups"][1]["tools"][0]["name"], "current_time");
    let path = format!("/tool-servers/{id}");
    let refused = app.delete(&path).await;
    assert_eq!((refused.status, refused.error()), (StatusCode::CONFLICT, "CONFLICT"));
    let used_by =
        json!({"agents": [], "assistants": [made["_id"]], "environments": [], "profiles": [], "triggers": []});
    assert_eq!(refused.body["details"]["usedBy"], used_by);
    assert_eq!(app.delete(&format!("{path}?force=true")).await.status, StatusCode::OK);
    let left = app.get("/assistants/helper").await.body;
    assert_eq!(
        (&left["availableToolsGroupsUids"], left["availableToolsGroups"].as_array().map(Vec::len)),
        (&json!(["builtin-time"]), Some(1))
    );

    let id = tool_server(&app, server.url(), &[]).await;
    app.patch("/assistants/helper", json!({"availableToolsGroupsUids": [id]})).await;
    assert_eq!(app.delete(&format!("/tool-servers/{id}")).await.error(), "CONFLICT");
    app.patch("/assistants/helper", json!({"availableToolsGroupsUids": []})).await;
    assert_eq!(app.delete(&format!("/tool-servers/{id}")).await.status, StatusCode::OK);
    let id = tool_server(&app, server.url(), &[]).await;
    app.patch("/assistants/helper", json!({"availableToolsGroupsUids": [id]})).await;
    app.delete("/assistants/helper").await;
    assert_eq!(
        app.delete(&format!("/tool-servers/{id}")).await.status,
        StatusCode::OK,
        "a deleted assistant uses nothing"
    );
}

#[tokio::test]
async fn an_openapi_description_becomes_a_server_with_a_tool_for_each_operation() {
    let (app, server, _db) = app_with_tools(&[]).await;
    let pet = json!({"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}, "tag": {"type": "string", "nullable": true}, "parent": {"$ref": "#/components/schemas/Pet"}}});
    let id = json!({"name": "petId", "in": "path", "required": true, "schema": {"type": "integer"}});
    let spec = json!({
        "openapi": "3.0.3", "info": {"title": "Pet Store", "description": "Pets."}, "servers": [{"url": "/echo/{v}", "variables": {"v": {"default": "v1"}}}],
        "components": {"schemas": {"Pet": pet}, "parameters": {"id": id}},
        "paths": {
            "/pets": {
                "get": {"operationId": "list.pets", "summary": "All", "parameters": [{"name": "limit", "in": "query", "schema": {"type": "integer"}}, {"name": "X-Trace", "in": "header", "schema": {"type": "string"}}]},
                "post": {"operationId": "addPet", "requestBody": {"required": true, "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Pet"}}}}},
                "head": {"operationId": "headPets"},
            },
            "/pets/{petId}": {
                "parameters": [{"$ref": "#/components/parameters/id"}],
                "get": {},
                "put": {"operationId": "tagPet", "requestBody": {"content": {"application/json": {"schema": {"type": "array", "items": {"type": "string"}}}}}},
                "delete": {"operationId": "dropPet", "parameters": [{"name": "X-Why", "in": "header", "required": true, "schema": {"type": "string"}}]},
            },
            "/twice/{id}": {
                "parameters": [{"name": "id", "in": "path", "required": true, "schema": {"type": "string"}}],
                "get": {"operationId": "once", "parameters": [{"name": "id", "in": "query", "schema": {"type": "string"}}]},
                "delete": {"operationId": "both", "parameters": [{"name": "id", "in": "query", "required": true, "schema": {"type": "string"}}]},
            },
            "/forms": {"post": {"operationId": "sendForm", "requestBody": {"content": {"application/x-www-form-urlencoded": {"schema": {"type": "object", "properties": {"a": {"type": "string"}}}}}}}},
            "/upload": {"post": {"operationId": "upload", "requestBody": {"content": {"multipart/form-data": {"schema": {"type": "object", "properties": {"file": {"type": "string", "format": "binary"}}}}}}}},
            "/grown": {"post": {"operationId": "growPet", "requestBody": {"content": {"application/json": {"schema": {"allOf": [{"$ref": "#/components/schemas/Pet"}, {"type": "object", "required": ["age"], "properties": {"age": {"type": "integer"}}}]}}}}}},
            "/lost": {"post": {"operationId": "lost", "requestBody": {"$ref": "#/components/requestBodies/None"}}},
            "/xml": {"post": {"operationId": "sendXml", "requestBody": {"required": true, "content": {"application/xml": {}}}}},
        },
    });
    let made = app
        .post("/tool-servers/import-openapi", json!({"spec": spec, "baseUrl": format!("{}/echo/v1", server.url())}))
        .await;
    assert_eq!(made.status, StatusCode::CREATED, "{:?}", made.body);
    assert_eq!(
        (&made.body["name"], &made.body["identifier"], &made.body["toolCount"]),
        (&json!("Pet Store"), &json!("pet-store"), &json!(8))
    );
    let tools = made.body["toolDefinitions"].as_array().expect("tools").clone();
    let find = |name: &str| {
        tools.iter().find(|tool| tool["function"]["name"] == name).unwrap_or_else(|| panic!("no {name}: {tools:?}"))
    };
    assert_eq!(find("list_pets")["queryParametersKeys"], json!(["limit"]));
    assert_eq!(find("get_pets_petId")["endpoint"], "/pets/${petId}");
    assert_eq!(find("tagPet")["bodyPropertyKey"], "body");
    let added = &find("addPet")["function"]["parameters"];
    assert_eq!(
        (&added["required"], &added["properties"]["tag"]["type"]),
        (&json!(["name"]), &json!(["string", "null"]))
    );
    let grown = &find("growPet")["function"]["parameters"]["properties"];
    assert!(grown["name"].is_object() && grown["age"]["type"] == "integer", "an object in parts: {grown}");
    let skipped: Vec<&Value> =
        made.body["skipped"].as_array().expect("a list").iter().map(|skipped| &skipped["operation"]).collect();
    assert_eq!(skipped, ["lost", "headPets", "dropPet", "both", "sendXml"], "{}", made.body["skipped"]);
    assert!(find("upload")["function"]["parameters"]["properties"]["file"]["properties"]["downloadUrl"].is_object());
    assert_eq!(find("once")["queryParametersKeys"], json!([]), "an argument stands in one place");
    let id = made.body["_id"].as_str().expect("an id");
    assert_eq!(test(&app, id, "tagPet", json!({"petId": 7, "body": ["x"]})).await["success"], true);
    assert_eq!((server.last().path.as_str(), server.last().body.as_str()), ("/echo/v1/pets/7", r#"["x"]"#));
    test(&app, id, "sendForm", json!({"a": "b c&d"})).await;
    assert_eq!(
        (server.last().header("content-type"), server.last().body.as_str()),
        ("application/x-www-form-urlencoded", "a=b+c%26d")
    );

    let yaml = "openapi: 3.1.0\ninfo: {title: Y}\nservers: [{url: 'https://y.example'}]\npaths:\n  /a:\n    get: {operationId: a, responses: {200: {description: ok}}}\n    post: {operationId: b}\n";
    let chosen = app
        .post("/tool-servers/import-openapi", json!({"spec": yaml, "name": "Mine", "include": ["b", "zzz"]}))
        .await
        .body;
    assert_eq!(
        (&chosen["name"], &chosen["toolCount"], &chosen["skipped"][0]["operation"]),
        (&json!("Mine"), &json!(1), &json!("zzz")),
        "{chosen}"
    );
    for (body, code) in [
        (json!({}), "VALIDATION_ERROR"),
        (json!({"spec": {"swagger": "2.0"}}), "VALIDATION_ERROR"),
        (json!({"spec": "a: [b"}), "VALIDATION_ERROR"),
        (json!({"spec": "{a: ".repeat(50_000)}), "VALIDATION_ERROR"),
        (json!({"spec": {"openapi": "3.0.0", "paths": {}}}), "VALIDATION_ERROR"),
        (json!({"url": "http://10.0.0.1/spec.json"}), "URL_NOT_ALLOWED"),
        (json!({"url": format!("{}/missing", server.url())}), "UPSTREAM_ERROR"),
    ] {
        assert_eq!(app.post("/tool-servers/import-openapi", body.clone()).await.error(), code, "{body}");
    }
}

#[tokio::test]
async fn an_mcp_server_that_is_down_is_kept_and_said_to_be() {
    let (app, server, _db) = app_with_tools(&[]).await;
    let made = app
        .post("/tool-servers", json!({"name": "M", "url": format!("{}/missing", server.url()), "mcpType": true}))
        .await;
    assert_eq!(
        (made.status, &made.body["type"], &made.body["health"]),
        (StatusCode::CREATED, &json!("mcp"), &json!("down")),
        "{:?}",
        made.body
    );
    let path = format!("/tool-servers/{}", made.body["_id"].as_str().expect("an id"));
    assert_eq!((app.post(&format!("{path}/refresh"), json!({})).await.status), StatusCode::BAD_GATEWAY);
    app.patch(&path, json!({"url": "http://127.0.0.1:1/mcp"})).await;
    let nobody = app.post(&format!("{path}/refresh"), json!({})).await;
    assert_eq!(nobody.body["message"], "UPSTREAM_ERROR: `http://127.0.0.1:1` cannot be reached.");
    assert_eq!(app.post(&format!("{path}/tools"), tool("t", "/", &json!({}))).await.error(), "CONFLICT");
    let http = tool_server(&app, server.url(), &[]).await;
    assert_eq!(app.post(&format!("/tool-servers/{http}/refresh"), json!({})).await.error(), "CONFLICT");
    tokio::time::timeout(Duration::from_secs(5), app.delete(&path)).await.expect("deleted at once");
}

#[tokio::test]
async fn through_the_mcp_endpoint_a_server_is_called_with_the_credentials_that_its_mode_says() {
    let (app, server) = (mcp_gateway::app().await, FakeToolServer::start());
    let own = json!({"authenticationMethod": "jwt", "token": "own-canary"});
    let mut servers = Vec::new();
    for mode in ["shared", "passthrough", "per_user"] {
        let new = json!({"name": mode, "url": server.url(), "mcpExposed": true, "mcpAuthMode": mode,
            "toolDefinitions": [tool("go", "/echo", &json!({}))], "authenticationConfig": own});
        servers.push(json!({"toolServerId": app.post("/tool-servers", new).await.body["_id"]}));
    }
    mcp_gateway::profile(&app, json!({"name": "default", "servers": servers})).await;
    let call = async |name: &str, upstream: Option<&str>| {
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": name}});
        let request = app.request(Method::POST, "/mcp").json(&body);
        let request =
            upstream.into_iter().fold(request, |request, own| request.header("X-Upstream-Authorization", own));
        app.send(request).await.body["result"].clone()
    };
    for (name, upstream) in [("shared__go", None), ("passthrough__go", Some("Bearer carol"))] {
        let result = call(name, upstream).await;
        assert!(result["content"].is_array() && result["isError"].is_null(), "{name}: {result}");
    }
    for name in ["passthrough__go", "per-user__go"] {
        assert_eq!(call(name, None).await["isError"], true, "{name}: nobody's credentials are taken instead");
    }
    let sent: Vec<_> = server.recorded().iter().map(|request| request.header("authorization").to_owned()).collect();
    assert_eq!(sent[..2], ["Bearer own-canary", "Bearer carol"], "{sent:?}");
    assert!(sent[2..].iter().all(String::is_empty), "{sent:?}");
}
