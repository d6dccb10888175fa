//! Files and snapshots in a bucket, on the S3 server of the moto project.

use std::collections::HashMap;

use futures_util::future::join_all;
use reqwest::{
    Method, RequestBuilder, StatusCode,
    multipart::{Form, Part},
};
use tokio::sync::mpsc;

use super::*;

/// More than one part of an upload, and no part looks like another.
fn large() -> Vec<u8> {
    (0..12_000_000_u32).map(|at| (at / 7919).to_le_bytes()[0] ^ at.to_le_bytes()[1]).collect()
}

fn client() -> reqwest::Client {
    reqwest::Client::builder().timeout(Duration::from_mins(1)).build().expect("a client")
}

/// An S3 server, the address of a bucket there, and the platform that keeps its files in it.
async fn with_bucket() -> (Real, String, TestApp) {
    let port = free_port();
    let moto = Real::start(port, &directory().join("venv/bin/moto_server"), &["-p", &port.to_string()]);
    let bucket = moto.url("/files");
    client().put(&bucket).send().await.expect("a bucket");
    let settings = [
        ("PLATFORM_OBJECT_STORE_URL", "s3://files/of/ours"),
        ("AWS_ENDPOINT_URL", &moto.url("")),
        ("AWS_ACCESS_KEY_ID", "AKIAIOSFODNN7EXAMPLE"),
        ("AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"),
        ("AWS_REGION", "us-east-1"),
        ("PLATFORM_RATE_FULL", "0"),
        ("PLATFORM_SWEEP_INTERVAL", "1s"),
    ];
    let app = platform(&settings).await;
    (moto, bucket, app)
}

fn uploading(app: &TestApp, name: &str, bytes: Vec<u8>) -> RequestBuilder {
    let form = Form::new().part("file", Part::bytes(bytes).file_name(name.to_owned()));
    app.request(Method::POST, "/files/upload").multipart(form)
}

async fn upload(app: &TestApp, name: &str, bytes: Vec<u8>) -> Reply {
    app.send(uploading(app, name, bytes)).await
}

async fn download(file: &Value, range: &str) -> (u16, Vec<u8>) {
    let url = file["downloadUrl"].as_str().expect("an address");
    let answer = client().get(url).header("range", range).send().await.expect("an answer");
    (answer.status().as_u16(), answer.bytes().await.expect("a body").to_vec())
}

async fn in_bucket(bucket: &str) -> usize {
    let list = reqwest::get(format!("{bucket}?list-type=2")).await.expect("an answer").text().await.expect("text");
    list.matches("<Key>").count()
}

async fn ran(app: &TestApp, sandbox: &str, id: &Value, line: &str) -> Value {
    let ran = app.post(&format!("{sandbox}/exec"), json!({"sandboxId": id, "command": line})).await;
    assert_eq!(ran.status, StatusCode::OK, "{:?}", ran.body);
    ran.body["stdout"].clone()
}

#[tokio::test]
async fn files_and_snapshots_are_kept_in_a_bucket_and_one_that_is_silent_loses_nothing() {
    let (moto, bucket, mut app) = with_bucket().await;

    // What is deleted goes from there, and so does what no record knows.
    let gone = upload(&app, "gone.bin", large()).await.body;
    client().put(format!("{bucket}/of/ours/files/somebody/orphan")).body("nobody's").send().await.expect("put");
    assert!(in_bucket(&bucket).await >= 1);
    let deleted = app.delete(&format!("/files/{}", gone["fileId"].as_str().expect("an id"))).await;
    assert_eq!(deleted.status, StatusCode::OK, "{:?}", deleted.body);
    let emptied = async {
        while in_bucket(&bucket).await > 0 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), emptied).await.expect("the sweep has removed both");
    let file = upload(&app, "large.bin", large()).await.body;
    assert_eq!(in_bucket(&bucket).await, 1);
    assert!(download(&file, "bytes=0-").await == (206, large()), "the bytes are others");
    assert_eq!(download(&file, "bytes=5242870-5242889").await, (206, large()[5_242_870..5_242_890].to_vec()));

    // A machine is saved into the bucket, and another process restores it.
    let made = app.post("/environments", json!({"name": "Kept", "sandboxConfig": {"snapshotEnabled": true}})).await;
    let environment = format!("/environments/{}", made.body["_id"].as_str().expect("an id"));
    let sandbox = format!("{environment}/sandbox");
    let id = app.post(&format!("{sandbox}/start"), json!({})).await.body["sandboxId"].clone();
    ran(&app, &sandbox, &id, "head -c 6000000 /dev/urandom > data; sha256sum data > sum").await;
    let stopped = app.post(&format!("{sandbox}/stop"), json!({"sandboxId": id, "saveChanges": true})).await;
    assert_eq!(stopped.status, StatusCode::OK, "{:?}", stopped.body);
    while app.get(&format!("{environment}/sessions/last")).await.body["status"] != "stopped" {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let kept = in_bucket(&bucket).await;
    assert!(kept > 3, "{kept} objects");
    app.crash();
    let id = app.post(&format!("{sandbox}/start"), json!({})).await.body["sandboxId"].clone();
    assert_eq!(ran(&app, &sandbox, &id, "sha256sum -c sum").await, "data: OK\n");

    // What cannot be kept is refused in good time, and all else goes on.
    let file = app.get(&format!("/files/{}", file["fileId"].as_str().expect("an id"))).await.body;
    moto.signal("STOP");
    let begun = Instant::now();
    let message = json!({"message": "Hello"});
    let (refused, unread, chat) = tokio::join!(
        upload(&app, "small.txt", b"a few words".to_vec()),
        download(&file, "bytes=0-9"),
        app.post("/assistants/default/messages", message)
    );
    assert_eq!((refused.status, refused.header("retry-after").is_empty()), (StatusCode::SERVICE_UNAVAILABLE, false));
    assert_eq!(unread.0, 503);
    assert_eq!(chat.status, StatusCode::OK);
    assert!(begun.elapsed() < Duration::from_secs(40), "{:?}", begun.elapsed());
    assert_eq!(app.get("/files").await.body["total"], 1);
    moto.signal("CONT");
    assert_eq!(upload(&app, "small.txt", b"a few words".to_vec()).await.status, StatusCode::OK);
    assert_eq!(download(&file, "bytes=0-9").await, (206, large()[..10].to_vec()));
}

#[tokio::test]
async fn a_bucket_holds_what_records_say_however_often_the_process_is_killed() {
    const UPLOADS: usize = 30;
    let (_moto, bucket, mut app) = with_bucket().await;
    let (mut kept, mut deleted) = (HashMap::new(), Vec::new());
    for round in 0..6 {
        let (told, mut heard) = mpsc::channel(UPLOADS);
        let alive = &app;
        let uploads = join_all((0..UPLOADS).map(|n| {
            let (told, bytes) = (told.clone(), format!("{round} {n} ").repeat(2000).into_bytes());
            async move {
                let answer = uploading(alive, "file.txt", bytes.clone()).send().await.ok()?;
                assert!(!answer.status().is_client_error(), "{}", answer.status());
                let file = answer.error_for_status().ok()?.json::<Value>().await.ok()?;
                let _ = told.send(()).await;
                Some((file, bytes))
            }
        }));
        // Of those whose end nobody is told of, nothing is known.
        let doomed: Vec<String> = kept.keys().take(5).cloned().collect();
        kept.retain(|id, _| !doomed.contains(id));
        let deletions = join_all(doomed.iter().map(async |id| {
            let answer = alive.request(Method::DELETE, &format!("/files/{id}")).send().await.ok()?;
            answer.status().is_success().then(|| id.clone())
        }));
        drop(told);
        let killing = async {
            for _ in 0..UPLOADS / 2 {
                heard.recv().await.expect("half of them are answered");
            }
            alive.signal("KILL");
        };
        let (uploaded, gone, ()) = tokio::join!(uploads, deletions, killing);
        app.crash();
        let of = |file: &Value| file["fileId"].as_str().expect("an id").to_owned();
        kept.extend(uploaded.into_iter().flatten().map(|(file, bytes)| (of(&file), bytes)));
        deleted.extend(gone.into_iter().flatten());
    }
    assert!(
        kept.len() >= 6 * UPLOADS / 2 - 30 && !deleted.is_empty(),
        "{} kept, {} deleted",
        kept.len(),
        deleted.len()
    );
    for (id, bytes) in &kept {
        let file = app.get(&format!("/files/{id}")).await.body;
        assert_eq!(download(&file, "bytes=0-").await, (206, bytes.clone()), "{file}");
    }
    for id in &deleted {
        assert_eq!(app.get(&format!("/files/{id}")).await.status, StatusCode::NOT_FOUND);
    }
    let records = app.get("/files?limit=1").await.body["total"].as_u64().expect("a count");
    eventually("bytes and records agree", async || (in_bucket(&bucket).await as u64 == records).then_some(())).await;
    println!("{} files kept, {} deleted, 6 kills", kept.len(), deleted.len());
}
