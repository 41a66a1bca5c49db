//! Reap: ends the processes of leases without a task in this supervisor, or reports what would be done. Admin
//! only.

use crate::context::Context;
use crate::context::event::Event;
use crate::core::lease::Lease;
use crate::lease::reaper::{self, ReaperContext};
use crate::lease::task;
use crate::owner::handover::export::is_failed_start_cleanup;
use crate::owner::lease_entry::LeaseEntry;
use crate::owner::{ClientKind, Owner};
use crate::relay::connection::Responder;
use acp_shared::ids::LeaseId;
use acp_shared::protocol::{LeaseState, ReapLine, Refusal, RefusalCode, Reply};
use std::collections::HashSet;
use std::io;
use std::sync::Arc;

pub(super) fn handle(owner: &Owner, who: ClientKind, dry_run: bool, to: Responder) {
    if let Err(refusal) = super::admin_only(owner, who) {
        return to.answer(Err(refusal));
    }
    // A dry run also lists leases with a task; the reap leaves them to that task.
    let held = |e: &&LeaseEntry| dry_run && !e.lease.state.is_ended();
    let leases: Vec<Lease> =
        owner.leases.values().filter(|e| e.needs_sweep() || held(e)).map(|e| e.lease.clone()).collect();
    let context = Arc::clone(&owner.context);
    tokio::spawn(async move {
        let lines =
            if dry_run { plan_reap(&context, leases).await } else { reap_and_record(&context, leases).await };
        to.answer(
            lines.map_err(|error| Refusal::new(RefusalCode::Internal, error.to_string())).map(Reply::Reaped),
        );
    });
}

async fn plan_reap(context: &Arc<Context>, leases: Vec<Lease>) -> io::Result<Vec<ReapLine>> {
    let watch = ReaperContext::of(context);
    context.blocking_limited(move |sys| reaper::dry_run(sys, &leases, &watch)).await
}

pub(crate) async fn reap_and_record(
    context: &Arc<Context>,
    mut leases: Vec<Lease>,
) -> io::Result<Vec<ReapLine>> {
    let lost: HashSet<LeaseId> =
        leases.iter().filter(|l| l.state == LeaseState::Lost).map(|l| l.lease_id).collect();
    let reaped = reaper::reap(context, &mut leases).await?;
    // For leases that were lost before and stay lost, only the evidence changed.
    let known: HashSet<LeaseId> = reaped.lost_findings.iter().map(|(id, _)| *id).collect();
    for lease in leases {
        if is_failed_start_cleanup(&lease, context.me) && lost.contains(&lease.lease_id) {
            // The sweep does not handle leases of this supervisor, so a task is started for this one.
            let (context, lease) = (Arc::clone(context), lease.clone());
            tokio::spawn(async move { task::kill_until_gone(&context, lease).await });
        }
        if !known.contains(&lease.lease_id) {
            context.send_event(Event::Changed { lease, stuck: false }).await;
        }
    }
    context.send_event(Event::LostFindings(reaped.lost_findings)).await;
    Ok(reaped.lines)
}
