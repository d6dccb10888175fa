use async_trait::async_trait;
use platform_access::{Kind, RecordRef, ReferenceField, ReferenceForm, ReferencePlace, Referrer, SettingsTable};
use platform_conversation::{AGENT, ASSISTANT, ENVIRONMENT};
use platform_core::{AccountId, Result};
use platform_db::Conn;
use platform_knowledge::{DOCUMENT, FOLDER, SKILL};
use platform_toolservers::TOOL_SERVER;

use crate::DEFAULT_ASSISTANT;

use super::{
    repository::{self, AssistantRow},
    service::{built_in, not_found},
};

/// What assistants refer to.
pub const ASSISTANT_REFERENCES: [ReferenceField; 6] = [
    ("availableToolsGroupsUids", TOOL_SERVER),
    ("environmentId", ENVIRONMENT),
    ("knowledgeDocumentIds", DOCUMENT),
    ("knowledgeFolderIds", FOLDER),
    ("knowledgeSkills/id", SKILL),
    ("subagentsIds", AGENT),
];

/// Assistants, as far as they refer to others.
#[derive(Debug)]
pub struct AssistantReferrer;

#[async_trait]
impl Referrer for AssistantReferrer {
    fn kind(&self) -> Kind {
        ASSISTANT
    }

    async fn lock_in(&self, conn: &mut Conn, account: &AccountId, name: &str) -> Result<String> {
        if name == DEFAULT_ASSISTANT {
            return Err(built_in());
        }
        let row = repository::lock(conn, account, name).await?.ok_or_else(|| not_found(name))?;
        Ok(row.into_assistant()?.id)
    }

    async fn refer_in(&self, conn: &mut Conn, account: &AccountId, id: &str, target: RecordRef<'_>) -> Result<()> {
        ASSISTANTS.set_in(conn, account, id, place(target.0), target.1, true).await
    }

    async fn describe_in(&self, conn: &mut Conn, account: &AccountId, id: &str) -> Result<Option<(String, String)>> {
        let row = repository::find(&mut &*conn, account, id).await?.filter(|row| !row.deleted);
        let assistant = row.map(AssistantRow::into_assistant).transpose()?;
        Ok(assistant.map(|assistant| (assistant.identifier.clone(), assistant.settings().name.clone())))
    }

    async fn forget_in(&self, conn: &mut Conn, account: &AccountId, id: &str, target: RecordRef<'_>) -> Result<()> {
        ASSISTANTS.set_in(conn, account, id, place(target.0), target.1, false).await
    }
}

const ASSISTANTS: SettingsTable = SettingsTable::new("assistants");

/// Where an assistant keeps its references to records of a kind.
fn place(kind: Kind) -> ReferencePlace<'static> {
    match kind {
        AGENT => (&["subagentsIds"], ReferenceForm::Listed),
        ENVIRONMENT => (&["environmentId"], ReferenceForm::One),
        DOCUMENT => (&["knowledgeDocumentIds"], ReferenceForm::Listed),
        FOLDER => (&["knowledgeFolderIds"], ReferenceForm::Listed),
        SKILL => (&["knowledgeSkills"], ReferenceForm::ListedObject),
        _ => (&["availableToolsGroupsUids"], ReferenceForm::Listed),
    }
}
