//! The body of a handover image.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| acp_supervisor::fuzzing::handover(data));
libfuzzer_sys::fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    acp_fuzz::mutate(data, (size, max_size, seed), |data, rng| acp_fuzz::Layout::Framed(1).change(data, rng))
});
