//! `/v1/memory`

use std::sync::Arc;

use platform_access::Kind;
use platform_chat::{AssistantService, PgAssistantService};
use platform_conversation::ASSISTANT;
use platform_core::{Code, Error, Object, Result, check_types};
use platform_http::{Answer, Group, Request, key, session};
use platform_memory::{EntryPatch, MemoryService, NewEntry, PgMemory, Source};
use platform_runtime::MemoryBucket;
use serde::Deserialize;
use utoipa::ToSchema;

use crate::module::Module;

const ENTRY: Kind = Kind::of_account("core memory entry");

struct Services {
    assistants: Arc<PgAssistantService>,
    memory: Arc<PgMemory>,
}

/// What assistants remember.
pub(crate) fn module(memory: &Arc<PgMemory>, assistants: &Arc<PgAssistantService>) -> Module {
    let services = Services { assistants: Arc::clone(assistants), memory: Arc::clone(memory) };
    Module { groups: vec![group(Arc::new(services))], ..Module::default() }
}

fn group(services: Arc<Services>) -> Group {
    let mut group = Group::of("memory", "What assistants remember of those they talk to", services)
        .naming("identifier", ASSISTANT)
        .naming("entryId", ENTRY);
    let (read, write) = (session("memory:read"), session("memory:write"));
    group.get("/v1/memory/assistants/{identifier}/core", read, get).with(spec::get);
    group.post("/v1/memory/assistants/{identifier}/core", write, add).with(spec::add).changing();
    group.get("/v1/memory/assistants/{identifier}/core/export", key("memory:read"), export).with(spec::export).of_ui();
    group.patch("/v1/memory/assistants/{identifier}/core/{entryId}", write, update).with(spec::update);
    group.delete("/v1/memory/assistants/{identifier}/core/{entryId}", write, remove).with(spec::remove);
    group.build()
}

/// Whose memory is meant.
#[derive(Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
struct Whose {
    /// The tenant; of a session its own.
    tenant_id: Option<String>,
    /// The end user, where each has a memory of its own.
    subtenant_id: Option<String>,
}

#[derive(Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
struct WhoseEntries {
    /// The tenant; of a session its own.
    tenant_id: Option<String>,
    /// The end user, where each has a memory of its own.
    subtenant_id: Option<String>,
    /// With what was put aside.
    include_archived: Option<bool>,
}

#[derive(Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
struct WhoseExport {
    /// The tenant.
    tenant_id: Option<String>,
    /// The end user, where each has a memory of its own.
    subtenant_id: Option<String>,
    /// `json` (default) or `markdown`.
    format: Option<String>,
}

/// The bucket that a request means; `None` while the assistant remembers nothing.
async fn bucket(services: &Services, request: &Request, whose: Whose) -> Result<Option<MemoryBucket>> {
    let (tenant, subtenant) = request.tenant_and_user(whose.tenant_id, whose.subtenant_id)?;
    let assistant = services.assistants.get(request.account()?, request.path("identifier")).await?;
    let memory = &assistant.settings().core_memory;
    Ok(memory.enabled.then(|| memory.bucket(&assistant.id, &tenant, subtenant.as_deref())))
}

/// The same, to be written to.
async fn open(services: &Services, request: &Request, whose: Whose) -> Result<MemoryBucket> {
    let off = || Error::new(Code::CONFLICT, "This assistant remembers nothing: switch coreMemory.enabled on first.");
    bucket(services, request, whose).await?.ok_or_else(off)
}

fn source(request: &Request) -> Source {
    if request.session().is_some() { Source::User } else { Source::Api }
}

async fn get(services: Arc<Services>, request: Request) -> Result<Answer> {
    let WhoseEntries { tenant_id, subtenant_id, include_archived } = request.query()?;
    let bucket = bucket(&services, &request, Whose { tenant_id, subtenant_id }).await?;
    let archived = include_archived.unwrap_or(false);
    Answer::ok(&services.memory.get(request.account()?, bucket.as_ref(), archived).await?)
}

async fn add(services: Arc<Services>, request: Request) -> Result<Answer> {
    let new: NewEntry = request.body().await?;
    services.memory.check(request.patch().await?)?;
    let bucket = open(&services, &request, request.query()?).await?;
    let (account, once) = (request.account()?, request.once.as_ref());
    let added = services.memory.add(account, &bucket, new, source(&request), once).await?;
    if added.deduped { Answer::ok(&added) } else { Answer::created(&added) }
}

async fn export(services: Arc<Services>, request: Request) -> Result<Answer> {
    let WhoseExport { tenant_id, subtenant_id, format } = request.query()?;
    let bucket = bucket(&services, &request, Whose { tenant_id, subtenant_id }).await?;
    let account = request.account()?;
    match format.as_deref().unwrap_or("json").to_ascii_lowercase().as_str() {
        "json" => Answer::ok(&services.memory.get(account, bucket.as_ref(), true).await?),
        "markdown" => {
            let page = services.memory.export(account, bucket.as_ref()).await?;
            Ok(Answer::text(200, "text/markdown; charset=utf-8", page))
        }
        _ => Err(Error::invalid("format", "enum", "format must be json or markdown")),
    }
}

async fn update(services: Arc<Services>, request: Request) -> Result<Answer> {
    let patch: Object = request.patch().await?;
    check_types::<EntryPatch>(&patch)?;
    services.memory.check(patch.clone())?;
    let bucket = open(&services, &request, request.query()?).await?;
    let (account, id) = (request.account()?, &request.id("entryId"));
    Answer::ok(&services.memory.update(account, &bucket, id, patch, source(&request)).await?)
}

async fn remove(services: Arc<Services>, request: Request) -> Result<Answer> {
    let bucket = open(&services, &request, request.query()?).await?;
    let (account, id) = (request.account()?, &request.id("entryId"));
    Answer::ok(&services.memory.remove(account, &bucket, id, source(&request)).await?)
}

mod spec {
    use platform_http::Operation;
    use platform_memory::{AddedEntry, CoreMemoryEntries, EntryPatch, MemoryEntry, NewEntry, RemovedEntry};

    use super::{Whose, WhoseEntries, WhoseExport};

    pub fn get() -> Operation {
        Operation::new("Read what an assistant remembers of somebody")
            .query::<WhoseEntries>()
            .answers::<CoreMemoryEntries>(200)
    }
    pub fn add() -> Operation {
        Operation::new("Have an assistant remember something; what it remembers already is answered with 200")
            .query::<Whose>()
            .body::<NewEntry>()
            .answers::<AddedEntry>(201)
            .holding::<MemoryEntry>()
            .answers::<AddedEntry>(200)
    }
    pub fn export() -> Operation {
        Operation::new("Read the same with what was put aside, as JSON or Markdown")
            .query::<WhoseExport>()
            .answers::<CoreMemoryEntries>(200)
            .answers_text(200, "text/markdown")
    }
    pub fn update() -> Operation {
        Operation::new("Change an entry; another content makes another entry in its place")
            .query::<Whose>()
            .body::<EntryPatch>()
            .answers::<MemoryEntry>(200)
    }
    pub fn remove() -> Operation {
        Operation::new("Put an entry aside").query::<Whose>().answers::<RemovedEntry>(200)
    }
}
