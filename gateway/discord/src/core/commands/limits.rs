//! Checks of slash commands against Discord's limits before registration (documentation, "Application
//! Commands").

use super::{CommandArguments, CommandOption, OptionKind, OptionPosition, SlashCommandSpec};
use std::collections::BTreeSet;
use std::fmt;

const COMMANDS_MAX: usize = 100;
/// Maximum number of options, subcommands or choices in one list.
const LIST_MAX: usize = 25;
const NAME_MAX: usize = 32;
const DESCRIPTION_MAX: usize = 100;
const CHOICE_MAX: usize = 100;
const TEXT_MAX: u32 = 6000;
/// Maximum total length of the names, descriptions and values of one command.
const ALL_MAX: usize = 8000;
/// Maximum depth: command, group, subcommand.
const DEPTH_MAX: usize = 3;
/// Bound of integer options: Discord carries them as doubles.
const INTEGER_MAX: i64 = 1 << 53;

/// Defect in a description of commands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlashCommandSpecError {
    /// Path of the part, e.g. `acp spawn cwd`.
    pub at: String,
    /// Description of the defect.
    pub what: String,
}

impl fmt::Display for SlashCommandSpecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "slash command `{}`: {}", self.at, self.what)
    }
}

impl std::error::Error for SlashCommandSpecError {}

/// Checks commands against Discord's limits, and whether each can be converted back to a text line.
///
/// # Errors
/// [`SlashCommandSpecError`] for the first defect.
pub fn check(commands: &[SlashCommandSpec]) -> Result<(), SlashCommandSpecError> {
    let at = Path(Vec::new());
    at.unique(commands.iter().map(|command| command.name.as_str()))?;
    at.at_most("commands", commands.len(), COMMANDS_MAX)?;
    commands.iter().try_for_each(|command| {
        let at = at.below(&command.name);
        at.spec(command, 1)?;
        at.at_most("characters in total", text_len(command), ALL_MAX)
    })
}

fn chars(text: &str) -> usize {
    text.encode_utf16().count()
}

fn text_len(spec: &SlashCommandSpec) -> usize {
    let below = match &spec.arguments {
        CommandArguments::Subcommands(verbs) => verbs.iter().map(text_len).sum::<usize>(),
        CommandArguments::Options(params) => params.iter().map(option_text_len).sum(),
    };
    chars(&spec.name) + chars(&spec.description) + below
}

fn option_text_len(param: &CommandOption) -> usize {
    let choices = match &param.kind {
        OptionKind::Choice(choices) => choices.iter().map(|(name, value)| chars(name) + chars(value)).sum(),
        OptionKind::Text { .. } | OptionKind::Integer { .. } | OptionKind::Bool => 0,
    };
    chars(&param.name) + chars(&param.description) + choices
}

/// Position in the tree of commands.
struct Path<'a>(Vec<&'a str>);

impl<'a> Path<'a> {
    fn below(&self, name: &'a str) -> Self {
        Self(self.0.iter().copied().chain([name]).collect())
    }

    fn error(&self, what: impl Into<String>) -> SlashCommandSpecError {
        SlashCommandSpecError { at: self.0.join(" "), what: what.into() }
    }

    fn at_most(&self, what: &str, have: usize, max: usize) -> Result<(), SlashCommandSpecError> {
        if have > max { Err(self.error(format!("{have} {what}, at most {max} allowed"))) } else { Ok(()) }
    }

    fn unique<'b>(&self, names: impl Iterator<Item = &'b str>) -> Result<(), SlashCommandSpecError> {
        let mut seen = BTreeSet::new();
        for name in names {
            if !seen.insert(name) {
                return Err(self.error(format!("duplicate name `{name}`")));
            }
        }
        Ok(())
    }

    fn text(&self, what: &str, text: &str, max: usize) -> Result<(), SlashCommandSpecError> {
        if text.is_empty() {
            return Err(self.error(format!("empty {what}")));
        }
        self.at_most(&format!("characters of {what}"), chars(text), max)
    }

    /// Discord permits lower-case letters of many scripts; the commands here need only these.
    fn name(&self, name: &str) -> Result<(), SlashCommandSpecError> {
        self.text("name", name, NAME_MAX)?;
        let good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '_');
        if name.chars().all(good) {
            Ok(())
        } else {
            Err(self.error("a name may contain only lower-case letters, digits, - and _"))
        }
    }

    fn spec(&self, spec: &'a SlashCommandSpec, depth: usize) -> Result<(), SlashCommandSpecError> {
        self.name(&spec.name)?;
        self.text("description", &spec.description, DESCRIPTION_MAX)?;
        match &spec.arguments {
            CommandArguments::Subcommands(_) if depth == DEPTH_MAX => {
                Err(self.error("a command has at most three words"))
            }
            CommandArguments::Subcommands(verbs) => {
                self.at_most("verbs", verbs.len(), LIST_MAX)?;
                self.unique(verbs.iter().map(|verb| verb.name.as_str()))?;
                verbs.iter().try_for_each(|verb| self.below(&verb.name).spec(verb, depth + 1))
            }
            CommandArguments::Options(params) => self.params(params),
        }
    }

    fn params(&self, params: &'a [CommandOption]) -> Result<(), SlashCommandSpecError> {
        self.at_most("options", params.len(), LIST_MAX)?;
        self.unique(params.iter().map(|param| param.name.as_str()))?;
        if !params.is_sorted_by_key(|param| !param.required) {
            return Err(self.error("required options must precede optional ones"));
        }
        let mut words = BTreeSet::new();
        let twice =
            params.iter().any(|param| matches!(param.position, OptionPosition::Word(n) if !words.insert(n)));
        let rests = params.iter().filter(|param| param.position == OptionPosition::Remainder).count();
        if twice || rests > 1 {
            return Err(self.error("two options have the same position in the line"));
        }
        params.iter().try_for_each(|param| self.below(&param.name).param(param))
    }

    fn param(&self, param: &'a CommandOption) -> Result<(), SlashCommandSpecError> {
        self.name(&param.name)?;
        self.text("description", &param.description, DESCRIPTION_MAX)?;
        if matches!(param.kind, OptionKind::Bool) && param.position != OptionPosition::Flag {
            return Err(self.error("a boolean option must be a flag"));
        }
        match &param.kind {
            OptionKind::Text { max, .. } if !(1..=TEXT_MAX).contains(max) => {
                Err(self.error(format!("the maximum text length {max} is not within 1 to {TEXT_MAX}")))
            }
            OptionKind::Choice(choices) => self.choices(choices),
            OptionKind::Integer { min, max } if min > max || *min < -INTEGER_MAX || *max > INTEGER_MAX => {
                Err(self.error(format!("invalid range of numbers: {min} to {max}")))
            }
            OptionKind::Text { .. } | OptionKind::Integer { .. } | OptionKind::Bool => Ok(()),
        }
    }

    fn choices(&self, choices: &[(String, String)]) -> Result<(), SlashCommandSpecError> {
        if choices.is_empty() {
            return Err(self.error("no choices"));
        }
        self.at_most("choices", choices.len(), LIST_MAX)?;
        self.unique(choices.iter().map(|(name, _)| name.as_str()))?;
        choices.iter().try_for_each(|(name, value)| {
            self.text("name of a choice", name, CHOICE_MAX)?;
            self.text("value of a choice", value, CHOICE_MAX)
        })
    }
}
