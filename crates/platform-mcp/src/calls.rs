//! One call of a tool: who may, with whose rights, and what came of it (contract 12 §2, §3).

use std::{cell::Cell, sync::Arc, time::Duration};

use platform_agents::{NewThread, ThreadState, ThreadView};
use platform_chat::NewMessage;
use platform_core::{
    AccountId, Credential, Error, ErrorKind, Id, Object, Result, Timestamp, json_length, millis, run_blocking,
    sha256_hex, spawn,
};
use platform_db::{Idempotency, code::IDEMPOTENCY_IN_PROGRESS};
use platform_integrations::{Connecting, McpTarget, NewConnection};
use platform_runtime::{Payer, Spender, ToolCall, code::TENANT_LIMIT_EXCEEDED};
use platform_toolservers::{McpAuthMode, McpCall, McpOutcome, McpUpdate, OfferedServer, UpstreamCredentials};
use serde_json::{Value, json};
use tokio::{sync::mpsc, time::Instant, time::sleep};

use crate::{
    endpoint::McpContext,
    model::{CallOutcome, TargetType},
    protocol::{MISSING_CAPABILITY, Message, error_result, error_text, say_in_text, text_result},
    repository::CallRow,
    service::PgMcpGateway,
    surface::{Target, Tool, View},
};

/// A call waits so long for the end of an agent.
const AGENT_WAIT: Duration = Duration::from_mins(5);
/// How long until it is looked at first, and at most from then on, ever more seldom.
const FIRST_LOOK: Duration = Duration::from_millis(250);
const MAX_BETWEEN_LOOKS: Duration = Duration::from_secs(2);
/// An approval is good for so long.
const APPROVAL_MS: i64 = 600_000;
/// Characters of the arguments that whoever approves is shown.
const MAX_SHOWN: usize = 8_000;
const APPROVAL: &str = "approval";
const APPROVED: &str = "approved";
/// Of a tool's name so many characters are noted.
const MAX_NAME: usize = 200;
/// What stands before the state of an approval.
const STATE: &str = "approval.";
/// The question that asks somebody to log in, its state, and what is said when nobody has.
const CONNECT: &str = "connect";
const LOG_IN_STATE: &str = "log-in.";
const NOT_CONNECTED: &str = "NOT_CONNECTED";

/// Arguments and results that are longer are measured beside the threads that serve others, in bytes.
const SHORT: usize = 16 << 10;

/// Bytes of the arguments and of the result of a call as JSON; `None` when there are more than so many.
fn lengths(arguments: &Object, result: &Value, most: usize) -> Option<[i64; 2]> {
    let length = |bytes: usize| i64::try_from(bytes).unwrap_or(i64::MAX);
    Some([length(json_length(arguments, most)?), length(json_length(result, most)?)])
}

/// What came of a call.
pub(crate) enum Called {
    /// A result of the tool.
    Result(Value),
    /// An error of the protocol, by the upstream.
    Refused(i32, String, Option<Value>),
    /// What is said of a call without a result of the tool.
    Failed(Value),
}

/// A call that is about to be made.
pub(crate) struct Calling {
    gateway: Arc<PgMcpGateway>,
    context: McpContext,
    profile: String,
    keeps_payloads: bool,
    name: String,
    /// The server of the tool, once that is known.
    server: Option<String>,
    arguments: Object,
    began: Timestamp,
    clock: Instant,
    is_noted: Cell<bool>,
}

/// Whoever goes away in the middle of a call leaves a row, too.
impl Drop for Calling {
    fn drop(&mut self) {
        if !self.is_noted.get() {
            let row = self.row(CallOutcome::UpstreamError, Some("CANCELLED".to_owned()));
            let payloads = self.keeps_payloads.then(|| [std::mem::take(&mut self.arguments).into(), Value::Null]);
            let (gateway, own) = (Arc::clone(&self.gateway), self.context.upstream.clone());
            spawn("note call", async move { gateway.audit.note_in_time(row, payloads, own).await });
        }
    }
}

/// With whose rights a server is called.
enum Rights {
    Given(UpstreamCredentials),
    /// Somebody is to log in there first.
    LogIn(String),
}

/// What the upstream is told of a caller, and what it said before.
struct Before {
    input_responses: Option<Value>,
    request_state: Option<String>,
}

impl Calling {
    pub fn new(gateway: &Arc<PgMcpGateway>, context: McpContext, view: &View, name: &str, arguments: Object) -> Self {
        Self {
            gateway: Arc::clone(gateway),
            context,
            profile: view.profile_id.clone(),
            keeps_payloads: view.audits_payloads,
            name: name.to_owned(),
            server: None,
            arguments,
            began: gateway.clock.now(),
            clock: Instant::now(),
            is_noted: Cell::new(false),
        }
    }

    pub fn reads_streams(&self) -> bool {
        self.context.reads_streams
    }

    /// Notes a search among the tools; what it found.
    pub async fn found(&self, result: Value) -> Value {
        let outcome = if result["isError"] == true { CallOutcome::ToolError } else { CallOutcome::Ok };
        self.note(outcome, None, result).await
    }

    /// Notes a call that is not made.
    pub async fn denied(&self, code: &str) {
        self.note(CallOutcome::Denied, Some(code.to_owned()), Value::Null).await;
    }

    /// The result of a call that is not made.
    pub async fn refused(&self, code: &str, reason: &str) -> Value {
        self.denied(code).await;
        error_text(code, reason)
    }

    /// Makes the call, and notes it.
    pub async fn run(self, tool: Tool, message: &Message, updates: Option<mpsc::Sender<McpUpdate>>) -> Called {
        let has_output_schema = tool.has_output_schema;
        match self.made(tool, message, updates).await {
            // Clients hold what is structured against the schema; the text says the same.
            Called::Failed(mut result) if has_output_schema => {
                result.as_object_mut().map(say_in_text);
                Called::Failed(result)
            }
            called => called,
        }
    }

    async fn made(mut self, tool: Tool, message: &Message, updates: Option<mpsc::Sender<McpUpdate>>) -> Called {
        self.server = match &tool.target {
            Target::Server(server, _) | Target::LogIn(server) => Some(server.clone()),
            Target::Platform(..) => None,
        };
        if let Some(result) = self.spent().await {
            return Called::Failed(result);
        }
        let mut before = Before {
            input_responses: message.params.get("inputResponses").cloned(),
            request_state: message.text("requestState").map(str::to_owned),
        };
        if tool.requires_approval
            && let Some(result) = self.approval(&tool, message, &mut before).await
        {
            return Called::Failed(result);
        }
        if let Some(result) = self.declined(&mut before).await {
            return Called::Failed(result);
        }
        let (called, outcome, code) = match &tool.target {
            Target::Platform(kind, id) => self.platform(*kind, id).await,
            Target::LogIn(server) | Target::Server(server, _) => {
                match self.gateway.tool_servers.offered(&self.context.viewer.caller.account, server).await {
                    Ok(Some(server)) => match &tool.target {
                        Target::Server(_, name) => self.server(&server, name, message, before, updates).await,
                        _ => self.log_in(&server, message).await,
                    },
                    Ok(None) => failed("TOOL_NOT_AVAILABLE", "The server of this tool is gone."),
                    Err(error) => failed_by(&error),
                }
            }
        };
        let called = if tool.requires_approval { self.still_approved(&tool, called) } else { called };
        match called {
            Called::Result(result) => Called::Result(self.note(outcome, code, result).await),
            Called::Failed(result) => Called::Failed(self.note(outcome, code, result).await),
            Called::Refused(number, reason, data) => {
                self.note(outcome, code, json!({"code": number, "message": reason})).await;
                Called::Refused(number, reason, data)
            }
        }
    }

    /// Notes what came of it, and hands that on.
    async fn note(&self, outcome: CallOutcome, code: Option<String>, result: Value) -> Value {
        self.is_noted.set(true);
        let mut row = self.row(outcome, code);
        let payloads = |arguments: &Object, result: &Value| [Value::Object(arguments.clone()), result.clone()];
        let (payloads, result) = if let Some(lengths) = lengths(&self.arguments, &result, SHORT) {
            [row.request_bytes, row.response_bytes] = lengths;
            (self.keeps_payloads.then(|| payloads(&self.arguments, &result)), result)
        } else {
            let (arguments, keeps) = (self.arguments.clone(), self.keeps_payloads);
            let measured = run_blocking(move || {
                let lengths = lengths(&arguments, &result, usize::MAX).unwrap_or_default();
                Ok((lengths, keeps.then(|| payloads(&arguments, &result)), result))
            });
            match measured.await {
                Ok((lengths, payloads, result)) => {
                    [row.request_bytes, row.response_bytes] = lengths;
                    (payloads, result)
                }
                Err(error) => return error_text(error.code().as_str(), error.message()),
            }
        };
        self.gateway.audit.note(row, payloads, self.context.upstream.clone()).await;
        result
    }

    /// The row of a call, without its payloads and their lengths.
    fn row(&self, outcome: CallOutcome, code: Option<String>) -> CallRow {
        CallRow {
            account_id: self.context.viewer.caller.account.as_str().to_owned(),
            id: Id::<CallRow>::generate().into(),
            timestamp_ms: self.began.0,
            subject: self.context.viewer.name.clone(),
            profile_id: self.profile.clone(),
            tool_server_id: self.server.clone(),
            tool_name: self.name.chars().take(MAX_NAME).collect::<String>().replace('\0', " "),
            outcome: outcome.as_str().to_owned(),
            duration_ms: millis(self.clock.elapsed()),
            request_bytes: 0,
            response_bytes: 0,
            error_code: code,
            arguments: None,
            result: None,
        }
    }

    /// The end user who calls.
    fn payer(&self) -> Option<Payer> {
        let caller = &self.context.viewer.caller;
        let session = caller.session()?;
        Some(Payer {
            account: caller.account.clone(),
            tenant_id: Some(session.tenant_id.clone()),
            subtenant_id: session.subtenant_id.clone(),
            project_id: None,
            spender: Spender::Service("mcp"),
        })
    }

    /// Why a tenant's call is not made: its quota is spent.
    async fn spent(&self) -> Option<Value> {
        let payer = self.payer()?;
        match self.gateway.budget.spent(&payer).await {
            Ok(None) => None,
            Ok(Some(refusal)) => Some(self.refused(TENANT_LIMIT_EXCEEDED.as_str(), &refusal.message).await),
            Err(error) => Some(self.refused(error.code().as_str(), error.message()).await),
        }
    }

    /// What stands for this call and no other: of this tool as it is described now.
    fn digest(&self, tool: &Tool) -> String {
        let viewer = &self.context.viewer;
        let (account, target) = (viewer.caller.account.as_str(), tool.target.names());
        let call = json!([account, viewer.name, self.profile, self.name, target, tool.definition, self.arguments]);
        sha256_hex(call.to_string())
    }

    /// What an upstream asks for in the middle of a call that was approved comes back as approved.
    fn still_approved(&self, tool: &Tool, called: Called) -> Called {
        let Called::Result(mut result) = called else { return called };
        if result["resultType"] == "input_required" {
            let until = self.gateway.clock.now().0 + APPROVAL_MS;
            let signed = self.gateway.vault.sign(APPROVED, &format!("{}.{until}", self.digest(tool)));
            let state = result["requestState"].as_str().unwrap_or_default();
            result["requestState"] = format!("{APPROVED}.{until}.{signed}.{state}").into();
        }
        Called::Result(result)
    }

    /// Notes what somebody answered to a question, once whatever process is told; whether it was the first answer.
    async fn decide(&self, question: &str, is_approved: bool) -> Result<bool> {
        let account = self.context.viewer.caller.account.clone();
        let once = Idempotency { account, scope: format!("mcp-approval/{question}"), body_hash: String::new() };
        match once.store(&mut *self.gateway.db.conn().await?, 200, &json!({"approved": is_approved})).await {
            Err(error) if error.code() == IDEMPOTENCY_IN_PROGRESS => Ok(false),
            stored => stored.map(|()| true),
        }
    }

    /// Whether the caller may decide that the tool is called.
    async fn decides(&self) -> Result<bool> {
        match &self.server {
            Some(server) => self.context.viewer.may_approve(server).await,
            None => Ok(true),
        }
    }

    /// What is answered instead of a call that somebody is to approve first; the state of one that was approved gives
    /// way to the upstream's.
    async fn approval(&self, tool: &Tool, message: &Message, before: &mut Before) -> Option<Value> {
        let decides = match self.decides().await {
            Ok(decides) => decides,
            Err(error) => return Some(self.refused(error.code().as_str(), error.message()).await),
        };
        let asks = decides && message.is_modern && message.can_ask_by_form();
        let (digest, now) = (self.digest(tool), self.gateway.clock.now().0);
        let is_signed = |purpose: &str, until: &str, signed: &str| {
            self.gateway.vault.has_signed(purpose, &format!("{digest}.{until}"), signed)
                && until.parse::<i64>().is_ok_and(|until| until > now)
        };
        let continued =
            before.request_state.as_deref().filter(|_| decides).and_then(|state| state.strip_prefix("approved."));
        let continued = continued.and_then(|state| {
            let mut parts = state.splitn(3, '.');
            Some((parts.next()?, parts.next()?, parts.next()?.to_owned()))
        });
        if let Some((until, signed, upstream)) = continued
            && is_signed(APPROVED, until, signed)
        {
            match self.decide(signed, true).await {
                Ok(true) => {
                    before.request_state = Some(upstream).filter(|state| !state.is_empty());
                    return None;
                }
                // Whoever answers a second time is asked anew.
                Ok(false) => {}
                Err(error) => return Some(self.refused(error.code().as_str(), error.message()).await),
            }
        }
        let state = before.request_state.as_deref().filter(|_| decides).and_then(|state| state.strip_prefix(STATE));
        if let Some((until, signed)) = state.and_then(|state| state.split_once('.')) {
            let answer = before.input_responses.as_ref().and_then(|given| given.get(APPROVAL));
            if let Some(answer) = answer.filter(|_| is_signed(APPROVAL, until, signed)) {
                let is_approved = answer["action"] == "accept" && answer["content"]["approved"] == Value::Bool(true);
                match self.decide(signed, is_approved).await {
                    Ok(true) if is_approved => {
                        (before.request_state, before.input_responses) = (None, None);
                        return None;
                    }
                    Ok(true) => return Some(self.refused("APPROVAL_DENIED", "The call was not approved.").await),
                    // Whoever answers a second time is asked anew.
                    Ok(false) => {}
                    Err(error) => return Some(self.refused(error.code().as_str(), error.message()).await),
                }
            }
        }
        let who = if decides { "" } else { ", which an editor of its project alone may give" };
        let reason = format!("`{}` runs only with an approval{who}; nothing was started.", self.name);
        if !asks {
            return Some(self.refused("APPROVAL_REQUIRED", &reason).await);
        }
        self.denied("APPROVAL_REQUIRED").await;
        let until = now + APPROVAL_MS;
        let signed = self.gateway.vault.sign(APPROVAL, &format!("{digest}.{until}"));
        let schema = json!({"type": "object", "required": ["approved"],
            "properties": {"approved": {"type": "boolean", "title": "Approve", "description": "Run the tool"}}});
        let all = Value::Object(self.arguments.clone()).to_string();
        let shown = match all.char_indices().nth(MAX_SHOWN) {
            None => all,
            Some((end, _)) => format!("{}… ({} bytes more are not shown)", &all[..end], all.len() - end),
        };
        let asked = json!({"method": "elicitation/create", "params": {
            "mode": "form", "message": format!("Run `{}` with {shown}?", self.name), "requestedSchema": schema}});
        Some(json!({"resultType": "input_required", "inputRequests": {APPROVAL: asked},
            "requestState": format!("{STATE}{until}.{signed}")}))
    }

    /// What is answered to whoever did not want to log in. The answer to our question is none to one of the upstream.
    async fn declined(&self, before: &mut Before) -> Option<Value> {
        before.request_state.take_if(|state| state == LOG_IN_STATE)?;
        let answer = before.input_responses.take().unwrap_or_default();
        let is_declined = answer[CONNECT]["action"].as_str().is_some_and(|action| action != "accept");
        if !is_declined {
            return None;
        }
        // Whoever declined there has used up the address.
        if let Some(server) = &self.server {
            self.gateway.log_ins.invalidate(&self.log_in_key(server));
        }
        Some(self.refused(NOT_CONNECTED, "The log-in was declined.").await)
    }

    /// Calls a tool of a server.
    async fn server(
        &self,
        server: &OfferedServer,
        tool: &str,
        message: &Message,
        before: Before,
        updates: Option<mpsc::Sender<McpUpdate>>,
    ) -> (Called, CallOutcome, Option<String>) {
        let with = match self.rights(server).await {
            Ok(Rights::Given(with)) => with,
            Ok(Rights::LogIn(url)) => return Self::connect(server, &url, message),
            Err(error) => return failed_by(&error),
        };
        let call = McpCall {
            id: self.context.call_id.clone().unwrap_or_else(ToolCall::new_id),
            arguments: self.arguments.clone(),
            with,
            capabilities: if message.is_modern { message.capabilities.clone() } else { json!({}) },
            input_responses: before.input_responses,
            request_state: before.request_state,
            log_level: message.log_level().map(str::to_owned),
            updates,
            end_user: self.payer().and_then(|payer| payer.end_user()),
            has_room: Arc::clone(&self.context.has_room),
        };
        match self.gateway.tool_servers.call_through(server, tool, call).await {
            McpOutcome::Result(result) if result["resultType"] == "input_required" && !message.is_modern => {
                Self::asks_for_input()
            }
            // A server says so, too, that knows what the client can do.
            McpOutcome::Refused(MISSING_CAPABILITY, ..) if !message.is_modern => Self::asks_for_input(),
            McpOutcome::Result(result) => {
                let is_error = result["isError"] == Value::Bool(true);
                let outcome = if is_error { CallOutcome::ToolError } else { CallOutcome::Ok };
                (Called::Result(result), outcome, is_error.then(|| "TOOL_ERROR".to_owned()))
            }
            McpOutcome::Refused(code, reason, data) => {
                (Called::Refused(code, reason, data), CallOutcome::ToolError, Some(code.to_string()))
            }
            McpOutcome::Failed(code, said) => failed_with(&code, said),
        }
    }

    fn asks_for_input() -> (Called, CallOutcome, Option<String>) {
        failed("INPUT_REQUIRED", "The tool asks for something that this client cannot give.")
    }

    /// With whose rights a server is called; where to connect when there are none.
    async fn rights(&self, server: &OfferedServer) -> Result<Rights> {
        match server.auth_mode() {
            McpAuthMode::Shared => Ok(Rights::Given(UpstreamCredentials::Own)),
            McpAuthMode::Passthrough => match &self.context.upstream {
                Some(header) => Ok(Rights::Given(UpstreamCredentials::Header(header.clone()))),
                None => {
                    let message = "Send what lets in to this server as X-Upstream-Authorization.";
                    Err(Error::new(platform_core::Code::BAD_REQUEST, message))
                }
            },
            McpAuthMode::PerUser => {
                let caller = &self.context.viewer.caller;
                let owner = caller.session().map(|session| platform_core::Owner {
                    tenant_id: Some(session.tenant_id.clone()),
                    subtenant_id: session.subtenant_id.clone(),
                });
                let owner = owner.unwrap_or_default();
                let target = McpTarget {
                    server: server.id(),
                    name: server.name(),
                    url: server.url(),
                    subject: Some(&self.context.viewer.name),
                };
                let integrations = &self.gateway.integrations;
                if let Some(connection) = integrations.mcp_connection(&caller.account, &target, &owner).await? {
                    return Ok(Rights::Given(UpstreamCredentials::Connection(connection)));
                }
                let key = self.log_in_key(server.id());
                if let Some(begun) = self.gateway.log_ins.get(&key) {
                    return Ok(Rights::LogIn(begun));
                }
                if matches!(caller.credential, Credential::RestrictedKey(_)) {
                    let message = "A restricted key stands for many people: nobody can log in to this server with it.";
                    return Err(Error::new(platform_core::Code::FORBIDDEN, message));
                }
                let connecting = Connecting { by: caller.user_uid.clone(), origins: Vec::new(), owner };
                let new = NewConnection::default();
                let begun = integrations.connect_mcp(&caller.account, &target, new, &connecting).await?;
                let url = begun.authorization_url.unwrap_or_default();
                self.gateway.log_ins.insert(key, url.clone());
                Ok(Rights::LogIn(url))
            }
        }
    }

    /// Under what the address is kept where this caller logs in to a server.
    fn log_in_key(&self, server: &str) -> (AccountId, String, String) {
        (self.context.viewer.caller.account.clone(), server.to_owned(), self.context.viewer.name.clone())
    }

    /// Logs in to a server whose tools are not known yet.
    async fn log_in(&self, server: &OfferedServer, message: &Message) -> (Called, CallOutcome, Option<String>) {
        match self.rights(server).await {
            Ok(Rights::Given(with)) => match self.gateway.tool_servers.read_with(server, &with).await {
                Ok(count) => {
                    let told = format!("You are logged in to {}; it has {count} tools.", server.name());
                    (Called::Result(text_result(&told, &json!({"tools": count}))), CallOutcome::Ok, None)
                }
                Err(error) => failed_by(&error),
            },
            Ok(Rights::LogIn(url)) => Self::connect(server, &url, message),
            Err(error) => failed_by(&error),
        }
    }

    /// What somebody is told who is to log in to a server first.
    fn connect(server: &OfferedServer, url: &str, message: &Message) -> (Called, CallOutcome, Option<String>) {
        let reason = format!("Log in to {} first: open {url} and call again.", server.name());
        let opens = message.is_modern && message.capabilities["elicitation"]["url"].is_object();
        let result = if opens {
            let asked = json!({"method": "elicitation/create", "params": {"mode": "url", "url": url,
                "elicitationId": sha256_hex(url)[..32], "message": format!("Log in to {}.", server.name())}});
            json!({"resultType": "input_required", "inputRequests": {CONNECT: asked}, "requestState": LOG_IN_STATE})
        } else {
            let said = [("message".to_owned(), reason.into()), ("connectUrl".to_owned(), url.into())];
            error_result(NOT_CONNECTED, Object::from_iter(said))
        };
        (Called::Failed(result), CallOutcome::Denied, Some(NOT_CONNECTED.to_owned()))
    }

    /// Asks an assistant or has an agent work.
    async fn platform(&self, kind: TargetType, id: &str) -> (Called, CallOutcome, Option<String>) {
        let text = |name: &str| self.arguments.get(name).and_then(Value::as_str).map(str::to_owned);
        let Some(said) = text("message").filter(|text| !text.is_empty()) else {
            return failed("INVALID_ARGUMENTS", "message is required.");
        };
        let answered = match kind {
            TargetType::Assistant => self.ask(id, said, text("chatUid")).await,
            TargetType::Agent => self.work(id, said).await,
        };
        match answered {
            Ok(result) => (Called::Result(result), CallOutcome::Ok, None),
            Err(error) => failed_by(&error),
        }
    }

    async fn ask(&self, assistant: &str, said: String, chat_uid: Option<String>) -> Result<Value> {
        let caller = &self.context.viewer.caller;
        let session = caller.session();
        let new = NewMessage {
            message: Some(said),
            chat_uid,
            tenant_id: session.map(|session| session.tenant_id.clone()),
            subtenant_id: session.and_then(|session| session.subtenant_id.clone()),
            ..NewMessage::default()
        };
        let sent = self.gateway.chat.send_and_wait(caller, assistant, new, Some("mcp".to_owned()), None).await?;
        let reply = sent.messages.iter().rev().find_map(|message| {
            let message: Value = serde_json::from_str(message.as_ref()).ok()?;
            message["content"]["message"].as_str().map(str::to_owned)
        });
        let reply = reply.unwrap_or_default();
        Ok(text_result(&reply, &json!({"message": reply, "chatUid": sent.chat_uid})))
    }

    async fn work(&self, agent: &str, said: String) -> Result<Value> {
        let caller = &self.context.viewer.caller;
        let session = caller.session();
        let new = NewThread {
            message: Some(said),
            tenant_id: session.map(|session| session.tenant_id.clone()),
            subtenant_id: session.and_then(|session| session.subtenant_id.clone()),
            ..NewThread::default()
        };
        let started =
            self.gateway.threads.start(caller, &Id::named(agent), new, Some("mcp".to_owned()), false, None).await?;
        let started = started.accepted()?;
        let (thread, until) = (Id::named(&started.thread_id), Instant::now() + AGENT_WAIT);
        let view = |omit: bool| ThreadView { omit_content: Some(omit), ..ThreadView::default() };
        let (mut state, mut wait) = (started.state, FIRST_LOOK);
        while Instant::now() < until && !is_over(state) {
            sleep(wait).await;
            wait = (2 * wait).min(MAX_BETWEEN_LOOKS);
            state = self.gateway.threads.get(&caller.account, &thread, view(true)).await?.0.state;
        }
        let mut structured = json!({"threadId": thread, "state": state});
        if is_over(state) {
            let whole = self.gateway.threads.get(&caller.account, &thread, view(false)).await?.0;
            let said = whole.thread_content.iter().flatten().rev().find_map(|message| {
                let message: Value = serde_json::from_str(message.as_ref()).ok()?;
                let text = message["content"]["message"].as_str().filter(|text| !text.is_empty());
                text.map(str::to_owned)
            });
            structured["message"] = said.unwrap_or_default().into();
        }
        Ok(text_result(&structured.to_string(), &structured))
    }
}

/// Whether a thread goes no further by itself.
fn is_over(state: ThreadState) -> bool {
    !matches!(state, ThreadState::Queued | ThreadState::Processing)
}

/// A call that an error of ours ended.
fn failed_by(error: &Error) -> (Called, CallOutcome, Option<String>) {
    let outcome = match error.code().kind() {
        ErrorKind::Upstream | ErrorKind::Unavailable | ErrorKind::Internal => CallOutcome::UpstreamError,
        ErrorKind::UpstreamTimeout => CallOutcome::Timeout,
        ErrorKind::Forbidden | ErrorKind::Unauthenticated | ErrorKind::TooMany => CallOutcome::Denied,
        _ => CallOutcome::ToolError,
    };
    let (called, _, code) = failed(error.code().as_str(), error.message());
    (called, outcome, code)
}

/// A call without a result.
fn failed(code: &str, reason: &str) -> (Called, CallOutcome, Option<String>) {
    failed_with(code, Object::from_iter([("message".to_owned(), reason.into())]))
}

/// The same, with all that is said of it.
fn failed_with(code: &str, said: Object) -> (Called, CallOutcome, Option<String>) {
    let outcome = match code {
        "UPSTREAM_TIMEOUT" => CallOutcome::Timeout,
        "INVALID_ARGUMENTS" | "INPUT_REQUIRED" | "TOOL_NOT_AVAILABLE" | "BAD_REQUEST" => CallOutcome::ToolError,
        "FORBIDDEN" | "RATE_LIMIT_EXCEEDED" | NOT_CONNECTED => CallOutcome::Denied,
        _ => CallOutcome::UpstreamError,
    };
    (Called::Failed(error_result(code, said)), outcome, Some(code.to_owned()))
}
