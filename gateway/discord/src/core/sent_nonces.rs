//! Bot messages seen on the websocket: proof of existence, independent of the request's result.

use crate::core::ids::Snowflake;
use std::collections::{HashMap, VecDeque};

/// Maximum number of remembered nonces: at forty messages a second, more than a minute and a half.
const NONCES_MAX: usize = 4096;

/// Nonces seen on the websocket, with their messages.
#[derive(Debug, Default)]
pub struct SentNonces {
    seen: HashMap<String, Snowflake>,
    order: VecDeque<String>,
}

impl SentNonces {
    /// Records a message of this bot. Only the first message with a nonce counts.
    pub fn record(&mut self, nonce: &str, message: Snowflake) {
        if nonce.is_empty() || self.seen.contains_key(nonce) {
            return;
        }
        if self.order.len() >= NONCES_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.seen.remove(&oldest);
        }
        self.order.push_back(nonce.to_owned());
        self.seen.insert(nonce.to_owned(), message);
    }

    /// Returns the message with this nonce, if it was seen.
    #[must_use]
    pub fn find(&self, nonce: &str) -> Option<Snowflake> {
        self.seen.get(nonce).copied()
    }

    /// Number of remembered nonces.
    #[must_use]
    pub fn len(&self) -> usize {
        self.seen.len()
    }

    /// True if no nonce is remembered.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.seen.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::{NONCES_MAX, SentNonces};
    use crate::core::ids::Snowflake;

    #[test]
    fn first_message_of_nonce_wins_and_old_nonces_expire() {
        let mut sent_nonces = SentNonces::default();
        assert!(sent_nonces.is_empty());
        sent_nonces.record("a", Snowflake(1));
        sent_nonces.record("a", Snowflake(2));
        sent_nonces.record("", Snowflake(3));
        assert_eq!(
            (sent_nonces.find("a"), sent_nonces.find(""), sent_nonces.len()),
            (Some(Snowflake(1)), None, 1)
        );
        for n in 0..NONCES_MAX {
            sent_nonces.record(&format!("n{n}"), Snowflake(10));
        }
        assert_eq!((sent_nonces.find("a"), sent_nonces.len()), (None, NONCES_MAX));
        assert_eq!(sent_nonces.find("n0"), Some(Snowflake(10)));
    }
}
