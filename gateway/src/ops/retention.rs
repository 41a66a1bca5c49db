//! Retention: deletes stored responses to commands, records of the gateway's own messages in channels that echo
//! them, and old rows of the journal if that is configured.

use crate::config::LiveConfig;
use crate::metrics::Metrics;
use acp_core::config::Config;
use acp_core::policy::PolicyScope;
use acp_store::retention::PruneRule;
use acp_store::{Store, StoreError};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Interval of the deletion of stored responses, in milliseconds.
const RESULTS_INTERVAL_MS: u64 = 10 * 60_000;
/// Interval of the deletion of records of own messages, in milliseconds. The first run is one interval after
/// the start, so that channels have backfilled missed events before, however long the gateway was down.
const SENT_MESSAGES_INTERVAL_MS: u64 = 24 * 3_600_000;
/// Retention of records of own messages, in milliseconds: 30 days. They tell the gateway's own messages from those
/// of people. A running gateway sees its own message again within minutes, as an event or in the backfill after a
/// reconnect. A backfill after a longer outage begins after the last message that the channel delivered, so it
/// returns no older ones.
const SENT_MESSAGES_RETENTION_MS: u64 = 30 * SENT_MESSAGES_INTERVAL_MS;
/// Interval of the passes over the journal, in milliseconds. The first one is one interval after the start.
const JOURNAL_INTERVAL_MS: u64 = 3_600_000;
/// Maximum number of rows deleted in one transaction, so that no other write waits for long.
const ROWS_AT_ONCE: u64 = 1_000;

/// Deletes expired responses until `stop`.
pub(crate) async fn expire_results(store: Store, live: LiveConfig, stop: CancellationToken) {
    let mut every = tokio::time::interval(Duration::from_millis(RESULTS_INTERVAL_MS));
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            _ = every.tick() => {}
        }
        match store.expire_answers(results_expire_before(&live, store.clock().wall_ms()), ROWS_AT_ONCE).await
        {
            Ok(0) => {}
            Ok(rows) => tracing::debug!(rows, "expired responses deleted"),
            Err(error) => tracing::warn!(%error, "deleting expired responses failed"),
        }
    }
}

/// Returns the time before which stored responses are expired.
pub(crate) fn results_expire_before(live: &LiveConfig, now_ms: u64) -> u64 {
    now_ms.saturating_sub(live.policy(&PolicyScope::default()).idempotency_ttl_ms.value)
}

/// Returns the rule of the journal's retention; `None` if the journal is kept for ever.
pub(crate) fn prune_rule(config: &Config, now_ms: u64) -> Option<PruneRule> {
    let policy = config.journal.policy(now_ms)?;
    Some(PruneRule { policy, webhooks: config.notify.iter().map(|target| target.name.clone()).collect() })
}

/// Prunes the journal until `stop`. The configuration is read before each pass.
pub(crate) async fn prune_journal(store: Store, live: LiveConfig, metrics: Metrics, stop: CancellationToken) {
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            () = tokio::time::sleep(Duration::from_millis(JOURNAL_INTERVAL_MS)) => {}
        }
        let Some(rule) = prune_rule(&live.now().config, store.age_time_ms()) else { continue };
        match prune_once(&store, rule, &metrics, &stop).await {
            Ok(0) => {}
            Ok(rows) => tracing::info!(rows, "journal pruned"),
            Err(error) => tracing::warn!(%error, "pruning the journal failed"),
        }
    }
}

/// Prunes the journal once. Returns the number of deleted rows.
pub(crate) async fn prune_once(
    store: &Store,
    rule: PruneRule,
    metrics: &Metrics,
    stop: &CancellationToken,
) -> Result<u64, StoreError> {
    let rows = store.prune_journals(rule, || !stop.is_cancelled()).await?;
    metrics.journal_pruned(rows, store.clock().wall_ms());
    Ok(rows)
}

/// Deletes records of own messages until `stop`.
pub(crate) async fn expire_sent_messages(store: Store, stop: CancellationToken) {
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            () = tokio::time::sleep(Duration::from_millis(SENT_MESSAGES_INTERVAL_MS)) => {}
        }
        match delete_sent_messages(&store, store.age_time_ms(), ROWS_AT_ONCE).await {
            Ok(0) => {}
            Ok(rows) => tracing::debug!(rows, "old records of own messages deleted"),
            Err(error) => tracing::warn!(%error, "deleting old records of own messages failed"),
        }
    }
}

/// Deletes all expired records, `rows` per transaction. Returns their number.
async fn delete_sent_messages(store: &Store, now_ms: u64, rows: u64) -> Result<usize, StoreError> {
    let mut forgotten = 0;
    loop {
        let gone =
            store.delete_sent_messages(now_ms.saturating_sub(SENT_MESSAGES_RETENTION_MS), rows).await?;
        forgotten += gone;
        if (gone as u64) < rows {
            return Ok(forgotten);
        }
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;
    use crate::tests::{JournalWriter, column, conversation, open, session_row, spawn};
    use acp_shared::clock::Clock;
    use acp_shared::ids::SessionKey;
    use acp_store::sent_messages;

    const DAY_MS: u64 = 24 * 3_600_000;

    /// All records of that age are deleted, and only those; messages with a remaining record are still
    /// recognized as echoes.
    #[tokio::test]
    async fn only_records_beyond_retention_are_deleted() {
        let (_dir, store) = open();
        let now_ms = store.clock().wall_ms();
        // One message a day, the newest today.
        let insert = move |tx: &acp_store::Tx<'_>| {
            for age in 0..60_u64 {
                sent_messages::record_sent_message(tx, &conversation("c"), &format!("m{age}"))?;
                let at = i64::try_from(now_ms - age * DAY_MS).unwrap();
                let date = format!("UPDATE acp_said SET said_at = {at} WHERE message_id = 'm{age}'");
                tx.run(&date, &[])?;
            }
            Ok(())
        };
        store.write("insert", insert).await.unwrap();
        // One reply a day.
        let reply = move |tx: &acp_store::Tx<'_>| {
            for age in 0..60_u64 {
                acp_store::command_replies::begin(tx, &conversation("c"), &format!("r{age}"), "Done.", 0)?;
                let at = i64::try_from(now_ms - age * DAY_MS).unwrap();
                tx.run(&format!("UPDATE acp_reply SET said_at = {at} WHERE nonce = 'r{age}'"), &[])?;
            }
            Ok(())
        };
        store.write("reply", reply).await.unwrap();
        assert_eq!(delete_sent_messages(&store, now_ms, 7).await.unwrap(), 29);
        assert_eq!(column::<u64>(&store, "SELECT count(*) FROM acp_reply").await, [31]);
        let own = store.read("own", |db| {
            (0..60)
                .map(|age| sent_messages::is_own_message(db, &conversation("c"), &format!("m{age}")))
                .collect::<Result<Vec<_>, _>>()
        });
        let own = own.await.unwrap();
        assert!(own[..31].iter().all(|own| *own) && own[31..].iter().all(|own| !own), "{own:?}");
        assert_eq!(delete_sent_messages(&store, now_ms, 7).await.unwrap(), 0);
    }

    /// A bound session whose turns are delivered, and a webhook that is configured.
    #[tokio::test]
    async fn pass_prunes_old_turns_and_is_counted() {
        let (_dir, store) = open();
        let key = SessionKey::parse("agent:demo:acp:1").unwrap();
        spawn(&store, session_row(&key), None).await;
        let mut journal = JournalWriter::claim(&store, &key).await;
        for text in ["one", "two", "three"] {
            journal.turn(text).await;
        }
        let (metrics, stop) = (Metrics::default(), CancellationToken::new());
        let mut config = Config::default();
        assert_eq!(prune_rule(&config, 1 << 41), None, "off by default");
        config.journal.retention_days = 1;
        config.journal.keep_turns = 1;
        let now_ms = store.clock().wall_ms();
        let rule = |now_ms| prune_rule(&config, now_ms).unwrap();
        assert_eq!(prune_once(&store, rule(now_ms), &metrics, &stop).await.unwrap(), 0, "too young");
        assert_eq!(prune_once(&store, rule(now_ms + 2 * DAY_MS), &metrics, &stop).await.unwrap(), 6);
        let text = metrics.render();
        assert!(text.contains("acp_journal_pruned_rows_total 6"), "{text}");
        let last =
            text.lines().find_map(|line| line.strip_prefix("acp_journal_last_prune_timestamp_seconds "));
        assert!(last.is_some_and(|seconds| seconds.parse::<u64>().unwrap() >= now_ms / 1_000), "{text}");
        let ended = CancellationToken::new();
        ended.cancel();
        journal.turn("four").await;
        assert_eq!(prune_once(&store, rule(now_ms + 2 * DAY_MS), &metrics, &ended).await.unwrap(), 0);
    }

    /// A gateway that starts with its clock a year ahead prunes rows of today one day later by its own time, not at once.
    #[tokio::test(start_paused = true)]
    async fn gateway_with_its_clock_ahead_prunes_by_its_uptime() {
        let (dir, store) = open();
        let key = SessionKey::parse("agent:demo:acp:1").unwrap();
        spawn(&store, session_row(&key), None).await;
        let mut journal = JournalWriter::claim(&store, &key).await;
        for text in ["one", "two", "three"] {
            journal.turn(text).await;
        }
        let ahead = Clock::at(store.clock().wall_ms() + 365 * DAY_MS);
        store.close().await;
        let bounds = acp_store::GroupBounds::default();
        let store = Store::open_with(dir.path(), acp_store::Durability::Normal, bounds, ahead).unwrap();
        let mut loaded = crate::tests::loaded("");
        loaded.config.journal.retention_days = 1;
        loaded.config.journal.keep_turns = 1;
        let (live, stop) = (LiveConfig::new(loaded), CancellationToken::new());
        let passes = prune_journal(store.clone(), live, Metrics::default(), stop.clone());
        let passes = tokio::spawn(passes);
        let rows = async || column::<u64>(&store, "SELECT count(*) FROM acp_events").await[0];
        let before = rows().await;
        let begun = tokio::time::Instant::now();
        while begun.elapsed() < Duration::from_millis(DAY_MS) {
            assert_eq!(rows().await, before, "{:?}", begun.elapsed());
            tokio::time::sleep(Duration::from_secs(600)).await;
        }
        while rows().await == before {
            assert!(begun.elapsed() < Duration::from_millis(3 * DAY_MS), "nothing is pruned");
            tokio::time::sleep(Duration::from_secs(600)).await;
        }
        stop.cancel();
        passes.await.unwrap();
    }

    #[tokio::test]
    async fn old_records_are_found_by_index() {
        let (_dir, store) = open();
        let plan = store.read("plan", |db| {
            let sql = "EXPLAIN QUERY PLAN SELECT message_id FROM acp_said WHERE said_at < 1 ORDER BY said_at LIMIT 9";
            db.all(sql, &[], |row| row.get::<String>("detail"))
        });
        let plan = plan.await.unwrap().join("; ");
        assert!(plan.contains("acp_said_old") && !plan.contains("TEMP B-TREE"), "{plan}");
    }
}
