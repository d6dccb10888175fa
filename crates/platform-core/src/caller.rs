use std::borrow::Cow;

use crate::AccountId;

/// Who is calling: made once per credential by `platform-auth`, shared by all its requests.
#[derive(Debug, Clone)]
pub struct Caller {
    /// The account whose records this caller can see.
    pub account: AccountId,
    /// What it showed.
    pub credential: Credential,
    /// How the caller is named on records, for example `apikey:<id>` (contract 01 §2).
    pub user_uid: String,
    /// Projects that its key is bound to; `None` = to none.
    pub projects: Option<Vec<String>>,
}

/// The credential behind a [`Caller`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Credential {
    /// A full API key, by its id.
    FullKey(String),
    /// An API key that is bound to origins or endpoints, by its id.
    RestrictedKey(String),
    /// A tenant session.
    Session(Session),
    /// An access token by which an application acts for a user.
    Token {
        /// Id of the user.
        user: String,
        /// The application.
        client: String,
        /// The user is an administrator.
        is_admin: bool,
    },
}

/// A session of an end user: everything it does is of one tenant (contract 01 §6).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Session {
    /// Id of the session.
    pub id: String,
    /// Its tenant.
    pub tenant_id: String,
    /// The end user within the tenant; `None` = any.
    pub subtenant_id: Option<String>,
    /// Assistants it is limited to, by identifier or id; `None` = all that are open to sessions.
    pub assistants: Option<Vec<String>>,
    /// The user for whom an application minted it, unless an administrator: it reaches no more projects than they.
    pub minted_for: Option<String>,
}

/// To whom a record belongs within its account.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Owner {
    /// Tenant.
    pub tenant_id: Option<String>,
    /// End user within the tenant.
    pub subtenant_id: Option<String>,
}

impl Session {
    /// Whether what belongs to them is the session's own.
    pub fn owns(&self, owner: &Owner) -> bool {
        owner.tenant_id.as_ref() == Some(&self.tenant_id)
            && (self.subtenant_id.is_none() || owner.subtenant_id == self.subtenant_id)
    }
}

impl Caller {
    /// Who shares rates and idempotency keys: one key, or all sessions of one end user.
    pub fn principal(&self) -> Cow<'_, str> {
        match &self.credential {
            Credential::FullKey(id) | Credential::RestrictedKey(id) => id.into(),
            Credential::Token { user, client, .. } => format!("oauth|{user}|{client}").into(),
            Credential::Session(session) => {
                format!("session|{}|{}", session.tenant_id, session.subtenant_id.as_deref().unwrap_or_default()).into()
            }
        }
    }

    /// The session, if it is one.
    pub fn session(&self) -> Option<&Session> {
        match &self.credential {
            Credential::Session(session) => Some(session),
            _ => None,
        }
    }

    /// It stands for the whole account (contract 01 §2).
    pub fn is_admin(&self) -> bool {
        match self.credential {
            Credential::FullKey(_) => self.projects.is_none(),
            Credential::Token { is_admin, .. } => is_admin,
            _ => false,
        }
    }
}
