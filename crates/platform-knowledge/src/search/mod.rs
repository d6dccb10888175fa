//! Search: which pieces of documents a query finds.

mod keyword;
mod model;
mod semantic;

use std::collections::HashMap;

use diesel::{
    pg::Pg,
    prelude::*,
    query_builder::{BoxedSqlQuery, SqlQuery},
    sql_types::{Array, Bool, Nullable, Text},
};
use diesel_async::RunQueryDsl;
use futures_util::try_join;
use platform_core::{AccountId, Code, Error, Result};
use platform_runtime::{Embedding, Payer, SecondaryCall, Spender, embed_soon};
use tracing::warn;

use crate::{document::PgKnowledge, schema::documents};
pub use model::{SearchQuery, SearchResult, SearchResults};
pub(crate) use semantic::Vectors;

/// Pieces that each way of searching adds to the fusion of both.
const FUSED: i64 = 50;
/// Of reciprocal rank fusion: how little the first ranks stand out (Cormack et al. 2009).
const RANK_SHIFT: f64 = 60.0;

/// What a search may find.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Bounds {
    /// These documents; `None` = all.
    pub documents: Option<Vec<String>>,
    /// Those in these folders, directly; `None` = all.
    pub folders: Option<Vec<String>>,
    /// Documents and folders are each enough, where both are said.
    pub either: bool,
    pub project: Option<String>,
    /// With one of these tags.
    pub tags: Vec<String>,
    /// In none or in one of these projects.
    pub within: Option<Vec<String>>,
}

/// The documents `d` of the account `$1` that are within the bounds `$2` to `$7`.
const WITHIN: &str = "d.account_id = $1 \
    AND ($2::text IS NULL OR d.project_id = $2) \
    AND (cardinality($3::text[]) = 0 OR d.tags ?| $3) \
    AND ($4::text[] IS NULL OR d.project_id IS NULL OR d.project_id = ANY($4)) \
    AND CASE WHEN $7 THEN d.id = ANY($5) OR d.folder_id = ANY($6) \
        ELSE ($5::text[] IS NULL OR d.id = ANY($5)) AND ($6::text[] IS NULL OR d.folder_id = ANY($6)) END";

/// A statement whose first parameters are an account and bounds.
type Bounded<'a> = BoxedSqlQuery<'a, Pg, SqlQuery>;

impl Bounds {
    fn bind<'a>(&'a self, statement: String, account: &'a AccountId) -> Bounded<'a> {
        diesel::sql_query(statement)
            .into_boxed::<Pg>()
            .bind::<Text, _>(account.as_str())
            .bind::<Nullable<Text>, _>(&self.project)
            .bind::<Array<Text>, _>(&self.tags)
            .bind::<Nullable<Array<Text>>, _>(&self.within)
            .bind::<Nullable<Array<Text>>, _>(&self.documents)
            .bind::<Nullable<Array<Text>>, _>(&self.folders)
            .bind::<Bool, _>(self.either)
    }
}

/// How pieces are looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Keyword,
    Semantic,
    /// Both; by words alone where there are no vectors.
    Hybrid,
}

/// What a query finds in an account, the best first.
pub(crate) async fn search(
    knowledge: &PgKnowledge,
    account: &AccountId,
    query: &SearchQuery,
    within: Option<Vec<String>>,
) -> Result<SearchResults> {
    let mode = match query.mode.as_deref() {
        Some("semantic") => Mode::Semantic,
        Some("keyword") => Mode::Keyword,
        _ => Mode::Hybrid,
    };
    let folders = match &query.folder_ids {
        Some(folders) => {
            Some(crate::folder::repository::tree(&mut *knowledge.db.conn().await?, account, folders).await?)
        }
        None => None,
    };
    let bounds = Bounds {
        documents: query.document_ids.clone(),
        folders,
        either: false,
        project: query.project_id.clone(),
        tags: query.tags.clone(),
        within,
    };
    let payer = payer(account, paying(knowledge, account, query.project_id.as_ref(), bounds.within.as_deref()).await?);
    let (results, _) = find(knowledge, &payer, &query.query, &bounds, query.limit, mode).await?;
    Ok(SearchResults { results })
}

/// The project that a search is in, if the caller may read what there is.
async fn paying(
    knowledge: &PgKnowledge,
    account: &AccountId,
    project: Option<&String>,
    within: Option<&[String]>,
) -> Result<Option<String>> {
    let project = project.filter(|project| within.is_none_or(|within| within.contains(project)));
    let Some(project) = project.filter(|_| knowledge.embedding_model().is_some()) else { return Ok(None) };
    let of = documents::table.filter(documents::account_id.eq(account.as_str()).and(documents::project_id.eq(project)));
    let is_any: bool = diesel::select(diesel::dsl::exists(of)).get_result(&mut *knowledge.db.conn().await?).await?;
    Ok(is_any.then(|| project.clone()))
}

/// Who pays for what nobody's turn asks for.
pub(crate) fn payer(account: &AccountId, project_id: Option<String>) -> Payer {
    let spender = Spender::Service("knowledge");
    Payer { account: account.clone(), tenant_id: None, subtenant_id: None, project_id, spender }
}

/// The same in documents, and in folders with all below them; and what it took of whoever pays.
pub(crate) async fn search_in(
    knowledge: &PgKnowledge,
    payer: &Payer,
    query: &str,
    documents: &[String],
    folders: &[String],
    limit: i64,
) -> Result<(Vec<SearchResult>, Vec<SecondaryCall>)> {
    let mut conn = knowledge.db.conn().await?;
    let folders = crate::folder::repository::tree(&mut conn, &payer.account, folders).await?;
    drop(conn);
    let bounds =
        Bounds { documents: Some(documents.to_vec()), folders: Some(folders), either: true, ..Bounds::default() };
    find(knowledge, payer, query, &bounds, limit, Mode::Hybrid).await
}

async fn find(
    knowledge: &PgKnowledge,
    payer: &Payer,
    query: &str,
    bounds: &Bounds,
    limit: i64,
    mode: Mode,
) -> Result<(Vec<SearchResult>, Vec<SecondaryCall>)> {
    let (db, account) = (&knowledge.db, &payer.account);
    let by_words = |limit| keyword::search(db, account, query, bounds, limit);
    let model = match (mode, knowledge.embedding_model()) {
        (Mode::Semantic, None) => {
            let message = "There is no semantic index: no embedding model is configured. Search by keyword.";
            return Err(Error::new(Code::PROVIDER_NOT_CONFIGURED, message));
        }
        (Mode::Keyword, _) | (Mode::Hybrid, None) => return Ok((by_words(limit).await?, Vec::new())),
        (Mode::Semantic | Mode::Hybrid, Some(model)) => model,
    };
    let meant = async {
        let asked = knowledge.budget.model(payer, None);
        let query = [query.to_owned()];
        let embedded = match mode {
            Mode::Semantic => asked.embed(&query).await,
            // Words are there at once.
            _ => embed_soon(&*asked, &query).await,
        };
        let embedding = match embedded {
            Ok(embedding) => embedding,
            Err(fault) if mode == Mode::Semantic => return Err(Error::from(&fault)),
            Err(fault) => {
                warn!(reason = fault.message, "A query could not be embedded; it is searched for by its words.");
                return Ok((Vec::new(), Vec::new()));
            }
        };
        let spent = SecondaryCall::from(&embedding);
        let Embedding { mut vectors, .. } = embedding;
        let vector = vectors.pop().unwrap_or_default();
        let limit = if mode == Mode::Hybrid { FUSED.max(limit) } else { limit };
        let found = knowledge.vectors.search(db, account, &model, vector, bounds, limit).await?;
        Ok((found, vec![spent]))
    };
    if mode == Mode::Semantic {
        return meant.await;
    }
    let (said, (meant, asked)) = try_join!(by_words(FUSED.max(limit)), meant)?;
    if asked.is_empty() {
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        return Ok((said.into_iter().take(limit).collect(), asked));
    }
    Ok((fused([said, meant], limit), asked))
}

/// Reciprocal rank fusion of lists, the best first; who leads both has the score 1.
fn fused(lists: [Vec<SearchResult>; 2], limit: i64) -> Vec<SearchResult> {
    let best = 2.0 / (RANK_SHIFT + 1.0);
    let mut fused: HashMap<String, SearchResult> = HashMap::new();
    for list in lists {
        for (rank, result) in (1_u32..).zip(list) {
            let score = 1.0 / (RANK_SHIFT + f64::from(rank)) / best;
            let of = fused.entry(result.chunk_id.clone()).or_insert(SearchResult { score: 0.0, ..result });
            of.score += score;
        }
    }
    let mut results: Vec<SearchResult> = fused.into_values().collect();
    results.sort_by(|a, b| b.score.total_cmp(&a.score).then_with(|| a.chunk_id.cmp(&b.chunk_id)));
    results.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
    for result in &mut results {
        result.score = rounded(result.score);
    }
    results
}

/// A score as it is shown.
fn rounded(score: f64) -> f64 {
    (score.clamp(0.0, 1.0) * 10_000.0).round() / 10_000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_both_ways_find_comes_before_what_one_finds() {
        let result = |id: &str| SearchResult {
            document_id: "d".to_owned(),
            name: String::new(),
            version: 1,
            chunk_id: id.to_owned(),
            heading_path: Vec::new(),
            text: String::new(),
            score: 0.5,
        };
        let lists = [vec![result("a"), result("b"), result("c")], vec![result("b"), result("d"), result("a")]];
        let found = fused(lists, 3);
        assert_eq!(found.iter().map(|found| found.chunk_id.as_str()).collect::<Vec<_>>(), ["b", "a", "d"]);
        assert!(found[0].score < 1.0 && found[0].score > 0.98);
        assert!((fused([vec![result("a")], vec![result("a")]], 1)[0].score - 1.0).abs() < 1e-9);
    }
}
