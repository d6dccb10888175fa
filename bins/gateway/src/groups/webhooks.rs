//! `/v1/webhooks`

use std::sync::Arc;

use platform_access::Kind;
use platform_core::{AccountId, Code, Error, Result};
use platform_http::{Answer, Group, Request, account_key};
use platform_webhooks::{PgWebhooks, WEBHOOK, WebhookService};

use crate::module::{Keeper, Module, Purge};

const DELIVERY: Kind = Kind::of_account("webhook delivery");

/// Webhooks, and what sends to them.
pub(crate) fn module(webhooks: &Arc<PgWebhooks>) -> Module {
    Module {
        groups: vec![group(webhooks.clone())],
        keepers: vec![Keeper::new("webhooks", Arc::clone(webhooks).keep()).ending_early()],
        purges: vec![Purge::new("webhook deliveries", {
            let webhooks = Arc::clone(webhooks);
            move |conn, now| {
                let webhooks = Arc::clone(&webhooks);
                Box::pin(async move { webhooks.purge(conn, now).await })
            }
        })],
        ..Module::default()
    }
}

fn group(services: Arc<dyn WebhookService>) -> Group {
    let mut group = Group::of("webhooks", "Events, signed, to whoever wants to be told", services)
        .naming("id", WEBHOOK)
        .naming("deliveryId", DELIVERY);
    let (read, write) = (account_key("webhooks:read"), account_key("webhooks:write"));
    group.get("/v1/webhooks", read, list).with(spec::list);
    group.post("/v1/webhooks", write, create).with(spec::create);
    group.get("/v1/webhooks/default-secret", read, default_secret).with(spec::default_secret);
    group.post("/v1/webhooks/default-secret/rotate", write, rotate_default).with(spec::rotate_default);
    group.get("/v1/webhooks/{id}", read, get).with(spec::get);
    group.patch("/v1/webhooks/{id}", write, update).with(spec::update);
    group.delete("/v1/webhooks/{id}", write, delete).with(spec::delete);
    group.post("/v1/webhooks/{id}/rotate-secret", write, rotate).with(spec::rotate);
    group.post("/v1/webhooks/{id}/test", write, test).with(spec::test);
    group.get("/v1/webhooks/{id}/deliveries", read, deliveries).with(spec::deliveries);
    group.post("/v1/webhooks/{id}/deliveries/{deliveryId}/redeliver", write, redeliver).with(spec::redeliver);
    group.build()
}

/// The account of a caller who may hear of all of it.
async fn account(request: &Request) -> Result<&AccountId> {
    if !request.reach().await?.is_whole() {
        let message = "Webhooks tell of the whole account; who is bound to projects cannot have any.";
        return Err(Error::new(Code::FORBIDDEN, message));
    }
    request.account()
}

async fn list(webhooks: Arc<dyn WebhookService>, request: Request) -> Result<Answer> {
    Answer::ok(&webhooks.list(account(&request).await?, request.page()?).await?)
}

async fn create(webhooks: Arc<dyn WebhookService>, request: Request) -> Result<Answer> {
    let once = request.once.as_ref();
    Answer::created(&webhooks.create(account(&request).await?, request.body().await?, once).await?)
}

async fn default_secret(webhooks: Arc<dyn WebhookService>, request: Request) -> Result<Answer> {
    Answer::ok(&webhooks.default_secret(account(&request).await?).await?)
}

async fn rotate_default(webhooks: Arc<dyn WebhookService>, request: Request) -> Result<Answer> {
    Answer::ok(&webhooks.rotate_default(account(&request).await?, request.once.as_ref()).await?)
}

async fn get(webhooks: Arc<dyn WebhookService>, request: Request) -> Result<Answer> {
    Answer::ok(&webhooks.get(account(&request).await?, &request.id("id")).await?)
}

async fn update(webhooks: Arc<dyn WebhookService>, request: Request) -> Result<Answer> {
    Answer::ok(&webhooks.update(account(&request).await?, &request.id("id"), request.patch().await?).await?)
}

async fn delete(webhooks: Arc<dyn WebhookService>, request: Request) -> Result<Answer> {
    let id = &request.id("id");
    webhooks.delete(account(&request).await?, id).await?;
    Answer::deleted("webhook", id)
}

async fn rotate(webhooks: Arc<dyn WebhookService>, request: Request) -> Result<Answer> {
    Answer::ok(&webhooks.rotate(account(&request).await?, &request.id("id"), request.once.as_ref()).await?)
}

async fn test(webhooks: Arc<dyn WebhookService>, request: Request) -> Result<Answer> {
    let once = request.once.as_ref();
    Answer::json(202, &webhooks.test(account(&request).await?, &request.id("id"), request.body().await?, once).await?)
}

async fn deliveries(webhooks: Arc<dyn WebhookService>, request: Request) -> Result<Answer> {
    let (filter, page) = (request.query()?, request.page()?);
    Answer::ok(&webhooks.deliveries(account(&request).await?, &request.id("id"), filter, page).await?)
}

async fn redeliver(webhooks: Arc<dyn WebhookService>, request: Request) -> Result<Answer> {
    let (id, delivery) = (&request.id("id"), &request.id("deliveryId"));
    Answer::json(202, &webhooks.redeliver(account(&request).await?, id, delivery, request.once.as_ref()).await?)
}

mod spec {
    use platform_http::{Deleted, Operation};
    use platform_webhooks::{
        DefaultSecret, Delivery, DeliveryFilter, DeliveryPage, NewDefaultSecret, TestDelivery, Webhook, WebhookPage,
        WebhookSettings, WebhookWithSecret,
    };

    pub fn list() -> Operation {
        Operation::new("List webhooks").paged(20, 100).answers::<WebhookPage>(200)
    }
    pub fn create() -> Operation {
        Operation::new("Make a webhook; its secret is shown this once")
            .body::<WebhookSettings>()
            .requires(&["url", "events"])
            .answers::<WebhookWithSecret>(201)
    }
    pub fn default_secret() -> Operation {
        Operation::new("Read whether there is a secret for events of single threads and agents")
            .answers::<DefaultSecret>(200)
    }
    pub fn rotate_default() -> Operation {
        Operation::new("Make a new secret for events of single threads and agents; it is shown this once")
            .answers::<NewDefaultSecret>(200)
    }
    pub fn get() -> Operation {
        Operation::new("Read a webhook").answers::<Webhook>(200)
    }
    pub fn update() -> Operation {
        Operation::new("Change a webhook").body::<WebhookSettings>().answers::<Webhook>(200)
    }
    pub fn delete() -> Operation {
        Operation::new("Delete a webhook, with what is on its way").answers::<Deleted>(200)
    }
    pub fn rotate() -> Operation {
        Operation::new("Give a webhook a new secret; for a day messages are signed with both")
            .answers::<WebhookWithSecret>(200)
    }
    pub fn test() -> Operation {
        Operation::new("Send an event that is made up").body::<TestDelivery>().answers::<Delivery>(202)
    }
    pub fn deliveries() -> Operation {
        Operation::new("List what was sent, newest first")
            .query::<DeliveryFilter>()
            .paged(20, 100)
            .answers::<DeliveryPage>(200)
    }
    pub fn redeliver() -> Operation {
        Operation::new("Send an event again, with the same id").answers::<Delivery>(202)
    }
}
