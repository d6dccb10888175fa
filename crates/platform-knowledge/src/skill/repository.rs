use std::collections::HashMap;

use diesel::{
    prelude::*,
    sql_types::{Array, BigInt, Jsonb, Nullable, Text},
};
use diesel_async::RunQueryDsl;
use platform_core::{AccountId, Error, Page, Result, Timestamp};
use platform_db::Conn;
use serde_json::{Value, json};

use super::{
    frontmatter::{HEAD_BYTES, identity, shortened},
    model::{Skill, SkillFilter, SkillRef},
};
use crate::{code, uses};

/// So many skills are read at once, where all of them are looked at.
const BATCH: i64 = 1000;
/// So many are shown where nobody says how many.
pub(super) const MOST: i64 = 2000;
/// Tags that are listed.
const MAX_TAGS: i64 = 1000;

#[derive(QueryableByName)]
struct Row {
    #[diesel(sql_type = Text)]
    id: String,
    #[diesel(sql_type = Text)]
    kind: String,
    #[diesel(sql_type = Text)]
    name: String,
    #[diesel(sql_type = Text)]
    summary: String,
    #[diesel(sql_type = Jsonb)]
    tags: Value,
    #[diesel(sql_type = Nullable<Text>)]
    project_id: Option<String>,
    #[diesel(sql_type = Text)]
    head: String,
    #[diesel(sql_type = BigInt)]
    read_count: i64,
    #[diesel(sql_type = Nullable<BigInt>)]
    last_read_ms: Option<i64>,
    #[diesel(sql_type = BigInt)]
    agents: i64,
    #[diesel(sql_type = BigInt)]
    assistants: i64,
    #[diesel(sql_type = BigInt)]
    installs: i64,
    #[diesel(sql_type = BigInt)]
    created_ms: i64,
    /// How many there are, on all pages.
    #[diesel(sql_type = BigInt)]
    total: i64,
}

const LIST: &str = "\
    WITH skills AS (\
        SELECT id, 'document' AS kind, name, summary, tags, project_id, created_ms, id AS text_of \
        FROM documents WHERE account_id = $1 AND is_skill AND ($2::text[] IS NULL OR id = ANY($2)) \
        UNION ALL SELECT f.id, 'folder', f.name, '', f.tags, f.project_id, f.created_ms, \
            (SELECT d.id FROM documents d WHERE d.account_id = f.account_id AND d.folder_id = f.id \
                AND upper(d.name) = 'SKILL' \
                ORDER BY upper(d.file_name) = 'SKILL.MD' DESC, d.created_ms, d.id LIMIT 1) \
        FROM folders f WHERE f.account_id = $1 AND f.is_skill AND ($2::text[] IS NULL OR f.id = ANY($2))) \
    SELECT s.id, s.kind, s.name, s.summary, s.tags, s.project_id, \
        coalesce((SELECT left(t.markdown, $3) FROM documents d JOIN document_texts t ON t.account_id = d.account_id \
            AND t.document_id = d.id AND t.content_hash = d.content_hash \
            WHERE d.account_id = $1 AND d.id = s.text_of), '') AS head, \
        coalesce(r.read_count, 0) AS read_count, r.last_read_ms, \
        (SELECT count(*) FROM uses u WHERE u.account_id = $1 AND u.target_kind = 'skill' AND u.target_id = s.id \
            AND u.user_kind = 'agent') AS agents, \
        (SELECT count(*) FROM uses u WHERE u.account_id = $1 AND u.target_kind = 'skill' AND u.target_id = s.id \
            AND u.user_kind = 'assistant') AS assistants, \
        (SELECT count(*) FROM skill_installs i WHERE i.account_id = $1 AND i.skill_id = s.id) AS installs, \
        s.created_ms, count(*) OVER () AS total \
    FROM skills s LEFT JOIN skill_reads r ON r.account_id = $1 AND r.skill_id = s.id \
    WHERE ($4::text IS NULL OR s.project_id = $4) \
        AND ($5::text[] IS NULL OR s.project_id IS NULL OR s.project_id = ANY($5)) \
        AND (cardinality($6::text[]) = 0 OR s.tags ?| $6) \
        AND (s.created_ms, s.id) < ($7, $8) \
    ORDER BY s.created_ms DESC, s.id DESC LIMIT $9 OFFSET $10";

/// Where the newest skills begin.
const NEWEST: (i64, &str) = (i64::MAX, "");

/// The skills that a filter keeps, newest first, and how many there are; their versions are not known yet. `ids`: of
/// these alone; `page`: of it alone.
pub(super) async fn list(
    conn: &Conn,
    account: &AccountId,
    ids: Option<&[String]>,
    filter: &SkillFilter,
    page: Option<Page>,
) -> Result<(Vec<Skill>, i64)> {
    let search = filter.search.as_ref().map(|search| search.to_lowercase());
    if let (Some(page), None) = (page, &search) {
        let rows = read(conn, account, ids, filter, (NEWEST, page.limit, page.offset)).await?;
        let total_of = |rows: &[Row]| rows.first().map(|row| row.total);
        let total = match total_of(&rows) {
            Some(total) => total,
            // Behind the last page nobody says how many there are.
            None => total_of(&read(conn, account, ids, filter, (NEWEST, 1, 0)).await?).unwrap_or(0),
        };
        return Ok((rows.into_iter().map(shown).collect::<Result<_>>()?, total));
    }
    let is_found = |skill: &Skill| {
        let within = |text: &str| search.as_ref().is_none_or(|search| text.to_lowercase().contains(search));
        within(&skill.name) || within(&skill.description)
    };
    let page = page.unwrap_or(Page { limit: MOST, offset: 0 });
    let (mut skills, mut total, mut last) = (Vec::new(), 0, (NEWEST.0, NEWEST.1.to_owned()));
    loop {
        let rows = read(conn, account, ids, filter, ((last.0, &last.1), BATCH, 0)).await?;
        let is_last = rows.len() < usize::try_from(BATCH).unwrap_or(usize::MAX);
        if let Some(row) = rows.last() {
            last = (row.created_ms, row.id.clone());
        }
        for skill in rows.into_iter().map(shown) {
            let skill = skill?;
            if is_found(&skill) {
                if total >= page.offset && total - page.offset < page.limit {
                    skills.push(skill);
                }
                total += 1;
            }
        }
        if is_last {
            return Ok((skills, total));
        }
    }
}

/// The skills after the one that was made then, so many of them, behind an offset.
async fn read(
    conn: &Conn,
    account: &AccountId,
    ids: Option<&[String]>,
    filter: &SkillFilter,
    ((before, id), limit, offset): ((i64, &str), i64, i64),
) -> Result<Vec<Row>> {
    let mut conn = conn;
    let tags = filter.tags.iter().flat_map(|tags| tags.split(',')).map(str::trim).filter(|tag| !tag.is_empty());
    let tags: Vec<String> = tags.map(str::to_owned).collect();
    let rows = diesel::sql_query(LIST)
        .bind::<Text, _>(account.as_str())
        .bind::<Nullable<Array<Text>>, _>(ids)
        .bind::<diesel::sql_types::Integer, _>(i32::try_from(HEAD_BYTES).unwrap_or(i32::MAX))
        .bind::<Nullable<Text>, _>(&filter.project_id)
        .bind::<Nullable<Array<Text>>, _>(&filter.within)
        .bind::<Array<Text>, _>(tags)
        .bind::<BigInt, _>(before)
        .bind::<Text, _>(id)
        .bind::<BigInt, _>(limit)
        .bind::<BigInt, _>(offset)
        .load(&mut conn)
        .await?;
    Ok(rows)
}

fn shown(row: Row) -> Result<Skill> {
    let (name, description) = identity(&row.head);
    Ok(Skill {
        id: row.id,
        r#type: if row.kind == "folder" { "folder" } else { "document" },
        name: name.unwrap_or(row.name),
        description: description.unwrap_or_else(|| shortened(&row.summary)),
        tags: serde_json::from_value(row.tags).map_err(Error::internal)?,
        project_id: row.project_id,
        version: String::new(),
        read_count: row.read_count,
        last_read_at: row.last_read_ms.map(|ms| Timestamp(ms).to_iso()),
        linked_agents_count: Some(row.agents),
        linked_assistants_count: Some(row.assistants),
        install_count: Some(row.installs),
    })
}

#[derive(QueryableByName)]
struct Tag {
    #[diesel(sql_type = Text)]
    tag: String,
}

const TAGS: &str = "\
    WITH skills AS (\
        SELECT tags, project_id FROM documents WHERE account_id = $1 AND is_skill \
        UNION ALL SELECT tags, project_id FROM folders WHERE account_id = $1 AND is_skill) \
    SELECT DISTINCT tag COLLATE \"C\" AS tag FROM skills, jsonb_array_elements_text(tags) AS of(tag) \
    WHERE ($2::text IS NULL OR project_id = $2) \
        AND ($3::text[] IS NULL OR project_id IS NULL OR project_id = ANY($3)) ORDER BY 1 LIMIT $4";

/// Tags of the skills of a project or of all, in their order.
pub(super) async fn tags(conn: &Conn, account: &AccountId, filter: &SkillFilter) -> Result<Vec<String>> {
    let mut conn = conn;
    let tags = diesel::sql_query(TAGS)
        .bind::<Text, _>(account.as_str())
        .bind::<Nullable<Text>, _>(&filter.project_id)
        .bind::<Nullable<Array<Text>>, _>(&filter.within)
        .bind::<BigInt, _>(MAX_TAGS);
    Ok(tags.load::<Tag>(&mut conn).await?.into_iter().map(|of| of.tag).collect())
}

/// A model loaded a skill.
pub(super) async fn note_read(conn: &mut Conn, account: &AccountId, skill: &str, now: Timestamp) -> Result<()> {
    let note = "INSERT INTO skill_reads VALUES ($1, $2, 1, $3) ON CONFLICT (account_id, skill_id) \
        DO UPDATE SET read_count = skill_reads.read_count + 1, last_read_ms = $3";
    let note = diesel::sql_query(note).bind::<Text, _>(account.as_str()).bind::<Text, _>(skill);
    note.bind::<BigInt, _>(now.0).execute(conn).await?;
    Ok(())
}

/// Somebody has a copy of a skill, or no longer.
pub(super) async fn set_installed(
    conn: &mut Conn,
    account: &AccountId,
    skill: &str,
    (caller, scope): (&str, &str),
    install: Option<(&[String], Option<&str>, Timestamp)>,
) -> Result<()> {
    let Some((agents, version, now)) = install else {
        let gone = "DELETE FROM skill_installs WHERE account_id = $1 AND skill_id = $2 AND caller = $3 AND scope = $4";
        let gone = diesel::sql_query(gone).bind::<Text, _>(account.as_str()).bind::<Text, _>(skill);
        gone.bind::<Text, _>(caller).bind::<Text, _>(scope).execute(conn).await?;
        return Ok(());
    };
    let note = "INSERT INTO skill_installs VALUES ($1, $2, $3, $4, $5, $6, $7) \
        ON CONFLICT (account_id, skill_id, caller, scope) \
        DO UPDATE SET agents = $5, cli_version = $6, installed_ms = $7";
    let note = diesel::sql_query(note).bind::<Text, _>(account.as_str()).bind::<Text, _>(skill);
    let note = note.bind::<Text, _>(caller).bind::<Text, _>(scope).bind::<Jsonb, _>(json!(agents));
    note.bind::<Nullable<Text>, _>(version).bind::<BigInt, _>(now.0).execute(conn).await?;
    Ok(())
}

/// Forgets what was counted of documents or folders that are deleted.
pub(crate) async fn forget(conn: &mut Conn, account: &AccountId, ids: &[String]) -> Result<()> {
    for of in ["skill_reads", "skill_installs"] {
        let forget = format!("DELETE FROM {of} WHERE account_id = $1 AND skill_id = ANY($2)");
        let forget = diesel::sql_query(forget).bind::<Text, _>(account.as_str()).bind::<Array<Text>, _>(ids);
        forget.execute(conn).await?;
    }
    Ok(())
}

/// `INVALID_SKILLS` when one of these is no skill of its type; all stay until the transaction ends.
pub(crate) async fn check_in(conn: &mut Conn, account: &AccountId, skills: &[SkillRef]) -> Result<()> {
    let ids: Vec<String> = skills.iter().map(|skill| skill.id.clone()).collect();
    uses::known_documents(conn, account, &ids).await?;
    uses::known_folders(conn, account, &ids).await?;
    let known: HashMap<String, &'static str> =
        if ids.is_empty() { HashMap::new() } else { skill_types(conn, account, &ids).await? };
    let wrong: Vec<Value> = skills
        .iter()
        .filter_map(|skill| match (skill.r#type.as_str(), known.get(&skill.id)) {
            ("document" | "folder", None) => Some(json!({"id": skill.id, "reason": "NOT_FOUND"})),
            ("document" | "folder", Some(of)) if *of == skill.r#type => None,
            ("document" | "folder", Some(of)) => {
                Some(json!({"id": skill.id, "reason": "WRONG_TYPE", "expectedType": of}))
            }
            _ => Some(json!({"id": skill.id, "reason": "INVALID_TYPE"})),
        })
        .collect();
    if wrong.is_empty() {
        return Ok(());
    }
    let names: Vec<&str> = wrong.iter().filter_map(|skill| skill["id"].as_str()).collect();
    let message = format!("These are no skills of that type: {}; see details.skills.", names.join(", "));
    Err(Error::new(code::INVALID_SKILLS, message).with("skills", wrong))
}

/// Which of these ids are skills: documents or folders.
pub(super) async fn skill_types(
    conn: &Conn,
    account: &AccountId,
    ids: &[String],
) -> Result<HashMap<String, &'static str>> {
    use crate::schema::{documents, folders};
    let (mut first, mut second) = (conn, conn);
    let found: Vec<String> = documents::table
        .filter(documents::account_id.eq(account.as_str()).and(documents::id.eq_any(ids)))
        .filter(documents::is_skill)
        .select(documents::id)
        .load(&mut first)
        .await?;
    let mut known: HashMap<String, &'static str> = found.into_iter().map(|id| (id, "document")).collect();
    let found: Vec<String> = folders::table
        .filter(folders::account_id.eq(account.as_str()).and(folders::id.eq_any(ids)))
        .filter(folders::is_skill)
        .select(folders::id)
        .load(&mut second)
        .await?;
    known.extend(found.into_iter().map(|id| (id, "folder")));
    Ok(known)
}
