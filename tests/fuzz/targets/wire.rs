//! Frames on the supervisor's socket and on the wrapper's: what is decoded is encoded to the same bytes.
#![no_main]
use acp_shared::launch::{FromWrapper, ToWrapper};
use acp_shared::protocol::{FRAME_BYTES_MAX, Request, ToClient, ToSupervisor};
use acp_shared::wire::{self, Decoder};
use fastrand::Rng;
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

libfuzzer_sys::fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    acp_fuzz::mutate(data, (size, max_size, seed), |data, rng| {
        let (which, bytes) = data.split_first()?;
        let changed = match which % 4 {
            0 => changed::<ToSupervisor>(bytes, rng),
            1 => changed::<ToClient>(bytes, rng),
            2 => changed::<FromWrapper>(bytes, rng),
            _ => changed::<ToWrapper>(bytes, rng),
        };
        Some([&[*which], &changed?[..]].concat())
    })
});

/// Returns the stream with values of its messages changed.
fn changed<T: Serialize + DeserializeOwned>(bytes: &[u8], rng: &mut Rng) -> Option<Vec<u8>> {
    let mut decoder = Decoder::new(FRAME_BYTES_MAX);
    decoder.push(bytes);
    let mut messages: Vec<T> = std::iter::from_fn(|| decoder.pop().ok().flatten()).collect();
    let is_framed = !messages.is_empty();
    if !is_framed {
        messages.push(wire::decode(bytes).ok()?);
    }
    for _ in 0..acp_fuzz::changes(rng) {
        let message = rng.choice(&mut messages)?;
        let mut value = serde_json::to_value(&*message).ok()?;
        acp_fuzz::change(&mut value, rng);
        if let Ok(changed) = serde_json::from_value(value) {
            *message = changed;
        }
    }
    let encode = if is_framed { wire::encode_frame } else { wire::encode };
    let encoded: Result<Vec<_>, _> =
        messages.iter().map(|message| encode(message, FRAME_BYTES_MAX)).collect();
    Some(encoded.ok()?.concat())
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
