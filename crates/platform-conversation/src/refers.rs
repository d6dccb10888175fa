//! What assistants, agents and environments refer to.

use platform_core::Object;
use serde_json::Value;

use crate::settings::AssistantSettings;

/// What an assistant or agent refers to that must be there: ids by what they are of.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Refers {
    /// Tool servers and built-in groups.
    pub tools: Vec<String>,
    /// Documents.
    pub documents: Vec<String>,
    /// Folders.
    pub folders: Vec<String>,
    /// Skills: id and type.
    pub skills: Vec<(String, String)>,
    /// The environment that it works in; of several patches all.
    pub environments: Vec<String>,
    /// Agents that work is handed to; of patches none, since they are held by nobody.
    pub agents: Vec<String>,
}

impl Refers {
    /// What these settings refer to.
    pub fn of(settings: &AssistantSettings) -> Self {
        Self {
            tools: settings.available_tools_groups_uids.clone(),
            documents: settings.knowledge_document_ids.clone(),
            folders: settings.knowledge_folder_ids.clone(),
            skills: settings.knowledge_skills.iter().map(|skill| (skill.id.clone(), skill.r#type.clone())).collect(),
            environments: settings.environment_id.iter().cloned().collect(),
            agents: settings.subagents_ids.clone(),
        }
    }

    /// What a patch of settings refers to; `None` = it says nothing of that.
    pub fn of_patch(patch: &Object) -> Option<Self> {
        let names = ["availableToolsGroupsUids", "knowledgeDocumentIds", "knowledgeFolderIds"];
        let [tools, documents, folders] = names.map(|name| {
            let given = patch.get(name).and_then(Value::as_array).into_iter().flatten();
            given.filter_map(Value::as_str).map(str::to_owned).collect()
        });
        let given = patch.get("knowledgeSkills").and_then(Value::as_array).into_iter().flatten();
        let text = |skill: &Value, name: &str| skill.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
        let skills = given.map(|skill| (text(skill, "id"), text(skill, "type"))).collect();
        let environments = patch.get("environmentId").and_then(Value::as_str).map(str::to_owned).into_iter().collect();
        let says = names
            .iter()
            .chain(&["knowledgeSkills", "environmentId", "subagentsIds"])
            .any(|name| patch.contains_key(*name));
        says.then_some(Self { tools, documents, folders, skills, environments, agents: Vec::new() })
    }

    /// Documents and folders, each with all skills: an id does not say which of both a skill is.
    pub fn knowledge(&self) -> [Vec<String>; 2] {
        let skills = || self.skills.iter().map(|(id, _)| id.clone());
        [&self.documents, &self.folders].map(|ids| ids.iter().cloned().chain(skills()).collect())
    }

    /// What either refers to.
    #[must_use]
    pub fn and(mut self, other: &Self) -> Self {
        self.tools.extend_from_slice(&other.tools);
        self.documents.extend_from_slice(&other.documents);
        self.folders.extend_from_slice(&other.folders);
        self.skills.extend_from_slice(&other.skills);
        self.environments.extend_from_slice(&other.environments);
        self.agents.extend_from_slice(&other.agents);
        self
    }
}
