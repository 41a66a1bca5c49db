//! Reports of hosts: which of them a later start finds.

use super::fixtures::{open, reopen};
use crate::{Store, meta};
use std::time::Duration;

/// A report counts for later starts until the next connection begins, also one that reports nothing.
#[tokio::test]
async fn last_report_of_the_last_connection_counts() {
    let (dir, store) = open();
    let minutes = |count: u64| Duration::from_secs(60 * count);
    let reports = async |store: &Store| {
        let hosts = ["one", "two"].map(str::to_owned).to_vec();
        store.host_reports(hosts).await.unwrap().into_iter().collect::<Vec<_>>()
    };
    store.record_host_report("one", 1, minutes(1)).await.unwrap();
    assert_eq!(reports(&store).await, [], "the connection has not begun");
    store.begin_host_reports("one", 1).await.unwrap();
    assert_eq!(reports(&store).await, []);
    for count in [15, 16] {
        store.record_host_report("one", 1, minutes(count)).await.unwrap();
        assert_eq!(reports(&store).await, [("one".to_owned(), minutes(count))]);
    }
    store.begin_host_reports("one", 2).await.unwrap();
    store.record_host_report("one", 1, minutes(1)).await.unwrap();
    assert_eq!(reports(&store).await, [], "a late report of an earlier connection");
    store.record_host_report("one", 2, minutes(17)).await.unwrap();
    store.close().await;

    let store = reopen(dir.path());
    assert_eq!(reports(&store).await, [("one".to_owned(), minutes(17))]);
    store.record_host_report("one", 2, minutes(1)).await.unwrap();
    assert_eq!(reports(&store).await, [("one".to_owned(), minutes(17))], "a connection of another start");
    store.begin_host_reports("one", 1).await.unwrap();
    assert_eq!(reports(&store).await, []);
    store.record_host_report("one", 1, minutes(18)).await.unwrap();
    store.clear_host_reports().await.unwrap();
    assert_eq!(reports(&store).await, []);
    store.write("other program", |tx| meta::set(tx, "host_report:two", "{\"epoch\":1}")).await.unwrap();
    assert_eq!(reports(&store).await, [], "unreadable");
    store.close().await;
}
