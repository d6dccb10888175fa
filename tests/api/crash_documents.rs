//! `kill -9` while documents are made, uploaded, changed and deleted.

use std::collections::{HashMap, HashSet};

use futures_util::future::join_all;
use platform_testing::{TestApp, TestDb};
use reqwest::{
    Method, RequestBuilder, StatusCode,
    multipart::{Form, Part},
};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::{
    document_files::pdf,
    documents::{indexed, search},
    support::{PROGRAM, UNBOUNDED, eventually, factor, text},
    uploads::{below, own_dir},
};

/// Documents that are made between two kills; four in ten are files.
const MADE: usize = 34;

/// What clients know of their documents: the words that the newest text may end with.
#[derive(Default)]
struct Known {
    words: HashMap<String, Vec<String>>,
    deleted: HashSet<String>,
}

enum Asked {
    Make {
        word: String,
    },
    Change {
        id: String,
        word: String,
    },
    Delete {
        id: String,
    },
    /// A skill with a picture, whose bytes come to the store from memory.
    Import {
        word: String,
    },
}

impl Asked {
    fn request(&self, app: &TestApp) -> RequestBuilder {
        match self {
            Self::Make { word } if word.ends_with(['0', '3', '6', '9']) => {
                let (bytes, kind) = match word.as_bytes().last() {
                    Some(b'3') => (pdf(&format!("uploaded {word}")), "pdf"),
                    _ if is_broken(word) => (b"%PDF-1.7\nnothing of a PDF".to_vec(), "pdf"),
                    _ => (format!("# Text\n\nuploaded {word}").into_bytes(), "md"),
                };
                let part = Part::bytes(bytes).file_name(format!("{word}.{kind}"));
                app.request(Method::POST, "/documents/upload").multipart(Form::new().part("file", part))
            }
            Self::Make { word } => {
                let body = json!({"name": word, "markdownContent": format!("# Text\n\nmade {word}")});
                app.request(Method::POST, "/documents").json(&body)
            }
            Self::Change { id, word } => {
                let body = json!({"markdownContent": format!("# Changed\n\nchanged {word}")});
                app.request(Method::PATCH, &format!("/documents/{id}")).json(&body)
            }
            Self::Delete { id } => app.request(Method::DELETE, &format!("/documents/{id}")),
            Self::Import { word } => {
                let part = |name: &str, bytes: Vec<u8>| Part::bytes(bytes).file_name(name.to_owned());
                let text = part("SKILL.md", format!("---\nname: {word}\n---\nimported").into_bytes());
                let form = Form::new().part("files", text).part("files", part("logo.png", vec![0xff; 100_000]));
                app.request(Method::POST, "/skills/import").multipart(form)
            }
        }
    }
}

/// Whether the document that is made under a word has a file that nobody can read.
fn is_broken(word: &str) -> bool {
    word.starts_with("word") && word.ends_with('6')
}

impl Known {
    /// What is asked in a round.
    fn next(&self, round: usize) -> Vec<Asked> {
        let made = (0..MADE).map(|n| Asked::Make { word: format!("word{round}x{n}") });
        let mut ids: Vec<&String> = self.words.keys().collect();
        ids.sort();
        let changed = ids.iter().skip(1).step_by(5).take(10).enumerate();
        let changed = changed.map(|(n, id)| Asked::Change { id: (*id).clone(), word: format!("again{round}x{n}") });
        let deleted = ids.first().map(|id| Asked::Delete { id: (*id).clone() });
        let imported = (0..4).map(|n| Asked::Import { word: format!("skill{round}x{n}") });
        imported.chain(made).chain(changed).chain(deleted).collect()
    }

    /// Notes what was answered, and what may have happened without an answer.
    fn note(&mut self, asked: Asked, answer: Option<(StatusCode, Value)>) {
        assert!(answer.as_ref().is_none_or(|(status, _)| !status.is_client_error()), "{answer:?}");
        let done = answer.filter(|(status, _)| status.is_success());
        match (asked, done) {
            (Asked::Make { word }, Some((_, body))) => drop(self.words.insert(text(&body["_id"]), vec![word])),
            (Asked::Make { .. }, None) | (Asked::Import { .. }, _) => {}
            (Asked::Change { id, word }, Some(_)) => drop(self.words.insert(id, vec![word])),
            (Asked::Change { id, word }, None) => self.words.get_mut(&id).expect("known").push(word),
            (Asked::Delete { id }, done) => {
                self.words.remove(&id);
                if done.is_some() {
                    self.deleted.insert(id);
                }
            }
        }
    }
}

/// Asks for everything at once, and kills the process when half of it was answered.
async fn ask_and_kill(app: &mut TestApp, asked: Vec<Asked>) -> Vec<(Asked, Option<(StatusCode, Value)>)> {
    let (told, mut heard) = mpsc::channel(asked.len());
    let half = asked.len() / 2;
    let alive = &*app;
    let answers = asked.iter().map(|asked| async {
        let answer = asked.request(alive).send().await.ok()?;
        let answer = Some((answer.status(), answer.json().await.ok()?));
        let _ = told.send(()).await;
        answer
    });
    let killing = async {
        for _ in 0..half {
            heard.recv().await;
        }
        alive.signal("KILL");
    };
    let (answers, ()) = tokio::join!(join_all(answers), killing);
    app.crash();
    asked.into_iter().zip(answers).collect()
}

#[tokio::test]
async fn what_is_accepted_is_indexed_however_often_the_process_is_killed() {
    let (db, dir) = (TestDb::new().await, own_dir("crash-documents"));
    let settings = [
        ("PLATFORM_RUN_LEASE", "2s"),
        ("PLATFORM_RUN_HEARTBEAT", "500ms"),
        ("PLATFORM_SWEEP_INTERVAL", "1s"),
        ("PLATFORM_DATA_DIR", dir.to_str().expect("a path")),
    ];
    let mut app = TestApp::start(PROGRAM, &db, &[&UNBOUNDED[..], &settings].concat());
    let mut known = Known::default();
    for round in 0..3 * factor(10) {
        let asked = known.next(round);
        for (asked, answer) in ask_and_kill(&mut app, asked).await {
            known.note(asked, answer);
        }
    }
    // A child process reads a PDF, which is seldom answered before the kill.
    for word in ["word9x3", "word9x6"].map(str::to_owned) {
        let asked = Asked::Make { word };
        let answer = asked.request(&app).send().await.expect("an answer");
        let answer = Some((answer.status(), answer.json().await.expect("JSON")));
        known.note(asked, answer);
    }
    // Half of each round was answered, of deletions perhaps none.
    let last = known.words.keys().next().expect("documents").clone();
    assert_eq!(app.delete(&format!("/documents/{last}")).await.status, StatusCode::OK);
    known.note(Asked::Delete { id: last }, Some((StatusCode::OK, Value::Null)));
    let accepted = known.words.len() + known.deleted.len();
    println!("{accepted} documents, {} kills", 3 * factor(10));
    assert!(accepted >= if factor(10) > 1 { 500 } else { MADE }, "{accepted} documents");
    let mut failed = 0;
    for (id, words) in &known.words {
        let document = indexed(&app, id).await;
        if words.iter().any(|word| is_broken(word)) && document["status"] == "failed" {
            assert_eq!(document["indexing"]["error"]["code"], "EXTRACTION_FAILED", "{document}");
            failed += 1;
            continue;
        }
        assert_eq!(document["status"], "ready", "{document}");
        let last = document["markdownContent"].as_str().and_then(|text| text.split_whitespace().last());
        let last = last.expect("a word");
        assert!(words.iter().any(|word| word == last), "{last} is none of {words:?}");
        let found = search(&app, json!({"query": last})).await;
        assert_eq!((found.len(), &found[0]["documentId"]), (1, &json!(id)), "{last}");
        assert_eq!(found[0]["version"], document["currentVersion"]);
        if let Some(file) = document["sourceFileId"].as_str() {
            let record = app.get(&format!("/files/{file}")).await.body;
            let url = record["downloadUrl"].as_str().unwrap_or_else(|| panic!("{record}"));
            let bytes = reqwest::get(url).await.expect("an answer").text().await.expect("its bytes");
            assert!(bytes.starts_with("# Text") || bytes.starts_with("%PDF"), "{file}: {bytes}");
        }
    }
    for id in &known.deleted {
        assert_eq!(app.get(&format!("/documents/{id}")).await.error(), "DOCUMENT_NOT_FOUND", "{id}");
    }
    let none = async |what: &str, count: &str| {
        eventually(what, async || (db.number(count).await == 0).then_some(())).await;
    };
    none("also what nobody was told of is done", "SELECT count(*) AS n FROM documents WHERE due_ms IS NOT NULL").await;
    none("no run is left", "SELECT count(*) AS n FROM runs WHERE kind = 'index'").await;

    // Bytes that no record knows go with the sweep, and those of each record stay.
    let records = usize::try_from(db.number("SELECT count(*) AS n FROM files").await).expect("a number");
    let is_swept = async || {
        let (objects, uploads) = (below(&dir.join("objects")).len(), below(&dir.join("uploads")).len());
        ((objects, uploads) == (records, 0)).then_some(())
    };
    eventually("bytes and records agree", is_swept).await;
    let _ = std::fs::remove_dir_all(&dir);

    let queued = app.post("/documents/reindex", json!({"status": "failed"})).await;
    assert!(failed > 0 && queued.status == StatusCode::ACCEPTED, "{failed}: {}", queued.body);
    // Also of those that nobody was told of.
    assert!(queued.body["queued"].as_i64().is_some_and(|queued| queued >= failed), "{failed}: {}", queued.body);
    assert_eq!(app.post("/documents/reindex", json!({})).await.error(), "VALIDATION_ERROR");
}
