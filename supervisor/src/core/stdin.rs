//! Numbered input: each message is written once, whoever repeats it.
//!
//! The hash of every number is kept, so that a gateway that was restored from an older database and sends other
//! bytes under a used number is told (H7) instead of having its input swallowed.

use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};

/// A SHA-256.
pub type Hash = [u8; 32];

/// What a message is answered with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Offer {
    /// It is queued for writing; the answer comes when it is written.
    Accepted,
    /// The same message is queued already; the answer comes when it is written.
    Pending,
    /// The same message was written before.
    Written,
    /// The number was used for other bytes.
    Conflict,
    /// A number before it is missing.
    Gap {
        /// The number that is due.
        expected: u64,
    },
    /// No room: the sender keeps it and tries again.
    Busy,
    /// The number was written so long ago that its hash is no longer known.
    Forgotten,
}

/// Everything that a [`Stdin`] knows, to be handed to the next program image (H14).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StdinState {
    accepted: u64,
    written: u64,
    /// Bytes of the first waiting message that are in the pipe already.
    front_done: usize,
    /// How many messages wait.
    waiting: usize,
    /// Number and hash of each message that is remembered, [`HASHED_BYTES`] each.
    #[serde(skip)]
    hashes: Vec<u8>,
    /// The messages that wait.
    #[serde(skip)]
    queue: Vec<Vec<u8>>,
}

/// A number and its hash.
const HASHED_BYTES: usize = 8 + size_of::<Hash>();

impl StdinState {
    /// Number of messages that wait, and so of buffers in [`Self::bulk`].
    #[must_use]
    pub const fn waiting(&self) -> usize {
        self.waiting
    }

    /// What is too large for the description, in a fixed order.
    pub fn bulk(&mut self) -> Vec<&mut Vec<u8>> {
        self.queue.resize_with(self.waiting, Vec::new);
        std::iter::once(&mut self.hashes).chain(&mut self.queue).collect()
    }
}

/// What is written, what waits, and what was promised.
#[derive(Debug)]
pub struct Stdin {
    accepted: u64,
    written: u64,
    hashes: BTreeMap<u64, Hash>,
    queue: VecDeque<Vec<u8>>,
    queued_bytes: usize,
    front_done: usize,
    queued_bytes_max: usize,
    hashes_max: usize,
}

impl Stdin {
    /// Nothing written yet; at most `queued_bytes_max` bytes wait and `hashes_max` hashes are remembered.
    #[must_use]
    pub const fn new(queued_bytes_max: usize, hashes_max: usize) -> Self {
        Self {
            accepted: 0,
            written: 0,
            hashes: BTreeMap::new(),
            queue: VecDeque::new(),
            queued_bytes: 0,
            front_done: 0,
            queued_bytes_max,
            hashes_max,
        }
    }

    /// Everything up to `written` was written by an earlier supervisor, which took the hashes with it.
    pub const fn restore(&mut self, written: u64) {
        self.accepted = written;
        self.written = written;
    }

    /// Everything it knows.
    #[must_use]
    pub fn freeze(self) -> StdinState {
        let hashed = |(seq, hash): (u64, Hash)| seq.to_be_bytes().into_iter().chain(hash);
        StdinState {
            accepted: self.accepted,
            written: self.written,
            front_done: self.front_done,
            waiting: self.queue.len(),
            hashes: self.hashes.into_iter().flat_map(hashed).collect(),
            queue: self.queue.into(),
        }
    }

    /// Goes on where another one was frozen.
    #[must_use]
    pub fn thaw(state: StdinState, queued_bytes_max: usize, hashes_max: usize) -> Self {
        let hashed = |piece: &[u8]| {
            let (seq, hash) = piece.split_first_chunk::<8>()?;
            Some((u64::from_be_bytes(*seq), Hash::try_from(hash).ok()?))
        };
        Self {
            accepted: state.accepted,
            written: state.written,
            hashes: state.hashes.chunks(HASHED_BYTES).filter_map(hashed).collect(),
            queued_bytes: state.queue.iter().map(Vec::len).sum(),
            queue: state.queue.into(),
            front_done: state.front_done,
            queued_bytes_max,
            hashes_max,
        }
    }

    /// Highest number accepted.
    #[must_use]
    pub const fn accepted(&self) -> u64 {
        self.accepted
    }

    /// Highest number whose last byte is in the pipe.
    #[must_use]
    pub const fn written(&self) -> u64 {
        self.written
    }

    /// Bytes that wait for the pipe.
    #[must_use]
    pub const fn queued_bytes(&self) -> usize {
        self.queued_bytes
    }

    /// A message arrives.
    pub fn offer(&mut self, seq: u64, hash: Hash, bytes: Vec<u8>) -> Offer {
        if seq == 0 {
            return Offer::Gap { expected: self.accepted + 1 };
        }
        if seq <= self.accepted {
            return match self.hashes.get(&seq) {
                None => Offer::Forgotten,
                Some(known) if *known != hash => Offer::Conflict,
                Some(_) if seq <= self.written => Offer::Written,
                Some(_) => Offer::Pending,
            };
        }
        if seq != self.accepted + 1 {
            return Offer::Gap { expected: self.accepted + 1 };
        }
        let fits = self.queued_bytes.saturating_add(bytes.len()) <= self.queued_bytes_max;
        if !fits && !self.queue.is_empty() {
            return Offer::Busy;
        }
        self.accepted = seq;
        self.hashes.insert(seq, hash);
        if self.hashes.len() > self.hashes_max {
            self.hashes.pop_first();
        }
        self.queued_bytes += bytes.len();
        self.queue.push_back(bytes);
        Offer::Accepted
    }

    /// The bytes to write next; `None` when nothing waits.
    #[must_use]
    pub fn next(&self) -> Option<&[u8]> {
        self.queue.front().map(|bytes| bytes.get(self.front_done..).unwrap_or_default())
    }

    /// The pipe took `count` bytes. Returns the number that is now wholly written, if one is.
    pub fn wrote(&mut self, count: usize) -> Option<u64> {
        let total = self.queue.front()?.len();
        self.front_done += count;
        if self.front_done < total {
            return None;
        }
        self.queue.pop_front();
        self.queued_bytes -= total;
        self.front_done = 0;
        self.written += 1;
        Some(self.written)
    }

    /// The pipe is gone: drops what waits. What was accepted and not written never will be.
    pub fn abandon(&mut self) {
        self.queue.clear();
        self.queued_bytes = 0;
        self.front_done = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn hash(byte: u8) -> Hash {
        [byte; 32]
    }

    /// As it is after a handover: the description as JSON, the bulk beside it.
    fn carried(mut state: StdinState) -> StdinState {
        let bulk: Vec<Vec<u8>> = state.bulk().into_iter().map(|bytes| bytes.clone()).collect();
        let text = serde_json::to_string(&state).unwrap_or_default();
        let mut read: StdinState = serde_json::from_str(&text).unwrap_or_default();
        for (to, from) in read.bulk().into_iter().zip(bulk) {
            *to = from;
        }
        assert_eq!(read, state);
        read
    }

    #[test]
    fn numbers_are_accepted_once() {
        let mut stdin = Stdin::new(10, 2);
        for (seq, byte, len, want) in [
            (0, 1, 1, Offer::Gap { expected: 1 }),
            (2, 1, 1, Offer::Gap { expected: 1 }),
            (1, 1, 4, Offer::Accepted),
            (1, 1, 4, Offer::Pending),
            (1, 9, 4, Offer::Conflict),
            (2, 2, 6, Offer::Accepted),
            (3, 3, 1, Offer::Busy),
        ] {
            assert_eq!(stdin.offer(seq, hash(byte), vec![byte; len]), want, "{seq} {byte}");
        }
        assert_eq!(stdin.next(), Some(&[1u8; 4][..]));
        assert_eq!(stdin.wrote(3), None);
        assert_eq!(stdin.next(), Some(&[1u8][..]));
        assert_eq!(stdin.wrote(1), Some(1));
        assert_eq!(stdin.offer(1, hash(1), vec![1; 4]), Offer::Written);
        assert_eq!(stdin.offer(1, hash(2), vec![1; 4]), Offer::Conflict);
        assert_eq!(stdin.offer(3, hash(3), vec![3]), Offer::Accepted);
        assert_eq!(stdin.offer(1, hash(1), vec![1; 4]), Offer::Forgotten);
        assert_eq!((stdin.accepted(), stdin.written()), (3, 1));
        stdin.abandon();
        assert_eq!(stdin.next(), None);
    }

    #[test]
    fn one_message_over_the_limit_is_taken_alone() {
        let mut stdin = Stdin::new(10, 9);
        assert_eq!(stdin.offer(1, hash(1), vec![0; 50]), Offer::Accepted);
        assert_eq!(stdin.offer(2, hash(2), vec![0; 1]), Offer::Busy);
        assert_eq!(stdin.wrote(50), Some(1));
        assert_eq!(stdin.offer(2, hash(2), vec![0; 1]), Offer::Accepted);
    }

    #[test]
    fn an_empty_message_counts() {
        let mut stdin = Stdin::new(10, 9);
        assert_eq!(stdin.offer(1, hash(1), vec![]), Offer::Accepted);
        assert_eq!(stdin.next(), Some(&[][..]));
        assert_eq!(stdin.wrote(0), Some(1));
    }

    proptest! {
        /// However a sender repeats, skips and is refused, the bytes written are the accepted ones in order.
        #[test]
        fn written_is_accepted_in_order(
            steps in prop::collection::vec((0u64..5, 0usize..7, any::<bool>(), any::<bool>()), 0..80),
        ) {
            let mut stdin = Stdin::new(16, 1000);
            let mut accepted: Vec<u8> = Vec::new();
            let mut written: Vec<u8> = Vec::new();
            for (ahead, len, drain, freeze) in steps {
                if freeze {
                    stdin = Stdin::thaw(carried(stdin.freeze()), 16, 1000);
                }
                let seq = (stdin.accepted() + ahead).saturating_sub(1);
                let bytes = vec![u8::try_from(seq % 250).unwrap_or(0); len];
                let known = seq > 0 && seq <= stdin.accepted();
                prop_assert!(!known || stdin.offer(seq, hash(2), bytes.clone()) == Offer::Conflict);
                if stdin.offer(seq, hash(1), bytes.clone()) == Offer::Accepted {
                    accepted.extend(bytes);
                }
                if drain && let Some(next) = stdin.next() {
                    let take = next.len().min(3);
                    written.extend(next.iter().take(take));
                    stdin.wrote(take);
                }
            }
            while let Some(next) = stdin.next() {
                let all = next.to_vec();
                written.extend(&all);
                stdin.wrote(all.len());
            }
            prop_assert_eq!(stdin.written(), stdin.accepted());
            prop_assert_eq!(written, accepted);
        }
    }
}
