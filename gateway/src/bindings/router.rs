//! The one way to find a destination: reads what is bound, has `core/route.rs` decide, counts and logs the outcome with
//! its reason. It never sees what is to be said, and it has no way to send anything.
//!
//! Source: seed 003 "one core delivery router", seed 000 "Duplicate delivery arbitration".

use crate::channel::Channels;
use crate::core::route::{self, Question, Route, Target};
use crate::core::rows::{BindingRow, ConversationRef};
use crate::metrics::Metrics;
use crate::store::{Store, StoreError, bindings, now_ms};
use acp_shared::ids::SessionKey;

/// From a conversation to a session.
const INBOUND: &str = "inbound";
/// From a session to a conversation.
const OUTBOUND: &str = "outbound";

/// Finds destinations. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct BoundDeliveryRouter {
    store: Store,
    channels: Channels,
    metrics: Metrics,
}

/// Where a person's message goes, and the binding that was looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Arrival {
    /// Where it goes.
    pub(crate) route: Route,
    /// The conversation's binding, with what is known of its session.
    pub(crate) binding: Option<(BindingRow, Target)>,
}

impl BoundDeliveryRouter {
    /// Over this control plane and these adapters.
    pub(crate) const fn new(store: Store, channels: Channels, metrics: Metrics) -> Self {
        Self { store, channels, metrics }
    }

    /// Whether what is said in a conversation stays as it is: then what becomes of it is told by messages of their own.
    pub(crate) fn never_changes(&self, at: &ConversationRef) -> bool {
        self.channels.get(at).is_ok_and(|channel| !channel.can_edit())
    }

    /// Whether Markdown is read in a conversation.
    pub(crate) fn reads_markdown(&self, at: &ConversationRef) -> bool {
        self.channels.get(at).is_ok_and(|channel| channel.reads_markdown())
    }

    /// Where a message of a conversation goes.
    ///
    /// # Errors
    /// As [`Store::read`].
    pub(crate) async fn arrival(&self, at: &ConversationRef) -> Result<Arrival, StoreError> {
        let arrival = self.look(at).await?;
        self.note(INBOUND, &arrival.route);
        Ok(arrival)
    }

    /// Where a message of a conversation would go, for those who only look.
    ///
    /// # Errors
    /// As [`Store::read`].
    pub(crate) async fn look(&self, at: &ConversationRef) -> Result<Arrival, StoreError> {
        let binding = super::resolve_by_conversation(&self.store, at).await?;
        let route = match self.channels.get(at) {
            Ok(channel) => {
                let known = binding.as_ref().map(|(binding, target)| (binding, *target));
                route::inbound(known, channel.normal(), now_ms())
            }
            Err(error) => Route::Refused { failure: error.into(), reason: "adapter-unavailable" },
        };
        Ok(Arrival { route, binding })
    }

    /// Where what a session has to say goes, when it goes to one conversation; `requester` is where it was asked for.
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
        let question = Question { session_key: Some(session_key), session, bindings: &bindings, requester };
        let route = route::resolve(question, |at| self.channels.serves(at));
        self.note(OUTBOUND, &route);
        Ok(route)
    }

    /// Which conversation it was is in the span of the message that asks.
    fn note(&self, direction: &'static str, route: &Route) {
        let (outcome, reason) = (route.outcome(), route.reason());
        self.metrics.route(direction, outcome, reason);
        let session_key = match route {
            Route::Bound { session_key, .. } => Some(session_key),
            Route::Unbound { .. } | Route::Refused { .. } => None,
        };
        let session_key = session_key.map(tracing::field::display);
        if direction == INBOUND {
            tracing::info!(session_key, outcome, reason, "a message was routed");
        } else {
            tracing::info!(session_key, outcome, reason, "an answer was routed");
        }
    }
}
