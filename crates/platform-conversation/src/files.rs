//! Files of messages: fetched when the message is accepted, given to models that take them.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use diesel::{dsl::sql, prelude::*, sql_types::BigInt};
use diesel_async::RunQueryDsl;
use platform_core::{AccountId, Error, FairMemory, FairPermit, FairSemaphore, Owner, Result, Timestamp, joined};
use platform_db::Conn;
use platform_egress::Egress;
use platform_files::{HEAD_BYTES, PgFileService, media_type, type_of, type_of_address, type_of_media, type_of_name};
use platform_guardrails::{Screen, ScreenContext};
use platform_runtime::DocumentReader;

use crate::{
    columns::json,
    message::{ChatMessage, File},
    request::TurnRequest,
    schema::{message_files, messages},
    store::ConversationStore,
};

/// For all files of a message together (contract 02 §3).
const FETCH_TIMEOUT: Duration = Duration::from_secs(30);

/// For room for them, until others are stored.
const ROOM_TIMEOUT: Duration = Duration::from_secs(10);

/// Messages whose files are fetched at once.
const MESSAGES_AT_ONCE: usize = 8;

/// Of one end user, whose account has few places more: such messages, and files of theirs that are fetched at once.
const MESSAGES_OF_END_USER: usize = 3;
const FILES_OF_END_USER: usize = 4;

/// Stored files of one message together.
const MAX_BYTES: usize = 25 << 20;

/// Memory of files that were fetched for messages until these are accepted, in all and of one account.
const FETCHED: (usize, usize) = (128 << 20, 64 << 20);

/// Accounts of which figures are told.
const MAX_ACCOUNTS: i64 = 100;

/// A file as it was when its message was accepted.
#[derive(Debug, Clone)]
pub struct StoredFile {
    position: i32,
    content: FileContent,
    /// Room for the files of its message.
    _room: Option<Arc<FairPermit>>,
}

/// What is in a file.
#[derive(Debug, Clone)]
pub(crate) struct FileContent {
    pub media_type: String,
    pub bytes: Bytes,
    /// What it says, where its bytes are no text.
    pub text: Option<String>,
}

impl FileContent {
    /// What a document says.
    pub fn said(&self) -> Option<&str> {
        let is_text = self.media_type.starts_with("text/")
            || matches!(self.media_type.as_str(), "application/json" | "application/xml" | "application/yaml");
        self.text.as_deref().or_else(|| std::str::from_utf8(&self.bytes).ok().filter(|_| is_text))
    }

    /// It says something else, and the model gets that instead of the document.
    pub fn say(&mut self, text: String) {
        if self.text.as_ref() == Some(&text) {
            return;
        }
        if self.text.is_some() {
            (self.text, self.bytes) = (Some(text), Bytes::new());
        } else {
            self.bytes = text.into();
        }
    }
}

/// Reads files of messages, ours from their store and others from where they are: of a few at once, fairly over
/// accounts, since all of a message are in memory.
#[derive(Clone)]
pub struct FileFetcher {
    egress: Egress,
    files: Arc<PgFileService>,
    documents: Arc<dyn DocumentReader>,
    places: FairSemaphore,
    places_of_end_users: FairSemaphore<String>,
    files_of_end_users: FairSemaphore<String>,
    memory: FairMemory,
}

/// A place of an end user, when it is for one.
async fn place_of(end_user: Option<&String>, places: &FairSemaphore<String>) -> Option<FairPermit<String>> {
    Some(places.acquire(end_user?).await)
}

impl FileFetcher {
    /// One for all chats and threads of a process; `most_bytes`: of a file at an address that is not ours.
    pub fn new(
        egress: &Egress,
        files: Arc<PgFileService>,
        documents: Arc<dyn DocumentReader>,
        most_bytes: usize,
    ) -> Self {
        Self {
            egress: egress.reading(most_bytes),
            files,
            documents,
            places: FairSemaphore::new(MESSAGES_AT_ONCE, MESSAGES_AT_ONCE),
            places_of_end_users: FairSemaphore::new(0, MESSAGES_OF_END_USER),
            files_of_end_users: FairSemaphore::new(0, FILES_OF_END_USER),
            memory: FairMemory::new(FETCHED.0, FETCHED.1),
        }
    }

    /// The way out.
    pub fn egress(&self) -> &Egress {
        &self.egress
    }

    /// Whether whoever acts for `owner` may name these files: `FILE_NOT_FOUND` for one of ours that is not theirs,
    /// `URL_NOT_ALLOWED` for an address that nobody may call. What type of file they are is noted as far as it is told.
    pub async fn check(&self, account: &AccountId, owner: &Owner, files: &mut [File]) -> Result<()> {
        for (i, file) in files.iter_mut().enumerate() {
            let told = match self.files.token_of(&file.download_url) {
                Some(token) => {
                    let found = self.files.find_for(account, owner, &token).await;
                    Some(found.map_err(|error| error.at(&path(i)))?.file_type)
                }
                None => {
                    let checked = self.egress.check(&file.download_url).await;
                    checked.map_err(|error| error.into_error(&path(i)))?;
                    told_type(file).map(str::to_owned)
                }
            };
            file.file_type = file.file_type.take().or(told);
        }
        Ok(())
    }

    /// Reads the files of a message within 30 s, waiting for its turn included; those that no model reads are only
    /// looked at. What type of file each is, is known then (contract 00 §12). `FILE_NOT_FOUND`, `VALIDATION_ERROR` or
    /// `URL_NOT_ALLOWED` when one cannot be read, `SERVICE_UNAVAILABLE` when files of other messages take all room, or
    /// time.
    pub async fn fetch(
        &self,
        account: &AccountId,
        owner: &Owner,
        files: &mut [File],
    ) -> Result<Vec<StoredFile>, FetchError> {
        let (tenant, user) = (owner.tenant_id.as_deref(), owner.subtenant_id.as_deref().unwrap_or_default());
        let end_user = tenant.map(|tenant| joined([account.as_str(), tenant, user]));
        let end_user = end_user.as_ref();
        let fetched = async {
            let place = (place_of(end_user, &self.places_of_end_users).await, self.places.acquire(account).await);
            let (egress, left) = (&self.egress.of(account), &Left(MAX_BYTES.into()));
            let fetches = files.iter_mut().enumerate().map(|(i, file)| async move {
                let kept = match self.files.token_of(&file.download_url) {
                    Some(token) => {
                        let read = self.read(account, owner, token, file, left).await;
                        read.map_err(|error| error.at(&path(i)))
                    }
                    None => {
                        let _place = place_of(end_user, &self.files_of_end_users).await;
                        fetch(egress, &path(i), file, left).await
                    }
                };
                let kept = kept.map_err(|error| FetchError { file: Some(i), error })?;
                Ok::<_, FetchError>(kept.map(|(media_type, bytes)| (i, media_type, bytes)))
            });
            let kept = futures_util::future::try_join_all(fetches).await?;
            Ok::<_, FetchError>((kept.into_iter().flatten().collect::<Vec<_>>(), place))
        };
        let slow = |_| Error::invalid("files", "format", "files: they took longer than 30 s to fetch");
        let (kept, _place) = tokio::time::timeout(FETCH_TIMEOUT, fetched).await.map_err(slow)??;
        let size = kept.iter().map(|(_, _, bytes)| bytes.len()).sum();
        let full = |_| Error::unavailable("files of other messages of the account take all the room that there is");
        let room = tokio::time::timeout(ROOM_TIMEOUT, self.memory.hold(account, size)).await.map_err(full)?;
        let room = room.map(Arc::new);
        let mut stored = Vec::with_capacity(kept.len());
        for (i, media_type, bytes) in kept {
            let content = self.content(account, &files[i].name, media_type, bytes).await;
            let content = content.map_err(|error| FetchError { file: Some(i), error: error.at(&path(i)) })?;
            stored.push(StoredFile { position: position(i), content, _room: room.clone() });
        }
        Ok(stored)
    }

    /// A file with what it says: models read pictures and some of them PDF; of all other documents the text.
    async fn content(&self, account: &AccountId, name: &str, media_type: String, bytes: Bytes) -> Result<FileContent> {
        let is_text = media_type.starts_with("text/");
        let text = if is_text { None } else { self.documents.text(account, name, &bytes).await? };
        Ok(match text {
            Some(text) if media_type != "application/pdf" => {
                FileContent { media_type: "text/markdown".to_owned(), bytes: text.into(), text: None }
            }
            text => FileContent { media_type, bytes, text },
        })
    }

    /// A file of ours.
    async fn read(
        &self,
        account: &AccountId,
        owner: &Owner,
        token: String,
        file: &mut File,
        left: &Left,
    ) -> Result<ReadFile> {
        let stored = self.files.find_for(account, owner, &token).await?;
        let kind = file.file_type.get_or_insert_with(|| stored.file_type.clone());
        if !is_read(kind) {
            return Ok(None);
        }
        left.take(usize::try_from(stored.size).unwrap_or(usize::MAX))?;
        Ok(Some((stored.mime_type.clone(), self.files.bytes(account, &stored, MAX_BYTES as u64).await?)))
    }
}

/// Files of a message could not be read.
#[derive(Debug)]
pub struct FetchError {
    /// Which of them, where it is one.
    pub file: Option<usize>,
    /// Why.
    pub error: Error,
}

impl From<Error> for FetchError {
    fn from(error: Error) -> Self {
        Self { file: None, error }
    }
}

impl From<FetchError> for Error {
    fn from(FetchError { error, .. }: FetchError) -> Self {
        error
    }
}

/// Bytes that the files of a message may still have.
struct Left(AtomicUsize);

impl Left {
    fn take(&self, bytes: usize) -> Result<()> {
        let left = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(bytes));
        let message = || format!("files take more than {MAX_BYTES} bytes together");
        left.map(drop).map_err(|_| Error::invalid("files", "length", message()))
    }
}

/// Media type and bytes of a file that a model reads.
type ReadFile = Option<(String, Bytes)>;

/// A file of somebody else.
async fn fetch(egress: &Egress, path: &str, file: &mut File, left: &Left) -> Result<ReadFile> {
    let fetched = egress.get(&file.download_url).await.map_err(|error| error.into_error(path))?;
    if !(200..300).contains(&fetched.status) || fetched.bytes.is_empty() {
        let message = format!("{path}: the address answers {} with {} bytes", fetched.status, fetched.bytes.len());
        return Err(Error::invalid(path, "format", message));
    }
    let head = &fetched.bytes.slice(..fetched.bytes.len().min(HEAD_BYTES));
    let kind = file.file_type.take().unwrap_or_else(|| {
        let told = told_type(file).or_else(|| type_of_media(&fetched.media_type));
        told.unwrap_or_else(|| type_of("", head)).to_owned()
    });
    let kind = file.file_type.insert(kind);
    if !is_read(kind) {
        return Ok(None);
    }
    left.take(fetched.bytes.len())?;
    Ok(Some((media_type(&file.name, &fetched.media_type, head), fetched.bytes)))
}

/// What the name of a file says, else its address.
fn told_type(file: &File) -> Option<&'static str> {
    type_of_name(&file.name).or_else(|| type_of_address(&file.download_url))
}

fn is_read(file_type: &str) -> bool {
    matches!(file_type, "image" | "document")
}

fn path(i: usize) -> String {
    format!("files[{i}].downloadUrl")
}

fn position(i: usize) -> i32 {
    i32::try_from(i).unwrap_or(i32::MAX)
}

/// Has the input rules see what text documents say, as if the user had written it.
pub async fn screen_files(
    screen: &Arc<Screen>,
    files: &mut [StoredFile],
    message_uid: &str,
    now: Timestamp,
    request: &mut TurnRequest,
) -> Result<()> {
    for file in files {
        let Some(text) = file.content.said() else {
            // A document that nobody could read is no way around the rules.
            if screen.screens_input() && file.content.media_type == "application/pdf" {
                file.content.bytes = Bytes::new();
            }
            continue;
        };
        let context = ScreenContext { message_uid: message_uid.to_owned(), now };
        let screening = screen.arriving(text.to_owned(), context).await?;
        request.findings.extend(screening.findings);
        request.blocked |= screening.blocked;
        file.content.say(screening.text);
    }
    Ok(())
}

/// Bytes of the files that messages keep, of the accounts that keep the most; of all accounts, for figures.
pub async fn message_file_bytes(conn: &mut Conn) -> Result<Vec<(String, i64)>> {
    let bytes = sql::<BigInt>("sum(octet_length(bytes) + coalesce(octet_length(text), 0))::bigint");
    let accounts = message_files::table.group_by(message_files::account_id).select((message_files::account_id, bytes));
    Ok(accounts.order(sql::<BigInt>("2 DESC")).limit(MAX_ACCOUNTS).load(conn).await?)
}

/// Message, position and bytes of a file.
pub(crate) type FileSize = (String, i32, i64);
/// What is in files, by message and position.
pub(crate) type Contents = HashMap<(String, i32), FileContent>;

impl ConversationStore<'_> {
    /// Stores what kind of files a stored message has, once it is known.
    pub async fn note_file_types(self, conn: &mut Conn, message: &str, files: &[File]) -> Result<()> {
        let of = messages::table
            .filter(messages::account_id.eq(self.account.as_str()))
            .filter(messages::conversation.eq(self.name).and(messages::uid.eq(message)));
        let Some(body) = of.select(messages::body).first::<String>(conn).await.optional()? else { return Ok(()) };
        let mut body: ChatMessage = serde_json::from_str(&body).map_err(Error::internal)?;
        body.content.files = files.to_vec();
        let body = serde_json::to_string(&body).map_err(Error::internal)?;
        diesel::update(of).set(messages::body.eq(json(&body))).execute(conn).await?;
        Ok(())
    }

    /// Keeps the files of a message.
    pub async fn store_files(self, conn: &mut Conn, message: &str, files: &[StoredFile]) -> Result<()> {
        for file in files {
            diesel::insert_into(message_files::table)
                .values((
                    message_files::account_id.eq(self.account.as_str()),
                    message_files::conversation.eq(self.name),
                    message_files::message_uid.eq(message),
                    message_files::position.eq(file.position),
                    message_files::media_type.eq(&file.content.media_type),
                    message_files::bytes.eq(file.content.bytes.as_ref()),
                    message_files::text.eq(&file.content.text),
                ))
                .execute(conn)
                .await?;
        }
        Ok(())
    }

    /// Gives the files of a buffered message to the one it was joined to, after those that has already.
    pub async fn hand_over_files(self, conn: &mut Conn, from: &str, to: &str, after: usize) -> Result<()> {
        let of = message_files::table
            .filter(message_files::account_id.eq(self.account.as_str()))
            .filter(message_files::conversation.eq(self.name).and(message_files::message_uid.eq(from)));
        let after = i32::try_from(after).unwrap_or(i32::MAX);
        diesel::update(of)
            .set((message_files::message_uid.eq(to), message_files::position.eq(message_files::position + after)))
            .execute(conn)
            .await?;
        Ok(())
    }

    /// Takes away the files of messages that were discarded.
    pub async fn discard_files(self, conn: &mut Conn, uids: &[String]) -> Result<()> {
        let of = message_files::table
            .filter(message_files::account_id.eq(self.account.as_str()))
            .filter(message_files::conversation.eq(self.name).and(message_files::message_uid.eq_any(uids)));
        diesel::delete(of).execute(conn).await?;
        Ok(())
    }

    /// Message, position and bytes of the kept files of some messages, newest first, up to so many bytes.
    pub(crate) async fn file_sizes(self, conn: &Conn, uids: &[String], most: usize) -> Result<Vec<FileSize>> {
        let mut conn = conn;
        let bytes = sql::<BigInt>("(octet_length(bytes) + coalesce(octet_length(text), 0))::bigint");
        let mut sizes: Vec<FileSize> = message_files::table
            .filter(message_files::account_id.eq(self.account.as_str()))
            .filter(message_files::conversation.eq(self.name).and(message_files::message_uid.eq_any(uids)))
            .select((message_files::message_uid, message_files::position, bytes))
            .load(&mut conn)
            .await?;
        let age: HashMap<&String, usize> = uids.iter().zip(0..).collect();
        sizes.sort_by_key(|(uid, position, _)| (age.get(uid).copied(), *position));
        let mut left = most;
        let fits = |(.., bytes): &FileSize| {
            let rest = usize::try_from(*bytes).ok().and_then(|bytes| left.checked_sub(bytes));
            rest.map(|rest| left = rest).is_some()
        };
        Ok(sizes.into_iter().take_while(fits).collect())
    }

    /// Stored files of messages.
    pub(crate) async fn files(self, conn: &Conn, of: &[FileSize]) -> Result<Contents> {
        let mut contents = Contents::new();
        for (uid, position, _) in of {
            let mut conn = conn;
            let row: Option<(String, Vec<u8>, Option<String>)> = message_files::table
                .filter(message_files::account_id.eq(self.account.as_str()))
                .filter(message_files::conversation.eq(self.name).and(message_files::message_uid.eq(uid)))
                .filter(message_files::position.eq(position))
                .select((message_files::media_type, message_files::bytes, message_files::text))
                .first(&mut conn)
                .await
                .optional()?;
            if let Some((media_type, bytes, text)) = row {
                contents.insert((uid.clone(), *position), FileContent { media_type, bytes: bytes.into(), text });
            }
        }
        Ok(contents)
    }
}
