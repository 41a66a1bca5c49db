//! From the library's events to ours: each read by [`crate::core::read`], what cannot be read counted and told.

use super::pipe::Sink;
use crate::core::event::{Event, Gap};
use crate::core::overheard::Heard;
use crate::core::queue::Put;
use crate::core::read::{self, Read, Unreadable};
use serde_json::{Value, json};
use serenity::model::event::Event as Told;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// So many kinds are counted by name; what a service invents beyond that is counted together.
const KINDS_MAX: usize = 64;

/// What is counted, for as long as the program runs.
#[derive(Debug, Default)]
pub struct Counts {
    identifies: AtomicU64,
    readies: AtomicU64,
    resumes: AtomicU64,
    gaps: AtomicU64,
    dropped: AtomicU64,
    /// By kind: how many came that nobody knows, or that could not be read.
    strange: Mutex<BTreeMap<String, u64>>,
}

/// The numbers at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CountsNow {
    /// Sessions that were asked for.
    pub identifies: u64,
    /// Sessions that began.
    pub readies: u64,
    /// Sessions that went on after a break.
    pub resumes: u64,
    /// Gaps that were told, sessions that began not counted.
    pub gaps: u64,
    /// Events that there was no room for.
    pub dropped: u64,
    /// By kind: how many came that nobody knows, or that could not be read.
    pub strange: BTreeMap<String, u64>,
}

impl Counts {
    /// The numbers now.
    #[must_use]
    pub fn now(&self) -> CountsNow {
        CountsNow {
            identifies: self.identifies.load(Relaxed),
            readies: self.readies.load(Relaxed),
            resumes: self.resumes.load(Relaxed),
            gaps: self.gaps.load(Relaxed),
            dropped: self.dropped.load(Relaxed),
            strange: self.strange().clone(),
        }
    }

    fn strange(&self) -> MutexGuard<'_, BTreeMap<String, u64>> {
        self.strange.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts one of a strange kind, and says whether it is the first.
    fn saw(&self, kind: &str) -> bool {
        let mut strange = self.strange();
        let known = strange.contains_key(kind);
        let name = if known || strange.len() < KINDS_MAX { kind } else { "others" };
        *strange.entry(name.to_owned()).or_insert(0) += 1;
        !known && name == kind
    }
}

/// Takes in what one life of the connection brings.
#[derive(Debug)]
pub(super) struct Intake {
    sink: Sink,
    counts: std::sync::Arc<Counts>,
    ready: AtomicBool,
    closed: AtomicBool,
    /// By shard: since when its connection has neither READY nor RESUMED.
    unanswered: Mutex<BTreeMap<u32, Instant>>,
}

impl Intake {
    pub(super) fn new(sink: Sink, counts: std::sync::Arc<Counts>) -> Self {
        Self {
            sink,
            counts,
            ready: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            unanswered: Mutex::default(),
        }
    }

    /// Takes nothing in any more: what an old life still says is not heard after the next one has begun.
    pub(super) fn close(&self) {
        self.closed.store(true, Relaxed);
    }

    /// Whether a session has begun.
    pub(super) fn is_ready(&self) -> bool {
        self.ready.load(Relaxed)
    }

    fn unanswered(&self) -> MutexGuard<'_, BTreeMap<u32, Instant>> {
        self.unanswered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The shard whose connection has had neither READY nor RESUMED for longer than `limit`, if there is one.
    pub(super) fn overdue(&self, limit: Duration) -> Option<u32> {
        self.unanswered().iter().find(|(_, since)| since.elapsed() > limit).map(|(shard, _)| *shard)
    }

    /// Takes in what the library said in its log.
    pub(super) fn heard(&self, heard: &Heard) {
        match heard {
            // The first of several attempts counts: attempts that fail do not extend the deadline.
            Heard::Connecting(shard) => {
                self.unanswered().entry(*shard).or_insert_with(Instant::now);
            }
            Heard::Identify => {
                self.counts.identifies.fetch_add(1, Relaxed);
            }
            Heard::Skipped(lost) => self.gap(Gap::Skipped, *lost),
            // How many it would have been is told by the next one.
            Heard::Unread => self.gap(Gap::Skipped, 0),
            Heard::Closed(code) => {
                let why = crate::core::closes::meaning(*code).what;
                self.put(Event::Disconnected { why: format!("{why} (code {code})") });
            }
            Heard::Broke => self.put(Event::Disconnected { why: "the connection broke".to_owned() }),
            Heard::Silent => {
                self.put(Event::Disconnected {
                    why: "Discord did not answer a heartbeat in time".to_owned(),
                });
            }
            Heard::Invalidated => {
                self.put(Event::Disconnected { why: "Discord ended the session".to_owned() })
            }
            Heard::NotConnected => {}
        }
    }

    /// Takes in an event.
    pub(super) fn told(&self, shard: u32, event: Told) {
        let (kind, data, understood) = match event {
            Told::Unknown(unknown) => (unknown.kind, unknown.value, false),
            event => match data(&event) {
                Some((kind, data)) => (kind.to_owned(), data, true),
                None => return,
            },
        };
        match read::event(&kind, &data) {
            Ok(Read::Events(events)) => {
                if !understood && self.counts.saw(&kind) {
                    tracing::warn!(
                        kind,
                        "Discord: the library does not understand an event, which is read without it"
                    );
                }
                events.into_iter().for_each(|event| self.count(shard, event));
            }
            Ok(Read::Ignored) => {}
            Ok(Read::Unknown) => {
                if self.counts.saw(&kind) {
                    tracing::warn!(
                        kind,
                        "Discord: events of a kind that is not known are ignored from here on"
                    );
                    self.put(Event::Unknown { kind });
                }
            }
            Err(Unreadable(why)) => {
                if self.counts.saw(&kind) {
                    tracing::warn!(
                        kind,
                        why,
                        "Discord: an event cannot be read; what it is about is looked at again"
                    );
                }
                self.gap(Gap::Unreadable, 1);
            }
        }
    }

    fn count(&self, shard: u32, event: Event) {
        if matches!(event, Event::Ready(_) | Event::Resumed) {
            self.unanswered().remove(&shard);
        }
        match event {
            Event::Ready(_) => {
                self.ready.store(true, Relaxed);
                self.counts.readies.fetch_add(1, Relaxed);
            }
            Event::Resumed => {
                self.counts.resumes.fetch_add(1, Relaxed);
            }
            _ => {}
        }
        self.put(event);
    }

    fn gap(&self, why: Gap, lost: u64) {
        self.counts.gaps.fetch_add(1, Relaxed);
        self.put(Event::Gap { why, lost });
    }

    fn put(&self, event: Event) {
        if self.closed.load(Relaxed) {
            return;
        }
        match self.sink.put(event) {
            Put::Kept | Put::Stale => {}
            Put::Dropped => {
                self.counts.dropped.fetch_add(1, Relaxed);
            }
        }
    }
}

/// The name and the data of an event as the service said them; none for what is not taken up.
fn data(event: &Told) -> Option<(&'static str, Value)> {
    let kind = match event {
        // Large, and only its id is used.
        Told::GuildCreate(created) => return Some(("GUILD_CREATE", json!({ "id": created.guild.id }))),
        Told::GuildRoleUpdate(told) => {
            return Some(("GUILD_ROLE_UPDATE", json!({ "guild_id": told.role.guild_id })));
        }
        Told::GuildRoleDelete(told) => {
            return Some(("GUILD_ROLE_DELETE", json!({ "guild_id": told.guild_id })));
        }
        Told::Ready(_) => "READY",
        Told::Resumed(_) => return Some(("RESUMED", Value::Null)),
        Told::MessageCreate(_) => "MESSAGE_CREATE",
        Told::MessageUpdate(_) => "MESSAGE_UPDATE",
        Told::MessageDelete(_) => "MESSAGE_DELETE",
        Told::MessageDeleteBulk(_) => "MESSAGE_DELETE_BULK",
        Told::InteractionCreate(_) => "INTERACTION_CREATE",
        Told::ThreadCreate(_) => "THREAD_CREATE",
        Told::ThreadUpdate(_) => "THREAD_UPDATE",
        Told::ThreadDelete(_) => "THREAD_DELETE",
        Told::ThreadListSync(_) => "THREAD_LIST_SYNC",
        Told::ChannelUpdate(_) => "CHANNEL_UPDATE",
        Told::ChannelDelete(_) => "CHANNEL_DELETE",
        Told::GuildDelete(_) => "GUILD_DELETE",
        _ => return None,
    };
    // What the library has read it can write; if not, it is an event that cannot be read.
    let data = serde_json::to_value(event).ok().and_then(|mut event| event.get_mut("d").map(Value::take));
    let mut data = data.unwrap_or_default();
    // The library takes its kind off an interaction, and does not write it again.
    if let (Told::InteractionCreate(created), Some(fields)) = (event, data.as_object_mut()) {
        fields.insert("type".to_owned(), json!(created.interaction.kind()));
    }
    Some((kind, data))
}

#[cfg(test)]
mod tests {
    #![expect(clippy::expect_used, reason = "a failed expectation is a failed test")]

    use super::*;

    fn interaction(kind: u8, data: &Value) -> Value {
        let user = json!({ "id": "1", "username": "ann", "discriminator": "0", "global_name": "Ann", "avatar": null,
            "bot": false, "system": false, "public_flags": 0 });
        let member = json!({ "user": user, "nick": null, "avatar": null, "roles": ["7"], "deaf": false, "mute": false,
            "joined_at": "2026-01-01T00:00:00.000000+00:00", "premium_since": null, "flags": 0, "pending": false,
            "permissions": "2147483647", "communication_disabled_until": null });
        let mut interaction = json!({ "id": "5", "application_id": "2", "type": kind, "token": "t", "version": 1,
            "guild_id": "8", "channel_id": "3", "member": member, "app_permissions": "2147483647", "locale": "en-US",
            "guild_locale": "en-US", "entitlements": [], "context": 0, "attachment_size_limit": 1000,
            "authorizing_integration_owners": { "0": "8" }, "data": data,
            "channel": { "id": "3", "guild_id": "8", "type": 11, "name": "thread", "parent_id": "9",
                "permissions": "2147483647", "thread_metadata": { "archived": false, "auto_archive_duration": 60,
                    "archive_timestamp": "2026-01-01T00:00:00.000000+00:00", "locked": false } } });
        if kind == 3 {
            interaction["message"] = json!({ "id": "6", "channel_id": "3", "author": user, "content": "", "type": 0,
                "timestamp": "2026-01-01T00:00:00.000000+00:00", "edited_timestamp": null, "tts": false,
                "mention_everyone": false, "mentions": [], "mention_roles": [], "attachments": [], "embeds": [],
                "pinned": false, "flags": 0, "components": [] });
        }
        interaction
    }

    /// An interaction that went through the library's model is what the service said: nothing that is used gets lost.
    #[test]
    fn the_library_keeps_what_is_used_of_an_interaction() {
        let sub = |options: Value| json!([{ "type": 1, "name": "spawn", "options": options }]);
        let command = |options: Value| json!({ "id": "4", "name": "acp", "type": 1, "options": options });
        let typed = json!([{ "type": 3, "name": "agent", "value": "de", "focused": true }]);
        let mixed = json!([{ "type": 3, "name": "agent", "value": "demo" }, { "type": 5, "name": "discard",
            "value": true }, { "type": 4, "name": "seconds", "value": 7 }]);
        let row = json!([{ "type": 1, "components": [{ "type": 4, "custom_id": "why", "value": "so" }] }]);
        for (kind, data) in [
            (2, command(sub(mixed))),
            (2, command(sub(json!([])))),
            (2, command(json!([]))),
            (3, json!({ "custom_id": "a1:/acp status", "component_type": 2 })),
            (4, command(sub(typed))),
            (5, json!({ "custom_id": "form", "components": row })),
        ] {
            let said = interaction(kind, &data);
            let whole = json!({ "t": "INTERACTION_CREATE", "d": said });
            let told: Told = serde_json::from_value(whole).expect("the library reads it");
            let (name, passed) = super::data(&told).expect("it is taken up");
            assert_eq!(name, "INTERACTION_CREATE");
            let want = read::event("INTERACTION_CREATE", &said);
            assert!(matches!(&want, Ok(Read::Events(_))), "{want:?}");
            assert_eq!(read::event(name, &passed), want, "{kind}: {passed}");
        }
    }
}
