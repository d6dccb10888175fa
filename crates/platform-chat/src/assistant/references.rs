use async_trait::async_trait;
use diesel::sql_types::Text;
use diesel_async::RunQueryDsl;
use platform_access::{Kind, RecordRef, ReferenceField, Referrer};
use platform_conversation::{AGENT, ASSISTANT, ENVIRONMENT};
use platform_core::{AccountId, Result};
use platform_db::Conn;
use platform_knowledge::{DOCUMENT, FOLDER, SKILL};
use platform_toolservers::TOOL_SERVER;

use super::{
    repository::{self, AssistantRow},
    service::not_found,
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
        let row = repository::lock(conn, account, name).await?.ok_or_else(|| not_found(name))?;
        Ok(row.into_assistant()?.id)
    }

    async fn refer_in(&self, conn: &mut Conn, account: &AccountId, id: &str, target: RecordRef<'_>) -> Result<()> {
        let change = if target.0 == ENVIRONMENT { ENTER } else { REFER };
        change_in(conn, account, id, target, change).await
    }

    async fn describe_in(&self, conn: &mut Conn, account: &AccountId, id: &str) -> Result<Option<(String, String)>> {
        let row = repository::find(&mut &*conn, account, id).await?.filter(|row| !row.deleted);
        let assistant = row.map(AssistantRow::into_assistant).transpose()?;
        Ok(assistant.map(|assistant| (assistant.identifier.clone(), assistant.settings().name.clone())))
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

/// What becomes of the settings of an assistant, and of which assistants: `$3` is a reference, `$4` the field.
type Change = (&'static str, &'static str);

const REFER: Change = (
    "jsonb_set(settings, ARRAY[$4], coalesce(settings -> $4, '[]') || to_jsonb($3))",
    "NOT coalesce(settings -> $4 ? $3, false)",
);
/// Skills are listed as objects.
const FORGET_SKILL: Change = (
    "jsonb_set(settings, ARRAY[$4], (SELECT coalesce(jsonb_agg(s), '[]') FROM jsonb_array_elements(settings -> $4) s \
     WHERE s ->> 'id' <> $3))",
    "jsonb_typeof(settings -> $4) = 'array'",
);
const FORGET: Change = ("jsonb_set(settings, ARRAY[$4], (settings -> $4) - $3)", "settings -> $4 ? $3");
/// An assistant is in one environment.
const ENTER: Change = ("jsonb_set(settings, ARRAY[$4], to_jsonb($3))", "settings ->> $4 IS DISTINCT FROM $3");
const LEAVE: Change = ("settings - $4", "settings ->> $4 = $3");

async fn change_in(
    conn: &mut Conn,
    account: &AccountId,
    id: &str,
    target: RecordRef<'_>,
    (becomes, of): Change,
) -> Result<()> {
    let change = format!(
        "UPDATE assistants SET version = version + 1, \
         edited_ms = floor(extract(epoch FROM clock_timestamp()) * 1000), settings = {becomes} \
         WHERE account_id = $1 AND id = $2 AND {of}"
    );
    let change = diesel::sql_query(change).bind::<Text, _>(account.as_str()).bind::<Text, _>(id);
    change.bind::<Text, _>(target.1).bind::<Text, _>(field(target.0)).execute(conn).await?;
    Ok(())
}

/// Where an assistant keeps its references to records of a kind.
fn field(kind: Kind) -> &'static str {
    match kind {
        DOCUMENT => "knowledgeDocumentIds",
        FOLDER => "knowledgeFolderIds",
        SKILL => "knowledgeSkills",
        ENVIRONMENT => "environmentId",
        _ => "availableToolsGroupsUids",
    }
}
