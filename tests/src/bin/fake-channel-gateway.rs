//! The gateway with a fault-injecting channel: see `acp_tests::fake_channel`.

fn main() -> std::process::ExitCode {
    acp_tests::fake_channel::adapter::main()
}
