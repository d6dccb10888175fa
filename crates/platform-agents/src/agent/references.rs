use async_trait::async_trait;
use platform_access::{Kind, RecordRef, ReferenceField, ReferenceForm, ReferencePlace, Referrer, SettingsTable};
use platform_conversation::{AGENT, ASSISTANT, ENVIRONMENT};
use platform_core::{AccountId, Error, Result};
use platform_db::Conn;
use platform_knowledge::{DOCUMENT, FOLDER, SKILL};
use platform_toolservers::TOOL_SERVER;

use super::repository;
use crate::code;

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
        AGENTS.set_in(conn, account, id, place(target.0), target.1, true).await
    }

    async fn describe_in(&self, conn: &mut Conn, account: &AccountId, id: &str) -> Result<Option<(String, String)>> {
        let row = repository::find(conn, account, id).await?.filter(|row| !row.deleted);
        row.map(|row| Ok((row.id.clone(), row.settings()?.name))).transpose()
    }

    async fn forget_in(&self, conn: &mut Conn, account: &AccountId, id: &str, target: RecordRef<'_>) -> Result<()> {
        AGENTS.set_in(conn, account, id, place(target.0), target.1, false).await
    }
}

const AGENTS: SettingsTable = SettingsTable {
    name: "agents",
    then: "INSERT INTO agent_versions SELECT account_id, id, version, settings FROM changed ON CONFLICT DO NOTHING",
};

/// Where an agent keeps its references to records of a kind.
fn place(kind: Kind) -> ReferencePlace<'static> {
    match kind {
        AGENT => (&["assistantSpecialization", "subagentsIds"], ReferenceForm::Listed),
        ENVIRONMENT => (&["environmentId"], ReferenceForm::One),
        DOCUMENT => (&["assistantSpecialization", "knowledgeDocumentIds"], ReferenceForm::Listed),
        FOLDER => (&["assistantSpecialization", "knowledgeFolderIds"], ReferenceForm::Listed),
        SKILL => (&["assistantSpecialization", "knowledgeSkills"], ReferenceForm::ListedObject),
        _ => (&["assistantSpecialization", "availableToolsGroupsUids"], ReferenceForm::Listed),
    }
}

pub(super) fn not_found(id: &str) -> Error {
    Error::not_found(code::AGENT_NOT_FOUND, "agent", id)
}
