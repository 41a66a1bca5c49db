//! What the relays of one gateway hold in memory together: a gateway whose agents talk, or do not listen, takes
//! nothing from another one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// How much the streams of one gateway hold together: in memory (output not acknowledged and input not written), or
/// on disk.
#[derive(Debug)]
pub struct Budget {
    used_bytes: AtomicU64,
    bytes_max: u64,
}

impl Budget {
    /// Nothing used of at most `bytes_max` bytes.
    #[must_use]
    pub const fn new(bytes_max: u64) -> Self {
        Self { used_bytes: AtomicU64::new(0), bytes_max }
    }

    /// So many bytes more.
    pub(super) fn add(&self, bytes: u64) {
        self.used_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// So many bytes less.
    pub(super) fn give_back(&self, bytes: u64) {
        self.used_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// How much all of them together hold.
    pub(super) fn used(&self) -> u64 {
        self.used_bytes.load(Ordering::Relaxed)
    }

    /// Whether all of them together hold as much as they may.
    pub(super) fn is_spent(&self) -> bool {
        self.used() >= self.bytes_max
    }
}

/// One relay's part in it, given back with the value.
#[derive(Debug)]
pub(super) struct Share {
    budget: Arc<Budget>,
    bytes: u64,
}

impl Share {
    pub(super) const fn new(budget: Arc<Budget>) -> Self {
        Self { budget, bytes: 0 }
    }

    /// What this relay holds now.
    pub(super) fn set(&mut self, bytes: u64) {
        if bytes > self.bytes {
            self.budget.add(bytes - self.bytes);
        } else {
            self.budget.give_back(self.bytes - bytes);
        }
        self.bytes = bytes;
    }

    /// Whether all relays together hold as much as they may.
    pub(super) fn is_spent(&self) -> bool {
        self.budget.is_spent()
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.set(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_add_up_and_come_back() {
        let budget = Arc::new(Budget::new(10));
        let (mut a, mut b) = (Share::new(Arc::clone(&budget)), Share::new(Arc::clone(&budget)));
        a.set(6);
        assert!(!b.is_spent());
        b.set(4);
        assert!(a.is_spent() && b.is_spent());
        b.set(3);
        assert!(!a.is_spent());
        b.set(9);
        drop(b);
        assert!(!a.is_spent());
        a.set(10);
        assert!(a.is_spent());
        drop(a);
        assert_eq!(budget.used_bytes.load(Ordering::Relaxed), 0);
    }
}
