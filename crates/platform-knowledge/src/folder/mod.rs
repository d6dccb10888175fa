mod model;
pub(crate) mod repository;
mod service;

pub use model::{Folder, FolderFilter, FolderSettings};
pub(crate) use repository::FolderRow;
pub use service::FolderService;
