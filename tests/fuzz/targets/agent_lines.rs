//! Output of an agent in a running turn.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| acp_gateway::fuzzing::agent_lines(data));
