mod listener;

use std::{pin::pin, sync::Arc};

use futures_util::FutureExt;
use platform_core::{AccountId, Code, Error, Id, Result, Timestamp, spawn};
use platform_guardrails::{Finding, Moment, Screen, Screening};
use platform_jobs::Run;
use platform_realtime::Live;
use platform_runtime::{
    Answer, CallState, Ending, Fault, FaultCode, Limits, ModelSpec, OpenCall, Operation, Resumed, Role, StopReason,
    ToolCall, Usage, run_turn,
};
use serde_json::json;
use tokio::sync::{oneshot, watch};
use tokio_util::sync::CancellationToken;

use super::{
    context::Context,
    finish::{MessageRow, Outcome, Stored},
    message::{Accounting, ChatMessage, MessageContent, StoredJson},
    notes::{Heard, Notes},
    tools,
    work::{TurnChat, TurnOutcome, TurnRequest, Turns, live_key},
};
use crate::{
    assistant::{Assistant, takes_no_tools},
    chat::repository::{self, Status, WAITING},
};

/// A result that is a JSON object of at most so many bytes stands in `data`, too.
const MOST_DATA: usize = 65_536;

/// The course of one turn under one lease.
pub(crate) struct Course<'a> {
    pub turns: &'a Turns,
    pub account: AccountId,
    pub chat: TurnChat,
    pub request: &'a TurnRequest,
    run: &'a Run,
    live: Arc<Live>,
    began: Timestamp,
    waiter: Option<oneshot::Sender<TurnOutcome>>,
    /// Messages of this turn that are stored already.
    said: Vec<StoredJson>,
    calls: Vec<ToolCall>,
    shows_growth: bool,
    screen: Option<Arc<Screen>>,
    findings: Vec<Finding>,
    /// Whom the turn asks, and what its prompt takes: for an answer that is cut short.
    asked: Option<(ModelSpec, Usage)>,
    /// User messages of the turn, as far as notes are to be made of them.
    heard: Vec<Heard>,
    /// Position of the first message that this lease adds.
    first_said: i32,
    /// A step is being committed.
    saving: watch::Sender<bool>,
}

enum MessageKind {}

pub(crate) fn new_uid() -> String {
    Id::<MessageKind>::generate().into()
}

impl<'a> Course<'a> {
    pub fn new(
        turns: &'a Turns,
        run: &'a Run,
        chat: TurnChat,
        request: &'a TurnRequest,
        waiter: Option<oneshot::Sender<TurnOutcome>>,
    ) -> Self {
        let account = run.account();
        let key = live_key(&account, &chat.assistant, &chat.uid);
        let live = turns.realtime.open(key, chat.revision, &new_uid(), run.fence - 1);
        Self {
            turns,
            account,
            first_said: chat.message_count,
            heard: Vec::new(),
            chat,
            request,
            run,
            live,
            began: turns.clock.now(),
            waiter,
            said: Vec::new(),
            calls: Vec::new(),
            shows_growth: true,
            screen: None,
            findings: request.findings.clone(),
            asked: None,
            saving: watch::Sender::new(false),
        }
    }

    /// Answers the messages of the turn. When the lease is lost another worker ends it.
    pub async fn work(
        mut self,
        assistant: &Assistant,
        messages: Option<Vec<String>>,
        stop: &CancellationToken,
    ) -> Result<()> {
        if stop.is_cancelled() {
            return self.end_empty().await;
        }
        self.shows_growth = assistant.shows_growth();
        self.screen = assistant.screen();
        if self.has_waited() && self.screen.is_some() {
            self.recall_findings();
        }
        let live = Arc::clone(&self.live);
        let mut saving = self.saving.subscribe();
        let stopped = async {
            stop.cancelled().await;
            // What is being committed is waited for: the end goes on from there.
            let _ = saving.wait_for(|saving| !saving).await;
        };
        let end = tokio::select! {
            biased;
            end = self.answer(assistant, messages) => Some(end),
            () = stopped => None,
            never = live.flush() => match never {},
        };
        match end {
            None => self.stopped().await,
            Some(Err(error)) if error.code() == Code::Conflict => Ok(()),
            Some(Err(error)) => Err(error),
            Some(Ok(ending)) => self.ended(ending).await,
        }
    }

    async fn answer(&mut self, assistant: &Assistant, messages: Option<Vec<String>>) -> Result<Ending> {
        if self.request.blocked {
            return Ok(Ending::blocked());
        }
        let model = Arc::clone(&self.turns.model);
        let settings = assistant.settings();
        let spec = settings.choose(&*model, self.request.provider.as_deref(), self.request.model.as_deref());
        let spec = match spec {
            Ok(spec) => spec,
            Err(error) => return Ok(Ending::failed(None, refused(error.message()))),
        };
        if let Some(screen) = self.screen.clone()
            && self.judged(&screen, &spec, messages.as_deref()).await?
        {
            return Ok(Ending::blocked());
        }
        let tools = tools::of_turn(&*self.turns.toolbox, &self.account, assistant, self.request).await?;
        if !tools.is_empty() && !spec.capabilities.tools {
            return Ok(Ending::failed(None, refused(takes_no_tools(&spec).message())));
        }
        let limits = Limits {
            tool_calls: u64::from(settings.max_tool_calls),
            result_tokens: u64::from(settings.max_tool_response_input_tokens),
        };
        let mut forced = false;
        loop {
            let mut context =
                Context::new(self.turns, &self.account, &mut self.chat, self.request, assistant, &spec, &tools);
            let known = messages.as_deref().filter(|_| self.said.is_empty());
            let prompt = match context.prompt(known, forced).await? {
                Ok(prompt) => prompt,
                Err(fault) => return Ok(Ending::failed(None, fault)),
            };
            self.heard = context.heard;
            self.asked = Some((spec.clone(), Usage::estimated(&prompt, "", &[])));
            let resumed = Resumed { open: self.chat.open.clone(), late: self.chat.status == Status::Waiting };
            let ending = run_turn(&*model, &tools, prompt, limits, resumed, self).await?;
            // It was longer than it seemed: once more, with what is older summed up.
            let too_long = ending.fault.as_ref().is_some_and(|fault| fault.code == FaultCode::ContextTooLong);
            if !(too_long && !forced && self.chat.compacted_to() < self.chat.turn_start) {
                return Ok(ending);
            }
            forced = true;
        }
    }

    /// Lets the judges see each new user message; whether one blocks.
    async fn judged(&mut self, screen: &Arc<Screen>, spec: &ModelSpec, messages: Option<&[String]>) -> Result<bool> {
        let start = usize::try_from(self.chat.turn_start).unwrap_or(0);
        let turn = match messages {
            Some(messages) => messages.get(start..).unwrap_or_default().to_vec(),
            None => {
                let conn = self.turns.db.read().await?;
                repository::turn_bodies(conn.get(), &self.account, &self.chat).await?
            }
        };
        for body in turn {
            let message: ChatMessage = serde_json::from_str(&body).map_err(Error::internal)?;
            match message.role {
                Role::User => {}
                // The model has been asked already, and so have they.
                Role::Assistant => return Ok(false),
                _ => continue,
            }
            let moment = Moment { message_uid: message.uid, now: self.turns.clock.now() };
            let screening = screen.input(&*self.turns.model, spec, message.content.message, moment).await?;
            if self.found(screening).await?.blocked {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Notes what a screening found, and pays for it.
    async fn found(&mut self, mut screening: Screening) -> Result<Screening> {
        self.findings.append(&mut screening.findings);
        let asked: Vec<_> = screening.asked.iter().map(|answer| (Operation::Guardrail, answer)).collect();
        repository::charge(&self.turns.db, &self.account, &self.chat.uid, &asked).await?;
        Ok(screening)
    }

    /// The turn goes on after it waited for its client.
    fn has_waited(&self) -> bool {
        let answered =
            |open: &OpenCall| matches!(open.state, CallState::Approved | CallState::Rejected | CallState::Answered(_));
        self.chat.status == Status::Waiting || self.chat.open.iter().any(answered)
    }

    /// What was found before the turn waited is of this turn.
    fn recall_findings(&mut self) {
        let mut turns = repository::guardrail_turns(self.chat.guardrails.as_deref());
        if let Some(findings) = turns.pop() {
            self.findings = findings;
            self.chat.guardrails = serde_json::to_string(&turns).ok();
        }
    }

    /// Gives the run up until somebody answers, or has had the time to.
    async fn wait(mut self, open: &[OpenCall]) -> Result<()> {
        let longest = self.turns.client_tool_timeout;
        let outcome = Outcome {
            status: WAITING,
            open_calls: repository::open_text(open)?,
            sleep_ms: Some(i64::try_from(longest.as_millis()).unwrap_or(i64::MAX)),
            ..self.outcome(Vec::new())
        };
        if let Stored::At(revision) = self.turns.finisher.step(&outcome).await? {
            let said = std::mem::take(&mut self.said);
            self.show(revision, TurnOutcome::Done(said));
        }
        Ok(())
    }

    /// Results of calls that nothing more is done about.
    fn close(&mut self, code: &str) -> Result<Vec<MessageRow>> {
        let open = std::mem::take(&mut self.chat.open);
        let positions = self.chat.message_count..;
        positions
            .zip(open)
            .map(|(position, open)| closed(self.request, &self.chat.uid, &open, code, position, self.turns.clock.now()))
            .collect()
    }

    /// Ends the turn with what its last step left.
    async fn ended(mut self, ending: Ending) -> Result<()> {
        if !ending.waiting.is_empty() {
            return self.wait(&ending.waiting).await;
        }
        let mut rows = self.close("INTERRUPTED")?;
        let mut model = None;
        let by_guardrail = ending.reason == "guardrail";
        if let Some(answer) = &ending.answer {
            model = Some(answer.model.clone());
            self.chat.usage.add(answer, self.turns.clock.now());
        }
        let text = ending.answer.as_ref().map(|answer| answer.text.clone());
        let text = if by_guardrail { self.screen.as_ref().map(|screen| screen.block_message.clone()) } else { text };
        let says = |text: &String| ending.fault.is_none() || !text.is_empty();
        if let Some(text) = text.filter(says) {
            let content = MessageContent { message: text, data: ending.data, ..MessageContent::default() };
            let source = by_guardrail.then(|| "guardrail".to_owned());
            rows.push(self.row(rows.len(), content, source, ending.answer.as_ref())?);
        }
        if let Some(finish) = ending.finish {
            let content = MessageContent { message: finish.message, data: finish.data, ..MessageContent::default() };
            rows.push(self.row(rows.len(), content, Some("finish_tool".to_owned()), None)?);
        }
        let error = ending.fault.as_ref().map(|fault| {
            let code = match fault.code {
                FaultCode::ContextTooLong => "CONTEXT_TOO_LONG",
                FaultCode::StructuredOutputInvalid => "STRUCTURED_OUTPUT_INVALID",
                _ => "PROVIDER_ERROR",
            };
            json!({"code": code, "message": fault.message}).to_string()
        });
        let mut outcome = self.outcome(rows);
        outcome.status = if ending.fault.is_some() { "error" } else { "completed" };
        outcome.stop_reason = Some(ending.reason);
        outcome.error = error;
        if let Some(model) = &model {
            outcome.answered_by(model);
        }
        let Some(revision) = self.commit(outcome).await? else { return Ok(()) };
        let model = model.or_else(|| self.asked.as_ref().map(|(model, _)| model.clone()));
        let notes = match (&ending.fault, &model) {
            (None, Some(model)) if !by_guardrail && !self.request.skip_summarization => {
                let said = (self.first_said..).zip(&self.said);
                let said = said.filter_map(|(position, said)| {
                    let (uid, text) = said.long_answer()?;
                    Some(Heard { position, uid, text })
                });
                Notes::of_turn(self.turns, &self.account, &self.chat, &self.heard, said, model)
            }
            _ => None,
        };
        let outcome = match ending.fault {
            Some(fault) => TurnOutcome::Failed(fault),
            None => TurnOutcome::Done(std::mem::take(&mut self.said)),
        };
        let Some(notes) = notes else {
            self.show(revision, outcome);
            return Ok(());
        };
        // Notes that are there at once are stored before anybody is told; others nobody waits for.
        let mut asked = Box::pin(notes.ask());
        match pin!(&mut asked).now_or_never() {
            Some(notes) => {
                notes.store().await;
                self.show(revision, outcome);
            }
            None => {
                self.show(revision, outcome);
                spawn("notes", async move { asked.await.store().await });
            }
        }
        Ok(())
    }

    /// Somebody stopped it: what was written so far is kept, its tokens are estimated.
    async fn stopped(mut self) -> Result<()> {
        let text = self.live.text();
        let Some((model, mut usage)) = self.asked.take().filter(|_| !text.is_empty()) else {
            return self.end_empty().await;
        };
        usage.output_tokens = text.len().div_ceil(4) as u64;
        let usage = usage.normalised();
        let answer = Answer {
            cost: usage.cost(&model.prices),
            usage,
            text: text.clone(),
            tool_calls: Vec::new(),
            stop: StopReason::EndTurn,
            latency: self.turns.clock.now().since(self.began),
            model,
        };
        self.chat.usage.add(&answer, self.turns.clock.now());
        let content = MessageContent { message: text, ..MessageContent::default() };
        let rows = vec![self.row(0, content, None, Some(&answer))?];
        let mut outcome = self.outcome(rows);
        outcome.answered_by(&answer.model);
        self.end_as_stopped(outcome).await
    }

    /// Ends as stopped, with nothing more to say.
    pub async fn end_empty(mut self) -> Result<()> {
        let rows = self.close("INTERRUPTED")?;
        let outcome = self.outcome(rows);
        self.end_as_stopped(outcome).await
    }

    async fn end_as_stopped(mut self, outcome: Outcome) -> Result<()> {
        let outcome = Outcome { status: "completed", stop_reason: Some("stopped_by_user"), ..outcome };
        if let Some(revision) = self.commit(outcome).await? {
            let said = std::mem::take(&mut self.said);
            self.show(revision, TurnOutcome::Done(said));
        }
        Ok(())
    }

    /// Ends in an error that no model gave.
    pub async fn give_up(mut self, code: &'static str, message: &str) -> Result<()> {
        let rows = self.close("RESULT_UNKNOWN")?;
        let mut outcome = self.outcome(rows);
        outcome.status = "error";
        outcome.stop_reason = Some("error");
        outcome.error = Some(json!({"code": code, "message": message}).to_string());
        if let Some(revision) = self.commit(outcome).await? {
            self.live.committed(revision, "");
        }
        Ok(())
    }

    /// Stores the end; the revision the chat has then, or `None` when the lease was lost.
    async fn commit(&mut self, outcome: Outcome) -> Result<Option<i64>> {
        let said = spoken(&outcome.messages);
        let stored = self.turns.finisher.finish(self.run, outcome).await?;
        self.said.extend(said);
        Ok(match stored {
            Stored::Lost => None,
            Stored::At(revision) => Some(revision),
            Stored::GoesOn(revision) => {
                self.turns.jobs.announce().await;
                Some(revision)
            }
        })
    }

    /// Tells watchers and whoever waits.
    fn show(&mut self, revision: i64, outcome: TurnOutcome) {
        self.live.committed(revision, "");
        if let Some(waiter) = self.waiter.take() {
            let _ = waiter.send(outcome);
        }
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
            turn_start: None,
            guardrails: self.guardrails(),
            open_calls: None,
            sleep_ms: None,
            now_ms: self.turns.clock.now().0,
        }
    }

    /// What was found in this turn on top of the turns before it.
    fn guardrails(&self) -> Option<String> {
        if self.screen.is_none() && self.findings.is_empty() {
            return None;
        }
        let mut turns = repository::guardrail_turns(self.chat.guardrails.as_deref());
        turns.push(self.findings.clone());
        let newest = turns.len().saturating_sub(repository::GUARDRAIL_TURNS);
        serde_json::to_string(&turns[newest..]).ok()
    }

    /// The row of what the model says, after so many others.
    fn row(
        &self,
        after: usize,
        content: MessageContent,
        source: Option<String>,
        answer: Option<&Answer>,
    ) -> Result<MessageRow> {
        let now = self.turns.clock.now();
        let accounting = answer.map(|answer| serde_json::to_string(&Accounting::of(answer, now)));
        let message = ChatMessage {
            role: Role::Assistant,
            content,
            content_source: source,
            tool_calls: answer.map(|answer| answer.tool_calls.clone()).unwrap_or_default(),
            latency_ms: answer.and_then(|answer| u64::try_from(answer.latency.as_millis()).ok()),
            ..ChatMessage::new(self.live.uid(), &self.chat.uid, &self.request.user_uid, now)
        };
        let position = self.chat.message_count + i32::try_from(after).unwrap_or(i32::MAX);
        MessageRow::new(position, &message, accounting.transpose().map_err(Error::internal)?)
    }

    /// Stores a step of the turn: messages, and the calls that are open then.
    async fn keep(&mut self, rows: Vec<MessageRow>, open: &[OpenCall], model: Option<&ModelSpec>) -> Result<()> {
        let mut outcome = Outcome { guardrails: None, open_calls: repository::open_text(open)?, ..self.outcome(rows) };
        if let Some(model) = model {
            outcome.answered_by(model);
        }
        self.saving.send_replace(true);
        let stored = self.turns.finisher.step(&outcome).await;
        self.saving.send_replace(false);
        let Stored::At(revision) = stored? else {
            return Err(Error::new(Code::Conflict, "The lease of this turn was lost."));
        };
        self.said.extend(spoken(&outcome.messages));
        (self.chat.message_count, self.chat.open) = (outcome.message_count, open.to_vec());
        self.calls.clear();
        self.live.committed(revision, &new_uid());
        Ok(())
    }
}

/// The row of a result.
fn tool_row(
    request: &TurnRequest,
    chat: &str,
    call: &ToolCall,
    text: &str,
    latency_ms: Option<u64>,
    position: i32,
    now: Timestamp,
) -> Result<MessageRow> {
    let content = MessageContent {
        message: text.to_owned(),
        data: serde_json::from_str(text).ok().filter(|_| text.len() <= MOST_DATA),
        files: Vec::new(),
    };
    let message = ChatMessage {
        role: Role::Tool,
        content,
        tool_call_id: Some(call.id.clone()),
        latency_ms,
        ..ChatMessage::new(new_uid(), chat, &request.user_uid, now)
    };
    MessageRow::new(position, &message, None)
}

/// The row of a call that nothing more is done about.
pub(crate) fn closed(
    request: &TurnRequest,
    chat: &str,
    open: &OpenCall,
    code: &str,
    position: i32,
    now: Timestamp,
) -> Result<MessageRow> {
    tool_row(request, chat, &open.call, &json!({"error": code}).to_string(), None, position, now)
}

fn spoken(rows: &[MessageRow]) -> Vec<StoredJson> {
    rows.iter().map(|row| StoredJson::message(row.body.clone(), row.accounting.as_deref())).collect()
}

/// A turn whose model is not there (any more).
fn refused(message: &str) -> Fault {
    Fault { code: FaultCode::BadRequest, message: message.to_owned(), provider: "".into(), status: None, partial: None }
}
