//! `/v1/api-keys`

use platform_core::Result;

use crate::{request::Request, respond::Answer};

pub(crate) async fn list(request: Request) -> Result<Answer> {
    let page = request.page(20, 100)?;
    Answer::ok(&request.services.auth.list_keys(&request.caller()?.account, page).await?)
}

pub(crate) async fn create(request: Request) -> Result<Answer> {
    let key = request.services.auth.create_key(request.caller()?, request.body()?, request.once.as_ref()).await?;
    Answer::created(&key)
}

pub(crate) async fn get(request: Request) -> Result<Answer> {
    Answer::ok(&request.services.auth.get_key(&request.caller()?.account, request.path("id")).await?)
}

pub(crate) async fn update(request: Request) -> Result<Answer> {
    let (account, id) = (&request.caller()?.account, request.path("id"));
    Answer::ok(&request.services.auth.update_key(account, id, request.patch()?).await?)
}

pub(crate) async fn delete(request: Request) -> Result<Answer> {
    let id = request.path("id");
    request.services.auth.delete_key(&request.caller()?.account, id).await?;
    Answer::deleted("API key", id)
}

pub(crate) async fn rotate(request: Request) -> Result<Answer> {
    let (account, id) = (&request.caller()?.account, request.path("id"));
    Answer::ok(&request.services.auth.rotate_key(account, id, request.body()?, request.once.as_ref()).await?)
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
