//! Tenants and their end users (contract 10 §1).

mod former;
mod model;
mod repository;
mod service;

pub use model::{
    NewTenant, Subtenant, SubtenantPage, SubtenantPatch, Tenant, TenantFilter, TenantInfo, TenantPage, TenantPatch,
};
pub(crate) use repository::{TENANT, exists, find, find_user, lock, register_in, standing};
pub use service::TenantService;
pub(crate) use service::{not_found, user_not_found};
