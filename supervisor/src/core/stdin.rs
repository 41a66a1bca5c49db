//! Numbered input: each message is written once, no matter how often it is sent.
//!
//! The hash of each message is kept. A gateway that was restored from an older database and reuses a number
//! for other bytes gets an error (H7) instead of losing its input silently.

use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};

/// SHA-256 of a message.
pub type MessageHash = [u8; 32];

/// Result of offering a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OfferResult {
    /// Queued for writing. The reply is sent when the message is written.
    Accepted,
    /// The same message is queued already. The reply is sent when the message is written.
    Pending,
    /// The same message was written before.
    Written,
    /// The number was used for other bytes.
    Conflict,
    /// An earlier number is missing.
    Gap {
        /// Next expected number.
        expected: u64,
    },
    /// The queue is full: the sender must keep the message and retry.
    Busy,
    /// The number was written too long ago: its hash is no longer kept.
    Forgotten,
}

/// State of a [`Stdin`] for handover to the next program image (H14).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StdinState {
    accepted: u64,
    written: u64,
    /// Bytes of the first queued message that are already in the pipe.
    front_done: usize,
    /// Number of queued messages.
    waiting: usize,
    /// Number and hash of each remembered message, [`HASHED_BYTES`] each.
    #[serde(skip)]
    hashes: Vec<u8>,
    /// Queued messages.
    #[serde(skip)]
    queue: Vec<Vec<u8>>,
}

/// Size of a number and its hash.
const HASHED_BYTES: usize = 8 + size_of::<MessageHash>();

impl StdinState {
    /// Number of messages that wait, and so of buffers in [`Self::raw_buffers`].
    #[must_use]
    pub const fn queued_count(&self) -> usize {
        self.waiting
    }

    /// Returns the byte buffers that are too large for the JSON record, in a fixed order.
    pub fn raw_buffers(&mut self) -> Vec<&mut Vec<u8>> {
        self.queue.resize_with(self.waiting, Vec::new);
        std::iter::once(&mut self.hashes).chain(&mut self.queue).collect()
    }
}

/// Input queue of one adapter: numbers accepted and written, hashes, and queued messages.
#[derive(Debug)]
pub struct Stdin {
    accepted: u64,
    written: u64,
    hashes: BTreeMap<u64, MessageHash>,
    queue: VecDeque<Vec<u8>>,
    queued_bytes: usize,
    front_done: usize,
    queued_bytes_max: usize,
    hashes_max: usize,
}

impl Stdin {
    /// Creates an empty queue of at most `queued_bytes_max` bytes that remembers `hashes_max` hashes.
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

    /// Sets the highest written number of an earlier supervisor, whose hashes are unknown.
    pub const fn restore(&mut self, written: u64) {
        self.accepted = written;
        self.written = written;
    }

    /// Exports the state.
    #[must_use]
    pub fn export(self) -> StdinState {
        let hashed = |(seq, hash): (u64, MessageHash)| seq.to_be_bytes().into_iter().chain(hash);
        StdinState {
            accepted: self.accepted,
            written: self.written,
            front_done: self.front_done,
            waiting: self.queue.len(),
            hashes: self.hashes.into_iter().flat_map(hashed).collect(),
            queue: self.queue.into(),
        }
    }

    /// Imports an exported state.
    #[must_use]
    pub fn import(state: StdinState, queued_bytes_max: usize, hashes_max: usize) -> Self {
        let hashed = |piece: &[u8]| {
            let (seq, hash) = piece.split_first_chunk::<8>()?;
            Some((u64::from_be_bytes(*seq), MessageHash::try_from(hash).ok()?))
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

    /// Returns the highest accepted number.
    #[must_use]
    pub const fn accepted(&self) -> u64 {
        self.accepted
    }

    /// Returns the highest number whose last byte is in the pipe.
    #[must_use]
    pub const fn written(&self) -> u64 {
        self.written
    }

    /// Returns the number of bytes queued for the pipe.
    #[must_use]
    pub const fn queued_bytes(&self) -> usize {
        self.queued_bytes
    }

    /// Accepts, recognises or rejects a message.
    pub fn offer(&mut self, seq: u64, hash: MessageHash, bytes: Vec<u8>) -> OfferResult {
        if seq == 0 {
            return OfferResult::Gap { expected: self.accepted + 1 };
        }
        if seq <= self.accepted {
            return match self.hashes.get(&seq) {
                None => OfferResult::Forgotten,
                Some(known) if *known != hash => OfferResult::Conflict,
                Some(_) if seq <= self.written => OfferResult::Written,
                Some(_) => OfferResult::Pending,
            };
        }
        if seq != self.accepted + 1 {
            return OfferResult::Gap { expected: self.accepted + 1 };
        }
        let fits = self.queued_bytes.saturating_add(bytes.len()) <= self.queued_bytes_max;
        if !fits && !self.queue.is_empty() {
            return OfferResult::Busy;
        }
        self.accepted = seq;
        self.hashes.insert(seq, hash);
        if self.hashes.len() > self.hashes_max {
            self.hashes.pop_first();
        }
        self.queued_bytes += bytes.len();
        self.queue.push_back(bytes);
        OfferResult::Accepted
    }

    /// Returns the bytes to write next; `None` if the queue is empty.
    #[must_use]
    pub fn next(&self) -> Option<&[u8]> {
        self.queue.front().map(|bytes| bytes.get(self.front_done..).unwrap_or_default())
    }

    /// Records that the pipe took `count` bytes. Returns the number of the message that is now complete, if
    /// any.
    pub fn record_written(&mut self, count: usize) -> Option<u64> {
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

    /// Drops the queue because the pipe is gone. Accepted messages that were not written are lost.
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

    fn hash(byte: u8) -> MessageHash {
        [byte; 32]
    }

    /// Exports and imports the state: the description as JSON, buffers separately.
    fn hand_over(mut state: StdinState) -> StdinState {
        let bulk: Vec<Vec<u8>> = state.raw_buffers().into_iter().map(|bytes| bytes.clone()).collect();
        let text = serde_json::to_string(&state).unwrap_or_default();
        let mut read: StdinState = serde_json::from_str(&text).unwrap_or_default();
        for (to, from) in read.raw_buffers().into_iter().zip(bulk) {
            *to = from;
        }
        assert_eq!(read, state);
        read
    }

    #[test]
    fn stdin_sequence_numbers_are_accepted_once() {
        let mut stdin = Stdin::new(10, 2);
        for (seq, byte, len, want) in [
            (0, 1, 1, OfferResult::Gap { expected: 1 }),
            (2, 1, 1, OfferResult::Gap { expected: 1 }),
            (1, 1, 4, OfferResult::Accepted),
            (1, 1, 4, OfferResult::Pending),
            (1, 9, 4, OfferResult::Conflict),
            (2, 2, 6, OfferResult::Accepted),
            (3, 3, 1, OfferResult::Busy),
        ] {
            assert_eq!(stdin.offer(seq, hash(byte), vec![byte; len]), want, "{seq} {byte}");
        }
        assert_eq!(stdin.next(), Some(&[1u8; 4][..]));
        assert_eq!(stdin.record_written(3), None);
        assert_eq!(stdin.next(), Some(&[1u8][..]));
        assert_eq!(stdin.record_written(1), Some(1));
        assert_eq!(stdin.offer(1, hash(1), vec![1; 4]), OfferResult::Written);
        assert_eq!(stdin.offer(1, hash(2), vec![1; 4]), OfferResult::Conflict);
        assert_eq!(stdin.offer(3, hash(3), vec![3]), OfferResult::Accepted);
        assert_eq!(stdin.offer(1, hash(1), vec![1; 4]), OfferResult::Forgotten);
        assert_eq!((stdin.accepted(), stdin.written()), (3, 1));
        stdin.abandon();
        assert_eq!(stdin.next(), None);
    }

    #[test]
    fn oversized_stdin_message_is_accepted_alone() {
        let mut stdin = Stdin::new(10, 9);
        assert_eq!(stdin.offer(1, hash(1), vec![0; 50]), OfferResult::Accepted);
        assert_eq!(stdin.offer(2, hash(2), vec![0; 1]), OfferResult::Busy);
        assert_eq!(stdin.record_written(50), Some(1));
        assert_eq!(stdin.offer(2, hash(2), vec![0; 1]), OfferResult::Accepted);
    }

    #[test]
    fn empty_stdin_message_is_counted() {
        let mut stdin = Stdin::new(10, 9);
        assert_eq!(stdin.offer(1, hash(1), vec![]), OfferResult::Accepted);
        assert_eq!(stdin.next(), Some(&[][..]));
        assert_eq!(stdin.record_written(0), Some(1));
    }

    proptest! {
        /// The written bytes are the accepted ones in order, however messages are repeated, skipped and refused.
        #[test]
        fn written_bytes_are_accepted_ones_in_order(
            steps in prop::collection::vec((0u64..5, 0usize..7, any::<bool>(), any::<bool>()), 0..80),
        ) {
            let mut stdin = Stdin::new(16, 1000);
            let mut accepted: Vec<u8> = Vec::new();
            let mut written: Vec<u8> = Vec::new();
            for (ahead, len, drain, handover) in steps {
                if handover {
                    stdin = Stdin::import(hand_over(stdin.export()), 16, 1000);
                }
                let seq = (stdin.accepted() + ahead).saturating_sub(1);
                let bytes = vec![u8::try_from(seq % 250).unwrap_or(0); len];
                let known = seq > 0 && seq <= stdin.accepted();
                prop_assert!(!known || stdin.offer(seq, hash(2), bytes.clone()) == OfferResult::Conflict);
                if stdin.offer(seq, hash(1), bytes.clone()) == OfferResult::Accepted {
                    accepted.extend(bytes);
                }
                if drain && let Some(next) = stdin.next() {
                    let take = next.len().min(3);
                    written.extend(next.iter().take(take));
                    stdin.record_written(take);
                }
            }
            while let Some(next) = stdin.next() {
                let all = next.to_vec();
                written.extend(&all);
                stdin.record_written(all.len());
            }
            prop_assert_eq!(stdin.written(), stdin.accepted());
            prop_assert_eq!(written, accepted);
        }
    }
}
