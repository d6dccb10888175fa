//! Search by meaning: vectors of a provider and of a table on this machine, made once, kept through crashes, paid.

use std::{
    collections::{BTreeSet, HashMap},
    path::PathBuf,
};

use diesel_async::SimpleAsyncConnection as _;
use platform_testing::{Embeddings, FakeModelServer, TestApp, TestDb};
use reqwest::StatusCode;
use serde_json::{Value, json};

use crate::{
    documents::{document, find_known_items, indexed, names, search},
    support::{PROGRAM, app_with, app_with_model, eventually, finished_of, other_account, start_of, text},
};

const MODEL: (&str, &str) = ("PLATFORM_EMBEDDING_MODEL", "openai:text-embedding-3-small");
const HANDBOOK: &str = "# Handbook\n\n## Keys\n\nWhoever loses a key reports that at once.\n\n## Leave\n\n\
    Everybody has thirty days of holidays every year.\n";

/// A document of many pieces.
fn long(name: &str) -> String {
    (0..150).fold(String::new(), |text, n| {
        format!("{text}# {name} {n}\n\n{}\n\n", format!("piece{n} of {name} says something ").repeat(20))
    })
}

#[tokio::test]
async fn what_means_the_same_is_found_and_whoever_asked_pays_for_it() {
    let (app, model) = app_with_model(&[MODEL]).await;
    // What makes vectors answers nobody.
    let vectors = json!({"message": "Hi", "provider": "openai", "model": "text-embedding-3-small"});
    assert_eq!(app.post("/assistants/default/messages", vectors).await.error(), "MODEL_NOT_SUPPORTED");
    let project = app.post("/projects", json!({"name": "P", "identifier": "p"})).await.body;
    let inside = json!({"projectId": project["_id"], "tags": ["hr"]});
    let id = document(&app, "Handbook", HANDBOOK, inside).await;
    let other = document(&app, "Menu", "# Menu\n\nSoup comes before noodles.", json!({})).await;
    let (made, menu) = (indexed(&app, &id).await, indexed(&app, &other).await);
    assert_eq!((&made["status"], &menu["status"]), (&json!("ready"), &json!("ready")), "{made}");
    assert_eq!((&made["indexing"]["chunksTotal"], &made["indexing"]["chunksDone"]), (&json!(2), &json!(2)));
    let paid = &made["indexing"]["embedding"];
    assert!(paid["tokens"].as_u64() > Some(10) && paid["cost"].as_f64() > Some(0.0), "{made}");
    assert!(model.embedded().iter().flatten().any(|text| text.starts_with("Handbook > Leave\n\n")));

    // Nothing of the document says "vacation".
    let ask = async |mode: &str, more: Value| {
        let mut query = json!({"query": "vacation", "mode": mode});
        query.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        search(&app, query).await
    };
    assert_eq!(names(&ask("keyword", json!({})).await), [""; 0]);
    for mode in ["semantic", "hybrid"] {
        let found = ask(mode, json!({})).await;
        assert_eq!(
            (&found[0]["headingPath"], &found[0]["version"]),
            (&json!(["Handbook", "Leave"]), &json!(1)),
            "{mode}"
        );
        assert!(found.iter().all(|found| (0.0..=1.0).contains(&found["score"].as_f64().expect("a score"))));
        for (bounds, count) in [
            (json!({"documentIds": [other]}), 0),
            (json!({"tags": ["hr"], "limit": 1}), 1),
            (json!({"tags": ["none"]}), 0),
            (json!({"projectId": project["_id"]}), 1),
            (json!({"folderIds": ["none"]}), 0),
        ] {
            assert_eq!(ask(mode, bounds.clone()).await.len(), count, "{mode} {bounds}");
        }
    }
    // Both of its words are in one piece, one of them in the other: that one leads both lists.
    let best = search(&app, json!({"query": "vacation days every year"})).await;
    assert!(best[0]["score"].as_f64() > Some(0.99), "{best:?}");

    let assistant = json!({"name": "S", "identifier": "s", "knowledgeDocumentIds": [id], "projectId": project["_id"],
        "knowledgeRecall": {"enabled": true}});
    assert_eq!(app.post("/assistants", assistant).await.status, StatusCode::CREATED);
    let chat = start_of(&app, "s", "How much vacation do I get?").await;
    let turn = finished_of(&app, "s", &chat).await;
    assert_eq!(turn["tokenUsage"]["secondaryByOperation"]["embedding"]["calls"], 1, "{turn}");
    let asked = model.recorded().into_iter().rfind(|call| call.path.ends_with("completions")).expect("a turn").body;
    assert!(asked["messages"].to_string().contains("thirty days of holidays"), "{asked}");
    let costs = app.get("/projects/p/costs/daily").await.body;
    assert!(costs[0]["secondaryCost"].as_f64() > paid["cost"].as_f64(), "index, searches and recall: {costs}");

    // A changed section takes its own vector alone; a deleted document is gone at once.
    let before = model.embedded().concat().len();
    let changed = HANDBOOK.replace("thirty", "forty");
    app.patch(&format!("/documents/{id}"), json!({"markdownContent": changed})).await;
    assert_eq!(indexed(&app, &id).await["status"], "ready");
    let after = model.embedded().concat();
    assert_eq!(after.len() - before, 1, "{:?}", &after[before..]);
    assert!(ask("semantic", json!({})).await[0]["text"].as_str().expect("text").contains("forty"));
    app.delete(&format!("/documents/{id}")).await;
    assert!(names(&ask("semantic", json!({})).await).iter().all(|name| *name != "Handbook"));
}

#[tokio::test]
async fn words_are_found_while_no_vectors_can_be_made_and_nothing_is_asked_twice() {
    let attempts = ("PLATFORM_MODEL_ATTEMPTS", "1");
    let (app, model) = app_with_model(&[MODEL, attempts]).await;
    model.embeddings(Embeddings::Refused(400));
    let id = document(&app, "Handbook", HANDBOOK, json!({})).await;
    let failed = async || {
        let document = app.get(&format!("/documents/{id}")).await.body;
        (document["indexing"]["error"]["code"] == "EMBEDDING_FAILED").then_some(document)
    };
    let waiting = eventually("the first try has failed", failed).await;
    assert_eq!((&waiting["status"], &waiting["indexing"]["attempts"]), (&json!("pending"), &json!(1)), "{waiting}");
    assert_eq!(names(&search(&app, json!({"query": "holidays"})).await), ["Handbook"], "by words");
    let refused = app.post("/documents/search", json!({"query": "holidays", "mode": "semantic"})).await;
    assert_eq!((refused.status, refused.error()), (StatusCode::BAD_GATEWAY, "UPSTREAM_ERROR"));

    model.embeddings(Embeddings::Given);
    assert_eq!(app.post(&format!("/documents/{id}/reindex"), json!({})).await.status, StatusCode::ACCEPTED);
    assert_eq!(indexed(&app, &id).await["status"], "ready");
    assert_eq!(names(&search(&app, json!({"query": "vacation", "limit": 1})).await), ["Handbook"]);
    let asked = model.embedded().len();
    app.post(&format!("/documents/{id}/reindex"), json!({})).await;
    assert_eq!(indexed(&app, &id).await["status"], "ready");
    assert_eq!(model.embedded().len(), asked, "its vectors are there");
}

#[tokio::test]
async fn a_document_is_tried_three_times_and_a_provider_that_is_away_for_a_moment_is_not_one() {
    let (db, model) = (TestDb::new().await, FakeModelServer::start());
    let base = format!("{}/v1", model.url());
    let settings = [("OPENAI_BASE_URL", base.as_str()), MODEL, ("PLATFORM_SECONDARY_MODEL", "demo:demo-1")];
    let app = TestApp::start(PROGRAM, &db, &settings);
    model.embeddings(Embeddings::Refused(503));
    let away = document(&app, "Menu", "# Menu\n\nSoup comes first.", json!({})).await;
    let calls = || model.recorded().iter().filter(|call| call.path.ends_with("embeddings")).count();
    eventually("it was asked for", async || (calls() > 0).then_some(())).await;
    model.embeddings(Embeddings::Given);
    let ready = indexed(&app, &away).await;
    assert_eq!((&ready["status"], &ready["indexing"]["attempts"]), (&json!("ready"), &json!(1)), "{ready}");

    model.embeddings(Embeddings::Refused(400));
    let id = document(&app, "Handbook", HANDBOOK, json!({})).await;
    for (attempt, wait) in [(1, 10_000), (2, 60_000)] {
        let tried = eventually("a try has failed", async || {
            let of = app.get(&format!("/documents/{id}")).await.body;
            let is_tried = of["indexing"]["attempts"] == attempt && of["indexing"]["error"].is_object();
            is_tried.then_some(of)
        })
        .await;
        assert_eq!(tried["status"], "pending", "{tried}");
        let waits = "SELECT (due_ms - edited_ms)::bigint AS n FROM documents WHERE due_ms IS NOT NULL";
        let waits =
            eventually("another is due", async || Some(db.number(waits).await).filter(|waits| *waits >= wait)).await;
        assert!(waits < wait + 60_000, "{waits}");
        db.run("UPDATE documents SET due_ms = 0 WHERE due_ms IS NOT NULL; UPDATE runs SET due = now() WHERE kind = 'index'")
            .await;
    }
    let failed = indexed(&app, &id).await;
    assert_eq!((&failed["status"], &failed["indexing"]["attempts"]), (&json!("failed"), &json!(3)), "{failed}");
    assert_eq!(failed["indexing"]["error"]["code"], "EMBEDDING_FAILED", "{failed}");
    let left = async || db.number("SELECT count(*) AS n FROM runs WHERE kind = 'index'").await;
    eventually("no run is left", async || (left().await == 0).then_some(())).await;
    assert_eq!(names(&search(&app, json!({"query": "holidays"})).await), ["Handbook"], "its words are found");
}

#[tokio::test]
async fn a_killed_process_goes_on_with_the_vectors_that_are_missing() {
    let (db, model) = (TestDb::new().await, FakeModelServer::start());
    let base = format!("{}/v1", model.url());
    let settings = [("OPENAI_BASE_URL", base.as_str()), MODEL, ("PLATFORM_SECONDARY_MODEL", "demo:demo-1")];
    let mut app = TestApp::start(PROGRAM, &db, &settings);
    let id = document(&app, "Long", &long("Long"), json!({})).await;
    let under_way = async || {
        let document = app.get(&format!("/documents/{id}")).await.body;
        (document["indexing"]["chunksDone"].as_u64() > Some(0)).then_some(document)
    };
    let document = eventually("some vectors are there", under_way).await;
    model.embeddings(Embeddings::Held);
    let all = usize::try_from(document["indexing"]["chunksTotal"].as_u64().expect("pieces")).expect("a few");
    assert!(all > 128, "{document}");
    app.crash();
    model.embeddings(Embeddings::Given);
    let ready = indexed(&app, &id).await;
    assert_eq!((&ready["status"], &ready["indexing"]["chunksDone"]), (&json!("ready"), &json!(all)), "{ready}");
    let texts = model.embedded().concat();
    assert_eq!(texts.iter().collect::<BTreeSet<_>>().len(), all);
    assert!(texts.len() <= all + 64, "at most one call is made again: {} of {all}", texts.len());
    let stored = db.number("SELECT count(*) AS n FROM chunk_vectors").await;
    assert_eq!(usize::try_from(stored).expect("a few"), all);
}

#[tokio::test]
async fn a_provider_of_vectors_that_fails_again_and_again_is_asked_no_more_for_a_while() {
    let (app, model) = app_with_model(&[MODEL, ("PLATFORM_MODEL_ATTEMPTS", "1")]).await;
    let id = document(&app, "Handbook", HANDBOOK, json!({})).await;
    assert_eq!(indexed(&app, &id).await["status"], "ready");
    model.embeddings(Embeddings::Refused(503));
    let calls = || model.recorded().iter().filter(|call| call.path.ends_with("embeddings")).count();
    let before = calls();
    for n in 0..12 {
        assert_eq!(names(&search(&app, json!({"query": format!("holidays {n}")})).await), ["Handbook"], "by words");
    }
    assert_eq!(calls(), before + 10, "ten failures are enough");
}

#[tokio::test]
async fn a_changed_document_is_found_as_it_was_until_it_can_be_found_as_it_is() {
    let (db, model) = (TestDb::new().await, FakeModelServer::start());
    let base = format!("{}/v1", model.url());
    let settings = [("OPENAI_BASE_URL", base.as_str()), MODEL, ("PLATFORM_SECONDARY_MODEL", "demo:demo-1")];
    let app = TestApp::start(PROGRAM, &db, &settings);
    let id = document(&app, "Menu", "# Menu\n\nSoup comes first.", json!({})).await;
    assert_eq!(indexed(&app, &id).await["status"], "ready");
    let change = async |text: &str| {
        let changed = app.patch(&format!("/documents/{id}"), json!({"markdownContent": text})).await;
        assert_eq!(changed.status, StatusCode::OK, "{}", changed.body);
    };
    // The version in which a word is found.
    let version = async |word: &str| {
        let found = search(&app, json!({"query": word, "mode": "keyword"})).await;
        found.as_slice().first().and_then(|found| found["version"].as_i64())
    };
    let calls = || model.recorded().iter().filter(|call| call.path.ends_with("embeddings")).count();
    let before = calls();
    model.embeddings(Embeddings::Held);
    change("# Menu\n\nCheese comes last.").await;
    eventually("its vectors are asked for", async || (calls() > before).then_some(())).await;
    assert_eq!((version("soup").await, version("cheese").await), (Some(1), None));
    model.embeddings(Embeddings::Given);
    assert_eq!(indexed(&app, &id).await["status"], "ready");
    assert_eq!((version("soup").await, version("cheese").await), (None, Some(2)));
    assert_eq!(db.number("SELECT count(*) AS n FROM chunk_vectors").await, 1);
    // When there are none after the last try, its words are found.
    model.embeddings(Embeddings::Refused(400));
    change("# Menu\n\nBread is always there.").await;
    let tried = async || {
        let document = app.get(&format!("/documents/{id}")).await.body;
        document["indexing"]["error"].is_object().then_some(())
    };
    eventually("a try has failed", tried).await;
    assert_eq!((version("cheese").await, version("bread").await), (Some(2), None));
    db.run(
        "UPDATE documents SET due_ms = 0, indexing = jsonb_set(indexing, '{attempts}', '2') WHERE due_ms IS NOT NULL; \
        UPDATE runs SET due = now() WHERE kind = 'index'",
    )
    .await;
    assert_eq!(indexed(&app, &id).await["status"], "failed");
    assert_eq!((version("cheese").await, version("bread").await), (None, Some(3)));
}

#[tokio::test]
async fn another_model_has_every_document_indexed_anew() {
    let (db, model) = (TestDb::new().await, FakeModelServer::start());
    let base = format!("{}/v1", model.url());
    let with = |embeddings: &'static str| {
        let mut settings = vec![("OPENAI_BASE_URL", base.as_str()), ("PLATFORM_SECONDARY_MODEL", "demo:demo-1")];
        settings.extend((!embeddings.is_empty()).then_some(("PLATFORM_EMBEDDING_MODEL", embeddings)));
        settings
    };
    let mut app = TestApp::start(PROGRAM, &db, &with(""));
    let id = document(&app, "Handbook", HANDBOOK, json!({})).await;
    assert!(indexed(&app, &id).await["indexing"].get("embedding").is_none());
    let refused = app.post("/documents/search", json!({"query": "vacation", "mode": "semantic"})).await;
    assert_eq!((refused.status, refused.error()), (StatusCode::BAD_REQUEST, "PROVIDER_NOT_CONFIGURED"));
    let writers = db.connect();
    let mut writer = writers.conn().await.expect("a connection");
    for embeddings in ["openai:first", "openai:second"] {
        // Two that make other vectors would each make them anew.
        drop(app);
        model.embeddings(Embeddings::Held);
        // Whoever writes at a document as the process starts is waited for.
        let hold = format!(
            "SET idle_in_transaction_session_timeout = 0; BEGIN; SELECT FROM documents WHERE id = '{id}' FOR UPDATE"
        );
        writer.batch_execute(&hold).await.expect("held");
        app = TestApp::start(PROGRAM, &db, &with(embeddings));
        let waiting = "SELECT count(*) AS n FROM pg_stat_activity WHERE datname = current_database() \
            AND wait_event_type = 'Lock'";
        eventually("it waits", async || (db.number(waiting).await > 0).then_some(())).await;
        writer.batch_execute("ROLLBACK").await.expect("let go");
        let pending = async || (app.get(&format!("/documents/{id}")).await.body["status"] == "pending").then_some(());
        eventually("it is indexed anew", pending).await;
        assert_eq!(
            names(&search(&app, json!({"query": "holidays", "mode": "keyword"})).await),
            ["Handbook"],
            "meanwhile"
        );
        model.embeddings(Embeddings::Given);
        let found = async || {
            let found = search(&app, json!({"query": "vacation", "mode": "semantic"})).await;
            (names(&found).first() == Some(&"Handbook")).then_some(())
        };
        eventually("the new vectors answer", found).await;
        assert_eq!(names(&search(&app, json!({"query": "holidays", "mode": "keyword"})).await), ["Handbook"]);
        assert_eq!(indexed(&app, &id).await["status"], "ready");
        let name = embeddings.split_once(':').expect("a model").1;
        assert_eq!(model.recorded().last().expect("a call").body["model"], name);
    }
    assert_eq!(db.number("SELECT count(DISTINCT model) AS n FROM chunk_vectors").await, 1, "old vectors are gone");
}

/// A table in the layout of model2vec in which each word of some texts has a direction of its own, by how it begins,
/// and the rarer it is the longer.
fn table(name: &str, texts: &[String]) -> PathBuf {
    const DIMENSIONS: usize = 2048;
    const BEGINNING: usize = 6;
    let words = |text: &str| -> BTreeSet<String> {
        let words = text.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
        words.map(str::to_lowercase).collect()
    };
    let begins = |word: &str| word.chars().take(BEGINNING).collect::<String>();
    let (mut often, mut rests) = (HashMap::<String, usize>::new(), BTreeSet::new());
    for text in texts {
        let words = words(text);
        rests.extend(words.iter().map(|word| format!("##{}", word.chars().skip(BEGINNING).collect::<String>())));
        for word in words.iter().map(|word| begins(word)).collect::<BTreeSet<_>>() {
            *often.entry(word).or_default() += 1;
        }
    }
    let vocabulary: BTreeSet<&String> = often.keys().collect();
    let mut numbers: HashMap<&str, usize> = HashMap::from([("[UNK]", 0)]);
    let mut values = vec![0.0_f32; DIMENSIONS];
    for word in vocabulary {
        numbers.insert(word, numbers.len());
        #[expect(clippy::cast_precision_loss, reason = "a few pages")]
        let rare = (texts.len() as f32 / often[word] as f32).ln();
        let mut state = word
            .bytes()
            .fold(0x9e37_79b9_7f4a_7c15_u64, |hash, b| (hash ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
        for _ in 0..DIMENSIONS {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            values.push(if state & 1 == 0 { rare } else { -rare });
        }
    }
    for rest in &rests {
        numbers.insert(rest, numbers.len());
        values.extend([0.0; DIMENSIONS]);
    }
    let folder = std::env::temp_dir().join(format!("vectors-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let tokenizer = json!({"version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
        "normalizer": {"type": "Lowercase"}, "pre_tokenizer": {"type": "BertPreTokenizer"}, "post_processor": null,
        "decoder": null, "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
        "max_input_chars_per_word": 100, "vocab": numbers}});
    std::fs::write(folder.join("tokenizer.json"), tokenizer.to_string()).expect("written");
    let rows = values.len() / DIMENSIONS;
    let header = json!({"embeddings":
        {"dtype": "F32", "shape": [rows, DIMENSIONS], "data_offsets": [0, values.len() * 4]}})
    .to_string();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    std::fs::write(folder.join("model.safetensors"), file).expect("written");
    folder
}

#[tokio::test]
async fn with_a_table_of_vectors_the_right_section_is_among_the_first_three_and_accounts_stay_apart() {
    let pages: Vec<(String, String)> = platform_docs_pages();
    let sections: Vec<String> =
        pages.iter().flat_map(|(_, text)| text.split("\n#").map(str::to_owned).collect::<Vec<_>>()).collect();
    let folder = table("known", &sections);
    let (db, model) = (TestDb::new().await, format!("local:{}", folder.display()));
    let app = TestApp::start(PROGRAM, &db, &[("PLATFORM_EMBEDDING_MODEL", &model)]);
    for (name, text) in &pages {
        document(&app, name, text, json!({})).await;
    }
    let pending = async || app.get("/documents?status=pending").await.body["total"].clone();
    eventually("all pages are indexed", async || (pending().await == 0).then_some(())).await;
    for (mode, least) in [("semantic", 6), ("hybrid", 9)] {
        find_known_items(&app, mode, least).await;
    }
    let stranger = other_account(&db).await;
    let query = json!({"query": "Which grant types does the authorization server offer?", "mode": "semantic"});
    let request = app.anonymous(reqwest::Method::POST, "/v1/documents/search").bearer_auth(&stranger).json(&query);
    assert_eq!(app.send(request).await.body["results"], json!([]));
    std::fs::remove_dir_all(folder).expect("removed");
}

/// Our own pages: name and text.
fn platform_docs_pages() -> Vec<(String, String)> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs");
    let pages = std::fs::read_dir(folder).expect("pages").filter_map(|entry| {
        let path = entry.expect("a page").path();
        let name = path.file_stem()?.to_str()?.to_owned();
        (path.extension()? == "md").then(|| (name, std::fs::read_to_string(&path).expect("a page")))
    });
    pages.collect()
}

#[tokio::test]
async fn a_document_is_summed_up_unless_a_client_says_what_it_is_about() {
    let app = app_with(&[]).await;
    let id = document(&app, "Handbook", HANDBOOK, json!({})).await;
    let summary = async |id: &str, begins: &str| {
        let begun = async || {
            let document = app.get(&format!("/documents/{id}")).await.body;
            text(&document["summary"]).starts_with(begins).then_some(document)
        };
        eventually("the summary is there", begun).await
    };
    summary(&id, "# Handbook ## Keys").await;
    let path = format!("/documents/{id}");
    app.patch(&path, json!({"markdownContent": "# Menu\n\nSoup comes first."})).await;
    summary(&id, "# Menu Soup").await;
    assert_eq!(app.patch(&path, json!({"summary": "Ours"})).await.body["summary"], "Ours");
    app.patch(&path, json!({"markdownContent": "# Third\n\nText."})).await;
    let next = document(&app, "Next", "# Next\n\nOf them.", json!({})).await;
    summary(&next, "# Next Of them").await;
    assert_eq!(indexed(&app, &id).await["summary"], "Ours");
    app.patch(&path, json!({"summary": ""})).await;
    summary(&id, "# Third Text").await;
}
