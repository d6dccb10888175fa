//! `/v1/skills`: instructions that models load when they need them.

use std::io::{Cursor, Write};

use platform_testing::{Reply, Script, TestApp, TestDb};
use reqwest::{
    Method, StatusCode,
    multipart::{Form, Part},
};
use serde_json::{Value, json};
use zip::{ZipWriter, write::SimpleFileOptions};

use crate::{
    document_files::zip,
    documents::in_turns::called,
    support::{PROGRAM, agent, app, app_with_model_on, text},
    uploads::{below, own_dir},
};

const REVIEW: &str = "---\nname: code-review\ndescription: \"Reviews changes: finds what is wrong\"\nlicense: MIT\n---\n\n# Review\n\nRead every line twice.\n";

async fn import(app: &TestApp, files: &[(&str, &[u8])]) -> Reply {
    let form = files.iter().fold(Form::new(), |form, (path, bytes)| {
        form.part("files", Part::bytes(bytes.to_vec()).file_name((*path).to_owned()))
    });
    app.send(app.request(Method::POST, "/skills/import").multipart(form)).await
}

async fn import_zip(app: &TestApp, archive: Vec<u8>) -> Reply {
    let form = Form::new().part("file", Part::bytes(archive).file_name("skill.zip"));
    app.send(app.request(Method::POST, "/documents/skills/import").multipart(form)).await
}

#[tokio::test]
async fn a_skill_folder_of_another_product_is_imported_and_leaves_as_it_came() {
    let app = app().await;
    let files: [(&str, &[u8]); 5] = [
        ("review/SKILL.md", REVIEW.as_bytes()),
        ("review/scripts/run.py", b"print('hi')\n"),
        ("review/references/style.md", b"# Style\n\nShort lines."),
        ("review/assets/logo.png", b"\x89PNG\r\n\x1a\n\0"),
        ("review/.DS_Store", b"x"),
    ];
    let made = import(&app, &files).await;
    assert_eq!(made.status, StatusCode::CREATED, "{}", made.body);
    let skill = &made.body["skill"];
    assert_eq!((&skill["name"], &skill["type"]), (&json!("code-review"), &json!("folder")));
    assert_eq!(skill["description"], "Reviews changes: finds what is wrong");
    let id = text(&skill["id"]);
    assert_eq!(made.body["folder"]["_id"], json!(id));
    let tree = app.get(&format!("/documents/skills/{id}/tree?type=folder")).await.body;
    let paths: Vec<_> = tree["files"].as_array().expect("files").iter().map(|file| file["path"].clone()).collect();
    assert_eq!(paths, ["SKILL.md", "assets/logo.png", "references/style.md", "scripts/run.py"].map(|path| json!(path)));
    let logo =
        json!({"path": "assets/logo.png", "content": "iVBORw0KGgoA", "encoding": "base64", "fileType": "binary"});
    assert_eq!(tree["files"][1], logo);
    assert_eq!((&tree["files"][0]["content"], &tree["version"]), (&json!(REVIEW), &skill["version"]));
    assert_eq!((&tree["files"][3]["content"], tree["files"][3].get("encoding")), (&json!("print('hi')\n"), None));
    let version = tree["version"].as_str().expect("a version");
    assert!(version.len() == 16 && version.bytes().all(|b| b.is_ascii_hexdigit()), "{version}");

    let archive = app.request(Method::GET, &format!("/skills/{id}/archive")).send().await.expect("an answer");
    assert_eq!(archive.headers()["content-type"], "application/zip");
    assert_eq!(archive.headers()["content-disposition"], "attachment; filename=\"code-review.zip\"");
    let archive = archive.bytes().await.expect("bytes").to_vec();
    let again = import_zip(&app, archive.clone()).await;
    assert_eq!(again.status, StatusCode::CREATED, "{}", again.body);
    assert_eq!(again.body["skill"]["version"], *version, "the same content has the same version");
    let copy = text(&again.body["skill"]["id"]);
    assert_eq!(app.get(&format!("/skills/{copy}/tree")).await.body["files"], tree["files"]);
    let document = app.get("/documents?fileType=binary&search=logo").await.body["documents"][0].clone();
    let nonsense = json!({"markdownContent": "no picture"});
    let edited = app.patch(&format!("/documents/{}", text(&document["_id"])), nonsense).await;
    assert_eq!(edited.error(), "VALIDATION_ERROR", "{}", edited.body);
    // What is no text is a file, which goes with its skill; with other bytes it is another version.
    let other =
        import(&app, &[files[0], files[1], files[2], ("review/assets/logo.png", b"\x89PNG\r\n\x1a\n\x01\0")]).await;
    assert_ne!(other.body["skill"]["version"], *version);
    let files_kept = async || app.get("/files").await.body["total"].clone();
    assert_eq!(files_kept().await, 3);
    for gone in [text(&other.body["skill"]["id"]), copy] {
        app.delete(&format!("/document-folders/{gone}?deleteDocuments=true")).await;
    }
    assert_eq!(files_kept().await, 1);
    // Another text is another version.
    let doc = text(&made.body["skillDoc"]["_id"]);
    app.patch(&format!("/documents/{doc}"), json!({"markdownContent": REVIEW.replace("twice", "once")})).await;
    assert_ne!(app.get(&format!("/skills/{id}/tree")).await.body["version"], *version);

    let large = vec![b'x'; 8_500_000];
    for (files, code) in [
        (&[("a/b.md", &b"x"[..])][..], "VALIDATION_ERROR"),
        (&[("SKILL.md", b"x"), ("../up.md", b"x")], "VALIDATION_ERROR"),
        (&[("SKILL.md", b"x"), ("/etc/passwd", b"x")], "VALIDATION_ERROR"),
        (&[("SKILL.md", &large)], "PAYLOAD_TOO_LARGE"),
        (&[], "BAD_REQUEST"),
    ] {
        let refused = import(&app, files).await;
        assert_eq!(refused.error(), code, "{:?}: {}", files.first().map(|(path, _)| path), refused.body);
    }
    for archive in [b"PK\x03\x04 broken".to_vec(), b"nothing".to_vec(), archive[..archive.len() / 2].to_vec()] {
        let refused = import_zip(&app, archive).await;
        assert_eq!(
            (refused.status, refused.error()),
            (StatusCode::BAD_REQUEST, "VALIDATION_ERROR"),
            "{}",
            refused.body
        );
    }
    assert_eq!(app.get("/skills").await.body["total"], 1, "what is refused leaves nothing");
}

#[tokio::test]
async fn skills_are_begun_listed_installed_and_attached() {
    let app = app().await;
    let begun =
        app.post("/documents/skills/scaffold", json!({"name": "deploy", "description": "Ships it", "tags": ["ops"]}));
    let begun = begun.await;
    assert_eq!((begun.status, &begun.body["folder"]["isSkill"]), (StatusCode::CREATED, &json!(true)), "{}", begun.body);
    assert_eq!(begun.body["skillDoc"]["name"], "SKILL");
    let id = text(&begun.body["folder"]["_id"]);
    let single = json!({"name": "Greeting", "markdownContent": "Say hello.", "isSkill": true, "tags": ["words"]});
    let single = text(&app.post("/documents", single).await.body["_id"]);
    let all = app.get("/documents/skills").await.body;
    assert_eq!((&all["total"], &all["page"], &all["limit"]), (&json!(2), &json!(1), &json!(2)));
    assert_eq!((&all["items"][0]["name"], &all["items"][1]["name"]), (&json!("Greeting"), &json!("deploy")));
    assert_eq!(all["items"][1]["description"], "Ships it");
    assert!(all["items"][0].get("installCount").is_none());
    for (query, total, shown) in [
        ("limit=1", 2, 1),
        ("limit=500&page=2", 2, 0),
        ("search=SHIPS", 1, 1),
        ("tags=ops,x", 1, 1),
        ("projectId=nothing", 0, 0),
    ] {
        let list = app.get(&format!("/skills?{query}")).await.body;
        assert_eq!((&list["total"], list["items"].as_array().map(Vec::len)), (&json!(total), Some(shown)), "{query}");
    }
    for query in ["limit=0", "page=0", "limit=x"] {
        assert_eq!(app.get(&format!("/skills?{query}")).await.error(), "INVALID_PAGINATION", "{query}");
    }
    assert_eq!(app.get("/skills/tags").await.body, json!(["ops", "words"]));

    let install = json!({"agents": ["claude"], "scope": "global", "cliVersion": "1.2"});
    for _ in 0..2 {
        let tree = app.post(&format!("/documents/skills/{id}/install?type=folder"), install.clone()).await;
        assert_eq!((tree.status, &tree.body["files"][0]["path"]), (StatusCode::OK, &json!("SKILL.md")));
    }
    app.post(&format!("/skills/{id}/install"), json!({})).await;
    let counts = async || {
        let list = app.get("/skills?limit=10&search=deploy").await.body;
        let item = &list["items"][0];
        [&item["installCount"], &item["linkedAgentsCount"], &item["linkedAssistantsCount"], &item["readCount"]]
            .map(Value::clone)
    };
    assert_eq!(counts().await, [2, 0, 0, 0].map(|n| json!(n)));
    assert_eq!(
        app.delete(&format!("/documents/skills/{id}/install?scope=global")).await.status,
        StatusCode::NO_CONTENT
    );
    let attached = json!({"name": "S", "identifier": "s", "knowledgeSkills": [{"id": id, "type": "folder"}]});
    assert_eq!(app.post("/assistants", attached).await.status, StatusCode::CREATED);
    let specialized = json!({"knowledgeSkills": [{"id": id, "type": "folder", "preloadContent": true}]});
    let agent_id = agent(&app, json!({"name": "A", "assistantSpecialization": specialized})).await;
    assert_eq!(counts().await, [1, 1, 1, 0].map(|n| json!(n)));
    for (skills, reason) in [
        (
            json!([{"id": single, "type": "folder"}]),
            json!({"id": single, "reason": "WRONG_TYPE", "expectedType": "document"}),
        ),
        (json!([{"id": "nobody's", "type": "folder"}]), json!({"id": "nobody's", "reason": "NOT_FOUND"})),
        (json!([{"id": id, "type": "planet"}]), json!({"id": id, "reason": "INVALID_TYPE"})),
    ] {
        let refused = app.patch("/assistants/s", json!({"knowledgeSkills": skills})).await;
        assert_eq!((refused.status, refused.error()), (StatusCode::BAD_REQUEST, "INVALID_SKILLS"), "{}", refused.body);
        assert_eq!(refused.body["details"]["skills"], json!([reason]));
        let specialized = json!({"assistantSpecialization": {"knowledgeSkills": skills}});
        assert_eq!(app.patch(&format!("/agents/{agent_id}"), specialized).await.error(), "INVALID_SKILLS");
    }
    for path in [format!("/skills/{id}/tree?type=document"), "/skills/nobody/tree".to_owned()] {
        assert_eq!(app.get(&path).await.error(), "SKILL_NOT_FOUND", "{path}");
    }
    assert_eq!(app.delete(&format!("/document-folders/{id}?deleteDocuments=true")).await.status, StatusCode::OK);
    assert_eq!(app.get("/assistants/s").await.body["knowledgeSkills"], json!([]));
    let specialization = app.get(&format!("/agents/{agent_id}")).await.body["assistantSpecialization"].clone();
    assert_eq!(specialization["knowledgeSkills"], json!([]));
}

#[tokio::test]
async fn of_many_skills_each_is_found_and_counted() {
    let db = TestDb::new().await;
    let app = TestApp::start(PROGRAM, &db, &[]);
    let first = app
        .post("/skills/scaffold", json!({"name": "first", "description": "The oldest of all", "tags": ["oldest"]}))
        .await;
    assert_eq!(first.status, StatusCode::CREATED, "{}", first.body);
    db.run(
        "INSERT INTO folders (account_id, id, name, tags, is_skill, created_ms, edited_ms) \
         SELECT account_id, 'f' || n, 'Skill ' || n, '[\"more\"]', true, created_ms + 1, edited_ms FROM folders, \
         generate_series(1, 2100) n",
    )
    .await;
    let all = app.get("/skills").await.body;
    let counted = (&all["total"], &all["limit"], all["items"].as_array().map(Vec::len));
    assert_eq!(counted, (&json!(2101), &json!(2000), Some(2000)));
    assert_eq!(app.get("/skills/tags").await.body, json!(["more", "oldest"]));
    for (query, total, newest) in [
        ("limit=1&page=2101", 2101, json!("first")),
        ("limit=200&page=12", 2101, Value::Null),
        ("search=oldest", 1, json!("first")),
        ("search=skill%20&limit=5&page=3", 2100, json!("Skill 99")),
    ] {
        let list = app.get(&format!("/skills?{query}")).await.body;
        assert_eq!((&list["total"], &list["items"][0]["name"]), (&json!(total), &newest), "{query}");
    }
}

#[tokio::test]
async fn a_turn_is_told_of_its_skills_and_loads_one_when_it_needs_it() {
    let db = TestDb::new().await;
    let (app, model) = app_with_model_on(&db, &[]);
    let files: [(&str, &[u8]); 3] =
        [("SKILL.md", REVIEW.as_bytes()), ("scripts/run.py", b"print(1)"), ("logo.png", b"\x89PNG\0")];
    let review = text(&import(&app, &files).await.body["skill"]["id"]);
    let other = json!({"name": "Secret skill", "markdownContent": "hidden", "isSkill": true});
    let other = text(&app.post("/documents", other).await.body["_id"]);
    let skills = json!([{"id": review, "type": "folder"}, {"id": other, "type": "document", "enabled": false}]);
    let settings = json!({"name": "S", "identifier": "s", "presets": "Be kind.", "knowledgeSkills": skills});
    assert_eq!(app.post("/assistants", settings).await.status, StatusCode::CREATED);
    let loaded = called(&app, &model, "s", "load_skill", json!({"id": review})).await;
    assert_eq!((&loaded["content"], &loaded["path"]), (&json!(REVIEW), &json!("SKILL.md")));
    assert_eq!(loaded["files"], json!(["SKILL.md", "logo.png", "scripts/run.py"]));
    let system = |body: &Value| body["messages"][0]["content"].as_str().unwrap_or_default().to_owned();
    let told = system(&model.recorded().last().expect("a request").body);
    assert!(told.starts_with("Be kind.\n\nYou have these skills."), "{told}");
    assert!(told.contains("- code-review (id ") && told.contains("Reviews changes: finds what is wrong"), "{told}");
    assert!(!told.contains("Read every line twice") && !told.contains("Secret skill"), "{told}");
    let file = called(&app, &model, "s", "load_skill", json!({"id": review, "path": "scripts/run.py"})).await;
    assert_eq!((&file["content"], file.get("downloadUrl")), (&json!("print(1)"), None));
    // What is no text is where it can be fetched.
    let logo = called(&app, &model, "s", "load_skill", json!({"id": review, "path": "logo.png"})).await;
    let address =
        logo["downloadUrl"].as_str().and_then(|url| url.strip_prefix(app.url())).expect("an address").to_owned();
    let fetched = app.anonymous(Method::GET, &address).send().await.expect("an answer").bytes().await.expect("bytes");
    assert_eq!((&logo["content"], &fetched[..]), (&json!(""), &b"\x89PNG\0"[..]));
    for (arguments, what) in
        [(json!({"id": other}), "not enabled"), (json!({"id": review, "path": "../x"}), "no such file")]
    {
        assert_eq!(called(&app, &model, "s", "load_skill", arguments).await["error"], "SKILL_NOT_FOUND", "{what}");
    }
    let item = app.get("/skills?search=code-review").await.body["items"][0].clone();
    assert_eq!(item["readCount"], 3);
    assert!(item["lastReadAt"].as_str().is_some_and(|at| at.ends_with('Z')), "{item}");
    let preloaded = json!({"knowledgeSkills": [{"id": review, "type": "folder", "preloadContent": true}]});
    app.patch("/assistants/s", preloaded).await;
    model.script([Script::words(&["ok"])]);
    app.post("/assistants/s/messages", json!({"message": "Hi", "skipSummarization": true})).await;
    let told = system(&model.recorded().last().expect("a request").body);
    assert!(told.contains("Read every line twice"), "{told}");

    // Of more files than can be listed the instructions are read all the same.
    let folder: String = review.clone();
    db.run(&format!(
        "INSERT INTO documents SELECT (jsonb_populate_record(d, jsonb_build_object('id', 'more' || n, \
         'file_name', 'more' || n || '.md', 'created_ms', d.created_ms + 1))).* FROM documents d, generate_series(1, 2001) n \
         WHERE d.file_name = 'SKILL.md' AND d.folder_id = '{folder}'"
    ))
    .await;
    let loaded = called(&app, &model, "s", "load_skill", json!({"id": review})).await;
    assert_eq!((&loaded["content"], loaded["files"].as_array().map(Vec::len)), (&json!(REVIEW), Some(2000)));
    let told = system(&model.recorded().last().expect("a request").body);
    assert!(told.contains("Read every line twice"), "{told}");
    assert_eq!(app.get(&format!("/skills/{review}/tree")).await.error(), "PAYLOAD_TOO_LARGE");
}

#[tokio::test]
async fn no_path_of_a_skill_leads_out_of_it_and_no_file_is_lost_behind_another() {
    let app = app().await;
    let made = import(&app, &[("SKILL.md", REVIEW.as_bytes())]).await.body;
    let folder = &made["folder"]["_id"];
    let skill = text(folder);
    let add = async |name: &str, content: &str| {
        let document = json!({"name": name, "markdownContent": content, "folderId": folder});
        text(&app.post("/documents", document).await.body["_id"])
    };
    add("../../evil", "a").await;
    add("/etc/x", "b").await;
    add("ref", "one").await;
    let second = add("REF", "two").await;
    let tree = app.get(&format!("/skills/{skill}/tree")).await.body;
    let paths: Vec<&str> =
        tree["files"].as_array().expect("files").iter().map(|file| file["path"].as_str().expect("a path")).collect();
    assert_eq!(paths, [".._.._evil.md", "REF-2.md", "SKILL.md", "_etc_x.md", "ref.md"]);
    app.patch(&format!("/documents/{second}"), json!({"markdownContent": "three"})).await;
    let other = app.get(&format!("/skills/{skill}/tree")).await.body;
    assert_ne!(other["version"], tree["version"], "every file counts");
    // What lies in a skill within it counts, too; each is told by its own files.
    let skill_in = async |name: &str, parent: &Value| {
        let new = json!({"name": name, "isSkill": true, "parentFolderId": parent});
        app.post("/document-folders", new).await.body["_id"].clone()
    };
    let inner = skill_in("most", &skill_in("inner", folder).await).await;
    let version_of = async |id: &Value| {
        let listed = app.get("/skills").await.body;
        let listed = listed["items"].as_array().expect("items").iter().find(|skill| skill["id"] == *id).cloned();
        listed.expect("it is listed")["version"].clone()
    };
    let before = (version_of(&json!(skill)).await, version_of(&inner).await);
    app.post("/documents", json!({"name": "deep", "markdownContent": "x", "folderId": inner})).await;
    let after = (version_of(&json!(skill)).await, version_of(&inner).await);
    assert!(before.0 != after.0 && before.1 != after.1);
    let nested = app.get(&format!("/skills/{skill}/tree")).await.body;
    assert_eq!(nested["version"], after.0);
    assert!(nested["files"].as_array().expect("files").iter().any(|file| file["path"] == "inner/most/deep.md"));
    let archive = app.send(app.request(Method::GET, &format!("/skills/{skill}/archive"))).await;
    assert_eq!(archive.status, StatusCode::OK);
    assert_eq!(app.get(&format!("/skills/{skill}/tree?type=bogus")).await.error(), "VALIDATION_ERROR");
    let escaped = b"---\nname: \"a\\u0000b\\r\\nc\"\n---\nx";
    let one_line = import(&app, &[("SKILL.md", escaped)]).await;
    assert_eq!((one_line.status, &one_line.body["folder"]["name"]), (StatusCode::CREATED, &json!("a b  c")));
    let nameless = import(&app, &[("packing/SKILL.md", b"Pack it well."), ("packing/a.md", b"a")]).await;
    assert_eq!(nameless.body["folder"]["name"], "packing", "{}", nameless.body);
    // Who it is stands in SKILL.md, whatever else is called SKILL.
    let other = b"---\nname: wrong\ndescription: wrong\n---\n";
    let named =
        import(&app, &[("SKILL.txt", other), ("SKILL.md", REVIEW.as_bytes()), ("SKILL.html", other)]).await.body;
    assert_eq!(named["skill"]["name"], made["skill"]["name"], "{named}");
    let large = vec![b'x'; (5 << 20) + 1];
    let refused = import(&app, &[("SKILL.md", REVIEW.as_bytes()), ("big.md", &large)]).await;
    assert_eq!(refused.error(), "PAYLOAD_TOO_LARGE", "{}", refused.body);
}

#[tokio::test]
async fn a_skill_that_is_one_document_leaves_as_others_read_it_and_what_a_mac_adds_does_not_count() {
    let app = app().await;
    let one = json!({"name": "Greeting", "isSkill": true, "markdownContent": REVIEW});
    let id = text(&app.post("/documents", one).await.body["_id"]);
    let archive = app.request(Method::GET, &format!("/skills/{id}/archive")).send().await.expect("an answer");
    let again = import_zip(&app, archive.bytes().await.expect("bytes").to_vec()).await;
    assert_eq!((again.status, &again.body["skill"]["name"]), (StatusCode::CREATED, &json!("code-review")));
    let names: Vec<String> = (0..260).flat_map(|n| [format!("s/{n}.md"), format!("__MACOSX/s/._{n}.md")]).collect();
    let many = zip(names.iter().map(|name| (name.as_str(), &b"x"[..])).chain([("s/SKILL.md", REVIEW.as_bytes())]));
    let many = import_zip(&app, many).await;
    assert_eq!(many.status, StatusCode::CREATED, "{}", many.body);
    let tree = app.get(&format!("/skills/{}/tree", text(&many.body["skill"]["id"]))).await.body;
    assert_eq!(tree["files"].as_array().map(Vec::len), Some(261));
}

#[tokio::test]
async fn an_archive_that_is_no_skill_is_refused_and_leaves_nothing() {
    let (db, dir) = (TestDb::new().await, own_dir("hostile-skills"));
    let app = TestApp::start(PROGRAM, &db, &[("PLATFORM_DATA_DIR", dir.to_str().expect("a path"))]);
    let (mut linked, plain) = (ZipWriter::new(Cursor::new(Vec::new())), SimpleFileOptions::default());
    linked.start_file("SKILL.md", plain).expect("a file");
    linked.write_all(REVIEW.as_bytes()).expect("written");
    linked.add_symlink("notes.md", "/etc/passwd", plain).expect("a link");
    let linked = linked.finish().expect("an archive").into_inner();
    let names: Vec<String> = (0..501).map(|n| format!("{n}.md")).collect();
    let many = zip(names.iter().map(|name| (name.as_str(), &b"x"[..])).chain([("SKILL.md", REVIEW.as_bytes())]));
    let zeros = vec![0; 9 << 20];
    for (what, archive, status) in [
        ("a link", linked, StatusCode::BAD_REQUEST),
        ("a way out", zip([("SKILL.md", REVIEW.as_bytes()), ("../x.md", b"x")]), StatusCode::BAD_REQUEST),
        ("a root", zip([("SKILL.md", REVIEW.as_bytes()), ("/etc/x.md", b"x")]), StatusCode::BAD_REQUEST),
        ("many files", many, StatusCode::PAYLOAD_TOO_LARGE),
        ("a bomb", zip([("SKILL.md", REVIEW.as_bytes()), ("a.bin", &zeros)]), StatusCode::PAYLOAD_TOO_LARGE),
        ("no archive", b"PK nothing".to_vec(), StatusCode::BAD_REQUEST),
    ] {
        assert_eq!(import_zip(&app, archive).await.status, status, "{what}");
    }
    assert_eq!(
        (&app.get("/skills").await.body["total"], &app.get("/files").await.body["total"]),
        (&json!(0), &json!(0))
    );
    assert!(below(&dir.join("objects")).is_empty() && below(&dir.join("uploads")).is_empty());
    let _ = std::fs::remove_dir_all(&dir);
}
