//! `/v1/files` and `/f`

use std::{path::PathBuf, sync::Arc, time::Duration};

use platform_access::Kind;
use platform_core::{Owner, Result};
use platform_files::{FileFilter, FileService, NewFile, PgFileService};
use platform_http::{Answer, Group, OpenTo, Request, key, remove_abandoned_uploads, session};
use serde::Deserialize;
use tracing::warn;
use utoipa::ToSchema;

use crate::module::{Keeper, Module};

/// Files: each is where the document is that it is kept for.
pub(super) const FILE: Kind = Kind::placed("file");
/// What stands in a download address.
const FILE_ADDRESS: Kind = Kind::of_account("file address");

/// Files; `uploads`: where they are while they come; `most_bytes`: of one; `interval`: how often is swept.
pub(crate) fn module(files: &Arc<PgFileService>, uploads: PathBuf, most_bytes: usize, interval: Duration) -> Module {
    let sweep = sweep(Arc::clone(files), uploads, interval);
    Module {
        groups: vec![group(Arc::clone(files), most_bytes), downloads(Arc::clone(files))],
        keepers: vec![Keeper::new("sweep files", sweep)],
        ..Module::default()
    }
}

fn group(services: Arc<PgFileService>, most_bytes: usize) -> Group {
    let mut group = Group::of("files", "Files and their download addresses", services).naming("fileId", FILE);
    let read = key("files:read");
    group.post("/v1/files/upload", session("files:write"), upload).uploading(most_bytes).with(spec::upload);
    group.get("/v1/files", read, list).with(spec::list);
    group.get("/v1/files/{fileId}", read, get).with(spec::get);
    group.delete("/v1/files/{fileId}", key("files:write"), delete).with(spec::delete);
    group.build()
}

fn downloads(services: Arc<PgFileService>) -> Group {
    let mut group = Group::of("downloads", "Downloads of files", services)
        .naming("name", FILE_ADDRESS)
        .naming("token", FILE_ADDRESS);
    group.get("/f/{token}/{name}", OpenTo::Public, download).with(spec::download);
    group.build()
}

/// Removes what has expired, what nobody has a record of, and what was never whole.
async fn sweep(files: Arc<PgFileService>, uploads: PathBuf, interval: Duration) {
    loop {
        if let Err(error) = files.sweep(interval).await {
            warn!(%error, "Files could not be swept; trying again the next time.");
        }
        let uploads = uploads.clone();
        let removed = platform_core::run_blocking(move || {
            remove_abandoned_uploads(&uploads, interval).map_err(platform_core::Error::internal)
        });
        if let Err(error) = removed.await {
            warn!(%error, "Uploads that were broken off could not be removed; trying again the next time.");
        }
        tokio::time::sleep(interval).await;
    }
}

/// An upload.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
#[expect(dead_code, reason = "described for the document; the file is read as a part")]
struct FileUpload {
    /// The file, with its name.
    #[schema(value_type = String, format = Binary)]
    file: (),
    /// Seconds until it goes, 60 to 31,536,000; absent: it stays.
    #[schema(nullable = false)]
    ttl_seconds: Option<i64>,
}

/// What may stand in the query of an upload, too.
#[derive(Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
struct Lifetime {
    /// Seconds until it goes.
    ttl_seconds: Option<i64>,
}

async fn upload(files: Arc<PgFileService>, request: Request) -> Result<Answer> {
    let (account, part) = (request.account()?, request.file("file")?);
    let (of_form, of_query): (Lifetime, Lifetime) = (request.form().await?, request.query()?);
    let ttl_seconds = of_form.ttl_seconds.or(of_query.ttl_seconds);
    let owner = request.session().map_or_else(Owner::default, |session| Owner {
        tenant_id: Some(session.tenant_id.clone()),
        subtenant_id: session.subtenant_id.clone(),
    });
    let new = NewFile::on_disk(&part.file_name, part.path().to_owned(), part.size, &part.sha256);
    let new = NewFile { ttl_seconds, owner, ..new };
    Answer::ok(&files.create(account, new, request.once.as_ref()).await?)
}

async fn list(files: Arc<PgFileService>, request: Request) -> Result<Answer> {
    let (account, mut filter): (_, FileFilter) = (request.account()?, request.query()?);
    filter.check()?;
    filter.with_kept = request.reach().await?.is_whole();
    Answer::ok(&files.list(account, &filter, request.page()?).await?)
}

async fn get(files: Arc<PgFileService>, request: Request) -> Result<Answer> {
    Answer::ok(&files.get(request.account()?, &request.id("fileId")).await?)
}

async fn delete(files: Arc<PgFileService>, request: Request) -> Result<Answer> {
    let (account, id) = (request.account()?, &request.id("fileId"));
    files.delete(account, id).await?;
    Answer::deleted("file", id)
}

async fn download(files: Arc<PgFileService>, request: Request) -> Result<Answer> {
    let content = files.download(request.path("token")).await?;
    let answer = Answer::content(&request, content.size, &content.sha256, |range| files.read(&content, range)).await?;
    Ok(answer
        .header("content-type", content.content_type.as_str())
        .header("content-disposition", content.disposition.as_str())
        .header("content-security-policy", "sandbox; default-src 'none'")
        .header("cache-control", "private, max-age=3600"))
}

mod spec {
    use platform_files::{FileFilter, FileList, UploadedFile};
    use platform_http::{Deleted, Operation};

    use super::{FileUpload, Lifetime};

    pub fn upload() -> Operation {
        Operation::new("Upload a file; its address can be sent with messages")
            .query::<Lifetime>()
            .form::<FileUpload>()
            .answers::<UploadedFile>(200)
    }
    pub fn list() -> Operation {
        Operation::new("List files").query::<FileFilter>().paged(20, 100).answers::<FileList>(200)
    }
    pub fn get() -> Operation {
        Operation::new("Read what is known of a file").answers::<UploadedFile>(200)
    }
    pub fn delete() -> Operation {
        Operation::new("Delete a file; its address is no good at once").answers::<Deleted>(200)
    }
    pub fn download() -> Operation {
        Operation::new("Download a file, whole or in part (Range)")
            .with_head()
            .answers_text(200, "application/octet-stream")
            .answers_text(206, "application/octet-stream")
    }
}
