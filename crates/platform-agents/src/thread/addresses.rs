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
use platform_db::Db;
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
            let mut conn = conn.get();
            type Row = (String, Option<String>, Option<String>, Option<String>);
            let rows: Vec<Row> = threads::table
                .inner_join(
                    agents::table.on(agents::account_id.eq(threads::account_id).and(agents::id.eq(threads::agent_id))),
                )
                .filter(threads::account_id.eq(account.as_str()).and(threads::id.eq_any(ids)))
                .select((
                    threads::id,
                    sql::<Nullable<Text>>("facts ->> 'callbackUrl'"),
                    sql::<Nullable<Text>>("settings ->> 'webhookUrl'"),
                    agents::project_id,
                ))
                .load(&mut conn)
                .await?;
            for (thread, callback_url, webhook_url, project_id) in rows {
                let address = ThreadAddress { callback_url, webhook_url, project_id };
                found.insert((account.clone(), thread), address);
            }
        }
        Ok(found)
    }
}
