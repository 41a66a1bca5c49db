//! Delivery: sends journal rows to the conversations that are bound to their sessions, in order, exactly
//! once.
//!
//! One task finds bindings with undelivered rows; one task per such binding does the work, and stays as long
//! as a status card is live ([`status_card`]). A scan reads the bindings of the sessions that changed since the last
//! one. A round, at the start and each minute, reads all bindings, a page with each scan. Everything is read from the
//! journal and the outbox, so that delivery resumes after a crash at any point.

mod attachments;
mod attempt;
mod retry;
mod side_effects;
mod status_card;
mod worker;

use crate::channel::Channels;
use crate::config::LiveConfig;
use crate::metrics::Metrics;
use acp_core::rows::{BindingStatus, Verbosity};
use acp_shared::ids::BindingId;
use acp_store::delivery::{self as rows, BindingPage, DueBinding};
use acp_store::interactive_messages;
use acp_store::{Store, cards as card_rows};
use side_effects::ButtonAttempts;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::future::Future;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;
use worker::DeliveryWorker;

/// Minimum delay between a commit and the next scan of the journals, in milliseconds.
const SCAN_MS_MIN: u64 = 20;
/// Delay before the next scan, as a multiple of the duration of the last one: bounds the processor share of
/// scans with thousands of busy bindings …
const SCAN_INTERVAL_FACTOR: u32 = 4;
/// … up to this maximum, in milliseconds.
const SCAN_MS_MAX: u64 = 500;
/// Interval of a round of all bindings, and of the ended ones with pending rows, in milliseconds. A longer round
/// is not interrupted.
const ROUND_MS: u64 = 60_000;
/// Maximum number of bindings of a round that one scan reads.
const ROUND_BINDINGS_MAX: u64 = 500;
/// Interval of retries for cards that could not be finalized, in milliseconds.
const EDIT_RETRY_MS: u64 = 2_000;
/// Messages with buttons are checked at every n-th of these intervals.
const BUTTON_CHECK_EVERY: u32 = 5;
/// First retry delay after a failed attempt, in milliseconds; doubled each time.
const RETRY_FIRST_MS: u64 = 250;
/// Delay before a binding whose task panicked is retried, in milliseconds.
const PANIC_RETRY_MS: u64 = 1_000;

/// Result of a binding's task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WorkerExit {
    /// Everything up to this row number was processed.
    At(u64),
    /// The binding has ended and has nothing pending.
    Over,
    /// The task was stopped or failed: check the binding again.
    Unknown,
}

/// State of a binding between its tasks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct BindingCursor {
    cursor: Option<u64>,
    busy: bool,
    /// Verbosity when the last task was started.
    verbosity: Option<Verbosity>,
    /// Number of the last round that found the binding.
    round: u32,
}

impl BindingCursor {
    /// True if a worker must be started for the binding.
    fn needs_worker(&self, due: &DueBinding) -> bool {
        let is_behind = self.cursor.is_none_or(|cursor| cursor < due.end);
        // A new verbosity applies to later rows, so it must be recorded before more rows are journaled.
        let is_other = self.verbosity != due.binding.verbosity;
        let is_over = due.binding.status == BindingStatus::Ended;
        let is_parked = due.binding.status == BindingStatus::Parked;
        !self.busy && !is_parked && (is_behind || is_over || is_other)
    }
}

type BindingCursors = BTreeMap<BindingId, BindingCursor>;

/// Delivers until `stop`.
pub(crate) async fn run(
    store: Store,
    channels: Channels,
    live: LiveConfig,
    metrics: Metrics,
    stop: CancellationToken,
) {
    let mut committed = store.committed();
    let mut tasks = Tasks::default();
    let mut cursors = BindingCursors::new();
    let mut scope = ScanScope::default();
    let mut round = tokio::time::interval(Duration::from_millis(ROUND_MS));
    let mut edit_retry = tokio::time::interval(Duration::from_millis(EDIT_RETRY_MS));
    edit_retry.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut edit_ticks = 0;
    let worker = DeliveryWorker {
        store: store.clone(),
        channels,
        live,
        metrics,
        stop: stop.clone(),
        retry_first_ms: RETRY_FIRST_MS,
        button_attempts: ButtonAttempts::default(),
    };
    let mut scan_pause = Duration::from_millis(SCAN_MS_MIN);
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => break,
            _ = round.tick() => {
                scope.begin_round();
                scope.bindings.extend(add_ended_bindings(&store, &mut cursors).await);
            }
            _ = edit_retry.tick() => {
                let is_due = worker.button_attempts.is_any_due();
                let pending = find_pending_edits(&store, &mut edit_ticks, is_due).await;
                if pending.is_empty() { continue }
                scope.mark_pending_edits(&pending, &mut cursors);
            }
            changed = committed.changed() => if changed.is_err() { break },
            Some(done) = tasks.set.join_next_with_id() =>
                scope.bindings.extend(tasks.record_exit(done, &mut cursors, &stop)),
            () = std::future::ready(()), if scope.goes_on => {}
        }
        tokio::select! {
            biased;
            () = stop.cancelled() => break,
            () = tokio::time::sleep(scan_pause) => {}
        }
        while let Some(done) = tasks.set.try_join_next_with_id() {
            scope.bindings.extend(tasks.record_exit(done, &mut cursors, &stop));
        }
        committed.mark_unchanged();
        let began = Instant::now();
        let found = scope.load_due_bindings(&store, &cursors).await;
        scan_pause = scan_interval(began.elapsed());
        for due in found {
            let state = cursors.entry(due.binding.binding_id).or_default();
            state.round = scope.round;
            if !state.needs_worker(&due) {
                continue;
            }
            *state = BindingCursor { busy: true, verbosity: due.binding.verbosity, ..*state };
            tasks.start(worker.clone(), due, state.cursor);
        }
    }
    while tasks.set.join_next().await.is_some() {}
}

/// Returns the delay before the next scan, given the duration of the last one.
fn scan_interval(took: Duration) -> Duration {
    took.saturating_mul(SCAN_INTERVAL_FACTOR)
        .clamp(Duration::from_millis(SCAN_MS_MIN), Duration::from_millis(SCAN_MS_MAX))
}

/// Adds the ended bindings with pending rows, and returns them.
async fn add_ended_bindings(store: &Store, cursors: &mut BindingCursors) -> Vec<BindingId> {
    let found = store.read("delivery_owing", rows::ended_with_pending).await.unwrap_or_else(|error| {
        tracing::warn!(%error, "delivery scan of ended bindings failed");
        Vec::new()
    });
    let ids: Vec<BindingId> = found.into_iter().map(|due| due.binding.binding_id).collect();
    for id in &ids {
        cursors.entry(*id).or_default();
    }
    ids
}

/// Finds bindings whose card could not be finalized or whose messages have buttons, which may be obsolete, even
/// if their journal is idle. Cards on every call, messages on every `BUTTON_CHECK_EVERY`th, or if another
/// attempt is due.
async fn find_pending_edits(store: &Store, times: &mut u32, is_due: bool) -> Vec<BindingId> {
    let is_more = is_due || times.is_multiple_of(BUTTON_CHECK_EVERY);
    *times = times.wrapping_add(1);
    let now_ms = store.clock().wall_ms();
    let read = move |db: &_| {
        let mut found = card_rows::due_folds(db, now_ms)?;
        if is_more {
            found.extend(interactive_messages::bindings(db)?);
        }
        Ok(found)
    };
    store.read("delivery_open", read).await.unwrap_or_else(|error| {
        tracing::warn!(%error, "delivery scan of open cards and buttons failed");
        Vec::new()
    })
}

/// Bindings that the next scan reads, besides those of sessions that changed since the last one.
#[derive(Debug, Default)]
struct ScanScope {
    /// Number of the last round.
    round: u32,
    /// Position of the round's next page; `None` if no round is going on.
    round_after: Option<u64>,
    /// True if the next scan does not wait for a change.
    goes_on: bool,
    /// These bindings: their task ended, they have ended with pending rows, or edits are pending.
    bindings: BTreeSet<BindingId>,
}

impl ScanScope {
    /// Begins a round, unless one is going on.
    fn begin_round(&mut self) {
        if self.round_after.is_none() {
            self.restart_round();
        }
    }

    fn restart_round(&mut self) {
        self.round += 1;
        self.round_after = Some(0);
    }

    /// Adds the bindings with a cursor that are on no page of the round, up to its last page: parked and ended ones.
    fn add_missed(&mut self, last: &[DueBinding], cursors: &BindingCursors) {
        let last: BTreeSet<BindingId> = last.iter().map(|due| due.binding.binding_id).collect();
        let missed = cursors.iter().filter(|(id, state)| state.round != self.round && !last.contains(id));
        self.bindings.extend(missed.map(|(id, _)| *id));
    }

    fn mark_pending_edits(&mut self, pending: &[BindingId], cursors: &mut BindingCursors) {
        for id in pending {
            let state = cursors.entry(*id).or_default();
            if !state.busy {
                state.cursor = None;
            }
            self.bindings.insert(*id);
        }
    }

    /// Reads the bindings in scope, and empties the scope except for the rest of a round. A failed read begins a new round.
    async fn load_due_bindings(&mut self, store: &Store, cursors: &BindingCursors) -> Vec<DueBinding> {
        let (round_after, mut bindings) = (self.round_after, std::mem::take(&mut self.bindings));
        let sessions = store.take_changed();
        let read = move |db: &_| {
            let page = match round_after {
                Some(after) => rows::delivering_bindings(db, after, ROUND_BINDINGS_MAX)?,
                None => BindingPage::default(),
            };
            let mut found = page.bindings;
            let of_page: BTreeSet<BindingId> = found.iter().map(|due| due.binding.binding_id).collect();
            for key in &sessions {
                let of_session = rows::bindings_of_session(db, key)?.into_iter();
                found.extend(of_session.filter(|due| !of_page.contains(&due.binding.binding_id)));
            }
            for due in &found {
                bindings.remove(&due.binding.binding_id);
            }
            for id in bindings {
                found.extend(rows::due_of_binding(db, id)?);
            }
            Ok((found, page.next_after))
        };
        let mut found = match store.read("delivery_look", read).await {
            Ok((found, next_after)) => {
                self.round_after = next_after;
                if round_after.is_some() && next_after.is_none() {
                    self.add_missed(&found, cursors);
                }
                self.goes_on = next_after.is_some() || !self.bindings.is_empty();
                found
            }
            Err(error) => {
                tracing::warn!(%error, "delivery scan of bindings failed");
                self.restart_round();
                self.goes_on = false;
                Vec::new()
            }
        };
        let is_live = |status| matches!(status, BindingStatus::Active | BindingStatus::Ending);
        found.retain(|due| is_live(due.binding.status) || cursors.contains_key(&due.binding.binding_id));
        found
    }
}

/// Tasks of bindings, with the binding of each, to find it after a panic too.
#[derive(Default)]
struct Tasks {
    set: JoinSet<WorkerExit>,
    of: HashMap<tokio::task::Id, BindingId>,
}

impl Tasks {
    /// Starts the work on a binding, from the number of the last processed row.
    fn start(&mut self, worker: DeliveryWorker, due: DueBinding, cursor: Option<u64>) {
        let id = due.binding.binding_id;
        let span = tracing::info_span!(
            "delivery",
            session_key = %due.binding.session_key,
            channel = due.binding.conversation.channel,
            thread_id = due.binding.conversation.conversation_id,
        );
        self.spawn(id, async move { worker.run(due, cursor).await }.instrument(span));
    }

    fn spawn(&mut self, binding_id: BindingId, work: impl Future<Output = WorkerExit> + Send + 'static) {
        let id = self.set.spawn(work).id();
        self.of.insert(id, binding_id);
    }

    /// Updates the cursor of a binding whose task ended. Returns the binding, which may have pending rows.
    fn record_exit(
        &mut self,
        done: Result<(tokio::task::Id, WorkerExit), tokio::task::JoinError>,
        cursors: &mut BindingCursors,
        stop: &CancellationToken,
    ) -> Option<BindingId> {
        let task = done.as_ref().map_or_else(tokio::task::JoinError::id, |(task, _)| *task);
        let id = self.of.remove(&task)?;
        match done {
            Ok((_, WorkerExit::Over)) => {
                cursors.remove(&id);
            }
            Ok((_, WorkerExit::At(cursor))) => {
                let state = cursors.entry(id).or_default();
                *state = BindingCursor { cursor: Some(cursor), busy: false, ..*state };
            }
            Ok((_, WorkerExit::Unknown)) => {
                let state = cursors.entry(id).or_default();
                *state = BindingCursor { round: state.round, ..BindingCursor::default() };
            }
            // Other bindings are not affected; nothing is lost, the outbox holds all for the retry.
            Err(error) => {
                tracing::error!(binding_id = %id, %error, "delivery task panicked; restarting");
                let stop = stop.clone();
                self.spawn(id, async move {
                    tokio::select! {
                        biased;
                        () = stop.cancelled() => {}
                        () = tokio::time::sleep(Duration::from_millis(PANIC_RETRY_MS)) => {}
                    }
                    WorkerExit::Unknown
                });
            }
        }
        Some(id)
    }
}

#[cfg(test)]
mod tests;
