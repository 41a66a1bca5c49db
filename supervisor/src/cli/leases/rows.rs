//! Leases as rows of a table.

use crate::cli::leases::LeaseIdAbbreviations;
use crate::cli::table::{Cell, Column, Tone};
use crate::cli::text::{self, or_dash};
use acp_shared::protocol::{LeaseInfo, LeaseKind, LeaseState};

/// Columns of the list. The least important columns are dropped first if the terminal is narrow.
pub(in crate::cli) const NARROW: [Column; 12] = [
    Column::new("LEASE"),
    Column::new("STATE"),
    Column::new("KIND").drop(4),
    Column::new("SESSION").min_width(16),
    Column::new("GATEWAY").drop(3),
    Column::new("PIDS"),
    Column::new("UPTIME").right(),
    Column::new("MEM").right(),
    Column::new("TREE").right().drop(1),
    Column::new("BUF").right(),
    Column::new("RUNG").drop(2),
    Column::new("REASON").min_width(8).drop(5),
];

/// Columns of the wide list: nothing is cut, ids are complete.
pub(in crate::cli) const WIDE: [Column; 16] = [
    Column::new("LEASE"),
    Column::new("STATE"),
    Column::new("KIND"),
    Column::new("SESSION"),
    Column::new("GATEWAY"),
    Column::new("UID").right(),
    Column::new("WRAPPER").right(),
    Column::new("ADAPTER").right(),
    Column::new("UPTIME").right(),
    Column::new("STARTED"),
    Column::new("MEM").right(),
    Column::new("TREE").right(),
    Column::new("BUF").right(),
    Column::new("RUNG"),
    Column::new("CGROUP"),
    Column::new("REASON"),
];

/// Returns the tone of a state.
pub(in crate::cli) const fn tone(state: LeaseState) -> Tone {
    match state {
        LeaseState::Open => Tone::Good,
        LeaseState::Reserved | LeaseState::Bound | LeaseState::Closing => Tone::Warn,
        LeaseState::Closed => Tone::Dim,
        LeaseState::Lost => Tone::Bad,
    }
}

/// Returns the short name of the lease's kind.
pub(in crate::cli) const fn kind(lease: &LeaseInfo) -> &'static str {
    match lease.kind {
        LeaseKind::Agent => "agent",
        LeaseKind::Terminal { .. } => "term",
    }
}

/// Returns the uptime of a living lease.
pub(in crate::cli) fn uptime(lease: &LeaseInfo, now_ms: u64) -> Option<String> {
    (!lease.state.is_ended()).then(|| text::duration(now_ms.saturating_sub(lease.started_at_ms)))
}

/// Returns a pid only while the lease is living: afterwards it may be reused by another process.
fn now(lease: &LeaseInfo, pid: Option<i32>) -> Option<i32> {
    pid.filter(|_| !lease.state.is_ended())
}

/// Returns a lease as a row of [`NARROW`].
pub(in crate::cli) fn narrow(lease: &LeaseInfo, short: LeaseIdAbbreviations, now_ms: u64) -> Vec<Cell> {
    let pids = match (now(lease, lease.wrapper_pid), now(lease, lease.adapter_pid)) {
        (None, None) => "-".to_owned(),
        (wrapper, adapter) => format!("{}/{}", or_dash(wrapper), or_dash(adapter)),
    };
    vec![
        short.lease.cut(&lease.lease_id).into(),
        Cell::new(lease.state.as_str()).tone(tone(lease.state)),
        kind(lease).into(),
        lease.session_key.as_str().into(),
        short.gateway.cut(&lease.gateway_instance_id).into(),
        pids.into(),
        or_dash(uptime(lease, now_ms)).into(),
        or_dash(lease.memory_bytes.map(text::size)).into(),
        or_dash(lease.tree_size).into(),
        text::size(lease.buffered_bytes).into(),
        lease.rung.as_str().into(),
        Cell::new(&lease.state_reason).tone(Tone::Dim),
    ]
}

/// Returns a lease as a row of [`WIDE`].
pub(in crate::cli) fn wide(lease: &LeaseInfo, now_ms: u64) -> Vec<Cell> {
    vec![
        lease.lease_id.to_string().into(),
        Cell::new(lease.state.as_str()).tone(tone(lease.state)),
        kind(lease).into(),
        lease.session_key.as_str().into(),
        lease.gateway_instance_id.to_string().into(),
        lease.owner_uid.to_string().into(),
        or_dash(now(lease, lease.wrapper_pid)).into(),
        or_dash(now(lease, lease.adapter_pid)).into(),
        or_dash(uptime(lease, now_ms)).into(),
        text::time(lease.started_at_ms).into(),
        or_dash(lease.memory_bytes.map(text::size)).into(),
        or_dash(lease.tree_size).into(),
        text::size(lease.buffered_bytes).into(),
        lease.rung.as_str().into(),
        or_dash(lease.cgroup_path.as_ref()).into(),
        Cell::new(&lease.state_reason).tone(Tone::Dim),
    ]
}
