//! What is on its way and has not arrived: answers that are held back, and requests that are late.
//!
//! A test that wants to end a client between a message and its receipt arms this, waits until an answer is held, and ends
//! the client: what nobody ever heard of then stands in [`Underway::unheard`].

use super::Machine;
use super::model::Id;
use super::rest::{Answer, Call, classify};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// The routes of which answers are held back.
const CREATE: [&str; 2] = ["POST /channels/{}/messages", "POST /webhooks/{}/{}"];

/// What is on its way. It ends with the process.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Underway {
    /// The answer to the next message that is made is held back.
    pub armed: bool,
    /// Messages that are made and kept, and whose answer waits.
    pub held: BTreeSet<Id>,
    /// Messages that are made and kept, and whose maker was gone before the answer left.
    pub unheard: BTreeSet<Id>,
    /// Requests that will be carried out though nobody waits for them any more.
    pub late: u64,
}

impl Machine {
    /// Arms, or lets go of what is held.
    pub fn hold_answer(&mut self, on: bool) {
        self.underway.armed = on;
        if !on {
            self.underway.held.clear();
        }
    }

    /// Whether this answer is held back: the message that it tells of. One that an enforced nonce gave back is not new,
    /// and is not held.
    pub fn holds_back(&mut self, call: &Call, answer: &Answer, deduplicated_before: u64) -> Option<Id> {
        let is_create = classify(&call.method, &call.path).is_ok_and(|route| CREATE.contains(&route.name));
        let is_new = answer.status == 200 && self.tally.deduplicated == deduplicated_before;
        if !(self.underway.armed && is_create && is_new) {
            return None;
        }
        let id = told_id(answer)?;
        self.underway.armed = false;
        self.underway.held.insert(id);
        Some(id)
    }

    /// Whoever waited for this answer is gone.
    pub fn unheard(&mut self, id: Id) {
        if self.underway.held.remove(&id) {
            self.underway.unheard.insert(id);
        }
    }

    /// Forgets the message that an answer tells of, as if it had never been made.
    pub fn forget_made(&mut self, answer: &Answer) {
        if let Some(id) = told_id(answer) {
            self.world.messages.remove(id);
        }
    }
}

/// The id of the thing that an answer shows.
fn told_id(answer: &Answer) -> Option<Id> {
    answer.body.as_ref()?.get("id")?.as_str()?.parse().ok()
}
