//! The scripted agent: see `acp_tests::fake_agent` for its behaviour and its prompt language.

fn main() -> std::process::ExitCode {
    acp_tests::fake_agent::main()
}
