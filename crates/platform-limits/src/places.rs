use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// How much at once: places in all, of which nobody holds more than a share.
pub struct Places {
    each: usize,
    all: Arc<Semaphore>,
    shares: Mutex<HashMap<String, Arc<Semaphore>>>,
}

/// A place; it is given back when this is dropped.
pub struct Place {
    places: Arc<Places>,
    whose: String,
    share: Arc<Semaphore>,
    permits: Option<(OwnedSemaphorePermit, OwnedSemaphorePermit)>,
}

impl Places {
    /// `most` in all and `each` for one holder; 0 = no bound.
    pub fn new(most: usize, each: usize) -> Arc<Self> {
        Arc::new(Self { each, all: Arc::new(Semaphore::new(bound(most))), shares: Mutex::default() })
    }

    /// A place now; `None` when there is none.
    pub fn try_take(self: &Arc<Self>, whose: &str) -> Option<Place> {
        let mut place = self.place(whose);
        let own = Arc::clone(&place.share).try_acquire_owned().ok()?;
        place.permits = Some((own, Arc::clone(&self.all).try_acquire_owned().ok()?));
        Some(place)
    }

    /// A place as soon as there is one, in turn; `None` when there was none for so long.
    pub async fn take(self: &Arc<Self>, whose: &str, patience: Duration) -> Option<Place> {
        let mut place = self.place(whose);
        // The own share comes first: who holds much waits where nobody else does.
        let waiting = async {
            let own = Arc::clone(&place.share).acquire_owned().await.ok()?;
            Some((own, Arc::clone(&self.all).acquire_owned().await.ok()?))
        };
        place.permits = Some(tokio::time::timeout(patience, waiting).await.ok()??);
        Some(place)
    }

    fn place(self: &Arc<Self>, whose: &str) -> Place {
        let mut shares = self.shares.lock().expect("lock");
        let share = shares.entry(whose.to_owned()).or_insert_with(|| Arc::new(Semaphore::new(bound(self.each))));
        Place { places: Arc::clone(self), whose: whose.to_owned(), share: Arc::clone(share), permits: None }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.permits = None;
        let mut shares = self.places.shares.lock().expect("lock");
        // Nobody else has or wants a place of this share.
        if Arc::strong_count(&self.share) == 2 {
            shares.remove(&self.whose);
        }
    }
}

fn bound(most: usize) -> usize {
    if most == 0 { Semaphore::MAX_PERMITS } else { most.min(Semaphore::MAX_PERMITS) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::ZERO;

    #[tokio::test]
    async fn nobody_holds_more_than_a_share_and_all_no_more_than_there_is() {
        let places = Places::new(3, 2);
        let held = [places.try_take("a").expect("a place"), places.take("a", NOW).await.expect("a place")];
        assert!(places.try_take("a").is_none() && places.take("a", NOW).await.is_none());
        let other = places.try_take("b").expect("a place of somebody else");
        assert!(places.try_take("c").is_none(), "all are taken");
        let waiting = places.take("a", Duration::from_mins(1));
        let ((), given) = tokio::join!(async { drop(held) }, waiting);
        assert!(given.is_some());
        drop((given, other));
        assert!(places.shares.lock().expect("lock").is_empty(), "nothing is kept of who holds nothing");
        let unbounded = Places::new(0, 0);
        assert_eq!((0..1000).filter_map(|_| unbounded.try_take("a")).count(), 1000);
    }
}
