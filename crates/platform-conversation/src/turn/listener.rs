use std::collections::HashMap;

use async_trait::async_trait;
use platform_core::{Error, Object, Result};
use platform_guardrails::ScreenContext;
use platform_runtime::{Answer, CallResult, Delta, FINISH_TOOL, Flow, Listener, OpenCall, ToolResult, Verdict};

use serde_json::Value;

use super::{Turn, tool_row};
use crate::{
    columns::result_positions,
    message::{MessageContent, new_message_uid},
};

#[async_trait]
impl Listener for Turn<'_> {
    fn delta(&mut self, delta: Delta<'_>) {
        match delta {
            Delta::Text(text) if self.shows_growth => self.live.append(text),
            Delta::ToolCall { index, id, name, arguments } if self.shows_growth => {
                self.live.tool_call(index, id, name, arguments);
            }
            Delta::Text(_) | Delta::ToolCall { .. } => {}
        }
    }

    async fn answered(&mut self, answer: &mut Answer) -> Result<Verdict> {
        let Some(screen) = self.screen.clone() else { return Ok(Verdict::Pass) };
        let context = ScreenContext { message_uid: self.live.uid(), now: self.ports.clock.now() };
        let text = std::mem::take(&mut answer.text);
        let screening = screen.output(&*self.model, &answer.model, text, context.clone()).await?;
        let screening = self.found(screening).await?;
        let mut blocked = screening.blocked;
        answer.text = screening.text;
        // What a tool ends the turn with is an answer, too: it is judged before it is stored as a call.
        for call in answer.tool_calls.iter_mut().filter(|call| call.function.name == FINISH_TOOL) {
            let Ok(mut arguments) = serde_json::from_str::<Object>(&call.function.arguments) else { continue };
            for (_, value) in &mut arguments {
                let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                let screening = screen.output(&*self.model, &answer.model, text, context.clone()).await?;
                let screening = self.found(screening).await?;
                blocked |= screening.blocked;
                let parsed = if value.is_string() { None } else { serde_json::from_str(&screening.text).ok() };
                *value = parsed.unwrap_or(Value::String(screening.text));
            }
            call.function.arguments = Value::Object(arguments).to_string();
        }
        if blocked {
            answer.text.clear();
            answer.tool_calls.clear();
            return Ok(Verdict::Block);
        }
        Ok(Verdict::Pass)
    }

    async fn called(&mut self, results: &mut [CallResult]) -> Result<Verdict> {
        let asked: Vec<_> = results.iter_mut().flat_map(|of| std::mem::take(&mut of.result.asked)).collect();
        self.turn_store.charge(&asked).await?;
        for CallResult { call, result, .. } in results.iter_mut() {
            if let Some(record) = result.recalled.take() {
                let now = self.ports.clock.now();
                self.told.note_recalled(record, new_message_uid(), &self.calling_uid(), Some(&call.id), now);
            }
        }
        let Some(screen) = self.screen.clone().filter(|screen| screen.scan_tool_results) else {
            return Ok(Verdict::Pass);
        };
        let Some((spec, _)) = self.asked.clone() else { return Ok(Verdict::Pass) };
        let mut verdict = Verdict::Pass;
        for CallResult { result, .. } in results {
            let context = ScreenContext { message_uid: self.calling_uid(), now: self.ports.clock.now() };
            let text = std::mem::take(&mut result.text);
            let screening = screen.result(&*self.model, &spec, text, context).await?;
            let screening = self.found(screening).await?;
            result.text = screening.text;
            if screening.blocked {
                verdict = Verdict::Block;
                // No later turn gets it either.
                *result = ToolResult::error("TOOL_NOT_AVAILABLE", "A guardrail holds the result back.");
            }
        }
        Ok(verdict)
    }

    fn wasted(&mut self, answer: &Answer) {
        self.empty_answers += u32::from(answer.text.is_empty());
        self.conversation.usage.add(answer, self.ports.clock.now());
    }

    async fn asked(&mut self, answer: &Answer, open: &[OpenCall]) -> Result<Flow> {
        self.conversation.usage.add(answer, self.ports.clock.now());
        let content = MessageContent { message: answer.text.clone(), ..MessageContent::default() };
        let row = self.row(0, content, None, Some(answer))?;
        self.calling = Some(row.uid.clone());
        self.keep(vec![row], open, Some(&answer.model)).await
    }

    async fn settled(&mut self, results: &[CallResult], open: &[OpenCall]) -> Result<Flow> {
        let now = self.now();
        let (user, uid) = (&self.request.user_uid, &self.conversation.uid);
        let was_open = &self.conversation.open;
        let places: HashMap<&str, i32> = was_open
            .iter()
            .map(|open| open.call.id.as_str())
            .zip(result_positions(self.conversation.message_count, was_open))
            .collect();
        let row = |CallResult { call, result, latency }: &CallResult| {
            let latency = u64::try_from(latency.as_millis()).ok();
            let position = places.get(call.id.as_str()).ok_or_else(|| Error::internal("a result without its call"))?;
            tool_row(user, uid, call, &result.text, latency, *position, now)
        };
        let rows = results.iter().map(row).collect::<Result<_>>()?;
        self.keep(rows, open, None).await
    }
}
