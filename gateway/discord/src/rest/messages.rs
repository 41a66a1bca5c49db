//! Requests about messages, reactions and the typing indicator.

use super::model::{self, parse};
use super::{Call, Fault, Rest, Turn};
use crate::core::errors::{Meaning, What};
use crate::core::event::Message;
use crate::core::gate::OLD_MS;
use crate::core::ids::Snowflake;
use crate::core::message::{Body, NewMessage};
use crate::core::read;
use crate::core::route::{Nature, PAGE_MAX, Page, Route};
use crate::core::schedule::{Priority, Sequence};
use serde::Deserialize;
use serde_json::Value;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Evidence that a message exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Proof {
    /// Discord's response to the request.
    Answer,
    /// A gateway event for the message; the response was lost.
    Echo,
}

/// Message that exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Posted {
    /// Message id.
    pub id: Snowflake,
    /// Evidence that it exists.
    pub proof: Proof,
}

#[derive(Deserialize)]
pub(super) struct Id {
    pub(super) id: Snowflake,
}

/// Current wall-clock time in milliseconds since the Unix epoch. Only decides whether a message is old.
fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Page of a channel's history, oldest message first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct History {
    /// Messages that could be parsed.
    pub messages: Vec<Message>,
    /// Messages that could not be parsed: the id of each, or `None` if that is unreadable too.
    pub left_out: Vec<Option<Snowflake>>,
    /// Id of the newest message of the page, parsed or not. If the page has none, the id that it was to begin
    /// after.
    pub through: Snowflake,
    /// True if there may be another page.
    pub has_more: bool,
}

impl History {
    /// Builds a page from a response, with the reason for each message that was left out. A page without an
    /// id newer than `after` is the last one, even if it is full.
    fn of(after: Snowflake, answer: &[Value]) -> (Self, Vec<String>) {
        let (mut messages, mut left_out, mut through) = (Vec::new(), Vec::new(), after);
        let mut whys = Vec::new();
        for one in answer {
            let id = match read::message(one) {
                Ok(message) => {
                    let id = message.id;
                    messages.push(message);
                    Some(id)
                }
                Err(error) => {
                    let id = Id::deserialize(one).ok().map(|Id { id }| id);
                    left_out.push(id);
                    whys.push(error.0);
                    id
                }
            };
            through = id.map_or(through, |id| through.max(id));
        }
        messages.sort_by_key(|message| message.id);
        let has_more = answer.len() >= usize::from(PAGE_MAX) && through > after;
        (Self { messages, left_out, through, has_more }, whys)
    }

    /// Returns a message of the page, if it is present and could be parsed.
    #[must_use]
    pub fn message(&self, id: Snowflake) -> Option<&Message> {
        self.messages.iter().find(|message| message.id == id)
    }

    /// True if a message within the range of the page is certainly absent: it is not a left-out message
    /// either.
    #[must_use]
    pub fn lacks(&self, id: Snowflake) -> bool {
        let may_be = |left_out: &Option<Snowflake>| left_out.is_none_or(|left_out| left_out == id);
        self.message(id).is_none() && !self.left_out.iter().any(may_be)
    }
}

/// Maximum wait of a typing indicator in the queue. Discord shows the indicator for ten seconds.
const TYPING_PATIENCE: Duration = Duration::from_secs(2);

impl Rest {
    /// Creates a message. If its nonce was used within the last minutes, Discord returns the first message
    /// and creates no second one.
    ///
    /// # Errors
    /// [`Fault::Uncertain`] if the response was lost and no echo was seen: retry with the same nonce within a
    /// few minutes, later use [`Rest::lookup`]. [`Meaning::SentAndDeleted`] if the message was sent and has
    /// been deleted.
    pub async fn create_message(
        &self,
        channel: Snowflake,
        message: &NewMessage,
        turn: Turn,
    ) -> Result<Posted, Fault> {
        let route = Route::create_message(channel);
        let payload = message.payload().map_err(|refused| Fault::invalid(route.name, &refused))?;
        match self.post(Call::new(route, turn).lane(channel).payload(payload)).await {
            Err(Fault::Uncertain { why }) => match self.echoed(&message.nonce) {
                Some(id) => Ok(Posted { id, proof: Proof::Echo }),
                None => Err(Fault::Uncertain { why }),
            },
            result => result,
        }
    }

    /// Sends a request that creates a message, and reads the id of the message.
    pub(super) async fn post(&self, call: Call) -> Result<Posted, Fault> {
        let name = call.route.name;
        let answer = self.json(call).await?;
        let Id { id } = parse(name, Nature::Create, answer)?;
        Ok(Posted { id, proof: Proof::Answer })
    }

    /// Replaces the content of a message of this bot. A newer edit supersedes one that is still in the queue.
    ///
    /// # Errors
    /// [`Fault::Superseded`] if a newer edit replaced this one; another [`Fault`] if the request failed or
    /// its outcome is unknown.
    pub async fn edit_message(
        &self,
        channel: Snowflake,
        message: Snowflake,
        body: &Body,
        turn: Turn,
    ) -> Result<(), Fault> {
        let route = Route::edit_message(channel, message);
        let payload = body.edit().map_err(|refused| Fault::invalid(route.name, &refused))?;
        let mut call =
            Call::new(route, turn).lane(channel).sequence(Sequence::Edit(message)).payload(payload);
        call.old_edit = message.made_at_ms().saturating_add(OLD_MS) <= unix_ms();
        self.call(call).await.map(|_| ())
    }

    /// Deletes a message. Succeeds if it no longer exists.
    ///
    /// # Errors
    /// [`Fault`] if the request failed or its outcome is unknown.
    pub async fn delete_message(
        &self,
        channel: Snowflake,
        message: Snowflake,
        turn: Turn,
    ) -> Result<(), Fault> {
        let route = Route::delete_message(channel, message);
        let call = Call::new(route, turn).lane(channel).sequence(Sequence::Edit(message));
        gone_is_done(self.call(call).await, What::Message)
    }

    /// Reads a message.
    ///
    /// # Errors
    /// [`Fault`] if the request failed.
    pub async fn message(&self, channel: Snowflake, message: Snowflake) -> Result<Message, Fault> {
        let route = Route::get_message(channel, message);
        let name = route.name;
        model::message(name, Nature::Read, &self.json(Call::read(route)).await?)
    }

    /// Reads a page of at most 100 messages, newest first. An empty page may mean that the bot lacks Read
    /// Message History.
    ///
    /// # Errors
    /// [`Fault`] if the request failed.
    pub async fn messages(&self, channel: Snowflake, page: Page, limit: u8) -> Result<Vec<Message>, Fault> {
        let route = Route::get_messages(channel, page, limit);
        let name = route.name;
        let answer: Vec<Value> = parse(name, Nature::Read, self.json(Call::read(route)).await?)?;
        answer.iter().map(|one| model::message(name, Nature::Read, one)).collect()
    }

    /// Reads the next page after a message, oldest first. A message that cannot be parsed is left out,
    /// counted and logged, so that it does not block the others.
    ///
    /// # Errors
    /// [`Fault`] if the request failed.
    pub async fn history(&self, channel: Snowflake, after: Snowflake, turn: Turn) -> Result<History, Fault> {
        let route = Route::get_messages(channel, Page::After(after), PAGE_MAX);
        let name = route.name;
        let answer: Vec<Value> = parse(name, Nature::Read, self.json(Call::new(route, turn)).await?)?;
        let (history, whys) = History::of(after, &answer);
        for (id, why) in history.left_out.iter().zip(whys) {
            self.0.counters.left_out();
            tracing::error!(%channel, message = ?id, why, "a message cannot be read, and is left out");
        }
        Ok(history)
    }

    /// Adds a reaction of the bot: a Unicode emoji, or `name:id` of a custom emoji.
    ///
    /// # Errors
    /// [`Fault`] if the request failed or its outcome is unknown.
    pub async fn add_reaction(
        &self,
        channel: Snowflake,
        message: Snowflake,
        emoji: &str,
        patience: Duration,
    ) -> Result<(), Fault> {
        self.react(Route::add_reaction(channel, message, emoji), (channel, message), patience).await
    }

    /// Removes a reaction of the bot. Succeeds if the message or the emoji no longer exists.
    ///
    /// # Errors
    /// [`Fault`] if the request failed or its outcome is unknown.
    pub async fn remove_reaction(
        &self,
        channel: Snowflake,
        message: Snowflake,
        emoji: &str,
        patience: Duration,
    ) -> Result<(), Fault> {
        let route = Route::remove_reaction(channel, message, emoji);
        match self.react(route, (channel, message), patience).await {
            Err(fault) if matches!(fault.meaning(), Some(Meaning::Gone(What::Message | What::Emoji))) => {
                Ok(())
            }
            result => result,
        }
    }

    async fn react(&self, route: Route, at: (Snowflake, Snowflake), patience: Duration) -> Result<(), Fault> {
        let (channel, message) = at;
        let turn = Turn::new(Priority::Reaction, patience);
        let call = Call::new(route, turn).lane(channel).sequence(Sequence::Reactions(message));
        self.call(call).await.map(|_| ())
    }

    /// Shows the typing indicator for ten seconds.
    ///
    /// # Errors
    /// [`Fault`] if the request failed or its outcome is unknown; the caller can ignore it.
    pub async fn typing(&self, channel: Snowflake) -> Result<(), Fault> {
        let turn = Turn::new(Priority::Typing, TYPING_PATIENCE);
        let call = Call::new(Route::typing(channel), turn).lane(channel).sequence(Sequence::Typing(channel));
        self.call(call).await.map(|_| ())
    }
}

/// Turns "the object to delete does not exist" into success.
pub(super) fn gone_is_done<T>(result: Result<T, Fault>, what: What) -> Result<(), Fault> {
    match result {
        Err(fault) if fault.meaning() == Some(Meaning::Gone(what)) => Ok(()),
        result => result.map(|_| ()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn told(id: u64) -> Value {
        json!({"id": id.to_string(), "channel_id": "1", "author": {"id": "5", "username": "ann"}, "content": "hello",
            "type": 0, "timestamp": "2026-11-22T00:00:00+00:00", "attachments": [], "mentions": []})
    }

    /// Messages that cannot be parsed are left out and skipped, with or without a readable id.
    #[test]
    fn one_message_that_cannot_be_read_holds_up_no_other() {
        let odd = |id: Value| json!({"id": id, "author": "nobody"});
        let full = |broken: usize| {
            let page = (0..100).map(|n| if n < broken { odd(json!("x")) } else { told(300 - n as u64) });
            page.collect::<Vec<Value>>()
        };
        for (answer, ids, left_out, through, has_more) in [
            (vec![], vec![], vec![], 10, false),
            (vec![told(12), told(11)], vec![11, 12], vec![], 12, false),
            (vec![told(13), odd(json!("12")), told(11)], vec![11, 13], vec![Some(12)], 13, false),
            (vec![odd(json!("12")), told(11)], vec![11], vec![Some(12)], 12, false),
            (vec![odd(json!({})), told(11)], vec![11], vec![None], 11, false),
            // A page without a newer id is the last one, even if it is full.
            (full(100), vec![], vec![None; 100], 10, false),
            (full(99), vec![201], vec![None; 99], 201, true),
        ] {
            let (history, whys) = History::of(Snowflake(10), &answer);
            let seen: Vec<u64> = history.messages.iter().map(|message| message.id.0).collect();
            let out: Vec<Option<u64>> = history.left_out.iter().map(|id| Some((*id)?.0)).collect();
            assert_eq!(out.len(), whys.len());
            assert_eq!((seen, out), (ids, left_out));
            assert_eq!((history.through, history.has_more), (Snowflake(through), has_more));
        }
        // A page of known messages only is the last one.
        let old: Vec<Value> = (0..100).map(told).collect();
        assert!(!History::of(Snowflake(99), &old).0.has_more);
    }

    /// A message is reported as absent only if no left-out message can be the one.
    #[test]
    fn a_message_is_lacking_where_nothing_could_be_it() {
        let odd = |id: Value| json!({"id": id, "author": "nobody"});
        for (answer, has, lacks) in [
            (vec![], false, true),
            (vec![told(11)], false, true),
            (vec![told(12), told(11)], true, false),
            (vec![odd(json!("12")), told(11)], false, false),
            (vec![odd(json!("13")), told(11)], false, true),
            (vec![odd(json!({})), told(11)], false, false),
        ] {
            let (history, _) = History::of(Snowflake(10), &answer);
            let id = Snowflake(12);
            assert_eq!((history.message(id).is_some(), history.lacks(id)), (has, lacks), "{answer:?}");
        }
    }
}
