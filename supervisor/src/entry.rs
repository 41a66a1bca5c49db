//! One lease in the owner's table: its row, the ways to its task and its streams, and what the row does not say.

use crate::core::lease::Lease;
use crate::core::retain::{Clocks, Ended, Rest, due_ms, may_be_forgotten};
use crate::handle;
use crate::lease_task::LeaseCmd;
use crate::link::Responder;
use crate::relay::Relay;
use acp_shared::protocol::{LeaseInfo, LeaseState, Refusal, RefusalCode};
use tokio::sync::mpsc;

/// One lease in the table.
#[derive(Debug)]
pub(crate) struct Entry {
    /// The row as its task last told it.
    pub(crate) lease: Lease,
    /// To its task, while it lives.
    pub(crate) commands: Option<mpsc::Sender<LeaseCmd>>,
    /// To its streams, while they are kept.
    pub(crate) relay: Option<Relay>,
    /// Who waits for the spawn.
    pub(crate) waiting: Vec<Responder>,
    /// Something of its tree survives SIGKILL.
    pub(crate) stuck: bool,
    /// The end was asked for, and waits for the terminals until then.
    pub(crate) close_at_ms: Option<(u64, String)>,
    /// When its adapter began to run.
    pub(crate) open_since_ms: u64,
    /// When it ended, by the supervisor's own clock, if this supervisor saw it.
    pub(crate) ended_seen_ms: Option<u64>,
    /// What is known now of its tree, if it is lost and was looked at again.
    pub(crate) rest: Option<Rest>,
}

impl Entry {
    /// A lease that no task works on and that has no streams.
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
            rest: None,
        }
    }

    /// Takes a row as it is by now.
    pub(crate) fn take(&mut self, lease: Lease, now_ms: u64) {
        self.ended_seen_ms = lease.state.is_ended().then(|| self.ended_seen_ms.unwrap_or(now_ms));
        self.rest = self.rest.filter(|_| lease.state == LeaseState::Lost);
        self.lease = lease;
    }

    /// When what is kept of it for so long after its end goes, on the supervisor's clock.
    pub(crate) fn due_ms(&self, keep_ms: u64, clocks: &Clocks) -> Option<u64> {
        let before = self.lease.ended_at_ms.map(Ended::Before);
        let ended = self.ended_seen_ms.map(Ended::Seen).or(before)?;
        self.lease.state.is_ended().then(|| due_ms(ended, keep_ms, clocks))
    }

    /// Whether its row may go once its time is over.
    pub(crate) fn may_be_forgotten(&self) -> bool {
        may_be_forgotten(&self.lease, self.rest)
    }

    /// Whether the sweep looks at it: nobody else does, and its end is not proved.
    pub(crate) fn is_left(&self) -> bool {
        let unproved = self.lease.state == LeaseState::Lost && !self.may_be_forgotten();
        self.commands.is_none() && (!self.lease.state.is_ended() || unproved)
    }

    /// The lease as people and programs see it.
    pub(crate) fn info(&self) -> LeaseInfo {
        let mut info = self.lease.info();
        if let Some(rest) = self.rest {
            let between = if info.state_reason.is_empty() { "" } else { "; " };
            info.state_reason = format!("{}{between}{}", info.state_reason, rest.in_words());
        }
        if let Some(relay) = &self.relay {
            relay.describe(&mut info);
        }
        info
    }

    /// Why nothing can be had of a lease that has not ended and that no task of this supervisor works on.
    pub(crate) fn left_over(&self) -> Refusal {
        let why = format!(
            "lease {} is left over ({}) and not verified gone yet; the sweep looks at it again",
            self.lease.lease_id, self.lease.state
        );
        Refusal::new(RefusalCode::SessionBusy, why).retry_after(handle::spawn::SESSION_RETRY_MS)
    }

    /// Whether its end was asked for or has come.
    pub(crate) fn is_ending(&self) -> bool {
        self.close_at_ms.is_some() || self.lease.state == LeaseState::Closing || self.lease.state.is_ended()
    }
}
