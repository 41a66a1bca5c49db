//! Last bytes of a stream, and truncation of text at character boundaries.

use std::collections::VecDeque;

/// Buffer for the last bytes of a stream.
#[derive(Debug)]
pub struct TailBuffer {
    bytes: VecDeque<u8>,
    bytes_max: usize,
    truncated: bool,
}

impl TailBuffer {
    /// Creates a buffer of at most `bytes_max` bytes.
    #[must_use]
    pub const fn new(bytes_max: usize) -> Self {
        Self { bytes: VecDeque::new(), bytes_max, truncated: false }
    }

    /// Creates a buffer that starts with these bytes. `truncated`: earlier bytes were dropped.
    #[must_use]
    pub fn with(bytes: Vec<u8>, bytes_max: usize, truncated: bool) -> Self {
        let mut tail = Self::new(bytes_max);
        tail.push(&bytes);
        tail.truncated |= truncated;
        tail
    }

    /// Returns all kept bytes, including a cut character at the start.
    #[must_use]
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes.into()
    }

    /// Appends bytes and drops the oldest beyond the maximum.
    pub fn push(&mut self, new: &[u8]) {
        let skip = new.len().saturating_sub(self.bytes_max);
        let kept = new.get(skip..).unwrap_or_default();
        let over = (self.bytes.len() + kept.len()).saturating_sub(self.bytes_max);
        self.truncated |= skip > 0 || over > 0;
        self.bytes.drain(..over.min(self.bytes.len()));
        self.bytes.extend(kept);
    }

    /// True if earlier bytes were dropped.
    #[must_use]
    pub const fn truncated(&self) -> bool {
        self.truncated
    }

    /// Returns the kept bytes, without the rest of a UTF-8 character that was cut at the start.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let all: Vec<u8> = self.bytes.iter().copied().collect();
        if !self.truncated {
            return all;
        }
        // A cut character leaves at most three continuation bytes; a longer run is not UTF-8 and is kept.
        let whole = (0..all.len().min(4)).find(|i| !is_continuation(all.get(*i)));
        let start = whole.unwrap_or(if all.len() < 4 { all.len() } else { 0 });
        all.get(start..).unwrap_or_default().to_vec()
    }
}

fn is_continuation(byte: Option<&u8>) -> bool {
    byte.is_some_and(|b| b & 0b1100_0000 == 0b1000_0000)
}

/// Returns the first `bytes_max` bytes of a text, cut at a character boundary.
#[must_use]
pub fn head(text: &str, bytes_max: usize) -> &str {
    let mut end = text.len().min(bytes_max);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.get(..end).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn tail_keeps_last_bytes_from_character_boundary() {
        for (pieces, max, want, truncated) in [
            (vec!["abc"], 3, "abc", false),
            (vec!["abc", "d"], 3, "bcd", true),
            (vec!["abcdef"], 3, "def", true),
            (vec!["aé"], 2, "é", true),
            (vec!["éa"], 2, "a", true),
            (vec!["€uro"], 5, "uro", true),
            (vec!["x", "😀"], 4, "😀", true),
            (vec!["abc"], 0, "", true),
        ] {
            let mut tail = TailBuffer::new(max);
            for piece in &pieces {
                tail.push(piece.as_bytes());
            }
            assert_eq!((tail.bytes(), tail.truncated()), (want.into(), truncated), "{pieces:?} {max}");
        }
    }

    #[test]
    fn tail_keeps_non_text_bytes() {
        let mut tail = TailBuffer::new(6);
        tail.push(&[0x80; 20]);
        assert_eq!(tail.bytes(), vec![0x80; 6]);
    }

    proptest! {
        #[test]
        fn tail_is_bounded_suffix(pieces in prop::collection::vec(".{0,9}", 0..9), max in 0usize..40) {
            let mut tail = TailBuffer::new(max);
            let mut whole = String::new();
            for piece in &pieces {
                tail.push(piece.as_bytes());
                whole.push_str(piece);
            }
            let text = tail.bytes();
            prop_assert!(whole.as_bytes().ends_with(&text));
            prop_assert!(text.len() <= max);
            prop_assert!(text.len() + 3 >= max.min(whole.len()));
            prop_assert_eq!(tail.truncated(), whole.len() > max);
        }

        #[test]
        fn head_is_bounded_prefix(text in ".{0,30}", max in 0usize..40) {
            let cut = head(&text, max);
            prop_assert!(text.starts_with(cut) && cut.len() <= max && cut.len() + 3 >= max.min(text.len()));
        }
    }
}
