//! Status: state of the supervisor. A gateway sees the numbers of its own leases only.

use crate::core::backoff::{AgentKey, StartDelay};
use crate::core::containment;
use crate::owner::lease_entry::LeaseEntry;
use crate::owner::{ClientKind, Owner};
use crate::relay::Relay;
use crate::relay::connection::Responder;
use acp_shared::protocol::{LeaseState, Reply, Status};
use std::collections::BTreeMap;

/// Describes agents whose start is delayed after crashes.
fn describe_delayed_agents(owner: &Owner, who: ClientKind) -> Vec<String> {
    let held = owner.backoff.delayed_agents(owner.context.now_ms());
    let mine = held.filter(|(agent, _)| who.gateway().is_none_or(|gateway| agent.gateway == gateway));
    let line = |(agent, held): (&AgentKey, StartDelay)| {
        let command = agent.command_hash.get(..12).unwrap_or_default();
        format!("an agent of gateway {} (command {command}) {}", agent.gateway, held.describe())
    };
    mine.map(line).collect()
}

pub(super) fn handle(owner: &Owner, who: ClientKind, to: Responder) {
    let mine = |entry: &&LeaseEntry| who.gateway().is_none_or(|gateway| entry.lease.gateway == gateway);
    let count = |state: LeaseState| {
        let all = owner.leases.values().filter(mine).filter(|e| e.lease.state == state);
        (state, all.count() as u64)
    };
    let mut gateways = BTreeMap::new();
    for connected in owner.links.values() {
        if let ClientKind::Gateway(gateway) = connected.who
            && (who == ClientKind::Admin || who == connected.who)
        {
            let living = |e: &&LeaseEntry| e.lease.gateway == gateway && !e.lease.state.is_ended();
            gateways.insert(gateway, owner.leases.values().filter(living).count() as u64);
        }
    }
    let context = &owner.context;
    let uptime_ms = context.now_ms();
    to.answer(Ok(Reply::Status(Status {
        pid: context.me.pid,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        supervisor_id: owner.supervisor_id.clone(),
        state_dir: context.state_dir.to_string_lossy().into_owned(),
        started_at_ms: crate::context::wall_ms().saturating_sub(uptime_ms),
        rung: context.containment.rung.as_str().to_owned(),
        rungs_missing: containment::unavailable_levels(&context.abilities),
        abilities: context.abilities.named(),
        leases: LeaseState::ALL.map(count).to_vec(),
        gateways: gateways.into_iter().collect(),
        buffered_bytes: owner
            .leases
            .values()
            .filter(mine)
            .filter_map(|e| e.relay.as_ref())
            .map(Relay::buffered_bytes)
            .sum(),
        warnings: owner
            .warnings
            .iter()
            .cloned()
            .chain(context.store.warnings())
            .chain(owner.overdue().filter(|_| who == ClientKind::Admin))
            .chain(owner.describe_held_agents().into_iter().filter(|_| who == ClientKind::Admin))
            .chain(describe_delayed_agents(owner, who))
            .collect(),
        read_only: context.store.read_only().map(str::to_owned),
        swept_at_ms: owner.swept_at_ms,
        last_upgrade: owner.last_upgrade.clone(),
    })));
}
