//! What sub-agents give to the chats that wait for them.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use diesel::{ExpressionMethods, NullableExpressionMethods};
use diesel_async::{AsyncConnection, RunQueryDsl};
use platform_conversation::{CHAT_RETURN, Returned, json, open_text};
use platform_core::{AccountId, Error, Result};
use platform_jobs::{Run, When, Work, end_in, enqueue_in, find_in, wake_in};
use platform_runtime::{CallState, Later};
use tokio_util::sync::CancellationToken;

use super::work::{KIND, Turns, live_key};
use crate::{
    chat::repository::{self, Status, by_uid, greatest, waiting_reason},
    schema::chats,
};

/// A chat whose turn is still at work is looked at again after this, and then after twice as long each time.
const SOON: Duration = Duration::from_millis(50);
const MAX_DOUBLINGS: u32 = 6;

/// Gives results of sub-threads to chats.
pub(crate) struct Returns(pub Arc<Turns>);

#[async_trait]
impl Work for Returns {
    fn kind(&self) -> &'static str {
        CHAT_RETURN
    }

    async fn work(&self, run: &Run, _stop: &CancellationToken) -> Result<()> {
        let (turns, account) = (&self.0, run.account());
        let returned: Returned = serde_json::from_value(run.payload.clone()).map_err(Error::internal)?;
        let pause = SOON * 2_u32.pow(returned.tries.min(MAX_DOUBLINGS));
        let mut conn = turns.ports.db.conn().await?;
        let given = conn
            .transaction::<_, Error, _>(async |conn| {
                let given = give_in(turns, conn, &account, &returned).await?;
                end_in(conn, run).await?;
                if matches!(given, Given::NotYet) {
                    let mut payload = run.payload.clone();
                    payload["tries"] = (returned.tries + 1).into();
                    enqueue_in(conn, &account, CHAT_RETURN, &run.subject, payload, When::After(pause)).await?;
                }
                Ok(given)
            })
            .await?;
        drop(conn);
        match given {
            Given::To(assistant, revision) => {
                turns.ports.realtime.changed(&live_key(&account, &assistant, &returned.waiting), revision);
                turns.jobs.announce();
            }
            Given::NotYet => turns.jobs.announce_after(pause),
            Given::Nobody => {}
        }
        Ok(())
    }
}

enum Given {
    /// A chat of this assistant, which stands at this revision then.
    To(String, i64),
    /// Its turn still stores that it waits.
    NotYet,
    /// Nobody waits any more.
    Nobody,
}

async fn give_in(
    turns: &Turns,
    conn: &mut platform_db::Conn,
    account: &AccountId,
    returned: &Returned,
) -> Result<Given> {
    let run = find_in(conn, account, KIND, &returned.waiting).await?;
    let Some(chat) = repository::lock(conn, account, &returned.waiting).await? else { return Ok(Given::Nobody) };
    if chat.status().is_terminal() {
        return Ok(Given::Nobody);
    }
    let Some(run) = run.filter(|run| run.idle && chat.status() != Status::Processing) else {
        return Ok(Given::NotYet);
    };
    let mut open = chat.open_calls()?;
    let awaiting = open.iter_mut().find(|open| match open.awaits() {
        Some(Later::Thread(thread)) => *thread == returned.thread,
        _ => false,
    });
    let Some(call) = awaiting else { return Ok(Given::Nobody) };
    call.state = CallState::Answered(returned.value.clone());
    let waits = open.iter().any(platform_runtime::OpenCall::waits);
    wake_in(conn, account, &run, !waits).await?;
    let text = open_text(&open)?.unwrap_or_default();
    let status = if waits { chat.status.as_str() } else { "processing" };
    let given = diesel::update(by_uid(account.as_str(), &returned.waiting)).set((
        chats::open_calls.eq(json(&text).nullable()),
        chats::status.eq(status),
        chats::stop_reason.eq(waiting_reason(status)),
        chats::revision.eq(chats::revision + 1),
        chats::edited_ms.eq(greatest(chats::edited_ms, turns.ports.clock.now().0)),
    ));
    Ok(Given::To(chat.assistant.clone(), given.returning(chats::revision).get_result(conn).await?))
}
