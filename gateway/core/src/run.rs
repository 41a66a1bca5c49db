//! State machine of a run (one turn), as one table. Source: design §6 "State machines".

use serde::{Deserialize, Serialize};
use std::fmt;

/// State of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunState {
    /// In the queue.
    Queued,
    /// Out of the queue; the agent may still be starting.
    Running,
    /// Ended with an answer of the agent.
    Completed,
    /// Ended without an answer.
    Failed,
    /// Stopped by a person, while queued or running.
    Cancelled,
}

/// Event of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RunEvent {
    /// The run left the queue.
    Started,
    /// The run returned to the queue: the prompt provably never reached the agent (H6).
    Requeued,
    /// The agent answered; or, for a steer, accepted (H11).
    Completed,
    /// The run failed without an answer.
    Failed,
    /// The run was stopped.
    Cancelled,
}

impl RunEvent {
    /// All events.
    pub const ALL: [Self; 5] =
        [Self::Started, Self::Requeued, Self::Completed, Self::Failed, Self::Cancelled];

    /// Returns the name in logs.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Started => "started",
            Self::Requeued => "requeued",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }
}

/// Transition that the table does not allow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a run that is {from} cannot take {event:?}")]
pub struct RunTransitionError {
    /// State before the event.
    pub from: RunState,
    /// Refused event.
    pub event: RunEvent,
}

impl RunState {
    /// All states.
    pub const ALL: [Self; 5] = [Self::Queued, Self::Running, Self::Completed, Self::Failed, Self::Cancelled];

    /// Returns the name in the database and in JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Running => "running",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }

    /// True for a final state.
    pub const fn is_ended(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Cancelled)
    }

    /// Returns the state after `event`.
    ///
    /// # Errors
    /// [`RunTransitionError`] if the table does not allow the transition; nothing changes.
    pub const fn on(self, event: RunEvent) -> Result<Self, RunTransitionError> {
        use RunEvent as E;
        use RunState as S;
        match (self, event) {
            (S::Queued, E::Started) => Ok(S::Running),
            (S::Running, E::Requeued) => Ok(S::Queued),
            // The running turn takes a steer, which has no turn of its own.
            (S::Queued | S::Running, E::Completed) => Ok(S::Completed),
            (S::Queued | S::Running, E::Failed) => Ok(S::Failed),
            (S::Queued | S::Running, E::Cancelled) => Ok(S::Cancelled),
            (from, event) => Err(RunTransitionError { from, event }),
        }
    }
}

impl fmt::Display for RunState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The whole machine, in print: what is not in it is refused, and changes nothing. To seed 000's edges come
    /// `running requeued queued` (H6), `queued completed completed` for a steer (H11), and `queued failed failed`.
    #[test]
    fn the_whole_machine_in_print() {
        let mut print = String::new();
        for from in RunState::ALL {
            for event in RunEvent::ALL {
                match from.on(event) {
                    Ok(to) => print.push_str(&format!("{from} {} {to}\n", event.as_str())),
                    Err(refused) => assert_eq!(refused, RunTransitionError { from, event }),
                }
            }
        }
        let want = "\
queued started running
queued completed completed
queued failed failed
queued cancelled cancelled
running requeued queued
running completed completed
running failed failed
running cancelled cancelled
";
        assert_eq!(print, want);
    }
}
