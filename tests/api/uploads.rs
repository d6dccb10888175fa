//! `/v1/files` and `/f`: files, and the addresses that they are downloaded from.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
};

use futures_util::future::join_all;
use platform_testing::{Reply, TestApp, TestDb};
use reqwest::{
    Method, StatusCode,
    multipart::{Form, Part},
};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::{
    access::session,
    support::{PROGRAM, UNBOUNDED, app, app_with, app_with_model, eventually, peak_memory, text},
};

const PDF: &[u8] = b"%PDF-1.7\n0123456789 not much of a document";

/// A directory of a test's own.
pub fn own_dir(name: &str) -> PathBuf {
    let dir = std::env::temp_dir().join(format!("platform-{name}-{}", std::process::id()));
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir).expect("a directory");
    dir
}

fn form(name: &str, bytes: impl Into<Vec<u8>>) -> Form {
    Form::new().part("file", Part::bytes(bytes.into()).file_name(name.to_owned()))
}

/// Uploads a file; what the platform says of it.
pub async fn upload(app: &TestApp, name: &str, bytes: impl Into<Vec<u8>>) -> Value {
    let uploaded = send(app, "/files/upload", form(name, bytes)).await;
    assert_eq!(uploaded.status, StatusCode::OK, "{}", uploaded.body);
    uploaded.body
}

/// A file of whoever has a token.
pub async fn upload_by(app: &TestApp, token: &str, name: &str, bytes: &[u8]) -> Value {
    let request = app.anonymous(Method::POST, "/v1/files/upload").bearer_auth(token);
    let uploaded = app.send(request.multipart(form(name, bytes))).await;
    assert_eq!(uploaded.status, StatusCode::OK, "{}", uploaded.body);
    uploaded.body
}

async fn send(app: &TestApp, path: &str, form: Form) -> Reply {
    app.send(app.request(Method::POST, path).multipart(form)).await
}

/// The path of an address of ours.
fn path(file: &Value) -> String {
    let url = file["downloadUrl"].as_str().expect("an address");
    url[url.find("/f/").expect("an address of ours")..].to_owned()
}

/// All files below a directory.
pub fn below(dir: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    entries
        .flat_map(|entry| {
            let path = entry.expect("an entry").path();
            if path.is_dir() { below(&path) } else { vec![path] }
        })
        .collect()
}

#[tokio::test]
async fn a_file_is_uploaded_listed_downloaded_in_part_and_gone_at_once_when_it_is_deleted() {
    let db = TestDb::new().await;
    let (app, other) = (TestApp::start(PROGRAM, &db, &[]), TestApp::start(PROGRAM, &db, &[]));
    let file = upload(&app, "../Q3 r\u{e9}sum\u{e9}.pdf", PDF).await;
    let sha256 = file["sha256"].as_str().expect("a digest");
    for (field, value) in [
        ("name", json!("Q3 r\u{e9}sum\u{e9}.pdf")),
        ("fileType", json!("document")),
        ("mimeType", json!("application/pdf")),
        ("size", json!(PDF.len())),
        ("expiresAtMs", json!(null)),
    ] {
        assert_eq!(file[field], value, "{field}");
    }
    let id = file["fileId"].as_str().expect("an id");
    let token = path(&file).split('/').nth(2).expect("a token").to_owned();
    assert!(token.len() == 43 && token.bytes().all(|b| b.is_ascii_alphanumeric()), "{token}");
    assert_eq!(file["downloadUrl"], format!("{}/f/{token}/Q3%20r%C3%A9sum%C3%A9.pdf", app.url()));
    assert_eq!(app.get(&format!("/files/{id}")).await.body, file);
    upload(&app, "a.png", &b"\x89PNG\r\n\x1a\n"[..]).await;
    for (query, total) in [("", 2), ("?search=R%C3%89SUM", 1), ("?fileType=IMAGE", 1), ("?tenantId=x", 0)] {
        let list = app.get(&format!("/files{query}")).await.body;
        assert_eq!(
            (&list["total"], &list["limit"], &list["offset"]),
            (&json!(total), &json!(20), &json!(0)),
            "{query}"
        );
        assert_eq!(list["items"].as_array().map(Vec::len), Some(total), "{query}");
    }
    assert_eq!(app.get("/files?fileType=song").await.error(), "VALIDATION_ERROR");

    // Any name will do, at any process, without a credential.
    let address = format!("/f/{token}/any.name");
    let read = async |method: Method, headers: &[(&str, &str)]| {
        let request = other.anonymous(method, &address);
        let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        let response = request.send().await.expect("an answer");
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        (status, headers, response.bytes().await.expect("a body"))
    };
    let (status, headers, bytes) = read(Method::GET, &[]).await;
    assert_eq!((status, &bytes[..]), (200, PDF));
    for (name, value) in [
        ("content-type", "application/pdf"),
        ("content-disposition", "inline; filename=\"Q3 r_sum_.pdf\"; filename*=UTF-8''Q3%20r%C3%A9sum%C3%A9.pdf"),
        ("content-security-policy", "sandbox; default-src 'none'"),
        ("x-content-type-options", "nosniff"),
        ("cache-control", "private, max-age=3600"),
        ("accept-ranges", "bytes"),
        ("etag", &format!("\"{sha256}\"")),
        ("content-length", &PDF.len().to_string()),
    ] {
        assert_eq!(headers[name], value, "{name}");
    }
    let (status, headers, bytes) = read(Method::HEAD, &[]).await;
    assert_eq!(
        (status, bytes.len(), &headers["content-length"]),
        (200, 0, &PDF.len().to_string().parse().expect("text"))
    );
    let (status, headers, bytes) = read(Method::GET, &[("range", "bytes=9-18")]).await;
    assert_eq!(
        (status, &bytes[..], &headers["content-length"]),
        (206, &b"0123456789"[..], &"10".parse().expect("text"))
    );
    assert_eq!(headers["content-range"], format!("bytes 9-18/{}", PDF.len()));
    let (status, headers, _) = read(Method::GET, &[("range", "bytes=1000-")]).await;
    assert_eq!((status, headers["content-range"].to_str().expect("text")), (416, &*format!("bytes */{}", PDF.len())));
    let (status, _, bytes) = read(Method::GET, &[("if-none-match", &format!("\"{sha256}\""))]).await;
    assert_eq!((status, bytes.len()), (304, 0));

    let deleted = app.delete(&format!("/files/{id}")).await;
    assert_eq!((deleted.status, &deleted.body["deletedId"]), (StatusCode::OK, &json!(id)));
    assert_eq!(read(Method::GET, &[]).await.0, 404);
    for gone in [other.get(&format!("/files/{id}")).await, other.delete(&format!("/files/{id}")).await] {
        assert_eq!((gone.status, gone.error()), (StatusCode::NOT_FOUND, "FILE_NOT_FOUND"));
    }
    let unknown = app.send(app.anonymous(Method::GET, "/f/nothing/a")).await;
    assert_eq!((unknown.status, unknown.error()), (StatusCode::NOT_FOUND, "FILE_NOT_FOUND"));
}

#[tokio::test]
async fn nothing_that_is_downloaded_runs_in_a_browser() {
    let app = app().await;
    for (name, bytes, kind) in [
        ("a.html", &b"<script>alert(1)</script>"[..], "application/octet-stream"),
        ("a.svg", b"<svg xmlns='http://www.w3.org/2000/svg' onload='alert(1)'/>", "application/octet-stream"),
        ("a.txt", b"<script>alert(1)</script>", "text/plain; charset=utf-8"),
        ("a.png", b"<html><script>alert(1)</script>", "text/plain; charset=utf-8"),
    ] {
        let file = upload(&app, name, bytes).await;
        let answer = app.anonymous(Method::GET, &path(&file)).send().await.expect("an answer");
        assert_eq!(answer.headers()["content-type"], kind, "{name}");
        assert!(answer.headers()["content-disposition"].to_str().expect("text").starts_with("attachment"), "{name}");
    }
}

#[tokio::test]
async fn what_is_no_good_upload_is_refused_and_leaves_nothing() {
    let dir = own_dir("refused-uploads");
    let data_dir = dir.to_str().expect("a path");
    let settings = [("PLATFORM_DATA_DIR", data_dir), ("PLATFORM_MAX_UPLOAD_BYTES", "100000")];
    let app = TestApp::start(PROGRAM, &TestDb::new().await, &settings);
    let large = send(&app, "/files/upload", form("large.bin", vec![0; 300_000])).await;
    assert_eq!((large.status, large.error()), (StatusCode::PAYLOAD_TOO_LARGE, "PAYLOAD_TOO_LARGE"));
    assert_eq!(large.body["details"]["limitBytes"], 100_000);
    let (ours, mut theirs) = tokio::io::duplex(1 << 16);
    let unknown_length = Part::stream(reqwest::Body::wrap_stream(reader_stream(ours))).file_name("large.bin");
    let writing = async {
        for _ in 0..40 {
            if theirs.write_all(&[0; 10_000]).await.is_err() {
                break;
            }
        }
        drop(theirs);
    };
    let form_of_unknown = Form::new().part("file", unknown_length);
    let (large, ()) = tokio::join!(send(&app, "/files/upload", form_of_unknown), writing);
    assert_eq!(large.error(), "PAYLOAD_TOO_LARGE", "{}", large.body);
    let none = send(&app, "/files/upload", Form::new().text("file", "not a file")).await;
    assert_eq!((none.status, none.error()), (StatusCode::BAD_REQUEST, "BAD_REQUEST"), "{}", none.body);
    let two = form("a", "a").part("file", Part::bytes(b"b".to_vec()).file_name("b"));
    assert_eq!(send(&app, "/files/upload", two).await.error(), "BAD_REQUEST");
    let json = app.post("/files/upload", json!({"file": "x"})).await;
    assert_eq!((json.status, json.error()), (StatusCode::UNSUPPORTED_MEDIA_TYPE, "UNSUPPORTED_MEDIA_TYPE"));
    for (ttl, code) in [("59", "range"), ("31536001", "range"), ("soon", "type")] {
        let refused = send(&app, "/files/upload", form("a", "a").text("ttlSeconds", ttl)).await;
        assert_eq!(refused.body["details"]["issues"][0]["code"], code, "{ttl}: {}", refused.body);
    }
    let unknown = send(&app, "/files/upload?strict=true", form("a", "a").text("tltSeconds", "60")).await;
    let fields = json!([{"name": "tltSeconds", "suggestion": "ttlSeconds"}]);
    assert_eq!((unknown.error(), &unknown.body["details"]["fields"]), ("UNKNOWN_FIELD", &fields));

    // One that breaks off.
    let address = app.url().trim_start_matches("http://").to_owned();
    let mut socket = tokio::net::TcpStream::connect(&address).await.expect("connected");
    let head = format!(
        "POST /v1/files/upload HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {}\r\ncontent-length: 50000\r\n\
         content-type: multipart/form-data; boundary=x\r\n\r\n--x\r\ncontent-disposition: form-data; name=\"file\"; \
         filename=\"a.txt\"\r\n\r\nhalf of it",
        app.key()
    );
    socket.write_all(head.as_bytes()).await.expect("sent");
    eventually("the upload begins", async || (below(&dir.join("uploads")).len() == 1).then_some(())).await;
    drop(socket);
    eventually("what was uploaded is gone", async || below(&dir.join("uploads")).is_empty().then_some(())).await;
    // And one whose parts never end as they should.
    for body in ["--x\r\ncontent-disposition: form-data; name=\"file\"; filename=\"a\"\r\n\r\nno end", "nothing", ""] {
        let request = app.request(Method::POST, "/files/upload").body(body);
        let broken = app.send(request.header("content-type", "multipart/form-data; boundary=x")).await;
        assert_eq!(
            (broken.status, broken.error()),
            (StatusCode::BAD_REQUEST, "BAD_REQUEST"),
            "{body}: {}",
            broken.body
        );
    }
    // Documents and skills alike.
    let stray = form("a.md", "# A").text("parentDocumentId", "nobody");
    assert_eq!(send(&app, "/documents/upload", stray).await.error(), "DOCUMENT_NOT_FOUND");
    let large = send(&app, "/documents/upload", form("large.md", vec![b'a'; 300_000])).await;
    assert_eq!((large.status, &large.body["details"]["limitBytes"]), (StatusCode::PAYLOAD_TOO_LARGE, &json!(100_000)));
    for path in ["/documents/upload", "/skills/import"] {
        let json = app.post(path, json!({"file": "x"})).await;
        assert_eq!((json.status, json.error()), (StatusCode::UNSUPPORTED_MEDIA_TYPE, "UNSUPPORTED_MEDIA_TYPE"));
    }
    let long = vec![b'a'; (5 << 20) + 1];
    let skill: [(&str, &[u8]); 3] =
        [("SKILL.md", b"---\nname: a\n---\n"), ("logo.png", &[0xff, 0xd8, 0, 1]), ("long.md", &long)];
    let refused = send(&app, "/skills/import", form("skill.zip", crate::document_files::zip(skill))).await;
    assert_eq!(refused.status, StatusCode::PAYLOAD_TOO_LARGE, "{}", refused.body);
    assert_eq!(below(&dir.join("objects")), Vec::<PathBuf>::new());
    assert_eq!(below(&dir.join("uploads")), Vec::<PathBuf>::new());
    assert_eq!(app.get("/files").await.body["total"], 0);
    let _ = fs::remove_dir_all(&dir);
}

/// What comes through a pipe.
fn reader_stream(
    pipe: tokio::io::DuplexStream,
) -> impl futures_util::Stream<Item = std::io::Result<Vec<u8>>> + Send + 'static {
    futures_util::stream::unfold(pipe, |mut pipe| async move {
        let mut piece = vec![0; 8192];
        match pipe.read(&mut piece).await {
            Ok(0) => None,
            Ok(read) => Some((Ok(piece[..read].to_vec()), pipe)),
            Err(error) => Some((Err(error), pipe)),
        }
    })
}

#[tokio::test]
async fn an_upload_that_is_repeated_under_its_key_is_made_once() {
    let app = app().await;
    let upload = async |bytes: &str| {
        let request = app.request(Method::POST, "/files/upload").header("idempotency-key", "k");
        app.send(request.multipart(form("a.txt", bytes))).await
    };
    let first = upload("one").await;
    let again = upload("one").await;
    assert_eq!((again.header("idempotent-replayed"), &again.body), ("true", &first.body));
    let other = upload("two").await;
    assert_eq!((other.status, other.error()), (StatusCode::UNPROCESSABLE_ENTITY, "IDEMPOTENCY_KEY_REUSED"));
    assert_eq!(app.get("/files").await.body["total"], 1);
}

#[tokio::test]
async fn a_file_of_a_tenant_is_sent_by_that_tenant_alone_and_what_it_says_reaches_the_model() {
    let (app, model) = app_with_model(&[]).await;
    let open = json!({"name": "Open", "identifier": "open", "accessConfiguration": {"externalAccess": true}});
    assert_eq!(app.post("/assistants", open).await.status, StatusCode::CREATED);
    let session = async |tenant: &str, user: Option<&str>| {
        session(&app, json!({"tenantId": tenant, "subtenantId": user, "ttlSeconds": 600})).await
    };
    let (ann, bob, acme, evil) = (
        session("acme", Some("ann")).await,
        session("acme", Some("bob")).await,
        session("acme", None).await,
        session("evil", None).await,
    );
    let request = app.anonymous(Method::POST, "/v1/files/upload").bearer_auth(&ann);
    let file = app.send(request.multipart(form("notes.txt", "The password is swordfish."))).await;
    assert_eq!((&file.body["tenantId"], &file.body["subtenantId"]), (&json!("acme"), &json!("ann")), "{}", file.body);
    let listed = app.send(app.anonymous(Method::GET, "/v1/files").bearer_auth(&ann)).await;
    assert_eq!(listed.error(), "SESSION_ROUTE_FORBIDDEN");
    let message = |more: Value| {
        let mut message = json!({"message": "What is it?", "skipSummarization": true,
            "files": [{"name": "notes", "downloadUrl": file.body["downloadUrl"]}]});
        message.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        message
    };
    let say = async |credential: &str, more: Value| {
        let request = app.anonymous(Method::POST, "/v1/assistants/open/messages").bearer_auth(credential);
        app.send(request.json(&message(more))).await
    };
    for (who, credential, more) in [
        ("another end user", bob.as_str(), json!({})),
        ("another tenant", &evil, json!({})),
        ("a key that acts for nobody", app.key(), json!({})),
        ("a key that acts for another", app.key(), json!({"tenantId": "evil"})),
    ] {
        let refused = say(credential, more).await;
        assert_eq!((refused.status, refused.error()), (StatusCode::NOT_FOUND, "FILE_NOT_FOUND"), "{who}");
    }
    // However its address is spelled.
    let url = text(&file.body["downloadUrl"]);
    let inside = url.replace("/f/", "/x/../f/");
    for spelled in [url.replace("http", "HTTP"), url.replace("/f/", "/%66/"), inside, format!("{url}%ff")] {
        let refused = say(&evil, json!({"files": [{"name": "notes", "downloadUrl": spelled}]})).await;
        assert_eq!((refused.status, refused.error()), (StatusCode::NOT_FOUND, "FILE_NOT_FOUND"), "{spelled}");
    }
    for (who, credential, more) in [
        ("its end user", ann.as_str(), json!({})),
        ("its tenant", &acme, json!({})),
        ("a key that acts for the tenant", app.key(), json!({"tenantId": "acme"})),
    ] {
        let reply = say(credential, more).await;
        assert_eq!(reply.status, StatusCode::OK, "{who}: {}", reply.body);
        let asked = model.recorded().last().expect("a request").body.to_string();
        assert!(asked.contains("[Attached file: notes]") && asked.contains("swordfish"), "{who}: {asked}");
    }
    // One of nobody is for whoever knows its address; what it is, is known by its content.
    let free = upload(&app, "picture.txt", &b"\x89PNG\r\n\x1a\npicture"[..]).await;
    let reply = say(&bob, json!({"files": [{"name": "picture.txt", "donwloadUrl": free["downloadUrl"]}]})).await;
    assert_eq!(reply.status, StatusCode::OK, "{}", reply.body);
    let said = reply.body.as_array().expect("messages").iter().find(|said| said["role"] == "user").cloned();
    assert_eq!(said.expect("it was said")["content"]["files"][0]["fileType"], "image");
}

#[tokio::test]
async fn an_end_user_keeps_so_many_bytes_and_no_other_is_refused_for_that() {
    let app = app_with(&[("PLATFORM_LIMIT_END_USER_FILE_BYTES", "1000")]).await;
    let upload = async |user: &str, bytes: usize| {
        let token = session(&app, json!({"tenantId": "acme", "subtenantId": user})).await;
        let request = app.anonymous(Method::POST, "/v1/files/upload").bearer_auth(token);
        app.send(request.multipart(form("a.txt", "x".repeat(bytes)))).await
    };
    let first = upload("ann", 600).await.body;
    let refused = upload("ann", 600).await;
    assert_eq!((refused.status, refused.error()), (StatusCode::PAYLOAD_TOO_LARGE, "PAYLOAD_TOO_LARGE"));
    assert_eq!(upload("bob", 600).await.status, StatusCode::OK);
    app.delete(&format!("/files/{}", text(&first["fileId"]))).await;
    assert_eq!(upload("ann", 600).await.status, StatusCode::OK, "there is room again");
    assert_eq!(
        send(&app, "/files/upload", form("b.txt", "x".repeat(2000))).await.status,
        StatusCode::OK,
        "a key's own"
    );
}

#[tokio::test]
async fn what_has_expired_and_what_nobody_has_a_record_of_is_swept() {
    let (dir, db) = (own_dir("swept"), TestDb::new().await);
    let settings = [("PLATFORM_DATA_DIR", dir.to_str().expect("a path")), ("PLATFORM_SWEEP_INTERVAL", "1s")];
    let app = TestApp::start(PROGRAM, &db, &settings);
    let kept = upload(&app, "kept.txt", "kept").await;
    let short = send(&app, "/files/upload?ttlSeconds=60", form("short.txt", "short")).await.body;
    let (made, ends) = (short["creationTimestampMs"].as_i64(), short["expiresAtMs"].as_i64());
    assert_eq!(ends.zip(made).map(|(ends, made)| ends - made), Some(60_000));
    let object = |file: &Value| {
        let id = file["fileId"].as_str().expect("an id").to_owned();
        below(&dir.join("objects")).into_iter().find(|path| path.ends_with(&id))
    };
    assert!(object(&short).is_some());
    let kept_at = object(&kept).expect("bytes");
    let of_name = |name: &str| kept_at.with_file_name(name);
    // The last is half written: a process was killed before it could name it.
    let swept = [of_name("orphan"), dir.join("uploads/orphan"), of_name("half#1")];
    // A few seconds are old where it is swept each second.
    for path in &swept {
        File::create(path).expect("made");
    }
    db.run("UPDATE files SET expires_ms = 1 WHERE name = 'short.txt'").await;
    let gone = app.send(app.anonymous(Method::GET, &path(&short))).await;
    assert_eq!(gone.error(), "FILE_NOT_FOUND");
    let is_swept = async || (object(&short).is_none() && swept.iter().all(|path| !path.exists())).then_some(());
    eventually("the sweep is done", is_swept).await;
    let answer = app.anonymous(Method::GET, &path(&kept)).send().await.expect("an answer");
    assert_eq!(answer.text().await.expect("text"), "kept");
    let _ = fs::remove_dir_all(&dir);
}

#[tokio::test]
async fn large_uploads_and_downloads_are_never_whole_in_memory() {
    let dir = own_dir("large-uploads");
    let settings = [&UNBOUNDED[..], &[("PLATFORM_DATA_DIR", dir.to_str().expect("a path"))]].concat();
    let app = TestApp::start(PROGRAM, &TestDb::new().await, &settings);
    let bytes: Vec<u8> = (0..25 << 20).map(|at: u32| at.to_le_bytes()[1]).collect();
    upload(&app, "warm.bin", &b"warm"[..]).await;
    let before = peak_memory(&app);
    let files = join_all((0..8).map(async |_| upload(&app, "large.bin", bytes.clone()).await)).await;
    join_all(files.iter().map(async |file| {
        let answer = app.anonymous(Method::GET, &path(file)).send().await.expect("an answer");
        assert!(answer.bytes().await.expect("bytes") == bytes, "the same bytes");
    }))
    .await;
    let grown = peak_memory(&app) - before;
    assert!(grown < 32, "200 MB up and down took {grown} MiB");
    let _ = fs::remove_dir_all(&dir);
}

#[tokio::test]
async fn what_stands_in_the_query_of_an_upload_reaches_into_no_project_of_others() {
    let app = app().await;
    let project =
        async |name: &str| text(&app.post("/projects", json!({"name": name, "identifier": name})).await.body["_id"]);
    let (ours, theirs) = (project("ours").await, project("theirs").await);
    let key = text(&app.post("/api-keys", json!({"name": "k", "projectIds": [ours]})).await.body["key"]);
    for path in ["/documents/upload", "/skills/import"] {
        let part = Part::bytes(b"# A".to_vec()).file_name("a.md");
        let request = app.anonymous(Method::POST, &format!("/v1{path}?projectId={theirs}")).bearer_auth(&key);
        app.send(request.multipart(Form::new().part("file", part))).await;
    }
    assert_eq!(app.get(&format!("/documents?projectId={theirs}")).await.body["total"], 0);
}
