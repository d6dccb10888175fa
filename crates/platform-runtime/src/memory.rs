use std::sync::Arc;

use async_trait::async_trait;
use platform_core::{AccountId, Error, Object, Result, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::{Value, value::RawValue};

use crate::{Payer, SecondaryCall};

/// The group of tools that remember and forget.
pub const MEMORY_TOOLS: &str = "builtin-memory";

/// Whose memory it is: an assistant's for a tenant, or for one of its end users.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct MemoryBucket {
    /// Id of the assistant.
    pub assistant_id: String,
    /// The tenant.
    pub tenant_id: String,
    /// The end user, where each has a memory of its own.
    pub subtenant_id: Option<String>,
    /// Each end user has one, and so has whoever is none.
    pub is_of_end_user: bool,
}

/// Memory of a turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TurnMemory {
    /// Whom the memory is of.
    pub bucket: MemoryBucket,
    /// What was said in earlier chats is looked up when a chat begins.
    pub recall: bool,
}

/// What is known of somebody, as it stands in the prompt; the same entries give the same text.
#[derive(Debug, Clone, PartialEq)]
pub struct CoreMemoryBlock {
    /// For the system prompt.
    pub text: String,
    /// 16 hex digits that change with the text.
    pub revision: String,
    /// What a chat notes of it: `"revision", "items", "entries", "omitted", "chars"` of a JSON object without its
    /// braces (contract 11).
    pub record: String,
}

/// What was found of earlier turns.
#[derive(Debug, Clone, Default)]
pub struct RecalledTurns {
    /// A text for the model; `None` when nothing was found.
    pub text: Option<String>,
    /// What a chat notes of it: the fields of a recalled memory that are not the chat's own (contract 11).
    pub record: Object,
    /// Chats that are long over could not be looked through.
    pub is_partial: bool,
    /// What it took to find it.
    pub asked: Vec<SecondaryCall>,
}

/// The port to what assistants remember of those they talk to.
#[async_trait]
pub trait Memory: Send + Sync {
    /// What is known of somebody; `None` when nothing is.
    async fn core(&self, account: &AccountId, bucket: &MemoryBucket) -> Result<Arc<Option<CoreMemoryBlock>>>;

    /// What was said in other chats of the bucket that is nearest to a question; `chat`: the one that asks, `source`:
    /// `conversation_start` or `search_memory`.
    async fn earlier(
        &self,
        bucket: &MemoryBucket,
        payer: &Payer,
        chat: &str,
        question: &str,
        source: &'static str,
    ) -> Result<RecalledTurns>;
}

/// Nothing is remembered.
#[async_trait]
impl Memory for () {
    async fn core(&self, _: &AccountId, _: &MemoryBucket) -> Result<Arc<Option<CoreMemoryBlock>>> {
        Ok(Arc::default())
    }

    async fn earlier(&self, _: &MemoryBucket, _: &Payer, _: &str, _: &str, _: &'static str) -> Result<RecalledTurns> {
        Ok(RecalledTurns::default())
    }
}

/// What the system prompt of a turn says of memory: the same until the turn ends, also after a wait.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryPrompt {
    /// Position of the first message of the turn.
    pub turn_start: i32,
    /// The core memory block.
    pub core: String,
    /// What was found of earlier chats; it stands behind that where there is room.
    pub earlier: String,
}

/// What a turn was told from memory, to be noted with its chat.
#[derive(Debug, Clone, Default, Serialize)]
pub struct ToldMemories {
    /// As it stands in the prompt, once that is made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt: Option<MemoryPrompt>,
    /// The block of its prompt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub core: Option<Box<RawValue>>,
    /// What was found of earlier chats.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub recalled: Vec<Object>,
}

impl ToldMemories {
    /// Notes the block of a prompt.
    pub fn note_core(&mut self, block: &CoreMemoryBlock, uid: &str, now: Timestamp) -> Result<()> {
        let record = format!(r#"{{"uid":"{uid}","timestampMs":{},{}}}"#, now.0, block.record);
        self.core = Some(RawValue::from_string(record).map_err(Error::internal)?);
        Ok(())
    }

    /// Notes what was found; `call`: for which call of a tool.
    pub fn note_recalled(
        &mut self,
        mut record: Object,
        uid: String,
        message: &str,
        call: Option<&str>,
        now: Timestamp,
    ) {
        record.insert("uid".to_owned(), uid.into());
        record.insert("messageUid".to_owned(), message.into());
        if let Some(call) = call {
            record.insert("toolCallId".to_owned(), call.into());
        }
        for empty in ["facts", "entities"] {
            record.insert(empty.to_owned(), Value::Array(Vec::new()));
        }
        record.insert("timestampMs".to_owned(), now.0.into());
        self.recalled.push(record);
    }

    /// It, to be noted with a turn that waits.
    pub fn at_wait(&mut self) -> Option<Self> {
        self.prompt.is_some().then(|| std::mem::take(self))
    }

    /// It, when anything was told, to be noted with the end of the turn, which needs no prompt any more.
    pub fn at_end(&mut self) -> Option<Self> {
        let told = std::mem::take(self);
        let said_something = told.prompt.is_some_and(|prompt| !(prompt.core + &prompt.earlier).is_empty());
        (said_something || !told.recalled.is_empty()).then_some(Self { prompt: None, ..told })
    }
}
