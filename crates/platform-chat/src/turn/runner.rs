use std::{pin::pin, sync::Arc};

use async_trait::async_trait;
use futures_util::FutureExt;
use platform_conversation::{
    ASSISTANT, Bounds, Compaction, Conversation, ConversationStore, HandOff, LeaseLost, MessageContent, MessageRow,
    Profile, Step, StepResult, StoredJson, ToolUser, Turn, TurnRequest, TurnStore, UserMessage, open_text, turn_tools,
};
use platform_core::{Result, millis, spawn};
use platform_events::{Event, EventRow};
use platform_jobs::Run;
use platform_runtime::{Ending, FaultCode, Flow, Later, OpenCall, Refusal, SecondaryCall, TurnTool, UsageLedger};
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use tracing::{Instrument, Span};

use super::{
    finish::{Stored, TurnCommit},
    notes::Notes,
    work::{TurnChat, TurnOutcome, Turns, live_key},
};
use crate::{
    assistant::Assistant,
    chat::repository::{self, HANDED_OFF, LIMIT_EXCEEDED, WAITING, waiting_reason},
};

/// A sub-agent's thread ends at some time; until then nobody has to look.
const MAX_HAND_OFF_MS: i64 = 365 * 24 * 3600 * 1000;

/// The course of one turn of a chat under one lease.
pub(crate) struct TurnRunner<'a> {
    turns: &'a Turns,
    chat: &'a TurnChat,
    request: &'a TurnRequest,
    run: &'a Run,
    turn: Turn<'a>,
    waiter: Option<oneshot::Sender<TurnOutcome>>,
    /// Position of the first message that this lease adds.
    first_said: i32,
}

/// Stores the steps of a turn with its chat.
pub(crate) struct ChatTurnStore<'a> {
    pub turns: &'a Turns,
    pub run: &'a Run,
}

#[async_trait]
impl TurnStore for ChatTurnStore<'_> {
    async fn step(&self, chat: &Conversation, step: Step) -> Result<StepResult> {
        let mut outcome = TurnCommit {
            open_calls: open_text(&step.open)?,
            took: step.took,
            ..TurnCommit::of(self.run, chat, step.revision, step.messages, self.turns.ports.clock.now())
        };
        if let Some(model) = &step.model {
            outcome.answered_by(model);
        }
        Ok(match self.turns.finisher.step(&outcome).await? {
            Stored::At(revision) | Stored::GoesOn(revision) => StepResult::At(revision, Flow::GoOn),
            Stored::Lost => StepResult::Lost,
        })
    }

    async fn charge(&self, asked: &[SecondaryCall]) -> Result<()> {
        repository::charge(&self.turns.ports.db, &self.run.account(), &self.run.subject, asked).await
    }

    async fn compacted(&self, known: usize, compaction: &Compaction) -> Result<bool> {
        let (db, account) = (&self.turns.ports.db, self.run.account());
        repository::add_compaction(db, &account, &self.run.subject, known, compaction).await
    }
}

impl<'a> TurnRunner<'a> {
    pub fn new(
        turn_store: &'a ChatTurnStore<'a>,
        chat: &'a TurnChat,
        request: &'a TurnRequest,
        waiter: Option<oneshot::Sender<TurnOutcome>>,
        ledger: Arc<UsageLedger>,
    ) -> Self {
        let ChatTurnStore { turns, run } = turn_store;
        let of = chat.conversation.clone();
        let key = live_key(&of.account, &chat.assistant, &of.uid);
        let first_said = of.message_count;
        let turn = Turn::new(&turns.ports, turn_store, of, request, key, run.fence - 1, ledger);
        Self { turns, chat, request, run, turn, waiter, first_said }
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
        let environments = &*self.turns.ports.environments;
        let profile = &assistant.profile.in_environment(environments, &self.turn.conversation.account).await?;
        let bounds = Bounds {
            tool_calls: u64::from(profile.settings.max_tool_calls),
            input_tokens: u64::MAX,
            empty_answers: None,
        };
        let tools = self.tools(profile, &assistant.id).await?;
        match self.turn.run(profile, &tools, bounds, messages.as_deref(), stop).await {
            None => self.stopped().await,
            Some(Err(error)) if LeaseLost::is_in(&error) => Ok(()),
            Some(Err(error)) => Err(error),
            Some(Ok(ending)) => self.ended(ending).await,
        }
    }

    /// Those of the assistant, those that the client runs, and whom it may hand work to.
    async fn tools(&self, profile: &Profile, assistant: &str) -> Result<Vec<TurnTool>> {
        let (ports, chat, settings) = (&self.turns.ports, &self.turn.conversation, &profile.settings);
        let worker = Some((ASSISTANT.name(), assistant));
        let user = ToolUser { worker, payer: Some(&chat.payer), conversation: &chat.uid, callbacks: None };
        let mut tools = turn_tools(&ports.toolbox, &chat.account, settings, self.request, user).await?;
        if !settings.subagents_ids.is_empty() {
            let hand_off = HandOff::of_chat(chat, self.request, &settings.approval_tools);
            tools.extend(self.turns.hand_offs.tools(&settings.subagents_ids, &hand_off).await?);
        }
        Ok(tools)
    }

    /// Gives the run up until somebody answers, or has had the time to.
    async fn wait(mut self, open: &[OpenCall]) -> Result<()> {
        let handed_off = open.iter().any(|open| matches!(open.awaits(), Some(Later::Thread(_))));
        let client = open.iter().any(|open| open.waits() && open.awaits().is_none());
        let longest = millis(self.turns.client_tool_timeout);
        let (status, sleep_ms) = match (handed_off, client) {
            (true, false) => (HANDED_OFF, MAX_HAND_OFF_MS),
            _ => (WAITING, longest),
        };
        let outcome = TurnCommit {
            status,
            stop_reason: waiting_reason(status),
            open_calls: open_text(open)?,
            sleep_ms: Some(sleep_ms),
            guardrails: self.turn.guardrails(),
            memories: self.turn.told.at_wait(),
            ..self.outcome(Vec::new())
        };
        if let Stored::At(revision) = self.turns.finisher.step(&outcome).await? {
            let said = std::mem::take(&mut self.turn.said);
            let outcome = if status == HANDED_OFF { TurnOutcome::HandedOff } else { TurnOutcome::Done(said) };
            self.show(revision, outcome);
        }
        Ok(())
    }

    /// Ends the turn with what its last step left.
    async fn ended(mut self, ending: Ending) -> Result<()> {
        if !ending.waiting.is_empty() {
            return self.wait(&ending.waiting).await;
        }
        let rows = self.turn.last_words(&ending)?;
        let refusal = ending.fault.as_ref().and_then(|fault| fault.refusal.clone());
        let error = ending.fault.as_ref().map(|fault| {
            if let Some(refusal) = &fault.refusal {
                return refusal.details().to_string();
            }
            let code = match fault.code {
                FaultCode::ContextTooLong => "CONTEXT_TOO_LONG",
                FaultCode::StructuredOutputInvalid => "STRUCTURED_OUTPUT_INVALID",
                _ => "PROVIDER_ERROR",
            };
            json!({"code": code, "message": fault.message}).to_string()
        });
        let by_guardrail = ending.is_blocked();
        let model = ending.answer.map(|answer| answer.model);
        let mut outcome =
            TurnCommit { guardrails: self.turn.guardrails(), memories: self.turn.told.at_end(), ..self.outcome(rows) };
        (outcome.status, outcome.stop_reason) = match (&refusal, &ending.fault) {
            (Some(_), _) => (LIMIT_EXCEEDED, Some(LIMIT_EXCEEDED)),
            (None, Some(_)) => ("error", Some(ending.reason)),
            (None, None) => ("completed", Some(ending.reason)),
        };
        outcome.retry_ms = refusal.map(|refusal| refusal.retry_at(self.turn.now()).0);
        outcome.error = error;
        if let Some(model) = &model {
            outcome.answered_by(model);
        }
        let Some(revision) = self.commit(outcome).await? else { return Ok(()) };
        let model = model.or_else(|| self.turn.asked.as_ref().map(|(model, _)| model.clone()));
        let notes = match (&ending.fault, &model) {
            (None, Some(model)) if !by_guardrail && !self.request.skip_summarization => {
                let said = (self.first_said..).zip(&self.turn.said);
                let said = said.filter_map(|(position, said)| {
                    let (uid, text) = said.long_answer()?;
                    Some(UserMessage { position, uid, text })
                });
                Notes::of_turn(self.turns, self.chat, &self.turn.user_messages, said, model)
            }
            _ => None,
        };
        let outcome = match ending.fault {
            Some(fault) => TurnOutcome::Failed(fault),
            None => TurnOutcome::Done(std::mem::take(&mut self.turn.said)),
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
                spawn("notes", async move { asked.await.store().await }.instrument(Span::current()));
            }
        }
        Ok(())
    }

    /// Somebody stopped it: what was written so far is kept.
    async fn stopped(mut self) -> Result<()> {
        let Some(answer) = self.turn.cut_short() else { return self.end_empty().await };
        let content = MessageContent { message: answer.text.clone(), ..MessageContent::default() };
        let rows = vec![self.turn.row(0, content, None, Some(&answer))?];
        let mut outcome = self.outcome(rows);
        outcome.answered_by(&answer.model);
        self.end_as_stopped(outcome).await
    }

    /// Ends as stopped, with nothing more to say.
    pub async fn end_empty(mut self) -> Result<()> {
        let rows = self.turn.close("INTERRUPTED")?;
        let outcome = self.outcome(rows);
        self.end_as_stopped(outcome).await
    }

    async fn end_as_stopped(mut self, outcome: TurnCommit) -> Result<()> {
        let (guardrails, memories) = (self.turn.guardrails(), self.turn.told.at_end());
        let stop_reason = Some("stopped_by_user");
        let outcome = TurnCommit { status: "completed", stop_reason, guardrails, memories, ..outcome };
        if let Some(revision) = self.commit(outcome).await? {
            let said = std::mem::take(&mut self.turn.said);
            self.show(revision, TurnOutcome::Done(said));
        }
        Ok(())
    }

    /// What is queued stays so until there is quota again.
    pub async fn wait_for_quota(self, refusal: &Refusal) -> Result<()> {
        let mut outcome = TurnCommit {
            status: LIMIT_EXCEEDED,
            stop_reason: Some(LIMIT_EXCEEDED),
            error: Some(refusal.details().to_string()),
            sleep_ms: Some(refusal.retry_at(self.turn.now()).0 - self.turn.now().0),
            ..self.outcome(Vec::new())
        };
        outcome.events = self.events(&outcome, &[]).await?;
        if let Stored::At(revision) = self.turns.finisher.step(&outcome).await? {
            self.turn.live.committed(revision, "");
        }
        Ok(())
    }

    /// Ends in an error that no model gave.
    pub async fn give_up(mut self, code: &'static str, message: &str) -> Result<()> {
        let rows = self.turn.close("RESULT_UNKNOWN")?;
        let mut outcome = self.outcome(rows);
        outcome.status = "error";
        outcome.stop_reason = Some("error");
        outcome.error = Some(json!({"code": code, "message": message}).to_string());
        if let Some(revision) = self.commit(outcome).await? {
            self.turn.live.committed(revision, "");
        }
        Ok(())
    }

    /// Stores the end; the revision the chat has then, or `None` when the lease was lost.
    async fn commit(&mut self, mut outcome: TurnCommit) -> Result<Option<i64>> {
        let said = MessageRow::spoken(&outcome.messages);
        outcome.events = self.events(&outcome, &said).await?;
        let took = outcome.took.clone();
        let stored = self.turns.finisher.finish(self.run, outcome).await;
        if !matches!(stored, Ok(Stored::At(_) | Stored::GoesOn(_))) {
            self.turn.ledger.put_back(took);
        }
        let stored = stored?;
        self.turn.said.extend(said);
        Ok(match stored {
            Stored::Lost => None,
            Stored::At(revision) => Some(revision),
            Stored::GoesOn(revision) => {
                self.turns.jobs.announce();
                Some(revision)
            }
        })
    }

    /// What is told of an end, when anybody listens (contract 17).
    async fn events(&self, outcome: &TurnCommit, said: &[StoredJson]) -> Result<Vec<EventRow>> {
        let chat = &self.turn.conversation;
        let kind = if outcome.status == "completed" { "chat.completed" } else { "chat.error" };
        if !self.turns.ports.audience.hears(&chat.account, kind).await? {
            return Ok(Vec::new());
        }
        let read = |json: &StoredJson| serde_json::from_str::<Value>(json.as_str()).unwrap_or_default();
        let mut data = json!({"chatUID": chat.uid, "assistantSpecializationIdentifier": self.chat.assistant,
            "status": outcome.status, "tokenUsage": chat.usage});
        let error: Option<Value> = outcome.error.as_deref().and_then(|error| serde_json::from_str(error).ok());
        let payer = &chat.payer;
        for (name, value) in [
            ("stopReason", outcome.stop_reason.map(Value::from)),
            ("error", error),
            ("tenantId", payer.tenant_id.clone().map(Value::from)),
            ("subtenantId", payer.subtenant_id.clone().map(Value::from)),
        ] {
            data.as_object_mut().expect("an object").extend(value.map(|value| (name.to_owned(), value)));
        }
        let content = if self.turns.ports.audience.hears_content(&chat.account, kind).await? {
            let positions: Vec<i32> = self.turn.user_messages.iter().map(|message| message.position).collect();
            let conn = self.turns.ports.db.read().await?;
            let asked = ConversationStore::of(&chat.account, &chat.key).messages_at(conn.get(), &positions).await?;
            let messages: Vec<Value> = asked.iter().chain(&self.turn.said).chain(said).map(read).collect();
            Some(json!({"messages": messages}))
        } else {
            None
        };
        let event = Event {
            content,
            tenant: payer.tenant_id.as_deref(),
            project: payer.project_id.as_deref(),
            depth: self.request.depth,
            ..Event::new(&chat.account, kind, data)
        };
        Ok(vec![event.into_row(self.turn.now())])
    }

    /// Tells watchers and whoever waits.
    fn show(&mut self, revision: i64, outcome: TurnOutcome) {
        self.turn.live.committed(revision, "");
        if let Some(waiter) = self.waiter.take() {
            let _ = waiter.send(outcome);
        }
    }

    /// An end, as far as all are alike.
    fn outcome(&self, messages: Vec<MessageRow>) -> TurnCommit {
        let now = self.turn.now();
        let outcome = TurnCommit::of(self.run, &self.turn.conversation, self.turn.live.next_revision(), messages, now);
        TurnCommit { took: self.turn.ledger.take(), ..outcome }
    }
}
