//! Asynchronous waits for kernel events, without a thread for each wait.

use crate::sys::linux::{self, Linux};
use crate::sys::packet::{self, Packet};
use crate::sys::{OpenProcess, PacketSender, Sys};
use acp_shared::launch::{CONTROL_BYTES_MAX, ExitStatus, FromWrapper, ToWrapper};
use acp_shared::wire::{self, WireError};
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::Interest;
use tokio::net::UnixDatagram;
use tokio::net::unix::pipe;

/// Poll interval for a child if the kernel has no pidfds.
const POLL: Duration = Duration::from_millis(50);

/// Child of this process, to be waited for and reaped once.
#[derive(Debug)]
pub struct Child<S: Sys = Linux> {
    sys: Arc<S>,
    handle: Arc<S::Handle>,
    /// pidfd, which becomes readable when the process ends, as a pipe does when data arrives.
    ready: Option<pipe::Receiver>,
    status: Option<ExitStatus>,
    /// True if the last attempt to reap failed and was logged.
    failing: bool,
}

impl<S: Sys> Child<S> {
    /// Watches a child of this process.
    ///
    /// # Errors
    /// The process is out of descriptors.
    pub fn new(sys: Arc<S>, handle: Arc<S::Handle>) -> io::Result<Self> {
        let ready = match handle.pidfd() {
            Some(fd) => Some(pipe::Receiver::from_owned_fd_unchecked(fd.try_clone_to_owned()?)?),
            None => None,
        };
        Ok(Self { sys, handle, ready, status: None, failing: false })
    }

    /// Returns the handle.
    #[must_use]
    pub const fn handle(&self) -> &Arc<S::Handle> {
        &self.handle
    }

    /// Returns the exit status, if the child has been reaped.
    #[must_use]
    pub const fn status(&self) -> Option<ExitStatus> {
        self.status
    }

    /// Waits for the end of the child and reaps it. Cancel-safe; later calls return the same status at once.
    pub async fn ended(&mut self) -> ExitStatus {
        let mut woken = false;
        loop {
            if let Some(status) = self.status {
                return status;
            }
            match self.sys.try_reap(&self.handle) {
                Ok(Some(status)) => self.status = Some(status),
                // Not a child of this process, or reaped before: the status cannot be determined.
                Err(error) if Errno::from_io_error(&error) == Some(Errno::CHILD) => {
                    self.status = Some(ExitStatus::Unknown);
                }
                // Other errors say nothing about the child, which may still be running.
                Err(error) => {
                    if !self.failing {
                        tracing::error!(
                            pid = self.handle.pid(),
                            %error,
                            "waiting for child failed; retrying"
                        );
                    }
                    self.failing = true;
                    tokio::time::sleep(POLL).await;
                }
                Ok(None) => match &self.ready {
                    // Readable but not reapable happens only while a tracer holds the process.
                    Some(ready) if !woken => {
                        woken = true;
                        if let Err(error) = ready.readable().await {
                            tracing::error!(pid = self.handle.pid(), %error, "cannot watch pidfd; polling");
                        }
                    }
                    Some(_) | None => tokio::time::sleep(POLL).await,
                },
            }
        }
    }
}

/// Waits until all these processes have ended, at most for `limit`. Waits that long if there are none, or if the
/// kernel has no pidfds.
pub async fn wait_for_ends<H: OpenProcess>(processes: &[Arc<H>], limit: Duration) {
    let all_ended = async {
        for process in processes {
            let fd = process.pidfd().and_then(|fd| fd.try_clone_to_owned().ok());
            let ready = fd.and_then(|fd| pipe::Receiver::from_owned_fd_unchecked(fd).ok());
            match ready {
                Some(ready) if ready.readable().await.is_ok() => {}
                Some(_) | None => std::future::pending().await,
            }
        }
        if processes.is_empty() {
            std::future::pending::<()>().await;
        }
    };
    let _ = tokio::time::timeout(limit, all_ended).await;
}

/// Error of a wrapper's control socket.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The socket failed.
    #[error("the wrapper's control socket failed")]
    Io(#[from] io::Error),
    /// The wrapper sent an invalid message.
    #[error("the wrapper violated its protocol")]
    Wire(#[from] WireError),
}

/// Packet from a control socket. Any process with access to the other end may have sent it.
#[derive(Debug)]
pub struct ControlPacket {
    message: Result<FromWrapper, WireError>,
    sender: PacketSender,
    /// True if descriptors came with the packet. A wrapper sends none.
    laden: bool,
}

/// Reason to ignore a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PacketRejection {
    /// A process other than the wrapper sent the packet.
    Other,
    /// Descriptors came with the packet.
    Laden,
}

impl ControlPacket {
    fn of(packet: Packet, bytes: &[u8]) -> Option<Self> {
        let Packet { bytes: count, sender, laden } = packet;
        // The end of the stream has no sender.
        if count == 0 && sender.pid.is_none() {
            return None;
        }
        Some(Self { message: wire::decode(bytes.get(..count).unwrap_or_default()), sender, laden })
    }

    /// Creates the result for a packet larger than any message.
    fn cut() -> Self {
        let message = wire::decode(&[]);
        Self { message, sender: PacketSender::default(), laden: false }
    }

    /// Returns the message, if the wrapper itself sent the packet.
    ///
    /// # Errors
    /// The reason to ignore the packet.
    pub fn from<S: Sys>(
        self,
        sys: &S,
        wrapper: &S::Handle,
    ) -> Result<Result<FromWrapper, WireError>, PacketRejection> {
        if !sys.is_sender(wrapper, &self.sender) {
            return Err(PacketRejection::Other);
        }
        if self.laden { Err(PacketRejection::Laden) } else { Ok(self.message) }
    }
}

/// The supervisor's end of a wrapper's control socket.
#[derive(Debug)]
pub struct Control {
    /// Packet socket, which the runtime can treat as a datagram socket.
    socket: UnixDatagram,
}

impl Control {
    /// Takes over a connected, non-blocking packet socket.
    ///
    /// # Errors
    /// The runtime cannot watch the socket.
    pub fn new(socket: OwnedFd) -> io::Result<Self> {
        let socket = UnixDatagram::from_std(std::os::unix::net::UnixDatagram::from(socket))?;
        Ok(Self { socket })
    }

    /// Returns the socket, including unread packets.
    ///
    /// # Errors
    /// The runtime cannot release the socket.
    pub fn into_fd(self) -> io::Result<OwnedFd> {
        Ok(self.socket.into_std()?.into())
    }

    /// Receives the next packet from any sender; `None` once the other end is closed everywhere. Cancel-safe.
    ///
    /// # Errors
    /// [`ControlError::Io`].
    pub async fn recv(&self) -> Result<Option<ControlPacket>, ControlError> {
        let mut bytes = vec![0u8; CONTROL_BYTES_MAX];
        let got = self
            .socket
            .async_io(Interest::READABLE, || linux::recv_packet(self.socket.as_fd(), &mut bytes))
            .await;
        match got {
            Err(e) if e.kind() == io::ErrorKind::ConnectionReset => Ok(None),
            Err(e) if e.raw_os_error() == Some(Errno::MSGSIZE.raw_os_error()) => {
                Ok(Some(ControlPacket::cut()))
            }
            other => Ok(ControlPacket::of(other?, &bytes)),
        }
    }

    /// Reads all waiting packets without blocking: the last messages of an exited wrapper. Another process
    /// may hold the wrapper's end of the socket, so the end of the stream is not awaited.
    #[must_use]
    pub fn drain_messages(&self) -> Vec<ControlPacket> {
        // A socket buffer holds only a limited number of packets.
        const LAST_MESSAGES_MAX: usize = 1024;
        let mut bytes = vec![0u8; CONTROL_BYTES_MAX];
        let next = || ControlPacket::of(linux::recv_packet(self.socket.as_fd(), &mut bytes).ok()?, &bytes);
        std::iter::from_fn(next).take(LAST_MESSAGES_MAX).collect()
    }

    /// Sends a message with descriptors. Messages are few and small, so the socket never fills up.
    ///
    /// # Errors
    /// [`ControlError`] if the message was not sent.
    pub fn send(&self, message: &ToWrapper, fds: &[BorrowedFd<'_>]) -> Result<(), ControlError> {
        let packet = wire::encode(message, CONTROL_BYTES_MAX)?;
        Ok(packet::send_with_fds(self.socket.as_fd(), &packet, fds)?)
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;

    #[tokio::test]
    async fn last_messages_are_read_while_other_end_is_held() {
        let (wrapper_end, own_end) = packet::control_pair().unwrap();
        let control = Control::new(own_end).unwrap();
        let message = FromWrapper::Done { status: ExitStatus::Exited(3), survivors: Vec::new() };
        let packet = wire::encode(&message, CONTROL_BYTES_MAX).unwrap();
        packet::send_with_fds(wrapper_end.as_fd(), &packet, &[]).unwrap();
        let drained = |control: &Control| -> Vec<FromWrapper> {
            control.drain_messages().into_iter().map(|packet| packet.message.unwrap()).collect()
        };
        assert_eq!(drained(&control), [message]);
        assert_eq!(drained(&control), []);
        drop(wrapper_end);
    }
}
