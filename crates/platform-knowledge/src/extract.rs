//! Files become Markdown, in child processes that can be killed.

use std::{io::Read, path::Path, sync::Arc, time::Duration};

use bytes::Bytes;
use platform_child::{ChildError, Work};
use platform_core::{AccountId, Code, Error, FairPermit, Result, run_blocking};
use platform_files::{HEAD_BYTES, media_type};
use platform_runtime::{ChildPool, no_answer};
use serde::{Deserialize, Serialize};
use tokio::time::timeout;

use crate::{
    document::{IndexingError, MAX_TEXT},
    docx::docx,
    html::html,
    pdf::{DAMAGED, pdf},
    skill::unpack,
};

/// CPU time and memory of one file (contract 06 §2); first each has this little time, which is enough for most.
const CPU: Duration = Duration::from_secs(30);
const SHORT_CPU: Duration = Duration::from_secs(3);
const MEMORY: u64 = 256 << 20;
/// A document waits so long for those that came before it; one of a message, for which somebody waits, so long.
pub(crate) const MAX_WAIT: Duration = Duration::from_mins(2);
const MAX_SHORT_WAIT: Duration = Duration::from_secs(20);
const DOCX: &str = "application/vnd.openxmlformats-officedocument.wordprocessingml.document";

/// What the child processes of this crate do.
pub const EXTRACTION_WORKS: [Work; 7] = [
    Work { name: "pdf", run: |bytes| answer(pdf(bytes)), cpu: SHORT_CPU, memory: MEMORY },
    Work { name: "docx", run: |bytes| answer(docx(bytes)), cpu: SHORT_CPU, memory: MEMORY },
    Work { name: "html", run: |bytes| answer(html(bytes)), cpu: SHORT_CPU, memory: MEMORY },
    Work { name: "zip", run: unpack, cpu: SHORT_CPU, memory: MEMORY },
    Work { name: "long-pdf", run: |bytes| answer(pdf(bytes)), cpu: CPU, memory: MEMORY },
    Work { name: "long-docx", run: |bytes| answer(docx(bytes)), cpu: CPU, memory: MEMORY },
    Work { name: "long-html", run: |bytes| answer(html(bytes)), cpu: CPU, memory: MEMORY },
];

/// Where files are read. Those that take long have places of their own, so that no other waits for them.
#[derive(Debug, Clone)]
pub struct Extraction {
    /// For a few seconds of CPU time each.
    pub short: Arc<ChildPool>,
    /// For those that take longer.
    pub long: Arc<ChildPool>,
}

/// The text of a file, or why it cannot be read.
pub(crate) type Extracted = std::result::Result<String, IndexingError>;

/// What a child answers.
#[derive(Serialize, Deserialize)]
enum Answer {
    Text(String),
    TooLarge,
    Unreadable(String),
}

fn answer(read: std::result::Result<String, String>) -> Vec<u8> {
    let answer = match read {
        Ok(text) if text.len() > MAX_TEXT => Answer::TooLarge,
        Ok(text) if text.trim().is_empty() => Answer::Unreadable("it has no text".to_owned()),
        Ok(text) => Answer::Text(text),
        Err(reason) => Answer::Unreadable(reason),
    };
    serde_json::to_vec(&answer).expect("answers are JSON")
}

/// Which of the types that can be read a file is, by its content first; `UNSUPPORTED_MEDIA_TYPE` for any other.
pub(crate) async fn file_type(path: &Path, name: &str) -> Result<&'static str> {
    let (path, name) = (path.to_owned(), name.to_owned());
    run_blocking(move || {
        let mut head = Vec::new();
        let file = std::fs::File::open(&path).map_err(Error::internal)?;
        file.take(HEAD_BYTES as u64).read_to_end(&mut head).map_err(Error::internal)?;
        // What is none within is a document that cannot be read.
        let by_name = || {
            let extension = name.rsplit_once('.').map(|(_, extension)| extension.to_ascii_lowercase())?;
            ["pdf", "docx"].into_iter().find(|known| *known == extension)
        };
        type_of_text(&name, &head).or_else(by_name).ok_or_else(|| {
            let message =
                "This is none of the files that become documents: md, txt, html, pdf or docx (text as UTF-8).";
            Error::new(Code::UNSUPPORTED_MEDIA_TYPE, message)
        })
    })
    .await
}

/// Which of the types that can be read a file is; `head`: its first bytes.
pub(crate) fn type_of_text(name: &str, head: &[u8]) -> Option<&'static str> {
    let extension = name.rsplit_once('.').map(|(_, extension)| extension.to_ascii_lowercase()).unwrap_or_default();
    let starts = String::from_utf8_lossy(&head[..head.len().min(512)]).trim_start().to_ascii_lowercase();
    let media_type = media_type("", "", head);
    match media_type.as_str() {
        "application/pdf" => Some("pdf"),
        DOCX => Some("docx"),
        _ if head.is_empty() && extension == "pdf" => Some("pdf"),
        _ if head.is_empty() && extension == "docx" => Some("docx"),
        "application/octet-stream" => match extension.as_str() {
            // What is none within is a document that cannot be read.
            "pdf" => Some("pdf"),
            "docx" => Some("docx"),
            // Text that is in no UTF-8, or not there at all, is a document that fails, or that is empty.
            _ if !is_mark_of_utf_16(head) && head.contains(&0) => None,
            "html" | "htm" => Some("html"),
            "md" | "markdown" => Some("md"),
            "txt" | "text" => Some("txt"),
            _ => None,
        },
        "text/plain" => match extension.as_str() {
            "html" | "htm" | "xhtml" => Some("html"),
            "md" | "markdown" => Some("md"),
            _ if starts.starts_with("<!doctype html") || starts.starts_with("<html") => Some("html"),
            _ if starts.starts_with("<?xml") && starts.contains("<html") => Some("html"),
            "txt" | "text" | "log" => Some("txt"),
            _ if platform_files::type_of_name(name).is_none() => Some("txt"),
            _ => None,
        },
        _ => None,
    }
}

/// The text of a file on this machine.
pub(crate) async fn text_of(
    extraction: &Extraction,
    account: &AccountId,
    path: &Path,
    file_type: &str,
) -> Result<Extracted> {
    let read = || {
        let path = path.to_owned();
        run_blocking(move || std::fs::read(&path).map(Bytes::from).map_err(Error::internal))
    };
    text_of_bytes(extraction, account, read, file_type).await
}

/// The same of a file that `read` gives, which is asked when there is a place for it.
pub(crate) async fn text_of_bytes<R: Future<Output = Result<Bytes>>>(
    extraction: &Extraction,
    account: &AccountId,
    read: impl Fn() -> R,
    file_type: &str,
) -> Result<Extracted> {
    // What takes no time waits for nothing that does.
    if matches!(file_type, "md" | "txt") {
        let bytes = read().await?;
        if bytes.len() > MAX_TEXT {
            return Ok(Err(too_large()));
        }
        return Ok(match (std::str::from_utf8(&bytes), utf_16(&bytes)) {
            (Ok(text), _) => Ok(clean(text)),
            (_, Some(text)) => Ok(clean(&text)),
            _ => Err(unreadable("it is not text in UTF-8 or UTF-16")),
        });
    }
    let place = place(&extraction.short, account, MAX_WAIT).await?;
    if let Some(text) = extracted(&extraction.short, &place, file_type, &read().await?).await? {
        return Ok(text);
    }
    drop(place);
    let place = self::place(&extraction.long, account, MAX_WAIT).await?;
    let text = extracted(&extraction.long, &place, &format!("long-{file_type}"), &read().await?).await?;
    Ok(text.unwrap_or_else(|| Err(unreadable(&ChildError::TooLong.to_string()))))
}

/// The text of a file that takes little time to read; none is there of one that takes more, or cannot be read.
pub(crate) async fn short_text(
    extraction: &Extraction,
    account: &AccountId,
    bytes: &Bytes,
    file_type: &str,
) -> Result<Option<String>> {
    let place = place(&extraction.short, account, MAX_SHORT_WAIT).await?;
    Ok(extracted(&extraction.short, &place, file_type, bytes).await?.and_then(Extracted::ok))
}

/// A place to read a file of an account, for which those before it are waited for.
pub(crate) async fn place(children: &ChildPool, account: &AccountId, most: Duration) -> Result<FairPermit> {
    let full = |_| {
        let message = "Other files are still being read; try again shortly.";
        Error::new(Code::SERVICE_UNAVAILABLE, message).retry_after(10)
    };
    timeout(most, children.place(account)).await.map_err(full)
}

/// What a child reads; nothing when that takes longer than it may.
async fn extracted(children: &ChildPool, place: &FairPermit, work: &str, bytes: &[u8]) -> Result<Option<Extracted>> {
    Ok(Some(match children.read::<Answer>(place, work, bytes).await {
        Ok(Answer::Text(text)) => Ok(clean(&text)),
        Ok(Answer::TooLarge) => Err(too_large()),
        Ok(Answer::Unreadable(reason)) => Err(unreadable(&reason)),
        Err(ChildError::TooLong) => return Ok(None),
        Err(error @ ChildError::TooLarge) => Err(unreadable(&error.to_string())),
        Err(error @ (ChildError::Busy | ChildError::NotStarted(_))) => return Err(no_answer(error)),
        Err(ChildError::Failed(_)) => Err(unreadable(DAMAGED)),
    }))
}

fn is_mark_of_utf_16(head: &[u8]) -> bool {
    head.starts_with(&[0xff, 0xfe]) || head.starts_with(&[0xfe, 0xff])
}

/// A text that begins with the mark of its byte order.
fn utf_16(bytes: &[u8]) -> Option<String> {
    let units = bytes.get(2..)?.as_chunks::<2>().0.iter();
    match bytes {
        [0xff, 0xfe, ..] => String::from_utf16(&units.map(|unit| u16::from_le_bytes(*unit)).collect::<Vec<_>>()).ok(),
        [0xfe, 0xff, ..] => String::from_utf16(&units.map(|unit| u16::from_be_bytes(*unit)).collect::<Vec<_>>()).ok(),
        _ => None,
    }
}

/// Text as it can be stored: without NUL, without a mark of its byte order.
fn clean(text: &str) -> String {
    text.trim_start_matches('\u{feff}').replace('\0', "")
}

/// What was read, when it has no more than so many bytes.
pub(crate) fn at_most(extracted: Extracted, most: usize) -> Extracted {
    extracted.and_then(|text| if text.len() > most { Err(larger_than(most)) } else { Ok(text) })
}

fn too_large() -> IndexingError {
    larger_than(MAX_TEXT)
}

fn larger_than(most: usize) -> IndexingError {
    let message = format!("The file has more text than {most} bytes; split it.");
    IndexingError { code: "TEXT_TOO_LARGE".to_owned(), message }
}

fn unreadable(reason: &str) -> IndexingError {
    let reason: String = reason.chars().take(300).collect();
    IndexingError { code: "EXTRACTION_FAILED".to_owned(), message: format!("The file cannot be read: {reason}.") }
}

/// Name of a document by that of its file.
pub(crate) fn name_of(file_name: &str) -> String {
    let last = file_name.rsplit(['/', '\\']).next().unwrap_or_default();
    let name = last.rsplit_once('.').map_or(last, |(name, _)| name).trim();
    let name: String = name.chars().filter(|c| !c.is_control()).take(200).collect();
    if name.is_empty() { "Document".to_owned() } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_as_what_its_content_is() {
        for (name, head, known) in [
            ("a.txt", &b"%PDF-1.7"[..], Some("pdf")),
            ("a.pdf", b"just words", None),
            ("a.md", b"# Title", Some("md")),
            ("README", b"words", Some("txt")),
            ("page", b"  <!DOCTYPE html><p>", Some("html")),
            ("a.xhtml", b"<?xml version=\"1.0\"?>\n<html><p>", Some("html")),
            ("page", b"<?xml version=\"1.0\"?>\n<html><p>", Some("html")),
            ("a.csv", b"a,b", None),
            ("a.png", b"\x89PNG\r\n\x1a\n", None),
            ("a.txt", b"\0\x01", None),
            ("a.txt", b"caf\xe9", Some("txt")),
            ("a.txt", b"\xff\xfea\0", Some("txt")),
            ("a.md", b"", Some("md")),
        ] {
            assert_eq!(type_of_text(name, head), known, "{name}");
        }
        assert_eq!(name_of("C:\\x\\Our report.v2.pdf"), "Our report.v2");
        assert_eq!(name_of(".pdf"), "Document");
    }
}
