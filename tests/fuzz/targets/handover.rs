//! The body of a handover image.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| acp_supervisor::fuzzing::handover(data));
