//! Command line. The gateway writes it; people need only `--help` and `--version`.

use std::ffi::OsString;
use std::io::Write as _;
use std::process::ExitCode;

const HELP: &str = "\
Run the commands of acpx for one session of the gateway

Usage: acp-acpx-bridge --key KEY --acpx WORD... -- AGENT...
       acp-acpx-bridge --check --acpx WORD...

The gateway starts this program in a lease when a session uses the backend acpx.

Options:
      --key KEY    Session key; selects the private home directory of acpx
      --acpx WORD  Program of acpx, and its arguments; repeat for each word
      --check      Print the versions of acpx and Node.js, or the reason why they cannot be used
  -h, --help       Print help
  -V, --version    Print version
";

/// Parsed command line.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Options {
    /// Session key.
    pub(crate) key: String,
    /// Program of acpx and its arguments.
    pub(crate) acpx: Vec<String>,
    /// Program of the agent and its arguments; repeated in the first line of output.
    pub(crate) agent: Vec<String>,
    /// True to print the versions only, without session and agent.
    pub(crate) check: bool,
}

/// Command line that starts nothing.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NoStart {
    /// Text for standard output.
    Text(String),
    /// Error for standard error.
    Usage(String),
}

impl NoStart {
    /// Prints the text and returns the exit code.
    pub(crate) fn print(self) -> ExitCode {
        match self {
            Self::Text(text) => {
                let _ = std::io::stdout().write_all(text.as_bytes());
                ExitCode::SUCCESS
            }
            Self::Usage(error) => {
                let text = format!("acp-acpx-bridge: {error}; see `acp-acpx-bridge --help`\n");
                let _ = std::io::stderr().write_all(text.as_bytes());
                ExitCode::from(2)
            }
        }
    }
}

/// Parses the arguments after the program's name.
///
/// # Errors
/// [`NoStart`].
pub(crate) fn parse(args: impl Iterator<Item = OsString>) -> Result<Options, NoStart> {
    let usage = |text: &str| NoStart::Usage(text.to_owned());
    let mut words = args.map(|word| {
        word.into_string().map_err(|word| NoStart::Usage(format!("argument {word:?} is not UTF-8")))
    });
    let mut options = Options { key: String::new(), acpx: Vec::new(), agent: Vec::new(), check: false };
    while let Some(word) = words.next().transpose()? {
        let mut value = || words.next().transpose()?.ok_or_else(|| usage(&format!("{word} needs a value")));
        match word.as_str() {
            "-h" | "--help" => return Err(NoStart::Text(HELP.to_owned())),
            "-V" | "--version" => {
                return Err(NoStart::Text(format!("acp-acpx-bridge {}\n", env!("CARGO_PKG_VERSION"))));
            }
            "--check" => options.check = true,
            "--key" => options.key = value()?,
            "--acpx" => options.acpx.push(value()?),
            "--" => options.agent = words.by_ref().collect::<Result<_, _>>()?,
            _ => return Err(NoStart::Usage(format!("unknown argument {word:?}"))),
        }
    }
    match () {
        () if options.key.is_empty() && !options.check => Err(usage("--key is missing")),
        () if options.acpx.is_empty() => Err(usage("--acpx is missing")),
        () if options.check => Ok(options),
        () if options.agent.is_empty() => Err(usage("the agent's command is missing after --")),
        () => Ok(options),
    }
}
