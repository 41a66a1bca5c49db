//! The lease store when the disk does not play along.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use crate::common::{Host, agent, eventually, marked};
use acp_shared::protocol::{LeaseState, RefusalCode, Request};

/// Holds the write lock of the store: every commit of the supervisor fails while this lives.
#[expect(clippy::disallowed_methods, reason = "the test simulates a failing disk")]
fn block(host: &Host) -> rusqlite::Connection {
    let connection = rusqlite::Connection::open(host.state_dir().join("supervisor.db")).unwrap();
    connection.execute_batch("BEGIN IMMEDIATE").unwrap();
    connection
}

#[tokio::test]
async fn without_a_store_nothing_is_spawned_and_everything_can_still_be_ended() {
    let (host, mut gateway) = Host::with_gateway().await;
    let (living, next) = (agent(&["cat"]), agent(&["cat"]));
    gateway.spawn(&living).await;
    let blocked = block(&host);
    let refusal = gateway.call(Request::Spawn(next.clone())).await.unwrap_err();
    assert_eq!(refusal.code, RefusalCode::StoreUnavailable);
    assert!(marked(next.lease_id).is_empty());
    // H19: processes come before records.
    gateway.close(living.lease_id).await;
    eventually("the tree is gone", || marked(living.lease_id).is_empty());
    drop(blocked);
    // Nothing was done the first time, so the same spawn is a new one.
    assert_eq!(gateway.spawn(&next).await.state, LeaseState::Open);
}
