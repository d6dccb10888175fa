mod model;
mod references;
mod repository;
pub(crate) mod schedule;
mod service;
mod sub_agents;

pub use model::{
    Agent, AgentFilter, AgentList, AgentSettings, NotificationConfig, PeriodicExecution, Specialization, SubAgentConfig,
};
pub(crate) use model::{ReadyAgent, within};
pub use references::{AGENT_REFERENCES, AgentReferrer};
pub(crate) use repository::{hold_agent, note_run};
pub use schedule::{next_time, time_problem};
pub(crate) use service::SCHEDULE;
pub use service::{AgentService, PgAgentService};
pub use sub_agents::PgSubAgents;
