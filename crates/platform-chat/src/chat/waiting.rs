//! The end of a turn, for whoever waits for it.

use platform_conversation::{ConversationStore, StoredJson};
use platform_core::{AccountId, Code, Error, Result};
use platform_db::in_progress;
use platform_runtime::Fault;
use tokio::time::Instant;

use super::{
    repository::{self, Status},
    service::{PgChatService, not_found},
};
use crate::{
    code,
    turn::{Accepted, Sent, Taken, TurnOutcome},
};

impl PgChatService {
    /// What a turn that was taken in comes to, as the client of a synchronous message is told.
    pub(super) async fn end_of(&self, account: &AccountId, assistant: &str, taken: Taken) -> Result<Sent> {
        let Accepted { chat_uid, message_uid, ignored, .. } = taken.accepted;
        let outcome = taken.outcome.ok_or_else(|| Error::internal("a turn was accepted without a place"))?;
        let until = Instant::now() + self.config.sync_timeout;
        let outcome = match tokio::time::timeout_at(until, outcome).await {
            // It was handed to a sub-agent: the end of the turn comes after that.
            Ok(Ok(TurnOutcome::HandedOff)) => {
                let ended = self.until_ended(account, assistant, &chat_uid);
                match tokio::time::timeout_at(until, ended).await {
                    Ok(ended) => {
                        ended?;
                        let sent = self.outcome_of(account, &chat_uid, &message_uid).await.map_err(was_deleted)?;
                        let failed = || failed_turn(&chat_uid);
                        return sent.map(|sent| Sent { ignored, ..sent }).ok_or_else(failed);
                    }
                    Err(elapsed) => Err(elapsed),
                }
            }
            outcome => outcome,
        };
        match outcome {
            Ok(Ok(TurnOutcome::Done(reply))) => {
                let messages = std::iter::once(StoredJson::message(taken.user_message, None)).chain(reply).collect();
                Ok(Sent { chat_uid, messages, ignored })
            }
            Ok(Ok(TurnOutcome::HandedOff)) => Err(Error::internal("a turn that was handed off was followed")),
            Ok(Ok(TurnOutcome::Failed(fault))) => Err(upstream(&fault, &chat_uid)),
            // The lease was lost, or the process is shutting down: somebody else ends the turn.
            Ok(Err(_)) => match self.outcome_of(account, &chat_uid, &message_uid).await {
                Ok(Some(sent)) => Ok(sent),
                Ok(None) => Err(failed_turn(&chat_uid)),
                Err(error) if error.code() == code::CHAT_NOT_FOUND => Err(was_deleted(error)),
                Err(_) => {
                    let message = "The message is stored and its turn goes on elsewhere: read the chat for the reply. \
                        Sent again, it is another message.";
                    Err(Error::new(Code::SERVICE_UNAVAILABLE, message).with("chatUid", &chat_uid).retry_after(1))
                }
            },
            Err(_) => {
                Err(Error::new(Code::UPSTREAM_TIMEOUT, "The turn takes long and goes on; read the chat for its reply.")
                    .with("chatUid", chat_uid))
            }
        }
    }

    /// The end of a turn whose outcome nobody told us: its messages, or `None` when it failed.
    pub(super) async fn outcome_of(&self, account: &AccountId, uid: &str, message: &str) -> Result<Option<Sent>> {
        let conn = self.db.read().await?;
        let chat = repository::find(conn.get(), account, uid).await?.ok_or_else(|| not_found(uid))?;
        let turn = ConversationStore::of(account, uid).turn_of(conn.get(), message).await?;
        // A chat without it was made after the one that had it was deleted.
        let (position, messages, answered) = turn.ok_or_else(|| not_found(uid))?;
        let is_newest = position >= chat.turn_start;
        if is_newest && !chat.status().is_terminal() && chat.status() != Status::Waiting {
            return Err(in_progress());
        }
        let failed = if is_newest { chat.status == "error" } else { !answered };
        Ok((!failed).then(|| Sent { chat_uid: uid.to_owned(), messages, ignored: Vec::new() }))
    }

    /// Waits until nothing is under way in a chat.
    async fn until_ended(&self, account: &AccountId, assistant: &str, uid: &str) -> Result<()> {
        let mut watcher = self.watcher(account, assistant, uid, false).await?;
        while watcher.next().await?.is_some() {}
        Ok(())
    }
}

/// The chat is gone for whoever waits for its turn.
fn was_deleted(error: Error) -> Error {
    if error.code() != code::CHAT_NOT_FOUND {
        return error;
    }
    Error::new(code::CHAT_NOT_FOUND, "The chat was deleted while its turn was under way; nothing of it is kept.")
        .with("resource", "chat")
}

fn failed_turn(chat_uid: &str) -> Error {
    Error::new(Code::UPSTREAM_ERROR, "The turn failed; read the chat for the reason.").with("chatUid", chat_uid)
}

/// A model that failed, as whoever waited is told.
pub(super) fn upstream(fault: &Fault, chat_uid: &str) -> Error {
    Error::from(fault).with("chatUid", chat_uid)
}
