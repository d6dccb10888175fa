use std::{borrow::Cow, collections::BTreeMap, pin::pin, time::Duration};

use diesel::{
    dsl::sql,
    prelude::*,
    sql_types::{BigInt, Bool, SmallInt, Text, Timestamptz},
};
use diesel_async::RunQueryDsl;
use platform_core::{AccountId, Error, Result};
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};
use tokio::time::timeout;

use crate::{Conn, Db, code, schema::idempotency};

/// Bytes of an answer that is stored whole.
const MAX_BYTES: usize = 64 * 1024;
/// Bytes of a field that is stored of a larger one.
const MAX_FIELD_BYTES: usize = 1024;
/// Status of a key under which work goes on that is not done yet.
const CLAIMED: i16 = 0;
/// A claim is renewed so often.
const BETWEEN_RENEWALS: Duration = Duration::from_secs(15);
/// A claim that is not renewed for so long is nobody's.
const CLAIM: &str = "created_at > now() - interval '1 minute'";
/// Keys of an account that are kept; the oldest beyond them go before their day is over.
const MAX_KEYS: i64 = 100_000;

/// An `Idempotency-Key` as it stands in a request (contract 00 §5): what it covers and of which body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Idempotency {
    /// Whose key it is.
    pub account: AccountId,
    /// Account, credential, method, route, path ids and key.
    pub scope: String,
    /// SHA-256 of the body.
    pub body_hash: String,
}

/// What an earlier request with the same key left behind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stored {
    /// Its answer.
    Answer {
        /// HTTP status.
        status: u16,
        /// JSON body.
        body: String,
    },
    /// It was accepted as a run; whoever asks again is told what became of that.
    Run {
        /// What the accepting service wrote to find it again.
        reference: String,
        /// The request had the same body.
        is_same: bool,
    },
}

impl Idempotency {
    /// What is stored under this key; 422 when it is the answer to another body.
    pub async fn find(&self, db: &Db) -> Result<Option<Stored>> {
        let conn = db.read().await?;
        type Row = (String, i16, Option<String>, Option<String>, bool);
        let row: Option<Row> = idempotency::table
            .find(&self.scope)
            .select((
                idempotency::body_hash,
                idempotency::status,
                idempotency::body,
                idempotency::run_of,
                sql::<Bool>(CLAIM),
            ))
            .first(&mut conn.get())
            .await
            .optional()?;
        let Some((body_hash, status, body, run_of, is_claimed)) = row else { return Ok(None) };
        let is_same = body_hash == self.body_hash;
        if status == CLAIMED && !is_claimed {
            return Ok(None);
        }
        if status == CLAIMED && is_same {
            return Err(in_progress());
        }
        match run_of {
            Some(reference) => Ok(Some(Stored::Run { reference, is_same })),
            None if is_same => {
                Ok(Some(Stored::Answer { status: status.unsigned_abs(), body: body.unwrap_or_default() }))
            }
            None => Err(Self::reused()),
        }
    }

    /// The key covers another body.
    pub fn reused() -> Error {
        let message = "This Idempotency-Key was used with another body; use a new key for a new request.";
        Error::new(code::IDEMPOTENCY_KEY_REUSED, message)
    }

    /// Has no other process work under this key, until [`Self::keep`] or [`Self::release_claim`]: for an effect that is not made in
    /// a transaction, and goes on within [`Self::renewed`].
    pub async fn claim(&self, db: &Db) -> Result<()> {
        let sql = format!(
            "INSERT INTO idempotency (scope, body_hash, status, account) VALUES ($1, $2, {CLAIMED}, $3)
            ON CONFLICT (scope) DO UPDATE SET body_hash = excluded.body_hash, created_at = now()
                WHERE idempotency.status = {CLAIMED} AND NOT (idempotency.{CLAIM})"
        );
        let claiming = diesel::sql_query(sql).bind::<Text, _>(&self.scope).bind::<Text, _>(&self.body_hash);
        let claimed = claiming.bind::<Text, _>(self.account.as_str()).execute(&mut *db.conn().await?).await?;
        if claimed == 1 { Ok(()) } else { Err(in_progress()) }
    }

    /// Does something under a claimed key, and says meanwhile that it goes on.
    pub async fn renewed<T>(&self, db: &Db, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        loop {
            match timeout(BETWEEN_RENEWALS, &mut work).await {
                Ok(done) => return done,
                // What cannot be renewed now may be the next time, before the claim is over.
                Err(_) => drop(self.renew(db).await),
            }
        }
    }

    async fn renew(&self, db: &Db) -> Result<()> {
        let renewing = diesel::update(idempotency::table.find(&self.scope).filter(self.is_claimed()))
            .set(idempotency::created_at.eq(sql::<Timestamptz>("now()")));
        renewing.execute(&mut *db.conn().await?).await?;
        Ok(())
    }

    /// Whether a row is the claim of this request: another may have taken the key over with another body.
    #[diesel::dsl::auto_type(no_type_alias)]
    fn is_claimed<'a>(&'a self) -> _ {
        let (status, hash): (i16, &'a str) = (CLAIMED, &self.body_hash);
        idempotency::status.eq(status).and(idempotency::body_hash.eq(hash))
    }

    /// Stores the answer in the transaction of its effect. When another request with this key
    /// was first, the transaction must be given up: the error says so.
    pub async fn store(&self, conn: &mut Conn, status: u16, body: &impl Serialize) -> Result<()> {
        let body = serde_json::to_string(body).map_err(Error::internal)?;
        self.insert(conn, status, Some(&body), None).await
    }

    /// The same for a request that may have come without a key.
    pub async fn store_if(once: Option<&Self>, conn: &mut Conn, status: u16, body: &impl Serialize) -> Result<()> {
        match once {
            Some(once) => once.store(conn, status, body).await,
            None => Ok(()),
        }
    }

    /// The same for an effect whose answer is only known when its run has ended.
    pub async fn store_run(&self, conn: &mut Conn, reference: &str) -> Result<()> {
        self.insert(conn, 200, None, Some(reference)).await
    }

    /// Stores the answer of an effect that did not do so itself, in place of its claim; another that is there already stays.
    pub async fn keep(&self, db: &Db, status: u16, body: &str) -> Result<()> {
        let sql = format!(
            "INSERT INTO idempotency (scope, body_hash, status, body, account) VALUES ($1, $2, $3, $4, $5)
            ON CONFLICT (scope) DO UPDATE SET status = excluded.status, body = excluded.body, created_at = now()
                WHERE idempotency.status = {CLAIMED} AND idempotency.body_hash = excluded.body_hash"
        );
        let keeping = diesel::sql_query(sql).bind::<Text, _>(&self.scope).bind::<Text, _>(&self.body_hash);
        let keeping = keeping.bind::<SmallInt, _>(i16::try_from(status).unwrap_or(200));
        let keeping = keeping.bind::<Text, _>(shortened(body)?.into_owned()).bind::<Text, _>(self.account.as_str());
        keeping.execute(&mut *db.conn().await?).await?;
        Ok(())
    }

    /// Frees a claimed key under which nothing was done.
    pub async fn release_claim(&self, db: &Db) -> Result<()> {
        diesel::delete(idempotency::table.find(&self.scope).filter(self.is_claimed()))
            .execute(&mut *db.conn().await?)
            .await?;
        Ok(())
    }

    /// Frees the key of a run that came to nothing.
    pub async fn release(&self, db: &Db) -> Result<()> {
        diesel::delete(idempotency::table.find(&self.scope)).execute(&mut *db.conn().await?).await?;
        Ok(())
    }

    /// Waits for whoever works under this key, until the end of the transaction. Taken before anything else.
    pub async fn lock(&self, conn: &mut Conn) -> Result<()> {
        let lock = sql::<diesel::sql_types::Bool>("pg_advisory_xact_lock(hashtextextended(")
            .bind::<diesel::sql_types::Text, _>(&self.scope)
            .sql(", 0)) IS NULL");
        diesel::select(lock).execute(conn).await?;
        Ok(())
    }

    async fn insert(&self, conn: &mut Conn, status: u16, body: Option<&str>, run_of: Option<&str>) -> Result<()> {
        let body = body.map(shortened).transpose()?;
        let inserted = diesel::insert_into(idempotency::table)
            .values((
                idempotency::scope.eq(&self.scope),
                idempotency::body_hash.eq(&self.body_hash),
                idempotency::status.eq(i16::try_from(status).unwrap_or(200)),
                idempotency::body.eq(body.as_deref()),
                idempotency::run_of.eq(run_of),
                idempotency::account.eq(self.account.as_str()),
            ))
            .on_conflict_do_nothing()
            .execute(conn)
            .await?;
        if inserted == 1 { Ok(()) } else { Err(in_progress()) }
    }

    /// Forgets keys older than a day.
    pub async fn purge(conn: &mut Conn) -> Result<usize> {
        let old = sql::<Bool>("created_at < now() - interval '24 hours'");
        Ok(diesel::delete(idempotency::table.filter(old)).execute(conn).await?)
    }

    /// Forgets the oldest keys of an account that has more than 100,000.
    pub async fn trim(db: &Db, account: &AccountId) -> Result<usize> {
        let old = sql::<Bool>("created_at <= (SELECT created_at FROM idempotency WHERE account = ")
            .bind::<Text, _>(account.as_str())
            .sql(" ORDER BY created_at DESC OFFSET ")
            .bind::<BigInt, _>(MAX_KEYS)
            .sql(" LIMIT 1)");
        let old = idempotency::table.filter(idempotency::account.eq(account.as_str())).filter(old);
        Ok(diesel::delete(old).execute(&mut *db.conn().await?).await?)
    }
}

/// An answer as it is stored: of a large one its short fields, which say what record it was, and `truncated`.
fn shortened(body: &str) -> Result<Cow<'_, str>> {
    if body.len() <= MAX_BYTES {
        return Ok(body.into());
    }
    let mut fields: BTreeMap<String, Box<RawValue>> = serde_json::from_str(body).unwrap_or_default();
    fields.retain(|_, value| value.get().len() <= MAX_FIELD_BYTES);
    fields.insert("truncated".to_owned(), to_raw_value(&true).map_err(Error::internal)?);
    serde_json::to_string(&fields).map(Cow::Owned).map_err(Error::internal)
}

/// The first request with this key has not ended yet.
pub fn in_progress() -> Error {
    Error::new(
        code::IDEMPOTENCY_IN_PROGRESS,
        "A request with this Idempotency-Key is still running; ask again shortly.",
    )
}
