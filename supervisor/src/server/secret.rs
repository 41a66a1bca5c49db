//! Secret of the handshake (H9), for gateways of the supervisor's own user: a file that only that user can
//! read.
//!
//! It excludes programs that got access by mistake (an inherited socket, another user namespace, a container
//! that shares only the socket). It does not protect against other programs of the same user.

use crate::sys::launch_dir::write_atomically;
use acp_shared::redact::Secret;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// Name of the file in the state directory, which also contains the socket.
pub const SECRET_FILE: &str = "secret";
/// Minimum length of a secret, in characters.
pub const TEXT_BYTES_MIN: usize = 32;
const RANDOM_BYTES: usize = 32;

/// Reads the secret of a state directory; creates it at the first start.
///
/// # Errors
/// The file cannot be read or created, or others can read it.
pub fn load_or_make(state_dir: &Path) -> io::Result<Secret> {
    let path = state_dir.join(SECRET_FILE);
    match read(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => make(&path),
        other => other,
    }
}

/// Reads the secret in the directory of a socket, if it exists and this user may read it.
#[must_use]
pub fn read_next_to(socket: &Path) -> Option<Secret> {
    let text = std::fs::read_to_string(socket.with_file_name(SECRET_FILE)).ok()?;
    Some(Secret::new(text.trim().to_owned()))
}

fn read(path: &Path) -> io::Result<Secret> {
    let mut file = File::open(path)?;
    let meta = file.metadata()?;
    if meta.mode() & 0o077 != 0 || meta.uid() != rustix::process::geteuid().as_raw() {
        return Err(io::Error::other(
            "other users can read it; remove it, and the supervisor creates a new one",
        ));
    }
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    let text = text.trim();
    if text.len() < TEXT_BYTES_MIN {
        return Err(io::Error::other("it is too short; remove it, and the supervisor creates a new one"));
    }
    Ok(Secret::new(text.to_owned()))
}

/// Creates the secret file atomically.
fn make(path: &Path) -> io::Result<Secret> {
    let mut bytes = [0u8; RANDOM_BYTES];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    let text = bytes.iter().fold(String::new(), |mut text, byte| {
        // A write to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    });
    write_atomically(path, format!("{text}\n").as_bytes(), 0o600)?;
    Ok(Secret::new(text))
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn secret_is_created_once_and_private() {
        let dir = tempfile::tempdir().unwrap();
        let made = load_or_make(dir.path()).unwrap();
        assert_eq!(made.expose().len(), 2 * RANDOM_BYTES);
        assert_eq!(load_or_make(dir.path()).unwrap(), made);
        assert_eq!(read_next_to(&dir.path().join("supervisor.sock")), Some(made));
        let path = dir.path().join(SECRET_FILE);
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
        assert!(load_or_make(dir.path()).is_err());
        std::fs::write(&path, "short").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        assert!(load_or_make(dir.path()).is_err());
    }
}
