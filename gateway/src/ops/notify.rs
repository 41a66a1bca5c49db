//! Webhooks: each target of `[[notify]]` gets the events of sessions, signed, in the order of the journal. Its position is
//! a row of the database that moves after a delivery, so an event is sent at least once, always with the same id. A target
//! that does not answer delays nobody but itself, and loses nothing.

mod request;
#[cfg(test)]
mod tests;

use acp_core::config::NotifyTarget;
use acp_core::config::load::LoadedConfig;
use acp_core::event::{EventKind, EventRow};
use acp_shared::backoff::Backoff;
use acp_shared::clock::Clock;
use acp_shared::codes::Code;
use acp_store::{Store, StoreError, events};
use request::WebhookSender;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Pauses between attempts.
const RETRY_BACKOFF: Backoff = Backoff::new(500, 300_000);
/// Time that a request under way has to end when the configuration is read again.
const REPLACED_WAIT: Duration = Duration::from_secs(2);
/// Maximum number of rows that one search reads.
const SEARCH_ROWS: u64 = 10_000;

/// Sends events to all targets until `stop`. Each reload of the configuration reads targets and secrets again; requests
/// that are under way have two seconds to end, and are repeated otherwise.
pub(crate) async fn run(
    store: Store,
    mut config: watch::Receiver<Arc<LoadedConfig>>,
    clock: Clock,
    stop: CancellationToken,
) {
    while !stop.is_cancelled() {
        let targets = config.borrow_and_update().config.notify.clone();
        let (tasks, replaced) = (TaskTracker::new(), stop.child_token());
        for target in targets {
            match WebhookSender::new(&target, store.identity().instance_id, clock) {
                Ok(sender) => {
                    let task = TargetTask::new(store.clone(), target, sender, stop.clone(), replaced.clone());
                    tasks.spawn(task.run());
                }
                Err(error) => {
                    tracing::error!(webhook = %target.name, %error, "webhook target cannot be used")
                }
            }
        }
        tokio::select! {
            () = stop.cancelled() => {}
            changed = config.changed() => if changed.is_err() { stop.cancelled().await },
        }
        replaced.cancel();
        tasks.close();
        tasks.wait().await;
    }
}

/// One target.
struct TargetTask {
    store: Store,
    name: String,
    kinds: Vec<EventKind>,
    sender: WebhookSender,
    /// Cancelled when the gateway stops.
    stop: CancellationToken,
    /// Cancelled when the configuration is read again, too.
    replaced: CancellationToken,
}

/// The gateway stops, or reads its configuration again.
struct Stopped;

impl TargetTask {
    fn new(
        store: Store,
        target: NotifyTarget,
        sender: WebhookSender,
        stop: CancellationToken,
        replaced: CancellationToken,
    ) -> Self {
        let kinds = target.events.iter().map(|event| event.kind()).collect();
        Self { store, name: target.name, kinds, sender, stop, replaced }
    }

    async fn run(self) {
        // Ends only with the gateway or the configuration.
        let Err(Stopped) = self.follow().await;
    }

    async fn follow(&self) -> Result<std::convert::Infallible, Stopped> {
        let mut committed = self.store.committed();
        let mut saved = self.retry("position", || self.store.webhook_cursor(self.name.clone())).await?;
        self.report_pruned(saved).await?;
        let mut cursor = saved;
        loop {
            // Between two events, and not before the position of the last one is saved.
            if self.replaced.is_cancelled() {
                return Err(Stopped);
            }
            committed.mark_unchanged();
            let search = || self.store.next_webhook_event(cursor, self.kinds.clone(), SEARCH_ROWS);
            let found = self.retry("search", search).await?;
            let read = found.read_to - cursor;
            cursor = found.read_to;
            let is_found = found.event.is_some();
            if let Some(event) = found.event {
                self.deliver(cursor, &event).await?;
            }
            // Without a delivery the position is saved now and then, so that a start has less to search.
            if is_found || cursor - saved >= SEARCH_ROWS {
                self.retry("position", || self.store.advance_webhook(self.name.clone(), cursor)).await?;
                saved = cursor;
            }
            if !is_found && read == 0 {
                tokio::select! {
                    () = self.replaced.cancelled() => return Err(Stopped),
                    changed = committed.changed() => changed.map_err(|_| Stopped)?,
                }
            }
        }
    }

    /// Reports a position whose next rows are pruned: the target was not in the configuration for longer than rows are
    /// kept. It gets the events that are left.
    async fn report_pruned(&self, position: u64) -> Result<(), Stopped> {
        let pruned = self.retry("position", || self.store.event_bounds()).await?.pruned;
        if let Err(error) = events::start(events::position(position), pruned) {
            let code = Code::CursorPruned.as_str();
            tracing::error!(webhook = %self.name, code, %error, "webhook misses pruned events");
        }
        Ok(())
    }

    /// Sends an event until the target has it.
    async fn deliver(&self, event_id: u64, event: &EventRow) -> Result<(), Stopped> {
        let mut backoff = RETRY_BACKOFF;
        let mut attempts = 0_u32;
        loop {
            attempts += 1;
            let replaced = async {
                self.replaced.cancelled().await;
                tokio::time::sleep(REPLACED_WAIT).await;
            };
            let sent = tokio::select! {
                () = self.stop.cancelled() => return Err(Stopped),
                () = replaced => return Err(Stopped),
                sent = self.sender.send(event_id, event) => sent,
            };
            let Err(error) = sent else {
                tracing::debug!(webhook = %self.name, event_id, attempts, "webhook delivered");
                return Ok(());
            };
            let pause = backoff.next_pause();
            tracing::warn!(webhook = %self.name, event_id, attempts, retry_in = ?pause, %error, "webhook failed");
            self.pause(pause).await?;
        }
    }

    /// Repeats a call of the store until it works.
    async fn retry<T, F: Future<Output = Result<T, StoreError>> + Send>(
        &self,
        what: &'static str,
        call: impl Fn() -> F + Send + Sync,
    ) -> Result<T, Stopped> {
        let mut backoff = RETRY_BACKOFF;
        loop {
            match call().await {
                Ok(found) => return Ok(found),
                Err(StoreError::Closed) => return Err(Stopped),
                Err(error) => {
                    tracing::warn!(webhook = %self.name, what, %error, "webhook waits for the database");
                    self.pause(backoff.next_pause()).await?;
                }
            }
        }
    }

    async fn pause(&self, time: Duration) -> Result<(), Stopped> {
        tokio::select! {
            () = self.replaced.cancelled() => Err(Stopped),
            () = tokio::time::sleep(time) => Ok(()),
        }
    }
}
