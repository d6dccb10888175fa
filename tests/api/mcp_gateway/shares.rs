//! What one server or one end user takes of an account's calls, and leaves to the others.

use std::time::Duration;

use futures_util::future::join_all;
use platform_testing::FakeMcpServer;
use reqwest::Method;
use serde_json::{Value, json};

use super::{app, called, exposed, profile, wrong};
use crate::{
    access::session,
    support::{PATIENCE, eventually, peak_memory},
};

fn call_of(name: &str) -> Value {
    json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": name, "arguments": {}}})
}

#[tokio::test]
async fn a_server_that_hangs_and_who_waits_for_it_leave_places_to_others() {
    let (app, slow, quick) = (app().await, FakeMcpServer::start(), FakeMcpServer::start());
    slow.set_tools(&["hang", "echo"]);
    quick.set_tools(&["echo"]);
    let waits = json!({"timeoutMs": 300_000});
    let (slow_id, quick_id) =
        (exposed(&app, "slow", &slow, waits).await, exposed(&app, "quick", &quick, json!({})).await);
    let servers = json!([{"toolServerId": slow_id}, {"toolServerId": quick_id}]);
    profile(&app, json!({"name": "default", "visibility": "public", "servers": servers})).await;
    let of = async |tenant: &str| session(&app, json!({"tenantId": tenant})).await;
    let (hog, second, other) = (of("hog").await, of("second").await, of("other").await);
    let hang = |token: &str| {
        let call = app.anonymous(Method::POST, "/v1/mcp").bearer_auth(token.to_owned());
        call.json(&call_of("slow__hang")).send()
    };
    let hanging = join_all((0..30).map(|_| hang(&hog)).chain((0..30).map(|_| hang(&second))));
    let others = async {
        // Of the eight places of an account one end user has four, and one server six.
        eventually("the server is as busy as it gets", async || (slow.requests("tools/call").len() == 6).then_some(()))
            .await;
        for token in [&other, app.key()] {
            let reply = tokio::time::timeout(PATIENCE, called(&app, token, "", "quick__echo", json!({})));
            let reply = reply.await.expect("it waits for nobody");
            assert!(reply.body["result"]["isError"].is_null(), "{}", reply.body);
        }
    };
    tokio::select! {
        () = others => {}
        _ = hanging => panic!("the server hangs for longer"),
    }
    assert_eq!(slow.requests("tools/call").len(), 6);
}

#[tokio::test]
async fn who_does_not_read_long_answers_calls_nothing_more_and_takes_no_room_of_others() {
    let (app, mcp) = (app().await, FakeMcpServer::start());
    mcp.set_tools(&["long", "echo"]);
    let server = exposed(&app, "s", &mcp, json!({})).await;
    profile(&app, json!({"name": "default", "visibility": "public", "servers": [{"toolServerId": server}]})).await;
    let of = async |tenant: &str| session(&app, json!({"tenantId": tenant})).await;
    let (hog, other) = (of("hog").await, of("other").await);
    let before = peak_memory(&app);
    let unread = join_all((0..60).map(|_| {
        let call = app.anonymous(Method::POST, "/v1/mcp").bearer_auth(&hog).timeout(Duration::from_mins(2));
        call.json(&call_of("s__long")).send()
    }));
    let unread: Vec<_> = unread.await.into_iter().map(|answer| answer.expect("an answer")).collect();
    // Sixteen MiB that are not read, what the four calls bring that are under way then, and what is being written.
    let made = mcp.requests("tools/call").len();
    assert!((2..=20).contains(&made), "{made} calls were made");
    println!("{made} calls, {} MiB more", peak_memory(&app) - before);
    let refused = called(&app, &hog, "", "s__echo", json!({})).await;
    assert!(refused.status == 429 || wrong(&refused) == "RATE_LIMIT_EXCEEDED", "{}", refused.body);
    let reply = called(&app, &other, "", "s__echo", json!({})).await;
    assert!(reply.body["result"]["isError"].is_null() && reply.status == 200, "{}", reply.body);
    drop(unread);
}
