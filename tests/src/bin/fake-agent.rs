//! The scripted agent: see `acp_tests::fake_agent` for what it does and how it is told.

fn main() -> std::process::ExitCode {
    acp_tests::fake_agent::main()
}
