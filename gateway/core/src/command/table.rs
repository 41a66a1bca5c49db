//! Table of commands, one row each: source of the grammar, the help and the manual.

use crate::command::ChatCommand;
use crate::command::authorization::AccessRequirement::{self, Anyone, Approver, Binder, Focus, Owner};
use crate::command::parser;
use std::fmt::Write as _;

/// Parses the arguments of a command; the error is a sentence that describes the mistake.
type ArgsParser = fn(&str) -> Result<ChatCommand, String>;

/// Definition of a command.
#[derive(Clone, Copy)]
pub struct CommandSpec {
    /// First word, e.g. `/acp`.
    pub head: &'static str,
    /// Second word; empty if the first word is the whole command.
    pub verb: &'static str,
    /// Other spellings of the verb.
    pub aliases: &'static [&'static str],
    /// Arguments, as shown in the usage line.
    pub args: &'static str,
    /// Description, as shown in the help.
    pub summary: &'static str,
    /// Requirement on the requester, for the manual; [`ChatCommand::required_access`] is authoritative.
    pub who: AccessRequirement,
    /// Parser of the arguments.
    pub(super) read: ArgsParser,
}

impl PartialEq for CommandSpec {
    fn eq(&self, other: &Self) -> bool {
        (self.head, self.verb) == (other.head, other.verb)
    }
}

impl Eq for CommandSpec {}

impl std::fmt::Debug for CommandSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.usage())
    }
}

impl CommandSpec {
    /// Returns the usage line.
    pub fn usage(&self) -> String {
        let words = [self.head, self.verb, self.args];
        words.into_iter().filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ")
    }
}

const fn row(
    [head, verb, args]: [&'static str; 3],
    who: AccessRequirement,
    read: ArgsParser,
    summary: &'static str,
) -> CommandSpec {
    CommandSpec { head, verb, aliases: &[], args, summary, who, read }
}

const fn acp(
    verb: &'static str,
    args: &'static str,
    who: AccessRequirement,
    read: ArgsParser,
    summary: &'static str,
) -> CommandSpec {
    row(["/acp", verb, args], who, read, summary)
}

/// All commands, in the order of the help.
pub const COMMANDS: [CommandSpec; 33] = [
    acp(
        "spawn",
        "[AGENT] [--cwd DIR] [--label NAME] [--mode persistent|oneshot] [--permission MODE] \
         [--thread auto|here|off | --bind here|off]",
        Anyone,
        parser::spawn,
        "start a session and bind this conversation to it; `off` binds nothing",
    ),
    acp(
        "cancel",
        "[SESSION] [--run RUN]",
        Owner,
        parser::cancel,
        "cancel the running turn, or else the next queued prompt; with `--run`, only that run",
    ),
    acp(
        "steer",
        "[--session SESSION] TEXT | --run RUN",
        Owner,
        parser::steer,
        "send a message into the running turn, or queue it if the agent cannot take it; with `--run`, send \
         that queued prompt",
    ),
    acp("drop", "RUN [SESSION]", Owner, parser::drop_run, "remove a queued prompt"),
    acp(
        "close",
        "[SESSION] [--discard]",
        Owner,
        parser::close,
        "close the session; with `--discard`, its agent deletes the conversation too",
    ),
    acp(
        "archive",
        "[SESSION] [--discard]",
        Owner,
        parser::archive,
        "close the session and keep it for later reading",
    ),
    acp("delete", "[SESSION] [--discard]", Owner, parser::delete, "close the session and hide it from lists"),
    acp(
        "reset",
        "[SESSION] [--discard]",
        Owner,
        parser::reset,
        "close the session, to replace it with a new one",
    ),
    acp(
        "new",
        "[SESSION]",
        Owner,
        parser::new,
        "start a new conversation with the agent in the same session",
    ),
    acp("sessions", "", Anyone, parser::sessions, "list the sessions, most recently used first"),
    acp("status", "[SESSION]", Owner, parser::status, "show the settings and state of a session"),
    acp(
        "usage",
        "[DAYS]",
        Anyone,
        parser::usage,
        "show turns and tokens of the sessions that you own, by day, session and person; default: 7 days",
    ),
    CommandSpec {
        aliases: &["mode"],
        ..acp("set-mode", "MODE [SESSION]", Owner, parser::set_mode, "set the agent's mode")
    },
    acp(
        "set",
        "OPTION VALUE [SESSION]",
        Owner,
        parser::set,
        "set one of the agent's options; `cwd` and `model` act like the commands of these names",
    ),
    acp("cwd", "DIR [SESSION]", Owner, parser::cwd, "change the working directory"),
    acp(
        "permissions",
        "[ask|approve-reads|approve-all|deny-all [SESSION]]",
        Owner,
        parser::permissions,
        "list pending permission requests; with a mode, set the permission mode",
    ),
    acp(
        "timeout",
        "SECONDS [SESSION]",
        Owner,
        parser::timeout,
        "set the session's time limit of a turn; with 0 only the gateway's holds",
    ),
    acp(
        "move",
        "HOST [SESSION]",
        Owner,
        parser::move_to,
        "continue the session on another host; its agent is ended first. `local` is the gateway's machine",
    ),
    acp("model", "MODEL [SESSION]", Owner, parser::model, "set the agent's model"),
    acp(
        "reset-options",
        "[SESSION]",
        Owner,
        parser::reset_options,
        "reset all settings to the configuration",
    ),
    acp(
        "allow",
        "[ID] [--session SESSION]",
        Approver,
        parser::allow,
        "allow a permission request, or accept a question as it is",
    ),
    acp(
        "deny",
        "[ID] [--session SESSION]",
        Approver,
        parser::deny,
        "reject a permission request, or decline a question",
    ),
    acp(
        "answer",
        "[ID] OPTION|FIELD=VALUE… [--session SESSION]",
        Approver,
        parser::answer,
        "answer a permission request or a question with an option, by its number or id, or a form with values",
    ),
    acp(
        "verbosity",
        "[full|compact|none|default]",
        Binder,
        parser::verbosity,
        "set what this conversation shows of a turn besides its answer: `full` a card with every tool call, \
         `compact` a card with the progress, `none` nothing, `default` the configured value; without a \
         value, show it",
    ),
    acp("doctor", "", Anyone, parser::doctor, "show the health of the gateway, and how to fix problems"),
    acp(
        "login",
        "[AGENT [METHOD]]",
        Anyone,
        parser::login,
        "sign an agent in with one of its methods, in a new session bound to this conversation; without a method, show the \
         methods if the agent needs one",
    ),
    acp("install", "", Anyone, parser::install, "explain the setup of backend and agents"),
    CommandSpec { aliases: &["", "--help", "-h"], ..acp("help", "", Anyone, parser::help, "show this help") },
    row(["/focus", "", "SESSION"], Focus, parser::focus, "bind this conversation to a session"),
    row(["/unfocus", "", ""], Binder, parser::unfocus, "unbind this conversation; the session stays open"),
    row(
        ["/agents", "", ""],
        Anyone,
        parser::agents,
        "list running agents, their bindings, and the agents that can be started",
    ),
    row(
        ["/session", "idle", "[TIME|off] [SESSION]"],
        Binder,
        parser::idle,
        "set the idle timeout of the binding: `90m`, `1h30m`, `2d` or a number of hours; without a time, \
         show it",
    ),
    row(
        ["/session", "max-age", "[TIME|off] [SESSION]"],
        Binder,
        parser::max_age,
        "set the maximum age of the binding, counted from now; without a time, show it",
    ),
];

/// Returns the text of `/acp help_text`.
pub fn help_text() -> String {
    let mut out = String::from("Commands:");
    for row in &COMMANDS {
        // Writing into a String cannot fail.
        let _ = write!(out, "\n{}: {}", row.usage(), row.summary.replace('`', ""));
    }
    out.push_str(
        "\nSESSION is a key, its id or the beginning of the id, or a label; the default is the session of \
         this conversation. Quote words that contain spaces. All other messages go to the agent.",
    );
    out
}

/// Returns the reply to a malformed command.
pub fn misuse_text(why: &str, usage: Option<&CommandSpec>) -> String {
    match usage {
        Some(row) => format!("{why}\nUsage: {}\n/acp help lists all commands.", row.usage()),
        None => format!("{why}\n\n{}", help_text()),
    }
}

/// Returns the table of the manual.
pub fn manual() -> String {
    let mut out = String::from("| command | what it does | who may |\n|---|---|---|\n");
    for row in &COMMANDS {
        let usage = row.usage().replace('|', "\\|");
        let _ = writeln!(out, "| `{usage}` | {} | {} |", row.summary, row.who.as_str());
    }
    out
}
