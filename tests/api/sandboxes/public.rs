//! What machines serve, for everybody.

use futures_util::StreamExt;
use platform_testing::{TestApp, TestDb};
use reqwest::{Method, RequestBuilder, StatusCode};
use serde_json::{Value, json};

use super::{ended, ran, started, stopped};
use crate::{
    environments::environment,
    support::{PATIENCE, PROGRAM, eventually, text},
};

/// Says what it was asked, streams, breaks off; a directory of its own is all that it is told.
const SERVER: &str = r#"
import json, os, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *line):
        pass

    def answer(self):
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        if self.path == "/stream":
            self.send_response(200)
            self.send_header("transfer-encoding", "chunked")
            self.end_headers()
            self.chunk(b"one ")
            while not os.path.exists("/workspace/go"):
                time.sleep(0.02)
            self.chunk(b"two")
            self.chunk(b"")
        elif self.path == "/endless":
            self.send_response(200)
            self.end_headers()
            try:
                while True:
                    self.wfile.write(b"again ")
                    time.sleep(0.02)
            except OSError:
                open("/workspace/left", "w").close()
        elif self.path == "/broken":
            self.send_response(200)
            self.send_header("content-length", "100")
            self.end_headers()
            self.wfile.write(b"not all")
            self.close_connection = True
        elif self.path == "/silent":
            self.close_connection = True
        else:
            said = json.dumps({"method": self.command, "path": self.path, "headers": dict(self.headers.items()),
                               "body": body.decode()}).encode()
            self.send_response(201)
            self.send_header("set-cookie", "a=1")
            self.send_header("set-cookie", "b=2")
            self.send_header("connection", "x-hop")
            self.send_header("x-hop", "mine")
            self.send_header("content-length", str(len(said)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(said)

    def chunk(self, data):
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    do_GET = do_POST = do_HEAD = do_OPTIONS = answer

ThreadingHTTPServer(("127.0.0.1", int(os.environ["PORT"])), Handler).serve_forever()
"#;

/// Asks a host below the domain.
fn asked(app: &TestApp, method: Method, host: &str, path: &str) -> RequestBuilder {
    let url = format!("{}{path}", app.url());
    let client = reqwest::Client::builder().timeout(PATIENCE).build().expect("a client");
    client.request(method, url).header("host", format!("{host}.sandboxes.test:8443"))
}

async fn error(request: RequestBuilder) -> (StatusCode, String) {
    let answer = request.send().await.expect("an answer");
    let status = answer.status();
    let body: Value = answer.json().await.expect("JSON");
    (status, text(&body["error"]))
}

#[tokio::test]
async fn what_a_machine_serves_is_reached_by_everybody_under_its_public_name_through_every_process() {
    let db = TestDb::new().await;
    let settings = [("PLATFORM_SANDBOX_PUBLIC_DOMAIN", "Sandboxes.test")];
    let (one, two) = (TestApp::start(PROGRAM, &db, &settings), TestApp::start(PROGRAM, &db, &settings));
    let config = json!({"publicSlug": "demo-shop", "networkPolicy": "deny-all",
        "initScript": format!("cat > server.py <<'END'\n{SERVER}\nEND"), "startCommand": "python3 server.py"});
    let made = one.post("/environments", json!({"name": "shop", "sandboxConfig": config})).await.body;
    let path = format!("/environments/{}", text(&made["_id"]));
    assert_eq!(one.get(&path).await.body, made);
    let port = one.url().rsplit(':').next().expect("a port");
    assert_eq!(made["sandboxConfig"]["publicUrl"], format!("http://demo-shop.sandboxes.test:{port}"), "{made}");
    let (other, _) = environment(&one, json!({})).await;
    for (slug, code) in [("demo-shop", "NAME_TAKEN"), ("ab", "VALIDATION_ERROR"), ("A.b", "VALIDATION_ERROR")] {
        let refused = one.patch(&other, json!({"sandboxConfig": {"publicSlug": slug}})).await;
        assert_eq!(refused.error(), code, "{slug}: {}", refused.body);
    }
    let nobody = (StatusCode::NOT_FOUND, "SANDBOX_NOT_FOUND".to_owned());
    assert_eq!(error(asked(&one, Method::GET, "demo-shop", "/")).await, nobody, "no machine runs");
    let sandbox = started(&one, &path, json!({})).await;
    eventually("it listens", async || {
        let asked = asked(&one, Method::GET, "demo-shop", "/").send().await.expect("an answer");
        (asked.status() == StatusCode::CREATED).then_some(())
    })
    .await;

    for app in [&one, &two] {
        let posted = asked(app, Method::POST, "Demo-Shop", "/v1/agents?x=%2F1").body("hello");
        let posted = posted.header("connection", "keep-alive, x-mine").header("x-mine", "1").header("x-their", "2");
        let answer = posted.send().await.expect("an answer");
        let headers = answer.headers().clone();
        assert_eq!((answer.status(), headers.get_all("set-cookie").iter().count()), (StatusCode::CREATED, 2));
        assert!(headers.get("x-hop").is_none() && headers.get("x-api-version").is_none(), "{headers:?}");
        let said: Value = answer.json().await.expect("JSON");
        assert_eq!(
            (&said["method"], &said["path"], &said["body"]),
            (&json!("POST"), &json!("/v1/agents?x=%2F1"), &json!("hello"))
        );
        let sent = &said["headers"];
        assert_eq!((&sent["x-their"], &sent["x-mine"]), (&json!("2"), &Value::Null), "{sent}");
        assert_eq!((&sent["x-forwarded-for"], &sent["x-forwarded-proto"]), (&json!("127.0.0.1"), &json!("http")));
        assert_eq!(sent["host"], "Demo-Shop.sandboxes.test:8443");
        let head = asked(app, Method::HEAD, "demo-shop", "/").send().await.expect("an answer");
        assert!(head.status() == StatusCode::CREATED && head.headers().contains_key("content-length"), "{head:?}");

        // What is said is handed on as it is said.
        let answer = asked(app, Method::GET, "demo-shop", "/stream").send().await.expect("an answer");
        let mut stream = answer.bytes_stream();
        let first = stream.next().await.expect("a piece").expect("bytes");
        assert_eq!(first, "one ");
        ran(&one, &path, &sandbox, "touch /workspace/go").await;
        let rest: Vec<_> = stream.collect().await;
        let rest: Vec<u8> = rest.into_iter().flat_map(|piece| piece.expect("bytes")).collect();
        assert_eq!(rest, b"two");
        // Who leaves is gone for the program, too.
        let mut endless = asked(app, Method::GET, "demo-shop", "/endless").send().await.expect("an answer");
        assert!(endless.chunk().await.expect("bytes").is_some());
        drop(endless);
        eventually("the program sees it", async || {
            let left = ran(&one, &path, &sandbox, "rm /workspace/left").await;
            (left["exitCode"] == 0).then_some(())
        })
        .await;
        ran(&one, &path, &sandbox, "rm /workspace/go").await;
        // Of what broke off nobody believes that it is whole, whether its head came or not.
        let broken = async { asked(app, Method::GET, "demo-shop", "/broken").send().await?.bytes().await };
        assert!(broken.await.is_err());
        let bad = (StatusCode::BAD_GATEWAY, "UPSTREAM_ERROR".to_owned());
        assert_eq!(error(asked(app, Method::GET, "demo-shop", "/silent")).await, bad);
        assert_eq!(error(asked(app, Method::GET, "another", "/")).await, nobody);
    }

    ran(&one, &path, &sandbox, "pkill -f '[s]erver.py'").await;
    for app in [&one, &two] {
        eventually("nobody listens", async || {
            let answer = asked(app, Method::GET, "demo-shop", "/").send().await.expect("an answer");
            (answer.status() == StatusCode::BAD_GATEWAY).then_some(())
        })
        .await;
    }
    // A name that is given back is another's, also while the machine of the first one runs.
    one.patch(&path, json!({"sandboxConfig": {}})).await;
    let taken = one.patch(&other, json!({"sandboxConfig": {"publicSlug": "demo-shop"}})).await;
    assert_eq!(taken.status, StatusCode::OK, "{}", taken.body);
    assert_eq!(error(asked(&one, Method::GET, "demo-shop", "/")).await, nobody);
    stopped(&one, &path, &sandbox, false).await;
    ended(&one, &path).await;
}
