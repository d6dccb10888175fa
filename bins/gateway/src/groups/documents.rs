//! `/v1/documents`

use std::sync::Arc;

use platform_access::Kind;
use platform_conversation::{AGENT, ASSISTANT, ENVIRONMENT};
use platform_core::{Id, Object, Result};
use platform_http::{Answer, Group, Request, key};
use platform_knowledge::{
    Attachment, DOCUMENT, DeletedDocuments, DocumentFilter, DocumentService, DocumentSettings, FOLDER, FolderService,
    NewDocument, PgKnowledge, PlannedDeletion, Reindex, SearchQuery, SourceFiles, Upload, UsedBy,
};
use serde::Deserialize;
use serde_json::json;
use utoipa::ToSchema;

use crate::{
    groups::files::FILE,
    module::{Keeper, Module},
};

/// Versions of documents.
const VERSION: Kind = Kind::of_account("version");
/// JSON of a document (contract 00 §8).
const MAX_BYTES: usize = 8 << 20;

/// Documents; `most_bytes`: of a file that becomes one.
pub(crate) fn module(knowledge: &Arc<PgKnowledge>, most_bytes: usize) -> Module {
    Module {
        groups: vec![group(Arc::clone(knowledge), most_bytes)],
        resources: vec![(DOCUMENT, knowledge.clone()), (FILE, Arc::new(SourceFiles(Arc::clone(knowledge))))],
        works: platform_knowledge::works(knowledge),
        keepers: vec![Keeper::new("keep the index", platform_knowledge::keep(Arc::clone(knowledge)))],
        ..Module::default()
    }
}

fn group(services: Arc<PgKnowledge>, most_bytes: usize) -> Group {
    let mut group = Group::of("documents", "Documents, their versions, and what is found in them", services)
        .naming("id", DOCUMENT)
        .naming("version", VERSION)
        .referring(&[("folderId", FOLDER), ("parentDocumentId", DOCUMENT)]);
    let read = key("documents:read");
    let write = key("documents:write");
    group.get("/v1/documents", read, list).with(spec::list);
    group.post("/v1/documents", write, create).with(spec::create).at_most(MAX_BYTES);
    group.get("/v1/documents/graph", read, graph).with(spec::graph);
    group.post("/v1/documents/reindex", write, reindex_all).with(spec::reindex_all);
    group.post("/v1/documents/search", read, search).with(spec::search);
    group.post("/v1/documents/upload", write, upload).with(spec::upload).uploading(most_bytes);
    group.get("/v1/documents/{id}", read, get).with(spec::get);
    group.patch("/v1/documents/{id}", write, update).with(spec::update).at_most(MAX_BYTES);
    group.delete("/v1/documents/{id}", write, delete).with(spec::delete);
    group.post("/v1/documents/{id}/attach", write, attach).with(spec::attach);
    group.get("/v1/documents/{id}/chunks", read, chunks).with(spec::chunks);
    group.post("/v1/documents/{id}/detach", write, detach).with(spec::detach);
    group.post("/v1/documents/{id}/reindex", write, reindex).with(spec::reindex).changing();
    group.post("/v1/documents/{id}/revert/{version}", write, revert).with(spec::revert).changing();
    group.get("/v1/documents/{id}/subdocuments", read, parts).with(spec::parts);
    group.get("/v1/documents/{id}/usage", read, usage).with(spec::usage);
    group.get("/v1/documents/{id}/versions", read, versions).with(spec::versions);
    group.get("/v1/documents/{id}/versions/{version}", read, version).with(spec::version);
    group.build()
}

/// Refuses a folder into whose project the caller may put nothing.
pub(super) async fn admit(knowledge: &PgKnowledge, request: &Request, folder: Option<&str>) -> Result<()> {
    let Some(folder) = folder else { return Ok(()) };
    let folder = FolderService::get(knowledge, request.account()?, &Id::named(folder)).await?;
    match &folder.settings.project_id {
        Some(project) => request.reach().await?.admits(project),
        None => Ok(()),
    }
}

/// Refuses a document below which the caller may put nothing.
async fn admit_below(request: &Request, parent: Option<&str>) -> Result<()> {
    match parent {
        Some(parent) => request.check_change(DOCUMENT, parent).await,
        None => Ok(()),
    }
}

/// Refuses a caller who may not change what something is to be attached to.
pub(super) async fn admit_target(request: &Request, to: &Attachment) -> Result<()> {
    let kind = match to.target_type.to_ascii_lowercase().as_str() {
        "agent" => AGENT,
        "assistant" => ASSISTANT,
        "environment" => ENVIRONMENT,
        _ => return Ok(()),
    };
    request.check_change(kind, &to.target_id).await
}

async fn list(knowledge: Arc<PgKnowledge>, request: Request) -> Result<Answer> {
    let mut filter: DocumentFilter = request.query()?;
    filter.check()?;
    filter.within = request.within().await?;
    let (account, page) = (request.account()?, request.page()?);
    Answer::ok(&DocumentService::list(&*knowledge, account, &filter, page).await?)
}

async fn create(knowledge: Arc<PgKnowledge>, request: Request) -> Result<Answer> {
    let new: NewDocument = request.body().await?;
    admit(&knowledge, &request, new.folder_id.as_deref()).await?;
    admit_below(&request, new.parent_document_id.as_deref()).await?;
    let document = DocumentService::create(&*knowledge, request.caller()?, new, request.once.as_ref()).await?;
    Ok(Answer::created(&document)?.etag(document.version))
}

/// A document as a file; what of it is said beside.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct UploadFields {
    name: String,
    project_id: Option<String>,
    folder_id: Option<String>,
    parent_document_id: Option<String>,
    tags: String,
}

#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
#[expect(dead_code, reason = "described for the document; the file is read as a part")]
struct DocumentUpload {
    /// Markdown, text, HTML, PDF or Word.
    #[schema(value_type = String, format = Binary)]
    file: (),
    /// Name without extension; absent: that of the file.
    #[schema(nullable = false)]
    name: Option<String>,
    /// Project it belongs to.
    #[schema(nullable = false)]
    project_id: Option<String>,
    /// Folder it lies in.
    #[schema(nullable = false)]
    folder_id: Option<String>,
    /// Document it is a part of.
    #[schema(nullable = false)]
    parent_document_id: Option<String>,
    /// Tags, separated by commas.
    #[schema(nullable = false)]
    tags: Option<String>,
}

async fn upload(knowledge: Arc<PgKnowledge>, request: Request) -> Result<Answer> {
    let (part, fields): (_, UploadFields) = (request.file("file")?, request.form().await?);
    admit(&knowledge, &request, fields.folder_id.as_deref()).await?;
    admit_below(&request, fields.parent_document_id.as_deref()).await?;
    let tags = fields.tags.split(',').map(str::trim).filter(|tag| !tag.is_empty()).map(str::to_owned);
    let upload = Upload {
        file_name: part.file_name.clone(),
        path: part.path().to_owned(),
        size: part.size,
        sha256: part.sha256.clone(),
        settings: DocumentSettings {
            name: fields.name,
            project_id: fields.project_id,
            folder_id: fields.folder_id,
            parent_document_id: fields.parent_document_id,
            tags: tags.collect(),
            ..DocumentSettings::default()
        },
    };
    let document = knowledge.upload(request.caller()?, upload, request.once.as_ref()).await?;
    Ok(Answer::created(&document)?.etag(document.version))
}

async fn get(knowledge: Arc<PgKnowledge>, request: Request) -> Result<Answer> {
    let document = DocumentService::get(&*knowledge, request.account()?, &request.id("id")).await?;
    Ok(Answer::ok(&document)?.etag(document.version))
}

async fn update(knowledge: Arc<PgKnowledge>, request: Request) -> Result<Answer> {
    let (patch, expected): (Object, _) = (request.patch().await?, request.if_match()?);
    admit(&knowledge, &request, patch.get("folderId").and_then(|folder| folder.as_str())).await?;
    let id = &request.id("id");
    if let Some(parent) = patch.get("parentDocumentId").and_then(|parent| parent.as_str())
        && knowledge.parent_of(request.account()?, id).await?.as_deref() != Some(parent)
    {
        admit_below(&request, Some(parent)).await?;
    }
    let document = DocumentService::update(&*knowledge, request.caller()?, id, patch, &expected).await?;
    Ok(Answer::ok(&document)?.etag(document.version))
}

#[derive(Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
struct DryRun {
    /// Only say what would go, and who uses it.
    dry_run: Option<bool>,
}

async fn delete(knowledge: Arc<PgKnowledge>, request: Request) -> Result<Answer> {
    let (account, id) = (request.account()?, &request.id("id"));
    let DryRun { dry_run } = request.query()?;
    let expected = request.if_match()?;
    let within = request.reach().await?.editable();
    match DocumentService::delete(&*knowledge, account, id, within.as_deref(), dry_run == Some(true), &expected).await?
    {
        DeletedDocuments::Planned(planned) => {
            let usage = visible(&request, planned.usage).await?;
            Answer::ok(&PlannedDeletion { usage, ..planned })
        }
        DeletedDocuments::Gone(ids) => {
            let message = "The document was deleted.";
            Answer::ok(&json!({"success": true, "message": message, "deletedId": id, "deletedIds": ids}))
        }
    }
}

/// Who uses a document, as far as the caller may know.
async fn visible(request: &Request, mut used: UsedBy) -> Result<UsedBy> {
    let mut hidden = Vec::new();
    let agents = used.agents.iter().map(|of| (AGENT, &of.id));
    let assistants = used.assistants.iter().map(|of| (ASSISTANT, &of.id));
    let environments = used.environments.iter().map(|of| (ENVIRONMENT, &of.id));
    for (kind, id) in agents.chain(assistants).chain(environments) {
        if !request.may_use(kind, id).await? {
            hidden.push(id.clone());
        }
    }
    used.agents.retain(|of| !hidden.contains(&of.id));
    used.assistants.retain(|of| !hidden.contains(&of.id));
    used.environments.retain(|of| !hidden.contains(&of.id));
    Ok(used)
}

async fn versions(knowledge: Arc<PgKnowledge>, request: Request) -> Result<Answer> {
    Answer::ok(&knowledge.versions(request.account()?, &request.id("id")).await?)
}

async fn version(knowledge: Arc<PgKnowledge>, request: Request) -> Result<Answer> {
    let (account, version) = (request.account()?, request.path("version"));
    Answer::ok(&knowledge.version(account, &request.id("id"), version).await?)
}

async fn revert(knowledge: Arc<PgKnowledge>, request: Request) -> Result<Answer> {
    let (id, version, once) = (&request.id("id"), request.path("version"), request.once.as_ref());
    let document = knowledge.revert(request.caller()?, id, version, once).await?;
    Ok(Answer::ok(&document)?.etag(document.version))
}

async fn parts(knowledge: Arc<PgKnowledge>, request: Request) -> Result<Answer> {
    let within = request.within().await?;
    Answer::ok(&knowledge.parts(request.account()?, &request.id("id"), within.as_deref()).await?)
}

async fn usage(knowledge: Arc<PgKnowledge>, request: Request) -> Result<Answer> {
    let used = knowledge.usage(request.account()?, &request.id("id")).await?;
    Answer::ok(&visible(&request, used).await?)
}

#[derive(Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
struct GraphQuery {
    /// Of this project.
    project_id: Option<String>,
}

async fn graph(knowledge: Arc<PgKnowledge>, request: Request) -> Result<Answer> {
    let GraphQuery { project_id } = request.query()?;
    let filter = DocumentFilter { project_id, within: request.within().await?, ..DocumentFilter::default() };
    Answer::ok(&knowledge.graph(request.account()?, &filter).await?)
}

async fn attach(knowledge: Arc<PgKnowledge>, request: Request) -> Result<Answer> {
    set_attached(&knowledge, &request, true).await
}

async fn detach(knowledge: Arc<PgKnowledge>, request: Request) -> Result<Answer> {
    set_attached(&knowledge, &request, false).await
}

async fn set_attached(knowledge: &PgKnowledge, request: &Request, attach: bool) -> Result<Answer> {
    let (account, to): (_, Attachment) = (request.account()?, request.body().await?);
    admit_target(request, &to).await?;
    Answer::ok(&DocumentService::attach(knowledge, account, &request.id("id"), to, attach).await?)
}

async fn reindex(knowledge: Arc<PgKnowledge>, request: Request) -> Result<Answer> {
    let document = knowledge.reindex(request.account()?, &request.id("id")).await?;
    Ok(Answer::json(202, &document)?.etag(document.version))
}

async fn reindex_all(knowledge: Arc<PgKnowledge>, request: Request) -> Result<Answer> {
    let (account, which): (_, Reindex) = (request.account()?, request.body().await?);
    if let Some(folder) = &which.folder_id {
        request.check_change(FOLDER, folder).await?;
    }
    let within = request.reach().await?.editable();
    Answer::json(202, &knowledge.reindex_all(account, &which, within.as_deref()).await?)
}

async fn chunks(knowledge: Arc<PgKnowledge>, request: Request) -> Result<Answer> {
    let (account, page) = (request.account()?, request.page()?);
    Answer::ok(&knowledge.chunks(account, &request.id("id"), page).await?)
}

async fn search(knowledge: Arc<PgKnowledge>, request: Request) -> Result<Answer> {
    let (account, mut query): (_, SearchQuery) = (request.account()?, request.body().await?);
    query.mode = query.mode.map(|mode| mode.to_ascii_lowercase());
    Answer::ok(&knowledge.search(account, query, request.within().await?).await?)
}

mod spec {
    use platform_http::Operation;
    use platform_knowledge::{
        Attached, Attachment, ChunkList, Document, DocumentFilter, DocumentList, DocumentSettings, Graph, NewDocument,
        PlannedDeletion, Queued, Reindex, SearchQuery, SearchResults, UsedBy, Version, VersionText,
    };
    use utoipa::ToSchema;

    use super::{DocumentUpload, DryRun, GraphQuery};

    /// The answer of a deletion, or with `dryRun` what it would take.
    #[derive(ToSchema)]
    #[expect(dead_code, reason = "describes what the handler builds")]
    #[schema(rename_all = "camelCase")]
    pub struct DeletedTree {
        success: bool,
        message: String,
        deleted_id: String,
        deleted_ids: Vec<String>,
    }

    pub fn list() -> Operation {
        Operation::new("List documents").query::<DocumentFilter>().paged(20, 100).answers::<DocumentList>(200)
    }
    pub fn create() -> Operation {
        Operation::new("Make a document; it is indexed at once").body::<NewDocument>().answers::<Document>(201)
    }
    pub fn upload() -> Operation {
        Operation::new("Make a document of a file: Markdown, text, HTML, PDF or Word")
            .form::<DocumentUpload>()
            .answers::<Document>(201)
    }
    pub fn get() -> Operation {
        Operation::new("Read a document with its text and versions").answers::<Document>(200)
    }
    pub fn update() -> Operation {
        Operation::new("Change a document; another text makes a version")
            .body::<DocumentSettings>()
            .answers::<Document>(200)
    }
    pub fn delete() -> Operation {
        Operation::new("Delete a document with all its parts, or say what that would take")
            .query::<DryRun>()
            .any_of::<DeletedTree, PlannedDeletion>(200)
    }
    pub fn versions() -> Operation {
        Operation::new("List the versions of a document").answers::<Vec<Version>>(200)
    }
    pub fn version() -> Operation {
        Operation::new("Read a version with its text").answers::<VersionText>(200)
    }
    pub fn revert() -> Operation {
        Operation::new("Make the text of an older version the newest").answers::<Document>(200)
    }
    pub fn parts() -> Operation {
        Operation::new("List the direct parts of a document").answers::<Vec<Document>>(200)
    }
    pub fn usage() -> Operation {
        Operation::new("Read who uses a document").answers::<UsedBy>(200)
    }
    pub fn graph() -> Operation {
        Operation::new("Read how documents refer to each other").query::<GraphQuery>().answers::<Graph>(200)
    }
    pub fn attach() -> Operation {
        Operation::new("Give a document to an agent or assistant").body::<Attachment>().answers::<Attached>(200)
    }
    pub fn detach() -> Operation {
        Operation::new("Take a document from an agent or assistant").body::<Attachment>().answers::<Attached>(200)
    }
    pub fn reindex() -> Operation {
        Operation::new("Index a document anew").answers::<Document>(202)
    }
    pub fn reindex_all() -> Operation {
        Operation::new("Index many documents anew").body::<Reindex>().answers::<Queued>(202)
    }
    pub fn chunks() -> Operation {
        Operation::new("List the pieces of a document in the index").paged(20, 100).answers::<ChunkList>(200)
    }
    pub fn search() -> Operation {
        Operation::new("Find the passages that say most about something")
            .body::<SearchQuery>()
            .answers::<SearchResults>(200)
    }
}
