//! A container engine that is none: it speaks the API of one (Docker Engine 1.41), and its containers are machines of
//! this host. All of it runs as one user.

use std::{
    collections::HashMap,
    io::{Read, Write},
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use platform_core::spawn;
use platform_sandbox::{Command, Disk, Machine, MachineSpec, Network, ProcessBackend, Running, SandboxBackend};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWriteExt},
    net::{UnixListener, UnixStream},
    sync::watch,
};

/// Images that are not there, and cannot be fetched.
pub const ABSENT: &str = "absent:1";

#[derive(Default)]
struct State {
    containers: HashMap<String, Container>,
    execs: HashMap<String, Exec>,
}

struct Container {
    machine: Arc<dyn Machine>,
    created: Value,
}

#[derive(Clone)]
struct Exec {
    container: String,
    given: Value,
    code: Option<i32>,
}

pub struct FakeEngine {
    backend: ProcessBackend,
    state: Mutex<State>,
    kills: AtomicBool,
    /// Name of the container that was removed last.
    gone: watch::Sender<String>,
}

struct Asked {
    method: String,
    path: String,
    query: String,
    body: Vec<u8>,
    stream: UnixStream,
}

impl FakeEngine {
    /// Listens at a socket.
    pub fn start(backend: ProcessBackend, socket: &Path) -> Arc<Self> {
        let _ = std::fs::remove_file(socket);
        let listener = UnixListener::bind(socket).expect("a socket");
        let engine = Arc::new(Self {
            backend,
            state: Mutex::default(),
            kills: AtomicBool::new(true),
            gone: watch::Sender::default(),
        });
        let listening = Arc::clone(&engine);
        spawn("fake engine", async move {
            while let Ok((stream, _)) = listener.accept().await {
                let engine = Arc::clone(&listening);
                spawn("fake engine", async move {
                    if let Some(asked) = read(stream).await {
                        engine.answer(asked).await;
                    }
                });
            }
        });
        engine
    }

    /// What the containers were made of.
    pub fn created(&self) -> Vec<Value> {
        self.state.lock().expect("lock").containers.values().map(|of| of.created.clone()).collect()
    }

    /// Waits until a container of this name is removed.
    pub async fn removed(&self, name: &str) {
        let mut gone = self.gone.subscribe();
        let is_there = || self.created().iter().any(|of| of["Name"].to_string().contains(name));
        while is_there() {
            gone.changed().await.expect("the engine lives");
        }
    }

    /// From now on it kills nothing.
    pub fn refuse_to_kill(&self) {
        self.kills.store(false, Ordering::Relaxed);
    }

    fn machine(&self, id: &str) -> Arc<dyn Machine> {
        let found = self.state.lock().expect("lock").containers.get(id).map(|of| Arc::clone(&of.machine));
        found.expect("it is there")
    }

    async fn answer(self: &Arc<Self>, mut asked: Asked) {
        let path = asked.path.clone();
        let parts: Vec<&str> = path.split('/').skip(1).skip_while(|part| part.starts_with("v1.")).collect();
        let body = || serde_json::from_slice::<Value>(&asked.body).unwrap_or_default();
        if let ["containers", id, _, ..] = parts.as_slice()
            && !self.state.lock().expect("lock").containers.contains_key(*id)
        {
            return respond(&mut asked.stream, 404, &json!({"message": "no such container"})).await;
        }
        let (status, answer) = match (asked.method.as_str(), parts.as_slice()) {
            ("GET", ["version"]) => (200, json!({"ApiVersion": "1.41", "Version": "0"})),
            ("GET", ["_ping"]) => (200, json!("OK")),
            ("GET", ["images", ABSENT, "json"]) => (404, json!({"message": "no such image"})),
            ("GET", ["images", ..]) => (200, json!({"Id": "sha256:1"})),
            ("POST", ["images", "create"]) => {
                (200, json!({"error": "denied", "errorDetail": {"message": "denied: who are you?"}}))
            }
            ("GET", ["containers", "json"]) => (200, self.created().iter().map(listed).collect()),
            ("POST", ["containers", "create"]) => {
                let id = asked.query.split("name=").nth(1).and_then(|name| name.split('&').next()).expect("a name");
                let runtime = "default".to_owned();
                let network = Network::Nobody;
                let spec = MachineSpec { id: id.to_owned(), runtime, memory_mib: 256, cpus: 1, disk_mib: 512, network };
                let machine = self.backend.create(spec, Disk::Empty).await.expect("a machine");
                let mut created = body();
                created["Name"] = id.into();
                let container = Container { machine, created };
                self.state.lock().expect("lock").containers.insert(id.to_owned(), container);
                (201, json!({"Id": id, "Warnings": []}))
            }
            ("POST", ["containers", id, "attach"]) => {
                let machine = self.machine(id);
                upgrade(&mut asked.stream).await;
                tokio::select! {
                    // Whoever made it is gone.
                    _ = asked.stream.read_u8() => machine.end().await,
                    () = machine.ended() => {}
                }
                return;
            }
            ("POST", ["containers", _, "start"]) => (204, Value::Null),
            ("POST", ["containers", _, "kill"]) if !self.kills.load(Ordering::Relaxed) => {
                (500, json!({"message": "not now"}))
            }
            ("POST", ["containers", id, "kill"]) => {
                self.machine(id).end().await;
                (204, Value::Null)
            }
            ("DELETE", ["containers", id]) => {
                let gone = self.state.lock().expect("lock").containers.remove(*id);
                self.gone.send_replace((*id).to_owned());
                (if gone.is_some() { 204 } else { 404 }, Value::Null)
            }
            ("GET", ["containers", id, "json"]) => {
                let machine = self.machine(id);
                let running = machine.start(Command::shell("true", [])).await.is_ok();
                let bytes = machine.disk_bytes().await.unwrap_or_default();
                (200, json!({"Id": id, "State": {"Running": running, "Pid": 0}, "SizeRw": bytes}))
            }
            ("PUT", ["containers", id, "archive"]) => {
                let input = std::mem::take(&mut asked.body).into();
                let untar = Command { input, ..Command::shell("tar -x -C / workspace tmp 2>/dev/null; true", []) };
                let running = self.machine(id).start(untar).await.expect("it starts");
                (if running.exit.await.is_ok() { 200 } else { 500 }, Value::Null)
            }
            ("GET", ["containers", id, "archive"]) => {
                let dir = asked.query.split("path=%2F").nth(1).expect("a directory").to_owned();
                let archive = archive_of(&*self.machine(id), &dir).await;
                let head = format!("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {}\r\n\r\n", archive.len());
                let _ = asked.stream.write_all(&[head.as_bytes(), &archive].concat()).await;
                return;
            }
            ("POST", ["containers", id, "exec"]) => {
                let mut state = self.state.lock().expect("lock");
                let exec = format!("exec-{}", state.execs.len());
                let made = Exec { container: (*id).to_owned(), given: body(), code: None };
                state.execs.insert(exec.clone(), made);
                (201, json!({"Id": exec}))
            }
            ("GET", ["exec", id, "json"]) => {
                let code = self.state.lock().expect("lock").execs[*id].code;
                (200, json!({"Running": code.is_none(), "ExitCode": code}))
            }
            ("POST", ["exec", id, "start"]) => {
                let id = (*id).to_owned();
                if body()["Detach"] == true {
                    respond(&mut asked.stream, 200, &Value::Null).await;
                    self.run(&id, None).await;
                } else {
                    upgrade(&mut asked.stream).await;
                    self.run(&id, Some(asked.stream)).await;
                }
                return;
            }
            _ => (404, json!({"message": "there is nothing here"})),
        };
        respond(&mut asked.stream, status, &answer).await;
    }

    async fn run(&self, id: &str, stream: Option<UnixStream>) {
        let exec = self.state.lock().expect("lock").execs[id].clone();
        let texts = |name: &str| -> Vec<String> {
            exec.given[name].as_array().into_iter().flatten().filter_map(|of| Some(of.as_str()?.to_owned())).collect()
        };
        let variables = texts("Env").into_iter().filter_map(|of| {
            let (name, value) = of.split_once('=')?;
            Some((name.to_owned(), value.to_owned()))
        });
        let (mut from, to) = stream.map(UnixStream::into_split).unzip();
        let mut input = Vec::new();
        if let (true, Some(from)) = (exec.given["AttachStdin"] == true, &mut from) {
            let _ = from.read_to_end(&mut input).await;
        }
        let command =
            Command { argv: texts("Cmd"), variables: variables.collect(), input: input.into(), is_root: false };
        let Ok(Running { stdout, stderr, exit, .. }) = self.machine(&exec.container).start(command).await else {
            return;
        };
        let to = to.map(|to| Arc::new(tokio::sync::Mutex::new(to)));
        tokio::join!(frames(1, stdout, to.clone()), frames(2, stderr, to), async {
            let code = exit.await.unwrap_or(137);
            self.state.lock().expect("lock").execs.get_mut(id).expect("it is there").code = Some(code);
        });
    }
}

/// A container as it stands in a list.
fn listed(created: &Value) -> Value {
    let name = created["Name"].as_str().unwrap_or_default();
    json!({"Id": name, "Names": [format!("/{name}")], "Labels": created["Labels"]})
}

/// Hands output on as the engine frames it.
async fn frames(
    kind: u8,
    mut from: Box<dyn AsyncRead + Send + Unpin>,
    to: Option<Arc<tokio::sync::Mutex<tokio::net::unix::OwnedWriteHalf>>>,
) {
    let mut piece = vec![0; 32_768];
    while let Ok(length @ 1..) = from.read(&mut piece).await {
        let Some(to) = &to else { continue };
        let size = u32::try_from(length).expect("a piece").to_be_bytes();
        let frame = [&[kind, 0, 0, 0], size.as_slice(), &piece[..length]].concat();
        if to.lock().await.write_all(&frame).await.is_err() {
            return;
        }
    }
}

/// Bytes that are written here are kept.
#[derive(Clone, Default)]
pub struct Captured(pub Arc<Mutex<Vec<u8>>>);

impl Write for Captured {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("lock").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

async fn archive_of(machine: &dyn Machine, dir: &str) -> Vec<u8> {
    let kept = Captured::default();
    machine.save(Box::new(kept.clone())).await.expect("it is saved");
    let bytes = kept.0.lock().expect("lock").clone();
    let mut part = tar::Builder::new(Vec::new());
    for entry in tar::Archive::new(bytes.as_slice()).entries().expect("an archive") {
        let mut entry = entry.expect("an entry");
        let path = entry.path().expect("a path").into_owned();
        let (mut header, link) =
            (entry.header().clone(), entry.link_name().expect("a link").map(std::borrow::Cow::into_owned));
        if !path.starts_with(dir) {
            continue;
        }
        match link {
            Some(link) => part.append_link(&mut header, path, link).expect("appended"),
            None => {
                let mut content = Vec::new();
                entry.read_to_end(&mut content).expect("its content");
                part.append_data(&mut header, path, content.as_slice()).expect("appended");
            }
        }
    }
    part.into_inner().expect("an archive")
}

async fn upgrade(stream: &mut UnixStream) {
    let head = "HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n";
    let _ = stream.write_all(head.as_bytes()).await;
}

async fn respond(stream: &mut UnixStream, status: u16, answer: &Value) {
    let body = if answer.is_null() { String::new() } else { format!("{answer}\n") };
    let length = if status == 204 { String::new() } else { format!("Content-Length: {}\r\n", body.len()) };
    let head =
        format!("HTTP/1.1 {status} Answer\r\nConnection: close\r\nContent-Type: application/json\r\n{length}\r\n");
    let _ = stream.write_all(format!("{head}{body}").as_bytes()).await;
}

/// A request, with its whole body.
async fn read(mut stream: UnixStream) -> Option<Asked> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    let head = String::from_utf8(head).ok()?;
    let mut first = head.lines().next()?.split(' ');
    let (method, target) = (first.next()?.to_owned(), first.next()?);
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let header = |name: &str| {
        let mut lines = head.lines().filter_map(|line| line.split_once(": "));
        lines.find(|(given, _)| given.eq_ignore_ascii_case(name)).map(|(_, value)| value.to_owned())
    };
    let mut body = vec![0; header("content-length").and_then(|length| length.parse().ok()).unwrap_or(0)];
    stream.read_exact(&mut body).await.ok()?;
    if header("transfer-encoding").is_some() {
        loop {
            let mut size = Vec::new();
            while !size.ends_with(b"\r\n") {
                size.push(stream.read_u8().await.ok()?);
            }
            let size = usize::from_str_radix(std::str::from_utf8(&size).ok()?.trim(), 16).ok()?;
            let mut chunk = vec![0; size + 2];
            stream.read_exact(&mut chunk).await.ok()?;
            body.extend_from_slice(&chunk[..size]);
            if size == 0 {
                break;
            }
        }
    }
    Some(Asked { method, path: path.to_owned(), query: query.to_owned(), body, stream })
}
