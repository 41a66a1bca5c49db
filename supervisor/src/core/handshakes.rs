//! Connections that are not admitted yet. They are counted separately from admitted ones. A new connection
//! displaces an old one instead of being refused: honest clients send Hello at once, so silent connections
//! cannot lock clients out.

use std::collections::VecDeque;

/// Maximum number of pending handshakes per user.
pub const PER_USER_MAX: usize = 256;
/// Maximum number of pending handshakes.
pub const TOTAL_MAX: usize = 1_024;

/// User id of a user known to the policy; `None` for all others, which share one limit.
pub type HandshakeUser = Option<u32>;

#[derive(Debug)]
struct PendingHandshake<T> {
    id: u64,
    user: HandshakeUser,
    held: T,
}

/// Pending handshakes, oldest first, each with a value through which the caller ends the connection.
#[derive(Debug)]
pub struct Handshakes<T>(VecDeque<PendingHandshake<T>>);

impl<T> Default for Handshakes<T> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<T> Handshakes<T> {
    /// Adds a connection. Returns the connection to end if the table is full: the oldest of the same user at
    /// the per-user maximum, otherwise the oldest of the user with the most connections.
    pub fn begin(&mut self, id: u64, user: HandshakeUser, held: T) -> Option<T> {
        let displaced = if self.count(user) >= PER_USER_MAX {
            Some(user)
        } else if self.0.len() >= TOTAL_MAX {
            self.0.iter().map(|waiting| waiting.user).max_by_key(|user| self.count(*user))
        } else {
            None
        };
        let oldest = displaced.and_then(|of| self.0.iter().position(|waiting| waiting.user == of));
        let displaced = oldest.and_then(|at| self.0.remove(at));
        self.0.push_back(PendingHandshake { id, user, held });
        displaced.map(|waiting| waiting.held)
    }

    /// Removes a connection whose handshake is over.
    pub fn end(&mut self, id: u64) {
        self.0.retain(|waiting| waiting.id != id);
    }

    fn count(&self, user: HandshakeUser) -> usize {
        self.0.iter().filter(|waiting| waiting.user == user).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_connection_displaces_oldest_of_same_user() {
        let mut all = Handshakes::default();
        assert_eq!(all.begin(0, Some(8), 0), None);
        let max = PER_USER_MAX as u64;
        assert!((1..=max).all(|id| all.begin(id, Some(7), id).is_none()));
        assert_eq!(all.begin(max + 1, Some(7), max + 1), Some(1));
        all.end(2);
        assert_eq!(all.begin(max + 2, Some(7), max + 2), None);
        assert_eq!(all.begin(max + 3, Some(7), max + 3), Some(3));
        assert_eq!(all.begin(max + 4, Some(8), max + 4), None);
        assert_eq!(all.begin(max + 5, None, max + 5), None);
    }

    #[test]
    fn full_table_displaces_from_largest_user() {
        let mut all = Handshakes::default();
        let users = u32::try_from(TOTAL_MAX / PER_USER_MAX).unwrap_or_default();
        // The last user has one connection less than its maximum; one more user has a single connection.
        let of = |id: u64| match id {
            0 => u32::MAX,
            id => u32::try_from((id - 1) / PER_USER_MAX as u64).unwrap_or_default(),
        };
        for id in 0..TOTAL_MAX as u64 {
            assert_eq!(all.begin(id, Some(of(id)), id), None, "{id}");
        }
        let displaced = all.begin(TOTAL_MAX as u64, Some(users + 1), 0);
        assert!(displaced.is_some_and(|id| id != 0), "{displaced:?}");
        assert_eq!(all.0.len(), TOTAL_MAX);
    }
}
