//! Several gateways that want one cell, while owners seem to be frozen at any moment.

use super::super::foreign::{append_as, dir, fence, insert_session, open};
use acp_shared::ids::SessionKey;
use acp_store::{Store, StoreError};
use acp_testkit::postgres::Postgres;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const GATEWAYS: usize = 3;
/// Takes after which the fight ends.
const TAKES: u64 = 12;
const CELL_TIME: &str = "UPDATE acp_main.acp_cell SET until = now() - interval '1 second'";

/// Row of a journal: its number, and the epoch of the owner that wrote it.
type Written = (u64, u64);

/// Faults of a journal: gaps, repetitions, and rows of an older epoch after those of a newer one.
fn faults(rows: &[Written]) -> Vec<String> {
    let numbered = rows.iter().zip(1..).filter(|((number, _), want)| number != want);
    let of_numbers = numbered.map(|((number, _), want)| format!("{number} in the place of {want}"));
    let older = rows.windows(2).filter(|pair| pair[1].1 < pair[0].1);
    of_numbers.chain(older.map(|pair| format!("epoch {} after {}", pair[1].1, pair[0].1))).collect()
}

async fn journal(store: &Store, key: &SessionKey) -> Vec<Written> {
    let rows = store.events_after(key.clone(), None, 1_000_000, usize::MAX).await.unwrap().rows;
    rows.iter()
        .map(|row| {
            let payload: serde_json::Value = serde_json::from_str(&row.payload).unwrap();
            (row.session_seq, payload["epoch"].as_u64().unwrap())
        })
        .collect()
}

/// Serves the cell whenever it can be taken, and appends rows until it is lost.
async fn serve(address: String, key: SessionKey, ended: Arc<AtomicBool>) -> u64 {
    let mut acknowledged = 0;
    while !ended.load(Ordering::Relaxed) {
        let state = dir();
        let store = match open(&address, state.path(), true).await {
            Ok(store) => store,
            Err(StoreError::CellTaken { .. } | StoreError::ConnectionLost | StoreError::OutcomeUnknown) => {
                tokio::time::sleep(Duration::from_millis(20)).await;
                continue;
            }
            Err(other) => panic!("{other:?}"),
        };
        let epoch = store.identity().epoch;
        if epoch > TAKES {
            ended.store(true, Ordering::Relaxed);
        }
        if let Ok(mut rows) = store.events_after(key.clone(), None, 1_000_000, usize::MAX).await
            && let Ok(fence) = fence(&store, &key).await
        {
            let mut last = rows.rows.pop().map_or(0, |row| row.session_seq);
            while !ended.load(Ordering::Relaxed) && append_as(&store, &fence, last + 1, epoch).await.is_ok() {
                last += 1;
                acknowledged += 1;
            }
        }
        store.close().await;
    }
    acknowledged
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a PostgreSQL server: make test-postgres"]
async fn rows_of_gateways_that_fight_for_a_cell_are_in_one_order() {
    let Some(server) = Postgres::start() else { return };
    let (address, state) = (server.create_database("plane"), dir());
    let first = open(&address, state.path(), true).await.unwrap();
    let key = insert_session(&first, "s").await;
    first.close().await;
    let ended = Arc::new(AtomicBool::new(false));
    let gateways: Vec<_> = (0..GATEWAYS)
        .map(|_| tokio::spawn(serve(address.clone(), key.clone(), Arc::clone(&ended))))
        .collect();
    // As if the owner had been frozen, again and again.
    while !ended.load(Ordering::Relaxed) {
        tokio::time::sleep(Duration::from_millis(60)).await;
        server.query(&address, CELL_TIME).unwrap();
    }
    let mut acknowledged = 0;
    for gateway in gateways {
        acknowledged += gateway.await.unwrap();
    }
    let last = open(&address, state.path(), true).await.unwrap();
    let mut rows = journal(&last, &key).await;
    let owners = rows.iter().map(|(_, epoch)| epoch).collect::<std::collections::BTreeSet<_>>().len();
    assert!(
        owners > 3 && rows.len() as u64 >= acknowledged,
        "{owners} owners, {} of {acknowledged} rows",
        rows.len()
    );
    assert_eq!(faults(&rows), [""; 0]);
    last.close().await;

    // A writer without the lock, as a superseded owner would be: the judge finds its row.
    let unfenced = rows.len() as u64 + 1;
    let row = format!(
        "INSERT INTO acp_main.acp_events (session_key, session_seq, kind, payload_json, created_at) \
         VALUES ('s', {unfenced}, 'agent_message', '{{\"epoch\":1}}', 0)"
    );
    server.query(&address, &row).unwrap();
    rows.push((unfenced, 1));
    let last = open(&address, state.path(), true).await.unwrap();
    assert_eq!(journal(&last, &key).await, rows);
    assert_eq!(faults(&rows).len(), 1);
    last.close().await;
}
