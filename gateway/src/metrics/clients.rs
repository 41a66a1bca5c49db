//! Metrics of ACP clients.

use super::{CounterFamily, Metrics, OpenCount, add, count};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// Metrics of the connections of ACP clients.
#[derive(Debug)]
pub(super) struct ClientFamilies {
    connections: Counter,
    open: Gauge,
    streams: Gauge,
    pub(super) resumes: CounterFamily,
    pub(super) ends: CounterFamily,
}

impl ClientFamilies {
    pub(super) fn register(all: &mut Registry) -> Self {
        Self {
            connections: add(all, "clients", "Initialized ACP clients"),
            open: add(all, "clients_open", "ACP clients whose connection has not ended"),
            streams: add(all, "client_streams_open", "Open streams of ACP clients"),
            resumes: add(all, "client_resumes", "Streams and sessions that ACP clients continued"),
            ends: add(all, "client_ends", "Ended connections of ACP clients, by reason"),
        }
    }
}

impl Metrics {
    /// Counts a client until the result is dropped.
    pub(crate) fn client(&self) -> OpenCount {
        self.inner.clients.connections.inc();
        OpenCount::of(self.inner.clients.open.clone())
    }

    /// Counts a stream of a client until the result is dropped.
    pub(crate) fn client_stream(&self) -> OpenCount {
        OpenCount::of(self.inner.clients.streams.clone())
    }

    /// Counts a continued `stream` or `session`.
    pub(crate) fn client_resumed(&self, of: &'static str) {
        count(&self.inner.clients.resumes, [("of", of)]);
    }

    /// Counts the end of a client's connection, or a refused one.
    pub(crate) fn client_ended(&self, reason: &'static str) {
        count(&self.inner.clients.ends, [("reason", reason)]);
    }
}
