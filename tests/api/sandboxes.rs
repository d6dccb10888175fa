//! `/v1/environments/{id}/sandbox…`: machines that run, and what is kept of them.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use futures_util::future::join;
use platform_testing::{FakeToolServer, TestApp, TestDb};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};

use crate::{
    access::{key, post},
    environments::environment,
    support::{PATIENCE, PROGRAM, UNBOUNDED, app, app_with, eventually, text, thread, thread_in},
};

mod lives;
mod public;
mod refusals;

/// Starts the machine of an environment; its id.
async fn started(app: &TestApp, path: &str, request: Value) -> String {
    let started = app.post(&format!("{path}/sandbox/start"), request).await;
    assert_eq!(started.status, StatusCode::CREATED, "{}", started.body);
    text(&started.body["sandboxId"])
}

/// What a line says on a machine.
async fn ran(app: &TestApp, path: &str, sandbox: &str, line: &str) -> Value {
    let ran = app.post(&format!("{path}/sandbox/exec"), json!({"sandboxId": sandbox, "command": line})).await;
    assert_eq!(ran.status, StatusCode::OK, "{}", ran.body);
    ran.body
}

async fn stopped(app: &TestApp, path: &str, sandbox: &str, save: bool) -> Value {
    let stop = json!({"sandboxId": sandbox, "saveChanges": save});
    let stopped = app.post(&format!("{path}/sandbox/stop"), stop).await;
    assert_eq!(stopped.status, StatusCode::OK, "{}", stopped.body);
    stopped.body
}

/// Waits until a session has ended; its record.
async fn ended(app: &TestApp, path: &str) -> Value {
    let last = format!("{path}/sessions/last");
    eventually("the session ends", async || {
        let session = app.get(&last).await.body;
        session["finishedTimestampMs"].is_i64().then_some(session)
    })
    .await
}

#[tokio::test]
async fn commands_run_with_the_variables_of_three_layers_and_none_of_their_values_is_ever_seen() {
    let app = app().await;
    let (path, _) = environment(&app, json!({"envVars": {"SHARED": "environment-value", "TOKEN": "s3cr3t/+token"},
        "sandboxConfig": {"envVars": {"SHARED": "machine-value", "OWN": "machine-only"}, "initScript": "echo $TOKEN > made; echo ready"}}))
    .await;
    let begun = app.post(&format!("{path}/sandbox/start"), json!({})).await;
    assert_eq!(begun.body["initScript"], json!({"exitCode": 0, "stdout": "ready\n", "stderr": ""}), "{}", begun.body);
    let sandbox = text(&begun.body["sandboxId"]);
    assert!(sandbox.starts_with("sbx_") && sandbox.len() == 30, "{sandbox}");
    assert_eq!(app.get(&path).await.body["state"], "active");

    let said = ran(&app, &path, &sandbox, "echo ${#SHARED} $SHARED $OWN; echo $TOKEN >&2; cat made").await;
    assert_eq!(
        (&said["exitCode"], &said["stdout"], &said["stderr"]),
        (&json!(0), &json!("17 [REDACTED:SHARED] [REDACTED:OWN]\n[REDACTED:TOKEN]\n"), &json!("[REDACTED:TOKEN]\n"))
    );
    for encoded in [
        "base64",
        "base64 -w0",
        "xxd -p",
        "python3 -c 'import sys,urllib.parse;print(urllib.parse.quote(sys.stdin.read(),safe=\"\"))'",
        "fold -w3",
    ] {
        let said = ran(&app, &path, &sandbox, &format!("printf %s \"$TOKEN\" | {encoded}")).await;
        assert!(said["stdout"].to_string().contains("[REDACTED:TOKEN]"), "{encoded}: {said}");
    }
    for is_root in [false, true] {
        let line = "echo to-stdout > /dev/stdout && echo to-stderr | tee /dev/stderr";
        let command = json!({"sandboxId": sandbox, "command": line, "sudo": is_root});
        let said = app.post(&format!("{path}/sandbox/exec"), command).await.body;
        let expected = (&json!(0), &json!("to-stdout\nto-stderr\n"), &json!("to-stderr\n"));
        assert_eq!((&said["exitCode"], &said["stdout"], &said["stderr"]), expected, "as root: {is_root}");
    }
    // In pieces, too: the value comes letter by letter.
    let slowly = "for c in s 3 c r 3 t / + t o k e n; do printf $c; sleep 0.01; done";
    let stream = json!({"sandboxId": sandbox, "command": slowly});
    let stream = text(&app.post(&format!("{path}/sandbox/exec?stream=true"), stream).await.body);
    assert!(stream.contains("event: stdout\ndata: {\"text\":\"[REDACTED:TOKEN]\"}"), "{stream}");
    assert!(stream.contains("event: exit") && stream.contains("\"exitCode\":0"), "{stream}");

    // A file, a path and the log of the session say no more; a full key may ask for what was said as it is.
    let read =
        app.post(&format!("{path}/sandbox/files/read"), json!({"sandboxId": sandbox, "path": "/workspace/made"})).await;
    assert_eq!(read.body["content"], "[REDACTED:TOKEN]\n");
    let raw = app
        .post(&format!("{path}/sandbox/exec?raw=true"), json!({"sandboxId": sandbox, "command": "echo $TOKEN"}))
        .await;
    assert_eq!(raw.body["stdout"], "s3cr3t/+token\n");
    let once = async || {
        let body = json!({"sandboxId": sandbox, "command": "echo $TOKEN; echo x >> /tmp/count; wc -l < /tmp/count"});
        let request = app.request(Method::POST, &format!("{path}/sandbox/exec?raw=true"));
        app.send(request.header("Idempotency-Key", "raw").json(&body)).await
    };
    let (shown, again) = (once().await, once().await);
    assert_eq!(shown.body["stdout"], "s3cr3t/+token\n1\n");
    assert_eq!((&again.body["exitCode"], again.header("idempotent-replayed")), (&json!(0), "true"));
    assert!(!again.body.to_string().contains("s3cr3t"), "what is told once more: {}", again.body);
    // A stream is not told again; how it ended is.
    let streamed = async || {
        let body = json!({"sandboxId": sandbox, "command": "echo y >> /tmp/lines; wc -l < /tmp/lines"});
        let request = app.request(Method::POST, &format!("{path}/sandbox/exec?stream=true"));
        app.send(request.header("Idempotency-Key", "streamed").json(&body)).await
    };
    let (stream, again) = (text(&streamed().await.body), streamed().await);
    assert!(stream.contains("event: exit") && stream.contains("\"exitCode\":0"), "{stream}");
    assert_eq!((&again.body["exitCode"], again.header("idempotent-replayed")), (&json!(0), "true"), "{}", again.body);
    assert_eq!(ran(&app, &path, &sandbox, "wc -l < /tmp/lines").await["stdout"], "1\n");
    let (_, narrow) = key(&app, json!({"allowedEndpoints": [{"method": "*", "path": "/environments/**"}]})).await;
    let exec = format!("{path}/sandbox/exec?raw=true");
    let refused = post(&app, &narrow, &exec, json!({"sandboxId": sandbox, "command": "true"})).await;
    assert_eq!(refused.error(), "FULL_KEY_REQUIRED", "{}", refused.body);
    let session = app.get(&format!("{path}/sessions/last")).await.body;
    assert!(!session.to_string().contains("s3cr3t"), "{session}");
    assert!(session["commands"].as_array().expect("commands").len() >= 8);
    let environment = ran(&app, &path, &sandbox, "tr '\\0' '\\n' < /proc/1/environ; env").await.to_string();
    for name in ["DATABASE_URL", "PLATFORM_", "OPENAI"] {
        assert!(!environment.contains(name), "{name}: {environment}");
    }
    stopped(&app, &path, &sandbox, false).await;
    assert_eq!(
        app.post(&format!("{path}/sandbox/exec"), json!({"sandboxId": sandbox, "command": "true"})).await.error(),
        "SANDBOX_NOT_FOUND"
    );
}

#[tokio::test]
async fn a_command_keeps_its_directory_ends_in_time_and_says_its_end_when_it_says_too_much() {
    let app = app_with(&[("PLATFORM_LIMIT_SANDBOX_OUTPUT_BYTES", "4096")]).await;
    let (path, _) = environment(&app, json!({})).await;
    let programs = async || app.get(&format!("{path}/clis")).await.body;
    let before = programs().await;
    let sandbox = started(&app, &path, json!({"timeoutMinutes": 1})).await;
    let run = async |line: &str| ran(&app, &path, &sandbox, line).await;
    for program in before.as_array().expect("programs") {
        let there = run(&format!("command -v {}", program["name"].as_str().expect("a name"))).await;
        assert_eq!(program["installed"], there["exitCode"] == 0, "{program} is said truthfully before any machine");
    }
    assert_eq!(programs().await, before, "and is the same on it");
    assert_eq!(run("mkdir -p 'a b' && cd 'a b' && exit 3").await["exitCode"], 3);
    let here = run("pwd").await;
    assert_eq!((&here["stdout"], &here["cwd"]), (&json!("/workspace/a b\n"), &json!("/workspace/a b")));
    let exec = format!("{path}/sandbox/exec");
    let there =
        app.post(&exec, json!({"sandboxId": sandbox, "command": "echo", "args": ["$PWD", "x"], "cwd": "/tmp"})).await;
    assert_eq!(there.body["stdout"], "/tmp x\n");
    assert_eq!(run("id -u").await["stdout"], "1000\n");
    let root = app.post(&exec, json!({"sandboxId": sandbox, "command": "id -u; touch /workspace/r && mount -t tmpfs x /mnt", "sudo": true})).await;
    assert!(root.body["stdout"] == "0\n" && root.body["exitCode"] != 0, "{}", root.body);
    assert_eq!(
        run("echo more >> /workspace/r; cat /workspace/r").await["stdout"],
        "more\n",
        "both users share their files"
    );
    let late =
        app.post(&exec, json!({"sandboxId": sandbox, "command": "echo early; sleep 60", "timeoutSeconds": 1})).await;
    assert_eq!((&late.body["exitCode"], &late.body["stdout"]), (&json!(124), &json!("early\n")));
    // With all that it started, also in groups of their own.
    let mark = format!("7777.{}", std::process::id());
    let line = format!("setsid bash -c 'sleep {mark}; :' & sleep {mark}");
    let late = app.post(&exec, json!({"sandboxId": sandbox, "command": line, "timeoutSeconds": 1})).await;
    assert_eq!(late.body["exitCode"], 124);
    lives::stops(&mark).await;
    // What goes on in the background keeps nobody waiting.
    assert_eq!(run("sleep 60 & echo $!").await["exitCode"], 0);
    let much = run("for i in $(seq 2000); do echo line-$i; done").await;
    assert_eq!(much["truncated"], true);
    let said = much["stdout"].as_str().expect("text");
    assert!(said.len() <= 4096 && said.ends_with("line-2000\n"), "{}", said.len());
    for (length, is_cut) in [(4096, false), (4097, true)] {
        let said = run(&format!("head -c {length} /dev/zero | tr '\\0' x")).await;
        assert_eq!(said["truncated"], is_cut, "{length}");
    }
    assert_eq!(run("printf '\\xff\\xfe'").await["stdout"], "\u{fffd}\u{fffd}");
    for bad in [
        json!({"command": "true"}),
        json!({"sandboxId": sandbox}),
        json!({"sandboxId": sandbox, "command": "true", "timeoutSeconds": 3601}),
    ] {
        assert_eq!(app.post(&exec, bad.clone()).await.error(), "VALIDATION_ERROR", "{bad}");
    }
    assert_eq!(app.post(&exec, json!({"sandboxId": "sbx_nope", "command": "true"})).await.error(), "SANDBOX_NOT_FOUND");
    let twice = app.post(&format!("{path}/sandbox/start"), json!({})).await;
    assert_eq!((twice.error(), &twice.body["details"]["sandboxId"]), ("SESSION_ACTIVE", &json!(sandbox)));
    let over = started(&app, &path, json!({"force": true})).await;
    assert_ne!(over, sandbox);
    let sessions = app.get(&format!("{path}/sessions")).await.body;
    assert_eq!(
        (&sessions["total"], &sessions["sessions"][1]["stoppedReason"]),
        (&json!(2), &json!("taken-over")),
        "{sessions}"
    );
    assert!(sessions["sessions"][0].get("commands").is_none());
    assert_eq!(app.get(&format!("{path}/sessions?status=RUNNING")).await.body["total"], 1);
    assert_eq!(app.get(&format!("{path}/sessions?status=nonsense")).await.error(), "VALIDATION_ERROR");
    assert_eq!(app.delete(&path).await.error(), "SESSION_ACTIVE");
    assert_eq!(app.delete(&format!("{path}?force=true")).await.status, StatusCode::OK);
}

#[tokio::test]
async fn files_are_written_listed_and_read_where_the_machine_has_them() {
    let app = app().await;
    let (path, _) = environment(&app, json!({})).await;
    let sandbox = started(&app, &path, json!({})).await;
    let files = async |what: &str, mut body: Value| {
        body["sandboxId"] = json!(sandbox);
        app.post(&format!("{path}/sandbox/files/{what}"), body).await
    };
    let written = files("write", json!({"destinationPath": "/workspace/deep/er/ä.txt", "content": "grüezi"})).await;
    assert_eq!(written.body, json!({"success": true, "path": "/workspace/deep/er/ä.txt", "size": 7}));
    files("write", json!({"destinationPath": "/workspace/bytes", "content": "//4=", "encoding": "base64"})).await;
    ran(&app, &path, &sandbox, "ln -s /etc/hostname /workspace/link").await;
    let listed = files("list", json!({"path": "/workspace"})).await.body;
    let names: Vec<(&str, &str)> = listed["entries"]
        .as_array()
        .expect("entries")
        .iter()
        .map(|of| (of["name"].as_str().expect("a name"), of["type"].as_str().expect("a type")))
        .collect();
    assert_eq!(names, [("bytes", "file"), ("deep", "dir"), ("link", "link")]);
    let read = files("read", json!({"path": "/workspace/deep/er/ä.txt"})).await.body;
    assert_eq!((&read["content"], &read["size"]), (&json!("grüezi"), &json!(7)));
    assert_eq!(files("read", json!({"path": "/workspace/bytes"})).await.error(), "FILE_NOT_TEXT");
    assert_eq!(files("read", json!({"path": "/workspace/bytes", "encoding": "base64"})).await.body["content"], "//4=");
    assert_eq!(files("read", json!({"path": "/workspace/nope"})).await.error(), "FILE_NOT_FOUND");
    assert_eq!(files("list", json!({"path": "/workspace/nope"})).await.error(), "FILE_NOT_FOUND");
    assert_eq!(files("read", json!({"path": "/workspace"})).await.status, StatusCode::BAD_REQUEST);
    assert_eq!(
        files("write", json!({"destinationPath": "/usr/x", "content": "x"})).await.status,
        StatusCode::BAD_REQUEST
    );
    // A link leads where it leads on the machine, and a device is no file.
    assert_eq!(files("read", json!({"path": "/workspace/link"})).await.body["content"], "sandbox\n");
    assert_eq!(files("read", json!({"path": "/dev/zero"})).await.status, StatusCode::BAD_REQUEST);
    ran(&app, &path, &sandbox, "head -c 1000001 /dev/zero > big; mkfifo pipe; touch -- '-rf' '$(reboot)'").await;
    assert_eq!(files("read", json!({"path": "/workspace/big"})).await.status, StatusCode::PAYLOAD_TOO_LARGE);
    assert_eq!(files("read", json!({"path": "/workspace/pipe"})).await.status, StatusCode::BAD_REQUEST);
    assert_eq!(files("read", json!({"path": "/workspace/$(reboot)"})).await.body["size"], 0);
    let inner = json!({"destinationPath": "/workspace/x", "sourceUrl": "http://127.0.0.1:1/"});
    assert_eq!(files("write", inner).await.error(), "URL_NOT_ALLOWED");
    let both = json!({"destinationPath": "/workspace/x", "sourceUrl": "https://a.example/", "content": "x"});
    assert_eq!(files("write", both).await.error(), "VALIDATION_ERROR");
    // What a program of the machine says of a file is not believed, and shows nothing that is hidden elsewhere.
    app.patch(&path, json!({"envVars": {"TOKEN": "canary-of-files"}})).await;
    stopped(&app, &path, &sandbox, false).await;
    ended(&app, &path).await;
    let sandbox = started(&app, &path, json!({})).await;
    let fake = "mkdir -p .local/bin; for name in head mkdir find bash; do \
        printf '#!/bin/sh\\necho $TOKEN canary-of-%s >&2; exit 1' files > .local/bin/$name; done; chmod +x .local/bin/*; echo x > s";
    ran(&app, &path, &sandbox, fake).await;
    for (what, mut body) in [
        ("read", json!({"path": "/workspace/s"})),
        ("write", json!({"destinationPath": "/workspace/a/b", "content": "x"})),
        ("list", json!({"path": "/workspace"})),
    ] {
        body["sandboxId"] = json!(sandbox);
        let answer = app.post(&format!("{path}/sandbox/files/{what}"), body).await;
        assert!(!answer.body.to_string().contains("canary-of-files"), "{what}: {}", answer.body);
    }
}

#[tokio::test]
async fn what_was_saved_is_there_again_and_a_change_costs_no_more_than_itself() {
    let db = TestDb::new().await;
    let objects = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("snapshots-{}", std::process::id()));
    let url = format!("file://{}", objects.display());
    let app = TestApp::start(PROGRAM, &db, &[("PLATFORM_OBJECT_STORE_URL", &url)]);
    let (path, _) = environment(
        &app,
        json!({"sandboxConfig": {"snapshotEnabled": true, "perTenantSnapshots": true,
        "initScript": "echo init >> inits"}}),
    )
    .await;
    let disabled = environment(&app, json!({"name": "none"})).await.0;
    assert_eq!(app.post(&format!("{disabled}/snapshot/initialize"), json!({})).await.error(), "SNAPSHOTS_DISABLED");
    assert_eq!(app.post(&format!("{path}/snapshot/rollback"), json!({})).await.error(), "SNAPSHOT_NOT_FOUND");
    let early = app.post(&format!("{path}/tenant-snapshots/acme/initialize"), json!({})).await;
    assert_eq!(early.error(), "CONFLICT", "there is nothing to copy");
    let begun = app.post(&format!("{path}/snapshot/initialize"), json!({})).await;
    assert_eq!((begun.status, &begun.body["status"]), (StatusCode::ACCEPTED, &json!("creating")), "{}", begun.body);
    let ready = async |count: usize| {
        eventually("a snapshot is ready", async || {
            let all = app.get(&format!("{path}/snapshots")).await.body;
            let all = all.as_array().expect("an array").clone();
            let done = all.iter().filter(|of| of["status"] == "ready").count() == count;
            (done && all.iter().all(|of| of["status"] != "creating")).then_some(all)
        })
        .await
    };
    assert_eq!(ready(1).await[0]["snapshotId"], begun.body["snapshotId"]);
    ended(&app, &path).await;

    // The init script ran on the first machine alone; links, modes and times come back.
    let sandbox = started(&app, &path, json!({})).await;
    let make = "cat inits; head -c 8000000 /dev/urandom > noise; ln -s noise link; mkdir -p d/e; chmod 700 d; \
        touch -d @1000000000 d/old; echo x > run.sh; chmod +x run.sh; mkfifo pipe; sha256sum < noise > sum";
    assert_eq!(ran(&app, &path, &sandbox, make).await["stdout"], "init\n");
    let saved = stopped(&app, &path, &sandbox, true).await;
    assert_eq!(saved["saving"], true, "{saved}");
    let session = ended(&app, &path).await;
    assert_eq!(
        (&session["status"], &session["stoppedReason"], &session["saving"]),
        (&json!("stopped"), &json!("api"), &json!(false))
    );
    let all = ready(2).await;
    assert_eq!((&all[0]["snapshotId"], &all[0]["generation"]), (&saved["snapshotId"], &json!(2)));
    let stored = || bytes_below(&objects);
    let before = stored();

    let sandbox = started(&app, &path, json!({})).await;
    let look = "sha256sum < noise | cmp - sum && readlink link && stat -c '%a %U' d && stat -c %Y d/old && test -x run.sh && test ! -e pipe && echo all";
    assert_eq!(ran(&app, &path, &sandbox, look).await["stdout"], "noise\n700 sandbox\n1000000000\nall\n");
    ran(
        &app,
        &path,
        &sandbox,
        "printf changed | dd of=noise bs=1 seek=4000000 conv=notrunc 2>/dev/null; sha256sum < noise > sum",
    )
    .await;
    stopped(&app, &path, &sandbox, true).await;
    ended(&app, &path).await;
    let grown = stored() - before;
    // The pieces that hold the file's time, the byte and the sum.
    let (pieces, largest) = (3, 1 << 20);
    assert!(grown < pieces * largest, "{grown} of {before} bytes for one that changed");
    // One generation is kept: the third is current, the second can come back.
    assert_eq!(ready(2).await.len(), 2);
    let back = app.post(&format!("{path}/snapshot/rollback"), json!({})).await;
    assert_eq!(back.body["generation"], 2, "{}", back.body);

    // Tenants begin with a copy, and keep their own.
    let copied = app.post(&format!("{path}/tenant-snapshots/acme/initialize"), json!({})).await;
    assert_eq!(copied.status, StatusCode::ACCEPTED, "{}", copied.body);
    let acme = started(&app, &path, json!({"tenantId": "acme"})).await;
    let other = started(&app, &path, json!({"tenantId": "other"})).await;
    assert_eq!(ran(&app, &path, &acme, "echo acme > whose; ls whose").await["exitCode"], 0);
    assert_eq!(ran(&app, &path, &other, "ls whose").await["exitCode"], 2, "tenants share nothing");
    let status = app.get(&format!("{path}/sandbox/status?tenantId=acme")).await.body;
    assert_eq!((&status["sandboxId"], &status["scope"]), (&json!(acme), &json!("tenant")));
    stopped(&app, &path, &acme, true).await;
    let of_acme = eventually("the tenant's is saved", async || {
        let all = app.get(&format!("{path}/tenant-snapshots")).await.body;
        (all[0]["generation"] == 2 && all[0]["status"] == "ready").then_some(all)
    })
    .await;
    assert_eq!((of_acme.as_array().map(Vec::len), &of_acme[0]["tenantId"]), (Some(1), &json!("acme")));
    let again = started(&app, &path, json!({"tenantId": "acme"})).await;
    assert_eq!(ran(&app, &path, &again, "cat whose").await["stdout"], "acme\n");
    // Somebody else put another in its place meanwhile.
    assert_eq!(
        app.post(&format!("{path}/snapshot/rollback"), json!({"tenantId": "acme"})).await.status,
        StatusCode::OK
    );
    let stale = app.post(&format!("{path}/sandbox/stop"), json!({"sandboxId": again, "saveChanges": true})).await;
    assert_eq!(stale.error(), "SNAPSHOT_CHANGED");
    let forced = json!({"sandboxId": again, "saveChanges": true, "force": true});
    let forced = app.post(&format!("{path}/sandbox/stop"), forced).await;
    assert_eq!((forced.status, &forced.body["saving"]), (StatusCode::OK, &json!(true)), "{}", forced.body);
    let newest = &forced.body["snapshotId"];
    eventually("it is current all the same", async || {
        let all = app.get(&format!("{path}/tenant-snapshots")).await.body;
        (all[0]["snapshotId"] == *newest && all[0]["status"] == "ready").then_some(())
    })
    .await;
    assert_eq!(app.delete(&format!("{path}/tenant-snapshots/acme")).await.status, StatusCode::OK);
    assert_eq!(app.delete(&format!("{path}/tenant-snapshots/acme")).await.error(), "SNAPSHOT_NOT_FOUND");
}

#[tokio::test]
async fn a_save_outlasts_a_store_that_is_away_and_pieces_that_no_snapshot_names_are_removed() {
    let top = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("pieces-{}", std::process::id()));
    let (objects, link) = (top.join("objects"), top.join("store"));
    std::fs::create_dir_all(&objects).expect("a directory");
    std::fs::write(top.join("none"), "a file is no store").expect("written");
    let leads_to = |target: &str| {
        let next = top.join("next");
        std::os::unix::fs::symlink(top.join(target), &next).expect("a link");
        std::fs::rename(next, &link).expect("put in its place at once");
    };
    leads_to("objects");
    let url = format!("file://{}", link.display());
    let settings = [("PLATFORM_OBJECT_STORE_URL", url.as_str()), ("PLATFORM_SWEEP_INTERVAL", "1s")];
    let app = TestApp::start(PROGRAM, &TestDb::new().await, &settings);
    let keeping = json!({"sandboxConfig": {"snapshotEnabled": true}});
    let (gone, _) = environment(&app, keeping.clone()).await;
    let (kept, _) = environment(&app, json!({"name": "Kept", "sandboxConfig": keeping["sandboxConfig"]})).await;
    let saved = async |path: &str, is_away: bool| {
        let sandbox = started(&app, path, json!({})).await;
        let made = ran(&app, path, &sandbox, "head -c 4000000 /dev/urandom > noise; sha256sum < noise").await;
        if is_away {
            leads_to("none");
        }
        assert_eq!(stopped(&app, path, &sandbox, true).await["saving"], true);
        if is_away {
            tokio::time::sleep(Duration::from_millis(1500)).await;
            leads_to("objects");
        }
        let session = ended(&app, path).await;
        assert_eq!((&session["status"], &session["error"]), (&json!("stopped"), &Value::Null), "{session}");
        text(&made["stdout"])
    };
    saved(&gone, false).await;
    let sum = saved(&kept, true).await;
    assert!(bytes_below(&objects) > 8_000_000);
    assert_eq!(app.delete(&gone).await.status, StatusCode::OK);
    // As if all were saved long ago.
    age(&objects);
    eventually("what nobody names is gone", async || (bytes_below(&objects) < 5_000_000).then_some(())).await;
    let sandbox = started(&app, &kept, json!({})).await;
    assert_eq!(ran(&app, &kept, &sandbox, "sha256sum < noise").await["stdout"], sum);
    std::fs::remove_dir_all(top).expect("removed");
}

/// Whatever lies in a directory was changed two hours ago.
fn age(dir: &std::path::Path) {
    for entry in std::fs::read_dir(dir).expect("a directory").flatten() {
        if entry.path().is_dir() {
            age(&entry.path());
        } else if let Ok(file) = std::fs::File::options().append(true).open(entry.path()) {
            let now = file.metadata().and_then(|file| file.modified()).expect("its time");
            file.set_modified(now - Duration::from_hours(2)).expect("its time is set");
        }
    }
}

#[tokio::test]
async fn nobody_gets_the_machine_or_the_files_of_a_tenant_who_is_gone() {
    let app = app_with(&[]).await;
    let config = json!({"snapshotEnabled": true, "perTenantSnapshots": true});
    let made = app.post("/environments", json!({"name": "own", "sandboxConfig": config})).await;
    let path = format!("/environments/{}", text(&made.body["_id"]));
    let of_tenant = json!({"tenantId": "acme"});
    assert_eq!(app.post("/tenants", of_tenant.clone()).await.status, StatusCode::CREATED);
    let first = started(&app, &path, of_tenant.clone()).await;
    ran(&app, &path, &first, "echo canary > secret").await;
    stopped(&app, &path, &first, true).await;
    let saved = async || {
        let all = app.get(&format!("{path}/tenant-snapshots")).await.body;
        all.as_array().and_then(|all| all.iter().find(|of| of["status"] == "ready").cloned())
    };
    eventually("it is saved", saved).await;
    let second = started(&app, &path, of_tenant.clone()).await;
    assert_eq!(ran(&app, &path, &second, "cat secret").await["stdout"], "canary\n");
    assert_eq!(app.delete("/tenants/acme").await.status, StatusCode::OK);
    let gone = json!({"sandboxId": second, "command": "cat secret"});
    assert_eq!(app.post(&format!("{path}/sandbox/exec"), gone).await.error(), "SANDBOX_NOT_FOUND");
    let third = started(&app, &path, of_tenant).await;
    assert_eq!(ran(&app, &path, &third, "ls").await["stdout"], "", "whoever has the name now begins anew");
}

#[tokio::test]
async fn what_is_on_a_machine_whose_time_is_over_is_saved_and_a_machine_in_use_gets_more_time() {
    let app = app().await;
    let settings = json!({"snapshotEnabled": true, "replaceSnapshotOnStop": true,
        "startCommand": "sleep 0.1; echo started >> \"$HOME/starts\""});
    let (path, _) = environment(&app, json!({"sandboxConfig": settings})).await;
    let (busy, _) = environment(&app, json!({"name": "busy", "sandboxConfig": {"autoExtend": true}})).await;
    let minute = json!({"timeoutMinutes": 1});
    let (sandbox, in_use) = (started(&app, &path, minute.clone()).await, started(&app, &busy, minute.clone()).await);
    let status = format!("{busy}/sandbox/status");
    let first = app.get(&status).await.body["expiresAt"].as_i64().expect("a time");
    let starts = "until test -s \"$HOME/starts\"; do sleep 0.1; done; cat \"$HOME/starts\"; echo kept > note";
    assert_eq!(ran(&app, &path, &sandbox, starts).await["stdout"], "started\n", "in the background, by itself");
    let run = async |path: &str, sandbox: &str, line: &str| {
        let command = json!({"sandboxId": sandbox, "command": line});
        let request = app.request(Method::POST, &format!("{path}/sandbox/exec")).timeout(Duration::from_mins(2));
        app.send(request.json(&command)).await.body["exitCode"].clone()
    };
    let (cut, whole) = tokio::join!(run(&path, &sandbox, "sleep 100"), run(&busy, &in_use, "sleep 62"));
    assert_eq!((cut, whole), (json!(137), json!(0)), "one ends with its machine");
    let session = ended(&app, &path).await;
    assert_eq!((&session["status"], &session["stoppedReason"]), (&json!("expired"), &json!("expired")), "{session}");
    let later = app.get(&status).await.body;
    assert_eq!((&later["online"], later["expiresAt"].as_i64()), (&json!(true), Some(first + 60_000)), "{later}");

    // It begins where it ended, its command has run again, and nobody begins while it is being saved.
    let sandbox = started(&app, &path, minute.clone()).await;
    let look = "until test $(wc -l < \"$HOME/starts\") = 2; do sleep 0.1; done; cat note; head -c 100000000 /dev/urandom > noise";
    assert_eq!(ran(&app, &path, &sandbox, look).await["stdout"], "kept\n");
    stopped(&app, &path, &sandbox, true).await;
    let start = format!("{path}/sandbox/start");
    assert_eq!(app.post(&start, json!({})).await.error(), "SNAPSHOT_SAVE_IN_PROGRESS");
    let sandbox = started(&app, &path, json!({"forceUnsavedSnapshot": true})).await;
    assert_eq!(ran(&app, &path, &sandbox, "cat note; test -e noise || echo before").await["stdout"], "kept\nbefore\n");
}

#[tokio::test]
async fn a_disk_that_is_far_too_full_ends_its_machine_and_what_was_saved_stays() {
    let app = app().await;
    let config = json!({"diskMib": 512, "snapshotEnabled": true, "replaceSnapshotOnStop": true});
    let (path, _) = environment(&app, json!({"sandboxConfig": config})).await;
    let sandbox = started(&app, &path, json!({})).await;
    ran(&app, &path, &sandbox, "echo kept > note").await;
    stopped(&app, &path, &sandbox, true).await;
    ended(&app, &path).await;
    let sandbox = started(&app, &path, json!({})).await;
    let fill = json!({"sandboxId": sandbox, "command": "head -c 400M /dev/zero > a; head -c 400M /dev/zero > b; echo more > note; sleep 60"});
    let filled = app.post(&format!("{path}/sandbox/exec"), fill).await;
    assert_eq!(filled.body["exitCode"], 137, "{}", filled.body);
    let session = ended(&app, &path).await;
    assert_eq!((&session["status"], &session["stoppedReason"]), (&json!("stopped"), &json!("disk-limit")), "{session}");
    assert!(text(&session["error"]).contains("lost"), "{session}");
    let sandbox = started(&app, &path, json!({})).await;
    assert_eq!(ran(&app, &path, &sandbox, "cat note; ls").await["stdout"], "kept\nnote\n");
    // A file that is held open and has no name takes its room all the same.
    let hold = json!({"sandboxId": sandbox, "command":
        "exec 3> a 4> b; rm a b; head -c 400M /dev/zero >&3; head -c 400M /dev/zero >&4; sleep 60"});
    assert_eq!(app.post(&format!("{path}/sandbox/exec"), hold).await.body["exitCode"], 137);
    assert_eq!(ended(&app, &path).await["stoppedReason"], "disk-limit");
}

fn bytes_below(dir: &std::path::Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(dir) else { return 0 };
    // What is removed meanwhile has none.
    let bytes = entries.flatten().filter_map(|entry| {
        let found = entry.metadata().ok()?;
        Some(if found.is_dir() { bytes_below(&entry.path()) } else { found.len() })
    });
    bytes.sum()
}

#[tokio::test]
async fn a_machine_reaches_whom_its_policy_names_and_nothing_within() {
    let inside = FakeToolServer::start();
    let port = inside.url().rsplit(':').next().expect("a port").to_owned();
    let app = app_with(&[("PLATFORM_EGRESS_ALLOW", "127.0.0.1"), ("PLATFORM_ALLOW_PRIVATE_EGRESS", "true")]).await;
    let reach = async |config: Value, line: &str| {
        let (path, _) = environment(&app, json!({"sandboxConfig": config})).await;
        let sandbox = started(&app, &path, json!({})).await;
        let said = ran(&app, &path, &sandbox, line).await;
        stopped(&app, &path, &sandbox, false).await;
        said
    };
    let call = format!("curl -s -m 5 -o /dev/null -w '%{{http_code}}' http://127.0.0.1:{port}/text");
    let listed = json!({"networkPolicy": "allowlist", "allowedHosts": [format!("127.0.0.1:{port}")]});
    assert_eq!(reach(listed.clone(), &call).await["stdout"], "200", "the operator and the environment both name it");
    assert_eq!(inside.recorded().len(), 1);
    // What a stream says counts, however it is said and however late.
    let raw = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let its_port = raw.local_addr().expect("an address").port();
    let alone = json!({"networkPolicy": "allowlist", "allowedHosts": [format!("127.0.0.1:{its_port}")]});
    let heard = async |says: &str| {
        let hearing = async {
            let (mut stream, _) = raw.accept().await.expect("a stream");
            stream.write_all(says.as_bytes()).await.expect("said");
            let mut heard = Vec::new();
            let _ = stream.read_to_end(&mut heard).await;
            heard
        };
        tokio::time::timeout(PATIENCE, hearing).await.expect("a stream that ends")
    };
    let tells = |text: &str| format!("exec 3<>/dev/tcp/127.0.0.1/{its_port}; {text}");
    let evil = "printf 'GET / HTTP/1.1\\r\\nHost: evil.example\\r\\n\\r\\n' >&3; timeout 1 cat <&3";
    let hello = format!("curl -sk -m 20 --noproxy '*' --connect-to ::127.0.0.1:{its_port} https://");
    for (line, is_for) in [
        (tells("printf 'PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n' >&3; timeout 1 cat <&3"), None),
        (tells(&format!("sleep 11; {evil}")), None),
        (format!("{hello}evil.example:{its_port}/"), None),
        (format!("{hello}127.0.0.1:{its_port}/"), Some(22)),
        (tells("printf '\\1hello' >&3; exec 3>&-"), Some(1)),
    ] {
        let (_, heard) = join(reach(alone.clone(), &line), heard("")).await;
        assert_eq!(heard.first().copied(), is_for, "{line}: {}", String::from_utf8_lossy(&heard));
    }
    // A server that speaks first is heard at once.
    let line = tells("read -t 5 -u 3 said; echo \"$said\"; echo thanks >&3");
    let (said, heard) = join(reach(alone, &line), heard("welcome\n")).await;
    assert_eq!((&said["stdout"], heard.as_slice()), (&json!("welcome\n"), &b"thanks\n"[..]));
    // What comes with the request for a tunnel is the first of it.
    let both = format!(
        "exec 3<>/dev/tcp/198.18.0.1/3128; printf 'CONNECT 127.0.0.1:{port} HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n\
         GET /text HTTP/1.1\\r\\nHost: 127.0.0.1\\r\\n\\r\\n' >&3; timeout 5 cat <&3 | grep -c '^HTTP/1.1 200'"
    );
    assert_eq!(reach(listed.clone(), &both).await["stdout"], "2\n");
    // By way of the proxy, too; another Host in the request is another host.
    let by_proxy = format!("curl -s -m 5 --noproxy '' -o /dev/null -w '%{{http_code}}' http://127.0.0.1:{port}/text");
    assert_eq!(reach(listed.clone(), &by_proxy).await["stdout"], "200");
    let other_host = format!("{call} -H 'Host: evil.example'");
    assert_eq!(reach(listed.clone(), &other_host).await["stdout"], "000");
    // Nor one of two hosts, nor in a second request of the same stream.
    let sends = |text: &str| {
        // What is refused in the middle ends who writes it, and not who counts.
        format!("exec 3<>/dev/tcp/127.0.0.1/{port}; (printf '{text}' >&3); timeout 5 cat <&3 | grep -c '^HTTP/1.1 200'")
    };
    for requests in [
        "GET /text HTTP/1.1\\r\\nHost: 127.0.0.1\\r\\nHost: evil.example\\r\\n\\r\\n",
        "GET http://evil.example/text HTTP/1.1\\r\\nHost: 127.0.0.1\\r\\n\\r\\n",
        "\\r\\nGET /text HTTP/1.1\\r\\nHost: evil.example\\r\\n\\r\\n",
        "GET /text HTTP/1.1\\r\\nHost : evil.example\\r\\n\\r\\n",
        "GET /text HTTP/1.1\\r\\n\\r\\n",
        "POST /text HTTP/1.1\\r\\nHost: 127.0.0.1\\r\\nContent-Length: 3\\r\\nTransfer-Encoding: chunked\\r\\n\\r\\n0\\r\\n\\r\\n",
    ] {
        assert_eq!(reach(listed.clone(), &sends(requests)).await["stdout"], "0\n", "{requests}");
    }
    let evil = "GET /text HTTP/1.1\\r\\nHost: evil.example\\r\\n\\r\\n";
    for first in [
        "GET /text HTTP/1.1\\r\\nHost: 127.0.0.1\\r\\n\\r\\n",
        "GET /text HTTP/1.1\\r\\nHost: 127.0.0.1\\r\\nUpgrade: h2c\\r\\nConnection: upgrade\\r\\n\\r\\n",
        "POST /text HTTP/1.1\\r\\nHost: 127.0.0.1\\r\\nUpgrade: x\\r\\nTransfer-Encoding: chunked\\r\\n\\r\\n3;x\\r\\nabc\\r\\n0\\r\\n\\r\\n",
        "POST /text?of=https://a.example/b HTTP/1.1\\r\\nHost: 127.0.0.1\\r\\nContent-Length: 3\\r\\n\\r\\nabc",
        "POST http://127.0.0.1/text HTTP/1.1\\r\\nHost: 127.0.0.1\\r\\nUpgrade: h2c\\r\\nContent-Length: 3\\r\\n\\r\\nabc",
    ] {
        assert_eq!(reach(listed.clone(), &sends(&format!("{first}{evil}"))).await["stdout"], "1\n", "{first}");
    }
    let others = format!(
        "for to in 127.0.0.1:{} 10.0.0.1:80 169.254.169.254:80 evil.example:80; do curl -s -m 3 --noproxy '' -o /dev/null -w '%{{http_code}} ' http://$to/; done",
        app.url().rsplit(':').next().and_then(|port| port.split('/').next()).expect("a port")
    );
    assert_eq!(reach(listed, &others).await["stdout"], "403 403 403 403 ");
    for policy in ["allow-all", "deny-all"] {
        let said = reach(json!({"networkPolicy": policy}), &format!("{call}; {by_proxy}; {others}")).await;
        assert!(!said["stdout"].as_str().expect("text").contains("200"), "{policy}: {said}");
    }
    assert_eq!(inside.recorded().len(), 8);
    let lookup = reach(json!({"networkPolicy": "deny-all"}), "getent hosts example.com; echo $?").await;
    assert_eq!(lookup["stdout"], "2\n", "nobody answers questions for names");
}

#[tokio::test]
async fn an_agent_works_on_one_machine_which_ends_with_its_thread() {
    let app = app().await;
    let settings =
        json!({"availableToolsGroupsUids": ["builtin-sandbox"], "envVars": {"SHARED": "of-the-environment"}});
    let (path, id) = environment(&app, settings).await;
    let agent = crate::support::agent(&app, json!({"name": "worker", "environmentId": id})).await;
    let connection = format!("{path}/connections/agent/{agent}");
    let own = app.request(Method::PUT, &connection).json(&json!({"envVars": {"SHARED": "of-the-connection"}}));
    assert_eq!(app.send(own).await.status, StatusCode::OK);
    let made = app.post("/assistants", json!({"name": "h", "identifier": "helper", "environmentId": id})).await;
    assert_eq!(made.status, StatusCode::CREATED, "{}", made.body);
    let tool = async |line: &str| {
        let said = app.post("/assistants/helper/messages", json!({"message": format!("/tool {line}")})).await;
        said.body
            .as_array()
            .and_then(|messages| messages.iter().find(|message| message["role"] == "tool"))
            .expect("a result")
            .to_string()
    };
    tool("write_sandbox_file {\"path\": \"/workspace/a.txt\", \"content\": \"one\\ntwo\\nthree\"}").await;
    let first = tool("run_command {\"command\": \"cat a.txt; echo ${#SHARED} $SHARED; cd /tmp\"}").await;
    assert!(first.contains("three") && first.contains("18 [REDACTED:SHARED]"), "{first}");
    let long = tool("run_command {\"command\": \"pwd; seq 20000\"}").await;
    assert!(long.contains("/tmp") && long.contains("bytes are left out here") && long.contains("20000"), "{long}");
    let part = tool("read_sandbox_file {\"path\": \"/workspace/a.txt\", \"offset\": 1, \"limit\": 1}").await;
    assert!(part.contains("two") && !part.contains("three"), "{part}");
    assert!(tool("list_sandbox_files {\"path\": \"/workspace\"}").await.contains("a.txt"));
    assert!(tool("read_sandbox_file {\"path\": \"/workspace/nope\"}").await.contains("FILE_NOT_FOUND"));
    let sessions = app.get(&format!("{path}/sessions")).await.body;
    let session = &sessions["sessions"][0];
    assert_eq!(
        (&sessions["total"], &session["scope"], &session["startedBy"]["type"]),
        (&json!(1), &json!("thread"), &json!("assistant"))
    );
    stopped(&app, &path, session["sandboxId"].as_str().expect("an id"), false).await;

    // Calls that come at once share one machine; it has the variables of the connection, and ends with the thread.
    let call = "/tool run_command {\"command\": \"echo ${#SHARED} $SHARED\"}";
    let work = thread(&app, &agent, &[call; 3].join("\n")).await;
    let done = thread_in(&app, &work, "completed").await;
    let content = done["threadContent"].as_array().expect("content");
    let results: Vec<&Value> = content.iter().filter(|message| message["role"] == "tool").collect();
    assert_eq!(results.len(), 3);
    assert_eq!(done["environmentId"], id);
    let mine = app.get(&format!("{path}/sessions/last")).await.body["sandboxId"].clone();
    assert_eq!(app.get(&format!("/agents/threads/{work}")).await.body["sandboxId"], mine);
    for result in results {
        assert_eq!(result["content"]["data"]["stdout"], "17 [REDACTED:SHARED]\n", "{result}");
    }
    let session = ended(&app, &path).await;
    assert_eq!(
        (&session["status"], &session["startedBy"]),
        (&json!("stopped"), &json!({"type": "agent", "id": agent}))
    );
    assert_eq!(app.get(&format!("{path}/sessions")).await.body["total"], 2);
    // One that is to outlive whoever it was started for.
    let lasting = json!({"sandboxConfig": {"persistAfterSessionClose": true}});
    assert_eq!(app.patch(&format!("{path}?merge=true"), lasting).await.status, StatusCode::OK);
    thread_in(&app, &thread(&app, &agent, call).await, "completed").await;
    assert_eq!(app.get(&format!("{path}/sandbox/status")).await.body["online"], true);
    let last = app.get(&format!("{path}/sessions/last")).await.body;
    assert_eq!((&last["status"], &last["finishedTimestampMs"]), (&json!("running"), &Value::Null), "{last}");
    let alone = app
        .post(
            "/assistants",
            json!({"name": "a", "identifier": "alone", "availableToolsGroupsUids": ["builtin-sandbox"]}),
        )
        .await;
    assert_eq!(alone.status, StatusCode::CREATED);
    let said =
        app.post("/assistants/alone/messages", json!({"message": "/tool run_command {\"command\": \"true\"}"})).await;
    assert!(said.body.to_string().contains("TOOL_NOT_AVAILABLE"), "{}", said.body);
}

#[tokio::test]
async fn commands_that_say_very_much_are_masked_and_hold_up_nobody() {
    let app = app_with(&UNBOUNDED).await;
    let (path, _) = environment(&app, json!({"envVars": {"TOKEN": "ya29.a0AfH6SMBx-token-value"}})).await;
    let sandbox = started(&app, &path, json!({})).await;
    let exec = format!("{path}/sandbox/exec");
    let talk = async || app.post(&exec, json!({"sandboxId": sandbox, "command": "yes", "timeoutSeconds": 6})).await;
    let is_over = AtomicBool::new(false);
    let talking = async {
        let (one, other) = join(talk(), talk()).await;
        is_over.store(true, Ordering::Relaxed);
        [one, other]
    };
    let reading = async {
        let mut longest = Duration::ZERO;
        while !is_over.load(Ordering::Relaxed) {
            let began = Instant::now();
            assert_eq!(app.get("/environments").await.status, StatusCode::OK);
            longest = longest.max(began.elapsed());
        }
        longest
    };
    let (talked, longest) = join(talking, reading).await;
    assert!(longest < Duration::from_secs(3), "a read waits for {longest:?}");
    for said in talked {
        assert_eq!(said.body["exitCode"], 124, "{}", said.body["stderr"]);
    }
    let said = ran(&app, &path, &sandbox, "yes | head -c 300000; echo $TOKEN; pwd; cd /tmp").await;
    let end = "y\ny\n[REDACTED:TOKEN]\n/workspace\n";
    assert!(
        said["stdout"].as_str().is_some_and(|said| said.ends_with(end)) && said["cwd"] == "/tmp",
        "{}",
        said["cwd"]
    );
    // Who closes what is read has the time that they have.
    let line = "exec >&- 2>&- 10>&- 11>&-; sleep 60";
    let silent = json!({"sandboxId": sandbox, "command": line, "timeoutSeconds": 1});
    assert_eq!(app.post(&exec, silent).await.body["exitCode"], 124);
}
