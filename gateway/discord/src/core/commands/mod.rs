//! Slash commands as data: from a description that knows nothing of Discord to what is registered there, and from
//! what somebody chose back to the one line that they could have typed.
//!
//! A slash command is another keyboard for the text command of the same name, and nothing more: whatever is decided is
//! decided about the line.

mod limits;
mod line;

pub use limits::{Broken, check};
pub use line::{NotTyped, line};

use serde_json::{Value as Json, json};

/// A command, a group of subcommands, or a subcommand.
#[derive(Debug, Clone, PartialEq)]
pub struct Spec {
    /// Its word: `acp`, `spawn`.
    pub name: String,
    /// What it does, for people.
    pub says: String,
    /// What comes after it.
    pub takes: Takes,
}

/// What comes after the word of a command.
#[derive(Debug, Clone, PartialEq)]
pub enum Takes {
    /// One of these words.
    Verbs(Vec<Spec>),
    /// Options.
    Options(Vec<Param>),
}

/// An option of a command.
#[derive(Debug, Clone, PartialEq)]
pub struct Param {
    /// Its name.
    pub name: String,
    /// What it is, for people.
    pub says: String,
    /// What may be given.
    pub kind: Kind,
    /// Whether it must be given.
    pub required: bool,
    /// Where it stands in the line.
    pub place: Place,
}

/// What may be given for an option.
#[derive(Debug, Clone, PartialEq)]
pub enum Kind {
    /// A text of at most so many characters; with suggestions while it is typed.
    Text {
        /// The most.
        max: u32,
        /// Whether [`Event::Autocomplete`](super::event::Event::Autocomplete) comes for it.
        suggest: bool,
    },
    /// One of these texts: what is shown, and what it stands for.
    Choice(Vec<(String, String)>),
    /// A whole number, in these bounds.
    Integer {
        /// The least.
        min: i64,
        /// The most.
        max: i64,
    },
    /// Yes or no.
    Bool,
    /// A file.
    File,
}

/// Where an option stands in the line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// As a word; words stand in the order of these numbers, which need not be the one in which they are asked for.
    Word(u8),
    /// As `--name value`; `--name` alone for a yes.
    Flag,
    /// At the end, as it was typed: quotes in it are the person's own.
    Rest,
    /// Not in the line: whoever takes up the command reads it by its name.
    Beside,
}

/// What is sent to register commands: they replace whatever was registered before.
///
/// # Errors
/// [`Broken`] for what Discord would refuse.
pub fn registration(commands: &[Spec]) -> Result<Json, Broken> {
    check(commands)?;
    Ok(commands.iter().map(|command| definition(command, 0)).collect())
}

/// The types of the documentation ("Application Command Option Type").
const fn type_of(kind: &Kind) -> u8 {
    match kind {
        Kind::Text { .. } | Kind::Choice(_) => 3,
        Kind::Integer { .. } => 4,
        Kind::Bool => 5,
        Kind::File => 11,
    }
}

fn definition(spec: &Spec, depth: usize) -> Json {
    let Spec { name, says, takes } = spec;
    let options: Vec<Json> = match takes {
        Takes::Verbs(verbs) => verbs.iter().map(|verb| definition(verb, depth + 1)).collect(),
        Takes::Options(params) => params.iter().map(parameter).collect(),
    };
    let mut out = json!({ "name": name, "description": says, "options": options });
    let kind = match (depth, takes) {
        // CHAT_INPUT, in guilds and in direct messages with the bot.
        (0, _) => {
            out["contexts"] = json!([0, 1]);
            out["integration_types"] = json!([0]);
            1
        }
        (_, Takes::Verbs(_)) => 2,
        (_, Takes::Options(_)) => 1,
    };
    out["type"] = json!(kind);
    out
}

fn parameter(param: &Param) -> Json {
    let Param { name, says, kind, required, place: _ } = param;
    let mut out = json!({ "type": type_of(kind), "name": name, "description": says, "required": required });
    match kind {
        Kind::Text { max, suggest } => {
            out["max_length"] = json!(max);
            if *suggest {
                out["autocomplete"] = json!(true);
            }
        }
        Kind::Choice(choices) => {
            out["choices"] =
                choices.iter().map(|(name, value)| json!({ "name": name, "value": value })).collect();
        }
        Kind::Integer { min, max } => {
            out["min_value"] = json!(min);
            out["max_value"] = json!(max);
        }
        Kind::Bool | Kind::File => {}
    }
    out
}

#[cfg(test)]
mod tests;
