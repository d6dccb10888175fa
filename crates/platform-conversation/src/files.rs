//! Files of messages: fetched when the message is accepted, given to models that take them.

use std::{collections::HashMap, sync::Arc, time::Duration};

use bytes::Bytes;
use diesel::prelude::*;
use diesel_async::RunQueryDsl;
use platform_core::{AccountId, Error, FairSemaphore, Result, Timestamp};
use platform_db::Conn;
use platform_egress::Egress;
use platform_guardrails::{Moment, Screen};

use crate::{
    message::{ChatMessage, File},
    repository::json,
    schema::{message_files, messages},
    turn::TurnRequest,
};

/// For all files of a message together (contract 02 §3).
const FETCH_TIMEOUT: Duration = Duration::from_secs(30);

/// Messages whose files are fetched at once.
const MESSAGES_AT_ONCE: usize = 8;

/// Kept files of one message together.
const MOST_BYTES: usize = 20 << 20;

/// A file as it was when its message was accepted.
#[derive(Debug)]
pub struct StoredFile {
    position: i32,
    media_type: String,
    bytes: Bytes,
}

/// Fetches files of messages: of a few at once, fairly over accounts, since all of a message are in memory.
#[derive(Clone)]
pub struct FileFetcher {
    egress: Egress,
    places: FairSemaphore,
}

impl FileFetcher {
    /// One for all chats and threads of a process.
    pub fn new(egress: Egress) -> Self {
        Self { egress, places: FairSemaphore::new(MESSAGES_AT_ONCE, MESSAGES_AT_ONCE) }
    }

    /// The way out.
    pub fn egress(&self) -> &Egress {
        &self.egress
    }

    /// Fetches the files of a message within 30 s, waiting for its turn included; those that no model reads are only
    /// looked at. What kind of file each is, is known then (contract 00 §12). `VALIDATION_ERROR` or `URL_NOT_ALLOWED` when one cannot be read.
    pub async fn fetch(&self, account: &AccountId, files: &mut [File]) -> Result<Vec<StoredFile>> {
        let fetched = async {
            let _place = self.places.acquire(account).await;
            fetch_files(&self.egress.of(account), files).await
        };
        let slow = |_| Error::invalid("files", "format", "files: they took longer than 30 s to fetch");
        tokio::time::timeout(FETCH_TIMEOUT, fetched).await.map_err(slow)?
    }
}

async fn fetch_files(egress: &Egress, files: &mut [File]) -> Result<Vec<StoredFile>> {
    let fetches = files.iter_mut().enumerate().map(async |(i, file)| {
        let path = format!("files[{i}].downloadUrl");
        let fetched = egress.get(&file.download_url).await.map_err(|error| error.into_error(&path))?;
        if !(200..300).contains(&fetched.status) || fetched.bytes.is_empty() {
            let message = format!("{path}: the address answers {} with {} bytes", fetched.status, fetched.bytes.len());
            return Err(Error::invalid(&path, "format", message));
        }
        let kind = file.file_type.get_or_insert_with(|| {
            let told = type_of_media(&fetched.media_type).or_else(|| type_of_content(&fetched.bytes));
            told.unwrap_or("other").to_owned()
        });
        let kept = matches!(kind.as_str(), "image" | "document");
        Ok(kept.then(|| StoredFile {
            position: i32::try_from(i).unwrap_or(i32::MAX),
            media_type: media_type(&file.name, &fetched.media_type, &fetched.bytes),
            bytes: fetched.bytes,
        }))
    });
    let kept: Vec<StoredFile> = futures_util::future::try_join_all(fetches).await?.into_iter().flatten().collect();
    let size: usize = kept.iter().map(|file| file.bytes.len()).sum();
    if size > MOST_BYTES {
        return Err(Error::invalid(
            "files",
            "length",
            format!("files take {size} bytes together, at most {MOST_BYTES}"),
        ));
    }
    Ok(kept)
}

/// Has the input rules see what text documents say, as if the user had written it.
pub async fn screen_files(
    screen: &Arc<Screen>,
    files: &mut [StoredFile],
    message_uid: &str,
    now: Timestamp,
    request: &mut TurnRequest,
) -> Result<()> {
    for file in files {
        let Some(text) = text(&file.media_type, &file.bytes) else { continue };
        let moment = Moment { message_uid: message_uid.to_owned(), now };
        let screening = screen.arriving(text.to_owned(), moment).await?;
        request.findings.extend(screening.findings);
        request.blocked |= screening.blocked;
        file.bytes = screening.text.into();
    }
    Ok(())
}

/// What a text document says.
pub(crate) fn text<'a>(media_type: &str, bytes: &'a [u8]) -> Option<&'a str> {
    let is_text = media_type.starts_with("text/")
        || matches!(media_type, "application/json" | "application/xml" | "application/yaml");
    std::str::from_utf8(bytes).ok().filter(|_| is_text)
}

/// What the content says, else what was declared, else what the name says.
fn media_type(name: &str, declared: &str, bytes: &[u8]) -> String {
    const MAGIC: [(&[u8], &str); 6] = [
        (b"\x89PNG\r\n", "image/png"),
        (b"\xff\xd8\xff", "image/jpeg"),
        (b"GIF87a", "image/gif"),
        (b"GIF89a", "image/gif"),
        (b"%PDF-", "application/pdf"),
        (b"RIFF", "image/webp"),
    ];
    let magic = MAGIC
        .iter()
        .find(|(magic, kind)| bytes.starts_with(magic) && (*kind != "image/webp" || bytes.get(8..12) == Some(b"WEBP")));
    if let Some((_, kind)) = magic {
        return (*kind).to_owned();
    }
    let told = ["application/octet-stream", "binary/octet-stream", "image/png", "image/jpeg", "application/pdf"];
    if !declared.is_empty() && !told.contains(&declared) {
        return declared.to_owned();
    }
    let extension = name.rsplit_once('.').map(|(_, extension)| extension.to_ascii_lowercase()).unwrap_or_default();
    match extension.as_str() {
        "txt" | "md" | "csv" | "yaml" | "yml" | "log" => "text/plain",
        "html" => "text/html",
        "json" => "application/json",
        "xml" => "application/xml",
        // A display name says nothing.
        _ if type_of_name(name).is_none() && is_text(bytes) => "text/plain",
        _ => "application/octet-stream",
    }
    .to_owned()
}

/// What kind of file a name is of; `None` when its extension says nothing.
pub(crate) fn type_of_name(name: &str) -> Option<&'static str> {
    let (_, extension) = name.rsplit_once('.')?;
    Some(match extension.to_ascii_lowercase().as_str() {
        "png" | "jpg" | "jpeg" | "gif" | "webp" | "svg" | "bmp" | "tif" | "tiff" | "heic" | "avif" => "image",
        "pdf" | "txt" | "md" | "doc" | "docx" | "odt" | "rtf" | "csv" | "xls" | "xlsx" | "ppt" | "pptx" | "html"
        | "htm" | "json" | "xml" | "yaml" | "yml" => "document",
        "mp3" | "wav" | "ogg" | "oga" | "m4a" | "aac" | "flac" | "opus" => "audio",
        "mp4" | "mov" | "webm" | "mkv" | "avi" | "m4v" => "video",
        _ => return None,
    })
}

/// The same of an address, whose query says nothing of the file.
pub(crate) fn type_of_address(url: &str) -> Option<&'static str> {
    let path = url.split(['?', '#']).next().unwrap_or_default();
    type_of_name(path.rsplit('/').next().unwrap_or_default())
}

/// What kind of file a media type is of; `None` when it is one that servers give to anything.
fn type_of_media(media_type: &str) -> Option<&'static str> {
    let (kind, subtype) = media_type.split_once('/')?;
    let is_document = |part: &&str| subtype.contains(*part);
    match kind {
        "image" => Some("image"),
        "audio" => Some("audio"),
        "video" => Some("video"),
        "text" => Some("document"),
        "application" if subtype == "ogg" => Some("audio"),
        "application" => {
            let documents =
                ["pdf", "json", "xml", "yaml", "rtf", "csv", "msword", "officedocument", "opendocument", "ms-"];
            documents.iter().any(is_document).then_some("document")
        }
        _ => None,
    }
}

/// What kind of file these bytes are.
fn type_of_content(bytes: &[u8]) -> Option<&'static str> {
    const MAGIC: [(usize, &[u8], &str); 19] = [
        (0, b"\x89PNG\r\n", "image"),
        (0, b"\xff\xd8\xff", "image"),
        (0, b"GIF8", "image"),
        (8, b"WEBP", "image"),
        (0, b"BM", "image"),
        (0, b"II*\0", "image"),
        (0, b"MM\0*", "image"),
        (8, b"avif", "image"),
        (8, b"heic", "image"),
        (0, b"%PDF-", "document"),
        (0, b"{\\rtf", "document"),
        (0, b"\xd0\xcf\x11\xe0", "document"),
        (0, b"ID3", "audio"),
        (0, b"OggS", "audio"),
        (0, b"fLaC", "audio"),
        (8, b"WAVE", "audio"),
        (4, b"ftypM4A", "audio"),
        (4, b"ftyp", "video"),
        (0, b"\x1a\x45\xdf\xa3", "video"),
    ];
    let is = |(at, magic, _): &&(usize, &[u8], &str)| bytes.get(*at..).is_some_and(|rest| rest.starts_with(magic));
    if let Some((_, _, kind)) = MAGIC.iter().find(is) {
        return Some(kind);
    }
    // Office documents are archives whose first entries are named so.
    let beginning = &bytes[..bytes.len().min(4096)];
    let holds = |part: &[u8]| beginning.windows(part.len()).any(|window| window == part);
    let is_office = bytes.starts_with(b"PK") && (holds(b"[Content_Types].xml") || holds(b"opendocument"));
    (is_office || is_text(bytes)).then_some("document")
}

fn is_text(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_ok_and(|text| !text.is_empty() && !text.contains('\0'))
}

/// Stores what kind of files a stored message has, once it is known.
pub async fn note_file_types(
    conn: &mut Conn,
    account: &AccountId,
    conversation: &str,
    message: &str,
    files: &[File],
) -> Result<()> {
    let of = messages::table
        .filter(messages::account_id.eq(account.as_str()))
        .filter(messages::conversation.eq(conversation).and(messages::uid.eq(message)));
    let Some(body) = of.select(messages::body).first::<String>(conn).await.optional()? else { return Ok(()) };
    let mut body: ChatMessage = serde_json::from_str(&body).map_err(Error::internal)?;
    body.content.files = files.to_vec();
    let body = serde_json::to_string(&body).map_err(Error::internal)?;
    diesel::update(of).set(messages::body.eq(json(&body))).execute(conn).await?;
    Ok(())
}

/// Keeps the files of a message.
pub async fn store_files(
    conn: &mut Conn,
    account: &AccountId,
    conversation: &str,
    message: &str,
    files: &[StoredFile],
) -> Result<()> {
    for file in files {
        diesel::insert_into(message_files::table)
            .values((
                message_files::account_id.eq(account.as_str()),
                message_files::conversation.eq(conversation),
                message_files::message_uid.eq(message),
                message_files::position.eq(file.position),
                message_files::media_type.eq(&file.media_type),
                message_files::bytes.eq(file.bytes.as_ref()),
            ))
            .execute(conn)
            .await?;
    }
    Ok(())
}

/// Gives the files of a buffered message to the one it was joined to, after those that has already.
pub async fn hand_over_files(
    conn: &mut Conn,
    account: &AccountId,
    conversation: &str,
    from: &str,
    to: &str,
    after: usize,
) -> Result<()> {
    let of = message_files::table
        .filter(message_files::account_id.eq(account.as_str()))
        .filter(message_files::conversation.eq(conversation).and(message_files::message_uid.eq(from)));
    let after = i32::try_from(after).unwrap_or(i32::MAX);
    diesel::update(of)
        .set((message_files::message_uid.eq(to), message_files::position.eq(message_files::position + after)))
        .execute(conn)
        .await?;
    Ok(())
}

/// Takes away the files of messages that were discarded.
pub async fn discard_files(conn: &mut Conn, account: &AccountId, conversation: &str, uids: &[String]) -> Result<()> {
    let of = message_files::table
        .filter(message_files::account_id.eq(account.as_str()))
        .filter(message_files::conversation.eq(conversation).and(message_files::message_uid.eq_any(uids)));
    diesel::delete(of).execute(conn).await?;
    Ok(())
}

/// Media type and content by message and position.
pub(crate) type Contents = HashMap<(String, i32), (String, Bytes)>;

/// The kept files of some messages, newest first, up to about `most` bytes.
pub(crate) async fn load(
    conn: &Conn,
    account: &AccountId,
    conversation: &str,
    uids: &[String],
    most: usize,
) -> Result<Contents> {
    let mut contents = Contents::new();
    let mut size = 0;
    for uid in uids {
        let mut conn = conn;
        let rows: Vec<(i32, String, Vec<u8>)> = message_files::table
            .filter(message_files::account_id.eq(account.as_str()))
            .filter(message_files::conversation.eq(conversation).and(message_files::message_uid.eq(uid)))
            .order(message_files::position)
            .select((message_files::position, message_files::media_type, message_files::bytes))
            .load(&mut conn)
            .await?;
        for (position, media_type, bytes) in rows {
            size += bytes.len();
            if size > most {
                return Ok(contents);
            }
            contents.insert((uid.clone(), position), (media_type, bytes.into()));
        }
    }
    Ok(contents)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_what_its_name_its_address_its_media_type_or_its_content_says_in_this_order() {
        for (name, url, known) in [
            ("Report.PDF", "https://a.example/x.mp3", Some("document")),
            ("Our report", "https://a.example/dir.png/x.mp3?f=a.pdf#b.txt", Some("audio")),
            ("v1.2 of it", "https://a.example/photo.JPG", Some("image")),
            ("Our report", "https://a.example/download?id=1.pdf", None),
            ("a", "https://a.example", None),
        ] {
            assert_eq!(type_of_name(name).or_else(|| type_of_address(url)), known, "{name} {url}");
        }
        for (media_type, bytes, known) in [
            ("video/mp4", &b"%PDF-1.7"[..], Some("video")),
            ("application/vnd.openxmlformats-officedocument.wordprocessingml.document", b"", Some("document")),
            ("application/octet-stream", b"%PDF-1.7", Some("document")),
            ("", b"RIFF\0\0\0\0WEBPVP8 ", Some("image")),
            ("", b"RIFF\0\0\0\0WAVEfmt ", Some("audio")),
            ("", b"\0\0\0\x18ftypmp42", Some("video")),
            ("binary/octet-stream", b"PK\x03\x04\x14\0\x06\0\x08\0[Content_Types].xml", Some("document")),
            ("application/zip", b"PK\x03\x04\x14\0a.bin", None),
            ("", "na\u{ef}ve words".as_bytes(), Some("document")),
            ("", b"\xff\xfe\0\x01", None),
        ] {
            assert_eq!(type_of_media(media_type).or_else(|| type_of_content(bytes)), known, "{media_type}");
        }
    }

    #[test]
    fn content_says_more_than_a_header_and_a_header_more_than_a_name() {
        assert_eq!(media_type("a.txt", "text/plain", b"\x89PNG\r\n\x1a\n"), "image/png");
        assert_eq!(media_type("a.png", "image/png", b"<html>"), "application/octet-stream");
        assert_eq!(media_type("a.md", "application/octet-stream", b"# a"), "text/plain");
        assert_eq!(media_type("a", "text/csv", b"a,b"), "text/csv");
        assert_eq!(media_type("v1.2 of it", "", b"a,b"), "text/plain");
        assert_eq!(media_type("a.wav", "", b"RIFF____WAVE"), "application/octet-stream");
    }
}
