//! What tests need: a database of their own, a model server over the real wire, the running platform.
//!
//! **Owns** a shared PostgreSQL under `target/test-postgres`, started on demand and left running;
//! each [`TestDb`] is a clone of a template that has all migrations. **Needs** nothing to be
//! installed that the platform itself does not need.
//!
//! ```no_run
//! # use platform_testing::*;
//! # use serde_json::json;
//! # async fn example(program: &str) {
//! let app = TestApp::start(program, &TestDb::new().await, &[]);
//! let reply = app.post("/assistants/default/messages", json!({"message": "Hi"})).await;
//! assert_eq!(reply.status, 200);
//! # }
//! ```

mod app;
mod app_server;
mod caller;
mod clock;
mod collector;
mod db;
mod described;
mod mcp_server;
mod model_server;
mod nats;
mod server;
mod tls;
mod tool_server;
mod wait;

pub use app::{Reply, TestApp};
pub use app_server::FakeApp;
pub use caller::full_caller;
pub use clock::TestClock;
pub use collector::{FakeCollector, Span};
pub use db::TestDb;
pub use mcp_server::FakeMcpServer;
pub use model_server::{Embeddings, Ending, FakeModelServer, Recorded, Script};
pub use nats::NatsServer;
pub use platform_core::sha256_hex;
pub use server::ClosedPort;
pub use tls::TlsProxy;
pub use tool_server::{FakeToolServer, ToolRequest};
pub use wait::{PATIENCE, eventually};
