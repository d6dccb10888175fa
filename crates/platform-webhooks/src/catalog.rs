//! The events there are, and what each says (contract 17).

use platform_core::Object;
use serde_json::{Value, json};

/// Listens to all of them.
pub(crate) const ALL: &str = "*";
/// Sent to try a webhook.
pub(crate) const TEST: &str = "webhook.test";

/// Every event there is.
pub(crate) const EVENTS: [&str; 17] = [
    "thread.state_changed",
    "thread.finished",
    "thread.approval_required",
    "chat.completed",
    "chat.error",
    "evaluation.completed",
    "document.indexed",
    "document.failed",
    "connection.expired",
    "connection.recovered",
    "trigger.auto_paused",
    "trigger.delivery_failed",
    "tenant.limit_warning",
    "tenant.limit_reached",
    "sandbox.finished",
    "snapshot.ready",
    TEST,
];

/// What an event says, made up: for a test of a webhook.
pub(crate) fn sample(event: &str, webhook: &str) -> Value {
    let thread = json!({"threadId": "sample-thread", "agentId": "sample-agent", "state": "completed",
        "previousState": "processing"});
    let with = |base: &Value, more: Value| {
        let mut fields: Object = base.as_object().cloned().unwrap_or_default();
        fields.extend(more.as_object().cloned().unwrap_or_default());
        Value::Object(fields)
    };
    let tokens = json!({"provider": "openai", "model": "gpt-4o", "inputTokens": 120, "outputTokens": 40,
        "totalTokens": 160, "cost": {"inputCost": 0.0004, "outputCost": 0.0008, "totalCost": 0.0012}});
    let chat = json!({"chatUID": "sample-chat", "assistantSpecializationIdentifier": "sample", "status": "completed",
        "tokenUsage": tokens});
    let document = json!({"documentId": "sample-document", "name": "Handbook.pdf", "status": "ready"});
    let connection = json!({"connectionId": "sample-connection", "app": "github", "label": "GitHub"});
    let rule = json!({"tenantId": "sample-tenant", "rule": {"ruleId": "sample-rule", "scope": "tenant",
        "subtenantId": null, "metric": "tokens", "windowUnit": "month", "windowEvery": 1, "limit": 100_000,
        "current": 80_000, "percent": 80, "resetsAt": 1_798_761_600_000_i64, "origin": "tier", "tierId": "sample-tier"}});
    match event {
        "thread.state_changed" => thread,
        "thread.finished" => {
            with(&thread, json!({"finishReason": "COMPLETED", "duration": 4200, "tokenUsage": tokens}))
        }
        "thread.approval_required" => json!({"threadId": "sample-thread", "agentId": "sample-agent",
            "pendingApproval": {"uid": "sample-approval", "expiresAtMs": 0, "toolNames": ["send_mail"]}}),
        "chat.completed" => with(&chat, json!({"stopReason": "end_turn"})),
        "chat.error" => with(
            &chat,
            json!({"status": "error",
            "error": {"code": "PROVIDER_ERROR", "message": "The provider does not answer."}}),
        ),
        "evaluation.completed" => json!({"evaluationId": "sample-evaluation", "threadId": "sample-thread",
            "agentId": "sample-agent", "overallScore": 8.5, "passed": true, "status": "completed"}),
        "document.failed" => with(
            &document,
            json!({"status": "failed",
            "error": {"code": "EXTRACTION_FAILED", "message": "This is no PDF."}}),
        ),
        "document.indexed" => document,
        "connection.expired" => with(&connection, json!({"status": "needs_reauth"})),
        "connection.recovered" => with(&connection, json!({"status": "active"})),
        "trigger.auto_paused" => json!({"triggerId": "sample-trigger", "name": "New issues", "reason": "RATE_LIMIT"}),
        "trigger.delivery_failed" => json!({"triggerId": "sample-trigger", "eventId": "sample-event",
            "error": {"code": "UPSTREAM_ERROR", "message": "The agent could not be started."}}),
        "tenant.limit_reached" => {
            with(&rule, json!({"rule": with(&rule["rule"], json!({"current": 100_000, "percent": 100}))}))
        }
        "tenant.limit_warning" => rule,
        "sandbox.finished" => json!({"sessionId": "sample-session", "environmentId": "sample-environment",
            "status": "stopped", "stoppedReason": "api"}),
        "snapshot.ready" => json!({"snapshotId": "sample-snapshot", "environmentId": "sample-environment"}),
        _ => json!({"webhookId": webhook}),
    }
}
