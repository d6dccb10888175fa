//! The platform as one program: settings, composition, the URLs of each group, the command line.
//!
//! `app.rs` says which implements which, and lists what each part brings; `services.rs` how each is built;
//! `groups/` has the URLs of a group and their handlers, which parse and answer. The way of a request is that of
//! `platform-http`; services behind it decide.

pub mod commands;
pub mod config;
pub mod running;

mod app;
mod base;
mod bootstrap;
mod children;
mod connectors;
mod groups;
mod health;
mod leaving;
mod metrics;
mod module;
mod purge;
mod sandboxes;
mod serve;
mod services;
mod telemetry;
