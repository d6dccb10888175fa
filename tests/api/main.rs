//! The running platform over HTTP. Files mirror the URLs; each test is a sentence.

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
mod support;
mod tool_servers;
mod tools;
