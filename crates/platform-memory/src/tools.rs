//! The group `builtin-memory` (contract 04 §6, 11): an assistant writes only what is of its own turn's bucket.

use std::sync::Arc;

use async_trait::async_trait;
use platform_core::{Error, Id, Result};
use platform_runtime::{
    BuiltInAction, BuiltInCall, BuiltInGroup, BuiltInTool, MEMORY_TOOLS, Memory, MemoryBucket, ToolResult,
};
use serde_json::{Value, json};

use crate::{
    code,
    entry::{NewEntry, Source},
    recall,
    service::{MemoryService, PgMemory},
};

/// The group.
pub fn memory_tools(memory: &Arc<PgMemory>) -> BuiltInGroup {
    let does: Arc<dyn BuiltInAction> = Arc::new(MemoryTools(Arc::clone(memory)));
    BuiltInGroup {
        uid: MEMORY_TOOLS,
        name: "Memory",
        description: "Remembers, forgets, and looks into earlier chats.",
        tools: vec![
            BuiltInTool::new(
                "search_memory",
                "Finds what was said in earlier chats about something.",
                &json!({"query": {"type": "string", "minLength": 1, "maxLength": 2000, "description": "What to look for"}}),
                &["query"],
                Arc::clone(&does),
            ),
            BuiltInTool::new(
                "remember",
                "Keeps a short fact for all later conversations.",
                &json!({
                    "section": {"type": "string", "description":
                        "persona, instructions, decisions, profile, facts (the usual one) or another name in lower case"},
                    "content": {"type": "string", "minLength": 1, "description": "The fact, in one sentence"},
                }),
                &["content"],
                Arc::clone(&does),
            ),
            BuiltInTool::new(
                "forget",
                "Forgets a fact that is no longer true.",
                &json!({"id": {"type": "integer", "description": "Id of the fact, as core memory shows it"}}),
                &["id"],
                does,
            ),
        ],
    }
}

struct MemoryTools(Arc<PgMemory>);

#[async_trait]
impl BuiltInAction for MemoryTools {
    async fn call(&self, call: BuiltInCall<'_>) -> ToolResult {
        let Some(memory) = &call.scope.memory else {
            return ToolResult::error("TOOL_NOT_AVAILABLE", "This assistant remembers nothing of whom it talks to.");
        };
        let result = match call.tool {
            "search_memory" => self.search(&memory.bucket, &call).await,
            "remember" => self.remember(&memory.bucket, &call).await,
            _ => self.forget(&memory.bucket, &call).await,
        };
        result.unwrap_or_else(|error| refused(&error))
    }
}

/// What the model is told instead.
fn refused(error: &Error) -> ToolResult {
    if error.code() == code::ENTRY_NOT_FOUND {
        return ToolResult::error(error.code().as_str(), "There is no such fact.");
    }
    ToolResult::error(error.code().as_str(), error.message())
}

impl MemoryTools {
    async fn search(&self, bucket: &MemoryBucket, call: &BuiltInCall<'_>) -> Result<ToolResult> {
        let query = call.arguments.get("query").and_then(Value::as_str).unwrap_or_default();
        recall::check(query)?;
        let Some(payer) = &call.scope.payer else { return Ok(ToolResult::of(&json!({"turns": []}))) };
        let found = self.0.earlier(bucket, payer, &call.scope.conversation, query, "search_memory").await?;
        let turns = found.record.get("turns").cloned().unwrap_or_else(|| json!([]));
        let mut result = json!({"turns": turns});
        if found.is_partial {
            result["note"] = "Chats that are long over could not be looked through; ask for fewer, rarer words.".into();
        }
        let recalled = found.text.is_some().then_some(found.record);
        Ok(ToolResult { recalled, asked: found.asked, ..ToolResult::of(&result) })
    }

    async fn remember(&self, bucket: &MemoryBucket, call: &BuiltInCall<'_>) -> Result<ToolResult> {
        let text = |name: &str| call.arguments.get(name).and_then(Value::as_str).map(str::to_owned);
        let (content, section) = (text("content").unwrap_or_default(), text("section"));
        let new = NewEntry { content, section, ..NewEntry::default() };
        let added = self.0.add(call.account, bucket, new, Source::Assistant, None).await?;
        Ok(ToolResult::of(&json!({"id": added.entry.id, "section": added.entry.section, "deduped": added.deduped})))
    }

    async fn forget(&self, bucket: &MemoryBucket, call: &BuiltInCall<'_>) -> Result<ToolResult> {
        // `2.0` is an integer, too (JSON Schema 2020-12 §6.1.1).
        let id = call.arguments.get("id").and_then(Value::as_f64).unwrap_or_default().to_string();
        let removed = self.0.remove(call.account, bucket, &Id::named(&id), Source::Assistant).await?;
        Ok(ToolResult::of(&json!({"removed": removed.removed, "id": removed.id})))
    }
}
