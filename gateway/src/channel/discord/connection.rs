//! Websocket connection that delivers events.

use super::identify_slots::PlaneIdentifySlots;
use super::{AccountSettings, Inner};
use acp_core::shards::ShardRange;
use acp_discord::core::event::Event;
use acp_discord::websocket::{self, EventReceiver, IdentifySlots, ShardSet};
use acp_shared::redact::Secret;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::{CancellationToken, DropGuard};

/// Maximum number of waiting events; a further event causes a gap and thus a backfill.
const EVENTS_MAX: usize = 4_096;
/// Maximum wait for each remaining event of a connection that is being closed.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

/// Connection; closed on drop.
pub(super) struct EventConnection {
    events: EventReceiver,
    /// True if more events may arrive.
    is_open: bool,
    token: Secret,
    shards: Option<ShardRange>,
    end: Option<DropGuard>,
}

impl EventConnection {
    /// Opens a connection with the live settings.
    pub(super) fn connect(inner: &Inner) -> Self {
        let now = inner.settings();
        if now.access.allowed.is_empty() && now.access.approvers.is_empty() {
            tracing::warn!(
                account = inner.account,
                hint = "set allowed_users or allowed_roles of the account",
                "no user or role is authorized"
            );
        }
        let shards = now.access.shards;
        let slots = shards.zip(inner.plane.clone()).map(|(range, plane)| {
            let slots = PlaneIdentifySlots::new(&inner.account, plane, range, inner.rest.clone());
            Arc::new(slots) as Arc<dyn IdentifySlots>
        });
        let stop = CancellationToken::new();
        let (sink, events) = websocket::event_channel(EVENTS_MAX);
        let settings = websocket::SessionSettings {
            token: now.token.clone(),
            base: inner.base.clone(),
            ready_timeout: websocket::READY_TIMEOUT,
            counts: Arc::clone(&inner.counts),
            shards: shards.map(|range| ShardSet { numbers: range.shards(), count: range.of }),
            slots,
        };
        tokio::spawn(websocket::run(settings, stop.clone(), sink));
        Self { events, is_open: true, token: now.token.clone(), shards, end: Some(stop.drop_guard()) }
    }

    /// Returns the next event. Waits forever after a permanent failure, which is itself reported as an event.
    pub(super) async fn next(&mut self) -> Event {
        if self.is_open {
            match self.events.next().await {
                Some(event) => return event,
                None => self.is_open = false,
            }
        }
        std::future::pending().await
    }

    /// True if the connection has failed for good, or was opened with another token or range of shards.
    pub(super) fn is_unusable_with(&self, settings: &AccountSettings) -> bool {
        !self.is_open || self.token != settings.token || self.shards != settings.access.shards
    }

    /// Closes the connection. Events received before are still available through [`EventConnection::drain`].
    pub(super) fn close(&mut self) {
        self.end = None;
    }

    /// Returns the next remaining event of a closed connection; `None` after the last one or the time limit.
    pub(super) async fn drain(&mut self) -> Option<Event> {
        tokio::time::timeout(DRAIN_TIMEOUT, self.events.next()).await.ok().flatten()
    }
}

#[cfg(test)]
impl EventConnection {
    /// Creates a connection with the token and the shards of these settings, and with these events.
    pub(super) fn of(settings: &AccountSettings, events: EventReceiver) -> Self {
        let (token, shards) = (settings.token.clone(), settings.access.shards);
        Self { events, is_open: true, token, shards, end: None }
    }
}
