use std::sync::Arc;

use async_trait::async_trait;
use diesel::prelude::*;
use diesel_async::RunQueryDsl;
use platform_core::{AccountId, Error, Result};
use platform_db::Conn;

use crate::{kind::Kind, schema::uses};

/// A record of some kind, borrowed.
pub type RecordRef<'a> = (Kind, &'a str);

/// Stores to which records of a kind a record refers now, in the transaction that stores that record.
pub async fn use_in(
    conn: &mut Conn,
    account: &AccountId,
    user: RecordRef<'_>,
    kind: Kind,
    targets: &[String],
) -> Result<()> {
    let gone = uses::table
        .filter(uses::account_id.eq(account.as_str()).and(uses::target_kind.eq(kind.name())))
        .filter(uses::user_kind.eq(user.0.name()).and(uses::user_id.eq(user.1)))
        .filter(uses::target_id.ne_all(targets));
    diesel::delete(gone).execute(conn).await?;
    let now = targets.iter().map(|target| {
        (
            uses::account_id.eq(account.as_str()),
            uses::user_kind.eq(user.0.name()),
            uses::user_id.eq(user.1),
            uses::target_kind.eq(kind.name()),
            uses::target_id.eq(target),
        )
    });
    let now: Vec<_> = now.collect();
    diesel::insert_into(uses::table).values(now).on_conflict_do_nothing().execute(conn).await?;
    Ok(())
}

/// Who refers to a record: name of the kind and id, in this order.
pub async fn users_in(conn: &mut Conn, account: &AccountId, target: RecordRef<'_>) -> Result<Vec<(String, String)>> {
    Ok(uses::table
        .filter(uses::account_id.eq(account.as_str()))
        .filter(uses::target_kind.eq(target.0.name()).and(uses::target_id.eq(target.1)))
        .order((uses::user_kind, uses::user_id))
        .select((uses::user_kind, uses::user_id))
        .load(conn)
        .await?)
}

/// Records of one kind that refer to others. It stands alone, so that whoever deletes a target is given it.
#[async_trait]
pub trait Referrer: Send + Sync {
    /// The kind of the records.
    fn kind(&self) -> Kind;

    /// Id of a record by a name that clients give it, as the error of its kind when there is none; it is locked.
    async fn lock_in(&self, conn: &mut Conn, account: &AccountId, name: &str) -> Result<String>;

    /// Puts a reference into a record that is locked, if it is not there.
    async fn refer_in(&self, conn: &mut Conn, account: &AccountId, id: &str, target: RecordRef<'_>) -> Result<()>;

    /// Identifier (its id, when it has no other) and name of a record.
    async fn describe_in(&self, conn: &mut Conn, account: &AccountId, id: &str) -> Result<Option<(String, String)>>;

    /// Takes a reference out of a record, in the transaction that deletes what it refers to.
    async fn forget_in(&self, conn: &mut Conn, account: &AccountId, id: &str, target: RecordRef<'_>) -> Result<()>;
}

/// Records of a kind that one record refers to.
const MOST: i64 = 1000;

/// All kinds whose records refer to others.
#[derive(Clone)]
pub struct Referrers(Arc<[Arc<dyn Referrer>]>);

impl Referrers {
    /// Those of these kinds; a kind comes before those whose records it refers to or has go with its own, since records
    /// are locked in this order.
    pub fn new(referrers: impl IntoIterator<Item = Arc<dyn Referrer>>) -> Self {
        Self(referrers.into_iter().collect())
    }

    fn of(&self, kind: &str) -> Result<&Arc<dyn Referrer>> {
        let of = self.0.iter().find(|referrer| referrer.kind().name() == kind);
        of.ok_or_else(|| Error::internal(format!("nobody changes what is of kind {kind}")))
    }

    /// Has a record (its kind and a name of it) refer to another that is held in this transaction, or no longer; its
    /// id.
    pub async fn set_in(
        &self,
        conn: &mut Conn,
        account: &AccountId,
        (kind, name): (&str, &str),
        target: RecordRef<'_>,
        refers: bool,
    ) -> Result<String> {
        let referrer = self.of(kind)?;
        let id = referrer.lock_in(conn, account, name).await?;
        if refers {
            let others = uses::table
                .filter(uses::account_id.eq(account.as_str()))
                .filter(uses::user_kind.eq(kind).and(uses::user_id.eq(&id)))
                .filter(uses::target_kind.eq(target.0.name()).and(uses::target_id.ne(target.1)))
                .count();
            if others.get_result::<i64>(conn).await? >= MOST {
                let full = format!("this {kind} has {MOST} of that kind already; take some from it first");
                return Err(Error::invalid("targetId", "length", full));
            }
            referrer.refer_in(conn, account, &id, target).await?;
            let now = (
                uses::account_id.eq(account.as_str()),
                uses::user_kind.eq(kind),
                uses::user_id.eq(&id),
                uses::target_kind.eq(target.0.name()),
                uses::target_id.eq(target.1),
            );
            diesel::insert_into(uses::table).values(now).on_conflict_do_nothing().execute(conn).await?;
        } else {
            referrer.forget_in(conn, account, &id, target).await?;
            let gone = uses::table.filter(uses::account_id.eq(account.as_str()));
            let gone = gone.filter(uses::user_kind.eq(kind).and(uses::user_id.eq(&id)));
            let gone = gone.filter(uses::target_kind.eq(target.0.name()).and(uses::target_id.eq(target.1)));
            diesel::delete(gone).execute(conn).await?;
        }
        Ok(id)
    }

    /// Id of a record by its kind and a name of it; it is locked.
    pub async fn lock_in(&self, conn: &mut Conn, account: &AccountId, (kind, name): (&str, &str)) -> Result<String> {
        self.of(kind)?.lock_in(conn, account, name).await
    }

    /// Identifier and name of a record (its kind and id).
    pub async fn describe_in(
        &self,
        conn: &mut Conn,
        account: &AccountId,
        (kind, id): (&str, &str),
    ) -> Result<Option<(String, String)>> {
        self.of(kind)?.describe_in(conn, account, id).await
    }

    /// Takes records of these kinds that are being deleted, and are locked, out of all that refer to them; who that was.
    pub async fn forget_in(
        &self,
        conn: &mut Conn,
        account: &AccountId,
        kinds: &[Kind],
        ids: &[String],
    ) -> Result<Vec<(String, String)>> {
        let names: Vec<&str> = kinds.iter().map(|kind| kind.name()).collect();
        let references = || {
            let of = uses::table.filter(uses::account_id.eq(account.as_str()));
            of.filter(uses::target_kind.eq_any(&names).and(uses::target_id.eq_any(ids)))
        };
        let found = references().select((uses::user_kind, uses::user_id, uses::target_kind, uses::target_id));
        let mut found: Vec<(String, String, String, String)> = found.load(conn).await?;
        let place = |kind: &str| self.0.iter().position(|referrer| referrer.kind().name() == kind);
        found.sort_by(|one, other| (place(&one.0), one).cmp(&(place(&other.0), other)));
        let mut users = Vec::new();
        for (user_kind, user, target_kind, target) in found {
            if let Some(kind) = kinds.iter().find(|kind| kind.name() == target_kind) {
                self.of(&user_kind)?.forget_in(conn, account, &user, (*kind, &target)).await?;
            }
            users.push((user_kind, user));
        }
        users.dedup();
        diesel::delete(references()).execute(conn).await?;
        Ok(users)
    }
}
