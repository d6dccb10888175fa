//! Whether answers are as the OpenAPI document says.

use std::{
    collections::HashMap,
    process::Command,
    sync::{Arc, Mutex, OnceLock},
};

use jsonschema::Validator;
use reqwest::Method;
use serde_json::{Value, json};

use crate::Reply;

/// A route of the document, a method, and a status.
type Answered = (String, String, u16);

/// The document of the program under test, and validators for the answers that were seen so far.
struct Described {
    document: Value,
    validators: Mutex<HashMap<Answered, Option<Arc<Validator>>>>,
}

/// What of an answer is not as the document says; `None` when all is, or when it says nothing of it.
pub(crate) fn misfit(program: &str, method: &Method, path: &str, reply: &Reply) -> Option<String> {
    static DESCRIBED: OnceLock<Described> = OnceLock::new();
    // What is kept to be said again may be shorter.
    let is_replayed = !reply.header("idempotent-replayed").is_empty();
    if is_replayed || !reply.header("content-type").starts_with("application/json") {
        return None;
    }
    let described = DESCRIBED.get_or_init(|| Described::of(program));
    let route = described.route(&path.replace("/v1/documents/skills", "/v1/skills"))?;
    let validator = described.validator(&route, method, reply.status.as_u16())?;
    let problems: Vec<String> = validator
        .iter_errors(&reply.body)
        .take(3)
        .map(|error| {
            let said = error.to_string().chars().take(300).collect::<String>();
            format!("{}: {said}", error.instance_path().as_str())
        })
        .collect();
    (!problems.is_empty()).then(|| format!("{method} {route} {}: {}", reply.status.as_u16(), problems.join("; ")))
}

impl Described {
    fn of(program: &str) -> Self {
        let printed = Command::new(program).arg("openapi").output().expect("it runs").stdout;
        let document = serde_json::from_slice(&printed).expect("a document");
        Self { document, validators: Mutex::default() }
    }

    /// The path of the document that a path of a request has; one with more literal parts first.
    fn route(&self, path: &str) -> Option<String> {
        let asked: Vec<&str> = path.split('/').collect();
        let is_placeholder = |part: &str| part.starts_with('{');
        let matches = |route: &&String| {
            let parts: Vec<&str> = route.split('/').collect();
            parts.len() == asked.len()
                && parts.iter().zip(&asked).all(|(part, asked)| is_placeholder(part) || part == asked)
        };
        let literals = |route: &&String| route.split('/').filter(|part| !is_placeholder(part)).count();
        self.document["paths"].as_object()?.keys().filter(matches).max_by_key(literals).cloned()
    }

    fn validator(&self, route: &str, method: &Method, status: u16) -> Option<Arc<Validator>> {
        let key = (route.to_owned(), method.to_string(), status);
        let mut validators = self.validators.lock().expect("lock");
        let made = validators.entry(key).or_insert_with(|| {
            let responses = &self.document["paths"][route][method.as_str().to_lowercase()]["responses"];
            let schema = &responses[status.to_string()]["content"]["application/json"]["schema"];
            let mut whole = schema.as_object()?.clone();
            whole.insert("components".to_owned(), self.document["components"].clone());
            let options = jsonschema::options().with_draft(jsonschema::Draft::Draft202012);
            Some(Arc::new(options.build(&json!(whole)).expect("a schema")))
        });
        made.clone()
    }
}
