//! Hashes as text.

/// Formats bytes in hexadecimal.
pub fn hex(bytes: impl IntoIterator<Item = u8>) -> String {
    bytes.into_iter().map(|byte| format!("{byte:02x}")).collect()
}
