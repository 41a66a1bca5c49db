//! Bot messages seen on the websocket: proof of existence, independent of the request's result.

use crate::core::ids::Snowflake;
use std::collections::{HashMap, VecDeque};

/// Maximum number of remembered echoes: at forty messages a second, more than a minute and a half.
const ECHOES_MAX: usize = 4096;

/// Nonces seen on the websocket, with their messages.
#[derive(Debug, Default)]
pub struct Echoes {
    seen: HashMap<String, Snowflake>,
    order: VecDeque<String>,
}

impl Echoes {
    /// Records a message of this bot. Only the first message with a nonce counts.
    pub fn hear(&mut self, nonce: &str, message: Snowflake) {
        if nonce.is_empty() || self.seen.contains_key(nonce) {
            return;
        }
        if self.order.len() >= ECHOES_MAX
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

    /// Number of remembered echoes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.seen.len()
    }

    /// True if no echo is remembered.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.seen.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::{ECHOES_MAX, Echoes};
    use crate::core::ids::Snowflake;

    #[test]
    fn the_first_message_with_a_nonce_counts_and_old_ones_are_forgotten() {
        let mut echoes = Echoes::default();
        assert!(echoes.is_empty());
        echoes.hear("a", Snowflake(1));
        echoes.hear("a", Snowflake(2));
        echoes.hear("", Snowflake(3));
        assert_eq!((echoes.find("a"), echoes.find(""), echoes.len()), (Some(Snowflake(1)), None, 1));
        for n in 0..ECHOES_MAX {
            echoes.hear(&format!("n{n}"), Snowflake(10));
        }
        assert_eq!((echoes.find("a"), echoes.len()), (None, ECHOES_MAX));
        assert_eq!(echoes.find("n0"), Some(Snowflake(10)));
    }
}
