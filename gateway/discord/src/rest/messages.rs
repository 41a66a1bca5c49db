//! Requests about messages, reactions and the typing indicator.

use super::model::{self, parse};
use super::{Call, QueueOptions, RestClient, RestError};
use crate::core::decode;
use crate::core::endpoint::{PAGE_MAX, Page, RetrySafety, Route};
use crate::core::errors::{RejectionKind, ResourceKind};
use crate::core::event::Message;
use crate::core::ids::Snowflake;
use crate::core::message::{MessageBody, NewMessage};
use crate::core::rate_limiter::OLD_EDIT_AGE_MS;
use crate::core::request_scheduler::{Priority, Sequence};
use serde::Deserialize;
use serde_json::Value;
use std::time::Duration;

/// Evidence that a message exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Proof {
    /// Discord's response to the request.
    Response,
    /// A gateway event for the message; the response was lost.
    GatewayEvent,
}

/// Message that exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SentMessage {
    /// Message id.
    pub id: Snowflake,
    /// Evidence that it exists.
    pub proof: Proof,
}

#[derive(Deserialize)]
pub(super) struct IdOnly {
    pub(super) id: Snowflake,
}

/// Page of a channel's history, oldest message first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct History {
    /// Messages that could be parsed.
    pub messages: Vec<Message>,
    /// Id of the newest message of the page, parsed or not. If the page has none, the id that it was to begin
    /// after.
    pub newest_id: Snowflake,
    /// True if there may be another page.
    pub has_more: bool,
}

impl History {
    /// Builds a page from a response, with the id, if readable, and the reason for each unreadable message. A
    /// page without an id newer than `after` is the last one, even if it is full.
    fn from_page(after: Snowflake, answer: &[Value]) -> (Self, Vec<(Option<Snowflake>, String)>) {
        let (mut messages, mut unreadable, mut newest_id) = (Vec::new(), Vec::new(), after);
        for one in answer {
            let id = match decode::message(one) {
                Ok(message) => {
                    let id = message.id;
                    messages.push(message);
                    Some(id)
                }
                Err(error) => {
                    let id = IdOnly::deserialize(one).ok().map(|IdOnly { id }| id);
                    unreadable.push((id, error.0));
                    id
                }
            };
            newest_id = id.map_or(newest_id, |id| newest_id.max(id));
        }
        messages.sort_by_key(|message| message.id);
        let has_more = answer.len() >= usize::from(PAGE_MAX) && newest_id > after;
        (Self { messages, newest_id, has_more }, unreadable)
    }
}

/// Maximum wait of a typing indicator in the queue. Discord shows the indicator for ten seconds.
const TYPING_MAX_WAIT: Duration = Duration::from_secs(2);

impl RestClient {
    /// Creates a message. If its nonce was used within the last minutes, Discord returns the first message
    /// and creates no second one.
    ///
    /// # Errors
    /// [`RestError::Uncertain`] if the response was lost and the message was not seen on the websocket: retry
    /// with the same nonce within a few minutes, later use [`RestClient::lookup`].
    /// [`RejectionKind::SentAndDeleted`] if the message was sent and has been deleted.
    pub async fn create_message(
        &self,
        channel: Snowflake,
        message: &NewMessage,
        options: QueueOptions,
    ) -> Result<SentMessage, RestError> {
        let route = Route::create_message(channel);
        let payload = message.payload().map_err(|refused| RestError::invalid(route.name, &refused))?;
        match self.post(Call::new(route, options).channel(channel).payload(payload)).await {
            Err(RestError::Uncertain { why }) => match self.find_sent_nonce(&message.nonce) {
                Some(id) => Ok(SentMessage { id, proof: Proof::GatewayEvent }),
                None => Err(RestError::Uncertain { why }),
            },
            result => result,
        }
    }

    /// Sends a request that creates a message, and reads the id of the message.
    pub(super) async fn post(&self, call: Call) -> Result<SentMessage, RestError> {
        let name = call.route.name;
        let answer = self.json(call).await?;
        let IdOnly { id } = parse(name, RetrySafety::Create, answer)?;
        Ok(SentMessage { id, proof: Proof::Response })
    }

    /// Replaces the content of a message of this bot. A newer edit supersedes one that is still in the queue.
    ///
    /// # Errors
    /// [`RestError::Superseded`] if a newer edit replaced this one; another [`RestError`] if the request
    /// failed or its outcome is unknown.
    pub async fn edit_message(
        &self,
        channel: Snowflake,
        message: Snowflake,
        body: &MessageBody,
        options: QueueOptions,
    ) -> Result<(), RestError> {
        let route = Route::edit_message(channel, message);
        let payload = body.edit().map_err(|refused| RestError::invalid(route.name, &refused))?;
        let mut call =
            Call::new(route, options).channel(channel).sequence(Sequence::Edit(message)).payload(payload);
        call.old_edit =
            message.created_at_ms().saturating_add(OLD_EDIT_AGE_MS) <= self.0.settings.clock.wall_ms();
        self.call(call).await.map(|_| ())
    }

    /// Reads a message.
    ///
    /// # Errors
    /// [`RestError`] if the request failed.
    pub async fn message(&self, channel: Snowflake, message: Snowflake) -> Result<Message, RestError> {
        let route = Route::get_message(channel, message);
        let name = route.name;
        model::message(name, RetrySafety::ReadOnly, &self.json(Call::read(route)).await?)
    }

    /// Reads a page of at most 100 messages, newest first. An empty page may mean that the bot lacks Read
    /// Message History.
    ///
    /// # Errors
    /// [`RestError`] if the request failed.
    pub async fn messages(
        &self,
        channel: Snowflake,
        page: Page,
        limit: u8,
    ) -> Result<Vec<Message>, RestError> {
        let route = Route::get_messages(channel, page, limit);
        let name = route.name;
        let answer: Vec<Value> = self.fetch(route).await?;
        answer.iter().map(|one| model::message(name, RetrySafety::ReadOnly, one)).collect()
    }

    /// Reads the next page after a message, oldest first. A message that cannot be parsed is skipped,
    /// counted and logged, so that it does not block the others.
    ///
    /// # Errors
    /// [`RestError`] if the request failed.
    pub async fn history(
        &self,
        channel: Snowflake,
        after: Snowflake,
        options: QueueOptions,
    ) -> Result<History, RestError> {
        let route = Route::get_messages(channel, Page::After(after), PAGE_MAX);
        let name = route.name;
        let answer: Vec<Value> =
            parse(name, RetrySafety::ReadOnly, self.json(Call::new(route, options)).await?)?;
        let (history, unreadable) = History::from_page(after, &answer);
        for (id, why) in unreadable {
            self.0.counters.count_unreadable();
            tracing::error!(%channel, message_id = ?id, why, "unreadable message skipped");
        }
        Ok(history)
    }

    /// Adds a reaction of the bot: a Unicode emoji, or `name:id` of a custom emoji.
    ///
    /// # Errors
    /// [`RestError`] if the request failed or its outcome is unknown.
    pub async fn add_reaction(
        &self,
        channel: Snowflake,
        message: Snowflake,
        emoji: &str,
        max_wait: Duration,
    ) -> Result<(), RestError> {
        self.react(Route::add_reaction(channel, message, emoji), channel, message, max_wait).await
    }

    /// Removes a reaction of the bot. Succeeds if the message or the emoji no longer exists.
    ///
    /// # Errors
    /// [`RestError`] if the request failed or its outcome is unknown.
    pub async fn remove_reaction(
        &self,
        channel: Snowflake,
        message: Snowflake,
        emoji: &str,
        max_wait: Duration,
    ) -> Result<(), RestError> {
        let route = Route::remove_reaction(channel, message, emoji);
        match self.react(route, channel, message, max_wait).await {
            Err(fault)
                if matches!(
                    fault.rejection_kind(),
                    Some(RejectionKind::Gone(ResourceKind::Message | ResourceKind::Emoji))
                ) =>
            {
                Ok(())
            }
            result => result,
        }
    }

    async fn react(
        &self,
        route: Route,
        channel: Snowflake,
        message: Snowflake,
        max_wait: Duration,
    ) -> Result<(), RestError> {
        let options = QueueOptions::new(Priority::Reaction, max_wait);
        let call = Call::new(route, options).channel(channel).sequence(Sequence::Reactions(message));
        self.call(call).await.map(|_| ())
    }

    /// Shows the typing indicator for ten seconds.
    ///
    /// # Errors
    /// [`RestError`] if the request failed or its outcome is unknown; the caller can ignore it.
    pub async fn typing(&self, channel: Snowflake) -> Result<(), RestError> {
        let options = QueueOptions::new(Priority::Typing, TYPING_MAX_WAIT);
        let call =
            Call::new(Route::typing(channel), options).channel(channel).sequence(Sequence::Typing(channel));
        self.call(call).await.map(|_| ())
    }
}

/// Turns "the object to delete does not exist" into success.
pub(super) fn ignore_gone<T>(result: Result<T, RestError>, what: ResourceKind) -> Result<(), RestError> {
    match result {
        Err(fault) if fault.rejection_kind() == Some(RejectionKind::Gone(what)) => Ok(()),
        result => result.map(|_| ()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn message_json(id: u64) -> Value {
        json!({"id": id.to_string(), "channel_id": "1", "author": {"id": "5", "username": "ann"}, "content": "hello",
            "type": 0, "timestamp": "2026-11-22T00:00:00+00:00", "attachments": [], "mentions": []})
    }

    /// Messages that cannot be parsed are skipped, with or without a readable id.
    #[test]
    fn unreadable_messages_are_skipped() {
        let malformed = |id: Value| json!({"id": id, "author": "nobody"});
        let full = |broken: usize| {
            let page = (0..100)
                .map(|n| if n < broken { malformed(json!("x")) } else { message_json(300 - n as u64) });
            page.collect::<Vec<Value>>()
        };
        for (answer, ids, unreadable, newest_id, has_more) in [
            (vec![], vec![], vec![], 10, false),
            (vec![message_json(12), message_json(11)], vec![11, 12], vec![], 12, false),
            (
                vec![message_json(13), malformed(json!("12")), message_json(11)],
                vec![11, 13],
                vec![Some(12)],
                13,
                false,
            ),
            (vec![malformed(json!("12")), message_json(11)], vec![11], vec![Some(12)], 12, false),
            (vec![malformed(json!({})), message_json(11)], vec![11], vec![None], 11, false),
            // A page without a newer id is the last one, even if it is full.
            (full(100), vec![], vec![None; 100], 10, false),
            (full(99), vec![201], vec![None; 99], 201, true),
        ] {
            let (history, out) = History::from_page(Snowflake(10), &answer);
            let seen: Vec<u64> = history.messages.iter().map(|message| message.id.0).collect();
            let out: Vec<Option<u64>> = out.into_iter().map(|(id, _)| Some(id?.0)).collect();
            assert_eq!((seen, out), (ids, unreadable));
            assert_eq!((history.newest_id, history.has_more), (Snowflake(newest_id), has_more));
        }
        // A page of known messages only is the last one.
        let old: Vec<Value> = (0..100).map(message_json).collect();
        assert!(!History::from_page(Snowflake(99), &old).0.has_more);
    }
}
