//! Files of messages: fetched when the message is accepted, given to models that take them.

use std::{collections::HashMap, sync::Arc, time::Duration};

use bytes::Bytes;
use diesel::prelude::*;
use diesel_async::RunQueryDsl;
use platform_core::{AccountId, Error, FairSemaphore, Result, Timestamp};
use platform_db::Conn;
use platform_egress::Egress;
use platform_guardrails::{Moment, Screen};

use crate::{message::File, schema::message_files, turn::TurnRequest};

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
    /// looked at. `VALIDATION_ERROR` or `URL_NOT_ALLOWED` when one cannot be read.
    pub async fn fetch(&self, account: &AccountId, files: &[File]) -> Result<Vec<StoredFile>> {
        let fetched = async {
            let _place = self.places.acquire(account).await;
            fetch_files(&self.egress.of(account), files).await
        };
        let slow = |_| Error::invalid("files", "format", "files: they took longer than 30 s to fetch");
        tokio::time::timeout(FETCH_TIMEOUT, fetched).await.map_err(slow)?
    }
}

async fn fetch_files(egress: &Egress, files: &[File]) -> Result<Vec<StoredFile>> {
    let fetches = files.iter().enumerate().map(async |(i, file)| {
        let path = format!("files[{i}].downloadUrl");
        let fetched = egress.get(&file.download_url).await.map_err(|error| error.into_error(&path))?;
        if !(200..300).contains(&fetched.status) || fetched.bytes.is_empty() {
            let message = format!("{path}: the address answers {} with {} bytes", fetched.status, fetched.bytes.len());
            return Err(Error::invalid(&path, "format", message));
        }
        let kept = matches!(file.file_type.as_str(), "image" | "document");
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
        _ => "application/octet-stream",
    }
    .to_owned()
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
    fn content_says_more_than_a_header_and_a_header_more_than_a_name() {
        assert_eq!(media_type("a.txt", "text/plain", b"\x89PNG\r\n\x1a\n"), "image/png");
        assert_eq!(media_type("a.png", "image/png", b"<html>"), "application/octet-stream");
        assert_eq!(media_type("a.md", "application/octet-stream", b"# a"), "text/plain");
        assert_eq!(media_type("a", "text/csv", b"a,b"), "text/csv");
        assert_eq!(media_type("a.wav", "", b"RIFF____WAVE"), "application/octet-stream");
    }
}
