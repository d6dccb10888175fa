//! The running platform over HTTP. Files mirror the URLs; each test is a sentence.

mod api_keys;
mod architecture;
mod assistants;
mod chats;
mod crash;
mod docs;
mod http;
mod idempotency;
mod messages;
mod models;
mod process;
mod queue;
mod stream;
mod support;
