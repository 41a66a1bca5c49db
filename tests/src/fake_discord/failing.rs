//! Orders by which a test has the fake fail.

use super::client::FakeDiscord;
use super::core::faults::{EventFate, EventFault, RestFate, RestFault, When};
use super::core::model::Id;
use super::core::stage::{Order, SocketAct};

/// What goes wrong.
impl FakeDiscord {
    /// A fault of requests to a route, as `POST /channels/{}/messages`, or to one with what stands there; `*` for all.
    pub fn rest_fault(&self, route: &str, when: When, fate: RestFate) {
        self.tell(&Order::RestFault { fault: RestFault { route: route.to_owned(), when, fate } });
    }

    /// A fault of events, as `MESSAGE_CREATE`; `*` for all.
    pub fn event_fault(&self, event: &str, when: When, fate: EventFate) {
        self.tell(&Order::EventFault { fault: EventFault { event: event.to_owned(), when, fate } });
    }

    /// The answer to the next message that a bot makes is held back until its maker is gone; or no answer is held.
    pub fn hold_answer(&self, on: bool) {
        self.tell(&Order::HoldAnswer { on });
    }

    /// No more faults.
    pub fn clear_faults(&self) {
        self.tell(&Order::ClearFaults);
    }

    /// Heartbeats are acknowledged no more, or again.
    pub fn withhold_acks(&self, on: bool) {
        self.tell(&Order::WithholdAcks { on });
    }

    /// The whole service is away, or back.
    pub fn away(&self, on: bool) {
        self.tell(&Order::Away { on });
    }

    /// Does something to the connections of a bot, or all; says to how many.
    pub fn sockets(&self, bot: Option<Id>, act: SocketAct) -> u64 {
        self.order(&Order::Sockets { bot, act })
    }

    /// The next IDENTIFYs and RESUMEs are answered with "invalid session".
    pub fn invalid_sessions(&self, count: u64) {
        self.tell(&Order::InvalidSessions { count });
    }

    /// The next connections get no HELLO.
    pub fn withhold_hellos(&self, count: u64) {
        self.tell(&Order::WithholdHellos { count });
    }

    /// The next IDENTIFYs and RESUMEs get no answer, while heartbeats are acknowledged.
    pub fn unanswered(&self, count: u64) {
        self.tell(&Order::Unanswered { count });
    }
}
