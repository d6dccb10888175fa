use platform_core::{Checks, Result, Timestamp};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

const MIN_PASSWORD: usize = 12;
const MAX_PASSWORD: usize = 1024;

/// What a user may do in the account.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = UserRole)]
pub enum Role {
    /// Everything that is not closed to users.
    Admin,
    /// What belongs to no project, to public projects, and to those of which they are members.
    #[default]
    Member,
}

impl Role {
    /// As the API and tokens name it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Admin => "admin",
            Self::Member => "member",
        }
    }

    pub(crate) fn of(name: &str) -> Self {
        if name == "admin" { Self::Admin } else { Self::Member }
    }
}

/// A user as it is shown; never the password.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct User {
    /// Id of the user.
    #[serde(rename = "userUID")]
    pub id: String,
    /// Address they log in with; absent for users of another issuer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub email: Option<String>,
    /// Name for people.
    pub name: String,
    /// What they may do.
    pub role: Role,
    /// Shut out.
    pub disabled: bool,
    /// Made at.
    pub creation_timestamp_ms: Timestamp,
    /// Last changed at.
    pub last_edit_timestamp_ms: Timestamp,
}

/// A page of users.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct UserPage {
    /// The users, newest first.
    pub items: Vec<User>,
    /// How many there are in all.
    pub total: i64,
    /// Skipped.
    pub offset: i64,
    /// At most this many.
    pub limit: i64,
}

/// A user to make, or what one becomes.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NewUser {
    /// Address they log in with.
    pub email: String,
    /// 12 characters or more; one that is set is never written.
    #[serde(skip_serializing_if = "Option::is_some")]
    pub password: Option<String>,
    /// Name for people.
    pub name: String,
    /// What they may do.
    pub role: Role,
    /// Shut out.
    pub disabled: bool,
}

impl NewUser {
    pub(crate) fn check(&self, is_new: bool, has_email: bool) -> Result<()> {
        let mut checks = Checks::default();
        let (local, domain) = self.email.split_once('@').unwrap_or(("", ""));
        let is_address = !local.is_empty() && !domain.is_empty() && !domain.contains('@');
        if has_email && self.email.is_empty() {
            checks.issue("email", "required", "email is required");
        } else if has_email && (!is_address || self.email.chars().any(|c| c.is_whitespace() || c.is_control())) {
            checks.issue("email", "format", "email must be an address such as ann@example.com");
        }
        checks.length("email", &self.email, 0..=320);
        match &self.password {
            None if is_new => checks.issue("password", "required", "password is required: 12 characters or more"),
            Some(password) => checks.length("password", password, MIN_PASSWORD..=MAX_PASSWORD),
            None => {}
        }
        checks.length("name", &self.name, 0..=200);
        checks.finish()
    }
}
