use platform_core::{Checks, Result, Timestamp};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What a client sets of a folder (contract 06 §3).
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct FolderSettings {
    /// Name, 1 to 200 characters; need not be unique.
    pub name: String,
    /// Project it belongs to; within another folder that of the folder.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub project_id: Option<String>,
    /// Folder it lies in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent_folder_id: Option<String>,
    /// Any text, at most 64 characters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub color: Option<String>,
    /// Tags.
    pub tags: Vec<String>,
    /// It is a skill (contract 14).
    pub is_skill: bool,
}

impl FolderSettings {
    /// Every rule on the fields of a folder.
    pub(crate) fn check(&mut self) -> Result<()> {
        let mut checks = Checks::default();
        checks.name(&self.name);
        if let Some(color) = &self.color {
            checks.length("color", color, 0..=200);
        }
        checks.tags("tags", &mut self.tags);
        checks.finish()
    }
}

/// A folder as clients see it (contract 06 §3).
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Folder {
    /// Id.
    #[serde(rename = "_id")]
    pub id: String,
    /// What a client set.
    #[serde(flatten)]
    pub settings: FolderSettings,
    /// Documents that lie in it, without those below.
    pub document_count: i64,
    /// When it was made.
    pub creation_timestamp_ms: Timestamp,
    /// When it was changed last.
    pub last_edit_timestamp_ms: Timestamp,
}

/// Which folders are listed.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct FolderFilter {
    /// Of this project.
    pub project_id: Option<String>,
    /// In this folder; `none`: in no folder.
    pub parent_folder_id: Option<String>,
    /// Skills, or all others.
    pub is_skill: Option<bool>,
    /// In none or in one of these projects.
    #[serde(skip)]
    pub within: Option<Vec<String>>,
}
