//! Checks of slash commands against Discord's limits before registration (documentation, "Application
//! Commands").

use super::{Kind, Param, Place, Spec, Takes};
use std::collections::BTreeSet;
use std::fmt;

const COMMANDS_MAX: usize = 100;
/// Maximum number of options, subcommands or choices in one list.
const LIST_MAX: usize = 25;
const NAME_MAX: usize = 32;
const SAYS_MAX: usize = 100;
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
pub struct Broken {
    /// Path of the part, e.g. `acp spawn cwd`.
    pub at: String,
    /// Description of the defect.
    pub what: String,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "slash command `{}`: {}", self.at, self.what)
    }
}

impl std::error::Error for Broken {}

/// Checks commands against Discord's limits, and whether each can be converted back to a text line.
///
/// # Errors
/// [`Broken`] for the first defect.
pub fn check(commands: &[Spec]) -> Result<(), Broken> {
    let at = Path(Vec::new());
    at.unique(commands.iter().map(|command| command.name.as_str()))?;
    at.at_most("commands", commands.len(), COMMANDS_MAX)?;
    commands.iter().try_for_each(|command| {
        let at = at.below(&command.name);
        at.spec(command, 1)?;
        at.at_most("characters in all", weight(command), ALL_MAX)
    })
}

fn chars(text: &str) -> usize {
    text.encode_utf16().count()
}

fn weight(spec: &Spec) -> usize {
    let below = match &spec.takes {
        Takes::Verbs(verbs) => verbs.iter().map(weight).sum::<usize>(),
        Takes::Options(params) => params.iter().map(weight_of).sum(),
    };
    chars(&spec.name) + chars(&spec.says) + below
}

fn weight_of(param: &Param) -> usize {
    let choices = match &param.kind {
        Kind::Choice(choices) => choices.iter().map(|(name, value)| chars(name) + chars(value)).sum(),
        Kind::Text { .. } | Kind::Integer { .. } | Kind::Bool | Kind::File => 0,
    };
    chars(&param.name) + chars(&param.says) + choices
}

/// Position in the tree of commands.
struct Path<'a>(Vec<&'a str>);

impl<'a> Path<'a> {
    fn below(&self, name: &'a str) -> Self {
        Self(self.0.iter().copied().chain([name]).collect())
    }

    fn broken(&self, what: impl Into<String>) -> Broken {
        Broken { at: self.0.join(" "), what: what.into() }
    }

    fn at_most(&self, what: &str, have: usize, max: usize) -> Result<(), Broken> {
        if have > max { Err(self.broken(format!("{have} {what}, of at most {max}"))) } else { Ok(()) }
    }

    fn unique<'b>(&self, names: impl Iterator<Item = &'b str>) -> Result<(), Broken> {
        let mut seen = BTreeSet::new();
        for name in names {
            if !seen.insert(name) {
                return Err(self.broken(format!("`{name}` is there twice")));
            }
        }
        Ok(())
    }

    fn text(&self, what: &str, text: &str, max: usize) -> Result<(), Broken> {
        if text.is_empty() {
            return Err(self.broken(format!("no {what}")));
        }
        self.at_most(&format!("characters of {what}"), chars(text), max)
    }

    /// Discord permits lower-case letters of many scripts; the commands here need only these.
    fn name(&self, name: &str) -> Result<(), Broken> {
        self.text("name", name, NAME_MAX)?;
        let good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '_');
        if name.chars().all(good) {
            Ok(())
        } else {
            Err(self.broken("a name has small letters, digits, - and _"))
        }
    }

    fn spec(&self, spec: &'a Spec, depth: usize) -> Result<(), Broken> {
        self.name(&spec.name)?;
        self.text("description", &spec.says, SAYS_MAX)?;
        match &spec.takes {
            Takes::Verbs(_) if depth == DEPTH_MAX => Err(self.broken("no words can follow a third one")),
            Takes::Verbs(verbs) => {
                self.at_most("verbs", verbs.len(), LIST_MAX)?;
                self.unique(verbs.iter().map(|verb| verb.name.as_str()))?;
                verbs.iter().try_for_each(|verb| self.below(&verb.name).spec(verb, depth + 1))
            }
            Takes::Options(params) => self.params(params),
        }
    }

    fn params(&self, params: &'a [Param]) -> Result<(), Broken> {
        self.at_most("options", params.len(), LIST_MAX)?;
        self.unique(params.iter().map(|param| param.name.as_str()))?;
        if !params.is_sorted_by_key(|param| !param.required) {
            return Err(self.broken("what must be given comes before what may be given"));
        }
        let mut words = BTreeSet::new();
        let twice = params.iter().any(|param| matches!(param.place, Place::Word(n) if !words.insert(n)));
        let rests = params.iter().filter(|param| param.place == Place::Rest).count();
        if twice || rests > 1 {
            return Err(self.broken("two options stand in one place of the line"));
        }
        params.iter().try_for_each(|param| self.below(&param.name).param(param))
    }

    fn param(&self, param: &'a Param) -> Result<(), Broken> {
        self.name(&param.name)?;
        self.text("description", &param.says, SAYS_MAX)?;
        if matches!(param.kind, Kind::File) != (param.place == Place::Beside) {
            return Err(self.broken("files stand beside the line, and nothing else does"));
        }
        if matches!(param.kind, Kind::Bool) && param.place != Place::Flag {
            return Err(self.broken("yes or no is a flag"));
        }
        match &param.kind {
            Kind::Text { max, .. } if !(1..=TEXT_MAX).contains(max) => {
                Err(self.broken(format!("a text of at most {max}, of 1 to {TEXT_MAX}")))
            }
            Kind::Choice(choices) => self.choices(choices),
            Kind::Integer { min, max } if min > max || *min < -INTEGER_MAX || *max > INTEGER_MAX => {
                Err(self.broken(format!("numbers from {min} to {max}")))
            }
            Kind::Text { .. } | Kind::Integer { .. } | Kind::Bool | Kind::File => Ok(()),
        }
    }

    fn choices(&self, choices: &[(String, String)]) -> Result<(), Broken> {
        if choices.is_empty() {
            return Err(self.broken("nothing to choose from"));
        }
        self.at_most("choices", choices.len(), LIST_MAX)?;
        self.unique(choices.iter().map(|(name, _)| name.as_str()))?;
        choices.iter().try_for_each(|(name, value)| {
            self.text("name of a choice", name, CHOICE_MAX)?;
            self.text("value of a choice", value, CHOICE_MAX)
        })
    }
}
