//! Operations in progress: answers that are held back, and delayed requests.
//!
//! To kill a client between the creation of a message and the receipt of the answer, a test arms this, waits
//! until an answer is held, and kills the client: the message is then in [`Underway::unreceived`].

use super::Machine;
use super::model::Id;
use super::rest::{Answer, Call, classify};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// The routes whose answers are held back.
const CREATE: [&str; 2] = ["POST /channels/{}/messages", "POST /webhooks/{}/{}"];

/// Operations in progress. They are not stored.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Underway {
    /// The answer to the next created message will be held back.
    pub armed: bool,
    /// Created and stored messages whose answer is held back.
    pub held: BTreeSet<Id>,
    /// Created and stored messages whose client disconnected before the answer was sent.
    pub unreceived: BTreeSet<Id>,
    /// Number of requests that will be executed although their client disconnected.
    pub late: u64,
}

impl Machine {
    /// Arms, or releases all held answers.
    pub fn hold_answer(&mut self, on: bool) {
        self.underway.armed = on;
        if !on {
            self.underway.held.clear();
        }
    }

    /// Decides whether an answer is held back, and returns the id of its message. A message that an enforced
    /// nonce returned is not new, and its answer is not held.
    pub fn hold_back(&mut self, call: &Call, answer: &Answer, deduplicated_before: u64) -> Option<Id> {
        let is_create = classify(&call.method, &call.path).is_ok_and(|route| CREATE.contains(&route.name));
        let is_new = answer.status == 200 && self.tally.deduplicated == deduplicated_before;
        if !(self.underway.armed && is_create && is_new) {
            return None;
        }
        let id = answer_id(answer)?;
        self.underway.armed = false;
        self.underway.held.insert(id);
        Some(id)
    }

    /// Records that the client of a held answer disconnected.
    pub fn mark_unreceived(&mut self, id: Id) {
        if self.underway.held.remove(&id) {
            self.underway.unreceived.insert(id);
        }
    }

    /// Removes the message of an answer, as if it had never been created.
    pub fn forget_created(&mut self, answer: &Answer) {
        if let Some(id) = answer_id(answer) {
            self.world.messages.remove(id);
        }
    }
}

/// The id of the object in an answer.
fn answer_id(answer: &Answer) -> Option<Id> {
    answer.body.as_ref()?.get("id")?.as_str()?.parse().ok()
}
