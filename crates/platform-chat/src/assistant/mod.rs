mod model;
mod references;
mod repository;
mod service;

pub use model::{Assistant, AssistantFilter, DEFAULT_ASSISTANT};
pub use references::{ASSISTANT_REFERENCES, AssistantReferrer};
pub use service::{ASSISTANT_DELETED, ASSISTANT_TOPIC, AssistantService, PgAssistantService};
