use std::{
    hash::Hash,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use moka::sync::Cache;
use platform_core::Result;

use crate::{Bus, Notice};

/// Bytes that any entry takes.
const ENTRY: usize = 1024;
/// A process that is killed after a commit tells nobody of it.
const LONGEST: Duration = Duration::from_mins(1);

/// How much a cache holds.
pub enum Capacity<V> {
    /// Entries, where all are small.
    Entries(u64),
    /// Bytes of memory, where clients choose how large one is; and what one takes, about.
    Bytes(u64, fn(&V) -> usize),
}

impl<V: Send + Sync + 'static> Capacity<V> {
    fn of_cache<K: Hash + Eq + Send + Sync + 'static>(self) -> Cache<K, Arc<V>> {
        let cache = Cache::builder().time_to_live(LONGEST);
        match self {
            Self::Entries(most) => cache.max_capacity(most).build(),
            Self::Bytes(most, size) => {
                let weigh = move |_: &K, value: &Arc<V>| u32::try_from(ENTRY + size(value)).unwrap_or(u32::MAX);
                cache.max_capacity(most).weigher(weigh).build()
            }
        }
    }
}

/// A bounded cache of what was read from the database, which every process forgets at once
/// when a change is told under its topic, and after a minute in any case.
///
/// Where changes are rare next to reads, a change empties it: none can be missed.
pub struct InvalidatedCache<K, V> {
    known: Cache<K, Arc<V>>,
    generation: AtomicU64,
    topic: &'static str,
    bus: Bus,
    /// What is forgotten when something of this id changes.
    forget: fn(&Self, &str),
}

impl<K, V> InvalidatedCache<K, V>
where
    K: Hash + Eq + Send + Sync + Clone + 'static,
    V: Send + Sync + 'static,
{
    /// Forgets on every notice under `topic`.
    pub fn new(bus: &Bus, topic: &'static str, capacity: Capacity<V>) -> Arc<Self> {
        Self::hearing(bus, topic, capacity, |cache, _| cache.forget_all())
    }

    fn hearing(bus: &Bus, topic: &'static str, capacity: Capacity<V>, forget: fn(&Self, &str)) -> Arc<Self> {
        let known = capacity.of_cache();
        let remembered = Arc::new(Self { known, generation: AtomicU64::new(0), topic, bus: bus.clone(), forget });
        let cache = Arc::downgrade(&remembered);
        bus.forgets(move |notice| {
            let Some(cache) = cache.upgrade() else { return };
            match notice {
                Notice::Changed { topic: other, .. } if other != topic => {}
                Notice::Changed { id, .. } => (cache.forget)(&cache, id),
                Notice::Missed => cache.forget_all(),
            }
        });
        remembered
    }

    /// What is remembered, or else what `load` finds. What does not exist is not remembered.
    pub async fn get_or_load(&self, key: &K, load: impl Future<Output = Result<Option<V>>>) -> Result<Option<Arc<V>>> {
        if let Some(known) = self.known.get(key) {
            return Ok(Some(known));
        }
        let generation = self.generation.load(Ordering::Acquire);
        let Some(found) = load.await?.map(Arc::new) else { return Ok(None) };
        // What was read before a change must not be remembered after it.
        if self.generation.load(Ordering::Acquire) == generation {
            self.known.insert(key.clone(), Arc::clone(&found));
            // What is too much goes now: a few large ones are.
            self.known.run_pending_tasks();
            // Nor what changed between the look and this.
            if self.generation.load(Ordering::Acquire) != generation {
                self.known.invalidate(key);
            }
        }
        Ok(Some(found))
    }

    /// Says, after the commit, that `id` changed: this process forgets now, the others when they hear.
    pub async fn changed(&self, id: &str) -> Result<()> {
        self.bus.tell(self.topic, id).await
    }

    /// Forgets everything, in this process alone.
    pub fn forget_all(&self) {
        self.generation.fetch_add(1, Ordering::AcqRel);
        self.known.invalidate_all();
    }
}

impl<V: Send + Sync + 'static> InvalidatedCache<String, V> {
    /// The same for what changes often: a change forgets the entry of its id alone; that of the empty id all.
    pub fn by_id(bus: &Bus, topic: &'static str, capacity: Capacity<V>) -> Arc<Self> {
        Self::hearing(bus, topic, capacity, |cache, id| {
            if id.is_empty() {
                return cache.forget_all();
            }
            cache.generation.fetch_add(1, Ordering::AcqRel);
            cache.known.invalidate(id);
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[tokio::test]
    async fn a_cache_has_forgotten_before_anybody_hears_of_a_change() {
        let bus = Bus::local();
        let cache = InvalidatedCache::<String, u8>::by_id(&bus, "number", Capacity::Entries(9));
        let key = "one".to_owned();
        let read = async |now: u8| *cache.get_or_load(&key, async { Ok(Some(now)) }).await.expect("read").expect("one");
        assert_eq!((read(1).await, read(2).await), (1, 1), "it is remembered");
        let (heard, has_heard) = (Mutex::new(bus.subscribe()), Arc::new(AtomicU64::new(0)));
        let noted = Arc::clone(&has_heard);
        bus.forgets(move |_| {
            let is_told = heard.lock().expect("the lock").try_recv().is_ok();
            noted.fetch_add(is_told.into(), Ordering::Relaxed);
        });
        for other in [("letter", "one"), ("number", "two")] {
            bus.tell(other.0, other.1).await.expect("told");
            assert_eq!(read(2).await, 1, "another thing changed: {other:?}");
        }
        bus.tell("number", "one").await.expect("told");
        assert_eq!(read(3).await, 3);
        assert_eq!(has_heard.load(Ordering::Relaxed), 2, "each is told after it was forgotten, and before the next");
    }
}
