//! Reap: what would be, or is, done about leases that no task of this supervisor holds. Admin only.

use crate::context::Context;
use crate::core::lease::Lease;
use crate::link::Responder;
use crate::owner::{Event, Owner, Who};
use crate::reaper;
use acp_shared::protocol::{Refusal, RefusalCode, Reply};
use std::io;
use std::sync::Arc;

pub(super) fn handle(owner: &Owner, who: Who, dry_run: bool, to: Responder) {
    if let Err(refusal) = super::admin_only(owner, who) {
        return to.answer(Err(refusal));
    }
    let living = owner.leases.values().filter(|e| !e.lease.state.is_ended());
    // What a task of this supervisor holds is shown, and left to that task.
    let leases: Vec<Lease> =
        living.filter(|e| dry_run || e.commands.is_none()).map(|e| e.lease.clone()).collect();
    let context = Arc::clone(&owner.context);
    tokio::spawn(async move {
        let lines = if dry_run { show(&context, leases).await } else { act(&context, leases).await };
        to.answer(
            lines.map_err(|error| Refusal::new(RefusalCode::Internal, error.to_string())).map(Reply::Reaped),
        );
    });
}

async fn show(context: &Arc<Context>, leases: Vec<Lease>) -> io::Result<Vec<acp_shared::protocol::ReapLine>> {
    let (guard, subtree) = (context.guard(None), context.holding.subtree.clone());
    context.blocking_in_turn(move |sys| reaper::dry_run(sys, &leases, &subtree, &guard)).await
}

pub(crate) async fn act(
    context: &Arc<Context>,
    mut leases: Vec<Lease>,
) -> io::Result<Vec<acp_shared::protocol::ReapLine>> {
    let lines = reaper::reap(context, &mut leases).await?;
    for lease in leases {
        context.tell(Event::Changed { lease, stuck: false }).await;
    }
    Ok(lines)
}
