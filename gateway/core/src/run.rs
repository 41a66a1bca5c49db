//! State machine of a run (one turn), as one table. Source: design §6 "State machines".

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

acp_shared::named! {
    /// State of a run, named as in the database and in JSON.
    #[derive(Hash, Serialize, Deserialize, ToSchema)]
    #[serde(rename_all = "snake_case")]
    pub enum RunState {
        /// In the queue.
        Queued = "queued",
        /// Out of the queue; the agent may still be starting.
        Running = "running",
        /// Ended with an answer of the agent.
        Completed = "completed",
        /// Ended without an answer.
        Failed = "failed",
        /// Stopped by a person, while queued or running.
        Cancelled = "cancelled",
    }

    /// Event of a run, named as in logs.
    #[derive(Hash)]
    pub enum RunEvent {
        /// The run left the queue.
        Started = "started",
        /// The run returned to the queue: the prompt provably never reached the agent (H6).
        Requeued = "requeued",
        /// The agent answered; or, for a steer, accepted (H11).
        Completed = "completed",
        /// The run failed without an answer.
        Failed = "failed",
        /// The run was stopped.
        Cancelled = "cancelled",
    }
}

impl RunState {
    /// True for a final state.
    pub const fn is_ended(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Cancelled)
    }

    /// Returns the state after `event`; `None` if the table does not allow the transition.
    pub const fn on(self, event: RunEvent) -> Option<Self> {
        use RunEvent as E;
        use RunState as S;
        match (self, event) {
            (S::Queued, E::Started) => Some(S::Running),
            (S::Running, E::Requeued) => Some(S::Queued),
            // The running turn takes a steer, which has no turn of its own.
            (S::Queued | S::Running, E::Completed) => Some(S::Completed),
            (S::Queued | S::Running, E::Failed) => Some(S::Failed),
            (S::Queued | S::Running, E::Cancelled) => Some(S::Cancelled),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All transitions of runs; other events are refused and change nothing. Beyond the source document:
    /// `running requeued queued` (H6), `queued completed completed` for a steer (H11), and `queued failed
    /// failed`.
    #[test]
    fn run_transitions_match_the_table() {
        let mut table = String::new();
        for from in RunState::ALL {
            for event in RunEvent::ALL {
                if let Some(to) = from.on(event) {
                    table.push_str(&format!("{from} {event} {to}\n"));
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
        assert_eq!(table, want);
    }
}
