//! `/v1/documents` and `/v1/document-folders`: what is known, what is found in it, and who sees it.

use diesel_async::SimpleAsyncConnection;
use futures_util::future::join_all;
use platform_testing::{TestApp, TestDb};
use reqwest::{
    Method, StatusCode,
    multipart::{Form, Part},
};
use serde_json::{Value, json};

use crate::{
    document_files::{pdf, upload},
    support::{PROGRAM, UNBOUNDED, agent, app, app_with, eventually, other_account, text},
};

pub mod in_turns;

/// Makes a document; its id.
pub async fn document(app: &TestApp, name: &str, markdown: &str, more: Value) -> String {
    let mut body = json!({"name": name, "markdownContent": markdown});
    body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    let made = app.post("/documents", body).await;
    assert_eq!(made.status, StatusCode::CREATED, "{}", made.body);
    assert_eq!((&made.body["status"], &made.body["currentVersion"]), (&json!("pending"), &json!(1)));
    text(&made.body["_id"])
}

/// Makes a folder; its id.
pub async fn folder(app: &TestApp, name: &str, more: Value) -> String {
    let mut body = json!({"name": name});
    body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    let made = app.post("/document-folders", body).await;
    assert_eq!(made.status, StatusCode::CREATED, "{}", made.body);
    text(&made.body["_id"])
}

/// A document once its index is up to date.
pub async fn indexed(app: &TestApp, id: &str) -> Value {
    let ask = async || {
        let document = app.get(&format!("/documents/{id}")).await.body;
        (document["status"] != "pending").then_some(document)
    };
    eventually("the document is indexed", ask).await
}

pub async fn search(app: &TestApp, query: Value) -> Vec<Value> {
    let found = app.post("/documents/search", query).await;
    assert_eq!(found.status, StatusCode::OK, "{}", found.body);
    found.body["results"].as_array().expect("results").clone()
}

pub fn names(found: &[Value]) -> Vec<&str> {
    found.iter().map(|result| result["name"].as_str().expect("a name")).collect()
}

const HANDBOOK: &str = "# Handbook\n\nWelcome.\n\n## Keys\n\nA key is rotated every ninety days. Whoever loses one \
    reports it on the same day.\n\n## Holidays\n\nEverybody has thirty days of holidays a year.\n";

#[tokio::test]
async fn a_document_has_versions_that_can_be_read_and_brought_back() {
    let app = app().await;
    let id =
        document(&app, "Handbook", HANDBOOK, json!({"tags": ["hr", "hr"], "_id": "ignored", "fileType": "pdf"})).await;
    let made = indexed(&app, &id).await;
    for (field, value) in [
        ("name", json!("Handbook")),
        ("fileName", json!("Handbook.md")),
        ("fileType", json!("md")),
        ("status", json!("ready")),
        ("size", json!(HANDBOOK.len())),
        ("markdownContent", json!(HANDBOOK)),
        ("tags", json!(["hr"])),
        ("isSkill", json!(false)),
        ("currentVersion", json!(1)),
    ] {
        assert_eq!(made[field], value, "{field}");
    }
    assert_eq!((&made["indexing"]["state"], &made["indexing"]["chunksDone"]), (&json!("done"), &json!(3)));
    assert_eq!(made["versions"][0]["changeType"], "created");

    let path = format!("/documents/{id}");
    let same = app.patch(&path, json!({"markdownContent": HANDBOOK, "summary": "Rules"})).await;
    assert_eq!((&same.body["versionCreated"], &same.body["currentVersion"]), (&json!(false), &json!(1)));
    let renamed = app.patch(&path, json!({"name": "Rules"})).await.body;
    assert_eq!((&renamed["versionCreated"], &renamed["currentVersion"]), (&json!(false), &json!(2)));
    let changed = app.patch(&path, json!({"markdownContent": "# New\n\nAll of it."})).await.body;
    assert_eq!((&changed["versionCreated"], &changed["currentVersion"]), (&json!(true), &json!(3)));
    assert_eq!((&changed["status"], &changed["summary"]), (&json!("pending"), &json!("Rules")));
    let reverted = app.post(&format!("{path}/revert/1"), json!({})).await;
    assert_eq!((reverted.status, &reverted.body["markdownContent"]), (StatusCode::OK, &json!(HANDBOOK)));
    let versions = app.get(&format!("{path}/versions")).await.body;
    let told: Vec<_> = versions
        .as_array()
        .expect("a list")
        .iter()
        .map(|v| (v["version"].clone(), v["changeType"].clone(), v["isActive"].clone()))
        .collect();
    let expected = [(4, "reverted", true), (3, "updated", false), (2, "renamed", false), (1, "created", false)];
    assert_eq!(told, expected.map(|(version, change, active)| (json!(version), json!(change), json!(active))));
    let third = app.get(&format!("{path}/versions/3")).await.body;
    assert_eq!((&third["markdownContent"], &third["size"]), (&json!("# New\n\nAll of it."), &json!(17)));
    for (missing, code) in [("versions/9", "VERSION_NOT_FOUND"), ("versions/x", "VERSION_NOT_FOUND")] {
        assert_eq!(app.get(&format!("{path}/{missing}")).await.error(), code, "{missing}");
    }
    // Only the newest of a hundred versions and one are kept.
    for n in 0..100 {
        assert_eq!(app.patch(&path, json!({"markdownContent": format!("text {n}")})).await.status, StatusCode::OK);
    }
    let kept = app.get(&format!("{path}/versions")).await.body;
    assert_eq!(kept.as_array().map(Vec::len), Some(100));
    assert_eq!(app.get(&format!("{path}/versions/4")).await.error(), "VERSION_NOT_FOUND");

    // Whoever has an old one changes nothing.
    let etag = app.get(&path).await.header("etag").to_owned();
    let stale =
        app.send(app.request(Method::PATCH, &path).header("if-match", "\"1\"").json(&json!({"name": "x"}))).await;
    assert_eq!((stale.status, stale.error()), (StatusCode::PRECONDITION_FAILED, "PRECONDITION_FAILED"));
    let fresh = app.send(app.request(Method::PATCH, &path).header("if-match", etag).json(&json!({"name": "x"}))).await;
    assert_eq!(fresh.status, StatusCode::OK, "{}", fresh.body);
    let gone = app.delete(&path).await;
    assert_eq!((gone.status, &gone.body["deletedIds"]), (StatusCode::OK, &json!([id])));
    assert_eq!(app.get(&path).await.error(), "DOCUMENT_NOT_FOUND");
}

#[tokio::test]
async fn a_search_finds_the_passage_and_says_where_it_stands() {
    let app = app().await;
    let handbook = document(&app, "Handbook", HANDBOOK, json!({"tags": ["hr"]})).await;
    let german = "# Urlaub\n\nAlle Mitarbeiterinnen und Mitarbeiter haben im Jahr drei\u{df}ig Urlaubstage, die sie frei verteilen.";
    let other = document(&app, "Urlaubsregeln", german, json!({})).await;
    for id in [&handbook, &other] {
        assert_eq!(indexed(&app, id).await["status"], "ready");
    }
    let found = search(&app, json!({"query": "How often do keys rotate?"})).await;
    let best = &found[0];
    assert_eq!((&best["documentId"], &best["version"]), (&json!(handbook), &json!(1)));
    assert_eq!(best["headingPath"], json!(["Handbook", "Keys"]));
    assert!(best["text"].as_str().expect("text").contains("ninety days"), "{best}");
    let score = best["score"].as_f64().expect("a score");
    assert!((0.0..=1.0).contains(&score) && found.iter().all(|result| result["score"].as_f64() <= Some(score)));
    // Words of another language are found in its forms.
    assert_eq!(names(&search(&app, json!({"query": "Mitarbeiterin Urlaubstag"})).await)[0], "Urlaubsregeln");
    assert_eq!(search(&app, json!({"query": "xyzzy"})).await, Vec::<Value>::new());
    // A name is found although it is misspelt, below what says the other words.
    assert_eq!(names(&search(&app, json!({"query": "hanbook"})).await), ["Handbook"]);
    let both = search(&app, json!({"query": "Urlaubsregln keys"})).await;
    assert_eq!(names(&both), ["Handbook", "Urlaubsregeln"], "{both:?}");
    assert_eq!(search(&app, json!({"query": "the of and"})).await.len(), 0, "words that say nothing");
    // However it is written, and in scripts without spaces; beside what PostgreSQL would call a word of its longest.
    let endless = "\u{e9}".repeat(1020);
    for (name, says, asked) in [
        ("Decomposed", "The cafe\u{301} of the \u{fb01}rst floor", "Caf\u{e9} first"),
        ("Chinese", "密钥每九十天轮换一次。", "轮换密钥"),
        ("Japanese", "鍵は九十日ごとに交換されます。", "交換"),
        ("Thai", "ต้องเปลี่ยนกุญแจทุกเก้าสิบวัน", "กุญแจ"),
        ("Endless", &format!("{endless} ends here"), &format!("{endless} ends")),
    ] {
        let id = document(&app, name, says, json!({})).await;
        indexed(&app, &id).await;
        let found = search(&app, json!({"query": asked, "documentIds": [id, handbook]})).await;
        assert_eq!(names(&found), [name], "{asked}");
    }
    for (bound, count) in [
        (json!({"documentIds": [handbook]}), 1),
        (json!({"documentIds": [other]}), 0),
        (json!({"documentIds": ["nobody's"]}), 0),
        (json!({"tags": ["hr", "x"]}), 1),
        (json!({"tags": ["x"]}), 0),
        (json!({"folderIds": ["nobody's"]}), 0),
    ] {
        let mut query = json!({"query": "rotated", "mode": "KEYWORD"});
        query.as_object_mut().expect("an object").extend(bound.as_object().expect("an object").clone());
        assert_eq!(search(&app, query).await.len(), count, "{bound}");
    }
    for (wrong, code) in [
        (json!({"query": ""}), "VALIDATION_ERROR"),
        (json!({"query": "x".repeat(2001)}), "VALIDATION_ERROR"),
        (json!({"query": "x", "limit": 51}), "VALIDATION_ERROR"),
        (json!({"query": "x", "mode": "psychic"}), "VALIDATION_ERROR"),
        (json!({"query": "x", "mode": "semantic"}), "PROVIDER_NOT_CONFIGURED"),
    ] {
        assert_eq!(app.post("/documents/search", wrong).await.error(), code);
    }
    // What looks like an operator is a word.
    for query in ["a' | b & !c <-> (d:*)", "\\", "'", "key:*", "-rotated \"", ":", "''"] {
        search(&app, json!({"query": query})).await;
    }
    let chunks = app.get(&format!("/documents/{handbook}/chunks?limit=2")).await.body;
    assert_eq!((&chunks["total"], &chunks["chunks"][1]["index"]), (&json!(3), &json!(1)));
    assert_eq!(chunks["chunks"][1]["chunkId"], best["chunkId"]);
    // The old text answers until the new one does, and then no longer.
    app.patch(&format!("/documents/{handbook}"), json!({"markdownContent": "# Handbook\n\nKeys live forever."})).await;
    indexed(&app, &handbook).await;
    assert_eq!(search(&app, json!({"query": "rotated"})).await.len(), 0);
    assert_eq!(search(&app, json!({"query": "forever"})).await[0]["version"], 2);
}

#[tokio::test]
async fn pieces_that_an_older_version_indexed_are_found_beside_newer_ones_and_by_their_account_alone() {
    let db = TestDb::new().await;
    let app = TestApp::start(PROGRAM, &db, &[]);
    let old = document(&app, "Old", HANDBOOK, json!({})).await;
    indexed(&app, &old).await;
    db.run(
        "UPDATE chunks SET words = replace(words::text, left(md5(account_id), 8), '')::tsvector
            || array_to_tsvector(ARRAY['account:' || account_id])",
    )
    .await;
    let new = document(&app, "New", HANDBOOK, json!({})).await;
    indexed(&app, &new).await;
    let found = search(&app, json!({"query": "rotated", "mode": "keyword"})).await;
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found[0]["score"] == found[1]["score"] && found[0]["name"] != found[1]["name"], "{found:?}");
    let key = other_account(&db).await;
    let theirs = async |path: &str, body: Value| {
        app.send(app.anonymous(Method::POST, path).bearer_auth(&key).json(&body)).await.body
    };
    let made = json!({"name": "Theirs", "markdownContent": HANDBOOK.replace("rotated", "turned")});
    assert!(theirs("/v1/documents", made).await["_id"].is_string());
    let due = "SELECT count(*) AS n FROM documents WHERE due_ms IS NOT NULL";
    eventually("it is indexed", async || (db.number(due).await == 0).then_some(())).await;
    let found = async |word: &str| theirs("/v1/documents/search", json!({"query": word})).await["results"].clone();
    assert_eq!((found("rotated").await, found("turned").await[0]["name"].clone()), (json!([]), json!("Theirs")));
}

#[tokio::test]
async fn a_word_that_is_everywhere_is_found_where_a_search_is_bound_to_documents_without_the_rarer_ones() {
    let db = TestDb::new().await;
    let app = TestApp::start(PROGRAM, &db, &[]);
    let [large, small, other] = [
        document(&app, "Large", "The platform.", json!({})).await,
        document(&app, "Small", "A platform of a station.", json!({"tags": ["small"]})).await,
        document(&app, "Timetable", "What the conductor of a smal train has.", json!({})).await,
    ];
    for id in [&large, &small, &other] {
        assert_eq!(indexed(&app, id).await["status"], "ready");
    }
    db.run(&format!(
        "INSERT INTO chunks SELECT (jsonb_populate_record(c, jsonb_build_object('position', n, 'id', 'of-' || n))).*
            FROM chunks c, generate_series(1, 20000) n WHERE document_id = '{large}';
        UPDATE documents SET piece_count = 20001 WHERE id = '{large}';"
    ))
    .await;
    for (query, bound, expected) in [
        ("platform conductor", json!({}), &["Timetable"][..]),
        ("platform conductor", json!({"documentIds": [small]}), &["Small"]),
        ("platform conductor", json!({"tags": ["small"]}), &["Small"]),
        ("platform conductor", json!({"documentIds": [large], "limit": 1}), &["Large"]),
        ("platform conductor", json!({"documentIds": [small, other]}), &["Timetable"]),
        ("platform station", json!({"limit": 1}), &["Small"]),
        ("platform", json!({"documentIds": [other]}), &[]),
        // A misspelt name, although another document has just that word.
        ("smal", json!({"documentIds": [small]}), &["Small"]),
    ] {
        let mut body = bound.clone();
        body["query"] = query.into();
        assert_eq!(names(&search(&app, body).await), expected, "{query} in {bound}");
    }
}

#[tokio::test]
async fn of_many_pieces_with_a_word_those_that_are_called_so_come_first_and_a_word_is_found_in_small_letters() {
    let db = TestDb::new().await;
    let app = TestApp::start(PROGRAM, &db, &[]);
    let body = document(&app, "Many", "Nobody is on vacation, says GitHub.", json!({})).await;
    indexed(&app, &body).await;
    assert_eq!(names(&search(&app, json!({"query": "github"})).await), ["Many"]);
    let copies = |from: i64, to: i64| {
        format!(
            "INSERT INTO chunks SELECT (jsonb_populate_record(c, jsonb_build_object('position', n, 'id', 'of-' || n))).*
            FROM chunks c, generate_series({from}, {to}) n WHERE document_id = '{body}' AND position = 0"
        )
    };
    db.run(&copies(1, 300)).await;
    let heading = document(&app, "Rules", "# Absence\n\n## Vacation\n\nAsk first.\n\n## Fire 112", json!({})).await;
    indexed(&app, &heading).await;
    db.run(&copies(301, 600)).await;
    let named = document(&app, "Vacation policy", "Thirty days.", json!({})).await;
    indexed(&app, &named).await;
    let found = search(&app, json!({"query": "vacation", "limit": 3})).await;
    assert_eq!(names(&found), ["Rules", "Vacation policy", "Many"], "{found:?}");
    let guide = document(&app, "Guide", &"A vacation is a vacation. ".repeat(6), json!({})).await;
    indexed(&app, &guide).await;
    let found = search(&app, json!({"query": "vacation", "limit": 10})).await;
    assert!(names(&found).contains(&"Guide"), "who has it most often is weighed: {found:?}");
    let found = search(&app, json!({"query": "112"})).await;
    assert_eq!(
        found[0]["headingPath"],
        json!(["Absence", "Fire 112"]),
        "a heading with nothing below it is found, too"
    );

    // A record that is sent back as it was read has said nothing of its summary.
    let path = format!("/documents/{heading}");
    let read = eventually("it has a summary", async || {
        let read = app.get(&path).await.body;
        (read["summary"] != "").then_some(read)
    })
    .await;
    let back = json!({"name": read["name"], "summary": read["summary"], "tags": ["rules"]});
    assert_eq!(app.patch(&path, back).await.status, StatusCode::OK);
    app.patch(&path, json!({"markdownContent": "# Absence\n\nNobody is."})).await;
    eventually("its summary is made anew", async || {
        let now = app.get(&path).await.body["summary"].clone();
        (now != "" && now != read["summary"]).then_some(())
    })
    .await;
}

#[tokio::test]
async fn words_that_say_nothing_in_one_language_say_little_where_no_language_is_told() {
    let app = app().await;
    let pages = join_all((0..20).map(async |n| {
        let text =
            format!("Printer {n} stands on the floor below. Whoever wants to print there has to ask for a card first.");
        document(&app, &format!("Printer {n}"), &text, json!({})).await
    }));
    let mut all = pages.await;
    let text = "Whoever forgot their password can reset it with the link on the page where they log in.";
    all.push(document(&app, "Accounts", text, json!({})).await);
    all.push(document(&app, "Note", "How do I: the ls, the cat.", json!({})).await);
    for id in &all {
        indexed(&app, id).await;
    }
    for query in ["How do I reset the password?", "how do I print the password"] {
        let found = search(&app, json!({"query": query, "mode": "keyword"})).await;
        assert_eq!(names(&found)[0], "Accounts", "{query}: {found:?}");
    }
    assert_eq!(names(&search(&app, json!({"query": "the", "mode": "keyword"})).await), ["Note"]);
}

#[tokio::test]
async fn folders_hold_documents_and_take_them_along() {
    let app = app().await;
    let project = text(&app.post("/projects", json!({"name": "P", "identifier": "p"})).await.body["_id"]);
    let top = folder(&app, "Top", json!({"projectId": project, "color": "#aabbcc", "tags": ["x"]})).await;
    let below = folder(&app, "Below", json!({"parentFolderId": top})).await;
    let shown = app.get(&format!("/document-folders/{below}")).await.body;
    assert_eq!((&shown["projectId"], &shown["parentFolderId"]), (&json!(project), &json!(top)));
    let id = document(&app, "In it", "# Deep\n\nburied treasure", json!({"folderId": below})).await;
    let shown = indexed(&app, &id).await;
    assert_eq!((&shown["projectId"], &shown["folderId"]), (&json!(project), &json!(below)));
    let elsewhere = text(&app.post("/projects", json!({"name": "Q", "identifier": "q"})).await.body["_id"]);
    let refused =
        app.post("/documents", json!({"name": "a", "markdownContent": "", "folderId": below, "projectId": elsewhere}));
    assert_eq!(refused.await.body["details"]["issues"][0]["path"], "projectId");
    for (path, body, code) in [
        (format!("/document-folders/{top}"), json!({"parentFolderId": below}), "VALIDATION_ERROR"),
        (format!("/document-folders/{top}"), json!({"parentFolderId": top}), "VALIDATION_ERROR"),
        (format!("/document-folders/{top}"), json!({"parentFolderId": "nobody's"}), "FOLDER_NOT_FOUND"),
        (format!("/documents/{id}"), json!({"folderId": "nobody's"}), "FOLDER_NOT_FOUND"),
        (format!("/documents/{id}"), json!({"parentDocumentId": "nobody's"}), "DOCUMENT_NOT_FOUND"),
        (format!("/documents/{id}"), json!({"parentDocumentId": id}), "VALIDATION_ERROR"),
        (format!("/documents/{id}"), json!({"projectId": elsewhere}), "VALIDATION_ERROR"),
        (format!("/documents/{id}"), json!({"projectId": "nobody's"}), "PROJECT_NOT_FOUND"),
    ] {
        let refused = app.patch(&path, body.clone()).await;
        assert_eq!(refused.error(), code, "{path} {body}");
    }
    // A search in a folder finds what lies below it.
    assert_eq!(search(&app, json!({"query": "treasure", "folderIds": [top]})).await.len(), 1);
    assert_eq!(search(&app, json!({"query": "treasure", "projectId": project})).await.len(), 1);
    assert_eq!(search(&app, json!({"query": "treasure", "projectId": elsewhere})).await.len(), 0);
    // The whole subtree moves.
    assert_eq!(app.patch(&format!("/document-folders/{top}"), json!({"projectId": elsewhere})).await.status, 200);
    assert_eq!(app.get(&format!("/documents/{id}")).await.body["projectId"], json!(elsewhere));
    let listed = app.get(&format!("/document-folders?projectId={elsewhere}&parentFolderId=none")).await.body;
    assert_eq!((listed.as_array().map(Vec::len), &listed[0]["documentCount"]), (Some(1), &json!(0)));
    assert_eq!(app.get(&format!("/projects/{elsewhere}/stats")).await.body["documents"], 1);
    for (query, total) in [
        (format!("folderId={below}"), 1),
        ("folderId=none".to_owned(), 0),
        (format!("projectId={elsewhere}&status=READY&fileType=md&search=in%20IT"), 1),
        ("isSkill=true".to_owned(), 0),
        ("tags=a,b".to_owned(), 0),
        ("parentOnly=true&includeContent=true".to_owned(), 1),
    ] {
        let list = app.get(&format!("/documents?{query}")).await.body;
        assert_eq!((&list["total"], &list["limit"]), (&json!(total), &json!(20)), "{query}");
        let content = &list["documents"][0]["markdownContent"];
        assert_eq!(content.is_string(), query.contains("includeContent"), "{query}: {list}");
    }
    app.patch(&format!("/documents/{id}"), json!({"tags": ["a", "c"]})).await;
    for (tags, total) in [("a", 1), ("a,b", 1), ("b,c", 1), ("b", 0)] {
        assert_eq!(app.get(&format!("/documents?tags={tags}")).await.body["total"], total, "{tags}");
    }
    let skill = document(&app, "How", "so", json!({"isSkill": true})).await;
    for (query, name) in [("isSkill=true", "How"), ("isSkill=false", "In it")] {
        assert_eq!(
            names(app.get(&format!("/documents?{query}")).await.body["documents"].as_array().expect("some")),
            [name]
        );
    }
    // All of a folder or a project is indexed anew, and nothing else.
    indexed(&app, &skill).await;
    for (which, queued) in [
        (json!({"folderId": top}), 1),
        (json!({"projectId": elsewhere}), 1),
        (json!({"projectId": project}), 0),
        (json!({"status": "failed"}), 0),
    ] {
        let again = app.post("/documents/reindex", which.clone()).await;
        assert_eq!((again.status, &again.body), (StatusCode::ACCEPTED, &json!({"queued": queued})), "{which}");
        indexed(&app, &id).await;
    }
    assert_eq!(app.post("/documents/reindex", json!({"folderId": "nobody's"})).await.error(), "FOLDER_NOT_FOUND");
    let both = json!({"folderId": top, "projectId": elsewhere});
    for wrong in [json!({}), both, json!({"status": "ready"})] {
        assert_eq!(app.post("/documents/reindex", wrong.clone()).await.error(), "VALIDATION_ERROR", "{wrong}");
    }
    // A folder that goes leaves what lay in it where it lay, or takes it along.
    assert_eq!(app.delete(&format!("/document-folders/{below}")).await.body, json!({"success": true}));
    assert_eq!(app.get(&format!("/documents/{id}")).await.body["folderId"], json!(top));
    let part = document(&app, "Part", "part", json!({"parentDocumentId": id})).await;
    assert_eq!(app.get(&format!("/documents/{id}/subdocuments")).await.body[0]["_id"], json!(part));
    assert_eq!(
        app.patch(&format!("/documents/{id}"), json!({"parentDocumentId": part})).await.error(),
        "VALIDATION_ERROR"
    );
    let planned = app.delete(&format!("/documents/{id}?dryRun=true")).await.body;
    assert_eq!(planned["documents"].as_array().map(Vec::len), Some(2));
    let linking = document(&app, "Linking", "see [[in it]] and [[nothing]]", json!({})).await;
    let graph = app.get("/documents/graph").await.body;
    let edge = |from: &str, to: &str, kind: &str| json!({"from": from, "to": to, "type": kind});
    for edge in [edge(&part, &id, "parent"), edge(&linking, &id, "wikilink")] {
        assert!(graph["edges"].as_array().expect("edges").contains(&edge), "{graph}");
    }
    assert_eq!(app.delete(&format!("/document-folders/{top}?deleteDocuments=true")).await.status, StatusCode::OK);
    for gone in [&id, &part] {
        assert_eq!(app.get(&format!("/documents/{gone}")).await.error(), "DOCUMENT_NOT_FOUND");
    }
}

#[tokio::test]
async fn what_a_document_or_a_folder_is_in_can_be_taken_away_again() {
    let app = app().await;
    let project = app.post("/projects", json!({"name": "P", "identifier": "p"})).await.body["_id"].clone();
    let top = folder(&app, "Top", json!({})).await;
    let lies = document(&app, "Lies", "in a folder", json!({"folderId": top})).await;
    for (path, field) in [
        (format!("/documents/{lies}"), "folderId"),
        (
            format!("/documents/{}", document(&app, "Part", "x", json!({"parentDocumentId": lies})).await),
            "parentDocumentId",
        ),
        (format!("/documents/{}", document(&app, "Inside", "x", json!({"projectId": project})).await), "projectId"),
        (
            format!("/document-folders/{}", folder(&app, "Below", json!({"parentFolderId": top})).await),
            "parentFolderId",
        ),
        (format!("/document-folders/{}", folder(&app, "Own", json!({"projectId": project})).await), "projectId"),
    ] {
        assert!(app.get(&path).await.body[field].is_string(), "{path} {field}");
        let unset = app.patch(&path, json!({field: null})).await;
        assert_eq!((unset.status, &unset.body[field]), (StatusCode::OK, &Value::Null), "{path} {field}");
        assert_eq!(app.get(&path).await.body[field], Value::Null, "{path} {field}");
    }
    app.patch(&format!("/documents/{lies}"), json!({"summary": "All about penguins"})).await;
    let found = app.get("/documents?search=PENGUIN").await.body;
    assert_eq!((&found["total"], &found["documents"][0]["_id"]), (&json!(1), &json!(lies)), "{found}");
}

#[tokio::test]
async fn what_is_attached_is_used_and_goes_from_who_uses_it_when_it_is_deleted() {
    let app = app().await;
    let (top, agent_id) = (folder(&app, "Top", json!({})).await, agent(&app, json!({"name": "A"})).await);
    let id = document(&app, "Doc", "text", json!({"folderId": top})).await;
    let assistant =
        app.post("/assistants", json!({"name": "S", "identifier": "s", "knowledgeDocumentIds": [id]})).await;
    assert_eq!(assistant.status, StatusCode::CREATED, "{}", assistant.body);
    let attach = async |path: &str, to: Value| app.post(path, to).await;
    let to_agent = json!({"targetType": "Agent", "targetId": agent_id});
    for _ in 0..2 {
        let attached = attach(&format!("/document-folders/{top}/attach"), to_agent.clone()).await;
        assert_eq!(attached.body, json!({"success": true, "attached": true}), "{}", attached.body);
    }
    let shown = app.get(&format!("/agents/{agent_id}")).await.body;
    assert_eq!(shown["assistantSpecialization"]["knowledgeFolderIds"], json!([top]));
    let usage = app.get(&format!("/documents/{id}/usage")).await.body;
    assert_eq!(usage["agents"], json!([{"_id": agent_id, "name": "A", "via": "folder"}]));
    assert_eq!(
        (&usage["assistants"][0]["identifier"], &usage["assistants"][0]["via"]),
        (&json!("s"), &json!("document"))
    );
    let skill = document(&app, "Skill", "Do it.", json!({"isSkill": true})).await;
    let knows = json!({"name": "K", "identifier": "k", "knowledgeSkills": [{"id": skill, "type": "document"}]});
    assert_eq!(app.post("/assistants", knows).await.status, StatusCode::CREATED);
    let usage = app.get(&format!("/documents/{skill}/usage")).await.body;
    assert_eq!((&usage["assistants"][0]["identifier"], &usage["assistants"][0]["via"]), (&json!("k"), &json!("skill")));
    for (to, code) in [
        (json!({"targetType": "agent", "targetId": "nobody"}), "AGENT_NOT_FOUND"),
        (json!({"targetType": "assistant", "targetId": "nobody"}), "ASSISTANT_NOT_FOUND"),
        (json!({"targetType": "environment", "targetId": "nobody"}), "ENVIRONMENT_NOT_FOUND"),
        (json!({"targetType": "planet", "targetId": "x"}), "VALIDATION_ERROR"),
        (json!({"targetType": "agent"}), "VALIDATION_ERROR"),
    ] {
        assert_eq!(attach(&format!("/documents/{id}/attach"), to.clone()).await.error(), code, "{to}");
    }
    assert_eq!(attach("/documents/nobody/attach", to_agent.clone()).await.error(), "DOCUMENT_NOT_FOUND");
    for (field, code) in [("knowledgeDocumentIds", "DOCUMENT_NOT_FOUND"), ("knowledgeFolderIds", "FOLDER_NOT_FOUND")] {
        let refused = app.patch("/assistants/s", json!({field: ["nobody's"]})).await;
        assert_eq!((refused.status, refused.error()), (StatusCode::NOT_FOUND, code));
    }
    let detached =
        attach(&format!("/documents/{id}/detach"), json!({"targetType": "assistant", "targetId": "s"})).await;
    assert_eq!(detached.body["attached"], false);
    assert_eq!(app.get("/assistants/s").await.body["knowledgeDocumentIds"], json!([]));
    attach(&format!("/documents/{id}/attach"), json!({"targetType": "assistant", "targetId": "s"})).await;
    assert_eq!(app.get("/assistants/s").await.body["knowledgeDocumentIds"], json!([id]));
    // Who only asks what would go is told by whom it is used, and nothing goes.
    let planned = app.delete(&format!("/documents/{id}?dryRun=true")).await.body;
    assert_eq!(planned["usage"], app.get(&format!("/documents/{id}/usage")).await.body, "{planned}");
    assert_eq!(app.get("/assistants/s").await.body["knowledgeDocumentIds"], json!([id]));
    app.delete(&format!("/document-folders/{top}?deleteDocuments=true")).await;
    assert_eq!(app.get("/assistants/s").await.body["knowledgeDocumentIds"], json!([]));
    let shown = app.get(&format!("/agents/{agent_id}")).await.body;
    assert_eq!(shown["assistantSpecialization"]["knowledgeFolderIds"], json!([]));
}

#[tokio::test]
async fn documents_of_an_account_are_indexed_in_the_order_in_which_they_came() {
    let db = TestDb::new().await;
    let api = TestApp::start(PROGRAM, &db, &[&UNBOUNDED[..], &[("PLATFORM_ROLE", "api")]].concat());
    let mut ids = Vec::new();
    for n in 0..20 {
        ids.push(document(&api, &format!("D{n}"), &format!("# D\n\nword{n}"), json!({})).await);
    }
    drop(api);
    let app = TestApp::start(PROGRAM, &db, &[]);
    let mut ends = Vec::new();
    for id in &ids {
        ends.push(indexed(&app, id).await["indexing"]["finishedTimestampMs"].as_i64().expect("an end"));
    }
    assert!(ends.is_sorted(), "{ends:?}");
}

#[tokio::test]
async fn a_document_is_indexed_while_whoever_deletes_holds_its_parent() {
    let db = TestDb::new().await;
    let app = TestApp::start(PROGRAM, &db, &[]);
    let parent = document(&app, "Parent", "# P", json!({})).await;
    let part = document(&app, "Part", "# Part\n\nfirst", json!({"parentDocumentId": parent})).await;
    indexed(&app, &part).await;
    // As a deletion of both does before it waits for the part.
    let holder = db.connect();
    let mut conn = holder.conn().await.expect("a connection");
    let hold = format!(
        "SET idle_in_transaction_session_timeout = 0; BEGIN; SELECT FROM documents WHERE id = '{parent}' FOR UPDATE"
    );
    conn.batch_execute(&hold).await.expect("held");
    let changed = app.patch(&format!("/documents/{part}"), json!({"markdownContent": "# Part\n\nsecond"})).await;
    assert_eq!(changed.status, StatusCode::OK, "{}", changed.body);
    assert_eq!(indexed(&app, &part).await["status"], "ready");
    conn.batch_execute("ROLLBACK").await.expect("let go");
}

#[tokio::test]
async fn nothing_more_is_attached_to_who_has_a_thousand() {
    let db = TestDb::new().await;
    let app = TestApp::start(PROGRAM, &db, &[]);
    let made = app.post("/assistants", json!({"name": "S", "identifier": "s"})).await;
    assert_eq!(made.status, StatusCode::CREATED, "{}", made.body);
    let assistant = text(&made.body["_id"]);
    let id = document(&app, "One", "of many", json!({})).await;
    let attach = async || {
        let to = json!({"targetType": "assistant", "targetId": "s"});
        app.post(&format!("/documents/{id}/attach"), to).await
    };
    assert_eq!(attach().await.body["attached"], true);
    let others = format!(
        "INSERT INTO uses (account_id, user_kind, user_id, target_kind, target_id) \
         SELECT account_id, user_kind, user_id, target_kind, 'other-' || n FROM uses, generate_series(1, 1000) n \
         WHERE user_id = '{assistant}'"
    );
    db.run(&others).await;
    assert_eq!(attach().await.error(), "VALIDATION_ERROR");
    let patch = json!({"knowledgeDocumentIds": (0..1001).map(|n| n.to_string()).collect::<Vec<_>>()});
    assert_eq!(app.patch("/assistants/s", patch).await.error(), "VALIDATION_ERROR");
}

/// Records that refer to each other, deleted and changed at the same moment.
#[tokio::test]
async fn whoever_deletes_and_whoever_refers_never_wait_for_each_other_and_nothing_refers_to_what_is_gone() {
    let db = TestDb::new().await;
    let app = TestApp::start(PROGRAM, &db, &UNBOUNDED);
    let round = |n: usize| {
        let app = &app;
        async move {
            let top = folder(app, &format!("F{n}"), json!({})).await;
            let within = json!({"folderId": top});
            let (one, other) =
                (document(app, "1", "one", within.clone()).await, document(app, "2", "two", within).await);
            let known = json!({"knowledgeDocumentIds": [one, other], "knowledgeFolderIds": [top]});
            let named = |name: &str| {
                let mut body = known.clone();
                body["name"] = format!("{name}{n}").into();
                body
            };
            let environment = text(&app.post("/environments", named("E")).await.body["_id"]);
            let enabled = |name: &str| {
                let mut body = named(name);
                body["subAgentConfig"] = json!({"enabled": true});
                body
            };
            let agents = [agent(app, enabled("A")).await, agent(app, enabled("B")).await];
            let clerk = format!("/assistants/clerk{n}");
            let mut assistant = named("Clerk");
            (assistant["identifier"], assistant["subagentsIds"]) = (json!(format!("clerk{n}")), json!(agents));
            assert_eq!(app.post("/assistants", assistant).await.status, StatusCode::CREATED);
            let mut requests = vec![(Method::PATCH, clerk, json!({"subagentsIds": [agents[1]]}))];
            for (agent, other) in agents.iter().zip(agents.iter().rev()) {
                let hands_to = json!({"assistantSpecialization": {"subagentsIds": [other]}});
                assert_eq!(app.patch(&format!("/agents/{agent}"), hands_to).await.status, StatusCode::OK);
                let to = json!({"targetType": "agent", "targetId": agent});
                requests.extend([
                    (Method::PUT, format!("/environments/{environment}/connections/agent/{agent}"), json!({})),
                    (Method::PATCH, format!("/agents/{agent}"), json!({"assistantSpecialization": known})),
                    (Method::POST, format!("/documents/{one}/attach"), to.clone()),
                    (Method::POST, format!("/document-folders/{top}/attach"), to),
                ]);
            }
            requests.extend([
                (Method::PATCH, format!("/environments/{environment}"), json!({"knowledgeDocumentIds": [other, one]})),
                (Method::DELETE, format!("/documents/{other}"), json!({})),
                (Method::DELETE, format!("/document-folders/{top}?deleteDocuments=true"), json!({})),
                (Method::DELETE, format!("/environments/{environment}"), json!({})),
                (Method::DELETE, format!("/agents/{}", agents[0]), json!({})),
                (Method::DELETE, format!("/agents/{}", agents[1]), json!({})),
            ]);
            let by = n % requests.len();
            requests.rotate_left(by);
            let sent = requests.into_iter().map(|(method, path, body)| async move {
                let reply = app.send(app.request(method.clone(), &path).json(&body)).await;
                assert!(!reply.status.is_server_error(), "{method} {path}: {}", reply.body);
            });
            join_all(sent).await;
        }
    };
    for n in 0..6 {
        join_all((0..6).map(|of| round(6 * n + of))).await;
    }
    let dangling = "SELECT count(*) AS n FROM uses WHERE target_kind IN ('document', 'folder')
        AND NOT EXISTS (SELECT FROM documents d WHERE d.id = target_id)
        AND NOT EXISTS (SELECT FROM folders f WHERE f.id = target_id)";
    assert_eq!(db.number(dangling).await, 0);
}

#[tokio::test]
async fn a_text_has_as_many_bytes_as_the_settings_say() {
    let app = app_with(&[("PLATFORM_MAX_DOCUMENT_BYTES", "100")]).await;
    let id = document(&app, "Fits", &"x".repeat(100), json!({})).await;
    let long = json!({"markdownContent": "x".repeat(101)});
    assert_eq!(app.patch(&format!("/documents/{id}"), long).await.error(), "VALIDATION_ERROR");
    let more = json!({"name": "More", "markdownContent": "x".repeat(101)});
    assert_eq!(app.post("/documents", more).await.error(), "VALIDATION_ERROR");
    let file = Form::new().part("file", Part::bytes("y".repeat(101).into_bytes()).file_name("y.md"));
    let uploaded = app.send(app.request(Method::POST, "/documents/upload").multipart(file)).await;
    assert_eq!(uploaded.status, StatusCode::CREATED, "{}", uploaded.body);
    assert_eq!(uploaded.body["indexing"]["error"]["code"], "TEXT_TOO_LARGE", "{}", uploaded.body);
}

/// Page, heading and a question that is answered there, by a person who had read the pages.
const KNOWN_ITEMS: &str = include_str!("known_items.txt");

/// Asks about our own pages: of ten questions `least` have the right section among the first three.
pub async fn find_known_items(app: &TestApp, mode: &str, least: usize) {
    let (mut found, mut missed) = (0, Vec::new());
    for line in KNOWN_ITEMS.lines() {
        let [page, heading, question] = line.split(" | ").collect::<Vec<_>>()[..] else { panic!("{line}") };
        let first = search(app, json!({"query": question, "limit": 3, "mode": mode})).await;
        let is_it = |result: &Value| {
            result["name"] == page && result["headingPath"].as_array().expect("a path").contains(&json!(heading))
        };
        if first.iter().any(is_it) { found += 1 } else { missed.push(question) }
    }
    let all = found + missed.len();
    println!("{mode}: {found} of {all}; not found: {missed:#?}");
    assert!(all >= 60 && found * 10 >= all * least, "{mode}: {found} of {all}: {missed:#?}");
}

#[tokio::test]
async fn the_right_section_of_our_own_pages_is_among_the_first_three() {
    let app = app().await;
    let pages = app.get("/docs").await.body;
    for page in pages["docs"].as_array().expect("pages") {
        let name = page["filename"].as_str().expect("a name");
        let markdown = app.get(&format!("/docs/{name}?format=markdown")).await.body;
        document(&app, name, markdown.as_str().expect("text"), json!({})).await;
    }
    let pending = async || app.get("/documents?status=pending").await.body["total"].clone();
    eventually("all pages are indexed", async || (pending().await == 0).then_some(())).await;
    for mode in ["keyword", "hybrid"] {
        find_known_items(&app, mode, 9).await;
    }
}

#[tokio::test]
async fn what_is_said_of_documents_is_what_they_are() {
    let app = app_with(&[("PLATFORM_LIMIT_DOCUMENT_VERSIONS", "3")]).await;
    let id = document(&app, "Rules", "first", json!({})).await;
    let path = format!("/documents/{id}");
    for n in 0..5 {
        app.patch(&path, json!({"markdownContent": format!("text {n}")})).await;
    }
    let versions = app.get(&format!("{path}/versions")).await.body;
    let kept: Vec<_> = versions.as_array().expect("versions").iter().map(|of| of["version"].clone()).collect();
    assert_eq!(kept, [6, 5, 4]);
    let nothing = app.patch(&path, json!({"markdownContent": null})).await;
    assert_eq!(nothing.error(), "VALIDATION_ERROR");

    // Who has it says so by its name, also after that has changed; the built-in assistant has nothing.
    let assistant = json!({"name": "S", "identifier": "s", "knowledgeDocumentIds": [id]});
    let made = app.post("/assistants", assistant).await;
    assert_eq!(made.body["memoryDocuments"], json!([{"id": id, "name": "Rules"}]));
    app.patch(&path, json!({"name": "House rules"})).await;
    let read = app.get("/assistants/s").await.body;
    assert_eq!(read["memoryDocuments"], json!([{"id": id, "name": "House rules"}]));
    let to_default = json!({"targetType": "assistant", "targetId": "default"});
    assert_eq!(app.post(&format!("{path}/attach"), to_default).await.error(), "FORBIDDEN");

    // What moves with its folder is another version of its record.
    let project = text(&app.post("/projects", json!({"name": "p", "identifier": "p"})).await.body["_id"]);
    let within = folder(&app, "F", json!({"color": "x".repeat(100)})).await;
    let moved = document(&app, "Moved", "x", json!({"folderId": within})).await;
    let before = app.get(&format!("/documents/{moved}")).await;
    app.patch(&format!("/document-folders/{within}"), json!({"projectId": project})).await;
    let after = app.get(&format!("/documents/{moved}")).await;
    assert_eq!(after.body["projectId"], project);
    assert_ne!(before.header("etag"), after.header("etag"));
    app.delete(&format!("/document-folders/{within}")).await;
    assert_ne!(app.get(&format!("/documents/{moved}")).await.header("etag"), after.header("etag"));

    let utf_16: Vec<u8> = "\u{feff}Grüße".encode_utf16().flat_map(u16::to_le_bytes).collect();
    for (name, bytes, status, says) in [
        ("windows.txt", utf_16, "pending", "Grüße"),
        ("empty.md", Vec::new(), "pending", ""),
        ("latin.txt", b"caf\xe9".to_vec(), "failed", ""),
        ("scan.pdf", pdf(""), "failed", ""),
    ] {
        let made = upload(&app, name, bytes, &[]).await;
        assert_eq!((&made.body["status"], &made.body["markdownContent"]), (&json!(status), &json!(says)), "{name}");
    }
    let queued = app.post("/documents/reindex", json!({"status": "failed"})).await;
    assert_eq!(queued.body, json!({"queued": 2}));
    let failed = async || (app.get("/documents?status=failed").await.body["total"] == 2).then_some(());
    eventually("they are read again", failed).await;
}
