//! Conversion of a slash command to the equivalent text command line.
//!
//! The line follows shell-like rules: white space separates words, quotes group them, and a backslash outside
//! of single quotes escapes the next character. A word with two leading dashes is a flag; after a lone `--`,
//! words are never flags.

use super::{CommandArguments, CommandOption, OptionPosition, SlashCommandSpec};
use crate::core::event::{GivenOption, SlashCommand, Value};
use std::fmt;

/// Characters with a special meaning in a word, besides white space: straight quotes, curly quotes,
/// backslash.
const SPECIAL_CHARS: [char; 6] = ['"', '\'', '\\', '\u{201C}', '\u{201D}', '\u{201E}'];

/// Reason why a slash command cannot be converted to a line: it is not one of those registered last. Discord
/// shows older commands for some time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandLineError(pub String);

impl fmt::Display for CommandLineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "This command is from another version of the gateway: {}. Reload Discord and try again.",
            self.0
        )
    }
}

impl std::error::Error for CommandLineError {}

/// Converts a command to a line.
///
/// # Errors
/// [`CommandLineError`] if the command, a subcommand or an option is unknown.
pub fn line(specs: &[SlashCommandSpec], command: &SlashCommand) -> Result<String, CommandLineError> {
    let mut out = format!("/{}", command.name);
    let mut spec = find(specs, &command.name)?;
    let mut given = command.options.as_slice();
    let params = loop {
        match &spec.arguments {
            CommandArguments::Options(params) => break params,
            CommandArguments::Subcommands(verbs) => {
                let [GivenOption { name, value: Value::Sub(below), .. }] = given else {
                    return Err(CommandLineError(format!("/{} needs a subcommand", spec.name)));
                };
                spec = find(verbs, name)?;
                out = format!("{out} {name}");
                given = below;
            }
        }
    };
    for part in parts(params, given)? {
        out = format!("{out} {part}");
    }
    Ok(out)
}

fn find<'a>(specs: &'a [SlashCommandSpec], name: &str) -> Result<&'a SlashCommandSpec, CommandLineError> {
    specs
        .iter()
        .find(|spec| spec.name == name)
        .ok_or_else(|| CommandLineError(format!("unknown command `{name}`")))
}

/// Returns the parts after the subcommand, in the order of the line.
fn parts(params: &[CommandOption], given: &[GivenOption]) -> Result<Vec<String>, CommandLineError> {
    let mut words = Vec::new();
    let mut flags = Vec::new();
    let mut rest = None;
    for GivenOption { name, value, .. } in given {
        let param = params.iter().find(|param| param.name == *name);
        let param = param.ok_or_else(|| CommandLineError(format!("unknown option `{name}`")))?;
        let text = text(value)
            .ok_or_else(|| CommandLineError(format!("the value of `{name}` cannot be written as text")))?;
        match param.position {
            OptionPosition::Flag => flags.extend(flag(name, value, &text)),
            OptionPosition::Word(at) => words.push((at, text)),
            OptionPosition::Remainder => rest = Some(text.trim().to_owned()),
        }
    }
    words.retain(|(_, word)| !word.is_empty());
    words.sort_unstable();
    let rest = rest.filter(|rest| !rest.is_empty());
    // Words or a text that look like flags go behind all flags and `--`. A text goes last.
    let guarded =
        rest.as_deref().is_some_and(looks_like_flag) || words.iter().any(|(_, word)| looks_like_flag(word));
    let guard = guarded.then(|| "--".to_owned());
    let words = words.into_iter().map(|(_, word)| quote(&word));
    Ok(if guarded || rest.is_some() {
        flags.into_iter().chain(guard).chain(words).chain(rest).collect()
    } else {
        words.chain(flags).collect()
    })
}

/// True if the text begins in a way that might be read as a flag or as the end of the flags.
fn looks_like_flag(text: &str) -> bool {
    text.chars().next().is_some_and(|first| !first.is_alphanumeric())
}

/// Text of a value, or `None` if it cannot be typed.
fn text(value: &Value) -> Option<String> {
    match value {
        Value::Text(text) => Some(text.clone()),
        Value::Integer(number) => Some(number.to_string()),
        Value::Bool(yes) => Some(yes.to_string()),
        Value::Sub(_) | Value::Other => None,
    }
}

/// Formats a flag, or returns `None` for `false` or an empty text.
fn flag(name: &str, value: &Value, text: &str) -> Option<String> {
    match value {
        Value::Bool(yes) => yes.then(|| format!("--{name}")),
        _ if text.is_empty() => None,
        _ if looks_like_flag(text) => Some(format!("--{name}={}", quote(text))),
        _ => Some(format!("--{name} {}", quote(text))),
    }
}

/// Quotes a text where necessary, to be read as one word.
#[must_use]
pub fn quote(text: &str) -> String {
    if !text.is_empty() && !text.chars().any(|c| c.is_whitespace() || SPECIAL_CHARS.contains(&c)) {
        return text.to_owned();
    }
    let escape = |c: char| SPECIAL_CHARS.contains(&c).then_some('\\').into_iter().chain([c]);
    format!("\"{}\"", text.chars().flat_map(escape).collect::<String>())
}
