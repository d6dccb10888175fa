use async_trait::async_trait;
use diesel::sql_types::Text;
use diesel_async::RunQueryDsl;
use platform_access::{Kind, RecordRef, Referrer};
use platform_conversation::ENVIRONMENT;
use platform_core::{AccountId, Result};
use platform_db::Conn;
use platform_knowledge::{DOCUMENT, FOLDER, SKILL};

use super::{repository, service::not_found};

/// Environments, as far as they refer to others.
#[derive(Debug)]
pub struct EnvironmentReferrer;

const CHANGED: &str = "UPDATE environments SET version = version + 1, \
    edited_ms = floor(extract(epoch FROM clock_timestamp()) * 1000), settings = jsonb_set(settings, ARRAY[$4], ";

#[async_trait]
impl Referrer for EnvironmentReferrer {
    fn kind(&self) -> Kind {
        ENVIRONMENT
    }

    async fn lock_in(&self, conn: &mut Conn, account: &AccountId, name: &str) -> Result<String> {
        Ok(repository::lock(conn, account, name).await?.ok_or_else(|| not_found(name))?.id)
    }

    async fn refer_in(&self, conn: &mut Conn, account: &AccountId, id: &str, target: RecordRef<'_>) -> Result<()> {
        let change = format!(
            "{CHANGED} coalesce(settings -> $4, '[]') || to_jsonb($3)) \
             WHERE account_id = $1 AND id = $2 AND NOT coalesce(settings -> $4 ? $3, false)"
        );
        change_in(conn, account, id, target, change).await
    }

    async fn describe_in(&self, conn: &mut Conn, account: &AccountId, id: &str) -> Result<Option<(String, String)>> {
        let row = repository::find(conn, account, id).await?;
        row.map(|row| Ok((row.id.clone(), row.settings()?.name))).transpose()
    }

    async fn forget_in(&self, conn: &mut Conn, account: &AccountId, id: &str, target: RecordRef<'_>) -> Result<()> {
        let rest = if target.0 == SKILL {
            "(SELECT coalesce(jsonb_agg(s), '[]') FROM jsonb_array_elements(settings -> $4) s WHERE s ->> 'id' <> $3)) \
             WHERE account_id = $1 AND id = $2"
        } else {
            "(settings -> $4) - $3) WHERE account_id = $1 AND id = $2 AND settings -> $4 ? $3"
        };
        change_in(conn, account, id, target, format!("{CHANGED} {rest}")).await
    }
}

async fn change_in(
    conn: &mut Conn,
    account: &AccountId,
    id: &str,
    target: RecordRef<'_>,
    change: String,
) -> Result<()> {
    let field = match target.0 {
        DOCUMENT => "knowledgeDocumentIds",
        FOLDER => "knowledgeFolderIds",
        SKILL => "knowledgeSkills",
        _ => "availableToolsGroupsUids",
    };
    let change = diesel::sql_query(change).bind::<Text, _>(account.as_str()).bind::<Text, _>(id);
    change.bind::<Text, _>(target.1).bind::<Text, _>(field).execute(conn).await?;
    Ok(())
}
