//! Event intake: counts what the gateway sent and puts it into the queue.

use crate::core::decode::{DecodeError, DecodedEvent};
use crate::core::event::{Event, GapCause};
use crate::core::event_queue::EnqueueResult;
use crate::websocket::event_channel::EventSender;
use parking_lot::{Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Maximum number of kinds that are counted by name; further ones are counted together.
const KINDS_MAX: usize = 64;

/// Counters of the gateway connections of a bot, since the start of the program.
#[derive(Debug, Default)]
pub struct SessionCounters {
    identifies: AtomicU64,
    readies: AtomicU64,
    resumes: AtomicU64,
    gaps: AtomicU64,
    dropped: AtomicU64,
    /// Unknown and unreadable events by kind.
    unrecognized: Mutex<BTreeMap<String, u64>>,
    /// State of each shard by its number.
    shards: Mutex<BTreeMap<u32, ShardState>>,
}

/// State of a shard's connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ShardState {
    /// No session yet.
    Connecting,
    /// The session is established.
    Up,
    /// The connection was lost, with the reason.
    Lost(String),
}

/// Values of [`SessionCounters`] at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SessionCounts {
    /// IDENTIFYs.
    pub identifies: u64,
    /// READYs.
    pub readies: u64,
    /// RESUMEDs.
    pub resumes: u64,
    /// Reported gaps, without those that a new session implies.
    pub gaps: u64,
    /// Events dropped because the queue was full.
    pub dropped: u64,
    /// Unknown and unreadable events by kind.
    pub unrecognized: BTreeMap<String, u64>,
    /// State of each shard by its number.
    pub shards: BTreeMap<u32, ShardState>,
}

impl SessionCounters {
    /// Returns the current values.
    #[must_use]
    pub fn snapshot(&self) -> SessionCounts {
        SessionCounts {
            identifies: self.identifies.load(Relaxed),
            readies: self.readies.load(Relaxed),
            resumes: self.resumes.load(Relaxed),
            gaps: self.gaps.load(Relaxed),
            dropped: self.dropped.load(Relaxed),
            unrecognized: self.unrecognized().clone(),
            shards: self.shards.lock().clone(),
        }
    }

    fn unrecognized(&self) -> MutexGuard<'_, BTreeMap<String, u64>> {
        self.unrecognized.lock()
    }

    /// Counts an unknown or unreadable event. Returns whether it is the first one of its kind.
    fn record_unrecognized(&self, kind: &str) -> bool {
        let mut unrecognized = self.unrecognized();
        let known = unrecognized.contains_key(kind);
        let name = if known || unrecognized.len() < KINDS_MAX { kind } else { "others" };
        *unrecognized.entry(name.to_owned()).or_insert(0) += 1;
        !known && name == kind
    }
}

/// Event intake of all shards of a bot.
#[derive(Debug)]
pub(super) struct EventIntake {
    sink: EventSender,
    counts: Arc<SessionCounters>,
}

impl EventIntake {
    pub(super) const fn new(sink: EventSender, counts: Arc<SessionCounters>) -> Self {
        Self { sink, counts }
    }

    /// Passes on an event, and counts it. Unknown and unreadable ones are counted by kind.
    pub(super) fn accept(&self, kind: &str, read: Result<DecodedEvent, DecodeError>) {
        match read {
            Ok(DecodedEvent::Events(events)) => events.into_iter().for_each(|event| self.count(event)),
            Ok(DecodedEvent::Ignored) => {}
            Ok(DecodedEvent::Unknown) => {
                if self.counts.record_unrecognized(kind) {
                    tracing::warn!(kind, "unknown gateway event ignored; later ones are only counted");
                }
            }
            Err(DecodeError(why)) => {
                if self.counts.record_unrecognized(kind) {
                    tracing::warn!(kind, why, "unreadable gateway event; backfill requested");
                }
                self.gap(GapCause::Unreadable, 1);
            }
        }
    }

    fn count(&self, event: Event) {
        let counter = match event {
            Event::Ready(_) => Some(&self.counts.readies),
            Event::Resumed => Some(&self.counts.resumes),
            _ => None,
        };
        counter.into_iter().for_each(|counter| {
            counter.fetch_add(1, Relaxed);
        });
        self.put(event);
    }

    /// Records the state of a shard.
    pub(super) fn record_shard(&self, shard: u32, state: ShardState) {
        self.counts.shards.lock().insert(shard, state);
    }

    /// Clears the shards of an earlier connection.
    pub(super) fn clear_shards(&self) {
        self.counts.shards.lock().clear();
    }

    /// Counts an IDENTIFY.
    pub(super) fn record_identify(&self) {
        self.counts.identifies.fetch_add(1, Relaxed);
    }

    /// Logs that many sessions were identified within an hour.
    pub(super) fn alarm(count: usize) {
        let text = format!(
            "{count} sessions were identified within an hour. Discord resets the token of a bot that keeps doing \
             this for a day, so new sessions are delayed from now on. Find out what breaks the \
             connection: the network, a proxy, or a second program with the same token."
        );
        tracing::error!(count, text, "too many Discord sessions identified");
    }

    pub(super) fn gap(&self, why: GapCause, lost: u64) {
        self.counts.gaps.fetch_add(1, Relaxed);
        self.put(Event::Gap { why, lost });
    }

    pub(super) fn put(&self, event: Event) {
        match self.sink.put(event) {
            EnqueueResult::Queued | EnqueueResult::Stale => {}
            EnqueueResult::Dropped => {
                self.counts.dropped.fetch_add(1, Relaxed);
            }
        }
    }
}
