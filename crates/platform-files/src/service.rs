use std::{collections::HashMap, ops::Range, sync::Arc, time::Duration};

use async_trait::async_trait;
use aws_lc_rs::rand;
use bytes::{Bytes, BytesMut};
use diesel_async::AsyncConnection;
use futures_util::TryStreamExt;
use moka::sync::Cache;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use platform_core::{AccountId, Clock, Code, Error, Id, Owner, Page, Result, Timestamp, millis, run_blocking};
use platform_db::{Conn, Db, Idempotency};
use tracing::{info, warn};
use url::Url;

use crate::{
    code,
    media::{HEAD_BYTES, media_type, shown_type, shows_inline, type_of_media, type_of_name},
    model::{FileFilter, FileList, NewFile, UploadedFile, Usage, plain_name},
    repository::{self, FileRow},
    store::{ByteStream, Content, Store},
};

/// Bytes without a record that are younger may get one yet.
const SETTLES: Duration = Duration::from_mins(15);
/// Those that this process has stored are left alone for so long, however often it is swept.
const STORING: Duration = Duration::from_mins(2);
const MAX_STORING: u64 = 100_000;
/// Files that one step of a sweep looks at.
const BATCH: usize = 500;
/// Accounts whose use of the store is told.
const MAX_ACCOUNTS: i64 = 100;
/// What an address may have without being encoded (RFC 3986 §2.3).
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Files of an account. `FILE_NOT_FOUND` for one that was deleted or has expired.
#[async_trait]
pub trait FileService: Send + Sync {
    /// Keeps a file: its bytes are durable when this returns. `PAYLOAD_TOO_LARGE` when its end user has no room left.
    async fn create(&self, account: &AccountId, new: NewFile, once: Option<&Idempotency>) -> Result<UploadedFile>;
    /// Those that the filter keeps, newest first.
    async fn list(&self, account: &AccountId, filter: &FileFilter, page: Page) -> Result<FileList>;
    /// The file of this id. `FILE_NOT_FOUND`.
    async fn get(&self, account: &AccountId, id: &Id<UploadedFile>) -> Result<UploadedFile>;
    /// Deletes one: its address is no good any more when this returns. `CONFLICT` when something was made of it.
    async fn delete(&self, account: &AccountId, id: &Id<UploadedFile>) -> Result<()>;
    /// What is at an address that we gave out, by the token in it.
    async fn download(&self, token: &str) -> Result<StoredContent>;
}

/// A file that is being downloaded.
#[derive(Debug, Clone)]
pub struct StoredContent {
    key: String,
    /// In bytes.
    pub size: u64,
    /// Of its bytes, in hex.
    pub sha256: String,
    /// Value of `Content-Type`: nothing that runs in a browser.
    pub content_type: String,
    /// Value of `Content-Disposition` (RFC 6266).
    pub disposition: String,
}

/// Bytes that are stored and have no record yet.
pub struct StoredBytes(FileRow);

impl StoredBytes {
    /// Id of the file.
    pub fn id(&self) -> &str {
        &self.0.id
    }

    /// Its name as it is kept.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// SHA-256 of them, in hex.
    pub fn sha256(&self) -> &str {
        &self.0.sha256
    }
}

/// The service on PostgreSQL and an object store.
pub struct PgFileService {
    db: Db,
    clock: Arc<dyn Clock>,
    store: Store,
    public_url: String,
    /// Bytes that an end user may keep; 0 = no bound.
    end_user_bytes: u64,
    /// Ids of bytes that were stored just now: their records may still be on their way.
    storing: Cache<String, ()>,
}
impl PgFileService {
    /// `public_url`: what download addresses begin with.
    pub fn new(db: &Db, clock: Arc<dyn Clock>, store: Store, public_url: &str) -> Self {
        let storing = Cache::builder().time_to_live(STORING).max_capacity(MAX_STORING).build();
        Self { db: db.clone(), clock, store, public_url: public_url.to_owned(), end_user_bytes: 0, storing }
    }

    /// Keeps so many bytes of an end user; 0 = no bound.
    #[must_use]
    pub fn keeping_of_end_users(self, bytes: usize) -> Self {
        Self { end_user_bytes: u64::try_from(bytes).unwrap_or(u64::MAX), ..self }
    }

    /// Refuses what an end user has no room for, before its bytes are stored. `PAYLOAD_TOO_LARGE`.
    async fn check_room(&self, account: &AccountId, new: &NewFile) -> Result<()> {
        if self.end_user_bytes == 0 || new.owner.tenant_id.is_none() {
            return Ok(());
        }
        let kept =
            repository::bytes_of(&*self.db.fair_conn(account).await?, account, &new.owner, self.clock.now()).await?;
        if u64::try_from(kept).unwrap_or(0) + new.size <= self.end_user_bytes {
            return Ok(());
        }
        let most = self.end_user_bytes;
        let message = format!("All files of an end user have at most {most} bytes; an API key deletes what is old.");
        Err(Error::new(Code::PAYLOAD_TOO_LARGE, message).with("limitBytes", most))
    }

    /// The token in an address that is ours, however it is spelled.
    pub fn token_of(&self, url: &str) -> Option<String> {
        let (url, ours) = (Url::parse(url).ok()?, Url::parse(&self.public_url).ok()?);
        let path = percent_decode_str(url.path()).decode_utf8_lossy();
        let rest = path.strip_prefix(ours.path().trim_end_matches('/'))?.strip_prefix("/f/")?;
        (url.origin() == ours.origin()).then(|| rest.split('/').next().unwrap_or_default().to_owned())
    }

    /// A file by the token in its address, when whoever acts for `owner` may use it (contract 07): one of a tenant is
    /// for that tenant alone.
    pub async fn find_for(&self, account: &AccountId, owner: &Owner, token: &str) -> Result<UploadedFile> {
        let conn = self.db.read().await?;
        let row = repository::find_by_token(conn.get(), token, self.clock.now()).await?;
        let is_theirs = |row: &FileRow| {
            let of = Owner { tenant_id: row.tenant_id.clone(), subtenant_id: row.subtenant_id.clone() };
            row.account_id == account.as_str() && owner.may_use(&of)
        };
        row.filter(is_theirs).map(|row| self.shown(row)).ok_or_else(no_address)
    }

    /// The first bytes of a file, at most `most`.
    pub async fn bytes(&self, account: &AccountId, file: &UploadedFile, most: u64) -> Result<Bytes> {
        let size = u64::try_from(file.size).unwrap_or(0).min(most);
        if size == 0 {
            return Ok(Bytes::new());
        }
        let stream = self.store.read(&key(account.as_str(), &file.file_id), 0..size).await?;
        let mut stream = stream.ok_or_else(|| not_found(&file.file_id))?;
        let mut bytes = BytesMut::new();
        while let Some(piece) = stream.try_next().await.map_err(Error::unavailable)? {
            bytes.extend_from_slice(&piece);
        }
        Ok(bytes.freeze())
    }

    /// The bytes of a range of a file that is being downloaded.
    pub async fn read(&self, content: &StoredContent, range: Range<u64>) -> Result<ByteStream> {
        self.store.read(&content.key, range).await?.ok_or_else(no_address)
    }

    /// Stores the bytes of a file, durably. Unless its record follows ([`PgFileService::create_in`]) they go with a sweep.
    pub async fn store(&self, account: &AccountId, new: NewFile) -> Result<StoredBytes> {
        new.check()?;
        let NewFile { name, content, size, sha256, ttl_seconds, owner, kept_for } = new;
        let (name, (content, head)) = (plain_name(&name), head(content).await?);
        let mime_type = media_type(&name, "", &head);
        let file_type = type_of_media(&mime_type).or_else(|| type_of_name(&name)).unwrap_or("other");
        let (id, now) = (String::from(Id::<UploadedFile>::generate()), self.clock.now());
        self.storing.insert(id.clone(), ());
        self.store.put(&key(account.as_str(), &id), content).await?;
        Ok(StoredBytes(FileRow {
            account_id: account.as_str().to_owned(),
            file_type: file_type.to_owned(),
            mime_type,
            sha256,
            size: i64::try_from(size).map_err(Error::internal)?,
            token: token()?,
            kept_for: kept_for.map(str::to_owned),
            tenant_id: owner.tenant_id,
            subtenant_id: owner.subtenant_id,
            expires_ms: ttl_seconds.map(|seconds| now.0 + seconds * 1000),
            created_ms: now.0,
            name,
            id,
        }))
    }

    /// Makes the record of a file whose bytes are stored, in the transaction of whatever it is for.
    pub async fn create_in(&self, conn: &mut Conn, stored: StoredBytes) -> Result<UploadedFile> {
        repository::insert(conn, &stored.0).await?;
        Ok(self.shown(stored.0))
    }

    /// Deletes the record of a file, in the transaction that deletes what it was kept for; its bytes follow
    /// ([`PgFileService::remove_bytes`]).
    pub async fn delete_in(&self, conn: &mut Conn, account: &AccountId, id: &str) -> Result<()> {
        repository::delete(conn, account, id).await.map(drop)
    }

    /// Removes the bytes of a file whose record is gone; what fails is done by the next sweep.
    pub async fn remove_bytes(&self, account: &AccountId, id: &str) {
        if let Err(error) = self.store.delete(&key(account.as_str(), id)).await {
            warn!(%error, "The bytes of a file that was deleted could not be removed; the next sweep does it.");
        }
    }

    /// Removes the bytes of files for which no record was made, as what they are for was refused. Of another error nobody
    /// knows whether there is one; a sweep does.
    pub async fn remove_refused(&self, account: &AccountId, error: Option<&Error>, ids: &[String]) {
        if error.is_some_and(Error::is_refusal) {
            for id in ids {
                self.remove_bytes(account, id).await;
            }
        }
    }

    /// What the accounts use that use the most.
    pub async fn usage(&self) -> Result<Vec<Usage>> {
        repository::usage(self.db.read().await?.get(), MAX_ACCOUNTS).await
    }

    /// Removes what has expired, and bytes that no record names; `interval`: how often that is done.
    pub async fn sweep(&self, interval: Duration) -> Result<()> {
        let now = self.clock.now();
        let mut expired = 0;
        loop {
            let batch = i64::try_from(BATCH).unwrap_or(i64::MAX);
            let taken = repository::take_expired(&mut *self.db.conn().await?, now, batch).await?;
            for (account, id) in &taken {
                self.store.delete(&key(account, id)).await?;
            }
            expired += taken.len();
            if taken.len() < BATCH {
                break;
            }
        }
        let before = Timestamp(now.0 - millis(SETTLES.min(interval)));
        self.store.remove_unfinished("files", before).await?;
        let mut found = self.store.older("files", before).try_chunks(BATCH);
        let mut orphaned = 0;
        while let Some(keys) = found.try_next().await.map_err(|error| error.1)? {
            orphaned += self.remove_orphaned(keys).await?;
        }
        if expired + orphaned > 0 {
            info!("Removed {expired} files that had expired and the bytes of {orphaned} that nobody had a record of.");
        }
        Ok(())
    }

    async fn remove_orphaned(&self, keys: Vec<String>) -> Result<usize> {
        let mut ids: HashMap<&str, Vec<String>> = HashMap::new();
        for key in &keys {
            if let [_, account, id] = key.split('/').collect::<Vec<_>>()[..] {
                ids.entry(account).or_default().push(id.to_owned());
            }
        }
        let mut removed = 0;
        for (account, ids) in ids {
            let known = repository::known(&mut *self.db.conn().await?, account, &ids).await?;
            for id in ids.iter().filter(|id| !known.contains(id) && !self.storing.contains_key(*id)) {
                self.store.delete(&key(account, id)).await?;
                removed += 1;
            }
        }
        Ok(removed)
    }

    fn shown(&self, row: FileRow) -> UploadedFile {
        let name = utf8_percent_encode(&row.name, ENCODED);
        UploadedFile {
            download_url: format!("{}/f/{}/{name}", self.public_url, row.token),
            name: row.name,
            file_type: row.file_type,
            file_id: row.id,
            mime_type: row.mime_type,
            sha256: row.sha256,
            size: row.size,
            tenant_id: row.tenant_id,
            subtenant_id: row.subtenant_id,
            creation_timestamp_ms: Timestamp(row.created_ms),
            expires_at_ms: row.expires_ms.map(Timestamp),
        }
    }
}

#[async_trait]
impl FileService for PgFileService {
    async fn create(&self, account: &AccountId, new: NewFile, once: Option<&Idempotency>) -> Result<UploadedFile> {
        self.check_room(account, &new).await?;
        let stored = self.store(account, new).await?;
        let mut conn = self.db.conn().await?;
        conn.transaction::<_, Error, _>(async |conn| {
            let file = self.create_in(conn, stored).await?;
            Idempotency::store_if(once, conn, 200, &file).await?;
            Ok(file)
        })
        .await
    }

    async fn list(&self, account: &AccountId, filter: &FileFilter, page: Page) -> Result<FileList> {
        let conn = self.db.fair_conn(account).await?;
        let (rows, total) = repository::list(&conn, account, filter, self.clock.now(), page).await?;
        let items = rows.into_iter().map(|row| self.shown(row)).collect();
        Ok(FileList { items, total, offset: page.offset, limit: page.limit })
    }

    async fn get(&self, account: &AccountId, id: &Id<UploadedFile>) -> Result<UploadedFile> {
        let row = repository::find(self.db.read().await?.get(), account, id, self.clock.now()).await?;
        row.map(|row| self.shown(row)).ok_or_else(|| not_found(id))
    }

    async fn delete(&self, account: &AccountId, id: &Id<UploadedFile>) -> Result<()> {
        let row = repository::find(self.db.read().await?.get(), account, id, self.clock.now()).await?;
        if let Some(user) = row.ok_or_else(|| not_found(id))?.kept_for {
            let message = format!("A {user} was made of this file; it goes when the {user} is deleted.");
            return Err(Error::new(Code::CONFLICT, message).with("keptFor", user));
        }
        if !repository::delete(&mut *self.db.conn().await?, account, id).await? {
            return Err(not_found(id));
        }
        self.remove_bytes(account, id).await;
        Ok(())
    }

    async fn download(&self, token: &str) -> Result<StoredContent> {
        let row = repository::find_by_token(self.db.read().await?.get(), token, self.clock.now()).await?;
        let row = row.ok_or_else(no_address)?;
        Ok(StoredContent {
            key: key(&row.account_id, &row.id),
            size: u64::try_from(row.size).unwrap_or(0),
            content_type: shown_type(&row.mime_type),
            disposition: disposition(&row.name, shows_inline(&row.mime_type)),
            sha256: row.sha256,
        })
    }
}

/// Where the bytes of a file are.
fn key(account: &str, id: &str) -> String {
    format!("files/{account}/{id}")
}

fn no_address() -> Error {
    Error::new(code::FILE_NOT_FOUND, "There is no file at this address; it may have expired.").with("resource", "file")
}

fn not_found(id: &str) -> Error {
    Error::not_found(code::FILE_NOT_FOUND, "file", id)
}

/// The first bytes of some content.
async fn head(content: Content) -> Result<(Content, Bytes)> {
    match content {
        Content::Bytes(bytes) => {
            let head = bytes.slice(..bytes.len().min(HEAD_BYTES));
            Ok((Content::Bytes(bytes), head))
        }
        Content::File(path) => {
            run_blocking(move || {
                use std::io::Read;
                let mut head = Vec::new();
                let file = std::fs::File::open(&path).map_err(Error::internal)?;
                file.take(HEAD_BYTES as u64).read_to_end(&mut head).map_err(Error::internal)?;
                Ok((Content::File(path), Bytes::from(head)))
            })
            .await
        }
    }
}

/// 43 random characters of base62: 256 bits.
fn token() -> Result<String> {
    const ALPHABET: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    let mut token = String::with_capacity(43);
    while token.len() < 43 {
        let mut random = [0; 64];
        rand::fill(&mut random).map_err(|_| Error::internal("no random bytes"))?;
        // 248 = 4 × 62: what is above would favour the first letters.
        let letters =
            random.into_iter().filter(|byte| *byte < 248).map(|byte| char::from(ALPHABET[usize::from(byte % 62)]));
        token.extend(letters.take(43 - token.len()));
    }
    Ok(token)
}

/// RFC 6266: a name in ASCII for old clients, and the name.
fn disposition(name: &str, is_inline: bool) -> String {
    let kind = if is_inline { "inline" } else { "attachment" };
    let plain: String =
        name.chars().map(|c| if c.is_ascii_graphic() && !"\"\\%;".contains(c) || c == ' ' { c } else { '_' }).collect();
    format!("{kind}; filename=\"{plain}\"; filename*=UTF-8''{}", utf8_percent_encode(name, ENCODED))
}
