use std::path::PathBuf;

use platform_core::{Checks, Owner, Result, Timestamp};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::store::Content;

/// A file as clients see it (contract 07).
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct UploadedFile {
    /// The last segment of the name that it came with, at most 200 bytes.
    pub name: String,
    /// Whoever knows it may download, without a credential.
    pub download_url: String,
    /// `image`, `document`, `audio`, `video` or `other`: what its content says, else its name.
    pub file_type: String,
    /// Id.
    pub file_id: String,
    /// Media type.
    pub mime_type: String,
    /// SHA-256 of its bytes, in hex.
    pub sha256: String,
    /// In bytes.
    pub size: i64,
    /// Tenant of the session that uploaded it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub tenant_id: Option<String>,
    /// Its end user.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub subtenant_id: Option<String>,
    /// When it was stored.
    pub creation_timestamp_ms: Timestamp,
    /// When it goes; `null` = it stays.
    pub expires_at_ms: Option<Timestamp>,
}

/// Files, newest first.
#[derive(Debug, Serialize, ToSchema)]
pub struct FileList {
    /// The page.
    pub items: Vec<UploadedFile>,
    /// All that the filter keeps.
    pub total: i64,
    /// How many were skipped.
    pub offset: i64,
    /// At most so many.
    pub limit: i64,
}

/// Which files are listed.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct FileFilter {
    /// Text in the name.
    pub search: Option<String>,
    /// `image`, `document`, `audio`, `video` or `other`.
    pub file_type: Option<String>,
    /// Those that sessions of this tenant uploaded.
    pub tenant_id: Option<String>,
    /// Also those that are kept for something that not everybody may see.
    #[serde(skip)]
    pub with_kept: bool,
}

impl FileFilter {
    /// `VALIDATION_ERROR` when there is no such type of file.
    pub fn check(&mut self) -> Result<()> {
        let mut checks = Checks::default();
        if let Some(file_type) = &mut self.file_type {
            file_type.make_ascii_lowercase();
            if !["image", "document", "audio", "video", "other"].contains(&file_type.as_str()) {
                checks.issue("fileType", "enum", "fileType must be image, document, audio, video or other");
            }
        }
        checks.finish()
    }
}

/// A file that is to be kept.
#[derive(Debug)]
pub struct NewFile {
    /// What its sender calls it.
    pub name: String,
    /// Its bytes.
    pub content: Content,
    /// How many there are.
    pub size: u64,
    /// SHA-256 of them, in hex.
    pub sha256: String,
    /// Seconds until it goes, 60 to 31,536,000; `None` = it stays.
    pub ttl_seconds: Option<i64>,
    /// Whose it is.
    pub owner: Owner,
    /// What keeps it, such as `document`: it goes with that alone.
    pub kept_for: Option<&'static str>,
}

impl NewFile {
    /// A file that lies on this machine; it is taken from there.
    pub fn on_disk(name: &str, path: PathBuf, size: u64, sha256: &str) -> Self {
        let (name, sha256) = (name.to_owned(), sha256.to_owned());
        let (content, owner) = (Content::File(path), Owner::default());
        Self { name, content, size, sha256, ttl_seconds: None, owner, kept_for: None }
    }

    /// `VALIDATION_ERROR` when it is to go too soon or too late.
    pub fn check(&self) -> Result<()> {
        let mut checks = Checks::default();
        if let Some(seconds) = self.ttl_seconds {
            checks.range("ttlSeconds", seconds, &(60..=31_536_000));
        }
        checks.finish()
    }
}

/// What of the store an account uses.
#[derive(Debug, Clone)]
pub struct Usage {
    /// Account that keeps them.
    pub account: String,
    /// Files.
    pub files: i64,
    /// Bytes of them.
    pub bytes: i64,
}

/// The last segment of a name, without control characters, at most 200 bytes; `file` when nothing is left.
pub(crate) fn plain_name(name: &str) -> String {
    const MOST: usize = 200;
    let last = name.rsplit(['/', '\\']).next().unwrap_or_default();
    let mut plain: String = last.chars().filter(|c| !c.is_control()).collect();
    if plain.len() > MOST {
        // Its end says what it is.
        let extension =
            plain.rfind('.').map(|at| plain[at..].to_owned()).filter(|end| end.len() <= 16).unwrap_or_default();
        let mut end = MOST - extension.len();
        while !plain.is_char_boundary(end) {
            end -= 1;
        }
        plain.truncate(end);
        plain.push_str(&extension);
    }
    match plain.trim() {
        "" | "." | ".." => "file".to_owned(),
        plain => plain.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_the_last_segment_without_what_does_harm() {
        for (given, name) in [
            ("report.pdf", "report.pdf"),
            ("../../etc/passwd", "passwd"),
            ("C:\\fakepath\\a b.txt", "a b.txt"),
            ("a\r\nSet-Cookie: x.txt", "aSet-Cookie: x.txt"),
            ("", "file"),
            ("..", "file"),
            ("dir/", "file"),
            (" \t ", "file"),
        ] {
            assert_eq!(plain_name(given), name, "{given:?}");
        }
        let long = plain_name(&format!("{}.pdf", "\u{e4}".repeat(300)));
        assert!(long.len() <= 200 && long.ends_with("\u{e4}.pdf"), "{long}");
    }
}
