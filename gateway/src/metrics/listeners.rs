//! Metrics of the API's listeners.

use super::{CounterFamily, GaugeFamily, Metrics, OpenCount, add, count, labels};
use prometheus_client::registry::Registry;

/// Metrics by listener: `unix`, `tcp` or `proxy`.
#[derive(Debug)]
pub(super) struct ListenerFamilies {
    pub(super) connections: CounterFamily,
    pub(super) open: GaugeFamily,
    pub(super) refusals: CounterFamily,
}

impl ListenerFamilies {
    pub(super) fn register(all: &mut Registry) -> Self {
        Self {
            connections: add(all, "api_connections", "Connections to the API, by listener"),
            open: add(all, "api_connections_open", "Open connections to the API, by listener"),
            refusals: add(all, "api_refusals", "Refused connections and requests, by listener and reason"),
        }
    }
}

impl Metrics {
    /// Counts a connection to a listener.
    pub(crate) fn api_connection(&self, listener: &'static str) -> OpenCount {
        let families = &self.inner.listeners;
        count(&families.connections, [("listener", listener)]);
        OpenCount::of(families.open.get_or_create_owned(&labels([("listener", listener)])))
    }

    /// Counts a refused connection or request.
    pub(crate) fn api_refused(&self, listener: &'static str, reason: &'static str) {
        count(&self.inner.listeners.refusals, [("listener", listener), ("reason", reason)]);
    }
}
