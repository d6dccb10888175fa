mod model;
mod repository;
mod service;

pub use model::{Assistant, AssistantFilter, DEFAULT_ASSISTANT};
pub use service::{ASSISTANT_REFERENCES, AssistantService, PgAssistantService};
