use async_trait::async_trait;
use diesel_async::AsyncConnection;
use platform_core::{AccountId, Error, Id, Object, Result, overlay};
use platform_db::{Conn, Idempotency};

use super::{
    model::{Folder, FolderFilter, FolderSettings},
    repository::{self, FolderRow},
};
use crate::{
    document::{Attached, Attachment, Gone, PgKnowledge},
    kinds::{FOLDER, SKILL},
    not_found, skill, tree, uses,
};

/// Folders of documents. `FOLDER_NOT_FOUND` comes from all that name one.
#[async_trait]
pub trait FolderService: Send + Sync {
    /// Makes a folder.
    async fn create(&self, account: &AccountId, new: FolderSettings, once: Option<&Idempotency>) -> Result<Folder>;
    /// Those that the filter keeps, newest first, at most 1,000.
    async fn list(&self, account: &AccountId, filter: &FolderFilter) -> Result<Vec<Folder>>;
    /// The folder of this id. `FOLDER_NOT_FOUND`.
    async fn get(&self, account: &AccountId, id: &Id<Folder>) -> Result<Folder>;
    /// Changes the given fields; another project takes all below with it.
    async fn update(&self, account: &AccountId, id: &Id<Folder>, patch: Object) -> Result<Folder>;
    /// Deletes a folder. What lies in it moves to where it lay, or goes with it (`with_documents`): `PROJECT_FORBIDDEN`
    /// when a part of that is in a project that is not `within`.
    async fn delete(
        &self,
        account: &AccountId,
        id: &Id<Folder>,
        within: Option<&[String]>,
        with_documents: bool,
    ) -> Result<()>;
    /// Gives a folder with all below, also later, to an agent or assistant, or takes it from there.
    async fn attach(&self, account: &AccountId, id: &Id<Folder>, to: Attachment, attach: bool) -> Result<Attached>;
}
impl PgKnowledge {
    /// Deletes folders that nothing but each other lies in; who referred to them.
    async fn delete_folders_in(
        &self,
        conn: &mut Conn,
        account: &AccountId,
        ids: &[String],
    ) -> Result<Vec<(String, String)>> {
        repository::lock_all(conn, account, ids).await?;
        let users = self.referrers.forget_in(conn, account, &[FOLDER, SKILL], ids).await?;
        skill::forget(conn, account, ids).await?;
        repository::delete(conn, account, ids).await?;
        Ok(users)
    }
}

#[async_trait]
impl FolderService for PgKnowledge {
    async fn create(&self, account: &AccountId, mut new: FolderSettings, once: Option<&Idempotency>) -> Result<Folder> {
        new.check()?;
        let now = self.clock.now();
        let mut conn = self.db.fair_conn(account).await?;
        conn.transaction::<_, Error, _>(async |conn| {
            tree::share(conn, account).await?;
            let parent = new.parent_folder_id.as_deref();
            let row = FolderRow {
                account_id: account.as_str().to_owned(),
                id: Id::<Folder>::generate().into(),
                project_id: tree::project_in(conn, account, parent, new.project_id).await?,
                name: new.name,
                parent_id: new.parent_folder_id,
                color: new.color,
                tags: new.tags.into(),
                is_skill: new.is_skill,
                created_ms: now.0,
                edited_ms: now.0,
            };
            repository::insert(conn, &row).await?;
            let folder = row.shown(0)?;
            Idempotency::store_if(once, conn, 201, &folder).await?;
            Ok(folder)
        })
        .await
    }

    async fn list(&self, account: &AccountId, filter: &FolderFilter) -> Result<Vec<Folder>> {
        let rows = repository::list(&*self.db.fair_conn(account).await?, account, filter).await?;
        rows.into_iter().map(|(row, documents)| row.shown(documents)).collect()
    }

    async fn get(&self, account: &AccountId, id: &Id<Folder>) -> Result<Folder> {
        let conn = self.db.read().await?;
        let row = repository::find(conn.get(), account, id).await?.ok_or_else(|| not_found::folder(id))?;
        row.shown(repository::count(conn.get(), account, id).await?)
    }

    async fn update(&self, account: &AccountId, id: &Id<Folder>, patch: Object) -> Result<Folder> {
        // Fields are judged before it matters what they are applied to.
        let named = FolderSettings { name: "named".to_owned(), ..FolderSettings::default() };
        overlay(&named, patch.clone())?.check()?;
        let now = self.clock.now();
        let may_move = ["parentFolderId", "projectId"].iter().any(|field| patch.contains_key(*field));
        let mut conn = self.db.fair_conn(account).await?;
        conn.transaction::<_, Error, _>(async |conn| {
            if may_move {
                tree::lock(conn, account).await?;
            } else {
                tree::share(conn, account).await?;
            }
            let mut row = repository::lock(conn, account, id).await?.ok_or_else(|| not_found::folder(id))?;
            let asked = patch.get("projectId").and_then(|project| project.as_str().map(str::to_owned));
            let mut settings = overlay(&row.settings()?, patch)?;
            settings.check()?;
            if let Some(parent) =
                settings.parent_folder_id.as_deref().filter(|_| settings.parent_folder_id != row.parent_id)
            {
                tree::check_parent_folder(conn, account, id, parent).await?;
            }
            let at_root = settings.parent_folder_id.is_none();
            let asked = if at_root { settings.project_id } else { asked };
            let project = tree::project_in(conn, account, settings.parent_folder_id.as_deref(), asked).await?;
            let moves = project != row.project_id;
            row.project_id = project;
            row.parent_id = settings.parent_folder_id;
            (row.name, row.color, row.is_skill) = (settings.name, settings.color, settings.is_skill);
            row.tags = settings.tags.into();
            row.edited_ms = now.0;
            repository::update(conn, account, &row).await?;
            if moves {
                let below = repository::tree(conn, account, &[id.to_string()]).await?;
                repository::move_to(conn, account, &below, row.project_id.as_deref(), now).await?;
            }
            row.shown(repository::count(conn, account, id).await?)
        })
        .await
    }

    async fn delete(
        &self,
        account: &AccountId,
        id: &Id<Folder>,
        within: Option<&[String]>,
        with_documents: bool,
    ) -> Result<()> {
        let now = self.clock.now();
        let mut conn = self.db.fair_conn(account).await?;
        let deleting = conn.transaction::<_, Error, _>(async |conn| {
            tree::lock(conn, account).await?;
            let row = repository::lock(conn, account, id).await?.ok_or_else(|| not_found::folder(id))?;
            if !with_documents {
                repository::empty_into(conn, account, id, row.parent_id.as_deref(), now).await?;
                let users = self.delete_folders_in(conn, account, &[id.to_string()]).await?;
                return Ok(Gone { users, ..Gone::default() });
            }
            let below = repository::tree(conn, account, &[id.to_string()]).await?;
            let mut documents = Vec::new();
            for document in repository::documents_in(conn, account, &below).await? {
                documents.extend(crate::document::repository::tree(conn, account, &document).await?);
            }
            documents.sort();
            documents.dedup();
            crate::document::repository::check_within(conn, account, &documents, within).await?;
            // Documents before folders, and both before what refers to them, whoever takes them.
            crate::document::repository::lock_all(conn, account, &documents).await?;
            repository::lock_all(conn, account, &below).await?;
            let mut gone = self.delete_documents_in(conn, account, &documents).await?;
            gone.users.extend(self.delete_folders_in(conn, account, &below).await?);
            Ok(gone)
        });
        let gone = deleting.await?;
        drop(conn);
        self.follow(account, gone).await
    }

    async fn attach(&self, account: &AccountId, id: &Id<Folder>, mut to: Attachment, attach: bool) -> Result<Attached> {
        to.check()?;
        let mut conn = self.db.conn().await?;
        let attaching = conn.transaction::<_, Error, _>(async |conn| {
            if uses::known_folders(conn, account, &[id.to_string()]).await?.is_empty() {
                return Err(not_found::folder(id));
            }
            uses::attach_in(conn, account, &self.referrers, (FOLDER, id), &to, attach).await
        });
        let target = attaching.await?;
        drop(conn);
        self.tell(&[(to.target_type, target)]).await?;
        Ok(Attached { success: true, attached: attach })
    }
}
