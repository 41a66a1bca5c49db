//! The life of a session, as one table. Source: design §6 "State machines".

use serde::{Deserialize, Serialize};
use std::fmt;

/// Where a session is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum SessionState {
    /// The agent is being started for the first time, or again after a fault.
    Creating,
    /// Ready for a turn.
    Idle,
    /// A turn runs.
    Running,
    /// A turn was asked to stop and has not ended yet.
    Cancelling,
    /// The agent could not be started or wants credentials; the next prompt tries again.
    Error,
    /// Ended for good.
    Closed,
}

/// In which way a session was closed. Each of them is the same transaction; they differ in who sees it later.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Ending {
    /// By a person who is done with it.
    Closed,
    /// To be kept for later reading.
    Archived,
    /// To be seen no more: lists leave it out. Its journal stays, since nothing is ever taken out of a journal.
    Deleted,
    /// To begin again with another one.
    Reset,
    /// By a window that ran out.
    Expired,
}

impl Ending {
    /// Every ending.
    pub(crate) const ALL: [Self; 5] =
        [Self::Closed, Self::Archived, Self::Deleted, Self::Reset, Self::Expired];

    /// The name in the database and in JSON.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Archived => "archived",
            Self::Deleted => "deleted",
            Self::Reset => "reset",
            Self::Expired => "expired",
        }
    }
}

/// What can happen to a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum SessionEvent {
    /// The agent opened its session.
    Opened,
    /// A run left the queue.
    TurnStarted,
    /// The run ended, in whatever way.
    TurnEnded,
    /// The running turn was asked to stop.
    CancelAsked,
    /// The agent cannot be used until something is done about it.
    Faulted,
    /// A prompt after a fault: try again.
    Retried,
    /// A person began the conversation anew after a fault: what went wrong is behind it.
    Renewed,
    /// The session was closed.
    Closed,
}

impl SessionEvent {
    /// Every event.
    #[cfg(test)]
    pub(crate) const ALL: [Self; 8] = [
        Self::Opened,
        Self::TurnStarted,
        Self::TurnEnded,
        Self::CancelAsked,
        Self::Faulted,
        Self::Retried,
        Self::Renewed,
        Self::Closed,
    ];

    /// The name in logs.
    pub(crate) const fn as_str(self) -> &'static str {
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

/// A transition that the table does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a session that is {from} cannot take {event:?}")]
pub(crate) struct IllegalSession {
    /// The state it was in.
    pub(crate) from: SessionState,
    /// What was to happen.
    pub(crate) event: SessionEvent,
}

impl SessionState {
    /// Every state.
    pub(crate) const ALL: [Self; 6] =
        [Self::Creating, Self::Idle, Self::Running, Self::Cancelling, Self::Error, Self::Closed];

    /// The name in the database and in JSON.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Creating => "creating",
            Self::Idle => "idle",
            Self::Running => "running",
            Self::Cancelling => "cancelling",
            Self::Error => "error",
            Self::Closed => "closed",
        }
    }

    /// The state after `event`.
    ///
    /// # Errors
    /// [`IllegalSession`] for a pair that is not in the table; nothing changes.
    pub(crate) const fn on(self, event: SessionEvent) -> Result<Self, IllegalSession> {
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
            (from, event) => Err(IllegalSession { from, event }),
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
                    Err(refused) => assert_eq!(refused, IllegalSession { from, event }),
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
