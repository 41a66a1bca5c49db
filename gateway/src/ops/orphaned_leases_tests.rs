//! Which of the living are ended.
#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use super::*;
use crate::supervisor::simulated::SimSupervisorConnection;
use crate::tests::{eventually, lease_info, lease_row, open, session_row, spawn};
use acp_core::rows::LeaseStatus;
use acp_shared::ids::{AgentName, SessionKey};
use acp_shared::protocol::{LeaseInfo, LeaseState};

/// A lease of the supervisor; with its row, if there is one.
async fn lease(store: &Store, key: &SessionKey, usage: Option<LeaseStatus>) -> LeaseInfo {
    let row = lease_row(key, usage.unwrap_or(LeaseStatus::Open));
    let info = lease_info(&row.spawn);
    if usage.is_some() {
        store.write("insert", move |tx| leases::insert(tx, &row)).await.unwrap();
    }
    info
}

/// H5, H7: who has no row, or one that is over, is ended; who is used, and who is gone already, is let be.
#[tokio::test]
async fn who_lives_and_is_of_no_use_is_ended() {
    let (_dir, store) = open();
    let key = SessionKey::mint(&AgentName::parse("demo").unwrap());
    spawn(&store, session_row(&key), None).await;
    let unknown = lease(&store, &key, None).await;
    let given_up = lease(&store, &key, Some(LeaseStatus::Ended)).await;
    let used = lease(&store, &key, Some(LeaseStatus::Intended)).await;
    let gone = LeaseInfo { state: LeaseState::Closed, ..lease(&store, &key, None).await };
    let ended = [unknown.lease_id, given_up.lease_id];

    let (supervisor, mut wire) = SimSupervisorConnection::new();
    wire.up("s");
    let stop = CancellationToken::new();
    let looking = tokio::spawn(run(store.clone(), supervisor, stop.clone()));
    let (list, request) = eventually("it lists the leases", || std::future::ready(wire.take())).await;
    assert_eq!(request, Request::ListLeases { detail: false });
    wire.reply(list, Ok(Reply::Leases(vec![unknown, used, gone, given_up])));
    for lease_id in ended {
        let (id, request) = eventually("it closes a lease", || std::future::ready(wire.take())).await;
        assert_eq!(request, Request::CloseLease { lease_id, reason: REASON.to_owned() });
        wire.reply(id, Ok(Reply::Closing { state: LeaseState::Closing }));
    }
    stop.cancel();
    looking.await.unwrap();
    assert!(wire.take().is_none(), "no other lease is closed");
    store.close().await;
}
