//! The binary `acp-wrapper`: see the library for what it does.

fn main() -> std::process::ExitCode {
    acp_wrapper::main()
}
