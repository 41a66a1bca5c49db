//! Table of commands, one row each: source of the grammar, the help and the manual.

use crate::command::ChatCommand;
use crate::command::authorization::AccessRequirement;
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
    (head, verb, aliases): (&'static str, &'static str, &'static [&'static str]),
    args: &'static str,
    who: AccessRequirement,
    read: ArgsParser,
    summary: &'static str,
) -> CommandSpec {
    CommandSpec { head, verb, aliases, args, summary, who, read }
}

const fn acp(verb: &'static str) -> (&'static str, &'static str, &'static [&'static str]) {
    ("/acp", verb, &[])
}

/// All commands, in the order of the help.
pub const COMMANDS: [CommandSpec; 30] = [
    row(
        acp("spawn"),
        "[AGENT] [--cwd DIR] [--label NAME] [--mode persistent|oneshot] [--permission MODE] \
         [--thread auto|here|off | --bind here|off]",
        AccessRequirement::Anyone,
        parser::spawn,
        "start a session and bind this conversation to it; `off` binds nothing",
    ),
    row(
        acp("cancel"),
        "[SESSION] [--run RUN]",
        AccessRequirement::Owner,
        parser::cancel,
        "cancel the running turn, or else the next queued prompt; with `--run`, only that run",
    ),
    row(
        acp("steer"),
        "[--session SESSION] TEXT | --run RUN",
        AccessRequirement::Owner,
        parser::steer,
        "send a message into the running turn, or queue it if the agent cannot take it; with `--run`, send \
         that queued prompt",
    ),
    row(acp("drop"), "RUN [SESSION]", AccessRequirement::Owner, parser::drop_run, "remove a queued prompt"),
    row(
        acp("close"),
        "[SESSION] [--discard]",
        AccessRequirement::Owner,
        parser::close,
        "close the session; with `--discard`, its agent deletes the conversation too",
    ),
    row(
        acp("archive"),
        "[SESSION] [--discard]",
        AccessRequirement::Owner,
        parser::archive,
        "close the session and keep it for later reading",
    ),
    row(
        acp("delete"),
        "[SESSION] [--discard]",
        AccessRequirement::Owner,
        parser::delete,
        "close the session and hide it from lists",
    ),
    row(
        acp("reset"),
        "[SESSION] [--discard]",
        AccessRequirement::Owner,
        parser::reset,
        "close the session, to replace it with a new one",
    ),
    row(
        acp("new"),
        "[SESSION]",
        AccessRequirement::Owner,
        parser::new,
        "start a new conversation with the agent in the same session",
    ),
    row(
        acp("sessions"),
        "",
        AccessRequirement::Anyone,
        parser::sessions,
        "list the sessions, most recently used first",
    ),
    row(
        acp("status"),
        "[SESSION]",
        AccessRequirement::Owner,
        parser::status,
        "show the settings and state of a session",
    ),
    row(
        ("/acp", "set-mode", &["mode"]),
        "MODE [SESSION]",
        AccessRequirement::Owner,
        parser::set_mode,
        "set the agent's mode",
    ),
    row(
        acp("set"),
        "OPTION VALUE [SESSION]",
        AccessRequirement::Owner,
        parser::set,
        "set one of the agent's options; `cwd` and `model` act like the commands of these names",
    ),
    row(acp("cwd"), "DIR [SESSION]", AccessRequirement::Owner, parser::cwd, "change the working directory"),
    row(
        acp("permissions"),
        "[ask|approve-reads|approve-all|deny-all [SESSION]]",
        AccessRequirement::Owner,
        parser::permissions,
        "list pending permission requests; with a mode, set the permission mode",
    ),
    row(
        acp("timeout"),
        "SECONDS [SESSION]",
        AccessRequirement::Owner,
        parser::timeout,
        "set the time limit of a turn; 0 removes it",
    ),
    row(acp("model"), "MODEL [SESSION]", AccessRequirement::Owner, parser::model, "set the agent's model"),
    row(
        acp("reset-options"),
        "[SESSION]",
        AccessRequirement::Owner,
        parser::reset_options,
        "reset all settings to the configuration",
    ),
    row(
        acp("allow"),
        "[ID] [--session SESSION]",
        AccessRequirement::Approver,
        parser::allow,
        "allow a permission request",
    ),
    row(
        acp("deny"),
        "[ID] [--session SESSION]",
        AccessRequirement::Approver,
        parser::deny,
        "reject a permission request",
    ),
    row(
        acp("answer"),
        "[ID] OPTION [--session SESSION]",
        AccessRequirement::Approver,
        parser::answer,
        "answer a permission request with an option, by its number or id",
    ),
    row(
        acp("verbosity"),
        "[full|compact|none|default]",
        AccessRequirement::Binder,
        parser::verbosity,
        "set what this conversation shows of a turn besides its answer: `full` a card with every tool call, \
         `compact` a card with the progress, `none` nothing, `default` the configured value; without a \
         value, show it",
    ),
    row(
        acp("doctor"),
        "",
        AccessRequirement::Anyone,
        parser::doctor,
        "show the health of the gateway, and how to fix problems",
    ),
    row(
        acp("install"),
        "",
        AccessRequirement::Anyone,
        parser::install,
        "explain the setup of backend and agents",
    ),
    row(
        ("/acp", "help", &["", "--help", "-h"]),
        "",
        AccessRequirement::Anyone,
        parser::help,
        "show this help",
    ),
    row(
        ("/focus", "", &[]),
        "SESSION",
        AccessRequirement::Focus,
        parser::focus,
        "bind this conversation to a session",
    ),
    row(
        ("/unfocus", "", &[]),
        "",
        AccessRequirement::Binder,
        parser::unfocus,
        "unbind this conversation; the session stays open",
    ),
    row(
        ("/agents", "", &[]),
        "",
        AccessRequirement::Anyone,
        parser::agents,
        "list running agents, their bindings, and the agents that can be started",
    ),
    row(
        ("/session", "idle", &[]),
        "[TIME|off] [SESSION]",
        AccessRequirement::Binder,
        parser::idle,
        "set the idle timeout of the binding: `90m`, `1h30m`, `2d` or a number of hours; without a time, \
         show it",
    ),
    row(
        ("/session", "max-age", &[]),
        "[TIME|off] [SESSION]",
        AccessRequirement::Binder,
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
