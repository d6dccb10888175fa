mod model;
mod references;
mod repository;
pub(crate) mod schedule;
mod service;
mod sub_agents;

pub(crate) use model::ReadyAgent;
pub use model::{Agent, AgentFilter, AgentList, AgentSettings, NotificationConfig, Specialization, SubAgentConfig};
pub use references::{AGENT_REFERENCES, AgentReferrer};
pub(crate) use repository::{hold_agent, note_run};
pub use schedule::{PeriodicExecution, next_time, time_problem};
pub use service::{AGENT_DELETED, AGENT_TOPIC, AgentService, PgAgentService};
pub(crate) use service::{END_ALL, SCHEDULE};
pub use sub_agents::PgSubAgents;
