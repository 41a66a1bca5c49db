//! Command line of the contract: agent and verb are found first, as acpx does, and the rest is parsed.

use acp_core::acpx_contract::{AcpxCode, ContractError};
use acp_core::rows::{NonInteractive, PermissionMode};
use acp_shared::ids::AgentName;
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  acpx codex sessions ensure --name fix
  acpx --format json --json-strict codex prompt -s fix 'fix the build'
  acpx codex exec 'what does this repository do?'

The agent is a name that the gateway knows; without one it is the configured default. Exit codes: 0 done or cancelled,
1 failed, 2 usage, 3 timeout, 4 no session, 5 permission denied, 130 interrupted.";

/// Verbs of the contract.
const VERBS: [&str; 8] = ["prompt", "exec", "cancel", "status", "set-mode", "set", "sessions", "help"];
/// Verbs of acpx that are not offered.
const REFUSED_VERBS: [&str; 4] = ["compare", "flow", "config", "__queue-owner"];
/// Flags of acpx that are not offered.
const REFUSED_FLAGS: [&str; 13] = [
    "--auth-policy",
    "--permission-policy",
    "--policy",
    "--suppress-reads",
    "--allowed-tools",
    "--max-turns",
    "--system-prompt",
    "--append-system-prompt",
    "--prompt-retries",
    "--no-fs",
    "--no-terminal",
    "--mcp-config",
    "--resume-session",
];
/// Flags that are followed by a value.
const VALUE_FLAGS: [&str; 13] = [
    "--state-dir",
    "--agent",
    "--cwd",
    "--format",
    "--non-interactive-permissions",
    "--timeout",
    "--ttl",
    "--model",
    "--session",
    "-s",
    "--file",
    "-f",
    "--name",
];

/// Command line after the agent was taken out.
#[derive(Debug, Parser)]
#[command(
    name = "acpx",
    version,
    about = "Drive the gateway's agents with the machine contract of acpx",
    override_usage = "acpx [OPTIONS] [AGENT] [VERB] ...",
    after_help = EXAMPLES
)]
pub(crate) struct AcpxCli {
    #[command(flatten)]
    pub(super) options: AcpxOptions,
    #[command(subcommand)]
    pub(super) verb: Verb,
}

/// Flags of all verbs.
#[derive(Debug, Clone, Args)]
pub(super) struct AcpxOptions {
    /// State directory of the gateway [default: $XDG_STATE_HOME/acp-host or ~/.local/state/acp-host]
    #[arg(long, global = true, value_name = "DIR", env = "ACP_GATEWAY_STATE_DIR")]
    pub(super) state_dir: Option<PathBuf>,
    /// Command of the agent instead of a name; needs `acpx.allow_commands` of the gateway
    #[arg(long, global = true, value_name = "COMMAND")]
    pub(super) agent: Option<String>,
    /// Working directory [default: the current one]
    #[arg(long, global = true, value_name = "DIR")]
    pub(super) cwd: Option<PathBuf>,
    /// Output format
    #[arg(long, global = true, value_enum)]
    pub(super) format: Option<Format>,
    /// Print nothing but JSON; needs --format json
    #[arg(long, global = true)]
    pub(super) json_strict: bool,
    /// Approve all permission requests in this turn
    #[arg(long, global = true, conflicts_with_all = ["approve_reads", "deny_all"])]
    approve_all: bool,
    /// Approve requests to read and search in this turn; the rest as --non-interactive-permissions says
    #[arg(long, global = true, conflicts_with = "deny_all")]
    approve_reads: bool,
    /// Deny all permission requests in this turn
    #[arg(long, global = true)]
    deny_all: bool,
    /// Outcome of permission requests without a person: deny them, or fail the turn
    #[arg(long, global = true, value_name = "deny|fail", value_parser = parse_policy)]
    pub(super) non_interactive_permissions: Option<NonInteractive>,
    /// Cancel the turn after this many seconds, wait for its end, and exit with 3
    #[arg(long, global = true, value_name = "SECONDS")]
    pub(super) timeout: Option<f64>,
    /// Accepted; `acp.runtime.ttl_minutes` of the gateway decides how long an idle agent is kept
    #[arg(long, global = true, value_name = "SECONDS")]
    pub(super) ttl: Option<f64>,
    /// Model of the agent
    #[arg(long, global = true, value_name = "ID")]
    pub(super) model: Option<String>,
    /// Accepted; refused with --json-strict
    #[arg(long, global = true)]
    pub(super) verbose: bool,
}

/// Output format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Format {
    /// Text for people
    Text,
    /// One line of JSON for each message
    Json,
    /// Only the answer
    Quiet,
}

fn parse_policy(text: &str) -> Result<NonInteractive, String> {
    match text {
        "deny" => Ok(NonInteractive::Deny),
        "fail" => Ok(NonInteractive::Fail),
        other => Err(format!("{other:?} is neither `deny` nor `fail`")),
    }
}

impl AcpxOptions {
    /// Returns the permission mode of the flags.
    pub(super) fn permission(&self) -> Option<PermissionMode> {
        let all = [
            (self.approve_all, PermissionMode::ApproveAll),
            (self.approve_reads, PermissionMode::ApproveReads),
            (self.deny_all, PermissionMode::DenyAll),
        ];
        all.into_iter().find(|(given, _)| *given).map(|(_, mode)| mode)
    }
}

#[derive(Debug, Subcommand)]
pub(super) enum Verb {
    /// Send a prompt to a session and stream the turn
    Prompt(PromptArgs),
    /// Run one turn in a session of its own
    Exec(TextArgs),
    /// Cancel the running turn
    Cancel(SessionName),
    /// Show the state of a session
    Status(SessionName),
    /// Set the agent's mode
    SetMode {
        /// Mode
        mode: String,
        #[command(flatten)]
        name: SessionName,
    },
    /// Set one of the agent's options; `model` sets the model
    Set {
        /// Option
        key: String,
        /// Value
        value: String,
        #[command(flatten)]
        name: SessionName,
    },
    /// List, ensure, create, show, follow or close sessions
    Sessions {
        #[command(subcommand)]
        verb: Option<SessionsVerb>,
    },
}

/// `-s`
#[derive(Debug, Clone, Default, Args)]
pub(super) struct SessionName {
    /// Name of the session [default: the session without a name]
    #[arg(short, long = "session", value_name = "NAME")]
    pub(super) session: Option<String>,
}

/// Text of a prompt.
#[derive(Debug, Args)]
pub(super) struct TextArgs {
    /// Text; without it standard input is read
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub(super) text: Vec<String>,
    /// Read the text from a file; `-` reads standard input
    #[arg(short, long, value_name = "FILE")]
    pub(super) file: Option<String>,
}

/// `prompt`
#[derive(Debug, Args)]
pub(super) struct PromptArgs {
    #[command(flatten)]
    pub(super) name: SessionName,
    /// Print the request id and do not wait for the turn
    #[arg(long)]
    pub(super) no_wait: bool,
    #[command(flatten)]
    pub(super) text: TextArgs,
}

/// `sessions`
#[derive(Debug, Subcommand)]
pub(super) enum SessionsVerb {
    /// List the sessions of the agent
    List {
        /// No effect: all sessions of the gateway are listed
        #[arg(long)]
        local: bool,
        /// Only sessions of this directory
        #[arg(long, value_name = "DIR")]
        filter_cwd: Option<PathBuf>,
    },
    /// Return the session of this directory or the nearest parent, or create it
    Ensure {
        /// Name of the session
        #[arg(long, default_value = "", hide_default_value = true)]
        name: String,
    },
    /// Create a session in place of an open one
    New {
        /// Name of the session
        #[arg(long, default_value = "", hide_default_value = true)]
        name: String,
    },
    /// Show a session
    Show {
        /// Name of the session
        name: Option<String>,
    },
    /// Show the prompts and answers of a session
    History {
        /// Name of the session
        name: Option<String>,
        /// Maximum number of entries; 0 shows all
        #[arg(long, default_value_t = 20, value_name = "N")]
        limit: usize,
    },
    /// Close a session
    Close {
        /// Name of the session
        name: Option<String>,
    },
    /// Replay and follow the events of a session
    Watch {
        #[command(flatten)]
        name: SessionName,
        /// Begin after this cursor
        #[arg(long, value_name = "CURSOR")]
        cursor: Option<String>,
    },
    /// Remove closed sessions from lists
    Prune {
        /// Only sessions that were not used for this many days
        #[arg(long, value_name = "DAYS")]
        older_than: Option<u64>,
        /// Tell what would be removed
        #[arg(long)]
        dry_run: bool,
    },
}

/// Returns the position of the first word that is neither a flag nor the value of one.
fn first_word(args: &[String], from: usize) -> Option<usize> {
    let mut at = from;
    while let Some(arg) = args.get(at) {
        match arg.as_str() {
            "--" => return None,
            flag if VALUE_FLAGS.contains(&flag) || REFUSED_FLAGS.contains(&flag) => at += 2,
            flag if flag.len() > 1 && flag.starts_with('-') => at += 1,
            _ => return Some(at),
        }
    }
    None
}

fn not_supported(what: &str) -> ContractError {
    let text = format!("{what} of acpx is not offered here");
    ContractError::new(AcpxCode::Usage, text).detail("NOT_SUPPORTED")
}

/// Takes the agent out of a command line, and adds the verb `prompt` where none is given.
///
/// # Errors
/// `USAGE` for what is not offered, and for an invalid name of an agent.
pub(super) fn arrange(mut args: Vec<String>) -> Result<(Option<AgentName>, Vec<String>), ContractError> {
    let is_verb = |word: &String| VERBS.contains(&word.as_str()) || REFUSED_VERBS.contains(&word.as_str());
    let first = first_word(&args, 0);
    let mut agent = None;
    let verb = match first {
        Some(at) if args.get(at).is_some_and(is_verb) => Some(at),
        Some(at) => {
            let name = args.remove(at);
            let parsed = AgentName::parse(&name).ok().filter(|_| !name.contains('/')).ok_or_else(|| {
                let text = format!("{name:?} is not the name of an agent; `acp-gateway agents` lists them");
                ContractError::new(AcpxCode::Usage, text).detail("AGENT_COMMAND_NOT_ALLOWED")
            })?;
            agent = Some(parsed);
            let word = first_word(&args, at);
            let found = word.filter(|word| args.get(*word).is_some_and(is_verb));
            found.or_else(|| insert_prompt(&mut args, at))
        }
        None => insert_prompt(&mut args, 0),
    };
    let head = args.get(..verb.unwrap_or(args.len())).unwrap_or_default();
    let flags = if verb.is_some_and(|at| args.get(at).is_some_and(|verb| verb == "sessions")) {
        &args[..]
    } else {
        head
    };
    for flag in flags {
        let name = flag.split('=').next().unwrap_or_default();
        if REFUSED_FLAGS.contains(&name) {
            return Err(not_supported(name));
        }
    }
    if let Some(word) = verb.and_then(|at| args.get(at)).filter(|word| REFUSED_VERBS.contains(&word.as_str()))
    {
        return Err(not_supported(&format!("the verb `{word}`")));
    }
    Ok((agent, args))
}

/// Inserts the verb `prompt`, unless only help or the version is asked for.
fn insert_prompt(args: &mut Vec<String>, at: usize) -> Option<usize> {
    let is_asked = |arg: &String| ["-h", "--help", "-V", "--version"].contains(&arg.as_str());
    if args.iter().any(is_asked) {
        return None;
    }
    args.insert(at, "prompt".to_owned());
    Some(at)
}

/// True if a command line that may be invalid asks for JSON.
pub(super) fn wants_json(args: &[String]) -> bool {
    let pairs =
        args.windows(2).any(|pair| matches!(pair, [flag, value] if flag == "--format" && value == "json"));
    pairs || args.iter().any(|arg| arg == "--format=json")
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;
    use clap::CommandFactory;

    fn words(line: &str) -> Vec<String> {
        line.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn command_line_grammar_is_valid() {
        AcpxCli::command().debug_assert();
    }

    #[test]
    fn agent_is_taken_out_and_prompt_is_the_default_verb() {
        for (line, agent, rest) in [
            ("sessions ensure", None, "sessions ensure"),
            ("codex sessions ensure --name a", Some("codex"), "sessions ensure --name a"),
            ("--format json codex prompt hi", Some("codex"), "--format json prompt hi"),
            ("--cwd /w codex fix it", Some("codex"), "--cwd /w prompt fix it"),
            ("codex -s a fix", Some("codex"), "prompt -s a fix"),
            ("codex --approve-all exec hi", Some("codex"), "--approve-all exec hi"),
            ("prompt sessions", None, "prompt sessions"),
            ("--timeout 3", None, "prompt --timeout 3"),
            ("--help", None, "--help"),
        ] {
            let (found, args) = arrange(words(line)).unwrap();
            assert_eq!((found.as_ref().map(AgentName::as_str), args), (agent, words(rest)), "{line}");
        }
    }

    #[test]
    fn verbs_and_flags_that_are_not_offered_are_refused() {
        for line in [
            "codex compare a b",
            "flow run x.ts",
            "--mcp-config f codex prompt hi",
            "--prompt-retries=3 codex exec hi",
            "codex sessions ensure --resume-session x",
        ] {
            let error = arrange(words(line)).unwrap_err();
            assert_eq!(
                (error.code, error.detail.as_deref()),
                (AcpxCode::Usage, Some("NOT_SUPPORTED")),
                "{line}"
            );
        }
        let error = arrange(words("/bin/sh prompt hi")).unwrap_err();
        assert_eq!(error.detail.as_deref(), Some("AGENT_COMMAND_NOT_ALLOWED"));
        assert!(arrange(words("codex prompt --policy is a word")).is_ok());
    }
}
