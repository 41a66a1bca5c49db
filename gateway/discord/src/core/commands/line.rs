//! Conversion of a slash command to the equivalent text command line.
//!
//! The line follows shell-like rules: white space separates words, quotes group them, and a backslash outside
//! of single quotes escapes the next character. A word with two leading dashes is a flag; after a lone `--`,
//! words are never flags.

use super::{Param, Place, Spec, Takes};
use crate::core::event::{Command, Given, Value};
use std::fmt;

/// Characters with a special meaning in a word, besides white space: straight quotes, curly quotes,
/// backslash.
const MEANT: [char; 6] = ['"', '\'', '\\', '\u{201C}', '\u{201D}', '\u{201E}'];

/// Reason why a slash command cannot be converted to a line: it is not one of those registered last. Discord
/// shows older commands for some time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotTyped(pub String);

impl fmt::Display for NotTyped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "This command is of another version: {}. Reload Discord and try again.", self.0)
    }
}

impl std::error::Error for NotTyped {}

/// Converts a command to a line. File options are not part of the line.
///
/// # Errors
/// [`NotTyped`] if the command, a subcommand or an option is unknown.
pub fn line(specs: &[Spec], command: &Command) -> Result<String, NotTyped> {
    let mut out = format!("/{}", command.name);
    let mut spec = find(specs, &command.name)?;
    let mut given = command.options.as_slice();
    let params = loop {
        match &spec.takes {
            Takes::Options(params) => break params,
            Takes::Verbs(verbs) => {
                let [Given { name, value: Value::Sub(below), .. }] = given else {
                    return Err(NotTyped(format!("/{} wants a subcommand", spec.name)));
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

fn find<'a>(specs: &'a [Spec], name: &str) -> Result<&'a Spec, NotTyped> {
    specs.iter().find(|spec| spec.name == name).ok_or_else(|| NotTyped(format!("there is no `{name}`")))
}

/// Returns the parts after the subcommand, in the order of the line.
fn parts(params: &[Param], given: &[Given]) -> Result<Vec<String>, NotTyped> {
    let mut words = Vec::new();
    let mut flags = Vec::new();
    let mut rest = None;
    for Given { name, value, .. } in given {
        let param = params.iter().find(|param| param.name == *name);
        let param = param.ok_or_else(|| NotTyped(format!("there is no option `{name}`")))?;
        let text = text(value).ok_or_else(|| NotTyped(format!("`{name}` cannot be typed")));
        match param.place {
            Place::Beside => {}
            Place::Flag => flags.extend(flag(name, value, &text?)),
            Place::Word(at) => words.push((at, text?)),
            Place::Rest => rest = Some(text?.trim().to_owned()),
        }
    }
    words.retain(|(_, word)| !word.is_empty());
    words.sort_unstable();
    let rest = rest.filter(|rest| !rest.is_empty());
    // Words or a text that look like flags go behind all flags and `--`. A text goes last.
    let guarded = rest.as_deref().is_some_and(odd) || words.iter().any(|(_, word)| odd(word));
    let guard = guarded.then(|| "--".to_owned());
    let words = words.into_iter().map(|(_, word)| quoted(&word));
    Ok(if guarded || rest.is_some() {
        flags.into_iter().chain(guard).chain(words).chain(rest).collect()
    } else {
        words.chain(flags).collect()
    })
}

/// True if the text begins in a way that might be read as a flag or as the end of the flags.
fn odd(text: &str) -> bool {
    text.chars().next().is_some_and(|first| !first.is_alphanumeric())
}

/// Text of a value, or `None` if it cannot be typed.
fn text(value: &Value) -> Option<String> {
    match value {
        Value::Text(text) => Some(text.clone()),
        Value::Integer(number) => Some(number.to_string()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(yes) => Some(yes.to_string()),
        Value::Id(id) => Some(id.to_string()),
        Value::Sub(_) | Value::File(_) => None,
    }
}

/// Formats a flag, or returns `None` for `false` or an empty text.
fn flag(name: &str, value: &Value, text: &str) -> Option<String> {
    match value {
        Value::Bool(yes) => yes.then(|| format!("--{name}")),
        _ if text.is_empty() => None,
        _ if odd(text) => Some(format!("--{name}={}", quoted(text))),
        _ => Some(format!("--{name} {}", quoted(text))),
    }
}

/// Quotes a text where necessary, to be read as one word.
fn quoted(text: &str) -> String {
    if !text.is_empty() && !text.chars().any(|c| c.is_whitespace() || MEANT.contains(&c)) {
        return text.to_owned();
    }
    let escape = |c: char| MEANT.contains(&c).then_some('\\').into_iter().chain([c]);
    format!("\"{}\"", text.chars().flat_map(escape).collect::<String>())
}
