//! Binary `acp-supervisor`. See the library for its documentation.

fn main() -> std::process::ExitCode {
    acp_supervisor::main()
}
