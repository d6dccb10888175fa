//! Compaction that a client asks for.

use platform_conversation::{ConversationStore, Span, Stored, TurnError, compact};
use platform_core::{AccountId, Error, Result};
use platform_jobs::Run;
use platform_runtime::Payer;

use super::{
    model::{Checkpoint, Compacted},
    service::PgChatService,
    waiting::upstream,
};
use crate::{
    code,
    turn::{ChatTurnStore, KIND, payer},
};

impl PgChatService {
    /// Has a summary stand for the older messages, for the model.
    pub(super) async fn compact_now(&self, account: &AccountId, assistant: &str, uid: &str) -> Result<Compacted> {
        let chat = self.find(account, assistant, uid).await?;
        if !chat.status().is_terminal() {
            return Err(Error::new(
                code::CHAT_BUSY,
                "This chat is still answering; compact it when its turn has ended.",
            )
            .with("status", &chat.status));
        }
        let refused = |reason| Ok(Compacted { compacted: false, reason: Some(reason), checkpoint: None });
        let mut chat = chat.into_turn_chat()?.conversation;
        let mut span = Span { from: chat.compacted_to(), until: chat.turn_start, kept_tokens: 0 };
        if span.until <= span.from {
            return refused(if chat.compactions.is_empty() { "too_short" } else { "nothing_new" });
        }
        let assistant = self.assistants.get(account, assistant).await?;
        let own = assistant.settings().choose(&*self.turns.ports.catalog, None, None)?;
        let conn = self.db.read().await?;
        for body in ConversationStore::of(account, uid).bodies_from(conn.get(), chat.turn_start).await? {
            span.kept_tokens += self.turns.ports.catalog.count(&own, Stored::read(&body)?.text());
        }
        let run = Run::begun(String::new(), account, KIND, uid.to_owned(), serde_json::Value::Null);
        let turn_store = ChatTurnStore { turns: &self.turns, run: &run };
        let Payer { tenant_id, subtenant_id, .. } = chat.payer.clone();
        let payer = payer(account, &assistant, tenant_id, subtenant_id);
        let model = self.turns.ports.budget.model(&payer, None);
        match compact(&self.turns.ports, &turn_store, &mut chat, &*model, &own, span).await {
            Ok(true) => {}
            Ok(false) => return refused("nothing_new"),
            Err(TurnError::Model(fault)) => return Err(upstream(&fault, uid)),
            Err(TurnError::Store(error)) => return Err(error),
        }
        let made = chat.compactions.last().ok_or_else(|| Error::internal("a compaction was made"))?;
        let checkpoint = Checkpoint {
            compacted_message_count: made.compacted_message_count,
            tokens_before: made.tokens_before,
            tokens_after: made.tokens_after,
        };
        Ok(Compacted { compacted: true, reason: None, checkpoint: Some(checkpoint) })
    }
}
