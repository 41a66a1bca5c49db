//! A websocket connection to the gateway.

use super::app::App;
use super::core::gateway::ToSocket;
use futures_util::{SinkExt as _, StreamExt as _};
use rustix::net::sockopt::set_socket_linger;
use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::sync::mpsc::channel;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role};

/// Timeout for the client's answer to a close frame.
const CLOSE_WAIT: Duration = Duration::from_secs(2);

/// Maximum number of queued payloads per client.
const WAITING_MAX: usize = 1 << 16;

/// End of a connection.
enum End {
    /// The client closed it, with or without a code.
    Client(Option<u16>),
    /// The fake closed it.
    Ours(u16, &'static str),
    /// The fake resets it.
    Reset,
    /// The fake ends it within a message.
    Cut,
}

/// Serves a connection to its end. `begun` is data that the client sent together with its request.
pub async fn serve(app: Arc<App>, stream: TcpStream, begun: Vec<u8>, version: Option<String>) {
    let mut stream = WebSocketStream::from_partially_read(stream, begun, Role::Server, None).await;
    if version.as_deref() != Some("10") {
        close(&mut stream, 4012, "Invalid API version.").await;
        return;
    }
    let (sender, mut orders) = channel(WAITING_MAX);
    let id = app.open_socket(sender);
    let end = loop {
        tokio::select! {
            order = orders.recv() => match order {
                Some(ToSocket::Text(text)) => {
                    app.delay().await;
                    if stream.send(Message::Text(text)).await.is_err() {
                        break End::Client(None);
                    }
                }
                Some(ToSocket::Close(code, reason)) => break End::Ours(code, reason),
                Some(ToSocket::Reset) | None => break End::Reset,
                Some(ToSocket::Cut) => break End::Cut,
            },
            message = stream.next() => match message {
                Some(Ok(Message::Text(text))) => app.act(|machine, now| machine.socket_text(now, id, &text)),
                Some(Ok(Message::Binary(bytes))) => {
                    let text = String::from_utf8_lossy(&bytes).into_owned();
                    app.act(|machine, now| machine.socket_text(now, id, &text));
                }
                Some(Ok(Message::Close(frame))) => break End::Client(frame.map(|frame| u16::from(frame.code))),
                Some(Ok(_)) => {}
                Some(Err(_)) | None => break End::Client(None),
            },
        }
    };
    match end {
        End::Client(code) => app.close_socket(id, code),
        End::Ours(code, reason) => {
            app.close_socket(id, None);
            close(&mut stream, code, reason).await;
        }
        End::Cut => {
            app.close_socket(id, None);
            // The header of a frame of 1000 bytes and its first bytes only.
            let _ = stream.get_mut().write_all(b"\x81\x7e\x03\xe8{\"op\":0").await;
        }
        End::Reset => {
            app.close_socket(id, None);
            // With a linger time of zero the kernel sends a reset; if that fails, the connection ends without
            // a close frame.
            let _ = set_socket_linger(stream.get_ref(), Some(Duration::ZERO));
        }
    }
}

async fn close(stream: &mut WebSocketStream<TcpStream>, code: u16, reason: &'static str) {
    let frame = CloseFrame { code: CloseCode::from(code), reason: Cow::Borrowed(reason) };
    // A disconnected client needs no close frame.
    let _ = stream.close(Some(frame)).await;
    let _ = tokio::time::timeout(CLOSE_WAIT, async { while let Some(Ok(_)) = stream.next().await {} }).await;
}
