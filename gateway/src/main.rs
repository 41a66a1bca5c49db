//! The gateway's executable: see [`acp_gateway::cli`].

fn main() -> std::process::ExitCode {
    acp_gateway::cli::main()
}
