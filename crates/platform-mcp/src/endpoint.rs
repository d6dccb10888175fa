//! The endpoint: each message answered by what stands in it, on any process (contract 12 §1, §2).

use std::{pin::Pin, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::{Stream, StreamExt, future::join_all, stream};
use platform_access::PROJECT_TOPIC;
use platform_agents::AGENT_TOPIC;
use platform_chat::ASSISTANT_TOPIC;
use platform_core::{AccountId, Result, run_sized, sha256_hex, spawn};
use platform_db::Notice;
use platform_toolservers::{HasRoom, McpAuthMode, McpUpdate, OfferedServer, TOOL_SERVER, UpstreamCredentials};
use platform_vault::Secret;
use serde_json::{Value, json, value::RawValue};
use tokio::{
    sync::broadcast::error::RecvError,
    time::{Instant, sleep, timeout_at},
};

use crate::{
    calls::{Called, Calling},
    model::ExposeMode,
    protocol::{
        self, Failure, INVALID_PARAMS, Incoming, METHOD_NOT_FOUND, McpHeaders, Message, NEWEST_LEGACY, acknowledged,
        discovered, initialized, tools_changed, unsubscribed,
    },
    search,
    service::{PgMcpGateway, SWITCHES, TOPIC},
    surface::{Target, View},
    viewer::Viewer,
};

/// Tools of a page, and bytes of theirs; one that is longer is a page.
const PAGE: usize = 100;
const PAGE_BYTES: usize = 1 << 20;
/// Levels of logs (RFC 5424), from which on a client may say that it wants them; it is told them with its calls.
const LEVELS: [&str; 8] = ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"];
/// A list waits so long for servers whose tools are read for it.
const MAX_READING: Duration = Duration::from_secs(5);
/// Changes that come together are told together.
const BATCH_WINDOW: Duration = Duration::from_millis(100);
/// That a server which does not answer is shown no longer is nobody's change.
const LOOK_AGAIN: Duration = Duration::from_mins(1);

/// Who asks, for what profile, and what came with it.
pub struct McpContext {
    /// Who.
    pub viewer: Viewer,
    /// Slug of the profile; `None` = the caller's.
    pub profile: Option<String>,
    /// Headers that the body must agree with.
    pub headers: McpHeaders,
    /// Id of the call that is made, the same whenever it is repeated under one `Idempotency-Key`.
    pub call_id: Option<String>,
    /// `X-Upstream-Authorization`.
    pub upstream: Option<Secret>,
    /// The client reads streams.
    pub reads_streams: bool,
    /// Whether it may be answered at all, asked before a tool is called.
    pub has_room: Arc<HasRoom>,
    /// `Last-Event-ID`.
    pub last_event: Option<String>,
}

/// Messages, one after the other.
pub type Messages = Pin<Box<dyn Stream<Item = Value>>>;

/// A stream of changes.
pub struct Changes {
    first: Option<Change>,
    /// `None`: nothing is told.
    watching: Option<Box<Watching>>,
    /// What the client is told at the end.
    pub last: Option<Value>,
}

impl Changes {
    /// One after the other, until the client goes; `viewers`: who it is whenever its credential stands for another.
    pub fn stream(self, viewers: impl Stream<Item = Viewer> + 'static) -> impl Stream<Item = Change> {
        let rest = match self.watching {
            Some(watching) => watching.changes(Box::pin(viewers.fuse())).left_stream(),
            None => stream::pending().right_stream(),
        };
        stream::iter(self.first).chain(rest)
    }
}

/// A message of a stream of changes.
pub struct Change {
    /// What a client that comes back says it heard last.
    pub id: Option<String>,
    /// `None`: there is nothing but the id.
    pub message: Option<Value>,
}

/// A caller, whenever it is another.
type Viewers = Pin<Box<dyn Stream<Item = Viewer>>>;

/// How a message is answered.
pub enum McpReply {
    /// With one message.
    Message(Value),
    /// With one message that says why there is no result; whoever repeats it tries again.
    Failed(u16, Value),
    /// With one message that is JSON already.
    Json(String),
    /// With a status alone.
    Nothing(u16),
    /// With what there is to tell of a call, and its end.
    Stream(Messages),
    /// With what changes.
    Changes(Changes),
}

impl From<Failure> for McpReply {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure.status, failure.message)
    }
}

impl PgMcpGateway {
    /// Answers a message. `count`: counts a message or thread that a call makes, and refuses it when there are too many.
    ///
    /// # Errors
    /// `PROFILE_NOT_FOUND`, and what is ours.
    pub async fn answer(
        self: &Arc<Self>,
        context: McpContext,
        body: &Bytes,
        count: impl AsyncFn() -> Result<()>,
    ) -> Result<McpReply> {
        // Who may not see the profile learns nothing more.
        let mut view = self.whole_view(&context.viewer, context.profile.as_deref()).await?;
        let (bytes, headers) = (body.clone(), context.headers.clone());
        let message = match run_sized(body.len(), move || Ok(Message::read(&bytes, &headers))).await? {
            Ok(Incoming::Request(message)) => message,
            Ok(Incoming::Notification) => return Ok(McpReply::Nothing(202)),
            Err(failure) => return Ok(failure.into()),
        };
        let answer = |result: Value| Ok(McpReply::Message(message.answer(result)));
        match (message.method.as_str(), message.is_modern) {
            ("initialize", false) => answer(initialized(message.text("protocolVersion"), instructions(&view))),
            ("ping", false) => answer(json!({})),
            ("logging/setLevel", false) if message.text("level").is_some_and(|level| LEVELS.contains(&level)) => {
                answer(json!({}))
            }
            ("logging/setLevel", false) => {
                Ok(message.fail(400, INVALID_PARAMS, &format!("level must be one of {}.", LEVELS.join(", "))).into())
            }
            ("server/discover", true) => answer(discovered(instructions(&view))),
            ("tools/list", _) => {
                if let Some(header) = &context.upstream {
                    self.read_with_header(&context.viewer.caller.account, &view, header).await?;
                    view = self.whole_view(&context.viewer, context.profile.as_deref()).await?;
                }
                list(&self.usable(&context.viewer, view).await?, &message)
            }
            ("tools/call", _) => self.call(context, view, message, count).await,
            ("subscriptions/listen", true) => {
                let wants = message.params.get("notifications").and_then(|of| of.get("toolsListChanged"));
                let wants = wants == Some(&Value::Bool(true));
                let first = Change { id: None, message: Some(acknowledged(&message.id, wants)) };
                let last = Some(unsubscribed(&message));
                let watching = if wants { Some(Box::new(self.watch(context, Some(message.id)).await?)) } else { None };
                Ok(McpReply::Changes(Changes { first: Some(first), watching, last }))
            }
            _ => Ok(message.fail(404, METHOD_NOT_FOUND, "There is no such method here.").into()),
        }
    }

    /// The stream of changes of the older family.
    ///
    /// # Errors
    /// `PROFILE_NOT_FOUND`, and what is ours.
    pub async fn listen(self: &Arc<Self>, context: McpContext) -> Result<McpReply> {
        if let Err(failure) = protocol::check_version(&Value::Null, context.headers.version.as_deref()) {
            return Ok(failure.into());
        }
        let is_primed = context.headers.version.as_deref() == Some(NEWEST_LEGACY);
        let last_event = context.last_event.clone();
        let watching = self.watch(context, None).await?;
        let now = &watching.digest;
        // Who was away hears of what changed meanwhile; others learn what to come back with, where their revision has it.
        let first = match last_event {
            Some(heard) if heard != *now => Some(watching.told()),
            _ => is_primed.then(|| Change { id: Some(now.clone()), message: None }),
        };
        Ok(McpReply::Changes(Changes { first, watching: Some(Box::new(watching)), last: None }))
    }

    /// Reads the tools of servers that show them only to who calls, where that was not done or is long ago; a header goes
    /// to those alone of which its sender may use something.
    async fn read_with_header(&self, account: &AccountId, view: &View, header: &Secret) -> Result<()> {
        let digest = sha256_hex(header.expose());
        let (mut reading, until) = (Vec::new(), Instant::now() + MAX_READING);
        for id in view.usable_servers() {
            let server = self.tool_servers.offered(account, id).await?;
            let wants_header =
                |server: &OfferedServer| server.is_exposed() && server.auth_mode() == McpAuthMode::Passthrough;
            let Some(server) = server.filter(wants_header) else { continue };
            let asked = (account.clone(), id.clone(), digest.clone());
            if self.asked.contains_key(&asked) {
                continue;
            }
            let (servers, with) = (Arc::clone(&self.tool_servers), UpstreamCredentials::Header(header.clone()));
            // Whoever takes longer is read on, and its tools are told as a change.
            let read = spawn("read tools", async move { servers.read_if_old(&server, &with).await });
            reading.push(async move {
                // It may be away, refuse the header, or show no tools.
                let _ = timeout_at(until, read).await;
                self.asked.insert(asked, ());
            });
        }
        join_all(reading).await;
        Ok(())
    }

    /// Whoever watches the tools of a caller; `subscription`: under which the newer family tells of them.
    async fn watch(self: &Arc<Self>, context: McpContext, subscription: Option<Value>) -> Result<Watching> {
        // Who hears first and looks then misses nothing.
        let notices = self.bus.subscribe();
        let view = self.view(&context.viewer, context.profile.as_deref()).await?;
        let watched = Watched::of(&view);
        Ok(Watching { notices, gateway: Arc::clone(self), context, digest: view.digest(), watched, subscription })
    }

    async fn call(
        self: &Arc<Self>,
        context: McpContext,
        mut view: View,
        mut message: Message,
        count: impl AsyncFn() -> Result<()>,
    ) -> Result<McpReply> {
        let Some(mut name) = message.text("name").map(str::to_owned) else {
            return Ok(message.fail(400, INVALID_PARAMS, "params.name must be the name of a tool.").into());
        };
        let mut arguments = match message.params.remove("arguments") {
            None | Some(Value::Null) => platform_core::Object::new(),
            Some(Value::Object(arguments)) => arguments,
            Some(_) => return Ok(message.fail(400, INVALID_PARAMS, "params.arguments must be an object.").into()),
        };
        let mut is_hidden = false;
        let searches = view.mode == ExposeMode::Search;
        if searches {
            view = self.usable(&context.viewer, view).await?;
        }
        let view = Arc::new(view);
        if searches {
            match search::answer(&view, &name, &arguments).await? {
                search::Found::Result(result) => {
                    let calling = Calling::new(self, context, &view, &name, arguments);
                    return Ok(McpReply::Message(message.answer(calling.found(result).await)));
                }
                search::Found::Call(tool, given) => (name, arguments) = (tool, given),
                // Its tools are called through `call_tool` alone.
                search::Found::Nothing => is_hidden = true,
            }
        }
        // Whoever calls through `call_tool` repeats none of its arguments in headers.
        if let Some(tool) = view.tool(&name).filter(|_| !searches)
            && let Err(failure) = message.check_arguments(&tool.repeated, &arguments, &context.headers)
        {
            return Ok(failure.into());
        }
        if let Some(Target::Platform(target, id)) = view.tool(&name).filter(|_| !searches).map(|tool| &tool.target) {
            is_hidden = !self.is_usable(&context.viewer, *target, id).await?;
        }
        let calling = Calling::new(self, context, &view, &name, arguments);
        let Some(tool) = view.tool(&name).filter(|_| !is_hidden) else {
            calling.denied("UNKNOWN_TOOL").await;
            let shown: String = name.chars().take(128).collect();
            return Ok(message.fail(200, INVALID_PARAMS, &format!("Unknown tool: {shown}")).into());
        };
        if matches!(tool.target, Target::Platform(..))
            && let Err(error) = count().await
        {
            let result = calling.refused(error.code().as_str(), error.message()).await;
            return Ok(McpReply::Failed(200, message.answer(result)));
        }
        let streams = calling.reads_streams() && (message.progress_token().is_some() || message.log_level().is_some());
        if !streams {
            return Ok(replied(&message, calling.run(tool.clone(), &message, None).await));
        }
        Ok(stream_of(calling, tool.clone(), message).await)
    }
}

/// What came of a call, as a reply.
fn replied(message: &Message, called: Called) -> McpReply {
    match called {
        Called::Result(result) => McpReply::Message(message.answer(result)),
        Called::Failed(result) => McpReply::Failed(200, message.answer(result)),
        Called::Refused(code, reason, data) => {
            let failure = message.fail(if code == protocol::MISSING_CAPABILITY { 400 } else { 200 }, code, &reason);
            McpReply::from(match data {
                Some(data) => failure.with(data),
                None => failure,
            })
        }
    }
}

/// A call that is told of as it comes along; one of which there is nothing to tell is answered with one message.
async fn stream_of(calling: Calling, tool: crate::surface::Tool, message: Message) -> McpReply {
    let (sender, updates) = tokio::sync::mpsc::channel(64);
    let message = Arc::new(message);
    let asked = Arc::clone(&message);
    let reply = Box::pin(async move {
        let called = calling.run(tool, &asked, Some(sender)).await;
        replied(&asked, called)
    });
    let mut underway = Underway { message, updates, reply, ended: None };
    let first = match underway.next().await {
        Next::Update(first) => first,
        Next::End(reply) => return reply,
    };
    let rest = stream::unfold(Some(underway), |underway| async move {
        let mut underway = underway?;
        match underway.next().await {
            Next::Update(update) => Some((update, Some(underway))),
            Next::End(McpReply::Message(last) | McpReply::Failed(_, last)) => Some((last, None)),
            Next::End(_) => None,
        }
    });
    McpReply::Stream(Box::pin(stream::iter([first]).chain(rest)))
}

/// A call that is under way.
struct Underway<F> {
    message: Arc<Message>,
    updates: tokio::sync::mpsc::Receiver<McpUpdate>,
    reply: F,
    ended: Option<McpReply>,
}

enum Next {
    Update(Value),
    End(McpReply),
}

impl<F: Future<Output = McpReply> + Unpin> Underway<F> {
    /// What there is to tell of it, all of that, and then its end.
    async fn next(&mut self) -> Next {
        let reply = loop {
            if let Some(reply) = self.ended.take() {
                break reply;
            }
            tokio::select! {
                biased;
                Some(update) = self.updates.recv() => if let Some(update) = self.message.update(update) {
                    return Next::Update(update);
                },
                reply = &mut self.reply => break reply,
            }
        };
        while let Ok(update) = self.updates.try_recv() {
            if let Some(update) = self.message.update(update) {
                self.ended = Some(reply);
                return Next::Update(update);
            }
        }
        Next::End(reply)
    }
}

/// What a list of tools is made of, by the ids that notices of changes say.
struct Watched {
    servers: Vec<String>,
    /// Assistants, as the profile names them, and agents.
    targets: Vec<String>,
}

impl Watched {
    fn of(view: &View) -> Self {
        let targets = view.targets().map(|(.., id)| id.to_owned());
        Self { servers: view.servers().to_vec(), targets: targets.collect() }
    }
}

/// Somebody who is told when their tools change.
struct Watching {
    notices: tokio::sync::broadcast::Receiver<Notice>,
    gateway: Arc<PgMcpGateway>,
    context: McpContext,
    watched: Watched,
    digest: String,
    subscription: Option<Value>,
}

impl Watching {
    /// A message whenever the tools are others than before.
    fn changes(self: Box<Self>, viewers: Viewers) -> impl Stream<Item = Change> {
        stream::unfold((self, viewers), |(mut watching, mut viewers)| async move {
            watching.changed(&mut viewers).await?;
            Some((watching.told(), (watching, viewers)))
        })
    }

    /// That the tools are others now. The newer family has no streams that are taken up again.
    fn told(&self) -> Change {
        let id = self.subscription.is_none().then(|| self.digest.clone());
        Change { id, message: Some(tools_changed(self.subscription.as_ref())) }
    }

    /// Whether what changed may be what the caller is shown.
    fn concerns(&self, topic: &str, id: &str) -> bool {
        let account = self.context.viewer.caller.account.as_str();
        match topic {
            TOPIC => id == account,
            SWITCHES => id.is_empty() || id.starts_with(account),
            // Whoever is let in to a project, or out of it, sees other assistants and agents.
            AGENT_TOPIC | ASSISTANT_TOPIC => self.watched.targets.iter().any(|target| target == id),
            PROJECT_TOPIC => (id.is_empty() || id == account) && !self.watched.targets.is_empty(),
            _ if topic == TOOL_SERVER.name() => self.watched.servers.iter().any(|server| server == id),
            _ => false,
        }
    }

    /// Waits until the tools are others; `None`: when they are none of the caller's any more.
    async fn changed(&mut self, viewers: &mut Viewers) -> Option<()> {
        let mut look = Instant::now() + LOOK_AGAIN;
        loop {
            tokio::select! {
                notice = timeout_at(look, self.notices.recv()) => match notice {
                    Ok(Ok(Notice::Changed { topic, id })) if !self.concerns(&topic, &id) => continue,
                    Ok(Err(RecvError::Closed)) => return None,
                    _ => {}
                },
                Some(viewer) = viewers.next() => self.context.viewer = viewer,
            }
            look = Instant::now() + LOOK_AGAIN;
            sleep(BATCH_WINDOW).await;
            while self.notices.try_recv().is_ok() {}
            let view = self.gateway.view(&self.context.viewer, self.context.profile.as_deref()).await;
            let digest = match view {
                Ok(view) => {
                    self.watched = Watched::of(&view);
                    view.digest()
                }
                Err(error) if error.is_refusal() => return None,
                Err(_) => continue,
            };
            if digest != self.digest {
                self.digest = digest;
                return Some(());
            }
        }
    }
}

fn instructions(view: &View) -> &'static str {
    match view.mode {
        ExposeMode::Direct => "",
        ExposeMode::Search => "Find tools with find_tools, read one with describe_tool, call it with call_tool.",
    }
}

/// The tools of a view as MCP lists them, all at once.
pub(crate) fn listed(view: &View) -> Result<Vec<Arc<RawValue>>> {
    match view.mode {
        ExposeMode::Direct => Ok(view.tools().map(|tool| Arc::clone(&tool.listed)).collect()),
        ExposeMode::Search => search::tools(),
    }
}

/// A page of the tools.
fn list(view: &View, message: &Message) -> Result<McpReply> {
    let offset = match message.params.get("cursor") {
        None | Some(Value::Null) => 0,
        Some(cursor) => match cursor.as_str().and_then(|text| text.strip_prefix("o")?.parse::<usize>().ok()) {
            Some(offset) => offset,
            None => return Ok(message.fail(400, INVALID_PARAMS, "This cursor is not one of ours.").into()),
        },
    };
    let all = listed(view)?;
    let rest = all.get(offset..).unwrap_or_default();
    let mut bytes = 0;
    let fits = |tool: &&Arc<RawValue>| {
        bytes += tool.get().len();
        bytes <= PAGE_BYTES
    };
    let count = rest.iter().take(PAGE).take_while(fits).count().max(1).min(rest.len());
    let next = (count < rest.len()).then(|| format!("o{}", offset + count));
    Ok(McpReply::Json(message.answer_tools(&rest[..count], next)?))
}
