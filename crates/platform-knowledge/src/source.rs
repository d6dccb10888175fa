//! What turns see of knowledge: tools that look into what is attached, and passages that come by themselves.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use platform_core::{AccountId, Error, Result};
use platform_files::HEAD_BYTES;
use platform_runtime::{
    BuiltInAction, BuiltInCall, BuiltInGroup, BuiltInTool, DocumentReader, KNOWLEDGE_TOOLS, Recall, RecallBudget,
    Recalled, ToolResult, TurnScope,
};
use serde_json::{Value, json};

use crate::{
    document::{PgKnowledge, repository, tokens},
    extract, folder, not_found, search,
};

/// Characters of a document that a model gets at once.
const MAX_READ: usize = 200_000;
/// Documents of a list.
const MAX_LISTED: usize = 200;
/// Characters of a message that are looked for.
const MAX_QUESTION: usize = 2000;

/// The group `builtin-knowledge` (contract 04 §6, 06 §4).
pub fn knowledge_tools(knowledge: &Arc<PgKnowledge>) -> BuiltInGroup {
    let does: Arc<dyn BuiltInAction> = Arc::new(KnowledgeTools(Arc::clone(knowledge)));
    let id = json!({"id": {"type": "string", "description": "Id of a document"}});
    BuiltInGroup {
        uid: KNOWLEDGE_TOOLS,
        name: "Knowledge",
        description: "Looks into the documents that are attached.",
        tools: vec![
            BuiltInTool::new(
                "search_knowledge",
                "Finds the passages of the attached documents that say most about something.",
                &json!({
                    "query": {"type": "string", "minLength": 1, "maxLength": 2000, "description": "What to look for"},
                    "limit": {"type": "integer", "minimum": 1, "maximum": 50, "description": "Passages, 8 by default"},
                }),
                &["query"],
                Arc::clone(&does),
            ),
            BuiltInTool::new("read_document", "Reads an attached document.", &id, &["id"], Arc::clone(&does)),
            BuiltInTool::new("list_documents", "Lists the attached documents.", &json!({}), &[], does),
        ],
    }
}

struct KnowledgeTools(Arc<PgKnowledge>);

#[async_trait]
impl BuiltInAction for KnowledgeTools {
    async fn call(&self, call: BuiltInCall<'_>) -> ToolResult {
        let result = match call.tool {
            "search_knowledge" => self.search(&call).await,
            "read_document" => self.read(&call).await.map(|document| ToolResult::of(&document)),
            _ => self.list(&call).await.map(|documents| ToolResult::of(&documents)),
        };
        result.unwrap_or_else(|error| ToolResult::error(error.code().as_str(), error.message()))
    }
}

impl KnowledgeTools {
    async fn search(&self, call: &BuiltInCall<'_>) -> Result<ToolResult> {
        let query = call.arguments.get("query").and_then(Value::as_str).unwrap_or_default();
        let limit = call.arguments.get("limit").and_then(Value::as_i64).unwrap_or(8);
        let TurnScope { documents, folders, .. } = call.scope;
        let payer = call.scope.payer.clone().unwrap_or_else(|| search::payer(call.account, None));
        let (results, asked) = search::search_in(&self.0, &payer, query, documents, folders, limit).await?;
        Ok(ToolResult { asked, ..ToolResult::of(&json!({"results": results})) })
    }

    async fn read(&self, call: &BuiltInCall<'_>) -> Result<Value> {
        let id = call.arguments.get("id").and_then(Value::as_str).unwrap_or_default();
        let missing = || not_found::document(id);
        let row = repository::find(self.0.db.read().await?.get(), call.account, id).await?.ok_or_else(missing)?;
        if !self.0.is_attached(call.account, call.scope, &row).await? {
            return Err(missing());
        }
        let conn = self.0.db.read().await?;
        let text = repository::text(conn.get(), call.account, id, &row.content_hash).await?.unwrap_or_default();
        let kept: String = text.chars().take(MAX_READ).collect();
        Ok(json!({
            "documentId": row.id,
            "name": row.name,
            "version": row.current_version,
            "truncated": kept.len() < text.len(),
            "markdownContent": kept,
        }))
    }

    async fn list(&self, call: &BuiltInCall<'_>) -> Result<Value> {
        let attached = self.0.attached(call.account, call.scope).await?;
        let total = attached.len();
        let listed = attached
            .into_iter()
            .take(MAX_LISTED)
            .map(|row| json!({"documentId": row.id, "name": row.name, "summary": row.summary, "tags": row.tags}));
        let mut result = json!({"documents": listed.collect::<Vec<_>>()});
        if total > MAX_LISTED {
            (result["truncated"], result["total"]) = (true.into(), total.into());
        }
        Ok(result)
    }
}

impl PgKnowledge {
    /// Whether a turn sees a document.
    async fn is_attached(&self, account: &AccountId, scope: &TurnScope, row: &repository::DocumentRow) -> Result<bool> {
        if scope.documents.contains(&row.id) {
            return Ok(true);
        }
        let Some(folder) = &row.folder_id else { return Ok(false) };
        let above = folder::repository::above(&mut *self.db.conn().await?, account, folder).await?;
        Ok(above.iter().any(|folder| scope.folders.contains(folder)))
    }

    /// The documents that a turn sees, newest first.
    async fn attached(&self, account: &AccountId, scope: &TurnScope) -> Result<Vec<repository::DocumentRow>> {
        let mut conn = self.db.conn().await?;
        let folders = folder::repository::tree(&mut conn, account, &scope.folders).await?;
        repository::attached(&conn, account, &scope.documents, &folders).await
    }
}

#[async_trait]
impl DocumentReader for PgKnowledge {
    async fn text(&self, account: &AccountId, name: &str, bytes: &Bytes) -> Result<Option<String>> {
        let head = &bytes[..bytes.len().min(HEAD_BYTES)];
        match extract::type_of_text(name, head) {
            Some(kind @ ("pdf" | "docx")) => extract::short_text(&self.extraction, account, bytes, kind).await,
            _ => Ok(None),
        }
    }
}

#[async_trait]
impl Recall for PgKnowledge {
    async fn skills(&self, account: &AccountId, scope: &TurnScope) -> Result<Option<String>> {
        self.told_skills(account, &scope.skills).await
    }

    async fn documents(&self, account: &AccountId, ids: &[String]) -> Result<Vec<(String, String)>> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let names = crate::document::repository::names(self.db.read().await?.get(), account, ids).await?;
        Ok(ids.iter().filter_map(|id| Some((id.clone(), names.get(id)?.clone()))).collect())
    }

    async fn passages(
        &self,
        account: &AccountId,
        scope: &TurnScope,
        question: &str,
        budget: RecallBudget,
    ) -> Result<Recalled> {
        let question: String = question.chars().take(MAX_QUESTION).collect();
        let limit = i64::from(budget.limit);
        let payer = scope.payer.clone().unwrap_or_else(|| search::payer(account, None));
        let found = search::search_in(self, &payer, &question, &scope.documents, &scope.folders, limit).await;
        let (found, asked) = match found {
            Ok(found) => found,
            // A turn can be answered without.
            Err(error) => {
                tracing::warn!(%error, "What is known of a message could not be looked up; its turn goes on without.");
                return Ok(Recalled::default());
            }
        };
        let mut text = String::new();
        let mut left = usize::try_from(budget.max_tokens).map_err(Error::internal)?;
        for passage in found {
            let path = passage.heading_path.join(" > ");
            let place = if path.is_empty() { String::new() } else { format!(", {path}") };
            let passage = format!("[{}, version {}{place}]\n{}\n\n", passage.name, passage.version, passage.text);
            let size = tokens(&passage);
            // A shorter one may still fit.
            if size > left {
                continue;
            }
            left -= size;
            text.push_str(&passage);
        }
        let intro = "Passages of the attached documents that are nearest to the message that follows:\n\n";
        let text = (!text.is_empty()).then(|| format!("{intro}{}", text.trim_end()));
        Ok(Recalled { text, asked })
    }
}
