use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use platform_conversation::{Conversation, Ports, StoredJson, SubAgentLauncher, TurnRequest};
use platform_core::{AccountId, Error, Result};
use platform_jobs::{Jobs, Run, Work};
use platform_realtime::Key;
use platform_runtime::{Fault, Payer, Spender, UsageLedger};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::{
    finish::Finisher,
    queue::{Dequeued, dequeue, gather},
    runner::{ChatTurnStore, TurnRunner},
};
use crate::{
    assistant::{Assistant, AssistantService},
    chat::repository::{self, Status},
    code,
};

/// Kind of the runs that are turns of a chat.
pub(crate) const KIND: &str = "chat";

/// How a turn ended, for whoever waits for it.
#[derive(Debug)]
pub(crate) enum TurnOutcome {
    /// Its messages after the user's.
    Done(Vec<StoredJson>),
    /// It goes on when a sub-agent has ended.
    HandedOff,
    /// The model failed.
    Failed(Fault),
}

/// Carries out turns of chats.
pub(crate) struct Turns {
    pub ports: Ports,
    /// To whom work is handed.
    pub hand_offs: Arc<dyn SubAgentLauncher>,
    pub jobs: Arc<Jobs>,
    pub assistants: Arc<dyn AssistantService>,
    pub finisher: Finisher,
    pub max_attempts: i32,
    /// How long a turn waits for the client's tools and approvals.
    pub client_tool_timeout: Duration,
}

/// The chat as the turn finds it.
#[derive(Debug, Clone)]
pub(crate) struct TurnChat {
    pub conversation: Conversation,
    pub assistant: String,
    /// As it was found: a turn that waited goes on late.
    pub status: Status,
    /// Its title is final.
    pub named: bool,
}

impl TurnChat {
    /// The turn has no messages yet: they are in the queue.
    fn awaits_messages(&self) -> bool {
        self.status == Status::Buffering || self.conversation.turn_start == self.conversation.message_count
    }

    /// Its calls are charged to this assistant.
    fn pay_as(&mut self, assistant: &Assistant) {
        let whose = &mut self.conversation.payer;
        *whose = payer(&whose.account, assistant, whose.tenant_id.take(), whose.subtenant_id.take());
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
    /// Where what was reserved for its first call stands.
    pub ledger: Arc<UsageLedger>,
}

/// Who pays for the calls of a chat.
pub(crate) fn payer(
    account: &AccountId,
    assistant: &Assistant,
    tenant_id: Option<String>,
    subtenant_id: Option<String>,
) -> Payer {
    let (identifier, id) = (assistant.identifier.clone(), assistant.id.clone());
    let (project_id, spender) = (assistant.settings().project_id.clone(), Spender::Assistant { identifier, id });
    Payer { account: account.clone(), tenant_id, subtenant_id, project_id, spender }
}

#[async_trait]
impl Work for Warm {
    fn kind(&self) -> &'static str {
        KIND
    }

    async fn work(&self, run: &Run, stop: &CancellationToken) -> Result<()> {
        let Some(start) = self.start.lock().expect("lock").take() else { return Ok(()) };
        let turn_store = ChatTurnStore { turns: &self.turns, run };
        let runner = TurnRunner::new(&turn_store, &start.chat, &self.request, Some(start.waiter), start.ledger);
        runner.work(&self.assistant, start.messages, stop).await
    }
}

#[async_trait]
impl Work for Turns {
    fn kind(&self) -> &'static str {
        KIND
    }

    async fn work(&self, run: &Run, stop: &CancellationToken) -> Result<()> {
        let account = run.account();
        let conn = self.ports.db.read().await?;
        let Some(mut chat) = repository::turn_chat(conn.get(), &account, &run.subject).await? else {
            // Nothing is left to answer.
            platform_jobs::end(&self.ports.db, run).await?;
            return Ok(());
        };
        let assistant = self.assistants.get(&account, &chat.assistant).await;
        if let Ok(assistant) = &assistant {
            chat.pay_as(assistant);
        }
        let mut request: TurnRequest = serde_json::from_value(run.payload.clone()).map_err(Error::internal)?;
        let turn_store = ChatTurnStore { turns: self, run };
        if chat.awaits_messages() {
            if assistant.is_ok()
                && let Some(refusal) = self.ports.budget.spent(&chat.conversation.payer).await?
            {
                if chat.status == Status::Buffering {
                    gather(&self.ports.db, run).await?;
                }
                let runner = TurnRunner::new(&turn_store, &chat, &request, None, Arc::default());
                return runner.wait_for_quota(&refusal).await;
            }
            match dequeue(&self.ports.db, run, self.ports.clock.now()).await? {
                Dequeued::Lost => return Ok(()),
                Dequeued::Nothing => {
                    return TurnRunner::new(&turn_store, &chat, &request, None, Arc::default()).end_empty().await;
                }
                Dequeued::Turn(turn) => (chat, request) = *turn,
            }
        }
        if let Ok(assistant) = &assistant {
            chat.pay_as(assistant);
        }
        let runner = TurnRunner::new(&turn_store, &chat, &request, None, Arc::default());
        if run.attempt > self.max_attempts {
            return runner.give_up("WORKER_LOST", "The worker of this turn was lost too often.").await;
        }
        match assistant {
            Ok(assistant) => runner.work(&assistant, None, stop).await,
            Err(error) if error.code() == code::ASSISTANT_NOT_FOUND => runner.end_empty().await,
            Err(error) => Err(error),
        }
    }
}

/// Under which a chat is shown: with its assistant, so that it is found under no other.
pub(crate) fn live_key(account: &AccountId, assistant: &str, uid: &str) -> Key {
    (account.clone(), format!("{assistant}/{uid}").into())
}
