//! Frames on the supervisor's socket and on the wrapper's: what is decoded is encoded to the same bytes.
#![no_main]
use acp_shared::launch::{FromWrapper, ToWrapper};
use acp_shared::protocol::{FRAME_BYTES_MAX, Request, ToClient, ToSupervisor};
use acp_shared::wire::{self, Decoder};
use serde::{Serialize, de::DeserializeOwned};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Some((&which, bytes)) = data.split_first() else { return };
    match which % 4 {
        0 => frames::<ToSupervisor>(bytes, |message| {
            matches!(message, ToSupervisor::Request { body: Request::Ack { offset: 7, .. }, .. })
        }),
        1 => frames::<ToClient>(bytes, |_| false),
        2 => frames::<FromWrapper>(bytes, |_| false),
        _ => frames::<ToWrapper>(bytes, |_| false),
    }
});

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
