use platform_core::{Checks, Result};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What is looked for (contract 06 §2).
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SearchQuery {
    /// 1 to 2,000 characters.
    pub query: String,
    /// In this project.
    #[schema(nullable = false)]
    pub project_id: Option<String>,
    /// In these folders and below.
    #[schema(nullable = false)]
    pub folder_ids: Option<Vec<String>>,
    /// In these documents.
    #[schema(nullable = false)]
    pub document_ids: Option<Vec<String>>,
    /// In documents with one of these tags.
    #[serde(default)]
    pub tags: Vec<String>,
    /// 1 to 50.
    #[serde(default = "default_limit")]
    pub limit: i64,
    /// `hybrid` (default), `semantic` or `keyword`.
    #[schema(nullable = false)]
    pub mode: Option<String>,
}

fn default_limit() -> i64 {
    8
}

impl SearchQuery {
    /// Every rule on a query.
    pub(crate) fn check(&self) -> Result<()> {
        let mut checks = Checks::default();
        checks.length("query", &self.query, 1..=2000);
        checks.range("limit", self.limit, &(1..=50));
        for (path, ids) in [("folderIds", &self.folder_ids), ("documentIds", &self.document_ids)] {
            checks.count(path, ids.as_ref().map_or(0, Vec::len), 1000);
        }
        checks.count("tags", self.tags.len(), 50);
        let mode = self.mode.as_deref().unwrap_or("hybrid");
        if !["hybrid", "semantic", "keyword"].contains(&mode) {
            checks.issue("mode", "enum", "mode must be hybrid, semantic or keyword");
        }
        checks.finish()
    }
}

/// What a query finds.
#[derive(Debug, Serialize, ToSchema)]
pub struct SearchResults {
    /// The best first.
    pub results: Vec<SearchResult>,
}

/// A piece of a document that was found.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SearchResult {
    /// Its document.
    pub document_id: String,
    /// Name of that.
    pub name: String,
    /// The version of the document that it is of.
    pub version: i32,
    /// Id of the piece.
    pub chunk_id: String,
    /// Headings above it, the outermost first.
    pub heading_path: Vec<String>,
    /// What it says.
    pub text: String,
    /// 0 to 1.
    pub score: f64,
}
