//! What must hold whatever a provider sends: for the fuzzer, and for generated cases in the tests.

use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use platform_runtime::{Delta, ToolCall};

use crate::{
    call::read_stream,
    config::{CallLimits, Protocol},
    draft::{Draft, MAX_ARGUMENTS, MAX_CALLS, MAX_TEXT},
};

/// Reads `body` in the wire that its first byte chooses, cut into pieces as long as its second byte says.
pub fn answer(body: &[u8]) {
    let [wire, piece, body @ ..] = body else { return };
    let protocol = [Protocol::OpenAi, Protocol::Anthropic, Protocol::Gemini][usize::from(wire % 3)];
    let pieces = body.chunks(usize::from(*piece).max(1)).map(|piece| Ok(Bytes::copy_from_slice(piece)));
    let limits = CallLimits { first_byte: Duration::MAX, idle: Duration::MAX, ..CallLimits::default() };
    let (mut text, mut calls): (String, Vec<(String, String)>) = Default::default();
    let mut draft = Draft::default();
    let mut on = |delta: Delta<'_>| match delta {
        Delta::Text(more) => text.push_str(more),
        Delta::ToolCall { index, name, arguments, .. } => {
            calls.resize(calls.len().max(index + 1), Default::default());
            calls[index].0.push_str(name);
            calls[index].1.push_str(arguments);
        }
    };
    let reading = read_stream(stream::iter(pieces), protocol, &limits, &mut draft, &mut on);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    let read = runtime.block_on(reading);
    assert_eq!(draft.text, text, "what was shown is what is kept");
    let kept = draft.tool_calls.iter().map(|ToolCall { function, .. }| (&function.name, &function.arguments));
    let is_shown = kept.zip(&calls).all(|(kept, shown)| kept.0 == &shown.0 && kept.1.starts_with(&shown.1));
    let is_whole = draft.tool_calls.len() == calls.len() || draft.cut.is_some();
    assert!(is_shown && is_whole && calls.len() <= MAX_CALLS && text.len() <= MAX_TEXT);
    assert!(calls.iter().all(|(name, arguments)| name.len() + arguments.len() <= MAX_ARGUMENTS));
    assert!(draft.tool_calls.iter().all(|call| !call.id.is_empty()));
    if let (Ok(()), Some(usage)) = (read, draft.usage) {
        assert_eq!(usage.normalised(), usage, "parts never exceed their whole");
    }
}

#[cfg(test)]
mod tests {
    use proptest::{prelude::*, sample::select};

    /// Words of all three wires, so that much of what is generated is nearly right.
    const WORDS: [&str; 30] = [
        "data: ",
        "\n\n",
        "\n",
        "event: x",
        ":",
        "[DONE]",
        "{",
        "}",
        "[",
        "]",
        ",",
        "\"",
        "null",
        "1",
        "-3e9",
        "999",
        "{\"choices\":[{\"delta\":{\"content\":\"ü\"}}]}",
        "{\"choices\":[{\"delta\":{\"tool_calls\":[{\"index\":7,\"function\":{\"name\":\"f\",\"arguments\":\"{\"}}]}}]}",
        "{\"choices\":[],\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":-1,\"prompt_tokens_details\":{\"cached_tokens\":9}}}",
        "{\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":7}}}",
        "{\"type\":\"content_block_start\",\"index\":1,\"content_block\":{\"type\":\"tool_use\",\"id\":\"\",\"name\":\"f\"}}",
        "{\"type\":\"content_block_delta\",\"index\":1,\"delta\":{\"type\":\"input_json_delta\",\"partial_json\":\"{}\"}}",
        "{\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"a\"}}",
        "{\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\"usage\":{\"output_tokens\":4}}",
        "{\"type\":\"message_stop\"}",
        "{\"candidates\":[{\"content\":{\"parts\":[{\"text\":\"a\"}]}}]}",
        "{\"candidates\":[{\"content\":{\"parts\":[{\"functionCall\":{\"name\":\"f\",\"args\":{}}}]},\"finishReason\":\"STOP\"}]}",
        "{\"usageMetadata\":{\"promptTokenCount\":7,\"candidatesTokenCount\":4,\"cachedContentTokenCount\":99}}",
        "{\"error\":{\"code\":70000,\"message\":\"x\"}}",
        "\u{feff}",
    ];

    proptest! {
        #[test]
        fn whatever_a_provider_sends_what_is_shown_is_what_is_kept(
            head in any::<[u8; 2]>(),
            events in prop::collection::vec(select(&WORDS[..]), 0..40),
            framed in any::<bool>(),
        ) {
            let (before, after) = if framed { ("data: ", "\n\n") } else { ("", "") };
            let body: String = events.iter().flat_map(|event| [before, event, after]).collect();
            super::answer(&[&head[..], body.as_bytes()].concat());
        }
    }
}
