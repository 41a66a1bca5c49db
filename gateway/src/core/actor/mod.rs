//! One session's decisions. [`Actor::step`] takes what happened and returns what to commit and, after that,
//! what to do; it never waits and never acts. Everything it knows is either in the database or follows from it,
//! so an actor that is dropped at any instruction can be made again from a [`Snapshot`].

mod agent;
mod ask;
mod batch;
mod close;
mod end;
mod host;
mod input;
mod lease;
mod queued;
mod settings;
mod start;
mod turn;

#[cfg(test)]
mod tests;

pub(crate) use batch::{Act, Batch};
pub(crate) use input::{Answered, Command, Ctx, Input, Keyed, LeaseNews, Limits, Profile, Ticket};

use crate::core::effect::Snapshot;
use crate::core::lines::Lines;
use crate::core::link::Link;
use crate::core::rows::{AgentRequestRow, LeaseUse, OutboxRow, PermissionRow, RunRow, SessionRow};
use crate::core::run::RunState;
use crate::error::Failure;
use acp_shared::ids::RunId;
use acp_shared::launch::ExitStatus;
use std::collections::{BTreeMap, VecDeque};

/// A session's agent process as the actor sees it.
#[derive(Debug)]
struct Lease {
    row: crate::core::rows::LeaseRow,
    /// Whether output comes and input may be sent.
    attached: bool,
    /// Whether its end was asked for.
    closing: bool,
    /// Messages that are not known to be written, in order.
    outbox: VecDeque<OutboxRow>,
    /// Highest number handed to the supervisor since the last attach.
    sent_seq: u64,
    /// Highest number that is known to be written.
    written_seq: u64,
    /// Whether `written_seq` is committed.
    written_dirty: bool,
    /// Set once the adapter has ended: how, and where its output ends.
    ended: Option<LeaseEnd>,
    lines: Lines,
    /// Whether pieces of the unfinished line are committed (H2).
    tail_committed: bool,
    /// Whether the link changed since it was last saved.
    link_dirty: bool,
    /// The person was told that the start is held back.
    said_that_it_waits: bool,
}

/// What is known of an adapter that ended.
#[derive(Debug, Clone, PartialEq, Eq)]
struct LeaseEnd {
    status: ExitStatus,
    end_offset: u64,
    stdin_written: Option<u64>,
}

/// Points in time at which something must happen if nothing else does.
#[derive(Debug, Default)]
struct Timers {
    init_ms: Option<u64>,
    cancel_ms: Option<u64>,
    close_ms: Option<u64>,
    silent_ms: Option<u64>,
    pump_ms: Option<u64>,
    /// When the running turn has had its time.
    turn_ms: Option<u64>,
    /// When a running turn is given up whose agent was not found again.
    reconcile_ms: Option<u64>,
    /// When the agent has been idle for its window.
    idle_ms: Option<u64>,
    /// When an idle agent is asked whether it is there.
    probe_ms: Option<u64>,
    /// When its answer must have come.
    alive_ms: Option<u64>,
    /// When those who wait for an agent out of reach are told.
    away_ms: Option<u64>,
}

/// One session. See the module.
pub(crate) struct Actor {
    session: SessionRow,
    lease: Option<Lease>,
    /// Runs that have not ended, in the order they were accepted; a running one is first.
    runs: VecDeque<RunRow>,
    link: Box<dyn Link>,
    requests: BTreeMap<u64, AgentRequestRow>,
    permissions: BTreeMap<u64, PermissionRow>,
    profile: Profile,
    limits: Limits,
    timers: Timers,
    /// How often the running prompt was put back because it provably never arrived.
    requeues: u32,
    /// Whether the link is a fresh one although a process lives.
    link_lost: bool,
    /// Whether those who wait were told that the agent is out of reach.
    told_away: bool,
    /// Changes of options that the agent has not answered, the oldest first.
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
    /// The actor as it was when `snapshot` was committed. `link` is the machine made from the lease's saved
    /// state, or a fresh one.
    pub(crate) fn restore(snapshot: Snapshot, link: Box<dyn Link>, profile: Profile, limits: Limits) -> Self {
        let Snapshot { session, lease, tail, runs, outbox, requests, permissions } = snapshot;
        let lease = lease.map(|row| {
            let lines = restore_lines(row.stdout_offset, &tail, limits.line_bytes_max);
            let written_seq = outbox.first().map_or(row.next_stdin_seq - 1, |first| first.seq - 1);
            Lease {
                attached: false,
                closing: row.usage == LeaseUse::Closing,
                outbox: outbox.into(),
                sent_seq: 0,
                written_seq,
                written_dirty: false,
                ended: None,
                tail_committed: !tail.is_empty(),
                lines,
                link_dirty: false,
                said_that_it_waits: false,
                row,
            }
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
            link,
            requests: requests.into_iter().map(|row| (row.ask.at, row)).collect(),
            permissions: permissions.into_iter().map(|row| (row.ask.at, row)).collect(),
            profile,
            limits,
            timers: Timers::default(),
            requeues: 0,
            link_lost: false,
            told_away: false,
            pending_options: VecDeque::new(),
        }
    }

    /// Takes on what configuration says now, or why the agent must not be started any more. Deadlines that run go on
    /// as they were set, but for that of an idle agent.
    pub(crate) fn configure(&mut self, profile: Result<Profile, Failure>, limits: Limits) {
        let spawn = self.lease.as_ref().map(|lease| &lease.row.spawn);
        self.profile = profile.unwrap_or_else(|failure| Profile::of_running(spawn, failure));
        self.limits = limits;
        self.watch_rest();
    }

    /// Takes what happened, decides what follows.
    pub(crate) fn step(&mut self, ctx: &Ctx, input: Input) -> Batch {
        let mut out = Batch::new(ctx, &self.session);
        match input {
            Input::Started => self.on_started(&mut out),
            Input::Command { ticket, command, keyed } => self.on_command(ticket, command, keyed, &mut out),
            Input::News(news) => self.on_news(news, &mut out),
            Input::RequestDone { at, outcome } => self.on_request_done(at, outcome, &mut out),
            Input::Inspected { at, found } => self.on_inspected(at, found, &mut out),
            Input::Disconnected => self.on_disconnected(&out),
            Input::Tick => self.on_tick(&mut out),
            // The step's last part does it all.
            Input::LookedUp => {}
        }
        self.finish(&mut out);
        out
    }

    /// When [`Input::Tick`] is wanted, milliseconds since the Unix epoch.
    pub(crate) fn deadline_ms(&self) -> Option<u64> {
        let timers = &self.timers;
        let permissions = self.permissions.values().filter_map(|row| row.deadline_at_ms);
        [
            timers.init_ms,
            timers.cancel_ms,
            timers.close_ms,
            timers.silent_ms,
            timers.pump_ms,
            timers.turn_ms,
            timers.reconcile_ms,
            timers.idle_ms,
            timers.probe_ms,
            timers.alive_ms,
            timers.away_ms,
        ]
        .into_iter()
        .flatten()
        .chain(permissions)
        .chain(self.pending_options.front().map(|pending| pending.until_ms))
        .min()
    }

    /// Whether nothing is going on, so that the actor may be dropped until somebody asks for it.
    pub(crate) fn is_quiet(&self) -> bool {
        self.lease.is_none() && self.runs.is_empty()
    }

    /// True while a start waits for the look-up of its program and directories.
    pub(crate) fn awaits_lookup(&self) -> bool {
        self.lease.is_none() && self.wants_start() && self.profile.refused.is_none()
    }

    /// Whether configuration does not have its agent any more, so that there is nothing to start.
    pub(crate) const fn is_refused(&self) -> bool {
        self.profile.refused.is_some()
    }

    /// How long the agent may take to open a session, in milliseconds.
    pub(crate) const fn init_ms(&self) -> u64 {
        self.profile.init_ms
    }

    /// The session as it is now.
    pub(crate) const fn session(&self) -> &SessionRow {
        &self.session
    }

    /// The environment that the agent was started with.
    pub(crate) fn agent_env(&self) -> Vec<(String, String)> {
        self.lease.as_ref().map(|lease| lease.row.spawn.env.clone()).unwrap_or_default()
    }

    /// Directories that the agent was started with; the working directory is the first.
    pub(crate) fn agent_roots(&self) -> Vec<String> {
        let roots = self.lease.as_ref().map(|lease| lease.row.spawn.roots.clone());
        roots.filter(|roots| !roots.is_empty()).unwrap_or_else(|| vec![self.session.cwd.clone()])
    }

    /// The running run, if any.
    fn current(&self) -> Option<&RunRow> {
        self.runs.front().filter(|run| run.state == RunState::Running)
    }

    fn current_id(&self) -> Option<RunId> {
        self.current().map(|run| run.run_id)
    }

    fn is_ready(&self) -> bool {
        self.lease.as_ref().is_some_and(|lease| {
            lease.row.usage == LeaseUse::Ready && !lease.closing && lease.ended.is_none()
        })
    }

    /// The last part of every step: what follows from the new state, and the rows that carry it.
    fn finish(&mut self, out: &mut Batch) {
        self.start_next(out);
        self.end_lease_if_drained(out);
        self.start_next(out);
        self.close_oneshot(out);
        self.watch_lookup(out);
        self.watch_idle(out);
        self.watch_away(out);
        self.pump(out);
        // What was said last goes before the end.
        out.acts.sort_by_key(|act| matches!(act, Act::CloseLease { .. }));
        self.write_progress(out);
        out.write_session(&mut self.session);
    }
}

/// The splitter as it was at the committed offset: that offset counts the pieces of the unfinished line.
fn restore_lines(stdout_offset: u64, tail: &[(u64, Vec<u8>)], bytes_max: usize) -> Lines {
    let line_start = tail.first().map_or(stdout_offset, |(offset, _)| *offset);
    let mut lines = Lines::new(line_start, bytes_max);
    for (offset, piece) in tail {
        // A piece that does not fit cannot have been committed; the next attach would ask for it again.
        if lines.preload(*offset, piece).is_err() {
            break;
        }
    }
    lines
}
