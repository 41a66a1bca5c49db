//! Runs a command with the address of a temporary PostgreSQL server in `ACP_TEST_POSTGRES`:
//! `with-postgres PROGRAM [ARGUMENT]...`. Without a server on this machine it prints that and runs nothing; in CI it fails.

use acp_testkit::postgres::Postgres;
use std::io;
use std::process::{Command, ExitCode};

fn main() -> io::Result<ExitCode> {
    let mut args = std::env::args_os().skip(1);
    let program = args.next().ok_or_else(|| io::Error::other("with-postgres PROGRAM [ARGUMENT]..."))?;
    let Some(server) = Postgres::start() else { return Ok(ExitCode::SUCCESS) };
    let status = Command::new(program).args(args).env("ACP_TEST_POSTGRES", server.address()).status()?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
