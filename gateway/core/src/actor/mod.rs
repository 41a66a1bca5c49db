//! State machine of one session. [`Actor::step`] takes an input and returns the rows to commit and the
//! effects to perform after the commit; it never waits and does no I/O. All state is in the database or
//! derived from it, so an actor that is lost at any point can be restored from an [`ActorSnapshot`].

mod backend_events;
mod close;
mod host;
mod idle_agent;
mod input;
mod lease;
mod lease_ended;
mod opening;
mod output;
mod permissions;
mod queue_edit;
mod recover;
mod settings;
mod turn;

#[cfg(test)]
pub(crate) mod tests;

pub use input::{
    ActorCommand, ActorInput, ActorLimits, AgentProfile, CommandReply, IdempotencyRecord, LeaseEvent,
    QuestionAnswer, SessionTools, StepContext, Ticket,
};
pub use opening::PACKAGE_RUNNERS;
pub use output::{ActorEffect, StepOutput};

use crate::backend::{BackendMachine, InputKind};
use crate::failure::Failure;
use crate::line_splitter::LineSplitter;
use crate::rows::{AgentRequestRow, LeaseStatus, OutboxRow, PermissionRow, RunRow, SessionRow};
use crate::run::RunState;
use crate::writes::ActorSnapshot;
use acp_shared::ids::RunId;
use acp_shared::launch::ExitStatus;
use acp_shared::private_home;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Agent process of a session, as the actor tracks it.
#[derive(Debug)]
struct Lease {
    row: crate::rows::LeaseRow,
    /// True while the supervisor delivers output and accepts input.
    attached: bool,
    /// True once the end of the process was requested.
    closing: bool,
    /// Messages without confirmation of their write to stdin, in order.
    outbox: VecDeque<OutboxRow>,
    /// Highest number handed to the supervisor since the last attach.
    sent_seq: u64,
    /// Highest message number confirmed as written to stdin.
    written_seq: u64,
    /// True while `written_seq` is not committed.
    written_dirty: bool,
    /// True while the start of the process is not committed. A restarted gateway requests such a start again, which the supervisor
    /// answers with the same process.
    started_dirty: bool,
    /// Exit status and end of output; `None` while the adapter runs.
    ended: Option<LeaseEnd>,
    lines: LineSplitter,
    /// True if pieces of the unfinished line are committed (H2).
    tail_committed: bool,
    /// True if the backend state changed since the last save.
    backend_dirty: bool,
    /// True once the user was informed that the supervisor delays the start.
    start_delay_reported: bool,
}

impl Lease {
    /// Creates the state of a lease that is not attached, with these unconfirmed messages.
    fn new(row: crate::rows::LeaseRow, lines: LineSplitter, outbox: VecDeque<OutboxRow>) -> Self {
        Self {
            attached: false,
            closing: row.usage == LeaseStatus::Closing,
            sent_seq: 0,
            written_seq: outbox.front().map_or(row.next_stdin_seq, |first| first.seq) - 1,
            outbox,
            written_dirty: false,
            started_dirty: false,
            ended: None,
            lines,
            tail_committed: false,
            backend_dirty: false,
            start_delay_reported: false,
            row,
        }
    }

    /// Total size of the answers that the agent has not read, in bytes.
    fn waiting_answer_bytes(&self) -> usize {
        let answers = self.outbox.iter().filter(|row| matches!(row.kind, InputKind::Answer { .. }));
        answers.map(|row| row.bytes.len()).sum()
    }

    /// Returns the request for the output from the committed offset on.
    const fn attach(&self) -> ActorEffect {
        ActorEffect::Attach { lease_id: self.row.lease_id, from_offset: self.row.stdout_offset }
    }
}

/// Exit of an adapter process.
#[derive(Debug, Clone, PartialEq, Eq)]
struct LeaseEnd {
    status: ExitStatus,
    end_offset: u64,
    stdin_written: Option<u64>,
}

/// Deadlines, in milliseconds since the Unix epoch; `None` if not armed.
#[derive(Debug, Default)]
struct Timers {
    init_ms: Option<u64>,
    /// Time of the next report about a download of the agent's program; `None` once it has written a line.
    fetch_ms: Option<u64>,
    cancel_ms: Option<u64>,
    close_ms: Option<u64>,
    silent_ms: Option<u64>,
    retry_ms: Option<u64>,
    /// Time limit of the running turn.
    turn_ms: Option<u64>,
    /// Time at which a running turn is failed because its agent could not be reached again.
    reconcile_ms: Option<u64>,
    /// Time at which an idle agent is stopped.
    idle_ms: Option<u64>,
    /// Time of the next liveness probe of an idle agent.
    probe_ms: Option<u64>,
    /// Deadline of the answer to a probe.
    alive_ms: Option<u64>,
    /// Time at which waiting users are informed that the agent is out of reach.
    unreachable_ms: Option<u64>,
}

/// Actor of one session. See the module.
pub struct Actor {
    session: SessionRow,
    lease: Option<Lease>,
    /// Runs that have not ended, in order of acceptance; the running one is first.
    runs: VecDeque<RunRow>,
    backend: Box<dyn BackendMachine>,
    requests: BTreeMap<u64, AgentRequestRow>,
    /// Offset of the request in progress whose answer may be large.
    reading: Option<u64>,
    permissions: BTreeMap<u64, PermissionRow>,
    profile: AgentProfile,
    limits: ActorLimits,
    timers: Timers,
    /// Number of times the running prompt was requeued because it provably never reached the agent.
    requeues: u32,
    /// True if a fresh backend replaced one whose saved state could not be restored.
    backend_state_lost: bool,
    /// True once waiting users were informed that the agent is out of reach.
    unreachable_notified: bool,
    /// Option changes without an answer from the agent, oldest first.
    pending_options: VecDeque<settings::PendingOption>,
}

impl std::fmt::Debug for Actor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Actor")
            .field("session", &self.session)
            .field("lease", &self.lease)
            .field("runs", &self.runs.len())
            .finish_non_exhaustive()
    }
}

impl Actor {
    /// Restores the actor from a committed snapshot. `backend` is built from the saved state of the lease,
    /// or is a fresh one.
    pub fn restore(
        snapshot: ActorSnapshot,
        backend: Box<dyn BackendMachine>,
        profile: AgentProfile,
        limits: ActorLimits,
    ) -> Self {
        let ActorSnapshot { session, lease, tail, runs, outbox, requests, permissions } = snapshot;
        let lease = lease.map(|row| {
            let lines = restore_lines(row.stdout_offset, &tail, limits.line_bytes_max);
            Lease { tail_committed: !tail.is_empty(), ..Lease::new(row, lines, outbox.into()) }
        });
        let mut runs: VecDeque<RunRow> = runs.into();
        if let Some(at) = runs.iter().position(|run| run.state == RunState::Running)
            && let Some(running) = runs.remove(at)
        {
            runs.push_front(running);
        }
        Self {
            session,
            lease,
            runs,
            backend,
            requests: requests.into_iter().map(|row| (row.request.at, row)).collect(),
            reading: None,
            permissions: permissions.into_iter().map(|row| (row.request.at, row)).collect(),
            profile,
            limits,
            timers: Timers::default(),
            requeues: 0,
            backend_state_lost: false,
            unreachable_notified: false,
            pending_options: VecDeque::new(),
        }
    }

    /// Applies new configuration, or the reason why the agent must not be started. Armed deadlines keep their
    /// times, except that of an idle agent.
    pub fn configure(&mut self, profile: Result<AgentProfile, Failure>, limits: ActorLimits) {
        let spawn = self.lease.as_ref().map(|lease| &lease.row.spawn);
        self.profile = profile.unwrap_or_else(|failure| AgentProfile::of_running_lease(spawn, failure));
        self.limits = limits;
        self.arm_idle_timer();
    }

    /// Processes one input and returns the rows to commit and the effects that follow.
    pub fn step(&mut self, ctx: &StepContext, input: ActorInput) -> StepOutput {
        let mut out = StepOutput::new(ctx, &self.session);
        match input {
            ActorInput::Started => self.on_started(&mut out),
            ActorInput::Command { ticket, command, keyed } => {
                self.on_command(ticket, command, keyed, &mut out)
            }
            ActorInput::Lease(news) => self.on_lease_event(news, &mut out),
            ActorInput::RequestDone { at, outcome } => self.on_request_done(at, outcome, &mut out),
            ActorInput::Inspected { at, found } => self.on_inspected(at, found, &mut out),
            ActorInput::Disconnected => self.on_disconnected(&out),
            ActorInput::Tick => self.on_tick(&mut out),
            // `finish` below starts the agent.
            ActorInput::LookedUp => {}
        }
        self.finish(&mut out);
        out
    }

    /// Earliest time at which [`ActorInput::Tick`] is needed, milliseconds since the Unix epoch.
    pub fn deadline_ms(&self) -> Option<u64> {
        let timers = &self.timers;
        let permissions = self.permissions.values().filter_map(|row| row.deadline_at_ms);
        [
            timers.init_ms,
            timers.fetch_ms,
            timers.cancel_ms,
            timers.close_ms,
            timers.silent_ms,
            timers.retry_ms,
            timers.turn_ms,
            timers.reconcile_ms,
            timers.idle_ms,
            timers.probe_ms,
            timers.alive_ms,
            timers.unreachable_ms,
        ]
        .into_iter()
        .flatten()
        .chain(permissions)
        .chain(self.pending_options.front().map(|pending| pending.until_ms))
        .min()
    }

    /// True if there is neither an agent process nor a run, so that the actor can be dropped until its next
    /// use.
    pub fn is_quiet(&self) -> bool {
        self.lease.is_none() && self.runs.is_empty()
    }

    /// True while a start waits for the look-up of its program and directories.
    pub fn awaits_lookup(&self) -> bool {
        self.lease.is_none() && self.wants_start() && self.profile.refused.is_none()
    }

    /// True if configuration does not allow starting the agent, e.g. because it was removed.
    pub const fn is_refused(&self) -> bool {
        self.profile.refused.is_some()
    }

    /// Time limit for the agent to open a session, in milliseconds.
    pub const fn init_ms(&self) -> u64 {
        self.profile.init_ms
    }

    /// Current row of the session.
    pub const fn session(&self) -> &SessionRow {
        &self.session
    }

    /// Environment of the running agent; empty without one.
    pub fn agent_env(&self) -> Vec<(String, String)> {
        self.lease.as_ref().map(|lease| lease.row.spawn.env.clone()).unwrap_or_default()
    }

    /// Returns the maximum time that the end of the agent's process takes; zero without one.
    pub fn graces(&self) -> Duration {
        let graces = self.lease.as_ref().map(|lease| lease.row.spawn.graces);
        Duration::from_millis(graces.map_or(0, |graces| graces.total_ms()))
    }

    /// Directories of the running agent; the working directory is the first. Its private home directory is none of them.
    pub fn agent_roots(&self) -> Vec<String> {
        let is_shared = |root: &&String| private_home::of_root(root).is_none();
        let roots = self.lease.as_ref().map(|lease| &lease.row.spawn.roots);
        let roots = roots.map(|roots| roots.iter().filter(is_shared).cloned().collect::<Vec<_>>());
        roots.filter(|roots| !roots.is_empty()).unwrap_or_else(|| vec![self.session.cwd.clone()])
    }

    /// Returns the running run, if any.
    fn current(&self) -> Option<&RunRow> {
        self.runs.front().filter(|run| run.state == RunState::Running)
    }

    fn current_id(&self) -> Option<RunId> {
        self.current().map(|run| run.run_id)
    }

    fn is_ready(&self) -> bool {
        self.lease.as_ref().is_some_and(|lease| {
            lease.row.usage == LeaseStatus::Ready && !lease.closing && lease.ended.is_none()
        })
    }

    /// Last part of every step: starts what the new state requires, and writes the progress rows.
    fn finish(&mut self, out: &mut StepOutput) {
        self.check_outbox(out);
        self.perform_next_read(false, out);
        self.start_next(out);
        self.end_lease_if_drained(out);
        self.start_next(out);
        self.close_oneshot(out);
        self.arm_lookup_timer(out);
        self.arm_probe_timer(out);
        self.arm_unreachable_timer(out);
        self.flush_stdin_outbox(out);
        // Input for the agent goes before the end of its process.
        out.effects.sort_by_key(|act| matches!(act, ActorEffect::CloseLease { .. }));
        self.write_progress(out);
        out.write_session(&mut self.session);
    }
}

/// Restores the line splitter at the committed offset, which includes the pieces of the unfinished line.
fn restore_lines(stdout_offset: u64, tail: &[(u64, Vec<u8>)], bytes_max: usize) -> LineSplitter {
    let line_start = tail.first().map_or(stdout_offset, |(offset, _)| *offset);
    let mut lines = LineSplitter::new(line_start, bytes_max);
    for (offset, piece) in tail {
        // A piece that does not fit cannot have been committed; the next attach would request it again.
        if lines.preload(*offset, piece).is_err() {
            break;
        }
    }
    lines
}
