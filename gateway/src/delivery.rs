//! Delivery: brings what journals say into the conversations that are bound to their sessions, in order, once.
//!
//! One task looks which bindings are behind; one task per binding that is behind does the work. A wake-up is only
//! a hint: everything is read from the journal and from the outbox, so that a crash anywhere is gone on from.

use crate::channel::{Channel, Channels, Lookup, Outgoing, SendOutcome};
use crate::core::event::EventKind;
use crate::core::project::{self, Digest, Need, Part};
use crate::core::rows::{BindingRow, BindingStatus};
use crate::metrics::Metrics;
use crate::store::delivery::{self as rows, Batch, Due, PartRow, PartState};
use crate::store::{Store, StoreError, now_ms};
use acp_shared::ids::BindingId;
use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

/// How long commits are gathered before the journals are looked at.
const GATHER_MS: u64 = 20;
/// How often ended bindings are looked for that still owe something.
const SWEEP_MS: u64 = 60_000;
/// First pause after a part was not taken; doubled each time.
const RETRY_FIRST_MS: u64 = 250;
/// Longest pause.
const RETRY_LAST_MS: u64 = 30_000;
/// How long a binding rests whose task ended out of order, in milliseconds.
const DISORDER_MS: u64 = 1_000;
/// How often a part is tried whose fate is unknown; then it stays `uncertain`, that is said, and the next one goes.
const UNCERTAIN_ATTEMPTS_MAX: u64 = 8;
/// After how many rows that are not shown the checkpoint moves all the same.
const SILENT_ROWS_MAX: u64 = 1_000;

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
}

type Marks = BTreeMap<BindingId, Mark>;

/// Delivers until `stop`.
pub(crate) async fn run(store: Store, channels: Channels, metrics: Metrics, stop: CancellationToken) {
    let mut committed = store.committed();
    let mut tasks = Tasks::default();
    let mut marks = Marks::new();
    let mut sweep = tokio::time::interval(Duration::from_millis(SWEEP_MS));
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => break,
            _ = sweep.tick() => add_owing(&store, &mut marks).await,
            changed = committed.changed() => if changed.is_err() { break },
            Some(done) = tasks.set.join_next_with_id() => tasks.note(done, &mut marks, &stop),
        }
        tokio::select! {
            () = stop.cancelled() => break,
            () = tokio::time::sleep(Duration::from_millis(GATHER_MS)) => {}
        }
        while let Some(done) = tasks.set.try_join_next_with_id() {
            tasks.note(done, &mut marks, &stop);
        }
        committed.mark_unchanged();
        for due in look(&store, &marks).await {
            let mark = marks.entry(due.binding.binding_id).or_default();
            let is_behind = mark.cursor.is_none_or(|cursor| cursor < due.end);
            let is_over = due.binding.status == BindingStatus::Ended;
            if mark.busy || !(is_behind || is_over) {
                continue;
            }
            mark.busy = true;
            let pass = Pass {
                store: store.clone(),
                channels: channels.clone(),
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
                marks.insert(id, Mark { cursor: Some(cursor), busy: false });
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
                        () = stop.cancelled() => {}
                        () = tokio::time::sleep(Duration::from_millis(DISORDER_MS)) => {}
                    }
                    Left::Unknown
                });
            }
        }
    }
}

/// One go at one binding.
struct Pass {
    store: Store,
    channels: Channels,
    metrics: Metrics,
    stop: CancellationToken,
    retry_first_ms: u64,
}

impl Pass {
    async fn run(&self, due: Due, cursor: Option<u64>) -> Left {
        let binding = due.binding;
        let Some(channel) = self.channels.get(&binding.conversation.channel).map(Arc::clone) else {
            tracing::warn!(channel = binding.conversation.channel, "delivery has no such channel");
            return Left::At(due.end);
        };
        match self.deliver(&binding, channel.as_ref(), cursor).await {
            Ok(left) => left,
            Err(error) => {
                tracing::warn!(session_key = %binding.session_key, %error, "delivery could not go on");
                self.pause(self.retry_first_ms * 4).await;
                Left::Unknown
            }
        }
    }

    async fn deliver(
        &self,
        binding: &BindingRow,
        channel: &dyn Channel,
        cursor: Option<u64>,
    ) -> Result<Left, StoreError> {
        let id = binding.binding_id;
        let saved = self.store.read("delivery_checkpoint", move |db| rows::checkpoint(db, id)).await?;
        let mut cursor = cursor.unwrap_or(saved).max(saved);
        let mut saved = saved;
        loop {
            if !self.send_unsettled(binding, channel).await? {
                return Ok(Left::Unknown);
            }
            let read = self.store.read("delivery_batch", move |db| {
                let Some(due) = rows::one(db, id)? else { return Ok(None) };
                let batch = rows::batch(db, &due.binding.session_key, cursor, due.end)?;
                Ok(Some((due, batch)))
            });
            let Some((due, batch)) = read.await? else { return Ok(Left::Over) };
            let owed = owed(&due, &batch);
            let parts = parts_of(&due.binding, channel, &batch, owed.last);
            cursor = batch.through;
            let is_over = owed.is_over;
            let ends_at = due.end;
            if parts.is_empty() {
                if is_over || cursor.saturating_sub(saved) >= SILENT_ROWS_MAX {
                    let through = if is_over { ends_at } else { cursor };
                    self.store
                        .write("delivery_advance", move |tx| rows::advance(tx, id, through, None))
                        .await?;
                    saved = through;
                }
                match (is_over, cursor >= ends_at) {
                    (true, _) => return Ok(Left::Over),
                    (false, true) => return Ok(Left::At(cursor)),
                    (false, false) => {}
                }
            } else {
                let binding = due.binding;
                self.store.write("delivery_plan", move |tx| rows::plan(tx, &binding, &parts)).await?;
                if is_over {
                    // What was planned goes out first; the next look finds nothing more and ends it.
                    cursor = ends_at;
                }
            }
        }
    }

    /// Sends what is planned, in order. False when it was stopped.
    async fn send_unsettled(&self, binding: &BindingRow, channel: &dyn Channel) -> Result<bool, StoreError> {
        let id = binding.binding_id;
        loop {
            let list = self.store.read("delivery_unsettled", move |db| rows::unsettled(db, id)).await?;
            if list.is_empty() {
                return Ok(true);
            }
            for row in list {
                if !self.send_one(binding, channel, row).await? {
                    return Ok(false);
                }
            }
        }
    }

    /// Sends one part until something became of it. False when it was stopped before.
    async fn send_one(
        &self,
        binding: &BindingRow,
        channel: &dyn Channel,
        row: PartRow,
    ) -> Result<bool, StoreError> {
        let part = row.part;
        let message = Outgoing {
            kind: part.kind,
            text: part.text.clone(),
            nonce: part.nonce.clone(),
            session_key: Some(binding.session_key.clone()),
            run_id: part.run_id,
        };
        let mut is_unknown = row.state == PartState::Sending;
        let mut attempts = row.attempts;
        let mut pause_ms = self.retry_first_ms;
        loop {
            if self.stop.is_cancelled() {
                return Ok(false);
            }
            if attempts > 0 {
                self.metrics.delivery_retry(channel.id());
            }
            let outcome = self.attempt(binding, channel, &message, is_unknown).await?;
            attempts += 1;
            self.metrics.delivery_attempt(channel.id(), outcome.as_str());
            match outcome {
                SendOutcome::Sent { message_id } => {
                    let journaled_at_ms =
                        self.settle(binding, &part, PartState::Sent, Some(message_id)).await?;
                    if let Some(at_ms) = journaled_at_ms {
                        self.metrics.delivered(channel.id(), now_ms().saturating_sub(at_ms));
                    }
                    return Ok(true);
                }
                SendOutcome::Rejected { why, again: false } => {
                    tracing::error!(session_key = %binding.session_key, nonce = part.nonce, why, "a part was rejected");
                    self.settle(binding, &part, PartState::Rejected, None).await?;
                    return Ok(true);
                }
                SendOutcome::Rejected { why, again: true } => {
                    tracing::warn!(session_key = %binding.session_key, nonce = part.nonce, why, "a part was not taken");
                    is_unknown = false;
                    self.settle(binding, &part, PartState::Planned, None).await?;
                }
                SendOutcome::Limited { retry_after_ms } => {
                    tracing::info!(session_key = %binding.session_key, nonce = part.nonce, retry_after_ms, "a part waits for the channel");
                    is_unknown = false;
                    self.settle(binding, &part, PartState::Planned, None).await?;
                    self.pause(retry_after_ms).await;
                    continue;
                }
                SendOutcome::Uncertain { why } if attempts >= UNCERTAIN_ATTEMPTS_MAX => {
                    tracing::error!(session_key = %binding.session_key, nonce = part.nonce, why, "a part stays uncertain");
                    self.settle(binding, &part, PartState::Uncertain, None).await?;
                    return Ok(true);
                }
                SendOutcome::Uncertain { why } => {
                    tracing::warn!(session_key = %binding.session_key, nonce = part.nonce, why, "a part is uncertain");
                    is_unknown = true;
                }
            }
            self.pause(pause_ms).await;
            pause_ms = (pause_ms * 2).min(RETRY_LAST_MS);
        }
    }

    /// One attempt; a part whose fate is unknown is looked for first.
    async fn attempt(
        &self,
        binding: &BindingRow,
        channel: &dyn Channel,
        message: &Outgoing,
        is_unknown: bool,
    ) -> Result<SendOutcome, StoreError> {
        let nonce = message.nonce.clone();
        self.store.write("delivery_begin", move |tx| rows::begin(tx, &nonce)).await?;
        if is_unknown {
            match channel.lookup(&binding.conversation, message).await {
                Lookup::Found { message_id } => return Ok(SendOutcome::Sent { message_id }),
                Lookup::Unknown { why } => return Ok(SendOutcome::Uncertain { why }),
                Lookup::Absent => {}
            }
        }
        Ok(channel.send(&binding.conversation, message).await)
    }

    /// Commits what became of a part. When the row that it shows was journaled.
    async fn settle(
        &self,
        binding: &BindingRow,
        part: &Part,
        state: PartState,
        message_id: Option<String>,
    ) -> Result<Option<u64>, StoreError> {
        let (binding, part) = (binding.clone(), part.clone());
        let settle = move |tx: &crate::store::Tx<'_>| {
            if state == PartState::Uncertain
                && let Some(notice) = project::unsure(binding.binding_id, &part)
            {
                rows::plan(tx, &binding, &[notice])?;
            }
            rows::settle(tx, &binding, &part, state, message_id.as_deref())?;
            rows::journaled_at(tx, &binding.session_key, part.session_seq)
        };
        self.store.write("delivery_settle", settle).await
    }

    async fn pause(&self, ms: u64) {
        tokio::select! {
            () = self.stop.cancelled() => {}
            () = tokio::time::sleep(Duration::from_millis(ms)) => {}
        }
    }
}

/// How far a conversation is told.
struct Owed {
    /// Number of the last row that it is told.
    last: u64,
    /// Whether the binding ended and this batch holds everything that it still owes.
    is_over: bool,
}

/// An active binding is told everything. One that was unbound is told what had happened by then; one whose session
/// was closed is told everything up to that.
fn owed(due: &Due, batch: &Batch) -> Owed {
    if due.binding.status != BindingStatus::Ended {
        return Owed { last: u64::MAX, is_over: false };
    }
    let unbound_at = serde_json::from_str::<serde_json::Value>(&due.binding.metadata)
        .ok()
        .and_then(|metadata| metadata["end_session_seq"].as_u64());
    let closed_at = batch.rows.iter().find(|row| row.kind == EventKind::Closed).map(|row| row.session_seq);
    let last = [unbound_at, closed_at].into_iter().flatten().min().unwrap_or(u64::MAX);
    Owed { last, is_over: batch.through >= last.min(due.end) }
}

/// The parts of a batch, in order.
fn parts_of(binding: &BindingRow, channel: &dyn Channel, batch: &Batch, last: u64) -> Vec<Part> {
    let shown = batch.rows.iter().filter(|row| row.session_seq <= last);
    shown
        .flat_map(|row| {
            let digest = match project::need(row) {
                Need::Nothing => Digest::Nothing,
                Need::Run(run_id) => batch.runs.get(&run_id).map_or(Digest::Nothing, Digest::Run),
                Need::Next => batch.next.get(&row.session_seq).map_or(Digest::Nothing, Digest::Next),
            };
            project::project(binding.binding_id, channel.limit(), row, digest)
        })
        .collect()
}

#[cfg(test)]
mod tests;
