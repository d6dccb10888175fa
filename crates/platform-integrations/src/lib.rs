//! Integrations.
