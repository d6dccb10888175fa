//! `/v1/api-keys`

use platform_auth::NewApiKey;
use platform_core::{Caller, Result};

use crate::{request::Request, respond::Answer};

/// The caller, bound to the projects in which it may change things: no key that it makes reaches further.
async fn bound(request: &Request) -> Result<Caller> {
    let caller = request.caller()?;
    let projects = request.services.projects.reach(caller).await?.editable();
    Ok(Caller { projects, ..caller.clone() })
}

/// Refuses projects that the account does not have.
async fn require_projects(request: &Request, ids: Option<&[String]>) -> Result<()> {
    request.services.projects.reach(request.caller()?).await?.require(ids.unwrap_or_default())
}

pub(crate) async fn list(request: Request) -> Result<Answer> {
    let page = request.page(20, 100)?;
    Answer::ok(&request.services.keys.list_keys(&bound(&request).await?, page).await?)
}

pub(crate) async fn create(request: Request) -> Result<Answer> {
    let (mut new, once): (NewApiKey, _) = (request.body()?, request.once.as_ref());
    new.settle()?;
    require_projects(&request, new.project_ids.as_deref()).await?;
    let key = request.services.keys.create_key(&bound(&request).await?, new, once).await?;
    Answer::created(&key)
}

pub(crate) async fn get(request: Request) -> Result<Answer> {
    Answer::ok(&request.services.keys.get_key(&bound(&request).await?, request.path("id")).await?)
}

pub(crate) async fn update(request: Request) -> Result<Answer> {
    let (caller, id, patch) = (bound(&request).await?, request.path("id"), request.patch()?);
    let ids = patch.get("projectIds").and_then(|ids| serde_json::from_value::<Vec<String>>(ids.clone()).ok());
    require_projects(&request, ids.as_deref()).await?;
    Answer::ok(&request.services.keys.update_key(&caller, id, patch).await?)
}

pub(crate) async fn delete(request: Request) -> Result<Answer> {
    let id = request.path("id");
    request.services.keys.delete_key(&bound(&request).await?, id).await?;
    Answer::deleted("API key", id)
}

pub(crate) async fn rotate(request: Request) -> Result<Answer> {
    let (caller, id, once) = (bound(&request).await?, request.path("id"), request.once.as_ref());
    Answer::ok(&request.services.keys.rotate_key(&caller, id, request.body()?, once).await?)
}

pub(super) mod spec {
    use platform_auth::{ApiKey, ApiKeyPage, ApiKeyWithSecret, NewApiKey, Rotation};

    use crate::openapi::{Deleted, Operation};

    pub fn list() -> Operation {
        Operation::new("List API keys").paged().answers::<ApiKeyPage>(200)
    }
    pub fn create() -> Operation {
        Operation::new("Make an API key; its value is shown this once")
            .body::<NewApiKey>()
            .answers::<ApiKeyWithSecret>(201)
    }
    pub fn get() -> Operation {
        Operation::new("Read an API key").answers::<ApiKey>(200)
    }
    pub fn update() -> Operation {
        Operation::new("Change an API key").body::<NewApiKey>().answers::<ApiKey>(200)
    }
    pub fn delete() -> Operation {
        Operation::new("Delete an API key").answers::<Deleted>(200)
    }
    pub fn rotate() -> Operation {
        Operation::new("Give an API key a new value").body::<Rotation>().answers::<ApiKeyWithSecret>(200)
    }
}
