//! Bodies of the local HTTP interface.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| acp_gateway::fuzzing::http_bodies(data));
