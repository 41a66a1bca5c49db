//! The only place that finds destinations: reads bindings, calls `core/route.rs` for the decision, and counts
//! and logs the outcome with its reason. It does not see message content and cannot send anything.
//!
//! Source: seed 003 "one core delivery router", seed 000 "Duplicate delivery arbitration".

use crate::channel::Channels;
use crate::metrics::Metrics;
use acp_core::binding::BoundSession;
use acp_core::route::{self, OutboundContext, Route};
use acp_core::rows::{BindingRow, ConversationRef};
use acp_shared::ids::SessionKey;
use acp_store::{Store, StoreError, bindings};

/// Direction from a conversation to a session.
const INBOUND: &str = "inbound";
/// Direction from a session to a conversation.
const OUTBOUND: &str = "outbound";

/// Finds destinations. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct BoundDeliveryRouter {
    store: Store,
    channels: Channels,
    metrics: Metrics,
}

/// Destination of a user's message, and the binding that it was derived from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct InboundRoute {
    /// Destination.
    pub(crate) route: Route,
    /// The conversation's binding, with the state of its session.
    pub(crate) binding: Option<(BindingRow, BoundSession)>,
}

impl BoundDeliveryRouter {
    /// Creates a router over this store and these adapters.
    pub(crate) const fn new(store: Store, channels: Channels, metrics: Metrics) -> Self {
        Self { store, channels, metrics }
    }

    /// True if messages of the conversation cannot be edited; progress is then reported in separate messages.
    pub(crate) fn has_no_edits(&self, at: &ConversationRef) -> bool {
        self.channels.get(at).is_ok_and(|channel| !channel.properties().can_edit)
    }

    /// True if the conversation renders Markdown.
    pub(crate) fn renders_markdown(&self, at: &ConversationRef) -> bool {
        self.channels.get(at).is_ok_and(|channel| channel.properties().renders_markdown)
    }

    /// Returns the destination of a message of a conversation, and counts and logs the decision.
    ///
    /// # Errors
    /// As [`Store::read`].
    pub(crate) async fn route_inbound(&self, at: &ConversationRef) -> Result<InboundRoute, StoreError> {
        let arrival = self.peek_inbound(at).await?;
        self.record(INBOUND, &arrival.route);
        Ok(arrival)
    }

    /// Like `route_inbound`, but without counting or logging, for diagnostics.
    ///
    /// # Errors
    /// As [`Store::read`].
    pub(crate) async fn peek_inbound(&self, at: &ConversationRef) -> Result<InboundRoute, StoreError> {
        let binding = super::resolve_by_conversation(&self.store, at).await?;
        let route = match self.channels.get(at) {
            Ok(channel) => {
                let known = binding.as_ref().map(|(binding, target)| (binding, *target));
                let now_ms = self.store.clock().wall_ms();
                route::route_inbound(known, channel.properties().unbound_destination, now_ms)
            }
            Err(error) => Route::Refused { failure: error.into(), reason: "adapter-unavailable" },
        };
        Ok(InboundRoute { route, binding })
    }

    /// Returns the destination of a session's output, if it goes to one conversation; `requester` is the
    /// conversation that requested it.
    ///
    /// # Errors
    /// As [`Store::read`].
    pub(crate) async fn resolve(
        &self,
        session_key: &SessionKey,
        requester: Option<&ConversationRef>,
    ) -> Result<Route, StoreError> {
        let key = session_key.clone();
        let read = self
            .store
            .read("route", move |db| Ok((bindings::target(db, &key)?, bindings::of_session(db, &key)?)));
        let (session, bindings) = read.await?;
        let question =
            OutboundContext { session_key: Some(session_key), session, bindings: &bindings, requester };
        let route = route::route_outbound(question, |at| self.channels.has_adapter(at));
        self.record(OUTBOUND, &route);
        Ok(route)
    }

    /// Counts and logs a decision. The conversation itself is in the span of the request.
    fn record(&self, direction: &'static str, route: &Route) {
        let (outcome, reason) = (route.outcome(), route.reason());
        self.metrics.route(direction, outcome, reason);
        let session_key = match route {
            Route::Bound { session_key, .. } => Some(session_key),
            Route::Unbound { .. } | Route::Refused { .. } => None,
        };
        let session_key = session_key.map(tracing::field::display);
        if direction == INBOUND {
            tracing::info!(session_key, outcome, reason, "inbound message routed");
        } else {
            tracing::info!(session_key, outcome, reason, "outbound message routed");
        }
    }
}
