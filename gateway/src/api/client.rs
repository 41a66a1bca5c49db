//! Client of the local API: HTTP/1.1 over the Unix socket. Survives restarts of the gateway: modifying
//! requests are retried under the same idempotency key, and event streams resume after the last event
//! received.

mod agent;
mod connections;
#[cfg(test)]
pub(super) use connections::connect;

use crate::api::sse_parser::{SseEvent, SseParser};
use acp_core::api::{ACTS_FOR_HEADER, ErrorBody, IDEMPOTENCY_HEADER, SOCKET, STANDING_BY, STREAM_END};
use acp_core::failure::Failure;
use acp_shared::backoff::Backoff;
use acp_shared::codes::Code;
use acp_shared::ids::{IdempotencyKey, RunId, SessionKey};
use acp_shared::redact::Secret;
use bytes::Bytes;
use connections::{AttemptError, Connections};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::{Method, Request, Response, StatusCode, header};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// Maximum size of a response that is not a stream, in bytes.
const ANSWER_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Retry delays.
const RETRY_BACKOFF: Backoff = Backoff::new(50, 1_000);
/// Maximum wait for a gateway that answered before and is gone, in milliseconds.
const RESTART_WAIT_MS: u64 = 60_000;
/// Maximum wait if the socket file exists and no process listens, in milliseconds: the gateway was killed and
/// may be restarting.
const DEAD_SOCKET_MS: u64 = 15_000;

/// Client of the gateway of one state directory.
#[derive(Debug, Clone)]
pub(crate) struct GatewayClient {
    connections: Connections,
    deadline: Option<Instant>,
    /// Session or agent for which the client asks.
    acts_for: Option<String>,
    /// Token of an agent, for the socket of the session tools.
    token: Option<Secret>,
}

/// Retry delays with a time limit.
struct RetryBudget {
    until: Instant,
    backoff: Backoff,
    /// True if the gateway has answered this client before.
    has_answered: bool,
}

impl RetryBudget {
    fn new(has_answered: bool) -> Self {
        let wait_ms = if has_answered { RESTART_WAIT_MS } else { DEAD_SOCKET_MS };
        Self { until: Instant::now() + Duration::from_millis(wait_ms), backoff: RETRY_BACKOFF, has_answered }
    }

    /// Waits before the next attempt. Returns false if a retry is pointless or the time is up.
    async fn wait(&mut self, lost: &AttemptError, deadline: Option<Instant>) -> bool {
        if matches!(lost, AttemptError::Absent) && !self.has_answered {
            return false;
        }
        let now = Instant::now();
        let until = deadline.map_or(self.until, |deadline| deadline.min(self.until));
        if now >= until {
            return false;
        }
        tokio::time::sleep(self.backoff.next_pause().min(until - now)).await;
        true
    }
}

impl GatewayClient {
    /// Creates a client of the gateway that serves `state_dir`; does not connect yet.
    pub(crate) fn new(state_dir: &Path) -> Self {
        let connections = Connections::new(state_dir.join(SOCKET));
        Self { connections, deadline: None, acts_for: None, token: None }
    }

    /// Sets a deadline, after which calls fail with `TIMEOUT`.
    pub(crate) fn until(mut self, deadline: Option<Instant>) -> Self {
        self.deadline = deadline;
        self
    }

    /// Asks for a session or an agent: responses are those that this agent may see.
    pub(crate) fn acting_for(mut self, name: Option<String>) -> Self {
        self.acts_for = name;
        self
    }

    /// True if a process listens at the socket. That of a killed gateway stays without one.
    pub(crate) async fn is_served(&self) -> bool {
        connections::connect(self.connections.socket()).await.is_ok()
    }

    /// Sends a GET request.
    ///
    /// # Errors
    /// The failure returned by the gateway; `GATEWAY_UNAVAILABLE`; `TIMEOUT`.
    pub(crate) async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Failure> {
        self.ask(Method::GET, path, Bytes::new(), None).await
    }

    /// Sends a POST request; retries after a lost response carry the same idempotency key.
    ///
    /// # Errors
    /// As [`GatewayClient::get`].
    pub(crate) async fn post<B: Serialize, T: DeserializeOwned>(
        &self,
        path: &str,
        body: &B,
        key: &IdempotencyKey,
    ) -> Result<T, Failure> {
        let body = serde_json::to_vec(body).map_err(|error| invalid_response(&error.to_string()))?;
        self.ask(Method::POST, path, Bytes::from(body), Some(key)).await
    }

    /// Sends a POST request once. The caller retries, under the same idempotency key.
    ///
    /// # Errors
    /// As [`GatewayClient::get`].
    pub(crate) async fn try_post<B: Serialize, T: DeserializeOwned>(
        &self,
        path: &str,
        body: &B,
        key: &IdempotencyKey,
    ) -> Result<T, Failure> {
        let body = serde_json::to_vec(body).map_err(|error| invalid_response(&error.to_string()))?;
        let request = self.request(Method::POST, path, Bytes::from(body), Some(key), &[])?;
        read_answer(self.once(request).await.map_err(|lost| self.unavailable(&lost))?)
    }

    /// Sends a DELETE request. A repetition after a lost response may find nothing more to delete.
    ///
    /// # Errors
    /// As [`GatewayClient::get`].
    pub(crate) async fn delete<T: DeserializeOwned>(&self, path: &str) -> Result<T, Failure> {
        self.ask(Method::DELETE, path, Bytes::new(), None).await
    }

    /// Sends a PATCH request, as [`GatewayClient::post`].
    ///
    /// # Errors
    /// As [`GatewayClient::get`].
    pub(crate) async fn patch<B: Serialize, T: DeserializeOwned>(
        &self,
        path: &str,
        body: &B,
        key: &IdempotencyKey,
    ) -> Result<T, Failure> {
        let body = serde_json::to_vec(body).map_err(|error| invalid_response(&error.to_string()))?;
        self.ask(Method::PATCH, path, Bytes::from(body), Some(key)).await
    }

    /// Reads a text of any length, and passes its pieces on. A piece ends between two characters.
    ///
    /// # Errors
    /// The failure returned by the gateway; `GATEWAY_UNAVAILABLE`, also if the connection breaks; an error of `write`.
    pub(crate) async fn download<E: From<Failure>>(
        &self,
        path: &str,
        mut write: impl FnMut(&str) -> Result<(), E>,
    ) -> Result<(), E> {
        let request = self.request(Method::GET, path, Bytes::new(), None, &[])?;
        let response = self.send(request).await.map_err(|lost| self.unavailable(&lost))?;
        let broken = |why: String| self.unavailable(&AttemptError::Broken(why));
        if response.status() != StatusCode::OK {
            return Err(self.failure_of(response).await.into());
        }
        let (mut body, mut pending) = (response.into_body(), Vec::new());
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| broken(error.to_string()))?;
            pending.extend_from_slice(frame.data_ref().map_or(&[], |bytes| bytes));
            let end = match std::str::from_utf8(&pending) {
                Ok(_) => pending.len(),
                Err(error) if error.error_len().is_none() => error.valid_up_to(),
                Err(error) => return Err(invalid_response(&error.to_string()).into()),
            };
            write(&String::from_utf8_lossy(pending.get(..end).unwrap_or_default()))?;
            pending.drain(..end);
        }
        Ok(())
    }

    /// Sends a POST request whose response is a stream for as long as the client holds it.
    ///
    /// # Errors
    /// As [`GatewayClient::get`].
    pub(crate) async fn hold<B: Serialize>(&self, path: &str, body: &B) -> Result<HeldStream, Failure> {
        let body = serde_json::to_vec(body).map_err(|error| invalid_response(&error.to_string()))?;
        let accept = [(header::ACCEPT, "text/event-stream")];
        let request = self.request(Method::POST, path, Bytes::from(body), None, &accept)?;
        let response = self.send(request).await.map_err(|lost| self.unavailable(&lost))?;
        if response.status() != StatusCode::OK {
            return Err(self.failure_of(response).await);
        }
        Ok(HeldStream { body: response.into_body(), parser: SseParser::default() })
    }

    /// Reads the failure that a response reports.
    async fn failure_of(&self, response: Response<Incoming>) -> Failure {
        let status = response.status();
        match Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await {
            Ok(body) => read_failure(status, &body.to_bytes()),
            Err(error) => self.unavailable(&AttemptError::Broken(error.to_string())),
        }
    }

    async fn ask<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
        key: Option<&IdempotencyKey>,
    ) -> Result<T, Failure> {
        let mut retry = RetryBudget::new(false);
        let asking = async {
            loop {
                let request = self.request(method.clone(), path, body.clone(), key, &[])?;
                match self.once(request).await {
                    Ok(bytes) => return read_answer(bytes),
                    Err(lost) => {
                        if !retry.wait(&lost, self.deadline).await {
                            return Err(self.unavailable(&lost));
                        }
                    }
                }
            }
        };
        with_deadline(self.deadline, asking).await
    }

    fn request(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
        key: Option<&IdempotencyKey>,
        headers: &[(header::HeaderName, &str)],
    ) -> Result<Request<Full<Bytes>>, Failure> {
        let mut request = Request::builder().method(method).uri(path).header(header::HOST, "gateway");
        if !body.is_empty() {
            request = request.header(header::CONTENT_TYPE, "application/json");
        }
        if let Some(key) = key {
            request = request.header(IDEMPOTENCY_HEADER, key.as_str());
        }
        if let Some(name) = &self.acts_for {
            request = request.header(ACTS_FOR_HEADER, name);
        }
        for (name, value) in headers {
            request = request.header(name, *value);
        }
        request.body(Full::new(body)).map_err(|error| invalid_response(&error.to_string()))
    }

    /// Makes one attempt. Returns status and body.
    async fn once(&self, request: Request<Full<Bytes>>) -> Result<(StatusCode, Bytes), AttemptError> {
        let (connection, response) = self.connections.send(request).await?;
        let status = response.status();
        let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await;
        let body = body.map_err(|error| AttemptError::Broken(error.to_string()))?;
        self.connections.keep(connection);
        Ok((status, body.to_bytes()))
    }

    async fn send(&self, request: Request<Full<Bytes>>) -> Result<Response<Incoming>, AttemptError> {
        self.connections.send(request).await.map(|(_, response)| response)
    }

    fn unavailable(&self, lost: &AttemptError) -> Failure {
        let socket = self.connections.socket().display();
        let failure = |text| Failure::new(Code::GatewayUnavailable, text).origin("client").retryable();
        match lost {
            AttemptError::Absent => failure(format!(
                "No gateway answers: {socket} does not exist. Start one with `acp-gateway up`, or name its state \
                 directory with --state-dir."
            )),
            AttemptError::Broken(why) => failure(format!(
                "No gateway answers at {socket} ({why}). If one runs there, it is overloaded, ending, or of another \
                 user: try again. Otherwise start one with `acp-gateway up`."
            ))
            .detail("CONNECTION_LOST"),
        }
    }

    /// Returns the rows of a session after `selection.after`, as they are in the journal.
    pub(crate) fn journal(&self, selection: EventSelection) -> EventStream {
        EventStream { is_raw: true, ..self.events(selection) }
    }

    /// Returns the events of a session after `selection.after`.
    pub(crate) fn events(&self, selection: EventSelection) -> EventStream {
        EventStream {
            client: self.clone(),
            cursor: selection.after,
            selection,
            is_raw: false,
            body: None,
            parser: SseParser::default(),
            retry: RetryBudget::new(false),
            ended: false,
            connection: watch::Sender::new(true),
        }
    }
}

/// Event stream that keeps a resource of the gateway open.
pub(crate) struct HeldStream {
    body: Incoming,
    parser: SseParser,
}

impl HeldStream {
    /// Returns the next event; `None` once the stream has ended or is broken.
    pub(crate) async fn next(&mut self) -> Option<SseEvent> {
        loop {
            match self.parser.next() {
                Ok(Some(event)) if event.name == STREAM_END => return None,
                Ok(Some(event)) => return Some(event),
                Ok(None) => {}
                Err(_) => return None,
            }
            let frame = self.body.frame().await?.ok()?;
            self.parser.push(frame.data_ref()?).ok()?;
        }
    }
}

/// Selection of events.
#[derive(Debug, Clone)]
pub(crate) struct EventSelection {
    /// Session of the events.
    pub(crate) session: SessionKey,
    /// Lower bound, exclusive, of `session_seq`.
    pub(crate) after: u64,
    /// Only events of this run, up to its `done` or `error`.
    pub(crate) run: Option<RunId>,
    /// Include events that the agent replayed from old conversations.
    pub(crate) replay: bool,
    /// Wait for new events; otherwise end after the existing ones.
    pub(crate) follow: bool,
}

/// Event stream that reconnects automatically.
pub(crate) struct EventStream {
    client: GatewayClient,
    selection: EventSelection,
    /// True for rows as they are in the journal.
    is_raw: bool,
    cursor: u64,
    body: Option<Incoming>,
    parser: SseParser,
    retry: RetryBudget,
    ended: bool,
    /// False from the loss of the connection until the next one.
    connection: watch::Sender<bool>,
}

impl EventStream {
    /// Returns a watch of the connection: false while it is lost.
    pub(crate) fn watch_connection(&self) -> watch::Receiver<bool> {
        self.connection.subscribe()
    }

    /// Returns the next event line; `None` when the stream has ended. Safe to cancel.
    ///
    /// # Errors
    /// The failure returned by the gateway; `GATEWAY_UNAVAILABLE` if it does not come back; `TIMEOUT`.
    pub(crate) async fn next(&mut self) -> Result<Option<String>, Failure> {
        let deadline = self.client.deadline;
        if let Some(ready) = self.ready() {
            return ready;
        }
        with_deadline(deadline, self.more()).await
    }

    /// Returns the next event line that is already received; `None` if there is none.
    pub(crate) fn ready(&mut self) -> Option<Result<Option<String>, Failure>> {
        if self.ended {
            return Some(Ok(None));
        }
        loop {
            match self.parser.next() {
                Err(error) => return Some(Err(invalid_response(&error.to_string()))),
                Ok(None) => return None,
                Ok(Some(event)) => {
                    if let Some(ready) = self.take(event) {
                        return Some(Ok(ready));
                    }
                }
            }
        }
    }

    fn take(&mut self, event: SseEvent) -> Option<Option<String>> {
        if event.name == STREAM_END {
            self.ended = true;
            self.body = None;
            return Some(None);
        }
        let seq: u64 = event.id.as_deref().and_then(|id| id.parse().ok())?;
        // An event repeated after a reconnect is dropped.
        if seq <= self.cursor {
            return None;
        }
        self.cursor = seq;
        Some(Some(event.data))
    }

    async fn more(&mut self) -> Result<Option<String>, Failure> {
        loop {
            if let Some(ready) = self.ready() {
                return ready;
            }
            let lost = match self.body.as_mut() {
                None => match self.connect().await? {
                    Ok(()) => {
                        self.set_connected(true);
                        continue;
                    }
                    Err(lost) => lost,
                },
                Some(body) => match body.frame().await {
                    Some(Ok(frame)) => {
                        if let Some(bytes) = frame.data_ref() {
                            self.parser.push(bytes).map_err(|error| invalid_response(&error.to_string()))?;
                        }
                        self.retry = RetryBudget::new(true);
                        continue;
                    }
                    Some(Err(error)) => AttemptError::Broken(error.to_string()),
                    None => AttemptError::Broken("the gateway ended the stream".to_owned()),
                },
            };
            self.body = None;
            self.parser = SseParser::default();
            self.set_connected(false);
            if !self.retry.wait(&lost, self.client.deadline).await {
                return Err(self.client.unavailable(&lost));
            }
        }
    }

    fn set_connected(&self, is_connected: bool) {
        self.connection.send_if_modified(|now| std::mem::replace(now, is_connected) != is_connected);
    }

    async fn connect(&mut self) -> Result<Result<(), AttemptError>, Failure> {
        let mut path = format!(
            "/v1/sessions/{}/events?follow={}&after={}",
            encode(self.selection.session.as_str()),
            self.selection.follow,
            self.cursor
        );
        if let Some(run) = self.selection.run {
            // Writing into a String cannot fail.
            let _ = write!(path, "&run={run}&until_done=true");
        }
        if self.is_raw {
            path.push_str("&raw=true");
        }
        if self.selection.replay {
            path.push_str("&replay=true");
        }
        let accept = [(header::ACCEPT, "text/event-stream")];
        let request = self.client.request(Method::GET, &path, Bytes::new(), None, &accept)?;
        let response = match self.client.send(request).await {
            Ok(response) => response,
            Err(lost) => return Ok(Err(lost)),
        };
        if response.status() == StatusCode::OK {
            self.body = Some(response.into_body());
            return Ok(Ok(()));
        }
        let status = response.status();
        match Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await {
            Err(error) => Ok(Err(AttemptError::Broken(error.to_string()))),
            Ok(body) => {
                let failure = read_failure(status, &body.to_bytes());
                // The gateway that answered before was restarted: the server may still keep the cell for its former process.
                let stands_by = failure.detail_code.as_deref() == Some(STANDING_BY);
                if stands_by && self.retry.has_answered {
                    return Ok(Err(AttemptError::Broken(failure.message)));
                }
                Err(failure)
            }
        }
    }
}

fn read_answer<T: DeserializeOwned>((status, body): (StatusCode, Bytes)) -> Result<T, Failure> {
    if !status.is_success() {
        return Err(read_failure(status, &body));
    }
    serde_json::from_slice(&body).map_err(|error| invalid_response(&error.to_string()))
}

fn read_failure(status: StatusCode, body: &[u8]) -> Failure {
    match serde_json::from_slice::<ErrorBody>(body) {
        Ok(body) => body.failure,
        Err(_) => invalid_response(&format!("HTTP status {status}")),
    }
}

async fn with_deadline<T>(
    deadline: Option<Instant>,
    work: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    match deadline {
        None => work.await,
        Some(deadline) => tokio::time::timeout_at(deadline.into(), work)
            .await
            .unwrap_or_else(|_| Err(Failure::of(Code::Timeout).origin("client"))),
    }
}

/// Builds the failure for an invalid response: the versions of gateway and client do not match.
fn invalid_response(what: &str) -> Failure {
    Failure::new(Code::Runtime, format!("cannot parse the gateway's response: {what}")).origin("client")
}

/// Percent-encodes a text as one segment of a path.
pub(crate) fn encode(segment: &str) -> String {
    let mut out = String::with_capacity(segment.len());
    for byte in segment.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~:@".contains(&byte) {
            out.push(char::from(byte));
        } else {
            // Writing into a String cannot fail.
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}
