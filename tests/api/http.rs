//! What holds for every request (contract 00 §1 to §7).

use platform_testing::TestApp;
use reqwest::{Method, StatusCode};
use serde_json::{Map, Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::{
    access::session,
    support::{UNBOUNDED, app, app_with},
};

async fn raw(app: &TestApp, request: &str) -> String {
    let address = app.url().trim_start_matches("http://").to_owned();
    let mut stream = tokio::net::TcpStream::connect(address).await.expect("connected");
    stream.write_all(request.as_bytes()).await.expect("written");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.expect("read");
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test]
async fn every_error_is_the_error_object_with_its_status_and_request_id() {
    let app = app().await;
    let long = "x".repeat(300 * 1024);
    let json_kind = ("content-type", "application/json");
    let post = |path: &str, kind: (&'static str, &'static str), body: &str| {
        app.request(Method::POST, path).header(kind.0, kind.1).body(body.to_owned())
    };
    let assistants = "/assistants";
    let deep = format!("{}{}", "[".repeat(65), "]".repeat(65));
    let huge = format!("{{\"name\":\"{}\"}}", "x".repeat(3 << 20));
    let cases = [
        (app.request(Method::GET, "/nothing"), 404, "NOT_FOUND"),
        (app.request(Method::GET, "/assistants/"), 404, "NOT_FOUND"),
        (app.request(Method::GET, "/assistants/a%2Fb"), 404, "NOT_FOUND"),
        (app.request(Method::GET, "/assistants/a b"), 404, "ASSISTANT_NOT_FOUND"),
        (app.request(Method::GET, "/assistants/a%00b"), 404, "NOT_FOUND"),
        (app.request(Method::GET, "/assistants/%FF%C3"), 404, "NOT_FOUND"),
        (app.request(Method::GET, "/assistants?search=a%00b"), 400, "VALIDATION_ERROR"),
        (app.request(Method::PUT, "/models"), 405, "METHOD_NOT_ALLOWED"),
        (app.anonymous(Method::GET, "/v1/assistants"), 401, "UNAUTHENTICATED"),
        (app.anonymous(Method::GET, "/v1/assistants").bearer_auth("ak-nothing"), 401, "UNAUTHENTICATED"),
        (app.anonymous(Method::GET, "/v1/assistants").header("authorization", "Basic eA=="), 401, "UNAUTHENTICATED"),
        (app.request(Method::GET, assistants).header("authorization", "Bearer other"), 400, "BAD_REQUEST"),
        (post(assistants, ("content-type", "text/plain"), "{}"), 415, "UNSUPPORTED_MEDIA_TYPE"),
        (post("/mcp", ("content-type", "text/plain"), "{}"), 415, "UNSUPPORTED_MEDIA_TYPE"),
        (post(assistants, json_kind, "{}").header("content-encoding", "gzip"), 415, "UNSUPPORTED_MEDIA_TYPE"),
        (post(assistants, json_kind, "{\"name\": "), 400, "INVALID_JSON"),
        (post(assistants, json_kind, "\u{feff}{}"), 400, "INVALID_JSON"),
        (post(assistants, json_kind, "{\"name\":\"a\",\"name\":\"b\"}"), 400, "INVALID_JSON"),
        (post(assistants, json_kind, "{\"name\":\"\\ud800\"}"), 400, "INVALID_JSON"),
        (post(assistants, json_kind, "{\"name\":\"a\",\"zz\":\"\\udc00\\ud800\"}"), 400, "INVALID_JSON"),
        (post(assistants, json_kind, &deep), 400, "INVALID_JSON"),
        (post(assistants, json_kind, "{\"name\":\"a\\u0000\"}"), 400, "VALIDATION_ERROR"),
        (post(assistants, json_kind, "{\"name\":7}"), 400, "VALIDATION_ERROR"),
        (post(assistants, json_kind, "[\"id\",\"Name\"]"), 400, "INVALID_JSON"),
        (
            post(assistants, json_kind, "{\"name\":\"a\",\"widgetConfiguration\":{\"n\":9007199254740992}}"),
            400,
            "VALIDATION_ERROR",
        ),
        (post("/assistants/default/chats/x/stop", json_kind, "{\"a\":"), 400, "INVALID_JSON"),
        (post(assistants, ("content-type", "text/plain"), &huge), 415, "UNSUPPORTED_MEDIA_TYPE"),
        (
            app.request(Method::PATCH, "/assistants/x")
                .header("content-type", "application/json")
                .body("{\"name\":\"a\",\"name\":\"b\"}"),
            400,
            "INVALID_JSON",
        ),
        (app.request(Method::GET, "/models?strict=perhaps"), 400, "VALIDATION_ERROR"),
        (app.request(Method::GET, "/assistants/default/chats/x/search?q=a&limit=abc"), 400, "INVALID_PAGINATION"),
        (post(assistants, json_kind, ""), 400, "VALIDATION_ERROR"),
        (post(assistants, json_kind, &huge), 413, "PAYLOAD_TOO_LARGE"),
        (
            post("/assistants/default/messages", json_kind, &json!({"message": long}).to_string()),
            400,
            "VALIDATION_ERROR",
        ),
        (app.request(Method::GET, "/assistants/default/chats?limit=0"), 400, "INVALID_PAGINATION"),
        (app.request(Method::GET, "/assistants/default/chats?offset=x"), 400, "INVALID_PAGINATION"),
        (app.request(Method::GET, "/assistants?external=maybe"), 400, "VALIDATION_ERROR"),
        (app.request(Method::GET, "/docs/ARCHITECTURE").header("accept", "image/png"), 406, "NOT_ACCEPTABLE"),
    ];
    for (at, (request, status, code)) in cases.into_iter().enumerate() {
        let reply = app.send(request).await;
        assert_eq!((reply.status.as_u16(), reply.error()), (status, code), "case {at}: {:?}", reply.body);
        assert_eq!(reply.body["statusCode"], status, "case {at}");
        assert!(reply.body["details"].is_object() && reply.body["message"].is_string(), "case {at}");
        assert_eq!(reply.body["requestId"].as_str(), Some(reply.header("x-request-id")), "case {at}");
        assert_eq!(reply.header("cache-control"), "no-store", "case {at}");
        let challenge = reply.header("www-authenticate");
        assert_eq!(challenge.contains("Bearer realm=\"api\""), status == 401, "case {at}: {challenge}");
    }
    let reply = app.send(app.request(Method::PUT, "/models")).await;
    assert_eq!(reply.header("allow"), "GET, HEAD");
}

/// Text with each byte as a percent code.
fn encoded(text: &str) -> String {
    text.bytes().fold(String::new(), |path, byte| format!("{path}%{byte:02X}"))
}

#[tokio::test]
async fn what_stands_in_a_path_is_decoded_once_whatever_it_is() {
    let app = app_with(&UNBOUNDED).await;
    let printable = (' '..='~').chain("äΩ漢😀".chars()).filter(|c| *c != '/');
    let ids = printable.map(|c| format!("x{c}y")).chain(["%25".to_owned(), "a%2Bb".to_owned(), "a+b%".to_owned()]);
    let each = ids.map(async |id| {
        let made = app.post("/tenants", json!({"tenantId": id})).await;
        assert_eq!(made.status, StatusCode::CREATED, "{id}: {}", made.body);
        let sent = json!({"message": "x", "tenantId": id, "subtenantId": id});
        assert_eq!(app.post("/assistants/default/messages?async=true", sent).await.status, StatusCode::OK, "{id}");
        let tenant = app.get(&format!("/tenants/{}", encoded(&id))).await;
        assert_eq!(tenant.body["tenantId"], id.as_str(), "{}", tenant.body);
        let user = app.get(&format!("/tenants/{0}/subtenants/{0}", encoded(&id))).await;
        assert_eq!(user.body["subtenantId"], id.as_str(), "{}", user.body);
    });
    futures_util::future::join_all(each).await;
    assert_eq!(app.get("/tenants/x+y").await.body["tenantId"], "x+y", "a plus sign stands for itself");

    // The same for every placeholder: who is not found is named as it was meant.
    let (odd, document) = ("a+b%2B\\c", app.get("/openapi.json").await.body);
    for (path, methods) in document["paths"].as_object().expect("paths") {
        let (Some((before, last)), true) = (path.rsplit_once("/{"), methods["get"].is_object()) else { continue };
        if last.ends_with('}') && !before.contains('{') && path.starts_with("/v1/") {
            let missing = app.send(app.request(Method::GET, &format!("{}/{}", &before[3..], encoded(odd)))).await;
            let message = missing.body["message"].as_str().unwrap_or_default().to_owned();
            assert!(missing.status == StatusCode::NOT_FOUND && message.contains(odd), "{path}: {}", missing.body);
        }
    }
    // Lists of endpoints name paths as they are meant, too.
    let only = json!({"name": "k", "allowedEndpoints": [{"method": "GET", "path": "/tenants/x+y"}]});
    let key = app.post("/api-keys", only).await.body["key"].as_str().expect("a key").to_owned();
    for (path, status) in [("x+y", 200), ("x%2By", 200), ("x%252By", 403)] {
        let asked = app.anonymous(Method::GET, &format!("/v1/tenants/{path}")).bearer_auth(&key);
        assert_eq!(app.send(asked).await.status.as_u16(), status, "{path}");
    }
}

#[tokio::test]
async fn what_is_no_body_and_what_asks_for_another_protocol_is_answered_at_once() {
    let app = app().await;
    assert_eq!(app.get("/assistants").await.status, StatusCode::OK, "the key is known");
    let key = app.key();
    let head = |more: &str| {
        let json = "content-type: application/json\r\nconnection: close";
        format!("POST /v1/assistants HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\n{json}\r\n{more}\r\n\r\n")
    };
    let chunked = head("transfer-encoding: chunked");
    for broken in ["zz\r\n", "FFFFFFFFFFFFFFFFFF\r\n", "2\r\n{}x"] {
        let answer = raw(&app, &format!("{chunked}{broken}")).await;
        assert!(answer.starts_with("HTTP/1.1 400") && answer.contains("BAD_REQUEST"), "{broken}: {answer}");
    }
    let upgrade = "connection: upgrade\r\nupgrade: websocket";
    let read = raw(&app, &format!("GET /v1/health HTTP/1.1\r\nhost: x\r\n{upgrade}\r\n\r\n")).await;
    assert!(read.starts_with("HTTP/1.1 200"), "{read}");
    let made = format!("{}{{\"name\":\"of an upgrade\"}}", head("upgrade: websocket\r\ncontent-length: 24"));
    let made = raw(&app, &made).await;
    assert!(made.starts_with("HTTP/1.1 201"), "{made}");
    let in_chunks = "upgrade: h2c\r\ntransfer-encoding: chunked";
    let made = raw(&app, &format!("{}12\r\n{{\"name\":\"chunked\"}}\r\n0\r\n\r\n", head(in_chunks))).await;
    assert!(made.starts_with("HTTP/1.1 201"), "{made}");
    for path in ["/v1/tenants/%FF%41", "/v1/tenant-usage/%C3A"] {
        let missing = app.send(app.request(Method::GET, &path[3..])).await;
        assert_eq!((missing.status, missing.error()), (StatusCode::NOT_FOUND, "NOT_FOUND"), "{path}");
    }
    for twice in ["content-encoding: identity\r\ncontent-encoding: gzip", "content-type: text/plain"] {
        let answer = raw(&app, &format!("{}{{}}", head(&format!("{twice}\r\ncontent-length: 2")))).await;
        assert!(answer.starts_with("HTTP/1.1 415"), "{twice}: {answer}");
    }
    // What a session may not say it may not say as a number either.
    let token = session(&app, json!({"tenantId": "acme"})).await;
    let other = app.anonymous(Method::POST, "/v1/assistants/chats").bearer_auth(token).json(&json!({"tenantId": 5}));
    assert_eq!(app.send(other).await.error(), "VALIDATION_ERROR");
    // Two names of one field are a question of which is meant.
    let both = json!({"message": "x", "llm": "demo-1", "model": "demo-1"});
    let both = app.post("/assistants/default/messages", both).await;
    assert_eq!((both.status, both.error()), (StatusCode::BAD_REQUEST, "VALIDATION_ERROR"), "{}", both.body);
    assert_eq!(both.body["details"]["issues"][0]["path"], "model", "{}", both.body);
}

#[tokio::test]
async fn both_mounts_head_and_the_callers_request_id_work() {
    let app = app().await;
    for mount in ["/v1/models", "/api/v1/models"] {
        let request = app.anonymous(Method::GET, mount).bearer_auth(app.key()).header("x-request-id", "mine-1");
        let reply = app.send(request).await;
        assert_eq!((reply.status, reply.header("x-request-id")), (StatusCode::OK, "mine-1"));
        assert_eq!(reply.header("x-api-version"), "1.0.0");
        assert_eq!(reply.header("x-content-type-options"), "nosniff");
    }
    let head = app.send(app.request(Method::HEAD, "/models")).await;
    assert_eq!((head.status, head.body), (StatusCode::OK, Value::String(String::new())));
    let odd = app.send(app.request(Method::GET, "/models").header("x-request-id", "not valid!")).await;
    assert_ne!(odd.header("x-request-id"), "not valid!");
    assert_eq!(app.send(app.anonymous(Method::GET, "/livez")).await.status, StatusCode::OK);
    assert_eq!(app.send(app.anonymous(Method::GET, "/readyz")).await.status, StatusCode::OK);
    assert_eq!(app.get("/health").await.body["checks"]["database"], "ok");
}

#[tokio::test]
async fn unknown_fields_are_named_and_with_strict_refused() {
    let app = app().await;
    let body = json!({"name": "A", "colour": "red", "createdAt": "kept quiet"});
    let reply = app.post("/assistants?shade=dark", body.clone()).await;
    assert_eq!((reply.status, reply.header("x-ignored-fields")), (StatusCode::CREATED, "colour,?shade"));
    let reply = app.post("/assistants", json!({"name": "A", "größe, cm": 5})).await;
    assert_eq!(reply.header("x-ignored-fields"), "gr%C3%B6%C3%9Fe%2C%20cm", "names that no header can hold");
    let reply = app.post("/assistants", json!({"nmae": "A"})).await;
    assert_eq!((reply.error(), &reply.body["details"]["ignoredFields"]), ("VALIDATION_ERROR", &json!(["nmae"])));
    let reply = app.post("/assistants?strict=true", json!({"nmae": "A", "name": "B"})).await;
    assert_eq!((reply.status, reply.error()), (StatusCode::BAD_REQUEST, "UNKNOWN_FIELD"));
    assert_eq!(reply.body["details"]["fields"], json!([{"name": "nmae", "suggestion": "name"}]));
    // What is null counts as absent.
    let nulls = json!({"name": "Nulls", "description": null, "tags": null, "state": null, "temperature": null});
    let reply = app.post("/assistants", nulls).await;
    assert_eq!((reply.status, &reply.body["state"]), (StatusCode::CREATED, &json!("active")));
    // A record that was read may be sent back.
    // However many names and rules are wrong, an answer tells some of them.
    let many: Value =
        (0..20_000).map(|n| (format!("name{n}{}", "x".repeat(n % 50)), json!(n))).collect::<Map<_, _>>().into();
    let refused = app.post("/assistants?strict=true", many).await;
    assert_eq!(refused.body["details"]["fields"].as_array().map(Vec::len), Some(20), "{}", refused.error());
    let refused = app.post("/webhooks", json!({"url": "https://example.com/", "events": vec![""; 50_000]})).await;
    assert_eq!(refused.body["details"]["issues"].as_array().map(Vec::len), Some(100), "{}", refused.error());
    let wrong = json!({"name": "t", "url": "https://example.com", "type": "http", "toolDefinitions": [
        {"function": {"name": "ok"}, "endpoint": "/"},
        {"function": {"name": "b", "parameters": {"type": "array"}}, "endpoint": "/"}]});
    let refused = app.post("/tool-servers", wrong).await;
    let sentence = refused.body["message"].as_str().expect("a sentence");
    assert!(sentence.starts_with("toolDefinitions[1].function.parameters: "), "it says which of them: {sentence}");
    let made = app.post("/assistants?strict=true", json!({"name": "Sent back"})).await;
    let path = format!("/assistants/{}?strict=true", made.body["identifier"].as_str().expect("an identifier"));
    let back = app.patch(&path, made.body).await;
    assert_eq!(back.status, StatusCode::OK, "{:?}", back.body);
    let sent = app.post("/assistants/default/messages", json!({"message": " ", "tenantId": "t"})).await;
    let path = format!("/assistants/default/chats/{}", sent.header("x-chat-uid"));
    let chat = app.get(&path).await.body;
    let back = app.patch(&format!("{path}?strict=true"), chat).await;
    assert_eq!(back.status, StatusCode::OK, "{:?}", back.body);
}

#[tokio::test]
async fn a_slow_body_and_slow_headers_are_cut_off() {
    let app = app().await;
    let key = app.key();
    let head = format!("POST /v1/assistants HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\n");
    let body = format!("{head}content-type: application/json\r\ncontent-length: 100\r\n\r\n{{");
    let (body, headers) = tokio::join!(raw(&app, &body), raw(&app, &head));
    assert!(body.starts_with("HTTP/1.1 408") && body.contains("REQUEST_TIMEOUT"), "{body}");
    assert!(headers.is_empty() || headers.starts_with("HTTP/1.1 408"), "{headers}");
}
