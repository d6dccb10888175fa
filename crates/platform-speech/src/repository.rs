use diesel::{
    prelude::*,
    sql_types::{BigInt, Text},
};
use diesel_async::RunQueryDsl;
use platform_access::Place;
use platform_core::{AccountId, Error, Owner, Result, Timestamp};
use platform_db::Conn;
use serde_json::Value;

use crate::{schema::transcripts, transcript::Transcript};

#[derive(Queryable, Selectable, Insertable)]
#[diesel(table_name = transcripts)]
pub(crate) struct TranscriptRow {
    pub account_id: String,
    pub id: String,
    pub text: String,
    pub language: Option<String>,
    pub detected_language: Option<String>,
    pub audio_url: String,
    pub model: String,
    pub duration_ms: i64,
    pub segments: Value,
    pub has_segments: bool,
    pub message_uid: Option<String>,
    pub chat_uid: Option<String>,
    pub tenant_id: Option<String>,
    pub subtenant_id: Option<String>,
    pub created_ms: i64,
    pub uncharged: Option<i64>,
}

impl TranscriptRow {
    pub fn owner(&self) -> Owner {
        Owner { tenant_id: self.tenant_id.clone(), subtenant_id: self.subtenant_id.clone() }
    }

    pub fn place(&self) -> Place {
        Place { owner: Some(self.owner()), ..Place::default() }
    }

    pub fn shown(self) -> Result<Transcript> {
        let segments = self.has_segments.then(|| serde_json::from_value(self.segments)).transpose();
        Ok(Transcript {
            transcript_id: self.id,
            text: self.text,
            language: self.language.or_else(|| self.detected_language.clone()).unwrap_or_default(),
            audio_url: self.audio_url,
            model: self.model,
            duration_ms: self.duration_ms,
            detected_language: self.detected_language,
            segments: segments.map_err(Error::internal)?,
            message_uid: self.message_uid,
            chat_uid: self.chat_uid,
            tenant_id: self.tenant_id,
            creation_timestamp_ms: Timestamp(self.created_ms),
        })
    }
}

pub(crate) async fn insert(conn: &mut Conn, row: &TranscriptRow) -> Result<()> {
    diesel::insert_into(transcripts::table).values(row).execute(conn).await?;
    Ok(())
}

/// What one took that was counted nowhere yet, in billionths of a dollar; from now on it is.
pub(crate) async fn take_cost(conn: &mut Conn, account: &AccountId, id: &str) -> Result<Option<i64>> {
    let take = "WITH taken AS (SELECT account_id, id, uncharged FROM transcripts \
            WHERE account_id = $1 AND id = $2 AND uncharged IS NOT NULL FOR UPDATE) \
        UPDATE transcripts t SET uncharged = NULL FROM taken \
        WHERE t.account_id = taken.account_id AND t.id = taken.id RETURNING taken.uncharged";
    let taken = diesel::sql_query(take).bind::<Text, _>(account.as_str()).bind::<Text, _>(id);
    let taken: Option<Taken> = taken.get_result(conn).await.optional()?;
    Ok(taken.map(|taken| taken.uncharged))
}

#[derive(QueryableByName)]
struct Taken {
    #[diesel(sql_type = BigInt)]
    uncharged: i64,
}

pub(crate) async fn find(conn: &Conn, account: &AccountId, id: &str) -> Result<Option<TranscriptRow>> {
    let mut conn = conn;
    let row = transcripts::table.find((account.as_str(), id)).select(TranscriptRow::as_select());
    Ok(row.first(&mut conn).await.optional()?)
}
