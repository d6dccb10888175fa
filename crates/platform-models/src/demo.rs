//! The offline provider (contract 18 §4): deterministic, streamed word by word, driven by directives.

use std::time::Duration;

use platform_core::Money;
use platform_runtime::{Capabilities, Message, ModelSpec, Operation, Prices, Prompt, Role, StopReason, Usage};
use serde_json::{Value, json};

use crate::{
    broken::Broken,
    draft::{Draft, On, tokens},
};

pub(crate) const PROVIDER: &str = "demo";
const MODEL: &str = "demo-1";
const MAX_WAIT: Duration = Duration::from_mins(10);
const MAX_DELAY: Duration = Duration::from_secs(10);
const MAX_WORDS: usize = 32_000;
/// Values of an object that is made to satisfy a schema.
const MAX_VALUES: usize = 10_000;

pub(crate) fn spec((input, output): (Money, Money)) -> ModelSpec {
    ModelSpec {
        provider: PROVIDER.into(),
        llm: MODEL.into(),
        context_window: 128_000,
        max_output_tokens: 32_000,
        prices: Prices { input, output, cached_input: input, cache_write: input },
        capabilities: Capabilities { tools: true, vision: true, streaming: true, reasoning: false },
    }
}

/// Usage fields as the user wants them reported.
type Reported = serde_json::Map<String, serde_json::Value>;

/// What the user asks of this provider, one line each.
#[derive(Debug, PartialEq)]
enum Directive {
    Tool { name: String, arguments: String },
    Wait(Duration),
    Delay(Duration),
    Fail { how: Failure, times: u32 },
    Reply(String),
    Usage(Reported),
    Stop(StopReason),
    Text(String),
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Failure {
    Status(u16),
    Timeout,
    Stream,
}

impl Directive {
    fn parse(line: &str) -> Self {
        let text = || Self::Text(line.trim().to_owned());
        let Some(rest) = line.trim().strip_prefix('/') else { return text() };
        let (word, rest) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
        let rest = rest.trim();
        match word {
            "tool" => {
                let (name, arguments) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
                let arguments = if arguments.trim().is_empty() { "{}" } else { arguments.trim() };
                Self::Tool { name: name.to_owned(), arguments: arguments.to_owned() }
            }
            "wait" => duration(rest).map_or_else(text, |wait| Self::Wait(wait.min(MAX_WAIT))),
            "delay" => duration(rest).map_or_else(text, |delay| Self::Delay(delay.min(MAX_DELAY))),
            "fail" => {
                let (how, times) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
                let times = times.trim().parse().unwrap_or(u32::MAX);
                let how = match how {
                    "timeout" => Some(Failure::Timeout),
                    "stream" => Some(Failure::Stream),
                    status => status.parse().ok().map(Failure::Status),
                };
                how.map_or_else(text, |how| Self::Fail { how, times })
            }
            "tokens" => rest.parse().map_or_else(
                |_| text(),
                |count: usize| {
                    let words: Vec<String> = (1..=count.min(MAX_WORDS)).map(|n| format!("word{n}")).collect();
                    Self::Reply(words.join(" "))
                },
            ),
            "say" | "json" => Self::Reply(rest.to_owned()),
            "empty" => Self::Reply(String::new()),
            "usage" => serde_json::from_str(rest).map_or_else(|_| text(), Self::Usage),
            "stop" => match rest {
                "max_tokens" => Self::Stop(StopReason::MaxTokens),
                "content_filter" => Self::Stop(StopReason::ContentFilter),
                _ => Self::Stop(StopReason::EndTurn),
            },
            _ => text(),
        }
    }
}

fn duration(text: &str) -> Option<Duration> {
    match text.strip_suffix("ms") {
        Some(millis) => millis.trim().parse().ok().map(Duration::from_millis),
        None => text.strip_suffix('s')?.trim().parse().ok().map(Duration::from_secs),
    }
}

/// What the directives of one model call come to.
#[derive(Debug, Default)]
struct Script {
    calls: Vec<(String, String)>,
    texts: Vec<String>,
    reply: Option<String>,
    reported: Reported,
    stop: Option<StopReason>,
}

/// Tokens are words.
pub(crate) fn count(text: &str) -> u64 {
    text.split_whitespace().count() as u64
}

/// What it says when it is asked for something in a secondary call.
fn aside(operation: Operation, prompt: &Prompt) -> String {
    let text = prompt.messages.last().map_or("", |message| message.text.as_str());
    let first = |count: usize| text.split_whitespace().take(count).collect::<Vec<_>>().join(" ");
    match operation {
        Operation::Title => first(6),
        Operation::Summary | Operation::Compaction => first(20),
        Operation::Guardrail => {
            let violation = text.contains("demo-violation");
            json!({"violation": violation, "score": u8::from(violation), "reason": "demo"}).to_string()
        }
        Operation::Evaluation => {
            let asked: Value = serde_json::from_str(text).unwrap_or_default();
            let score = if asked["state"] == "failed" { 3 } else { 8 };
            let judged = json!({"score": score, "reasoning": "demo", "observations": []});
            let criteria = asked["criteria"].as_array().into_iter().flatten();
            let criteria = criteria.filter_map(|of| Some((of["name"].as_str()?.to_owned(), judged.clone())));
            let criteria: serde_json::Map<String, Value> = criteria.collect();
            json!({"criteria": criteria, "generalFeedback": "Demo evaluation."}).to_string()
        }
        // Nobody asks for words there.
        Operation::Embedding | Operation::Transcription => String::new(),
    }
}

pub(crate) async fn call(prompt: &Prompt, attempt: u32, draft: &mut Draft, on: &mut On<'_>) -> Result<(), Broken> {
    if let Some(operation) = prompt.operation {
        let reply = aside(operation, prompt);
        draft.text(&reply, on)?;
        draft.usage = Some(usage(prompt, &reply, &Reported::new()));
        draft.stop = Some(StopReason::EndTurn);
        return Ok(());
    }
    let turn = &prompt.messages[prompt.turn.min(prompt.messages.len())..];
    let results: Vec<(&str, &str)> = turn
        .iter()
        .flat_map(|message| &message.tool_calls)
        .filter_map(|call| {
            let of = |message: &&Message| message.tool_call_id.as_deref() == Some(call.id.as_str());
            Some((call.function.name.as_str(), turn.iter().find(of)?.text.as_str()))
        })
        .collect();
    let mut directives = directives(turn).into_iter().peekable();

    let mut script = Script::default();
    let mut delay = Duration::ZERO;
    let mut breaks = false;
    let mut done = results.len();
    while let Some(directive) = directives.next() {
        let is_done = done > 0;
        match directive {
            Directive::Tool { name, arguments } => {
                let mut calls = vec![(name, arguments)];
                while let Some(Directive::Tool { name, arguments }) =
                    directives.next_if(|next| matches!(next, Directive::Tool { .. }))
                {
                    calls.push((name, arguments));
                }
                if is_done {
                    done = done.saturating_sub(calls.len());
                    (script.reported, script.stop, breaks) = (Reported::new(), None, false);
                } else {
                    script.calls = calls;
                    break;
                }
            }
            Directive::Wait(wait) if !is_done => tokio::time::sleep(wait).await,
            Directive::Delay(pause) => delay = pause,
            Directive::Fail { how, times } if !is_done && attempt <= times => match how {
                Failure::Status(status) => return Err(Broken::status(status, "", None)),
                Failure::Timeout => return Err(Broken::timeout("asked to")),
                Failure::Stream => breaks = true,
            },
            Directive::Wait(_) | Directive::Fail { .. } => {}
            Directive::Reply(reply) => script.reply = Some(reply),
            Directive::Usage(reported) => script.reported = reported,
            Directive::Stop(stop) => script.stop = Some(stop),
            Directive::Text(text) if text.is_empty() => {}
            Directive::Text(text) => script.texts.push(text),
        }
    }

    let reply = match (&script.reply, script.calls.is_empty()) {
        (_, false) => String::new(),
        (Some(reply), true) => reply.clone(),
        (None, true) => match &prompt.output {
            Some(output) => smallest(output.schema(), output.schema(), 0, &mut MAX_VALUES.clone()).to_string(),
            None => default_reply(&script.texts, &results),
        },
    };
    let (reply, cut) = cut(&reply, prompt.max_output_tokens);
    speak(reply, delay, breaks, draft, on).await?;
    for (index, (name, arguments)) in script.calls.iter().enumerate() {
        draft.tool_call(index, "", name, arguments, on)?;
    }
    draft.usage = Some(usage(prompt, reply, &script.reported));
    draft.stop = Some(match script.stop {
        Some(stop) => stop,
        None if cut => StopReason::MaxTokens,
        None if !script.calls.is_empty() => StopReason::ToolUse,
        None => StopReason::EndTurn,
    });
    Ok(())
}

fn directives(turn: &[Message]) -> Vec<Directive> {
    let asked = turn.iter().filter(|message| message.role == Role::User);
    asked.flat_map(|message| message.text.lines()).map(Directive::parse).collect()
}

fn default_reply(texts: &[String], results: &[(&str, &str)]) -> String {
    let mut reply = format!("Demo reply: {}", texts.join(" "));
    if !results.is_empty() {
        let shown: Vec<String> = results
            .iter()
            .map(|(name, result)| format!("{name}={}", result.chars().take(200).collect::<String>()))
            .collect();
        reply = format!("{reply} [tools: {}]", shown.join(", "));
    }
    reply
}

/// The smallest value that satisfies a schema, as far as its usual keywords go.
fn smallest(schema: &Value, root: &Value, depth: usize, left: &mut usize) -> Value {
    if depth > 32 || *left == 0 {
        return Value::Null;
    }
    *left -= 1;
    let mut of = |schema: &Value| smallest(schema, root, depth + 1, left);
    if let Some(target) = schema.get("$ref").and_then(Value::as_str) {
        return target.strip_prefix('#').and_then(|path| root.pointer(path)).map_or(Value::Null, of);
    }
    if let Some(value) = schema.get("const").or_else(|| schema.get("enum").and_then(|all| all.get(0))) {
        return value.clone();
    }
    if let Some(choice) = ["anyOf", "oneOf", "allOf"].iter().find_map(|name| schema.get(*name)?.get(0)) {
        return of(choice);
    }
    let number = |name: &str| schema.get(name).and_then(Value::as_u64).unwrap_or(0);
    let kind = schema.get("type").map(|kind| kind.get(0).unwrap_or(kind)).and_then(Value::as_str);
    match kind {
        Some("object") => {
            let mut object = serde_json::Map::new();
            let required = schema.get("required").and_then(Value::as_array).into_iter().flatten();
            for name in required.filter_map(Value::as_str) {
                let field = schema.get("properties").and_then(|all| all.get(name)).unwrap_or(&Value::Null);
                object.insert(name.to_owned(), of(field));
            }
            Value::Object(object)
        }
        Some("array") => {
            let items = schema.get("items").unwrap_or(&Value::Null);
            Value::Array((0..number("minItems").min(100)).map(|_| of(items)).collect())
        }
        Some("string") => Value::String("x".repeat(usize::try_from(number("minLength").min(1000)).unwrap_or(0))),
        Some("integer" | "number") => schema.get("minimum").cloned().unwrap_or_else(|| match schema.get("maximum") {
            Some(most) if most.as_f64().is_some_and(|most| most < 0.0) => most.clone(),
            _ => json!(number("exclusiveMinimum") + u64::from(schema.get("exclusiveMinimum").is_some())),
        }),
        Some("boolean") => Value::Bool(false),
        _ => Value::Null,
    }
}

fn cut(reply: &str, most: Option<u64>) -> (&str, bool) {
    let Some(most) = most.and_then(|most| usize::try_from(most).ok()) else { return (reply, false) };
    let end = reply.split_inclusive(' ').take(most).map(str::len).sum();
    (reply[..end].trim_end(), end < reply.len())
}

/// Says the reply word by word; `breaks` ends it after five.
async fn speak(reply: &str, delay: Duration, breaks: bool, draft: &mut Draft, on: &mut On<'_>) -> Result<(), Broken> {
    for (count, word) in reply.split_inclusive(' ').enumerate() {
        if breaks && count == 5 {
            return Err(Broken::protocol("the stream broke off"));
        }
        if count > 0 && !delay.is_zero() {
            tokio::time::sleep(delay).await;
        } else if count % 64 == 63 {
            tokio::task::yield_now().await;
        }
        draft.text(word, on)?;
    }
    if breaks { Err(Broken::protocol("the stream broke off")) } else { Ok(()) }
}

fn usage(prompt: &Prompt, reply: &str, reported: &Reported) -> Usage {
    let asked = count(&prompt.system) + prompt.messages.iter().map(|message| count(&message.text)).sum::<u64>();
    let of = |name: &str, otherwise: u64| reported.get(name).map_or(otherwise, |value| tokens(Some(value)));
    Usage {
        input_tokens: of("inputTokens", asked.max(1)),
        output_tokens: of("outputTokens", count(reply).max(1)),
        input_cached_tokens: of("inputCachedTokens", 0),
        input_cache_write_tokens: of("inputCacheWriteTokens", 0),
        output_cached_tokens: of("outputCachedTokens", 0),
        reasoning_output_tokens: of("reasoningOutputTokens", 0),
        total_tokens: 0,
    }
    .normalised()
}
