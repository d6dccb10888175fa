mod model;
pub(crate) mod repository;
mod service;

pub use model::{Folder, FolderFilter, FolderSettings};
pub use service::FolderService;
