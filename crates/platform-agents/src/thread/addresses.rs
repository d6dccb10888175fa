//! Whom the events of threads are told to (contract 17).

use std::collections::HashMap;

use async_trait::async_trait;
use diesel::{
    dsl::sql,
    prelude::*,
    sql_types::{Nullable, Text},
};
use diesel_async::RunQueryDsl;
use platform_core::{AccountId, Result};
use platform_db::{Conn, Db};
use platform_events::keep_addresses_in;
use platform_webhooks::{ThreadAddress, ThreadAddresses, ThreadKey};

use crate::schema::{agents, threads};

/// The addresses that threads and agents name.
pub struct PgThreadAddresses {
    db: Db,
}

impl PgThreadAddresses {
    /// Reads them where they are stored.
    pub fn new(db: &Db) -> Self {
        Self { db: db.clone() }
    }
}

#[async_trait]
impl ThreadAddresses for PgThreadAddresses {
    async fn of(&self, wanted: &[ThreadKey]) -> Result<HashMap<ThreadKey, ThreadAddress>> {
        let mut by_account: HashMap<&AccountId, Vec<&str>> = HashMap::new();
        for (account, thread) in wanted {
            by_account.entry(account).or_default().push(thread);
        }
        let mut found = HashMap::new();
        let conn = self.db.read().await?;
        for (account, ids) in by_account {
            for (thread, address) in addresses(conn.get(), account, &ids).await? {
                found.insert((account.clone(), thread), address);
            }
        }
        Ok(found)
    }
}

/// The addresses of threads, as they say them and their agents do.
async fn addresses(mut conn: &Conn, account: &AccountId, ids: &[&str]) -> Result<Vec<(String, ThreadAddress)>> {
    type Row = (String, Option<String>, Option<String>, Option<String>);
    let rows: Vec<Row> = threads::table
        .inner_join(agents::table.on(agents::account_id.eq(threads::account_id).and(agents::id.eq(threads::agent_id))))
        .filter(threads::account_id.eq(account.as_str()).and(threads::id.eq_any(ids)))
        .select((
            threads::id,
            sql::<Nullable<Text>>("facts ->> 'callbackUrl'"),
            sql::<Nullable<Text>>("settings ->> 'webhookUrl'"),
            agents::project_id,
        ))
        .load(&mut conn)
        .await?;
    let address = |(thread, callback_url, webhook_url, project_id)| {
        (thread, ThreadAddress { callback_url, webhook_url, project_id })
    };
    Ok(rows.into_iter().map(address).collect())
}

/// What has happened to a thread is told to the addresses that it named, though it is about to be gone.
pub(super) async fn keep_in(conn: &mut Conn, account: &AccountId, thread: &str) -> Result<()> {
    for (_, address) in addresses(conn, account, &[thread]).await? {
        let urls: Vec<String> = [address.callback_url, address.webhook_url].into_iter().flatten().collect();
        keep_addresses_in(conn, account, thread, &urls).await?;
    }
    Ok(())
}
