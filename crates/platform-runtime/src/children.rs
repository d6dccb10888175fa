use std::{io, time::Duration};

use platform_child::{ChildError, Children};
use platform_core::{AccountId, Error, FairPermit, FairSemaphore};
use serde::{Serialize, de::DeserializeOwned};

/// Nobody waits longer for a place.
const MAX_WAIT: Duration = Duration::from_secs(10);

/// Child processes that read and run what clients wrote, with one place for each account.
#[derive(Debug)]
pub struct ChildPool {
    children: Children,
    places: FairSemaphore,
}

impl ChildPool {
    /// `at_once`: pieces of work under way, one of each account.
    pub fn new(children: Children, at_once: usize) -> Self {
        Self { children, places: FairSemaphore::new(at_once, 1) }
    }

    /// The place of an account, for what is large: it is read when there is a place, not before. As many wait as there
    /// are.
    pub async fn place(&self, account: &AccountId) -> FairPermit {
        self.places.acquire(account).await
    }

    /// Has a piece of work done for whoever has a place: bytes in, JSON out.
    pub async fn read<T: DeserializeOwned>(&self, _: &FairPermit, work: &str, input: &[u8]) -> Result<T, ChildError> {
        let answer = self.children.run(work, input).await?;
        Ok(serde_json::from_slice(&answer).map_err(io::Error::other)?)
    }

    /// Has one piece of an account's work done: JSON in, JSON out. Waiting for a place is part of the time it takes.
    pub async fn ask<T: DeserializeOwned>(
        &self,
        account: &AccountId,
        work: &str,
        input: &impl Serialize,
    ) -> Result<T, ChildError> {
        let place = tokio::time::timeout(MAX_WAIT, self.places.acquire(account));
        let _place = place.await.map_err(|_| ChildError::Busy)?;
        let input = serde_json::to_vec(input).map_err(io::Error::other)?;
        let answer = self.children.run(work, &input).await?;
        Ok(serde_json::from_slice(&answer).map_err(io::Error::other)?)
    }
}

/// Why a piece of work that was asked for in a request has no answer, when that is not the fault of what was given.
pub fn no_answer(error: ChildError) -> Error {
    match error {
        ChildError::Busy | ChildError::NotStarted(_) => Error::unavailable(error),
        error => Error::internal(error),
    }
}

/// A [`platform_child::Work`] as a function over values: JSON in, JSON out. What is not JSON ends the child.
pub fn json_work<I: DeserializeOwned, O: Serialize>(input: &[u8], work: impl FnOnce(I) -> O) -> Vec<u8> {
    let input = serde_json::from_slice(input).expect("the pool writes JSON");
    serde_json::to_vec(&work(input)).expect("answers are JSON")
}
