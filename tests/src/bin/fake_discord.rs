//! A strict fake of Discord; see `acp_tests::fake_discord`.

use acp_tests::fake_discord::server::{Args, main as serve};
use clap::Parser as _;

#[tokio::main]
async fn main() -> std::process::ExitCode {
    match serve(Args::parse()).await {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("fake-discord: {error}");
            std::process::ExitCode::FAILURE
        }
    }
}
