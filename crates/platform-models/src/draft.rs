use std::borrow::Cow;

use platform_core::{AccountId, FairPermit, FairSemaphore};
use platform_runtime::{Delta, StopReason, ToolCall, ToolFunction, Usage};

use crate::broken::Broken;

/// Tool calls of one answer; it ends before the next one.
pub(crate) const MAX_CALLS: usize = 64;
/// Bytes of the text of one answer.
pub(crate) const MAX_TEXT: usize = 1 << 20;
/// Bytes of what a model says to itself before it answers.
const MAX_REASONING: usize = 1 << 20;
/// Bytes of the name and the arguments of one tool call.
pub(crate) const MAX_ARGUMENTS: usize = 256 << 10;
/// Bytes of an id that a provider gives a call; a longer one is replaced.
const MAX_ID: usize = 256;
/// A piece of at most so many bytes is one token, as most providers send them; a longer one is estimated.
const TOKEN_BYTES: usize = 16;
/// Bytes a token (contract 00 §13).
const MEAN_BYTES: usize = 4;
/// Bytes of each answer that are not counted as text in flight.
const UNCOUNTED: usize = 16 << 10;
/// Bytes of text in flight that one permit stands for.
const BLOCK: usize = 64 << 10;
/// Bytes of answers that are being read at once in one process.
const MAX_IN_FLIGHT: usize = 256 << 20;

/// Whoever is told of each piece.
pub(crate) type On<'a> = dyn for<'d> FnMut(Delta<'d>) + Send + 'a;

/// Text of answers that are being read in this process, shared by all accounts.
#[derive(Clone)]
pub(crate) struct InFlight(FairSemaphore);

impl Default for InFlight {
    fn default() -> Self {
        Self(FairSemaphore::new(MAX_IN_FLIGHT / BLOCK, MAX_IN_FLIGHT / BLOCK))
    }
}

/// How an answer ends that went beyond a bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cut {
    pub stop: StopReason,
    /// Tokens of the answer, as they were counted here.
    pub tokens: u64,
}

/// An answer while it is being read. What goes beyond its bounds ends it.
#[derive(Default)]
pub(crate) struct Draft {
    pub text: String,
    pub tool_calls: Vec<ToolCall>,
    pub stop: Option<StopReason>,
    pub usage: Option<Usage>,
    /// The provider said that this is all.
    pub complete: bool,
    /// It went beyond a bound and ends there.
    pub cut: Option<Cut>,
    /// Bytes of reasoning, which is not kept.
    reasoning: usize,
    tokens: u64,
    bounds: Option<(u64, AccountId, InFlight)>,
    /// Bytes that may be held before another permit is needed.
    permitted: usize,
    permits: Vec<FairPermit>,
}

impl Draft {
    /// An answer of about so many tokens at the most, a tenth more since they are counted by guess.
    pub fn within(most_tokens: u64, account: &AccountId, in_flight: &InFlight) -> Self {
        let most = most_tokens.saturating_add(most_tokens.div_ceil(10));
        Self { bounds: Some((most, account.clone(), in_flight.clone())), permitted: UNCOUNTED, ..Self::default() }
    }

    pub fn has_begun(&self) -> bool {
        !self.text.is_empty() || !self.tool_calls.is_empty()
    }

    pub fn text(&mut self, more: &str, on: &mut On<'_>) -> Result<(), Broken> {
        let more = storable(more);
        let more = self.admit(&more, MAX_TEXT - self.text.len())?;
        if !more.is_empty() {
            self.text.push_str(more);
            on(Delta::Text(more));
        }
        Ok(())
    }

    /// Counts what the model says to itself.
    pub fn reasoning(&mut self, more: &str) -> Result<(), Broken> {
        self.reasoning += self.admit(more, MAX_REASONING - self.reasoning)?.len();
        Ok(())
    }

    /// Tokens of the answer so far, as the provider counts them while it writes.
    pub fn counted(&mut self, tokens: u64) {
        if tokens > 0 {
            self.tokens = tokens;
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
        if index >= MAX_CALLS && self.cut.is_none() {
            self.cut_off(if self.tool_calls.is_empty() { StopReason::MaxTokens } else { StopReason::ToolUse });
        }
        if self.cut.is_some() {
            return Ok(());
        }
        let function = self.tool_calls.get(index).map(|call| &call.function);
        let room = MAX_ARGUMENTS - function.map_or(0, |function| function.name.len() + function.arguments.len());
        let (name, arguments) = (storable(name), storable(arguments));
        let name = self.admit(&name, room)?;
        let arguments = self.admit(&arguments, room - name.len())?;
        if self.cut.is_some() {
            return Ok(());
        }
        let is_first = self.tool_calls.len() <= index;
        while self.tool_calls.len() <= index {
            let function = ToolFunction { name: String::new(), arguments: String::new() };
            self.tool_calls.push(ToolCall { id: ToolCall::new_id(), r#type: "function".to_owned(), function });
        }
        let call = &mut self.tool_calls[index];
        if (1..=MAX_ID).contains(&id.len()) && !id.contains('\0') {
            id.clone_into(&mut call.id);
        }
        call.function.name.push_str(name);
        call.function.arguments.push_str(arguments);
        let id = if is_first || !id.is_empty() { call.id.as_str() } else { "" };
        on(Delta::ToolCall { index, id, name, arguments });
        Ok(())
    }

    /// The beginning of a piece that is within the bounds; the answer ends when that is not the whole.
    fn admit<'p>(&mut self, piece: &'p str, room: usize) -> Result<&'p str, Broken> {
        if piece.is_empty() || self.cut.is_some() {
            return Ok("");
        }
        let left = self.bounds.as_ref().map_or(u64::MAX, |(most, ..)| most.saturating_sub(self.tokens));
        let room = room.min(usize::try_from(left).unwrap_or(usize::MAX).saturating_mul(TOKEN_BYTES));
        let kept = &piece[..piece.floor_char_boundary(room)];
        self.tokens += match kept.len() {
            0 => 0,
            1..=TOKEN_BYTES => 1,
            long => (long / MEAN_BYTES) as u64,
        };
        self.hold(kept.len())?;
        if kept.len() < piece.len() {
            self.cut_off(StopReason::MaxTokens);
        }
        Ok(kept)
    }

    /// Ends the answer here. What broke off in the middle of a call calls nothing.
    fn cut_off(&mut self, stop: StopReason) {
        if stop == StopReason::MaxTokens {
            self.tool_calls.clear();
        }
        (self.cut, self.complete) = (Some(Cut { stop, tokens: self.tokens }), true);
    }

    /// Takes its share of the text in flight.
    fn hold(&mut self, more: usize) -> Result<(), Broken> {
        let Some((_, account, InFlight(blocks))) = &self.bounds else { return Ok(()) };
        while self.permitted < more {
            self.permits.push(blocks.try_acquire(account).ok_or_else(Broken::no_room)?);
            self.permitted += BLOCK;
        }
        self.permitted -= more;
        Ok(())
    }
}

/// A piece of an answer with U+FFFD in place of each NUL, which PostgreSQL keeps in no text.
fn storable(piece: &str) -> Cow<'_, str> {
    if piece.contains('\0') { piece.replace('\0', "\u{fffd}").into() } else { piece.into() }
}

/// A provider's number of tokens: missing, negative or odd ones count as 0 (contract 00 §13).
pub(crate) fn tokens(value: Option<&serde_json::Value>) -> u64 {
    let Some(value) = value else { return 0 };
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturating is what we want")]
    value.as_u64().or_else(|| value.as_f64().map(|number| number.max(0.0) as u64)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nobody(_: Delta<'_>) {}

    #[test]
    fn an_answer_ends_at_its_tokens_and_a_tenth_and_at_each_bound_in_bytes() {
        let (account, in_flight) = (AccountId::generate(), InFlight::default());
        let draft = |tokens| Draft::within(tokens, &account, &in_flight);
        let cut = |draft: &Draft| draft.cut.map(|cut| cut.stop);
        let ended = Some(StopReason::MaxTokens);

        let mut words = draft(50);
        (0..55).for_each(|_| words.text(" international", &mut nobody).expect("room"));
        assert_eq!(cut(&words), None, "short pieces are tokens");
        words.text(" more", &mut nobody).expect("room");
        assert_eq!((cut(&words), words.text.len(), words.tokens), (ended, 55 * 14, 55));

        let mut long = draft(100);
        long.text(&"ä".repeat(100_000), &mut nobody).expect("room");
        assert_eq!((cut(&long), long.text.len()), (ended, 110 * TOKEN_BYTES), "no piece is longer than its tokens");

        let mut text = draft(u64::MAX);
        text.text(&"漢".repeat(MAX_TEXT / 3 + 1), &mut nobody).expect("room");
        assert_eq!((cut(&text), text.text.len()), (ended, MAX_TEXT / 3 * 3));

        let mut thinking = draft(u64::MAX);
        (0..=MAX_REASONING / 1024).for_each(|_| thinking.reasoning(&"x".repeat(1024)).expect("room"));
        assert_eq!((cut(&thinking), thinking.has_begun()), (ended, false));

        let mut arguments = draft(u64::MAX);
        arguments.tool_call(0, "", "f", "{}", &mut nobody).expect("room");
        arguments.tool_call(1, "", "f", &" ".repeat(MAX_ARGUMENTS - 1), &mut nobody).expect("room");
        assert_eq!((cut(&arguments), arguments.tool_calls.len()), (None, 2));
        arguments.tool_call(1, "", "", " ", &mut nobody).expect("room");
        assert_eq!((cut(&arguments), arguments.tool_calls.len()), (ended, 0), "half a call is none");

        let mut calls = draft(u64::MAX);
        (0..=MAX_CALLS).for_each(|n| calls.tool_call(n, "", "f", "{}", &mut nobody).expect("room"));
        assert_eq!((cut(&calls), calls.tool_calls.len()), (Some(StopReason::ToolUse), MAX_CALLS));
    }

    #[test]
    fn text_in_flight_is_bounded_and_one_account_leaves_room_for_others() {
        let (greedy, other, in_flight) = (AccountId::generate(), AccountId::generate(), InFlight::default());
        let mebibyte = "x".repeat(MAX_TEXT);
        let mut read = Vec::new();
        let refused = loop {
            let mut draft = Draft::within(u64::MAX, &greedy, &in_flight);
            let outcome = draft.text(&mebibyte, &mut nobody);
            read.push(draft);
            if outcome.is_err() {
                break read.len();
            }
        };
        assert!((180..=195).contains(&refused), "three quarters of it: {refused} MiB");
        assert!(Draft::within(u64::MAX, &other, &in_flight).text(&mebibyte, &mut nobody).is_ok());
        drop(read);
        assert!(Draft::within(u64::MAX, &greedy, &in_flight).text(&mebibyte, &mut nobody).is_ok());
    }
}
