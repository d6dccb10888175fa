use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use platform_core::{AccountId, Clock, Code, Error, Id, Object, Result, Timestamp};
use platform_db::Db;
use platform_jobs::{Run, Work};
use platform_realtime::{Key, Live, Realtime};
use platform_runtime::{
    Answer, Delta, Fault, FaultCode, Limits, Listener, Message, Model, Prompt, Role, Step, StopReason, ToolCall,
    ToolFunction, Usage, run_turn,
};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::{
    finish::{Finisher, MessageRow, Outcome},
    message::{Accounting, ChatMessage, MessageContent, StoredJson, TokenUsage},
    prompt,
};
use crate::{
    assistant::{Assistant, AssistantService},
    chat::repository,
};

/// Kind of the runs that are turns of a chat.
pub(crate) const KIND: &str = "chat";

/// What a turn must know beyond its chat; stored with the run.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct TurnRequest {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub application_state: Option<Object>,
    pub user_uid: String,
}

/// How a turn ended, for whoever waits for it.
#[derive(Debug)]
pub(crate) enum TurnOutcome {
    /// Its messages after the user's.
    Done(Vec<StoredJson>),
    /// The model failed.
    Failed(Fault),
}

/// Carries out turns of chats.
pub(crate) struct Turns {
    pub db: Db,
    pub clock: Arc<dyn Clock>,
    pub model: Arc<dyn Model>,
    pub realtime: Arc<Realtime>,
    pub assistants: Arc<dyn AssistantService>,
    pub finisher: Finisher,
    pub max_attempts: i32,
}

/// The chat as the turn finds it.
pub(crate) struct TurnChat {
    pub uid: String,
    pub assistant: String,
    pub revision: i64,
    pub message_count: i32,
    pub turn_start: i32,
    pub usage: TokenUsage,
    pub metadata: Object,
}

/// A turn that starts where it was accepted: what is known need not be read again.
pub(crate) struct Warm {
    pub turns: Arc<Turns>,
    pub assistant: Arc<Assistant>,
    pub request: TurnRequest,
    pub start: Mutex<Option<WarmStart>>,
}

pub(crate) struct WarmStart {
    pub chat: TurnChat,
    /// All messages of the chat, when it is new.
    pub messages: Option<Vec<String>>,
    pub waiter: Option<oneshot::Sender<TurnOutcome>>,
}

#[async_trait]
impl Work for Warm {
    fn kind(&self) -> &'static str {
        KIND
    }

    async fn work(&self, run: &Run, stop: &CancellationToken) -> Result<()> {
        let Some(start) = self.start.lock().expect("lock").take() else { return Ok(()) };
        let turn = Turn::new(&self.turns, run, start.chat, &self.request);
        let outcome = turn.work(&self.assistant, start.messages, stop).await?;
        if let (Some(waiter), Some(outcome)) = (start.waiter, outcome) {
            let _ = waiter.send(outcome);
        }
        Ok(())
    }
}

#[async_trait]
impl Work for Turns {
    fn kind(&self) -> &'static str {
        KIND
    }

    async fn work(&self, run: &Run, stop: &CancellationToken) -> Result<()> {
        let account = run.account();
        let conn = self.db.read().await?;
        let Some(chat) = repository::turn_chat(conn.get(), &account, &run.subject).await? else {
            // Nothing is left to answer.
            platform_jobs::cancel_in(&mut *self.db.conn().await?, &account, KIND, &run.subject).await?;
            return Ok(());
        };
        let request: TurnRequest = serde_json::from_value(run.payload.clone()).map_err(Error::internal)?;
        let name = chat.assistant.clone();
        let turn = Turn::new(self, run, chat, &request);
        if run.attempt > self.max_attempts {
            return turn.give_up("WORKER_LOST", "The worker of this turn was lost too often.").await;
        }
        match self.assistants.get(&account, &name).await {
            Ok(assistant) => turn.work(&assistant, None, stop).await.map(drop),
            Err(error) if error.code() == Code::AssistantNotFound => turn.stopped(None).await.map(drop),
            Err(error) => Err(error),
        }
    }
}

/// One turn under one lease.
struct Turn<'a> {
    turns: &'a Turns,
    run: &'a Run,
    account: AccountId,
    chat: TurnChat,
    request: &'a TurnRequest,
    began: Timestamp,
    live: Arc<Live>,
    /// Messages of this turn that are stored already.
    said: Vec<StoredJson>,
    calls: Vec<ToolCall>,
    shows_growth: bool,
}

enum MessageKind {}

/// Under which a chat is shown: with its assistant, so that it is found under no other.
pub(crate) fn live_key(account: &AccountId, assistant: &str, uid: &str) -> Key {
    (account.clone(), format!("{assistant}/{uid}").into())
}

fn new_uid() -> String {
    Id::<MessageKind>::generate().into()
}

impl<'a> Turn<'a> {
    fn new(turns: &'a Turns, run: &'a Run, chat: TurnChat, request: &'a TurnRequest) -> Self {
        let account = run.account();
        let key = live_key(&account, &chat.assistant, &chat.uid);
        let live = turns.realtime.open(key, chat.revision, &new_uid(), run.fence - 1);
        let began = turns.clock.now();
        Self {
            turns,
            run,
            account,
            chat,
            request,
            began,
            live,
            said: Vec::new(),
            calls: Vec::new(),
            shows_growth: true,
        }
    }

    /// `None` when the lease was lost: another worker ends the turn.
    async fn work(
        mut self,
        assistant: &Assistant,
        messages: Option<Vec<String>>,
        stop: &CancellationToken,
    ) -> Result<Option<TurnOutcome>> {
        if stop.is_cancelled() {
            return self.stopped(None).await;
        }
        self.shows_growth = assistant.settings().shows_growth();
        let prompt = match self.prompt(assistant, messages).await {
            Ok(prompt) => prompt,
            Err(error) if error.code() == Code::InternalError || error.code() == Code::ServiceUnavailable => {
                return Err(error);
            }
            Err(error) => return self.give_up("PROVIDER_ERROR", error.message()).await.map(|()| None),
        };
        let limits = Limits { tool_calls: u64::from(assistant.settings().max_tool_calls) };
        let model = Arc::clone(&self.turns.model);
        let live = Arc::clone(&self.live);
        let asked = prompt.clone();
        let ending = tokio::select! {
            biased;
            ending = run_turn(&*model, prompt, limits, &mut self) => Some(ending),
            () = stop.cancelled() => None,
            never = live.flush() => match never {},
        };
        match ending {
            None => self.stopped(Some(asked)).await,
            Some(Err(error)) if error.code() == Code::Conflict => Ok(None),
            Some(Err(error)) => Err(error),
            Some(Ok(ending)) => self.ended(ending.answer, ending.reason, ending.fault).await,
        }
    }

    async fn prompt(&self, assistant: &Assistant, messages: Option<Vec<String>>) -> Result<Prompt> {
        let chat = &self.chat;
        let (messages, turn) = match messages {
            Some(mut messages) => {
                let turn = usize::try_from(chat.turn_start).unwrap_or(0);
                let most = usize::try_from(assistant.settings().max_chat_messages).unwrap_or(usize::MAX);
                let left_out = if most == 0 { 0 } else { messages.len().saturating_sub(most).min(turn) };
                messages.drain(..left_out);
                (messages, turn - left_out)
            }
            None => {
                let spec = assistant.settings().choose(
                    &*self.turns.model,
                    self.request.provider.as_deref(),
                    self.request.model.as_deref(),
                )?;
                let conn = self.turns.db.read().await?;
                let most = assistant.settings().max_chat_messages;
                let bytes = prompt::budget(&spec);
                repository::newest_bodies(conn.get(), &self.account, chat, most, bytes).await?
            }
        };
        prompt::build(&*self.turns.model, assistant, self.request, &chat.metadata, &messages, turn)
    }

    async fn ended(
        mut self,
        answer: Option<Answer>,
        reason: &'static str,
        fault: Option<Fault>,
    ) -> Result<Option<TurnOutcome>> {
        let mut rows = Vec::new();
        let mut model = None;
        if let Some(answer) = &answer {
            rows.push(self.row(answer, self.live.uid())?);
            model = Some(answer.model.clone());
            self.chat.usage.add(answer, self.turns.clock.now());
        }
        let error = fault.as_ref().map(|fault| {
            let code = match fault.code {
                FaultCode::ContextTooLong => "CONTEXT_TOO_LONG",
                _ => "PROVIDER_ERROR",
            };
            json!({"code": code, "message": fault.message}).to_string()
        });
        let mut outcome = self.outcome(rows);
        outcome.status = if fault.is_some() { "error" } else { "completed" };
        outcome.stop_reason = Some(reason);
        outcome.error = error;
        if let Some(model) = model {
            outcome.provider = Some(model.provider.to_string());
            outcome.llm = Some(model.llm.to_string());
            outcome.context_window = i64::try_from(model.context_window).unwrap_or(i64::MAX);
        }
        if !self.commit(outcome).await? {
            return Ok(None);
        }
        Ok(Some(match fault {
            Some(fault) => TurnOutcome::Failed(fault),
            None => TurnOutcome::Done(std::mem::take(&mut self.said)),
        }))
    }

    /// Somebody stopped it: what was written so far is kept, its tokens are estimated.
    async fn stopped(self, asked: Option<Prompt>) -> Result<Option<TurnOutcome>> {
        let text = self.live.text();
        let answer = asked.filter(|_| !text.is_empty()).map(|prompt| {
            let usage = Usage::estimated(&prompt, &text, &[]);
            Answer {
                cost: usage.cost(&prompt.model.prices),
                usage,
                text,
                tool_calls: Vec::new(),
                stop: StopReason::EndTurn,
                latency: self.turns.clock.now().since(self.began),
                model: prompt.model,
            }
        });
        self.ended(answer, "stopped_by_user", None).await
    }

    /// Ends in an error that no model gave.
    async fn give_up(mut self, code: &'static str, message: &str) -> Result<()> {
        let mut outcome = self.outcome(Vec::new());
        outcome.status = "error";
        outcome.stop_reason = Some("error");
        outcome.error = Some(json!({"code": code, "message": message}).to_string());
        self.commit(outcome).await.map(drop)
    }

    async fn commit(&mut self, outcome: Outcome) -> Result<bool> {
        let revision = outcome.revision;
        for row in &outcome.messages {
            self.said.push(StoredJson::message(row.body.clone(), row.accounting.as_deref()));
        }
        let held = self.turns.finisher.finish(outcome).await?;
        if held {
            self.live.committed(revision, "");
        }
        Ok(held)
    }

    /// A step or an end, as far as both are alike.
    fn outcome(&self, messages: Vec<MessageRow>) -> Outcome {
        let count = i32::try_from(messages.len()).unwrap_or(0);
        let tokens = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
        Outcome {
            run: self.run.id.clone(),
            fence: self.run.fence,
            account: self.account.as_str().to_owned(),
            chat: self.chat.uid.clone(),
            status: "processing",
            stop_reason: None,
            error: None,
            provider: None,
            llm: None,
            context_window: 0,
            input_tokens: tokens(self.chat.usage.tokens.input_tokens),
            output_tokens: tokens(self.chat.usage.tokens.output_tokens),
            usage: serde_json::to_string(&self.chat.usage).unwrap_or_default(),
            revision: self.live.next_revision(),
            messages,
            message_count: self.chat.message_count + count,
            now_ms: self.turns.clock.now().0,
        }
    }

    /// The row of a model answer, at the next free position.
    fn row(&self, answer: &Answer, uid: String) -> Result<MessageRow> {
        let now = self.turns.clock.now();
        let message = ChatMessage {
            uid: uid.clone(),
            chat_uid: self.chat.uid.clone(),
            role: Role::Assistant,
            content: MessageContent { message: answer.text.clone(), ..MessageContent::default() },
            timestamp: now,
            user_uid: self.request.user_uid.clone(),
            user_name: None,
            content_source: None,
            tool_calls: answer.tool_calls.clone(),
            tool_call_id: None,
            latency_ms: u64::try_from(answer.latency.as_millis()).ok(),
        };
        let accounting = serde_json::to_string(&Accounting::of(answer, now)).map_err(Error::internal)?;
        Ok(MessageRow {
            position: self.chat.message_count,
            uid,
            role: Role::Assistant.as_str(),
            body: serde_json::to_string(&message).map_err(Error::internal)?,
            accounting: Some(accounting),
            created_ms: now.0,
        })
    }

    fn tool_row(&self, result: &Message, position: i32) -> Result<MessageRow> {
        let now = self.turns.clock.now();
        let message = ChatMessage {
            uid: new_uid(),
            chat_uid: self.chat.uid.clone(),
            role: Role::Tool,
            content: MessageContent {
                message: result.text.clone(),
                data: serde_json::from_str(&result.text).ok().filter(|_| result.text.len() <= 65_536),
                files: Vec::new(),
            },
            timestamp: now,
            user_uid: self.request.user_uid.clone(),
            user_name: None,
            content_source: None,
            tool_calls: Vec::new(),
            tool_call_id: result.tool_call_id.clone(),
            latency_ms: None,
        };
        Ok(MessageRow {
            position,
            uid: message.uid.clone(),
            role: Role::Tool.as_str(),
            body: serde_json::to_string(&message).map_err(Error::internal)?,
            accounting: None,
            created_ms: now.0,
        })
    }
}

#[async_trait]
impl Listener for Turn<'_> {
    fn delta(&mut self, delta: Delta<'_>) {
        match delta {
            Delta::Text(text) if self.shows_growth => self.live.append(text),
            Delta::Text(_) => {}
            Delta::ToolCall { index, id, name, arguments } => {
                while self.calls.len() <= index {
                    let function = ToolFunction { name: String::new(), arguments: String::new() };
                    self.calls.push(ToolCall { id: String::new(), r#type: "function".to_owned(), function });
                }
                let call = &mut self.calls[index];
                call.id.push_str(id);
                call.function.name.push_str(name);
                call.function.arguments.push_str(arguments);
                self.live.tool_calls(&serde_json::to_string(&self.calls).unwrap_or_default());
            }
        }
    }

    async fn step(&mut self, step: Step) -> Result<()> {
        let mut rows = vec![self.row(&step.answer, self.live.uid())?];
        for (position, result) in (self.chat.message_count + 1..).zip(&step.results) {
            rows.push(self.tool_row(result, position)?);
        }
        self.chat.usage.add(&step.answer, self.turns.clock.now());
        let outcome = self.outcome(rows);
        if !self.turns.finisher.step(self.run, &outcome).await? {
            return Err(Error::new(Code::Conflict, "The lease of this turn was lost."));
        }
        for row in &outcome.messages {
            self.said.push(StoredJson::message(row.body.clone(), row.accounting.as_deref()));
        }
        self.chat.message_count = outcome.message_count;
        self.calls.clear();
        self.live.committed(outcome.revision, &new_uid());
        Ok(())
    }
}
