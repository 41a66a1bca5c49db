//! From what somebody chose to the line that they could have typed.
//!
//! The line is read by rules of words that shells have made known: white space parts them, quotes hold them together,
//! a backslash outside of single quotes takes the next character as it is. What has two dashes in front is a flag, and
//! after `--` alone nothing is.

use super::{Param, Place, Spec, Takes};
use crate::core::event::{Command, Given, Value};
use std::fmt;

/// Characters that mean something in a word besides white space: quotes, as they are and as keyboards bend them.
const MEANT: [char; 6] = ['"', '\'', '\\', '\u{201C}', '\u{201D}', '\u{201E}'];

/// Why a command cannot be turned into a line: it is none of those that were registered last. Discord goes on showing
/// older ones for a while.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotTyped(pub String);

impl fmt::Display for NotTyped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "This command is of another version: {}. Reload Discord and try again.", self.0)
    }
}

impl std::error::Error for NotTyped {}

/// The line of a command. What stands beside the line is left out of it.
///
/// # Errors
/// [`NotTyped`] for what is not in the description.
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

/// The parts after the verb, in their order.
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
    // A word that begins like a flag stands behind all flags and `--`; so does a text, after which nothing is read.
    let guarded = rest.as_deref().is_some_and(odd) || words.iter().any(|(_, word)| odd(word));
    let guard = guarded.then(|| "--".to_owned());
    let words = words.into_iter().map(|(_, word)| quoted(&word));
    Ok(if guarded || rest.is_some() {
        flags.into_iter().chain(guard).chain(words).chain(rest).collect()
    } else {
        words.chain(flags).collect()
    })
}

/// Whether a text begins in a way that might be read as a flag or as the end of flags.
fn odd(text: &str) -> bool {
    text.chars().next().is_some_and(|first| !first.is_alphanumeric())
}

/// A value as it is typed; none for what cannot be.
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

/// A flag, unless it says nothing.
fn flag(name: &str, value: &Value, text: &str) -> Option<String> {
    match value {
        Value::Bool(yes) => yes.then(|| format!("--{name}")),
        _ if text.is_empty() => None,
        _ if odd(text) => Some(format!("--{name}={}", quoted(text))),
        _ => Some(format!("--{name} {}", quoted(text))),
    }
}

/// A word that is read as this text.
fn quoted(text: &str) -> String {
    if !text.is_empty() && !text.chars().any(|c| c.is_whitespace() || MEANT.contains(&c)) {
        return text.to_owned();
    }
    let escape = |c: char| MEANT.contains(&c).then_some('\\').into_iter().chain([c]);
    format!("\"{}\"", text.chars().flat_map(escape).collect::<String>())
}
