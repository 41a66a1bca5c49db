//! `GET /metrics`: counters, and gauges read from the database and the supervisor connection at scrape time.

use crate::channel::Channels;
use crate::metrics::{CONTENT_TYPE, Metrics, STUCK, set_total};
use crate::runtime::hosts::Hosts;
use acp_shared::figures;
use acp_shared::log_limit::RefusalLog;
use acp_shared::protocol::{Reply, Request};
use acp_store::gauges;
use acp_store::{Store, StoreError, StoreHealth};
use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use prometheus_client::metrics::gauge::Gauge;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

/// Maximum wait for the supervisor's figures.
const FIGURES_WAIT: Duration = Duration::from_secs(2);
/// Interval of the watchdog for stuck actors, in milliseconds.
const WATCH_MS: u64 = 5_000;
/// Delay after an error of `accept` (no file descriptors left), in milliseconds.
const ACCEPT_PAUSE_MS: u64 = 100;
/// Maximum size of a request head, in bytes.
const HEAD_BYTES_MAX: usize = 16 * 1024;
/// Maximum size of a request body, in bytes.
const BODY_BYTES_MAX: usize = 64 * 1024;

/// Answers scrapes. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct MetricsEndpoint {
    /// Counters and gauges.
    pub(crate) metrics: Metrics,
    /// Source of the database gauges.
    pub(crate) store: Store,
    /// Sources of the connection gauges.
    pub(crate) hosts: Arc<Hosts>,
    /// Source of the channels' metrics.
    pub(crate) channels: Channels,
}

impl MetricsEndpoint {
    /// Returns the route, to be merged into the local API or served on a separate listener.
    pub(crate) fn router(self) -> Router {
        Router::new().route("/metrics", get(answer)).with_state(self)
    }

    /// Renders all metrics. If the database or the supervisor cannot be read, its gauges keep their last values.
    pub(crate) async fn render(&self) -> String {
        let now = self.metrics.gauges();
        if let Err(error) = self.read_store().await {
            tracing::warn!(%error, "metrics scrape could not read the control plane");
        }
        let well = *self.store.health().borrow() == StoreHealth::Well;
        now.writable.set(i64::from(well));
        let counts = self.store.counts();
        set_total(&now.commits, counts.groups);
        set_total(&now.transactions, counts.transactions);
        set_total(&now.rollbacks, counts.rolled_back);
        set_total(&now.groups_lost, counts.groups_lost);
        set_total(&now.checkpoints, counts.checkpoints);
        for host in self.hosts.iter() {
            now.hosts
                .get_or_create_owned(&vec![("host", host.name.to_string())])
                .set(i64::from(host.supervisor.outage().is_none()));
        }
        let connection = self.hosts.first().supervisor.status().borrow().generation();
        set_total(&now.connections, connection.unwrap_or(0));
        now.connected.set(i64::from(connection.is_some()));
        self.read_supervisor().await;
        self.channels.names().iter().for_each(|channel| self.metrics.create_channel(channel));
        for ((channel, account), health) in self.channels.health() {
            self.metrics.create_account(&channel, &account);
            for (figure, value) in &health.figures {
                self.metrics.channel(&channel, &account, figure, *value);
            }
        }
        set(&now.actors, self.metrics.actors().count());
        set(&now.stuck, self.metrics.actors().stuck(STUCK));
        self.metrics.render()
    }

    async fn read_supervisor(&self) {
        let supervisor = &self.hosts.first().supervisor;
        if !supervisor.has_feature(figures::FEATURE) {
            return;
        }
        match tokio::time::timeout(FIGURES_WAIT, supervisor.call(Request::Figures)).await {
            Ok(Ok(Reply::Figures(found))) => self.metrics.supervisor(&found),
            other => tracing::warn!(answer = ?other, "metrics scrape could not read the supervisor"),
        }
    }

    async fn read_store(&self) -> Result<(), StoreError> {
        let found = self.store.read("scrape", gauges::read_gauges).await?;
        let now = self.metrics.gauges();
        for (state, count) in found.sessions {
            set(&now.sessions.get_or_create_owned(&vec![("state", state.to_owned())]), count);
        }
        set(&now.queued, found.runs_queued);
        set(&now.inbox, found.inbox_waiting);
        set(&now.parts, found.parts_waiting);
        set(&now.stale, found.stale_bindings);
        let dir = self.store.dir().to_owned();
        let disk = tokio::task::spawn_blocking(move || gauges::disk(&dir)).await;
        if let Ok(Some((free, size))) = disk {
            set(&now.disk_free_bytes, free);
            set(&now.disk_size_bytes, size);
        }
        let (database, log) = self.store.sizes().await?;
        set(&now.database_bytes, database);
        set(&now.log_bytes, log);
        Ok(())
    }
}

fn set(gauge: &Gauge, value: impl TryInto<i64>) {
    gauge.set(value.try_into().unwrap_or(i64::MAX));
}

async fn answer(State(scrape): State<MetricsEndpoint>) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, CONTENT_TYPE)], scrape.render().await)
}

/// Opens the listener for a collector that cannot reach the local API.
///
/// # Errors
/// The address cannot be bound.
pub(crate) async fn listen(at: SocketAddr) -> std::io::Result<TcpListener> {
    let listener = TcpListener::bind(at).await?;
    tracing::info!(at = %listener.local_addr()?, "metrics listener started");
    Ok(listener)
}

/// Resource limits of the listener, since any host with access to the address may connect.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ScrapeLimits {
    /// Maximum number of connections; as many more are answered with 503, and the rest is closed without a
    /// response.
    pub(crate) connections_max: usize,
    /// Maximum duration of a connection in milliseconds, slow readers included.
    pub(crate) whole_ms: u64,
}

impl Default for ScrapeLimits {
    fn default() -> Self {
        Self { connections_max: 16, whole_ms: 10_000 }
    }
}

/// Serves only these routes until `ending` is cancelled, with one request per connection.
pub(crate) async fn serve(
    listener: TcpListener,
    routes: Router,
    bounds: ScrapeLimits,
    ending: CancellationToken,
) {
    let refusal = Router::new().fallback(|| async { StatusCode::SERVICE_UNAVAILABLE });
    let slots = || Arc::new(Semaphore::new(bounds.connections_max));
    let services = [(slots(), routes), (slots(), refusal)];
    let log = RefusalLog::default();
    loop {
        let accepted = tokio::select! {
            () = ending.cancelled() => return,
            accepted = listener.accept() => accepted,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                if log.may_log(rustix::process::geteuid().as_raw(), "accept for metrics failed") {
                    tracing::warn!(%error, "cannot accept a connection for metrics");
                }
                tokio::time::sleep(Duration::from_millis(ACCEPT_PAUSE_MS)).await;
                continue;
            }
        };
        let free = services
            .iter()
            .find_map(|(slots, routes)| Some((Arc::clone(slots).try_acquire_owned().ok()?, routes.clone())));
        let Some((slot, routes)) = free else {
            tracing::debug!(bounds.connections_max, "too many connections for metrics");
            continue;
        };
        let ending = ending.clone();
        tokio::spawn(async move {
            tokio::select! {
                _ = tokio::time::timeout(Duration::from_millis(bounds.whole_ms), answer_one(stream, routes)) => {}
                () = ending.cancelled() => {}
            }
            drop(slot);
        });
    }
}

/// Reads one request to its end and answers it. Closing with unread input would reset the connection before the
/// client has read the response.
async fn answer_one(stream: TcpStream, routes: Router) {
    let service = hyper::service::service_fn(move |request: hyper::Request<Incoming>| {
        let routes = TowerToHyperService::new(routes.clone());
        async move {
            let (head, body) = request.into_parts();
            let mut body = Limited::new(body, BODY_BYTES_MAX);
            while let Some(Ok(_)) = body.frame().await {}
            hyper::service::Service::call(&routes, hyper::Request::from_parts(head, Body::empty())).await
        }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).keep_alive(false).half_close(true).max_buf_size(HEAD_BYTES_MAX);
    drop(http.serve_connection(TokioIo::new(stream), service).await);
}

/// Logs each stuck actor, once.
pub(crate) async fn watch(metrics: Metrics, ending: CancellationToken) {
    let mut every = tokio::time::interval(Duration::from_millis(WATCH_MS));
    loop {
        tokio::select! {
            () = ending.cancelled() => return,
            _ = every.tick() => {}
        }
        for (session_key, busy) in metrics.actors().newly_stuck(STUCK) {
            let seconds = busy.as_secs();
            tracing::error!(session_key, seconds, "session actor stuck");
        }
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    const DEADLINE: Duration = Duration::from_secs(20);

    async fn start_server(bounds: ScrapeLimits, ending: &CancellationToken) -> SocketAddr {
        let listener = listen(SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();
        let at = listener.local_addr().unwrap();
        // Not ready at once, as a handler that reads the database.
        let numbers = || async {
            tokio::task::yield_now().await;
            "numbers"
        };
        let routes = Router::new().route("/metrics", get(numbers));
        tokio::spawn(serve(listener, routes, bounds, ending.clone()));
        at
    }

    async fn scrape(at: SocketAddr) -> String {
        let mut stream = TcpStream::connect(at).await.unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
        read_to_end(&mut stream).await
    }

    /// Reads until the other end closes; a reset counts as a close.
    async fn read_to_end(stream: &mut TcpStream) -> String {
        let mut bytes = Vec::new();
        let _ = tokio::time::timeout(DEADLINE, stream.read_to_end(&mut bytes)).await.unwrap();
        String::from_utf8(bytes).unwrap()
    }

    #[tokio::test]
    async fn silent_connections_are_limited_and_time_out() {
        let ending = CancellationToken::new();
        let at = start_server(ScrapeLimits { connections_max: 2, whole_ms: 300 }, &ending).await;
        // Each connection has its slot before the next one comes, since a partial head is read first.
        let mut silent = Vec::new();
        for _ in 0..2 {
            let mut stream = TcpStream::connect(at).await.unwrap();
            stream.write_all(b"GET /metrics HTTP/1.1\r\n").await.unwrap();
            silent.push(stream);
        }
        for stream in &mut silent {
            assert_eq!(read_to_end(stream).await, "", "closed after the timeout, without a response");
        }
        let answer = scrape(at).await;
        assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("numbers"), "{answer}");
        ending.cancel();
    }

    #[tokio::test]
    async fn half_closed_client_is_answered() {
        let ending = CancellationToken::new();
        let at = start_server(ScrapeLimits::default(), &ending).await;
        let mut stream = TcpStream::connect(at).await.unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
        stream.shutdown().await.unwrap();
        let answer = read_to_end(&mut stream).await;
        assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("numbers"), "{answer}");
        ending.cancel();
    }

    #[tokio::test]
    async fn request_beyond_the_limit_is_read_and_answered_with_503() {
        let ending = CancellationToken::new();
        let at = start_server(ScrapeLimits { connections_max: 1, whole_ms: 600_000 }, &ending).await;
        let mut first = TcpStream::connect(at).await.unwrap();
        first.write_all(b"GET /metrics HTTP/1.1\r\n").await.unwrap();
        // Connections are accepted in their order.
        let mut second = TcpStream::connect(at).await.unwrap();
        let request =
            format!("POST /metrics HTTP/1.1\r\nhost: a\r\ncontent-length: {BODY_BYTES_MAX}\r\n\r\n");
        second.write_all(request.as_bytes()).await.unwrap();
        let mut early = [0; 1];
        let early = tokio::time::timeout(Duration::from_millis(200), second.read(&mut early)).await;
        assert!(early.is_err(), "a response to half a request: {early:?}");
        second.write_all(&vec![b'x'; BODY_BYTES_MAX]).await.unwrap();
        let mut answer = String::new();
        tokio::time::timeout(DEADLINE, second.read_to_string(&mut answer)).await.unwrap().unwrap();
        assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
        first.write_all(b"host: a\r\n\r\n").await.unwrap();
        let answer = read_to_end(&mut first).await;
        assert!(answer.contains("connection: close"), "one request each: {answer}");
        let answer = loop {
            // The slot is free shortly after the response.
            let answer = scrape(at).await;
            if !answer.starts_with("HTTP/1.1 503") {
                break answer;
            }
        };
        assert!(answer.ends_with("numbers"), "{answer}");
        let mut idle = TcpStream::connect(at).await.unwrap();
        ending.cancel();
        assert_eq!(read_to_end(&mut idle).await, "", "no connection outlives the gateway");
    }
}
