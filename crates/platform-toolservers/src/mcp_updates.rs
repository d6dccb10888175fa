//! What MCP servers tell of a call while it is under way, in the order in which it is told and before the answer.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use platform_core::parse;
use platform_vault::Redactor;
use rmcp::{
    model::{
        ClientJsonRpcMessage, GetExtensions, GetMeta, JsonRpcMessage, ProgressToken, ServerJsonRpcMessage,
        ServerNotification,
    },
    service::RoleClient,
    transport::Transport,
};
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::mpsc;

/// Larger parameters of a notification are not handed on, in bytes.
const MOST: usize = 65_536;
/// Of one call so many bytes are handed on, as an answer has at most.
const MAX_OF_A_CALL: usize = 10 << 20;
const LOG: &str = "notifications/message";

/// What an upstream tells of a call: the parameters of a notification.
#[derive(Debug)]
pub enum McpUpdate {
    /// How far it is.
    Progress(Value),
    /// A line of its log.
    Log(Value),
}

/// Who hears of a call; goes along with its request.
#[derive(Clone)]
pub(crate) struct UpdateListener {
    updates: mpsc::Sender<McpUpdate>,
    redactor: Redactor,
    /// Bytes that it has heard.
    heard: Arc<AtomicUsize>,
}

impl UpdateListener {
    pub fn new(updates: mpsc::Sender<McpUpdate>, redactor: Redactor) -> Self {
        Self { updates, redactor, heard: Arc::default() }
    }

    /// That of a request.
    pub fn of(message: &ClientJsonRpcMessage) -> Option<Self> {
        let JsonRpcMessage::Request(sent) = message else { return None };
        sent.request.extensions().get::<Self>().cloned()
    }

    fn tell(&self, params: Value, update: impl FnOnce(Value) -> McpUpdate) {
        let bytes = params.to_string().len();
        if bytes <= MOST && self.heard.fetch_add(bytes, Ordering::Relaxed) + bytes <= MAX_OF_A_CALL {
            // Who reads slowly misses some.
            let _ = self.updates.try_send(update(self.redactor.value(params)));
        }
    }

    /// Tells of an event in the stream of the answer, if it is a line of the log: which call one belongs to, only that
    /// stream says.
    pub fn heard(&self, event: &str) {
        #[derive(Deserialize)]
        struct Notification {
            method: String,
            params: Value,
        }
        if event.len() <= 2 * MOST
            && event.contains(LOG)
            && let Ok(told) = parse::<Notification>(event.as_bytes())
            && told.method == LOG
        {
            self.tell(told.params, McpUpdate::Log);
        }
    }
}

/// A transport that hands progress on as it arrives: the SDK has notifications handled beside each other and beside
/// the answers, in no order.
pub(crate) struct WithProgress<T> {
    transport: T,
    listeners: HashMap<ProgressToken, UpdateListener>,
}

impl<T> WithProgress<T> {
    pub fn new(transport: T) -> Self {
        Self { transport, listeners: HashMap::new() }
    }

    /// Whoever sends a request with a listener hears of what is told under its token.
    fn sent(&mut self, message: &ClientJsonRpcMessage) {
        let JsonRpcMessage::Request(sent) = message else { return };
        if let (Some(listener), Some(token)) =
            (UpdateListener::of(message), sent.request.get_meta().get_progress_token())
        {
            self.listeners.retain(|_, listener| !listener.updates.is_closed());
            self.listeners.insert(token, listener);
        }
    }

    fn received(&self, message: &ServerJsonRpcMessage) {
        let JsonRpcMessage::Notification(told) = message else { return };
        let ServerNotification::ProgressNotification(progress) = &told.notification else { return };
        let listener = self.listeners.get(&progress.params.progress_token);
        if let (Some(listener), Ok(params)) = (listener, serde_json::to_value(&progress.params)) {
            listener.tell(params, McpUpdate::Progress);
        }
    }
}

impl<T: Transport<RoleClient>> Transport<RoleClient> for WithProgress<T> {
    type Error = T::Error;

    fn send(
        &mut self,
        message: ClientJsonRpcMessage,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send + 'static {
        self.sent(&message);
        self.transport.send(message)
    }

    async fn receive(&mut self) -> Option<ServerJsonRpcMessage> {
        let message = self.transport.receive().await?;
        self.received(&message);
        Some(message)
    }

    async fn close(&mut self) -> Result<(), Self::Error> {
        self.transport.close().await
    }
}
