//! `/v1/assistants`

use platform_chat::{Assistant, AssistantFilter};
use platform_core::{Error, Result};
use serde::Deserialize;
use utoipa::ToSchema;

use crate::{
    code,
    request::Request,
    respond::{Answer, List},
};

#[derive(Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct IncludePresets {
    /// With the system prompt, for custom assistants.
    include_presets: Option<bool>,
}

pub(crate) async fn list(request: Request) -> Result<Answer> {
    let filter = AssistantFilter { within: request.within().await?, ..request.query()? };
    let (assistants, caller) = (&request.services.assistants, request.caller()?);
    let (listed, total) = assistants.list(caller, &filter).await?;
    let mut list = List::of(total);
    for assistant in listed {
        if !list.push(&assistants.describe(&caller.account, assistant).await?)? {
            break;
        }
    }
    Ok(list.into_answer())
}

pub(crate) async fn create(request: Request) -> Result<Answer> {
    let assistants = &request.services.assistants;
    let assistant = assistants.create(request.caller()?, request.body()?, request.once.as_ref()).await?;
    Ok(Answer::created(&assistant)?.header("etag", format!("\"{}\"", assistant.version)))
}

pub(crate) async fn get(request: Request) -> Result<Answer> {
    let IncludePresets { include_presets } = request.query()?;
    if include_presets == Some(true) && request.session().is_some() {
        return Err(Error::new(code::PRESETS_FORBIDDEN, "Sessions cannot read system prompts."));
    }
    let (assistants, account) = (&request.services.assistants, &request.caller()?.account);
    let assistant = assistants.get(account, request.path("identifier")).await?;
    let assistant = assistants.describe(account, Assistant::clone(&assistant)).await?;
    let etag = format!("\"{}\"", assistant.version);
    let assistant = if include_presets == Some(true) { assistant.with_presets() } else { assistant };
    Ok(Answer::ok(&assistant)?.header("etag", etag))
}

pub(crate) async fn update(request: Request) -> Result<Answer> {
    let (account, identifier) = (&request.caller()?.account, request.path("identifier"));
    let assistant =
        request.services.assistants.update(account, identifier, request.patch()?, &request.if_match()?).await?;
    Ok(Answer::ok(&assistant)?.header("etag", format!("\"{}\"", assistant.version)))
}

pub(crate) async fn delete(request: Request) -> Result<Answer> {
    let identifier = request.path("identifier");
    let account = &request.caller()?.account;
    let id = request.services.assistants.delete(account, identifier, &request.if_match()?).await?;
    Answer::deleted("assistant", &id)
}

pub(super) mod spec {
    use platform_chat::{Assistant, AssistantFilter};
    use platform_conversation::AssistantSettings;

    use super::IncludePresets;
    use crate::openapi::{Deleted, Operation};

    const INERT: [&str; 3] = ["coreMemory", "tenantIntegrationsConfig", "tenantMcpConfig"];

    pub fn list() -> Operation {
        Operation::new("List assistants").query::<AssistantFilter>().answers::<Vec<Assistant>>(200)
    }
    pub fn create() -> Operation {
        Operation::new("Make an assistant")
            .body::<AssistantSettings>()
            .aliases(&["llm"])
            .without_effect(&INERT)
            .answers::<Assistant>(201)
    }
    pub fn get() -> Operation {
        Operation::new("Read an assistant").query::<IncludePresets>().answers::<Assistant>(200)
    }
    pub fn update() -> Operation {
        Operation::new("Change an assistant")
            .body::<AssistantSettings>()
            .aliases(&["llm"])
            .without_effect(&INERT)
            .answers::<Assistant>(200)
    }
    pub fn delete() -> Operation {
        Operation::new("Delete an assistant; its chats stay readable").answers::<Deleted>(200)
    }
}
