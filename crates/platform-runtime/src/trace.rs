//! Spans under the names of the `OpenTelemetry` conventions for generative AI; what was said is not in them.

use platform_core::TRACES;
use tracing::{Span, field::Empty, info_span};

use crate::{Answer, Fault, Operation, Prompt, ToolCall, Usage};

/// The span of one model call; [`answered`] says what came of it.
pub(crate) fn model_call(prompt: &Prompt) -> Span {
    let model = &prompt.model;
    info_span!(
        target: TRACES,
        "chat",
        otel.name = format!("chat {}", model.llm),
        otel.kind = "client",
        otel.status_code = Empty,
        error.type = Empty,
        gen_ai.operation.name = "chat",
        gen_ai.provider.name = &*model.provider,
        gen_ai.request.model = &*model.llm,
        gen_ai.request.max_tokens = number(model.max_output_tokens),
        gen_ai.response.model = Empty,
        gen_ai.usage.input_tokens = Empty,
        gen_ai.usage.cache_read.input_tokens = Empty,
        gen_ai.usage.output_tokens = Empty,
        gen_ai.usage.reasoning.output_tokens = Empty,
        platform.operation = prompt.operation.map_or("turn", Operation::as_str),
        platform.cost_nano_usd = Empty,
    )
}

/// Notes what a model call gave and took.
pub(crate) fn answered(span: &Span, outcome: &Result<Answer, Fault>) {
    if span.is_disabled() {
        return;
    }
    let answer = match outcome {
        Ok(answer) => Some(answer),
        Err(fault) => {
            span.record("otel.status_code", "error");
            span.record("error.type", fault.code.as_str());
            fault.partial.as_deref()
        }
    };
    let Some(answer) = answer else { return };
    let Usage { input_tokens, input_cached_tokens, output_tokens, reasoning_output_tokens, .. } = answer.usage;
    span.record("gen_ai.response.model", &*answer.model.llm);
    span.record("gen_ai.usage.input_tokens", number(input_tokens));
    span.record("gen_ai.usage.cache_read.input_tokens", number(input_cached_tokens));
    span.record("gen_ai.usage.output_tokens", number(output_tokens));
    span.record("gen_ai.usage.reasoning.output_tokens", number(reasoning_output_tokens));
    span.record("platform.cost_nano_usd", answer.cost.total_cost.nanos());
}

/// The span of one call of a tool.
pub(crate) fn tool_call(call: &ToolCall) -> Span {
    info_span!(
        target: TRACES,
        "execute_tool",
        otel.name = format!("execute_tool {}", call.function.name),
        gen_ai.operation.name = "execute_tool",
        gen_ai.tool.name = call.function.name,
        gen_ai.tool.call.id = call.id,
        gen_ai.tool.type = "function",
    )
}

/// Attributes are signed.
fn number(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
