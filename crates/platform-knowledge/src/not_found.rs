use platform_core::Error;

use crate::code;

pub(crate) fn document(id: &str) -> Error {
    Error::not_found(code::DOCUMENT_NOT_FOUND, "document", id)
}

pub(crate) fn folder(id: &str) -> Error {
    Error::not_found(code::FOLDER_NOT_FOUND, "folder", id)
}

pub(crate) fn version(version: &str) -> Error {
    Error::not_found(code::VERSION_NOT_FOUND, "version", version)
}
