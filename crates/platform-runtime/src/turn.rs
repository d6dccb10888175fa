use std::sync::Arc;

use async_trait::async_trait;
use platform_core::{Error, Object, Result};
use serde_json::json;

use crate::{Answer, Delta, Fault, FaultCode, Message, Model, Prompt, Role, StopReason, ToolCall};

/// Follows a turn: shows what grows, keeps what is done.
#[async_trait]
pub trait Listener: Send {
    /// A piece of the answer that is being written. Must not block.
    fn delta(&mut self, delta: Delta<'_>);

    /// Judges a whole answer before anybody else sees it; may change its text.
    async fn answered(&mut self, _answer: &mut Answer) -> Result<Verdict> {
        Ok(Verdict::Pass)
    }

    /// Judges the results of tools before the model sees them; may change their text.
    async fn called(&mut self, _results: &mut [Message]) -> Result<Verdict> {
        Ok(Verdict::Pass)
    }

    /// An answer that did not satisfy its schema and is asked for again: only what it took counts.
    fn wasted(&mut self, _answer: &Answer) {}

    /// A model answer that calls tools, with their results: committed before the loop goes on.
    async fn step(&mut self, step: Step) -> Result<()>;
}

/// What a judge says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Go on.
    Pass,
    /// The turn ends here.
    Block,
}

/// A model answer with tool calls and the results it got, in the order of the calls.
#[derive(Debug)]
pub struct Step {
    /// The answer.
    pub answer: Answer,
    /// One tool message per call.
    pub results: Vec<Message>,
}

/// Bounds of one turn.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Tool calls of the turn; reached, the reply is closed.
    pub tool_calls: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { tool_calls: 100 }
    }
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
    /// The failure, when there was one.
    pub fault: Option<Fault>,
}

impl Ending {
    fn of(answer: Answer, reason: &'static str) -> Self {
        Self { answer: Some(answer), reason, data: None, fault: None }
    }

    /// A guardrail ended it before the model said anything more.
    pub fn blocked() -> Self {
        Self { answer: None, reason: GUARDRAIL, data: None, fault: None }
    }

    /// It failed; `answer`: what was said before that.
    pub fn failed(answer: Option<Answer>, fault: Fault) -> Self {
        Self { answer, reason: "error", data: None, fault: Some(fault) }
    }
}

/// Asks the model until it has nothing more to ask of its tools.
pub async fn run_turn(
    model: &dyn Model,
    mut prompt: Prompt,
    limits: Limits,
    listener: &mut dyn Listener,
) -> Result<Ending> {
    let mut calls_left = limits.tool_calls;
    let mut repairs_left = prompt.output.as_ref().map_or(0, |output| output.max_repairs);
    loop {
        let mut answer = match model.answer(&prompt, &mut |delta| listener.delta(delta)).await {
            Ok(answer) => answer,
            Err(mut fault) => {
                let mut partial = fault.partial.take().map(|partial| *partial);
                if let Some(answer) = &mut partial {
                    listener.answered(answer).await?;
                }
                return Ok(Ending::failed(partial, fault));
            }
        };
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
                Ok(data) => {
                    answer.text = serde_json::to_string(&data).map_err(Error::internal)?;
                    return Ok(Ending { data: Some(data), ..Ending::of(answer, reason) });
                }
                Err(problems) if repairs_left > 0 => {
                    repairs_left -= 1;
                    listener.wasted(&answer);
                    prompt.messages.push(Message::text(Role::Assistant, answer.text));
                    prompt.messages.push(Message::developer(format!(
                        "This answer does not satisfy the schema:\n{problems}\nAnswer again with one JSON object that does."
                    )));
                    continue;
                }
                Err(problems) => {
                    listener.wasted(&answer);
                    return Ok(Ending::failed(None, invalid_output(&answer, &problems)));
                }
            }
        }
        let wanted = answer.tool_calls.len() as u64;
        if wanted > calls_left {
            return Ok(Ending::of(Answer { tool_calls: Vec::new(), ..answer }, "max_tool_calls"));
        }
        calls_left -= wanted;
        let mut results: Vec<Message> = answer.tool_calls.iter().map(refuse).collect();
        let verdict = listener.called(&mut results).await?;
        prompt.messages.push(Message {
            tool_calls: answer.tool_calls.clone(),
            ..Message::text(Role::Assistant, answer.text.clone())
        });
        prompt.messages.extend(results.iter().cloned());
        listener.step(Step { answer, results }).await?;
        if verdict == Verdict::Block {
            return Ok(Ending::blocked());
        }
    }
}

/// The `stopReason` of a turn that a guardrail ended.
const GUARDRAIL: &str = "guardrail";

fn invalid_output(answer: &Answer, problems: &str) -> Fault {
    Fault {
        code: FaultCode::StructuredOutputInvalid,
        message: format!("The model's answer does not satisfy the schema: {problems}"),
        provider: Arc::clone(&answer.model.provider),
        status: None,
        partial: None,
    }
}

/// The answer to a call of a tool that this turn does not have.
fn refuse(call: &ToolCall) -> Message {
    let error = json!({"error": "TOOL_NOT_FOUND", "message": format!("There is no tool `{}`.", call.function.name)});
    Message { tool_call_id: Some(call.id.clone()), ..Message::text(Role::Tool, error.to_string()) }
}
