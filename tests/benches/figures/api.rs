//! A client of the gateway's local API: HTTP over its Unix socket, with connections that stay open.

use crate::turn::{Dialect, Turn, Watch};
use acp_tests::wait::SOON;
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tokio::net::UnixStream;
use tokio::runtime::Runtime;

/// Delay before another connection attempt when the accept queue is full, in milliseconds.
const FULL_MS: u64 = 5;

/// One client.
#[derive(Debug)]
pub(crate) struct Api {
    runtime: Runtime,
    connections: Connections,
}

impl Api {
    /// A client of the gateway behind `socket`.
    ///
    /// # Panics
    /// When no runtime can be created.
    pub(crate) fn new(socket: &Path) -> Self {
        Self { runtime: runtime(), connections: Connections::new(socket) }
    }

    /// Returns the JSON response to a GET.
    ///
    /// # Panics
    /// When the gateway refuses the request.
    pub(crate) fn get(&mut self, path: &str) -> Value {
        self.runtime.block_on(self.connections.json("GET", path, None))
    }

    /// Returns the JSON response to a POST.
    ///
    /// # Panics
    /// When the gateway refuses the request.
    pub(crate) fn post(&mut self, path: &str, body: &Value) -> Value {
        self.runtime.block_on(self.connections.json("POST", path, Some(body)))
    }

    /// Sends a prompt and reads the run's events from the stream until it ends.
    ///
    /// # Panics
    /// When the turn fails.
    pub(crate) fn prompt(&mut self, key: &str, text: &str) -> Turn {
        self.runtime.block_on(self.connections.prompt(key, text, |_| {}))
    }
}

/// Creates the tokio runtime of a client.
///
/// # Panics
/// When it cannot be created.
pub(crate) fn runtime() -> Runtime {
    let built = tokio::runtime::Builder::new_current_thread().enable_all().build();
    built.unwrap_or_else(|e| panic!("no runtime: {e}"))
}

/// The connections of one client, for callers with their own runtime.
#[derive(Debug)]
pub(crate) struct Connections {
    socket: PathBuf,
    idle: Vec<SendRequest<Full<Bytes>>>,
}

impl Connections {
    /// Connections to the gateway behind `socket`; each is opened when needed.
    pub(crate) fn new(socket: &Path) -> Self {
        Self { socket: socket.to_owned(), idle: Vec::new() }
    }

    /// Drops the idle connections: the gateway may have closed them after a long silence.
    pub(crate) fn forget(&mut self) {
        self.idle.clear();
    }

    /// Sends a prompt and returns the gateway's response.
    ///
    /// # Panics
    /// When the gateway refuses it.
    pub(crate) async fn accept(&mut self, key: &str, text: &str) -> Value {
        self.json("POST", &format!("/v1/sessions/{key}/prompt"), Some(&json!({"text": text}))).await
    }

    /// Sends a prompt and reads the run's events from the stream until it ends; calls `on` with each line as
    /// it arrives.
    ///
    /// # Panics
    /// When the turn fails.
    pub(crate) async fn prompt(&mut self, key: &str, text: &str, mut on: impl FnMut(&str)) -> Turn {
        let mut watch = Watch::begin(Dialect::Events);
        let accepted = self.accept(key, text).await;
        let (Some(run), Some(after)) = (accepted["run_id"].as_str(), accepted["after_seq"].as_u64()) else {
            panic!("no run_id or no after_seq in {accepted}")
        };
        let path = format!("/v1/sessions/{key}/events?after={after}&run={run}&until_done=true");
        let (connection, mut answer) = self.send("GET", &path, None, "text/event-stream").await;
        assert_eq!(answer.status(), StatusCode::OK, "the gateway refuses to stream");
        let mut turn = None;
        let mut rest = String::new();
        while let Some(frame) = answer.frame().await {
            let frame = frame.unwrap_or_else(|e| panic!("the stream broke: {e}"));
            let Ok(data) = frame.into_data() else { continue };
            rest.push_str(std::str::from_utf8(&data).unwrap_or_else(|e| panic!("the stream: {e}")));
            let whole = rest.rfind('\n').map_or(0, |end| end + 1);
            for line in rest[..whole].lines() {
                on(line);
                turn = turn.or(watch.line(line));
            }
            rest.drain(..whole);
        }
        self.idle.push(connection);
        turn.unwrap_or_else(|| panic!("the stream ended before the turn"))
    }

    /// Returns the JSON response to a request.
    ///
    /// # Panics
    /// When the gateway refuses the request.
    pub(crate) async fn json(&mut self, method: &str, path: &str, body: Option<&Value>) -> Value {
        let (connection, answer) = self.send(method, path, body, "application/json").await;
        let status = answer.status();
        let body = answer.into_body().collect().await.unwrap_or_else(|e| panic!("{method} {path}: {e}"));
        self.idle.push(connection);
        let body = body.to_bytes();
        assert!(status.is_success(), "{method} {path}: {status} {}", String::from_utf8_lossy(&body));
        serde_json::from_slice(&body).unwrap_or_else(|e| panic!("{method} {path}: {e}"))
    }

    async fn send(
        &mut self,
        method: &str,
        path: &str,
        body: Option<&Value>,
        accept: &str,
    ) -> (SendRequest<Full<Bytes>>, Response<Incoming>) {
        let mut connection = self.connection().await;
        let body = body.map_or_else(Bytes::new, |body| Bytes::from(body.to_string()));
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", "localhost")
            .header("accept", accept)
            .header("content-type", "application/json")
            .body(Full::new(body))
            .unwrap_or_else(|e| panic!("{method} {path}: {e}"));
        let answer =
            connection.send_request(request).await.unwrap_or_else(|e| panic!("{method} {path}: {e}"));
        (connection, answer)
    }

    /// Returns an idle connection or a new one; the gateway closes connections after a long silence.
    async fn connection(&mut self) -> SendRequest<Full<Bytes>> {
        while let Some(mut connection) = self.idle.pop() {
            if connection.ready().await.is_ok() {
                return connection;
            }
        }
        let (sender, connection) =
            handshake(TokioIo::new(self.open().await)).await.unwrap_or_else(|e| panic!("no HTTP: {e}"));
        tokio::spawn(connection);
        sender
    }

    /// Opens a connection. With many at once on a busy machine the gateway's accept queue may be full for a
    /// moment.
    async fn open(&self) -> UnixStream {
        let began = Instant::now();
        loop {
            match UnixStream::connect(&self.socket).await {
                Ok(stream) => return stream,
                Err(error) if error.kind() == ErrorKind::WouldBlock && began.elapsed() < SOON => {
                    tokio::time::sleep(Duration::from_millis(FULL_MS)).await;
                }
                Err(error) => panic!("{}: {error}", self.socket.display()),
            }
        }
    }
}
