//! Export of the supervisor for an upgrade: request, trial of the program, wait for spawns, and conversion to
//! a value.

use crate::context::event::{Event, TrialResult};
use crate::context::{Context, wall_ms};
use crate::core::lease::Lease;
use crate::lease::pause::{PauseDecision, PauseRequest, TaskState};
use crate::lease::task::LeaseCmd;
use crate::owner::handover::{EntryState, Handover, ImportedState, InheritableResources, SupervisorState};
use crate::owner::handover::{dry_run, exec, image};
use crate::owner::{ClientKind, Owner};
use crate::relay::connection::{ConnectionHandle, Responder};
use crate::sys::inherited_fd::HandoverFd;
use crate::sys::program;
use acp_shared::ids::LeaseId;
use acp_shared::protocol::{LastUpgrade, LeaseState, Refusal, RefusalCode, Reply};
use std::collections::HashMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

/// Additional wait for running spawns beyond their own time limit, in milliseconds.
const DRAIN_SLACK_MS: u64 = 5_000;
/// Maximum wait for the tasks of all leases to pause.
const PAUSE_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum wait for clients to read the refusal before they are disconnected.
const LAST_MESSAGES_WAIT: Duration = Duration::from_millis(500);
/// Maximum wait for the store to write everything to disk. Unwritten rows are also in the handover.
const FLUSH: Duration = Duration::from_secs(5);
/// Retry delay for a refused spawn or a second upgrade, in milliseconds.
pub(crate) const RETRY_MS: u64 = 250;

/// Decisions of the paused tasks. Dropping the map resumes them.
type PausedTasks = HashMap<LeaseId, PauseDecision>;

/// Upgrade in progress.
#[derive(Debug)]
pub(crate) struct Upgrade {
    program: PathBuf,
    requester: Responder,
    /// Set once the new program has passed the trial: time until which running spawns are waited for.
    drain_until_ms: Option<u64>,
}

impl Upgrade {
    /// Returns the time until which spawns are waited for.
    pub(crate) const fn deadline_ms(&self) -> Option<u64> {
        self.drain_until_ms
    }
}

/// Process-level resources handed over across `execve`: lock, listener, tasks, program path.
#[derive(Debug)]
pub(crate) struct HandoverResources {
    /// Resources kept from image to image.
    pub(crate) inheritable: InheritableResources,
    /// Tasks for connections and signals. Clients that connect after the tasks have ended wait in the kernel.
    pub(crate) server_tasks: Vec<JoinHandle<()>>,
    /// Path that this program was started from.
    pub(crate) program: PathBuf,
    /// Arguments that this program was started with.
    pub(crate) args: Vec<OsString>,
}

/// Exported supervisor.
#[derive(Debug)]
pub(crate) struct ExportedState {
    handover: Handover,
    /// Ended leases without streams, which are already in the store.
    ended: Vec<Lease>,
    program: PathBuf,
    args: Vec<OsString>,
    requester: Responder,
}

fn failed(why: &str) -> Refusal {
    Refusal::new(RefusalCode::UpgradeFailed, format!("this supervisor keeps running unchanged: {why}"))
}

fn busy(why: &str) -> Refusal {
    Refusal::new(RefusalCode::Busy, why).retry_after(RETRY_MS)
}

impl Owner {
    /// Starts an upgrade: the new program is tried while the supervisor keeps running.
    pub(crate) fn upgrade(&mut self, program: Option<String>, to: Responder) {
        let Some(resources) = &self.resources else {
            return to.answer(Err(busy("this supervisor is still starting")));
        };
        if self.stopping {
            return to.refuse(RefusalCode::ShuttingDown, "the supervisor is shutting down");
        }
        if self.upgrade.is_some() {
            return to.answer(Err(busy("another upgrade is in progress")));
        }
        let program = program.map_or_else(|| resources.program.clone(), PathBuf::from);
        tracing::info!(program = %program.display(), "upgrade requested");
        let head = self.export_supervisor(
            HandoverFd::placeholder(),
            HandoverFd::placeholder(),
            resources.inheritable.to_remove.clone(),
        );
        let (context, args, path) = (Arc::clone(&self.context), resources.args.clone(), program.clone());
        tokio::spawn(async move {
            let trial = Handover { head, entries: Vec::new() };
            let checked = path.clone();
            // The check reads the file system, which may hang.
            let checked = context.blocking(move |_| Ok(program::check(&checked))).await;
            let tried = match checked.unwrap_or_else(|e| Err(e.to_string())) {
                Ok(()) => run_trial(&context, trial, &path, args).await.1,
                Err(why) => Err(why),
            };
            context.send_event(Event::TrialFinished(TrialResult(tried.map(|(_, version)| version)))).await;
        });
        self.upgrade = Some(Upgrade { program, requester: to, drain_until_ms: None });
    }

    /// Handles the result of the trial.
    pub(crate) fn finish_trial(&mut self, TrialResult(result): TrialResult) {
        match (result, &mut self.upgrade) {
            (Ok(version), Some(upgrade)) => {
                tracing::info!(version, "upgrade trial passed; spawns refused until handover");
                let within = self.context.config.spawn_ms.saturating_add(DRAIN_SLACK_MS);
                upgrade.drain_until_ms = Some(self.context.now_ms().saturating_add(within));
                self.rearm_timer();
            }
            (Err(why), _) => self.cancel_upgrade(&why),
            (Ok(_), None) => {}
        }
    }

    /// Returns why spawns are refused now; `None` if they are accepted.
    pub(crate) fn spawn_refusal(&self) -> Option<Refusal> {
        let drains = self.upgrade.as_ref().is_some_and(|upgrade| upgrade.drain_until_ms.is_some());
        (drains || self.leaving)
            .then(|| busy("the supervisor is being upgraded; retry the spawn in a moment"))
    }

    /// Cancels an upgrade; the supervisor continues unchanged.
    pub(crate) fn cancel_upgrade(&mut self, why: &str) {
        let Some(upgrade) = self.upgrade.take() else { return };
        tracing::warn!(why, "upgrade cancelled");
        upgrade.requester.answer(Err(failed(why)));
    }

    /// Cancels an upgrade whose spawns do not end in time.
    pub(crate) fn cancel_overdue_upgrade(&mut self, now_ms: u64) {
        let until = self.upgrade.as_ref().and_then(|upgrade| upgrade.drain_until_ms);
        if until.is_some_and(|until| now_ms >= until) {
            self.cancel_upgrade("a spawn in progress did not finish in time");
        }
    }

    /// True if the trial has passed and no spawn is running.
    pub(crate) fn may_export(&self) -> bool {
        let spawning = |e: &crate::owner::lease_entry::LeaseEntry| {
            e.commands.is_some() && e.relay.is_none() && !e.lease.state.is_ended()
        };
        self.upgrade.as_ref().is_some_and(|upgrade| upgrade.drain_until_ms.is_some())
            && !self.leases.values().any(spawning)
    }

    /// Exports the supervisor; `None` if that is impossible, and the supervisor continues.
    pub(crate) async fn export(&mut self, events: &mut mpsc::Receiver<Event>) -> Option<ExportedState> {
        self.save_progress(None);
        self.count_suspension();
        let paused = match self.pause(events).await {
            Ok(paused) if !self.stopping => paused,
            Ok(_) => {
                self.cancel_upgrade("a shutdown was requested");
                return None;
            }
            Err(why) => {
                self.cancel_upgrade(why);
                return None;
            }
        };
        let (Some(Upgrade { program, requester, .. }), Some(resources)) =
            (self.upgrade.take(), self.resources.take())
        else {
            return None;
        };
        let left = match HandoverFd::this_program() {
            Ok(left) => left,
            Err(error) => {
                self.resources = Some(resources);
                requester.answer(Err(failed(&format!("the running program cannot be opened: {error}"))));
                return None;
            }
        };
        self.leaving = true;
        for task in resources.server_tasks {
            task.abort();
            drop(task.await);
        }
        self.disconnect_clients(requester.link(), events).await;
        let helpers = std::mem::take(&mut self.files).stop().await;
        let mut tasks = HashMap::new();
        for (id, verdict) in paused {
            let (to, state) = oneshot::channel();
            if verdict.send(to).is_ok()
                && let Ok(state) = state.await
            {
                tasks.insert(id, state);
            }
        }
        // The last events of the tasks are processed before their exported states.
        while let Ok(event) = events.try_recv() {
            self.on(event);
        }
        let InheritableResources { lock, listener, to_remove } = resources.inheritable;
        let mut head = self.export_supervisor(HandoverFd::new(lock), HandoverFd::new(listener), to_remove);
        (head.left, head.helpers) = (left, helpers);
        let (entries, ended) = self.export_leases(tasks).await;
        let handover = Handover { head, entries };
        Some(ExportedState { handover, ended, program, args: resources.args, requester })
    }

    /// Pauses every lease task. Events are processed meanwhile, because the tasks may wait for the owner.
    async fn pause(&mut self, events: &mut mpsc::Receiver<Event>) -> Result<PausedTasks, &'static str> {
        let (mut paused, mut waits) = (PausedTasks::new(), Vec::new());
        for (id, commands) in self.leases.iter().filter_map(|(id, e)| Some((id, e.commands.clone()?))) {
            let (pause, is_ready, verdict) = PauseRequest::new();
            waits.push(async move {
                let told = commands.send(LeaseCmd::Pause(pause)).await;
                if told.is_ok() {
                    // A task that ends instead has no state to hand over.
                    drop(is_ready.await);
                }
            });
            paused.insert(*id, verdict);
        }
        let relays: Vec<_> = self.leases.values().filter_map(|e| e.relay.clone()).collect();
        let all = async {
            for wait in waits {
                wait.await;
            }
            for relay in relays {
                relay.ping().await;
            }
        };
        let all = tokio::time::timeout(PAUSE_TIMEOUT, all);
        tokio::pin!(all);
        loop {
            tokio::select! {
                done = &mut all => {
                    return done.map(|()| paused).map_err(|_| "ending a process tree takes too long");
                }
                Some(event) = events.recv() => self.on(event),
            }
        }
    }

    /// Disconnects every client except the one that waits for the outcome.
    async fn disconnect_clients(&mut self, requester: &ConnectionHandle, events: &mut mpsc::Receiver<Event>) {
        let leave = Refusal::new(RefusalCode::ShuttingDown, "the supervisor is being upgraded; reconnect");
        let mut ends = Vec::new();
        for (id, connected) in std::mem::take(&mut self.links) {
            if let ClientKind::Gateway(gateway) = connected.who {
                self.detach(gateway, &connected);
            }
            if id != requester.id() {
                connected.link.refuse(leave.clone());
                ends.push(connected.link.end().clone());
            }
        }
        {
            let all = async {
                for end in &ends {
                    end.cancelled().await;
                }
            };
            let all = tokio::time::timeout(LAST_MESSAGES_WAIT, all);
            tokio::pin!(all);
            loop {
                tokio::select! {
                    _ = &mut all => break,
                    Some(event) = events.recv() => self.on(event),
                }
            }
        }
        for end in ends {
            end.cancel();
        }
    }

    fn export_supervisor(
        &self,
        lock: HandoverFd,
        listener: HandoverFd,
        to_remove: Option<PathBuf>,
    ) -> SupervisorState {
        let context = &self.context;
        let now = crate::owner::handover::import::monotonic_ns();
        let run = u64::try_from(context.started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        SupervisorState {
            pid: context.me.pid,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            supervisor_id: self.supervisor_id.clone(),
            started_ns: now.saturating_sub(run),
            frozen_ns: now,
            abilities: context.abilities,
            holding: context.containment.clone(),
            descriptors: (context.descriptors.current, context.descriptors.maximum),
            warnings: self.warnings.clone(),
            lock,
            listener,
            to_remove,
            left: HandoverFd::placeholder(),
            failed: None,
            installations: self.installations.values().cloned().collect(),
            detached_at_ms: self
                .absences
                .iter()
                .map(|(gateway, absence)| (*gateway, absence.since_ms))
                .collect(),
            suspended_ms: self
                .absences
                .iter()
                .filter(|(_, absence)| absence.suspended_ms > 0)
                .map(|(gateway, absence)| (*gateway, absence.suspended_ms))
                .collect(),
            grace_ms: self
                .absences
                .iter()
                .filter(|(gateway, _)| self.installations.get(gateway).is_some_and(|it| it.cell().is_some()))
                .map(|(gateway, absence)| (*gateway, absence.grace_ms))
                .collect(),
            kept_until_ms: self.pending.kept_until_ms.iter().map(|(gateway, at)| (*gateway, *at)).collect(),
            crashes: self.backoff.crashes(),
            stops: u32::from(self.stopping) + u32::from(self.hurried),
            helpers: Vec::new(),
            wall_at_start_ms: Some(context.wall_at_start_ms),
            ended_seen_ms: Some(
                self.leases.iter().filter_map(|(id, entry)| Some((*id, entry.ended_seen_ms?))).collect(),
            ),
        }
    }

    /// Exports the lease table: entries that are running or have streams, and the other leases.
    async fn export_leases(
        &mut self,
        mut tasks: HashMap<LeaseId, (Lease, TaskState)>,
    ) -> (Vec<EntryState>, Vec<Lease>) {
        let (mut entries, mut ended) = (Vec::new(), Vec::new());
        for (id, entry) in std::mem::take(&mut self.leases) {
            let (lease, task) = match tasks.remove(&id) {
                Some((lease, task)) => (lease, Some(task)),
                None => (entry.lease, None),
            };
            let relay = match entry.relay {
                Some(relay) => relay.export().await,
                None => None,
            };
            if task.is_none() && relay.is_none() && lease.state.is_ended() {
                ended.push(lease);
            } else {
                let (stuck, close_at_ms, open_since_ms) =
                    (entry.stuck, entry.close_at_ms, entry.open_since_ms);
                entries.push(EntryState { lease, stuck, close_at_ms, open_since_ms, task, relay });
            }
        }
        (entries, ended)
    }
}

type TrialOutcome = Result<(std::fs::File, String), String>;

/// Writes a handover and runs the trial of a program with it.
async fn run_trial(
    context: &Arc<Context>,
    mut handover: Handover,
    program: &Path,
    args: Vec<OsString>,
) -> (Handover, TrialOutcome) {
    let written = image::write(&mut handover);
    let (at, program) = (Arc::clone(context), program.to_owned());
    let proved = match written {
        Ok((file, want)) => {
            let proved = context.blocking(move |_| {
                let version = dry_run::try_program(&at, &program, &args, &file, &want);
                Ok(version.map(|version| (file, version)))
            });
            proved.await.unwrap_or_else(|e| Err(e.to_string()))
        }
        Err(error) => Err(format!("the handover cannot be written: {error}")),
    };
    (handover, proved)
}

impl ExportedState {
    /// Executes the new program. Returns only on failure, with the state to import again.
    pub(crate) async fn exec(self, context: &Arc<Context>) -> ImportedState {
        let Self { handover, ended, program, args, requester } = self;
        context.finish_disk_work().await;
        if !matches!(tokio::time::timeout(FLUSH, context.store.flush()).await, Ok(Ok(()))) {
            tracing::error!("lease store not flushed before upgrade; rows go with the handover");
        }
        let (mut handover, proved) = run_trial(context, handover, &program, args.clone()).await;
        let link = requester.link().clone();
        let (why, to_version) = match proved {
            Ok((image, version)) => {
                requester.answer(Ok(Reply::Done));
                close_after_reply(&link).await;
                tracing::info!(
                    program = %program.display(),
                    version,
                    leases = handover.living_leases(),
                    "handover started"
                );
                let error = exec::exec_program(&program, &args, image, &mut handover);
                (format!("{} cannot be executed: {error}", program.display()), version)
            }
            Err(why) => {
                requester.answer(Err(failed(&why)));
                close_after_reply(&link).await;
                (why, String::new())
            }
        };
        tracing::error!(why, "upgrade failed; current program continues");
        let last = LastUpgrade {
            at_ms: wall_ms(),
            from_version: handover.head.version.clone(),
            to_version,
            leases: handover.living_leases() as u64,
            pause_ms: crate::owner::handover::import::since_ms(handover.head.frozen_ns),
            error: Some(why),
        };
        ImportedState { handover, ended, last }
    }
}

/// Waits until the client has read the reply, then closes the connection.
async fn close_after_reply(link: &ConnectionHandle) {
    link.refuse(Refusal::new(RefusalCode::ShuttingDown, "the supervisor is being upgraded; reconnect"));
    drop(tokio::time::timeout(LAST_MESSAGES_WAIT, link.end().cancelled()).await);
    link.end().cancel();
}

/// True for leases of failed starts whose remaining processes a task of the earlier image was ending.
pub(crate) fn is_failed_start_cleanup(lease: &Lease, me: crate::core::lease::ProcessRecord) -> bool {
    lease.state == LeaseState::Closing && lease.supervisor == me
}
