//! `/v1/models`

use platform_core::Result;
use serde::Deserialize;
use utoipa::ToSchema;

use crate::{request::Request, respond::Answer};

#[derive(Default, Deserialize, ToSchema)]
#[serde(default)]
pub(crate) struct ProviderQuery {
    /// Only the models of this provider.
    provider: Option<String>,
}

pub(crate) async fn list(request: Request) -> Result<Answer> {
    let ProviderQuery { provider } = request.query()?;
    Answer::ok(&request.services.models.list(provider.as_deref())?)
}

pub(super) mod spec {
    use platform_models::ModelList;

    use super::ProviderQuery;
    use crate::openapi::Operation;

    pub fn list() -> Operation {
        Operation::new("List models and prices").query::<ProviderQuery>().answers::<ModelList>(200)
    }
}
