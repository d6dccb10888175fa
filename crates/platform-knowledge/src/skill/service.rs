use std::{
    slice,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use async_trait::async_trait;
use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use diesel_async::AsyncConnection;
use futures_util::{StreamExt, TryStreamExt, stream};
use platform_access::{Place, Resources};
use platform_child::ChildError;
use platform_core::{AccountId, Caller, Code, Error, Id, Owner, Page, Result, Timestamp, run_blocking, sha256_hex};
use platform_db::{Conn, Idempotency};
use platform_files::{Content, FileService, NewFile, StoredBytes};
use platform_runtime::no_answer;

use super::{
    archive::{FileContent, MAX_BYTES, MAX_FILES, Placed, Unpacked, pack, placed},
    files,
    frontmatter::{identity, shortened, stub},
    model::{
        ImportedSkill, Install, NewSkill, Scaffold, Skill, SkillFile, SkillFiles, SkillFilter, SkillList, SkillTree,
        scope,
    },
    repository,
};
use crate::{
    code,
    document::{BINARY, DocumentSettings, Making, PgKnowledge, create_in, repository as documents},
    extract::{self, MAX_WAIT},
    folder::{Folder, FolderRow, FolderSettings, repository as folders},
    tree,
};

/// Skills of an account. `SKILL_NOT_FOUND` comes from all that name one.
#[async_trait]
pub trait SkillService: Send + Sync {
    /// Those that the filter keeps, newest first; `page`: which of them, with counts.
    async fn list(&self, account: &AccountId, filter: &SkillFilter, page: Option<Page>) -> Result<SkillList>;
    /// Tags of skills, in their order.
    async fn tags(&self, account: &AccountId, filter: &SkillFilter) -> Result<Vec<String>>;
    /// Begins a skill: a folder with a document `SKILL`.
    async fn scaffold(&self, caller: &Caller, new: NewSkill, once: Option<&Idempotency>) -> Result<Scaffold>;
    /// A skill with everything in it; `of`: `document` or `folder`, found by itself when it is absent.
    async fn tree(&self, account: &AccountId, id: &Id<Skill>, of: Option<&str>) -> Result<SkillTree>;
    /// The same as a ZIP archive, and its name.
    async fn archive(&self, account: &AccountId, id: &Id<Skill>) -> Result<(String, Vec<u8>)>;
    /// Makes a skill of files.
    async fn import(
        &self,
        caller: &Caller,
        files: SkillFiles,
        place: NewSkill,
        once: Option<&Idempotency>,
    ) -> Result<ImportedSkill>;
    /// Notes that a caller has a copy of a skill; the skill.
    async fn install(&self, caller: &Caller, id: &Id<Skill>, of: Option<&str>, install: Install) -> Result<SkillTree>;
    /// Notes that a caller has none any more.
    async fn uninstall(&self, caller: &Caller, id: &Id<Skill>, scope: Option<&str>) -> Result<()>;
}

/// Files that are stored or read at once.
const AT_ONCE: usize = 8;

/// What a document of a skill is made of.
struct SkillPart {
    path: String,
    text: String,
    /// What is no text.
    source: Option<StoredBytes>,
}

/// Skills, as far as access is concerned: documents and folders that are some.
pub struct SkillResources(pub Arc<PgKnowledge>);

#[async_trait]
impl Resources for SkillResources {
    async fn place(&self, account: &AccountId, id: &str) -> Result<Option<Place>> {
        let conn = self.0.db.read().await?;
        if let Some(place) = documents::place(conn.get(), account, id).await? {
            return Ok(Some(place));
        }
        let folder = folders::find(conn.get(), account, id).await?;
        Ok(folder.map(|folder| Place { project: folder.project_id, ..Place::default() }))
    }
}
impl PgKnowledge {
    /// A skill as it is listed, with its version.
    pub(super) async fn skill(&self, account: &AccountId, id: &str, of: Option<&str>) -> Result<Skill> {
        if of.is_some_and(|of| !["document", "folder"].iter().any(|kind| of.eq_ignore_ascii_case(kind))) {
            return Err(Error::invalid("type", "enum", "type must be document or folder"));
        }
        let conn = self.db.fair_conn(account).await?;
        let (ids, all) = ([id.to_owned()], SkillFilter::default());
        let (mut found, _) = repository::list(&conn, account, Some(&ids), &all, None).await?;
        found.retain(|skill| of.is_none_or(|of| of.eq_ignore_ascii_case(skill.r#type)));
        if found.is_empty() {
            return Err(Error::not_found(code::SKILL_NOT_FOUND, "skill", id));
        }
        files::give_versions(&conn, account, &mut found).await?;
        Ok(found.swap_remove(0))
    }

    /// A file with what is in it; `left`: bytes that files which are no text may have together.
    async fn skill_file(
        &self,
        account: &AccountId,
        path: String,
        row: files::FileRow,
        left: &AtomicU64,
    ) -> Result<SkillFile> {
        let (content, encoding) = match &row.binary {
            Some(id) => {
                let file = self.files.get(account, &Id::named(id)).await?;
                let size = file.size.unsigned_abs();
                let take = left.try_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(size));
                take.map_err(|_| files::too_large())?;
                (STANDARD.encode(self.files.bytes(account, &file, u64::MAX).await?), Some("base64"))
            }
            None => {
                let conn = self.db.read().await?;
                let text = documents::text(conn.get(), account, &row.document, &row.content_hash).await?;
                (text.unwrap_or_default(), None)
            }
        };
        Ok(SkillFile { path, content, encoding, file_type: row.file_type })
    }

    /// What a document is made of; bytes that are no text are stored.
    async fn part(&self, account: &AccountId, path: String, content: FileContent) -> Result<SkillPart> {
        let bytes = match content {
            FileContent::Text(text) => return Ok(SkillPart { path, text, source: None }),
            FileContent::Base64(text) => Bytes::from(STANDARD.decode(text).map_err(Error::internal)?),
        };
        let file = NewFile {
            name: path.clone(),
            size: bytes.len() as u64,
            sha256: sha256_hex(&bytes),
            content: Content::Bytes(bytes),
            ttl_seconds: None,
            owner: Owner::default(),
            kept_for: Some("document"),
        };
        let source = Some(self.files.store(account, file).await?);
        Ok(SkillPart { path, text: String::new(), source })
    }

    /// Makes a folder that is a skill, with files by their paths; the folder, and the document at `SKILL.md`.
    async fn make_skill_in(
        &self,
        conn: &mut Conn,
        caller: &Caller,
        place: &NewSkill,
        files: Vec<SkillPart>,
        now: Timestamp,
    ) -> Result<(Folder, crate::Document)> {
        let account = &caller.account;
        tree::share(conn, account).await?;
        let project =
            tree::project_in(conn, account, place.parent_folder_id.as_deref(), place.project_id.clone()).await?;
        let folder_of = |name: &str, parent: Option<String>, settings: FolderSettings| FolderRow {
            account_id: account.as_str().to_owned(),
            id: Id::<Folder>::generate().into(),
            name: name.to_owned(),
            project_id: project.clone(),
            parent_id: parent,
            color: None,
            tags: settings.tags.into(),
            is_skill: settings.is_skill,
            created_ms: now.0,
            edited_ms: now.0,
        };
        let settings = FolderSettings { tags: place.tags.clone(), is_skill: true, ..FolderSettings::default() };
        let root = folder_of(&place.name, place.parent_folder_id.clone(), settings);
        folders::insert(conn, &root).await?;
        let mut made = vec![(String::new(), root.id.clone())];
        let (mut skill_doc, mut count) = (None, 0);
        for SkillPart { path, text, source } in files {
            let (dir, file_name) = path.rsplit_once('/').unwrap_or(("", &path));
            let mut within = root.id.clone();
            let mut above = String::new();
            for part in dir.split('/').filter(|part| !part.is_empty()) {
                above = format!("{above}{part}/");
                within = match made.iter().find(|(path, _)| *path == above) {
                    Some((_, id)) => id.clone(),
                    None => {
                        let folder = folder_of(part, Some(within), FolderSettings::default());
                        folders::insert(conn, &folder).await?;
                        made.push((above.clone(), folder.id.clone()));
                        folder.id
                    }
                };
            }
            let is_skill_doc = dir.is_empty() && file_name.eq_ignore_ascii_case("SKILL.md");
            let (name, extension) = file_name.rsplit_once('.').unwrap_or((file_name, ""));
            let file_type = match extension.to_ascii_lowercase().as_str() {
                _ if source.is_some() => BINARY,
                "md" | "markdown" => "md",
                "html" | "htm" => "html",
                _ => "txt",
            };
            let name = if is_skill_doc {
                "SKILL"
            } else if name.is_empty() {
                file_name
            } else {
                name
            };
            let making = Making {
                settings: DocumentSettings {
                    name: name.to_owned(),
                    markdown_content: text,
                    folder_id: Some(within),
                    ..DocumentSettings::default()
                },
                user_uid: &caller.user_uid,
                file_name: if is_skill_doc { "SKILL.md".to_owned() } else { file_name.to_owned() },
                file_type,
                source,
                unreadable: None,
            };
            if making.settings.markdown_content.len() > self.limits.bytes {
                let message =
                    format!("`{path}` has more than {} bytes; a document has at most so many.", self.limits.bytes);
                return Err(Error::new(Code::PAYLOAD_TOO_LARGE, message).with("limitBytes", self.limits.bytes));
            }
            let document = create_in(conn, &self.files, account, making, now).await?;
            count += i64::from(dir.is_empty());
            if is_skill_doc {
                skill_doc = Some(document);
            }
        }
        let skill_doc = skill_doc.ok_or_else(|| Error::internal("a skill has a document SKILL"))?;
        Ok((root.shown(count)?, skill_doc))
    }
}

#[async_trait]
impl SkillService for PgKnowledge {
    async fn list(&self, account: &AccountId, filter: &SkillFilter, page: Option<Page>) -> Result<SkillList> {
        let conn = self.db.fair_conn(account).await?;
        let (mut skills, total) = repository::list(&conn, account, None, filter, page).await?;
        let (number, limit) =
            page.map_or((1, total.min(repository::MOST)), |page| (page.offset / page.limit + 1, page.limit));
        if page.is_none() {
            for skill in &mut skills {
                (skill.linked_agents_count, skill.linked_assistants_count, skill.install_count) = (None, None, None);
            }
        }
        files::give_versions(&conn, account, &mut skills).await?;
        Ok(SkillList { items: skills, total, page: number, limit })
    }

    async fn tags(&self, account: &AccountId, filter: &SkillFilter) -> Result<Vec<String>> {
        repository::tags(self.db.read().await?.get(), account, filter).await
    }

    async fn scaffold(&self, caller: &Caller, mut new: NewSkill, once: Option<&Idempotency>) -> Result<Scaffold> {
        new.check()?;
        let description = new.description.clone().unwrap_or_else(|| new.name.clone());
        let text = stub(&new.name, &description);
        let files = vec![SkillPart { path: "SKILL.md".to_owned(), text, source: None }];
        let now = self.clock.now();
        let mut conn = self.db.fair_conn(&caller.account).await?;
        let made = conn.transaction::<_, Error, _>(async |conn| {
            let (folder, skill_doc) = self.make_skill_in(conn, caller, &new, files, now).await?;
            let scaffold = Scaffold { folder, skill_doc };
            Idempotency::store_if(once, conn, 201, &scaffold).await?;
            Ok(scaffold)
        });
        let scaffold = made.await?;
        drop(conn);
        self.jobs.announce();
        Ok(scaffold)
    }

    async fn tree(&self, account: &AccountId, id: &Id<Skill>, of: Option<&str>) -> Result<SkillTree> {
        let skill = self.skill(account, id, of).await?;
        let conn = self.db.read().await?;
        let rows = files::of_skill(conn.get(), account, id).await?.whole()?;
        let left = AtomicU64::new(files::MAX_TREE as u64);
        let read = stream::iter(rows).map(|(path, row)| self.skill_file(account, path, row, &left));
        let files = read.buffered(AT_ONCE).try_collect().await?;
        Ok(SkillTree { version: skill.version.clone(), skill, files })
    }

    async fn archive(&self, account: &AccountId, id: &Id<Skill>) -> Result<(String, Vec<u8>)> {
        let SkillTree { skill, mut files, .. } = SkillService::tree(self, account, id, None).await?;
        // A skill that is one document is named as others read it.
        if let [only] = files.as_mut_slice()
            && only.encoding.is_none()
        {
            "SKILL.md".clone_into(&mut only.path);
        }
        let packed = run_blocking(move || pack(&files)).await?;
        Ok((skill.name, packed))
    }

    async fn import(
        &self,
        caller: &Caller,
        files: SkillFiles,
        mut place: NewSkill,
        once: Option<&Idempotency>,
    ) -> Result<ImportedSkill> {
        let unpacked = match files {
            SkillFiles::Zip(archive) => {
                let place = extract::place(&self.extraction.short, &caller.account, MAX_WAIT).await?;
                match self.extraction.short.read::<Unpacked>(&place, "zip", &archive).await {
                    Ok(unpacked) => unpacked,
                    Err(error @ (ChildError::Busy | ChildError::NotStarted(_))) => return Err(no_answer(error)),
                    Err(error) => Unpacked::Refused(format!("the archive cannot be read: {error}")),
                }
            }
            SkillFiles::Files(files) => unpacked(files),
        };
        let Placed { files, folder } = match unpacked {
            Unpacked::Files(files) => placed(files).map_err(|reason| refused(&reason))?,
            Unpacked::TooLarge => return Err(too_large()),
            Unpacked::Refused(reason) => return Err(refused(&reason)),
        };
        let (name, description) = match files.iter().find(|(path, _)| path.eq_ignore_ascii_case("SKILL.md")) {
            Some((_, FileContent::Text(text))) => identity(text),
            _ => return Err(refused("SKILL.md is no text")),
        };
        if place.name.is_empty() {
            place.name = name.or(folder).unwrap_or_else(|| "Skill".to_owned());
        }
        place.description = description.map(|description| shortened(&description));
        place.check()?;
        let files = stream::iter(files).map(|(path, content)| self.part(&caller.account, path, content));
        let files: Vec<SkillPart> = files.buffered(AT_ONCE).try_collect().await?;
        let stored: Vec<String> = files.iter().filter_map(|part| Some(part.source.as_ref()?.id().to_owned())).collect();
        let now = self.clock.now();
        let mut conn = self.db.fair_conn(&caller.account).await?;
        let made = conn.transaction::<_, Error, _>(async |conn| {
            let (folder, skill_doc) = self.make_skill_in(conn, caller, &place, files, now).await?;
            let (ids, all) = (slice::from_ref(&folder.id), SkillFilter::default());
            let (found, _) = repository::list(conn, &caller.account, Some(ids), &all, None).await?;
            let mut skill = found.into_iter().next().ok_or_else(|| Error::internal("the skill was made"))?;
            files::give_versions(conn, &caller.account, slice::from_mut(&mut skill)).await?;
            let imported = ImportedSkill { folder, skill_doc, skill };
            Idempotency::store_if(once, conn, 201, &imported).await?;
            Ok(imported)
        });
        let made = made.await;
        drop(conn);
        self.files.remove_refused(&caller.account, made.as_ref().err(), &stored).await;
        let imported = made?;
        self.jobs.announce();
        Ok(imported)
    }

    async fn install(&self, caller: &Caller, id: &Id<Skill>, of: Option<&str>, install: Install) -> Result<SkillTree> {
        install.check()?;
        let scope = scope(install.scope.as_deref())?;
        let account = &caller.account;
        let mut tree = SkillService::tree(self, account, id, of).await?;
        let note = (install.agents.as_slice(), install.cli_version.as_deref(), self.clock.now());
        let mut conn = self.db.conn().await?;
        repository::set_installed(&mut conn, account, id, (&caller.principal(), scope), Some(note)).await?;
        drop(conn);
        tree.skill = self.skill(account, id, of).await?;
        Ok(tree)
    }

    async fn uninstall(&self, caller: &Caller, id: &Id<Skill>, given: Option<&str>) -> Result<()> {
        let scope = scope(given)?;
        self.skill(&caller.account, id, None).await?;
        let mut conn = self.db.conn().await?;
        repository::set_installed(&mut conn, &caller.account, id, (&caller.principal(), scope), None).await
    }
}

/// Files that were sent one by one, as if they had been in an archive.
fn unpacked(files: Vec<(String, Bytes)>) -> Unpacked {
    let size: usize = files.iter().map(|(_, bytes)| bytes.len()).sum();
    if files.len() > MAX_FILES || size > MAX_BYTES {
        return Unpacked::TooLarge;
    }
    Unpacked::Files(files.into_iter().map(|(path, bytes)| (path, FileContent::of(bytes.to_vec()))).collect())
}

fn refused(reason: &str) -> Error {
    Error::invalid("file", "format", format!("This is no skill: {reason}"))
}

fn too_large() -> Error {
    let message = format!("A skill has at most {MAX_FILES} files and {MAX_BYTES} bytes.");
    Error::new(Code::PAYLOAD_TOO_LARGE, message).with("limitBytes", MAX_BYTES)
}
