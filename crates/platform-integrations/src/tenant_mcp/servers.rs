//! The rows of MCP servers that end users bring.

use diesel::prelude::*;
use diesel_async::RunQueryDsl;
use platform_core::{AccountId, Error, Owner, Result, Timestamp};
use platform_db::Conn;
use platform_toolservers::ToolDefinition;
use serde_json::Value;

use super::{TenantMcpServer, TenantMcpTool};
use crate::{mcp::McpTarget, schema::tenant_mcp_servers};

/// Its user is to log in.
pub(crate) const PENDING: &str = "pending_auth";
/// Its tools were read.
pub(crate) const ACTIVE: &str = "active";
/// It cannot be used.
pub(crate) const ERROR: &str = "error";
/// It has a log-in of its own.
pub(crate) const OAUTH: &str = "oauth";

#[derive(Debug, Clone, Queryable, Selectable, Insertable, AsChangeset)]
#[diesel(table_name = tenant_mcp_servers, treat_none_as_null = true)]
pub(crate) struct ServerRow {
    pub account_id: String,
    pub id: String,
    pub tenant_id: String,
    pub subtenant_id: String,
    pub identifier: String,
    pub name: String,
    pub url: String,
    pub auth_mode: String,
    pub headers: Option<String>,
    pub status: String,
    pub status_reason: Option<String>,
    pub tools: Value,
    pub refreshed_ms: Option<i64>,
    pub created_ms: i64,
    pub updated_ms: i64,
}

impl ServerRow {
    pub fn owner(&self) -> Owner {
        let subtenant_id = Some(self.subtenant_id.clone()).filter(|id| !id.is_empty());
        Owner { tenant_id: Some(self.tenant_id.clone()), subtenant_id }
    }

    pub fn target(&self) -> McpTarget<'_> {
        McpTarget { server: &self.id, name: &self.name, url: &self.url, subject: None }
    }

    pub fn tools(&self) -> Result<Vec<ToolDefinition>> {
        serde_json::from_value(self.tools.clone()).map_err(Error::internal)
    }

    pub fn shown(&self) -> Result<TenantMcpServer> {
        let brief =
            |tool: ToolDefinition| TenantMcpTool { name: tool.function.name, description: tool.function.description };
        Ok(TenantMcpServer {
            id: self.id.clone(),
            name: self.name.clone(),
            url: self.url.clone(),
            auth_mode: self.auth_mode.clone(),
            status: self.status.clone(),
            status_reason: self.status_reason.clone(),
            tools: self.tools()?.into_iter().map(brief).collect(),
            created_at: Timestamp(self.created_ms).to_iso(),
            updated_at: Timestamp(self.updated_ms).to_iso(),
        })
    }

    pub fn note(&mut self, read: Result<Vec<ToolDefinition>>, now: Timestamp) -> Result<()> {
        (self.refreshed_ms, self.updated_ms) = (Some(now.0), now.0);
        match read {
            Ok(tools) => {
                (self.status, self.status_reason) = (ACTIVE.to_owned(), None);
                self.tools = serde_json::to_value(tools).map_err(Error::internal)?;
            }
            Err(error) => {
                (self.status, self.status_reason) = (ERROR.to_owned(), Some(error.message().to_owned()));
            }
        }
        Ok(())
    }
}

pub(crate) async fn list(conn: &Conn, account: &AccountId, owner: &Owner) -> Result<Vec<ServerRow>> {
    let mut conn = conn;
    let rows = tenant_mcp_servers::table
        .filter(tenant_mcp_servers::account_id.eq(account.as_str()))
        .filter(tenant_mcp_servers::tenant_id.eq(owner.tenant_id.as_deref().unwrap_or_default()))
        .filter(tenant_mcp_servers::subtenant_id.eq(owner.subtenant_id.as_deref().unwrap_or_default()))
        .order((tenant_mcp_servers::created_ms, tenant_mcp_servers::id));
    Ok(rows.limit(1000).select(ServerRow::as_select()).load(&mut conn).await?)
}

pub(crate) async fn find(conn: &Conn, account: &AccountId, id: &str) -> Result<Option<ServerRow>> {
    let mut conn = conn;
    let row = tenant_mcp_servers::table.find((account.as_str(), id)).select(ServerRow::as_select());
    Ok(row.first(&mut conn).await.optional()?)
}

pub(crate) async fn insert(conn: &mut Conn, row: &ServerRow) -> Result<()> {
    diesel::insert_into(tenant_mcp_servers::table).values(row).execute(conn).await?;
    Ok(())
}

pub(crate) async fn update(conn: &mut Conn, row: &ServerRow) -> Result<()> {
    let of = tenant_mcp_servers::table.find((&row.account_id, &row.id));
    diesel::update(of).set(row).execute(conn).await?;
    Ok(())
}

/// The same when nobody changed it since.
pub(crate) async fn update_unchanged(conn: &mut Conn, row: &ServerRow, before: i64) -> Result<()> {
    let of = tenant_mcp_servers::table.find((&row.account_id, &row.id));
    diesel::update(of.filter(tenant_mcp_servers::updated_ms.eq(before))).set(row).execute(conn).await?;
    Ok(())
}

pub(crate) async fn delete(conn: &mut Conn, account: &AccountId, id: &str) -> Result<()> {
    diesel::delete(tenant_mcp_servers::table.find((account.as_str(), id))).execute(conn).await?;
    Ok(())
}

/// Deletes those of a tenant, or of one of its end users.
pub(crate) async fn delete_of_tenant(
    conn: &mut Conn,
    account: &AccountId,
    tenant: &str,
    subtenant: Option<&str>,
) -> Result<()> {
    let mut rows = diesel::delete(tenant_mcp_servers::table)
        .filter(tenant_mcp_servers::account_id.eq(account.as_str()))
        .filter(tenant_mcp_servers::tenant_id.eq(tenant))
        .into_boxed();
    if let Some(subtenant) = subtenant {
        rows = rows.filter(tenant_mcp_servers::subtenant_id.eq(subtenant));
    }
    rows.execute(conn).await?;
    Ok(())
}
