use platform_access::{ProjectRole, Visibility};
use platform_core::{Checks, Result, Timestamp};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

const MAX_DESCRIPTION: usize = 4000;
const MAX_URL: usize = 2000;

/// A project (contract 05).
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Project {
    /// Id of the record.
    #[serde(rename = "_id")]
    pub id: String,
    /// The account.
    #[serde(rename = "clientUID")]
    pub client_uid: String,
    /// Who made it.
    #[serde(rename = "createdByUserUID")]
    pub created_by_user_uid: String,
    /// Name for people.
    pub name: String,
    /// Name in URLs; never changes.
    pub identifier: String,
    /// What it is about.
    pub description: String,
    /// Picture.
    pub image_url: String,
    /// Who may read it.
    pub visibility: Visibility,
    /// Made at.
    pub creation_timestamp_ms: Timestamp,
    /// Last changed at.
    pub last_edit_timestamp_ms: Timestamp,
    /// Nothing can be added; what is there keeps working.
    pub archived: bool,
}

/// A project to make.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NewProject {
    /// Name for people, 1 to 200 characters.
    pub name: String,
    /// Name in URLs, `^[a-z0-9][a-z0-9-]{0,62}$`; unique, never changes.
    pub identifier: String,
    /// What it is about, at most 4000 characters.
    pub description: String,
    /// Picture.
    pub image_url: String,
    /// Who may read it.
    pub visibility: Visibility,
}

impl NewProject {
    pub(crate) fn check(&self) -> Result<()> {
        let mut checks = Checks::default();
        let identifier = self.identifier.as_bytes();
        let good = (1..=63).contains(&identifier.len())
            && identifier[0] != b'-'
            && identifier.iter().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || *b == b'-');
        if self.identifier.is_empty() {
            checks.issue("identifier", "required", "identifier is required: the name of the project in URLs");
        } else if !good {
            checks.issue("identifier", "format", "identifier must match ^[a-z0-9][a-z0-9-]{0,62}$");
        }
        let Self { name, description, image_url, visibility, .. } = self.clone();
        ProjectPatch { name, description, image_url, visibility, archived: false }.check(checks)
    }
}

/// What can be changed of a project.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ProjectPatch {
    /// Name for people, 1 to 200 characters.
    pub name: String,
    /// What it is about, at most 4000 characters.
    pub description: String,
    /// Picture.
    pub image_url: String,
    /// Who may read it.
    pub visibility: Visibility,
    /// `false` brings an archived project back.
    pub archived: bool,
}

impl ProjectPatch {
    pub(crate) fn check(&self, mut checks: Checks) -> Result<()> {
        checks.name(&self.name);
        checks.length("description", &self.description, 0..=MAX_DESCRIPTION);
        checks.length("imageUrl", &self.image_url, 0..=MAX_URL);
        checks.finish()
    }
}

/// Which projects to list.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(default)]
pub struct ProjectFilter {
    /// Archived ones, too.
    pub archived: Option<bool>,
}

/// A page of projects.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct ProjectPage {
    /// Those the caller reaches, newest first.
    pub projects: Vec<Project>,
    /// How many there are in all.
    pub total: i64,
    /// Skipped.
    pub offset: i64,
    /// At most this many.
    pub limit: i64,
}

/// A user who belongs to a project.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Member {
    /// The user.
    #[serde(rename = "userUID")]
    pub user_uid: String,
    /// Their address, if they have one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub email: Option<String>,
    /// What they may do.
    pub role: ProjectRole,
    /// Since when they belong to it.
    pub added_timestamp_ms: Timestamp,
}

/// A user to add to a project, or the role they are to have.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct NewMember {
    /// The user.
    #[serde(rename = "userUID")]
    pub user_uid: String,
    /// What they may do.
    pub role: ProjectRole,
}
