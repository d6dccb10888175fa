use std::{ops::RangeInclusive, sync::Arc};

use async_trait::async_trait;
use platform_core::{AccountId, Result, Timestamp, ascii_words, search_words};
use serde::Serialize;

use crate::{MemoryBucket, Role};

/// Bytes of a message, and of a turn, that count.
const MAX_SAID: usize = 1500;
const MAX_TURN: usize = 2900;
/// Messages of a turn that count: what was asked, and how it ended.
const MAX_MESSAGES: usize = 3;

/// The port to what was said in the chats of a bucket.
#[async_trait]
pub trait EarlierTurns: Send + Sync {
    /// The newest turns of its chats, the newest first, without those of one chat.
    async fn newest(
        &self,
        account: &AccountId,
        bucket: &MemoryBucket,
        but: &str,
        most: usize,
    ) -> Result<Vec<Arc<EarlierTurn>>>;

    /// Turns of its chats in which one of these words is said, also of those that are long over, the newest first.
    async fn saying(
        &self,
        account: &AccountId,
        bucket: &MemoryBucket,
        but: &str,
        words: &[String],
    ) -> Result<Vec<Arc<EarlierTurn>>>;
}

/// What was said once, with its words told apart, so that it can be searched often.
#[derive(Debug)]
pub struct EarlierTurn {
    /// The chat.
    pub chat: String,
    /// Where its messages stand in the chat.
    pub positions: RangeInclusive<i32>,
    /// When it was said.
    pub at: Timestamp,
    /// Messages of users and assistants, the oldest first.
    pub said: Vec<SaidOnce>,
    /// Its words, one after the other.
    pub words: Box<[WordHash]>,
}

/// A message of an earlier turn.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SaidOnce {
    /// Who spoke.
    pub role: Role,
    /// What was said.
    pub content: String,
}

/// A word of a turn or of a question, in upper case or lower: its FNV-1a hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct WordHash(u32);

impl WordHash {
    /// The words of a text, as [`search_words`] has them, in its order.
    pub fn all(text: &str) -> Vec<Self> {
        if text.is_ascii() {
            return ascii_words(text).map(Self::of).collect();
        }
        let words = search_words(text).to_lowercase();
        words.split(' ').filter(|word| !word.is_empty()).map(Self::of).collect()
    }

    fn of(word: &str) -> Self {
        let add = |hash: u32, byte: u8| (hash ^ u32::from(byte.to_ascii_lowercase())).wrapping_mul(0x0100_0193);
        Self(word.bytes().fold(0x811c_9dc5, add))
    }
}

impl EarlierTurn {
    /// A whole turn of a chat: of many messages the first and the last two count.
    pub fn whole(chat: String, positions: RangeInclusive<i32>, at: Timestamp, mut said: Vec<SaidOnce>) -> Self {
        if said.len() > MAX_MESSAGES {
            said.drain(1..=said.len() - MAX_MESSAGES);
        }
        Self::new(chat, positions, at, said)
    }

    /// What was said in a chat: of each message the first 1,500 bytes count, of all together 2,900.
    pub fn new(chat: String, positions: RangeInclusive<i32>, at: Timestamp, mut said: Vec<SaidOnce>) -> Self {
        let mut left = MAX_TURN;
        for message in &mut said {
            message.content.truncate(message.content.floor_char_boundary(left.min(MAX_SAID)));
            message.content.shrink_to_fit();
            left -= message.content.len();
        }
        said.retain(|message| !message.content.is_empty());
        said.shrink_to_fit();
        let words = said.iter().flat_map(|message| WordHash::all(&message.content)).collect();
        Self { chat, positions, at, said, words }
    }

    /// Whether all of another is in it.
    pub fn holds(&self, other: &Self) -> bool {
        let (these, those) = (&self.positions, &other.positions);
        let overlaps = these.start() <= those.end() && those.start() <= these.end();
        self.chat == other.chat && overlaps && other.said.iter().all(|said| self.said.contains(said))
    }

    /// How often a word is said.
    pub fn count(&self, word: WordHash) -> usize {
        self.words.iter().filter(|said| **said == word).count()
    }

    /// Bytes that it takes.
    pub fn size(&self) -> usize {
        let said = self.said.iter().map(|said| size_of::<SaidOnce>() + said.content.len()).sum::<usize>();
        size_of::<Self>() + self.chat.len() + said + size_of_val(&*self.words)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_keeps_its_first_and_last_words_cut_and_finds_them_by_parts_of_names() {
        let said = |content: String| SaidOnce { role: Role::Assistant, content };
        let many = (0..9).map(|_| said("\u{e4}".repeat(1000))).collect();
        let turn = |said| EarlierTurn::whole("c".to_owned(), 0..=1, Timestamp(0), said);
        let kept = turn(many).said;
        assert_eq!(kept.iter().map(|said| said.content.len()).collect::<Vec<_>>(), [1500, 1400]);
        assert_eq!(kept[0].content.capacity(), 1500, "what is cut off takes no memory");
        let words = |turn: EarlierTurn| turn.said.into_iter().map(|said| said.content).collect::<Vec<_>>();
        let counted = |most: usize| (0..most).map(|n| said(n.to_string())).collect();
        assert_eq!(words(turn(counted(6))), ["0", "4", "5"]);
        let hashes = |text: &str| WordHash::all(text);
        assert_eq!(hashes("getUserName, Ärger; NOT_found"), hashes("GET user name ÄRGER not Found"));
        assert_eq!(hashes("getUser"), hashes("get user"));
        for few in 0..4 {
            assert_eq!(words(turn(counted(few))).len(), few);
        }
    }
}
