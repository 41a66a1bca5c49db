//! Orphaned agents: living leases that the control plane does not use. Each is closed, so that its session
//! can continue and no process is left over (H5 and H7).
//!
//! A lease is committed before it is sent to the supervisor, and lease rows are never deleted: a lease
//! without a row is newer than the backup from which this database was restored, and its prompts are unknown.
//! A lease whose row has ended was given up by the gateway before the supervisor ended it, and no other code
//! requests its end.

use crate::supervisor::SupervisorClient;
use acp_shared::protocol::{LeaseKind, Reply, Request};
use acp_store::{Store, leases};
use tokio_util::sync::CancellationToken;

const REASON: &str =
    "its gateway does not use it: the gateway gave the lease up, or was restored from an older backup";

/// Checks for orphans after each connection to the supervisor, until `stop`.
pub(crate) async fn run(store: Store, supervisor: SupervisorClient, stop: CancellationToken) {
    let mut status = supervisor.status();
    loop {
        let is_up = status.borrow_and_update().is_up();
        if is_up {
            end_orphans(&store, &supervisor).await;
        }
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            changed = status.changed() => if changed.is_err() { return },
        }
    }
}

async fn end_orphans(store: &Store, supervisor: &SupervisorClient) {
    // Checked again after the next connection.
    let Ok(Reply::Leases(list)) = supervisor.call(Request::ListLeases { detail: false }).await else {
        return;
    };
    // Terminals end with their agent.
    let living = list.into_iter().filter(|lease| !lease.state.is_ended() && lease.kind == LeaseKind::Agent);
    for lease in living {
        let lease_id = lease.lease_id;
        match store.read("lease_used", move |db| leases::is_used(db, lease_id)).await {
            Ok(true) => {}
            Ok(false) => {
                tracing::warn!(%lease_id, session_key = %lease.session_key, "closing orphaned lease");
                let request = Request::CloseLease { lease_id, reason: REASON.to_owned() };
                if let Err(error) = supervisor.call(request).await {
                    tracing::warn!(%lease_id, %error, "closing orphaned lease failed");
                }
            }
            Err(error) => tracing::warn!(%lease_id, %error, "orphaned lease check failed"),
        }
    }
}

#[cfg(test)]
#[path = "orphaned_leases_tests.rs"]
mod tests;
