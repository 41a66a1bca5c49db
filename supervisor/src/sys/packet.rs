//! Packets over the control socket of a wrapper.

use super::Sender;
use rustix::io::Errno;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

/// A pair of connected packet sockets for one wrapper: first its end (blocking), then ours (not blocking).
///
/// # Errors
/// The process is out of descriptors.
pub fn control_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType};
    let (theirs, ours) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    rustix::io::ioctl_fionbio(&ours, true)?;
    Ok((theirs, ours))
}

/// Has the kernel say with each packet who sent it.
///
/// # Errors
/// The kernel does not.
pub fn pass_credentials(socket: BorrowedFd<'_>) -> io::Result<()> {
    Ok(rustix::net::sockopt::set_socket_passcred(socket, true)?)
}

/// Sends one packet with descriptors.
///
/// # Errors
/// The peer is gone.
pub fn send_with_fds(socket: BorrowedFd<'_>, packet: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(Errno::NOBUFS.into());
    }
    rustix::net::sendmsg(socket, &[io::IoSlice::new(packet)], &mut ancillary, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// A packet that was received.
#[derive(Debug)]
pub struct Packet {
    /// How many bytes it has.
    pub bytes: usize,
    /// Who sent it, where [`pass_credentials`] and [`super::linux::pass_pidfd`] were asked.
    pub sender: Sender,
    /// Descriptors came with it. They are closed.
    pub laden: bool,
}
