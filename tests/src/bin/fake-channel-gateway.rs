//! The gateway with a channel that fails in every way: see `acp_tests::fake_channel`.

fn main() -> std::process::ExitCode {
    acp_tests::fake_channel::adapter::main()
}
