//! The course of a turn, as far as chats and threads are alike.

mod listener;

use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
};

use async_trait::async_trait;
use platform_core::{AccountId, Clock, Error, Id, Object, Owner, Result, TRACES, Timestamp};
use platform_db::Db;
use platform_events::Audience;
use platform_guardrails::{Finding, Moment, Screen, Screening};
use platform_realtime::{Key, Live, Realtime};
use platform_runtime::{
    Answer, Budget, CallState, Catalog, ChildPool, Dictations, Ending, Environments, Fault, FaultCode, Flow, Limits,
    Memory, Model, ModelSpec, OpenCall, Operation, Payer, Recall, Resumed, Role, SecondaryCall, Spender, StopReason,
    ToldMemories, Toolbox, TurnTool, Usage, UsageLedger, run_turn,
};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{Instrument, Span, info_span};

use crate::{
    Compaction, Profile,
    context::{Context, UserMessage},
    message::{Accounting, ChatMessage, MessageContent, MessageRow, StoredJson, TokenUsage, tool_row},
    repository,
    settings::takes_no_tools,
    tools::ClientTool,
};

/// What every turn works with.
#[derive(Clone)]
pub struct Ports {
    /// Where messages are kept.
    pub db: Db,
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// What models there are.
    pub catalog: Arc<dyn Catalog>,
    /// Who lets them be asked.
    pub budget: Arc<dyn Budget>,
    /// What is known of what is attached.
    pub recall: Arc<dyn Recall>,
    /// What assistants remember of those they talk to.
    pub memory: Arc<dyn Memory>,
    /// What was dictated.
    pub dictations: Arc<dyn Dictations>,
    /// What those who are connected to an environment have of it.
    pub environments: Arc<dyn Environments>,
    /// What may be called.
    pub toolbox: Arc<Toolbox>,
    /// Who reads what clients wrote.
    pub children: Arc<ChildPool>,
    /// Where growth is shown.
    pub realtime: Arc<Realtime>,
    /// Who listens to what happens.
    pub audience: Arc<dyn Audience>,
}

/// What a turn must know beyond its conversation; stored with its run, or with the message while it waits.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TurnRequest {
    /// Provider of this turn.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    /// Model of this turn.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Shown to the model in this turn.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub application_state: Option<Object>,
    /// No title and no summaries.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub skip_summarization: bool,
    /// Of the tools there are, those that the turn may use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled_tools: Option<Vec<String>>,
    /// Tools that the client runs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<ClientTool>,
    /// Apps whose tools the turn does without.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub disabled_integrations: Vec<String>,
    /// Who asked.
    pub user_uid: String,
    /// What the input rules found as its messages arrived.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub findings: Vec<Finding>,
    /// An input rule blocks the turn.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub blocked: bool,
    /// How many triggers led to it, one after the other (contract 09 §3).
    #[serde(skip_serializing_if = "is_zero")]
    pub depth: u8,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde gives it")]
fn is_zero(depth: &u8) -> bool {
    *depth == 0
}

impl TurnRequest {
    /// What the input rules found in one more message is of this turn.
    pub fn note_found(&mut self, findings: Vec<Finding>, blocked: bool) {
        self.findings.extend(findings);
        self.blocked |= blocked;
    }

    /// One turn for many messages: what the last one wants, what was found in any; `None` without messages.
    pub fn joined(requests: Vec<Self>) -> Option<Self> {
        requests.into_iter().reduce(|mut earlier, last| {
            earlier.note_found(last.findings, last.blocked);
            Self { findings: earlier.findings, blocked: earlier.blocked, ..last }
        })
    }
}

/// The event that a message or a thread is about (contract 09 §3).
#[derive(Debug, Clone, PartialEq)]
pub struct TriggerOrigin {
    /// `{triggerId, triggerSlug, app, eventId}`.
    pub source: Object,
    /// How many triggers led to it, this one included.
    pub depth: u8,
}

/// A chat or a thread as its turn finds it.
#[derive(Debug, Clone)]
pub struct Conversation {
    /// Whose it is.
    pub account: AccountId,
    /// Under which its messages are kept.
    pub key: String,
    /// `chatUid` of its messages.
    pub uid: String,
    /// Calls of the newest answer without a result.
    pub open: Vec<OpenCall>,
    /// Whoever was to answer has had their time.
    pub is_late: bool,
    /// What was found before the turn waited is of this turn.
    pub has_waited: bool,
    /// No message has a later time.
    pub newest: Timestamp,
    /// Rises with every commit.
    pub revision: i64,
    /// Messages there are.
    pub message_count: i32,
    /// Position of the first message of the turn.
    pub turn_start: i32,
    /// What its answers took.
    pub usage: TokenUsage,
    /// What clients noted.
    pub metadata: Object,
    /// JSON text of what guardrails found in the last turns.
    pub guardrails: Option<String>,
    /// Summaries that stand for older messages.
    pub compactions: Vec<Compaction>,
    /// Who pays for its calls.
    pub payer: Payer,
}

impl Conversation {
    /// Whose it is.
    pub fn owner(&self) -> Owner {
        self.payer.owner()
    }

    /// Position of the first message that no summary stands for.
    pub fn compacted_to(&self) -> i32 {
        self.compactions.iter().map(|compaction| compaction.compacted_message_count).sum()
    }
}

/// Where a conversation is kept: what chats and threads store in ways of their own.
#[async_trait]
pub trait TurnStore: Send + Sync {
    /// Stores a step under the lease of its run.
    async fn step(&self, conversation: &Conversation, step: Step) -> Result<StepResult>;
    /// Adds secondary calls to what the conversation took.
    async fn charge(&self, asked: &[SecondaryCall]) -> Result<()>;
    /// Keeps a compaction on top of the `known` ones; `false` when another was faster.
    async fn compacted(&self, known: usize, compaction: &Compaction) -> Result<bool>;
}

/// A step of a turn: what was said, and what is open then.
#[derive(Debug)]
pub struct Step {
    /// Messages in their order.
    pub messages: Vec<MessageRow>,
    /// Calls without a result.
    pub open: Vec<OpenCall>,
    /// What its model calls took of quotas.
    pub took: Vec<Arc<RawValue>>,
    /// Whose answer it holds, if any.
    pub model: Option<ModelSpec>,
    /// The conversation's revision is at least this then.
    pub revision: i64,
    /// No call is under way: the model is asked next, or somebody is waited for.
    pub is_settled: bool,
}

/// What became of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepResult {
    /// The lease was lost: nothing was written.
    Lost,
    /// The conversation stands at this revision.
    At(i64, Flow),
}

/// The lease of a turn was lost: somebody else goes on with it, or a client ended it.
#[derive(Debug, thiserror::Error)]
#[error("the lease of this turn was lost")]
pub struct LeaseLost;

impl LeaseLost {
    /// Whether that is why something failed.
    pub fn is_in(error: &Error) -> bool {
        error.cause().and_then(|cause| cause.downcast_ref::<Self>()).is_some()
    }
}

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
    /// The time of its newest message, in milliseconds.
    newest: AtomicI64,
    /// A step is being committed.
    saving: watch::Sender<bool>,
}

enum MessageKind {}

/// An id for a message.
pub fn new_message_uid() -> String {
    Id::<MessageKind>::generate().into()
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
            told: ToldMemories::default(),
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
            let (prompt, user_messages) = match context.prompt(known, forced).await? {
                Ok(prompt) => prompt,
                Err(fault) => return Ok(Ending::failed(None, fault)),
            };
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
                repository::bodies_from(conn.get(), account, key, *turn_start).await?
            }
        };
        let turn = turn.iter().map(|body| serde_json::from_str(body).map_err(Error::internal));
        let turn: Vec<ChatMessage> = turn.collect::<Result<_>>()?;
        // What was said before an answer has been judged already.
        let asked = turn.iter().rposition(|message| message.role == Role::Assistant).map_or(0, |last| last + 1);
        for message in turn.into_iter().skip(asked).filter(|message| message.role == Role::User) {
            let moment = Moment { message_uid: message.uid, now: self.ports.clock.now() };
            let screening = screen.input(&*self.model, spec, message.content.message, moment).await?;
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
        let positions: Vec<i32> = repository::result_positions(self.conversation.message_count, &open).collect();
        let row = |(position, open): (i32, OpenCall)| {
            MessageRow::closed(&self.request.user_uid, uid, &open.call, code, position, now)
        };
        positions.into_iter().zip(open).map(row).collect()
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
