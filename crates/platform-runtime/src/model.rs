use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use platform_core::{AccountId, Code, Error, Id, Money, Result, sha256_hex};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tracing::Instrument;
use utoipa::ToSchema;

use crate::{Cost, OutputSchema, Refusal, Usage, trace};

/// The port to what models there are: asking about them costs nothing.
pub trait Catalog: Send + Sync {
    /// The model to use (contract 18 §2); neither given means the server's default.
    /// `PROVIDER_NOT_CONFIGURED` or `MODEL_NOT_SUPPORTED` when there is none such.
    fn choose(&self, provider: Option<&str>, llm: Option<&str>) -> Result<ModelSpec>;

    /// Tokens of a text as this model counts them, or about so: four bytes a token.
    fn count(&self, _model: &ModelSpec, text: &str) -> u64 {
        text.len().div_ceil(4) as u64
    }

    /// The model that turns texts into vectors; `None` when none is configured.
    fn embedder(&self) -> Option<ModelSpec> {
        None
    }

    /// Names the vectors that the embedder makes: those of another name cannot be compared with them.
    fn embedding_space(&self) -> Option<String> {
        self.embedder().map(|spec| format!("{}:{}", spec.provider, spec.llm))
    }

    /// The model that turns recordings into text; `None` when none is configured.
    fn transcriber(&self) -> Option<ModelSpec> {
        None
    }

    /// What a recording of so long costs.
    fn transcription_cost(&self, _duration: Duration) -> Money {
        Money::ZERO
    }

    /// The model that serves an operation as a secondary call of `own` (contract 18 §1).
    fn helper(&self, _operation: Operation, own: &ModelSpec) -> ModelSpec {
        own.clone()
    }
}

/// The port to language models: stream one completion. Who pays is settled: a [`Budget`](crate::Budget) gave it.
#[async_trait]
pub trait Model: Send + Sync {
    /// What models there are.
    fn catalog(&self) -> &dyn Catalog;

    /// The same for the calls of one account, which share its part of what there is for all.
    fn of(self: Arc<Self>, account: &AccountId) -> Arc<dyn Model>;

    /// Streams one completion. `on` is called for each piece as it comes; the answer holds the whole.
    /// Dropping the future closes the upstream connection.
    async fn answer(
        &self,
        prompt: &Prompt,
        on: &mut (dyn for<'d> FnMut(Delta<'d>) + Send),
    ) -> std::result::Result<Answer, Fault>;

    /// Turns texts into vectors of length 1, in their order, by the [`embedder`](Catalog::embedder).
    async fn embed(&self, _texts: &[String]) -> std::result::Result<Embedding, Fault> {
        Err(Fault::of(FaultCode::BadRequest, "No embedding model is configured.", &"".into()))
    }

    /// Turns a recording into text, by the [`transcriber`](Catalog::transcriber).
    async fn transcribe(&self, _audio: &Audio) -> std::result::Result<Transcription, Fault> {
        Err(Fault::of(FaultCode::BadRequest, "No speech engine is configured.", &"".into()))
    }
}

/// A recording.
#[derive(Debug, Clone)]
pub struct Audio {
    /// File name, whose extension says what it is.
    pub name: String,
    /// Media type.
    pub media_type: String,
    /// The content.
    pub bytes: Bytes,
    /// How long it is, where its container says.
    pub duration: Option<Duration>,
    /// ISO 639-1 code of what is spoken, where that is known.
    pub language: Option<String>,
}

/// What is said in a recording.
#[derive(Debug, Clone)]
pub struct Transcription {
    /// All of it.
    pub text: String,
    /// ISO 639-1 code of what is spoken, where the model says.
    pub language: Option<String>,
    /// How long the recording is.
    pub duration: Option<Duration>,
    /// The same in parts.
    pub segments: Vec<Segment>,
    /// What it took.
    pub usage: Usage,
    /// The price of that at the moment of the call.
    pub cost: Cost,
}

/// What is said at one time of a recording.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    /// Where it begins.
    pub start: Duration,
    /// Where it ends.
    pub end: Duration,
    /// What is said.
    pub text: String,
}

/// Vectors of some texts.
#[derive(Debug, Clone)]
pub struct Embedding {
    /// One of each text; all have the same number of dimensions.
    pub vectors: Vec<Vec<f32>>,
    /// What it took.
    pub usage: Usage,
    /// The price of that at the moment of the call.
    pub cost: Cost,
}

/// What a secondary call took.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SecondaryCall {
    /// What it was for.
    pub operation: Operation,
    /// Tokens.
    pub usage: Usage,
    /// Their price.
    pub cost: Cost,
}

impl SecondaryCall {
    /// What an answer took.
    pub fn of(operation: Operation, answer: &Answer) -> Self {
        Self { operation, usage: answer.usage, cost: answer.cost }
    }
}

impl From<&Embedding> for SecondaryCall {
    fn from(embedding: &Embedding) -> Self {
        Self { operation: Operation::Embedding, usage: embedding.usage, cost: embedding.cost }
    }
}

/// A model secondary call; counted as secondary usage under its name (contract 00 §13).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are the contract's")]
pub enum Operation {
    Title,
    Summary,
    Compaction,
    Guardrail,
    Evaluation,
    Embedding,
    Transcription,
}

impl Operation {
    /// The name on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Title => "title",
            Self::Summary => "summary",
            Self::Compaction => "compaction",
            Self::Guardrail => "guardrail",
            Self::Evaluation => "evaluation",
            Self::Embedding => "embedding",
            Self::Transcription => "transcription",
        }
    }
}

/// Asks `spec` one question in a secondary call: `system` says what to do with `text`.
pub async fn ask(
    model: &dyn Model,
    operation: Operation,
    spec: ModelSpec,
    system: &str,
    text: String,
) -> std::result::Result<Answer, Fault> {
    let prompt = Prompt {
        operation: Some(operation),
        system: system.to_owned(),
        messages: vec![Message::user(text)],
        ..Prompt::new(spec)
    };
    answer(model, &prompt, &mut |_| {}).await
}

/// Vectors of texts, or a failure within a few seconds: whoever asks can do without.
pub async fn embed_soon(model: &dyn Model, texts: &[String]) -> std::result::Result<Embedding, Fault> {
    const EMBED_TIMEOUT: Duration = Duration::from_secs(3);
    let late = |_| Fault::of(FaultCode::Timeout, "The embedding model took too long.", &"".into());
    tokio::time::timeout(EMBED_TIMEOUT, model.embed(texts)).await.map_err(late)?
}

/// Asks a model, under a span of its own.
pub(crate) async fn answer(
    model: &dyn Model,
    prompt: &Prompt,
    on: &mut (dyn for<'d> FnMut(Delta<'d>) + Send),
) -> std::result::Result<Answer, Fault> {
    let span = trace::model_call(prompt);
    let outcome = model.answer(prompt, on).instrument(span.clone()).await;
    trace::answered(&span, &outcome);
    outcome
}

/// A model as it can be used now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelSpec {
    /// Provider name.
    pub provider: Arc<str>,
    /// Model name within the provider.
    pub llm: Arc<str>,
    /// Tokens that fit into one call, prompt and answer together.
    pub context_window: u64,
    /// Longest answer in tokens.
    pub max_output_tokens: u64,
    /// US dollars per million tokens.
    pub prices: Prices,
    /// What it can do.
    pub capabilities: Capabilities,
}

/// US dollars per million tokens, by component.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Prices {
    /// Prompt tokens.
    pub input: Money,
    /// Answer tokens.
    pub output: Money,
    /// Cached prompt tokens.
    pub cached_input: Money,
    /// Prompt tokens written to the cache.
    pub cache_write: Money,
}

/// What a model can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
#[expect(clippy::struct_excessive_bools, reason = "the wire has four flags")]
pub struct Capabilities {
    /// Takes tool definitions.
    pub tools: bool,
    /// Takes images.
    pub vision: bool,
    /// Streams its answer.
    pub streaming: bool,
    /// Reasons before it answers.
    pub reasoning: bool,
}

impl Default for Capabilities {
    fn default() -> Self {
        Self { tools: true, vision: false, streaming: true, reasoning: false }
    }
}

/// Everything one completion needs.
#[derive(Debug, Clone)]
pub struct Prompt {
    /// Whom to ask.
    pub model: ModelSpec,
    /// Whom to ask when that fails, in order.
    pub fallbacks: Vec<ModelSpec>,
    /// The system text; may be empty.
    pub system: String,
    /// The conversation, oldest first.
    pub messages: Vec<Message>,
    /// Index in `messages` of the first one of this turn.
    pub turn: usize,
    /// Tools the model may call.
    pub tools: Vec<Tool>,
    /// Sampling temperature, when set.
    pub temperature: Option<f64>,
    /// Nucleus sampling, when set.
    pub top_p: Option<f64>,
    /// Longest answer in tokens, when set.
    pub max_output_tokens: Option<u64>,
    /// `low`, `medium` or `high`, when set.
    pub reasoning_effort: Option<String>,
    /// What the final answer must satisfy.
    pub output: Option<Arc<OutputSchema>>,
    /// What a secondary call is for.
    pub operation: Option<Operation>,
}

impl Prompt {
    /// An empty prompt for a model.
    pub fn new(model: ModelSpec) -> Self {
        Self {
            model,
            fallbacks: Vec::new(),
            system: String::new(),
            messages: Vec::new(),
            turn: 0,
            tools: Vec::new(),
            temperature: None,
            top_p: None,
            max_output_tokens: None,
            reasoning_effort: None,
            output: None,
            operation: None,
        }
    }
}

/// One message of the conversation, as the model sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Who speaks.
    pub role: Role,
    /// What is said; of a tool, its result.
    pub text: String,
    /// Calls an assistant message makes.
    pub tool_calls: Vec<ToolCall>,
    /// The call a tool message answers.
    pub tool_call_id: Option<String>,
    /// Pictures and documents that come with it.
    pub files: Vec<Attachment>,
}

impl Message {
    /// A message that is text alone.
    pub fn text(role: Role, text: impl Into<String>) -> Self {
        Self { role, text: text.into(), tool_calls: Vec::new(), tool_call_id: None, files: Vec::new() }
    }

    /// A message of the user.
    pub fn user(text: impl Into<String>) -> Self {
        Self::text(Role::User, text)
    }

    /// What the server tells the model.
    pub fn developer(text: impl Into<String>) -> Self {
        Self::text(Role::Developer, text)
    }
}

/// A file as a model gets it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attachment {
    /// File name.
    pub name: String,
    /// Media type, as `image/png` or `application/pdf`.
    pub media_type: String,
    /// The content.
    pub bytes: Bytes,
    /// What it says, where the content is no text.
    pub text: Option<String>,
}

/// Who speaks (contract 00 §12).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[expect(missing_docs, reason = "the names are the wire's")]
pub enum Role {
    User,
    Assistant,
    Developer,
    System,
    Tool,
}

impl Role {
    /// The name on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Assistant => "assistant",
            Self::Developer => "developer",
            Self::System => "system",
            Self::Tool => "tool",
        }
    }
}

/// A tool the model may call.
#[derive(Debug, Clone, PartialEq)]
pub struct Tool {
    /// Function name.
    pub name: String,
    /// What it does, for the model.
    pub description: String,
    /// JSON Schema of its arguments.
    pub parameters: Arc<Value>,
}

/// A call of a tool, in the wire form of a chat message (specification, chat message).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ToolCall {
    /// Id the result refers to.
    pub id: String,
    /// Always `function`.
    pub r#type: String,
    /// What is called.
    pub function: ToolFunction,
}

impl ToolCall {
    /// An id that no other call has: results and repeated requests are told apart by it.
    pub fn new_id() -> String {
        format!("call_{}", Id::<Self>::generate().as_str().replace('-', ""))
    }

    /// The id of a call that is told apart from others by something else.
    pub fn id_of(what: &str) -> String {
        format!("call_{}", &sha256_hex(what)[..32])
    }
}

/// Name and arguments of a tool call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ToolFunction {
    /// Name of the tool.
    pub name: String,
    /// Arguments as JSON text.
    pub arguments: String,
}

/// A piece of an answer as it comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delta<'a> {
    /// More text.
    Text(&'a str),
    /// More of the tool call at `index`; id and name come with its first piece.
    ToolCall {
        /// Position in the answer.
        index: usize,
        /// Id, with the first piece.
        id: &'a str,
        /// Function name, with the first piece.
        name: &'a str,
        /// More of the JSON text of the arguments.
        arguments: &'a str,
    },
}

/// Why a model stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopReason {
    /// It was done.
    EndTurn,
    /// The answer reached its longest length.
    MaxTokens,
    /// It wants tool results.
    ToolUse,
    /// The provider held text back.
    ContentFilter,
}

impl StopReason {
    /// The name on the wire (contract 02 §4).
    pub fn as_str(self) -> &'static str {
        match self {
            Self::EndTurn => "end_turn",
            Self::MaxTokens => "max_tokens",
            Self::ToolUse => "tool_use",
            Self::ContentFilter => "content_filter",
        }
    }
}

/// One whole completion.
#[derive(Debug, Clone)]
pub struct Answer {
    /// Its text, may be empty.
    pub text: String,
    /// The calls it makes.
    pub tool_calls: Vec<ToolCall>,
    /// Why it ended.
    pub stop: StopReason,
    /// Tokens by the counting rule.
    pub usage: Usage,
    /// Their price at the moment of the call.
    pub cost: Cost,
    /// Who answered, which may be a fall-back.
    pub model: ModelSpec,
    /// From the call to its end.
    pub latency: Duration,
}

/// A model call that failed for good.
#[derive(Debug, Clone)]
pub struct Fault {
    /// What kind of failure.
    pub code: FaultCode,
    /// One sentence, fit for a client.
    pub message: String,
    /// The provider that failed last.
    pub provider: Arc<str>,
    /// Its HTTP status, when there was one.
    pub status: Option<u16>,
    /// What it had said before it broke off.
    pub partial: Option<Box<Answer>>,
    /// The provider asks to be left alone for so long.
    pub retry_after: Option<Duration>,
    /// The quota that had no room for the call.
    pub refusal: Option<Box<Refusal>>,
}

impl Fault {
    /// A failure that is no provider's answer.
    pub fn of(code: FaultCode, message: impl Into<String>, provider: &Arc<str>) -> Self {
        let (message, provider) = (message.into(), Arc::clone(provider));
        Self { code, message, provider, status: None, partial: None, retry_after: None, refusal: None }
    }

    /// No quota was left for the call.
    pub fn refused(refusal: Refusal, provider: &Arc<str>) -> Self {
        let fault = Self::of(FaultCode::LimitExceeded, refusal.message.clone(), provider);
        Self { refusal: Some(Box::new(refusal)), ..fault }
    }
}

/// A failure as whoever asked is told: 429 where no quota was left, else the provider's side of it (contract 18 §3.7).
impl From<&Fault> for Error {
    fn from(fault: &Fault) -> Self {
        if let Some(refusal) = &fault.refusal {
            return Self::from(&**refusal);
        }
        let code = if fault.code == FaultCode::Timeout { Code::UPSTREAM_TIMEOUT } else { Code::UPSTREAM_ERROR };
        Self::new(code, fault.message.as_str())
            .with("code", fault.code.as_str())
            .with("provider", &*fault.provider)
            .with_some("status", fault.status)
    }
}

/// Kinds of provider failures (contract 18 §3.7).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are the contract's")]
pub enum FaultCode {
    RateLimited,
    Auth,
    BadRequest,
    ContextTooLong,
    ContentFilter,
    Unavailable,
    Protocol,
    StructuredOutputInvalid,
    EmptyContent,
    Timeout,
    LimitExceeded,
}

impl FaultCode {
    /// The name on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::RateLimited => "RATE_LIMITED",
            Self::Auth => "AUTH",
            Self::BadRequest => "BAD_REQUEST",
            Self::ContextTooLong => "CONTEXT_TOO_LONG",
            Self::ContentFilter => "CONTENT_FILTER",
            Self::Unavailable => "UNAVAILABLE",
            Self::Protocol => "PROTOCOL",
            Self::StructuredOutputInvalid => "STRUCTURED_OUTPUT_INVALID",
            Self::EmptyContent => "EMPTY_CONTENT_RETRIES_EXHAUSTED",
            Self::Timeout => "TIMEOUT",
            Self::LimitExceeded => "TENANT_LIMIT_EXCEEDED",
        }
    }
}
