//! `/v1/api-keys`

use std::sync::Arc;

use platform_access::Kind;
use platform_auth::{KeyService, NewApiKey, PgAuthService, Rotation};
use platform_core::{Caller, Object, Result, check_types, overlay};
use platform_http::{Answer, Group, Request, full_key};

use crate::{
    leaving::{Leaving, with_followers},
    module::Module,
};

/// API keys.
const API_KEY: Kind = Kind::of_account("API key");

/// API keys.
pub(crate) fn module(auth: &Arc<PgAuthService>, leaving: &Arc<Leaving>) -> Module {
    let deleting = Deleting { keys: auth.clone(), leaving: Arc::clone(leaving) };
    Module { groups: vec![group(auth.clone()), deleting_group(Arc::new(deleting))], ..Module::default() }
}

/// What goes with a key.
struct Deleting {
    keys: Arc<dyn KeyService>,
    leaving: Arc<Leaving>,
}

fn deleting_group(services: Arc<Deleting>) -> Group {
    let mut group = Group::of("api-keys", "API keys", services).naming("id", API_KEY);
    group.delete("/v1/api-keys/{id}", full_key("keys:write"), delete).with(spec::delete);
    group.build()
}

fn group(services: Arc<dyn KeyService>) -> Group {
    let mut group = Group::of("api-keys", "API keys", services).naming("id", API_KEY);
    let read = full_key("keys:read");
    let write = full_key("keys:write");
    group.get("/v1/api-keys", read, list).with(spec::list);
    group.post("/v1/api-keys", write, create).with(spec::create);
    group.get("/v1/api-keys/{id}", read, get).with(spec::get);
    group.patch("/v1/api-keys/{id}", write, update).with(spec::update);
    group.post("/v1/api-keys/{id}/rotate", write, rotate).with(spec::rotate);
    group.build()
}

/// The caller, bound to the projects in which it may change things: no key that it makes reaches further.
async fn bound(request: &Request) -> Result<Caller> {
    let caller = request.caller()?;
    let projects = request.reach().await?.editable();
    Ok(Caller { projects, ..caller.clone() })
}

/// Refuses projects that the account does not have.
async fn require_projects(request: &Request, ids: Option<&[String]>) -> Result<()> {
    request.reach().await?.require(ids.unwrap_or_default())
}

/// Refuses to change a key that reaches more than the caller's token, or would do so with this patch.
async fn check_reach(keys: &dyn KeyService, request: &Request, caller: &Caller, patch: Object) -> Result<()> {
    if !request.bounds_keys() {
        return Ok(());
    }
    let current = NewApiKey::from(keys.get_key(caller, &request.id("id")).await?);
    let mut changed = overlay(&current, patch)?;
    changed.settle()?;
    request.check_key(&current.rules())?;
    request.check_key(&changed.rules())
}

async fn list(keys: Arc<dyn KeyService>, request: Request) -> Result<Answer> {
    let page = request.page()?;
    Answer::ok(&keys.list_keys(&bound(&request).await?, page).await?)
}

async fn create(keys: Arc<dyn KeyService>, request: Request) -> Result<Answer> {
    let (mut new, once): (NewApiKey, _) = (request.body().await?, request.once.as_ref());
    new.settle()?;
    if request.bounds_keys() {
        request.check_key(&new.rules())?;
    }
    require_projects(&request, new.project_ids.as_deref()).await?;
    let key = keys.create_key(&bound(&request).await?, new, once).await?;
    Answer::created(&key)
}

async fn get(keys: Arc<dyn KeyService>, request: Request) -> Result<Answer> {
    Answer::ok(&keys.get_key(&bound(&request).await?, &request.id("id")).await?)
}

async fn update(keys: Arc<dyn KeyService>, request: Request) -> Result<Answer> {
    let (caller, id, patch) = (bound(&request).await?, &request.id("id"), request.patch().await?);
    check_types::<NewApiKey>(&patch)?;
    check_reach(&*keys, &request, &caller, patch.clone()).await?;
    let ids = patch.get("projectIds").and_then(|ids| serde_json::from_value::<Vec<String>>(ids.clone()).ok());
    require_projects(&request, ids.as_deref()).await?;
    Answer::ok(&keys.update_key(&caller, id, patch).await?)
}

async fn delete(services: Arc<Deleting>, request: Request) -> Result<Answer> {
    let id = &request.id("id");
    let followers = services.leaving.key(request.account()?, id);
    with_followers(services.keys.delete_key(&bound(&request).await?, id).await, followers).await?;
    Answer::deleted("API key", id)
}

async fn rotate(keys: Arc<dyn KeyService>, request: Request) -> Result<Answer> {
    let (caller, id, once) = (bound(&request).await?, &request.id("id"), request.once.as_ref());
    let rotation: Rotation = request.body().await?;
    check_reach(&*keys, &request, &caller, Object::default()).await?;
    Answer::ok(&keys.rotate_key(&caller, id, rotation, once).await?)
}

mod spec {
    use platform_auth::{ApiKey, ApiKeyPage, ApiKeyWithSecret, NewApiKey, Rotation};

    use platform_http::{Deleted, Operation};

    pub fn list() -> Operation {
        Operation::new("List API keys").paged(20, 100).answers::<ApiKeyPage>(200)
    }
    pub fn create() -> Operation {
        Operation::new("Make an API key; its value is shown this once")
            .body::<NewApiKey>()
            .requires(&["name"])
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
