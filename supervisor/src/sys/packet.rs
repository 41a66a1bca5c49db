//! Packets over the control socket of a wrapper.

use super::PacketSender;
use rustix::io::Errno;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

/// Creates connected packet sockets for one wrapper: the wrapper's blocking end, then our non-blocking end.
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

/// Makes the kernel attach the sender's credentials to each packet.
///
/// # Errors
/// The kernel refused the option.
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

/// Received packet.
#[derive(Debug)]
pub struct Packet {
    /// Size in bytes.
    pub bytes: usize,
    /// Sender, if [`pass_credentials`] and [`super::linux::pass_pidfd`] are enabled.
    pub sender: PacketSender,
    /// True if descriptors came with the packet. They are closed already.
    pub laden: bool,
}
