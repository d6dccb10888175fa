use async_trait::async_trait;
use platform_access::{Kind, RecordRef, ReferenceForm, ReferencePlace, Referrer, SettingsTable};
use platform_conversation::ENVIRONMENT;
use platform_core::{AccountId, Result};
use platform_db::Conn;
use platform_knowledge::{DOCUMENT, FOLDER, SKILL};

use super::{repository, service::not_found};

/// Environments, as far as they refer to others.
#[derive(Debug)]
pub struct EnvironmentReferrer;

const ENVIRONMENTS: SettingsTable = SettingsTable::new("environments");

#[async_trait]
impl Referrer for EnvironmentReferrer {
    fn kind(&self) -> Kind {
        ENVIRONMENT
    }

    async fn lock_in(&self, conn: &mut Conn, account: &AccountId, name: &str) -> Result<String> {
        Ok(repository::lock(conn, account, name).await?.ok_or_else(|| not_found(name))?.id)
    }

    async fn refer_in(&self, conn: &mut Conn, account: &AccountId, id: &str, target: RecordRef<'_>) -> Result<()> {
        ENVIRONMENTS.set_in(conn, account, id, place(target.0), target.1, true).await
    }

    async fn describe_in(&self, conn: &mut Conn, account: &AccountId, id: &str) -> Result<Option<(String, String)>> {
        let row = repository::find(conn, account, id).await?;
        row.map(|row| Ok((row.id.clone(), row.settings()?.name))).transpose()
    }

    async fn forget_in(&self, conn: &mut Conn, account: &AccountId, id: &str, target: RecordRef<'_>) -> Result<()> {
        ENVIRONMENTS.set_in(conn, account, id, place(target.0), target.1, false).await
    }
}

/// Where an environment keeps its references to records of a kind.
fn place(kind: Kind) -> ReferencePlace<'static> {
    match kind {
        DOCUMENT => (&["knowledgeDocumentIds"], ReferenceForm::Listed),
        FOLDER => (&["knowledgeFolderIds"], ReferenceForm::Listed),
        SKILL => (&["knowledgeSkills"], ReferenceForm::ListedObject),
        _ => (&["availableToolsGroupsUids"], ReferenceForm::Listed),
    }
}
