//! Byte stream below a WebSocket: a large message takes room before it is read, and has limited time to arrive.

use crate::api::extract::{BodyRoom, LARGE_BYTES, TakenRoom};
use acp_core::principal::Principal;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// Bytes of a masked control frame besides its payload.
const CONTROL_HEAD_BYTES: usize = 6;

/// Unfinished message of a socket.
#[derive(Debug, Clone, Default)]
pub(super) struct MessageMeter(Arc<Mutex<Unfinished>>);

#[derive(Debug, Default)]
struct Unfinished {
    bytes: usize,
    room: Option<TakenRoom>,
    /// Number of messages that have arrived.
    messages: u64,
}

impl MessageMeter {
    /// Notes a complete message, and returns its room.
    pub(super) fn end_message(&self) -> Option<TakenRoom> {
        let mut unfinished = self.0.lock();
        unfinished.bytes = 0;
        unfinished.messages += 1;
        unfinished.room.take()
    }

    /// Notes a control frame, which may arrive in the middle of a message.
    pub(super) fn end_control(&self, payload_bytes: usize) {
        let mut unfinished = self.0.lock();
        unfinished.bytes = unfinished.bytes.saturating_sub(payload_bytes + CONTROL_HEAD_BYTES);
    }
}

/// Wait for the room of a message, and the time limit of the message.
struct LargeMessage {
    /// Number of the messages before it.
    messages: u64,
    taking: Option<BoxFuture<'static, Option<TakenRoom>>>,
    deadline: Pin<Box<Sleep>>,
}

/// Byte stream below a WebSocket.
pub(super) struct MessageIo<S> {
    inner: S,
    meter: MessageMeter,
    room: BodyRoom,
    principal: Principal,
    /// Maximum size of a message, in bytes: a larger one takes no more room.
    bytes_max: usize,
    /// Time limit of a large message.
    limit: Duration,
    large: Option<LargeMessage>,
}

impl<S> MessageIo<S> {
    pub(super) const fn new(
        inner: S,
        meter: MessageMeter,
        room: BodyRoom,
        principal: Principal,
        bytes_max: usize,
        limit: Duration,
    ) -> Self {
        Self { inner, meter, room, principal, bytes_max, limit, large: None }
    }

    /// Waits for the room of a large message.
    fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let (bytes, messages) = {
            let unfinished = self.meter.0.lock();
            (unfinished.bytes, unfinished.messages)
        };
        if bytes < LARGE_BYTES {
            self.large = None;
            return Poll::Ready(Ok(()));
        }
        let large = match self.large.take().filter(|large| large.messages == messages) {
            Some(large) => self.large.insert(large),
            None => {
                let (room, principal, max) = (self.room.clone(), self.principal.clone(), self.bytes_max);
                let taking = Box::pin(async move { room.take(&principal, max).await });
                let deadline = Box::pin(sleep(self.limit));
                self.large.insert(LargeMessage { messages, taking: Some(taking), deadline })
            }
        };
        if large.deadline.as_mut().poll(cx).is_ready() {
            let error = io::Error::new(io::ErrorKind::TimedOut, "the message did not arrive in time");
            return Poll::Ready(Err(error));
        }
        if let Some(taking) = &mut large.taking {
            let Poll::Ready(room) = taking.as_mut().poll(cx) else { return Poll::Pending };
            large.taking = None;
            self.meter.0.lock().room = room;
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for MessageIo<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.poll_room(cx) {
            Poll::Ready(Ok(())) => {}
            other => return other,
        }
        let before = buf.filled().len();
        let read = Pin::new(&mut self.inner).poll_read(cx, buf);
        self.meter.0.lock().bytes += buf.filled().len() - before;
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for MessageIo<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    fn socket(
        room: &BodyRoom,
    ) -> (tokio::io::DuplexStream, MessageIo<tokio::io::DuplexStream>, MessageMeter) {
        let (client, server) = duplex(1 << 20);
        let meter = MessageMeter::default();
        let ann = Principal::of_local_user("ann".to_owned());
        let limit = Duration::from_secs(10);
        (client, MessageIo::new(server, meter.clone(), room.clone(), ann, 16 << 20, limit), meter)
    }

    #[tokio::test(start_paused = true)]
    async fn large_message_takes_room_and_has_limited_time() {
        let room = BodyRoom::default();
        let (mut client, mut server, meter) = socket(&room);
        let mut buf = vec![0; LARGE_BYTES + 1];
        client.write_all(&buf).await.unwrap();
        server.read_exact(&mut buf).await.unwrap();
        client.write_all(b"more").await.unwrap();
        server.read_exact(&mut buf[..4]).await.unwrap();
        // The room moves on with the complete message.
        assert!(meter.end_message().is_some() && meter.end_message().is_none());
        // Control frames in the middle of an unfinished message extend no limit.
        client.write_all(&buf).await.unwrap();
        server.read_exact(&mut buf).await.unwrap();
        meter.end_control(4);
        client.write_all(&buf).await.unwrap();
        server.read_exact(&mut buf).await.unwrap();
        let late = server.read(&mut buf).await.unwrap_err();
        assert_eq!(late.kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test(start_paused = true)]
    async fn pings_and_small_messages_need_no_room() {
        let (mut client, mut server, meter) = socket(&BodyRoom::default());
        let mut buf = [0; 131];
        for _ in 0..1_000 {
            client.write_all(&buf).await.unwrap();
            server.read_exact(&mut buf).await.unwrap();
            meter.end_control(125);
        }
        tokio::time::sleep(Duration::from_secs(60)).await;
        client.write_all(&buf).await.unwrap();
        server.read_exact(&mut buf).await.unwrap();
        assert!(meter.end_message().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn large_message_waits_for_room() {
        let room = BodyRoom::default();
        let ann = Principal::of_local_user("ann".to_owned());
        let held = room.take(&ann, 32 << 20).await;
        let (mut client, mut server, _) = socket(&room);
        let mut buf = vec![0; LARGE_BYTES];
        client.write_all(&buf).await.unwrap();
        server.read_exact(&mut buf).await.unwrap();
        client.write_all(b"more").await.unwrap();
        assert!(tokio::time::timeout(Duration::from_secs(1), server.read(&mut buf)).await.is_err());
        drop(held);
        assert_eq!(server.read(&mut buf).await.unwrap(), 4);
    }
}
