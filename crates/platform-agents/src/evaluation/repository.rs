use diesel::prelude::*;
use diesel_async::RunQueryDsl;
use platform_core::{AccountId, Error, Page, Result, Timestamp};
use platform_db::Conn;
use serde_json::Value;

use super::model::{Evaluation, EvaluationList};
use crate::schema::evaluations;

pub(super) async fn insert(
    conn: &mut Conn,
    account: &AccountId,
    evaluation: &Evaluation,
    now: Timestamp,
) -> Result<()> {
    diesel::insert_into(evaluations::table)
        .values((
            evaluations::account_id.eq(account.as_str()),
            evaluations::id.eq(&evaluation.id),
            evaluations::thread_id.eq(&evaluation.thread_id),
            evaluations::agent_id.eq(&evaluation.agent_id),
            evaluations::status.eq(&evaluation.status),
            evaluations::body.eq(serde_json::to_value(evaluation).map_err(Error::internal)?),
            evaluations::created_ms.eq(now.0),
        ))
        .execute(conn)
        .await?;
    Ok(())
}

fn read(body: Value) -> Result<Evaluation> {
    serde_json::from_value(body).map_err(Error::internal)
}

/// A page of the evaluations of a thread.
pub(super) async fn list(conn: &Conn, account: &AccountId, thread: &str, page: Page) -> Result<EvaluationList> {
    let (mut first, mut second) = (conn, conn);
    let of = || {
        evaluations::table.filter(evaluations::account_id.eq(account.as_str()).and(evaluations::thread_id.eq(thread)))
    };
    let rows = of()
        .order((evaluations::created_ms.desc(), evaluations::id.desc()))
        .limit(page.limit)
        .offset(page.offset)
        .select(evaluations::body);
    let (rows, total): (Vec<Value>, i64) =
        futures_util::try_join!(rows.load(&mut first), of().count().get_result(&mut second))?;
    let evaluations = rows.into_iter().map(read).collect::<Result<_>>()?;
    Ok(EvaluationList { evaluations, total, offset: page.offset, limit: page.limit })
}

/// One evaluation of a thread, or the newest.
pub(super) async fn find(
    conn: &Conn,
    account: &AccountId,
    thread: &str,
    id: Option<&str>,
) -> Result<Option<Evaluation>> {
    let mut conn = conn;
    let mut of = evaluations::table
        .filter(evaluations::account_id.eq(account.as_str()).and(evaluations::thread_id.eq(thread)))
        .order((evaluations::created_ms.desc(), evaluations::id.desc()))
        .select(evaluations::body)
        .into_boxed();
    if let Some(id) = id {
        of = of.filter(evaluations::id.eq(id));
    }
    let body: Option<Value> = of.first(&mut conn).await.optional()?;
    body.map(read).transpose()
}

/// Stores what came of an evaluation.
pub(super) async fn update(conn: &mut Conn, account: &AccountId, evaluation: &Evaluation) -> Result<()> {
    let body = serde_json::to_value(evaluation).map_err(Error::internal)?;
    let of =
        evaluations::table.filter(evaluations::account_id.eq(account.as_str()).and(evaluations::id.eq(&evaluation.id)));
    diesel::update(of)
        .set((evaluations::status.eq(&evaluation.status), evaluations::body.eq(body)))
        .execute(conn)
        .await?;
    Ok(())
}
