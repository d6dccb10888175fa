//! Tokens of connections that were taken away are revoked at their apps (contract 08 §1).

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use async_trait::async_trait;
use diesel_async::AsyncConnection;
use platform_core::{AccountId, Error, Result, Timestamp};
use platform_jobs::{Run, When, Work, end_in, enqueue_in, is_held_in};
use platform_vault::{Secret, SecretLocation, Vault};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::{
    connections::{OpenConnection, PgConnections},
    mcp, oauth,
};

/// Kind of the runs that revoke tokens; the subject is the connection that is gone.
pub(crate) const KIND: &str = "revoke-connection";
/// So long it is tried.
const TRIED_MS: i64 = 24 * 3_600_000;
/// Between two attempts.
const RETRY_DELAY: Duration = Duration::from_mins(10);

/// What is to be revoked.
pub(crate) struct Revocation {
    app: String,
    scheme: String,
    token: Secret,
    until: Timestamp,
    /// As whom it was made, and where the log-in of an MCP server is, which no pack says.
    fields: BTreeMap<String, Secret>,
}

impl Revocation {
    pub fn of(app: &str, open: &OpenConnection, now: Timestamp) -> Self {
        let token = open.held.refresh.clone().or_else(|| open.held.access.clone());
        let mut fields = open.held.fields.clone();
        if !mcp::is_server(app) {
            fields.retain(|name, _| name == "clientId" || name == "clientSecret");
        }
        Self {
            fields,
            app: app.to_owned(),
            scheme: open.row.scheme.clone(),
            token: token.unwrap_or_else(|| String::new().into()),
            until: Timestamp(now.0 + TRIED_MS),
        }
    }

    pub fn seal(&self, vault: &Vault, account: &AccountId, id: &str) -> Value {
        let fields: BTreeMap<_, _> = self.fields.iter().map(|(name, value)| (name, value.expose())).collect();
        let text = json!([self.app, self.scheme, self.token.expose(), self.until.0, fields]).to_string();
        json!({"sealed": vault.seal(&place(account, id), &text)})
    }

    fn open(vault: &Vault, run: &Run) -> Result<Self> {
        let sealed = run.payload["sealed"].as_str().unwrap_or_default();
        let opened = vault.open(&place(&run.account(), &run.subject), sealed)?;
        #[derive(Deserialize)]
        struct Sealed(String, String, String, i64, #[serde(default)] BTreeMap<String, String>);
        let Sealed(app, scheme, token, until, fields) =
            serde_json::from_str(opened.expose()).map_err(Error::internal)?;
        let fields = fields.into_iter().map(|(name, value)| (name, value.into())).collect();
        Ok(Self { app, scheme, token: token.into(), until: Timestamp(until), fields })
    }
}

fn place<'a>(account: &'a AccountId, id: &'a str) -> SecretLocation<'a> {
    SecretLocation { account, table: "runs", column: "payload", row: id }
}

/// Revokes tokens.
pub struct Revocations(pub Arc<PgConnections>);

#[async_trait]
impl Work for Revocations {
    fn kind(&self) -> &'static str {
        KIND
    }

    async fn work(&self, run: &Run, _stop: &CancellationToken) -> Result<()> {
        let (all, account) = (&self.0, run.account());
        let revocation = Revocation::open(&all.vault, run)?;
        let now = all.clock.now();
        let of_server = mcp::connector(&revocation.app, &revocation.fields)?;
        let is_done = match of_server.as_ref().or_else(|| all.apps.get(&revocation.app).ok().map(Arc::as_ref)) {
            None => true,
            Some(connector) => {
                let scheme = connector.pack.schemes().into_iter().find(|of| of.mode.as_str() == revocation.scheme);
                match scheme {
                    None => true,
                    Some(scheme) => {
                        let client = all.client_of(&account, connector, &scheme, &revocation.fields).await?;
                        oauth::revoke(&all.egress.of(&account), &scheme, client.as_ref(), &revocation.token).await
                    }
                }
            }
        };
        let is_over = now >= revocation.until;
        if is_done {
            info!(app = revocation.app, "The token of a connection that was taken away was revoked.");
        } else if is_over {
            warn!(app = revocation.app, "The token of a connection that was taken away could not be revoked in a day.");
        }
        let mut conn = all.db.conn().await?;
        conn.transaction::<_, Error, _>(async |conn| {
            if !is_held_in(conn, run).await? {
                return Ok(());
            }
            end_in(conn, run).await?;
            if !is_done && !is_over {
                enqueue_in(conn, &account, KIND, &run.subject, run.payload.clone(), When::After(RETRY_DELAY)).await?;
            }
            Ok(())
        })
        .await
    }
}
