use platform_core::Caller;

use crate::{KeyRules, Scopes};

/// Whom a credential stands for, and what it may be used for.
#[derive(Debug, PartialEq, Eq)]
pub struct Identity {
    /// Who is calling.
    pub caller: Caller,
    /// What the credential opens.
    pub rights: Rights,
}

impl Identity {
    /// What an access token says beside whom it stands for, name and value.
    pub fn claims(&self) -> &[(String, String)] {
        match &self.rights {
            Rights::Token { claims, .. } => claims,
            Rights::Key(_) | Rights::Session => &[],
        }
    }
}

/// What a credential opens, before any record is looked at (contract 01 §7).
#[derive(Debug, PartialEq, Eq)]
pub enum Rights {
    /// An API key and its restrictions.
    Key(KeyRules),
    /// The session surface.
    Session,
    /// What a user granted an application.
    Token {
        /// What it opens.
        scopes: Scopes,
        /// The address it is good for alone; `None` = the whole API.
        resource: Option<String>,
        /// What else it says, name and value.
        claims: Vec<(String, String)>,
    },
}

impl Rights {
    /// Bytes of memory, about.
    pub(crate) fn bytes(&self) -> usize {
        let all = |texts: &mut dyn Iterator<Item = &String>| texts.map(|text| size_of::<String>() + text.len()).sum();
        match self {
            Self::Session => 0,
            Self::Key(rules) => {
                let endpoints = rules.endpoints.iter().flat_map(|endpoint| [&endpoint.method, &endpoint.path]);
                all(&mut rules.domains.iter().chain(endpoints))
            }
            Self::Token { resource, claims, .. } => {
                all(&mut resource.iter().chain(claims.iter().flat_map(|(name, value)| [name, value])))
            }
        }
    }
}
