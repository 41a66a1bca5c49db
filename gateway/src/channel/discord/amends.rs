//! What people change about what they said, and what happens to a conversation: kept, however long that takes.
//!
//! Discord tells each change once. One that was told to nobody, or that waited for the store when the gateway was
//! killed, is found where it matters: of the messages whose turn has not begun, each is compared with what it says now.

use super::again::{Attempt as _, again};
use super::backfill::MISSED;
use super::lanes::Lane;
use super::owed::Looked;
use crate::channel::{Change, Changed, Waiting};
use acp_discord::core::errors::{Meaning, What};
use acp_discord::core::event::{Edit, Message};
use acp_discord::core::ids::Snowflake;
use acp_discord::rest::Fault;
use std::collections::BTreeMap;

/// What was changed about a message.
#[derive(Debug, PartialEq, Eq)]
enum Found {
    /// It says something else.
    Says(Snowflake, String),
    /// It is gone.
    Gone(Snowflake),
}

/// What is to be taken of a message as it is now, when its prompt says this. One that says nothing is none that somebody
/// changed: the bot is not shown what it says.
fn compared(id: Snowflake, prompt: Option<&str>, now: Option<&Message>) -> Option<Found> {
    let (prompt, now) = (prompt?, now?);
    let is_other = now.text != prompt && !now.text.trim().is_empty();
    is_other.then(|| Found::Says(id, now.text.clone()))
}

impl Lane {
    /// Somebody gave a message another text.
    pub(super) async fn edited(&self, edit: Edit) {
        let is_own = edit.author.as_ref().is_some_and(|author| Some(author.id) == self.inner.known.me());
        if let (Some(text), false, true) = (edit.text, is_own, edit.by_author) {
            self.reworded(edit.id, text).await;
        }
    }

    async fn reworded(&self, message: Snowflake, text: String) {
        let (at, id) = (self.here(), message.to_string());
        let edit = || self.inbox.edited(at.clone(), id.clone(), text.clone());
        let amended = again("an edit", self.channel, edit).await;
        tracing::info!(message = id, ?amended, "an edit was taken");
    }

    /// A message is gone.
    pub(super) async fn deleted(&self, message: Snowflake) {
        let (at, id) = (self.here(), message.to_string());
        let delete = || self.inbox.deleted(at.clone(), id.clone());
        let amended = again("a deletion", self.channel, delete).await;
        tracing::info!(message = id, ?amended, "a deletion was taken");
    }

    /// Looks whether the messages whose turn has not begun still say what they said; a page for each that is far from
    /// the one before it, and none where nothing waits. Not any more as soon as something else is to be done: what was
    /// told comes before what is looked up, which is newer.
    ///
    /// # Errors
    /// They could not be looked at, or not all of them.
    pub(super) async fn look_at_waiting(&self, something: impl Future<Output = ()>) -> Result<Looked, Fault> {
        tokio::select! {
            biased;
            found = self.amended() => {
                for found in found? {
                    match found {
                        Found::Says(message, text) => self.reworded(message, text).await,
                        Found::Gone(message) => self.deleted(message).await,
                    }
                }
                Ok(Looked::Done)
            }
            () = something => Ok(Looked::Interrupted),
        }
    }

    /// What was changed about the messages whose turn has not begun.
    async fn amended(&self) -> Result<Vec<Found>, Fault> {
        let Some(waiting) = self.inbox.waiting(self.here()).await else {
            let why = "what waits here cannot be read".to_owned();
            return Err(Fault::Uncertain { why });
        };
        let known = |waiting: Waiting| Some((waiting.message_id.parse().ok()?, waiting.text));
        let mut left: BTreeMap<Snowflake, Option<String>> = waiting.into_iter().filter_map(known).collect();
        let mut found = Vec::new();
        while let Some((first, _)) = left.first_key_value() {
            let before = Snowflake(first.0.saturating_sub(1));
            let page = self.inner.rest.history(self.channel, before, MISSED).await?;
            let beyond = match page.has_more {
                true => left.split_off(&Snowflake(page.through.0.saturating_add(1))),
                false => BTreeMap::new(),
            };
            for (id, text) in std::mem::replace(&mut left, beyond) {
                found.extend(compared(id, text.as_deref(), page.message(id)));
                if page.lacks(id) && self.is_gone(id).await? {
                    found.push(Found::Gone(id));
                }
            }
        }
        Ok(found)
    }

    /// Whether a message that is on no page is gone. A bot that may not read what was said is shown empty pages.
    async fn is_gone(&self, message: Snowflake) -> Result<bool, Fault> {
        let Err(fault) = self.inner.rest.message(self.channel, message).await else { return Ok(false) };
        match fault.meaning() {
            Some(Meaning::Gone(What::Message)) => Ok(true),
            _ if Err(fault.clone()).later().is_some() => Err(fault),
            _ => Ok(false),
        }
    }

    /// The conversation is not there any more.
    pub(super) async fn gone(&self, why: String) {
        let changed = self.changed(Change::Gone { why }).await;
        // Nothing of it is remembered.
        self.inner.rest.put_away(self.channel, false);
        self.inner.known.forget(self.channel);
        tracing::info!(thread_id = %self.channel, ?changed, "a conversation of Discord is gone");
    }

    /// Something happened to the conversation itself.
    pub(super) async fn changed(&self, change: Change) -> Changed {
        let at = self.inner.at(self.channel, None);
        let change = || self.inbox.changed(at.clone(), change.clone());
        again("what happened to a conversation", self.channel, change).await
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;
    use acp_discord::core::read;
    use serde_json::json;

    #[test]
    fn what_a_message_says_now_is_taken_where_it_is_its_prompt() {
        let id = Snowflake(7);
        let says = |text: &str| {
            let author = json!({"id": "5", "username": "ann"});
            read::message(&json!({"id": "7", "channel_id": "1", "content": text, "author": author})).unwrap()
        };
        for (prompt, now, want) in [
            (Some("one"), Some(says("one")), None),
            (Some("one"), Some(says("two")), Some(Found::Says(id, "two".to_owned()))),
            // Of a command, of one that is not there, of one of which nothing is shown.
            (None, Some(says("/acp steer two")), None),
            (Some("one"), None, None),
            (Some("one"), Some(says(" ")), None),
        ] {
            assert_eq!(compared(id, prompt, now.as_ref()), want, "{prompt:?} {now:?}");
        }
    }
}
