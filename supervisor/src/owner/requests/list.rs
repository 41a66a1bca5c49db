//! ListLeases: leases visible to the client, oldest first. With `detail`, also their memory and process
//! counts, from one snapshot of all processes.

use crate::core::lease::ProcessRecord;
use crate::core::tree::measure_trees;
use crate::owner::lease_entry::LeaseEntry;
use crate::owner::{ClientKind, Owner};
use crate::relay::connection::Responder;
use crate::sys::Sys;
use acp_shared::protocol::{LeaseInfo, Refusal, RefusalCode, Reply};
use std::io;
use std::sync::Arc;

pub(super) fn handle(owner: &Owner, who: ClientKind, detail: bool, to: Responder) {
    let mine = |entry: &&LeaseEntry| who.gateway().is_none_or(|gateway| entry.lease.gateway == gateway);
    let visible = owner.leases.values().filter(mine);
    let mut leases: Vec<(LeaseInfo, Vec<ProcessRecord>)> =
        visible.map(|entry| (entry.info(), roots(entry))).collect();
    leases.sort_by_key(|(info, _)| (info.started_at_ms, info.lease_id));
    if !detail || leases.iter().all(|(_, roots)| roots.is_empty()) {
        return to.answer(Ok(Reply::Leases(leases.into_iter().map(|(info, _)| info).collect())));
    }
    let context = Arc::clone(&owner.context);
    tokio::spawn(async move {
        let weighed = context.blocking_limited(move |sys| with_weights(sys, leases)).await;
        to.answer(weighed.map_err(|e| Refusal::new(RefusalCode::Internal, e.to_string())).map(Reply::Leases));
    });
}

/// Returns the recorded processes of a living tree.
fn roots(entry: &LeaseEntry) -> Vec<ProcessRecord> {
    let bound = entry.lease.bound.filter(|_| !entry.lease.state.is_ended());
    bound.into_iter().flat_map(|bound| [bound.wrapper, bound.adapter]).collect()
}

fn with_weights<S: Sys>(sys: &S, leases: Vec<(LeaseInfo, Vec<ProcessRecord>)>) -> io::Result<Vec<LeaseInfo>> {
    let snapshot = sys.snapshot()?;
    let page = u64::try_from(rustix::param::page_size()).unwrap_or(4096);
    let (mut infos, trees): (Vec<LeaseInfo>, Vec<Vec<ProcessRecord>>) = leases.into_iter().unzip();
    for ((info, roots), weight) in infos.iter_mut().zip(&trees).zip(measure_trees(&snapshot, &trees)) {
        if !roots.is_empty() {
            info.tree_size = Some(weight.processes);
            info.memory_bytes = Some(weight.rss_pages.saturating_mul(page));
        }
    }
    Ok(infos)
}
