//! What is asked of machines and snapshots, and is not to be had.

use platform_testing::FakeToolServer;
use reqwest::StatusCode;
use serde_json::{Value, json};

use super::{ended, ran, started, stopped};
use crate::{
    environments::environment,
    support::{app_with, eventually, text},
};

#[tokio::test]
async fn what_is_asked_of_a_machine_is_judged_and_whatever_was_there_stays() {
    let app = app_with(&[("PLATFORM_EGRESS_ALLOW", "127.0.0.0/8")]).await;
    for config in [
        json!({"cpus": 0}),
        json!({"cpus": 9}),
        json!({"memoryMib": 8193}),
        json!({"diskMib": 511}),
        json!({"startCommand": 7}),
        json!({"autoExtend": "yes"}),
    ] {
        let refused = app.post("/environments", json!({"name": "n", "sandboxConfig": config})).await;
        assert_eq!(refused.error(), "VALIDATION_ERROR", "{config}");
    }
    let (elsewhere, _) = environment(&app, json!({"sandboxConfig": {"provider": "firecracker"}})).await;
    let refused = app.post(&format!("{elsewhere}/sandbox/start"), json!({})).await;
    assert_eq!((refused.status, refused.error()), (StatusCode::CONFLICT, "SANDBOX_UNAVAILABLE"));

    let (path, _) = environment(&app, json!({})).await;
    for minutes in [0, 31] {
        let refused = app.post(&format!("{path}/sandbox/start"), json!({"timeoutMinutes": minutes})).await;
        assert_eq!(refused.error(), "VALIDATION_ERROR", "{minutes}");
    }
    assert_eq!(app.get(&format!("{path}/sandbox/status")).await.body["online"], false);
    let sandbox = started(&app, &path, json!({})).await;
    let keep = json!({"sandboxId": sandbox, "saveChanges": true});
    assert_eq!(app.post(&format!("{path}/sandbox/stop"), keep).await.error(), "SNAPSHOTS_DISABLED");
    let status = app.get(&format!("{path}/sandbox/status")).await.body;
    assert_eq!((&status["online"], &status["sandboxId"]), (&json!(true), &json!(sandbox)), "it runs on");

    let server = FakeToolServer::start();
    server.serve("/a.bin", "application/octet-stream", &[0xff, 0xfe, 0x00]);
    let files = async |what: &str, mut body: Value| {
        body["sandboxId"] = json!(sandbox);
        app.post(&format!("{path}/sandbox/files/{what}"), body).await
    };
    let fetched = json!({"destinationPath": "/workspace/a", "sourceUrl": format!("{}/a.bin", server.url())});
    assert_eq!(files("write", fetched).await.body, json!({"success": true, "path": "/workspace/a", "size": 3}));
    let read = files("read", json!({"path": "/workspace/a", "encoding": "base64"})).await.body;
    assert_eq!((&read["content"], &read["size"]), (&json!("//4A"), &json!(3)));
    let missing = json!({"destinationPath": "/workspace/a", "sourceUrl": format!("{}/none", server.url())});
    for (what, wrong) in [
        ("write", missing),
        ("write", json!({"destinationPath": "/workspace/a", "content": "a", "encoding": "latin1"})),
        ("write", json!({"destinationPath": "/workspace/a", "content": "?", "encoding": "base64"})),
        ("write", json!({"destinationPath": "/workspace/a"})),
        ("read", json!({"path": "/workspace/a", "encoding": "latin1"})),
    ] {
        assert_eq!(files(what, wrong.clone()).await.error(), "VALIDATION_ERROR", "{wrong}");
    }
    ran(&app, &path, &sandbox, "head -c 1000000 /dev/zero > most").await;
    let most = files("read", json!({"path": "/workspace/most", "encoding": "base64"})).await;
    assert_eq!((most.status, &most.body["size"]), (StatusCode::OK, &json!(1_000_000)));
    assert_eq!(ran(&app, &path, &sandbox, "stat -c %s a").await["stdout"], "3\n", "as it was");
    stopped(&app, &path, &sandbox, false).await;
}

#[tokio::test]
async fn a_snapshot_is_made_of_a_machine_that_began_well_and_while_no_other_runs() {
    let app = app_with(&[]).await;
    let config = json!({"snapshotEnabled": true, "initScript": "echo half > half; exit 3"});
    let (path, _) = environment(&app, json!({"sandboxConfig": config})).await;
    let sandbox = started(&app, &path, json!({})).await;
    let initialize = format!("{path}/snapshot/initialize");
    assert_eq!(app.post(&initialize, json!({})).await.error(), "SESSION_ACTIVE");
    let session = app.get(&format!("{path}/sessions/last")).await.body;
    assert_eq!(session["initScript"]["exitCode"], 3, "{session}");
    stopped(&app, &path, &sandbox, false).await;
    ended(&app, &path).await;
    assert_eq!(app.post(&initialize, json!({})).await.status, StatusCode::ACCEPTED);
    let failed = eventually("it has failed", async || {
        let snapshots = app.get(&format!("{path}/snapshots")).await.body;
        (snapshots[0]["status"] == "failed").then(|| snapshots[0].clone())
    })
    .await;
    assert!(failed["error"].is_string(), "{failed}");
    assert!(app.get(&path).await.body["sandboxConfig"]["snapshotId"].is_null(), "none is current");
    ended(&app, &path).await;
    // What is saved has its size, and the machine that it was.
    let sandbox = started(&app, &path, json!({})).await;
    let begun = stopped(&app, &path, &sandbox, true).await;
    let again = json!({"sandboxId": sandbox, "saveChanges": true});
    let again = app.post(&format!("{path}/sandbox/stop"), again).await;
    let says_so = again.body["snapshotId"] == begun["snapshotId"] && again.body["saving"] == true;
    assert!(says_so || again.error() == "SANDBOX_NOT_FOUND", "while it is being saved: {}", again.body);
    let saved = eventually("it is saved", async || {
        let snapshots = app.get(&format!("{path}/snapshots")).await.body;
        (snapshots[0]["status"] == "ready").then(|| snapshots[0].clone())
    })
    .await;
    assert_eq!((&saved["snapshotId"], &saved["sourceSandboxId"]), (&begun["snapshotId"], &json!(sandbox)), "{saved}");
    assert!(saved["sizeBytes"].as_u64().is_some_and(|bytes| bytes > 0), "{saved}");
}

#[tokio::test]
async fn machines_of_tenants_are_told_apart_and_an_environment_knows_only_its_own() {
    let app = app_with(&[]).await;
    let project = text(&app.post("/projects", json!({"name": "P", "identifier": "p"})).await.body["_id"]);
    let config = json!({"snapshotEnabled": true, "perTenantSnapshots": true, "initScript": "sleep 2"});
    let (path, id) = environment(&app, json!({"projectId": project, "sandboxConfig": config})).await;
    let (other, _) = environment(&app, json!({})).await;
    let listed = app.get(&format!("/environments?projectId={project}")).await.body;
    assert_eq!((&listed["total"], &listed["environments"][0]["_id"]), (&json!(1), &json!(id)));

    let initialize = format!("{path}/snapshot/initialize");
    assert_eq!(app.post(&initialize, json!({})).await.status, StatusCode::ACCEPTED);
    assert_eq!(app.post(&initialize, json!({})).await.error(), "SNAPSHOT_SAVE_IN_PROGRESS");
    eventually("the base is saved", async || {
        let snapshots = app.get(&format!("{path}/snapshots")).await.body;
        (snapshots[0]["status"] == "ready").then_some(())
    })
    .await;
    ended(&app, &path).await;

    let acme = started(&app, &path, json!({"tenantId": "acme"})).await;
    started(&app, &path, json!({"tenantId": "globex"})).await;
    let copy = format!("{path}/tenant-snapshots/acme/initialize");
    assert_eq!(app.post(&copy, json!({})).await.error(), "SESSION_ACTIVE");
    let of_acme = app.get(&format!("{path}/sessions?tenantId=acme")).await.body;
    assert_eq!((&of_acme["total"], &of_acme["sessions"][0]["sandboxId"]), (&json!(1), &json!(acme)), "{of_acme}");
    assert_eq!(app.get(&format!("{path}/sessions?status=running")).await.body["total"], 2);

    for (what, mut body) in [
        ("exec", json!({"command": "true"})),
        ("stop", json!({"saveChanges": false})),
        ("files/list", json!({"path": "/workspace"})),
        ("files/read", json!({"path": "/workspace/f1"})),
        ("files/write", json!({"destinationPath": "/workspace/f1", "content": "x"})),
    ] {
        body["sandboxId"] = json!(acme);
        let refused = app.post(&format!("{other}/sandbox/{what}"), body).await;
        assert_eq!((refused.status, refused.error()), (StatusCode::NOT_FOUND, "SANDBOX_NOT_FOUND"), "{what}");
    }

    let many = json!({"sandboxId": acme, "command": "for n in $(seq 1100); do echo > f$n; done", "timeoutSeconds": 0});
    let made = app.post(&format!("{path}/sandbox/exec"), many).await.body;
    assert_eq!(made["exitCode"], 0, "as long as the session lasts: {made}");
    let files = json!({"sandboxId": acme, "path": "/workspace"});
    let files = app.post(&format!("{path}/sandbox/files/list"), files).await.body;
    assert_eq!(files["entries"].as_array().map(Vec::len), Some(1000));
}
