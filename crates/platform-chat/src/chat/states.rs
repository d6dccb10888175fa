//! Which chats are at work, for those that live as long as they do.

use async_trait::async_trait;
use diesel::prelude::*;
use diesel_async::RunQueryDsl;
use platform_core::{AccountId, Result};
use platform_db::Db;
use platform_runtime::ChatStates;

use super::model::Status;
use crate::schema::chats;

/// The states of chats.
pub struct PgChatStates(Db);

impl PgChatStates {
    /// Reads them where they are stored.
    pub fn new(db: &Db) -> Self {
        Self(db.clone())
    }
}

#[async_trait]
impl ChatStates for PgChatStates {
    async fn busy(&self, account: &AccountId, ids: &[String]) -> Result<Vec<String>> {
        let conn = self.0.read().await?;
        let of = chats::table.filter(chats::account_id.eq(account.as_str()).and(chats::uid.eq_any(ids)));
        let states: Vec<(String, String)> = of.select((chats::uid, chats::status)).load(&mut conn.get()).await?;
        Ok(states.into_iter().filter(|(_, status)| !Status::of(status).is_terminal()).map(|(id, _)| id).collect())
    }
}
