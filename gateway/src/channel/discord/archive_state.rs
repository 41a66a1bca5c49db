//! Archive state of threads: from events, or from requests if events may be missing (D3, D12).
//!
//! A thread archived by a person is left alone until a person unarchives the thread. A thread archived by
//! Discord is unarchived by the next message.

use super::Inner;
use crate::channel::ConversationEvent;
use crate::channel::discord::pending_checks::{CheckKind, CheckOutcome};
use crate::channel::discord::state_cache::is_archived_by_person;
use crate::channel::discord::workers::ConversationWorker;
use acp_discord::core::event;
use acp_discord::core::ids::Snowflake;
use acp_discord::rest::{RestError, model};
use acp_store::now_ms;
use tokio::time::Instant;

/// Archive state of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ArchiveState {
    /// True if archived.
    is_archived: bool,
    /// Inactivity after which Discord archives the thread, in minutes.
    auto_archive_minutes: u64,
    /// Time of the last archiving or unarchiving, in milliseconds since the Unix epoch, if reported.
    changed_ms: Option<u64>,
    /// Last message, if reported.
    last: Option<Snowflake>,
}

impl From<&event::Thread> for ArchiveState {
    fn from(thread: &event::Thread) -> Self {
        Self {
            is_archived: thread.archived,
            auto_archive_minutes: thread.auto_archive_minutes,
            changed_ms: thread.archived_at.as_deref().and_then(parse_timestamp_ms),
            last: None,
        }
    }
}

impl ArchiveState {
    /// Returns the archive state; `None` if the channel is not a thread.
    fn of(channel: &model::ChannelObject) -> Option<Self> {
        let state = channel.thread_metadata.as_ref()?;
        Some(Self {
            is_archived: state.archived,
            auto_archive_minutes: state.auto_archive_duration,
            changed_ms: state.archive_timestamp.as_deref().and_then(parse_timestamp_ms),
            // A thread without messages is as old as its id.
            last: Some(channel.last_message_id.unwrap_or(channel.id)),
        })
    }

    /// True if a person archived the thread, judging from the time of the last activity.
    fn is_archived_by_person(&self, last_ms: u64, now_ms: u64) -> bool {
        self.is_archived
            && is_archived_by_person(last_ms, self.changed_ms.unwrap_or(now_ms), self.auto_archive_minutes)
    }
}

/// Parses a Discord timestamp; returns milliseconds since the Unix epoch.
fn parse_timestamp_ms(text: &str) -> Option<u64> {
    let moment: jiff::Timestamp = text.parse().ok()?;
    u64::try_from(moment.as_millisecond()).ok()
}

impl Inner {
    /// Checks the archive state before a message to a thread, unless known from events: a message to a thread
    /// that a person archived would unarchive the thread.
    ///
    /// # Errors
    /// [`RestError`] if the check failed: no message may be sent until a check succeeds.
    pub(super) async fn check_archived_before_send(&self, at: Snowflake) -> Result<(), RestError> {
        if self.cache.has_archive_state(at) {
            return Ok(());
        }
        let (era, last_ms) = (self.cache.stream_epoch(), self.cache.last_message_ms(at));
        // The conversation worker handles unarchiving, in the order of events.
        if let Some(archive) = self.fetch_archive_state(at).await?
            && self.is_archived_by_person(at, &archive)
            // A new message has unarchived the thread.
            && self.cache.last_message_ms(at) == last_ms
        {
            self.rest.set_archived(at, true);
        }
        self.cache.record_archive_check(at, era);
        Ok(())
    }

    async fn fetch_archive_state(&self, at: Snowflake) -> Result<Option<ArchiveState>, RestError> {
        let channel = self.rest.channel(at).await?;
        self.cache.set_location(at, channel.parent_id.filter(|_| channel.is_thread()), channel.guild_id);
        Ok(ArchiveState::of(&channel))
    }

    fn is_archived_by_person(&self, at: Snowflake, archive: &ArchiveState) -> bool {
        let last = archive.last.map(Snowflake::created_at_ms).max(self.cache.last_message_ms(at));
        // Unknown: Discord archives far more often than people do, and the next answer unarchives the thread.
        last.is_some_and(|last_ms| archive.is_archived_by_person(last_ms, now_ms()))
    }
}

impl ConversationWorker {
    /// Checks the archive state of the thread, since a change without an event is possible. Stops if
    /// `something` completes: events need not wait, because each message to the thread is preceded by a check
    /// of its own (`check_archived_before_send`).
    ///
    /// # Errors
    /// [`RestError`] if the check failed.
    pub(super) async fn check_archive_state(
        &self,
        something: impl Future<Output = ()>,
    ) -> Result<CheckOutcome, RestError> {
        let era = self.inner.cache.stream_epoch();
        let looked = tokio::select! {
            biased;
            looked = self.inner.fetch_archive_state(self.channel) => looked,
            () = something => return Ok(CheckOutcome::Interrupted),
        };
        match looked {
            Ok(Some(archive)) => self.apply_archive_state(&archive).await,
            Ok(None) => {}
            Err(fault) => {
                // The archive state known before is no longer reliable.
                self.inner.cache.invalidate_archive_state(self.channel);
                return Err(fault);
            }
        }
        self.inner.cache.record_archive_check(self.channel, era);
        Ok(CheckOutcome::Done)
    }

    /// Handles an event about the archive state of the thread.
    pub(super) async fn on_archive_state(&mut self, archive: &ArchiveState) {
        if archive.is_archived && self.inner.cache.last_message_ms(self.channel).is_none() {
            // The time of the last activity is unknown, and only a check can tell who archived the thread.
            // Until then no message is sent.
            self.inner.cache.invalidate_archive_state(self.channel);
            return self.pending_checks.schedule(CheckKind::Thread, Instant::now());
        }
        // A pending check remains: this event may be older than the reason for the check.
        self.apply_archive_state(archive).await;
    }

    async fn apply_archive_state(&self, archive: &ArchiveState) {
        let at = self.channel;
        let by_person = self.inner.is_archived_by_person(at, archive);
        if let (false, Some(taken_out_ms)) = (archive.is_archived, archive.changed_ms) {
            // Inactivity counts from the unarchiving on.
            self.inner.cache.record_message(at, Snowflake::from_ms(taken_out_ms));
        }
        self.inner.rest.set_archived(at, by_person);
        let change = if archive.is_archived {
            ConversationEvent::Archived { by_person }
        } else {
            ConversationEvent::Unarchived
        };
        let changed = self.report_event(change).await;
        tracing::debug!(
            thread_id = %at,
            archive = ?archive,
            outcome = ?changed,
            "thread archive state changed"
        );
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;
    use serde_json::json;

    const HOUR_MS: u64 = 3_600_000;
    /// 2026-11-22T09:00:00Z.
    const NOON_MS: u64 = 1_795_338_000_000;

    #[test]
    fn discord_timestamps_are_parsed() {
        for (text, want) in [
            ("2026-11-22T09:00:00+00:00", Some(NOON_MS)),
            ("2026-11-22T09:00:00.123000+00:00", Some(NOON_MS + 123)),
            ("2026-11-22T10:00:00.000000+01:00", Some(NOON_MS)),
            ("2026-11-22T09:00:00Z", Some(NOON_MS)),
            ("1969-12-31T23:59:59Z", None),
            ("yesterday", None),
            ("", None),
        ] {
            assert_eq!(parse_timestamp_ms(text), want, "{text}");
        }
    }

    /// The inactivity at the time of archiving decides, regardless of the time of the check.
    #[test]
    fn archiving_is_attributed_by_inactivity_at_its_time() {
        let channel = |last_ms: u64, at: Option<&str>, archived: bool| -> model::ChannelObject {
            serde_json::from_value(json!({
                "id": Snowflake::from_ms(last_ms - HOUR_MS).to_string(), "type": 11,
                "last_message_id": Snowflake::from_ms(last_ms).to_string(),
                "thread_metadata": {"archived": archived, "auto_archive_duration": 60, "archive_timestamp": at},
            }))
            .unwrap()
        };
        let at = Some("2026-11-22T09:00:00+00:00");
        for (silent_ms, at, archived, looked_after_ms, want) in [
            (HOUR_MS - 1, at, true, 0, true),
            (HOUR_MS - 1, at, true, 1_000 * HOUR_MS, true),
            (HOUR_MS, at, true, 0, false),
            (HOUR_MS, at, true, 1_000 * HOUR_MS, false),
            // Discord's clock is ahead of the local one: the real inactivity is longer than calculated.
            (2 * HOUR_MS, at, true, 0, false),
            (0, at, false, 0, false),
            // Without a timestamp, the time of the check counts.
            (HOUR_MS / 2, None, true, HOUR_MS / 4, true),
            (HOUR_MS / 2, None, true, HOUR_MS, false),
        ] {
            let last_ms = NOON_MS - silent_ms;
            let archive = ArchiveState::of(&channel(last_ms, at, archived)).unwrap();
            let seen = archive.is_archived_by_person(last_ms, NOON_MS + looked_after_ms);
            assert_eq!(seen, want, "{silent_ms} {at:?} {archived} {looked_after_ms}");
            assert_eq!(archive.last, Some(Snowflake::from_ms(last_ms)));
        }
        let text: model::ChannelObject = serde_json::from_value(json!({"id": "1", "type": 0})).unwrap();
        assert_eq!(ArchiveState::of(&text), None);
    }
}
