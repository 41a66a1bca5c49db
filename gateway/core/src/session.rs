//! State machine of a session, as one table. Source: design §6 "State machines".

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

acp_shared::named! {
    /// State of a session, named as in the database and in JSON.
    #[derive(Hash, Serialize, Deserialize, ToSchema)]
    #[serde(rename_all = "snake_case")]
    pub enum SessionState {
        /// The agent is being started for the first time, or again after a fault.
        Creating = "creating",
        /// Ready for a turn.
        Idle = "idle",
        /// A turn is running.
        Running = "running",
        /// A running turn was asked to stop and has not ended yet.
        Cancelling = "cancelling",
        /// The agent could not be started or requires credentials; the next prompt retries.
        Error = "error",
        /// Closed permanently.
        Closed = "closed",
    }

    /// Kind of the end of a session, named as in the database and in JSON. All kinds use the same transaction;
    /// they differ in later visibility.
    #[derive(Hash, Serialize, Deserialize, ToSchema)]
    #[serde(rename_all = "snake_case")]
    pub enum Ending {
        /// Closed by a person.
        Closed = "closed",
        /// Archived for later reading.
        Archived = "archived",
        /// Hidden from lists. The journal stays, since journal rows are never removed.
        Deleted = "deleted",
        /// Replaced by a new session.
        Reset = "reset",
        /// Ended by a timeout.
        Expired = "expired",
    }

    /// Event of a session, named as in logs.
    #[derive(Hash)]
    pub enum SessionEvent {
        /// The agent opened a session.
        Opened = "opened",
        /// A run left the queue.
        TurnStarted = "turn_started",
        /// The run ended, with any result.
        TurnEnded = "turn_ended",
        /// Cancellation of the running turn was requested.
        CancelAsked = "cancel_asked",
        /// The agent is unusable until a retry or a new conversation.
        Faulted = "faulted",
        /// A prompt after a fault starts a retry.
        Retried = "retried",
        /// A person started a new conversation after a fault, which clears the error.
        Renewed = "renewed",
        /// The session was closed.
        Closed = "closed",
    }
}

impl SessionState {
    /// Returns the state after `event`; `None` if the table does not allow the transition.
    pub const fn on(self, event: SessionEvent) -> Option<Self> {
        use SessionEvent as E;
        use SessionState as S;
        match (self, event) {
            (S::Creating, E::Opened) => Some(S::Idle),
            (S::Idle, E::TurnStarted) => Some(S::Running),
            (S::Running | S::Cancelling, E::TurnEnded) => Some(S::Idle),
            (S::Running, E::CancelAsked) => Some(S::Cancelling),
            (S::Creating | S::Idle | S::Running | S::Cancelling, E::Faulted) => Some(S::Error),
            (S::Error, E::Retried) => Some(S::Creating),
            (S::Error, E::Renewed) => Some(S::Idle),
            (S::Creating | S::Idle | S::Running | S::Cancelling | S::Error, E::Closed) => Some(S::Closed),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All transitions of sessions; other events are refused and change nothing. Beyond the source document:
    /// the ways into `error` and `closed` from every other state.
    #[test]
    fn session_transitions_match_the_table() {
        let mut table = String::new();
        for from in SessionState::ALL {
            for event in SessionEvent::ALL {
                if let Some(to) = from.on(event) {
                    table.push_str(&format!("{from} {event} {to}\n"));
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
        assert_eq!(table, want);
    }
}
