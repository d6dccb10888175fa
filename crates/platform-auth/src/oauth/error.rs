//! What the endpoints of the protocol answer with.

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

/// Outcome of an endpoint of the protocol.
#[derive(Debug)]
pub enum OAuthOutcome<T> {
    /// What was asked for.
    Granted(T),
    /// An error that the protocol names. What was found out before, such as a stolen code, is kept.
    Refused(OAuthError),
}

/// Refuses what was asked for.
pub(crate) fn refuse<T>(error: &'static str, description: impl Into<String>) -> OAuthOutcome<T> {
    OAuthOutcome::Refused(OAuthError::new(error, description))
}
