//! The running platform over HTTP. Files mirror the URLs; each test is a sentence.

mod access;
mod agents;
mod api_keys;
mod architecture;
mod assistants;
mod chats;
mod context;
mod crash;
mod docs;
mod files;
mod guardrails;
mod http;
mod idempotency;
mod limits;
mod messages;
mod models;
mod process;
mod queue;
mod stream;
mod structured;
mod sub_agents;
mod support;
mod thread_states;
mod threads;
mod tool_servers;
mod tools;
