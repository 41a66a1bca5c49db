//! Binary `acp-acpx-bridge`: the process of a lease with the backend `acpx`. Runs the commands of acpx that the gateway
//! sends on standard input, one JSON object a line, and writes their output to standard output. The bridge decides
//! nothing: argument vectors, retries and the meaning of output are the gateway's (`gateway/core/src/runtime/acpx`).
//!
//! The wrapper above is the subreaper of acpx's detached queue owner, so the end of the lease ends it and its agent.

mod cli;
mod commands;
mod home;
mod program;
mod protocol;

use commands::{Commands, MessageWriter};
use home::PrivateHome;
use program::AcpxProgram;
use protocol::{Input, Message};
use std::io::BufRead as _;
use std::process::ExitCode;

fn main() -> ExitCode {
    let options = match cli::parse(std::env::args_os().skip(1)) {
        Ok(options) => options,
        Err(end) => return end.print(),
    };
    let output = MessageWriter::default();
    let unusable = |error| {
        output.send(&Message::Unusable { error });
        ExitCode::FAILURE
    };
    if options.check {
        return match AcpxProgram::find(&options.acpx) {
            Ok(AcpxProgram { version, node, .. }) => {
                output.send(&Message::Versions { acpx: version, node });
                ExitCode::SUCCESS
            }
            Err(error) => unusable(error),
        };
    }
    let ready =
        PrivateHome::open(&options.key).and_then(|home| Ok((AcpxProgram::find(&options.acpx)?, home)));
    let (program, home) = match ready {
        Ok(ready) => ready,
        Err(error) => return unusable(error),
    };
    output.send(&Message::Hello {
        acpx: program.version.clone(),
        node: program.node.clone(),
        home: home.real.clone(),
        dir: home.dir.to_string_lossy().into_owned(),
        agent: options.agent,
    });
    serve(Commands::new(program, home, output.clone()), &output);
    ExitCode::SUCCESS
}

/// Carries out the lines of standard input until its end, then ends what still runs.
fn serve(mut commands: Commands, output: &MessageWriter) {
    let mut input = std::io::stdin().lock();
    let mut line = Vec::new();
    loop {
        line.clear();
        match input.read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => break,
            Ok(_) => {}
        }
        match serde_json::from_slice::<Input>(&line) {
            Ok(input) => commands.carry_out(input),
            Err(error) => output.send(&Message::Fault { text: format!("unreadable input: {error}") }),
        }
    }
    commands.end();
}
