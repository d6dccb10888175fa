use async_trait::async_trait;
use platform_core::Result;
use serde_json::json;

use crate::{Answer, Delta, Fault, Message, Model, Prompt, Role, StopReason, ToolCall};

/// Follows a turn: shows what grows, keeps what is done.
#[async_trait]
pub trait Listener: Send {
    /// A piece of the answer that is being written. Must not block.
    fn delta(&mut self, delta: Delta<'_>);

    /// A model answer that calls tools, with their results: committed before the loop goes on.
    async fn step(&mut self, step: Step) -> Result<()>;
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
    /// The failure, when there was one.
    pub fault: Option<Fault>,
}

/// Asks the model until it has nothing more to ask of its tools.
pub async fn run_turn(
    model: &dyn Model,
    mut prompt: Prompt,
    limits: Limits,
    listener: &mut dyn Listener,
) -> Result<Ending> {
    let mut calls_left = limits.tool_calls;
    loop {
        let answer = match model.answer(&prompt, &mut |delta| listener.delta(delta)).await {
            Ok(answer) => answer,
            Err(mut fault) => {
                let answer = fault.partial.take().map(|partial| *partial);
                return Ok(Ending { answer, reason: "error", fault: Some(fault) });
            }
        };
        if answer.tool_calls.is_empty() {
            let reason = match answer.stop {
                StopReason::ToolUse => StopReason::EndTurn.as_str(),
                other => other.as_str(),
            };
            return Ok(Ending { answer: Some(answer), reason, fault: None });
        }
        let wanted = answer.tool_calls.len() as u64;
        if wanted > calls_left {
            let answer = Answer { tool_calls: Vec::new(), ..answer };
            return Ok(Ending { answer: Some(answer), reason: "max_tool_calls", fault: None });
        }
        calls_left -= wanted;
        let results: Vec<Message> = answer.tool_calls.iter().map(refuse).collect();
        prompt.messages.push(Message {
            role: Role::Assistant,
            text: answer.text.clone(),
            tool_calls: answer.tool_calls.clone(),
            tool_call_id: None,
        });
        prompt.messages.extend(results.iter().cloned());
        listener.step(Step { answer, results }).await?;
    }
}

/// The answer to a call of a tool that this turn does not have.
fn refuse(call: &ToolCall) -> Message {
    let error = json!({"error": "TOOL_NOT_FOUND", "message": format!("There is no tool `{}`.", call.function.name)});
    Message { role: Role::Tool, text: error.to_string(), tool_calls: Vec::new(), tool_call_id: Some(call.id.clone()) }
}
