//! Whether threads are over, for those that live as long as they do.

use std::collections::HashMap;

use async_trait::async_trait;
use diesel::prelude::*;
use diesel_async::RunQueryDsl;
use platform_core::{AccountId, Result};
use platform_db::Db;
use platform_runtime::ThreadStates;

use crate::{schema::threads, thread::change::state::ThreadState};

/// The states of threads.
pub struct PgThreadStates {
    db: Db,
}

impl PgThreadStates {
    /// Reads them where they are stored.
    pub fn new(db: &Db) -> Self {
        Self { db: db.clone() }
    }
}

#[async_trait]
impl ThreadStates for PgThreadStates {
    async fn are_over(&self, account: &AccountId, ids: &[String]) -> Result<HashMap<String, bool>> {
        let conn = self.db.read().await?;
        let of = threads::table.filter(threads::account_id.eq(account.as_str()).and(threads::id.eq_any(ids)));
        let states: Vec<(String, String)> = of.select((threads::id, threads::state)).load(&mut conn.get()).await?;
        let is_over = |state: &str| ThreadState::parse(state).is_some_and(ThreadState::is_terminal);
        Ok(states.into_iter().map(|(id, state)| (id, is_over(&state))).collect())
    }
}
