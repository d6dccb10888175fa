use async_trait::async_trait;
use platform_core::{AccountId, Caller, Error, Owner, Result};
use platform_db::Conn;
use platform_runtime::{SecondaryCall, code};

/// The port to what was dictated.
#[async_trait]
pub trait Dictations: Send + Sync {
    /// The text of a transcript that the caller may use for a chat of `owner`; `TRANSCRIPT_NOT_FOUND` when there is none.
    async fn text(&self, caller: &Caller, owner: &Owner, id: &str) -> Result<String>;
    /// What a transcript took, if it was counted for no chat yet; it is when this transaction commits.
    async fn take_cost_in(&self, conn: &mut Conn, account: &AccountId, id: &str) -> Result<Option<SecondaryCall>>;
}

/// Nothing was dictated.
#[async_trait]
impl Dictations for () {
    async fn text(&self, _: &Caller, _: &Owner, id: &str) -> Result<String> {
        Err(Error::not_found(code::TRANSCRIPT_NOT_FOUND, "transcript", id))
    }

    async fn take_cost_in(&self, _: &mut Conn, _: &AccountId, _: &str) -> Result<Option<SecondaryCall>> {
        Ok(None)
    }
}
