//! `/v1/documents/upload`: files that become documents, and what cannot be read.

use std::{
    fmt::Write as _,
    io::{Cursor, Write as _},
};

use platform_testing::{Reply, TestApp, TestDb};
use reqwest::{
    Method, StatusCode,
    multipart::{Form, Part},
};
use serde_json::json;
use zip::{ZipWriter, write::SimpleFileOptions};

use crate::{
    documents::indexed,
    support::{PROGRAM, app, eventually, text},
};

/// Uploads a document; the answer.
pub async fn upload(app: &TestApp, name: &str, bytes: impl Into<Vec<u8>>, fields: &[(&'static str, &str)]) -> Reply {
    let form = Form::new().part("file", Part::bytes(bytes.into()).file_name(name.to_owned()));
    let form = fields.iter().fold(form, |form, (name, value)| form.text(*name, (*value).to_owned()));
    app.send(app.request(Method::POST, "/documents/upload").multipart(form)).await
}

/// A Word file with a heading and a paragraph.
fn docx() -> Vec<u8> {
    docx_of(
        r#"<w:p><w:pPr><w:pStyle w:val="Heading1"/></w:pPr><w:r><w:t>Terms</w:t></w:r></w:p>
        <w:p><w:r><w:t xml:space="preserve">Pay within </w:t></w:r><w:r><w:rPr><w:b/></w:rPr><w:t>ten</w:t></w:r>
        <w:r><w:t xml:space="preserve"> days.</w:t></w:r></w:p>"#,
    )
}

/// A Word file with lists by numbering and by style, and with a table.
fn packing_list() -> Vec<u8> {
    let says = |text: &str| format!("<w:r><w:t>{text}</w:t></w:r>");
    let numbered = |level: u8, text: &str| {
        let list = format!(r#"<w:numPr><w:ilvl w:val="{level}"/><w:numId w:val="1"/></w:numPr>"#);
        format!("<w:p><w:pPr>{list}</w:pPr>{}</w:p>", says(text))
    };
    let styled =
        |style: &str, text: &str| format!(r#"<w:p><w:pPr><w:pStyle w:val="{style}"/></w:pPr>{}</w:p>"#, says(text));
    let cell = |text: &str| format!("<w:tc><w:p>{}</w:p></w:tc>", says(text));
    let row = |a: &str, b: &str| format!("<w:tr>{}{}</w:tr>", cell(a), cell(b));
    let body = [
        numbered(0, "Coat"),
        numbered(1, "Scarf"),
        format!("<w:p>{}</w:p>", says("Then:")),
        styled("ListNumber", "Lock the door"),
        styled("ListNumber", "Leave"),
        styled("ListBullet2", "Quietly"),
        format!("<w:tbl>{}{}</w:tbl>", row("Thing", "Price"), row("Coat", "80")),
    ];
    let level = |level: u8, kind: &str| {
        format!(r#"<w:lvl w:ilvl="{level}"><w:numFmt w:val="{kind}"/><w:lvlText w:val="x"/></w:lvl>"#)
    };
    let numbering = format!(
        r#"<?xml version="1.0"?><w:numbering xmlns:w="{WORD}"><w:abstractNum w:abstractNumId="0">{}{}</w:abstractNum>
        <w:num w:numId="1"><w:abstractNumId w:val="0"/></w:num></w:numbering>"#,
        level(0, "bullet"),
        level(1, "decimal")
    );
    docx_with(&document_of(&body.concat()), &[("word/numbering.xml", numbering.as_bytes())])
}

/// What it says.
const PACKED: &str = "- Coat\n  1. Scarf\n\nThen:\n\n1. Lock the door\n2. Leave\n  - Quietly\n\n\
    | Thing | Price |\n| --- | --- |\n| Coat | 80 |";
const WORD: &str = "http://schemas.openxmlformats.org/wordprocessingml/2006/main";

/// A Word file with that in its body.
pub fn docx_of(body: &str) -> Vec<u8> {
    docx_with(&document_of(body), &[])
}

/// The document of a Word file.
fn document_of(body: &str) -> String {
    format!(r#"<?xml version="1.0"?><w:document xmlns:w="{WORD}"><w:body>{body}</w:body></w:document>"#)
}

/// A Word file with that as its document, and with more parts.
pub fn docx_with(document: &str, more: &[(&str, &[u8])]) -> Vec<u8> {
    const KINDS: &str = r#"<?xml version="1.0"?><Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types">
        <Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml"/>
        <Override PartName="/word/document.xml"
            ContentType="application/vnd.openxmlformats-officedocument.wordprocessingml.document.main+xml"/></Types>"#;
    const PARTS: &str = r#"<?xml version="1.0"?>
        <Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships"><Relationship Id="r1"
            Type="http://schemas.openxmlformats.org/officeDocument/2006/relationships/officeDocument"
            Target="word/document.xml"/></Relationships>"#;
    const STYLES: &str = r#"<?xml version="1.0"?>
        <w:styles xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main">
        <w:style w:type="paragraph" w:styleId="Heading1"><w:name w:val="heading 1"/>
        <w:pPr><w:outlineLvl w:val="0"/></w:pPr></w:style></w:styles>"#;
    let parts = [
        ("[Content_Types].xml", KINDS),
        ("_rels/.rels", PARTS),
        ("word/styles.xml", STYLES),
        ("word/document.xml", document),
    ];
    zip(parts.iter().map(|(path, content)| (*path, content.as_bytes())).chain(more.iter().copied()))
}

/// An archive of files.
pub fn zip<'a>(files: impl IntoIterator<Item = (&'a str, &'a [u8])>) -> Vec<u8> {
    let mut file = ZipWriter::new(Cursor::new(Vec::new()));
    for (path, content) in files {
        file.start_file(path, SimpleFileOptions::default()).expect("a file");
        file.write_all(content).expect("written");
    }
    file.finish().expect("an archive").into_inner()
}

/// A PDF of one page that says something.
pub fn pdf(says: &str) -> Vec<u8> {
    let drawn = format!("BT /F1 24 Tf 72 720 Td ({says}) Tj ET");
    pdf_of(1, &drawn, "<< /F1 5 0 R >>", "/Subtype /Type1 /BaseFont /Helvetica")
}

/// The same of so many equal pages: of what is drawn, with which fonts and forms, and what the font is.
pub fn pdf_of(pages: usize, drawn: &str, resources: &str, font: &str) -> Vec<u8> {
    pdf_with(&[
        "<< /Type /Catalog /Pages 2 0 R >>".to_owned(),
        format!("<< /Type /Pages /Kids [{}] /Count {pages} >>", "3 0 R ".repeat(pages)),
        format!(
            "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 4 0 R \
             /Resources << /Font {resources} /XObject << /X 6 0 R >> >> >>"
        ),
        format!("<< /Length {} >>\nstream\n{drawn}\nendstream", drawn.len()),
        format!("<< /Type /Font {font} /Encoding /WinAnsiEncoding >>"),
        "<< /Type /XObject /Subtype /Form /BBox [0 0 9 9] /Resources << /XObject << /X 6 0 R >> >> /Length 5 >>\n\
         stream\n/X Do\nendstream"
            .to_owned(),
    ])
}

/// A PDF of these objects, the first of them its root.
pub fn pdf_with(objects: &[String]) -> Vec<u8> {
    let (mut file, mut places) = ("%PDF-1.4\n".to_owned(), Vec::new());
    for (n, object) in objects.iter().enumerate() {
        places.push(file.len());
        write!(file, "{} 0 obj\n{object}\nendobj\n", n + 1).expect("text");
    }
    let start = file.len();
    write!(file, "xref\n0 {}\n0000000000 65535 f \n", objects.len() + 1).expect("text");
    for place in places {
        writeln!(file, "{place:010} 00000 n ").expect("text");
    }
    let count = objects.len() + 1;
    write!(file, "trailer\n<< /Size {count} /Root 1 0 R >>\nstartxref\n{start}\n%%EOF\n").expect("text");
    file.into_bytes()
}

#[tokio::test]
async fn a_text_that_somebody_emptied_is_not_read_from_its_file_again() {
    let app = app().await;
    let made = upload(&app, "plan.md", b"The secret plan".to_vec(), &[]).await;
    let path = format!("/documents/{}", text(&made.body["_id"]));
    let summary = async || {
        let summary = indexed(&app, &text(&made.body["_id"])).await["summary"].clone();
        (summary != "").then_some(())
    };
    eventually("its summary", summary).await;
    assert_eq!(app.patch(&path, json!({"markdownContent": ""})).await.body["currentVersion"], 2);
    let is_empty = async |version: i64| {
        let document = indexed(&app, &text(&made.body["_id"])).await;
        let seen = (&document["status"], &document["markdownContent"], &document["currentVersion"]);
        assert_eq!(seen, (&json!("ready"), &json!(""), &json!(version)), "{document}");
        assert_eq!(document["summary"], "", "{document}");
    };
    is_empty(2).await;
    assert_eq!(app.post(&format!("{path}/reindex"), json!({})).await.status, StatusCode::ACCEPTED);
    is_empty(2).await;
    // Where the text comes back, so does a summary.
    assert_eq!(app.post(&format!("{path}/revert/1"), json!({})).await.status, StatusCode::OK);
    eventually("its summary", summary).await;
    let empty = upload(&app, "empty.md", Vec::new(), &[]).await;
    let path = format!("/documents/{}", text(&empty.body["_id"]));
    assert_eq!(app.post(&format!("{path}/reindex"), json!({})).await.body["currentVersion"], 1);
}

#[tokio::test]
async fn files_become_documents_and_what_cannot_be_read_says_why() {
    let app = app().await;
    for (name, bytes, file_type, says) in [
        ("Notes.MD", b"# Notes\n\nbuy milk".to_vec(), "md", "buy milk"),
        ("plain.txt", b"\xef\xbb\xbfjust words".to_vec(), "txt", "just words"),
        (
            "page.html",
            b"<h1>Title</h1><script>evil()</script><p>Some <b>bold</b> words</p>".to_vec(),
            "html",
            "# Title",
        ),
        (
            "script.html",
            format!("<!-- {0} --><script>{0}</script><p>Only<br/> this</p>", "if (i<n) a<b;".repeat(3000)).into_bytes(),
            "html",
            "this",
        ),
        ("Report.pdf", pdf("Quarterly figures rose"), "pdf", "Quarterly figures rose"),
        (
            "two.pdf",
            pdf_of(
                2,
                "BT /F1 24 Tf 72 720 Td (an exam-) Tj 0 -30 Td (ple of it) Tj ET",
                "<< /F1 5 0 R >>",
                "/Subtype /Type1 /BaseFont /Helvetica",
            ),
            "pdf",
            "# Page 2\n\nan example of it",
        ),
        (
            "headed.pdf",
            pdf_of(
                2,
                "BT /F1 20 Tf 72 720 Td (Lost keys) Tj /F1 10 Tf 0 -30 Td (Whoever loses a key reports it.) Tj \
                0 -12 Td (\\225 to the desk) Tj ET",
                "<< /F1 5 0 R >>",
                "/Subtype /Type1 /BaseFont /Helvetica",
            ),
            "pdf",
            "# Page 2\n\n## Lost keys\n\nWhoever loses a key reports it.\n- to the desk",
        ),
        ("Letter.docx", docx(), "docx", "# Terms\n\nPay within **ten** days."),
        ("Packing.docx", packing_list(), "docx", PACKED),
    ] {
        let made = upload(&app, name, bytes, &[("tags", "a, b")]).await;
        assert_eq!(made.status, StatusCode::CREATED, "{name}: {}", made.body);
        assert_eq!((&made.body["fileType"], &made.body["fileName"]), (&json!(file_type), &json!(name)));
        let content = made.body["markdownContent"].as_str().expect("text");
        assert!(content.contains(says) && !content.contains("evil"), "{name}: {content}");
        assert_eq!(made.body["tags"], json!(["a", "b"]));
        let id = text(&made.body["_id"]);
        assert_eq!(indexed(&app, &id).await["status"], "ready");
        // The file as it came is kept as long as the document.
        let source = made.body["sourceFileId"].as_str().expect("a file").to_owned();
        assert_eq!(app.get(&format!("/files/{source}")).await.status, StatusCode::OK);
        assert_eq!(app.delete(&format!("/files/{source}")).await.error(), "CONFLICT");
        assert_eq!(app.delete(&format!("/documents/{id}")).await.status, StatusCode::OK);
        assert_eq!(app.get(&format!("/files/{source}")).await.error(), "FILE_NOT_FOUND");
    }
    for (name, bytes) in
        [("a.png", &b"\x89PNG\r\n\x1a\n"[..]), ("a.csv", b"a,b"), ("a.bin", b"\0\x01\x02"), ("a.zip", b"PK\x03\x04")]
    {
        let refused = upload(&app, name, bytes, &[]).await;
        assert_eq!(
            (refused.status, refused.error()),
            (StatusCode::UNSUPPORTED_MEDIA_TYPE, "UNSUPPORTED_MEDIA_TYPE"),
            "{name}"
        );
    }
    assert_eq!(app.get("/files").await.body["total"], 0);
    for (name, bytes, code) in [
        ("broken.pdf", b"%PDF-1.7\nnothing of a PDF".to_vec(), "EXTRACTION_FAILED"),
        ("broken.docx", b"PK\x03\x04 not an archive".to_vec(), "EXTRACTION_FAILED"),
        ("empty.pdf", Vec::new(), "EXTRACTION_FAILED"),
        ("none.pdf", b"\0\x01\x02garbage".to_vec(), "EXTRACTION_FAILED"),
        ("words.pdf", b"this is no pdf".to_vec(), "EXTRACTION_FAILED"),
        ("words.docx", b"this is no docx".to_vec(), "EXTRACTION_FAILED"),
        ("deep.html", "<div>".repeat(50_000).into_bytes(), "EXTRACTION_FAILED"),
        ("closed.html", "<div/></x>".repeat(50_000).into_bytes(), "EXTRACTION_FAILED"),
        ("long.txt", vec![b'x'; (5 << 20) + 1], "TEXT_TOO_LARGE"),
        ("latin.txt", [b"x".repeat(9000), b"\xe4".to_vec()].concat(), "EXTRACTION_FAILED"),
    ] {
        let made = upload(&app, name, bytes, &[("name", "Mine")]).await;
        assert_eq!((made.status, &made.body["status"]), (StatusCode::CREATED, &json!("failed")), "{name}");
        let indexing = &made.body["indexing"];
        assert_eq!((&indexing["error"]["code"], &made.body["name"]), (&json!(code), &json!("Mine")), "{name}");
        assert_eq!((&indexing["state"], &indexing["attempts"]), (&json!("error"), &json!(1)), "{name}");
        // It is read by its id all the same, and reading its file again says the same.
        let path = format!("/documents/{}", text(&made.body["_id"]));
        assert_eq!(app.get(&path).await.status, StatusCode::OK);
        let again = app.post(&format!("{path}/reindex"), json!({})).await;
        assert_eq!(
            (again.status, &again.body["indexing"]["error"]["code"]),
            (StatusCode::ACCEPTED, &json!(code)),
            "{name}"
        );
        assert_eq!(app.delete(&path).await.status, StatusCode::OK);
    }
}

#[tokio::test]
async fn a_file_is_read_again_by_reindex_until_somebody_gives_its_document_another_text() {
    let db = TestDb::new().await;
    let app = TestApp::start(PROGRAM, &db, &[]);
    let made = upload(&app, "terms.docx", docx(), &[]).await;
    assert_eq!(made.status, StatusCode::CREATED, "{}", made.body);
    let id = text(&made.body["_id"]);
    let read = indexed(&app, &id).await;
    // As if an older version had read it worse.
    db.run(
        "UPDATE document_texts SET content_hash = 'worse', markdown = 'worse'; UPDATE documents SET content_hash = 'worse';
        UPDATE document_versions SET content_hash = 'worse'",
    )
    .await;
    let path = format!("/documents/{id}");
    assert_eq!(app.get(&path).await.body["markdownContent"], "worse");
    for _ in 0..2 {
        assert_eq!(app.post(&format!("{path}/reindex"), json!({})).await.status, StatusCode::ACCEPTED);
        let again = indexed(&app, &id).await;
        assert_eq!((&again["markdownContent"], &again["currentVersion"]), (&read["markdownContent"], &json!(2)));
    }
    assert_eq!(app.patch(&path, json!({"markdownContent": "ours"})).await.status, StatusCode::OK);
    assert_eq!(app.post(&format!("{path}/reindex"), json!({})).await.status, StatusCode::ACCEPTED);
    assert_eq!(indexed(&app, &id).await["markdownContent"], "ours");
}
