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

/// Documents of a graph, and what is told of how they refer to each other.
const MAX_NODES: i64 = 5000;
const MAX_EDGES: usize = 50_000;
/// Bytes of texts that are looked at for links, in all and at once.
const MAX_TEXT: i64 = 16 << 20;
const MAX_AT_ONCE: i64 = 1 << 20;

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
    let of_text = |shown: &str| {
        format!(
            "(SELECT CASE WHEN position('[[' in markdown) > 0 THEN {shown} END FROM document_texts t \
             WHERE t.account_id = documents.account_id AND t.document_id = documents.id \
             AND t.content_hash = documents.content_hash)"
        )
    };
    let rows: Vec<Row> = listed(account, filter)
        .order((documents::created_ms.desc(), documents::id.desc()))
        .limit(MAX_NODES)
        .select((documents::id, documents::name, documents::parent_id))
        .load(&mut conn)
        .await?;
    let ids: Vec<&String> = rows.iter().map(|(id, ..)| id).collect();
    let (mut links, mut left) = (Links::between(&rows), MAX_TEXT);
    for ids in ids.chunks(100) {
        let sizes: Vec<(String, Option<i64>)> = documents::table
            .filter(documents::account_id.eq(account.as_str()).and(documents::id.eq_any(ids)))
            .select((documents::id, sql::<Nullable<BigInt>>(&of_text("octet_length(markdown)::bigint"))))
            .load(&mut conn)
            .await?;
        let linking: Vec<(String, i64)> = sizes.into_iter().filter_map(|(id, size)| Some((id, size?))).collect();
        let mut linking = linking.as_slice();
        while let Some((_, first)) = linking.first().filter(|(_, size)| *size <= left) {
            let (mut together, mut size) = (1, *first);
            while let Some((_, more)) = linking.get(together).filter(|(_, more)| size + more <= left.min(MAX_AT_ONCE)) {
                (together, size) = (together + 1, size + more);
            }
            let (now, later) = linking.split_at(together);
            (linking, left) = (later, left - size);
            let texts: Vec<(String, Option<String>)> = documents::table
                .filter(documents::account_id.eq(account.as_str()))
                .filter(documents::id.eq_any(now.iter().map(|(id, _)| id)))
                .select((documents::id, sql::<Nullable<Text>>(&of_text("markdown"))))
                .load(&mut conn)
                .await?;
            links = run_blocking(move || Ok(links.with(&texts))).await?;
        }
        if !linking.is_empty() || links.are_full() {
            break;
        }
    }
    run_blocking(move || Ok(links.graph(rows))).await
}

/// Id, name and parent of a document.
type Row = (String, String, Option<String>);

/// How documents refer to each other, by their places among all.
struct Links {
    by_id: HashMap<String, usize>,
    by_name: HashMap<String, usize>,
    /// From, to; `wikilink` or `parent`.
    found: BTreeSet<(usize, usize, &'static str)>,
}

impl Links {
    /// Those of parts.
    fn between(rows: &[Row]) -> Self {
        let by_id = rows.iter().enumerate().map(|(at, (id, ..))| (id.clone(), at)).collect();
        let by_name = rows.iter().enumerate().map(|(at, (_, name, _))| (name.to_lowercase(), at)).collect();
        let mut links = Self { by_id, by_name, found: BTreeSet::new() };
        for (at, (.., parent)) in rows.iter().enumerate() {
            links.found.extend(parent.as_ref().and_then(|parent| Some((at, *links.by_id.get(parent)?, "parent"))));
        }
        links
    }

    /// With those in texts.
    fn with(mut self, texts: &[(String, Option<String>)]) -> Self {
        for (id, text) in texts {
            let Some(from) = self.by_id.get(id).copied() else { continue };
            for name in wikilinks(text.as_deref().unwrap_or_default()) {
                if self.are_full() {
                    return self;
                }
                let to = self.by_name.get(&name.to_lowercase()).copied().filter(|to| *to != from);
                self.found.extend(to.map(|to| (from, to, "wikilink")));
            }
        }
        self
    }

    fn are_full(&self) -> bool {
        self.found.len() >= MAX_EDGES
    }

    fn graph(self, rows: Vec<Row>) -> Graph {
        let edge = |(from, to, r#type): (usize, usize, _)| GraphEdge {
            from: rows[from].0.clone(),
            to: rows[to].0.clone(),
            r#type,
        };
        let edges = self.found.into_iter().map(edge).collect();
        Graph { edges, nodes: rows.into_iter().map(|(id, name, _)| GraphNode { id, name }).collect() }
    }
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
        let graph = Links::between(&rows).with(&texts).graph(rows);
        let edge = |from: &str, to: &str, r#type| GraphEdge { from: from.to_owned(), to: to.to_owned(), r#type };
        assert_eq!(graph.edges, [edge("2", "1", "parent"), edge("3", "1", "wikilink"), edge("3", "2", "wikilink")]);
    }

    #[test]
    fn a_graph_where_all_refer_to_all_ends() {
        let rows: Vec<Row> = (0..400).map(|n| (format!("id{n}"), format!("n{n}"), None)).collect();
        let all = (0..400).fold(String::new(), |all, n| format!("{all}[[n{n}]]"));
        let texts: Vec<_> = (0..400).map(|n| (format!("id{n}"), Some(all.clone()))).collect();
        assert_eq!(Links::between(&rows).with(&texts).graph(rows).edges.len(), MAX_EDGES);
    }
}
