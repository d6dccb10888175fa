use async_trait::async_trait;
use diesel::sql_types::Text;
use diesel_async::RunQueryDsl;
use platform_access::{Kind, RecordRef, ReferenceField, Referrer};
use platform_conversation::{AGENT, ASSISTANT};
use platform_core::{AccountId, Result};
use platform_db::Conn;
use platform_knowledge::{DOCUMENT, FOLDER, SKILL};
use platform_toolservers::TOOL_SERVER;

use super::{
    repository::{self, AssistantRow},
    service::not_found,
};

/// What assistants refer to.
pub const ASSISTANT_REFERENCES: [ReferenceField; 5] = [
    ("availableToolsGroupsUids", TOOL_SERVER),
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
        let row = repository::lock(conn, account, name).await?.ok_or_else(|| not_found(name))?;
        Ok(row.into_assistant()?.id)
    }

    async fn refer_in(&self, conn: &mut Conn, account: &AccountId, id: &str, target: RecordRef<'_>) -> Result<()> {
        let refer = "UPDATE assistants SET version = version + 1, \
             edited_ms = floor(extract(epoch FROM clock_timestamp()) * 1000), \
             settings = jsonb_set(settings, ARRAY[$4], coalesce(settings -> $4, '[]') || to_jsonb($3)) \
             WHERE account_id = $1 AND id = $2 AND NOT coalesce(settings -> $4 ? $3, false)";
        let refer = diesel::sql_query(refer).bind::<Text, _>(account.as_str()).bind::<Text, _>(id);
        refer.bind::<Text, _>(target.1).bind::<Text, _>(field(target.0)).execute(conn).await?;
        Ok(())
    }

    async fn describe_in(&self, conn: &mut Conn, account: &AccountId, id: &str) -> Result<Option<(String, String)>> {
        let row = repository::find(&mut &*conn, account, id).await?.filter(|row| !row.deleted);
        let assistant = row.map(AssistantRow::into_assistant).transpose()?;
        Ok(assistant.map(|assistant| (assistant.identifier.clone(), assistant.settings().name.clone())))
    }

    async fn forget_in(&self, conn: &mut Conn, account: &AccountId, id: &str, target: RecordRef<'_>) -> Result<()> {
        if target.0 == SKILL {
            let forget = "UPDATE assistants SET version = version + 1, \
                 edited_ms = floor(extract(epoch FROM clock_timestamp()) * 1000), \
                 settings = jsonb_set(settings, '{knowledgeSkills}', (SELECT coalesce(jsonb_agg(s), '[]') \
                     FROM jsonb_array_elements(settings -> 'knowledgeSkills') s WHERE s ->> 'id' <> $3)) \
                 WHERE account_id = $1 AND id = $2 AND jsonb_typeof(settings -> 'knowledgeSkills') = 'array'";
            let forget = diesel::sql_query(forget).bind::<Text, _>(account.as_str()).bind::<Text, _>(id);
            forget.bind::<Text, _>(target.1).execute(conn).await?;
            return Ok(());
        }
        let forget = "UPDATE assistants SET version = version + 1, \
             edited_ms = floor(extract(epoch FROM clock_timestamp()) * 1000), \
             settings = jsonb_set(settings, ARRAY[$4], (settings -> $4) - $3) \
             WHERE account_id = $1 AND id = $2 AND settings -> $4 ? $3";
        let forget = diesel::sql_query(forget).bind::<Text, _>(account.as_str()).bind::<Text, _>(id);
        forget.bind::<Text, _>(target.1).bind::<Text, _>(field(target.0)).execute(conn).await?;
        Ok(())
    }
}

/// Where an assistant keeps its references to records of a kind.
fn field(kind: Kind) -> &'static str {
    match kind {
        DOCUMENT => "knowledgeDocumentIds",
        FOLDER => "knowledgeFolderIds",
        _ => "availableToolsGroupsUids",
    }
}
