use platform_core::{Checks, Result};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A skill as it is listed (contract 14).
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Skill {
    /// Id of the document or folder.
    pub id: String,
    /// `document` or `folder`.
    pub r#type: &'static str,
    /// What it calls itself.
    pub name: String,
    /// What it is for, at most 1,024 characters.
    pub description: String,
    /// Tags.
    pub tags: Vec<String>,
    /// Project it belongs to.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub project_id: Option<String>,
    /// 16 hex digits over all paths and contents: it changes when one of them does.
    pub version: String,
    /// How often a model loaded it.
    pub read_count: i64,
    /// When last, RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub last_read_at: Option<String>,
    /// Agents that have it; with `limit` only, as the next two.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub linked_agents_count: Option<i64>,
    /// Assistants that have it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub linked_assistants_count: Option<i64>,
    /// Copies that were installed and are not taken away.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub install_count: Option<i64>,
}

/// Skills, newest first.
#[derive(Debug, Serialize, ToSchema)]
pub struct SkillList {
    /// The page.
    pub items: Vec<Skill>,
    /// All that the filter keeps.
    pub total: i64,
    /// From 1.
    pub page: i64,
    /// At most so many; all of them when no `limit` was given.
    pub limit: i64,
}

/// Which skills are listed.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SkillFilter {
    /// Text in name or description.
    pub search: Option<String>,
    /// With one of these tags, separated by commas.
    pub tags: Option<String>,
    /// Of this project.
    pub project_id: Option<String>,
    /// In none or in one of these projects.
    #[serde(skip)]
    pub within: Option<Vec<String>>,
}

/// A skill that is to be begun.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct NewSkill {
    /// Name, 1 to 200 characters.
    pub name: String,
    /// What it is for; absent: the name.
    #[schema(nullable = false)]
    pub description: Option<String>,
    /// Tags.
    #[serde(default)]
    pub tags: Vec<String>,
    /// Project it belongs to.
    #[schema(nullable = false)]
    pub project_id: Option<String>,
    /// Folder it lies in.
    #[schema(nullable = false)]
    pub parent_folder_id: Option<String>,
}

impl NewSkill {
    /// Every rule on the fields of a new skill.
    pub(crate) fn check(&mut self) -> Result<()> {
        let mut checks = Checks::default();
        checks.name(&self.name);
        if let Some(description) = &self.description {
            checks.length("description", description, 0..=4000);
        }
        checks.tags("tags", &mut self.tags);
        checks.finish()
    }
}

/// A skill that was begun.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Scaffold {
    /// Its folder.
    pub folder: crate::Folder,
    /// The document `SKILL` in it.
    pub skill_doc: crate::Document,
}

/// A skill that was imported.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ImportedSkill {
    /// Its folder.
    pub folder: crate::Folder,
    /// The document `SKILL` in it.
    pub skill_doc: crate::Document,
    /// As it is listed.
    pub skill: Skill,
}

/// The files of a skill that is to be imported: paths and bytes.
#[derive(Debug)]
pub enum SkillFiles {
    /// An archive.
    Zip(bytes::Bytes),
    /// The files themselves.
    Files(Vec<(String, bytes::Bytes)>),
}

/// A file of a skill.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SkillFile {
    /// Within the skill.
    pub path: String,
    /// What is in it.
    pub content: String,
    /// `base64` when that is no text.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub encoding: Option<&'static str>,
    /// `md`, `txt`, `html`, `pdf`, `docx`, or `binary`: it is no text.
    pub file_type: String,
}

/// A skill with everything in it.
#[derive(Debug, Serialize, ToSchema)]
pub struct SkillTree {
    /// As it is listed.
    pub skill: Skill,
    /// Its files by path.
    pub files: Vec<SkillFile>,
    /// That of the skill.
    pub version: String,
}

/// A copy of a skill that somebody makes.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Install {
    /// For which agent products.
    pub agents: Vec<String>,
    /// `project` (default) or `global`.
    #[schema(nullable = false)]
    pub scope: Option<String>,
    /// Version of the command line that makes it.
    #[schema(nullable = false)]
    pub cli_version: Option<String>,
}

impl Install {
    /// Every rule on an installation.
    pub(crate) fn check(&self) -> Result<()> {
        let mut checks = Checks::default();
        checks.count("agents", self.agents.len(), 50);
        for (i, agent) in self.agents.iter().enumerate() {
            checks.length(&format!("agents[{i}]"), agent, 1..=100);
        }
        if let Some(version) = &self.cli_version {
            checks.length("cliVersion", version, 0..=100);
        }
        checks.finish()
    }
}

/// `project` (default) or `global`.
pub(crate) fn scope(given: Option<&str>) -> Result<&'static str> {
    match given.unwrap_or("project").to_ascii_lowercase().as_str() {
        "project" => Ok("project"),
        "global" => Ok("global"),
        _ => Err(platform_core::Error::invalid("scope", "enum", "scope must be project or global")),
    }
}

/// A skill that an assistant or agent has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SkillRef {
    /// Id of the document or folder.
    pub id: String,
    /// `document` or `folder`.
    pub r#type: String,
}
