//! Checks the database's pages while the gateway serves, to find damage before a page is needed.

use crate::metrics::Metrics;
use acp_store::gauges;
use acp_store::schema::CHECKED_FIRST_BYTES;
use acp_store::{Store, StoreError, check};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Interval of checks, in milliseconds: once a day.
const CHECK_INTERVAL_MS: u64 = 24 * 3_600_000;

/// Delay of the first check after the start, in milliseconds, for files too large to be checked when opened.
/// The start itself and resumed work go first.
const FIRST_CHECK_MS: u64 = 60_000;

/// Runs the checks: daily, and soon after the start if the file was too large to be checked when it was
/// opened. A database server checks its pages itself.
pub(crate) async fn watch(store: Store, metrics: Metrics, stop: CancellationToken) {
    if !store.has_file() {
        return;
    }
    let (bytes, _) = gauges::sizes(store.dir());
    let mut wait_ms = if bytes > CHECKED_FIRST_BYTES { FIRST_CHECK_MS } else { CHECK_INTERVAL_MS };
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            () = tokio::time::sleep(Duration::from_millis(wait_ms)) => check_once(&store, &metrics).await,
        }
        wait_ms = CHECK_INTERVAL_MS;
    }
}

/// Runs one check on a snapshot, concurrently with commits. Uses a new connection, since the page caches of
/// the others would hide damage on disk.
async fn check_once(store: &Store, metrics: &Metrics) {
    let found = match store.read_on_new_connection("look_through", |db| check::pages(db, true)).await {
        Ok(found) => found,
        Err(StoreError::Damaged { why }) => vec![why],
        Err(error) => {
            tracing::warn!(%error, "database check could not run");
            return;
        }
    };
    metrics.gauges().sound.set(i64::from(found.is_empty()));
    if found.is_empty() {
        tracing::info!("database check passed");
    } else {
        tracing::error!(
            ?found,
            hint = "`acp-gateway store check` shows where; restore a backup",
            "database damaged"
        );
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;
    use acp_store::Durability;
    use acp_store::schema::DB_FILE;
    use std::os::unix::fs::FileExt as _;

    #[tokio::test]
    async fn later_damage_is_detected_and_reported() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path(), Durability::Full).unwrap();
        let metrics = Metrics::default();
        check_once(&store, &metrics).await;
        assert_eq!(metrics.gauges().sound.get(), 1);
        let file = std::fs::OpenOptions::new().write(true).open(dir.path().join(DB_FILE)).unwrap();
        let pages = file.metadata().unwrap().len() / 4096;
        assert!(pages > 10, "{pages}");
        for page in 1..pages {
            file.write_all_at(&[0xee; 512], page * 4096).unwrap();
        }
        check_once(&store, &metrics).await;
        assert_eq!(metrics.gauges().sound.get(), 0);
        store.close().await;
    }
}
