//! Agents and their threads: long work in the background.
//!
//! **Owns** the tables `agents`, `agent_versions`, `threads`, `tool_callbacks`, `agent_costs`, `evaluations`; the
//! endpoints `/v1/agents/…` and `/v1/tool-callbacks/…`. **Needs** `platform-conversation` for messages and the
//! course of a turn, `platform-jobs` for durable runs and their lanes, `platform-events`, `platform-mail`,
//! `platform-toolservers` to say which servers an agent uses, and the port `AssistantTemplates` for the assistants it is
//! made from.
//!
//! **A thread** is one row with its history. Every change of state goes through [`CHANGES`] and is stored by one
//! function, which makes the runs, events, costs and mail that follow from it in the same transaction. A queued
//! thread has a run in the lane of its agent; the claim of a run is what makes it processing, so limits on
//! agents are decided there, exactly, whoever takes it.
//!
//! **Invariants**: a thread is in processing exactly while a worker holds its run; every change stands in its
//! history; a step is stored before the next begins, under the lease's fence; a turn keeps the version of the
//! agent that it began with; what an agent took is the sum of what providers reported, to the nano-dollar.
//!
//! ```no_run
//! # use platform_agents::*;
//! # use platform_core::{Caller, Id, Result};
//! # async fn example(
//! #     agents: &dyn AgentService, threads: &dyn ThreadService, caller: Caller, id: &Id<Agent>, new: NewThread,
//! # ) -> Result<()> {
//! let agent = agents.get(&caller.account, id).await?;
//! let started = threads.start(&caller, id, new, None, false, None).await?.accepted()?;
//! # Ok(()) }
//! ```

mod agent;
pub mod code;
mod costs;
mod evaluation;
mod schedule;
mod schema;
mod thread;

pub use agent::{
    AGENT_DELETED, AGENT_REFERENCES, AGENT_TOPIC, Agent, AgentFilter, AgentList, AgentReferrer, AgentService,
    AgentSettings, NotificationConfig, PeriodicExecution, PgAgentService, PgSubAgents, Specialization, SubAgentConfig,
    next_time, time_problem,
};
pub use costs::{CostRow, CostSummary, DailyRange, MonthlyRange};
pub use evaluation::{
    Criterion, CriterionScore, Evaluation, EvaluationConfig, EvaluationList, EvaluationService, NewEvaluation,
    PgEvaluationService,
};
pub use thread::{
    Action, AsyncResponse, AsyncResponses, CHANGES, Cause, EmptyContentRetries, NewApproval, NewCompletion, NewPause,
    NewResume, NewThread, ParentLink, PauseOrResume, PendingApproval, PendingAsyncToolCall, PgThreadAddresses,
    PgThreadService, PgThreadStates, Source, StartedThread, StateChange, THREAD, Task, Thread, ThreadConfig,
    ThreadFeedback, ThreadFilter, ThreadList, ThreadMessage, ThreadPatch, ThreadResponded, ThreadResult, ThreadService,
    ThreadStart, ThreadState, ThreadView, picture, purge_callbacks, task_tools,
};
