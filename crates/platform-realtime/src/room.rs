//! Room for large frames: each counts for its account until its last reader has it.

use std::sync::{Arc, Mutex, Weak};

use bytes::Bytes;
use platform_core::{AccountId, FairMemory, FairPermit};

/// Room for the frames of an account that some reader has yet to take.
#[derive(Debug, Clone)]
pub(crate) struct Room {
    memory: FairMemory,
    account: AccountId,
}

/// A large frame in its room, until its last reader has it.
#[derive(Debug)]
struct Held {
    frame: String,
    _permit: FairPermit,
}

struct Shared(Arc<Held>);

impl AsRef<[u8]> for Shared {
    fn as_ref(&self) -> &[u8] {
        self.0.frame.as_bytes()
    }
}

/// A frame for whoever comes next: a large one as long as some reader has yet to take it.
#[derive(Debug)]
enum Known {
    Small(Bytes),
    Large(Weak<Held>),
}

/// The frame that was encoded last, by what it depends on, and whether it holds the message that is being written.
#[derive(Debug)]
pub(crate) struct Newest<K>(Mutex<Option<(K, Known, bool)>>);

impl<K> Default for Newest<K> {
    fn default() -> Self {
        Self(Mutex::new(None))
    }
}

impl<K: PartialEq> Newest<K> {
    /// The frame as it is known, else as it is encoded now; whoever asks meanwhile waits for it.
    pub fn get_or(&self, key: K, encode: impl FnOnce() -> Option<Encoded>) -> Option<(Bytes, bool)> {
        let mut newest = self.0.lock().expect("no holder of this lock panics");
        let known = newest.as_ref().filter(|(known, ..)| *known == key).and_then(|(_, known, is_whole)| {
            let frame = match known {
                Known::Small(frame) => frame.clone(),
                Known::Large(held) => Bytes::from_owner(Shared(held.upgrade()?)),
            };
            Some((frame, *is_whole))
        });
        if known.is_some() {
            return known;
        }
        let Encoded { frame, known, is_whole } = encode()?;
        *newest = known.map(|known| (key, known, is_whole));
        Some((frame, is_whole))
    }
}

/// A frame as it is encoded.
pub(crate) struct Encoded {
    frame: Bytes,
    /// `None`: it is for nobody else.
    known: Option<Known>,
    /// Whether all is in it that was to be.
    is_whole: bool,
}

impl Encoded {
    /// One that needs no room.
    pub fn small(frame: String, is_whole: bool) -> Self {
        let frame = Bytes::from(frame);
        Self { known: Some(Known::Small(frame.clone())), frame, is_whole }
    }

    /// The same for nobody else: who comes when there is room again is shown the whole.
    #[must_use]
    pub fn for_nobody_else(self) -> Self {
        Self { known: None, ..self }
    }
}

impl Room {
    pub fn new(memory: &FairMemory, account: &AccountId) -> Self {
        Self { memory: memory.clone(), account: account.clone() }
    }

    /// A place for a frame of so many bytes, if there is one.
    pub fn reserve(&self, bytes: usize) -> Option<Place> {
        self.memory.try_hold(&self.account, bytes).ok().map(Place)
    }
}

/// Where a frame goes; a small one needs no permit.
pub(crate) struct Place(Option<FairPermit>);

impl Place {
    /// The frame in its place.
    pub fn keep(self, frame: String) -> Encoded {
        let Some(permit) = self.0 else { return Encoded::small(frame, true) };
        let held = Arc::new(Held { frame, _permit: permit });
        let known = Some(Known::Large(Arc::downgrade(&held)));
        Encoded { frame: Bytes::from_owner(Shared(held)), known, is_whole: true }
    }
}
