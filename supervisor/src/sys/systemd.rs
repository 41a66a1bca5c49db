//! Service manager protocols of systemd (sd_notify(3), sd_listen_fds(3)): readiness, watchdog and passed
//! listening socket. Without a service manager, all functions do nothing.

use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// First descriptor passed by a service manager (sd_listen_fds(3)).
const FIRST_PASSED_FD: i32 = 3;

/// Connection to the service manager, if there is one.
#[derive(Debug, Default)]
pub struct Manager {
    to: Option<(UnixDatagram, SocketAddr)>,
    /// Watchdog interval and time of the next message, in milliseconds.
    watchdog: Option<(u64, u64)>,
}

impl Manager {
    /// Reads the environment: `NOTIFY_SOCKET`, and `WATCHDOG_USEC` if it is meant for this process.
    ///
    /// # Errors
    /// The address is not valid, or a socket cannot be created.
    pub fn from_env() -> io::Result<Self> {
        let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        let Some(name) = set("NOTIFY_SOCKET") else { return Ok(Self::default()) };
        let number = |name: &str| set(name)?.to_str()?.parse::<u64>().ok();
        let meant = number("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(std::process::id()));
        let every = number("WATCHDOG_USEC").filter(|usec| meant && *usec > 0);
        let socket = UnixDatagram::unbound()?;
        // The owner must never block on it.
        socket.set_nonblocking(true)?;
        Ok(Self {
            to: Some((socket, address(&name)?)),
            watchdog: every.map(|usec| ((usec / 2_000).max(1), 0)),
        })
    }

    /// Sends a notification: `READY=1`, `STATUS=…`. Several lines are one message.
    pub fn notify(&self, what: &str) {
        if let Some((socket, to)) = &self.to
            && let Err(error) = socket.send_to_addr(what.as_bytes(), to)
        {
            tracing::debug!(%error, notification = what, "service manager notification failed");
        }
    }

    /// Sends the watchdog message if it is due. Called by the owner, so that a blocked owner is detected.
    pub(crate) fn send_watchdog(&mut self, now_ms: u64) {
        if let Some((every_ms, _)) = self.watchdog.filter(|(_, at_ms)| *at_ms <= now_ms) {
            self.notify("WATCHDOG=1");
            self.watchdog = Some((every_ms, now_ms.saturating_add(every_ms)));
        }
    }

    /// Returns the time of the next watchdog message.
    pub(crate) fn next_watchdog_ms(&self) -> Option<u64> {
        self.watchdog.map(|(_, at_ms)| at_ms)
    }
}

fn address(name: &OsStr) -> io::Result<SocketAddr> {
    match name.as_bytes().split_first() {
        Some((b'@', name)) => SocketAddr::from_abstract_name(name),
        Some((b'/', _)) => SocketAddr::from_pathname(name),
        _ => Err(io::Error::new(io::ErrorKind::InvalidInput, "NOTIFY_SOCKET is neither a path nor abstract")),
    }
}

/// Returns the listening socket that the service manager passed to this process, if any.
///
/// # Errors
/// More than one socket was passed, or the descriptor is not a listening Unix socket.
pub fn passed_listener() -> io::Result<Option<OwnedFd>> {
    let number = |name: &str| std::env::var(name).ok()?.parse::<u32>().ok();
    if number("LISTEN_PID") != Some(std::process::id()) {
        return Ok(None);
    }
    match number("LISTEN_FDS") {
        None | Some(0) => Ok(None),
        Some(1) => inherited_listener(FIRST_PASSED_FD).map(Some),
        Some(_) => Err(io::Error::new(io::ErrorKind::InvalidInput, "more than one socket was handed over")),
    }
}

/// Takes over the listening Unix socket that a service manager opened before the start of this program and
/// passed by number. Children do not inherit the socket.
///
/// # Errors
/// The descriptor is not open, or not a listening Unix socket.
fn inherited_listener(number: i32) -> io::Result<OwnedFd> {
    let fd = crate::sys::linux::take_fd(number)?;
    let unix = rustix::net::sockopt::socket_domain(&fd)? == rustix::net::AddressFamily::UNIX;
    if unix && rustix::net::sockopt::socket_acceptconn(&fd)? {
        return Ok(fd);
    }
    let why = "the inherited descriptor is not a listening Unix socket";
    Err(io::Error::new(io::ErrorKind::InvalidInput, why))
}
