//! The connection that events come by, and its exchange for another one.

use super::Inner;
use acp_discord::core::event::Event;
use acp_discord::session::{self, Events};
use acp_shared::redact::Secret;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::{CancellationToken, DropGuard};

/// Events that may wait; what comes then is a gap, and is read again.
const EVENTS_MAX: usize = 4_096;
/// How long a connection that is told to end may take to say so. What it had brought by then is taken all the same.
const LAST: Duration = Duration::from_secs(2);

/// A connection, which ends with this.
pub(super) struct Line {
    events: Events,
    /// Whether something may still come.
    is_open: bool,
    token: Secret,
    end: Option<DropGuard>,
}

impl Line {
    /// Begins a connection with the settings of now.
    pub(super) fn open(inner: &Inner) -> Self {
        let now = inner.settings();
        if now.door.allowed.is_empty() && now.door.approvers.is_empty() {
            tracing::warn!(
                account = inner.account,
                "nobody may speak to agents here: name users or roles in channels.discord.accounts.{}.allowed_users",
                inner.account
            );
        }
        let stop = CancellationToken::new();
        let (sink, events) = session::pipe(EVENTS_MAX);
        let settings = session::Settings {
            token: now.token.clone(),
            base: inner.base.clone(),
            direct_messages: false,
            shards: None,
            answer_within: session::ANSWER_WITHIN,
            counts: Arc::clone(&inner.counts),
        };
        tokio::spawn(session::run(settings, stop.clone(), sink));
        Self { events, is_open: true, token: now.token.clone(), end: Some(stop.drop_guard()) }
    }

    /// The next event. When it failed for good, which it has said, there is none for ever.
    pub(super) async fn next(&mut self) -> Event {
        if self.is_open {
            match self.events.next().await {
                Some(event) => return event,
                None => self.is_open = false,
            }
        }
        std::future::pending().await
    }

    /// Whether it is over for good, or was begun with another token than this.
    pub(super) fn is_no_use_with(&self, token: &Secret) -> bool {
        !self.is_open || self.token != *token
    }

    /// Ends it. What it brought until then is still to be taken, by [`Line::last`].
    pub(super) fn end(&mut self) {
        self.end = None;
    }

    /// The next of the events that one that was ended had brought; none when all of them were taken.
    pub(super) async fn last(&mut self) -> Option<Event> {
        tokio::time::timeout(LAST, self.events.next()).await.ok().flatten()
    }
}

#[cfg(test)]
impl Line {
    /// One that was begun with this token, and brings these events.
    pub(super) fn of(token: Secret, events: Events) -> Self {
        Self { events, is_open: true, token, end: None }
    }
}
