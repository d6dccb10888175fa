use std::sync::Arc;

use futures_util::future::BoxFuture;
use platform_core::{Error, Result, spawn};
use tokio::sync::{mpsc, oneshot};

use crate::{Conn, Db};

/// Writes a group of items in one statement and gives one outcome per item, in order.
type Write<T, R> = dyn for<'a> Fn(&'a mut Conn, &'a [T]) -> BoxFuture<'a, Result<Vec<R>>> + Send + Sync;

type Waiting<T, R> = (T, oneshot::Sender<Result<R>>);

/// Group write: items that wait at the same moment share one statement and one commit.
///
/// An item is acknowledged after the commit of its group. A group that fails is retried one
/// by one, so that a bad item harms nobody else. The write goes on when its caller leaves.
pub struct GroupWriter<T, R> {
    queue: mpsc::Sender<Waiting<T, R>>,
}

impl<T: Send + Sync + 'static, R: Send + 'static> GroupWriter<T, R> {
    /// `lanes` groups may be on their way at once, each of at most `most` items.
    pub fn new<W>(db: &Db, lanes: usize, most: usize, write: W) -> Self
    where
        W: for<'a> Fn(&'a mut Conn, &'a [T]) -> BoxFuture<'a, Result<Vec<R>>> + Send + Sync + 'static,
    {
        let (queue, receiver) = mpsc::channel(4 * most);
        let receiver = Arc::new(tokio::sync::Mutex::new(receiver));
        let write: Arc<Write<T, R>> = Arc::new(write);
        for _ in 0..lanes {
            spawn("group write", lane(db.clone(), Arc::clone(&receiver), Arc::clone(&write), most));
        }
        Self { queue }
    }

    /// Writes one item; returns when it is committed.
    pub async fn write(&self, item: T) -> Result<R> {
        let (answer, outcome) = oneshot::channel();
        self.queue.send((item, answer)).await.map_err(|_| Error::unavailable("the writer has stopped"))?;
        outcome.await.map_err(|_| Error::unavailable("the writer has stopped"))?
    }
}

async fn lane<T: Send + Sync, R: Send>(
    db: Db,
    queue: Arc<tokio::sync::Mutex<mpsc::Receiver<Waiting<T, R>>>>,
    write: Arc<Write<T, R>>,
    most: usize,
) {
    loop {
        let mut waiting = Vec::with_capacity(most);
        if queue.lock().await.recv_many(&mut waiting, most).await == 0 {
            return;
        }
        let (items, answers): (Vec<T>, Vec<_>) = waiting.into_iter().unzip();
        match group(&db, &write, &items).await {
            Ok(outcomes) => {
                for (answer, outcome) in answers.into_iter().zip(outcomes) {
                    let _ = answer.send(Ok(outcome));
                }
            }
            Err(error) => one_by_one(&db, &write, items, answers, error).await,
        }
    }
}

async fn group<T, R>(db: &Db, write: &Arc<Write<T, R>>, items: &[T]) -> Result<Vec<R>> {
    let mut conn = db.conn().await?;
    let outcomes = write(&mut conn, items).await?;
    if outcomes.len() == items.len() {
        Ok(outcomes)
    } else {
        Err(Error::internal(format!("a group of {} gave {} outcomes", items.len(), outcomes.len())))
    }
}

async fn one_by_one<T, R>(
    db: &Db,
    write: &Arc<Write<T, R>>,
    items: Vec<T>,
    answers: Vec<oneshot::Sender<Result<R>>>,
    error: Error,
) {
    let alone = items.len() == 1;
    let mut first = Some(error);
    for (item, answer) in items.into_iter().zip(answers) {
        let outcome = match first.take().filter(|_| alone) {
            Some(error) => Err(error),
            None => group(db, write, std::slice::from_ref(&item)).await.map(|mut one| one.remove(0)),
        };
        let _ = answer.send(outcome);
    }
}
