use std::{
    fs::File,
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

use reqwest::{Method, RequestBuilder, StatusCode, header::HeaderMap};
use serde_json::Value;

use crate::{TestDb, described::misfit};

/// The key every [`TestApp`] starts with.
const KEY: &str = "ak-0123456789abcdefghijklmnopqrstuvwxyzABCDEFG";

/// The master key of every [`TestApp`].
const SECRET_KEY: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

/// The platform as a process of its own, over HTTP; killed when dropped.
pub struct TestApp {
    child: Child,
    url: String,
    log_in: Option<String>,
    client: reqwest::Client,
    program: String,
    environment: Vec<(String, String)>,
}

/// An answer, read whole.
#[derive(Debug)]
pub struct Reply {
    /// HTTP status.
    pub status: StatusCode,
    /// Headers.
    pub headers: HeaderMap,
    /// Body as JSON; a string when it is not JSON.
    pub body: Value,
}

impl Reply {
    /// The error code of the body, empty when there is none.
    pub fn error(&self) -> &str {
        self.body["error"].as_str().unwrap_or_default()
    }

    /// A header as text, empty when there is none.
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }
}

impl TestApp {
    /// Starts `program` on a database, with more settings.
    pub fn start(program: &str, db: &TestDb, settings: &[(&str, &str)]) -> Self {
        Self::start_with(program, environment(&on(db, settings)), Stdio::piped())
    }

    /// Starts `program` with a database of its own in a data directory.
    pub fn start_alone(program: &str, data_dir: &Path, settings: &[(&str, &str)]) -> Self {
        let own = [("PLATFORM_DATA_DIR", data_dir.to_str().expect("a path"))];
        Self::start_with(program, environment(&[&own, settings].concat()), Stdio::piped())
    }

    /// The same with its log in a file.
    pub fn start_logging(program: &str, db: &TestDb, settings: &[(&str, &str)], log: &Path) -> Self {
        let log = File::create(log).expect("a log file");
        Self::start_with(program, environment(&on(db, settings)), log.into())
    }

    fn start_with(program: &str, environment: Vec<(String, String)>, log: Stdio) -> Self {
        let keep = ["PATH", "HOME", "TMPDIR"];
        let inherited = std::env::vars().filter(|(name, _)| keep.contains(&name.as_str()));
        let mut child = Command::new(program)
            .env_clear()
            .envs(inherited)
            .envs(environment.clone())
            .current_dir(Path::new(program).parent().expect("a program lies in a directory"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .expect("the platform starts");
        if let Some(log) = child.stderr.take() {
            // Printed from here, it is shown only with a test that fails.
            std::thread::spawn(move || {
                let lines = BufReader::new(log).split(b'\n').map_while(Result::ok);
                lines.for_each(|line| eprintln!("{}", String::from_utf8_lossy(&line)));
            });
        }
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let url = loop {
            let line = lines.next().expect("the platform says where it listens").expect("text");
            if let Some(rest) = line.strip_prefix("The platform listens on ") {
                break rest.split_whitespace().next().unwrap_or_default().to_owned();
            }
        };
        // The next two lines tell of the console.
        let log_in = lines.by_ref().take(2).map_while(Result::ok).find(|line| line.contains("#link="));
        let log_in = log_in.map(|line| line.trim().to_owned());
        // What else it says must not fill the pipe.
        std::thread::spawn(move || lines.for_each(drop));
        let client = reqwest::Client::builder().timeout(Duration::from_mins(1)).build().expect("a client");
        Self { child, url, log_in, client, program: program.to_owned(), environment }
    }

    /// Address without `/v1`.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Address that logs the first user in to the console, when this start printed one.
    pub fn log_in_link(&self) -> Option<&str> {
        self.log_in.as_deref()
    }

    /// The value of its first key.
    pub fn key(&self) -> &str {
        KEY
    }

    /// Process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Kills it without warning and starts it anew, on another port.
    pub fn crash(&mut self) {
        self.child.kill().expect("killed");
        self.child.wait().expect("gone");
        let environment = std::mem::take(&mut self.environment);
        let program = self.program.clone();
        let next = Self::start_with(&program, environment, Stdio::piped());
        *self = next;
    }

    /// Sends it a signal, such as `TERM`.
    pub fn signal(&self, name: &str) {
        let status = Command::new("kill").args([&format!("-{name}"), &self.pid().to_string()]).status();
        assert!(status.is_ok_and(|status| status.success()), "the signal {name} was not sent");
    }

    /// Waits for it to end by itself; its exit code.
    pub async fn ended(mut self) -> Option<i32> {
        tokio::task::spawn_blocking(move || self.child.wait().expect("it ends").code()).await.expect("waited")
    }

    /// A request with the key; `path` begins behind `/v1`.
    pub fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.anonymous(method, &format!("/v1{path}")).bearer_auth(KEY)
    }

    /// A request without a key; `path` is whole.
    pub fn anonymous(&self, method: Method, path: &str) -> RequestBuilder {
        self.client.request(method, format!("{}{path}", self.url))
    }

    /// Sends a request and reads the answer, which must be as the OpenAPI document says.
    pub async fn send(&self, request: RequestBuilder) -> Reply {
        let (client, request) = request.build_split();
        let request = request.expect("a request");
        let (method, path) = (request.method().clone(), request.url().path().to_owned());
        let response = client.execute(request).await.expect("an answer");
        let (status, headers) = (response.status(), response.headers().clone());
        let text = response.text().await.expect("a whole answer");
        let body = serde_json::from_str(&text).unwrap_or(Value::String(text));
        let reply = Reply { status, headers, body };
        if let Some(misfit) = misfit(&self.program, &method, &path, &reply) {
            panic!("An answer is not as the OpenAPI document says. {misfit}: {}", reply.body);
        }
        reply
    }

    /// GET.
    pub async fn get(&self, path: &str) -> Reply {
        self.send(self.request(Method::GET, path)).await
    }

    /// POST with a JSON body.
    pub async fn post(&self, path: &str, body: Value) -> Reply {
        self.send(self.request(Method::POST, path).json(&body)).await
    }

    /// PATCH with a JSON body.
    pub async fn patch(&self, path: &str, body: Value) -> Reply {
        self.send(self.request(Method::PATCH, path).json(&body)).await
    }

    /// DELETE.
    pub async fn delete(&self, path: &str) -> Reply {
        self.send(self.request(Method::DELETE, path)).await
    }
}

fn on<'a>(db: &'a TestDb, settings: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    [&[("DATABASE_URL", db.url())], settings].concat()
}

fn environment(settings: &[(&str, &str)]) -> Vec<(String, String)> {
    let own = [
        ("PLATFORM_SECRET_KEY", SECRET_KEY),
        ("PLATFORM_BOOTSTRAP_KEY", KEY),
        ("PLATFORM_ADDR", "127.0.0.1:0"),
        ("PLATFORM_LOG", "warn"),
    ];
    own.iter().chain(settings).map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

impl Drop for TestApp {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
