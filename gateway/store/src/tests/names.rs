//! Names in the contract of acpx.

use super::fixtures::{insert_session, open, session, spawn_tx};
use crate::{SpawnTx, StoreError};
use acp_core::acpx_contract::{AcpxNaming, NameQuery};
use acp_core::rows::SessionRow;
use acp_core::session::SessionState;
use acp_core::writes::Write;

fn naming(cwd: &str, root: &str, replace: bool) -> AcpxNaming {
    AcpxNaming { name: "fix".to_owned(), cwd: cwd.to_owned(), root: Some(root.to_owned()), replace }
}

fn named(row: SessionRow, naming: AcpxNaming) -> SpawnTx {
    SpawnTx { naming: Some(naming), ..spawn_tx(row) }
}

#[tokio::test]
async fn name_is_unique_among_open_sessions_and_free_after_the_close() {
    let (_dir, store) = open();
    let first = session("first");
    store.spawn_session(named(first.clone(), naming("/w", "/w", false))).await.unwrap();
    // Found from a directory below, in the same transaction that would create another one.
    let below = naming("/w/a/b", "/w", false);
    let taken = store.spawn_session(named(session("second"), below.clone())).await;
    assert!(
        matches!(&taken, Err(StoreError::NameTaken { session_key }) if *session_key == first.session_key),
        "{taken:?}"
    );
    assert_eq!(
        store.acpx_session(first.agent.clone(), below).await.unwrap(),
        Some(first.session_key.clone())
    );
    // A replacement takes the name of its own directory only; an agent's names are its own.
    store.spawn_session(named(session("third"), naming("/w/a", "/w", true))).await.unwrap();
    let other = acp_shared::ids::AgentName::parse("other").unwrap();
    assert_eq!(store.acpx_session(other, naming("/w", "/w", false)).await.unwrap(), None);
    let replaced = store.spawn_session(named(session("fourth"), naming("/w", "/w", true))).await;
    assert!(matches!(replaced, Err(StoreError::NameTaken { .. })), "the caller closes the old session first");

    let (_, fence) = store.claim(first.session_key.clone()).await.unwrap();
    let closed = SessionRow { state: SessionState::Closed, ..first.clone() };
    store.commit(fence, vec![Write::Session(Box::new(closed))]).await.unwrap();
    store.spawn_session(named(session("fifth"), naming("/w", "/w", false))).await.unwrap();
    let listed = async |closed_too, limit| {
        let query = NameQuery::All { agent: Some(first.agent.clone()), closed_too, limit };
        let found = store.acpx_sessions(query).await.unwrap();
        found.into_iter().map(|named| named.session.session_key.to_string()).collect::<Vec<_>>()
    };
    let [third, fifth] = ["third", "fifth"].map(|name| session(name).session_key);
    assert_eq!(listed(false, 10).await, [fifth.as_str(), third.as_str()]);
    assert_eq!(listed(true, 10).await, [fifth.as_str(), third.as_str(), first.session_key.as_str()]);
    let of = async |naming: AcpxNaming, closed_too| {
        let query = NameQuery::Named { agent: first.agent.clone(), naming, closed_too };
        let found = store.acpx_sessions(query).await.unwrap();
        found.into_iter().map(|named| (named.session.session_key, named.cwd)).collect::<Vec<_>>()
    };
    assert_eq!(of(naming("/w/b", "/w", false), true).await, [(fifth.clone(), "/w".to_owned())]);
    // Closed sessions do not hide an open one, and are found by their name in exactly their directory.
    let (_, fence) = store.claim(fifth.clone()).await.unwrap();
    let closed = SessionRow { state: SessionState::Closed, ..session("fifth") };
    store.commit(fence, vec![Write::Session(Box::new(closed))]).await.unwrap();
    assert_eq!(listed(true, 1).await, [third.as_str()]);
    assert_eq!(of(naming("/w", "/w", false), true).await, [(fifth, "/w".to_owned())]);
    assert_eq!(of(naming("/w", "/w", false), false).await, []);
    assert_eq!(of(naming("/w/b", "/w", false), true).await, []);
    insert_session(&store, "nameless").await;
}
