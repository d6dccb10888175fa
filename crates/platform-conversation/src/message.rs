use std::collections::BTreeMap;

use platform_core::{Checks, Error, FieldLimits, Id, Money, Object, Result, Timestamp};
use platform_runtime::{Answer, Cost, Role, SecondaryCall, ToolCall, Usage};
use serde::{Deserialize, Serialize, Serializer};
use serde_json::value::RawValue;
use utoipa::{PartialSchema, ToSchema};

/// An id for a message.
pub fn new_message_uid() -> String {
    Id::<ChatMessage>::generate().into()
}

/// What such an expression gives.
pub type TextsRead = Vec<Option<String>>;

/// A chat message as it is sent (contract 00 §12).
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct ChatMessage {
    /// Id of the message.
    pub uid: String,
    /// Its chat.
    #[serde(rename = "chatUid")]
    pub chat_uid: String,
    /// Who speaks.
    pub role: Role,
    /// What is said.
    pub content: MessageContent,
    /// When it was said.
    pub timestamp: Timestamp,
    /// The caller of the turn.
    #[serde(rename = "userUID")]
    pub user_uid: String,
    /// Name the caller gave.
    #[serde(rename = "userName", default, skip_serializing_if = "Option::is_none")]
    pub user_name: Option<String>,
    /// Short text of a long message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summary: Option<String>,
    /// Where the text comes from; absent = written by the model.
    #[serde(rename = "contentSource", default, skip_serializing_if = "Option::is_none")]
    pub content_source: Option<String>,
    /// The transcript of what was dictated.
    #[serde(rename = "transcriptId", default, skip_serializing_if = "Option::is_none")]
    pub transcript_id: Option<String>,
    /// Tools the model calls.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall>,
    /// The call this answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
    /// Time of the model, in milliseconds.
    #[serde(rename = "latencyMs", default, skip_serializing_if = "Option::is_none")]
    pub latency_ms: Option<u64>,
    /// Tokens of the answer; stored beside the message.
    #[serde(rename = "messageTokenUsage", default, skip_serializing_if = "Option::is_none")]
    pub message_token_usage: Option<Box<MessageUsage>>,
    /// What the answer cost; stored beside the message.
    #[serde(rename = "messageCost", default, skip_serializing_if = "Option::is_none")]
    pub message_cost: Option<Box<MessageCost>>,
}

impl ChatMessage {
    /// An empty message of the user.
    pub fn new(uid: String, chat_uid: &str, user_uid: &str, now: Timestamp) -> Self {
        Self {
            uid,
            chat_uid: chat_uid.to_owned(),
            role: Role::User,
            content: MessageContent::default(),
            timestamp: now,
            user_uid: user_uid.to_owned(),
            user_name: None,
            summary: None,
            content_source: None,
            transcript_id: None,
            tool_calls: Vec::new(),
            tool_call_id: None,
            latency_ms: None,
            message_token_usage: None,
            message_cost: None,
        }
    }
}

/// The JSON text of a message with another time.
pub fn restamped(body: &str, at: Timestamp) -> Result<String> {
    let message: ChatMessage = serde_json::from_str(body).map_err(Error::internal)?;
    serde_json::to_string(&ChatMessage { timestamp: at, ..message }).map_err(Error::internal)
}

/// What a message says.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
pub struct MessageContent {
    /// Text, may be empty.
    pub message: String,
    /// Structured content.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub data: Option<Object>,
    /// Files that come with it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<File>,
}

/// A file of a message; the address stands under both spellings.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", from = "GivenFile")]
pub struct File {
    /// File name.
    pub name: String,
    /// Where it is.
    pub download_url: String,
    /// The same, as the specification spells it.
    pub donwload_url: String,
    /// `image`, `document`, `audio`, `video` or `other`; absent until it is fetched when neither the stored file nor
    /// name or address say so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file_type: Option<String>,
}

/// A file that a client sends with a message: its address stands under one of three names.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct GivenFile {
    /// File name.
    name: String,
    /// Where it is.
    #[serde(default)]
    download_url: Option<String>,
    /// The same, as the specification spells it.
    #[serde(default)]
    donwload_url: Option<String>,
    /// Another name of the address.
    #[serde(default)]
    url: Option<String>,
    /// `image`, `document`, `audio`, `video` or `other`; found out when it is absent.
    #[serde(default)]
    file_type: Option<String>,
}

impl From<GivenFile> for File {
    fn from(given: GivenFile) -> Self {
        let url = given.download_url.or(given.donwload_url).or(given.url).unwrap_or_default();
        let file_type = given.file_type.map(|kind| kind.to_lowercase());
        Self { name: given.name, donwload_url: url.clone(), download_url: url, file_type }
    }
}

/// Every rule on the text and the files of a message.
pub fn check_message(checks: &mut Checks, message: Option<&str>, files: &[File], limits: &FieldLimits) {
    if message.is_none_or(str::is_empty) && files.is_empty() {
        checks.issue("message", "required", "message is required: say something, or attach files");
    }
    checks.bytes("message", message.map_or(0, str::len), limits.message_bytes);
    checks.count("files", files.len(), limits.files_per_message);
    for (i, file) in files.iter().enumerate() {
        checks.length(&format!("files[{i}].name"), &file.name, 1..=200);
        if file.download_url.is_empty() {
            checks.issue(&format!("files[{i}].downloadUrl"), "required", "a file needs its downloadUrl");
        }
        let kind = file.file_type.as_deref().unwrap_or("other");
        if !["image", "document", "audio", "video", "other"].contains(&kind) {
            let path = format!("files[{i}].fileType");
            checks.issue(&path, "enum", "fileType must be one of image, document, audio, video, other");
        }
    }
}

/// What a model answer took (contract 00 §13).
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Accounting {
    message_token_usage: MessageUsage,
    message_cost: MessageCost,
}

/// Tokens of one answer, and who counted them.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct MessageUsage {
    #[serde(flatten)]
    usage: Usage,
    /// Who was asked.
    provider: String,
    /// Which model.
    model: String,
}

/// What one answer cost.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct MessageCost {
    #[serde(flatten)]
    cost: Cost,
    /// Always `USD`.
    currency: String,
    /// When the cost was calculated.
    calculated_at: Timestamp,
}

impl Accounting {
    pub fn of(answer: &Answer, now: Timestamp) -> Self {
        let (provider, model) = (answer.model.provider.to_string(), answer.model.llm.to_string());
        Self {
            message_token_usage: MessageUsage { usage: answer.usage, provider, model },
            message_cost: MessageCost { cost: answer.cost, currency: "USD".to_owned(), calculated_at: now },
        }
    }
}

/// A message at its position, as it is stored.
#[derive(Debug, Clone, Serialize)]
pub struct MessageRow {
    /// From 0.
    pub position: i32,
    /// Its id.
    pub uid: String,
    /// Who speaks.
    pub role: &'static str,
    /// JSON text.
    pub body: String,
    /// JSON text of what it took.
    pub accounting: Option<String>,
    /// When it was said, in milliseconds of Unix time.
    pub created_ms: i64,
}

/// A result that is a JSON object of at most so many bytes stands in `data`, too.
const MAX_DATA: usize = 65_536;

impl MessageRow {
    /// A message at a position.
    pub fn new(position: i32, message: &ChatMessage, accounting: Option<String>) -> Result<Self> {
        Ok(Self {
            position,
            uid: message.uid.clone(),
            role: message.role.as_str(),
            body: serde_json::to_string(message).map_err(Error::internal)?,
            accounting,
            created_ms: message.timestamp.0,
        })
    }

    /// The result of a call that nothing more is done about.
    pub fn closed(
        user_uid: &str,
        chat_uid: &str,
        call: &ToolCall,
        code: &str,
        position: i32,
        now: Timestamp,
    ) -> Result<Self> {
        let text = serde_json::json!({"error": code}).to_string();
        tool_row(user_uid, chat_uid, call, &text, None, position, now)
    }

    /// The result of a call.
    pub fn result(
        user_uid: &str,
        chat_uid: &str,
        call: &ToolCall,
        value: &serde_json::Value,
        position: i32,
        now: Timestamp,
    ) -> Result<Self> {
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        tool_row(user_uid, chat_uid, call, &text, None, position, now)
    }

    /// The messages as they are shown.
    pub fn spoken(rows: &[Self]) -> Vec<StoredJson> {
        rows.iter().map(|row| StoredJson::message(row.body.clone(), row.accounting.as_deref())).collect()
    }
}

/// The row of a result.
pub(crate) fn tool_row(
    user_uid: &str,
    chat_uid: &str,
    call: &ToolCall,
    text: &str,
    latency_ms: Option<u64>,
    position: i32,
    now: Timestamp,
) -> Result<MessageRow> {
    let content = MessageContent {
        message: text.to_owned(),
        data: Some(text).filter(|text| text.len() <= MAX_DATA).and_then(|text| serde_json::from_str(text).ok()),
        files: Vec::new(),
    };
    let message = ChatMessage {
        role: Role::Tool,
        content,
        tool_call_id: Some(call.id.clone()),
        latency_ms,
        ..ChatMessage::new(new_message_uid(), chat_uid, user_uid, now)
    };
    MessageRow::new(position, &message, None)
}

/// JSON that is passed through as it was stored.
#[derive(Debug, Clone)]
pub struct StoredJson(Box<RawValue>);

impl AsRef<str> for StoredJson {
    fn as_ref(&self) -> &str {
        self.as_str()
    }
}

impl StoredJson {
    /// A message with what it took, as it is shown in chats.
    pub fn message(body: String, accounting: Option<&str>) -> Self {
        let text = match accounting {
            Some(accounting) if body.ends_with('}') => {
                format!("{},{}", &body[..body.len() - 1], &accounting[1..])
            }
            _ => body,
        };
        Self::from_text(text)
    }

    /// Messages and what they took, in the same order.
    pub fn messages(bodies: TextsRead, took: TextsRead) -> Vec<Self> {
        let message = |(body, took): (Option<String>, Option<String>)| Some(Self::message(body?, took.as_deref()));
        bodies.into_iter().zip(took).filter_map(message).collect()
    }

    /// What is JSON already.
    pub fn from_text(text: String) -> Self {
        Self(RawValue::from_string(text).unwrap_or_default())
    }

    /// The JSON.
    pub fn as_str(&self) -> &str {
        self.0.get()
    }

    /// Id and text of a model's message that may be long.
    pub fn long_answer(&self) -> Option<(String, String)> {
        const SHORT: usize = 1000;
        let message: ChatMessage = serde_json::from_str(Some(self.0.get()).filter(|json| json.len() > SHORT)?).ok()?;
        (message.role == Role::Assistant).then_some((message.uid, message.content.message))
    }
}

impl Serialize for StoredJson {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl PartialSchema for StoredJson {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::schema::Schema> {
        ChatMessage::schema()
    }
}

impl ToSchema for StoredJson {
    fn name() -> std::borrow::Cow<'static, str> {
        "ChatMessage".into()
    }
    fn schemas(schemas: &mut Vec<(String, utoipa::openapi::RefOr<utoipa::openapi::schema::Schema>)>) {
        ChatMessage::schemas(schemas);
    }
}

/// Money and tokens of a chat: sums over its model answers (contract 00 §13).
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TokenUsage {
    /// Model of the last call.
    pub model: String,
    /// Provider of the last call.
    pub provider: String,
    /// Sums of tokens.
    #[serde(flatten)]
    pub tokens: Usage,
    /// Cached tokens of both directions.
    pub total_cached_tokens: u64,
    /// Sums of costs.
    pub cost: Cost,
    /// Cost of titles, summaries and the like.
    pub secondary_cost: Money,
    /// Their prompt tokens.
    pub secondary_input_tokens: u64,
    /// Their answer tokens.
    pub secondary_output_tokens: u64,
    /// The same by operation.
    pub secondary_by_operation: BTreeMap<String, SecondaryUsage>,
    /// Moment whose prices were used last.
    pub pricing_timestamp: Timestamp,
}

/// What one kind of secondary call took.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SecondaryUsage {
    /// US dollars.
    pub cost: Money,
    /// Prompt tokens.
    pub input_tokens: u64,
    /// Answer tokens.
    pub output_tokens: u64,
    /// How many.
    pub calls: u64,
}

/// Secondary calls as they are added up in the store: `cost` in nano-dollars (`add_secondary`).
pub fn secondary(asked: &[SecondaryCall]) -> Object {
    let mut sums: BTreeMap<&str, [i64; 4]> = BTreeMap::new();
    let tokens = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
    for SecondaryCall { operation, usage, cost } in asked {
        let sum = sums.entry(operation.as_str()).or_default();
        let more = [cost.total_cost.nanos(), tokens(usage.input_tokens), tokens(usage.output_tokens), 1];
        sum.iter_mut().zip(more).for_each(|(sum, more)| *sum = sum.saturating_add(more));
    }
    let entry = |(operation, [cost, input, output, calls]): (&str, [i64; 4])| {
        let sums = serde_json::json!({"cost": cost, "inputTokens": input, "outputTokens": output, "calls": calls});
        (operation.to_owned(), sums)
    };
    sums.into_iter().map(entry).collect()
}

impl TokenUsage {
    /// Puts the stored sums of secondary calls in.
    #[must_use]
    pub fn with_secondary(mut self, stored: &Object) -> Self {
        for (operation, sums) in stored {
            let of = |name: &str| sums.get(name).and_then(serde_json::Value::as_i64).unwrap_or(0);
            let usage = SecondaryUsage {
                cost: Money::from_nanos(of("cost")),
                input_tokens: of("inputTokens").unsigned_abs(),
                output_tokens: of("outputTokens").unsigned_abs(),
                calls: of("calls").unsigned_abs(),
            };
            self.secondary_cost += usage.cost;
            self.secondary_input_tokens += usage.input_tokens;
            self.secondary_output_tokens += usage.output_tokens;
            self.secondary_by_operation.insert(operation.clone(), usage);
        }
        self
    }

    /// Adds an answer.
    pub fn add(&mut self, answer: &Answer, now: Timestamp) {
        self.model = answer.model.llm.to_string();
        self.provider = answer.model.provider.to_string();
        self.tokens += answer.usage;
        self.total_cached_tokens += answer.usage.total_cached_tokens();
        self.cost += answer.cost;
        self.pricing_timestamp = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_shows_its_address_under_both_spellings() {
        let file: File = serde_json::from_str(r#"{"name": "a", "url": "u", "donwloadUrl": "d", "fileType": "IMAGE"}"#)
            .expect("a file");
        assert_eq!(
            (file.download_url.as_str(), file.donwload_url.as_str(), file.file_type.as_deref()),
            ("d", "d", Some("image"))
        );
    }

    #[test]
    fn what_a_message_took_is_spliced_into_it() {
        let message = StoredJson::message(r#"{"uid":"m"}"#.to_owned(), Some(r#"{"messageCost":1}"#));
        assert_eq!(serde_json::to_string(&message).expect("json"), r#"{"uid":"m","messageCost":1}"#);
    }
}
