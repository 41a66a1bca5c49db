//! Entry point of the fuzz target `wire` in `tests/fuzz`, compiled for fuzzing and for tests, which replay the
//! corpus.
#![expect(clippy::expect_used, reason = "a panic is the result of a fuzz target")]

use crate::launch::{FromWrapper, ToWrapper};
use crate::protocol::{FRAME_BYTES_MAX, Request, ToClient, ToSupervisor};
use crate::wire::{self, Decoder};
use serde::{Serialize, de::DeserializeOwned};

/// Decodes frames on the supervisor's socket and on the wrapper's; the first byte selects the type.
///
/// # Panics
/// A decoded message is not encoded to the bytes that it decodes from.
pub fn wire(data: &[u8]) {
    let Some((&which, bytes)) = data.split_first() else { return };
    match which % 4 {
        0 => frames::<ToSupervisor>(bytes, |message| {
            matches!(message, ToSupervisor::Request { body: Request::Ack { offset: 7, .. }, .. })
        }),
        1 => frames::<ToClient>(bytes, |_| false),
        2 => frames::<FromWrapper>(bytes, |_| false),
        _ => frames::<ToWrapper>(bytes, |_| false),
    }
}

/// Decodes the bytes as a stream of frames, and as one message without a frame.
fn frames<T: Serialize + DeserializeOwned>(bytes: &[u8], is_planted: fn(&T) -> bool) {
    let mut decoder = Decoder::new(FRAME_BYTES_MAX);
    for piece in bytes.chunks(7) {
        decoder.push(piece);
        while let Ok(Some(message)) = decoder.pop::<T>() {
            check(&message, is_planted);
        }
    }
    if let Ok(message) = wire::decode::<T>(bytes) {
        check(&message, is_planted);
    }
}

fn check<T: Serialize + DeserializeOwned>(message: &T, is_planted: fn(&T) -> bool) {
    assert!(!is_planted(message) || std::env::var_os("FUZZ_PLANTED").is_none(), "planted");
    let bytes = wire::encode(message, FRAME_BYTES_MAX).expect("a decoded message encodes");
    let again: T = wire::decode(&bytes).expect("an encoded message decodes");
    assert_eq!(wire::encode(&again, FRAME_BYTES_MAX).expect("a decoded message encodes"), bytes);
}

#[cfg(test)]
mod tests {
    #[test]
    fn corpus_passes() {
        let dir = format!("{}/../tests/fuzz/corpus/wire", env!("CARGO_MANIFEST_DIR"));
        let files = std::fs::read_dir(&dir).unwrap_or_else(|error| panic!("{dir}: {error}"));
        let files: Vec<_> = files.flatten().map(|file| file.path()).collect();
        assert!(!files.is_empty(), "{dir} is empty");
        for file in files {
            super::wire(&std::fs::read(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display())));
        }
    }
}
