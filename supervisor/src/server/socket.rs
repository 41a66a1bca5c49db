//! Listening socket: created here with the configured mode and group, or passed on by the service manager
//! with the settings of its unit.

use crate::config::Config;
use crate::core::admission::AccessPolicy;
use crate::sys::systemd;
use acp_shared::conn::Listener;
use std::io;
use std::path::{Path, PathBuf};

/// Listening socket with its path.
pub(crate) struct Socket {
    pub(crate) listener: Listener,
    pub(crate) path: PathBuf,
    /// True for a socket of the service manager, which must not be removed at the end.
    passed: bool,
}

impl Socket {
    /// Listens at `path`, unless the service manager passed a socket.
    ///
    /// # Errors
    /// As [`Listener::bind`]; the group does not exist; the passed descriptor is not a listening socket.
    pub(crate) fn open(path: PathBuf, config: &Config, policy: &AccessPolicy) -> io::Result<Self> {
        if let Some(fd) = systemd::passed_listener()? {
            let path = named(&fd).unwrap_or(path);
            return Ok(Self { path, listener: Listener::inherited(fd)?, passed: true });
        }
        let group = config.socket_group.as_deref().map(group).transpose()?;
        let mode = config.mode().unwrap_or_else(|| mode(policy));
        // No other user may connect before the group is set.
        let listener = Listener::bind(&path, if group.is_some() { 0o600 } else { mode })?;
        if group.is_some() {
            std::os::unix::fs::chown(&path, None, group)?;
            std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(mode))?;
        }
        Ok(Self { listener, path, passed: false })
    }

    /// Returns the path to remove at the end.
    pub(crate) fn to_remove(&self) -> Option<PathBuf> {
        (!self.passed).then(|| self.path.clone())
    }
}

/// Returns the mode that the policy requires. A listed user may be in any group, so users require access for
/// all.
fn mode(policy: &AccessPolicy) -> u32 {
    if !policy.allowed_uids.is_empty() {
        0o666
    } else if !policy.allowed_gids.is_empty() || !policy.admin_gids.is_empty() {
        0o660
    } else {
        0o600
    }
}

fn group(name: &str) -> io::Result<u32> {
    if let Ok(number) = name.parse() {
        return Ok(number);
    }
    let found = nix::unistd::Group::from_name(name)?;
    found.map(|group| group.gid.as_raw()).ok_or_else(|| {
        io::Error::new(io::ErrorKind::NotFound, format!("there is no group {name:?} (socket_group)"))
    })
}

/// Returns the path that a socket is bound to.
fn named(fd: &std::os::fd::OwnedFd) -> Option<PathBuf> {
    let socket = std::os::unix::net::UnixListener::from(fd.try_clone().ok()?);
    socket.local_addr().ok()?.as_pathname().map(Path::to_owned)
}
