//! Files that are made to harm whoever reads them.

use futures_util::{StreamExt, future::join_all, stream};
use platform_testing::{FakeToolServer, Reply, TestApp, TestDb};
use reqwest::{
    Method, StatusCode,
    multipart::{Form, Part},
};
use serde_json::json;

use crate::{
    document_files::{docx_of, docx_with, pdf, pdf_of, pdf_with, upload, zip},
    documents::indexed,
    support::{PROGRAM, UNBOUNDED, app_with, other_account, peak_memory, text},
    uploads,
};

/// A name, and what is in it.
type Hostile = (&'static str, Vec<u8>);

const HELVETICA: &str = "/Subtype /Type1 /BaseFont /Helvetica";
const FONTS: &str = "<< /F1 5 0 R >>";
const PAGE: &str = "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 9 9] >>";

fn pdfs() -> Vec<Hostile> {
    let own_font = "/Subtype /Type0 /BaseFont /X /DescendantFonts [5 0 R] /ToUnicode 5 0 R";
    let noise = (0..1_000_000_u32).map(|n| n.wrapping_mul(2_654_435_761).to_be_bytes()[0]);
    let catalog = "<< /Type /Catalog /Pages 2 0 R >>".to_owned();
    let tree = |kids: &str| {
        pdf_with(&[catalog.clone(), format!("<< /Type /Pages /Kids [{kids}] /Count 1 >>"), PAGE.to_owned()])
    };
    // Ten to the ninth pages in a kilobyte.
    let level = |n: usize| format!("<< /Type /Pages /Count 10 /Kids [{}] >>", format!("{n} 0 R ").repeat(10));
    let many: Vec<String> =
        std::iter::once(catalog.clone()).chain((3..=11).map(level)).chain([PAGE.to_owned()]).collect();
    let whole = pdf("cut");
    let text = String::from_utf8(whole.clone()).expect("text");
    vec![
        ("draws-itself.pdf", pdf_of(1, "/X Do", FONTS, HELVETICA)),
        ("nests.pdf", pdf_of(1, &"[".repeat(2_000_000), FONTS, HELVETICA)),
        ("nests-dictionaries.pdf", pdf_of(1, &"<<".repeat(500_000), FONTS, HELVETICA)),
        ("nests-states.pdf", pdf_of(1, &"q ".repeat(1_000_000), FONTS, HELVETICA)),
        ("its-own-font.pdf", pdf_of(1, "BT /F1 9 Tf (x) Tj ET", FONTS, own_font)),
        ("noise.pdf", b"%PDF-1.7\n".iter().copied().chain(noise).collect()),
        ("its-own-page.pdf", tree("2 0 R")),
        ("a-billion-pages.pdf", pdf_with(&many)),
        ("no-page.pdf", tree("")),
        ("missing-page.pdf", tree("99 0 R")),
        ("cut.pdf", whole[..whole.len() / 2].to_vec()),
        ("no-end.pdf", text.replace("startxref", "startxxxx").into_bytes()),
        ("far-table.pdf", text.replace("startxref\n", "startxref\n99999999").into_bytes()),
        ("own-table.pdf", text.replace("/Root 1 0 R", "/Root 1 0 R /Prev 0").into_bytes()),
        ("long-stream.pdf", text.replace("/Length ", "/Length 99999999").into_bytes()),
        ("locked.pdf", include_bytes!("hostile_files/locked.pdf").to_vec()),
        ("bare.pdf", b"%PDF-1.7".to_vec()),
    ]
}

fn word_files(outside: &str) -> Vec<Hostile> {
    const SPACE: &str = r#"xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main""#;
    let says = |document_type: &str, says: &str| {
        format!(
            r#"<?xml version="1.0"?>{document_type}<w:document {SPACE}><w:body><w:p><w:r><w:t>{says}</w:t></w:r></w:p></w:body></w:document>"#
        )
    };
    let expands: String = (1..10)
        .map(|n| format!(r#"<!ENTITY e{n} "{}">"#, format!("&e{};", n - 1).repeat(10)))
        .fold(r#"<!DOCTYPE d [<!ENTITY e0 "ha">"#.to_owned(), |all, entity| all + &entity);
    let outer = format!(r#"<!DOCTYPE d [<!ENTITY x SYSTEM "{outside}/secret">]>"#);
    let local = r#"<!DOCTYPE d [<!ENTITY x SYSTEM "file:///etc/passwd">]>"#;
    let link = format!(
        r#"<?xml version="1.0"?><Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships"><Relationship Id="r9" Type="http://schemas.openxmlformats.org/officeDocument/2006/relationships/image" Target="{outside}/pixel.png" TargetMode="External"/></Relationships>"#
    );
    let fine = docx_of("<w:p><w:r><w:t>cut</w:t></w:r></w:p>");
    let names: Vec<String> = (0..20_000).map(|n| format!("word/media/{n}.bin")).collect();
    let nothing: &[u8] = &[];
    vec![
        ("bomb.docx", docx_of(&format!("<w:p><w:r><w:t>{}</w:t></w:r></w:p>", "a".repeat(60 << 20)))),
        ("deep.docx", docx_of(&("<w:p>".repeat(20_000) + &"</w:p>".repeat(20_000)))),
        ("deep-tables.docx", docx_of(&("<w:tbl><w:tr><w:tc>".repeat(3000) + &"</w:tc></w:tr></w:tbl>".repeat(3000)))),
        ("expands.docx", docx_with(&says(&format!("{expands}]>"), "&e9;"), &[])),
        ("reads-the-host.docx", docx_with(&says(local, "&x;"), &[])),
        ("calls-out.docx", docx_with(&says(&outer, "&x;"), &[])),
        ("links-out.docx", docx_with(&says("", "linked"), &[("word/_rels/document.xml.rels", link.as_bytes())])),
        ("climbs.docx", docx_with(&says("", "climbed"), &[("../../../../tmp/climbed", b"x")])),
        ("no-xml.docx", docx_with("\u{1}\u{2}<<<<>>>>", &[])),
        ("half-xml.docx", docx_with(&says("", "half").replace("</w:body></w:document>", ""), &[])),
        ("no-document.docx", zip([("[Content_Types].xml", nothing), ("word/empty", nothing)])),
        (
            "many.docx",
            docx_with(&says("", "many"), &names.iter().map(|name| (name.as_str(), nothing)).collect::<Vec<_>>()),
        ),
        ("cut.docx", fine[..fine.len() / 2].to_vec()),
        ("twice.docx", [fine.clone(), fine].concat()),
    ]
}

fn pages(outside: &str) -> Vec<Hostile> {
    let page = |inner: &str| format!("<!doctype html><html><body>{inner}").into_bytes();
    let from_outside =
        format!("<p>Seen</p><img src='{outside}/a.png'><script src='{outside}/a.js'></script><iframe src='{outside}'>");
    vec![
        ("bold.html", page(&"<b>".repeat(300_000))),
        ("tables.html", page(&"<table><tr><td>".repeat(20_000))),
        ("quotes.html", page(&"<blockquote>".repeat(50_000))),
        ("attributes.html", page(&format!("<a {}>Seen</a>", "x=1 ".repeat(500_000)))),
        ("comment.html", page(&format!("Seen<!-- {}", "-".repeat(1_000_000)))),
        ("loads.html", page(&from_outside)),
        ("script.html", page("<p>Seen</p><script>while (true) {}</script><svg onload='while(true){}'>")),
    ]
}

/// Those of which there is something to read; the others fail with a reason.
const READ: [(&str, &str); 15] = [
    // What is where is found without the table that says so.
    ("no-end.pdf", "cut"),
    ("far-table.pdf", "cut"),
    ("own-table.pdf", "cut"),
    // Nothing that an entity stands for is put in its place.
    ("expands.docx", "\\&e9;"),
    ("reads-the-host.docx", "&x;"),
    ("calls-out.docx", "&x;"),
    ("links-out.docx", "linked"),
    ("climbs.docx", "climbed"),
    ("half-xml.docx", "half"),
    ("many.docx", "many"),
    ("twice.docx", "cut"),
    ("attributes.html", "Seen"),
    ("comment.html", "Seen"),
    ("script.html", "Seen"),
    ("loads.html", "Seen\n\n![]("),
];

/// A drawing of twelve parts, each of which draws the next ten times: reading it takes all the time there is.
pub fn endless() -> Vec<u8> {
    let stream = |more: &str, says: &str| format!("<< {more} /Length {} >>\nstream\n{says}\nendstream", says.len());
    let draws = "/X Do ".repeat(10);
    let part = |n: usize| {
        let resources = format!("/Resources << /Font << /F1 5 0 R >> /XObject << /X {} 0 R >> >>", n + 1);
        let says = if n < 17 { draws.as_str() } else { "BT /F1 9 Tf (x) Tj ET" };
        stream(&format!("/Type /XObject /Subtype /Form /BBox [0 0 9 9] {resources}"), says)
    };
    let page = "/Parent 2 0 R /MediaBox [0 0 9 9] /Contents 4 0 R /Resources << /Font << /F1 5 0 R >> /XObject << /X 6 0 R >> >>";
    let first = [
        "<< /Type /Catalog /Pages 2 0 R >>".to_owned(),
        "<< /Type /Pages /Kids [3 0 R] /Count 1 >>".to_owned(),
        format!("<< /Type /Page {page} >>"),
        stream("", &draws),
        format!("<< /Type /Font {HELVETICA} >>"),
    ];
    pdf_with(&first.into_iter().chain((6..=17).map(part)).collect::<Vec<_>>())
}

#[tokio::test]
async fn files_that_take_long_keep_no_other_waiting_and_take_no_text_from_a_message() {
    let db = TestDb::new().await;
    let app = TestApp::start(PROGRAM, &db, &UNBOUNDED);
    let other = other_account(&db).await;
    let long = join_all((0..3).map(|n| send(&app, app.key(), format!("long{n}.pdf"), endless())));
    let quick = async {
        let terms = docx_of("<w:p><w:r><w:t>Pay within ten days.</w:t></w:r></w:p>");
        for key in [app.key(), &other].repeat(3) {
            let read = send(&app, key, "terms.docx".to_owned(), terms.clone()).await;
            assert_eq!(read.body["fileType"], "docx", "{}", read.body);
            assert_ne!(read.body["status"], "failed", "{}", read.body);
        }
        let file = uploads::upload(&app, "terms.docx", terms).await;
        let files = json!([{"name": "terms.docx", "downloadUrl": file["downloadUrl"]}]);
        let said = app.post("/assistants/default/messages", json!({"message": "Read", "files": files})).await;
        assert_eq!(said.status, StatusCode::OK, "{}", said.body);
        db.number("SELECT count(*) AS n FROM message_files WHERE media_type = 'text/markdown'").await
    };
    tokio::select! {
        biased;
        _ = long => panic!("what takes long was read first"),
        texts = quick => assert_eq!(texts, 1, "the model gets what the document says"),
    }
}

/// Makes a document of a file.
async fn send(app: &TestApp, key: &str, name: String, bytes: Vec<u8>) -> Reply {
    let form = Form::new().part("file", Part::bytes(bytes).file_name(name));
    app.send(app.anonymous(Method::POST, "/v1/documents/upload").bearer_auth(key).multipart(form)).await
}

#[tokio::test]
async fn a_hostile_file_costs_only_itself() {
    let (app, outside) = (app_with(&[("PLATFORM_EGRESS_ALLOW", "127.0.0.0/8")]).await, FakeToolServer::start());
    let hostile = [pdfs(), word_files(outside.url()), pages(outside.url())].concat();
    // A few at a time: whoever uploads waits for those before.
    let uploads = hostile.iter().map(|(name, bytes)| upload(&app, name, bytes.clone(), &[]));
    let made: Vec<_> = stream::iter(uploads).buffered(4).collect().await;
    let mut read = 0;
    for ((name, _), made) in hostile.iter().zip(made) {
        assert_eq!(made.status, StatusCode::CREATED, "{name}: {}", made.body);
        let document = indexed(&app, &text(&made.body["_id"])).await;
        let content = document["markdownContent"].as_str().expect("text");
        if let Some((_, says)) = READ.iter().find(|(of, _)| of == name) {
            assert_eq!(document["status"], "ready", "{name}: {}", document["indexing"]);
            assert!(content.starts_with(says) && content.len() < 200, "{name}: {content}");
            read += 1;
        } else {
            assert_eq!((&document["status"], content), (&json!("failed"), ""), "{name}");
            assert_eq!(document["indexing"]["error"]["code"], "EXTRACTION_FAILED", "{name}");
            let reason = text(&document["indexing"]["error"]["message"]);
            assert!(reason.starts_with("The file cannot be read: "), "{name}: {reason}");
            assert!(*name != "locked.pdf" || reason.contains("password"), "{reason}");
        }
    }
    assert_eq!((read, hostile.len()), (READ.len(), 38));
    assert_eq!(outside.recorded().len(), 0, "nobody was called");
    assert!(!std::path::Path::new("/tmp/climbed").exists());
    assert!(peak_memory(&app) < 300, "{} MiB", peak_memory(&app));
    assert_eq!(upload(&app, "fine.pdf", pdf("fine"), &[]).await.body["status"], "pending", "the next one is read");
}
