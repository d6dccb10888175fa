//! `/v1/api-keys`

use platform_testing::{Reply, TestApp};
use reqwest::{Method, StatusCode};
use serde_json::json;

use crate::support::{app, text};

async fn with_key(app: &TestApp, key: &str) -> Reply {
    app.send(app.anonymous(Method::GET, "/v1/models").bearer_auth(key)).await
}

#[tokio::test]
async fn a_key_is_shown_once_works_at_once_and_stops_at_once() {
    let app = app().await;
    let made = app.post("/api-keys", json!({"name": "ci"})).await;
    assert_eq!(made.status, StatusCode::CREATED);
    let (id, value) = (text(&made.body["_id"]), text(&made.body["key"]));
    assert!(value.starts_with("ak-") && value.len() == 46, "{value}");
    assert_eq!(text(&made.body["last4"]), value[42..]);
    assert_eq!(with_key(&app, &value).await.status, StatusCode::OK);
    let read = app.get(&format!("/api-keys/{id}")).await;
    assert_eq!((read.status, read.body.get("key")), (StatusCode::OK, None));
    let listed = app.get("/api-keys?limit=1").await;
    assert_eq!((&listed.body["total"], &listed.body["items"][0]["_id"]), (&json!(2), &json!(id)));

    let off = app.patch(&format!("/api-keys/{id}"), json!({"disabled": true})).await;
    assert_eq!((off.status, &off.body["name"]), (StatusCode::OK, &json!("ci")));
    assert_eq!(with_key(&app, &value).await.error(), "TOKEN_REVOKED");
    app.patch(&format!("/api-keys/{id}"), json!({"disabled": false, "expiresAtMs": 1})).await;
    assert_eq!(with_key(&app, &value).await.error(), "TOKEN_EXPIRED");
    app.patch(&format!("/api-keys/{id}"), json!({"expiresAtMs": null})).await;
    assert_eq!(with_key(&app, &value).await.status, StatusCode::OK);

    let rotated = app.post(&format!("/api-keys/{id}/rotate"), json!({"graceSeconds": 60})).await;
    let new = text(&rotated.body["key"]);
    assert_eq!(with_key(&app, &value).await.status, StatusCode::OK, "the old value has its grace");
    assert_eq!(with_key(&app, &new).await.status, StatusCode::OK);
    let again = app.post(&format!("/api-keys/{id}/rotate"), json!({})).await;
    assert_eq!(with_key(&app, &new).await.error(), "UNAUTHENTICATED", "no grace was given");
    assert_eq!(with_key(&app, &value).await.status, StatusCode::OK, "each value has the grace that it was given");

    let gone = app.delete(&format!("/api-keys/{id}")).await;
    assert_eq!((&gone.body["success"], &gone.body["deletedId"]), (&json!(true), &json!(id)));
    assert_eq!(with_key(&app, &text(&again.body["key"])).await.error(), "UNAUTHENTICATED");
    assert_eq!(app.get(&format!("/api-keys/{id}")).await.error(), "KEY_NOT_FOUND");
}
