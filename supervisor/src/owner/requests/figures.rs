//! Figures for metrics. A gateway gets the numbers of its own leases only.

use crate::core::deadlines::ABSENCE_SLEEP_MS;
use crate::owner::lease_entry::LeaseEntry;
use crate::owner::{ClientKind, Owner, TERMINALS_SLACK_MS};
use crate::relay::Relay;
use crate::relay::connection::Responder;
use acp_shared::figures::{self, Figure};
use acp_shared::ids::GatewayInstanceId;
use acp_shared::protocol::{LeaseState, Reply};

/// Returns the time from the last message of a gateway until all its agents have ended: the grace, the silence until the
/// cut is noticed, the time until the owner looks, and the graces of terminals and then of agents.
fn agents_end_ms(owner: &Owner, of: Option<GatewayInstanceId>) -> u64 {
    let config = &owner.context.config;
    let longest = |is_terminal: bool| {
        let living = owner.leases.values().map(|entry| &entry.lease).filter(|it| !it.state.is_ended());
        let mine = living.filter(|it| of.is_none_or(|gateway| it.gateway == gateway));
        let kind = mine.filter(|it| it.parent().is_some() == is_terminal);
        kind.map(|it| it.graces.total_ms()).max()
    };
    let terminals = longest(true).map_or(0, |ms| ms.saturating_add(TERMINALS_SLACK_MS));
    [2 * config.remote_silence_ms, ABSENCE_SLEEP_MS, terminals, longest(false).unwrap_or(0)]
        .into_iter()
        .fold(config.detached_grace_ms, u64::saturating_add)
}

/// Returns the figures that the owner knows.
fn collect(owner: &Owner, who: ClientKind) -> Vec<Figure> {
    let of = who.gateway();
    let mine =
        || owner.leases.values().filter(|entry| of.is_none_or(|gateway| entry.lease.gateway == gateway));
    let count = |is: &dyn Fn(&&LeaseEntry) -> bool| mine().filter(is).count() as u64;
    let delayed = owner.backoff.delayed_agents(owner.context.now_ms());
    let delayed: Vec<bool> = delayed
        .filter(|(agent, _)| of.is_none_or(|gateway| agent.gateway == gateway))
        .map(|(_, delay)| delay.looping)
        .collect();
    let gateways = owner.links.values().filter(|client| client.who.gateway().is_some());
    let gateways = gateways.filter(|client| of.is_none() || client.who == who).count() as u64;
    let by_state = LeaseState::ALL.map(|state| Figure {
        state: state.as_str().to_owned(),
        ..Figure::new(figures::LEASES, count(&|entry| entry.lease.state == state))
    });
    let unproved = |entry: &&LeaseEntry| entry.lease.state == LeaseState::Lost && entry.needs_sweep();
    let living = owner.leases.values().filter(|entry| !entry.lease.state.is_ended()).count();
    let machine = rustix::system::sysinfo();
    let memory = machine.totalram.saturating_mul(u64::from(machine.mem_unit));
    let mut all = by_state.to_vec();
    all.extend([
        Figure::new(figures::LOST, count(&unproved)),
        Figure::new(figures::SURVIVORS, count(&|entry| entry.stuck)),
        Figure::new(figures::CRASH_LOOPS, delayed.iter().filter(|looping| **looping).count() as u64),
        Figure::new(figures::DELAYED, delayed.len() as u64),
        Figure::new(figures::GATEWAYS, gateways),
        Figure::new(
            figures::BUFFERED,
            mine().filter_map(|entry| entry.relay.as_ref()).map(Relay::buffered_bytes).sum(),
        ),
        Figure::new(figures::READ_ONLY, u64::from(owner.context.store.read_only().is_some())),
        Figure::new(figures::UPTIME, owner.context.now_ms() / 1_000),
        Figure::new(figures::DETACHED_GRACE, agents_end_ms(owner, of).div_ceil(1_000)),
        Figure::new(figures::MEMORY, memory),
        Figure::new(figures::LIVING, living as u64),
    ]);
    all
}

pub(super) fn handle(owner: &Owner, who: ClientKind, to: Responder) {
    let mut all = collect(owner, who);
    let state_dir = owner.context.state_dir.clone();
    // A disk may hang, and the owner must not wait for it.
    tokio::task::spawn_blocking(move || {
        if let Ok(disk) = rustix::fs::statvfs(&state_dir) {
            let bytes = |blocks: u64| blocks.saturating_mul(disk.f_frsize);
            all.push(Figure::new(figures::DISK_FREE, bytes(disk.f_bavail)));
            all.push(Figure::new(figures::DISK_SIZE, bytes(disk.f_blocks)));
        }
        to.answer(Ok(Reply::Figures(all)));
    });
}
