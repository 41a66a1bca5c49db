//! Agents that live and that the control plane has no use for. Each is ended, so that its session can be gone on with
//! and none is left over (design §9, H5 and H7).
//!
//! A lease is committed before the supervisor hears of it, and no row of one is ever deleted: one that has no row was
//! made after the backup from which this database was restored, and nothing here can say what it was told. One whose
//! row has ended was over for us before it was for the supervisor, and nobody will ask for its end any more.

use crate::store::{Store, leases};
use crate::supervisor::{LinkStatus, Supervisor};
use acp_shared::protocol::{LeaseKind, Reply, Request};
use tokio_util::sync::CancellationToken;

const REASON: &str =
    "its gateway has no use for it: it gave the lease up, or was restored from an older backup";

/// Looks after each connection to the supervisor, until `stop`.
pub(crate) async fn run(store: Store, supervisor: Supervisor, stop: CancellationToken) {
    let mut status = supervisor.status();
    loop {
        let is_up = matches!(*status.borrow_and_update(), LinkStatus::Up { .. });
        if is_up {
            end_strays(&store, &supervisor).await;
        }
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            changed = status.changed() => if changed.is_err() { return },
        }
    }
}

async fn end_strays(store: &Store, supervisor: &Supervisor) {
    // The next connection looks again.
    let Ok(Reply::Leases(list)) = supervisor.call(Request::ListLeases { detail: false }).await else {
        return;
    };
    // Terminals end with the agent that they belong to.
    let living = list.into_iter().filter(|lease| !lease.state.is_ended() && lease.kind == LeaseKind::Agent);
    for lease in living {
        let lease_id = lease.lease_id;
        match store.read("lease_used", move |db| leases::is_used(db, lease_id)).await {
            Ok(true) => {}
            Ok(false) => {
                tracing::warn!(%lease_id, session_key = %lease.session_key, "an agent that nobody uses is ended");
                let request = Request::CloseLease { lease_id, reason: REASON.to_owned() };
                if let Err(error) = supervisor.call(request).await {
                    tracing::warn!(%lease_id, %error, "the agent that nobody uses could not be ended");
                }
            }
            Err(error) => tracing::warn!(%lease_id, %error, "leases cannot be compared"),
        }
    }
}

#[cfg(test)]
#[path = "strays_tests.rs"]
mod tests;
