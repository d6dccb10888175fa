//! How documents refer to each other: by `[[wikilinks]]` to names, and as parts of one another.

use std::collections::{BTreeSet, HashMap};

use diesel::{
    dsl::sql,
    prelude::*,
    sql_types::{BigInt, Nullable, Text},
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
/// Bytes of texts that are looked at for links, in all and at once.
const MOST_TEXT: i64 = 16 << 20;
const MOST_AT_ONCE: i64 = 1 << 20;

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
    let links = |shown: &str| {
        format!(
            "(SELECT CASE WHEN position('[[' in markdown) > 0 THEN {shown} END FROM document_texts t \
             WHERE t.account_id = documents.account_id AND t.document_id = documents.id \
             AND t.content_hash = documents.content_hash)"
        )
    };
    type Row = (String, String, Option<String>);
    let rows: Vec<Row> = listed(account, filter)
        .order((documents::created_ms.desc(), documents::id.desc()))
        .limit(MOST_NODES)
        .select((documents::id, documents::name, documents::parent_id))
        .load(&mut conn)
        .await?;
    let ids: Vec<&String> = rows.iter().map(|(id, ..)| id).collect();
    let (mut named, mut left) = (Vec::new(), MOST_TEXT);
    for ids in ids.chunks(100) {
        let sizes: Vec<(String, Option<i64>)> = documents::table
            .filter(documents::account_id.eq(account.as_str()).and(documents::id.eq_any(ids)))
            .select((documents::id, sql::<Nullable<BigInt>>(&links("octet_length(markdown)::bigint"))))
            .load(&mut conn)
            .await?;
        let linking: Vec<(String, i64)> = sizes.into_iter().filter_map(|(id, size)| Some((id, size?))).collect();
        let mut linking = linking.as_slice();
        while let Some((_, first)) = linking.first().filter(|(_, size)| *size <= left) {
            let (mut together, mut size) = (1, *first);
            while let Some((_, more)) = linking.get(together).filter(|(_, more)| size + more <= left.min(MOST_AT_ONCE))
            {
                (together, size) = (together + 1, size + more);
            }
            let (now, later) = linking.split_at(together);
            (linking, left) = (later, left - size);
            let texts: Vec<(String, Option<String>)> = documents::table
                .filter(documents::account_id.eq(account.as_str()))
                .filter(documents::id.eq_any(now.iter().map(|(id, _)| id)))
                .select((documents::id, sql::<Nullable<Text>>(&links("markdown"))))
                .load(&mut conn)
                .await?;
            named.extend(run_blocking(move || Ok(named_in(texts))).await?);
        }
        if !linking.is_empty() {
            break;
        }
    }
    run_blocking(move || Ok(graph(rows, &named))).await
}

/// Each text with the names that it links to, in lower case.
fn named_in(texts: Vec<(String, Option<String>)>) -> Vec<(String, BTreeSet<String>)> {
    let names = |text: &str| wikilinks(text).map(str::to_lowercase).collect();
    texts.into_iter().map(|(id, text)| (id, text.as_deref().map(names).unwrap_or_default())).collect()
}

fn graph(rows: Vec<(String, String, Option<String>)>, named: &[(String, BTreeSet<String>)]) -> Graph {
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
    for (id, names) in named {
        for name in names {
            if let Some(to) = by_name.get(name).filter(|to| **to != id) {
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
        let texts = vec![("3".to_owned(), Some(text.to_owned())), ("1".to_owned(), Some("[[plan]]".to_owned()))];
        let graph = graph(rows, &named_in(texts));
        let edge = |from: &str, to: &str, r#type| GraphEdge { from: from.to_owned(), to: to.to_owned(), r#type };
        assert_eq!(graph.edges, [edge("2", "1", "parent"), edge("3", "1", "wikilink"), edge("3", "2", "wikilink")]);
    }
}
