//! `GET /metrics`: what was counted, and what a look at the database and at the connection says at this moment.

use crate::metrics::{CONTENT_TYPE, Metrics, keep};
use crate::store::{Health, Store, StoreError, levels};
use crate::supervisor::{LinkStatus, Supervisor};
use axum::Router;
use axum::extract::State;
use axum::http::header;
use axum::response::IntoResponse;
use axum::routing::get;
use prometheus_client::metrics::gauge::Gauge;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// How often the watchdog looks for actors that are at one thing for too long.
const WATCH_MS: u64 = 5_000;
/// For how long an actor may be at one thing.
pub(crate) const STUCK: Duration = Duration::from_secs(30);

/// Answers scrapes. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Scrape {
    /// What was counted.
    pub(crate) metrics: Metrics,
    /// What the database says.
    pub(crate) store: Store,
    /// How the connection is.
    pub(crate) supervisor: Supervisor,
}

impl Scrape {
    /// The route, to be merged with the local API or served by itself.
    pub(crate) fn router(self) -> Router {
        Router::new().route("/metrics", get(answer)).with_state(self)
    }

    /// Everything, as of now. A database that cannot be read leaves its numbers as they were.
    pub(crate) async fn render(&self) -> String {
        let now = self.metrics.now();
        if let Err(error) = self.read_store().await {
            tracing::warn!(%error, "a scrape could not read the control plane");
        }
        let well = *self.store.health().borrow() == Health::Well;
        now.writable.set(i64::from(well));
        let counts = self.store.counts();
        keep(&now.commits, counts.groups);
        keep(&now.transactions, counts.transactions);
        keep(&now.rollbacks, counts.rolled_back);
        keep(&now.groups_lost, counts.groups_lost);
        keep(&now.checkpoints, counts.checkpoints);
        let connected = match &*self.supervisor.status().borrow() {
            LinkStatus::Up { generation, .. } => {
                keep(&now.connections, *generation);
                true
            }
            LinkStatus::Down(_) => false,
        };
        now.connected.set(i64::from(connected));
        set(&now.actors, self.metrics.actors().count());
        set(&now.stuck, self.metrics.actors().stuck(STUCK));
        self.metrics.render()
    }

    async fn read_store(&self) -> Result<(), StoreError> {
        let found = self.store.read("scrape", levels::look).await?;
        let now = self.metrics.now();
        for (state, count) in found.sessions {
            set(&now.sessions.get_or_create_owned(&vec![("state", state.to_owned())]), count);
        }
        set(&now.queued, found.runs_queued);
        set(&now.inbox, found.inbox_waiting);
        set(&now.parts, found.parts_waiting);
        set(&now.stale, found.stale_bindings);
        let (database, log) = levels::sizes(self.store.dir());
        set(&now.database_bytes, database);
        set(&now.log_bytes, log);
        Ok(())
    }
}

fn set(gauge: &Gauge, value: impl TryInto<i64>) {
    gauge.set(value.try_into().unwrap_or(i64::MAX));
}

async fn answer(State(scrape): State<Scrape>) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, CONTENT_TYPE)], scrape.render().await)
}

/// A listener for a collector that cannot reach the local API.
///
/// # Errors
/// The address cannot be had.
pub(crate) async fn listen(at: SocketAddr) -> std::io::Result<TcpListener> {
    let listener = TcpListener::bind(at).await?;
    tracing::info!(at = %listener.local_addr()?, "metrics can be scraped");
    Ok(listener)
}

/// Serves nothing but metrics there until `ending` is cancelled.
pub(crate) async fn serve(listener: TcpListener, scrape: Scrape, ending: CancellationToken) {
    let serving = axum::serve(listener, scrape.router());
    if let Err(error) = serving.with_graceful_shutdown(ending.cancelled_owned()).await {
        tracing::warn!(%error, "metrics are not served any more");
    }
}

/// Names each actor that is at one thing for too long, once.
pub(crate) async fn watch(metrics: Metrics, ending: CancellationToken) {
    let mut every = tokio::time::interval(Duration::from_millis(WATCH_MS));
    loop {
        tokio::select! {
            () = ending.cancelled() => return,
            _ = every.tick() => {}
        }
        for (session_key, busy) in metrics.actors().newly_stuck(STUCK) {
            let seconds = busy.as_secs();
            tracing::error!(session_key, seconds, "an actor is stuck: it has been at one thing for too long");
        }
    }
}
