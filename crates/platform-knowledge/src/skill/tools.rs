//! What turns see of skills: who they are, and their text when the model asks for it.

use std::sync::Arc;

use async_trait::async_trait;
use platform_core::{AccountId, Error, Id, Result};
use platform_files::FileService;
use platform_runtime::{BuiltInAction, BuiltInCall, BuiltInGroup, BuiltInTool, SKILL_TOOLS, ToolResult, TurnSkill};
use serde_json::{Value, json};

use super::{SkillFilter, files, repository};
use crate::{
    code,
    document::{PgKnowledge, repository as documents},
};

/// Bytes of the texts of skills that stand in a prompt from the start.
const MAX_PRELOADED: usize = 256 * 1024;
/// Bytes of the paths that a model is told with a file.
const MAX_LISTED: usize = 64 * 1024;

/// The group `builtin-skills` (contract 04 §6, 14).
pub fn skill_tools(knowledge: &Arc<PgKnowledge>) -> BuiltInGroup {
    let load = BuiltInTool::new(
        "load_skill",
        "Loads the instructions of a skill, or one of its files.",
        &json!({
            "id": {"type": "string", "description": "Id of the skill"},
            "path": {"type": "string", "description": "A file of it; without it the instructions"},
        }),
        &["id"],
        Arc::new(LoadSkill(Arc::clone(knowledge))),
    );
    BuiltInGroup {
        uid: SKILL_TOOLS,
        name: "Skills",
        description: "Loads the skills that are attached.",
        tools: vec![load],
    }
}

struct LoadSkill(Arc<PgKnowledge>);

#[async_trait]
impl BuiltInAction for LoadSkill {
    async fn call(&self, call: BuiltInCall<'_>) -> ToolResult {
        match self.load(&call).await {
            Ok(value) => ToolResult::of(&value),
            Err(error) => ToolResult::error(error.code().as_str(), error.message()),
        }
    }
}

impl LoadSkill {
    async fn load(&self, call: &BuiltInCall<'_>) -> Result<Value> {
        let text = |name: &str| call.arguments.get(name).and_then(Value::as_str);
        let id = text("id").unwrap_or_default();
        let missing = |id: &str| Error::not_found(code::SKILL_NOT_FOUND, "skill", id);
        if !call.scope.skills.iter().any(|skill| skill.id == id) {
            return Err(missing(id));
        }
        let skill = self.0.skill(call.account, id, None).await?;
        let conn = self.0.db.read().await?;
        let listing = files::of_skill(conn.get(), call.account, id).await?;
        let path = text("path").map(|path| path.trim_start_matches("./")).filter(|path| !path.is_empty());
        let file = match path {
            Some(path) => listing.files.iter().find(|(known, _)| known == path),
            None => listing.main(),
        };
        let (path, file) = file.ok_or_else(|| missing(path.unwrap_or(id)))?;
        let content = documents::text(conn.get(), call.account, &file.document, &file.content_hash).await?;
        drop(conn);
        let address = match &file.binary {
            Some(binary) => Some(self.0.files.get(call.account, &Id::named(binary)).await?.download_url),
            None => None,
        };
        let now = self.0.clock.now();
        repository::note_read(&mut *self.0.db.conn().await?, call.account, id, now).await?;
        let (mut left, all) = (MAX_LISTED, listing.files.iter().map(|(path, _)| path.as_str()));
        let files: Vec<&str> =
            all.take_while(|path| left.checked_sub(path.len()).map(|rest| left = rest).is_some()).collect();
        let omitted = listing.files.len() - files.len();
        let mut loaded = json!({"id": id, "name": skill.name, "path": path, "content": content.unwrap_or_default(),
            "files": files, "filesOmitted": omitted});
        // What is no text can be fetched.
        if let Some(address) = address {
            loaded["downloadUrl"] = address.into();
        }
        Ok(loaded)
    }
}

impl PgKnowledge {
    /// What a model is told of the skills of a turn, in their order; `None` when it has none.
    pub(crate) async fn told_skills(&self, account: &AccountId, skills: &[TurnSkill]) -> Result<Option<String>> {
        let ids: Vec<String> = skills.iter().map(|skill| skill.id.clone()).collect();
        let (conn, all) = (self.db.read().await?, SkillFilter::default());
        let (known, _) = repository::list(conn.get(), account, Some(&ids), &all, None).await?;
        let mut text = String::new();
        let mut left = MAX_PRELOADED;
        for TurnSkill { id, preload } in skills {
            // One that was deleted is none any more.
            let Some(skill) = known.iter().find(|skill| skill.id == *id) else { continue };
            text = format!("{text}\n- {} (id {id}): {}", skill.name, skill.description);
            if !preload {
                continue;
            }
            let listing = files::of_skill(conn.get(), account, id).await?;
            let Some((_, file)) = listing.main() else { continue };
            let Some(rest) = left.checked_sub(file.bytes()) else {
                text.push_str("\n\nIts instructions are too long to stand here; load them.\n");
                continue;
            };
            left = rest;
            let content = documents::text(conn.get(), account, &file.document, &file.content_hash).await?;
            text = format!("{text}\n\n{}\n", content.unwrap_or_default().trim_end());
        }
        let intro = "You have these skills. Load one with load_skill before you do what it is for:";
        Ok((!text.is_empty()).then(|| format!("{intro}{text}")))
    }
}
