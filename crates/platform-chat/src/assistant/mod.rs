mod model;
mod repository;
mod service;

pub(crate) use model::ContextManagement;
pub(crate) use model::takes_no_tools;
pub use model::{Assistant, AssistantFilter, AssistantSettings, AssistantState, DEFAULT_ASSISTANT};
pub use service::{AssistantService, PgAssistantService};
