use std::{collections::HashSet, pin::pin, time::Instant};

use async_trait::async_trait;
use futures_util::{StreamExt, stream};
use platform_core::{Error, Object, Result, parse, without_nul};
use serde_json::Value;
use tracing::Instrument;

use crate::{
    Answer, Delta, Fault, FaultCode, Message, Model, ModelSpec, Prompt, Role, StopReason, ToolCall,
    model::answer,
    structured::Checked,
    tools::{CallResult, CallState, Finish, OpenCall, ToolResult, TurnTool, fit},
    trace,
};

/// Calls of one answer that are made at once.
const AT_ONCE: usize = 8;

/// Follows a turn: shows what grows, keeps what is done.
#[async_trait]
pub trait Listener: Send {
    /// A piece of the answer that is being written. Must not block.
    fn delta(&mut self, delta: Delta<'_>);

    /// Judges a whole answer before anybody else sees it; may change its text, and what `FINISH_TOOL` is called with.
    async fn answered(&mut self, _answer: &mut Answer) -> Result<Verdict> {
        Ok(Verdict::Pass)
    }

    /// Judges results of tools before the model sees them; may change their text.
    async fn called(&mut self, _results: &mut [CallResult]) -> Result<Verdict> {
        Ok(Verdict::Pass)
    }

    /// An answer that did not satisfy its schema and is asked for again: only what it took counts.
    fn wasted(&mut self, _answer: &Answer) {}

    /// A model answer that calls tools: committed before any of the calls is made.
    async fn asked(&mut self, answer: &Answer, open: &[OpenCall]) -> Result<Flow>;

    /// Results of calls, in the order of the calls, and what is open beside them: committed before the
    /// model sees them, and before a call that is marked as started is made. A halt counts when no
    /// call is under way any more.
    async fn settled(&mut self, results: &[CallResult], open: &[OpenCall]) -> Result<Flow>;
}

/// Whether the turn goes on after a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flow {
    /// The turn goes on.
    GoOn,
    /// It does not, for now: calls that are not begun are [`CallState::Approved`] when it goes on.
    Halt,
}

/// What a judge says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Go on.
    Pass,
    /// The turn ends here.
    Block,
}

/// Bounds of one turn.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Tool calls of the turn; when the model wants more, the reply is closed.
    pub tool_calls: u64,
    /// Tokens of one tool result that the model gets.
    pub result_tokens: u64,
    /// Prompt tokens that its model calls may take, counted from here; the call that reaches it is the last.
    pub input_tokens: u64,
    /// Empty answers that are asked for again; `None`: an empty answer is one.
    pub empty_answers: Option<u32>,
}

impl Default for Limits {
    fn default() -> Self {
        Self { tool_calls: 100, result_tokens: 20_000, input_tokens: u64::MAX, empty_answers: None }
    }
}

/// What an earlier lease of a turn left open.
#[derive(Debug, Clone, Default)]
pub struct Resumed {
    /// Calls of the last answer without a result.
    pub open: Vec<OpenCall>,
    /// Whoever was to answer has had their time.
    pub late: bool,
}

/// How a turn ended.
#[derive(Debug)]
pub struct Ending {
    /// The last answer, or what there was of it.
    pub answer: Option<Answer>,
    /// `stopReason` of the wire.
    pub reason: &'static str,
    /// What the answer holds, when it had to satisfy a schema.
    pub data: Option<Object>,
    /// A tool ended it with this.
    pub finish: Option<Finish>,
    /// It has not ended: these calls wait for the client, for approval or for a result.
    pub waiting: Vec<OpenCall>,
    /// It has not ended: the listener halted it.
    pub is_halted: bool,
    /// The failure, when there was one.
    pub fault: Option<Fault>,
}

impl Ending {
    fn because(reason: &'static str) -> Self {
        Self { answer: None, reason, data: None, finish: None, waiting: Vec::new(), is_halted: false, fault: None }
    }

    fn of(answer: Answer, reason: &'static str) -> Self {
        Self { answer: Some(answer), ..Self::because(reason) }
    }

    /// A guardrail ended it before the model said anything more.
    pub fn blocked() -> Self {
        Self::because(GUARDRAIL)
    }

    /// A guardrail ended it.
    pub fn is_blocked(&self) -> bool {
        self.reason == GUARDRAIL
    }

    fn halted() -> Self {
        Self { is_halted: true, ..Self::because("") }
    }

    /// It failed; `answer`: what was said before that.
    pub fn failed(answer: Option<Answer>, fault: Fault) -> Self {
        Self { answer, fault: Some(fault), ..Self::because("error") }
    }
}

/// Asks the model until it has nothing more to ask of its tools.
pub async fn run_turn(
    model: &dyn Model,
    tools: &[TurnTool],
    mut prompt: Prompt,
    limits: Limits,
    resumed: Resumed,
    listener: &mut dyn Listener,
) -> Result<Ending> {
    let made: usize = prompt.messages[prompt.turn..].iter().map(|message| message.tool_calls.len()).sum();
    let mut calls_left = limits.tool_calls.saturating_sub(made as u64);
    let mut repairs_left = prompt.output.as_ref().map_or(0, |output| output.max_repairs);
    let mut input_left = limits.input_tokens;
    let mut empty_left = limits.empty_answers;
    let calls = Calls { model, tools, limits };
    if !resumed.open.is_empty()
        && let Some(ending) = calls.carry_out(resumed, true, &mut prompt, listener).await?
    {
        return Ok(ending);
    }
    loop {
        if input_left == 0 {
            return Ok(Ending::because(MAX_INPUT_TOKENS));
        }
        let mut answer = match answer(model, &prompt, &mut |delta| listener.delta(delta)).await {
            Ok(answer) => answer,
            Err(mut fault) => {
                let mut partial = fault.partial.take().map(|partial| *partial);
                if let Some(answer) = &mut partial {
                    listener.answered(answer).await?;
                    answer.tool_calls.clear();
                }
                return Ok(Ending::failed(partial, fault));
            }
        };
        input_left = input_left.saturating_sub(answer.usage.input_tokens);
        if answer.tool_calls.is_empty()
            && answer.text.is_empty()
            && let Some(left) = &mut empty_left
        {
            listener.wasted(&answer);
            let Some(fewer) = left.checked_sub(1) else { return Ok(Ending::failed(None, empty(&answer.model))) };
            *left = fewer;
            continue;
        }
        if answer.tool_calls.is_empty()
            && let Some(text) = prompt.output.as_ref().and_then(|output| output.canonical(&answer.text))
        {
            answer.text = text;
        }
        if listener.answered(&mut answer).await? == Verdict::Block {
            return Ok(Ending::of(answer, GUARDRAIL));
        }
        if answer.tool_calls.is_empty() {
            let reason = match answer.stop {
                StopReason::ToolUse => StopReason::EndTurn.as_str(),
                other => other.as_str(),
            };
            let Some(output) = prompt.output.clone() else { return Ok(Ending::of(answer, reason)) };
            match output.check(&answer.text).await? {
                Checked::Fits(data) => {
                    answer.text = serde_json::to_string(&data).map_err(Error::internal)?;
                    return Ok(Ending { data: Some(data), ..Ending::of(answer, reason) });
                }
                Checked::Misfit(problems) if repairs_left > 0 => {
                    repairs_left -= 1;
                    listener.wasted(&answer);
                    prompt.messages.push(Message::text(Role::Assistant, answer.text));
                    prompt.messages.push(Message::developer(format!(
                        "This answer does not satisfy the schema:\n{problems}\nAnswer again with one JSON object that does."
                    )));
                    continue;
                }
                Checked::Misfit(problems) => {
                    listener.wasted(&answer);
                    return Ok(Ending::failed(None, invalid_output(&answer.model, &problems)));
                }
            }
        }
        tell_apart(&mut answer, &prompt.messages);
        if calls_left == 0 {
            return Ok(Ending::of(Answer { tool_calls: Vec::new(), ..answer }, MAX_TOOL_CALLS));
        }
        let mut open: Vec<OpenCall> = answer.tool_calls.iter().map(|call| calls.open(call, &mut calls_left)).collect();
        (0..).zip(open.iter_mut().rev()).for_each(|(after, open)| open.after = after);
        if listener.asked(&answer, &open).await? == Flow::Halt {
            return Ok(Ending::halted());
        }
        prompt.messages.push(Message { tool_calls: answer.tool_calls, ..Message::text(Role::Assistant, answer.text) });
        let begun = Resumed { open, late: false };
        if let Some(ending) = calls.carry_out(begun, false, &mut prompt, listener).await? {
            return Ok(ending);
        }
    }
}

/// A provider that gives an id twice gets another one for the second call.
fn tell_apart(answer: &mut Answer, messages: &[Message]) {
    let mut known: HashSet<&str> =
        messages.iter().flat_map(|message| &message.tool_calls).map(|call| call.id.as_str()).collect();
    for call in &mut answer.tool_calls {
        if known.contains(call.id.as_str()) {
            call.id = ToolCall::new_id();
        }
        known.insert(&call.id);
    }
}

/// Results of the last answer's calls stand in the order of the calls, whenever they came.
fn in_order(messages: &mut [Message]) {
    let Some(asked) = messages.iter().rposition(|message| !message.tool_calls.is_empty()) else { return };
    let (asked, results) = messages[asked..].split_first_mut().expect("it has the answer");
    results
        .sort_by_key(|result| asked.tool_calls.iter().position(|call| Some(&call.id) == result.tool_call_id.as_ref()));
}

/// The `stopReason` of a turn that a guardrail ended.
const GUARDRAIL: &str = "guardrail";
/// The `stopReason` of a turn whose model wanted more calls than it has.
const MAX_TOOL_CALLS: &str = "max_tool_calls";
/// The `stopReason` of a turn whose model calls took all that they may.
const MAX_INPUT_TOKENS: &str = "max_input_tokens";

fn empty(model: &ModelSpec) -> Fault {
    Fault::of(FaultCode::EmptyContent, "The model answered with nothing, again and again.", &model.provider)
}

fn invalid_output(model: &ModelSpec, problems: &str) -> Fault {
    let message = format!("The model's answer does not satisfy the schema: {problems}");
    Fault::of(FaultCode::StructuredOutputInvalid, message, &model.provider)
}

/// Carries out the calls of a turn.
struct Calls<'a> {
    model: &'a dyn Model,
    tools: &'a [TurnTool],
    limits: Limits,
}

impl Calls<'_> {
    fn find(&self, call: &ToolCall) -> Option<&TurnTool> {
        self.tools.iter().find(|tool| tool.tool.name == call.function.name)
    }

    /// How a call that the model has just made begins.
    fn open(&self, call: &ToolCall, calls_left: &mut u64) -> OpenCall {
        let state = if *calls_left == 0 { CallState::Refused } else { self.first_state(call) };
        *calls_left = calls_left.saturating_sub(1);
        OpenCall { call: call.clone(), state, after: 0 }
    }

    fn first_state(&self, call: &ToolCall) -> CallState {
        match self.find(call) {
            // Nobody is asked about what cannot be called.
            _ if arguments(call).is_none() => CallState::Started,
            Some(tool) if tool.needs_approval => CallState::Approval,
            Some(TurnTool { action: None, .. }) => CallState::Client,
            _ => CallState::Started,
        }
    }

    /// Makes the calls that can be made and settles those that are answered, as the results come, in the order
    /// of the calls. The ending when the turn cannot go on after that.
    async fn carry_out(
        &self,
        Resumed { mut open, late }: Resumed,
        again: bool,
        prompt: &mut Prompt,
        listener: &mut dyn Listener,
    ) -> Result<Option<Ending>> {
        let ready: Vec<OpenCall> = open.iter().filter(|call| late || !call.waits()).cloned().collect();
        if ready.iter().any(|call| call.state == CallState::Approved) {
            for call in open.iter_mut().filter(|call| call.state == CallState::Approved) {
                call.state = CallState::Started;
            }
            listener.settled(&[], &open).await?;
        }
        let (mut blocked, mut finish, mut flow) = (false, None, Flow::GoOn);
        let spent = ready.iter().any(|call| call.state == CallState::Refused);
        let most = ready.len().max(1);
        let made: Vec<_> = ready.into_iter().map(|call| self.settle(call, again)).collect();
        let mut results = pin!(stream::iter(made).buffered(AT_ONCE).ready_chunks(most));
        while let Some(settled) = results.next().await {
            let mut settled: Vec<CallResult> = settled;
            for awaited in settled.extract_if(.., |settled| settled.result.later.is_some()) {
                let later = awaited.result.later.expect("extracted by it");
                let of = open.iter_mut().filter(|open| open.call.id == awaited.call.id);
                of.for_each(|open| open.state = CallState::Awaits(later.clone()));
            }
            blocked |= listener.called(&mut settled).await? == Verdict::Block;
            open.retain(|open| !settled.iter().any(|result| result.call.id == open.call.id));
            flow = listener.settled(&settled, &open).await?;
            for CallResult { call, result, .. } in settled {
                let text = fit(self.model.catalog(), &prompt.model, &result.text, self.limits.result_tokens);
                prompt.messages.push(Message { tool_call_id: Some(call.id), ..Message::text(Role::Tool, text) });
                finish = finish.or(result.finish);
            }
        }
        in_order(&mut prompt.messages);
        if blocked {
            return Ok(Some(Ending::blocked()));
        }
        if flow == Flow::Halt {
            return Ok(Some(Ending::halted()));
        }
        if let Some(finish) = finish {
            return self.finish(finish, prompt).await.map(Some);
        }
        if !open.is_empty() {
            return Ok(Some(Ending { waiting: open, ..Ending::because(StopReason::ToolUse.as_str()) }));
        }
        Ok(spent.then(|| Ending::because(MAX_TOOL_CALLS)))
    }

    /// What a tool ends the turn with has the form that an answer has.
    async fn finish(&self, mut finish: Finish, prompt: &Prompt) -> Result<Ending> {
        if let Some(output) = &prompt.output {
            let given = finish.data.take().map_or(finish.message, |data| Value::Object(data).to_string());
            match output.check(&given).await? {
                Checked::Fits(data) => {
                    finish.message = serde_json::to_string(&data).map_err(Error::internal)?;
                    finish.data = Some(data);
                }
                Checked::Misfit(problems) => return Ok(Ending::failed(None, invalid_output(&prompt.model, &problems))),
            }
        }
        Ok(Ending { finish: Some(finish), ..Ending::because(StopReason::EndTurn.as_str()) })
    }

    /// The result of a call; `again`: it may have been made before.
    async fn settle(&self, OpenCall { call, state, .. }: OpenCall, again: bool) -> CallResult {
        let began = Instant::now();
        let result = match state {
            CallState::Started => self.make(&call, again).await,
            CallState::Approved => self.make(&call, false).await,
            CallState::Rejected => ToolResult::of(&serde_json::json!({"error": "REJECTED"})),
            CallState::Answered(value) => ToolResult::of(&value),
            CallState::Client | CallState::Approval | CallState::Awaits(_) => {
                ToolResult::of(&serde_json::json!({"error": "TIMEOUT"}))
            }
            CallState::Refused => {
                let message = format!("This turn has made its {} tool calls.", self.limits.tool_calls);
                ToolResult::error("TOOL_NOT_AVAILABLE", message)
            }
        };
        CallResult { call, result, latency: began.elapsed() }
    }

    async fn make(&self, call: &ToolCall, again: bool) -> ToolResult {
        let name = &call.function.name;
        let Some(arguments) = arguments(call) else {
            return ToolResult::error("INVALID_ARGUMENTS", "The arguments are no JSON object.");
        };
        let tool = self.find(call);
        // A tool that is gone now may have been there when the call was made.
        if again && !tool.is_some_and(|tool| tool.is_repeatable) {
            let message = "The call was under way when its process was lost; whether it had an effect is not known.";
            return ToolResult::error("RESULT_UNKNOWN", message);
        }
        match tool.and_then(|tool| tool.action.as_ref()) {
            Some(action) => action.call(&call.id, arguments).instrument(trace::tool_call(call)).await,
            None => ToolResult::error("TOOL_NOT_AVAILABLE", format!("There is no tool `{name}`.")),
        }
    }
}

/// The arguments of a call; none at all are an empty object.
fn arguments(call: &ToolCall) -> Option<Object> {
    let text = call.function.arguments.trim();
    if text.is_empty() {
        return Some(Object::new());
    }
    match parse(text.as_bytes()).map(without_nul) {
        Ok(Value::Object(arguments)) => Some(arguments),
        _ => None,
    }
}
