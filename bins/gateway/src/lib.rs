//! The HTTP binary: routes, credentials, errors, streams, and the composition of the platform.
//!
//! A request goes through `dispatch`, top to bottom: route → credential → rate → body → handler →
//! answer. The handlers of `routes/` parse and answer, the services behind them decide.

pub mod app;
mod code;
pub mod commands;
pub mod config;

mod access;
mod auth;
mod body;
mod bounded;
mod children;
mod connection;
mod cors;
mod dispatch;
mod error;
mod gate;
mod health;
mod metrics;
mod openapi;
mod purge;
mod request;
mod respond;
mod routes;
mod server;
mod sse;
mod telemetry;
mod unknown;
