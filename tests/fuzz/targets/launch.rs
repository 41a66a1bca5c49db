//! A launch description.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| acp_wrapper::fuzzing::launch(data));
