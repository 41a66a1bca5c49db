//! Binary `acp-wrapper`. See the library for its documentation.

fn main() -> std::process::ExitCode {
    acp_wrapper::main()
}
