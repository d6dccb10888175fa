//! What the model gets, in the order of contract 02 §6, and within its window.

use std::{collections::HashSet, time::Duration};

use bytes::Bytes;
use platform_core::{Error, FairPermit, Result};
use platform_runtime::{
    Attachment, Fault, FaultCode, MemoryPrompt, Message, Model, ModelSpec, Prompt, RecallBudget, RecalledTurns, Role,
    ToldMemories, TurnMemory, TurnTool, fit,
};
use serde_json::Value;
use tokio::time::timeout;
use tracing::warn;

use crate::{
    Profile,
    compact::{Span, TurnError, compact},
    files,
    message::{File, new_message_uid},
    parts::{ContextManagement, KnowledgeRecall},
    ports::Ports,
    request::TurnRequest,
    store::{ConversationStore, Start},
    stored::Stored,
    sub_agents::HAND_OFF_TOOLS,
    turn_store::{Conversation, TurnStore},
};

/// A turn that would use more of the window than this is compacted first, in percent.
const COMPACT_ABOVE: u64 = 80;
/// What is left of the older messages then, in percent of the window.
const COMPACT_TO: u64 = 30;
/// An attached picture or document counts as so many tokens.
const ATTACHMENT_TOKENS: u64 = 1500;
/// So many bytes of a text document take a token, at the least.
const BYTES_A_TOKEN: usize = 3;
/// Bytes of presets once their placeholders are filled.
const MAX_FILLED: usize = 2 << 20;
/// So long a chat that begins waits at the most for what was said in earlier ones.
const MAX_RECALL: Duration = Duration::from_secs(5);
/// What an assistant that has something attached is told (contract 02 §6).
const KNOWLEDGE_HINT: &str = "Documents are attached to you. Look for what you need in them with search_knowledge, read a \
    whole one with read_document, and say which document and heading an answer rests on.";
/// Attached files of one prompt, newest first.
const MAX_ATTACHED: usize = 20 << 20;

/// A message of the chat as the model gets it.
struct Said {
    position: i32,
    uid: String,
    message: Message,
    files: Vec<File>,
    tokens: u64,
    /// A user message that begins a turn.
    begins: bool,
}

/// The messages that the model gets, oldest first.
struct History {
    said: Vec<Said>,
    tokens: u64,
    /// Older ones were left out since they do not fit.
    overflows: bool,
}

/// A user message of a turn.
#[derive(Debug, Clone)]
pub struct UserMessage {
    /// Where it stands.
    pub position: i32,
    /// Its id.
    pub uid: String,
    /// What it says.
    pub text: String,
}

/// What a model is asked.
pub(crate) struct Prepared {
    pub prompt: Prompt,
    pub user_messages: Vec<UserMessage>,
    /// Room for what is attached, until the turn is over.
    pub _room: Option<FairPermit>,
}

/// Builds the prompts of a turn.
pub(crate) struct Context<'a> {
    pub ports: &'a Ports,
    pub turn_store: &'a dyn TurnStore,
    pub conversation: &'a mut Conversation,
    pub request: &'a TurnRequest,
    pub profile: &'a Profile,
    pub spec: &'a ModelSpec,
    pub tools: &'a [TurnTool],
    pub model: &'a dyn Model,
    pub told: &'a mut ToldMemories,
}

impl Context<'_> {
    /// The prompt, after compaction when it needs one; `known`: all messages of a new chat; `forced`: compacts
    /// in any case. A turn that does not fit even then is a fault.
    pub async fn prompt(&mut self, known: Option<&[String]>, forced: bool) -> std::result::Result<Prepared, TurnError> {
        let params = self.conversation.metadata.get("promptTemplateParams");
        let Some(mut system) = fill(&self.profile.settings.presets, params.unwrap_or(&Value::Null)) else {
            let message = format!("The presets have more than {MAX_FILLED} bytes once their placeholders are filled.");
            return Err(Fault::of(FaultCode::ContextTooLong, message, &self.spec.provider).into());
        };
        let memory = self.profile.settings.core_memory.of(&self.conversation.payer);
        let (presets, mut attached) = (system.len(), String::new());
        match (&memory, &self.told.prompt) {
            (Some(_), Some(prompt)) => add_part(&mut system, &prompt.core),
            (Some(memory), None) => self.remember(memory, &mut system).await?,
            (None, _) => {}
        }
        if self.profile.settings.has_skills() {
            let scope = self.profile.settings.scope(Some(&self.conversation.payer), &self.conversation.uid);
            let skills = self.ports.recall.skills(&self.conversation.account, &scope).await?;
            if let Some(skills) = skills {
                add_part(&mut attached, &skills);
            }
        }
        if self.profile.settings.has_knowledge() {
            add_part(&mut attached, KNOWLEDGE_HINT);
        }
        // The tool says who they are, a line each; one of the client or of a server may have its name, never its place.
        let has_agents = !self.profile.settings.subagents_ids.is_empty();
        let hand_off = self.tools.iter().rfind(|tool| tool.tool.name == HAND_OFF_TOOLS[0] && tool.action.is_some());
        if let Some((_, agents)) = hand_off.filter(|_| has_agents).and_then(|of| of.tool.description.split_once('\n')) {
            add_part(&mut attached, &format!("Sub-agents:\n{agents}"));
        }
        let state = self.request.application_state.as_ref();
        let state = state.map(|state| format!("State of the application: {}", Value::Object(state.clone())));
        let window = self.spec.context_window;
        let fixed = self.count(&system)
            + self.count(&attached)
            + state.as_deref().map_or(0, |state| self.count(state))
            + self.tool_tokens();
        let mut history = self.history(known, fixed).await?;
        let full = |history: &History| history.overflows || history.tokens * 100 > window * COMPACT_ABOVE;
        if (forced || full(&history))
            && let Some(keep_from) = self.keep_from(&history, forced)
        {
            let before = self.conversation.compacted_to();
            let span = Span { from: before, until: keep_from, kept_tokens: kept(&history, keep_from) + fixed };
            compact(self.ports, self.turn_store, self.conversation, self.model, self.spec, span).await?;
            history = self.history(known, fixed).await?;
        }
        if history.tokens > window {
            let message = format!(
                "The turn needs about {} tokens, and the window of {} holds {window}; shorten the message or take \
                 another model.",
                history.tokens, self.spec.llm
            );
            return Err(Fault::of(FaultCode::ContextTooLong, message, &self.spec.provider).into());
        }
        let turn = history.said.iter().filter(|said| said.position >= self.conversation.turn_start);
        let user_messages = turn.filter(|said| said.message.role == Role::User).map(|said| {
            let (uid, text) = (said.uid.clone(), said.message.text.clone());
            UserMessage { position: said.position, uid, text }
        });
        let user_messages: Vec<UserMessage> = user_messages.collect();
        if let Some(memory) = memory {
            let left = window - history.tokens;
            let earlier = match &self.told.prompt {
                Some(prompt) => {
                    Some(prompt.earlier.clone()).filter(|text| self.count(text) <= left).unwrap_or_default()
                }
                None => {
                    let core = system[presets..].trim_start().to_owned();
                    let earlier = self.earlier(&memory, &user_messages, left).await?.unwrap_or_default();
                    let turn_start = self.conversation.turn_start;
                    self.told.prompt = Some(MemoryPrompt { turn_start, core, earlier: earlier.clone() });
                    earlier
                }
            };
            add_part(&mut system, &earlier);
        }
        add_part(&mut system, &attached);
        let recalled = self.recall(&user_messages).await?;
        let (prompt, room) = self.assemble(system, [recalled, state], history).await?;
        Ok(Prepared { prompt, user_messages, _room: room })
    }

    /// Adds what is known of whoever the assistant talks to.
    async fn remember(&mut self, memory: &TurnMemory, system: &mut String) -> Result<()> {
        let block = self.ports.memory.core(&self.conversation.account, &memory.bucket).await?;
        if let Some(block) = &*block {
            add_part(system, &block.text);
            self.told.note_core(block, &new_message_uid(), self.ports.clock.now())?;
        }
        Ok(())
    }

    /// What was said in earlier chats that is nearest to the first messages of this one.
    /// `left`: tokens of the window.
    async fn earlier(&mut self, memory: &TurnMemory, messages: &[UserMessage], left: u64) -> Result<Option<String>> {
        // It is new until its first turn is over, also where that waited, and until a model has answered.
        let has_answers = self.conversation.usage.tokens.total_tokens > 0;
        let is_new = self.conversation.turn_start == 0 || !has_answers;
        let Some(first) = messages.first().filter(|_| memory.recall && is_new) else { return Ok(None) };
        let question = messages.iter().map(|message| message.text.as_str()).collect::<Vec<_>>().join("\n");
        let Conversation { payer, uid, .. } = &*self.conversation;
        let earlier = self.ports.memory.earlier(&memory.bucket, payer, uid, &question, "conversation_start");
        let earlier = match timeout(MAX_RECALL, earlier).await.map_err(Error::unavailable).flatten() {
            Ok(earlier) => earlier,
            // A turn can be answered without.
            Err(error) => {
                warn!(%error, "Earlier chats could not be looked into; the turn goes on without.");
                return Ok(None);
            }
        };
        self.turn_store.charge(&earlier.asked).await?;
        let earlier = RecalledTurns { text: earlier.text.filter(|text| self.count(text) <= left), ..earlier };
        // What was found before the first answer is noted.
        if earlier.text.is_some() && !has_answers {
            let now = self.ports.clock.now();
            self.told.note_recalled(earlier.record, new_message_uid(), &first.uid, None, now);
        }
        Ok(earlier.text)
    }

    /// The passages of what is attached that are nearest to the messages of the turn, where the assistant wants them.
    async fn recall(&self, messages: &[UserMessage]) -> Result<Option<String>> {
        let settings = &self.profile.settings;
        let KnowledgeRecall { enabled, limit, max_tokens } = settings.knowledge_recall;
        if !enabled || !settings.has_knowledge() {
            return Ok(None);
        }
        let question = messages.iter().map(|message| message.text.as_str()).collect::<Vec<_>>().join("\n");
        let scope = settings.scope(Some(&self.conversation.payer), &self.conversation.uid);
        let budget = RecallBudget { limit, max_tokens };
        let recalled = self.ports.recall.passages(&self.conversation.account, &scope, &question, budget).await?;
        self.turn_store.charge(&recalled.asked).await?;
        Ok(recalled.text)
    }

    fn count(&self, text: &str) -> u64 {
        self.ports.catalog.count(self.spec, text)
    }

    fn tool_tokens(&self) -> u64 {
        let tools = self.tools.iter().filter(|tool| !tool.is_alias).map(|TurnTool { tool, .. }| {
            self.count(&tool.name) + self.count(&tool.description) + self.count(&tool.parameters.to_string())
        });
        tools.sum()
    }

    /// Where the messages begin that stay as they are: the newest whole turns within a part of the window.
    fn keep_from(&self, history: &History, forced: bool) -> Option<i32> {
        let most = if forced { 0 } else { self.spec.context_window * COMPACT_TO / 100 };
        let mut keep = self.conversation.turn_start;
        let mut tokens = 0;
        for said in history.said.iter().rev() {
            tokens += said.tokens;
            if tokens > most && said.position < self.conversation.turn_start {
                break;
            }
            if said.begins && said.position < keep {
                keep = said.position;
            }
        }
        (keep > self.conversation.compacted_to()).then_some(keep)
    }

    /// The newest messages, read in slices until they fill the window.
    async fn history(&self, known: Option<&[String]>, fixed: u64) -> Result<History> {
        let (chat, settings) = (&*self.conversation, &self.profile.settings);
        let summary = chat.compactions.last().map_or(0, |compaction| self.count(&compaction.summary));
        let most = self.spec.context_window * COMPACT_ABOVE / 100;
        let cut = match settings.max_chat_messages {
            0 => 0,
            most => chat.turn_start.saturating_sub_unsigned(most),
        };
        let first = cut.max(chat.compacted_to()).min(chat.turn_start);
        let mut history = History { said: Vec::new(), tokens: fixed + summary, overflows: false };
        let mut reader = Reader::new(&settings.context_management);
        let mut before = chat.message_count + i32::try_from(chat.open.len()).unwrap_or(i32::MAX);
        let conn = self.ports.db.read().await?;
        'slices: while before > first {
            let slice = match known {
                Some(known) => {
                    let range = usize::try_from(first).unwrap_or(0)..known.len();
                    let mut slice: Vec<_> =
                        (first..).zip(known.get(range).unwrap_or_default().iter().cloned()).collect();
                    slice.reverse();
                    slice
                }
                None => {
                    ConversationStore::of(&chat.account, &chat.key)
                        .slice(conn.get(), first..before, Start::Newest)
                        .await?
                }
            };
            if slice.is_empty() {
                break;
            }
            for (position, body) in slice {
                before = position;
                let stored = Stored::read(&body)?;
                let in_turn = position >= chat.turn_start;
                let Some(mut said) = reader.read(position, stored, in_turn) else { continue };
                if said.message.role == Role::Tool {
                    let most = settings.max_tool_response_input_tokens.into();
                    said.message.text = fit(&*self.ports.catalog, self.spec, &said.message.text, most);
                }
                said.tokens = self.count(&said.message.text)
                    + said.message.tool_calls.iter().map(|call| self.count(&call.function.arguments)).sum::<u64>()
                    + ATTACHMENT_TOKENS * said.files.iter().filter(|file| is_attached(file)).count() as u64;
                if history.tokens + said.tokens > most && !in_turn {
                    history.overflows = true;
                    break 'slices;
                }
                history.tokens += said.tokens;
                history.said.push(said);
            }
        }
        history.said.reverse();
        mark_turns(&mut history.said);
        Ok(history)
    }

    /// Cuts text documents to what is left of the window, those of the newest messages last.
    fn shorten(&self, contents: &mut files::Contents, newest: &[String], used: u64) {
        let left = (self.spec.context_window * COMPACT_ABOVE / 100).saturating_sub(used);
        let mut left = usize::try_from(left).unwrap_or(usize::MAX).saturating_mul(BYTES_A_TOKEN);
        for uid in newest {
            let mut of: Vec<_> = contents.iter_mut().filter(|((message, _), _)| message == uid).collect();
            of.sort_by_key(|((_, position), _)| *position);
            for (_, content) in of {
                let Some(text) = content.said() else { continue };
                let kept = floor(text, left);
                if kept < text.len() {
                    content.say(format!("{}\n[The rest does not fit.]", &text[..kept]));
                }
                left -= kept;
            }
        }
    }

    /// The newest files of messages, and the room that they have until the turn is over.
    async fn attached(&self, uids: &[String]) -> Result<(files::Contents, Option<FairPermit>)> {
        let account = &self.conversation.account;
        let store = ConversationStore::of(account, &self.conversation.key);
        let sizes = store.file_sizes(self.ports.db.read().await?.get(), uids, MAX_ATTACHED).await?;
        let bytes: i64 = sizes.iter().map(|(.., bytes)| bytes).sum();
        let room = self.ports.attached.hold(account, usize::try_from(bytes).unwrap_or(usize::MAX)).await;
        Ok((store.files(self.ports.db.read().await?.get(), &sizes).await?, room))
    }

    /// `before`: what stands in front of the messages of the turn.
    async fn assemble(
        &self,
        system: String,
        before: [Option<String>; 2],
        history: History,
    ) -> Result<(Prompt, Option<FairPermit>)> {
        let settings = &self.profile.settings;
        let catalog = &*self.ports.catalog;
        let fallbacks = settings
            .fallback_models
            .iter()
            .filter_map(|fallback| catalog.choose(Some(&fallback.provider), Some(&fallback.model)).ok())
            .filter(|fallback| fallback != self.spec)
            .collect();
        let with_files: Vec<String> = history
            .said
            .iter()
            .rev()
            .filter(|said| said.files.iter().any(is_attached))
            .map(|said| said.uid.clone())
            .collect();
        let (mut contents, room) =
            if with_files.is_empty() { (files::Contents::new(), None) } else { self.attached(&with_files).await? };
        self.shorten(&mut contents, &with_files, history.tokens);
        let mut messages = Vec::with_capacity(history.said.len() + 2);
        if let Some(compaction) = self.conversation.compactions.last() {
            messages.push(Message::developer(format!("Summary of the conversation so far:\n{}", compaction.summary)));
        }
        let mut before = before.into_iter().flatten();
        let mut turn = None;
        let mut calls = HashSet::new();
        for said in history.said {
            calls.extend(said.message.tool_calls.iter().map(|call| call.id.clone()));
            // A cut must not leave a result without its call.
            if said.message.tool_call_id.as_ref().is_some_and(|id| !calls.contains(id)) {
                continue;
            }
            if said.position >= self.conversation.turn_start && turn.is_none() {
                messages.extend(before.by_ref().map(Message::developer));
                turn = Some(messages.len());
            }
            let mut message = said.message;
            attach(&mut message, &said.uid, said.files, &mut contents);
            messages.push(message);
        }
        let prompt = Prompt {
            fallbacks,
            system,
            tools: self.tools.iter().filter(|tool| !tool.is_alias).map(|tool| tool.tool.clone()).collect(),
            turn: turn.unwrap_or(messages.len()),
            messages,
            temperature: settings.temperature,
            top_p: settings.top_p,
            max_output_tokens: settings.max_output_tokens.map(|most| most.min(self.spec.max_output_tokens)),
            reasoning_effort: settings.reasoning_effort.map(|effort| effort.as_str().to_owned()),
            output: self.profile.output.clone(),
            ..Prompt::new(self.spec.clone())
        };
        Ok((prompt, room))
    }
}

/// Adds a part to the system text.
fn add_part(system: &mut String, part: &str) {
    system.push_str(if system.is_empty() || part.is_empty() { "" } else { "\n\n" });
    system.push_str(part);
}

/// Where a text of so many bytes may be cut.
fn floor(text: &str, most: usize) -> usize {
    (0..=most.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0)
}

fn is_attached(file: &File) -> bool {
    matches!(file.file_type.as_deref(), Some("image" | "document"))
}

/// Tokens of what stays when everything before `keep_from` is summed up.
fn kept(history: &History, keep_from: i32) -> u64 {
    history.said.iter().filter(|said| said.position >= keep_from).map(|said| said.tokens).sum()
}

/// A turn begins with the first user message after something else.
fn mark_turns(said: &mut [Said]) {
    let mut after_user = false;
    for said in said {
        let user = said.message.role == Role::User;
        said.begins = user && !after_user;
        after_user = user;
    }
}

/// Files go along with the message that brought them; of those that were not kept the model gets the name.
fn attach(message: &mut Message, uid: &str, files: Vec<File>, contents: &mut files::Contents) {
    for (position, file) in (0..).zip(files) {
        let kept = contents.remove(&(uid.to_owned(), position));
        let (media_type, bytes, text) = match kept {
            Some(content) => (content.media_type, content.bytes, content.text),
            None => (file.file_type.unwrap_or_default(), Bytes::new(), None),
        };
        message.files.push(Attachment { name: file.name, media_type, bytes, text });
    }
}

/// Reads messages from the newest to the oldest, and leaves out what older turns need not show.
struct Reader<'a> {
    management: &'a ContextManagement,
    /// How many turns are newer than the one that is read.
    newer: u32,
    in_users: bool,
    /// A guardrail kept the user messages before here from the model.
    blocked: bool,
}

impl<'a> Reader<'a> {
    fn new(management: &'a ContextManagement) -> Self {
        Self { management, newer: 0, in_users: false, blocked: false }
    }

    fn read(&mut self, position: i32, stored: Stored, in_turn: bool) -> Option<Said> {
        let user = stored.role == Role::User;
        if self.in_users && !user {
            self.newer += 1;
        }
        self.in_users = user;
        if stored.content_source.as_deref() == Some("guardrail") && stored.latency_ms.is_none() {
            self.blocked = true;
            return None;
        }
        self.blocked &= user;
        if self.blocked {
            return None;
        }
        let depth = self.management.full_context_turn_depth;
        let short = depth > 0 && self.newer >= depth && !in_turn;
        let Stored { uid, role, content, summary, mut tool_calls, tool_call_id, .. } = stored;
        let mut text = content.message;
        if short {
            if role == Role::Tool {
                return None;
            }
            tool_calls.clear();
            if user && !self.management.always_include_user_messages {
                text = summary.unwrap_or(text);
            }
            if role == Role::Assistant && text.is_empty() {
                return None;
            }
        }
        let message = Message { role, text, tool_calls, tool_call_id, files: Vec::new() };
        Some(Said { position, uid, message, files: content.files, tokens: 0, begins: false })
    }
}

/// Fills `{{dotted.path}}` placeholders (contract 00 §10): data only, missing ones are empty. `None` when that is more
/// than it may be.
fn fill(template: &str, params: &Value) -> Option<String> {
    let mut filled = String::with_capacity(template.len());
    let mut rest = template;
    // What no `}}` ends is text, as is all that follows.
    while let Some((before, (path, after))) =
        rest.split_once("{{").and_then(|(before, after)| Some((before, after.split_once("}}")?)))
    {
        filled.push_str(before);
        let value = path.trim().split('.').try_fold(params, |value, key| value.get(key));
        match value {
            None | Some(Value::Null) => {}
            Some(Value::String(text)) => filled.push_str(text),
            Some(other) => filled.push_str(&other.to_string()),
        }
        if filled.len() > MAX_FILLED {
            return None;
        }
        rest = after;
    }
    filled.push_str(rest);
    Some(filled).filter(|filled| filled.len() <= MAX_FILLED)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn placeholders_are_filled_as_data_and_once() {
        let params = json!({"user": {"name": "{{secret}}"}, "list": [1, 2], "secret": "no", "n": 3});
        assert_eq!(
            fill("Hi {{ user.name }}, {{list}} {{n}}{{missing.x}}!", &params),
            Some("Hi {{secret}}, [1,2] 3!".to_owned())
        );
        assert_eq!(fill("open {{ only", &params), Some("open {{ only".to_owned()));
        let long = json!({"long": "x".repeat(60_000)});
        assert_eq!(fill(&"{{long}}".repeat(20_000), &long), None, "it is filled no further than it may be");
    }
}
