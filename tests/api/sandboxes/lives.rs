//! How machines begin and end: over several processes, with their users, and when their process dies.

use std::time::Duration;

use futures_util::{
    FutureExt,
    future::{join_all, select_all},
};
use platform_testing::{FakeToolServer, TestApp, TestDb};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use super::{ended, ran, started, stopped};
use crate::{
    environments::environment,
    support::{PATIENCE, PROGRAM, app, app_with, eventually, factor, text},
    uploads::own_dir,
    webhooks::{received, webhook},
};

#[tokio::test]
async fn any_process_works_on_a_machine_that_another_has() {
    let db = TestDb::new().await;
    let (one, two) = (TestApp::start(PROGRAM, &db, &[]), TestApp::start(PROGRAM, &db, &[]));
    let settings = json!({"envVars": {"TOKEN": "s3cr3t-token"}, "sandboxConfig": {"snapshotEnabled": true},
        "availableToolsGroupsUids": ["builtin-sandbox"]});
    let (path, id) = environment(&one, settings).await;
    let sandbox = started(&one, &path, json!({})).await;
    let said = ran(&two, &path, &sandbox, "cd /tmp; echo $TOKEN > f; cat f; exit 4").await;
    assert_eq!(
        (&said["exitCode"], &said["stdout"], &said["cwd"]),
        (&json!(4), &json!("[REDACTED:TOKEN]\n"), &json!("/tmp"))
    );
    assert_eq!(ran(&one, &path, &sandbox, "pwd").await["stdout"], "/tmp\n");
    let files = async |what: &str, mut body: Value| {
        body["sandboxId"] = json!(sandbox);
        two.post(&format!("{path}/sandbox/files/{what}"), body).await
    };
    assert_eq!(
        files("write", json!({"destinationPath": "/workspace/x", "content": "from afar"})).await.body["size"],
        9
    );
    assert_eq!(files("read", json!({"path": "/workspace/x"})).await.body["content"], "from afar");
    assert_eq!(files("list", json!({"path": "/workspace"})).await.body["entries"][0]["name"], "x");
    assert_eq!(files("read", json!({"path": "/nope"})).await.error(), "FILE_NOT_FOUND");
    // What a command says is heard while it runs.
    let line =
        "echo begun; until [ -e /workspace/go ]; do sleep 0.02; done; seq 200000 | md5sum; seq 200000; echo $TOKEN";
    let command = two.request(Method::POST, &format!("{path}/sandbox/exec?stream=true"));
    let mut stream = command.json(&json!({"sandboxId": sandbox, "command": line})).send().await.expect("an answer");
    let (mut told, mut has_begun) = (String::new(), false);
    while let Some(chunk) = tokio::time::timeout(PATIENCE, stream.chunk()).await.expect("in time").expect("a chunk") {
        told.push_str(&String::from_utf8_lossy(&chunk));
        if told.contains("begun") && !std::mem::replace(&mut has_begun, true) {
            ran(&one, &path, &sandbox, "touch /workspace/go").await;
        }
    }
    let said: Vec<Value> =
        told.lines().filter_map(|line| serde_json::from_str(line.strip_prefix("data: ")?).ok()).collect();
    let said: String = said.iter().filter_map(|event| event["text"].as_str()).collect();
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(
        (lines.len(), lines[0], lines[200_001], lines[200_002]),
        (200_003, "begun", "200000", "[REDACTED:TOKEN]")
    );
    assert!(told.contains("\"exitCode\":0"), "how it ended");

    // One key is one effect, whichever process is asked.
    let once = async |app: &TestApp, stream: &str| {
        let line = "echo x >> /tmp/once; until [ -e /tmp/goes-on ]; do sleep 0.02; done; wc -l < /tmp/once";
        let command = json!({"sandboxId": sandbox, "command": line});
        let request = app.request(Method::POST, &format!("{path}/sandbox/exec{stream}"));
        app.send(request.header("Idempotency-Key", format!("once{stream}")).json(&command)).await
    };
    for (n, stream) in ["", "?stream=true"].into_iter().enumerate() {
        // The command goes on until the other one has been refused.
        let both = [once(&one, stream).boxed_local(), once(&two, stream).boxed_local()];
        let (refused, _, mut goes_on) = select_all(both).await;
        assert_eq!(refused.error(), "IDEMPOTENCY_IN_PROGRESS", "{}", refused.body);
        ran(&one, &path, &sandbox, "touch /tmp/goes-on").await;
        assert_eq!(goes_on.remove(0).await.status, StatusCode::OK);
        ran(&one, &path, &sandbox, "rm /tmp/goes-on").await;
        assert_eq!(ran(&one, &path, &sandbox, "wc -l < /tmp/once").await["stdout"], format!("{}\n", n + 1));
        let again = eventually("it is kept", async || {
            let again = once(&two, stream).await;
            (again.status == StatusCode::OK).then_some(again)
        })
        .await;
        assert_eq!((again.header("idempotent-replayed"), &again.body["exitCode"]), ("true", &json!(0)));
    }

    // Whoever is stopped leaves nothing running, wherever that runs.
    let of = json!({"name": "h", "identifier": "helper", "environmentId": id});
    assert_eq!(one.post("/assistants", of).await.status, StatusCode::CREATED);
    let mark = format!("43201.{}", std::process::id());
    let message = format!("/tool run_command {{\"command\": \"sleep {mark}\"}}");
    two.post("/assistants/helper/messages?async=true", json!({"chatUid": "c", "message": message})).await;
    eventually("the command runs", async || is_running(&mark).then_some(())).await;
    assert_eq!(two.post("/assistants/helper/chats/c/stop", json!({})).await.status, StatusCode::OK);
    stops(&mark).await;

    stopped(&two, &path, &sandbox, true).await;
    let session = ended(&two, &path).await;
    assert_eq!(session["status"], "stopped");
    let sandbox = started(&two, &path, json!({})).await;
    assert_eq!(
        ran(&one, &path, &sandbox, "cat x").await["stdout"],
        "from afar",
        "the snapshot of one is restored by the other"
    );

    // Who takes over ends what the other has.
    ran(&one, &path, &sandbox, &format!("sleep {mark} > /dev/null 2>&1 &")).await;
    eventually("the command runs", async || is_running(&mark).then_some(())).await;
    let taken = one.post(&format!("{path}/sandbox/start"), json!({"force": true})).await;
    assert_eq!(taken.status, StatusCode::CREATED, "{}", taken.body);
    stops(&mark).await;
    let sessions = two.get(&format!("{path}/sessions")).await.body["sessions"].clone();
    let states = [0, 1].map(|n| (text(&sessions[n]["status"]), sessions[n]["stoppedReason"].clone()));
    assert_eq!(states, [("running".to_owned(), Value::Null), ("stopped".to_owned(), json!("taken-over"))]);
    assert_eq!(ran(&two, &path, &text(&taken.body["sandboxId"]), "cat x").await["stdout"], "from afar");
}

#[tokio::test]
async fn what_a_connection_was_given_is_masked_on_every_machine_that_has_its_files() {
    let app = app().await;
    let settings = json!({"availableToolsGroupsUids": ["builtin-sandbox"], "envVars": {"PATH": "/nope"},
        "sandboxConfig": {"snapshotEnabled": true}});
    let (path, id) = environment(&app, settings).await;
    let of = json!({"name": "h", "identifier": "helper", "environmentId": id});
    let helper = app.post("/assistants", of).await;
    assert_eq!(helper.status, StatusCode::CREATED, "{}", helper.body);
    let connection = format!("{path}/connections/assistant/{}", text(&helper.body["_id"]));
    let own = app.request(Method::PUT, &connection).json(&json!({"envVars": {"TOKEN": "of-the-connection"}}));
    assert_eq!(app.send(own).await.status, StatusCode::OK);
    let keep = "/tool run_command {\"command\": \"echo $TOKEN > kept\"}";
    let told = app.post("/assistants/helper/messages", json!({"message": keep})).await.body;
    let result = told.as_array().and_then(|said| said.iter().find(|said| said["role"] == "tool")).expect("a result");
    assert_eq!(result["content"]["data"]["exitCode"], 0, "the shell is found whatever PATH says: {told}");
    let first = app.get(&format!("{path}/sessions/last")).await.body;
    stopped(&app, &path, &text(&first["sandboxId"]), true).await;
    ended(&app, &path).await;
    let sandbox = started(&app, &path, json!({})).await;
    assert_eq!(ran(&app, &path, &sandbox, "echo \"$(<kept)\"").await["stdout"], "[REDACTED:TOKEN]\n");
}

#[tokio::test]
async fn machines_die_with_their_platform_and_their_sessions_say_so() {
    let db = TestDb::new().await;
    let mut app = TestApp::start(PROGRAM, &db, &[]);
    let settings = json!({"sandboxConfig": {"snapshotEnabled": true, "replaceSnapshotOnStop": true},
        "availableToolsGroupsUids": ["builtin-sandbox"]});
    let (path, id) = environment(&app, settings).await;
    let sandbox = started(&app, &path, json!({})).await;
    ran(&app, &path, &sandbox, "echo kept > kept").await;
    stopped(&app, &path, &sandbox, true).await;
    ended(&app, &path).await;
    let mark = format!("86400.{}", std::process::id());
    let sandbox = started(&app, &path, json!({})).await;
    ran(
        &app,
        &path,
        &sandbox,
        &format!("echo lost > lost; setsid nohup sleep {mark} >/dev/null 2>&1 & sleep {mark} & disown -a"),
    )
    .await;
    assert!(is_running(&mark), "it goes on in the background");
    app.crash();
    dies(&mark).await;
    let session = tokio::time::timeout(PATIENCE, ended(&app, &path)).await.expect("in time");
    assert_eq!((&session["status"], &session["stoppedReason"]), (&json!("failed"), &json!("error")));
    assert!(text(&session["error"]).contains("not saved is lost"), "{session}");
    let sandbox = started(&app, &path, json!({})).await;
    assert_eq!(ran(&app, &path, &sandbox, "cat kept; ls lost").await["stdout"], "kept\n", "the last snapshot is there");

    // Told to end, a process saves what is on its machines first.
    ran(&app, &path, &sandbox, "echo more > kept").await;
    app.signal("TERM");
    let next = TestApp::start(PROGRAM, &db, &[]);
    assert_eq!(std::mem::replace(&mut app, next).ended().await, Some(0));
    assert_eq!(ended(&app, &path).await["status"], "stopped");

    // A command of a turn whose end nobody heard of is not run again.
    let of = json!({"name": "h", "identifier": "helper", "environmentId": id});
    assert_eq!(app.post("/assistants", of).await.status, StatusCode::CREATED);
    let message = format!("/tool run_command {{\"command\": \"cat kept; sleep {mark}\"}}");
    app.post("/assistants/helper/messages?async=true", json!({"chatUid": "c", "message": message})).await;
    eventually("the command runs", async || is_running(&mark).then_some(())).await;
    app.crash();
    dies(&mark).await;
    let chat = eventually("the turn ends", async || {
        let chat = app.get("/assistants/helper/chats/c").await.body;
        (chat["status"] == "completed").then_some(chat)
    })
    .await;
    assert!(chat.to_string().contains("RESULT_UNKNOWN") && !is_running(&mark), "{chat}");
}

/// Kills the platform while machines run commands and are saved.
#[tokio::test]
async fn kill_9_leaves_no_machine_behind_and_what_was_being_saved_is_saved() {
    let (machines, kills, noise) = (2 * factor(10), factor(10), 300_000 * factor(10));
    // What is left in a data directory is of one database.
    let (dir, db) = (own_dir("killed"), TestDb::new().await);
    let settings = [("PLATFORM_DATA_DIR", dir.to_str().expect("a path")), ("PLATFORM_SANDBOX_MAX", "40")];
    let mut app = TestApp::start(PROGRAM, &db, &settings);
    let config = json!({"sandboxConfig": {"snapshotEnabled": true, "replaceSnapshotOnStop": true, "memoryMib": 256}});
    let mut paths = Vec::new();
    for n in 0..machines {
        let mut given = config.clone();
        given["name"] = format!("e{n}").into();
        paths.push(environment(&app, given).await.0);
    }
    let mark = format!("86401.{}", std::process::id());
    // What of each is there.
    let mut kept = vec![String::new(); machines];
    for kill in 0..=kills {
        let begun = join_all(paths.iter().map(async |path| {
            let sandbox = started(&app, path, json!({})).await;
            let said = ran(&app, path, &sandbox, "cat n 2>/dev/null; true").await;
            (sandbox, text(&said["stdout"]))
        }));
        for (n, (sandbox, was)) in begun.await.into_iter().enumerate() {
            assert_eq!(was, kept[n], "kill {kill}, machine {n}");
            let work = format!(
                "echo {kill} > n; head -c {noise} /dev/urandom > noise; (setsid sleep {mark} &); sleep {mark} &"
            );
            ran(&app, &paths[n], &sandbox, &work).await;
            if n % 2 == 0 {
                kept[n] = format!("{kill}\n");
                stopped(&app, &paths[n], &sandbox, true).await;
            }
        }
        if kill == kills {
            break;
        }
        app.crash();
        dies(&mark).await;
        for path in &paths {
            let session = tokio::time::timeout(PATIENCE, ended(&app, path)).await.expect("in time");
            let status = text(&session["status"]);
            assert!(["failed", "stopped"].contains(&status.as_str()) && session["saving"] == false, "{session}");
            let snapshots = app.get(&format!("{path}/snapshots")).await.body;
            assert!(snapshots.as_array().expect("a list").iter().all(|of| of["status"] == "ready"), "{snapshots}");
        }
    }
}

/// Waits until what sleeps for so long is gone, which it is within two seconds.
async fn dies(mark: &str) {
    let deadline = std::time::Instant::now() + Duration::from_secs(2);
    while is_running(mark) {
        assert!(std::time::Instant::now() < deadline, "what it started outlives it");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Waits until what sleeps for so long was stopped, long before the minute that a command of a turn may take.
pub(super) async fn stops(mark: &str) {
    let gone = eventually("it is gone", async || (!is_running(mark)).then_some(()));
    tokio::time::timeout(Duration::from_secs(20), gone).await.expect("it is stopped");
}

/// Whether a process of this host sleeps for so long.
fn is_running(mark: &str) -> bool {
    let processes = std::fs::read_dir("/proc").expect("it lists");
    processes.flatten().any(|entry| {
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(&format!("sleep\0{mark}"))
    })
}

#[tokio::test]
async fn no_more_machines_run_than_the_server_lets_and_one_account_leaves_room() {
    let app = app_with(&[("PLATFORM_SANDBOX_MAX", "4")]).await;
    let paths = join_all((0..5).map(|n| environment(&app, json!({"name": format!("e{n}")})))).await;
    for (path, _) in &paths[..3] {
        started(&app, path, json!({})).await;
    }
    let full = app.post(&format!("{}/sandbox/start", paths[3].0), json!({})).await;
    assert_eq!((full.status, full.error()), (StatusCode::CONFLICT, "SANDBOX_UNAVAILABLE"), "{}", full.body);
    // One that takes the place of another needs no place of its own.
    let live = app.post(&format!("{}/sandbox/start", paths[0].0), json!({})).await;
    assert_eq!(live.error(), "SESSION_ACTIVE", "{}", live.body);
    assert!(live.body["details"]["sandboxId"].is_string() && live.body["details"]["expiresAt"].is_number());
    let other = started(&app, &paths[0].0, json!({"force": true})).await;
    assert_ne!(live.body["details"]["sandboxId"], json!(other));
    let off = app_with(&[("PLATFORM_SANDBOX_BACKEND", "none")]).await;
    let (path, _) = environment(&off, json!({})).await;
    let none = off.post(&format!("{path}/sandbox/start"), json!({})).await;
    assert_eq!(none.error(), "SANDBOX_UNAVAILABLE");
    assert!(none.body["message"].to_string().contains("PLATFORM_SANDBOX_BACKEND"), "{}", none.body);
    let (path, _) = environment(&app, json!({"sandboxConfig": {"runtime": "node22"}})).await;
    let missing = app.post(&format!("{path}/sandbox/start"), json!({})).await;
    assert_eq!((missing.error(), &missing.body["details"]["runtime"]), ("SANDBOX_UNAVAILABLE", &json!("node22")));
    assert!(missing.body["details"]["available"].to_string().contains("default"), "{}", missing.body);
}

#[tokio::test]
async fn a_machine_is_left_as_its_users_believe_it_is() {
    let app = app().await;
    let settings = json!({"sandboxConfig": {"snapshotEnabled": true}, "availableToolsGroupsUids": ["builtin-sandbox"]});
    let (path, id) = environment(&app, settings).await;
    let sandbox = started(&app, &path, json!({})).await;
    let run = async |line: &str| ran(&app, &path, &sandbox, line).await;
    // A directory that is not there leads nowhere, and one that has gone leads back.
    let nowhere = json!({"sandboxId": sandbox, "command": "true", "cwd": "/nope"});
    assert_eq!(app.post(&format!("{path}/sandbox/exec"), nowhere).await.body["exitCode"], 1);
    assert_eq!(run("pwd").await["stdout"], "/workspace\n");
    run("mkdir /tmp/x; cd /tmp/x; rm -rf /tmp/x").await;
    let back = run("pwd").await;
    assert_eq!((&back["stdout"], &back["exitCode"]), (&json!("/workspace\n"), &json!(0)));
    assert!(text(&back["stderr"]).contains("/tmp/x is gone"), "{back}");
    // What a line does with its arguments and descriptors is its own.
    assert_eq!(run("echo $#; exec 9>lock; cd /tmp").await["stdout"], "0\n");
    assert_eq!(run("pwd; wc -c < /workspace/lock").await["stdout"], "/tmp\n0\n");
    run("cd /workspace; head -c 3000000 /dev/urandom > a; ln a b").await;
    let stale = app.request(Method::DELETE, &format!("{path}?force=true")).header("if-match", "\"99\"");
    assert_eq!(app.send(stale).await.status, StatusCode::PRECONDITION_FAILED);
    assert_eq!(run("echo still there").await["stdout"], "still there\n");
    let saved = stopped(&app, &path, &sandbox, true).await;
    ended(&app, &path).await;
    let config = app.get(&path).await.body["sandboxConfig"].clone();
    assert_eq!(config["snapshotId"], saved["snapshotId"]);
    // A file keeps its names.
    let sandbox = started(&app, &path, json!({})).await;
    assert_eq!(ran(&app, &path, &sandbox, "stat -c %h a; cmp a b && echo same").await["stdout"], "2\nsame\n");
    stopped(&app, &path, &sandbox, false).await;

    // Whoever is stopped leaves nothing running.
    let of = json!({"name": "h", "identifier": "helper", "environmentId": id});
    assert_eq!(app.post("/assistants", of).await.status, StatusCode::CREATED);
    let mark = format!("43200.{}", std::process::id());
    let message = format!("/tool run_command {{\"command\": \"sleep {mark}\"}}");
    let sent = json!({"chatUid": "c", "message": message});
    app.post("/assistants/helper/messages?async=true", sent).await;
    eventually("the command runs", async || is_running(&mark).then_some(())).await;
    let stop = app.post("/assistants/helper/chats/c/stop", json!({})).await;
    assert_eq!(stop.status, StatusCode::OK, "{}", stop.body);
    stops(&mark).await;
}

#[tokio::test]
async fn a_start_that_is_cut_off_says_so_and_time_begins_with_the_machine() {
    let db = TestDb::new().await;
    let mut app = TestApp::start(PROGRAM, &db, &[]);
    let slow = json!({"sandboxConfig": {"snapshotEnabled": true, "initScript": "sleep 3"}});
    let (path, _) = environment(&app, slow).await;
    let begun = chrono::Utc::now().timestamp_millis();
    let start = app.post(&format!("{path}/sandbox/start"), json!({"timeoutMinutes": 1})).await;
    assert!(start.body["expiresAt"].as_i64().is_some_and(|at| at >= begun + 63_000), "{}", start.body);
    stopped(&app, &path, &text(&start.body["sandboxId"]), false).await;
    // Killed, or told to end, while its init script runs: what was to be saved is, of another machine.
    for kill in [true, false] {
        let snapshot = app.post(&format!("{path}/snapshot/initialize"), json!({})).await;
        assert_eq!(snapshot.status, StatusCode::ACCEPTED, "{}", snapshot.body);
        let begun = eventually("its machine is made", async || {
            let last = app.get(&format!("{path}/sessions/last")).await.body;
            (last["status"] == "creating").then(|| text(&last["sessionId"]))
        })
        .await;
        if kill {
            app.crash();
        } else {
            app.signal("TERM");
            let next = TestApp::start(PROGRAM, &db, &[]);
            assert_eq!(std::mem::replace(&mut app, next).ended().await, Some(0));
        }
        eventually("its machine is known to be gone", async || {
            let session = app.get(&format!("{path}/sessions/{begun}")).await.body;
            (session["status"] == "failed").then_some(())
        })
        .await;
        eventually("the snapshot is made anew", async || {
            let all = app.get(&format!("{path}/snapshots")).await.body;
            (all[0]["snapshotId"] == snapshot.body["snapshotId"] && all[0]["status"] == "ready").then_some(())
        })
        .await;
        let last = ended(&app, &path).await;
        assert_eq!(last["status"], "stopped", "{last}");
    }
}

#[tokio::test]
async fn what_could_not_be_saved_is_told_and_machines_begin_with_what_was_saved_before() {
    let server = FakeToolServer::start();
    let app = app_with(&[("PLATFORM_EGRESS_ALLOW", "127.0.0.0/8")]).await;
    webhook(&app, &format!("{}/echo/ends", server.url()), &["sandbox.finished"], json!({})).await;
    let (path, _) = environment(&app, json!({"sandboxConfig": {"snapshotEnabled": true}})).await;
    let sandbox = started(&app, &path, json!({})).await;
    ran(&app, &path, &sandbox, "echo kept > kept").await;
    stopped(&app, &path, &sandbox, true).await;
    ended(&app, &path).await;
    for _ in 0..2 {
        let sandbox = started(&app, &path, json!({})).await;
        let deep = "cat kept; for i in $(seq 520); do mkdir d; cd d; done; cd /workspace";
        assert_eq!(ran(&app, &path, &sandbox, deep).await["stdout"], "kept\n");
        stopped(&app, &path, &sandbox, true).await;
        let session = ended(&app, &path).await;
        assert!(session["error"].as_str().is_some_and(|error| error.contains("deeper than 512")), "{session}");
    }
    let told = received(&server, "/echo/ends", |sent| sent.len() == 3).await;
    let errors: Vec<Value> = told.iter().map(|sent| sent.json()["data"]["error"].clone()).collect();
    assert_eq!(errors.iter().filter(|error| error.to_string().contains("deeper than 512")).count(), 2, "{errors:?}");
    let snapshots = app.get(&format!("{path}/snapshots")).await.body;
    let of = |status: &str| snapshots.as_array().into_iter().flatten().filter(|of| of["status"] == status).count();
    assert_eq!((of("ready"), of("failed")), (1, 1), "of those that failed the last is kept: {snapshots}");
}
