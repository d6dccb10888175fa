//! HTTP in front of services: a table of routes as data, and the way of a request through it.
//!
//! **Owns** the way of every request: route → credential → rate → body → access → handler → answer, and what is the
//! same for all of them: errors, CORS, idempotency keys, streams, connections, the `OpenAPI` document. **Needs**
//! `platform-auth` for credentials, `platform-access` for who reaches what, `platform-limits` for rates, `platform-realtime`
//! for what is streamed, `platform-db` for idempotency keys. It knows no resource: those come as [`Group`]s, whose handlers hold the services they use.
//!
//! **Invariants**: a route says whose credential opens it, and what each placeholder of its path stands for, or nothing
//! starts; what a route reads is what its description names; everything that fails, fails with the error object; no
//! answer and no body is unbounded.
//!
//! ```no_run
//! # use std::sync::Arc;
//! # use platform_access::Kind;
//! # use platform_core::Result;
//! # use platform_http::*;
//! # const LABEL: Kind = Kind::of_account("label");
//! # struct Labels;
//! # impl Labels { async fn get(&self, _: &platform_core::AccountId, _: &str) -> Result<()> { Ok(()) } }
//! # fn example(config: HttpConfig, needs: Needs, labels: Arc<Labels>) -> Result<()> {
//! let mut group = Group::of("labels", "Words that people put on things", labels).naming("labelId", LABEL);
//! group.get("/v1/labels/{labelId}", key("labels:read"), get);
//! let http = Http::new(config, needs, vec![group.build()]).expect("a table without contradictions");
//! # Ok(()) }
//!
//! async fn get(labels: Arc<Labels>, request: Request) -> Result<Answer> {
//!     Answer::ok(&labels.get(request.account()?, request.path("labelId")).await?)
//! }
//! ```

mod access;
mod answer;
mod bearer;
mod body;
mod bounded;
pub mod code;
mod connection;
mod content;
mod cors;
mod dispatch;
mod error;
mod gate;
mod http;
mod multipart;
mod openapi;
mod proxy;
mod request;
mod route;
mod server;
mod sse;
mod table;
mod trace;
mod unknown;

pub use self::http::{Http, HttpConfig, Needs, Observer};
pub use answer::{Answer, List};
pub use gate::{Gate, LogIn, Rates, StreamPlace};
pub use multipart::{Part, remove_abandoned_uploads};
pub use openapi::{Deleted, Operation};
pub use proxy::{Forwarding, ProxiedAnswer, ProxiedHosts, ReverseProxy};
pub use request::{KeptKey, Request, percent_decode};
pub use route::{Group, GroupBuilder, OpenTo, Route, account_key, full_key, key, session};
pub use server::{Serving, listen, serve};
pub use sse::{Event, Follower};
pub use table::{Table, TableError};
