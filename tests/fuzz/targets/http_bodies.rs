//! Bodies of the local HTTP interface.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| acp_gateway::fuzzing::http_bodies(data));
libfuzzer_sys::fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    acp_fuzz::mutate(data, (size, max_size, seed), |data, rng| acp_fuzz::Layout::Whole(1).change(data, rng))
});
