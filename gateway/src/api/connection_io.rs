//! Byte stream of a connection to the API: it holds the connection's slot for as long as it exists, so also after an
//! upgrade to another protocol, and fails once the slot is taken away.

use crate::api::connection_slots::ConnectionSlot;
use crate::api::write_timeout::WriteTimeout;
use std::future::Future as _;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};
use tokio_util::sync::WaitForCancellationFutureOwned;

/// Byte stream of a connection.
pub(super) struct ConnectionIo<S> {
    inner: WriteTimeout<S>,
    slot: Arc<ConnectionSlot>,
    ended: Pin<Box<WaitForCancellationFutureOwned>>,
    /// Timer of the first request's head. Later heads have the HTTP implementation's own.
    first_head: Option<Pin<Box<Sleep>>>,
}

impl<S> ConnectionIo<S> {
    pub(super) fn new(stream: S, slot: Arc<ConnectionSlot>, head: Duration, stall: Duration) -> Self {
        Self {
            inner: WriteTimeout::new(stream, stall),
            ended: Box::pin(slot.end().clone().cancelled_owned()),
            slot,
            first_head: Some(Box::pin(sleep(head))),
        }
    }

    /// Returns an error if the connection must end.
    fn check(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        if self.ended.as_mut().poll(cx).is_ready() {
            return Err(io::Error::new(io::ErrorKind::ConnectionAborted, "the connection was ended"));
        }
        if self.slot.has_served() {
            self.first_head = None;
        }
        let is_late = self.first_head.as_mut().is_some_and(|timer| timer.as_mut().poll(cx).is_ready());
        if is_late {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "no request arrived in time"));
        }
        Ok(())
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for ConnectionIo<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check(cx)?;
        Pin::new(&mut self.inner).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for ConnectionIo<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}
