//! Subscriptions at apps: they are told where to call, and to stop.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use diesel_async::AsyncConnection;
use platform_core::{AccountId, Code, Error, Object, Result, parse};
use platform_db::Conn;
use platform_integrations::{Connector, PackEventType, PgConnections, at_path};
use platform_jobs::{Run, When, Work, cancel_in, end_in, enqueue_in, is_held_in};
use platform_vault::Secret;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::{repository::TriggerRow, service::PgTriggers};

/// Kind of the runs that end a subscription at an app; the subject is the trigger.
const KIND: &str = "trigger-unsubscribe";
/// It is tried so often, with this between two attempts.
const TRIES: i64 = 48;
const RETRY_DELAY: Duration = Duration::from_mins(30);

/// A value of a trigger's config, by the name `config.x`; else the default of its schema.
pub(crate) fn config_value(event: &PackEventType, config: &Value, name: &str) -> Option<Value> {
    let path = name.strip_prefix("config.")?;
    let given = at_path(config, path).filter(|value| !value.is_null()).cloned();
    given.or_else(|| {
        let default = &event.config["properties"][path]["default"];
        (!default.is_null()).then(|| default.clone())
    })
}

/// Tells an app where to call; the id of the subscription, when there is one.
pub(crate) async fn subscribe(
    connections: &Arc<PgConnections>,
    account: &AccountId,
    connection: &str,
    (connector, event): (&Connector, &PackEventType),
    config: &Value,
    (url, secret): (&str, &Secret),
) -> Result<Option<String>> {
    let Some(subscribe) = &event.subscribe else { return Ok(None) };
    let values = |name: &str| match name {
        "webhookUrl" => Some(url.into()),
        "subscription.secret" => Some(secret.expose().into()),
        name => config_value(event, config, name),
    };
    let name = &connector.pack.name;
    let answer = connections
        .request(account, connection, &subscribe.request, &values)
        .await
        .map_err(|error| if error.code() == Code::CONFLICT { error } else { failed(name, error.message()) })?;
    let body: Value = parse(&answer.bytes).unwrap_or_default();
    if !(200..300).contains(&answer.status) {
        // What it says may repeat what it was sent.
        return Err(failed(name, &format!("it answers {}", answer.status)).with("status", answer.status));
    }
    let id = match at_path(&body, &subscribe.id) {
        Some(Value::String(id)) => Some(id.clone()),
        Some(Value::Number(id)) => Some(id.to_string()),
        _ => None,
    };
    match id {
        Some(id) => Ok(Some(id)),
        // Some answer 200 to what they refuse.
        None => Err(failed(name, "its answer has no id of a subscription")),
    }
}

fn failed(app: &str, reason: &str) -> Error {
    Error::new(Code::UPSTREAM_ERROR, format!("{app} could not be told where to send events: {reason}."))
}

/// An app that gave the id of a subscription again is not told to stop.
pub(crate) async fn keep_in(conn: &mut Conn, account: &AccountId, trigger: &str, subscription: &str) -> Result<()> {
    cancel_in(conn, account, KIND, &format!("{trigger}/{subscription}")).await?;
    Ok(())
}

/// Has an app be told to stop, in the transaction that takes a trigger away.
pub(crate) async fn unsubscribe_in(conn: &mut Conn, account: &AccountId, row: &TriggerRow) -> Result<()> {
    let Some(subscription) = &row.subscription_id else { return Ok(()) };
    keep_in(conn, account, &row.id, subscription).await?;
    let payload = json!({"app": row.app, "slug": row.slug, "connection": row.connection_id,
        "subscription": subscription, "config": row.config, "tries": 0});
    let subject = format!("{}/{subscription}", row.id);
    enqueue_in(conn, account, KIND, &subject, payload, When::After(Duration::ZERO)).await?;
    Ok(())
}

/// Tells apps to stop.
pub struct UnsubscribeWork(pub Arc<PgTriggers>);

#[async_trait]
impl Work for UnsubscribeWork {
    fn kind(&self) -> &'static str {
        KIND
    }

    async fn work(&self, run: &Run, _stop: &CancellationToken) -> Result<()> {
        let (triggers, account, payload) = (&self.0, run.account(), &run.payload);
        let of = |name: &str| payload[name].as_str().unwrap_or_default();
        let done = async {
            let connector = triggers.integrations.connector(of("app"))?;
            let event = connector.event_type(of("slug"))?;
            let Some(request) = &event.unsubscribe else { return Ok(true) };
            let values = |name: &str| match name {
                "subscription.id" => Some(of("subscription").into()),
                name => config_value(event, &payload["config"], name),
            };
            let connections = triggers.integrations.connections();
            // With a connection that is gone nobody can be asked; one that is broken may be connected again.
            if !connections.exists(&account, of("connection")).await? {
                return Ok(true);
            }
            let answer = connections.request(&account, of("connection"), request, &values).await?;
            // What it does not know it has ended already.
            Ok::<_, Error>((200..300).contains(&answer.status) || matches!(answer.status, 404 | 410))
        };
        let is_done = match done.await {
            Ok(is_done) => is_done,
            Err(error) => {
                warn!(app = of("app"), %error, "An app could not be told to stop sending events.");
                false
            }
        };
        let tries = payload["tries"].as_i64().unwrap_or(0) + 1;
        let mut conn = triggers.db.conn().await?;
        conn.transaction::<_, Error, _>(async |conn| {
            if !is_held_in(conn, run).await? {
                return Ok(());
            }
            end_in(conn, run).await?;
            if !is_done && tries < TRIES {
                let mut again: Object = payload.as_object().cloned().unwrap_or_default();
                again.insert("tries".to_owned(), tries.into());
                enqueue_in(conn, &account, KIND, &run.subject, Value::Object(again), When::After(RETRY_DELAY)).await?;
            }
            Ok(())
        })
        .await
    }
}
