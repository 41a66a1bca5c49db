//! Periodic work of the owner: sweep over leftover leases, timeouts, and retention of ended leases.

use crate::core::admission::{ClientUser, Installation};
use crate::core::deadlines::{Deadlines, next_wake};
use crate::core::lease::Lease;
use crate::core::retention::{LostFinding, NOT_PROVED};
use crate::owner::handover::Upgrade;
use crate::owner::lease_entry::LeaseEntry;
use crate::owner::requests;
use crate::owner::{CLOSE_SENT, Owner};
use crate::relay::{Relay, RelayCmd};
use acp_shared::ids::{GatewayInstanceId, LeaseId};
use acp_shared::protocol::{LeaseKind, LeaseState, Refusal, RefusalCode};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Retention of a terminal's output after its end if it is not released, in milliseconds.
const TERMINAL_RETENTION_MS: u64 = 10 * 60 * 1_000;

impl Owner {
    /// Performs the work that is due, and sets the next wake-up.
    pub(crate) fn tick(&mut self) {
        self.count_suspension();
        let now = self.context.now_ms();
        let away: Vec<GatewayInstanceId> = self
            .absences
            .iter()
            .filter(|(_, absence)| absence.end_ms() <= now)
            .filter(|(gateway, _)| !self.holds_agents(**gateway, now))
            .map(|(g, _)| *g)
            .collect();
        for gateway in away {
            self.absences.remove(&gateway);
            self.close_all(|lease| lease.gateway == gateway, "its gateway did not reconnect");
        }
        if self.pending.save_at_ms().is_some_and(|at| at <= now) {
            self.save_progress(None);
        }
        let waiting: Vec<LeaseId> = self.waiting_closes().map(|(id, _)| id).collect();
        for id in waiting {
            self.close_after_terminals(id);
        }
        if self.context.store.read_only().is_none() {
            self.expire();
            self.sweep(now);
        }
        self.cancel_overdue_upgrade(now);
        self.manager.send_watchdog(now);
        self.wake_at_ms = next_wake(now, &self.deadlines());
    }

    /// Adds the time that the machine was suspended to the absences of gateways.
    pub(crate) fn count_suspension(&mut self) {
        let total = crate::sys::suspended_ms();
        let new = total.saturating_sub(self.suspended_ms);
        self.suspended_ms = self.suspended_ms.max(total);
        for absence in self.absences.values_mut() {
            absence.suspended_ms = absence.suspended_ms.saturating_add(new);
        }
    }

    /// Returns the time of the next wake-up without an event.
    pub(crate) fn wake_at(&self) -> tokio::time::Instant {
        self.context.instant(self.wake_at_ms.unwrap_or(u64::MAX))
    }

    /// True if the wake-up time has come.
    pub(crate) fn is_due(&self) -> bool {
        self.wake_at_ms.is_some_and(|at| at <= self.context.now_ms())
    }

    /// Requests an immediate wake-up, to recompute the deadlines after a change.
    pub(crate) const fn rearm_timer(&mut self) {
        self.wake_at_ms = Some(0);
    }

    /// Returns the leases whose end waits for their terminals, with the deadline.
    fn waiting_closes(&self) -> impl Iterator<Item = (LeaseId, u64)> {
        self.leases.iter().filter(|(_, e)| e.commands.is_some()).filter_map(|(id, e)| {
            let until =
                e.close_at_ms.as_ref().map(|(until, _)| *until).filter(|until| *until != CLOSE_SENT)?;
            Some((*id, until))
        })
    }

    fn deadlines(&self) -> Deadlines {
        let (config, clocks) = (&self.context.config, self.context.clocks());
        let kept = |e: &LeaseEntry| {
            let printed = e.lease.parent().is_some() && e.relay.is_some();
            let keep =
                if printed { TERMINAL_RETENTION_MS.min(config.retention_ms) } else { config.retention_ms };
            // Leases that must not be removed yet are left to the sweep.
            e.due_ms(keep, &clocks).filter(|_| printed || e.may_be_removed())
        };
        // For living leases (the store's file may be lost), leases without a task, and lost leases.
        let living = self.leases.values().any(|e| !e.lease.state.is_ended() || e.needs_sweep());
        let writes = self.context.store.read_only().is_none();
        Deadlines {
            detached: self
                .absences
                .iter()
                .map(|(gateway, absence)| {
                    let kept_until = self.pending.kept_until_ms.get(gateway).copied().unwrap_or(0);
                    absence.end_ms().max(kept_until)
                })
                .min(),
            progress: self.pending.save_at_ms(),
            closing: self.waiting_closes().map(|(_, until)| until).min(),
            expiry: self.leases.values().filter_map(kept).min().filter(|_| writes),
            sweep: (living && writes && !self.stopping).then_some(self.sweep_at_ms),
            watchdog: self.manager.next_watchdog_ms(),
            upgrade: self.upgrade.as_ref().and_then(Upgrade::deadline_ms),
        }
    }

    /// Removes the oldest gateway of a user or cell that has no connection and no lease, if it has the maximum number of
    /// gateways. Cells whose agents run as one user do not count together.
    ///
    /// # Errors
    /// [`RefusalCode::QuotaExceeded`] if all of them are in use.
    pub(crate) fn make_room_for_gateway(&mut self, user: &ClientUser) -> Result<(), Refusal> {
        let max = self.context.config.gateways_per_user_max;
        let is_of_user =
            |known: &&Installation| known.uid == user.uid && known.cell() == user.cell.as_deref();
        let of_user = || self.installations.values().filter(is_of_user).map(|known| known.gateway);
        if (of_user().count() as u64) < max {
            return Ok(());
        }
        let in_use: HashSet<GatewayInstanceId> = self
            .leases
            .values()
            .map(|e| e.lease.gateway)
            .chain(self.links.values().filter_map(|c| c.who.gateway()))
            .collect();
        // Ids grow with their creation time.
        let Some(oldest) = of_user().filter(|gateway| !in_use.contains(gateway)).min() else {
            let why = format!(
                "{max} gateways of {} are in use, which is the limit (gateways_per_user_max); end some, or raise it in the \
                 supervisor's configuration",
                user.name()
            );
            return Err(Refusal::new(RefusalCode::QuotaExceeded, why));
        };
        self.installations.remove(&oldest);
        let store = self.context.store.clone();
        tokio::spawn(async move {
            if let Err(error) = store.delete_installation(oldest).await {
                tracing::error!(%error, gateway = %oldest, "deleting record of forgotten gateway failed");
            }
        });
        Ok(())
    }

    /// Checks leases without a task again: those of earlier supervisors that could not be settled at start,
    /// and lost ones that are not proved gone (H23).
    pub(crate) fn sweep(&mut self, now_ms: u64) {
        if now_ms < self.sweep_at_ms || self.stopping {
            return;
        }
        self.swept_at_ms = Some(crate::context::wall_ms());
        self.sweep_at_ms = now_ms.saturating_add(self.context.config.reap_every_ms);
        self.context.store.post_check();
        let left: Vec<Lease> =
            self.leases.values().filter(|e| e.needs_sweep()).map(|e| e.lease.clone()).collect();
        if left.is_empty() || self.sweeping.swap(true, Ordering::Relaxed) {
            return;
        }
        let (context, sweeping) = (Arc::clone(&self.context), Arc::clone(&self.sweeping));
        tokio::spawn(async move {
            if let Err(error) = requests::reap::reap_and_record(&context, left).await {
                tracing::warn!(%error, "reaping leases of earlier supervisor failed");
            }
            sweeping.store(false, Ordering::Relaxed);
        });
    }

    /// Records the current evidence about lost leases.
    pub(crate) fn record_findings(&mut self, lost_findings: Vec<(LeaseId, LostFinding)>) {
        for (id, lost_finding) in lost_findings {
            let lost = self.leases.get_mut(&id).filter(|e| e.lease.state == LeaseState::Lost);
            let Some(entry) = lost else { continue };
            if let LostFinding::Unproved(why) = lost_finding
                && entry.lost_finding != Some(lost_finding)
            {
                // Logged once for each result, not with each sweep.
                tracing::warn!(lease_id = %id, why, "lost lease kept; its processes are not proved gone");
            }
            entry.lost_finding = Some(lost_finding);
        }
        self.rearm_timer();
    }

    /// Returns a warning about lost leases that are kept beyond their retention.
    pub(crate) fn overdue(&self) -> Option<String> {
        let (keep, clocks) = (self.context.config.retention_ms, self.context.clocks());
        let over = |e: &LeaseEntry| e.due_ms(keep, &clocks).is_some_and(|due| due <= clocks.now_ms);
        let unproved = |e: &LeaseEntry| match e.lost_finding {
            Some(LostFinding::Unproved(why)) if over(e) => Some((e.lease.lease_id, why)),
            Some(LostFinding::Unproved(_) | LostFinding::Gone(_)) | None => None,
        };
        let mut kept = self.leases.values().filter_map(unproved);
        let (first, why) = kept.next()?;
        let count = kept.count() + 1;
        Some(format!(
            "lost leases past retention_ms that are kept because they are {NOT_PROVED}: {count}; the first \
             is {first} ({why}). `acp-supervisor leases verify ID` shows the evidence; a reboot of the \
             machine proves it"
        ))
    }

    /// Removes leases past their retention, and the output of terminals that ended some time ago. Lost leases
    /// that are not proved gone are kept (H23).
    pub(crate) fn expire(&mut self) {
        let (keep, clocks) = (self.context.config.retention_ms, self.context.clocks());
        let over =
            |e: &LeaseEntry, keep_ms| e.due_ms(keep_ms, &clocks).is_some_and(|due| due <= clocks.now_ms);
        for entry in self.leases.values_mut().filter(|e| e.lease.parent().is_some()) {
            if over(entry, TERMINAL_RETENTION_MS)
                && let Some(relay) = entry.relay.take()
            {
                relay.send(RelayCmd::Release);
            }
        }
        let old = |e: &LeaseEntry| over(e, keep) && e.may_be_removed();
        let mut ids: Vec<LeaseId> = self.leases.iter().filter(|(_, e)| old(e)).map(|(id, _)| *id).collect();
        ids.extend(self.surplus());
        if ids.is_empty() {
            return;
        }
        let mut sessions = HashSet::new();
        for id in &ids {
            let Some(entry) = self.leases.remove(id) else { continue };
            if let Some(relay) = entry.relay {
                relay.send(RelayCmd::Release);
            }
            self.context.spools.remove(entry.lease.gateway, *id);
            sessions.insert((entry.lease.gateway, entry.lease.session_key));
        }
        for entry in self.leases.values() {
            sessions.remove(&(entry.lease.gateway, entry.lease.session_key.clone()));
        }
        for (gateway, session) in sessions {
            self.context.logs.remove(gateway, &session);
        }
        let store = self.context.store.clone();
        tokio::spawn(async move {
            if let Err(error) = store.delete_leases(ids).await {
                tracing::error!(%error, "deleting expired leases failed");
            }
        });
    }

    /// Returns the oldest ended leases beyond the number kept for each gateway. Leases with unacknowledged
    /// output are not included (H1).
    fn surplus(&self) -> Vec<LeaseId> {
        // Sort key by end: leases whose end this supervisor did not see come first.
        type Place = (Option<u64>, Option<u64>, LeaseId);
        let max = crate::config::size(self.context.config.ended_per_gateway_max);
        if self.leases.len() <= max {
            return Vec::new();
        }
        let mut ended: HashMap<GatewayInstanceId, Vec<Place>> = HashMap::new();
        for (id, entry) in self.leases.iter().filter(|(_, e)| e.may_be_removed()) {
            let buffered = entry.relay.as_ref().map_or(0, Relay::buffered_bytes);
            if entry.lease.released || buffered == 0 {
                let place = (entry.ended_seen_ms, entry.lease.ended_at_ms, *id);
                ended.entry(entry.lease.gateway).or_default().push(place);
            }
        }
        ended
            .into_values()
            .flat_map(|mut of_one| {
                of_one.sort_unstable();
                of_one.truncate(of_one.len().saturating_sub(max));
                of_one
            })
            .map(|(_, _, id)| id)
            .collect()
    }

    /// Removes the oldest kept terminal output of a gateway until the rest is within the limit.
    pub(crate) fn trim_tails(&mut self, of: GatewayInstanceId) {
        let tail = |(id, e): (&LeaseId, &LeaseEntry)| {
            let LeaseKind::Terminal { output_bytes_max, .. } = e.lease.kind else { return None };
            let ended = e.lease.ended_at_ms.filter(|_| e.lease.gateway == of)?;
            Some((ended, *id, output_bytes_max.min(e.relay.as_ref()?.totals().stdout_end)))
        };
        let mut tails: Vec<(u64, LeaseId, u64)> = self.leases.iter().filter_map(tail).collect();
        tails.sort_unstable_by(|a, b| b.cmp(a));
        let mut kept: u64 = 0;
        for (place, (_, id, bytes)) in tails.into_iter().enumerate() {
            kept = kept.saturating_add(bytes);
            // The last one is kept: its output is probably requested soon.
            if place > 0
                && kept > self.context.config.tails_bytes_max
                && let Some(relay) = self.leases.get_mut(&id).and_then(|e| e.relay.take())
            {
                relay.send(RelayCmd::Release);
            }
        }
    }
}
