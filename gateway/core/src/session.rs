//! State machine of a session, as one table. Source: design §6 "State machines".

use serde::{Deserialize, Serialize};
use std::fmt;

/// State of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SessionState {
    /// The agent is being started for the first time, or again after a fault.
    Creating,
    /// Ready for a turn.
    Idle,
    /// A turn is running.
    Running,
    /// A running turn was asked to stop and has not ended yet.
    Cancelling,
    /// The agent could not be started or requires credentials; the next prompt retries.
    Error,
    /// Closed permanently.
    Closed,
}

/// Kind of the end of a session. All kinds use the same transaction; they differ in later visibility.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// Closed by a person.
    Closed,
    /// Archived for later reading.
    Archived,
    /// Hidden from lists. The journal stays, since journal rows are never removed.
    Deleted,
    /// Replaced by a new session.
    Reset,
    /// Ended by a timeout.
    Expired,
}

impl Ending {
    /// All kinds.
    pub const ALL: [Self; 5] = [Self::Closed, Self::Archived, Self::Deleted, Self::Reset, Self::Expired];

    /// Returns the name in the database and in JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Archived => "archived",
            Self::Deleted => "deleted",
            Self::Reset => "reset",
            Self::Expired => "expired",
        }
    }
}

/// Event of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SessionEvent {
    /// The agent opened a session.
    Opened,
    /// A run left the queue.
    TurnStarted,
    /// The run ended, with any result.
    TurnEnded,
    /// Cancellation of the running turn was requested.
    CancelAsked,
    /// The agent is unusable until a retry or a new conversation.
    Faulted,
    /// A prompt after a fault starts a retry.
    Retried,
    /// A person started a new conversation after a fault, which clears the error.
    Renewed,
    /// The session was closed.
    Closed,
}

impl SessionEvent {
    /// All events.
    pub const ALL: [Self; 8] = [
        Self::Opened,
        Self::TurnStarted,
        Self::TurnEnded,
        Self::CancelAsked,
        Self::Faulted,
        Self::Retried,
        Self::Renewed,
        Self::Closed,
    ];

    /// Returns the name in logs.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Opened => "opened",
            Self::TurnStarted => "turn_started",
            Self::TurnEnded => "turn_ended",
            Self::CancelAsked => "cancel_asked",
            Self::Faulted => "faulted",
            Self::Retried => "retried",
            Self::Renewed => "renewed",
            Self::Closed => "closed",
        }
    }
}

/// Transition that the table does not allow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a session that is {from} cannot take {event:?}")]
pub struct SessionTransitionError {
    /// State before the event.
    pub from: SessionState,
    /// Refused event.
    pub event: SessionEvent,
}

impl SessionState {
    /// All states.
    pub const ALL: [Self; 6] =
        [Self::Creating, Self::Idle, Self::Running, Self::Cancelling, Self::Error, Self::Closed];

    /// Returns the name in the database and in JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Creating => "creating",
            Self::Idle => "idle",
            Self::Running => "running",
            Self::Cancelling => "cancelling",
            Self::Error => "error",
            Self::Closed => "closed",
        }
    }

    /// Returns the state after `event`.
    ///
    /// # Errors
    /// [`SessionTransitionError`] if the table does not allow the transition; nothing changes.
    pub const fn on(self, event: SessionEvent) -> Result<Self, SessionTransitionError> {
        use SessionEvent as E;
        use SessionState as S;
        match (self, event) {
            (S::Creating, E::Opened) => Ok(S::Idle),
            (S::Idle, E::TurnStarted) => Ok(S::Running),
            (S::Running | S::Cancelling, E::TurnEnded) => Ok(S::Idle),
            (S::Running, E::CancelAsked) => Ok(S::Cancelling),
            (S::Creating | S::Idle | S::Running | S::Cancelling, E::Faulted) => Ok(S::Error),
            (S::Error, E::Retried) => Ok(S::Creating),
            (S::Error, E::Renewed) => Ok(S::Idle),
            (S::Creating | S::Idle | S::Running | S::Cancelling | S::Error, E::Closed) => Ok(S::Closed),
            (from, event) => Err(SessionTransitionError { from, event }),
        }
    }
}

impl fmt::Display for SessionState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The whole machine, in print: what is not in it is refused, and changes nothing. Seed 000 "State machine" has
    /// `creating -> idle -> running -> idle`, `running -> cancelling -> idle | error`, `idle -> closed` and
    /// `error -> idle | closed`; the design's §6 adds the ways into `error` and `closed` from everywhere else.
    #[test]
    fn the_whole_machine_in_print() {
        let mut print = String::new();
        for from in SessionState::ALL {
            for event in SessionEvent::ALL {
                match from.on(event) {
                    Ok(to) => print.push_str(&format!("{from} {} {to}\n", event.as_str())),
                    Err(refused) => assert_eq!(refused, SessionTransitionError { from, event }),
                }
            }
        }
        let want = "\
creating opened idle
creating faulted error
creating closed closed
idle turn_started running
idle faulted error
idle closed closed
running turn_ended idle
running cancel_asked cancelling
running faulted error
running closed closed
cancelling turn_ended idle
cancelling faulted error
cancelling closed closed
error retried creating
error renewed idle
error closed closed
";
        assert_eq!(print, want);
    }
}
