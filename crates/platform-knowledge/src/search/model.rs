use diesel::{
    QueryableByName,
    sql_types::{Double, Integer, Jsonb, Text},
};
use platform_core::{Checks, Error, Result};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::rounded;

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
    #[schema(default = default_limit)]
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

/// A piece as a search finds it.
#[derive(QueryableByName)]
pub(super) struct Found {
    #[diesel(sql_type = Text)]
    document_id: String,
    #[diesel(sql_type = Text)]
    name: String,
    #[diesel(sql_type = Integer)]
    version: i32,
    #[diesel(sql_type = Text)]
    chunk_id: String,
    #[diesel(sql_type = Jsonb)]
    heading_path: Value,
    #[diesel(sql_type = Text)]
    text: String,
    #[diesel(sql_type = Double)]
    score: f64,
}

impl Found {
    /// As it is sent; `score` makes what it was found with a number from 0 to 1.
    pub fn shown(self, score: impl Fn(f64) -> f64) -> Result<SearchResult> {
        Ok(SearchResult {
            document_id: self.document_id,
            name: self.name,
            version: self.version,
            chunk_id: self.chunk_id,
            heading_path: serde_json::from_value(self.heading_path).map_err(Error::internal)?,
            text: self.text,
            score: rounded(score(self.score)),
        })
    }
}
