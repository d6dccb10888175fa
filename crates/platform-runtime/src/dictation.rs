use async_trait::async_trait;
use platform_core::{Caller, Error, Owner, Result};

/// The port to what was dictated.
#[async_trait]
pub trait Dictations: Send + Sync {
    /// The text of a transcript that the caller may use for a chat of `owner`; `TRANSCRIPT_NOT_FOUND` when there is none.
    async fn text(&self, caller: &Caller, owner: &Owner, id: &str) -> Result<String>;
}

/// Nothing was dictated.
#[async_trait]
impl Dictations for () {
    async fn text(&self, _: &Caller, _: &Owner, id: &str) -> Result<String> {
        Err(Error::not_found(crate::code::TRANSCRIPT_NOT_FOUND, "transcript", id))
    }
}
