//! `/v1/tenant-mcp`

use std::sync::Arc;

use platform_access::Kind;
use platform_core::Result;
use platform_http::{Answer, Group, Request, session};
use platform_integrations::{NewTenantMcpServer, ReconnectTenantMcp};

use super::tenant_accounts::{Asked, Services};

const SERVER: Kind = Kind::of_account("MCP server of an end user");

/// MCP servers that end users bring for an assistant.
pub(super) fn group(services: Arc<Services>) -> Group {
    let mut group =
        Group::of("tenant-mcp", "MCP servers that end users bring for an assistant", services).naming("id", SERVER);
    let (read, write) = (session("tenant-integrations:read"), session("tenant-integrations:write"));
    group.get("/v1/tenant-mcp", read, list).with(spec::list);
    group.post("/v1/tenant-mcp", write, bring).with(spec::bring);
    group.delete("/v1/tenant-mcp/{id}", write, take_away).with(spec::take_away);
    group.post("/v1/tenant-mcp/{id}/reconnect", write, reconnect).with(spec::reconnect);
    group.build()
}

async fn list(services: Arc<Services>, request: Request) -> Result<Answer> {
    let asked = Asked::of_mcp(&services, &request).await?;
    let account = request.account()?;
    Answer::ok(&services.integrations.brought_list(account, &asked.owner, asked.most).await?)
}

async fn bring(services: Arc<Services>, request: Request) -> Result<Answer> {
    let new: NewTenantMcpServer = request.body().await?;
    let asked = Asked::of_mcp(&services, &request).await?;
    let (account, connecting) = (request.account()?, asked.connecting(&services, &request).await?);
    Answer::created(&services.integrations.bring(account, new, asked.most, asked.return_to, &connecting).await?)
}

async fn reconnect(services: Arc<Services>, request: Request) -> Result<Answer> {
    let ReconnectTenantMcp { headers } = request.body().await?;
    let asked = Asked::of_mcp(&services, &request).await?;
    let (account, connecting) = (request.account()?, asked.connecting(&services, &request).await?);
    let (id, most) = (request.path("id"), asked.most.1);
    Answer::ok(&services.integrations.bring_again(account, id, headers, most, asked.return_to, &connecting).await?)
}

async fn take_away(services: Arc<Services>, request: Request) -> Result<Answer> {
    let asked = Asked::of_mcp(&services, &request).await?;
    let id = request.path("id");
    services.integrations.take_away(request.account()?, id, &asked.owner).await?;
    Answer::deleted("tenant-mcp-server", id)
}

mod spec {
    use platform_http::{Deleted, Operation};
    use platform_integrations::{BroughtMcpServer, NewTenantMcpServer, ReconnectTenantMcp, TenantMcpServers};

    use super::super::tenant_accounts::WhoseAccounts;

    pub fn list() -> Operation {
        Operation::new("List the MCP servers that an end user brings")
            .query::<WhoseAccounts>()
            .without(&["returnTo"])
            .answers::<TenantMcpServers>(200)
    }
    pub fn bring() -> Operation {
        Operation::new("Bring an MCP server; one with a log-in of its own answers where to open a browser")
            .query::<WhoseAccounts>()
            .body::<NewTenantMcpServer>()
            .answers::<BroughtMcpServer>(201)
    }
    pub fn take_away() -> Operation {
        Operation::new("Take an MCP server away")
            .query::<WhoseAccounts>()
            .without(&["returnTo"])
            .answers::<Deleted>(200)
    }
    pub fn reconnect() -> Operation {
        Operation::new("Look at an MCP server again, with other headers or another log-in")
            .query::<WhoseAccounts>()
            .body::<ReconnectTenantMcp>()
            .answers::<BroughtMcpServer>(200)
    }
}
