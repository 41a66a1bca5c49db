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
        "stop the running turn, or the next in the queue; with `--run` that one and no other",
    ),
    row(
        acp("steer"),
        "[--session SESSION] TEXT | --run RUN",
        AccessRequirement::Owner,
        parser::steer,
        "say something into the running turn, or queue it where the agent cannot take it; with `--run` what waits there",
    ),
    row(
        acp("drop"),
        "RUN [SESSION]",
        AccessRequirement::Owner,
        parser::drop_run,
        "take a message out of the queue",
    ),
    row(
        acp("close"),
        "[SESSION] [--discard]",
        AccessRequirement::Owner,
        parser::close,
        "end the session; with `--discard` its agent forgets it too",
    ),
    row(
        acp("archive"),
        "[SESSION] [--discard]",
        AccessRequirement::Owner,
        parser::archive,
        "end it, to be read later",
    ),
    row(
        acp("delete"),
        "[SESSION] [--discard]",
        AccessRequirement::Owner,
        parser::delete,
        "end it, and list it no more",
    ),
    row(
        acp("reset"),
        "[SESSION] [--discard]",
        AccessRequirement::Owner,
        parser::reset,
        "end it, to begin again with another one",
    ),
    row(
        acp("new"),
        "[SESSION]",
        AccessRequirement::Owner,
        parser::new,
        "start the agent's conversation anew; the session stays",
    ),
    row(
        acp("sessions"),
        "",
        AccessRequirement::Anyone,
        parser::sessions,
        "the sessions, the one used last first",
    ),
    row(acp("status"), "[SESSION]", AccessRequirement::Owner, parser::status, "what a session is and does"),
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
        "set one of the agent's options; `cwd` and `model` are the commands of that name",
    ),
    row(acp("cwd"), "DIR [SESSION]", AccessRequirement::Owner, parser::cwd, "go on in another directory"),
    row(
        acp("permissions"),
        "[ask|approve-reads|approve-all|deny-all [SESSION]]",
        AccessRequirement::Owner,
        parser::permissions,
        "what the agent waits for; with a mode, what happens when it asks",
    ),
    row(
        acp("timeout"),
        "SECONDS [SESSION]",
        AccessRequirement::Owner,
        parser::timeout,
        "how long a turn may take; 0 takes the limit away",
    ),
    row(acp("model"), "MODEL [SESSION]", AccessRequirement::Owner, parser::model, "set the agent's model"),
    row(
        acp("reset-options"),
        "[SESSION]",
        AccessRequirement::Owner,
        parser::reset_options,
        "all settings back to what configuration says",
    ),
    row(
        acp("allow"),
        "[ID] [--session SESSION]",
        AccessRequirement::Approver,
        parser::allow,
        "allow what the agent asks for",
    ),
    row(acp("deny"), "[ID] [--session SESSION]", AccessRequirement::Approver, parser::deny, "refuse it"),
    row(
        acp("answer"),
        "[ID] OPTION [--session SESSION]",
        AccessRequirement::Approver,
        parser::answer,
        "answer it with an option, by its number or id",
    ),
    row(
        acp("verbosity"),
        "[full|compact|none|default]",
        AccessRequirement::Binder,
        parser::verbosity,
        "how much this conversation is told of a turn beside its answer: a card with every tool call, a card that says \
         how far it is, nothing, what configuration says; without a word, it is shown",
    ),
    row(
        acp("doctor"),
        "",
        AccessRequirement::Anyone,
        parser::doctor,
        "how the gateway is, and what to do about it",
    ),
    row(acp("install"), "", AccessRequirement::Anyone, parser::install, "how backend and agents are set up"),
    row(("/acp", "help", &["", "--help", "-h"]), "", AccessRequirement::Anyone, parser::help, "this"),
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
        "unbind this conversation; the session goes on",
    ),
    row(
        ("/agents", "", &[]),
        "",
        AccessRequirement::Anyone,
        parser::agents,
        "what runs, where it is bound, and what can be started",
    ),
    row(
        ("/session", "idle", &[]),
        "[TIME|off] [SESSION]",
        AccessRequirement::Binder,
        parser::idle,
        "after how long without a word the binding ends: `90m`, `1h30m`, `2d`, hours as a number; without, it is shown",
    ),
    row(
        ("/session", "max-age", &[]),
        "[TIME|off] [SESSION]",
        AccessRequirement::Binder,
        parser::max_age,
        "how long the binding lasts in any case, from now on; without a time, it is shown",
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
        "\nSESSION is a key, its id or the beginning of it, or a label; without one, the session of this conversation \
         is meant. Words with spaces go in quotes. Everything else that you type goes to the agent.",
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
