use platform_runtime::{Delta, StopReason, ToolCall, ToolFunction, Usage};

use crate::call::Broken;

/// Tool calls of one answer.
pub(crate) const MOST_CALLS: usize = 128;

/// Whoever is told of each piece.
pub(crate) type On<'a> = dyn for<'d> FnMut(Delta<'d>) + Send + 'a;

/// An answer while it is being read.
#[derive(Debug, Default)]
pub(crate) struct Draft {
    pub text: String,
    pub tool_calls: Vec<ToolCall>,
    pub stop: Option<StopReason>,
    pub usage: Option<Usage>,
    /// The provider said that this is all.
    pub complete: bool,
}

impl Draft {
    pub fn has_begun(&self) -> bool {
        !self.text.is_empty() || !self.tool_calls.is_empty()
    }

    pub fn text(&mut self, more: &str, on: &mut On<'_>) {
        if !more.is_empty() {
            self.text.push_str(more);
            on(Delta::Text(more));
        }
    }

    /// A piece of the call at `index`; a first piece carries the name, and the id if the provider gives one.
    pub fn tool_call(
        &mut self,
        index: usize,
        id: &str,
        name: &str,
        arguments: &str,
        on: &mut On<'_>,
    ) -> Result<(), Broken> {
        if index >= MOST_CALLS {
            return Err(Broken::protocol("an answer has more than 128 tool calls"));
        }
        let is_first = self.tool_calls.len() <= index;
        while self.tool_calls.len() <= index {
            let function = ToolFunction { name: String::new(), arguments: String::new() };
            self.tool_calls.push(ToolCall { id: ToolCall::new_id(), r#type: "function".to_owned(), function });
        }
        let call = &mut self.tool_calls[index];
        if !id.is_empty() {
            id.clone_into(&mut call.id);
        }
        call.function.name.push_str(name);
        call.function.arguments.push_str(arguments);
        let id = if is_first { &call.id } else { id };
        on(Delta::ToolCall { index, id, name, arguments });
        Ok(())
    }
}

/// A provider's number of tokens: missing, negative or odd ones count as 0 (contract 00 §13).
pub(crate) fn tokens(value: Option<&serde_json::Value>) -> u64 {
    let Some(value) = value else { return 0 };
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturating is what we want")]
    value.as_u64().or_else(|| value.as_f64().map(|number| number.max(0.0) as u64)).unwrap_or(0)
}
