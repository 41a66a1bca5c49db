//! Durable progress of gateways: the owner's part in the detection of a database that was restored to an
//! older state. The decision is made in [`crate::core::marks`].
//!
//! Event ids are written with a delay: at most [`SAVE_MS`] after an acknowledgement, and when the gateway
//! disconnects. After a crash of the supervisor or the host, the recorded mark may therefore be behind by
//! that much, but never ahead.

use crate::context::wall_ms;
use crate::core::deadlines::Absence;
use crate::core::marks::AckedOutput;
use crate::owner::Owner;
use acp_shared::ids::GatewayInstanceId;
use acp_shared::protocol::{LeaseKind, LeaseState, Refusal, Rollback};
use std::collections::{HashMap, HashSet};

/// Maximum delay between an acknowledgement and the write of its event id, in milliseconds.
const SAVE_MS: u64 = 1_000;

/// Formats a time, to the second.
fn time(wall_ms: u64) -> String {
    let ms = i64::try_from(wall_ms).unwrap_or(i64::MAX);
    jiff::Timestamp::from_millisecond(ms).map_or_else(|_| ms.to_string(), |at| format!("{at:.0}"))
}

/// Converts a time on the supervisor's clock, which shows `now_ms`.
fn wall_time_of(at_ms: u64, now_ms: u64) -> u64 {
    wall_ms().saturating_add(at_ms).saturating_sub(now_ms)
}

/// Progress state of the owner that is not part of the installations.
#[derive(Debug, Default)]
pub(crate) struct PendingProgress {
    /// Time until which agents of refused gateways are kept, on the supervisor's clock.
    pub(crate) kept_until_ms: HashMap<GatewayInstanceId, u64>,
    /// Gateways with an unwritten event id.
    unsaved: HashSet<GatewayInstanceId>,
    /// Deadline for writing these.
    save_at_ms: Option<u64>,
}

impl PendingProgress {
    /// Deadline for writing event ids.
    pub(crate) const fn save_at_ms(&self) -> Option<u64> {
        self.save_at_ms
    }
}

impl Owner {
    /// Records the highest synced event id of a gateway.
    pub(crate) fn record_event(&mut self, gateway: GatewayInstanceId, event_id: u64) {
        let Some(known) = self.installations.get_mut(&gateway) else { return };
        if event_id <= known.progress.event_id {
            return;
        }
        known.progress.event_id = event_id;
        self.pending.unsaved.insert(gateway);
        if self.pending.save_at_ms.is_none() {
            self.pending.save_at_ms = Some(self.context.now_ms().saturating_add(SAVE_MS));
            self.rearm_timer();
        }
    }

    /// Posts unwritten event ids to the store, of one gateway or of all.
    pub(crate) fn save_progress(&mut self, of: Option<GatewayInstanceId>) {
        let (store, installations) = (&self.context.store, &self.installations);
        // Event ids that do not fit into the store's queue stay, for the next attempt.
        self.pending.unsaved.retain(|gateway| {
            let is_meant = of.is_none_or(|of| of == *gateway);
            let known = installations.get(gateway);
            !(is_meant && known.is_none_or(|known| store.post_installation(known)))
        });
        if self.pending.unsaved.is_empty() {
            self.pending.save_at_ms = None;
        } else if of.is_none() {
            self.pending.save_at_ms = Some(self.context.now_ms().saturating_add(SAVE_MS));
        }
    }

    /// Returns the living agents of a gateway, with the acknowledged offset of their output.
    pub(crate) fn acked_outputs(&self, gateway: GatewayInstanceId) -> Vec<AckedOutput> {
        self.leases
            .values()
            .filter(|e| e.lease.gateway == gateway && e.lease.kind == LeaseKind::Agent)
            .filter(|e| !e.lease.state.is_ended())
            .map(|e| {
                let info = e.info();
                let (lease_id, started_at_ms) = (info.lease_id, info.started_at_ms);
                let is_running = info.state == LeaseState::Open && info.exit.is_none() && !e.is_ending();
                let is_in_use = is_running && info.stdin_written > 0;
                AckedOutput { lease_id, offset: info.stdout_acked, started_at_ms, is_in_use }
            })
            .collect()
    }

    /// Keeps the agents of a gateway that is refused as rolled back, while the operator decides. The time
    /// counts from the first such refusal.
    pub(crate) fn hold_agents(&mut self, gateway: GatewayInstanceId, refusal: Refusal) -> Rollback {
        let end = self.context.now_ms().saturating_add(self.context.config.rollback_grace_ms);
        self.pending.kept_until_ms.entry(gateway).or_insert(end);
        self.rearm_timer();
        self.describe_rollback(gateway, refusal)
    }

    /// Describes the record of a gateway that is refused as rolled back. Agents of a remote cell are kept no longer than
    /// their grace: its sessions may go on elsewhere then.
    pub(crate) fn describe_rollback(&self, gateway: GatewayInstanceId, refusal: Refusal) -> Rollback {
        let now = self.context.now_ms();
        let absence = self.absences.get(&gateway).map_or(now, Absence::end_ms);
        let until = self.pending.kept_until_ms.get(&gateway).copied().unwrap_or(absence);
        let (epoch, event_id) = self
            .installations
            .get(&gateway)
            .map_or((0, 0), |known| (known.epoch_max, known.progress.event_id));
        let agents = self.acked_outputs(gateway).len() as u64;
        let kept_until_ms = wall_time_of(until, now);
        Rollback { refusal, epoch, event_id, agents, kept_until_ms }
    }

    /// True while agents of a refused gateway are kept beyond its detached grace.
    pub(crate) fn holds_agents(&self, gateway: GatewayInstanceId, now_ms: u64) -> bool {
        self.pending.kept_until_ms.get(&gateway).is_some_and(|until| now_ms < *until)
    }

    /// Describes the gateways that are refused because their database was restored to an older state.
    pub(crate) fn describe_held_agents(&self) -> Vec<String> {
        let now = self.context.now_ms();
        let line = |(gateway, until): (&GatewayInstanceId, &u64)| {
            let kept = match (self.acked_outputs(*gateway).len(), time(wall_time_of(*until, now))) {
                (0, _) => "None of its agents is alive".to_owned(),
                (agents, at) if now < *until => format!("Its {agents} living agents are kept until {at}"),
                (agents, at) => format!("Its agents were kept until {at}, and {agents} are being ended"),
            };
            format!(
                "gateway {gateway} is refused: its database was rolled back. {kept}; on its machine, stop it \
                 and use `acp-gateway store restore` or `acp-gateway store accept-loss`"
            )
        };
        self.pending.kept_until_ms.iter().map(line).collect()
    }
}
