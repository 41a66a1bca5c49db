//! Scripted HTTP server that records its requests.

use acp_discord::core::base_url::BaseUrl;
use acp_discord::core::errors::RejectionKind;
use acp_discord::core::message::{MessageBody, NewMessage};
use acp_discord::core::request_scheduler::Priority;
use acp_discord::rest::{QueueOptions, RestClient, RestError, RestSettings};
use acp_shared::backoff::Backoff;
use acp_shared::clock::Clock;
use acp_shared::redact::Secret;
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio::sync::Notify;

pub(crate) const TOKEN: &str = "bot-token.is_secret";
pub(crate) const STEP_TIMEOUT: Duration = Duration::from_secs(20);
pub(crate) const FINAL: QueueOptions = QueueOptions::new(Priority::Final, STEP_TIMEOUT);
pub(crate) const CARD: QueueOptions = QueueOptions::new(Priority::Card, STEP_TIMEOUT);

#[derive(Debug, Clone)]
pub(crate) struct ReceivedRequest {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Bytes,
    pub(crate) at: Instant,
}

impl ReceivedRequest {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or(Value::Null)
    }

    pub(crate) fn line(&self) -> String {
        format!("{} {}", self.method, self.path)
    }
}

#[derive(Debug, Clone)]
pub(crate) enum Reply {
    Answer { status: u16, headers: Vec<(&'static str, String)>, body: String },
    Gated(Box<Reply>),
    Never,
    Cut,
}

impl Reply {
    pub(crate) fn json(status: u16, body: Value) -> Self {
        Self::Answer { status, headers: Vec::new(), body: body.to_string() }
    }

    pub(crate) fn text(status: u16, body: &str) -> Self {
        Self::Answer { status, headers: Vec::new(), body: body.to_owned() }
    }

    pub(crate) fn message(id: u64) -> Self {
        Self::json(200, message(id, 7, "hello"))
    }

    pub(crate) fn error(status: u16, code: u32) -> Self {
        Self::json(status, json!({"code": code, "message": "No"}))
    }

    pub(crate) fn with(mut self, name: &'static str, value: impl ToString) -> Self {
        if let Self::Answer { headers, .. } = &mut self {
            headers.push((name, value.to_string()));
        }
        self
    }

    pub(crate) fn bucket(self, name: &str, limit: u32, remaining: u32, reset_after: f64) -> Self {
        self.with("x-ratelimit-bucket", name)
            .with("x-ratelimit-limit", limit)
            .with("x-ratelimit-remaining", remaining)
            .with("x-ratelimit-reset-after", reset_after)
    }

    pub(crate) fn limited(retry_after: f64, global: bool) -> Self {
        let body = json!({"message": "slow down", "retry_after": retry_after, "global": global});
        Self::json(429, body).with("x-ratelimit-scope", if global { "global" } else { "user" })
    }
}

pub(crate) fn message(id: u64, author: u64, content: &str) -> Value {
    json!({"id": id.to_string(), "channel_id": "1", "content": content, "attachments": [],
        "author": {"id": author.to_string(), "username": "bot", "bot": true}, "type": 0})
}

type Script = dyn FnMut(usize, &ReceivedRequest) -> Reply + Send;

struct Shared {
    requests: Mutex<Vec<ReceivedRequest>>,
    script: Mutex<Box<Script>>,
    gate: Notify,
    arrived: Notify,
}

#[derive(Clone)]
pub(crate) struct Server {
    shared: Arc<Shared>,
    port: u16,
}

impl Server {
    /// Starts a server that answers the n-th request, counted from 0, as scripted.
    pub(crate) async fn start(script: impl FnMut(usize, &ReceivedRequest) -> Reply + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap_or_else(|e| panic!("bind: {e}"));
        let port = listener.local_addr().unwrap_or_else(|e| panic!("address: {e}")).port();
        let shared = Arc::new(Shared {
            requests: Mutex::default(),
            script: Mutex::new(Box::new(script)),
            gate: Notify::new(),
            arrived: Notify::new(),
        });
        let server = Arc::clone(&shared);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let shared = Arc::clone(&server);
                tokio::spawn(async move {
                    let service = service_fn(|request| respond(Arc::clone(&shared), request));
                    let _ = hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), service)
                        .await;
                });
            }
        });
        Self { shared, port }
    }

    /// Starts a server that sends these responses in order, and repeats the last one.
    pub(crate) async fn list(replies: Vec<Reply>) -> Self {
        Self::start(move |number, _| replies.get(number).or(replies.last()).cloned().unwrap_or(Reply::Never))
            .await
    }

    pub(crate) fn settings(&self) -> RestSettings {
        let base =
            BaseUrl::parse(&format!("http://127.0.0.1:{}", self.port)).unwrap_or_else(|e| panic!("{e}"));
        #[expect(clippy::disallowed_methods, reason = "a test is a process of its own")]
        let clock = Clock::start();
        let mut settings = RestSettings::new(base, Secret::new(TOKEN.to_owned()), clock);
        settings.retry_backoff = Backoff::new(10, 100);
        settings
    }

    pub(crate) fn rest(&self) -> RestClient {
        self.rest_with(|_| {})
    }

    pub(crate) fn rest_with(&self, change: impl FnOnce(&mut RestSettings)) -> RestClient {
        let mut settings = self.settings();
        change(&mut settings);
        RestClient::new(settings).unwrap_or_else(|e| panic!("{e}"))
    }

    pub(crate) fn requests(&self) -> Vec<ReceivedRequest> {
        self.shared.requests.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        self.requests().iter().map(ReceivedRequest::line).collect()
    }

    pub(crate) async fn wait_for_requests(&self, count: usize) {
        let wait = async {
            loop {
                let arrived = self.shared.arrived.notified();
                if self.requests().len() >= count {
                    return;
                }
                arrived.await;
            }
        };
        let result = tokio::time::timeout(STEP_TIMEOUT, wait).await;
        assert!(result.is_ok(), "{count} requests expected: {:?}", self.lines());
    }

    pub(crate) fn release_gated(&self) {
        self.shared.gate.notify_one();
    }
}

async fn respond(
    shared: Arc<Shared>,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, &'static str> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.map_err(|_| "body")?.to_bytes();
    let header = |(name, value): (&hyper::header::HeaderName, &hyper::header::HeaderValue)| {
        (name.to_string(), value.to_str().unwrap_or_default().to_owned())
    };
    let received = ReceivedRequest {
        method: head.method.to_string(),
        path: head.uri.to_string(),
        headers: head.headers.iter().map(header).collect(),
        body,
        at: Instant::now(),
    };
    let mut reply = {
        let mut all = shared.requests.lock().unwrap_or_else(PoisonError::into_inner);
        let mut script = shared.script.lock().unwrap_or_else(PoisonError::into_inner);
        let reply = script(all.len(), &received);
        all.push(received);
        reply
    };
    shared.arrived.notify_waiters();
    loop {
        reply = match reply {
            Reply::Gated(reply) => {
                shared.gate.notified().await;
                *reply
            }
            Reply::Never => std::future::pending::<Result<Reply, Infallible>>().await.map_err(|_| "never")?,
            Reply::Cut => return Err("cut"),
            Reply::Answer { status, headers, body } => {
                let mut builder = Response::builder().status(status);
                for (name, value) in headers {
                    builder = builder.header(name, value);
                }
                return builder.body(Full::from(body)).map_err(|_| "reply");
            }
        };
    }
}

pub(crate) fn new_message(nonce: &str, text: &str) -> NewMessage {
    NewMessage { nonce: nonce.to_owned(), body: MessageBody::text(text) }
}

pub(crate) fn kind<T: std::fmt::Debug>(result: Result<T, RestError>) -> Option<RejectionKind> {
    result.err().and_then(|error| error.rejection_kind())
}
