//! Frames on the supervisor's socket and on the wrapper's.
#![no_main]
use acp_shared::launch::{FromWrapper, ToWrapper};
use acp_shared::protocol::{FRAME_BYTES_MAX, ToClient, ToSupervisor};
use acp_shared::wire::{self, Decoder};
use fastrand::Rng;
use serde::{Serialize, de::DeserializeOwned};

libfuzzer_sys::fuzz_target!(|data: &[u8]| acp_shared::fuzzing::wire(data));
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
