//! Feedback on messages, the same for chats and threads.

use diesel::prelude::*;
use diesel_async::RunQueryDsl;
use platform_core::{Checks, Error, Id, Object, Result, Timestamp};
use platform_db::Conn;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::{code, schema::message_feedback, store::ConversationStore};

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
pub struct MessageFeedback {
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

#[derive(Queryable, Selectable)]
#[diesel(table_name = message_feedback)]
struct FeedbackRow {
    id: String,
    message_uid: String,
    user_uid: String,
    feedback: bool,
    comment: Option<String>,
    data: Option<Value>,
    created_ms: i64,
    edited_ms: i64,
}

impl From<FeedbackRow> for MessageFeedback {
    fn from(row: FeedbackRow) -> Self {
        Self {
            id: row.id,
            request_id: row.message_uid,
            creation_timestamp: Timestamp(row.created_ms).to_iso(),
            feedback: row.feedback,
            feedback_comment: row.comment,
            feedback_data: row.data.and_then(|data| data.as_object().cloned()),
            last_edit_timestamp: Timestamp(row.edited_ms).to_iso(),
            user_uid: row.user_uid,
        }
    }
}

impl ConversationStore<'_> {
    /// Gives feedback on a message, in the caller's transaction; `true` when it is the first.
    pub async fn give_feedback(
        self,
        conn: &mut Conn,
        user_uid: &str,
        new: &NewFeedback,
        now: Timestamp,
    ) -> Result<(bool, MessageFeedback)> {
        if !self.has_message(conn, &new.message_id).await? {
            return Err(Error::not_found(code::MESSAGE_NOT_FOUND, "message", &new.message_id));
        }
        let id = String::from(Id::<MessageFeedback>::generate());
        self.upsert_feedback(conn, &id, user_uid, new, now).await
    }

    /// Stores feedback on a message, in place of what was said before. `true` when it is the first.
    async fn upsert_feedback(
        self,
        conn: &mut Conn,
        id: &str,
        user_uid: &str,
        new: &NewFeedback,
        now: Timestamp,
    ) -> Result<(bool, MessageFeedback)> {
        use message_feedback as table;
        let row: FeedbackRow = diesel::insert_into(table::table)
            .values((
                table::account_id.eq(self.account.as_str()),
                table::conversation.eq(self.name),
                table::id.eq(id),
                table::message_uid.eq(&new.message_id),
                table::user_uid.eq(user_uid),
                table::feedback.eq(new.feedback),
                table::comment.eq(&new.feedback_comment),
                table::data.eq(new.feedback_data.clone().map(Value::Object)),
                table::created_ms.eq(now.0),
                table::edited_ms.eq(now.0),
            ))
            .on_conflict((table::account_id, table::conversation, table::message_uid))
            .do_update()
            .set((
                table::user_uid.eq(user_uid),
                table::feedback.eq(new.feedback),
                table::comment.eq(&new.feedback_comment),
                table::data.eq(new.feedback_data.clone().map(Value::Object)),
                table::edited_ms.eq(now.0),
            ))
            .returning(FeedbackRow::as_returning())
            .get_result(conn)
            .await?;
        Ok((row.id == id, row.into()))
    }

    /// Feedback on the messages of a conversation, newest first.
    pub async fn feedback(self, conn: &Conn) -> Result<Vec<MessageFeedback>> {
        use message_feedback as table;
        let mut conn = conn;
        let rows: Vec<FeedbackRow> = table::table
            .filter(table::account_id.eq(self.account.as_str()).and(table::conversation.eq(self.name)))
            .order(table::created_ms.desc())
            .limit(1000)
            .select(FeedbackRow::as_select())
            .load(&mut conn)
            .await?;
        Ok(rows.into_iter().map(MessageFeedback::from).collect())
    }
}
