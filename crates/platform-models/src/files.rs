//! Files as models take them.

use base64::{Engine, engine::general_purpose::STANDARD};
use platform_runtime::{Attachment, ModelSpec};

/// Characters of a text document that a model gets (contract 07).
const MAX_TEXT: usize = 200_000;

/// How a model can take a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    Image,
    Pdf,
    /// A text document, or only its name (contract 18 §2).
    Text,
}

pub(crate) fn shape(file: &Attachment, model: &ModelSpec) -> Shape {
    match file.media_type.as_str() {
        _ if file.bytes.is_empty() => Shape::Text,
        "image/png" | "image/jpeg" | "image/gif" | "image/webp" if model.capabilities.vision => Shape::Image,
        "application/pdf" if model.capabilities.vision => Shape::Pdf,
        _ => Shape::Text,
    }
}

pub(crate) fn base64(file: &Attachment) -> String {
    STANDARD.encode(&file.bytes)
}

pub(crate) fn data_url(file: &Attachment) -> String {
    format!("data:{};base64,{}", file.media_type, base64(file))
}

pub(crate) fn described(file: &Attachment) -> String {
    let is_text = file.media_type.starts_with("text/")
        || matches!(file.media_type.as_str(), "application/json" | "application/xml" | "application/yaml");
    let plain = std::str::from_utf8(&file.bytes).ok().filter(|text| is_text && !text.is_empty());
    match file.text.as_deref().or(plain) {
        Some(text) => match text.char_indices().nth(MAX_TEXT) {
            Some((end, _)) => {
                format!("[Attached file: {}]\n{}\n[The rest of the file is left out.]", file.name, &text[..end])
            }
            None => format!("[Attached file: {}]\n{text}", file.name),
        },
        None => format!("[Attached file: {} ({})]", file.name, file.media_type),
    }
}
