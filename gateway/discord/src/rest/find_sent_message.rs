//! Search for a sent message whose request has an unknown outcome (H12).

use super::{RestClient, RestError};
use crate::core::endpoint::{PAGE_MAX, Page};
use crate::core::errors::RejectionKind;
use crate::core::ids::Snowflake;
use crate::core::message_match::{SentMessageQuery, next_page, search_start};

/// Maximum number of pages to read before the search stops without a result.
const PAGES_MAX: u32 = 50;

/// Parameters of a search.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SentMessageSearch {
    /// Channel or thread of the message.
    pub channel: Snowflake,
    /// Time of the first attempt, in milliseconds since the Unix epoch by the local clock.
    pub first_attempt_ms: u64,
    /// Maximum time that the local clock may be ahead of Discord's, in milliseconds.
    pub skew_ms: u64,
    /// Characteristics of the message.
    pub query: SentMessageQuery,
}

/// Result of a search.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SentMessageLookup {
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

impl From<RestError> for SentMessageLookup {
    fn from(fault: RestError) -> Self {
        let why = fault.to_string();
        match fault {
            RestError::Limited { .. } | RestError::Uncertain { .. } | RestError::Superseded => {
                Self::Later { why }
            }
            RestError::Rejected(rejection) => match rejection.kind {
                RejectionKind::Unauthorized | RejectionKind::Temporary | RejectionKind::NotSent => {
                    Self::Later { why }
                }
                _ => Self::Unknown { why },
            },
        }
    }
}

impl RestClient {
    /// Looks up a message: first among the messages seen on the websocket, then in the channel history since
    /// the first attempt. Call it only once a retry with the same nonce is no longer useful: before that, the
    /// message may exist without being visible yet.
    pub async fn lookup(&self, search: &SentMessageSearch) -> SentMessageLookup {
        if let Some(id) = self.find_sent_nonce(&search.query.nonce) {
            return SentMessageLookup::Found(id);
        }
        self.search_history(search).await.unwrap_or_else(SentMessageLookup::from)
    }

    async fn search_history(&self, search: &SentMessageSearch) -> Result<SentMessageLookup, RestError> {
        let begin = search_start(search.first_attempt_ms, search.skew_ms);
        let mut after = begin;
        for number in 0..PAGES_MAX {
            let page = self.messages(search.channel, Page::After(after), PAGE_MAX).await?;
            if let Some(id) = search.query.find(&page) {
                return Ok(SentMessageLookup::Found(id));
            }
            match next_page(&page, usize::from(PAGE_MAX)) {
                Some(next) if next > after => after = next,
                Some(_) => return Ok(unknown("Discord returned the same messages twice")),
                None if number == 0 && page.is_empty() => {
                    return self.resolve_empty_history(search.channel, begin).await;
                }
                None => return Ok(SentMessageLookup::Absent),
            }
        }
        Ok(unknown("too many newer messages to search"))
    }

    /// Decides for an empty history: the channel had no message, or the bot lacks Read Message History.
    async fn resolve_empty_history(
        &self,
        channel: Snowflake,
        begin: Snowflake,
    ) -> Result<SentMessageLookup, RestError> {
        if !self.messages(channel, Page::Newest, 1).await?.is_empty() {
            return Ok(SentMessageLookup::Absent);
        }
        match self.channel(channel).await?.last_message_id {
            Some(last) if last > begin => Ok(unknown(
                "the bot cannot read the history of the channel: give it the permission Read Message History \
                 there",
            )),
            _ => Ok(SentMessageLookup::Absent),
        }
    }
}

fn unknown(why: &str) -> SentMessageLookup {
    SentMessageLookup::Unknown { why: why.to_owned() }
}
