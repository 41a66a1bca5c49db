//! Completion of command lines in shells. The scripts run this program with `ACP_COMPLETE=SHELL acp-gateway -- …`, and it
//! prints the candidates: words of the command line, and agents, sessions and their settings from the gateway. The engine is
//! that of clap_complete; [`bash`] replaces its adapter, which takes no words with colons, and the scripts for zsh and fish pass
//! words without quotes.

mod bash;
mod values;

pub(crate) use values::{
    agents, permissions, session_models, session_modes, session_options, sessions, tokens,
};

use clap::Command;
use clap_complete::Shell;
use clap_complete::env::Shells;
use std::ffi::OsString;
use std::io::{self, Write as _};
use std::process::ExitCode;
use std::sync::OnceLock;

/// Variable with the name of the shell.
const VARIABLE: &str = "ACP_COMPLETE";
/// Name of this program in scripts.
const PROGRAM: &str = "acp-gateway";
/// Addition to zsh's script: the first Tab, which loads the function's file, completes too.
const ZSH_AUTOLOAD: &str = "\
if [[ ${funcstack[1]} == _acp-gateway ]]; then
    _clap_dynamic_completer_acp_gateway \"$@\"
fi
";

/// Words of the command line as zsh's script passes them, and as ours does: without quotes, so that a label with spaces is
/// found.
const ZSH_WORDS: (&str, &str) =
    (r#""${words[@]}""#, r#""${(@Q)words[1,CURRENT-1]}" "${(Q)PREFIX}" "${(@Q)words[CURRENT+1,-1]}""#);
/// Script for fish. The word at the cursor is passed without quotes, of which one may be open.
const FISH_SCRIPT: &str = "\
function __acp_gateway_word
    set -l word (commandline --current-token)
    string unescape -- $word; or string unescape -- $word'\"'; or string unescape -- $word\"'\"; or echo -- $word
end
complete --keep-order --exclusive --command acp-gateway --arguments \
\"(ACP_COMPLETE=fish acp-gateway -- (commandline --current-process --tokenize --cut-at-cursor) (__acp_gateway_word))\"
";

/// Words of the command line that is completed.
static WORDS: OnceLock<Vec<String>> = OnceLock::new();

/// Returns the script of a shell.
///
/// # Errors
/// A shell without a script.
pub(crate) fn script(shell: Shell) -> io::Result<String> {
    match shell {
        Shell::Bash => return Ok(bash::SCRIPT.to_owned()),
        Shell::Fish => return Ok(FISH_SCRIPT.to_owned()),
        _ => {}
    }
    let name = shell.to_string();
    let shells = Shells::builtins();
    let adapter = shells.completer(&name).ok_or_else(|| io::Error::other(format!("no script for {name}")))?;
    let mut script = Vec::new();
    adapter.write_registration(VARIABLE, PROGRAM, PROGRAM, PROGRAM, &mut script)?;
    let script = String::from_utf8_lossy(&script).into_owned();
    let (theirs, ours) = ZSH_WORDS;
    Ok(if shell == Shell::Zsh { script.replace(theirs, ours) + ZSH_AUTOLOAD } else { script })
}

/// Answers a completion script, if one runs this program. Prints nothing if there is no answer.
pub(crate) fn answer_script(args: &[OsString], command: impl FnOnce() -> Command) -> Option<ExitCode> {
    let shell = std::env::var(VARIABLE).ok()?;
    let [_, escape, words @ ..] = args else { return None };
    if escape != "--" {
        return None;
    }
    let candidates = candidates(&shell, words, command()).unwrap_or_default();
    let mut stdout = io::stdout().lock();
    let printed = stdout.write_all(&candidates).and_then(|()| stdout.flush());
    Some(if printed.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Returns the candidates in the form that a shell's script reads.
fn candidates(shell: &str, words: &[OsString], mut command: Command) -> io::Result<Vec<u8>> {
    let here = std::env::current_dir().ok();
    if shell == "bash" {
        let [line, replaced] = words else { return Ok(Vec::new()) };
        return bash::complete(
            &mut command,
            &line.to_string_lossy(),
            &replaced.to_string_lossy(),
            here.as_deref(),
        );
    }
    let shells = Shells::builtins();
    let Some(adapter) = shells.completer(shell) else { return Ok(Vec::new()) };
    remember(words.iter().map(|word| word.to_string_lossy().into_owned()));
    let mut printed = Vec::new();
    adapter.write_complete(&mut command, words.to_vec(), here.as_deref(), &mut printed)?;
    Ok(printed)
}

/// Sets the words of the command line, once.
fn remember(words: impl IntoIterator<Item = String>) {
    WORDS.get_or_init(|| words.into_iter().collect());
}

/// Returns the words of the command line.
fn words() -> &'static [String] {
    WORDS.get().map_or(&[], Vec::as_slice)
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;
    use clap::ValueEnum as _;

    #[test]
    fn every_shell_has_a_script_that_runs_the_program() {
        for shell in Shell::value_variants() {
            let script = script(*shell).unwrap();
            assert!(script.contains(VARIABLE) && script.contains(PROGRAM), "{shell}: {script}");
        }
        assert!(script(Shell::Zsh).unwrap().contains(ZSH_WORDS.1));
    }

    #[test]
    fn only_a_script_is_answered() {
        let args = |words: &[&str]| words.iter().map(OsString::from).collect::<Vec<_>>();
        // The variable is not set here.
        assert!(answer_script(&args(&["acp-gateway", "--", "acp-gateway "]), || Command::new("x")).is_none());
        assert!(candidates("nosuchshell", &args(&["x", ""]), Command::new("x")).unwrap().is_empty());
    }
}
