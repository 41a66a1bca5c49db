//! Control socket: one message per packet, with file descriptors as ancillary data.

use crate::error::{StepContext, StepError};
use acp_shared::launch::{CONTROL_BYTES_MAX, FromWrapper, ToWrapper};
use acp_shared::wire;
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendFlags};
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Maximum size of a supervisor message, in bytes: they are a few bytes long, and a longer packet is refused.
const PACKET_BYTES_MAX: usize = 256;
/// Capacity for received descriptors: more than expected, so that a wrong number is detected and not
/// truncated.
const FDS_MAX: usize = 16;

/// Result of a non-blocking receive.
#[derive(Debug)]
pub(crate) enum Received {
    /// No message is available.
    Nothing,
    /// The supervisor closed its end.
    Closed,
    /// A message and the descriptors sent with it.
    Message(ToWrapper, Vec<OwnedFd>),
}

/// The wrapper's end of the control socket.
#[derive(Debug)]
pub(crate) struct Control {
    socket: OwnedFd,
}

impl Control {
    /// Takes ownership of the socket.
    pub(crate) const fn new(socket: OwnedFd) -> Self {
        Self { socket }
    }

    /// Receives the next packet, without blocking. Received descriptors are close-on-exec from the start.
    pub(crate) fn receive(&self) -> Result<Received, StepError> {
        const STAGE: &str = "read the control socket";
        let mut bytes = [0u8; PACKET_BYTES_MAX];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX), ScmCredentials(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let got = loop {
            match rustix::net::recvmsg(
                &self.socket,
                &mut [IoSliceMut::new(&mut bytes)],
                &mut ancillary,
                flags,
            ) {
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(Received::Nothing),
                Err(Errno::CONNRESET) => return Ok(Received::Closed),
                other => break other.during(STAGE)?,
            }
        };
        let mut fds = Vec::new();
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(more) = message {
                fds.extend(more);
            }
        }
        if got.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
            return Err(StepError::protocol("read a control message that is too long"));
        }
        if got.bytes == 0 && fds.is_empty() {
            return Ok(Received::Closed);
        }
        let packet = bytes.get(..got.bytes).unwrap_or_default();
        let message =
            wire::decode(packet).map_err(|_| StepError::protocol("read a malformed control message"))?;
        Ok(Received::Message(message, fds))
    }

    /// Sends a message, without blocking. An undeliverable message is dropped: the supervisor is gone, or
    /// does not read its socket and learns about the end from the wrapper's exit.
    pub(crate) fn send(&self, message: &FromWrapper) {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let send =
            |packet: &[u8]| while rustix::net::send(&self.socket, packet, flags) == Err(Errno::INTR) {};
        let mut small = [0; PACKET_BYTES_MAX];
        if let Ok(packet) = wire::encode_into(message, &mut small) {
            send(packet);
        } else if let Ok(packet) = wire::encode(message, CONTROL_BYTES_MAX) {
            send(&packet);
        }
    }

    /// Reports a failed setup to the supervisor.
    pub(crate) fn send_setup_error(&self, fault: StepError) {
        self.send(&FromWrapper::SetupFailed { errno: fault.errno, stage: fault.stage.to_owned() });
    }
}

impl AsFd for Control {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
