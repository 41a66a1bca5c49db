//! Output buffer of one adapter between its pipe and the gateway's commit: bytes with offsets, never dropped.
//!
//! ```text
//! base (acknowledged) ≤ sent ≤ end (received)
//! ```
//! Reading stops when the ring is full, and the adapter blocks. Only while a lease is closing, when blocking
//! would delay its end, output that does not fit goes to a spool file instead (H1).

use std::collections::VecDeque;

/// Error: offset outside of the kept range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("offset {offset} is outside of {base} to {end}")]
pub struct OutOfRange {
    /// Requested offset.
    pub offset: u64,
    /// First kept offset.
    pub base: u64,
    /// One past the last byte received.
    pub end: u64,
}

/// Received bytes that are not acknowledged yet.
#[derive(Debug)]
pub struct Ring {
    base: u64,
    bytes: VecDeque<u8>,
    bytes_max: usize,
}

/// Decision about reading from the pipe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadDecision {
    /// Read at most this many bytes into the ring.
    Ring(usize),
    /// Move everything to the spool and read into the spool.
    Spool,
    /// Leave the bytes in the pipe.
    Wait,
}

impl Ring {
    /// Creates an empty ring of at most `bytes_max` bytes.
    #[must_use]
    pub const fn new(bytes_max: usize) -> Self {
        Self { base: 0, bytes: VecDeque::new(), bytes_max }
    }

    /// Creates an empty ring for an adapter that has ended after `end` bytes.
    #[must_use]
    pub const fn ended_at(end: u64) -> Self {
        Self { base: end, bytes: VecDeque::new(), bytes_max: 0 }
    }

    /// Creates a ring that contains these bytes from `base` on.
    #[must_use]
    pub fn with(base: u64, bytes: Vec<u8>, bytes_max: usize) -> Self {
        Self { base, bytes: bytes.into(), bytes_max }
    }

    /// Returns all kept bytes.
    #[must_use]
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes.into()
    }

    /// Returns the first kept offset; everything before is acknowledged.
    #[must_use]
    pub const fn base(&self) -> u64 {
        self.base
    }

    /// Returns the offset after the last received byte.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.base + self.bytes.len() as u64
    }

    /// Returns the number of kept bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// True if everything received is acknowledged.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Decides about reading from the pipe. While the lease is `closing`, the reader does not wait for
    /// acknowledgements.
    #[must_use]
    pub fn intake(&self, closing: bool) -> ReadDecision {
        match self.bytes_max.saturating_sub(self.bytes.len()) {
            0 if closing => ReadDecision::Spool,
            0 => ReadDecision::Wait,
            room => ReadDecision::Ring(room),
        }
    }

    /// Appends bytes from the pipe. The size is not checked: the caller has asked [`Ring::intake`].
    pub fn push(&mut self, new: &[u8]) {
        self.bytes.extend(new);
    }

    /// Drops everything before `offset`, which the client has committed. A repeated offset changes nothing.
    ///
    /// # Errors
    /// [`OutOfRange`] for bytes that were never received; the ring is unchanged.
    pub fn ack(&mut self, offset: u64) -> Result<(), OutOfRange> {
        if offset > self.end() {
            return Err(OutOfRange { offset, base: self.base, end: self.end() });
        }
        let count = usize::try_from(offset.saturating_sub(self.base)).unwrap_or(usize::MAX);
        self.bytes.drain(..count.min(self.bytes.len()));
        self.base = self.base.max(offset);
        if self.bytes.is_empty() && self.bytes.capacity() > KEPT_CAPACITY_BYTES {
            self.bytes.shrink_to(KEPT_CAPACITY_BYTES);
        }
        Ok(())
    }

    /// Copies at most `bytes_max` bytes from `offset` on.
    ///
    /// # Errors
    /// [`OutOfRange`] for an offset that is not kept.
    pub fn read(&self, offset: u64, bytes_max: usize) -> Result<Vec<u8>, OutOfRange> {
        if offset < self.base || offset > self.end() {
            return Err(OutOfRange { offset, base: self.base, end: self.end() });
        }
        let skip = usize::try_from(offset - self.base).unwrap_or(usize::MAX).min(self.bytes.len());
        let stop = skip.saturating_add(bytes_max).min(self.bytes.len());
        let (front, back) = self.bytes.as_slices();
        let mut out = Vec::with_capacity(stop - skip);
        out.extend_from_slice(front.get(skip.min(front.len())..stop.min(front.len())).unwrap_or_default());
        let shift = front.len();
        let from = skip.saturating_sub(shift);
        out.extend_from_slice(back.get(from..stop.saturating_sub(shift).max(from)).unwrap_or_default());
        Ok(out)
    }
}

const KEPT_CAPACITY_BYTES: usize = 64 * 1024;

/// Returns how many bytes may be sent now: received ones, up to the credit beyond the acknowledged offset
/// (H18).
#[must_use]
pub fn sendable(base: u64, sent: u64, end: u64, credit_bytes: u64, piece_bytes_max: usize) -> usize {
    let limit = end.min(base.saturating_add(credit_bytes));
    usize::try_from(limit.saturating_sub(sent)).unwrap_or(usize::MAX).min(piece_bytes_max)
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn intake_depends_on_space_and_phase() {
        for (held, closing, want) in [
            (0, false, ReadDecision::Ring(4)),
            (3, true, ReadDecision::Ring(1)),
            (4, false, ReadDecision::Wait),
            (4, true, ReadDecision::Spool),
            (9, false, ReadDecision::Wait),
        ] {
            let mut ring = Ring::new(4);
            ring.push(&vec![0; held]);
            assert_eq!(ring.intake(closing), want, "{held} {closing}");
        }
    }

    #[test]
    fn offsets_outside_ring_are_refused() {
        let mut ring = Ring::new(10);
        ring.push(b"abcdef");
        ring.ack(2).unwrap();
        let out = |offset| OutOfRange { offset, base: 2, end: 6 };
        assert_eq!(ring.read(1, 9), Err(out(1)));
        assert_eq!(ring.read(7, 9), Err(out(7)));
        assert_eq!(ring.ack(7), Err(out(7)));
        assert_eq!(ring.ack(1), Ok(()));
        assert_eq!(ring.read(2, 2).unwrap(), b"cd");
        assert_eq!(ring.read(6, 2).unwrap(), b"");
    }

    #[test]
    fn credit_limits_sent_bytes() {
        for (base, sent, end, credit, want) in [
            (0, 0, 10, 4, 4),
            (0, 4, 10, 4, 0),
            (4, 4, 10, 4, 4),
            (8, 8, 10, 4, 2),
            (0, 0, 10, 100, 6),
            (9, 4, 9, 4, 5),
        ] {
            assert_eq!(sendable(base, sent, end, credit, 6), want, "{base} {sent} {end} {credit}");
        }
    }

    proptest! {
        /// A read returns the bytes pushed at its offset.
        #[test]
        fn ring_never_drops_or_shifts_bytes(steps in prop::collection::vec((0usize..70, 0u64..90, 0usize..50), 0..60)) {
            let mut ring = Ring::new(100);
            let mut whole: Vec<u8> = Vec::new();
            for (push, ack, read) in steps {
                if let ReadDecision::Ring(room) = ring.intake(false) {
                    let new: Vec<u8> = (0..push.min(room)).map(|i| u8::try_from((whole.len() + i) % 251).unwrap()).collect();
                    ring.push(&new);
                    whole.extend(&new);
                }
                prop_assert!(ring.len() <= 100);
                let target = ring.base() + ack;
                prop_assert_eq!(ring.ack(target).is_ok(), target <= whole.len() as u64);
                let got = ring.read(ring.base(), read).unwrap();
                let from = usize::try_from(ring.base()).unwrap();
                prop_assert_eq!(&got[..], &whole[from..(from + read).min(whole.len())]);
                prop_assert_eq!(ring.end(), whole.len() as u64);
            }
        }
    }
}
