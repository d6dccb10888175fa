//! What a file is: by its content, by what was declared, by its name.

/// So many bytes of the beginning say what a file is.
pub const HEAD_BYTES: usize = 8192;

const OCTETS: &str = "application/octet-stream";
const DOCX: &str = "application/vnd.openxmlformats-officedocument.wordprocessingml.document";
const PPTX: &str = "application/vnd.openxmlformats-officedocument.presentationml.presentation";
const XLSX: &str = "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet";

/// Media type of a file: what the content says, else what was declared, else what the name says. `head`: its first
/// bytes; `declared`: empty when nobody said anything.
pub fn media_type(name: &str, declared: &str, head: &[u8]) -> String {
    if let Some(office) = office_type(head) {
        return office.to_owned();
    }
    let is_text = is_text(head);
    if let Some(found) = infer::get(head).map(|found| found.mime_type())
        && !matches!(found, "text/html" | "text/xml" | "application/zip")
        // Few letters are enough for some, such as `BM` for a picture.
        && (!is_text || matches!(found, "application/pdf" | "text/rtf" | "application/rtf" | "application/postscript"))
    {
        // As they are registered (RFC 7845 §9, RFC 4337), which is what browsers play.
        return match found {
            "audio/opus" => "audio/ogg",
            "audio/m4a" => "audio/mp4",
            "audio/x-wav" => "audio/wav",
            "audio/x-flac" => "audio/flac",
            found => found,
        }
        .to_owned();
    }
    let declared = declared.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    // Whoever declares what its first bytes would show, and they do not, is wrong.
    let shows = |kind: &str| {
        ["image/png", "image/jpeg", "image/gif", "image/webp", "application/pdf"].contains(&kind)
            || (!is_text && kind.starts_with("text/"))
    };
    if !matches!(declared.as_str(), "" | OCTETS | "binary/octet-stream") && !shows(&declared) {
        return declared;
    }
    let by_name = media_type_of_name(name).filter(|kind| !shows(kind));
    match by_name {
        Some(kind) => kind,
        None if is_text => "text/plain",
        None => OCTETS,
    }
    .to_owned()
}

/// What a ZIP is whose first entry is of the packaging of Office, by the names of the next ones, in any order (ECMA-376, part 2).
fn office_type(head: &[u8]) -> Option<&'static str> {
    const BEGINS: &[u8] = b"PK\x03\x04";
    let begins = (0..head.len()).filter(|at| head[*at..].starts_with(BEGINS));
    let mut names = begins.filter_map(|at| head.get(at + 30..));
    let is_packaging = |name: &[u8]| {
        [&b"[Content_Types].xml"[..], b"_rels/", b"docProps/"].iter().any(|known| name.starts_with(known))
    };
    if !head.starts_with(BEGINS) || !head.get(30..).is_some_and(is_packaging) {
        return None;
    }
    names.find_map(|name| {
        let known: [(&[u8], &str); 3] = [(b"word/", DOCX), (b"ppt/", PPTX), (b"xl/", XLSX)];
        known.into_iter().find(|(folder, _)| name.starts_with(folder)).map(|(_, kind)| kind)
    })
}

/// The same by the extension alone.
fn media_type_of_name(name: &str) -> Option<&'static str> {
    let (_, extension) = name.rsplit_once('.')?;
    Some(match extension.to_ascii_lowercase().as_str() {
        "txt" | "log" | "yaml" | "yml" => "text/plain",
        "md" | "markdown" => "text/markdown",
        "csv" => "text/csv",
        "html" | "htm" => "text/html",
        "json" => "application/json",
        "xml" => "application/xml",
        "svg" => "image/svg+xml",
        "docx" => DOCX,
        "mp3" => "audio/mpeg",
        "wav" => "audio/wav",
        "mp4" => "video/mp4",
        _ => return None,
    })
}

/// Type of a file whose content and name are known: the content first.
pub fn type_of(name: &str, head: &[u8]) -> &'static str {
    let media_type = media_type(name, "", head);
    type_of_media(&media_type).or_else(|| type_of_name(name)).unwrap_or("other")
}

/// What type of file a name is of; `None` when its extension says nothing.
pub fn type_of_name(name: &str) -> Option<&'static str> {
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
pub fn type_of_address(url: &str) -> Option<&'static str> {
    let path = url.split(['?', '#']).next().unwrap_or_default();
    type_of_name(path.rsplit('/').next().unwrap_or_default())
}

/// What type of file a media type is of; `None` when it is one that servers give to anything.
pub fn type_of_media(media_type: &str) -> Option<&'static str> {
    let (kind, subtype) = media_type.split_once('/')?;
    let is_document = |part: &&str| subtype.contains(*part);
    match kind {
        "image" => Some("image"),
        "audio" => Some("audio"),
        "video" => Some("video"),
        "text" => Some("document"),
        "application" if subtype == "ogg" => Some("audio"),
        "application" => {
            let documents = [
                "pdf",
                "json",
                "xml",
                "yaml",
                "rtf",
                "csv",
                "msword",
                "officedocument",
                "opendocument",
                "ms-excel",
                "ms-word",
                "ms-powerpoint",
                "ms-xps",
            ];
            documents.iter().any(is_document).then_some("document")
        }
        _ => None,
    }
}

/// Whether the beginning of a file reads as text.
fn is_text(head: &[u8]) -> bool {
    let head = &head[..head.len().min(HEAD_BYTES)];
    let text = match std::str::from_utf8(head) {
        Ok(text) => text,
        // Its last character may be cut.
        Err(error) if error.error_len().is_none() => {
            std::str::from_utf8(&head[..error.valid_up_to()]).unwrap_or_default()
        }
        Err(_) => return false,
    };
    let is_control =
        |c: char| c.is_control() && !matches!(c, '\t' | '\n' | '\r' | '\x0c' | '\x1b' | '\u{80}'..='\u{9f}');
    !text.is_empty() && !text.contains(is_control)
}

/// What a browser is told that it is: only what it may be told.
pub(crate) fn shown_type(media_type: &str) -> String {
    let kind = media_type.split('/').next().unwrap_or_default();
    let is_known = shows_inline(media_type)
        || type_of_media(media_type) == Some("document")
            && !["html", "xml", "script"].iter().any(|active| media_type.contains(active))
        || media_type.contains("officedocument");
    match kind {
        _ if !is_known => OCTETS.to_owned(),
        "text" => format!("{media_type}; charset=utf-8"),
        _ => media_type.to_owned(),
    }
}

/// A raster image, audio, video or PDF: nothing in it runs.
pub(crate) fn shows_inline(media_type: &str) -> bool {
    const IMAGES: [&str; 7] =
        ["image/png", "image/jpeg", "image/gif", "image/webp", "image/avif", "image/bmp", "image/tiff"];
    let is_plain = media_type.bytes().all(|b| b.is_ascii_alphanumeric() || b"/.+-".contains(&b));
    let kind = media_type.split('/').next().unwrap_or_default();
    is_plain && (IMAGES.contains(&media_type) || media_type == "application/pdf" || matches!(kind, "audio" | "video"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_says_more_than_a_header_and_a_header_more_than_a_name() {
        for (name, declared, head, expected) in [
            ("a.txt", "text/plain", &b"\x89PNG\r\n\x1a\n"[..], "image/png"),
            ("a.png", "image/png", b"<html>", "text/plain"),
            ("a.md", "application/octet-stream", b"# a", "text/markdown"),
            ("a", "", b"just words", "text/plain"),
            ("a.bin", "application/zip", b"\0\x01", "application/zip"),
            ("a.txt", "text/plain", b"\0\x01\x02", OCTETS),
            ("a.pdf", "", b"no pdf", "text/plain"),
            ("a.md", "", b"SQLite is a library.", "text/markdown"),
            ("a.txt", "", b"BMW builds cars.", "text/plain"),
            ("a", "", b"%PDF-1.7\n", "application/pdf"),
            ("a.html", "", b"<p>", "text/html"),
            ("a", "", b"", OCTETS),
            ("a.csv", "", "\u{e4},\u{f6}".as_bytes(), "text/csv"),
        ] {
            assert_eq!(media_type(name, declared, head), expected, "{name} {declared}");
        }
        assert_eq!(type_of("a.exe", b"MZ\0\0"), "other");
        assert_eq!(type_of("photo", b"\xff\xd8\xff\xe0"), "image");
        let docx = b"PK\x03\x04\x14\0\x06\0\x08\0\0\0!\0xxxxxxxxxxxx\x13\0\0\0[Content_Types].xml";
        assert_eq!(type_of("report.docx", docx), "document");
        let entry = |name: &str| [b"PK\x03\x04", &[0; 26][..], name.as_bytes(), b"bytes"].concat();
        for (last, expected) in [("word/document.xml", DOCX), ("ppt/presentation.xml", PPTX), ("xl/styles.xml", XLSX)] {
            let first = ["[Content_Types].xml", "_rels/.rels", "docProps/core.xml", "docProps/app.xml"];
            let head: Vec<u8> = first.into_iter().chain([last]).flat_map(entry).collect();
            assert_eq!(media_type("Report", "", &head), expected);
        }
        let folders: Vec<u8> = ["notes/a.txt", "word/b.txt"].into_iter().flat_map(entry).collect();
        assert_eq!(media_type("a", "", &folders), OCTETS);
    }

    #[test]
    fn a_file_is_what_its_name_its_address_or_its_media_type_says() {
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
            ("application/zip", b"PK\x03\x04\x14\0a.bin", None),
            ("", "na\u{ef}ve words".as_bytes(), Some("document")),
            ("", b"\xff\xfe\0\x01", None),
        ] {
            let of_content = || type_of_media(&super::media_type("", "", bytes));
            assert_eq!(type_of_media(media_type).or_else(of_content), known, "{media_type} {bytes:?}");
        }
    }

    #[test]
    fn a_browser_is_shown_nothing_that_runs() {
        for (stored, shown, inline) in [
            ("image/png", "image/png", true),
            ("application/pdf", "application/pdf", true),
            ("text/plain", "text/plain; charset=utf-8", false),
            ("application/json", "application/json", false),
            ("text/html", OCTETS, false),
            ("image/svg+xml", OCTETS, false),
            ("application/xhtml+xml", OCTETS, false),
            ("text/javascript", OCTETS, false),
            ("application/x-thing", OCTETS, false),
            ("audio/x\r\nevil: 1", OCTETS, false),
        ] {
            assert_eq!((shown_type(stored).as_str(), shows_inline(stored)), (shown, inline), "{stored}");
        }
    }
}
