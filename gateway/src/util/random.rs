//! Random bytes of the kernel.

use std::fs::File;
use std::io::{self, Read as _};
use std::sync::OnceLock;

/// Reads a fresh secret of `N` bytes.
///
/// # Errors
/// The random device cannot be opened or read.
pub(crate) fn secret<const N: usize>() -> io::Result<[u8; N]> {
    static DEVICE: OnceLock<File> = OnceLock::new();
    let mut device = match DEVICE.get() {
        Some(device) => device,
        None => {
            let opened = File::open("/dev/urandom")?;
            DEVICE.get_or_init(|| opened)
        }
    };
    let mut secret = [0; N];
    device.read_exact(&mut secret)?;
    Ok(secret)
}
