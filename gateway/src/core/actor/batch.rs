//! What one step wants: rows to commit, then acts to carry out.

use super::input::{Answered, Ctx, Keyed, Ticket};
use crate::core::effect::Write;
use crate::core::event::EventKind;
use crate::core::link::LineFault;
use crate::core::moves::Move;
use crate::core::rows::{AgentRequestRow, RunRow, SessionRow};
use crate::core::run::{RunEvent, RunState};
use crate::error::Failure;
use acp_shared::ids::LeaseId;
use acp_shared::protocol::Spawn;

/// Something to do once the rows are committed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Act {
    /// Ask the supervisor for a process. Idempotent.
    Spawn(Box<Spawn>),
    /// Ask for its output.
    Attach {
        /// The lease.
        lease_id: LeaseId,
        /// First byte that is not committed.
        from_offset: u64,
    },
    /// Hand over a message.
    Input {
        /// The lease.
        lease_id: LeaseId,
        /// Its number.
        seq: u64,
        /// Its bytes.
        bytes: Vec<u8>,
    },
    /// Everything before this offset is committed.
    Ack {
        /// The lease.
        lease_id: LeaseId,
        /// The offset.
        offset: u64,
    },
    /// End the process in the orderly way.
    CloseLease {
        /// The lease.
        lease_id: LeaseId,
        /// Why.
        reason: String,
    },
    /// Nothing more is wanted of an ended lease.
    Release {
        /// The lease.
        lease_id: LeaseId,
    },
    /// Serve a request of the agent.
    Perform {
        /// The request.
        row: Box<AgentRequestRow>,
        /// Whether an earlier gateway may have begun it (H3).
        again: bool,
    },
    /// Inspect the target of a write before it is decided; the result comes as [`super::Input::Inspected`]. Has no
    /// effect, so it is repeated after a restart.
    Inspect {
        /// The request.
        row: Box<AgentRequestRow>,
    },
    /// Recall an effect of which nothing was sent yet. The agent gets an error that says that it was stopped.
    Recall {
        /// Offset that names it.
        at: u64,
    },
    /// Nobody wants the answer to this request any more.
    Forget {
        /// Offset that names it.
        at: u64,
    },
    /// Answer a caller.
    Reply {
        /// Who waits.
        ticket: Ticket,
        /// The answer.
        result: Result<Answered, Failure>,
    },
    /// A line for the log.
    Note(String),
    /// Count a defective line of the agent in the metrics.
    LineFault(LineFault),
}

/// What one step wants.
#[derive(Debug)]
pub(crate) struct Batch {
    /// One transaction.
    pub(crate) writes: Vec<Write>,
    /// In this order, after the commit.
    pub(crate) acts: Vec<Act>,
    /// What moved or refused to, in order; true once the rows are committed.
    pub(crate) moves: Vec<Move>,
    pub(super) now_ms: u64,
    fresh_lease: LeaseId,
    leases_minted: u32,
    /// Whether a run ended in this step.
    pub(super) run_ended: bool,
    before: SessionRow,
}

impl Batch {
    pub(super) fn new(ctx: &Ctx, session: &SessionRow) -> Self {
        Self {
            writes: Vec::new(),
            acts: Vec::new(),
            moves: Vec::new(),
            now_ms: ctx.now_ms,
            fresh_lease: ctx.fresh_lease,
            leases_minted: 0,
            run_ended: false,
            before: session.clone(),
        }
    }

    /// A lease id that nobody has used; each call gives another one.
    pub(super) const fn mint_lease(&mut self) -> LeaseId {
        let number = self.leases_minted;
        self.leases_minted += 1;
        self.fresh_lease.sibling(number)
    }

    /// Appends an event; a run's number goes on with it. The run's row is written when the run changes state,
    /// its number is kept by the store.
    pub(super) fn event(
        &mut self,
        session: &mut SessionRow,
        run: Option<&mut RunRow>,
        kind: EventKind,
        payload: String,
    ) {
        session.last_session_seq += 1;
        let run = run.map(|run| {
            run.last_seq += 1;
            (run.run_id, run.last_seq)
        });
        self.writes.push(Write::Event { session_seq: session.last_session_seq, run, kind, payload });
    }

    /// Moves a run along its table, and returns where it was; whoever asked says what moved once the row says all of
    /// it. `None`, and nothing changed, for a pair that the table does not have.
    pub(super) fn run_event(&mut self, run: &mut RunRow, event: RunEvent) -> Option<RunState> {
        let from = run.state;
        let Ok(to) = from.on(event) else {
            let (from, event) = (from.as_str(), event.as_str());
            self.moves.push(Move::Refused { run_id: Some(run.run_id), from, event });
            return None;
        };
        run.state = to;
        Some(from)
    }

    pub(super) fn run(&mut self, run: &RunRow) {
        self.writes.push(Write::Run(Box::new(run.clone())));
    }

    pub(super) fn remember(&mut self, keyed: Option<Keyed>, result: &impl serde::Serialize) {
        if let Some(Keyed { scope, key, fingerprint }) = keyed {
            let result = serde_json::to_string(result).unwrap_or_default();
            self.writes.push(Write::Idempotency { scope, key, fingerprint, result });
        }
    }

    pub(super) fn reply(&mut self, ticket: Ticket, result: Result<Answered, Failure>) {
        self.acts.push(Act::Reply { ticket, result });
    }

    /// The session's row, if the step changed more of it than the number of its last event (which the store
    /// keeps by itself). It goes first: later rows refer to it.
    pub(super) fn write_session(&mut self, session: &mut SessionRow) {
        self.before.last_session_seq = session.last_session_seq;
        if self.before != *session {
            session.updated_at_ms = self.now_ms;
            let mut row = session.clone();
            // The events of this batch come after the row and move the number on by themselves.
            let events = self.writes.iter().filter(|write| matches!(write, Write::Event { .. })).count();
            row.last_session_seq -= events as u64;
            self.writes.insert(0, Write::Session(Box::new(row)));
        }
    }
}
