use std::sync::{Arc, Mutex};

use platform_conversation::{Conversation, StoredFile, TokenUsage, TurnRequest, compactions};
use platform_core::{AccountId, Error, Result, Timestamp, run_detached};
use platform_db::{Db, Idempotency};
use platform_jobs::{Jobs, Run, Slot, Work};
use platform_runtime::UsageLedger;
use tokio::sync::oneshot;

use super::{
    accept::{AcceptOutcome, AcceptedChat, Acceptor},
    acceptance::Acceptance,
    message::Accepted,
    work::{KIND, TurnChat, TurnOutcome, Turns, Warm, WarmStart, payer},
};
use crate::{assistant::Assistant, chat::repository::Status};

/// Accepts turns, and starts those that this process has a place for.
pub(crate) struct Admission {
    acceptor: Acceptor,
    jobs: Arc<Jobs>,
    turns: Arc<Turns>,
}

/// A turn that is ready to be accepted.
pub(crate) struct Candidate {
    pub account: AccountId,
    pub item: Acceptance,
    pub assistant: Arc<Assistant>,
    pub request: TurnRequest,
    pub files: Arc<[StoredFile]>,
    /// A place in this process; without one, whoever has a place takes the run.
    pub slot: Option<Slot>,
    /// Somebody waits for the end.
    pub waits: bool,
    /// What waits for quota in its chat is answered with it.
    pub resumes: bool,
    pub once: Option<Idempotency>,
    /// What an asynchronous caller is told.
    pub accepted: Accepted,
}

/// A turn that was accepted.
pub(crate) struct Admitted {
    /// Its chat is new.
    pub created: bool,
    /// The time that its message was given.
    pub at: Timestamp,
    /// How it ends, when this process works it.
    pub outcome: Option<oneshot::Receiver<TurnOutcome>>,
}

impl Admission {
    pub fn new(db: &Db, jobs: Arc<Jobs>, turns: Arc<Turns>) -> Arc<Self> {
        Arc::new(Self { acceptor: Acceptor::new(db), jobs, turns })
    }

    /// Accepts a turn and starts it. A task of its own, so that what was accepted is started when the caller leaves
    /// in between.
    pub async fn admit(self: &Arc<Self>, candidate: Candidate) -> Result<AcceptOutcome<Admitted>> {
        let admission = Arc::clone(self);
        run_detached("admit", async move { admission.accept_and_start(candidate).await }).await
    }

    async fn accept_and_start(&self, mut candidate: Candidate) -> Result<AcceptOutcome<Admitted>> {
        let chat = if candidate.once.is_none() && candidate.files.is_empty() && !candidate.resumes {
            self.acceptor.accept(candidate.item.clone()).await?
        } else {
            let answer = (!candidate.waits).then_some(&candidate.accepted);
            let resumed = candidate.resumes.then_some(&mut candidate.request);
            let (item, files, once) = (&mut candidate.item, &candidate.files, candidate.once.as_ref());
            self.acceptor.accept_with(item, resumed, files, once, answer).await?
        };
        let chat = match chat {
            AcceptOutcome::Accepted(chat) => chat,
            AcceptOutcome::ChatIsBusy => return Ok(AcceptOutcome::ChatIsBusy),
            AcceptOutcome::Refused(refusal) => return Ok(AcceptOutcome::Refused(refusal)),
        };
        let (created, at) = (chat.created, chat.newest);
        let outcome = if candidate.slot.is_some() {
            Some(self.start(candidate, chat)?)
        } else {
            self.jobs.announce();
            None
        };
        Ok(AcceptOutcome::Accepted(Admitted { created, at, outcome }))
    }

    /// Works a turn in this process, with what is known of it.
    fn start(&self, candidate: Candidate, chat: AcceptedChat) -> Result<oneshot::Receiver<TurnOutcome>> {
        let Candidate { account, item, assistant, request, slot, waits, .. } = candidate;
        let ledger = UsageLedger::holding(item.charge);
        let (waiter, outcome) = oneshot::channel();
        let payload = serde_json::Value::clone(&item.payload);
        let run = Run::begun(item.run, &account, KIND, item.subject.clone(), payload);
        let usage = chat.usage.as_deref().map(serde_json::from_str::<TokenUsage>).transpose();
        let messages = chat.created.then(|| {
            let previous = item.previous.into_iter().map(|past| past.body);
            previous.chain([item.message]).collect()
        });
        let conversation = Conversation {
            account: account.clone(),
            key: item.subject.clone(),
            uid: item.subject,
            open: Vec::new(),
            is_late: false,
            has_waited: false,
            newest: chat.newest,
            revision: chat.revision,
            message_count: chat.message_count,
            turn_start: chat.turn_start,
            usage: usage.map_err(Error::internal)?.unwrap_or_default(),
            metadata: chat.metadata,
            guardrails: chat.guardrails,
            compactions: compactions(chat.compactions.as_deref())?,
            memory_prompt: None,
            payer: payer(&account, &assistant, chat.tenant_id, chat.subtenant_id),
        };
        let chat = TurnChat { conversation, assistant: item.assistant, status: Status::Processing, named: chat.named };
        let start = WarmStart { chat, messages, waiter, ledger };
        let work: Arc<dyn Work> =
            Arc::new(Warm { turns: Arc::clone(&self.turns), assistant, request, start: Mutex::new(Some(start)) });
        let slot = slot.unwrap_or_else(|| self.jobs.slot_at_once());
        if waits {
            self.jobs.begin_here(work, run, slot);
        } else {
            self.jobs.begin(work, run, slot);
        }
        Ok(outcome)
    }
}
