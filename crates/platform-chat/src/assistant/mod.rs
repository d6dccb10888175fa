mod model;
mod repository;
mod service;

pub(crate) use model::ContextManagement;
pub use model::{Assistant, AssistantFilter, AssistantSettings, AssistantState, DEFAULT_ASSISTANT};
pub use service::{AssistantService, PgAssistantService};
