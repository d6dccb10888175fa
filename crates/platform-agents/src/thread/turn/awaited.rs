//! Results that come later: from asynchronous tools, and from sub-agents.

use std::sync::Arc;

use async_trait::async_trait;
use aws_lc_rs::{digest, rand};
use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use diesel::{prelude::*, sql_types::BigInt};
use diesel_async::{AsyncConnection, RunQueryDsl};
use platform_conversation::{ABANDON, Returned};
use platform_core::{AccountId, Checks, Clock, Code, Error, Result, Timestamp};
use platform_db::{Db, Idempotency};
use platform_jobs::{Run, Work, drop_lane_in, end, end_in};
use platform_runtime::Callbacks;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::thread::{
    change::request::AsyncResponses,
    change::results::{go_on, take},
    change::state::{Action, Source, ThreadState},
    model::ThreadResponded,
    record::Actor,
    threads::{RETURN, Threads},
};
use crate::{
    agent::END_ALL,
    code,
    schema::{threads, tool_callbacks},
};

/// Longest result (contract 00 §8).
const MAX_CONTENT: usize = 1 << 20;
/// Results that are given at once.
const MAX_RESPONSES: usize = 1000;

/// Gives addresses for the calls of one thread.
pub(crate) struct ThreadCallbacks {
    pub db: Db,
    pub clock: Arc<dyn Clock>,
    pub account: AccountId,
    pub thread: String,
    pub timeout: std::time::Duration,
    pub base: String,
}

#[async_trait]
impl Callbacks for ThreadCallbacks {
    fn thread(&self) -> &str {
        &self.thread
    }

    async fn open(&self, call: &str) -> Result<String> {
        let mut random = [0; 32];
        rand::fill(&mut random).map_err(|_| Error::internal("the system has no random numbers"))?;
        let token = BASE64_URL_SAFE_NO_PAD.encode(random);
        diesel::insert_into(tool_callbacks::table)
            .values((
                tool_callbacks::digest.eq(hash(&token)),
                tool_callbacks::account_id.eq(self.account.as_str()),
                tool_callbacks::thread_id.eq(&self.thread),
                tool_callbacks::tool_call_id.eq(call),
                tool_callbacks::expires_ms.eq(self.clock.now().after(self.timeout).0),
            ))
            .execute(&mut *self.db.conn().await?)
            .await?;
        Ok(format!("{}/v1/tool-callbacks/{token}", self.base))
    }
}

/// Only the digest of a token is stored.
fn hash(token: &str) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(digest::digest(&digest::SHA256, token.as_bytes()))
}

/// Takes addresses away whose time is over.
pub async fn purge_callbacks(conn: &mut platform_db::Conn, now: Timestamp) -> Result<()> {
    let old = "DELETE FROM tool_callbacks WHERE digest IN (
        SELECT digest FROM tool_callbacks WHERE expires_ms < $1 FOR UPDATE SKIP LOCKED)";
    diesel::sql_query(old).bind::<BigInt, _>(now.0).execute(conn).await?;
    Ok(())
}

impl Threads {
    /// Takes results in; the thread goes on when none is missing.
    pub(crate) async fn respond(
        &self,
        account: &AccountId,
        id: &str,
        given: &AsyncResponses,
        by: &Actor,
        once: Option<&Idempotency>,
    ) -> Result<ThreadResponded> {
        let mut checks = Checks::default();
        if given.responses.is_empty() {
            checks.issue("responses", "required", "responses is required: a result for each call");
        }
        checks.count("responses", given.responses.len(), MAX_RESPONSES);
        for (i, response) in given.responses.iter().enumerate().take(MAX_RESPONSES) {
            checks.content_bytes(&format!("responses[{i}].content"), &response.content, MAX_CONTENT);
        }
        checks.finish()?;
        let now = self.ports.clock.now();
        let mut conn = self.ports.db.conn().await?;
        let responding = conn.transaction::<_, Error, _>(async |conn| {
            let mut record = self.lock_in(conn, account, id, once).await?;
            record.allow(Action::ToolResponse)?;
            let known = record.pending_callbacks();
            let mut checks = Checks::default();
            for (i, response) in given.responses.iter().enumerate() {
                let is_pending = known.iter().any(|call| call.tool_call_id == response.tool_call_id);
                if !is_pending && !record.is_answered(&response.tool_call_id) {
                    let message = format!("no call `{}` waits in this thread", response.tool_call_id);
                    checks.issue(&format!("responses[{i}].tool_call_id"), "unknown", message);
                }
            }
            checks.finish()?;
            // Of several results for one call the first counts.
            for response in &given.responses {
                if !record.is_answered(&response.tool_call_id) {
                    take(&mut record, &response.tool_call_id, &response.content);
                }
            }
            go_on(&mut record, by, now)?;
            let told = self.commit_in(conn, &mut record, None, 0, now).await?;
            let responded = ThreadResponded { thread_id: id.to_owned(), pending: record.pending_callbacks().len() };
            Idempotency::store_if(once, conn, 200, &responded).await?;
            Ok((responded, told))
        });
        let (responded, told) = responding.await?;
        drop(conn);
        self.tell(&told).await?;
        Ok(responded)
    }

    /// Account, thread and call that wait for a result at an address.
    pub(crate) async fn awaiting(&self, token: &str) -> Result<(String, String, String)> {
        let found = tool_callbacks::table
            .find(hash(token))
            .filter(tool_callbacks::expires_ms.gt(self.ports.clock.now().0))
            .select((tool_callbacks::account_id, tool_callbacks::thread_id, tool_callbacks::tool_call_id));
        let conn = self.ports.db.read().await?;
        let found: Option<(String, String, String)> = found.first(&mut conn.get()).await.optional()?;
        found.ok_or_else(unknown)
    }

    /// Takes the result in that came to an address. The address is good for one.
    pub(crate) async fn callback(&self, token: &str, value: &Value) -> Result<()> {
        let (account, thread, call) = self.awaiting(token).await?;
        let account = AccountId::named(&account);
        let (by, now) = (Actor { source: Source::Api, user_uid: None, reason: None }, self.ports.clock.now());
        let mut conn = self.ports.db.conn().await?;
        let taking = conn.transaction::<_, Error, _>(async |conn| {
            let mut record = self.lock_in(conn, &account, &thread, None).await?;
            if !record.is_open(&call) {
                return Err(unknown());
            }
            // Who deletes it gives the result.
            if diesel::delete(tool_callbacks::table.find(hash(token))).execute(conn).await? == 0 {
                return Err(unknown());
            }
            take(&mut record, &call, value);
            go_on(&mut record, &by, now)?;
            self.commit_in(conn, &mut record, None, 0, now).await
        });
        let told = taking.await?;
        drop(conn);
        self.tell(&told).await
    }

    /// Threads of an agent that was deleted end.
    pub(crate) async fn end_all(&self, account: &AccountId, agent: &str, user_uid: &str) -> Result<()> {
        loop {
            let conn = self.ports.db.read().await?;
            let open: Vec<String> =
                threads::table
                    .filter(threads::account_id.eq(account.as_str()).and(threads::agent_id.eq(agent)))
                    .filter(threads::state.eq_any(
                        ThreadState::ALL.iter().filter(|state| !state.is_terminal()).map(|state| state.as_str()),
                    ))
                    .select(threads::id)
                    .limit(100)
                    .load(&mut conn.get())
                    .await?;
            drop(conn);
            if open.is_empty() {
                return Ok(());
            }
            for thread in open {
                self.terminate(account, &thread, "AGENT_DELETED", &Actor::client(user_uid)).await?;
            }
        }
    }

    async fn terminate(&self, account: &AccountId, id: &str, reason: &str, by: &Actor) -> Result<()> {
        let now = self.ports.clock.now();
        let mut conn = self.ports.db.conn().await?;
        let ending = conn.transaction::<_, Error, _>(async |conn| {
            let mut record = self.lock_in(conn, account, id, None).await?;
            if record.state.is_terminal() {
                return Ok(None);
            }
            self.complete_in(conn, &mut record, (ThreadState::Terminated, reason), by, now).await?;
            self.commit_in(conn, &mut record, None, 0, now).await.map(Some)
        });
        let told = match ending.await {
            Err(error) if error.code() == code::THREAD_NOT_FOUND => None,
            told => told?,
        };
        drop(conn);
        match told {
            Some(told) => self.tell(&told).await,
            None => Ok(()),
        }
    }
}

/// Gives the results of sub-threads to the threads that wait for them.
pub(crate) struct Returns(pub Arc<Threads>);

#[async_trait]
impl Work for Returns {
    fn kind(&self) -> &'static str {
        RETURN
    }

    async fn work(&self, run: &Run, _stop: &CancellationToken) -> Result<()> {
        let threads = &self.0;
        let Returned { waiting, thread, value, .. } =
            serde_json::from_value(run.payload.clone()).map_err(Error::internal)?;
        let (account, now) = (run.account(), threads.ports.clock.now());
        let by = Actor { source: Source::SubAgent, user_uid: None, reason: None };
        let mut conn = threads.ports.db.conn().await?;
        let giving = conn.transaction::<_, Error, _>(async |conn| {
            let mut record = threads.lock_in(conn, &account, &waiting, None).await?;
            take(&mut record, &thread, &value);
            go_on(&mut record, &by, now)?;
            threads.commit_in(conn, &mut record, None, 0, now).await
        });
        let given = giving.await;
        drop(conn);
        match given {
            Ok(told) => threads.tell(&told).await?,
            // Nobody waits any more.
            Err(error) if error.code() == code::THREAD_NOT_FOUND => {}
            Err(error) => return Err(error),
        }
        end(&threads.ports.db, run).await
    }
}

/// Ends threads that nobody waits for any more.
pub(crate) struct Abandons(pub Arc<Threads>);

#[async_trait]
impl Work for Abandons {
    fn kind(&self) -> &'static str {
        ABANDON
    }

    async fn work(&self, run: &Run, _stop: &CancellationToken) -> Result<()> {
        let by = Actor { source: Source::SubAgent, user_uid: None, reason: None };
        self.0.terminate(&run.account(), &run.subject, "TERMINATED_BY_USER", &by).await?;
        end(&self.0.ports.db, run).await
    }
}

fn unknown() -> Error {
    Error::not_found(Code::NOT_FOUND, "callback", "this one")
}

/// Ends the threads of agents that were deleted.
pub(crate) struct EndAll(pub Arc<Threads>);

#[async_trait]
impl Work for EndAll {
    fn kind(&self) -> &'static str {
        END_ALL
    }

    async fn work(&self, run: &Run, _stop: &CancellationToken) -> Result<()> {
        let user = run.payload.get("userUID").and_then(Value::as_str).unwrap_or_default();
        self.0.end_all(&run.account(), &run.subject, user).await?;
        let mut conn = self.0.ports.db.conn().await?;
        conn.transaction::<_, Error, _>(async |conn| {
            drop_lane_in(conn, &run.account(), &run.subject).await?;
            end_in(conn, run).await
        })
        .await
    }
}
