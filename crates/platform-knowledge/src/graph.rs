//! How documents refer to each other: by `[[wikilinks]]` to names, and as parts of one another.

use std::collections::{BTreeSet, HashMap};

use diesel::{
    dsl::sql,
    prelude::*,
    sql_types::{Nullable, Text},
};
use diesel_async::RunQueryDsl;
use platform_core::{AccountId, Result, run_blocking};
use platform_db::Conn;
use serde::Serialize;
use utoipa::ToSchema;

use crate::{
    document::{DocumentFilter, repository::listed},
    schema::documents,
};

/// Documents of a graph.
const MOST_NODES: i64 = 5000;
/// Bytes of texts that are looked at for links.
const MOST_TEXT: usize = 16 << 20;

/// Documents and how they refer to each other.
#[derive(Debug, Default, Serialize, ToSchema)]
pub struct Graph {
    /// Documents, newest first, at most 5,000.
    pub nodes: Vec<GraphNode>,
    /// What refers to what.
    pub edges: Vec<GraphEdge>,
}

/// A document.
#[derive(Debug, Serialize, ToSchema)]
pub struct GraphNode {
    /// Id.
    pub id: String,
    /// Name.
    pub name: String,
}

/// A reference.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, ToSchema)]
pub struct GraphEdge {
    /// The document that refers; of parts the part.
    pub from: String,
    /// The one that it refers to.
    pub to: String,
    /// `wikilink` or `parent`.
    pub r#type: &'static str,
}

/// The documents that a filter keeps. Links are looked for in the texts that have some.
pub(crate) async fn of(conn: &Conn, account: &AccountId, filter: &DocumentFilter) -> Result<Graph> {
    let mut conn = conn;
    let links = "(SELECT CASE WHEN position('[[' in markdown) > 0 THEN markdown END FROM document_texts t \
         WHERE t.account_id = documents.account_id AND t.document_id = documents.id \
         AND t.content_hash = documents.content_hash)";
    type Row = (String, String, Option<String>);
    let rows: Vec<Row> = listed(account, filter)
        .order((documents::created_ms.desc(), documents::id.desc()))
        .limit(MOST_NODES)
        .select((documents::id, documents::name, documents::parent_id))
        .load(&mut conn)
        .await?;
    let ids: Vec<&String> = rows.iter().map(|(id, ..)| id).collect();
    let mut texts: Vec<(String, String)> = Vec::new();
    for ids in ids.chunks(100) {
        let found: Vec<(String, Option<String>)> = documents::table
            .filter(documents::account_id.eq(account.as_str()).and(documents::id.eq_any(ids)))
            .select((documents::id, sql::<Nullable<Text>>(links)))
            .load(&mut conn)
            .await?;
        texts.extend(found.into_iter().filter_map(|(id, text)| Some((id, text?))));
        if texts.iter().map(|(_, text)| text.len()).sum::<usize>() > MOST_TEXT {
            break;
        }
    }
    run_blocking(move || Ok(graph(rows, &texts))).await
}

fn graph(rows: Vec<(String, String, Option<String>)>, texts: &[(String, String)]) -> Graph {
    let mut by_name: HashMap<String, &str> = HashMap::new();
    for (id, name, _) in &rows {
        by_name.insert(name.to_lowercase(), id);
    }
    let known: BTreeSet<&str> = rows.iter().map(|(id, ..)| id.as_str()).collect();
    let mut edges = BTreeSet::new();
    for (id, _, parent) in &rows {
        if let Some(parent) = parent.as_ref().filter(|parent| known.contains(parent.as_str())) {
            edges.insert(GraphEdge { from: id.clone(), to: parent.clone(), r#type: "parent" });
        }
    }
    for (id, text) in texts {
        for name in wikilinks(text) {
            if let Some(to) = by_name.get(&name.to_lowercase()).filter(|to| **to != id) {
                edges.insert(GraphEdge { from: id.clone(), to: (*to).to_owned(), r#type: "wikilink" });
            }
        }
    }
    let nodes = rows.into_iter().map(|(id, name, _)| GraphNode { id, name }).collect();
    Graph { nodes, edges: edges.into_iter().collect() }
}

/// Names that a text links to: `[[name]]`, `[[name|shown]]`, `[[name#heading]]`.
fn wikilinks(text: &str) -> impl Iterator<Item = &str> {
    text.split("[[").skip(1).filter_map(|rest| {
        let (link, _) = rest.split_once("]]")?;
        let name = link.split(['|', '#']).next().unwrap_or_default().trim();
        (!name.is_empty() && name.len() <= 800 && !link.contains('\n')).then_some(name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_those_in_double_brackets() {
        let text = "See [[Plan]], [[Other plan|that one]] and [[Plan#Goals]]; [[ ]] [[open\n]] [not]";
        assert_eq!(wikilinks(text).collect::<Vec<_>>(), ["Plan", "Other plan", "Plan"]);
        let row =
            |id: &str, name: &str, parent: Option<&str>| (id.to_owned(), name.to_owned(), parent.map(str::to_owned));
        let rows = vec![row("1", "Plan", None), row("2", "other PLAN", Some("1")), row("3", "Lost", Some("9"))];
        let graph = graph(rows, &[("3".to_owned(), text.to_owned()), ("1".to_owned(), "[[plan]]".to_owned())]);
        let edge = |from: &str, to: &str, r#type| GraphEdge { from: from.to_owned(), to: to.to_owned(), r#type };
        assert_eq!(graph.edges, [edge("2", "1", "parent"), edge("3", "1", "wikilink"), edge("3", "2", "wikilink")]);
    }
}
