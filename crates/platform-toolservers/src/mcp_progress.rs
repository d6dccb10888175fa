//! Progress of calls to MCP servers, in the order in which it is told and before the answer that ends the call.

use std::collections::HashMap;

use rmcp::{
    model::{
        ClientJsonRpcMessage, GetExtensions, GetMeta, JsonRpcMessage, ProgressToken, ServerJsonRpcMessage,
        ServerNotification,
    },
    service::RoleClient,
    transport::Transport,
};
use serde_json::Value;
use tokio::sync::mpsc;

use platform_vault::Redactor;

/// Larger parameters of a notification are not handed on, in bytes.
const MOST: usize = 65_536;

/// Who hears of the progress of a call; goes along with its request.
#[derive(Clone)]
pub(crate) struct ProgressListener(pub mpsc::Sender<Value>);

/// A transport that hands progress on as it arrives: the SDK has notifications handled beside each other and beside
/// the answers, in no order.
pub(crate) struct WithProgress<T> {
    transport: T,
    redactor: Redactor,
    listeners: HashMap<ProgressToken, ProgressListener>,
}

impl<T> WithProgress<T> {
    pub fn new(transport: T, redactor: Redactor) -> Self {
        Self { transport, redactor, listeners: HashMap::new() }
    }

    /// Whoever sends a request with a listener hears of what is told under its token.
    fn sent(&mut self, message: &ClientJsonRpcMessage) {
        let JsonRpcMessage::Request(sent) = message else { return };
        let listener = sent.request.extensions().get::<ProgressListener>().cloned();
        if let (Some(listener), Some(token)) = (listener, sent.request.get_meta().get_progress_token()) {
            self.listeners.retain(|_, listener| !listener.0.is_closed());
            self.listeners.insert(token, listener);
        }
    }

    fn received(&self, message: &ServerJsonRpcMessage) {
        let JsonRpcMessage::Notification(told) = message else { return };
        let ServerNotification::ProgressNotification(progress) = &told.notification else { return };
        let listener = self.listeners.get(&progress.params.progress_token);
        if let (Some(listener), Ok(params)) = (listener, serde_json::to_value(&progress.params))
            && params.to_string().len() <= MOST
        {
            // Who reads slowly misses some.
            let _ = listener.0.try_send(self.redactor.value(params));
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
