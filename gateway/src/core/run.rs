//! The life of a run (one turn), as one table. Source: design §6 "State machines".

use serde::{Deserialize, Serialize};
use std::fmt;

/// Where a run is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RunState {
    /// Waits for its turn.
    Queued,
    /// Its turn has come; the agent may still be starting.
    Running,
    /// The agent answered.
    Completed,
    /// It ended without an answer.
    Failed,
    /// It was stopped by a person, queued or running.
    Cancelled,
}

/// What can happen to a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum RunEvent {
    /// It leaves the queue.
    Started,
    /// It goes back to the queue: its prompt provably never reached the agent (H6).
    Requeued,
    /// The agent answered; or, for a steer, took it (H11).
    Completed,
    /// No answer will come.
    Failed,
    /// It was stopped.
    Cancelled,
}

impl RunEvent {
    /// Every event.
    #[cfg(test)]
    pub(crate) const ALL: [Self; 5] =
        [Self::Started, Self::Requeued, Self::Completed, Self::Failed, Self::Cancelled];

    /// The name in logs.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Started => "started",
            Self::Requeued => "requeued",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }
}

/// A transition that the table does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a run that is {from} cannot take {event:?}")]
pub(crate) struct IllegalRun {
    /// The state it was in.
    pub(crate) from: RunState,
    /// What was to happen.
    pub(crate) event: RunEvent,
}

impl RunState {
    /// Every state.
    pub(crate) const ALL: [Self; 5] =
        [Self::Queued, Self::Running, Self::Completed, Self::Failed, Self::Cancelled];

    /// The name in the database and in JSON.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Running => "running",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }

    /// Whether nothing more will happen to it.
    pub(crate) const fn is_ended(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Cancelled)
    }

    /// The state after `event`.
    ///
    /// # Errors
    /// [`IllegalRun`] for a pair that is not in the table; nothing changes.
    pub(crate) const fn on(self, event: RunEvent) -> Result<Self, IllegalRun> {
        use RunEvent as E;
        use RunState as S;
        match (self, event) {
            (S::Queued, E::Started) => Ok(S::Running),
            (S::Running, E::Requeued) => Ok(S::Queued),
            // A steer is taken by the running turn without a turn of its own.
            (S::Queued | S::Running, E::Completed) => Ok(S::Completed),
            (S::Queued | S::Running, E::Failed) => Ok(S::Failed),
            (S::Queued | S::Running, E::Cancelled) => Ok(S::Cancelled),
            (from, event) => Err(IllegalRun { from, event }),
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
                    Err(refused) => assert_eq!(refused, IllegalRun { from, event }),
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
