//! Delivery: brings what journals say into the conversations that are bound to their sessions, in order, once.
//!
//! One task looks which bindings are behind; one task per binding that is behind does the work, and stays as long as
//! there is a card to be kept ([`cards`]). A wake-up is only a hint: everything is read from the journal and from the
//! outbox, so that a crash anywhere is gone on from.

mod attached;
mod attempt;
mod beside;
mod cards;
mod pass;
mod tries;

use crate::channel::Channels;
use crate::core::rows::{BindingStatus, Verbosity};
use crate::live::Live;
use crate::metrics::Metrics;
use crate::store::delivery::{self as rows, Due};
use crate::store::{Store, buttons, cards as card_rows, now_ms};
use acp_shared::ids::BindingId;
use pass::Pass;
use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

/// How long commits are gathered before the journals are looked at.
const GATHER_MS: u64 = 20;
/// How many times as long as a look took nothing is looked at again: each look reads every active binding, and with
/// thousands of them this is what bounds its share of a processor …
const REST_TIMES: u32 = 4;
/// … but for no longer than this, in milliseconds.
const REST_MS_MAX: u64 = 500;
/// How often ended bindings are looked for that still owe something.
const SWEEP_MS: u64 = 60_000;
/// How often cards are looked for that could not be folded.
const TIDY_MS: u64 = 2_000;
/// At how many of these looks one is for messages that could not be amended.
const TIDY_TIMES: u32 = 5;
/// First pause after a part was not taken; doubled each time.
const RETRY_FIRST_MS: u64 = 250;
/// How long a binding rests whose task ended out of order, in milliseconds.
const DISORDER_MS: u64 = 1_000;

/// How a binding's task left it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Left {
    /// Everything up to this number was looked at.
    At(u64),
    /// It ended, and owes nothing more.
    Over,
    /// It was stopped, or something failed: look again.
    Unknown,
}

/// What is remembered of a binding between its tasks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Mark {
    cursor: Option<u64>,
    busy: bool,
    /// How much its conversation was told when it was last taken up.
    verbosity: Option<Verbosity>,
}

type Marks = BTreeMap<BindingId, Mark>;

/// Delivers until `stop`.
pub(crate) async fn run(
    store: Store,
    channels: Channels,
    live: Live,
    metrics: Metrics,
    stop: CancellationToken,
) {
    let mut committed = store.committed();
    let mut tasks = Tasks::default();
    let mut marks = Marks::new();
    let mut sweep = tokio::time::interval(Duration::from_millis(SWEEP_MS));
    let mut tidy = tokio::time::interval(Duration::from_millis(TIDY_MS));
    tidy.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut tidied = 0;
    let mut gather = Duration::from_millis(GATHER_MS);
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => break,
            _ = sweep.tick() => add_owing(&store, &mut marks).await,
            _ = tidy.tick() => if !look_again(&store, &mut marks, &mut tidied).await { continue },
            changed = committed.changed() => if changed.is_err() { break },
            Some(done) = tasks.set.join_next_with_id() => tasks.note(done, &mut marks, &stop),
        }
        tokio::select! {
            biased;
            () = stop.cancelled() => break,
            () = tokio::time::sleep(gather) => {}
        }
        while let Some(done) = tasks.set.try_join_next_with_id() {
            tasks.note(done, &mut marks, &stop);
        }
        committed.mark_unchanged();
        let began = Instant::now();
        let found = look(&store, &marks).await;
        gather = rest(began.elapsed());
        for due in found {
            let mark = marks.entry(due.binding.binding_id).or_default();
            let is_behind = mark.cursor.is_none_or(|cursor| cursor < due.end);
            // What is said from now on is told in the new way: that must be recorded before more is said.
            let is_other = mark.verbosity != due.binding.verbosity;
            let is_over = due.binding.status == BindingStatus::Ended;
            let is_parked = due.binding.status == BindingStatus::Parked;
            if mark.busy || is_parked || !(is_behind || is_over || is_other) {
                continue;
            }
            *mark = Mark { busy: true, verbosity: due.binding.verbosity, ..*mark };
            let pass = Pass {
                store: store.clone(),
                channels: channels.clone(),
                live: live.clone(),
                metrics: metrics.clone(),
                stop: stop.clone(),
                retry_first_ms: RETRY_FIRST_MS,
            };
            let (id, cursor) = (due.binding.binding_id, mark.cursor);
            let around = tracing::info_span!(
                "delivery",
                session_key = %due.binding.session_key,
                channel = due.binding.conversation.channel,
                thread_id = due.binding.conversation.conversation_id,
            );
            tasks.spawn(id, async move { pass.run(due, cursor).await }.instrument(around));
        }
    }
    while tasks.set.join_next().await.is_some() {}
}

/// How long commits are gathered after a look that took so long.
fn rest(took: Duration) -> Duration {
    took.saturating_mul(REST_TIMES)
        .clamp(Duration::from_millis(GATHER_MS), Duration::from_millis(REST_MS_MAX))
}

async fn add_owing(store: &Store, marks: &mut Marks) {
    match store.read("delivery_owing", rows::owing).await {
        Ok(found) => {
            for due in found {
                marks.entry(due.binding.binding_id).or_default();
            }
        }
        Err(error) => tracing::warn!(%error, "delivery cannot look for ended bindings"),
    }
}

/// Where a card could not be folded, or a message could not be amended, that is tried again, also where nothing is
/// journaled any more. Cards each time; messages at some of the `times`, since they may be waiting for somebody for hours.
/// Whether there is such a one.
async fn look_again(store: &Store, marks: &mut Marks, times: &mut u32) -> bool {
    let is_more = times.is_multiple_of(TIDY_TIMES);
    *times = times.wrapping_add(1);
    let read = move |db: &_| {
        let mut found = card_rows::left_open(db, now_ms())?;
        if is_more {
            found.extend(buttons::bindings(db, now_ms())?);
        }
        Ok(found)
    };
    let found = store.read("delivery_open", read).await.unwrap_or_else(|error| {
        tracing::warn!(%error, "delivery cannot look for open cards and messages with buttons");
        Vec::new()
    });
    let is_any = !found.is_empty();
    for id in found {
        let mark = marks.entry(id).or_default();
        if !mark.busy {
            mark.cursor = None;
        }
    }
    is_any
}

async fn look(store: &Store, marks: &Marks) -> Vec<Due> {
    let known: Vec<BindingId> = marks.keys().copied().collect();
    store.read("delivery_look", move |db| rows::looked_after(db, &known)).await.unwrap_or_else(|error| {
        tracing::warn!(%error, "delivery cannot read the bindings");
        Vec::new()
    })
}

/// The tasks of bindings, each with the binding that it is about: also of one that ended out of order.
#[derive(Default)]
struct Tasks {
    set: JoinSet<Left>,
    of: HashMap<tokio::task::Id, BindingId>,
}

impl Tasks {
    fn spawn(&mut self, binding_id: BindingId, work: impl Future<Output = Left> + Send + 'static) {
        let id = self.set.spawn(work).id();
        self.of.insert(id, binding_id);
    }

    fn note(
        &mut self,
        done: Result<(tokio::task::Id, Left), tokio::task::JoinError>,
        marks: &mut Marks,
        stop: &CancellationToken,
    ) {
        let task = done.as_ref().map_or_else(tokio::task::JoinError::id, |(task, _)| *task);
        let Some(id) = self.of.remove(&task) else { return };
        match done {
            Ok((_, Left::Over)) => {
                marks.remove(&id);
            }
            Ok((_, Left::At(cursor))) => {
                let verbosity = marks.get(&id).and_then(|mark| mark.verbosity);
                marks.insert(id, Mark { cursor: Some(cursor), busy: false, verbosity });
            }
            Ok((_, Left::Unknown)) => {
                marks.insert(id, Mark::default());
            }
            // The others are not held up by it, and it is tried again: nothing is lost, it is all in the outbox.
            Err(error) => {
                tracing::error!(binding_id = %id, %error, "a delivery task ended out of order");
                let stop = stop.clone();
                self.spawn(id, async move {
                    tokio::select! {
                        biased;
                        () = stop.cancelled() => {}
                        () = tokio::time::sleep(Duration::from_millis(DISORDER_MS)) => {}
                    }
                    Left::Unknown
                });
            }
        }
    }
}

#[cfg(test)]
mod tests;
