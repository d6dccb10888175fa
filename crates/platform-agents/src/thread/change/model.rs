//! What starts and what changes, before it is stored, and what is to be told of it afterwards.

use platform_conversation::File;
use platform_core::Object;
use platform_jobs::Run;
use platform_realtime::Key;
use platform_runtime::Refusal;

use crate::{
    agent::ReadyAgent,
    thread::{
        change::messages::Arrived,
        change::state::Source,
        facts::Parent,
        record::{Actor, Record},
    },
};

/// Why a thread ends or waits whose tenant has no quota left.
pub(crate) const OUT_OF_QUOTA: &str = platform_runtime::code::TENANT_LIMIT_EXCEEDED.as_str();

/// A thread that is to start.
#[derive(Clone)]
pub(crate) struct Start {
    pub record: Record,
    pub arrived: Arrived,
    pub begins_paused: bool,
    pub by: Actor,
    /// Its tenant has no quota left: it is kept, and ends at once.
    pub refusal: Option<Refusal>,
    /// The trace that it goes on with.
    pub trace: Option<String>,
}

/// What a thread is to do, whoever asks for it.
pub(crate) struct ThreadSpec {
    pub message: String,
    pub files: Vec<File>,
    pub name: Option<String>,
    pub tags: Vec<String>,
    pub metadata: Object,
    pub tenant_id: Option<String>,
    pub subtenant_id: Option<String>,
    pub api_source: Option<String>,
    pub provider: Option<String>,
    pub llm: Option<String>,
    pub callback_url: Option<String>,
    pub begins_paused: bool,
    pub user_uid: String,
    pub source: Source,
    pub trigger: Option<serde_json::Value>,
    pub parent: Option<Parent>,
    /// How many triggers led to it.
    pub depth: u8,
}

impl ThreadSpec {
    /// Work that comes from no client.
    pub fn of(source: Source, user_uid: String, message: String) -> Self {
        Self {
            message,
            files: Vec::new(),
            name: None,
            tags: Vec::new(),
            metadata: Object::new(),
            tenant_id: None,
            subtenant_id: None,
            api_source: None,
            provider: None,
            llm: None,
            callback_url: None,
            begins_paused: false,
            user_uid,
            source,
            trigger: None,
            parent: None,
            depth: 0,
        }
    }
}

/// What is to be told when a change of a thread is committed.
#[derive(Debug)]
pub(crate) struct AfterCommit {
    pub key: Key,
    pub revision: i64,
    /// A run that was taken away: whoever works it stops.
    pub stopped: Option<String>,
    /// A run waits to be taken.
    pub announces: bool,
}

/// A change of a thread that is to be stored.
pub(crate) struct Change<'a> {
    pub record: &'a mut Record,
    /// The run whose lease the caller holds.
    pub held: Option<&'a Run>,
    /// What the thread's revision is at least.
    pub revision: i64,
    /// The agent, where it is known.
    pub agent: Option<&'a ReadyAgent>,
    /// The trace that what follows goes on with.
    pub trace: Option<String>,
}
