//! `/v1/assistants`

use std::sync::Arc;

use async_trait::async_trait;
use platform_chat::{
    ASSISTANT_DELETED, ASSISTANT_REFERENCES, Assistant, AssistantFilter, AssistantService, PgAssistantService,
};
use platform_conversation::ASSISTANT;
use platform_core::{AccountId, Error, Result};
use platform_db::Db;
use platform_http::{Answer, Group, List, Request, key, session};
use platform_jobs::{Run, Work, cancel_in, end_in};
use platform_memory::{MemoryService, PgMemory};
use platform_triggers::{PgTriggers, TriggerService};
use serde::Deserialize;
use tokio_util::sync::CancellationToken;
use utoipa::ToSchema;

use crate::module::Module;

/// Assistants.
pub(crate) fn module(
    assistants: &Arc<PgAssistantService>,
    memory: &Arc<PgMemory>,
    triggers: &Arc<PgTriggers>,
    db: &Db,
) -> Module {
    let with_them = Arc::new(Followers { memory: Arc::clone(memory), triggers: triggers.clone(), db: db.clone() });
    Module {
        groups: vec![group(assistants.clone(), Arc::clone(&with_them))],
        resources: vec![(ASSISTANT, assistants.clone())],
        works: vec![with_them],
        ..Module::default()
    }
}

/// What goes with an assistant.
struct Followers {
    memory: Arc<PgMemory>,
    triggers: Arc<dyn TriggerService>,
    db: Db,
}

impl Followers {
    async fn go(&self, account: &AccountId, assistant: &str) -> Result<()> {
        self.memory.forget_assistant(account, assistant).await?;
        self.triggers.end_of(account, (ASSISTANT, assistant)).await
    }
}

#[async_trait]
impl Work for Followers {
    fn kind(&self) -> &'static str {
        ASSISTANT_DELETED
    }

    async fn work(&self, run: &Run, _: &CancellationToken) -> Result<()> {
        self.go(&run.account(), &run.subject).await?;
        end_in(&mut *self.db.conn().await?, run).await
    }
}

fn group(services: Arc<dyn AssistantService>, with_them: Arc<Followers>) -> Group {
    let mut group = Group::of("assistants", "Assistants: what they are and who may use them", services)
        .naming("identifier", ASSISTANT)
        .referring(&ASSISTANT_REFERENCES);
    let write = key("assistants:write");
    let session_read = session("assistants:read");
    group.post("/v1/assistants", write, create).with(spec::create);
    group.get("/v1/assistants", session_read, list).with(spec::list);
    group.get("/v1/assistants/{identifier}", session_read, get).with(spec::get).provided(sees_presets);
    group.patch("/v1/assistants/{identifier}", write, update).with(spec::update);
    group.put("/v1/assistants/{identifier}", write, update).with(spec::update);
    let delete = move |assistants, request| delete(assistants, Arc::clone(&with_them), request);
    group.delete("/v1/assistants/{identifier}", write, delete).with(spec::delete);
    group.build()
}

/// Assistants of a list, the built-in one among them (contract 00 §4).
const MAX_ASSISTANTS: usize = 1000;

#[derive(Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct IncludePresets {
    /// With the system prompt, for custom assistants.
    include_presets: Option<bool>,
}

async fn list(assistants: Arc<dyn AssistantService>, request: Request) -> Result<Answer> {
    let filter = AssistantFilter { within: request.within().await?, ..request.query()? };
    let (assistants, caller) = (&assistants, request.caller()?);
    let (listed, total) = assistants.list(caller, &filter).await?;
    let mut list = List::of(total);
    for assistant in listed.into_iter().take(MAX_ASSISTANTS) {
        if !list.push(&assistants.describe(&caller.account, assistant).await?)? {
            break;
        }
    }
    Ok(list.into_answer())
}

async fn create(assistants: Arc<dyn AssistantService>, request: Request) -> Result<Answer> {
    let assistants = &assistants;
    let assistant = assistants.create(request.caller()?, request.body().await?, request.once.as_ref()).await?;
    Ok(Answer::created(&assistant)?.etag(assistant.version))
}

/// Of no assistant does a session see the prompt, be it open to it or not.
fn sees_presets(request: &Request) -> Result<()> {
    let IncludePresets { include_presets } = request.query()?;
    if include_presets == Some(true) && request.session().is_some() {
        return Err(Error::new(platform_chat::code::PRESETS_FORBIDDEN, "Sessions cannot read system prompts."));
    }
    Ok(())
}

async fn get(assistants: Arc<dyn AssistantService>, request: Request) -> Result<Answer> {
    let IncludePresets { include_presets } = request.query()?;
    let (assistants, account) = (&assistants, request.account()?);
    let assistant = assistants.get(account, request.path("identifier")).await?;
    let assistant = assistants.describe(account, Assistant::clone(&assistant)).await?;
    let version = assistant.version;
    let assistant = if include_presets == Some(true) { assistant.with_presets() } else { assistant };
    Ok(Answer::ok(&assistant)?.etag(version))
}

async fn update(assistants: Arc<dyn AssistantService>, request: Request) -> Result<Answer> {
    let (account, identifier) = (request.account()?, request.path("identifier"));
    let assistant = assistants.update(account, identifier, request.patch().await?, &request.if_match()?).await?;
    Ok(Answer::ok(&assistant)?.etag(assistant.version))
}

async fn delete(assistants: Arc<dyn AssistantService>, with_them: Arc<Followers>, request: Request) -> Result<Answer> {
    let identifier = request.path("identifier");
    let account = request.account()?;
    let id = assistants.delete(account, identifier, &request.if_match()?).await?;
    with_them.go(account, &id).await?;
    cancel_in(&mut *with_them.db.conn().await?, account, ASSISTANT_DELETED, &id).await?;
    Answer::deleted("assistant", &id)
}

mod spec {
    use platform_chat::{Assistant, AssistantFilter};
    use platform_conversation::AssistantSettings;

    use super::IncludePresets;
    use platform_http::{Deleted, Operation};

    pub fn list() -> Operation {
        Operation::new("List assistants").query::<AssistantFilter>().answers::<Vec<Assistant>>(200)
    }
    pub fn create() -> Operation {
        Operation::new("Make an assistant")
            .body::<AssistantSettings>()
            .requires(&["name"])
            .aliases(&["llm"])
            .answers::<Assistant>(201)
    }
    pub fn get() -> Operation {
        Operation::new("Read an assistant").query::<IncludePresets>().answers::<Assistant>(200)
    }
    pub fn update() -> Operation {
        Operation::new("Change an assistant").body::<AssistantSettings>().aliases(&["llm"]).answers::<Assistant>(200)
    }
    pub fn delete() -> Operation {
        Operation::new("Delete an assistant; its chats stay readable").answers::<Deleted>(200)
    }
}
