//! Looks for a message of ours of which nobody knows whether it was sent (H12).

use super::{Fault, Rest};
use crate::core::errors::Meaning;
use crate::core::ids::Snowflake;
use crate::core::readback::{Wanted, anchor, next_page};
use crate::core::route::{PAGE_MAX, Page};

/// How many pages are read before the search is given up.
const PAGES_MAX: u32 = 50;

/// Where a message is looked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Search {
    /// The channel or thread that it was to be sent to.
    pub channel: Snowflake,
    /// When it was first sent, in milliseconds since 1970 by our clock.
    pub first_attempt_ms: u64,
    /// How far our clock may be ahead of Discord's, in milliseconds.
    pub skew_ms: u64,
    /// How it is recognised.
    pub wanted: Wanted,
}

/// What a search came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Lookup {
    /// It is there.
    Found(Snowflake),
    /// It is provably not there.
    Absent,
    /// Nobody knows, for this reason.
    Unknown {
        /// Why, for the log.
        why: String,
    },
    /// Discord could not be asked just now.
    Later {
        /// Why, for the log.
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
    /// Looks for a message: first among those that the websocket showed, then in what the channel shows since the
    /// first attempt. Only for one of which it is no use to ask again with its nonce: Discord may be about to show
    /// it still.
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

    /// Nothing was shown. That is what a bot sees that may not read what was said before, too.
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
