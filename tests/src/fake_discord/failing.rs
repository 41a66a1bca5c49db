//! Fault injection orders.

use super::client::FakeDiscord;
use super::core::faults::{EventFate, EventFault, RestFate, RestFault, When};
use super::core::model::Id;
use super::core::stage::{Order, SocketAct};

/// Fault injection.
impl FakeDiscord {
    /// Adds a fault of requests to a route (`POST /channels/{}/messages`), to one exact path, or to all
    /// (`*`).
    pub fn rest_fault(&self, route: &str, when: When, fate: RestFate) {
        self.send(&Order::RestFault { fault: RestFault { route: route.to_owned(), when, fate } });
    }

    /// Adds a fault of an event (`MESSAGE_CREATE`) or of all events (`*`).
    pub fn event_fault(&self, event: &str, when: When, fate: EventFate) {
        self.send(&Order::EventFault { fault: EventFault { event: event.to_owned(), when, fate } });
    }

    /// Holds back the answer to the next message that a bot creates until the bot disconnects; or holds none.
    pub fn hold_answer(&self, on: bool) {
        self.send(&Order::HoldAnswer { on });
    }

    /// Removes all faults.
    pub fn clear_faults(&self) {
        self.send(&Order::ClearFaults);
    }

    /// Stops or resumes the acknowledgement of heartbeats.
    pub fn withhold_acks(&self, on: bool) {
        self.send(&Order::WithholdAcks { on });
    }

    /// Makes the whole service unavailable, or available again.
    pub fn set_unavailable(&self, on: bool) {
        self.send(&Order::Away { on });
    }

    /// Applies an action to the connections of a bot, or to all; returns their number.
    pub fn sockets(&self, bot: Option<Id>, act: SocketAct) -> u64 {
        self.order(&Order::Sockets { bot, act })
    }

    /// Answers the next IDENTIFYs and RESUMEs with "invalid session".
    pub fn refuse_sessions(&self, count: u64) {
        self.send(&Order::InvalidSessions { count });
    }

    /// Sends no HELLO to the next connections.
    pub fn withhold_hellos(&self, count: u64) {
        self.send(&Order::WithholdHellos { count });
    }

    /// Leaves the next IDENTIFYs and RESUMEs unanswered, while heartbeats are acknowledged.
    pub fn withhold_answers(&self, count: u64) {
        self.send(&Order::Unanswered { count });
    }
}
