use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use platform_core::{AccountId, Clock, Code, Error, Object, Result};
use platform_db::Db;
use platform_guardrails::Finding;
use platform_jobs::{Jobs, Run, Work};
use platform_realtime::{Key, Realtime};
use platform_runtime::{Fault, Model, OpenCall, Toolbox};
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::{
    compact::Compaction,
    course::Course,
    finish::Finisher,
    message::{ClientTool, StoredJson, TokenUsage},
    queue::{TakenIn, take_in},
};
use crate::{
    assistant::{Assistant, AssistantService},
    chat::repository::{self, Status},
};

/// Kind of the runs that are turns of a chat.
pub(crate) const KIND: &str = "chat";

/// What a turn must know beyond its chat; stored with the run, or with the message while it waits.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct TurnRequest {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub application_state: Option<Object>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub skip_summarization: bool,
    /// Of the assistant's tools, those that the turn may use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled_tools: Option<Vec<String>>,
    /// Tools that the client runs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<ClientTool>,
    pub user_uid: String,
    /// What the input rules found as its messages arrived.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub findings: Vec<Finding>,
    /// An input rule blocks the turn.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub blocked: bool,
}

impl TurnRequest {
    /// One turn for many messages: what the last one wants, what was found in any; `None` without messages.
    pub fn joined(requests: Vec<Self>) -> Option<Self> {
        requests.into_iter().reduce(|earlier, last| Self {
            findings: earlier.findings.into_iter().chain(last.findings).collect(),
            blocked: earlier.blocked || last.blocked,
            ..last
        })
    }
}

/// How a turn ended, for whoever waits for it.
#[derive(Debug)]
pub(crate) enum TurnOutcome {
    /// Its messages after the user's.
    Done(Vec<StoredJson>),
    /// The model failed.
    Failed(Fault),
}

/// Carries out turns of chats.
pub(crate) struct Turns {
    pub db: Db,
    pub clock: Arc<dyn Clock>,
    pub jobs: Arc<Jobs>,
    pub model: Arc<dyn Model>,
    pub realtime: Arc<Realtime>,
    pub assistants: Arc<dyn AssistantService>,
    pub toolbox: Arc<dyn Toolbox>,
    pub finisher: Finisher,
    pub max_attempts: i32,
    /// How long a turn waits for the client's tools and approvals.
    pub client_tool_timeout: Duration,
}

/// The chat as the turn finds it.
#[derive(Debug, Clone)]
pub(crate) struct TurnChat {
    pub uid: String,
    pub assistant: String,
    /// As it was found: a turn that waited goes on late.
    pub status: Status,
    /// Calls of the newest answer without a result.
    pub open: Vec<OpenCall>,
    pub revision: i64,
    pub message_count: i32,
    pub turn_start: i32,
    pub usage: TokenUsage,
    pub metadata: Object,
    /// Its title is final.
    pub named: bool,
    /// JSON text of what guardrails found in the last turns.
    pub guardrails: Option<String>,
    pub compactions: Vec<Compaction>,
}

impl TurnChat {
    /// The turn has no messages yet: they are in the queue.
    fn awaits_messages(&self) -> bool {
        self.status == Status::Buffering || self.turn_start == self.message_count
    }

    /// Position of the first message that no summary stands for.
    pub fn compacted_to(&self) -> i32 {
        self.compactions.iter().map(|compaction| compaction.compacted_message_count).sum()
    }
}

/// A turn that starts where it was accepted: what is known need not be read again.
pub(crate) struct Warm {
    pub turns: Arc<Turns>,
    pub assistant: Arc<Assistant>,
    pub request: TurnRequest,
    pub start: Mutex<Option<WarmStart>>,
}

pub(crate) struct WarmStart {
    pub chat: TurnChat,
    /// All messages of the chat, when it is new.
    pub messages: Option<Vec<String>>,
    pub waiter: oneshot::Sender<TurnOutcome>,
}

#[async_trait]
impl Work for Warm {
    fn kind(&self) -> &'static str {
        KIND
    }

    async fn work(&self, run: &Run, stop: &CancellationToken) -> Result<()> {
        let Some(start) = self.start.lock().expect("lock").take() else { return Ok(()) };
        let course = Course::new(&self.turns, run, start.chat, &self.request, Some(start.waiter));
        course.work(&self.assistant, start.messages, stop).await
    }
}

#[async_trait]
impl Work for Turns {
    fn kind(&self) -> &'static str {
        KIND
    }

    async fn work(&self, run: &Run, stop: &CancellationToken) -> Result<()> {
        let account = run.account();
        let conn = self.db.read().await?;
        let Some(mut chat) = repository::turn_chat(conn.get(), &account, &run.subject).await? else {
            // Nothing is left to answer.
            platform_jobs::cancel_in(&mut *self.db.conn().await?, &account, KIND, &run.subject).await?;
            return Ok(());
        };
        let mut request: TurnRequest = serde_json::from_value(run.payload.clone()).map_err(Error::internal)?;
        if chat.awaits_messages() {
            match take_in(&self.db, run, self.clock.now()).await? {
                TakenIn::Lost => return Ok(()),
                TakenIn::Nothing => return Course::new(self, run, chat, &request, None).end_empty().await,
                TakenIn::Turn(turn) => (chat, request) = *turn,
            }
        }
        let name = chat.assistant.clone();
        let course = Course::new(self, run, chat, &request, None);
        if run.attempt > self.max_attempts {
            return course.give_up("WORKER_LOST", "The worker of this turn was lost too often.").await;
        }
        match self.assistants.get(&account, &name).await {
            Ok(assistant) => course.work(&assistant, None, stop).await,
            Err(error) if error.code() == Code::AssistantNotFound => course.end_empty().await,
            Err(error) => Err(error),
        }
    }
}

/// Under which a chat is shown: with its assistant, so that it is found under no other.
pub(crate) fn live_key(account: &AccountId, assistant: &str, uid: &str) -> Key {
    (account.clone(), format!("{assistant}/{uid}").into())
}
