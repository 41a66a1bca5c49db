//! Frames for the streams of a connection. Frames that no journal row gives (replies, questions) wait in a bounded
//! queue, and the last of them are kept for a client that resumes.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::fmt::{self, Write};

/// Maximum number of frames in a queue, sent and unsent.
pub const FRAMES_MAX: usize = 256;
/// Maximum size of the sent frames that a queue keeps, in bytes.
const KEPT_BYTES_MAX: usize = 1024 * 1024;
/// Maximum size of the unsent frames of a queue, and of all queues of a connection, in bytes; one frame may exceed it.
pub const UNSENT_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Place of a frame in the stream of a session: the last row before it, and the number of other frames since that row.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct FrameId {
    /// `session_seq` of the row; 0 before the first one.
    pub seq: u64,
    /// Number of frames since the row that are no rows.
    pub n: u64,
}

impl FrameId {
    /// Parses `SEQ-N`, or `SEQ` for the row itself.
    pub fn parse(text: &str) -> Option<Self> {
        let number = |text: &str| {
            let is_plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            text.parse::<u64>().ok().filter(|number| is_plain && i64::try_from(*number).is_ok())
        };
        match text.split_once('-') {
            Some((seq, n)) => Some(Self { seq: number(seq)?, n: number(n)? }),
            None => Some(Self { seq: number(text)?, n: 0 }),
        }
    }
}

impl fmt::Display for FrameId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.seq, self.n)
    }
}

/// One message for a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// Place from which the client can resume; `None` within the frames of one row.
    pub id: Option<FrameId>,
    /// The message, one line of JSON.
    pub json: String,
}

/// Error of a queue whose reader takes nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the client does not read its answers")]
pub struct QueueFull;

/// Queue of frames that are no rows.
#[derive(Debug, Clone, Default)]
pub struct FrameQueue {
    frames: VecDeque<(FrameId, String)>,
    /// Number of frames at the front that were sent.
    sent: usize,
    /// Size of the unsent frames, in bytes.
    unsent_bytes: usize,
    last: FrameId,
}

impl FrameQueue {
    /// Adds a frame behind the row `seq`.
    ///
    /// # Errors
    /// [`QueueFull`] if the unsent frames are too many.
    pub fn push(&mut self, seq: u64, json: String) -> Result<(), QueueFull> {
        if self.frames.len() - self.sent >= FRAMES_MAX || self.unsent_bytes > UNSENT_BYTES_MAX {
            return Err(QueueFull);
        }
        self.unsent_bytes += json.len();
        let seq = seq.max(self.last.seq);
        let n = if seq == self.last.seq { self.last.n + 1 } else { 1 };
        self.last = FrameId { seq, n };
        self.frames.push_back((self.last, json));
        self.trim();
        Ok(())
    }

    /// Takes the unsent frames that belong behind row `seq` or an earlier one.
    pub fn take(&mut self, seq: u64, out: &mut Vec<Frame>) {
        while let Some((id, json)) = self.frames.get(self.sent).filter(|(id, _)| id.seq <= seq) {
            out.push(Frame { id: Some(*id), json: json.clone() });
            self.unsent_bytes -= json.len();
            self.sent += 1;
        }
        self.trim();
    }

    /// Makes the kept frames behind this place unsent.
    pub fn rewind(&mut self, to: FrameId) {
        let after = self.frames.iter().take_while(|(id, _)| *id <= to).count();
        self.sent = self.sent.min(after);
        self.unsent_bytes = self.frames.iter().skip(self.sent).map(|(_, json)| json.len()).sum();
    }

    /// Size of the unsent frames, in bytes.
    pub const fn unsent_bytes(&self) -> usize {
        self.unsent_bytes
    }

    fn trim(&mut self) {
        let mut bytes: usize = self.frames.iter().take(self.sent).map(|(_, json)| json.len()).sum();
        while self.sent > 0 && (self.frames.len() > FRAMES_MAX || bytes > KEPT_BYTES_MAX) {
            if let Some((_, json)) = self.frames.pop_front() {
                bytes -= json.len();
            }
            self.sent -= 1;
        }
    }
}

/// Writes JSON in ASCII. A client may decode an event stream in pieces, as the Python library does, and cut through a
/// character.
pub fn ascii_json(json: &str) -> Cow<'_, str> {
    if json.is_ascii() {
        return Cow::Borrowed(json);
    }
    let mut out = String::with_capacity(json.len() * 2);
    for c in json.chars() {
        if c.is_ascii() {
            out.push(c);
        } else {
            // Writing into a String cannot fail.
            c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| _ = write!(out, "\\u{unit:04x}"));
        }
    }
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn take(queue: &mut FrameQueue, seq: u64) -> Vec<String> {
        let mut out = Vec::new();
        queue.take(seq, &mut out);
        out.into_iter().map(|frame| format!("{} {}", frame.id.unwrap(), frame.json)).collect()
    }

    #[test]
    fn frames_are_numbered_behind_their_row() {
        let mut queue = FrameQueue::default();
        for (seq, json) in [(0, "a"), (0, "b"), (3, "c"), (3, "d"), (7, "e")] {
            queue.push(seq, json.to_owned()).unwrap();
        }
        assert_eq!(take(&mut queue, 3), ["0-1 a", "0-2 b", "3-1 c", "3-2 d"]);
        assert_eq!(take(&mut queue, 7), ["7-1 e"]);
        queue.rewind(FrameId { seq: 3, n: 1 });
        assert_eq!(take(&mut queue, 9), ["3-2 d", "7-1 e"]);
        queue.rewind(FrameId { seq: 7, n: 1 });
        assert_eq!(take(&mut queue, 9), [] as [&str; 0]);
    }

    #[test]
    fn unread_frames_are_bounded_and_sent_ones_are_forgotten_in_order() {
        let mut queue = FrameQueue::default();
        for n in 0..FRAMES_MAX {
            queue.push(0, n.to_string()).unwrap();
        }
        assert_eq!(queue.push(0, "one too many".to_owned()), Err(QueueFull));
        assert_eq!(take(&mut queue, 0).len(), FRAMES_MAX);
        for n in 0..10 {
            queue.push(1, n.to_string()).unwrap();
        }
        queue.rewind(FrameId::default());
        assert_eq!(take(&mut queue, 1).len(), FRAMES_MAX, "the oldest were forgotten");
        queue.push(1, "x".repeat(KEPT_BYTES_MAX + 1)).unwrap();
        assert_eq!(take(&mut queue, 1).len(), 1);
        assert!(queue.frames.is_empty(), "a large frame is not kept");
    }

    #[test]
    fn ids_parse_to_their_place_or_not_at_all() {
        let id = |seq, n| Some(FrameId { seq, n });
        for (text, want) in [
            ("7-2", id(7, 2)),
            ("7", id(7, 0)),
            ("0-0", id(0, 0)),
            ("", None),
            ("7-", None),
            ("-7", None),
            ("7-2-1", None),
            ("+7", None),
            ("9223372036854775808", None),
        ] {
            assert_eq!(FrameId::parse(text), want, "{text}");
        }
    }

    proptest! {
        /// A client that resumes from any id it received gets the frames behind it, once, in order.
        #[test]
        fn resume_from_any_place_repeats_what_follows(seqs in proptest::collection::vec(0_u64..4, 1..40), pick in any::<prop::sample::Index>()) {
            let mut queue = FrameQueue::default();
            let mut seq = 0;
            for (n, step) in seqs.iter().enumerate() {
                seq += step;
                queue.push(seq, n.to_string()).unwrap();
            }
            let mut first = Vec::new();
            queue.take(u64::MAX, &mut first);
            let at = pick.index(first.len());
            queue.rewind(first[at].id.unwrap());
            let mut again = Vec::new();
            queue.take(u64::MAX, &mut again);
            prop_assert_eq!(&again[..], &first[at + 1..]);
        }
    }

    proptest! {
        #[test]
        fn ascii_json_means_the_same(text: String) {
            let json = serde_json::to_string(&text).unwrap();
            let ascii = ascii_json(&json);
            prop_assert!(ascii.is_ascii());
            prop_assert_eq!(serde_json::from_str::<String>(&ascii).unwrap(), text);
        }
    }
}
