//! Entry of the owner's lease table: the row, the channels to its tasks, and state that is not in the row.

use crate::core::lease::Lease;
use crate::core::retention::{Clocks, EndTime, LostFinding, due_ms, may_be_removed};
use crate::lease::task::LeaseCmd;
use crate::owner::requests;
use crate::relay::Relay;
use crate::relay::connection::Responder;
use acp_shared::protocol::{LeaseInfo, LeaseState, Refusal, RefusalCode};
use tokio::sync::mpsc;

/// Entry of the lease table.
#[derive(Debug)]
pub(crate) struct LeaseEntry {
    /// Row, as last reported by the lease task.
    pub(crate) lease: Lease,
    /// Channel to the lease task, while it runs.
    pub(crate) commands: Option<mpsc::Sender<LeaseCmd>>,
    /// Handle of the relay, while the streams are kept.
    pub(crate) relay: Option<Relay>,
    /// Requests that wait for the spawn.
    pub(crate) waiting: Vec<Responder>,
    /// True if a process of the tree survived SIGKILL.
    pub(crate) stuck: bool,
    /// Deadline until which a requested close waits for the terminals, and the reason of the close.
    pub(crate) close_at_ms: Option<(u64, String)>,
    /// Time at which the adapter started to run.
    pub(crate) open_since_ms: u64,
    /// Time of the end on the supervisor's monotonic clock, if this supervisor saw it.
    pub(crate) ended_seen_ms: Option<u64>,
    /// Latest evidence about the tree of a lost lease, if it was checked again.
    pub(crate) lost_finding: Option<LostFinding>,
}

impl LeaseEntry {
    /// Creates an entry without task and streams.
    pub(crate) const fn of(lease: Lease) -> Self {
        Self {
            lease,
            commands: None,
            relay: None,
            waiting: Vec::new(),
            stuck: false,
            close_at_ms: None,
            open_since_ms: 0,
            ended_seen_ms: None,
            lost_finding: None,
        }
    }

    /// Replaces the row by a newer version.
    pub(crate) fn take(&mut self, lease: Lease, now_ms: u64) {
        self.ended_seen_ms = lease.state.is_ended().then(|| self.ended_seen_ms.unwrap_or(now_ms));
        self.lost_finding = self.lost_finding.filter(|_| lease.state == LeaseState::Lost);
        self.lease = lease;
    }

    /// Returns the time at which data kept for `keep_ms` after the end expires, on the supervisor's clock.
    pub(crate) fn due_ms(&self, keep_ms: u64, clocks: &Clocks) -> Option<u64> {
        let before = self.lease.ended_at_ms.map(EndTime::Before);
        let ended = self.ended_seen_ms.map(EndTime::Seen).or(before)?;
        self.lease.state.is_ended().then(|| due_ms(ended, keep_ms, clocks))
    }

    /// True if retention may remove the row.
    pub(crate) fn may_be_removed(&self) -> bool {
        may_be_removed(&self.lease, self.lost_finding)
    }

    /// True if the sweep checks this lease: no task works on it, and its end is not proved.
    pub(crate) fn needs_sweep(&self) -> bool {
        let unproved = self.lease.state == LeaseState::Lost && !self.may_be_removed();
        self.commands.is_none() && (!self.lease.state.is_ended() || unproved)
    }

    /// Returns the public description of the lease.
    pub(crate) fn info(&self) -> LeaseInfo {
        let mut info = self.lease.info();
        if let Some(lost_finding) = self.lost_finding {
            let between = if info.state_reason.is_empty() { "" } else { "; " };
            info.state_reason = format!("{}{between}{}", info.state_reason, lost_finding.describe());
        }
        if let Some(relay) = &self.relay {
            relay.describe(&mut info);
        }
        info
    }

    /// Returns the refusal for a living lease that no task of this supervisor works on.
    pub(crate) fn left_over_refusal(&self) -> Refusal {
        let why = format!(
            "lease {} of an earlier supervisor is {} and not verified to be gone yet; the sweep checks it \
             again",
            self.lease.lease_id, self.lease.state
        );
        Refusal::new(RefusalCode::SessionBusy, why).retry_after(requests::spawn::SESSION_RETRY_MS)
    }

    /// True if the lease is closing, has ended, or a close was requested.
    pub(crate) fn is_ending(&self) -> bool {
        self.close_at_ms.is_some() || self.lease.state == LeaseState::Closing || self.lease.state.is_ended()
    }
}
