//! The grammar of what a person types at the gateway rather than at the agent: `/acp …`, `/focus`, `/unfocus`.
//!
//! What starts like a gateway command never reaches the agent: an unknown or misspelt one is answered with help.
//! Words may be quoted with `'` or `"`; a backslash takes the next character as it is; `--flag value` and
//! `--flag=value` mean the same; dashes that keyboards replace by long ones are read as plain ones.

use crate::core::rows::{PermissionMode, SessionMode};
use crate::core::session::Ending;
use acp_shared::ids::{AgentName, SessionKey};

/// What a person wants of the gateway.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Command {
    /// A new session for this conversation.
    Spawn(SpawnArgs),
    /// Stop the running turn.
    Cancel,
    /// A word into the running turn.
    Steer(String),
    /// End the session.
    Close {
        /// In which way.
        ending: Ending,
        /// Whether the agent shall forget the conversation.
        discard: bool,
    },
    /// Start the agent's conversation anew.
    New,
    /// List the sessions.
    Sessions,
    /// What the session of this conversation is and does.
    Status,
    /// Set the agent's mode.
    Mode(String),
    /// Set one of the agent's config options.
    Set {
        /// The option's id.
        option: String,
        /// Its new value.
        value: String,
    },
    /// Answer a pending permission.
    Answer(AnswerArgs),
    /// List the pending permissions.
    Permissions,
    /// Say what there is.
    Help,
    /// Bind this conversation to a session, by key or label.
    Focus(String),
    /// Unbind this conversation.
    Unfocus,
    /// It was a command, but not one that can be understood.
    Misused {
        /// What is wrong with it.
        why: String,
    },
}

/// Arguments of `/acp spawn`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct SpawnArgs {
    /// Which agent; `None` takes the default.
    pub(crate) agent: Option<AgentName>,
    /// Working directory.
    pub(crate) cwd: Option<String>,
    /// What people call it.
    pub(crate) label: Option<String>,
    /// How long it is meant to live.
    pub(crate) mode: Option<SessionMode>,
    /// What happens when the agent asks.
    pub(crate) permission: Option<PermissionMode>,
}

/// Which way a permission is answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The agent's option that allows, once where there is a choice.
    Allow,
    /// The agent's option that refuses, once where there is a choice.
    Deny,
    /// The option of this number (from 1) or id.
    Option(String),
}

/// Arguments of `/acp allow`, `deny` and `answer`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AnswerArgs {
    /// Which permission; `None` means the only one that is pending.
    pub(crate) permission: Option<String>,
    /// Which way.
    pub(crate) verdict: Verdict,
}

/// What `/acp help` says.
pub(crate) const HELP: &str = "\
/acp spawn [agent] [--cwd DIR] [--label NAME] [--mode persistent|oneshot] [--permission ask|approve-reads|approve-all|deny-all]: start a session here
/acp status: what this conversation's session is and does
/acp sessions: the sessions, newest first
/acp cancel: stop the running turn
/acp steer TEXT: say something into the running turn
/acp new: start the agent's conversation anew
/acp close | archive | delete | reset [--discard]: end the session; with --discard its agent forgets it too
/acp mode MODE: set the agent's mode
/acp set OPTION VALUE: set one of the agent's options
/acp permissions: what the agent waits for
/acp allow [ID], /acp deny [ID], /acp answer [ID] OPTION: answer it
/focus KEY: bind this conversation to a session
/unfocus: unbind it
Everything else that you type goes to the agent.";

/// Reads a message: `None` when it is for the agent.
pub(crate) fn parse(text: &str) -> Option<Command> {
    let text = text.trim();
    let (head, rest) = match text.split_once(char::is_whitespace) {
        Some((head, rest)) => (head, rest.trim()),
        None => (text, ""),
    };
    match head {
        "/acp" => Some(acp(rest).unwrap_or_else(|why| Command::Misused { why })),
        "/focus" => Some(focus(rest).unwrap_or_else(|why| Command::Misused { why })),
        "/unfocus" => {
            Some(alone("/unfocus", rest, Command::Unfocus).unwrap_or_else(|why| Command::Misused { why }))
        }
        _ => None,
    }
}

fn acp(rest: &str) -> Result<Command, String> {
    let (verb, args) = match rest.split_once(char::is_whitespace) {
        Some((verb, args)) => (verb, args.trim()),
        None => (rest, ""),
    };
    match verb {
        "" | "help" | "--help" => Ok(Command::Help),
        "spawn" => spawn(args),
        "steer" if args.is_empty() => Err("/acp steer wants a text.".to_owned()),
        // The rest of the message as it is: quotes in it are the person's own.
        "steer" => Ok(Command::Steer(args.to_owned())),
        "cancel" => alone("/acp cancel", args, Command::Cancel),
        "close" => close("/acp close", args, Ending::Closed),
        "archive" => close("/acp archive", args, Ending::Archived),
        "delete" => close("/acp delete", args, Ending::Deleted),
        "reset" => close("/acp reset", args, Ending::Reset),
        "new" => alone("/acp new", args, Command::New),
        "sessions" => alone("/acp sessions", args, Command::Sessions),
        "status" => alone("/acp status", args, Command::Status),
        "permissions" => alone("/acp permissions", args, Command::Permissions),
        "mode" | "set-mode" => match words(args)?.as_slice() {
            [mode] => Ok(Command::Mode(mode.clone())),
            _ => Err("/acp mode wants one mode.".to_owned()),
        },
        "set" => match words(args)?.as_slice() {
            [option, value] => Ok(Command::Set { option: option.clone(), value: value.clone() }),
            _ => Err("/acp set wants an option and a value.".to_owned()),
        },
        "allow" => verdict("/acp allow", args, Verdict::Allow),
        "deny" => verdict("/acp deny", args, Verdict::Deny),
        "answer" => answer(args),
        other => Err(format!("/acp has no command {}.", quoted(other))),
    }
}

fn alone(name: &str, args: &str, command: Command) -> Result<Command, String> {
    if args.is_empty() { Ok(command) } else { Err(format!("{name} takes no arguments.")) }
}

fn close(name: &str, args: &str, ending: Ending) -> Result<Command, String> {
    let words = words(args)?;
    let discard = match words.as_slice() {
        [] => false,
        [flag] if plain_dashes(flag).as_deref() == Some("discard") => true,
        _ => return Err(format!("{name} takes nothing but --discard.")),
    };
    Ok(Command::Close { ending, discard })
}

fn focus(args: &str) -> Result<Command, String> {
    match words(args)?.as_slice() {
        [target] if !target.is_empty() => Ok(Command::Focus(target.clone())),
        _ => Err("/focus wants one session, by its key or label.".to_owned()),
    }
}

fn verdict(name: &str, args: &str, verdict: Verdict) -> Result<Command, String> {
    match words(args)?.as_slice() {
        [] => Ok(Command::Answer(AnswerArgs { permission: None, verdict })),
        [id] => Ok(Command::Answer(AnswerArgs { permission: Some(id.clone()), verdict })),
        _ => Err(format!("{name} takes one permission at most.")),
    }
}

fn answer(args: &str) -> Result<Command, String> {
    let (permission, option) = match words(args)?.as_slice() {
        [option] => (None, option.clone()),
        [id, option] => (Some(id.clone()), option.clone()),
        _ => {
            return Err(
                "/acp answer wants an option, and before it the permission if there are several.".to_owned()
            );
        }
    };
    Ok(Command::Answer(AnswerArgs { permission, verdict: Verdict::Option(option) }))
}

fn spawn(args: &str) -> Result<Command, String> {
    let mut out = SpawnArgs::default();
    let mut words = words(args)?.into_iter();
    while let Some(word) = words.next() {
        let Some(flag) = plain_dashes(&word) else {
            if out.agent.is_some() {
                return Err(format!("/acp spawn takes one agent; {} is one too many.", quoted(&word)));
            }
            let agent = AgentName::parse(&word).map_err(|error| format!("{}: {error}.", quoted(&word)))?;
            out.agent = Some(agent);
            continue;
        };
        let (name, value) = match flag.split_once('=') {
            Some((name, value)) => (name.to_owned(), value.to_owned()),
            None => {
                let value = words.next().filter(|value| plain_dashes(value).is_none());
                let value = value.ok_or_else(|| format!("--{flag} wants a value."))?;
                (flag, value)
            }
        };
        if value.is_empty() {
            return Err(format!("--{name} wants a value."));
        }
        set_flag(&mut out, &name, value)?;
    }
    Ok(Command::Spawn(out))
}

fn set_flag(out: &mut SpawnArgs, name: &str, value: String) -> Result<(), String> {
    let twice = || Err(format!("--{name} is given twice."));
    match name {
        "cwd" if out.cwd.is_some() => return twice(),
        "cwd" => out.cwd = Some(value),
        "label" if out.label.is_some() => return twice(),
        "label" => out.label = Some(value),
        "mode" if out.mode.is_some() => return twice(),
        "mode" => {
            out.mode = Some(match value.as_str() {
                "persistent" => SessionMode::Persistent,
                "oneshot" => SessionMode::Oneshot,
                _ => return Err("--mode is persistent or oneshot.".to_owned()),
            });
        }
        "permission" if out.permission.is_some() => return twice(),
        "permission" => {
            out.permission = Some(match value.as_str() {
                "ask" => PermissionMode::Ask,
                "approve-reads" => PermissionMode::ApproveReads,
                "approve-all" => PermissionMode::ApproveAll,
                "deny-all" => PermissionMode::DenyAll,
                _ => return Err("--permission is ask, approve-reads, approve-all or deny-all.".to_owned()),
            });
        }
        _ => return Err(format!("/acp spawn has no flag --{name}.")),
    }
    Ok(())
}

/// The flag's name when `word` starts with two dashes, or with one of the long dashes that stand for them.
fn plain_dashes(word: &str) -> Option<String> {
    const LONG: [char; 4] = ['\u{2013}', '\u{2014}', '\u{2015}', '\u{2212}'];
    let rest = word
        .strip_prefix("--")
        .or_else(|| word.strip_prefix(LONG).map(|rest| rest.trim_start_matches(LONG)))?;
    Some(rest.trim_start_matches('-').to_owned())
}

/// A word of the person's, safe to show: short, and on one line.
fn quoted(word: &str) -> String {
    let head: String = word.chars().take(40).collect();
    format!("{head:?}")
}

/// Splits at white space; quotes keep it, and a backslash outside of single quotes takes the next character.
pub(crate) fn words(text: &str) -> Result<Vec<String>, String> {
    let mut out = Vec::new();
    let mut word: Option<String> = None;
    let mut quote: Option<char> = None;
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match (quote, c) {
            (Some('\''), '\\') => word.get_or_insert_default().push(c),
            (_, '\\') => {
                let next = chars.next().ok_or_else(|| "A backslash at the end means nothing.".to_owned())?;
                word.get_or_insert_default().push(next);
            }
            (Some(open), _) if c == open => quote = None,
            (Some(_), _) => word.get_or_insert_default().push(c),
            (None, '"' | '\'') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, _) if c.is_whitespace() => out.extend(word.take()),
            (None, _) => word.get_or_insert_default().push(c),
        }
    }
    if let Some(open) = quote {
        return Err(format!("A quote ({open}) is not closed."));
    }
    out.extend(word);
    Ok(out)
}

/// Finds the session that `target` names among keys and labels: the key itself, or a label that one session has.
///
/// # Errors
/// A sentence when none or several fit.
pub(crate) fn pick_session<'a>(
    target: &str,
    sessions: impl Iterator<Item = (&'a SessionKey, Option<&'a str>)>,
) -> Result<SessionKey, String> {
    let mut labelled: Option<&SessionKey> = None;
    let mut several = false;
    for (key, label) in sessions {
        if key.as_str() == target {
            return Ok(key.clone());
        }
        if label == Some(target) {
            several |= labelled.is_some();
            labelled = Some(key);
        }
    }
    match labelled {
        Some(_) if several => Err(format!("Several sessions are called {}. Use the key.", quoted(target))),
        Some(key) => Ok(key.clone()),
        None => Err(format!("No session is called {}. /acp sessions lists them.", quoted(target))),
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;
    use proptest::prelude::*;

    fn spawn_args(change: impl FnOnce(&mut SpawnArgs)) -> Option<Command> {
        let mut args = SpawnArgs::default();
        change(&mut args);
        Some(Command::Spawn(args))
    }

    fn answered(permission: Option<&str>, verdict: Verdict) -> Option<Command> {
        Some(Command::Answer(AnswerArgs { permission: permission.map(str::to_owned), verdict }))
    }

    #[test]
    fn commands_are_read() {
        let demo = AgentName::parse("demo").unwrap();
        for (text, want) in [
            ("hello", None),
            ("/acpfoo", None),
            ("see /acp help", None),
            ("/focused", None),
            ("/acp", Some(Command::Help)),
            ("  /acp help ", Some(Command::Help)),
            ("/acp spawn", spawn_args(|_| ())),
            ("/acp spawn demo", spawn_args(|args| args.agent = Some(demo.clone()))),
            (
                "/acp spawn --cwd '/tmp/a b' demo --label=\"my own\" \u{2014}mode oneshot \u{2013}\u{2013}permission=deny-all",
                spawn_args(|args| {
                    args.agent = Some(demo.clone());
                    args.cwd = Some("/tmp/a b".to_owned());
                    args.label = Some("my own".to_owned());
                    args.mode = Some(SessionMode::Oneshot);
                    args.permission = Some(PermissionMode::DenyAll);
                }),
            ),
            ("/acp cancel", Some(Command::Cancel)),
            ("/acp steer don't \"quote\"", Some(Command::Steer("don't \"quote\"".to_owned()))),
            ("/acp steer\ntwo\nlines", Some(Command::Steer("two\nlines".to_owned()))),
            ("/acp close", Some(Command::Close { ending: Ending::Closed, discard: false })),
            ("/acp close --discard", Some(Command::Close { ending: Ending::Closed, discard: true })),
            ("/acp delete \u{2014}discard", Some(Command::Close { ending: Ending::Deleted, discard: true })),
            ("/acp archive", Some(Command::Close { ending: Ending::Archived, discard: false })),
            ("/acp reset", Some(Command::Close { ending: Ending::Reset, discard: false })),
            ("/acp new", Some(Command::New)),
            ("/acp sessions", Some(Command::Sessions)),
            ("/acp status", Some(Command::Status)),
            ("/acp mode plan", Some(Command::Mode("plan".to_owned()))),
            (
                "/acp set model 'big one'",
                Some(Command::Set { option: "model".to_owned(), value: "big one".to_owned() }),
            ),
            ("/acp permissions", Some(Command::Permissions)),
            ("/acp allow", answered(None, Verdict::Allow)),
            ("/acp deny x:1", answered(Some("x:1"), Verdict::Deny)),
            ("/acp answer 2", answered(None, Verdict::Option("2".to_owned()))),
            ("/acp answer x:1 2", answered(Some("x:1"), Verdict::Option("2".to_owned()))),
            ("/focus agent:demo:acp:1", Some(Command::Focus("agent:demo:acp:1".to_owned()))),
            ("/unfocus", Some(Command::Unfocus)),
        ] {
            assert_eq!(parse(text), want, "{text:?}");
        }
    }

    #[test]
    fn what_is_not_understood_is_said_and_never_reaches_the_agent() {
        for (text, want) in [
            ("/acp list", "/acp has no command \"list\"."),
            ("/acp spawn a b", "/acp spawn takes one agent; \"b\" is one too many."),
            ("/acp spawn a!", "\"a!\": agent name may hold letters, digits and -_.:/@ only."),
            ("/acp spawn --cwd", "--cwd wants a value."),
            ("/acp spawn --cwd --label x", "--cwd wants a value."),
            ("/acp spawn --cwd=", "--cwd wants a value."),
            ("/acp spawn --cwd /a --cwd /b", "--cwd is given twice."),
            ("/acp spawn --mode eternal", "--mode is persistent or oneshot."),
            ("/acp spawn --permission yes", "--permission is ask, approve-reads, approve-all or deny-all."),
            ("/acp spawn --thread here", "/acp spawn has no flag --thread."),
            ("/acp spawn 'x", "A quote (') is not closed."),
            ("/acp spawn x\\", "A backslash at the end means nothing."),
            ("/acp cancel now", "/acp cancel takes no arguments."),
            ("/acp steer", "/acp steer wants a text."),
            ("/acp mode", "/acp mode wants one mode."),
            ("/acp set a", "/acp set wants an option and a value."),
            ("/acp allow a b", "/acp allow takes one permission at most."),
            (
                "/acp answer",
                "/acp answer wants an option, and before it the permission if there are several.",
            ),
            ("/focus", "/focus wants one session, by its key or label."),
            ("/unfocus x", "/unfocus takes no arguments."),
        ] {
            assert_eq!(parse(text), Some(Command::Misused { why: want.to_owned() }), "{text:?}");
        }
    }

    #[test]
    fn sessions_are_picked_by_key_or_only_label() {
        let keys: Vec<SessionKey> = ["agent:a:acp:1", "agent:a:acp:2", "agent:a:acp:3"]
            .map(|key| SessionKey::parse(key).unwrap())
            .into();
        let labels = [Some("one"), Some("twin"), Some("twin")];
        let pick = |target| pick_session(target, keys.iter().zip(labels));
        assert_eq!(pick("agent:a:acp:3"), Ok(keys[2].clone()));
        assert_eq!(pick("one"), Ok(keys[0].clone()));
        assert_eq!(pick("twin"), Err("Several sessions are called \"twin\". Use the key.".to_owned()));
        assert_eq!(pick("none"), Err("No session is called \"none\". /acp sessions lists them.".to_owned()));
    }

    proptest! {
        #[test]
        fn quoted_words_come_back(list in prop::collection::vec("\\PC{0,8}", 0..6)) {
            let text: Vec<String> = list
                .iter()
                .map(|word| format!("\"{}\"", word.replace('\\', "\\\\").replace('"', "\\\"")))
                .collect();
            prop_assert_eq!(words(&text.join(" ")), Ok(list));
        }

        #[test]
        fn nothing_that_starts_with_a_command_reaches_the_agent(
            head in prop_oneof![Just("/acp"), Just("/focus"), Just("/unfocus")],
            rest in "\\PC{0,40}",
        ) {
            let text = format!("{head} {rest}");
            prop_assert!(parse(&text).is_some());
        }

        #[test]
        fn everything_else_does(text in "[^/\\s]\\PC{0,40}") {
            prop_assert_eq!(parse(&text), None);
        }
    }
}
