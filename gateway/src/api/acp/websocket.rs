//! The same messages over a WebSocket: one text frame for each, one stream for everything.

use super::connection::{Connection, Incoming};
use super::http::{Refusal, initialize_result, insert};
use super::message_io::{MessageIo, MessageMeter};
use super::stream::{Batch, StreamReader};
use super::{AcpServer, MESSAGE_BYTES_MAX};
use crate::api::extract::TakenRoom;
use crate::api::tokens::TokenLease;
use acp_core::jsonrpc::RpcMessage;
use acp_core::northbound::connection::StreamScope;
use acp_core::northbound::message::{self, error_frame, result_frame};
use acp_core::northbound::{CONNECTION_HEADER, answers};
use acp_core::principal::Principal;
use acp_shared::ids::AgentName;
use axum::body::Body;
use axum::extract::Request;
use axum::http::{StatusCode, header};
use axum::response::Response;
use bytes::Bytes;
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt as _, StreamExt as _};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Error, Message};

/// Subprotocol that is accepted where a client offers it.
const SUBPROTOCOL: &str = "acp";
/// Time limit for the close frame, in milliseconds.
const CLOSE_MS: u64 = 2_000;

type Socket = WebSocketStream<MessageIo<TokioIo<Upgraded>>>;
type Writing = SplitSink<Socket, Message>;
/// Reason of the end: a close code and a text.
type End = (CloseCode, &'static str);

/// Messages of the client.
struct Messages {
    reading: SplitStream<Socket>,
    meter: MessageMeter,
}

/// Answers an upgrade, and serves the socket in a task.
pub(super) fn upgrade(
    server: &Arc<AcpServer>,
    principal: Principal,
    agent: Option<AgentName>,
    mut request: Request,
) -> Result<Response, Refusal> {
    let text = |name: &str| request.headers().get(name).and_then(|value| value.to_str().ok());
    let bad = |what: &str| Refusal::new(StatusCode::BAD_REQUEST, what.to_owned());
    if text("sec-websocket-version") != Some("13") {
        return Err(Refusal::new(StatusCode::UPGRADE_REQUIRED, "Sec-WebSocket-Version must be 13"));
    }
    let key = text("sec-websocket-key").ok_or_else(|| bad("Sec-WebSocket-Key is required"))?;
    let accept = derive_accept_key(key.as_bytes());
    let offered = text("sec-websocket-protocol").unwrap_or_default();
    let is_offered = offered.split(',').any(|name| name.trim() == SUBPROTOCOL);
    let connection = server.connect(principal, agent)?;
    connection.end_with(request.extensions().get::<TokenLease>().cloned());
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    for (name, value) in
        [("connection", "upgrade"), ("upgrade", "websocket"), ("sec-websocket-accept", &accept)]
    {
        insert(&mut response, name, value);
    }
    if is_offered {
        insert(&mut response, header::SEC_WEBSOCKET_PROTOCOL.as_str(), SUBPROTOCOL);
    }
    insert(&mut response, CONNECTION_HEADER, connection.id());
    let server = Arc::clone(server);
    let upgraded = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        match upgraded.await {
            Ok(upgraded) => serve(&server, &connection, upgraded).await,
            Err(error) => tracing::debug!(%error, "upgrade failed"),
        }
        connection.end("socket_closed");
    });
    Ok(response)
}

async fn serve(server: &Arc<AcpServer>, connection: &Arc<Connection>, upgraded: Upgraded) {
    let config = WebSocketConfig {
        max_message_size: Some(MESSAGE_BYTES_MAX),
        max_frame_size: Some(MESSAGE_BYTES_MAX),
        ..WebSocketConfig::default()
    };
    let (meter, limit) = (MessageMeter::default(), Duration::from_millis(server.limits.body_ms));
    let (room, principal) = (server.room.clone(), connection.principal().clone());
    let io = TokioIo::new(upgraded);
    let io = MessageIo::new(io, meter.clone(), room, principal, MESSAGE_BYTES_MAX, limit);
    let socket = WebSocketStream::from_raw_socket(io, Role::Server, Some(config)).await;
    let (mut sink, messages) = socket.split();
    let mut messages = Messages { reading: messages, meter };
    let dead = Duration::from_millis(server.limits.dead_ms);
    let end = match next(&mut messages, dead).await {
        Err(end) => end,
        Ok((first, _room)) => match initialize(server, connection, &first) {
            Err(end) => end,
            Ok(frame) => {
                if sink.send(Message::Text(frame)).await.is_err() {
                    return;
                }
                talk(server, connection, &mut sink, messages, dead).await
            }
        },
    };
    let (code, reason) = end;
    tracing::debug!(?code, reason, "acp websocket ends");
    let close = Message::Close(Some(CloseFrame { code, reason: reason.into() }));
    drop(timeout(Duration::from_millis(CLOSE_MS), sink.send(close)).await);
}

/// Answers the first message, which must be `initialize`.
fn initialize(server: &AcpServer, connection: &Connection, first: &str) -> Result<String, End> {
    match message::parse(first.as_bytes()) {
        Ok(RpcMessage::Request { id, method, params }) if method == "initialize" => {
            connection.state().declare(answers::declared(params));
            Ok(match initialize_result(server, params) {
                Ok(result) => result_frame(id, &result),
                Err(error) => error_frame(id, &error),
            })
        }
        _ => Err((CloseCode::Protocol, "the first message must be initialize")),
    }
}

/// Carries messages in both directions until one side ends. Returns the reason.
async fn talk(
    server: &Arc<AcpServer>,
    connection: &Arc<Connection>,
    sink: &mut Writing,
    messages: Messages,
    dead: Duration,
) -> End {
    let Ok(ticket) = connection.state().open_stream(StreamScope::All) else {
        return (CloseCode::Policy, "no stream is free");
    };
    let reader = StreamReader::new(server, connection, ticket);
    let (ended, end) = oneshot::channel();
    let from = Arc::clone(connection);
    let receiving = tokio::spawn(async move {
        let _ = ended.send(receive(&from, messages, dead).await);
    });
    let heartbeat = Duration::from_millis(server.limits.heartbeat_ms);
    let reason = tokio::select! {
        end = end => end.unwrap_or((CloseCode::Error, "internal error")),
        () = send(reader, sink, heartbeat) => match server.ending.is_cancelled() {
            true => (CloseCode::Away, "the gateway stops"),
            false => (CloseCode::Policy, "the connection ended"),
        },
    };
    receiving.abort();
    reason
}

/// Sends what the stream has, and pings in between, until the stream ends or the socket breaks.
async fn send(mut reader: StreamReader, sink: &mut Writing, heartbeat: Duration) {
    let mut pinged = Instant::now();
    while let Some(batch) = reader.next().await {
        if let Batch::Frames(frames) = batch {
            for frame in frames {
                if sink.feed(Message::Text(frame.json)).await.is_err() {
                    return;
                }
            }
        }
        if pinged.elapsed() >= heartbeat {
            pinged = Instant::now();
            if sink.feed(Message::Ping(Vec::new())).await.is_err() {
                return;
            }
        }
        if sink.flush().await.is_err() {
            return;
        }
    }
}

/// Hands the client's messages to the connection until the socket ends.
async fn receive(connection: &Connection, mut messages: Messages, dead: Duration) -> End {
    loop {
        match next(&mut messages, dead).await {
            Err(end) => return end,
            Ok((text, room)) => {
                let incoming = Incoming {
                    body: Bytes::from(text),
                    session_header: None,
                    is_local: connection.principal().local,
                    _room: room,
                };
                if !connection.receive(incoming).await {
                    return (CloseCode::Away, "the connection ended");
                }
            }
        }
    }
}

/// Waits for the next text, which comes with its room.
async fn next(messages: &mut Messages, dead: Duration) -> Result<(String, Option<TakenRoom>), End> {
    let Messages { reading, meter } = messages;
    loop {
        match timeout(dead, reading.next()).await {
            Err(_) => return Err((CloseCode::Policy, "no sign of life")),
            Ok(None | Some(Ok(Message::Close(_)))) => return Err((CloseCode::Normal, "")),
            Ok(Some(Ok(Message::Text(text)))) => return Ok((text, meter.end_message())),
            Ok(Some(Ok(Message::Ping(payload) | Message::Pong(payload)))) => meter.end_control(payload.len()),
            // Other messages are ignored.
            Ok(Some(Ok(_))) => drop(meter.end_message()),
            Ok(Some(Err(Error::Capacity(_)))) => return Err((CloseCode::Size, "the message is too long")),
            Ok(Some(Err(Error::Utf8))) => return Err((CloseCode::Invalid, "the text is not UTF-8")),
            Ok(Some(Err(_))) => return Err((CloseCode::Protocol, "the socket failed")),
        }
    }
}
