//! The URLs of each group of resources.

pub(crate) mod agents;
pub(crate) mod assistants;
pub(crate) mod chats;
pub(crate) mod docs;
pub(crate) mod documents;
pub(crate) mod environments;
pub(crate) mod files;
pub(crate) mod folders;
pub(crate) mod health;
pub(crate) mod integrations;
pub(crate) mod keys;
pub(crate) mod mcp;
pub(crate) mod memory;
pub(crate) mod models;
pub(crate) mod oauth;
pub(crate) mod projects;
pub(crate) mod sessions;
pub(crate) mod skills;
pub(crate) mod speech;
pub(crate) mod tenant_integrations;
mod tenant_mcp;
pub(crate) mod tenants;
pub(crate) mod threads;
pub(crate) mod tool_servers;
pub(crate) mod triggers;
pub(crate) mod usage;
pub(crate) mod webhooks;
