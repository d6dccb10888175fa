use std::{collections::HashMap, sync::Arc};

use async_trait::async_trait;
use platform_access::RecordRef;
use platform_core::{AccountId, Code, Error, Result};
use platform_db::Conn;
use platform_runtime::TurnSkill;

use crate::kinds::ENVIRONMENT;

/// What all who are connected to an environment have (contract 13 §1).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InheritedParts {
    /// Tool servers and built-in groups.
    pub groups: Vec<String>,
    /// Documents.
    pub documents: Vec<String>,
    /// Folders.
    pub folders: Vec<String>,
    /// Skills.
    pub skills: Vec<TurnSkill>,
}

/// The port to the environments that agents and assistants work in.
#[async_trait]
pub trait Environments: Send + Sync {
    /// What those who are connected to one have of it; `None` when there is none.
    async fn inherited(&self, account: &AccountId, id: &str) -> Result<Option<Arc<InheritedParts>>>;

    /// Keeps some from being deleted before this transaction ends; those that are there.
    async fn hold_in(&self, conn: &mut Conn, account: &AccountId, ids: &[String]) -> Result<Vec<String>>;

    /// The machines that these threads used last, by thread.
    async fn sandboxes(&self, account: &AccountId, threads: &[String]) -> Result<HashMap<String, String>>;
}

/// There are no environments.
#[async_trait]
impl Environments for () {
    async fn inherited(&self, _: &AccountId, _: &str) -> Result<Option<Arc<InheritedParts>>> {
        Ok(None)
    }

    async fn hold_in(&self, _: &mut Conn, _: &AccountId, _: &[String]) -> Result<Vec<String>> {
        Ok(Vec::new())
    }

    async fn sandboxes(&self, _: &AccountId, _: &[String]) -> Result<HashMap<String, String>> {
        Ok(HashMap::new())
    }
}

fn not_found(id: &str) -> Error {
    Error::not_found(Code::ENVIRONMENT_NOT_FOUND, "environment", id)
}

/// `ENVIRONMENT_NOT_FOUND` for one that is not there.
pub async fn check_environment(environments: &dyn Environments, account: &AccountId, id: Option<&str>) -> Result<()> {
    let Some(id) = id else { return Ok(()) };
    environments.inherited(account, id).await?.map(drop).ok_or_else(|| not_found(id))
}

/// Stores in which environments a record works, in the transaction that stores it. `ENVIRONMENT_NOT_FOUND`.
pub async fn use_environments_in(
    environments: &dyn Environments,
    conn: &mut Conn,
    account: &AccountId,
    user: RecordRef<'_>,
    ids: &[String],
) -> Result<()> {
    let held = environments.hold_in(conn, account, ids).await?;
    if let Some(gone) = ids.iter().find(|id| !held.contains(id)) {
        return Err(not_found(gone));
    }
    platform_access::use_in(conn, account, user, ENVIRONMENT, ids).await
}
