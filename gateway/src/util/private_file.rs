//! Files with a secret, which only their owner may read.

use std::fs::OpenOptions;
use std::io::Read as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

/// Reads the text of a file of at most `bytes_max` bytes that belongs to this user or to root, and that nobody else may read.
/// Blocks.
///
/// # Errors
/// What is wrong with the file, without its path.
pub(crate) fn read_private(path: &Path, bytes_max: u64) -> Result<String, String> {
    // Checked on the open file, so that it cannot be exchanged in between; a pipe does not block the start.
    let opened = OpenOptions::new().read(true).custom_flags(nix::libc::O_NONBLOCK).open(path);
    let file = opened.map_err(|error| error.to_string())?;
    let meta = file.metadata().map_err(|error| error.to_string())?;
    if !meta.is_file() {
        return Err("is not a regular file".to_owned());
    }
    if meta.mode() & 0o077 != 0 {
        return Err(format!("must be readable by its owner alone: chmod 600 {}", path.display()));
    }
    let own = rustix::process::geteuid().as_raw();
    if meta.uid() != own && meta.uid() != 0 {
        return Err(format!("must belong to this user or to root, but it belongs to user {}", meta.uid()));
    }
    let mut text = String::new();
    file.take(bytes_max + 1).read_to_string(&mut text).map_err(|error| error.to_string())?;
    if text.len() as u64 > bytes_max {
        return Err(format!("is larger than {bytes_max} bytes"));
    }
    Ok(text)
}
