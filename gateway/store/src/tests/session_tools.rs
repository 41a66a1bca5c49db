//! Tokens of leases, chains of runs, and the number of spawned sessions.

use super::fixtures::{insert_session, lease, open, run, session, spawn_tx};
use crate::{SpawnTx, StoreError};
use acp_core::bearer::BearerToken;
use acp_core::rows::{LeaseRow, LeaseStatus, RunRow, SessionRow};
use acp_core::run::RunState;
use acp_core::writes::Write;

#[tokio::test]
async fn token_is_valid_until_its_lease_is_closed() {
    let (_dir, store) = open();
    let row = insert_session(&store, "one").await;
    let (_, fence) = store.claim(row.session_key.clone()).await.unwrap();
    let token = BearerToken::new([3; 32]).digest();
    let held = LeaseRow { agent_token: Some(token), ..lease(&row.session_key) };
    let id = held.lease_id;
    assert_eq!(store.lease_of_token(token).await.unwrap(), None);
    store.commit(fence.clone(), vec![Write::NewLease(Box::new(held))]).await.unwrap();
    for usage in [LeaseStatus::Open, LeaseStatus::Ready] {
        assert_eq!(store.lease_of_token(token).await.unwrap(), Some((row.session_key.clone(), id)));
        store.commit(fence.clone(), vec![Write::LeaseStatus { lease_id: id, usage }]).await.unwrap();
    }
    for usage in [LeaseStatus::Closing, LeaseStatus::Ended] {
        store.commit(fence.clone(), vec![Write::LeaseStatus { lease_id: id, usage }]).await.unwrap();
        assert_eq!(store.lease_of_token(token).await.unwrap(), None, "{usage:?}");
    }
    assert_eq!(store.lease_of_token(BearerToken::new([4; 32]).digest()).await.unwrap(), None);
}

#[tokio::test]
async fn running_turn_is_current_and_keeps_its_chain() {
    let (_dir, store) = open();
    let row = insert_session(&store, "one").await;
    let (_, fence) = store.claim(row.session_key.clone()).await.unwrap();
    assert_eq!(store.current_run(row.session_key.clone()).await.unwrap(), None);
    let put = |run: RunRow| store.commit(fence.clone(), vec![Write::Run(Box::new(run))]);
    let first = RunRow { chain: 2, started_at_ms: Some(1), ..run(&row.session_key, RunState::Running) };
    put(first.clone()).await.unwrap();
    put(run(&row.session_key, RunState::Queued)).await.unwrap();
    assert_eq!(store.current_run(row.session_key.clone()).await.unwrap(), Some(first.clone()));
    let ended = RunRow { state: RunState::Completed, ended_at_ms: Some(2), ..first };
    put(ended.clone()).await.unwrap();
    assert_eq!(store.current_run(row.session_key.clone()).await.unwrap(), Some(ended));
}

#[tokio::test]
async fn one_session_spawns_a_limited_number_of_open_sessions() {
    let (_dir, store) = open();
    let parent = insert_session(&store, "parent").await;
    let spawn = |name: &str| {
        let child = SessionRow { spawned_by: Some(parent.session_key.clone()), ..session(name) };
        store.spawn_session(SpawnTx { children_max: Some(2), ..spawn_tx(child) })
    };
    spawn("one").await.unwrap();
    spawn("two").await.unwrap();
    let refused = spawn("three").await;
    assert!(matches!(refused, Err(StoreError::TooManyChildren { children_max: 2 })), "{refused:?}");
    insert_session(&store, "unrelated").await;
}
