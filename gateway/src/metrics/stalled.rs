//! Failures that persist until the database is repaired: reported, because retrying is useless.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Maximum number of failures listed.
const LISTED_MAX: usize = 20;

/// Blocked items and the reasons. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct BlockedItems {
    known: Arc<Mutex<BTreeMap<String, String>>>,
}

impl BlockedItems {
    /// Records that `what` is blocked, and why.
    pub(crate) fn note(&self, what: String, why: String) {
        self.known.lock().insert(what, why);
    }

    /// Removes the record, because `what` works again.
    pub(crate) fn clear(&self, what: &str) {
        self.known.lock().remove(what);
    }

    /// Returns the first records with the reasons.
    pub(crate) fn listed(&self) -> Vec<String> {
        self.known.lock().iter().take(LISTED_MAX).map(|(what, why)| format!("{what}: {why}")).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cleared_item_is_not_listed() {
        let blocked = BlockedItems::default();
        for item in ["b", "a", "b"] {
            blocked.note(item.to_owned(), "no".to_owned());
        }
        assert_eq!(blocked.listed(), ["a: no", "b: no"]);
        blocked.clear("a");
        blocked.clear("other");
        assert_eq!(blocked.listed(), ["b: no"]);
    }
}
