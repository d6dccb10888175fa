mod model;
mod repository;
pub(crate) mod schedule;
mod service;
mod sub_agents;

pub use model::{
    Agent, AgentFilter, AgentList, AgentSettings, NotificationConfig, PeriodicExecution, Specialization, SubAgentConfig,
};
pub(crate) use model::{ReadyAgent, within};
pub(crate) use repository::{hold_agent, note_run};
pub(crate) use service::SCHEDULE;
pub use service::{AGENT_REFERENCES, AgentService, PgAgentService};
pub use sub_agents::PgSubAgents;
