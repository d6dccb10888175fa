use std::sync::Arc;

use async_trait::async_trait;
use diesel_async::AsyncConnection;
use platform_access::{Place, Referrers, Resources};
use platform_core::{AccountId, Caller, Clock, Error, Id, Object, Page, Precondition, Result, overlay};
use platform_db::{Bus, Conn, Db, Idempotency};
use platform_files::{FileService, NewFile, PgFileService};
use platform_jobs::Jobs;
use platform_runtime::{Budget, Catalog};
use serde_json::Value;
use tracing::warn;

use super::{
    model::{
        Attached, Attachment, ChunkList, DeletedDocuments, Document, DocumentFilter, DocumentList, DocumentSettings,
        NewDocument, PlannedDeletion, Queued, Reindex, Upload, UsedBy, Version, VersionText,
    },
    repository, versions,
    write::{self, BINARY, Making, Reread},
};
use crate::{
    extract::{self, Extraction},
    folder::repository as folders,
    graph::{self, Graph},
    index,
    kinds::{DOCUMENT, SKILL},
    not_found,
    search::{self, SearchQuery, SearchResults, Vectors},
    skill, tree, uses,
};

/// Documents of an account. `DOCUMENT_NOT_FOUND` comes from all that name one.
#[async_trait]
pub trait DocumentService: Send + Sync {
    /// Makes a document of a text.
    async fn create(&self, caller: &Caller, new: NewDocument, once: Option<&Idempotency>) -> Result<Document>;
    /// Makes one of a file. What cannot be read makes one that has failed, with the reason.
    async fn upload(&self, caller: &Caller, upload: Upload, once: Option<&Idempotency>) -> Result<Document>;
    /// Those that the filter keeps, newest first.
    async fn list(&self, account: &AccountId, filter: &DocumentFilter, page: Page) -> Result<DocumentList>;
    /// One with its text and its versions.
    async fn get(&self, account: &AccountId, id: &Id<Document>) -> Result<Document>;
    /// Changes the given fields of the version that is expected.
    async fn update(
        &self,
        caller: &Caller,
        id: &Id<Document>,
        patch: Object,
        expected: &Precondition,
    ) -> Result<Document>;
    /// Deletes one with all its parts, or says what that would take. `PROJECT_FORBIDDEN` when one of them is in a
    /// project that is not `within`.
    async fn delete(
        &self,
        account: &AccountId,
        id: &Id<Document>,
        within: Option<&[String]>,
        dry_run: bool,
        expected: &Precondition,
    ) -> Result<DeletedDocuments>;
    /// Its versions, newest first.
    async fn versions(&self, account: &AccountId, id: &Id<Document>) -> Result<Vec<Version>>;
    /// One version with its text; `VERSION_NOT_FOUND` when it is not kept.
    async fn version(&self, account: &AccountId, id: &Id<Document>, version: &str) -> Result<VersionText>;
    /// Makes the text of an older version the newest.
    async fn revert(
        &self,
        caller: &Caller,
        id: &Id<Document>,
        version: &str,
        once: Option<&Idempotency>,
    ) -> Result<Document>;
    /// Its direct parts that are `within` these projects or in none, without their texts.
    async fn parts(&self, account: &AccountId, id: &Id<Document>, within: Option<&[String]>) -> Result<Vec<Document>>;
    /// Who uses it.
    async fn usage(&self, account: &AccountId, id: &Id<Document>) -> Result<UsedBy>;
    /// Documents and how they refer to each other.
    async fn graph(&self, account: &AccountId, filter: &DocumentFilter) -> Result<Graph>;
    /// Gives it to an agent or assistant, or takes it from there.
    async fn attach(&self, account: &AccountId, id: &Id<Document>, to: Attachment, attach: bool) -> Result<Attached>;
    /// Has one indexed anew.
    async fn reindex(&self, account: &AccountId, id: &Id<Document>) -> Result<Document>;
    /// Has many indexed anew.
    async fn reindex_all(&self, account: &AccountId, which: &Reindex, within: Option<&[String]>) -> Result<Queued>;
    /// Its pieces as they are in the index.
    async fn chunks(&self, account: &AccountId, id: &Id<Document>, page: Page) -> Result<ChunkList>;
    /// How many documents are in a project.
    async fn count(&self, account: &AccountId, project: &str) -> Result<i64>;
    /// The pieces of documents that a query finds, the best first.
    async fn search(
        &self,
        account: &AccountId,
        query: SearchQuery,
        within: Option<Vec<String>>,
    ) -> Result<SearchResults>;
}

/// What a deletion leaves to be done.
#[derive(Default)]
pub(crate) struct Gone {
    /// Files whose bytes nobody has a record of any more.
    pub sources: Vec<String>,
    /// Who referred to what is gone: kind and id.
    pub users: Vec<(String, String)>,
}

/// Documents and folders on PostgreSQL.
pub struct PgKnowledge {
    pub(crate) db: Db,
    bus: Bus,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) jobs: Arc<Jobs>,
    pub(crate) files: Arc<PgFileService>,
    pub(crate) referrers: Referrers,
    pub(crate) extraction: Extraction,
    pub(crate) catalog: Arc<dyn Catalog>,
    pub(crate) budget: Arc<dyn Budget>,
    pub(crate) vectors: Vectors,
    pub(crate) limits: DocumentLimits,
}

/// What documents need of others.
pub struct KnowledgeNeeds {
    /// Where they are kept.
    pub db: Db,
    /// Whom changes are told.
    pub bus: Bus,
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// Who has the index kept up to date.
    pub jobs: Arc<Jobs>,
    /// Where the files are that documents are made of.
    pub files: Arc<PgFileService>,
    /// Whoever refers to documents.
    pub referrers: Referrers,
    /// Child processes that read files.
    pub extraction: Extraction,
    /// What models there are.
    pub catalog: Arc<dyn Catalog>,
    /// Who lets them be asked.
    pub budget: Arc<dyn Budget>,
    /// How large documents become.
    pub limits: DocumentLimits,
}

/// How large documents become; 0 = no bound.
#[derive(Debug, Clone, Copy)]
pub struct DocumentLimits {
    /// Bytes of the text.
    pub bytes: usize,
    /// Versions that are kept.
    pub versions: usize,
}

impl PgKnowledge {
    /// Documents and folders.
    pub fn new(needs: KnowledgeNeeds) -> Self {
        let KnowledgeNeeds { db, bus, clock, jobs, files, referrers, extraction, catalog, budget, mut limits } = needs;
        for limit in [&mut limits.bytes, &mut limits.versions] {
            *limit = if *limit == 0 { usize::MAX } else { *limit };
        }
        let vectors = Vectors::default();
        Self { db, bus, clock, jobs, files, referrers, extraction, catalog, budget, vectors, limits }
    }

    /// The name of what makes vectors; `None` when nothing does.
    pub(crate) fn embedding_model(&self) -> Option<String> {
        self.catalog.embedding_space()
    }

    /// The document that one is a part of.
    pub async fn parent_of(&self, account: &AccountId, id: &Id<Document>) -> Result<Option<String>> {
        let row = repository::find(self.db.read().await?.get(), account, id).await?;
        Ok(row.and_then(|row| row.parent_id))
    }

    /// Deletes documents in a transaction that holds what lies in what.
    pub(crate) async fn delete_documents_in(
        &self,
        conn: &mut Conn,
        account: &AccountId,
        ids: &[String],
    ) -> Result<Gone> {
        let sources = repository::lock_all(conn, account, ids).await?;
        for source in &sources {
            self.files.delete_in(conn, account, source).await?;
        }
        let users = self.referrers.forget_in(conn, account, &[DOCUMENT, SKILL], ids).await?;
        skill::forget(conn, account, ids).await?;
        repository::delete(conn, account, ids).await?;
        Ok(Gone { sources, users })
    }

    /// Does what follows a deletion that is committed.
    pub(crate) async fn follow(&self, account: &AccountId, gone: Gone) -> Result<()> {
        self.tell(&gone.users).await?;
        for id in &gone.sources {
            self.files.remove_bytes(account, id).await;
        }
        Ok(())
    }

    /// Has records be read anew whose references have changed.
    pub(crate) async fn tell(&self, users: &[(String, String)]) -> Result<()> {
        for (kind, id) in users {
            self.bus.tell(&format!("{kind}s"), id).await?;
        }
        Ok(())
    }

    async fn found(&self, account: &AccountId, id: &str) -> Result<repository::DocumentRow> {
        let conn = self.db.read().await?;
        repository::find(conn.get(), account, id).await?.ok_or_else(|| not_found::document(id))
    }
}

#[async_trait]
impl Resources for PgKnowledge {
    async fn place(&self, account: &AccountId, id: &str) -> Result<Option<Place>> {
        repository::place(self.db.read().await?.get(), account, id).await
    }
}

/// Files, as far as access is concerned: one that is kept for a document is where that is, others are nowhere.
pub struct SourceFiles(pub Arc<PgKnowledge>);

#[async_trait]
impl Resources for SourceFiles {
    async fn place(&self, account: &AccountId, id: &str) -> Result<Option<Place>> {
        let project = repository::project_of_source(self.0.db.read().await?.get(), account, id).await?;
        Ok(Some(Place { project, ..Place::default() }))
    }
}

/// Folders, as far as access is concerned.
pub struct FolderResources(pub Arc<PgKnowledge>);

#[async_trait]
impl Resources for FolderResources {
    async fn place(&self, account: &AccountId, id: &str) -> Result<Option<Place>> {
        let folder = folders::find(self.0.db.read().await?.get(), account, id).await?;
        Ok(folder.map(|folder| Place { project: folder.project_id, ..Place::default() }))
    }
}

/// The number of a version as it is written; `VERSION_NOT_FOUND` for any other way to write one.
fn number_of(version: &str) -> Result<i32> {
    let number = version.parse::<i32>().ok().filter(|number| number.to_string() == version);
    number.ok_or_else(|| not_found::version(version))
}

#[async_trait]
impl DocumentService for PgKnowledge {
    async fn create(&self, caller: &Caller, new: NewDocument, once: Option<&Idempotency>) -> Result<Document> {
        let mut settings = DocumentSettings::from(new);
        settings.check(self.limits.bytes)?;
        let making = Making {
            file_name: format!("{}.md", settings.name),
            file_type: "md",
            settings,
            user_uid: &caller.user_uid,
            source: None,
            unreadable: None,
        };
        self.make(&caller.account, making, once).await
    }

    async fn upload(&self, caller: &Caller, upload: Upload, once: Option<&Idempotency>) -> Result<Document> {
        let account = &caller.account;
        let Upload { file_name, path, size, sha256, mut settings } = upload;
        let file_type = extract::file_type(&path, &file_name).await?;
        if settings.name.is_empty() {
            settings.name = extract::name_of(&file_name);
        }
        settings.check(self.limits.bytes)?;
        let extracted = extract::text_of(&self.extraction, account, &path, file_type).await?;
        let extracted = extract::at_most(extracted, self.limits.bytes);
        let file = NewFile { kept_for: Some("document"), ..NewFile::on_disk(&file_name, path, size, &sha256) };
        let file = self.files.store(account, file).await?;
        let file_id = file.id().to_owned();
        let unreadable = extracted.as_ref().err().cloned();
        settings.markdown_content = extracted.unwrap_or_default();
        let making = Making {
            settings,
            user_uid: &caller.user_uid,
            file_name: file.name().to_owned(),
            file_type,
            source: Some(file),
            unreadable,
        };
        let made = self.make(account, making, once).await;
        self.files.remove_refused(account, made.as_ref().err(), &[file_id]).await;
        made
    }

    async fn list(&self, account: &AccountId, filter: &DocumentFilter, page: Page) -> Result<DocumentList> {
        let (rows, total, page) = repository::list(&*self.db.fair_conn(account).await?, account, filter, page).await?;
        let documents = rows.into_iter().map(|(row, text)| row.shown(text)).collect::<Result<_>>()?;
        Ok(DocumentList { documents, total, offset: page.offset, limit: page.limit })
    }

    async fn get(&self, account: &AccountId, id: &Id<Document>) -> Result<Document> {
        let conn = self.db.read().await?;
        let row = repository::find(conn.get(), account, id).await?.ok_or_else(|| not_found::document(id))?;
        let text = repository::text(conn.get(), account, id, &row.content_hash).await?;
        let versions = versions::list(conn.get(), account, id, row.current_version).await?;
        Ok(Document { versions: Some(versions), ..row.shown(Some(text.unwrap_or_default()))? })
    }

    async fn update(
        &self,
        caller: &Caller,
        id: &Id<Document>,
        patch: Object,
        expected: &Precondition,
    ) -> Result<Document> {
        // Fields are judged before it matters what they are applied to.
        let named = DocumentSettings { name: "named".to_owned(), ..DocumentSettings::default() };
        overlay(&named, patch.clone())?.check(self.limits.bytes)?;
        if patch.get("markdownContent").is_some_and(Value::is_null) {
            return Err(Error::invalid("markdownContent", "required", "markdownContent must not be null"));
        }
        let (account, now) = (&caller.account, self.clock.now());
        let moves = ["folderId", "parentDocumentId", "projectId"].iter().any(|field| patch.contains_key(*field));
        let mut conn = self.db.fair_conn(account).await?;
        let changed = conn.transaction::<_, Error, _>(async |conn| {
            if moves {
                tree::lock(conn, account).await?;
            } else {
                tree::share(conn, account).await?;
            }
            let row = repository::lock(conn, account, id).await?.ok_or_else(|| not_found::document(id))?;
            expected.check(row.version)?;
            write::update_in(conn, account, row, (patch, self.limits), &caller.user_uid, now).await
        });
        let changed = changed.await?;
        drop(conn);
        self.jobs.announce();
        Ok(changed)
    }

    async fn delete(
        &self,
        account: &AccountId,
        id: &Id<Document>,
        within: Option<&[String]>,
        dry_run: bool,
        expected: &Precondition,
    ) -> Result<DeletedDocuments> {
        let mut conn = self.db.fair_conn(account).await?;
        let deleting = conn.transaction::<_, Error, _>(async |conn| {
            if dry_run {
                tree::share(conn, account).await?;
            } else {
                tree::lock(conn, account).await?;
            }
            let row = repository::lock(conn, account, id).await?.ok_or_else(|| not_found::document(id))?;
            expected.check(row.version)?;
            let documents = repository::tree(conn, account, id).await?;
            repository::check_within(conn, account, &documents, within).await?;
            if dry_run {
                let mut usage = UsedBy::default();
                for document in &documents {
                    let row = repository::find(conn, account, document).await?;
                    let folder = row.and_then(|row| row.folder_id);
                    usage.extend(uses::used_by(conn, account, &self.referrers, document, folder.as_deref()).await?);
                }
                return Ok((DeletedDocuments::Planned(PlannedDeletion { documents, usage }), Gone::default()));
            }
            let gone = self.delete_documents_in(conn, account, &documents).await?;
            Ok((DeletedDocuments::Gone(documents), gone))
        });
        let (deleted, gone) = deleting.await?;
        drop(conn);
        self.follow(account, gone).await?;
        Ok(deleted)
    }

    async fn versions(&self, account: &AccountId, id: &Id<Document>) -> Result<Vec<Version>> {
        let row = self.found(account, id).await?;
        versions::list(self.db.read().await?.get(), account, id, row.current_version).await
    }

    async fn version(&self, account: &AccountId, id: &Id<Document>, version: &str) -> Result<VersionText> {
        let row = self.found(account, id).await?;
        let conn = self.db.read().await?;
        let number = number_of(version)?;
        let found = versions::find(conn.get(), account, &row, number).await?;
        let (version, markdown_content) = found.ok_or_else(|| not_found::version(version))?;
        Ok(VersionText { version, markdown_content })
    }

    async fn revert(
        &self,
        caller: &Caller,
        id: &Id<Document>,
        version: &str,
        once: Option<&Idempotency>,
    ) -> Result<Document> {
        let (account, now) = (&caller.account, self.clock.now());
        let mut conn = self.db.conn().await?;
        let reverted = conn.transaction::<_, Error, _>(async |conn| {
            let row = repository::lock(conn, account, id).await?.ok_or_else(|| not_found::document(id))?;
            let number = number_of(version)?;
            let found = versions::find(conn, account, &row, number).await?;
            let (_, text) = found.ok_or_else(|| not_found::version(version))?;
            let document =
                write::revert_in(conn, account, row, (number, text), &caller.user_uid, self.limits, now).await?;
            Idempotency::store_if(once, conn, 200, &document).await?;
            Ok(document)
        });
        let reverted = reverted.await?;
        drop(conn);
        self.jobs.announce();
        Ok(reverted)
    }

    async fn parts(&self, account: &AccountId, id: &Id<Document>, within: Option<&[String]>) -> Result<Vec<Document>> {
        self.found(account, id).await?;
        let rows = repository::below(&*self.db.fair_conn(account).await?, account, id, within).await?;
        rows.into_iter().map(|row| row.shown(None)).collect()
    }

    async fn usage(&self, account: &AccountId, id: &Id<Document>) -> Result<UsedBy> {
        let row = self.found(account, id).await?;
        uses::used_by(&mut *self.db.fair_conn(account).await?, account, &self.referrers, id, row.folder_id.as_deref())
            .await
    }

    async fn graph(&self, account: &AccountId, filter: &DocumentFilter) -> Result<Graph> {
        graph::of(&*self.db.fair_conn(account).await?, account, filter).await
    }

    async fn attach(
        &self,
        account: &AccountId,
        id: &Id<Document>,
        mut to: Attachment,
        attach: bool,
    ) -> Result<Attached> {
        to.check()?;
        let mut conn = self.db.conn().await?;
        let attaching = conn.transaction::<_, Error, _>(async |conn| {
            if uses::known_documents(conn, account, &[id.to_string()]).await?.is_empty() {
                return Err(not_found::document(id));
            }
            uses::attach_in(conn, account, &self.referrers, (DOCUMENT, id), &to, attach).await
        });
        let target = attaching.await?;
        drop(conn);
        self.tell(&[(to.target_type, target)]).await?;
        Ok(Attached { success: true, attached: attach })
    }

    async fn reindex(&self, account: &AccountId, id: &Id<Document>) -> Result<Document> {
        let row = self.found(account, id).await?;
        // What is in the file may be readable now, or read better.
        let is_read = match &row.source_file_id {
            Some(_) if row.file_type != BINARY => {
                row.unread || versions::is_of_file(self.db.read().await?.get(), account, id).await?
            }
            _ => false,
        };
        let was_read = !row.unread;
        let reread = match if is_read { self.reread(account, row).await } else { Ok(None) } {
            Err(error) if was_read => {
                warn!(document = %id, %error, "A file could not be read again; its document is indexed as it is.");
                None
            }
            reread => reread?,
        };
        self.index_again(account, id, reread).await
    }

    async fn reindex_all(&self, account: &AccountId, which: &Reindex, within: Option<&[String]>) -> Result<Queued> {
        let given = [&which.folder_id, &which.project_id, &which.status].into_iter().flatten().count();
        if given != 1 || which.status.as_deref().is_some_and(|status| !status.eq_ignore_ascii_case("failed")) {
            let message = "give exactly one of folderId, projectId and status, which must be failed";
            return Err(Error::invalid("", "required", message));
        }
        let now = self.clock.now();
        let mut conn = self.db.fair_conn(account).await?;
        let queued = conn.transaction::<_, Error, _>(async |conn| {
            tree::share(conn, account).await?;
            let folders = match &which.folder_id {
                Some(folder) => {
                    folders::find(conn, account, folder).await?.ok_or_else(|| not_found::folder(folder))?;
                    Some(folders::tree(conn, account, std::slice::from_ref(folder)).await?)
                }
                None => None,
            };
            let queued = index::queue_in(conn, account, which, folders.as_deref(), within, now).await?;
            if queued > 0 {
                index::wake_in(conn, account).await?;
            }
            Ok(queued)
        });
        let queued = queued.await?;
        drop(conn);
        self.jobs.announce();
        Ok(Queued { queued })
    }

    async fn chunks(&self, account: &AccountId, id: &Id<Document>, page: Page) -> Result<ChunkList> {
        self.found(account, id).await?;
        let (chunks, total) = repository::chunks(self.db.read().await?.get(), account, id, page).await?;
        Ok(ChunkList { chunks, total, offset: page.offset, limit: page.limit })
    }

    async fn count(&self, account: &AccountId, project: &str) -> Result<i64> {
        repository::count(self.db.read().await?.get(), account, project).await
    }

    async fn search(
        &self,
        account: &AccountId,
        query: SearchQuery,
        within: Option<Vec<String>>,
    ) -> Result<SearchResults> {
        query.check()?;
        search::search(self, account, &query, within).await
    }
}

impl PgKnowledge {
    /// Stores a new document, and has it indexed.
    async fn make(&self, account: &AccountId, making: Making<'_>, once: Option<&Idempotency>) -> Result<Document> {
        let now = self.clock.now();
        let mut conn = self.db.fair_conn(account).await?;
        let made = conn.transaction::<_, Error, _>(async |conn| {
            let document = write::create_in(conn, &self.files, account, making, now).await?;
            Idempotency::store_if(once, conn, 201, &document).await?;
            Ok(document)
        });
        let document = made.await?;
        drop(conn);
        self.jobs.announce();
        Ok(document)
    }

    /// Has a document indexed anew, with what its file says now.
    async fn index_again(&self, account: &AccountId, id: &str, reread: Option<Reread>) -> Result<Document> {
        let now = self.clock.now();
        let mut conn = self.db.fair_conn(account).await?;
        let queued = conn.transaction::<_, Error, _>(async |conn| {
            let row = repository::lock(conn, account, id).await?.ok_or_else(|| not_found::document(id))?;
            write::reindex_in(conn, account, row, reread, self.limits, now).await
        });
        let document = queued.await?;
        drop(conn);
        self.jobs.announce();
        Ok(document)
    }

    /// Reads the file of a document again whose text never was; whether that changed the document.
    pub(crate) async fn read_again(&self, account: &AccountId, id: &str) -> Result<bool> {
        let row = self.found(account, id).await?;
        let reread = if row.unread { self.reread(account, row).await? } else { None };
        let changes = reread.is_some();
        if changes {
            self.index_again(account, id, reread).await?;
        }
        Ok(changes)
    }

    /// What the file says that a document was made of, if there is one.
    async fn reread(&self, account: &AccountId, row: repository::DocumentRow) -> Result<Option<Reread>> {
        let Some(source) = row.source_file_id else { return Ok(None) };
        let file = self.files.get(account, &Id::named(&source)).await?;
        let read = || self.files.bytes(account, &file, u64::MAX);
        let read = extract::text_of_bytes(&self.extraction, account, read, &row.file_type).await?;
        let found = extract::at_most(read, self.limits.bytes);
        Ok(Some(Reread { found, hash: row.content_hash, unread: row.unread }))
    }
}

impl UsedBy {
    /// Adds who else uses something.
    fn extend(&mut self, more: Self) {
        for agent in more.agents {
            if !self.agents.iter().any(|known| known.id == agent.id) {
                self.agents.push(agent);
            }
        }
        for assistant in more.assistants {
            if !self.assistants.iter().any(|known| known.id == assistant.id) {
                self.assistants.push(assistant);
            }
        }
        for environment in more.environments {
            if !self.environments.iter().any(|known| known.id == environment.id) {
                self.environments.push(environment);
            }
        }
    }
}
