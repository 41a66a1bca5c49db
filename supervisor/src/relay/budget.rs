//! Memory and disk budgets shared by the relays of one gateway, so that a gateway with talkative or slow
//! agents does not use up the share of another one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Budget of one gateway's streams: in memory (unacknowledged output and unwritten input), or on disk.
#[derive(Debug)]
pub struct ByteBudget {
    used_bytes: AtomicU64,
    bytes_max: u64,
}

impl ByteBudget {
    /// Creates an unused budget of `bytes_max` bytes.
    #[must_use]
    pub const fn new(bytes_max: u64) -> Self {
        Self { used_bytes: AtomicU64::new(0), bytes_max }
    }

    /// Adds used bytes.
    pub(super) fn add(&self, bytes: u64) {
        self.used_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Subtracts used bytes.
    pub(super) fn give_back(&self, bytes: u64) {
        self.used_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Returns the number of used bytes.
    pub(super) fn used(&self) -> u64 {
        self.used_bytes.load(Ordering::Relaxed)
    }

    /// True if the budget is used up.
    pub(super) fn is_spent(&self) -> bool {
        self.used() >= self.bytes_max
    }
}

/// Share of one relay in a budget, given back on drop.
#[derive(Debug)]
pub(super) struct BudgetShare {
    budget: Arc<ByteBudget>,
    bytes: u64,
}

impl BudgetShare {
    pub(super) const fn new(budget: Arc<ByteBudget>) -> Self {
        Self { budget, bytes: 0 }
    }

    /// Sets the number of bytes held by this relay.
    pub(super) fn set(&mut self, bytes: u64) {
        if bytes > self.bytes {
            self.budget.add(bytes - self.bytes);
        } else {
            self.budget.give_back(self.bytes - bytes);
        }
        self.bytes = bytes;
    }

    /// True if the relays together have used up the budget.
    pub(super) fn is_spent(&self) -> bool {
        self.budget.is_spent()
    }
}

impl Drop for BudgetShare {
    fn drop(&mut self) {
        self.set(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budget_shares_add_up_and_are_returned() {
        let budget = Arc::new(ByteBudget::new(10));
        let (mut a, mut b) = (BudgetShare::new(Arc::clone(&budget)), BudgetShare::new(Arc::clone(&budget)));
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
