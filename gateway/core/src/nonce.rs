//! Nonces: permanent unique ids of messages, computed from the parts of a name.

use sha2::{Digest as _, Sha256};

/// Returns the nonce for a name: 24 letters and digits.
pub fn nonce_of(name: &[&str]) -> String {
    const LETTERS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    let mut hash = Sha256::new();
    for word in name {
        hash.update(word.len().to_be_bytes());
        hash.update(word);
    }
    let letter = |byte: &u8| char::from(LETTERS[usize::from(*byte) % LETTERS.len()]);
    hash.finalize().iter().take(24).map(letter).collect()
}
