//! Messages: made, changed, taken away, read; reactions; the sign of work.

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

/// How it is known that a message is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Proof {
    /// Discord said so.
    Answer,
    /// It was seen on the websocket; the answer was lost.
    Echo,
}

/// A message that is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Posted {
    /// Its id.
    pub id: Snowflake,
    /// How that is known.
    pub proof: Proof,
}

#[derive(Deserialize)]
pub(super) struct Id {
    pub(super) id: Snowflake,
}

/// The time of the day, in milliseconds since 1970: only to tell old messages from young ones.
fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// A page of what was said, the oldest first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct History {
    /// What could be read.
    pub messages: Vec<Message>,
    /// What could not: its id, as far as that can be read.
    pub left_out: Vec<Option<Snowflake>>,
    /// The newest message of the page, whether it could be read or not; what the page was to begin after, where there
    /// is none.
    pub through: Snowflake,
    /// Whether there may be another page.
    pub has_more: bool,
}

impl History {
    /// What an answer holds, and what is wrong with each message that is left out. A page that leads no further is the
    /// last one, whatever is in it.
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

    /// A message of the page, if it is there and could be read.
    #[must_use]
    pub fn message(&self, id: Snowflake) -> Option<&Message> {
        self.messages.iter().find(|message| message.id == id)
    }

    /// Whether a message that the page would hold is not there: not even as one that could not be read.
    #[must_use]
    pub fn lacks(&self, id: Snowflake) -> bool {
        let may_be = |left_out: &Option<Snowflake>| left_out.is_none_or(|left_out| left_out == id);
        self.message(id).is_none() && !self.left_out.iter().any(may_be)
    }
}

/// How long a sign of work may wait: it lasts for ten seconds.
const TYPING_PATIENCE: Duration = Duration::from_secs(2);

impl Rest {
    /// Makes a message. One with a nonce that was used within some minutes is not made again: the first one comes
    /// back.
    ///
    /// # Errors
    /// [`Fault::Uncertain`] when the answer was lost and no echo was seen: ask again with the same nonce within some
    /// minutes, and look for it later ([`Rest::lookup`]). [`Meaning::SentAndDeleted`]: it was sent, and is gone.
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

    /// Makes a message in any way, and reads its id.
    pub(super) async fn post(&self, call: Call) -> Result<Posted, Fault> {
        let name = call.route.name;
        let answer = self.json(call).await?;
        let Id { id } = parse(name, Nature::Create, answer)?;
        Ok(Posted { id, proof: Proof::Answer })
    }

    /// Gives a message of ours all that it shows anew. One that waits for its turn gives way to a newer one.
    ///
    /// # Errors
    /// What is known of it; [`Fault::Superseded`] when a newer one took its place.
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

    /// Takes a message away. One that is gone already is taken away.
    ///
    /// # Errors
    /// What is known of it.
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
    /// What is known of it.
    pub async fn message(&self, channel: Snowflake, message: Snowflake) -> Result<Message, Fault> {
        let route = Route::get_message(channel, message);
        let name = route.name;
        model::message(name, Nature::Read, &self.json(Call::read(route)).await?)
    }

    /// Reads a page of at most 100 messages, the newest first. None at all may mean that the bot may not read what
    /// was said before.
    ///
    /// # Errors
    /// What is known of it.
    pub async fn messages(&self, channel: Snowflake, page: Page, limit: u8) -> Result<Vec<Message>, Fault> {
        let route = Route::get_messages(channel, page, limit);
        let name = route.name;
        let answer: Vec<Value> = parse(name, Nature::Read, self.json(Call::read(route)).await?)?;
        answer.iter().map(|one| model::message(name, Nature::Read, one)).collect()
    }

    /// Reads on from a message, the oldest first. A message that cannot be read is left out, counted and said, so that
    /// it holds up no other.
    ///
    /// # Errors
    /// What is known of it.
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

    /// Adds a reaction of ours: an emoji itself, or `name:id` of a server's own.
    ///
    /// # Errors
    /// What is known of it.
    pub async fn add_reaction(
        &self,
        channel: Snowflake,
        message: Snowflake,
        emoji: &str,
        patience: Duration,
    ) -> Result<(), Fault> {
        self.react(Route::add_reaction(channel, message, emoji), (channel, message), patience).await
    }

    /// Takes a reaction of ours away. One that is gone already is taken away.
    ///
    /// # Errors
    /// What is known of it.
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

    /// Shows the sign of work for ten seconds.
    ///
    /// # Errors
    /// What is known of it; nothing needs to be done about it.
    pub async fn typing(&self, channel: Snowflake) -> Result<(), Fault> {
        let turn = Turn::new(Priority::Typing, TYPING_PATIENCE);
        let call = Call::new(Route::typing(channel), turn).lane(channel).sequence(Sequence::Typing(channel));
        self.call(call).await.map(|_| ())
    }
}

/// What was to be taken away is not there: that is what was wanted.
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

    /// What cannot be read is left out and passed by, with and without an id that can be.
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
            // What leads no further is the end, though the page is full.
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
        // A page of what is known already leads no further.
        let old: Vec<Value> = (0..100).map(told).collect();
        assert!(!History::of(Snowflake(99), &old).0.has_more);
    }

    /// That a message is not there is only said where nothing of the page could be it.
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
