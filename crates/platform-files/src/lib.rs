//! Files: uploaded or made, kept in an object store, downloaded by an address that nobody can guess (contract 07).
//!
//! **Owns** the table `files` and the objects under `files/`; the endpoints `/v1/files` and `/f`. **Needs**
//! `platform-db`, and an object store: a local directory, or a bucket that speaks S3.
//!
//! **Invariants**: bytes are stored before their record is committed, and removed after it is gone, so a record always
//! has its bytes; bytes that no record names are removed by the next sweep; a file that was deleted or has expired is
//! gone for every process at once, since nothing of it is remembered; nothing is ever whole in memory but what
//! [`PgFileService::bytes`] is asked for, within its bound, and what is no larger than a part that a bucket takes (5 MiB).
//!
//! ```no_run
//! # use std::sync::Arc;
//! # use platform_core::{AccountId, Clock, Result};
//! # use platform_db::Db;
//! # use platform_files::*;
//! # async fn example(db: Db, clock: Arc<dyn Clock>, store: Store, account: AccountId, new: NewFile) -> Result<()> {
//! let files = PgFileService::new(&db, clock, store, "https://platform.example");
//! let file = files.create(&account, new, None).await?;
//! let token = files.token_of(&file.download_url).expect("ours");
//! let bytes = files.download(&token).await?;
//! # Ok(()) }
//! ```

pub mod code;
mod media;
mod model;
mod repository;
mod schema;
mod service;
mod store;

pub use media::{HEAD_BYTES, media_type, type_of, type_of_address, type_of_media, type_of_name};
pub use model::{FileFilter, FileList, NewFile, UploadedFile, Usage};
pub use service::{FileService, PgFileService, StoredBytes, StoredContent};
pub use store::{ByteStream, Content, S3Access, Store, StoreConfig};
