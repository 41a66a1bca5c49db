//! Import of a handover, in the new image or in the old one that could not leave.

use crate::context::Context;
use crate::core::admission::AccessPolicy;
use crate::core::deadlines::Absence;
use crate::core::lease::Lease;
use crate::files::FileQueues;
use crate::lease::pause::TaskState;
use crate::lease::task;
use crate::owner::Owner;
use crate::owner::handover::export::is_failed_start_cleanup;
use crate::owner::handover::{EntryState, Handover, HandoverResources};
use crate::owner::lease_entry::LeaseEntry;
use crate::owner::requests::spawn::COMMANDS_QUEUED_MAX;
use crate::relay::{self, Relay, RelayState};
use acp_shared::ids::{GatewayInstanceId, LeaseId};
use acp_shared::protocol::LastUpgrade;
use rustix::time::{ClockId, clock_gettime};
use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;

/// Supervisor state to import.
#[derive(Debug)]
pub(crate) struct ImportedState {
    /// State at the time of the export.
    pub(crate) handover: Handover,
    /// Ended leases without streams.
    pub(crate) ended: Vec<Lease>,
    /// Outcome of the upgrade.
    pub(crate) last: LastUpgrade,
}

/// Resources kept from the first image of a supervisor to the last.
#[derive(Debug)]
pub(crate) struct InheritableResources {
    /// The lock of the state directory.
    pub(crate) lock: OwnedFd,
    /// The listening socket.
    pub(crate) listener: OwnedFd,
    /// Path of the socket if this program created the file.
    pub(crate) to_remove: Option<PathBuf>,
}

/// Reads the monotonic clock, which is unaffected by `execve`, in nanoseconds.
pub(crate) fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let (seconds, nanos) = (u64::try_from(now.tv_sec).unwrap_or(0), u64::try_from(now.tv_nsec).unwrap_or(0));
    seconds.saturating_mul(1_000_000_000).saturating_add(nanos)
}

/// Returns the milliseconds since an earlier value of [`monotonic_ns`].
pub(crate) fn since_ms(then_ns: u64) -> u64 {
    monotonic_ns().saturating_sub(then_ns) / 1_000_000
}

impl Handover {
    /// Returns the start time of the supervisor as an instant of this image.
    pub(crate) fn started(&self) -> Instant {
        let run = Duration::from_nanos(monotonic_ns().saturating_sub(self.head.started_ns));
        Instant::now().checked_sub(run).unwrap_or_else(Instant::now)
    }

    /// Combines the handover with the stored leases, in a new image.
    pub(crate) fn into_imported_state(self, stored: Vec<Lease>) -> ImportedState {
        let handed = |lease: &Lease| self.entries.iter().any(|entry| entry.lease.lease_id == lease.lease_id);
        let ended = stored.into_iter().filter(|lease| !handed(lease)).collect();
        let last = LastUpgrade {
            at_ms: crate::context::wall_ms(),
            from_version: self.head.version.clone(),
            to_version: env!("CARGO_PKG_VERSION").to_owned(),
            leases: self.living_leases() as u64,
            pause_ms: since_ms(self.head.frozen_ns),
            error: self.head.failed.clone(),
        };
        ImportedState { handover: self, ended, last }
    }
}

impl Owner {
    /// Creates an owner from an exported one. Also returns the lock and the listening socket.
    ///
    /// # Errors
    /// The lock or the listening socket is missing.
    pub(crate) fn import(
        context: &Arc<Context>,
        policy: AccessPolicy,
        imported: ImportedState,
    ) -> io::Result<(Self, InheritableResources)> {
        let ImportedState { handover: Handover { head, entries }, ended, last } = imported;
        let (lock, listener) = (head.lock.take()?, head.listener.take()?);
        let inheritable = InheritableResources { lock, listener, to_remove: head.to_remove };
        let mut owner = Self::new(Arc::clone(context), policy, ended, head.installations, head.warnings);
        owner.supervisor_id = head.supervisor_id;
        let suspended: HashMap<GatewayInstanceId, u64> = head.suspended_ms.into_iter().collect();
        let promised: HashMap<GatewayInstanceId, u64> = head.grace_ms.into_iter().collect();
        let configured = context.config.detached_grace_ms;
        let absence = |(gateway, since_ms)| {
            let suspended_ms = suspended.get(&gateway).copied().unwrap_or(0);
            let grace_ms = promised.get(&gateway).map_or(configured, |grace| configured.min(*grace));
            (gateway, Absence { since_ms, suspended_ms, grace_ms })
        };
        owner.absences = head.detached_at_ms.into_iter().map(absence).collect();
        owner.pending.kept_until_ms = head.kept_until_ms.into_iter().collect();
        owner.backoff.restore(head.crashes);
        owner.files = FileQueues::from_surviving(head.helpers);
        for entry in entries {
            let id = entry.lease.lease_id;
            owner.leases.insert(id, import_entry(context, entry));
        }
        owner.restore_end_times(head.ended_seen_ms);
        tracing::info!(
            leases = last.leases,
            pause_ms = last.pause_ms,
            from = last.from_version,
            "handover complete"
        );
        owner.last_upgrade = Some(last);
        for _ in 0..head.stops {
            owner.stop();
        }
        Ok((owner, inheritable))
    }

    /// Restores the end times of leases. If an older image did not export them, all leases count as ended
    /// now, so that none is removed too early.
    fn restore_end_times(&mut self, seen: Option<Vec<(LeaseId, u64)>>) {
        let now = self.context.now_ms();
        let Some(seen) = seen else {
            for entry in self.leases.values_mut().filter(|e| e.lease.state.is_ended()) {
                entry.ended_seen_ms = Some(now);
            }
            return;
        };
        for (id, at_ms) in seen {
            if let Some(entry) = self.leases.get_mut(&id) {
                entry.ended_seen_ms = Some(at_ms);
            }
        }
    }

    /// Ends the remaining processes of failed starts, as tasks of the earlier image did.
    pub(crate) fn resume_failed_start_cleanup(&self) {
        let alone = self.leases.values().filter(|e| e.commands.is_none());
        for entry in alone.filter(|e| is_failed_start_cleanup(&e.lease, self.context.me)) {
            let (context, lease) = (Arc::clone(&self.context), entry.lease.clone());
            tokio::spawn(async move { task::kill_until_gone(&context, lease).await });
        }
    }

    /// Stores the process-level resources for the next handover.
    pub(crate) fn set_handover_resources(&mut self, resources: HandoverResources) {
        self.resources = Some(resources);
    }
}

fn import_entry(context: &Arc<Context>, entry: EntryState) -> LeaseEntry {
    let EntryState { lease, stuck, close_at_ms, open_since_ms, task, relay } = entry;
    let relay = relay.map(|state| import_relay(context, &lease, state));
    let commands = task.zip(relay.clone()).map(|(task, relay)| import_task(context, &lease, task, relay));
    LeaseEntry { commands, relay, stuck, close_at_ms, open_since_ms, ..LeaseEntry::of(lease) }
}

fn import_relay(context: &Arc<Context>, lease: &Lease, state: RelayState) -> Relay {
    match state {
        RelayState::Agent(agent) => {
            let log = context.logs.log(lease.gateway, &lease.session_key);
            relay::agent::import(lease.lease_id, context.limits(lease.gateway), log, *agent)
        }
        RelayState::Terminal(terminal) => {
            let on_exit = crate::lease::spawn::exit_notifier(context.events.clone(), lease.gateway);
            relay::terminal::import(lease.lease_id, terminal, on_exit)
        }
    }
}

fn import_task(
    context: &Arc<Context>,
    lease: &Lease,
    task: TaskState,
    relay: Relay,
) -> mpsc::Sender<task::LeaseCmd> {
    if let Some(bound) = lease.bound {
        context.add_root(bound.wrapper.pid);
        if !task.wrapper_gone {
            context.track_child(bound.wrapper.pid);
        }
    }
    let (commands, queue) = mpsc::channel(COMMANDS_QUEUED_MAX);
    tokio::spawn(task::resume(Arc::clone(context), lease.clone(), task, relay, queue));
    commands
}
