use std::{
    borrow::Cow,
    hash::{DefaultHasher, Hasher},
    sync::{Arc, Mutex},
};

use bytes::Bytes;
use platform_core::Timestamp;
use serde::{Deserialize, Serialize};

use crate::room::{Encoded, Newest, Room};

/// Bytes that a frame has around its JSON, and more than that.
const AROUND: usize = 128;

/// The committed state of a chat, ready to be sent.
#[derive(Debug)]
pub struct Head {
    /// Rises with every commit that changes what watchers see.
    pub revision: i64,
    /// The state as a JSON object, without `lastUpdatedAt` and `streamingMessage`, its closing brace left off.
    pub open_object: String,
    /// Tells this state from another of the same chat.
    pub(crate) digest: u64,
    /// When it last changed.
    pub updated: Timestamp,
    /// Nothing more will come by itself: the stream closes after this state.
    pub terminal: bool,
    /// Largest frame, in bytes, and the same object without history for one that would be larger.
    bound: Option<(usize, String)>,
    frame: Newest<i64>,
    /// The message that was last looked for, and whether it is part of this state.
    sought: Mutex<Option<(Arc<str>, bool)>>,
}

impl Head {
    /// Prepares a committed state; `fields` serialises to an object with at least one key, its messages under
    /// `chatHistory`.
    pub fn new(revision: i64, updated: Timestamp, terminal: bool, fields: &impl Serialize) -> serde_json::Result<Self> {
        let mut open_object = serde_json::to_string(fields)?;
        open_object.pop();
        let mut hasher = DefaultHasher::new();
        hasher.write(open_object.as_bytes());
        let (digest, bound, frame, sought) = (hasher.finish(), None, Newest::default(), Mutex::default());
        Ok(Self { revision, open_object, digest, updated, terminal, bound, frame, sought })
    }

    /// With a bound in bytes on its frames (0 = none); `brief`: the same object without history, its closing brace
    /// left off.
    #[must_use]
    pub fn bounded(self, most: usize, brief: String) -> Self {
        Self { bound: (most > 0).then_some((most, brief)), ..self }
    }

    /// Whether a frame is within the bound.
    pub(crate) fn admits(&self, frame: &Bytes) -> bool {
        self.bound.as_ref().is_none_or(|(most, _)| frame.len() <= *most)
    }

    /// A frame of about so many bytes, which is encoded when there is room for it. One that would be too large, or has no
    /// room, is left without its history, and without `more` if need be: the fields on top of the state.
    fn fit(
        &self,
        room: &Room,
        bytes: usize,
        whole: impl FnOnce() -> String,
        (sequence, more, at): (i64, &str, i64),
    ) -> Encoded {
        let Some((most, brief)) = &self.bound else { return Encoded::small(whole(), true) };
        let is_too_large = bytes > *most;
        if !is_too_large && let Some(place) = room.reserve(bytes) {
            return place.keep(whole());
        }
        let without_history =
            |more: &str| encode(sequence, "snapshot", &format!("{brief}{more},\"lastUpdatedAt\":{at}}}"));
        let bytes = brief.len() + more.len() + AROUND;
        let place = if bytes <= *most { room.reserve(bytes) } else { None };
        let rest = match place {
            Some(place) => place.keep(without_history(more)),
            None => Encoded::small(without_history(""), more.is_empty()),
        };
        if is_too_large { rest } else { rest.for_nobody_else() }
    }

    /// The whole state as JSON, as it is without a message being written.
    pub fn json(&self) -> String {
        format!("{},\"lastUpdatedAt\":{}}}", self.open_object, self.updated.0)
    }

    /// Whether a message is part of this state.
    pub(crate) fn holds(&self, uid: &Arc<str>) -> bool {
        let mut sought = self.sought.lock().expect("no holder of this lock panics");
        match &*sought {
            Some((known, is_held)) if known == uid => *is_held,
            _ => sought.insert((Arc::clone(uid), self.has_message(uid))).1,
        }
    }

    /// A client may write the uid anywhere: the state is only read as a whole where it occurs at all.
    fn has_message(&self, uid: &str) -> bool {
        self.open_object.contains(uid)
            && serde_json::from_str(&format!("{}}}", self.open_object))
                .is_ok_and(|state: Messages| state.chat_history.iter().any(|message| message.uid == uid))
    }

    /// The state alone, as the frame of that number.
    pub(crate) fn frame(&self, room: &Room, sequence: i64) -> Bytes {
        let whole = || encode(sequence, "snapshot", &self.json());
        let fit = || Some(self.fit(room, self.open_object.len() + AROUND, whole, (sequence, "", self.updated.0)));
        self.frame.get_or(sequence, fit).map(|(frame, _)| frame).unwrap_or_default()
    }
}

/// The messages of a state.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Messages<'a> {
    #[serde(borrow)]
    chat_history: Vec<Message<'a>>,
}

#[derive(Deserialize)]
struct Message<'a> {
    #[serde(borrow)]
    uid: Cow<'a, str>,
}

/// A tool call while it is being written (contract 00 §12).
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct GrowingCall {
    pub id: String,
    r#type: Function,
    pub function: GrowingFunction,
}

/// The kind of every tool call.
#[derive(Debug, Clone, Copy, Default, Serialize)]
#[serde(rename_all = "lowercase")]
enum Function {
    #[default]
    Function,
}

/// Name and arguments of a call, as far as they were written.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct GrowingFunction {
    pub name: String,
    pub arguments: String,
}

/// The tool calls of a message that is being written.
#[derive(Debug, Clone)]
pub(crate) enum Calls {
    /// Of a run of this process: they are encoded when somebody looks.
    Growing(Arc<Mutex<Vec<GrowingCall>>>),
    /// Of another process, as JSON.
    Received(Arc<str>),
}

impl Calls {
    /// The JSON array.
    pub fn json(&self) -> String {
        match self {
            Self::Growing(calls) => serde_json::to_string(&*calls.lock().expect("no holder of this lock panics"))
                .expect("text is always JSON"),
            Self::Received(json) => json.to_string(),
        }
    }
}

/// The message that is being written, at one moment.
#[derive(Debug, Clone)]
pub(crate) struct Streaming {
    pub uid: Arc<str>,
    /// All that was written; a moment sees its first `length` bytes.
    pub text: Arc<Mutex<String>>,
    pub length: usize,
    /// At least what they were at this moment.
    pub calls: Calls,
    /// Bytes of the tool calls at this moment: 0 when there are none.
    pub calls_size: usize,
    pub sequence: i64,
    pub at: Timestamp,
    pub frames: Arc<Frames>,
}

/// What was encoded for one moment; watchers that stand at the same place share it.
#[derive(Debug, Default)]
pub(crate) struct Frames {
    snapshot: Newest<()>,
    partial: Newest<()>,
    delta: Newest<usize>,
}

impl Streaming {
    pub fn is_empty(&self) -> bool {
        self.length == 0 && self.calls_size == 0
    }

    /// What was written after the first `from` bytes, at most so many bytes of it.
    pub fn text_from(&self, from: usize, most: usize) -> String {
        self.with_text(from, |text| text[..text.floor_char_boundary(most)].to_owned())
    }

    /// The `streamingMessage` object.
    pub fn json(&self) -> String {
        let message = self.with_text(0, json_text);
        let tool_calls = match self.calls_size {
            0 => String::new(),
            _ => format!(",\"tool_calls\":{}", self.calls.json()),
        };
        format!(
            "{{\"uid\":{},\"role\":\"assistant\",\"content\":{{\"message\":{message}}}{tool_calls}}}",
            json_text(&self.uid)
        )
    }

    /// The state with the message, and whether that had room.
    pub fn snapshot(&self, head: &Head, room: &Room) -> (Bytes, bool) {
        let frame = || {
            let (more, at) = (format!(",\"streamingMessage\":{}", self.json()), self.at.0.max(head.updated.0));
            let (state, bytes) = (&head.open_object, head.open_object.len() + more.len() + AROUND);
            let whole = || encode(self.sequence, "snapshot", &format!("{state}{more},\"lastUpdatedAt\":{at}}}"));
            Some(head.fit(room, bytes, whole, (self.sequence, &more, at)))
        };
        self.frames.snapshot.get_or((), frame).unwrap_or_default()
    }

    /// The message alone, and whether it had room.
    pub fn partial(&self, head: &Head, room: &Room) -> (Bytes, bool) {
        let frame = || {
            let message = self.json();
            let (more, at) = (format!(",\"streamingMessage\":{message}"), self.at.0.max(head.updated.0));
            let whole = || encode(self.sequence, "partial", &format!("{{\"streamingMessage\":{message}}}"));
            Some(head.fit(room, more.len() + AROUND, whole, (self.sequence, &more, at)))
        };
        self.frames.partial.get_or((), frame).unwrap_or_default()
    }

    /// The same as a frame; `None` when there is no room for it.
    pub fn delta(&self, from: usize, room: &Room) -> Option<Bytes> {
        let fit = || {
            let frame = self.encode_delta(from);
            Some(room.reserve(frame.len())?.keep(frame))
        };
        self.frames.delta.get_or(from, fit).map(|(frame, _)| frame)
    }

    fn encode_delta(&self, from: usize) -> String {
        let json = self.with_text(from, |text| format!("{{\"append\":{}}}", json_text(text)));
        encode(self.sequence, "delta", &json)
    }

    fn with_text<T>(&self, from: usize, f: impl FnOnce(&str) -> T) -> T {
        let text = self.text.lock().expect("no holder of this lock panics");
        f(&text[from..self.length])
    }
}

fn json_text(text: &str) -> String {
    serde_json::to_string(text).expect("text is always JSON")
}

/// One server-sent event in one piece (WHATWG HTML §9.2).
fn encode(sequence: i64, event: &str, json: &str) -> String {
    format!("id: {sequence}\nevent: {event}\ndata: {json}\n\n")
}
