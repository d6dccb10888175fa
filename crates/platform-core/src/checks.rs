use std::ops::RangeInclusive;

use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use crate::{Code, Error, Object};

/// Issues of one answer, and bytes of each part of them: what a client may have written back to it.
const MAX_ISSUES: usize = 100;
const MAX_SHOWN: usize = 512;

/// One field that broke its rule (contract 00 §7).
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct Issue {
    /// Where, as in `assistantSpecialization.presets`.
    pub path: String,
    /// `required`, `type`, `format`, `range`, `length`, `enum`, `unique`, `conflict` or `unknown`.
    pub code: &'static str,
    /// What to do about it.
    pub message: String,
}

/// Sizes of fields that are settings (contract 00 §8); 0 = no bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FieldLimits {
    /// Text of a message, in bytes.
    pub message_bytes: usize,
    /// System prompt, in bytes.
    pub presets_bytes: usize,
    /// Metadata as JSON, in bytes.
    pub metadata_bytes: usize,
    /// Levels of metadata.
    pub metadata_depth: usize,
    /// Tags of a record.
    pub tags: usize,
    /// Files of a message.
    pub files_per_message: usize,
    /// Tools of a tool server.
    pub tools_per_server: usize,
    /// Webhooks of an account.
    pub webhooks: usize,
    /// Variables of an environment.
    pub env_vars: usize,
    /// Versions of a document that are kept.
    pub document_versions: usize,
    /// A tool result that is kept, in bytes.
    pub tool_response_bytes: usize,
    /// Files that an end user keeps, together.
    pub end_user_file_bytes: usize,
}

impl Default for FieldLimits {
    fn default() -> Self {
        Self {
            message_bytes: 262_144,
            presets_bytes: 262_144,
            metadata_bytes: 65_536,
            metadata_depth: 10,
            tags: 50,
            files_per_message: 20,
            tools_per_server: 200,
            webhooks: 50,
            env_vars: 100,
            document_versions: 100,
            tool_response_bytes: 1 << 20,
            end_user_file_bytes: 1 << 30,
        }
    }
}

/// Collects every broken rule of a request, so that one answer names them all.
#[derive(Debug, Default)]
pub struct Checks {
    issues: Vec<Issue>,
    /// Issues beside those.
    more: usize,
    limits: FieldLimits,
}

/// Bytes of a name of something else, and of a picture in a record.
const MAX_REFERENCE: usize = 256;
const MAX_PICTURE: usize = 64 << 10;

impl Checks {
    /// With limits other than the defaults.
    pub fn within(limits: &FieldLimits) -> Self {
        Self { limits: *limits, ..Self::default() }
    }

    /// Records a broken rule; of more than a hundred the first are told.
    pub fn issue(&mut self, path: &str, code: &'static str, message: impl Into<String>) {
        if self.issues.len() == MAX_ISSUES {
            self.more += 1;
            return;
        }
        let (mut path, mut message) = (path.to_owned(), message.into());
        for text in [&mut path, &mut message] {
            text.truncate(text.floor_char_boundary(MAX_SHOWN));
        }
        self.issues.push(Issue { path, code, message });
    }

    /// The text has between `range` characters.
    pub fn length(&mut self, path: &str, text: &str, range: RangeInclusive<usize>) {
        let length = text.chars().count();
        if !range.contains(&length) {
            self.issue(
                path,
                "length",
                format!("{path} must have {} to {} characters, it has {length}", range.start(), range.end()),
            );
        }
    }

    /// A name is there, and has at most 200 characters.
    pub fn name(&mut self, name: &str) {
        if name.trim().is_empty() {
            self.issue("name", "required", "name is required: 1 to 200 characters");
        } else {
            self.length("name", name, 1..=200);
        }
    }

    /// The text has at most `limit` bytes; 0 = no bound.
    pub fn bytes(&mut self, path: &str, size: usize, limit: usize) {
        if limit > 0 && size > limit {
            self.issue(path, "length", format!("{path} must have at most {limit} bytes, it has {size}"));
        }
    }

    /// The same for what is stored as text: a text as it is, anything else as JSON.
    pub fn content_bytes(&mut self, path: &str, content: &Value, limit: usize) {
        let size = content.as_str().map_or_else(|| content.to_string().len(), str::len);
        self.bytes(path, size, limit);
    }

    /// The list has at most `limit` elements; 0 = no bound.
    pub fn count(&mut self, path: &str, count: usize, limit: usize) {
        if limit > 0 && count > limit {
            self.issue(path, "length", format!("{path} must have at most {limit} elements, it has {count}"));
        }
    }

    /// Names of records, tools or roles: at most `most`, each of at most 256 bytes.
    pub fn names(&mut self, path: &str, names: &[String], most: usize) {
        self.count(path, names.len(), most);
        if let Some((at, name)) = names.iter().enumerate().find(|(_, name)| name.len() > MAX_REFERENCE) {
            self.bytes(&format!("{path}[{at}]"), name.len(), MAX_REFERENCE);
        }
    }

    /// The address of a picture, or the picture itself as `data:`.
    pub fn picture(&mut self, path: &str, url: Option<&str>) {
        self.bytes(path, url.map_or(0, str::len), MAX_PICTURE);
    }

    /// Not more variables than an environment may have.
    pub fn variables(&mut self, path: &str, count: usize) {
        self.count(path, count, self.limits.env_vars);
    }

    /// The number lies in the range.
    pub fn range<T: PartialOrd + std::fmt::Display + Copy>(&mut self, path: &str, value: T, range: &RangeInclusive<T>) {
        if !range.contains(&value) {
            self.issue(path, "range", format!("{path} must be {} to {}, it is {value}", range.start(), range.end()));
        }
    }

    /// A tenant and an end user within it (contract 00 §2.2).
    pub fn tenants(&mut self, tenant: Option<&str>, subtenant: Option<&str>) {
        for (path, id) in [("tenantId", tenant), ("subtenantId", subtenant)] {
            if let Some(id) = id {
                self.tenant(path, id);
            }
        }
        if tenant == Some("tiers") {
            self.issue("tenantId", "conflict", "tenantId `tiers` is reserved; choose another");
        }
    }

    /// A tenant or subtenant id: 1 to 128 characters, no control character, no `/` (contract 00 §2.2); neither `.` nor `..`,
    /// which no path can name.
    fn tenant(&mut self, path: &str, id: &str) {
        self.length(path, id, 1..=128);
        if id.chars().any(|c| c.is_control() || c == '/') {
            self.issue(path, "format", format!("{path} must not contain control characters or a slash"));
        }
        if id == "." || id == ".." {
            self.issue(path, "format", format!("{path} must not be . or .., which no path can name"));
        }
    }

    /// Tags: so many, each of 1 to 64 characters; duplicates are removed (contract 00 §8).
    pub fn tags(&mut self, path: &str, tags: &mut Vec<String>) {
        for (i, tag) in tags.iter().enumerate() {
            self.length(&format!("{path}[{i}]"), tag, 1..=64);
        }
        let mut seen = std::collections::HashSet::new();
        tags.retain(|tag| seen.insert(tag.clone()));
        self.count(path, tags.len(), self.limits.tags);
    }

    /// Client-defined metadata: bounded in bytes and levels (contract 00 §8).
    pub fn metadata(&mut self, path: &str, metadata: &Object) {
        let size = serde_json::to_string(metadata).map_or(0, |json| json.len());
        self.bytes(path, size, self.limits.metadata_bytes);
        let most = self.limits.metadata_depth;
        if most > 0 && metadata.values().map(depth).max().unwrap_or(0) + 1 > most {
            self.issue(path, "length", format!("{path} must have at most {most} levels"));
        }
    }

    /// `Ok` when nothing was recorded, else a `VALIDATION_ERROR` with all issues.
    pub fn finish(self) -> Result<(), Error> {
        self.finish_as(Code::VALIDATION_ERROR)
    }

    /// The same under a more precise code.
    pub fn finish_as(self, code: Code) -> Result<(), Error> {
        let Some(Issue { path, message, .. }) = self.issues.first() else { return Ok(()) };
        // Some clients show the message alone: it says which of several it is about, and what else is wrong.
        let is_named = !path.contains('[') || message.contains(path.as_str());
        let first = if is_named { message.clone() } else { format!("{path}: {message}") };
        let message = match self.issues.len() + self.more {
            1 => first,
            n => {
                let others: Vec<&str> = self.issues[1..].iter().take(3).map(|issue| issue.path.as_str()).collect();
                format!("{first} (and {} more, see details.issues: {})", n - 1, others.join(", "))
            }
        };
        Err(Error::new(code, message).with_issues(self.issues))
    }
}

fn depth(value: &serde_json::Value) -> usize {
    match value {
        serde_json::Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        serde_json::Value::Object(fields) => 1 + fields.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_tells_a_bounded_number_of_issues_and_how_many_there_are() {
        let mut checks = Checks::default();
        for n in 0..5000 {
            checks.issue(&format!("files[{n}].{}", "ä".repeat(1000)), "unknown", "x".repeat(100_000));
        }
        let error = checks.finish().expect_err("issues");
        assert!(error.message().contains("(and 4999 more, see details.issues: "));
        assert_eq!(error.details()["issues"].as_array().map(Vec::len), Some(MAX_ISSUES));
        assert!(error.message().starts_with("files[0].ä"), "it says which");
        assert!(serde_json::to_string(&error.details()).expect("JSON").len() < 128 << 10);
    }
}
