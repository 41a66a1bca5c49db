//! Selection of the leases to close.
#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use super::*;
use crate::supervisor::simulated::SimSupervisorConnection;
use crate::tests::{eventually, lease_info, lease_row, open, session_row, spawn};
use acp_core::rows::LeaseStatus;
use acp_shared::ids::{AgentName, SessionKey};
use acp_shared::protocol::{LeaseInfo, LeaseState};

/// Inserts a lease of the supervisor, with a row if `usage` is set.
async fn lease(store: &Store, key: &SessionKey, usage: Option<LeaseStatus>) -> LeaseInfo {
    let row = lease_row(key, usage.unwrap_or(LeaseStatus::Open));
    let info = lease_info(&row.spawn);
    if usage.is_some() {
        store.write("insert", move |tx| leases::insert(tx, &row)).await.unwrap();
    }
    info
}

/// H5, H7: leases without a row or with an ended row are closed; leases in use and closed ones are not.
#[tokio::test]
async fn unused_live_leases_are_closed() {
    let (_dir, store) = open();
    let key = SessionKey::mint(&AgentName::parse("demo").unwrap());
    spawn(&store, session_row(&key), None).await;
    let unknown = lease(&store, &key, None).await;
    let ended_row = lease(&store, &key, Some(LeaseStatus::Ended)).await;
    let in_use = lease(&store, &key, Some(LeaseStatus::Intended)).await;
    let gone = LeaseInfo { state: LeaseState::Closed, ..lease(&store, &key, None).await };
    let ended = [unknown.lease_id, ended_row.lease_id];

    let (supervisor, mut wire) = SimSupervisorConnection::new();
    wire.up("s");
    let stop = CancellationToken::new();
    let running = tokio::spawn(run(store.clone(), supervisor, stop.clone()));
    let (list, request) = eventually("lease list requested", || std::future::ready(wire.take())).await;
    assert_eq!(request, Request::ListLeases { detail: false });
    wire.reply(list, Ok(Reply::Leases(vec![unknown, in_use, gone, ended_row])));
    for lease_id in ended {
        let (id, request) = eventually("lease closed", || std::future::ready(wire.take())).await;
        assert_eq!(request, Request::CloseLease { lease_id, reason: REASON.to_owned() });
        wire.reply(id, Ok(Reply::Closing { state: LeaseState::Closing }));
    }
    stop.cancel();
    running.await.unwrap();
    assert!(wire.take().is_none(), "no other lease is closed");
    store.close().await;
}
