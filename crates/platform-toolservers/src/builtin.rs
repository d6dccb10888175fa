use std::sync::Arc;

use async_trait::async_trait;
use platform_core::without_nul;
use platform_egress::Egress;
use platform_runtime::{BuiltInAction, BuiltInCall, BuiltInGroup, BuiltInTool, Payer, ToolResult, fit_bytes};
use platform_vault::Vault;
use serde_json::{Value, json};

use crate::{
    http::{Call, ForWhom, ToolHttp},
    server::UpstreamCredentials,
    source::depth_header,
};

/// The group `builtin-http` (contract 04 §6): calls any public address; results have at most so many bytes.
pub fn http_tools(egress: Egress, vault: Arc<Vault>, most_bytes: usize) -> BuiltInGroup {
    let request = BuiltInTool::new(
        "http_request",
        "Sends an HTTP request to a public address and returns status and body.",
        &json!({
            "method": {"type": "string", "enum": ["GET", "POST", "PUT", "PATCH", "DELETE"]},
            "url": {"type": "string", "description": "Absolute http or https address"},
            "headers": {"type": "object", "additionalProperties": {"type": "string"}},
            "body": {"description": "Text, or a value that is sent as JSON"},
        }),
        &["method", "url"],
        Arc::new(HttpRequest { http: ToolHttp::new(egress), vault, most_bytes }),
    );
    BuiltInGroup {
        uid: "builtin-http",
        name: "HTTP",
        description: "Calls any public address.",
        tools: vec![request.delicate()],
    }
}

struct HttpRequest {
    http: ToolHttp,
    vault: Arc<Vault>,
    most_bytes: usize,
}

#[async_trait]
impl BuiltInAction for HttpRequest {
    async fn call(&self, call: BuiltInCall<'_>) -> ToolResult {
        let depth = depth_header(&self.vault, call.scope);
        let end_user = call.scope.payer.as_ref().and_then(Payer::end_user);
        let sent = Call {
            id: call.id,
            callback: None,
            depth: depth.as_deref(),
            timeout: call.timeout,
            with: &UpstreamCredentials::Own,
            who: ForWhom { end_user: end_user.as_deref(), has_room: None },
        };
        match self.http.free_request(call.account, sent, call.arguments).await.result {
            Ok(value) => {
                let text = fit_bytes(without_nul(value).to_string(), self.most_bytes);
                ToolResult::of(&Value::String(text))
            }
            Err(failure) => failure.fit().into_result(),
        }
    }
}
