//! The course of a turn, as far as chats and threads are alike.

mod listener;

use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
};

use platform_core::{Error, Result, TRACES, Timestamp};
use platform_guardrails::{Finding, Screen, ScreenContext, Screening};
use platform_realtime::{Key, Live};
use platform_runtime::{
    Answer, CallState, Ending, Fault, FaultCode, Flow, Limits, Model, ModelSpec, OpenCall, Operation, Resumed, Role,
    SecondaryCall, Spender, StopReason, ToldMemories, TurnTool, Usage, UsageLedger, run_turn,
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{Instrument, Span, info_span};

use crate::{
    Profile,
    columns::result_positions,
    compact::TurnError,
    context::{Context, Prepared, UserMessage},
    message::{Accounting, ChatMessage, MessageContent, MessageRow, StoredJson, new_message_uid, tool_row},
    ports::Ports,
    request::TurnRequest,
    settings::takes_no_tools,
    store::ConversationStore,
    turn_store::{Conversation, LeaseLost, Step, StepResult, TurnStore},
};

/// Bounds of a turn beyond those of its settings.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Tool calls.
    pub tool_calls: u64,
    /// Prompt tokens of its model calls from here on.
    pub input_tokens: u64,
    /// Empty answers that are asked for again.
    pub empty_answers: Option<u32>,
}

/// One turn under one lease.
pub struct Turn<'a> {
    /// The conversation as it stands.
    pub conversation: Conversation,
    /// Messages of this lease that are stored.
    pub said: Vec<StoredJson>,
    /// User messages of the turn.
    pub user_messages: Vec<UserMessage>,
    /// What guardrails found.
    pub findings: Vec<Finding>,
    /// What is being written.
    pub live: Arc<Live>,
    /// Whom the turn asks, and what its prompt takes: for an answer that is cut short.
    pub asked: Option<(ModelSpec, Usage)>,
    /// Empty answers so far.
    pub empty_answers: u32,
    /// What it was told from memory.
    pub told: ToldMemories,
    ports: &'a Ports,
    turn_store: &'a dyn TurnStore,
    request: &'a TurnRequest,
    /// Whom it asks, at its payer's cost.
    model: Arc<dyn Model>,
    /// What calls took of quotas and is not stored yet.
    pub ledger: Arc<UsageLedger>,
    screen: Option<Arc<Screen>>,
    shows_growth: bool,
    began: Timestamp,
    /// The message of this lease whose calls are made.
    calling: Option<String>,
    /// The time of its newest message, in milliseconds.
    newest: AtomicI64,
    /// A step is being committed.
    saving: watch::Sender<bool>,
}

impl<'a> Turn<'a> {
    /// `live`: under which it is shown; `earlier`: leases of the turn before this one; `ledger`: where what is
    /// reserved for its first call stands, if it is.
    pub fn new(
        ports: &'a Ports,
        turn_store: &'a dyn TurnStore,
        conversation: Conversation,
        request: &'a TurnRequest,
        live: Key,
        earlier: i64,
        ledger: Arc<UsageLedger>,
    ) -> Self {
        let told = ToldMemories { prompt: conversation.memory_prompt.clone(), ..ToldMemories::default() };
        Self {
            model: ports.budget.model(&conversation.payer, Some(Arc::clone(&ledger))),
            ledger,
            live: ports.realtime.open(live, conversation.revision, &new_message_uid(), earlier),
            newest: AtomicI64::new(conversation.newest.0),
            conversation,
            said: Vec::new(),
            user_messages: Vec::new(),
            findings: request.findings.clone(),
            asked: None,
            empty_answers: 0,
            calling: None,
            told,
            ports,
            turn_store,
            request,
            screen: None,
            shows_growth: true,
            began: ports.clock.now(),
            saving: watch::Sender::new(false),
        }
    }

    /// The time for what is said now: never before that of an earlier message, also when the clock goes back.
    pub fn now(&self) -> Timestamp {
        let now = self.ports.clock.now().0;
        Timestamp(self.newest.fetch_max(now, Ordering::Relaxed).max(now))
    }

    /// Asks the model until the turn ends or waits; `None` when it was stopped. `messages`: all messages, where
    /// they are known.
    pub async fn run(
        &mut self,
        profile: &Profile,
        tools: &[TurnTool],
        bounds: Bounds,
        messages: Option<&[String]>,
        stop: &CancellationToken,
    ) -> Option<Result<Ending>> {
        self.shows_growth = profile.shows_growth();
        self.screen.clone_from(&profile.screen);
        if self.conversation.has_waited && self.screen.is_some() {
            self.recall_findings();
        }
        let span = self.span();
        let live = Arc::clone(&self.live);
        let mut saving = self.saving.subscribe();
        let stopped = async {
            stop.cancelled().await;
            // What is being committed is waited for: the end goes on from there.
            let _ = saving.wait_for(|saving| !saving).await;
        };
        tokio::select! {
            biased;
            end = self.answer(profile, tools, bounds, messages).instrument(span) => Some(end),
            () = stopped => None,
            never = pin!(live.flush()) => match never {},
        }
    }

    fn span(&self) -> Span {
        let Conversation { uid, payer, .. } = &self.conversation;
        let (name, id) = match &payer.spender {
            Spender::Assistant { identifier, id } => (identifier.as_str(), id.as_str()),
            Spender::Agent(id) => (id.as_str(), id.as_str()),
            Spender::Service(name) => (*name, *name),
        };
        info_span!(
            target: TRACES,
            "invoke_agent",
            otel.name = format!("invoke_agent {name}"),
            gen_ai.operation.name = "invoke_agent",
            gen_ai.agent.id = id,
            gen_ai.agent.name = name,
            gen_ai.conversation.id = uid,
            platform.tenant.id = payer.tenant_id,
        )
    }

    async fn answer(
        &mut self,
        profile: &Profile,
        tools: &[TurnTool],
        bounds: Bounds,
        messages: Option<&[String]>,
    ) -> Result<Ending> {
        if self.request.blocked {
            return Ok(Ending::blocked());
        }
        let model = Arc::clone(&self.model);
        let settings = &profile.settings;
        let spec = settings.choose(model.catalog(), self.request.provider.as_deref(), self.request.model.as_deref());
        let spec = match spec {
            Ok(spec) => spec,
            Err(error) => return Ok(Ending::failed(None, refused(error.message()))),
        };
        if let Some(screen) = self.screen.clone()
            && self.judged(&screen, &spec, messages).await?
        {
            return Ok(Ending::blocked());
        }
        if !tools.is_empty() && !spec.capabilities.tools {
            return Ok(Ending::failed(None, refused(takes_no_tools(&spec).message())));
        }
        let limits = Limits {
            tool_calls: bounds.tool_calls,
            result_tokens: u64::from(settings.max_tool_response_input_tokens),
            input_tokens: bounds.input_tokens,
            empty_answers: bounds.empty_answers,
        };
        let mut forced = false;
        loop {
            let known = messages.filter(|_| self.said.is_empty());
            let mut context = Context {
                ports: self.ports,
                turn_store: self.turn_store,
                conversation: &mut self.conversation,
                request: self.request,
                profile,
                spec: &spec,
                tools,
                model: &*model,
                told: &mut self.told,
            };
            let prepared = match context.prompt(known, forced).await {
                Ok(prepared) => prepared,
                Err(TurnError::Model(fault)) => return Ok(Ending::failed(None, fault)),
                Err(TurnError::Store(error)) => return Err(error),
            };
            let Prepared { prompt, user_messages, _room } = prepared;
            self.user_messages = user_messages;
            self.asked = Some((spec.clone(), Usage::estimated(&prompt, "", &[])));
            let resumed = Resumed { open: self.conversation.open.clone(), late: self.conversation.is_late };
            let ending = run_turn(&*model, tools, prompt, limits, resumed, self).await?;
            // It was longer than it seemed: once more, with what is older summed up.
            let too_long = ending.fault.as_ref().is_some_and(|fault| fault.code == FaultCode::ContextTooLong);
            let compactable = self.conversation.compacted_to() < self.conversation.turn_start;
            if !(too_long && !forced && compactable) {
                return Ok(ending);
            }
            forced = true;
        }
    }

    /// Lets the judges see each new user message; whether one blocks.
    async fn judged(&mut self, screen: &Arc<Screen>, spec: &ModelSpec, messages: Option<&[String]>) -> Result<bool> {
        let Conversation { account, key, turn_start, .. } = &self.conversation;
        let start = usize::try_from(*turn_start).unwrap_or(0);
        let turn = match messages {
            Some(messages) => messages.get(start..).unwrap_or_default().to_vec(),
            None => {
                let conn = self.ports.db.read().await?;
                ConversationStore::of(account, key).bodies_from(conn.get(), *turn_start).await?
            }
        };
        let turn = turn.iter().map(|body| serde_json::from_str(body).map_err(Error::internal));
        let turn: Vec<ChatMessage> = turn.collect::<Result<_>>()?;
        // What was said before an answer has been judged already.
        let asked = turn.iter().rposition(|message| message.role == Role::Assistant).map_or(0, |last| last + 1);
        for message in turn.into_iter().skip(asked).filter(|message| message.role == Role::User) {
            let context = ScreenContext { message_uid: message.uid, now: self.ports.clock.now() };
            let screening = screen.input(&*self.model, spec, message.content.message, context).await?;
            if self.found(screening).await?.blocked {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Notes what a screening found, and pays for it.
    async fn found(&mut self, mut screening: Screening) -> Result<Screening> {
        self.findings.append(&mut screening.findings);
        let asked: Vec<_> =
            screening.asked.iter().map(|answer| SecondaryCall::of(Operation::Guardrail, answer)).collect();
        self.turn_store.charge(&asked).await?;
        Ok(screening)
    }

    /// What was found before the turn waited is of this turn.
    fn recall_findings(&mut self) {
        let mut turns = guardrail_turns(self.conversation.guardrails.as_deref());
        if let Some(findings) = turns.pop() {
            self.findings = findings;
            self.conversation.guardrails = serde_json::to_string(&turns).ok();
        }
    }

    /// What was found in this turn on top of the turns before it, as JSON text.
    pub fn guardrails(&self) -> Option<String> {
        if self.screen.is_none() && self.findings.is_empty() {
            return None;
        }
        let mut turns = guardrail_turns(self.conversation.guardrails.as_deref());
        turns.push(self.findings.clone());
        let newest = turns.len().saturating_sub(GUARDRAIL_TURNS);
        serde_json::to_string(&turns[newest..]).ok()
    }

    /// What the end of a turn says: results of calls that nothing more is done about, and the last message.
    pub fn last_words(&mut self, ending: &Ending) -> Result<Vec<MessageRow>> {
        let mut rows = self.close("INTERRUPTED")?;
        let by_guardrail = ending.is_blocked();
        if let Some(answer) = &ending.answer {
            self.conversation.usage.add(answer, self.ports.clock.now());
        }
        let text = ending.answer.as_ref().map(|answer| answer.text.clone());
        let text = if by_guardrail { self.screen.as_ref().map(|screen| screen.block_message.clone()) } else { text };
        let says = |text: &String| ending.fault.is_none() || !text.is_empty();
        if let Some(text) = text.filter(says) {
            let content = MessageContent { message: text, data: ending.data.clone(), ..MessageContent::default() };
            let source = by_guardrail.then(|| "guardrail".to_owned());
            rows.push(self.row(rows.len(), content, source, ending.answer.as_ref())?);
        }
        if let Some(finish) = ending.finish.clone() {
            let content = MessageContent { message: finish.message, data: finish.data, ..MessageContent::default() };
            rows.push(self.row(rows.len(), content, Some("finish_tool".to_owned()), None)?);
        }
        Ok(rows)
    }

    /// What was written of an answer that is cut short; its tokens are estimated. `None` when nothing was.
    pub fn cut_short(&mut self) -> Option<Answer> {
        let text = self.live.text();
        let (model, mut usage) = self.asked.take().filter(|_| !text.is_empty())?;
        usage.output_tokens = text.len().div_ceil(4) as u64;
        let usage = usage.normalised();
        let answer = Answer {
            cost: usage.cost(&model.prices),
            usage,
            text,
            tool_calls: Vec::new(),
            stop: StopReason::EndTurn,
            latency: self.ports.clock.now().since(self.began),
            model,
        };
        self.conversation.usage.add(&answer, self.ports.clock.now());
        Some(answer)
    }

    /// Results of calls that nothing more is done about.
    pub fn close(&mut self, code: &str) -> Result<Vec<MessageRow>> {
        let open = std::mem::take(&mut self.conversation.open);
        let (uid, now) = (&self.conversation.uid, self.now());
        let positions: Vec<i32> = result_positions(self.conversation.message_count, &open).collect();
        let row = |(position, open): (i32, OpenCall)| {
            MessageRow::closed(&self.request.user_uid, uid, &open.call, code, position, now)
        };
        positions.into_iter().zip(open).map(row).collect()
    }

    /// Id of the message whose calls are made.
    fn calling_uid(&self) -> String {
        self.calling.clone().unwrap_or_else(|| self.live.uid())
    }

    /// The row of what the model says, after so many others.
    pub fn row(
        &self,
        after: usize,
        content: MessageContent,
        source: Option<String>,
        answer: Option<&Answer>,
    ) -> Result<MessageRow> {
        let now = self.now();
        let accounting = answer.map(|answer| serde_json::to_string(&Accounting::of(answer, now)));
        let message = ChatMessage {
            role: Role::Assistant,
            content,
            content_source: source,
            tool_calls: answer.map(|answer| answer.tool_calls.clone()).unwrap_or_default(),
            latency_ms: answer.and_then(|answer| u64::try_from(answer.latency.as_millis()).ok()),
            ..ChatMessage::new(self.live.uid(), &self.conversation.uid, &self.request.user_uid, now)
        };
        let position = self.conversation.message_count + i32::try_from(after).unwrap_or(i32::MAX);
        MessageRow::new(position, &message, accounting.transpose().map_err(Error::internal)?)
    }

    /// Stores a step of the turn: messages, and the calls that are open then.
    async fn keep(&mut self, messages: Vec<MessageRow>, open: &[OpenCall], model: Option<&ModelSpec>) -> Result<Flow> {
        let said = MessageRow::spoken(&messages);
        let step = Step {
            messages,
            open: open.to_vec(),
            took: self.ledger.take(),
            model: model.cloned(),
            revision: self.live.next_revision(),
            is_settled: open.iter().all(|open| open.state != CallState::Started),
        };
        self.saving.send_replace(true);
        let took = step.took.clone();
        let kept = self.turn_store.step(&self.conversation, step).await;
        self.saving.send_replace(false);
        if !matches!(kept, Ok(StepResult::At(..))) {
            self.ledger.put_back(took);
        }
        let StepResult::At(revision, flow) = kept? else {
            return Err(Error::internal(LeaseLost));
        };
        self.conversation.message_count += i32::try_from(said.len()).unwrap_or(i32::MAX);
        self.conversation.open = open.to_vec();
        self.said.extend(said);
        self.live.committed(revision, &new_message_uid());
        Ok(flow)
    }
}

/// Guardrails keep what they found in so many turns.
const GUARDRAIL_TURNS: usize = 20;

/// What guardrails found, by turn, from JSON text.
pub fn guardrail_turns(stored: Option<&str>) -> Vec<Vec<Finding>> {
    stored.and_then(|stored| serde_json::from_str(stored).ok()).unwrap_or_default()
}

/// A turn whose model is not there (any more).
fn refused(message: &str) -> Fault {
    Fault::of(FaultCode::BadRequest, message, &"".into())
}

#[cfg(test)]
mod tests {
    use platform_core::Code;

    use super::*;

    #[test]
    fn a_lost_lease_is_told_apart_from_every_other_conflict() {
        assert!(LeaseLost::is_in(&Error::internal(LeaseLost)));
        for other in [Error::new(Code::CONFLICT, "taken"), Error::internal("the lease of this turn was lost")] {
            assert!(!LeaseLost::is_in(&other), "{other}");
        }
    }
}
