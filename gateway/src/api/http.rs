//! One connection to the API: HTTP/1.1 and HTTP/2 on any byte stream, with the limits that all listeners have in
//! common. A [`Gate`] identifies the sender of each request.

use crate::api::ApiLimits;
use crate::api::connection_io::ConnectionIo;
use crate::api::connection_slots::{ActiveRequest, ConnectionSlot};
use crate::api::events::WithoutStream;
use crate::api::extract::{ApiError, TakenRoom};
use crate::api::sign_in::SignedOut;
use crate::api::tokens::TokenLease;
use crate::api::web_gate;
use acp_core::failure::Failure;
use acp_shared::codes::Code;
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::future::BoxFuture;
use http_body_util::{BodyExt as _, Limited};
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::{CancellationToken, DropGuard};

/// Maximum size of a request's head, in bytes.
pub(super) const HEAD_BYTES_MAX: usize = 64 * 1024;
/// Time limit for a refused connection to send its request and read the response, in milliseconds.
pub(super) const REFUSED_MS: u64 = 2_000;
/// Maximum number of concurrent requests on one HTTP/2 connection.
const STREAMS_PER_CONNECTION_MAX: u32 = 64;
/// Time that a connection has to notice the end of its token, in milliseconds.
const UNREAD_MS: u64 = 2_000;
/// Interval of pings on an HTTP/2 connection, and time limit of their answers, in milliseconds.
const PING_MS: u64 = 30_000;

/// Identifies the senders of requests on one connection.
pub(super) trait Gate: Send + Sync + 'static {
    /// Adds the sender's principal to the request, or answers the request.
    fn admit(&self, request: &mut Request) -> Admission;
}

/// Decision of a [`Gate`].
pub(super) struct Admission {
    /// Validity of the token of an admitted request, or the response to another one.
    pub(super) outcome: Result<Option<TokenLease>, Box<Response>>,
    /// Origin of the page that may read the response.
    pub(super) origin: Option<HeaderValue>,
}

impl Admission {
    /// Admits a request without a token.
    pub(super) const fn granted() -> Self {
        Self { outcome: Ok(None), origin: None }
    }
}

/// What serves the requests of all connections of a listener.
#[derive(Clone)]
pub(crate) struct HttpServer {
    /// All routes.
    pub(crate) router: Router,
    /// Limits of each connection.
    pub(crate) limits: ApiLimits,
}

impl HttpServer {
    /// Serves a connection until it ends, `slot` or `closed` ends it, or `ending` is cancelled; then open requests may
    /// finish. With `half_close` a client that has finished writing still gets its responses.
    pub(super) async fn serve<S>(
        &self,
        stream: S,
        gate: Arc<dyn Gate>,
        slot: Arc<ConnectionSlot>,
        half_close: bool,
        closed: impl Future<Output = ()>,
        ending: &CancellationToken,
    ) where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let limits = self.limits;
        let end = slot.end().clone();
        let (router, at) = (self.router.clone(), Arc::clone(&slot));
        let service = hyper::service::service_fn(move |request: hyper::Request<Incoming>| {
            let exchange =
                Exchange { router: router.clone(), gate: Arc::clone(&gate), slot: Arc::clone(&at), limits };
            exchange.answer(request)
        });
        let (head, stall) = (Duration::from_millis(limits.head_ms), Duration::from_millis(limits.stall_ms));
        let stream = TokioIo::new(ConnectionIo::new(stream, slot, head, stall));
        let http = builder(head, half_close);
        let serving = http.serve_connection_with_upgrades(stream, service);
        tokio::pin!(serving);
        let served = tokio::select! {
            served = serving.as_mut() => served,
            () = end.cancelled() => return,
            () = closed => return,
            () = ending.cancelled() => {
                serving.as_mut().graceful_shutdown();
                serving.await
            }
        };
        if let Err(error) = served {
            tracing::debug!(%error, "connection failed");
        }
    }
}

fn builder(head: Duration, half_close: bool) -> auto::Builder<TokioExecutor> {
    let mut http = auto::Builder::new(TokioExecutor::new());
    http.http1()
        .timer(TokioTimer::new())
        .header_read_timeout(head)
        .max_buf_size(HEAD_BYTES_MAX)
        .half_close(half_close);
    let ping = Duration::from_millis(PING_MS);
    http.http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS_PER_CONNECTION_MAX)
        .max_header_list_size(u32::try_from(HEAD_BYTES_MAX).unwrap_or(u32::MAX))
        .keep_alive_interval(ping)
        .keep_alive_timeout(ping);
    http
}

/// A request and what answers it.
struct Exchange {
    router: Router,
    gate: Arc<dyn Gate>,
    slot: Arc<ConnectionSlot>,
    limits: ApiLimits,
}

impl Exchange {
    async fn answer(self, request: hyper::Request<Incoming>) -> Result<Response, Infallible> {
        self.slot.note_request();
        let mut request: Request = request.map(Body::new);
        let Admission { outcome, origin } = self.gate.admit(&mut request);
        let mut response = match outcome {
            Ok(lease) => self.answer_admitted(request, lease).await?,
            Err(response) => {
                drain(request, self.limits.body_bytes_max).await;
                *response
            }
        };
        if let Some(origin) = origin {
            web_gate::allow_reading(&mut response, origin);
        }
        Ok(response)
    }

    async fn answer_admitted(
        self,
        mut request: Request,
        mut lease: Option<TokenLease>,
    ) -> Result<Response, Infallible> {
        let mut active = self.slot.request();
        if let Some(lease) = lease.clone() {
            request.extensions_mut().insert(lease);
        }
        let routes = TowerToHyperService::new(self.router);
        let mut response = tokio::select! {
            biased;
            () = ended(lease.as_ref()) => return Ok(web_gate::unauthorized(web_gate::TokenFault::Revoked)),
            response = hyper::service::Service::call(&routes, request) => response?,
        };
        if let Some(SignedOut(ended)) = response.extensions_mut().remove() {
            ended.cancel();
            lease = None;
        }
        let is_upgrade = response.status() == StatusCode::SWITCHING_PROTOCOLS;
        if (is_upgrade || is_stream(&response)) && !active.become_stream() {
            let other = response.extensions_mut().remove::<WithoutStream>();
            return Ok(other.map_or_else(too_many_streams, WithoutStream::into_response));
        }
        if is_upgrade {
            active.keep();
            if let Some(lease) = lease {
                tokio::spawn(end_with_lease(lease, self.slot.end().clone()));
            }
            return Ok(response);
        }
        let released = CancellationToken::new();
        if let Some(lease) = lease.clone() {
            tokio::spawn(end_unread(lease, released.clone(), self.slot.end().clone()));
        }
        let lease = lease.map(|lease| Box::pin(lease.ended()) as BoxFuture<'static, ()>);
        let body = std::mem::take(response.body_mut());
        let _room = response.extensions_mut().remove::<Arc<Option<TakenRoom>>>();
        let _released = released.drop_guard();
        Ok(response.map(|_| Body::new(HeldBody { body, lease, _active: active, _released, _room })))
    }
}

async fn ended(lease: Option<&TokenLease>) {
    match lease {
        Some(lease) => lease.clone().ended().await,
        None => std::future::pending().await,
    }
}

/// Ends an upgraded connection together with the token that opened it.
async fn end_with_lease(lease: TokenLease, end: CancellationToken) {
    tokio::select! {
        () = lease.ended() => end.cancel(),
        () = end.cancelled() => {}
    }
}

/// Ends a connection whose token has ended while it does not read the rest of a response: nothing polls its body then.
async fn end_unread(lease: TokenLease, released: CancellationToken, end: CancellationToken) {
    let unread = async {
        lease.ended().await;
        tokio::time::sleep(Duration::from_millis(UNREAD_MS)).await;
    };
    tokio::select! {
        () = released.cancelled() => {}
        () = unread => end.cancel(),
    }
}

/// Body of a response. It fails when the token of its request ends, and releases the request when it is dropped.
struct HeldBody {
    body: Body,
    lease: Option<BoxFuture<'static, ()>>,
    _active: ActiveRequest,
    _released: DropGuard,
    _room: Option<Arc<Option<TakenRoom>>>,
}

impl HttpBody for HeldBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if let Some(lease) = &mut self.lease
            && lease.as_mut().poll(cx).is_ready()
        {
            self.lease = None;
            self.body = Body::empty();
            let error = io::Error::new(io::ErrorKind::PermissionDenied, "the token is no longer valid");
            return Poll::Ready(Some(Err(axum::Error::new(error))));
        }
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Reads the body of a refused request: closing with unread input would reset the connection before the client has
/// read the response. A client that waits for permission to send its body gets the response instead.
pub(super) async fn drain(request: Request, body_bytes_max: usize) {
    if request.headers().contains_key(header::EXPECT) {
        return;
    }
    let reading = async {
        let mut body = Limited::new(request.into_body(), body_bytes_max);
        while let Some(Ok(_)) = body.frame().await {}
    };
    // The time limit ends clients that send nothing more.
    drop(tokio::time::timeout(Duration::from_millis(REFUSED_MS), reading).await);
}

/// True for a stream of events.
fn is_stream(answer: &Response) -> bool {
    let kind = answer.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    kind.is_some_and(|kind| kind.starts_with("text/event-stream"))
}

fn too_many_streams() -> Response {
    let failure = Failure::new(
        Code::LimitReached,
        "too many event streams are open; close some, or raise limits.connections_max",
    );
    ApiError::from(failure.origin("gateway").retryable()).into_response()
}
