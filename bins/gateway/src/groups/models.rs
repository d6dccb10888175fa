//! `/v1/models`

use std::sync::Arc;

use platform_core::Result;
use platform_http::{Answer, Group, Request, key};
use platform_models::Models;
use serde::Deserialize;
use utoipa::ToSchema;

use crate::module::Module;

/// Models.
pub(crate) fn module(models: &Arc<Models>) -> Module {
    Module { groups: vec![group(Arc::clone(models))], ..Module::default() }
}

fn group(services: Arc<Models>) -> Group {
    let mut group = Group::of("models", "Models and their prices", services);
    group.get("/v1/models", key("models:read"), list).with(spec::list);
    group.build()
}

#[derive(Default, Deserialize, ToSchema)]
#[serde(default)]
pub(crate) struct ProviderQuery {
    /// Only the models of this provider.
    provider: Option<String>,
}

async fn list(models: Arc<Models>, request: Request) -> Result<Answer> {
    let ProviderQuery { provider } = request.query()?;
    Answer::ok(&models.list(provider.as_deref())?)
}

mod spec {
    use platform_models::ModelList;

    use super::ProviderQuery;
    use platform_http::Operation;

    pub fn list() -> Operation {
        Operation::new("List models and prices").query::<ProviderQuery>().answers::<ModelList>(200)
    }
}
