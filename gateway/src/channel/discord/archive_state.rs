//! Archive state of threads: from events, and from one request after each start and gap (D3, D12).
//!
//! A thread archived by a person is left alone until a person unarchives the thread. A thread archived by
//! Discord is unarchived by the next message.

use super::Inner;
use crate::channel::ConversationEvent;
use crate::channel::discord::state_cache::is_archived_by_person;
use crate::channel::discord::workers::ConversationWorker;
use acp_discord::core::event;
use acp_discord::core::ids::Snowflake;
use acp_discord::rest::{RestError, model};

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
    /// Reads the archive state of a conversation, unless known since the last start or gap: a message to a
    /// thread that a person archived would unarchive the thread. The conversation worker handles the result
    /// after the events that are queued.
    ///
    /// # Errors
    /// [`RestError`] if the state is still unknown: no message may be sent.
    pub(super) async fn ensure_archive_state(&self, at: Snowflake) -> Result<(), RestError> {
        if self.cache.has_archive_state(at) {
            return Ok(());
        }
        let epoch = self.cache.begin_archive_read(at);
        let channel = self.rest.channel(at).await?;
        self.cache.set_location(at, channel.parent_id.filter(|_| channel.is_thread()), channel.guild_id);
        if !self.cache.end_archive_read(at, epoch) {
            let why = "the thread had an event meanwhile".to_owned();
            return Err(RestError::Uncertain { why });
        }
        if let Some(archive) = ArchiveState::of(&channel) {
            self.rest.set_archived(at, self.is_archived_by_person(at, &archive));
            self.cache.report_archive_state(at, archive);
        }
        Ok(())
    }

    fn is_archived_by_person(&self, at: Snowflake, archive: &ArchiveState) -> bool {
        let last = archive.last.map(Snowflake::created_at_ms).max(self.cache.last_message_ms(at));
        // Unknown: Discord archives far more often than people do, and the next answer unarchives the thread.
        last.is_some_and(|last_ms| archive.is_archived_by_person(last_ms, self.clock.wall_ms()))
    }
}

impl ConversationWorker {
    /// Handles the archive state of the thread, from an event or a request.
    pub(super) async fn on_archive_state(&self, archive: &ArchiveState) {
        let is_judgeable = archive.last.is_some() || self.inner.cache.last_message_ms(self.channel).is_some();
        if archive.is_archived && !is_judgeable {
            // Only a request can tell who archived the thread. If this one fails, the next message asks again.
            self.inner.cache.invalidate_archive_state(self.channel);
            let read = self.inner.ensure_archive_state(self.channel).await;
            return read.unwrap_or_else(|fault| {
                tracing::info!(thread_id = %self.channel, %fault, "archive state unknown");
            });
        }
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
