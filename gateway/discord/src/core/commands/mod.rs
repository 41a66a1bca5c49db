//! Slash commands as data: converts a description independent of Discord to a registration, and a received
//! slash command to the equivalent text line.
//!
//! A slash command is only another way to enter the text command of the same name. All decisions are made on
//! the line.

mod limits;
mod line;

pub use limits::{SlashCommandSpecError, check};
pub use line::{CommandLineError, line, quote};

use serde_json::{Value as Json, json};

/// Command, group of subcommands, or subcommand.
#[derive(Debug, Clone, PartialEq)]
pub struct SlashCommandSpec {
    /// Name, e.g. `acp` or `spawn`.
    pub name: String,
    /// Description for people.
    pub description: String,
    /// Content that follows the name.
    pub arguments: CommandArguments,
}

/// Content that follows the name of a command.
#[derive(Debug, Clone, PartialEq)]
pub enum CommandArguments {
    /// One of these subcommands.
    Subcommands(Vec<SlashCommandSpec>),
    /// These options.
    Options(Vec<CommandOption>),
}

/// Option of a command.
#[derive(Debug, Clone, PartialEq)]
pub struct CommandOption {
    /// Name.
    pub name: String,
    /// Description for people.
    pub description: String,
    /// Type of the value.
    pub kind: OptionKind,
    /// True if the option is mandatory.
    pub required: bool,
    /// Position in the line.
    pub position: OptionPosition,
}

/// Type of an option's value.
#[derive(Debug, Clone, PartialEq)]
pub enum OptionKind {
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
}

/// Position of an option in the line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OptionPosition {
    /// A word. Words are sorted by this number, which may differ from the order of input.
    Word(u8),
    /// `--name value`, or `--name` alone for a true boolean.
    Flag,
    /// The end of the line, unquoted: quotes in the text are the user's own.
    Remainder,
}

/// Builds the registration of commands. It replaces all commands registered before.
///
/// # Errors
/// [`SlashCommandSpecError`] if Discord would refuse the commands.
pub fn registration(commands: &[SlashCommandSpec]) -> Result<Json, SlashCommandSpecError> {
    check(commands)?;
    Ok(commands.iter().map(|command| definition(command, 0)).collect())
}

/// Option types of the documentation ("Application Command Option Type").
const fn option_type(kind: &OptionKind) -> u8 {
    match kind {
        OptionKind::Text { .. } | OptionKind::Choice(_) => 3,
        OptionKind::Integer { .. } => 4,
        OptionKind::Bool => 5,
    }
}

fn definition(spec: &SlashCommandSpec, depth: usize) -> Json {
    let SlashCommandSpec { name, description, arguments } = spec;
    let options: Vec<Json> = match arguments {
        CommandArguments::Subcommands(verbs) => {
            verbs.iter().map(|verb| definition(verb, depth + 1)).collect()
        }
        CommandArguments::Options(params) => params.iter().map(parameter).collect(),
    };
    let mut out = json!({ "name": name, "description": description, "options": options });
    let kind = match (depth, arguments) {
        // CHAT_INPUT, in guilds and in direct messages with the bot.
        (0, _) => {
            out["contexts"] = json!([0, 1]);
            out["integration_types"] = json!([0]);
            1
        }
        (_, CommandArguments::Subcommands(_)) => 2,
        (_, CommandArguments::Options(_)) => 1,
    };
    out["type"] = json!(kind);
    out
}

fn parameter(param: &CommandOption) -> Json {
    let CommandOption { name, description, kind, required, position: _ } = param;
    let mut out =
        json!({ "type": option_type(kind), "name": name, "description": description, "required": required });
    match kind {
        OptionKind::Text { max, suggest } => {
            out["max_length"] = json!(max);
            if *suggest {
                out["autocomplete"] = json!(true);
            }
        }
        OptionKind::Choice(choices) => {
            out["choices"] =
                choices.iter().map(|(name, value)| json!({ "name": name, "value": value })).collect();
        }
        OptionKind::Integer { min, max } => {
            out["min_value"] = json!(min);
            out["max_value"] = json!(max);
        }
        OptionKind::Bool => {}
    }
    out
}

#[cfg(test)]
mod tests;
