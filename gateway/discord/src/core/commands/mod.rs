//! Slash commands as data: converts a description independent of Discord to a registration, and a received
//! slash command to the equivalent text line.
//!
//! A slash command is only another way to enter the text command of the same name. All decisions are made on
//! the line.

mod limits;
mod line;

pub use limits::{Broken, check};
pub use line::{NotTyped, line};

use serde_json::{Value as Json, json};

/// Command, group of subcommands, or subcommand.
#[derive(Debug, Clone, PartialEq)]
pub struct Spec {
    /// Name, e.g. `acp` or `spawn`.
    pub name: String,
    /// Description for people.
    pub says: String,
    /// Content that follows the name.
    pub takes: Takes,
}

/// Content that follows the name of a command.
#[derive(Debug, Clone, PartialEq)]
pub enum Takes {
    /// One of these subcommands.
    Verbs(Vec<Spec>),
    /// These options.
    Options(Vec<Param>),
}

/// Option of a command.
#[derive(Debug, Clone, PartialEq)]
pub struct Param {
    /// Name.
    pub name: String,
    /// Description for people.
    pub says: String,
    /// Type of the value.
    pub kind: Kind,
    /// True if the option is mandatory.
    pub required: bool,
    /// Position in the line.
    pub place: Place,
}

/// Type of an option's value.
#[derive(Debug, Clone, PartialEq)]
pub enum Kind {
    /// Text, optionally with suggestions during input.
    Text {
        /// Maximum length in characters.
        max: u32,
        /// True if the bot suggests values ([`Event::Autocomplete`](super::event::Event::Autocomplete)).
        suggest: bool,
    },
    /// One of these choices, each with the displayed name and the value.
    Choice(Vec<(String, String)>),
    /// Integer within these bounds.
    Integer {
        /// Minimum.
        min: i64,
        /// Maximum.
        max: i64,
    },
    /// Boolean.
    Bool,
    /// File.
    File,
}

/// Position of an option in the line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// A word. Words are sorted by this number, which may differ from the order of input.
    Word(u8),
    /// `--name value`, or `--name` alone for a true boolean.
    Flag,
    /// The end of the line, unquoted: quotes in the text are the user's own.
    Rest,
    /// Not in the line: the handler of the command reads the option by name.
    Beside,
}

/// Builds the registration of commands. It replaces all commands registered before.
///
/// # Errors
/// [`Broken`] if Discord would refuse the commands.
pub fn registration(commands: &[Spec]) -> Result<Json, Broken> {
    check(commands)?;
    Ok(commands.iter().map(|command| definition(command, 0)).collect())
}

/// Option types of the documentation ("Application Command Option Type").
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
