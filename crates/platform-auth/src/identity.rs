use platform_core::Caller;

use crate::KeyRules;

/// Whom a credential stands for, and what it may be used for.
#[derive(Debug)]
pub struct Identity {
    /// Who is calling.
    pub caller: Caller,
    /// What the credential opens.
    pub rights: Rights,
}

/// What a credential opens, before any record is looked at (contract 01 §7).
#[derive(Debug)]
pub enum Rights {
    /// An API key and its restrictions.
    Key(KeyRules),
    /// The session surface.
    Session,
}
