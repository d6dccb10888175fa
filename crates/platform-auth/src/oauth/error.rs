use platform_core::Result;

/// An error of the protocol (RFC 6749 §4.1.2.1, §5.2).
#[derive(Debug, Clone)]
pub struct OAuthError {
    /// Such as `invalid_grant`.
    pub error: &'static str,
    /// A sentence for developers.
    pub description: String,
    /// Where the user may be sent with it; `None` = nowhere, it is shown.
    pub redirect: Option<String>,
}

impl OAuthError {
    pub(crate) fn new(error: &'static str, description: impl Into<String>) -> Self {
        Self { error, description: description.into(), redirect: None }
    }
}

/// Outcome of an endpoint of the protocol: our own failures, and those that the protocol names.
pub type OAuthOutcome<T> = Result<std::result::Result<T, OAuthError>>;
