//! Files and snapshots in a bucket, on the S3 server of the moto project.

use reqwest::{
    Method, StatusCode,
    multipart::{Form, Part},
};

use super::*;

/// More than one part of an upload, and no part looks like another.
fn large() -> Vec<u8> {
    (0..12_000_000_u32).map(|at| (at / 7919).to_le_bytes()[0] ^ at.to_le_bytes()[1]).collect()
}

fn client() -> reqwest::Client {
    reqwest::Client::builder().timeout(Duration::from_mins(1)).build().expect("a client")
}

async fn upload(app: &TestApp, name: &str, bytes: Vec<u8>) -> Reply {
    let form = Form::new().part("file", Part::bytes(bytes).file_name(name.to_owned()));
    app.send(app.request(Method::POST, "/files/upload").multipart(form)).await
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
        ("PLATFORM_SWEEP_INTERVAL", "1s"),
    ];
    let mut app = platform(&settings).await;

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
