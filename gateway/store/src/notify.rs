//! Notifications about commits. They are hints: a receiver reads the journal afterwards, so a lost
//! notification delays work but loses no data.

use acp_shared::ids::SessionKey;
use parking_lot::{Mutex, MutexGuard};
use std::collections::{HashMap, HashSet};
use tokio::sync::watch;

/// Number of watched sessions above which entries without receivers are removed.
const SWEEP_FROM: usize = 64;

/// Senders of commit notifications.
#[derive(Debug)]
pub struct CommitNotifier {
    sessions: Mutex<SessionSenders>,
    /// Sessions with new journal rows or changed bindings since delivery last asked.
    changed: Mutex<HashSet<SessionKey>>,
    commits: watch::Sender<u64>,
    bindings: watch::Sender<u64>,
}

#[derive(Debug)]
struct SessionSenders {
    by_key: HashMap<SessionKey, watch::Sender<u64>>,
    sweep_at: usize,
}

impl Default for CommitNotifier {
    fn default() -> Self {
        Self {
            sessions: Mutex::new(SessionSenders { by_key: HashMap::new(), sweep_at: SWEEP_FROM }),
            changed: Mutex::default(),
            commits: watch::Sender::new(0),
            bindings: watch::Sender::new(0),
        }
    }
}

impl CommitNotifier {
    fn lock(&self) -> MutexGuard<'_, SessionSenders> {
        self.sessions.lock()
    }

    /// Receiver of a session's last committed journal number; 0 until a commit while the session is watched.
    pub fn session(&self, key: &SessionKey) -> watch::Receiver<u64> {
        let mut sessions = self.lock();
        if let Some(sender) = sessions.by_key.get(key) {
            return sender.subscribe();
        }
        if sessions.by_key.len() >= sessions.sweep_at {
            sessions.by_key.retain(|_, sender| sender.receiver_count() > 0);
            sessions.sweep_at = SWEEP_FROM.max(sessions.by_key.len() * 2);
        }
        let sender = watch::Sender::new(0);
        let receiver = sender.subscribe();
        sessions.by_key.insert(key.clone(), sender);
        receiver
    }

    /// Receiver of the number of committed groups.
    pub fn commits(&self) -> watch::Receiver<u64> {
        self.commits.subscribe()
    }

    /// Receiver of the number of committed groups that may have changed the set of bound conversations.
    pub fn bindings(&self) -> watch::Receiver<u64> {
        self.bindings.subscribe()
    }

    /// Removes and returns the sessions with new journal rows or changed bindings since the last call. For one
    /// caller, the delivery.
    pub fn take_changed(&self) -> HashSet<SessionKey> {
        std::mem::take(&mut self.changed.lock())
    }

    /// Notifies receivers of a commit: the new last journal numbers, and the sessions whose bindings changed,
    /// and `rebinds` if the set of bound conversations may have changed.
    pub fn publish(&self, numbers: &[(SessionKey, u64)], rebound: &[SessionKey], rebinds: bool) {
        let changed = numbers.iter().map(|(key, _)| key).chain(rebound).cloned();
        self.changed.lock().extend(changed);
        let mut sessions = self.lock();
        for (key, number) in numbers {
            let Some(sender) = sessions.by_key.get(key) else { continue };
            if sender.receiver_count() == 0 {
                sessions.by_key.remove(key);
                continue;
            }
            sender.send_if_modified(|last| {
                let newer = *number > *last;
                *last = (*last).max(*number);
                newer
            });
        }
        drop(sessions);
        if rebinds {
            self.bindings.send_modify(|count| *count += 1);
        }
        self.commits.send_modify(|count| *count += 1);
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;

    fn key(n: usize) -> SessionKey {
        SessionKey::parse(&format!("s{n}")).unwrap()
    }

    #[test]
    fn highest_number_wins_and_unwatched_entries_are_removed() {
        let watches = CommitNotifier::default();
        let mut seen = watches.session(&key(1));
        watches.publish(&[(key(1), 5), (key(1), 3), (key(2), 9)], &[key(3)], false);
        assert!(seen.has_changed().unwrap());
        assert_eq!(*seen.borrow_and_update(), 5);
        assert_eq!(watches.take_changed(), HashSet::from([key(1), key(2), key(3)]));
        watches.publish(&[(key(1), 4)], &[], false);
        assert!(!seen.has_changed().unwrap());
        assert_eq!(*watches.commits().borrow(), 2);
        drop(seen);
        watches.publish(&[(key(1), 6)], &[], false);
        assert_eq!(watches.lock().by_key.len(), 0);
    }

    #[test]
    fn watch_map_is_bounded_by_its_watchers() {
        let watches = CommitNotifier::default();
        let kept = watches.session(&key(0));
        for n in 1..1_000 {
            drop(watches.session(&key(n)));
        }
        assert!(watches.lock().by_key.len() <= SWEEP_FROM + 1, "{}", watches.lock().by_key.len());
        watches.publish(&[(key(0), 7)], &[], false);
        assert_eq!(*kept.borrow(), 7);
    }
}
