//! The end of a turn: in which state it leaves its thread, and why.

use std::{sync::Arc, time::Duration};

use platform_conversation::{MessageRow, TokenUsage};
use platform_core::{Result, Timestamp};
use platform_db::Conn;
use platform_guardrails::Finding;
use platform_jobs::Run;
use platform_runtime::{Ending, FaultCode, Refusal};
use serde_json::value::RawValue;

use crate::{
    agent::ReadyAgent,
    thread::{
        change::messages::append_queued,
        change::model::{Change, OUT_OF_QUOTA},
        change::state::{Cause, ThreadState},
        facts::Pause,
        model::{EmptyContentRetries, ThreadResult},
        record::{Actor, Record},
        turn::steps::{note_step, pause_now},
    },
};

/// An empty answer is asked for again so often.
pub(crate) const EMPTY_RETRIES: u32 = 2;
/// A provider that asks for a longer pause has the thread sleep.
const MAX_WAIT: Duration = Duration::from_mins(1);

/// What follows the end of a part of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// The turn goes on with what came meanwhile.
    Again,
    /// This run has nothing more to do.
    Done,
}

/// A turn that has ended, with everything that its thread keeps of it.
pub(crate) struct EndedTurn {
    pub run: Run,
    pub rows: Vec<MessageRow>,
    pub usage: TokenUsage,
    /// JSON text.
    pub guardrails: Option<String>,
    pub findings: Vec<Finding>,
    pub empty_answers: u32,
    pub ending: Ending,
    pub agent: Arc<ReadyAgent>,
    pub version: i64,
    pub revision: i64,
    pub took: Vec<Arc<RawValue>>,
    pub trace: Option<String>,
}

impl EndedTurn {
    pub fn change<'a>(&'a self, record: &'a mut Record) -> Change<'a> {
        let (held, agent) = (Some(&self.run), Some(&*self.agent));
        Change { record, held, revision: self.revision, agent, trace: self.trace.clone() }
    }

    /// Puts the thread, which is locked, into the state in which its turn ends. `is_awaited`: more was said meanwhile.
    pub async fn conclude(
        &self,
        conn: &mut Conn,
        record: &mut Record,
        is_awaited: bool,
        now: Timestamp,
    ) -> Result<Next> {
        let is_first_step = record.facts.turn.version.is_none();
        note_step(record, self.rows.len(), &self.usage, self.version);
        record.abandons = !record.open.is_empty();
        record.open.clear();
        record.guardrails = self.guardrails.clone().or(record.guardrails.take());
        if let Some(answer) = &self.ending.answer {
            record.provider = Some(answer.model.provider.to_string());
            record.llm = Some(answer.model.llm.to_string());
        }
        self.note_empty(record);
        if let Some(refusal) = self.ending.fault.as_ref().and_then(|fault| fault.refusal.as_deref()) {
            out_of_quota(record, refusal, is_first_step, now)?;
            return Ok(Next::Done);
        }
        let by = Actor::worker();
        let wait = self.ending.fault.as_ref().and_then(|fault| fault.retry_after).filter(|wait| *wait > MAX_WAIT);
        if let Some(wait) = wait {
            if record.facts.pause.as_ref().is_some_and(|pause| pause.requested) {
                pause_now(record, now)?;
                return Ok(Next::Done);
            }
            record.enter(Cause::Sleeps, ThreadState::PausedForResume, &by, now)?;
            let (until, reason) = (Some(now.after(wait)), Some("PROVIDER_RETRY".to_owned()));
            record.facts.pause = Some(Pause { until, reason, at: Some(now), ..Pause::default() });
            return Ok(Next::Done);
        }
        let used = self.usage.tokens.input_tokens.saturating_sub(record.facts.turn.input_before);
        let (cause, state, reason) = outcome(&self.ending, &self.agent, used, &self.findings);
        // What was written of an answer that failed is the last there is.
        let result =
            result(&self.ending).filter(|result| state == ThreadState::Completed || !result.message.is_empty());
        if result.is_some() && !self.ending.is_blocked() {
            record.facts.result = result;
        }
        if state == ThreadState::Completed {
            // What was said meanwhile is answered first.
            if is_awaited && append_queued(conn, record).await? {
                return Ok(Next::Again);
            }
        }
        record.stop_reason = Some(self.ending.reason.to_owned());
        record.finish_reason = Some(reason);
        record.enter(cause, state, &by, now)?;
        Ok(Next::Done)
    }

    /// Notes how often the model answered with nothing.
    fn note_empty(&self, record: &mut Record) {
        if self.empty_answers > 0 {
            let before = record.facts.turn.empty.map_or(0, |empty| empty.attempts);
            let exhausted = self.ending.fault.as_ref().is_some_and(|fault| fault.code == FaultCode::EmptyContent);
            let attempts = (before + self.empty_answers).min(EMPTY_RETRIES);
            record.facts.turn.empty = Some(EmptyContentRetries { attempts, exhausted });
        }
    }
}

/// No quota is left: a turn that has not begun ends, another one goes on when there is some again.
fn out_of_quota(record: &mut Record, refusal: &Refusal, is_first_step: bool, now: Timestamp) -> Result<()> {
    let by = Actor { reason: Some(refusal.message.clone()), ..Actor::worker() };
    if record.facts.pause.as_ref().is_some_and(|pause| pause.requested) {
        return pause_now(record, now);
    }
    if is_first_step {
        // It was taken for nothing.
        record.enter(Cause::LeaseLost, ThreadState::Queued, &by, now)?;
        record.stop_reason = Some("limit_exceeded".to_owned());
        record.finish_reason = Some(OUT_OF_QUOTA.to_owned());
        return record.enter(Cause::QuotaSpent, ThreadState::LimitExceeded, &by, now);
    }
    record.enter(Cause::Sleeps, ThreadState::PausedForResume, &by, now)?;
    let (until, reason) = (Some(refusal.retry_at(now)), Some(OUT_OF_QUOTA.to_owned()));
    record.facts.pause = Some(Pause { until, reason, at: Some(now), ..Pause::default() });
    Ok(())
}

/// How a turn ended: why, in which state, and the reason with its code first (contract 03 §4).
fn outcome(
    ending: &Ending,
    agent: &ReadyAgent,
    input_tokens: u64,
    findings: &[Finding],
) -> (Cause, ThreadState, String) {
    if let Some(fault) = &ending.fault {
        let reason = match fault.code {
            FaultCode::StructuredOutputInvalid => format!("STRUCTURED_OUTPUT_INVALID: {}", fault.message),
            FaultCode::EmptyContent => "EMPTY_CONTENT_RETRIES_EXHAUSTED".to_owned(),
            _ => format!("PROVIDER_ERROR: {}", fault.message),
        };
        return (Cause::Failed, ThreadState::Failed, reason);
    }
    if ending.is_blocked() {
        let by = findings.iter().rev().find(|finding| !finding.passed && finding.action == "block");
        let name = by.map_or("unknown", |finding| finding.guardrail.as_str());
        return (Cause::Blocked, ThreadState::GuardrailTrigger, format!("GUARDRAIL: {name}"));
    }
    match ending.reason {
        "max_tool_calls" => {
            let most = agent.settings.max_execution_tool_calls;
            (Cause::Failed, ThreadState::Failed, format!("MAX_TOOL_CALLS_REACHED: {most} tool calls"))
        }
        "max_input_tokens" => {
            let reason = format!("MAX_INPUT_TOKENS_REACHED: {input_tokens} input tokens");
            (Cause::Failed, ThreadState::Failed, reason)
        }
        _ => (Cause::Finished, ThreadState::Completed, "COMPLETED".to_owned()),
    }
}

fn result(ending: &Ending) -> Option<ThreadResult> {
    if let Some(finish) = &ending.finish {
        return Some(ThreadResult { message: finish.message.clone(), data: finish.data.clone() });
    }
    let answer = ending.answer.as_ref()?;
    Some(ThreadResult { message: answer.text.clone(), data: ending.data.clone() })
}
