//! Whether a thread is put away, and by whom: as events tell it, and looked at where nobody told (D3, D12).
//!
//! What a person put away is left alone until somebody takes it out; what Discord put away comes back with the next word.

use super::Inner;
use super::known::by_person;
use super::lanes::Lane;
use super::owed::{Look, Looked};
use crate::channel::Change;
use crate::store::now_ms;
use acp_discord::core::event;
use acp_discord::core::ids::Snowflake;
use acp_discord::rest::Fault;
use acp_discord::rest::model;
use tokio::time::Instant;

/// A thread, as far as it matters here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shelf {
    /// Whether it is put away.
    is_archived: bool,
    /// After how many minutes of silence Discord does that.
    auto_archive_minutes: u64,
    /// When it was put away or taken out last, in milliseconds of the Unix epoch, where Discord says it.
    changed_ms: Option<u64>,
    /// The last message, where Discord says it.
    last: Option<Snowflake>,
}

impl From<&event::Thread> for Shelf {
    fn from(thread: &event::Thread) -> Self {
        Self {
            is_archived: thread.archived,
            auto_archive_minutes: thread.auto_archive_minutes,
            changed_ms: thread.archived_at.as_deref().and_then(moment_ms),
            last: None,
        }
    }
}

impl Shelf {
    /// None for what is no thread.
    fn of(channel: &model::Channel) -> Option<Self> {
        let state = channel.thread_metadata.as_ref()?;
        Some(Self {
            is_archived: state.archived,
            auto_archive_minutes: state.auto_archive_duration,
            changed_ms: state.archive_timestamp.as_deref().and_then(moment_ms),
            // Where nobody has spoken it is as old as its id.
            last: Some(channel.last_message_id.unwrap_or(channel.id)),
        })
    }

    /// Whether a person put it away, as far as can be said when the last thing that happened there is this.
    fn is_put_away(&self, last_ms: u64, now_ms: u64) -> bool {
        self.is_archived && by_person(last_ms, self.changed_ms.unwrap_or(now_ms), self.auto_archive_minutes)
    }
}

/// A moment as Discord writes it, in milliseconds of the Unix epoch.
fn moment_ms(text: &str) -> Option<u64> {
    let moment: jiff::Timestamp = text.parse().ok()?;
    u64::try_from(moment.as_millisecond()).ok()
}

impl Inner {
    /// Before a word in a thread of which it is not known whether a person put it away while nobody was here to hear it:
    /// said there, it would take the thread out again.
    ///
    /// # Errors
    /// It could not be looked at: nothing is to be said there until it was.
    pub(super) async fn look_first(&self, at: Snowflake) -> Result<(), Fault> {
        if self.known.is_followed(at) {
            return Ok(());
        }
        let (era, last_ms) = (self.known.era(), self.known.last_ms(at));
        // That it was taken out again is told in the lane, in the order of what happened.
        if let Some(shelf) = self.look(at).await?
            && self.is_put_away(at, &shelf)
            // Who spoke there meanwhile took it out.
            && self.known.last_ms(at) == last_ms
        {
            self.rest.put_away(at, true);
        }
        self.known.looked(at, era);
        Ok(())
    }

    async fn look(&self, at: Snowflake) -> Result<Option<Shelf>, Fault> {
        let channel = self.rest.channel(at).await?;
        self.known.is_at(at, channel.parent_id.filter(|_| channel.is_thread()), channel.guild_id);
        Ok(Shelf::of(&channel))
    }

    fn is_put_away(&self, at: Snowflake, shelf: &Shelf) -> bool {
        let last = shelf.last.map(Snowflake::made_at_ms).max(self.known.last_ms(at));
        // Unknown: Discord does it far more often, and then the next answer takes it out again.
        last.is_some_and(|last_ms| shelf.is_put_away(last_ms, now_ms()))
    }
}

impl Lane {
    /// Looks at the thread: what happened to it while nobody listened is told by nobody either. Not any more as soon as
    /// something else is to be done: nothing is said there before the look (`look_first`), and whoever speaks, changes
    /// something or takes it out need not wait for it.
    ///
    /// # Errors
    /// It could not be looked at.
    pub(super) async fn look_at_thread(&self, something: impl Future<Output = ()>) -> Result<Looked, Fault> {
        let era = self.inner.known.era();
        let looked = tokio::select! {
            biased;
            looked = self.inner.look(self.channel) => looked,
            () = something => return Ok(Looked::Interrupted),
        };
        match looked {
            Ok(Some(shelf)) => self.shelved(&shelf).await,
            Ok(None) => {}
            Err(fault) => {
                // Whatever was known of it, it is not known now.
                self.inner.known.is_lost_sight_of(self.channel);
                return Err(fault);
            }
        }
        self.inner.known.looked(self.channel, era);
        Ok(Looked::Done)
    }

    /// It was told that the thread is put away, or is not.
    pub(super) async fn thread(&mut self, shelf: &Shelf) {
        if shelf.is_archived && self.inner.known.last_ms(self.channel).is_none() {
            // When somebody last spoke there is said by a look alone, which tells the rest too. Until then nothing is
            // said there.
            self.inner.known.is_lost_sight_of(self.channel);
            return self.owed.want(Look::Thread, Instant::now());
        }
        // A look that is owed stays so: this may have been told before what made it due.
        self.shelved(shelf).await;
    }

    async fn shelved(&self, shelf: &Shelf) {
        let at = self.channel;
        let by_person = self.inner.is_put_away(at, shelf);
        if let (false, Some(taken_out_ms)) = (shelf.is_archived, shelf.changed_ms) {
            // From then on its silence counts.
            self.inner.known.spoke(at, Snowflake::from_ms(taken_out_ms));
        }
        self.inner.rest.put_away(at, by_person);
        let change = if shelf.is_archived { Change::Archived { by_person } } else { Change::Unarchived };
        let changed = self.changed(change).await;
        tracing::debug!(thread_id = %at, ?shelf, ?changed, "a thread is put away or taken out");
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
    fn moments_are_read_as_discord_writes_them() {
        for (text, want) in [
            ("2026-11-22T09:00:00+00:00", Some(NOON_MS)),
            ("2026-11-22T09:00:00.123000+00:00", Some(NOON_MS + 123)),
            ("2026-11-22T10:00:00.000000+01:00", Some(NOON_MS)),
            ("2026-11-22T09:00:00Z", Some(NOON_MS)),
            ("1969-12-31T23:59:59Z", None),
            ("yesterday", None),
            ("", None),
        ] {
            assert_eq!(moment_ms(text), want, "{text}");
        }
    }

    /// However late it is looked: what counts is how long it was silent when it was put away.
    #[test]
    fn d12_who_put_a_thread_away_is_judged_by_when_that_was() {
        let channel = |last_ms: u64, at: Option<&str>, archived: bool| -> model::Channel {
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
            // Discord's clock is ahead of ours: it was silent for longer than we believe.
            (2 * HOUR_MS, at, true, 0, false),
            (0, at, false, 0, false),
            // Without a moment it is the one of the look.
            (HOUR_MS / 2, None, true, HOUR_MS / 4, true),
            (HOUR_MS / 2, None, true, HOUR_MS, false),
        ] {
            let last_ms = NOON_MS - silent_ms;
            let shelf = Shelf::of(&channel(last_ms, at, archived)).unwrap();
            let seen = shelf.is_put_away(last_ms, NOON_MS + looked_after_ms);
            assert_eq!(seen, want, "{silent_ms} {at:?} {archived} {looked_after_ms}");
            assert_eq!(shelf.last, Some(Snowflake::from_ms(last_ms)));
        }
        let text: model::Channel = serde_json::from_value(json!({"id": "1", "type": 0})).unwrap();
        assert_eq!(Shelf::of(&text), None);
    }
}
