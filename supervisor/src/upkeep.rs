//! What the owner does from time to time: leases that were left over are looked at again, and what is kept of ended
//! ones is bounded.

use crate::core::lease::Lease;
use crate::handle;
use crate::owner::{Entry, Owner};
use crate::relay::{self, Relay, RelayCmd};
use acp_shared::ids::{GatewayInstanceId, LeaseId};
use acp_shared::protocol::LeaseKind;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// How long what a terminal printed is kept after its end when nobody releases it, in milliseconds.
const TERMINAL_KEPT_MS: u64 = 10 * 60 * 1_000;

impl Owner {
    /// Looks again at leases of earlier supervisors that could not be told when this one started.
    pub(crate) fn sweep(&mut self, now_ms: u64) {
        if now_ms < self.sweep_at_ms || self.stopping {
            return;
        }
        self.swept_at_ms = Some(crate::context::wall_ms());
        self.sweep_at_ms = now_ms.saturating_add(self.context.config.reap_every_ms);
        let left = self.leases.values().filter(|e| e.commands.is_none() && !e.lease.state.is_ended());
        let left: Vec<Lease> = left.map(|e| e.lease.clone()).collect();
        if left.is_empty() || self.sweeping.swap(true, Ordering::Relaxed) {
            return;
        }
        let (context, sweeping) = (Arc::clone(&self.context), Arc::clone(&self.sweeping));
        tokio::spawn(async move {
            if let Err(error) = handle::reap::act(&context, left).await {
                tracing::warn!(%error, "cannot look at what an earlier supervisor left behind");
            }
            sweeping.store(false, Ordering::Relaxed);
        });
    }

    /// Forgets leases past their retention, and what terminals printed that ended a while ago.
    pub(crate) fn expire(&mut self) {
        let (now, keep) = (crate::context::wall_ms(), self.context.config.retention_ms);
        for entry in self.leases.values_mut().filter(|e| e.lease.parent().is_some()) {
            if entry.lease.ended_at_ms.is_some_and(|at| now.saturating_sub(at) > TERMINAL_KEPT_MS)
                && let Some(relay) = entry.relay.take()
            {
                relay.request(RelayCmd::Release);
            }
        }
        let old = |e: &Entry| e.lease.ended_at_ms.is_some_and(|at| now.saturating_sub(at) > keep);
        let mut ids: Vec<LeaseId> = self.leases.iter().filter(|(_, e)| old(e)).map(|(id, _)| *id).collect();
        ids.extend(self.surplus());
        if ids.is_empty() {
            return;
        }
        for id in &ids {
            if let Some(relay) = self.leases.remove(id).and_then(|entry| entry.relay) {
                relay.request(RelayCmd::Release);
            }
            relay::forget(&self.context.spool_dir(), *id);
        }
        let store = self.context.store.clone();
        tokio::spawn(async move {
            if let Err(error) = store.delete_leases(ids).await {
                tracing::error!(%error, "expired leases are not removed");
            }
        });
    }

    /// Ended leases beyond the number that is kept of each gateway, the oldest ones. What an agent said and nobody
    /// has acknowledged stays (H1).
    fn surplus(&self) -> Vec<LeaseId> {
        let max = crate::config::size(self.context.config.ended_per_gateway_max);
        if self.leases.len() <= max {
            return Vec::new();
        }
        let mut ended: HashMap<GatewayInstanceId, Vec<(u64, LeaseId)>> = HashMap::new();
        for (id, entry) in &self.leases {
            let buffered = entry.relay.as_ref().map_or(0, Relay::buffered_bytes);
            if let Some(at) = entry.lease.ended_at_ms.filter(|_| entry.lease.released || buffered == 0) {
                ended.entry(entry.lease.gateway).or_default().push((at, *id));
            }
        }
        ended
            .into_values()
            .flat_map(|mut of_one| {
                of_one.sort_unstable();
                of_one.truncate(of_one.len().saturating_sub(max));
                of_one
            })
            .map(|(_, id)| id)
            .collect()
    }

    /// Forgets what the terminals of a gateway printed that ended first, until the rest is within the limit.
    pub(crate) fn trim_tails(&mut self, of: GatewayInstanceId) {
        let tail = |(id, e): (&LeaseId, &Entry)| {
            let LeaseKind::Terminal { output_bytes_max, .. } = e.lease.kind else { return None };
            let ended = e.lease.ended_at_ms.filter(|_| e.lease.gateway == of)?;
            Some((ended, *id, output_bytes_max.min(e.relay.as_ref()?.totals().stdout_end)))
        };
        let mut tails: Vec<(u64, LeaseId, u64)> = self.leases.iter().filter_map(tail).collect();
        tails.sort_unstable_by(|a, b| b.cmp(a));
        let mut kept: u64 = 0;
        for (place, (_, id, bytes)) in tails.into_iter().enumerate() {
            kept = kept.saturating_add(bytes);
            // Not the last one: somebody is about to ask for it.
            if place > 0
                && kept > self.context.config.tails_bytes_max
                && let Some(relay) = self.leases.get_mut(&id).and_then(|e| e.relay.take())
            {
                relay.request(RelayCmd::Release);
            }
        }
    }
}
