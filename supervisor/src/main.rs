//! The binary `acp-supervisor`: see the library for what it does.

fn main() -> std::process::ExitCode {
    acp_supervisor::main()
}
