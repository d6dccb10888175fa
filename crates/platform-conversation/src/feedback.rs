//! Feedback on messages, the same for chats and threads.

use platform_core::{AccountId, Checks, Error, Id, Object, Result, Timestamp};
use platform_db::Conn;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{code, repository};

/// Feedback as a client gives it.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct NewFeedback {
    /// The message it is about.
    pub message_id: String,
    /// Whether it was good.
    pub feedback: bool,
    /// Words, at most 4000 characters.
    #[serde(default)]
    pub feedback_comment: Option<String>,
    /// Anything else.
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    pub feedback_data: Option<Object>,
}

impl NewFeedback {
    /// Every rule that needs no look at the conversation.
    pub fn check(&self) -> Result<()> {
        let mut checks = Checks::default();
        checks.length("feedbackComment", self.feedback_comment.as_deref().unwrap_or_default(), 0..=4000);
        if let Some(data) = &self.feedback_data {
            checks.metadata("feedbackData", data);
        }
        checks.finish()
    }
}

/// Feedback as it is kept; its owner says of what conversation.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Given {
    /// Id of the record.
    #[serde(rename = "_id")]
    pub id: String,
    /// The message it is about.
    pub request_id: String,
    /// First given at, ISO 8601.
    pub creation_timestamp: String,
    /// Whether it was good.
    pub feedback: bool,
    /// Words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub feedback_comment: Option<String>,
    /// Anything else.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub feedback_data: Option<Object>,
    /// Last given at, ISO 8601.
    pub last_edit_timestamp: String,
    /// Who gave it.
    #[serde(rename = "userUID")]
    pub user_uid: String,
}

enum FeedbackKind {}

/// Gives feedback on a message, in the caller's transaction; `true` when it is the first.
pub async fn give_feedback_in(
    conn: &mut Conn,
    account: &AccountId,
    conversation: &str,
    user_uid: &str,
    new: &NewFeedback,
    now: Timestamp,
) -> Result<(bool, Given)> {
    if !repository::has_message(conn, account, conversation, &new.message_id).await? {
        return Err(Error::not_found(code::MESSAGE_NOT_FOUND, "message", &new.message_id));
    }
    let id = String::from(Id::<FeedbackKind>::generate());
    repository::upsert_feedback(conn, account, conversation, &id, user_uid, new, now).await
}
