//! The group `builtin-files`: reads files, ours and others', and makes some (contract 04 §6, 06 §4).

use std::{future::ready, sync::Arc};

use async_trait::async_trait;
use bytes::Bytes;
use platform_core::{Code, Error, Result, sha256_hex};
use platform_egress::{Egress, EgressError};
use platform_files::{Content, FileService, HEAD_BYTES, NewFile, PgFileService, media_type, type_of};
use platform_runtime::{BuiltInAction, BuiltInCall, BuiltInGroup, BuiltInTool, ToolResult};
use serde_json::{Value, json};

use crate::extract::{self, Extraction};

/// Characters of a file that a model gets at once.
const MAX_READ: usize = 200_000;

/// The group; `egress`: to files that are not ours; `extraction`: child processes that read files.
pub fn file_tools(files: Arc<PgFileService>, egress: Egress, extraction: Extraction) -> BuiltInGroup {
    let does: Arc<dyn BuiltInAction> = Arc::new(FileTools { files, egress, extraction });
    let create = BuiltInTool::new(
        "create_file",
        "Makes a file of a text; its address can be given to the user.",
        &json!({
            "name": {"type": "string", "minLength": 1, "maxLength": 200, "description": "Name with extension"},
            "content": {"type": "string", "description": "What is in it"},
        }),
        &["name", "content"],
        Arc::clone(&does),
    );
    BuiltInGroup {
        uid: "builtin-files",
        name: "Files",
        description: "Reads files, and makes some.",
        tools: vec![
            BuiltInTool::new(
                "read_file",
                "Reads the text of a file: Markdown, text, HTML, PDF or Word.",
                &json!({"downloadUrl": {"type": "string", "description": "Address of the file"}}),
                &["downloadUrl"],
                does,
            ),
            create.once(),
        ],
    }
}

struct FileTools {
    files: Arc<PgFileService>,
    egress: Egress,
    extraction: Extraction,
}

#[async_trait]
impl BuiltInAction for FileTools {
    async fn call(&self, call: BuiltInCall<'_>) -> ToolResult {
        let result = match call.tool {
            "read_file" => self.read(&call).await,
            _ => self.create(&call).await,
        };
        match result {
            Ok(value) => ToolResult::of(&value),
            Err(error) => ToolResult::error(error.code().as_str(), error.message()),
        }
    }
}

impl FileTools {
    async fn read(&self, call: &BuiltInCall<'_>) -> Result<Value> {
        let url = text(call, "downloadUrl");
        if let Some(token) = self.files.token_of(url) {
            let file = self.files.find_for(call.account, &call.scope.owner(), &token).await?;
            let head = self.files.bytes(call.account, &file, HEAD_BYTES as u64).await?;
            let all = || self.files.bytes(call.account, &file, u64::MAX);
            return self.text_of(call, &file.name, &head, all).await;
        }
        let fetched = self.egress.of(call.account).get(url).await;
        let fetched = fetched.map_err(EgressError::into_upstream_error)?;
        if !(200..300).contains(&fetched.status) {
            let message = format!("The address answers {}.", fetched.status);
            return Err(Error::new(Code::UPSTREAM_ERROR, message).with("status", fetched.status));
        }
        let name = url.split(['?', '#']).next().and_then(|path| path.rsplit('/').next()).unwrap_or_default();
        let head = fetched.bytes.slice(..fetched.bytes.len().min(HEAD_BYTES));
        self.text_of(call, name, &head, || ready(Ok(fetched.bytes.clone()))).await
    }

    /// What a file says; `head`: its first bytes, `all`: all of them.
    async fn text_of<R: Future<Output = Result<Bytes>>>(
        &self,
        call: &BuiltInCall<'_>,
        name: &str,
        head: &[u8],
        all: impl Fn() -> R,
    ) -> Result<Value> {
        let media_type = media_type(name, "", head);
        let is_text = head.is_empty() || media_type.starts_with("text/") || std::str::from_utf8(head).is_ok();
        let kind = extract::type_of_text(name, head).or_else(|| is_text.then_some("txt")).ok_or_else(|| {
            let message = format!("downloadUrl: this file has no text that can be read; it is {media_type}");
            Error::invalid("downloadUrl", "format", message)
        })?;
        let extracted = extract::text_of_bytes(&self.extraction, call.account, all, kind).await?;
        let text = extracted.map_err(|error| Error::invalid("downloadUrl", "format", error.message))?;
        let kept: String = text.chars().take(MAX_READ).collect();
        let truncated = kept.len() < text.len();
        Ok(json!({"name": name, "fileType": type_of(name, head), "text": kept, "truncated": truncated}))
    }

    async fn create(&self, call: &BuiltInCall<'_>) -> Result<Value> {
        let content = Bytes::from(text(call, "content").to_owned());
        let new = NewFile {
            name: text(call, "name").to_owned(),
            size: content.len() as u64,
            sha256: sha256_hex(&content),
            content: Content::Bytes(content),
            ttl_seconds: None,
            owner: call.scope.owner(),
            kept_for: None,
        };
        let file = self.files.create(call.account, new, None).await?;
        Ok(json!({"name": file.name, "downloadUrl": file.download_url, "fileType": file.file_type}))
    }
}

fn text<'a>(call: &'a BuiltInCall<'_>, name: &str) -> &'a str {
    call.arguments.get(name).and_then(Value::as_str).unwrap_or_default()
}
