//! A group of resources, complete and tiny: what its crate and its file in the gateway would hold.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use async_trait::async_trait;
use platform_access::{Kind, Place, Resources};
use platform_core::{AccountId, Checks, Code, Error, ErrorKind, Id, Result};
use platform_http::{Answer, Group, Request, key};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Labels.
pub const LABEL: Kind = Kind::placed("label");
const LABEL_NOT_FOUND: Code = Code::new("LABEL_NOT_FOUND", ErrorKind::NotFound);

/// A label, as it is sent.
#[derive(Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Label {
    #[serde(rename = "_id")]
    id: String,
    name: String,
    project_id: Option<String>,
}

/// A label to make.
#[derive(Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NewLabel {
    /// 1 to 20 characters.
    name: String,
    /// The project that it is put into.
    project_id: Option<String>,
}

/// Labels of an account; `LABEL_NOT_FOUND` comes from all that name one.
#[async_trait]
pub trait LabelService: Send + Sync {
    /// Makes one.
    async fn create(&self, account: &AccountId, new: NewLabel) -> Result<Label>;
    /// One of them.
    async fn get(&self, account: &AccountId, id: &str) -> Result<Label>;
}

/// Labels in memory.
#[derive(Default)]
pub struct MemoryLabels(Mutex<HashMap<(AccountId, String), Label>>);

impl MemoryLabels {
    fn find(&self, account: &AccountId, id: &str) -> Option<Label> {
        self.0.lock().expect("lock").get(&(account.clone(), id.to_owned())).cloned()
    }
}

#[async_trait]
impl LabelService for MemoryLabels {
    async fn create(&self, account: &AccountId, new: NewLabel) -> Result<Label> {
        let mut checks = Checks::default();
        checks.length("name", &new.name, 1..=20);
        checks.finish()?;
        let label = Label { id: Id::<Label>::generate().into(), name: new.name, project_id: new.project_id };
        self.0.lock().expect("lock").insert((account.clone(), label.id.clone()), label.clone());
        Ok(label)
    }

    async fn get(&self, account: &AccountId, id: &str) -> Result<Label> {
        self.find(account, id).ok_or_else(|| Error::not_found(LABEL_NOT_FOUND, "label", id))
    }
}

#[async_trait]
impl Resources for MemoryLabels {
    async fn place(&self, account: &AccountId, id: &str) -> Result<Option<Place>> {
        Ok(self.find(account, id).map(|label| Place { project: label.project_id, ..Place::default() }))
    }
}

/// `/v1/labels`
pub fn group(labels: Arc<dyn LabelService>) -> Group {
    let mut group = Group::of("labels", "Words that people put on things", labels).naming("labelId", LABEL);
    group.post("/v1/labels", key("labels:write"), create).with(spec::create);
    group.get("/v1/labels/{labelId}", key("labels:read"), get).with(spec::get);
    group.build()
}

async fn create(labels: Arc<dyn LabelService>, request: Request) -> Result<Answer> {
    Answer::created(&labels.create(request.account()?, request.body().await?).await?)
}

async fn get(labels: Arc<dyn LabelService>, request: Request) -> Result<Answer> {
    Answer::ok(&labels.get(request.account()?, request.path("labelId")).await?)
}

mod spec {
    use platform_http::Operation;

    use super::{Label, NewLabel};

    pub fn create() -> Operation {
        Operation::new("Make a label").body::<NewLabel>().answers::<Label>(201)
    }
    pub fn get() -> Operation {
        Operation::new("Read a label").answers::<Label>(200)
    }
}
