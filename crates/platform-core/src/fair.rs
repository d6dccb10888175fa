use std::{
    collections::{HashMap, VecDeque},
    hash::Hash,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::oneshot;

use crate::AccountId;

/// An account that holds some may hold so many times what is left for others.
const OVER_FREE: usize = 3;

/// A semaphore that many accounts share (or addresses, or whoever `K` names): none can take all permits, and those that
/// wait are served in turn.
///
/// An account holds at most its share, and beyond its first permit at most three times what is still free, so that
/// whoever comes next finds a permit. A permit that is given back goes to the account that waited longest since it
/// was last served, whatever the number of its waiters. Dropping the future of [`FairSemaphore::acquire`] gives up the
/// place in the queue.
#[derive(Debug)]
pub struct FairSemaphore<K: Eq + Hash + Clone = AccountId>(Arc<Shared<K>>);

#[derive(Debug)]
struct Shared<K: Eq + Hash + Clone> {
    share: usize,
    state: Mutex<State<K>>,
}

#[derive(Debug)]
struct State<K: Eq + Hash + Clone> {
    free: usize,
    held: HashMap<K, usize>,
    waiting: HashMap<K, VecDeque<Waiter<K>>>,
    /// Accounts that wait, the one that was served longest ago first.
    turn: VecDeque<K>,
}

/// Who waits for so many permits.
#[derive(Debug)]
struct Waiter<K: Eq + Hash + Clone> {
    count: usize,
    served: oneshot::Sender<FairPermit<K>>,
}

/// A permit of one account, or several; dropping it gives them back.
#[derive(Debug)]
pub struct FairPermit<K: Eq + Hash + Clone = AccountId> {
    of: Arc<Shared<K>>,
    account: K,
    count: usize,
}

impl<K: Eq + Hash + Clone> Clone for FairSemaphore<K> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<K: Eq + Hash + Clone> FairSemaphore<K> {
    /// `permits` in all; `share`: the most that one account holds; 0 = no bound.
    pub fn new(permits: usize, share: usize) -> Self {
        let bound = |most| if most == 0 { usize::MAX } else { most };
        let (held, waiting, turn) = (HashMap::new(), HashMap::new(), VecDeque::new());
        let state = State { free: bound(permits), held, waiting, turn };
        Self(Arc::new(Shared { share: bound(share), state: Mutex::new(state) }))
    }

    /// Waits for a permit.
    pub async fn acquire(&self, account: &K) -> FairPermit<K> {
        self.acquire_many(account, 1).await
    }

    /// Waits for several at once; more than a share are as many as that.
    pub async fn acquire_many(&self, account: &K, count: usize) -> FairPermit<K> {
        let count = count.min(self.0.share);
        let waiter = {
            let mut state = self.0.state();
            if state.takes_now(account, count, self.0.share) {
                return FairPermit { of: Arc::clone(&self.0), account: account.clone(), count };
            }
            let (served, waiter) = oneshot::channel();
            if !state.waiting.contains_key(account) {
                state.turn.push_back(account.clone());
            }
            state.waiting.entry(account.clone()).or_default().push_back(Waiter { count, served });
            waiter
        };
        waiter.await.expect("who waits is served, or nobody holds the semaphore any more")
    }

    /// A permit if there is one at once.
    pub fn try_acquire(&self, account: &K) -> Option<FairPermit<K>> {
        self.try_acquire_many(account, 1)
    }

    /// Several, if there are as many at once.
    pub fn try_acquire_many(&self, account: &K, count: usize) -> Option<FairPermit<K>> {
        let count = count.min(self.0.share);
        let takes = self.0.state().takes_now(account, count, self.0.share);
        takes.then(|| FairPermit { of: Arc::clone(&self.0), account: account.clone(), count })
    }

    /// Permits that nobody holds.
    pub fn free(&self) -> usize {
        self.0.state().free
    }
}

/// Bytes that one permit of [`FairMemory`] stands for.
const PIECE: usize = 64 * 1024;

/// There is no room at the moment.
#[derive(Debug)]
pub struct NoRoom;

/// Memory that accounts share as they share the permits of a [`FairSemaphore`], in pieces of 64 KiB.
#[derive(Debug, Clone)]
pub struct FairMemory<K: Eq + Hash + Clone = AccountId>(FairSemaphore<K>);

impl<K: Eq + Hash + Clone> FairMemory<K> {
    /// `bytes` in all; `share`: the most that one account holds.
    pub fn new(bytes: usize, share: usize) -> Self {
        Self(FairSemaphore::new(bytes / PIECE, share / PIECE))
    }

    /// Waits for room for so many bytes; what is less than a piece needs none. More than a share are as many as that.
    pub async fn hold(&self, account: &K, bytes: usize) -> Option<FairPermit<K>> {
        match bytes / PIECE {
            0 => None,
            pieces => Some(self.0.acquire_many(account, pieces).await),
        }
    }

    /// Bytes that an account holds.
    pub fn held(&self, account: &K) -> usize {
        self.0.0.state().held.get(account).map_or(0, |pieces| pieces * PIECE)
    }

    /// The same if there is room at once.
    pub fn try_hold(&self, account: &K, bytes: usize) -> Result<Option<FairPermit<K>>, NoRoom> {
        match bytes / PIECE {
            0 => Ok(None),
            pieces => self.0.try_acquire_many(account, pieces).map(Some).ok_or(NoRoom),
        }
    }
}

impl<K: Eq + Hash + Clone> Shared<K> {
    fn state(&self) -> MutexGuard<'_, State<K>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Eq + Hash + Clone> State<K> {
    fn may_take(&self, account: &K, count: usize, share: usize) -> bool {
        let held = self.held.get(account).copied().unwrap_or(0);
        let Some(left) = self.free.checked_sub(count) else { return false };
        held + count <= share && (held == 0 || held + count <= left.saturating_add(1).saturating_mul(OVER_FREE))
    }

    /// Takes permits for whoever waits for none yet, if there are as many.
    fn takes_now(&mut self, account: &K, count: usize, share: usize) -> bool {
        let takes = !self.waiting.contains_key(account) && self.may_take(account, count, share);
        if takes {
            self.take(account, count);
        }
        takes
    }

    fn take(&mut self, account: &K, count: usize) {
        self.free -= count;
        *self.held.entry(account.clone()).or_default() += count;
    }

    fn give_back(&mut self, account: &K, count: usize) {
        self.free += count;
        if let Some(held) = self.held.get_mut(account) {
            *held -= count;
            if *held == 0 {
                self.held.remove(account);
            }
        }
    }

    /// Takes the permits for whoever is next, if somebody may have them.
    fn serve_next(&mut self, share: usize) -> Option<(K, Waiter<K>)> {
        let mut at = 0;
        while let Some(account) = self.turn.get(at).cloned() {
            let waiters = self.waiting.entry(account.clone()).or_default();
            while waiters.pop_front_if(|waiter| waiter.served.is_closed()).is_some() {}
            let Some(count) = waiters.front().map(|waiter| waiter.count) else {
                self.waiting.remove(&account);
                self.turn.remove(at);
                continue;
            };
            if !self.may_take(&account, count, share) {
                at += 1;
                continue;
            }
            self.turn.remove(at);
            self.take(&account, count);
            let waiters = self.waiting.get_mut(&account)?;
            let next = waiters.pop_front()?;
            if waiters.is_empty() {
                self.waiting.remove(&account);
            } else {
                self.turn.push_back(account.clone());
            }
            return Some((account, next));
        }
        None
    }
}

impl<K: Eq + Hash + Clone> Drop for FairPermit<K> {
    fn drop(&mut self) {
        self.of.state().give_back(&self.account, self.count);
        loop {
            let next = self.of.state().serve_next(self.of.share);
            let Some((account, Waiter { count, served })) = next else { return };
            // A waiter that left at this moment drops the permit here, which serves the next one.
            drop(served.send(FairPermit { of: Arc::clone(&self.of), account, count }));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{future::Future, pin::pin, task::Context, task::Poll, task::Waker};

    use super::*;

    fn now<T>(future: impl Future<Output = T>) -> Option<T> {
        match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(value) => Some(value),
            Poll::Pending => None,
        }
    }

    #[test]
    fn one_account_leaves_room_for_others_and_those_that_wait_are_served_in_turn() {
        let semaphore = FairSemaphore::new(16, 14);
        let [a, b, c] = [(); 3].map(|()| AccountId::generate());
        let mut all_of_a: Vec<_> = std::iter::from_fn(|| now(semaphore.acquire(&a))).take(20).collect();
        assert_eq!(all_of_a.len(), 12, "three quarters");
        let of_b: Vec<_> = std::iter::from_fn(|| now(semaphore.acquire(&b))).take(20).collect();
        assert_eq!((of_b.len(), semaphore.free()), (3, 1));
        let of_c = now(semaphore.acquire(&c)).expect("whoever holds none gets the last one");

        let mut waker = Context::from_waker(Waker::noop());
        let mut first = Box::pin(semaphore.acquire(&a));
        let mut second = Box::pin(semaphore.acquire(&a));
        let mut left = Box::pin(semaphore.acquire(&b));
        let mut other = Box::pin(semaphore.acquire(&c));
        for waiter in [&mut first, &mut second, &mut left, &mut other] {
            assert!(waiter.as_mut().poll(&mut waker).is_pending());
        }
        drop(left);
        drop(of_c);
        assert!(first.as_mut().poll(&mut waker).is_pending(), "an account that holds many is not first");
        let Poll::Ready(of_c) = other.as_mut().poll(&mut waker) else { panic!("its turn") };
        all_of_a.truncate(2);
        assert!(first.as_mut().poll(&mut waker).is_ready() && second.as_mut().poll(&mut waker).is_ready());
        drop((all_of_a, of_b, of_c, first, second, other));
        assert_eq!(semaphore.free(), 16);
        let one = FairSemaphore::new(1, 1);
        let held = one.try_acquire(&"a").expect("it is free");
        assert!(one.try_acquire(&"a").is_none() && one.try_acquire(&"b").is_none(), "nobody waits");
        drop(held);
        assert!(one.try_acquire(&"a").is_some());
        let unbounded = FairSemaphore::new(0, 0);
        let held: Vec<_> = std::iter::repeat_with(|| now(unbounded.acquire(&"a"))).take(1000).collect();
        assert!(held.iter().all(Option::is_some));
    }

    #[test]
    fn whoever_wants_several_has_them_together_and_those_behind_it_wait_for_their_turn() {
        let semaphore = FairSemaphore::new(64, 32);
        let [a, b] = [(); 2].map(|()| AccountId::generate());
        let two: Vec<_> = (0..3).map_while(|_| now(semaphore.acquire_many(&a, 16))).collect();
        assert_eq!((two.len(), semaphore.free()), (2, 32), "a share");
        let mut waker = Context::from_waker(Waker::noop());
        let (mut large, mut small) = (Box::pin(semaphore.acquire_many(&a, 20)), Box::pin(semaphore.acquire(&a)));
        assert!(large.as_mut().poll(&mut waker).is_pending() && small.as_mut().poll(&mut waker).is_pending());
        let others: Vec<_> = (0..40).map_while(|_| now(semaphore.acquire(&b))).collect();
        assert!(others.len() >= 20, "{}", others.len());
        let mut two = two.into_iter();
        drop(two.next());
        assert!(large.as_mut().poll(&mut waker).is_pending(), "16 and 20 are more than a share");
        drop(two.next());
        let Poll::Ready(large) = large.as_mut().poll(&mut waker) else { panic!("its turn") };
        let Poll::Ready(small) = small.as_mut().poll(&mut waker) else { panic!("its turn") };
        drop((large, small, others));
        assert_eq!(now(semaphore.acquire_many(&a, 1000)).expect("a share").count, 32);
        assert_eq!(semaphore.free(), 64);
    }

    #[tokio::test]
    async fn permits_are_neither_lost_nor_doubled_when_waiters_leave_at_any_moment() {
        let semaphore = FairSemaphore::new(2, 1);
        let accounts: Vec<_> = (0..4).map(|_| AccountId::generate()).collect();
        let tasks: Vec<_> = (0..400)
            .map(|n| {
                let (semaphore, account) = (semaphore.clone(), accounts[n % 4].clone());
                crate::spawn("holder", async move {
                    let held = semaphore.acquire(&account);
                    let left = async {
                        for _ in 0..n % 7 {
                            tokio::task::yield_now().await;
                        }
                    };
                    tokio::select! { permit = held => { tokio::task::yield_now().await; drop(permit) } () = left => {} }
                })
            })
            .collect();
        for task in tasks {
            task.await.expect("a holder");
        }
        assert_eq!(semaphore.free(), 2);
    }
}
