//! Bodies with files (RFC 7578): each file goes to disk while it comes, and is never whole in memory.

use std::{
    collections::BTreeMap,
    fs,
    future::pending,
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use actix_multipart::{Field, Multipart, MultipartError};
use actix_web::{
    error::PayloadError,
    http::header::{self, HeaderMap},
};
use aws_lc_rs::digest::{Context, SHA256};
use bytes::Bytes;
use futures_util::{StreamExt, stream::poll_fn};
use platform_core::{Code, Error, Id, Result, hex};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncWriteExt, BufWriter},
    sync::mpsc,
};
use tracing::warn;

use crate::{
    body::{Incoming, refuse_encoding, too_large},
    code,
    gate::Whose,
    http::Http,
    request::Fields,
};

/// A body is whole so long after its head (contract 00 §1.8).
const TIMEOUT: Duration = Duration::from_mins(5);
/// Fields that are no files take no more than this together; so do the heads of all parts.
const MAX_TEXT: usize = 64 * 1024;
/// Parts of one body.
const MAX_PARTS: usize = 600;
/// A file is written in pieces of this many bytes.
const PIECE: usize = 256 * 1024;
/// Files that came so long ago, and that no request holds, are removed.
const ABANDONED: Duration = Duration::from_mins(15);

/// A file of a body, on disk as long as this is kept.
#[derive(Debug)]
pub struct Part {
    /// The field that it was sent in.
    pub field: String,
    /// What its sender calls it; may be empty or a path.
    pub file_name: String,
    /// In bytes.
    pub size: u64,
    /// In hex.
    pub sha256: String,
    file: OnDisk,
}

impl Part {
    /// All of it, for what is small.
    pub async fn bytes(&self) -> Result<Bytes> {
        tokio::fs::read(self.path()).await.map(Bytes::from).map_err(Error::internal)
    }

    /// Where it is. Whoever moves it away has it.
    pub fn path(&self) -> &Path {
        &self.file.path
    }
}

/// A file on disk.
#[derive(Debug)]
struct OnDisk {
    path: PathBuf,
    _directory: Arc<Directory>,
}

/// The files of a request, which are removed with the last of them.
#[derive(Debug)]
struct Directory {
    path: PathBuf,
    /// Locked for as long as somebody needs it, also if that waits. Where nothing can be locked its age counts.
    _held: fs::File,
}

impl Directory {
    async fn create(path: PathBuf) -> io::Result<Self> {
        tokio::fs::create_dir(&path).await?;
        let held = tokio::fs::File::open(&path).await?.into_std().await;
        let _ = held.try_lock_shared();
        Ok(Self { path, _held: held })
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.path) {
            warn!(%error, "Files that were uploaded could not be removed; that is tried again.");
        }
    }
}

/// A body with files: as JSON, in which files stand by name and digest; its fields; its files.
pub(crate) struct Received {
    pub body: Bytes,
    pub fields: Fields,
    pub parts: Vec<Part>,
}

/// Receives a body whose files have at most so many bytes together; `whose`: who holds its place meanwhile.
pub(crate) async fn receive(
    http: &Http,
    most: usize,
    whose: &Whose,
    headers: &HeaderMap,
    payload: &mut Incoming,
) -> Result<Received> {
    refuse_encoding(headers)?;
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if !text(header::CONTENT_TYPE).to_ascii_lowercase().starts_with("multipart/form-data") {
        let message = "Send the body as `multipart/form-data`, its files as parts with a file name.";
        return Err(Error::new(Code::UNSUPPORTED_MEDIA_TYPE, message));
    }
    let declared: Option<usize> = text(header::CONTENT_LENGTH).parse().ok();
    if let Some(length) = declared.filter(|length| most > 0 && *length > most + 2 * MAX_TEXT) {
        return Err(too_large(most, Some(length)));
    }
    let _place = http.gate.upload(whose).await?;
    let (sender, mut receiver) = mpsc::channel(1);
    let chunks = poll_fn(move |cx| receiver.poll_recv(cx));
    let pump = async {
        while let Some(chunk) = payload.next().await {
            if sender.send(chunk).await.is_err() {
                break;
            }
        }
        drop(sender);
        pending::<()>().await;
    };
    let directory = http.config.upload_dir.join(String::from(Id::<UploadKind>::generate()));
    let directory = Arc::new(Directory::create(directory).await.map_err(|error| unwritten(&error))?);
    let mut reader = Reader { directory, most, size: 0, text: 0, texts: BTreeMap::new(), parts: Vec::new() };
    let reading = async {
        reader.read(headers, chunks).await?;
        reader.received()
    };
    tokio::select! {
        biased;
        received = tokio::time::timeout(TIMEOUT, reading) => {
            received.map_err(|_| Error::new(code::REQUEST_TIMEOUT, "The body came too slowly."))?
        }
        () = pump => Err(Error::internal("the pump of a body never ends")),
    }
}

enum UploadKind {}

struct Reader {
    directory: Arc<Directory>,
    most: usize,
    /// Of all files.
    size: usize,
    /// Of all other fields.
    text: usize,
    texts: BTreeMap<String, String>,
    parts: Vec<Part>,
}

impl Reader {
    async fn read(
        &mut self,
        headers: &HeaderMap,
        chunks: impl futures_util::Stream<Item = Result<Bytes, PayloadError>> + 'static,
    ) -> Result<()> {
        let mut multipart = Multipart::new(headers, chunks);
        while let Some(field) = multipart.next().await {
            let mut field = field.map_err(|error| broken(&error))?;
            if self.parts.len() + self.texts.len() >= MAX_PARTS {
                return Err(Error::invalid("", "length", format!("The body has more than {MAX_PARTS} parts.")));
            }
            let name = field.name().unwrap_or_default().to_owned();
            if name.contains('\0') {
                return Err(Error::invalid(&name, "format", "Text must not contain the character NUL."));
            }
            let disposition = field.content_disposition();
            let file_name = disposition.and_then(|disposition| disposition.get_filename()).map(str::to_owned);
            // Some clients name no file; what it is says that it is one.
            let is_binary = field.content_type().is_some_and(|kind| {
                matches!(kind.type_().as_str(), "audio" | "video" | "image") || kind.subtype() == "octet-stream"
            });
            match file_name.or_else(|| is_binary.then(|| name.clone())) {
                Some(file_name) => self.file(name, file_name, &mut field).await?,
                None => self.field(name, &mut field).await?,
            }
        }
        Ok(())
    }

    async fn field(&mut self, name: String, field: &mut Field) -> Result<()> {
        let mut value = Vec::new();
        self.text += name.len();
        while let Some(chunk) = field.next().await {
            let chunk = chunk.map_err(|error| broken(&error))?;
            self.text += chunk.len();
            if self.text > MAX_TEXT {
                return Err(too_large(MAX_TEXT, None));
            }
            value.extend_from_slice(&chunk);
        }
        let value = String::from_utf8(value).ok().filter(|value| !value.contains('\0')).ok_or_else(|| {
            Error::invalid(&name, "format", format!("{name}: text must be UTF-8 without the character NUL"))
        })?;
        self.texts.insert(name, value);
        Ok(())
    }

    async fn file(&mut self, field: String, file_name: String, content: &mut Field) -> Result<()> {
        self.text += field.len() + file_name.len();
        if self.text > MAX_TEXT {
            return Err(too_large(MAX_TEXT, None));
        }
        let path = self.directory.path.join(self.parts.len().to_string());
        let written = tokio::fs::File::create_new(&path).await.map_err(|error| unwritten(&error))?;
        let file = OnDisk { path, _directory: Arc::clone(&self.directory) };
        let (mut written, mut digest) = (BufWriter::with_capacity(PIECE, written), Context::new(&SHA256));
        let before = self.size;
        while let Some(chunk) = content.next().await {
            let chunk = chunk.map_err(|error| broken(&error))?;
            self.size += chunk.len();
            if self.most > 0 && self.size > self.most {
                return Err(too_large(self.most, None));
            }
            digest.update(&chunk);
            written.write_all(&chunk).await.map_err(|error| unwritten(&error))?;
        }
        written.flush().await.map_err(|error| unwritten(&error))?;
        let (size, sha256) = ((self.size - before) as u64, hex(digest.finish().as_ref()));
        self.parts.push(Part { field, file_name, size, sha256, file });
        Ok(())
    }

    fn received(&mut self) -> Result<Received> {
        let mut body: BTreeMap<String, Value> = BTreeMap::new();
        for part in &self.parts {
            let files = body.entry(part.field.clone()).or_insert_with(|| json!([]));
            let files = files.as_array_mut().expect("it was put there");
            files.push(json!({"fileName": part.file_name, "sha256": part.sha256}));
        }
        body.extend(std::mem::take(&mut self.texts).into_iter().map(|(name, text)| (name, text.into())));
        let body = Bytes::from(serde_json::to_vec(&body).map_err(Error::internal)?);
        Ok(Received { fields: Fields::of(&body)?, body, parts: std::mem::take(&mut self.parts) })
    }
}

fn broken(error: &MultipartError) -> Error {
    Error::new(Code::BAD_REQUEST, format!("The body is no multipart/form-data that can be read: {error}."))
}

fn unwritten(error: &io::Error) -> Error {
    warn!(%error, "What is uploaded could not be written to the data directory.");
    Error::new(Code::SERVICE_UNAVAILABLE, "What was uploaded could not be stored; try again shortly.").retry_after(5)
}

/// Removes what requests left behind that were broken off with their process, never what one holds; `interval`: when it
/// is looked again, which is how long they are left alone if that is less than a quarter of an hour (contract 07).
pub fn remove_abandoned_uploads(dir: &Path, interval: Duration) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let written = entry.metadata().and_then(|metadata| metadata.modified());
        let age = written.map(|written| written.elapsed().unwrap_or_default());
        let is_held = || fs::File::open(entry.path()).is_ok_and(|file| is_locked(&file));
        if age.is_ok_and(|age| age > ABANDONED.min(interval)) && !is_held() {
            if entry.file_type()?.is_dir() { fs::remove_dir_all(entry.path())? } else { fs::remove_file(entry.path())? }
        }
    }
    Ok(())
}

fn is_locked(file: &fs::File) -> bool {
    matches!(file.try_lock(), Err(fs::TryLockError::WouldBlock))
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    #[tokio::test]
    async fn what_a_request_holds_is_not_abandoned_however_long_it_waits() {
        let dir = std::env::temp_dir().join(format!("uploads-{}", std::process::id()));
        fs::create_dir_all(&dir).expect("a directory");
        let held = Directory::create(dir.join("held")).await.expect("a directory");
        fs::create_dir(dir.join("left")).expect("a directory");
        for name in ["held", "left"] {
            fs::write(dir.join(name).join("0"), "x").expect("a file");
            let directory = fs::File::open(dir.join(name)).expect("a directory");
            directory.set_modified(SystemTime::UNIX_EPOCH).expect("old");
        }
        let names = || {
            fs::read_dir(&dir)
                .expect("a directory")
                .map(|entry| entry.expect("an entry").file_name())
                .collect::<Vec<_>>()
        };
        remove_abandoned_uploads(&dir, Duration::from_secs(1)).expect("swept");
        assert_eq!(names(), ["held"]);
        drop(held);
        assert!(names().is_empty());
        fs::remove_dir(&dir).expect("removed");
    }
}
