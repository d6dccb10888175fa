use async_trait::async_trait;
use platform_conversation::{SubAgents, invalid_sub_agents};
use platform_core::{AccountId, Result};
use platform_db::Db;

use super::repository;

/// Knows to which agents work can be handed.
pub struct PgSubAgents(Db);

impl PgSubAgents {
    /// Needs the database.
    pub fn new(db: &Db) -> Self {
        Self(db.clone())
    }
}

#[async_trait]
impl SubAgents for PgSubAgents {
    async fn check(&self, account: &AccountId, ids: &[String]) -> Result<()> {
        if ids.is_empty() {
            return Ok(());
        }
        let conn = self.0.read().await?;
        let agents = repository::find_all(conn.get(), account, ids).await?;
        let mut invalid = Vec::new();
        for id in ids {
            let reason = match agents.iter().find(|agent| agent.id == *id) {
                None => Some("NOT_FOUND"),
                Some(agent) if !agent.settings()?.sub_agent_config.enabled => Some("NOT_ENABLED"),
                Some(agent) if agent.settings()?.archived => Some("ARCHIVED"),
                Some(_) => None,
            };
            invalid.extend(reason.map(|reason| (id.as_str(), reason)));
        }
        invalid_sub_agents(&invalid)
    }
}
