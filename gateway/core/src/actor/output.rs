//! Output of one step: rows to commit, then effects to perform.

use super::input::{CommandReply, IdempotencyRecord, StepContext, Ticket};
use crate::backend::LineFault;
use crate::bearer::BearerToken;
use crate::event::{EventKind, NewEvent};
use crate::failure::Failure;
use crate::rows::{AgentRequestRow, RunRow, SessionRow};
use crate::run::{RunEvent, RunState};
use crate::transition::Transition;
use crate::writes::Write;
use acp_shared::ids::LeaseId;
use acp_shared::protocol::Spawn;
use std::sync::Arc;

/// Action to perform once the rows are committed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ActorEffect {
    /// Request a process from the supervisor. Idempotent.
    Spawn(Box<Spawn>),
    /// Request the output of a lease.
    Attach {
        /// The lease.
        lease_id: LeaseId,
        /// First byte that is not committed.
        from_offset: u64,
    },
    /// Send a message to the agent's stdin.
    Input {
        /// The lease.
        lease_id: LeaseId,
        /// Number of the message.
        seq: u64,
        /// Bytes of the message.
        bytes: Arc<[u8]>,
    },
    /// Acknowledge output: all bytes before the offset are committed.
    Ack {
        /// The lease.
        lease_id: LeaseId,
        /// The offset.
        offset: u64,
    },
    /// End the process in an orderly way.
    CloseLease {
        /// The lease.
        lease_id: LeaseId,
        /// Reason for the supervisor.
        reason: String,
    },
    /// Release an ended lease.
    Release {
        /// The lease.
        lease_id: LeaseId,
    },
    /// Carry out a request of the agent.
    Perform {
        /// The request.
        row: Box<AgentRequestRow>,
        /// True if an earlier gateway process may have begun it (H3).
        again: bool,
    },
    /// Inspect the target of a write before the decision; the result arrives as
    /// [`super::ActorInput::Inspected`]. It has no side effect, so a restart repeats it.
    Inspect {
        /// The request.
        row: Box<AgentRequestRow>,
    },
    /// Recall an effect that was not sent yet. The agent gets an error saying that it was stopped.
    Recall {
        /// Offset that identifies the request.
        at: u64,
    },
    /// Drop a request whose answer is no longer needed.
    DropRequest {
        /// Offset that identifies the request.
        at: u64,
    },
    /// Reply to a caller.
    Reply {
        /// Caller that waits.
        ticket: Ticket,
        /// Result of the command.
        result: Result<CommandReply, Failure>,
    },
    /// Write a line to the log.
    Log(String),
    /// Count a defective line of the agent in the metrics.
    LineFault(LineFault),
}

/// Rows and effects of one step.
#[derive(Debug)]
pub struct StepOutput {
    /// Rows of one transaction, in order.
    pub writes: Vec<Write>,
    /// Effects to perform in this order after the commit.
    pub effects: Vec<ActorEffect>,
    /// State transitions and refused ones, in order; valid once the rows are committed.
    pub transitions: Vec<Transition>,
    pub(super) now_ms: u64,
    fresh_lease: LeaseId,
    /// Token for the session tools of the agent lease that the step creates: one at most.
    pub(super) fresh_token: Option<BearerToken>,
    leases_minted: u32,
    /// True if a run ended in this step.
    pub(super) run_ended: bool,
    before: SessionRow,
}

impl StepOutput {
    pub(super) fn new(ctx: &StepContext, session: &SessionRow) -> Self {
        Self {
            writes: Vec::new(),
            effects: Vec::new(),
            transitions: Vec::new(),
            now_ms: ctx.now_ms,
            fresh_lease: ctx.fresh_lease,
            fresh_token: ctx.fresh_token,
            leases_minted: 0,
            run_ended: false,
            before: session.clone(),
        }
    }

    /// Returns an unused lease id, a different one on each call.
    pub(super) const fn mint_lease(&mut self) -> LeaseId {
        let number = self.leases_minted;
        self.leases_minted += 1;
        self.fresh_lease.sibling(number)
    }

    /// Appends an event and, for an event of a run, advances the run's event number. The run's row is written
    /// only when its state changes; the store keeps the number.
    pub(super) fn event(
        &mut self,
        session: &mut SessionRow,
        run: Option<&mut RunRow>,
        kind: EventKind,
        payload: String,
    ) {
        let run_id = run.as_ref().map(|run| run.run_id);
        self.new_event(session, run, NewEvent { run_id, kind, payload, extra: None });
    }

    /// As [`Self::event`]. An event of a run that is not given becomes an event of the session only.
    pub(super) fn new_event(&mut self, session: &mut SessionRow, run: Option<&mut RunRow>, event: NewEvent) {
        let NewEvent { kind, payload, extra, .. } = event;
        session.last_session_seq += 1;
        let run = run.map(|run| {
            run.last_seq += 1;
            (run.run_id, run.last_seq)
        });
        self.writes.push(Write::Event { session_seq: session.last_session_seq, run, kind, payload, extra });
    }

    /// Applies an event to a run and returns the previous state; the caller records the move after it has
    /// filled in the row. Returns `None`, without a change, if the transition table has no such pair.
    pub(super) fn run_event(&mut self, run: &mut RunRow, event: RunEvent) -> Option<RunState> {
        let from = run.state;
        let Some(to) = from.on(event) else {
            let (from, event) = (from.as_str(), event.as_str());
            self.transitions.push(Transition::Refused { run_id: Some(run.run_id), from, event });
            return None;
        };
        run.state = to;
        Some(from)
    }

    pub(super) fn run(&mut self, run: &RunRow) {
        self.writes.push(Write::Run(Box::new(run.clone())));
    }

    pub(super) fn remember(&mut self, keyed: Option<IdempotencyRecord>, result: &impl serde::Serialize) {
        if let Some(IdempotencyRecord { scope, key, fingerprint }) = keyed {
            let result = serde_json::to_string(result).unwrap_or_default();
            self.writes.push(Write::Idempotency { scope, key, fingerprint, result });
        }
    }

    pub(super) fn reply(&mut self, ticket: Ticket, result: Result<CommandReply, Failure>) {
        self.effects.push(ActorEffect::Reply { ticket, result });
    }

    /// Writes the session's row if the step changed more than its last event number, which the store
    /// maintains. The row goes first because later rows refer to it.
    pub(super) fn write_session(&mut self, session: &mut SessionRow) {
        self.before.last_session_seq = session.last_session_seq;
        if self.before != *session {
            session.updated_at_ms = self.now_ms;
            let mut row = session.clone();
            // The events of this batch are inserted after the row and advance the number from here.
            let events = self.writes.iter().filter(|write| matches!(write, Write::Event { .. })).count();
            row.last_session_seq -= events as u64;
            self.writes.insert(0, Write::Session(Box::new(row)));
        }
    }
}
