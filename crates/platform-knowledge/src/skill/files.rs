//! The files of skills: what lies in their folders, under which paths, and what version that is.

use std::{
    collections::{HashMap, HashSet},
    path::Path,
};

use diesel::{
    QueryableByName,
    sql_types::{Array, BigInt, Nullable, Text},
};
use diesel_async::RunQueryDsl;
use platform_core::{AccountId, Code, Error, Result, run_blocking, sha256_hex};
use platform_db::Conn;

use super::model::Skill;

/// Bytes of a skill that is read as a whole, its paths among them; of the paths alone of one that is listed.
pub(super) const MAX_TREE: usize = 8 << 20;
/// Files of such a skill.
const MAX_FILES: usize = 2000;

/// A folder of a skill, or a skill.
#[derive(QueryableByName)]
struct Level {
    #[diesel(sql_type = Text)]
    id: String,
    #[diesel(sql_type = Nullable<Text>)]
    parent_id: Option<String>,
    #[diesel(sql_type = Text)]
    name: String,
    /// Digest of the names and contents of the documents directly in it.
    #[diesel(sql_type = Nullable<Text>)]
    content: Option<String>,
}

/// Each folder once, in however many skills it lies: skills may lie within one another.
const LEVELS: &str = "\
    WITH RECURSIVE tree AS (\
        SELECT id, parent_id, name FROM folders WHERE account_id = $1 AND id = ANY($2) \
        UNION SELECT f.id, f.parent_id, f.name FROM folders f JOIN tree ON f.parent_id = tree.id \
            WHERE f.account_id = $1), \
    of AS (\
        SELECT tree.*, d.file_name, coalesce(d.binary_hash, d.content_hash) AS hash FROM tree \
        LEFT JOIN documents d ON d.account_id = $1 AND d.folder_id = tree.id \
        UNION ALL SELECT id, NULL, '', file_name, coalesce(binary_hash, content_hash) FROM documents \
            WHERE account_id = $1 AND id = ANY($2)) \
    SELECT id, parent_id, name, encode(sha256(convert_to(\
        string_agg(file_name || '/' || hash, E'\\n' ORDER BY file_name COLLATE \"C\", hash), 'UTF8')), 'hex') \
        AS content FROM of GROUP BY id, parent_id, name";

/// Gives skills their versions: digests of all paths and contents (contract 14).
pub(super) async fn give_versions(conn: &Conn, account: &AccountId, skills: &mut [Skill]) -> Result<()> {
    let mut conn = conn;
    let ids: Vec<&String> = skills.iter().map(|skill| &skill.id).collect();
    let levels = diesel::sql_query(LEVELS).bind::<Text, _>(account.as_str()).bind::<Array<Text>, _>(ids);
    let levels: Vec<Level> = levels.load(&mut conn).await?;
    let digests = run_blocking(move || Ok(digests(&levels))).await?;
    for skill in skills {
        let digest = digests.get(&skill.id).map_or("", String::as_str);
        digest[..digest.len().min(16)].clone_into(&mut skill.version);
    }
    Ok(())
}

/// A digest of all that lies in each folder, of each folder once.
fn digests(levels: &[Level]) -> HashMap<String, String> {
    let known: HashSet<&str> = levels.iter().map(|level| level.id.as_str()).collect();
    let mut within: HashMap<&str, Vec<&Level>> = HashMap::new();
    let mut order: Vec<&Level> = Vec::new();
    for level in levels {
        match level.parent_id.as_deref().filter(|parent| known.contains(parent)) {
            Some(parent) => within.entry(parent).or_default().push(level),
            None => order.push(level),
        }
    }
    let below = |level: &Level| within.get(level.id.as_str()).into_iter().flatten().copied();
    let mut at = 0;
    while at < order.len() {
        order.extend(below(order[at]));
        at += 1;
    }
    let mut digests: HashMap<String, String> = HashMap::new();
    // What lies in a folder comes before it.
    for level in order.into_iter().rev() {
        let mut parts: Vec<String> =
            below(level).map(|folder| format!("{}/{}", folder.name, digests[&folder.id])).collect();
        parts.sort();
        parts.push(level.content.clone().unwrap_or_default());
        digests.insert(level.id.clone(), sha256_hex(parts.join("\n")));
    }
    digests
}

/// A file of a skill, without what is in it.
#[derive(QueryableByName)]
pub(super) struct FileRow {
    #[diesel(sql_type = Nullable<Text>)]
    folder: Option<String>,
    #[diesel(sql_type = Text)]
    name: String,
    #[diesel(sql_type = Text)]
    pub document: String,
    #[diesel(sql_type = Text)]
    pub file_type: String,
    #[diesel(sql_type = Text)]
    pub content_hash: String,
    #[diesel(sql_type = BigInt)]
    size: i64,
    /// The file that it is, where that is no text.
    #[diesel(sql_type = Nullable<Text>)]
    pub binary: Option<String>,
}

impl FileRow {
    /// Bytes of its text.
    pub fn bytes(&self) -> usize {
        usize::try_from(self.size).unwrap_or(usize::MAX)
    }
}

/// The files of a skill with their paths, by path, as many as can be listed.
pub(super) struct Listing {
    pub files: Vec<(String, FileRow)>,
    is_whole: bool,
}

impl Listing {
    /// All files, when they can be read as a whole: `PAYLOAD_TOO_LARGE`.
    pub fn whole(self) -> Result<Vec<(String, FileRow)>> {
        let size = |(path, file): &(String, FileRow)| path.len().saturating_add(file.bytes());
        let all = self.files.iter().fold(0_usize, |all, file| all.saturating_add(size(file)));
        if self.is_whole && all <= MAX_TREE {
            return Ok(self.files);
        }
        Err(too_large())
    }

    /// The instructions of the skill.
    pub fn main(&self) -> Option<&(String, FileRow)> {
        let is_called = |path: &Path, name: &str| path.as_os_str().eq_ignore_ascii_case(name);
        let named = self.files.iter().find(|(path, _)| is_called(Path::new(path), "SKILL.md"));
        let stem = |path: &str| Path::new(path).with_extension("");
        let named = named.or_else(|| self.files.iter().find(|(path, _)| is_called(&stem(path), "SKILL")));
        named.or(self.files.as_slice().first())
    }
}

/// A skill cannot be read as a whole.
pub(super) fn too_large() -> Error {
    let message = format!(
        "This skill has more than {MAX_FILES} files, or 8 MiB of texts or of other files; read them one by one."
    );
    Error::new(Code::PAYLOAD_TOO_LARGE, message).with("limitBytes", MAX_TREE)
}

#[derive(QueryableByName)]
struct FolderName {
    #[diesel(sql_type = Text)]
    id: String,
    #[diesel(sql_type = Text)]
    parent: String,
    #[diesel(sql_type = Text)]
    name: String,
}

const BELOW: &str = "\
    WITH RECURSIVE tree AS (\
        SELECT id, parent_id, name FROM folders WHERE account_id = $1 AND parent_id = $2 \
        UNION SELECT f.id, f.parent_id, f.name FROM folders f JOIN tree ON f.parent_id = tree.id \
            WHERE f.account_id = $1) \
    SELECT id, parent_id AS parent, name FROM tree";

const FILES: &str = "\
    WITH files AS (\
        SELECT folder_id, file_name, id, file_type, content_hash, size, source_file_id, binary_hash, created_ms \
            FROM documents WHERE account_id = $1 AND folder_id = ANY($3) \
        UNION ALL SELECT NULL, file_name, id, file_type, content_hash, size, source_file_id, binary_hash, created_ms \
            FROM documents WHERE account_id = $1 AND id = $2) \
    SELECT folder_id AS folder, file_name AS name, id AS document, file_type, content_hash, size, \
        CASE WHEN binary_hash IS NOT NULL THEN source_file_id END AS binary FROM files ORDER BY created_ms, id LIMIT $4";

/// The files of a skill, the oldest when they are too many.
pub(super) async fn of_skill(conn: &Conn, account: &AccountId, skill: &str) -> Result<Listing> {
    let (mut first, mut second) = (conn, conn);
    let below = diesel::sql_query(BELOW).bind::<Text, _>(account.as_str()).bind::<Text, _>(skill);
    let below: Vec<FolderName> = below.load(&mut first).await?;
    let folders: Vec<&str> = below.iter().map(|folder| folder.id.as_str()).chain([skill]).collect();
    let files = diesel::sql_query(FILES)
        .bind::<Text, _>(account.as_str())
        .bind::<Text, _>(skill)
        .bind::<Array<Text>, _>(folders)
        .bind::<BigInt, _>(i64::try_from(MAX_FILES).unwrap_or(i64::MAX) + 1);
    let files: Vec<FileRow> = files.load(&mut second).await?;
    let above: HashMap<&str, &FolderName> = below.iter().map(|folder| (folder.id.as_str(), folder)).collect();
    let (mut left, mut taken) = (MAX_TREE, Paths::default());
    let (mut found, mut is_whole) = (Vec::with_capacity(files.len()), true);
    for file in files {
        let mut names = vec![file.name.as_str()];
        let mut size = file.name.len();
        let mut folder = file.folder.as_deref().and_then(|folder| above.get(folder));
        while let Some(within) = folder.filter(|_| size <= left) {
            size += within.name.len() + 1;
            names.push(&within.name);
            folder = above.get(within.parent.as_str());
        }
        if size > left || found.len() == MAX_FILES {
            is_whole = false;
            break;
        }
        left -= size;
        let path = names.into_iter().rev().map(safe).collect::<Vec<_>>().join("/");
        found.push((taken.take(path), file));
    }
    found.sort_by(|(path, _), (other, _)| path.cmp(other));
    Ok(Listing { files: found, is_whole })
}

/// A name as a part of a path: documents and folders are named as people like.
fn safe(name: &str) -> String {
    let name: String = name.chars().map(|c| if c.is_control() || "/\\:".contains(c) { '_' } else { c }).collect();
    if name.chars().all(|c| c == '.') { "_".to_owned() } else { name }
}

/// Paths that are taken, in lower case, with the number that the next one alike is given.
#[derive(Default)]
struct Paths(HashMap<String, u32>);

impl Paths {
    /// The path, with a number when it is taken.
    fn take(&mut self, path: String) -> String {
        let Some(number) = self.0.get_mut(&path.to_lowercase()) else {
            self.0.insert(path.to_lowercase(), 2);
            return path;
        };
        let dot = path.rfind('.').filter(|dot| !path[*dot..].contains('/')).unwrap_or(path.len());
        let (stem, extension) = path.split_at(dot);
        let mut next = *number;
        let free = loop {
            let numbered = format!("{stem}-{next}{extension}");
            next += 1;
            if !self.0.contains_key(&numbered.to_lowercase()) {
                break numbered;
            }
        };
        self.0.insert(path.to_lowercase(), next);
        self.0.insert(free.to_lowercase(), 2);
        free
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn level(id: &str, parent: Option<&str>, content: &str) -> Level {
        let content = Some(content.to_owned());
        Level { id: id.to_owned(), parent_id: parent.map(str::to_owned), name: format!("of {id}"), content }
    }

    #[test]
    fn a_skill_within_another_is_part_of_its_version_however_deep() {
        let chain = |last: &str| -> Vec<Level> {
            let id = |n: usize| format!("f{n}");
            let levels = (0..50_000).map(|n| level(&id(n), n.checked_sub(1).map(id).as_deref(), "same"));
            levels.chain([level("last", Some(&id(49_999)), last)]).rev().collect()
        };
        let (before, after) = (digests(&chain("a")), digests(&chain("b")));
        assert_eq!((before.len(), before["f7"].len()), (50_001, 64));
        assert_eq!(before, digests(&chain("a")));
        assert!(["f0", "f25000", "last"].iter().all(|id| before[*id] != after[*id]));
    }

    #[test]
    fn paths_alike_are_numbered() {
        let mut taken = Paths::default();
        let paths =
            ["a/x.md", "A/X.md", "a/x-2.md", "a/x.md", "b.c/x", "b.c/x"].map(|path| taken.take(path.to_owned()));
        assert_eq!(paths, ["a/x.md", "A/X-2.md", "a/x-2-2.md", "a/x-3.md", "b.c/x", "b.c/x-2"]);
        for _ in 0..20_000 {
            taken.take("same.md".to_owned());
        }
        assert_eq!(taken.take("same.md".to_owned()), "same-20001.md");
    }
}
