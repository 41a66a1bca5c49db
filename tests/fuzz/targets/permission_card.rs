//! Parameters of a permission request.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| acp_gateway::fuzzing::permission_card(data));
