//! The server process: one listener for REST, gateway, files and the orders of tests.

use super::app::App;
use super::core::faults::RestFate;
use super::core::model::Id;
use super::core::rest::{Answer, Call, classify};
use super::core::stage::Order;
use super::core::{render, signature};
use super::store::{Store, StoreError};
use super::{multipart, socket};
use bytes::Bytes;
use clap::Parser;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::header::{self, HeaderValue};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;

/// Interval of timer ticks.
const TICK: Duration = Duration::from_millis(50);
/// Polling interval of an answer that is held back.
const HELD_POLL: Duration = Duration::from_millis(5);
/// Prefix of every path of the REST interface.
const API: &str = "/api/v10";

/// Run a strict fake of Discord on loopback. Prints one line with its address when it is ready.
#[derive(Debug, Parser)]
pub struct Args {
    /// Listen on this address; port 0 selects a free port.
    #[arg(long, default_value = "127.0.0.1:0")]
    pub listen: SocketAddr,
    /// Store the state in this file; without it, in memory.
    #[arg(long)]
    pub store: Option<PathBuf>,
    /// Maximum simulated network delay of a request, an answer or an event, in milliseconds. Events keep
    /// their order.
    #[arg(long, default_value_t = 0)]
    pub lag_ms: u64,
}

/// Main function of the program.
///
/// # Errors
/// When the store or the listener fails.
pub async fn main(args: Args) -> Result<(), StoreError> {
    let store = Store::open(args.store.as_deref())?;
    let listener = TcpListener::bind(args.listen).await?;
    let address = listener.local_addr()?.to_string();
    let app = Arc::new(App::new(store, address.clone(), Duration::from_millis(args.lag_ms))?);
    writeln!(std::io::stdout().lock(), "{}", json!({"listening": address}))?;
    let ticking = Arc::clone(&app);
    tokio::spawn(async move {
        let mut ticks = tokio::time::interval(TICK);
        loop {
            ticks.tick().await;
            ticking.act(|machine, now| machine.tick(now));
        }
    });
    loop {
        let (stream, _) = listener.accept().await?;
        // Small answers are sent at once.
        let _ = stream.set_nodelay(true);
        let app = Arc::clone(&app);
        tokio::spawn(async move {
            let service = service_fn(move |request| serve(Arc::clone(&app), request));
            let connection =
                hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service);
            // A connection that a fault or a client ended is not an error.
            let _ = connection.with_upgrades().await;
        });
    }
}

type Reply = Response<Full<Bytes>>;

/// Error that ends the connection without an answer.
fn connection_lost() -> std::io::Error {
    std::io::Error::other("a fault ends this connection")
}

async fn serve(app: Arc<App>, request: Request<Incoming>) -> Result<Reply, std::io::Error> {
    let path = request.uri().path().to_owned();
    if request.headers().contains_key(header::UPGRADE) {
        return if app.act(|machine, _| machine.faults.away) {
            Err(connection_lost())
        } else {
            Ok(upgrade(app, request))
        };
    }
    if path == "/fake/order" {
        let bytes = collect(request).await?;
        return Ok(order(&app, &bytes));
    }
    if let Some(id) = path.strip_prefix("/fake/file/") {
        let bytes = id.parse().ok().and_then(|id| app.file(id));
        let none = || plain(StatusCode::NOT_FOUND, &json!({"message": "no such file"}));
        return Ok(bytes.map_or_else(none, |bytes| Response::new(Full::new(Bytes::from(bytes)))));
    }
    if path.starts_with("/attachments/") {
        return if app.act(|machine, _| machine.faults.away) {
            Ok(away())
        } else {
            Ok(file(&app, request.uri()))
        };
    }
    let Some(inside) = path.strip_prefix(API) else {
        return Ok(plain(StatusCode::NOT_FOUND, &json!({"message": "404: Not Found", "code": 0})));
    };
    let call = read_call(inside.to_owned(), request).await?;
    app.delay().await;
    let answer = rest(Arc::clone(&app), call).await;
    app.delay().await;
    answer
}

async fn collect(request: Request<Incoming>) -> Result<Bytes, std::io::Error> {
    request
        .into_body()
        .collect()
        .await
        .map(http_body_util::Collected::to_bytes)
        .map_err(std::io::Error::other)
}

async fn read_call(path: String, request: Request<Incoming>) -> Result<Call, std::io::Error> {
    let header = |name| {
        let value: Option<&HeaderValue> = request.headers().get(name);
        value.and_then(|value| value.to_str().ok()).map(str::to_owned)
    };
    let (authorization, user_agent) = (header(header::AUTHORIZATION), header(header::USER_AGENT));
    let content_type = header(header::CONTENT_TYPE);
    let query = query_of(request.uri().query());
    let method = request.method().as_str().to_owned();
    let path = path.split('/').skip(1).map(render::percent_decoded).collect();
    let body = multipart::read(content_type.as_deref(), collect(request).await?).await;
    Ok(Call { method, path, query, authorization, user_agent, body })
}

fn query_of(query: Option<&str>) -> BTreeMap<String, String> {
    let pairs = query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty());
    let decode = |text: &str| render::percent_decoded(&text.replace('+', " "));
    pairs
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
        .map(|(key, value)| (decode(key), decode(value)))
        .collect()
}

/// Handles a request, with the faults that apply to it.
async fn rest(app: Arc<App>, call: Call) -> Result<Reply, std::io::Error> {
    let (is_away, fate) = app.act(|machine, _| {
        let route = classify(&call.method, &call.path).map_or("unknown", |route| route.name);
        let exact = format!("{} /{}", call.method, call.path.join("/"));
        let fate = machine.faults.request(route, &exact);
        if let Some(fate) = &fate {
            machine.tally.rest_fate(route, fate);
        }
        (machine.faults.away, fate)
    });
    if is_away {
        return Ok(away());
    }
    match fate {
        Some(RestFate::LostBefore) => return Err(connection_lost()),
        Some(RestFate::ErrorBefore { status }) => return Ok(answered(Answer::fault(status))),
        Some(RestFate::RateLimited { retry_after_ms, scope }) => {
            let limited =
                app.act(|machine, now| machine.rate_limited_by_fault(now, &call, retry_after_ms, scope));
            return Ok(answered(limited));
        }
        Some(RestFate::StallBefore { ms }) => stall(ms).await,
        Some(RestFate::Late { ms }) => {
            execute_later(app, call, ms);
            return Err(connection_lost());
        }
        _ => {}
    }
    let (answer, held) = app.act(|machine, now| {
        let deduplicated = machine.tally.deduplicated;
        let answer = machine.call(now, &call);
        if fate == Some(RestFate::Forgotten) {
            machine.forget_created(&answer);
        }
        let held = machine.hold_back(&call, &answer, deduplicated);
        (answer, held)
    });
    if let Some(id) = held {
        HeldBack { app, id }.wait_until_released().await;
    }
    match fate {
        Some(RestFate::LostAfter) => Err(connection_lost()),
        Some(RestFate::ErrorAfter { status }) => Ok(answered(Answer::fault(status))),
        Some(RestFate::StallAfter { ms }) => {
            stall(ms).await;
            Ok(answered(answer))
        }
        _ => Ok(answered(answer)),
    }
}

/// An answer that is held back. Dropped when the client disconnects; the machine then records that nobody
/// received it.
struct HeldBack {
    app: Arc<App>,
    id: Id,
}

impl HeldBack {
    async fn wait_until_released(&self) {
        while self.app.act(|machine, _| machine.underway.held.contains(&self.id)) {
            tokio::time::sleep(HELD_POLL).await;
        }
    }
}

impl Drop for HeldBack {
    fn drop(&mut self) {
        self.app.act(|machine, _| machine.mark_unreceived(self.id));
    }
}

/// Executes a request after a delay although its client gets no answer.
fn execute_later(app: Arc<App>, call: Call, ms: u64) {
    app.act(|machine, _| machine.underway.late += 1);
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(ms)).await;
        app.act(|machine, now| {
            machine.call(now, &call);
            machine.underway.late -= 1;
        });
    });
}

async fn stall(ms: Option<u64>) {
    match ms {
        Some(ms) => tokio::time::sleep(Duration::from_millis(ms)).await,
        None => std::future::pending().await,
    }
}

fn away() -> Reply {
    plain(StatusCode::SERVICE_UNAVAILABLE, &json!({"message": "503: Service Unavailable", "code": 0}))
}

fn plain(status: StatusCode, body: &Value) -> Reply {
    let mut reply = Response::new(Full::new(Bytes::from(body.to_string())));
    *reply.status_mut() = status;
    reply.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    reply
}

fn answered(answer: Answer) -> Reply {
    let status = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut reply = match (&answer.body, answer.html) {
        (_, Some(html)) => {
            let mut reply = Response::new(Full::new(Bytes::from_static(html.as_bytes())));
            reply.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/html"));
            reply
        }
        (Some(body), None) => plain(status, body),
        (None, None) => Response::new(Full::new(Bytes::new())),
    };
    *reply.status_mut() = status;
    for (name, value) in answer.headers {
        if let Ok(value) = HeaderValue::from_str(&value) {
            reply.headers_mut().insert(name, value);
        }
    }
    reply
}

/// Handles an order of a test: 200 with its result, 400 with the error.
fn order(app: &App, bytes: &[u8]) -> Reply {
    let order: Order = match serde_json::from_slice(bytes) {
        Ok(order) => order,
        Err(error) => {
            return plain(StatusCode::BAD_REQUEST, &json!({"message": error.to_string(), "code": -1}));
        }
    };
    match app.act_and_store_settings(|machine, now| machine.order(now, order)) {
        Ok(value) => plain(StatusCode::OK, &value),
        Err(error) => plain(StatusCode::BAD_REQUEST, &error.body()),
    }
}

/// `/attachments/{channel}/{file}/{name}?ex&is&hm`: 404 if the signature is invalid or expired.
fn file(app: &App, uri: &hyper::Uri) -> Reply {
    let query = query_of(uri.query());
    let parts: Vec<&str> = uri.path().split('/').collect();
    let id = parts.get(3).and_then(|id| id.parse().ok()).unwrap_or(0);
    let hex = |key: &str| query.get(key).and_then(|text| u64::from_str_radix(text, 16).ok());
    let signed = hex("ex").is_some_and(|expires| hex("hm") == Some(signature(id, expires)));
    let over = app.act(|machine, now| machine.cdn_expired(hex("ex").unwrap_or(0), now));
    match app.file(id).filter(|_| signed && !over) {
        Some(bytes) => Response::new(Full::new(Bytes::from(bytes))),
        None => {
            let text = "This content is no longer available.";
            let mut reply = Response::new(Full::new(Bytes::from_static(text.as_bytes())));
            *reply.status_mut() = StatusCode::NOT_FOUND;
            reply
        }
    }
}

/// Upgrades a request to a gateway connection.
fn upgrade(app: Arc<App>, request: Request<Incoming>) -> Reply {
    let key = request.headers().get(header::SEC_WEBSOCKET_KEY).map(|key| derive_accept_key(key.as_bytes()));
    let Some(accept) = key.and_then(|key| HeaderValue::from_str(&key).ok()) else {
        return plain(StatusCode::BAD_REQUEST, &json!({"message": "400: Bad Request", "code": 0}));
    };
    let version = query_of(request.uri().query()).remove("v");
    tokio::spawn(async move {
        let Ok(upgraded) = hyper::upgrade::on(request).await else { return };
        let Ok(parts) = upgraded.downcast::<TokioIo<TcpStream>>() else { return };
        socket::serve(app, parts.io.into_inner(), parts.read_buf.to_vec(), version).await;
    });
    let mut reply = Response::new(Full::new(Bytes::new()));
    *reply.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = reply.headers_mut();
    headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert(header::SEC_WEBSOCKET_ACCEPT, accept);
    reply
}
