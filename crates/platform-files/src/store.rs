//! Where bytes are kept.

use std::{
    fs, io,
    ops::Range,
    os::unix::fs::{DirBuilderExt, MetadataExt},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream::BoxStream};
use object_store::{
    ClientOptions, GetOptions, GetRange, GetResultPayload, ObjectStore, ObjectStoreExt, PutPayload, RetryConfig,
    WriteMultipart, aws::AmazonS3Builder, local::LocalFileSystem, memory::InMemory, path::Path as Key,
    prefix::PrefixStore,
};
use platform_core::{Error, Result, Timestamp, run_blocking};
use rustix::fs::{Timespec, Timestamps, UTIME_NOW, futimens};
use secrecy::{ExposeSecret, SecretString};
use tokio::io::{AsyncReadExt, AsyncSeekExt};
use tokio_util::io::ReaderStream;
use tracing::warn;
use url::Url;

/// Bytes are read and handed on in pieces of this size.
const PIECE: usize = 128 * 1024;
/// A larger file goes to a bucket in parts of this size, which is the smallest that S3 takes.
const PART: usize = 5 << 20;
/// A bucket that says nothing for so long is away.
const SILENCE: Duration = Duration::from_secs(15);
/// A request that failed is not sent again after this, since somebody waits.
const RETRY_TIMEOUT: Duration = Duration::from_secs(10);

/// Bytes as they come.
pub type ByteStream = BoxStream<'static, io::Result<Bytes>>;

/// Where the store is.
#[derive(Debug, Clone)]
pub struct StoreConfig {
    /// `file:///absolute/directory` or `s3://bucket/prefix`.
    pub url: Url,
    /// How to reach a bucket.
    pub s3: S3Access,
}

/// Access to a bucket; what is absent comes from the machine it runs on (instance or container roles).
#[derive(Debug, Clone, Default)]
pub struct S3Access {
    /// `AWS_ACCESS_KEY_ID`.
    pub key_id: Option<String>,
    /// `AWS_SECRET_ACCESS_KEY`.
    pub secret: Option<SecretString>,
    /// `AWS_SESSION_TOKEN`.
    pub session_token: Option<SecretString>,
    /// `AWS_REGION`.
    pub region: Option<String>,
    /// `AWS_ENDPOINT_URL`, of a server that is not Amazon's.
    pub endpoint: Option<String>,
}

/// Bytes that are to be stored.
#[derive(Debug)]
pub enum Content {
    /// A file on this machine, which is moved away where that is possible.
    File(PathBuf),
    /// What is in memory already.
    Bytes(Bytes),
}

/// An object store.
#[derive(Clone)]
pub struct Store {
    objects: Arc<dyn ObjectStore>,
    /// The directory of a local one.
    local: Option<PathBuf>,
}

impl Store {
    /// Opens it; a local directory is made when it is not there.
    ///
    /// # Errors
    /// What is wrong with the address, as a sentence.
    pub fn open(config: &StoreConfig) -> std::result::Result<Self, String> {
        match config.url.scheme() {
            "file" => {
                let dir = config.url.to_file_path().map_err(|()| "it must be an absolute path".to_owned())?;
                let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir);
                made.map_err(|error| format!("{}: {error}", dir.display()))?;
                let objects = LocalFileSystem::new_with_prefix(&dir).map_err(|error| error.to_string())?;
                let objects = objects.with_automatic_cleanup(true).with_fsync(true);
                Ok(Self { objects: Arc::new(objects), local: Some(dir) })
            }
            "s3" => bucket(config).map(|objects| Self { objects, local: None }),
            _ => Err("it must begin with file:// or s3://".to_owned()),
        }
    }

    /// One that forgets with the process.
    pub fn in_memory() -> Self {
        Self { objects: Arc::new(InMemory::new()), local: None }
    }

    /// Stores bytes durably under a key; what was there is replaced.
    pub async fn put(&self, key: &str, content: Content) -> Result<()> {
        match (content, &self.local) {
            (Content::Bytes(bytes), _) => {
                self.objects.put(&Key::from(key), PutPayload::from(bytes)).await.map_err(unavailable)?;
            }
            (Content::File(path), Some(root)) => {
                let (root, to) = (root.clone(), root.join(key));
                let moved = run_blocking(move || match move_durably(&root, &path, &to) {
                    Ok(()) => Ok(None),
                    Err(error) if error.kind() == io::ErrorKind::CrossesDevices => Ok(Some(path)),
                    Err(error) => Err(unavailable(error)),
                });
                if let Some(path) = moved.await? {
                    self.copy(key, &path).await?;
                }
            }
            (Content::File(path), None) => self.copy(key, &path).await?,
        }
        Ok(())
    }

    async fn copy(&self, key: &str, path: &Path) -> Result<()> {
        let (key, mut file) = (Key::from(key), tokio::fs::File::open(path).await.map_err(Error::internal)?);
        let size = file.metadata().await.map_err(Error::internal)?.len();
        if size <= PART as u64 {
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes).await.map_err(Error::internal)?;
            self.objects.put(&key, bytes.into()).await.map_err(unavailable)?;
            return Ok(());
        }
        let mut upload =
            WriteMultipart::new_with_chunk_size(self.objects.put_multipart(&key).await.map_err(unavailable)?, PART);
        let mut pieces = ReaderStream::with_capacity(file, PIECE);
        while let Some(piece) = pieces.try_next().await.map_err(Error::internal)? {
            // One part is on its way while the next is read.
            upload.wait_for_capacity(1).await.map_err(unavailable)?;
            upload.write(&piece);
        }
        upload.finish().await.map_err(unavailable)?;
        Ok(())
    }

    /// A range of the bytes under a key; `None` when there are none.
    pub async fn read(&self, key: &str, range: Range<u64>) -> Result<Option<ByteStream>> {
        let options = GetOptions { range: Some(GetRange::Bounded(range)), ..GetOptions::default() };
        let found = match self.objects.get_opts(&Key::from(key), options).await {
            Err(object_store::Error::NotFound { .. }) => return Ok(None),
            found => found.map_err(unavailable)?,
        };
        let range = found.range;
        Ok(Some(match found.payload {
            GetResultPayload::File(file, _) => {
                let mut file = tokio::fs::File::from_std(file);
                file.seek(io::SeekFrom::Start(range.start)).await.map_err(Error::internal)?;
                ReaderStream::with_capacity(file.take(range.end - range.start), PIECE).boxed()
            }
            GetResultPayload::Stream(pieces) => pieces.map_err(io::Error::other).boxed(),
        }))
    }

    /// Removes what is under a key, if anything is.
    pub async fn delete(&self, key: &str) -> Result<()> {
        match self.objects.delete(&Key::from(key)).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(unavailable(error)),
        }
    }

    /// The keys below a prefix that are older than a moment, as they are found.
    pub fn older(&self, prefix: &str, than: Timestamp) -> BoxStream<'static, Result<String>> {
        let is_old = move |object: &object_store::ObjectMeta| object.last_modified.timestamp_millis() < than.0;
        let found = self.objects.list(Some(&Key::from(prefix))).map_err(unavailable);
        found
            .try_filter(move |object| std::future::ready(is_old(object)))
            .map_ok(|object| object.location.into())
            .boxed()
    }

    /// Removes what processes that were killed had half written below a prefix before a moment, which no list shows.
    pub async fn remove_unfinished(&self, prefix: &str, before: Timestamp) -> Result<()> {
        let Some(root) = &self.local else { return Ok(()) };
        let dir = root.join(prefix);
        run_blocking(move || {
            if let Err(error) = remove_unfinished(&dir, before) {
                warn!(%error, "What was half written could not be removed; the next sweep does it.");
            }
            Ok(())
        })
        .await
    }
}

fn bucket(config: &StoreConfig) -> std::result::Result<Arc<dyn ObjectStore>, String> {
    let name = config.url.host_str().ok_or_else(|| "it must name a bucket, as in s3://bucket/prefix".to_owned())?;
    let S3Access { key_id, secret, session_token, region, endpoint } = &config.s3;
    let plain = endpoint.as_deref().is_some_and(|endpoint| endpoint.starts_with("http://"));
    // Who downloads may take longer over it than any time for a whole request.
    let client = ClientOptions::new().with_timeout_disabled().with_read_timeout(SILENCE).with_allow_http(plain);
    let retry = RetryConfig { max_retries: 5, retry_timeout: RETRY_TIMEOUT, ..RetryConfig::default() };
    let mut builder = AmazonS3Builder::new().with_bucket_name(name).with_client_options(client).with_retry(retry);
    if let (Some(key_id), Some(secret)) = (key_id, secret) {
        builder = builder.with_access_key_id(key_id).with_secret_access_key(secret.expose_secret());
    }
    if let Some(token) = session_token {
        builder = builder.with_token(token.expose_secret());
    }
    if let Some(region) = region {
        builder = builder.with_region(region);
    }
    if let Some(endpoint) = endpoint {
        builder = builder.with_endpoint(endpoint);
    }
    let bucket = builder.build().map_err(|error| error.to_string())?;
    let prefix = config.url.path().trim_matches('/');
    if prefix.is_empty() { Ok(Arc::new(bucket)) } else { Ok(Arc::new(PrefixStore::new(bucket, prefix))) }
}

/// Bytes are written to a file that ends in `#` and a number, and then get their name.
fn remove_unfinished(dir: &Path, before: Timestamp) -> io::Result<()> {
    // What gets its name meanwhile, or is cleaned away, needs no removal.
    let there = |done: io::Result<()>| {
        done.or_else(|error| match error.kind() {
            io::ErrorKind::NotFound => Ok(()),
            _ => Err(error),
        })
    };
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) => return there(Err(error)),
    };
    for entry in entries {
        let entry = entry?;
        let (path, name) = (entry.path(), entry.file_name());
        let is_unfinished = name
            .to_string_lossy()
            .rsplit_once('#')
            .is_some_and(|(_, number)| !number.is_empty() && number.bytes().all(|digit| digit.is_ascii_digit()));
        if entry.file_type()?.is_dir() {
            remove_unfinished(&path, before)?;
        } else if is_unfinished && entry.metadata().is_ok_and(|about| about.mtime() < before.0 / 1000) {
            there(fs::remove_file(&path))?;
        }
    }
    Ok(())
}

/// Moves a file to its place; when this returns it is there after any crash.
fn move_durably(root: &Path, from: &Path, to: &Path) -> io::Result<()> {
    let dir = to.parent().unwrap_or(root);
    let file = fs::File::open(from)?;
    // Bytes without a record are left alone for a while, which begins now, however long they waited.
    let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
    futimens(&file, &Timestamps { last_access: now, last_modification: now })?;
    file.sync_all()?;
    // An empty directory may be cleaned away by whoever removed its last file.
    loop {
        fs::create_dir_all(dir)?;
        match fs::rename(from, to) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && from.exists() => {}
            moved => break moved?,
        }
    }
    let mut above = dir;
    loop {
        fs::File::open(above)?.sync_all()?;
        match above.parent() {
            Some(parent) if above != root => above = parent,
            _ => return Ok(()),
        }
    }
}

fn unavailable(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::unavailable(error)
}
