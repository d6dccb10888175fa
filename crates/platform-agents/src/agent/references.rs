use async_trait::async_trait;
use diesel::sql_types::{Array, Text};
use diesel_async::RunQueryDsl;
use platform_access::{Kind, RecordRef, ReferenceField, Referrer};
use platform_conversation::{AGENT, ASSISTANT, ENVIRONMENT};
use platform_core::{AccountId, Result};
use platform_db::Conn;
use platform_knowledge::{DOCUMENT, FOLDER, SKILL};
use platform_toolservers::TOOL_SERVER;

use super::{repository, service::not_found};

/// What agents refer to.
pub const AGENT_REFERENCES: [ReferenceField; 7] = [
    ("assistantSpecialization/availableToolsGroupsUids", TOOL_SERVER),
    ("assistantSpecialization/identifier", ASSISTANT),
    ("assistantSpecialization/knowledgeDocumentIds", DOCUMENT),
    ("assistantSpecialization/knowledgeFolderIds", FOLDER),
    ("assistantSpecialization/knowledgeSkills/id", SKILL),
    ("assistantSpecialization/subagentsIds", AGENT),
    ("environmentId", ENVIRONMENT),
];

/// Agents, as far as they refer to others.
#[derive(Debug)]
pub struct AgentReferrer;

#[async_trait]
impl Referrer for AgentReferrer {
    fn kind(&self) -> Kind {
        AGENT
    }

    async fn lock_in(&self, conn: &mut Conn, account: &AccountId, name: &str) -> Result<String> {
        let row = repository::lock(conn, account, name).await?.filter(|row| !row.deleted);
        Ok(row.ok_or_else(|| not_found(name))?.id)
    }

    async fn refer_in(&self, conn: &mut Conn, account: &AccountId, id: &str, target: RecordRef<'_>) -> Result<()> {
        let change = if target.0 == ENVIRONMENT { ENTER } else { REFER };
        change_in(conn, account, id, target, change).await
    }

    async fn describe_in(&self, conn: &mut Conn, account: &AccountId, id: &str) -> Result<Option<(String, String)>> {
        let row = repository::find(conn, account, id).await?.filter(|row| !row.deleted);
        row.map(|row| Ok((row.id.clone(), row.settings()?.name))).transpose()
    }

    async fn forget_in(&self, conn: &mut Conn, account: &AccountId, id: &str, target: RecordRef<'_>) -> Result<()> {
        let change = match target.0 {
            SKILL => FORGET_SKILL,
            ENVIRONMENT => LEAVE,
            _ => FORGET,
        };
        change_in(conn, account, id, target, change).await
    }
}

/// What becomes of the settings of an agent, and of which agents: `$3` is a reference, `$4` where it stands.
type Change = (&'static str, &'static str);

const REFER: Change = (
    "jsonb_set(settings, $4, coalesce(settings #> $4, '[]') || to_jsonb($3))",
    "NOT coalesce(settings #> $4 ? $3, false)",
);
/// Skills are listed as objects.
const FORGET_SKILL: Change = (
    "jsonb_set(settings, $4, (SELECT coalesce(jsonb_agg(s), '[]') FROM jsonb_array_elements(settings #> $4) s \
     WHERE s ->> 'id' <> $3))",
    "jsonb_typeof(settings #> $4) = 'array'",
);
const FORGET: Change = ("jsonb_set(settings, $4, (settings #> $4) - $3)", "settings #> $4 ? $3");
/// An agent is in one environment.
const ENTER: Change = ("jsonb_set(settings, $4, to_jsonb($3))", "settings #>> $4 IS DISTINCT FROM $3");
const LEAVE: Change = ("settings #- $4", "settings #>> $4 = $3");

/// Changes a reference of an agent, which is a version of it.
async fn change_in(
    conn: &mut Conn,
    account: &AccountId,
    id: &str,
    target: RecordRef<'_>,
    (becomes, of): Change,
) -> Result<()> {
    let change = format!(
        "WITH changed AS (\
             UPDATE agents SET version = version + 1, \
             edited_ms = floor(extract(epoch FROM clock_timestamp()) * 1000), settings = {becomes} \
             WHERE account_id = $1 AND id = $2 AND {of} \
             RETURNING account_id, id, version, settings) \
         INSERT INTO agent_versions SELECT account_id, id, version, settings FROM changed ON CONFLICT DO NOTHING"
    );
    let path = match target.0 {
        ENVIRONMENT => vec!["environmentId"],
        DOCUMENT => vec!["assistantSpecialization", "knowledgeDocumentIds"],
        FOLDER => vec!["assistantSpecialization", "knowledgeFolderIds"],
        SKILL => vec!["assistantSpecialization", "knowledgeSkills"],
        _ => vec!["assistantSpecialization", "availableToolsGroupsUids"],
    };
    let change = diesel::sql_query(change).bind::<Text, _>(account.as_str()).bind::<Text, _>(id);
    change.bind::<Text, _>(target.1).bind::<Array<Text>, _>(path).execute(conn).await?;
    Ok(())
}
