//! Search for a sent message whose request has an unknown outcome (H12).

use super::{Fault, Rest};
use crate::core::errors::Meaning;
use crate::core::ids::Snowflake;
use crate::core::readback::{Wanted, anchor, next_page};
use crate::core::route::{PAGE_MAX, Page};

/// Maximum number of pages to read before the search stops without a result.
const PAGES_MAX: u32 = 50;

/// Parameters of a search.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Search {
    /// Channel or thread of the message.
    pub channel: Snowflake,
    /// Time of the first attempt, in milliseconds since the Unix epoch by the local clock.
    pub first_attempt_ms: u64,
    /// Maximum time that the local clock may be ahead of Discord's, in milliseconds.
    pub skew_ms: u64,
    /// Characteristics of the message.
    pub wanted: Wanted,
}

/// Result of a search.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Lookup {
    /// The message exists.
    Found(Snowflake),
    /// The message certainly does not exist.
    Absent,
    /// The search cannot decide.
    Unknown {
        /// Reason, for the log.
        why: String,
    },
    /// Discord could not be queried now; a later search may decide.
    Later {
        /// Reason, for the log.
        why: String,
    },
}

impl From<Fault> for Lookup {
    fn from(fault: Fault) -> Self {
        let why = fault.to_string();
        match fault {
            Fault::Limited { .. } | Fault::Uncertain { .. } | Fault::Superseded => Self::Later { why },
            Fault::Rejected(rejection) => match rejection.meaning {
                Meaning::Unauthorized | Meaning::Temporary | Meaning::NotSent => Self::Later { why },
                _ => Self::Unknown { why },
            },
        }
    }
}

impl Rest {
    /// Looks up a message: first among the messages seen on the websocket, then in the channel history since
    /// the first attempt. Call it only once a retry with the same nonce is no longer useful: before that, the
    /// message may exist without being visible yet.
    pub async fn lookup(&self, search: &Search) -> Lookup {
        if let Some(id) = self.echoed(&search.wanted.nonce) {
            return Lookup::Found(id);
        }
        self.read_back(search).await.unwrap_or_else(Lookup::from)
    }

    async fn read_back(&self, search: &Search) -> Result<Lookup, Fault> {
        let begin = anchor(search.first_attempt_ms, search.skew_ms);
        let mut after = begin;
        for number in 0..PAGES_MAX {
            let page = self.messages(search.channel, Page::After(after), PAGE_MAX).await?;
            if let Some(id) = search.wanted.find(&page) {
                return Ok(Lookup::Found(id));
            }
            match next_page(&page, usize::from(PAGE_MAX)) {
                Some(next) if next > after => after = next,
                Some(_) => return Ok(unknown("Discord showed the same messages twice")),
                None if number == 0 && page.is_empty() => return self.is_silent(search.channel, begin).await,
                None => return Ok(Lookup::Absent),
            }
        }
        Ok(unknown("too much was said since then"))
    }

    /// Decides for an empty history: the channel had no message, or the bot lacks Read Message History.
    async fn is_silent(&self, channel: Snowflake, begin: Snowflake) -> Result<Lookup, Fault> {
        if !self.messages(channel, Page::Newest, 1).await?.is_empty() {
            return Ok(Lookup::Absent);
        }
        match self.channel(channel).await?.last_message_id {
            Some(last) if last > begin => Ok(unknown(
                "the channel shows nothing to the bot: give it the permission Read Message History there",
            )),
            _ => Ok(Lookup::Absent),
        }
    }
}

fn unknown(why: &str) -> Lookup {
    Lookup::Unknown { why: why.to_owned() }
}
