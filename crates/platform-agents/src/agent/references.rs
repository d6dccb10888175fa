use async_trait::async_trait;
use diesel::sql_types::Text;
use diesel_async::RunQueryDsl;
use platform_access::{Kind, RecordRef, ReferenceField, Referrer};
use platform_conversation::{AGENT, ASSISTANT};
use platform_core::{AccountId, Result};
use platform_db::Conn;
use platform_toolservers::TOOL_SERVER;

/// What agents refer to.
pub const AGENT_REFERENCES: [ReferenceField; 3] = [
    ("assistantSpecialization/availableToolsGroupsUids", TOOL_SERVER),
    ("assistantSpecialization/identifier", ASSISTANT),
    ("assistantSpecialization/subagentsIds", AGENT),
];

/// Agents, as far as they refer to others.
#[derive(Debug)]
pub struct AgentReferrer;

#[async_trait]
impl Referrer for AgentReferrer {
    fn kind(&self) -> Kind {
        AGENT
    }

    async fn forget_in(&self, conn: &mut Conn, account: &AccountId, id: &str, target: RecordRef<'_>) -> Result<()> {
        let forget = "WITH changed AS (\
                 UPDATE agents SET version = version + 1, \
                 edited_ms = floor(extract(epoch FROM clock_timestamp()) * 1000), settings = jsonb_set(settings, \
                     '{assistantSpecialization,availableToolsGroupsUids}', \
                     (settings #> '{assistantSpecialization,availableToolsGroupsUids}') - $3) \
                 WHERE account_id = $1 AND id = $2 \
                     AND settings #> '{assistantSpecialization,availableToolsGroupsUids}' ? $3 \
                 RETURNING account_id, id, version, settings) \
             INSERT INTO agent_versions SELECT account_id, id, version, settings FROM changed ON CONFLICT DO NOTHING";
        let forget = diesel::sql_query(forget).bind::<Text, _>(account.as_str()).bind::<Text, _>(id);
        forget.bind::<Text, _>(target.1).execute(conn).await?;
        Ok(())
    }
}
