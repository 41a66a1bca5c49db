//! The listening socket: made here, with the mode and group that the configuration says, or handed over by the
//! service manager, which then has made it as its unit says.

use crate::config::Config;
use crate::core::admit::Policy;
use crate::systemd;
use acp_shared::conn::Listener;
use std::io;
use std::path::{Path, PathBuf};

/// A socket that accepts.
pub(crate) struct Socket {
    pub(crate) listener: Listener,
    pub(crate) path: PathBuf,
    /// The service manager's stays when this program ends.
    passed: bool,
}

impl Socket {
    /// Listens at `path`, unless a socket was handed over.
    ///
    /// # Errors
    /// As [`Listener::bind`]; there is no such group; what was handed over is no such socket.
    pub(crate) fn open(path: PathBuf, config: &Config, policy: &Policy) -> io::Result<Self> {
        if let Some(fd) = systemd::passed_listener()? {
            return Ok(Self {
                path: named(&fd).unwrap_or(path),
                listener: Listener::inherited(fd)?,
                passed: true,
            });
        }
        let group = config.socket_group.as_deref().map(group).transpose()?;
        let mode = config.mode().unwrap_or_else(|| mode(policy));
        // Nobody else gets in before it has its group.
        let listener = Listener::bind(&path, if group.is_some() { 0o600 } else { mode })?;
        if group.is_some() {
            std::os::unix::fs::chown(&path, None, group)?;
            std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(mode))?;
        }
        Ok(Self { listener, path, passed: false })
    }

    /// The name that is to be removed at the end.
    pub(crate) fn to_remove(&self) -> Option<PathBuf> {
        (!self.passed).then(|| self.path.clone())
    }
}

/// What the lists of the policy need. A user that is listed may be in any group.
fn mode(policy: &Policy) -> u32 {
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

/// The path that a socket is bound to.
fn named(fd: &std::os::fd::OwnedFd) -> Option<PathBuf> {
    let socket = std::os::unix::net::UnixListener::from(fd.try_clone().ok()?);
    socket.local_addr().ok()?.as_pathname().map(Path::to_owned)
}
