use async_trait::async_trait;
use diesel::sql_types::Text;
use diesel_async::RunQueryDsl;
use platform_access::{Kind, RecordRef, ReferenceField, Referrer};
use platform_conversation::{AGENT, ASSISTANT};
use platform_core::{AccountId, Result};
use platform_db::Conn;
use platform_toolservers::TOOL_SERVER;

/// What assistants refer to.
pub const ASSISTANT_REFERENCES: [ReferenceField; 2] =
    [("availableToolsGroupsUids", TOOL_SERVER), ("subagentsIds", AGENT)];

/// Assistants, as far as they refer to others.
#[derive(Debug)]
pub struct AssistantReferrer;

#[async_trait]
impl Referrer for AssistantReferrer {
    fn kind(&self) -> Kind {
        ASSISTANT
    }

    async fn forget_in(&self, conn: &mut Conn, account: &AccountId, id: &str, target: RecordRef<'_>) -> Result<()> {
        let forget = "UPDATE assistants SET version = version + 1, \
             edited_ms = floor(extract(epoch FROM clock_timestamp()) * 1000), \
             settings = jsonb_set(settings, '{availableToolsGroupsUids}', (settings -> 'availableToolsGroupsUids') - $3) \
             WHERE account_id = $1 AND id = $2 AND settings -> 'availableToolsGroupsUids' ? $3";
        let forget = diesel::sql_query(forget).bind::<Text, _>(account.as_str()).bind::<Text, _>(id);
        forget.bind::<Text, _>(target.1).execute(conn).await?;
        Ok(())
    }
}
