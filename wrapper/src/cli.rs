//! Command line of the wrapper, for manual calls.

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

const HELP: &str = "\
acp-wrapper runs one agent for acp-supervisor and cleans up its process tree.

The supervisor starts it without arguments, with a control socket as standard input and a launch.json next to
the binary. Do not run it by hand: see `acp-supervisor --help`.

Options:
  -h, --help     Print this text
  -V, --version  Print the version
";
const VERSION: &str = concat!("acp-wrapper ", env!("CARGO_PKG_VERSION"), "\n");

/// Meaning of the command line arguments.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Invocation {
    /// No arguments: the ordinary start.
    Nothing,
    /// A help or version request: the text to print.
    Text(&'static str),
    /// Anything else.
    Wrong,
}

/// Parses the arguments after the program name.
pub(crate) fn read(mut args: impl Iterator<Item = OsString>) -> Invocation {
    let Some(first) = args.next() else { return Invocation::Nothing };
    match (first.to_str(), args.next()) {
        (Some("-h" | "--help"), None) => Invocation::Text(HELP),
        (Some("-V" | "--version"), None) => Invocation::Text(VERSION),
        _ => Invocation::Wrong,
    }
}

/// Prints a help or version text to stdout.
pub(crate) fn say(text: &str) -> ExitCode {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// Prints the help text to stderr, for a start without a supervisor.
pub(crate) fn refuse() -> ExitCode {
    // An error of stderr is ignored: the exit code reports the refusal too.
    let _ = std::io::stderr().lock().write_all(HELP.as_bytes());
    ExitCode::from(crate::EXIT_USAGE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments() {
        for (args, want) in [
            (&[][..], Invocation::Nothing),
            (&["-h"], Invocation::Text(HELP)),
            (&["--help"], Invocation::Text(HELP)),
            (&["-V"], Invocation::Text(VERSION)),
            (&["--version"], Invocation::Text(VERSION)),
            (&["--help", "x"], Invocation::Wrong),
            (&["sh"], Invocation::Wrong),
        ] {
            assert_eq!(read(args.iter().map(OsString::from)), want, "{args:?}");
        }
    }
}
