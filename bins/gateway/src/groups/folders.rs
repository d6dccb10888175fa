//! `/v1/document-folders`

use std::sync::Arc;

use platform_core::{Object, Result};
use platform_http::{Answer, Group, Request, key};
use platform_knowledge::{
    Attachment, FOLDER, FolderFilter, FolderResources, FolderService, FolderSettings, PgKnowledge,
};
use serde::Deserialize;
use serde_json::json;
use utoipa::ToSchema;

use super::documents::{admit, admit_target};
use crate::module::Module;

/// Folders of documents.
pub(crate) fn module(knowledge: &Arc<PgKnowledge>) -> Module {
    Module {
        groups: vec![group(Arc::clone(knowledge))],
        resources: vec![(FOLDER, Arc::new(FolderResources(Arc::clone(knowledge))))],
        ..Module::default()
    }
}

fn group(services: Arc<PgKnowledge>) -> Group {
    let mut group = Group::of("document-folders", "Folders of documents", services)
        .naming("id", FOLDER)
        .referring(&[("parentFolderId", FOLDER)]);
    let read = key("documents:read");
    let write = key("documents:write");
    group.get("/v1/document-folders", read, list).with(spec::list);
    group.post("/v1/document-folders", write, create).with(spec::create);
    group.get("/v1/document-folders/{id}", read, get).with(spec::get);
    group.patch("/v1/document-folders/{id}", write, update).with(spec::update);
    group.delete("/v1/document-folders/{id}", write, delete).with(spec::delete);
    group.post("/v1/document-folders/{id}/attach", write, attach).with(spec::attach);
    group.post("/v1/document-folders/{id}/detach", write, detach).with(spec::detach);
    group.build()
}

async fn list(knowledge: Arc<PgKnowledge>, request: Request) -> Result<Answer> {
    let mut filter: FolderFilter = request.query()?;
    filter.within = request.within().await?;
    Answer::ok(&FolderService::list(&*knowledge, request.account()?, &filter).await?)
}

async fn create(knowledge: Arc<PgKnowledge>, request: Request) -> Result<Answer> {
    let (account, new): (_, FolderSettings) = (request.account()?, request.body().await?);
    admit(&knowledge, &request, new.parent_folder_id.as_deref()).await?;
    Answer::created(&FolderService::create(&*knowledge, account, new, request.once.as_ref()).await?)
}

async fn get(knowledge: Arc<PgKnowledge>, request: Request) -> Result<Answer> {
    Answer::ok(&FolderService::get(&*knowledge, request.account()?, &request.id("id")).await?)
}

async fn update(knowledge: Arc<PgKnowledge>, request: Request) -> Result<Answer> {
    let (account, patch): (_, Object) = (request.account()?, request.patch().await?);
    admit(&knowledge, &request, patch.get("parentFolderId").and_then(|folder| folder.as_str())).await?;
    Answer::ok(&FolderService::update(&*knowledge, account, &request.id("id"), patch).await?)
}

#[derive(Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
struct WithDocuments {
    /// What lies in it goes with it; else it moves to where the folder lay.
    delete_documents: Option<bool>,
}

async fn delete(knowledge: Arc<PgKnowledge>, request: Request) -> Result<Answer> {
    let (account, id) = (request.account()?, &request.id("id"));
    let WithDocuments { delete_documents } = request.query()?;
    let within = request.reach().await?.editable();
    FolderService::delete(&*knowledge, account, id, within.as_deref(), delete_documents == Some(true)).await?;
    Answer::ok(&json!({"success": true}))
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
    Answer::ok(&FolderService::attach(knowledge, account, &request.id("id"), to, attach).await?)
}

mod spec {
    use platform_http::Operation;
    use platform_knowledge::{Attached, Attachment, Folder, FolderFilter, FolderSettings};
    use utoipa::ToSchema;

    use super::WithDocuments;

    /// The answer of a deletion.
    #[derive(ToSchema)]
    #[expect(dead_code, reason = "describes what the handler builds")]
    pub struct Success {
        success: bool,
    }

    pub fn list() -> Operation {
        Operation::new("List folders").query::<FolderFilter>().answers::<Vec<Folder>>(200)
    }
    pub fn create() -> Operation {
        Operation::new("Make a folder").body::<FolderSettings>().requires(&["name"]).answers::<Folder>(201)
    }
    pub fn get() -> Operation {
        Operation::new("Read a folder").answers::<Folder>(200)
    }
    pub fn update() -> Operation {
        Operation::new("Change a folder; another project takes all below with it")
            .body::<FolderSettings>()
            .answers::<Folder>(200)
    }
    pub fn delete() -> Operation {
        Operation::new("Delete a folder; what lies in it moves up, or goes with it")
            .query::<WithDocuments>()
            .answers::<Success>(200)
    }
    pub fn attach() -> Operation {
        Operation::new("Give a folder with all below to an agent or assistant")
            .body::<Attachment>()
            .answers::<Attached>(200)
    }
    pub fn detach() -> Operation {
        Operation::new("Take a folder from an agent or assistant").body::<Attachment>().answers::<Attached>(200)
    }
}
