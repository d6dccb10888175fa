use std::borrow::Cow;

use crate::{AccountId, Timestamp};

/// Who is calling: made once per credential by `platform-auth`, shared by all its requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// The account whose records this caller can see.
    pub account: AccountId,
    /// What it showed.
    pub credential: Credential,
    /// How the caller is named on records, for example `apikey:<id>` (contract 01 §2).
    pub user_uid: String,
    /// Projects that its key is bound to; `None` = to none.
    pub projects: Option<Vec<String>>,
    /// What its credential follows from.
    pub origin: Origin,
}

/// What a credential follows from: it falls with each of these, and so does what is made with it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Origin {
    /// The user behind it: they made the key, or let an application act for them.
    pub user: Option<OriginUser>,
    /// The grant of that user by which the application acts.
    pub grant: Option<String>,
    /// SHA-256 of the value of the key, in hex.
    pub digest: Option<String>,
    /// The key, or this value of it, ends then.
    pub ends: Option<Timestamp>,
}

/// A user behind a credential, as they are now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OriginUser {
    /// Id of the user.
    pub id: String,
    /// They are an administrator.
    pub is_admin: bool,
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
}

/// To whom a record belongs within its account.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Owner {
    /// Tenant.
    pub tenant_id: Option<String>,
    /// End user within the tenant.
    pub subtenant_id: Option<String>,
}

impl Owner {
    /// Whether what belongs to `of` may be used for them: what is a tenant's for that tenant alone, and for an end user what
    /// is theirs.
    pub fn may_use(&self, of: &Self) -> bool {
        of.tenant_id.is_none()
            || of.tenant_id == self.tenant_id && (self.subtenant_id.is_none() || of.subtenant_id == self.subtenant_id)
    }
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
            Credential::Token { user, client } => joined(["oauth", user, client]).into(),
            Credential::Session(session) => {
                let subtenant = session.subtenant_id.as_deref();
                joined(["session", &session.tenant_id].into_iter().chain(subtenant)).into()
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

    /// The user behind it who is no administrator: it reaches no further than they do.
    pub fn member(&self) -> Option<&str> {
        self.origin.user.as_ref().filter(|user| !user.is_admin).map(|user| user.id.as_str())
    }

    /// The role of the user behind it, where roles decide what it knows of: of a user's token, and of all that follows
    /// from a member.
    pub fn role(&self) -> Option<&'static str> {
        match self.credential {
            _ if self.member().is_some() => Some("member"),
            Credential::Token { .. } => Some("admin"),
            _ => None,
        }
    }

    /// It stands for the whole account (contract 01 §2).
    pub fn is_admin(&self) -> bool {
        match self.credential {
            Credential::FullKey(_) => self.projects.is_none() && self.member().is_none(),
            Credential::Token { .. } => self.member().is_none(),
            _ => false,
        }
    }
}

/// Parts as one text that no other parts give: before each stands how many bytes it has.
pub fn joined<'a>(parts: impl IntoIterator<Item = &'a str>) -> String {
    parts.into_iter().fold(String::new(), |all, part| format!("{all}{}:{part}", part.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn different_parts_are_never_joined_to_the_same_text() {
        let texts = ["", "a", "|", "a|b", "1:a", ":", "0:", "ab"];
        let mut seen = std::collections::HashMap::new();
        for first in texts {
            for second in texts {
                for parts in [vec![first, second], vec![first], vec![first, second, ""]] {
                    let before = seen.insert(joined(parts.iter().copied()), parts.clone());
                    assert!(before.as_ref().is_none_or(|before| *before == parts), "{before:?} and {parts:?}");
                }
            }
        }
    }
}
