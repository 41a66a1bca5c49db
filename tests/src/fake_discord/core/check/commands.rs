//! Commands: limits of the documentation's page on application commands.

use super::super::error::FormErrors;
use super::{at, bounded, chars, list};
use serde_json::Value;
use std::collections::BTreeSet;

/// Slash commands of one scope.
pub const COMMANDS_MAX: usize = 100;
const OPTIONS_MAX: usize = 25;
const CHOICES_MAX: usize = 25;
const NAME_MAX: usize = 32;
const DESCRIPTION_MAX: usize = 100;
const CHOICE_MAX: usize = 100;
/// Characters of names, descriptions and values of one command.
const TOTAL_MAX: usize = 8000;

const SUB_COMMAND: u64 = 1;
const SUB_COMMAND_GROUP: u64 = 2;

/// Checks a list of commands.
pub fn check_all(commands: &[Value], errors: &mut FormErrors) {
    if commands.len() > COMMANDS_MAX {
        errors.too_long("_errors", COMMANDS_MAX);
    }
    let mut names = BTreeSet::new();
    for (n, command) in commands.iter().enumerate() {
        let path = n.to_string();
        check(command, &path, errors);
        let of = (kind(command), command.get("name").and_then(Value::as_str).unwrap_or_default());
        if !names.insert(of) {
            errors.add(
                &at(&path, "name"),
                "APPLICATION_COMMANDS_DUPLICATE_NAME",
                "Application command names must be unique",
            );
        }
    }
}

fn kind(command: &Value) -> u64 {
    command.get("type").and_then(Value::as_u64).unwrap_or(1)
}

/// Checks one command.
pub fn check(command: &Value, path: &str, errors: &mut FormErrors) {
    if !command.is_object() {
        errors.add(path, "DICT_TYPE_CONVERT", "Only dictionaries may be used in a DictType");
        return;
    }
    match kind(command) {
        1 => {
            name(command, path, errors);
            bounded(command, "description", path, (1, DESCRIPTION_MAX), errors);
            check_options(command, path, &[SUB_COMMAND, SUB_COMMAND_GROUP], errors);
        }
        2 | 3 => {
            bounded(command, "name", path, (1, NAME_MAX), errors);
            if command.get("description").and_then(Value::as_str).is_some_and(|text| !text.is_empty()) {
                let message = "Context menu commands cannot have description";
                errors.add(&at(path, "description"), "APPLICATION_COMMAND_CONTEXT_MENU_DESCRIPTION", message);
            }
        }
        _ => errors.choice(&at(path, "type"), "(1, 2, 3, 4)"),
    }
    if size(command) > TOTAL_MAX {
        let message = "Command exceeds maximum size (8000)";
        errors.add(path, "APPLICATION_COMMAND_TOO_LARGE", message);
    }
}

/// Checks a name: lower-case letters, digits, `-` and `_`.
fn name(object: &Value, path: &str, errors: &mut FormErrors) {
    let found = bounded(object, "name", path, (1, NAME_MAX), errors);
    let fits = |c: char| matches!(c, '-' | '_' | '\'') || (c.is_alphanumeric() && !c.is_uppercase());
    if found.is_some_and(|name| !name.chars().all(fits)) {
        let message = "Command name is invalid";
        errors.add(&at(path, "name"), "APPLICATION_COMMAND_INVALID_NAME", message);
    }
}

/// Checks options; `below` lists the kinds of groups and sub-commands that are allowed here.
fn check_options(object: &Value, path: &str, below: &[u64], errors: &mut FormErrors) {
    let path = at(path, "options");
    let options = list(object, "options", &path, errors).map_or(&[][..], Vec::as_slice);
    if options.len() > OPTIONS_MAX {
        errors.too_long(&path, OPTIONS_MAX);
    }
    let (mut names, mut optional, mut nested) = (BTreeSet::new(), false, 0);
    for (n, option) in options.iter().enumerate() {
        let path = format!("{path}.{n}");
        name(option, &path, errors);
        bounded(option, "description", &path, (1, DESCRIPTION_MAX), errors);
        if option.get("name").and_then(Value::as_str).is_some_and(|name| !names.insert(name)) {
            let message = "Application command option names must be unique";
            errors.add(&at(&path, "name"), "APPLICATION_COMMAND_OPTIONS_NAME_INVALID", message);
        }
        match option.get("type").and_then(Value::as_u64) {
            Some(of @ (SUB_COMMAND | SUB_COMMAND_GROUP)) => {
                nested += 1;
                if !below.contains(&of) {
                    let message = "Sub-commands and sub-command groups cannot be nested so deep";
                    errors.add(&at(&path, "type"), "APPLICATION_COMMAND_OPTIONS_TYPE_INVALID", message);
                }
                let inner: &[u64] = if of == SUB_COMMAND_GROUP { &[SUB_COMMAND] } else { &[] };
                check_options(option, &path, inner, errors);
            }
            Some(3..=11) => {
                let required = option.get("required").and_then(Value::as_bool).unwrap_or(false);
                if required && optional {
                    let message = "Required options must be placed before non-required options";
                    errors.add(&path, "APPLICATION_COMMAND_OPTIONS_REQUIRED_INVALID", message);
                }
                optional |= !required;
                choices(option, &path, errors);
            }
            _ => errors.choice(&at(&path, "type"), "(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11)"),
        }
    }
    if nested > 0 && nested != options.len() {
        let message =
            "Sub-command and sub-command group option types are mutually exclusive to all other types";
        errors.add(&path, "APPLICATION_COMMAND_OPTIONS_TYPE_INVALID", message);
    }
}

fn choices(option: &Value, path: &str, errors: &mut FormErrors) {
    let list_path = at(path, "choices");
    let choices = list(option, "choices", &list_path, errors).map_or(&[][..], Vec::as_slice);
    if choices.len() > CHOICES_MAX {
        errors.too_long(&list_path, CHOICES_MAX);
    }
    if !choices.is_empty() && option.get("autocomplete").and_then(Value::as_bool) == Some(true) {
        let message = "Choices and autocomplete are mutually exclusive";
        errors.add(path, "APPLICATION_COMMAND_OPTIONS_CHOICES_AUTOCOMPLETE", message);
    }
    check_choices(choices, &list_path, errors);
}

/// Checks choices, of an option or of an autocompletion.
pub fn check_choices(choices: &[Value], path: &str, errors: &mut FormErrors) {
    for (n, choice) in choices.iter().enumerate() {
        let path = format!("{path}.{n}");
        bounded(choice, "name", &path, (1, CHOICE_MAX), errors);
        match choice.get("value") {
            Some(Value::Number(_)) => {}
            Some(Value::String(value)) if (1..=CHOICE_MAX).contains(&chars(value)) => {}
            Some(Value::String(_)) => errors.length(&at(&path, "value"), 1, CHOICE_MAX),
            _ => errors.required(&at(&path, "value")),
        }
    }
}

/// Characters of all names, descriptions and values.
fn size(object: &Value) -> usize {
    let own: usize = ["name", "description", "value"]
        .iter()
        .filter_map(|key| object.get(key).and_then(Value::as_str))
        .map(chars)
        .sum();
    let inner = ["options", "choices"].iter().filter_map(|key| object.get(key).and_then(Value::as_array));
    own + inner.flatten().map(size).sum::<usize>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn mistakes(command: &Value) -> Option<Value> {
        let mut errors = FormErrors::default();
        check_all(std::slice::from_ref(command), &mut errors);
        errors.finish().err().and_then(|error| error.errors)
    }

    fn with(options: &Value) -> Value {
        json!({"name": "acp", "description": "agents", "options": options})
    }

    fn option(kind: u64, name: &str) -> Value {
        json!({"type": kind, "name": name, "description": "d"})
    }

    #[test]
    fn limits_of_commands() {
        let mut group = option(2, "group");
        group["options"] = json!([option(1, "sub")]);
        assert_eq!(mistakes(&with(&json!([group, option(1, "other")]))), None);
        let many: Vec<Value> = (0..26).map(|n| option(3, &format!("o{n}"))).collect();
        let mut completed = option(3, "a");
        completed["autocomplete"] = json!(true);
        completed["choices"] = json!([{"name": "x", "value": "y"}]);
        let mut deep = option(1, "deep");
        deep["options"] = json!([option(1, "deeper")]);
        let mut required = option(3, "b");
        required["required"] = json!(true);
        let mut wordy = option(3, "w");
        wordy["choices"] = json!(vec![json!({"name": "x".repeat(101), "value": "y"})]);
        let big: Vec<Value> = (0..25)
            .map(|n| {
                let mut option = option(3, &format!("o{n}"));
                option["description"] = json!("x".repeat(100));
                option["choices"] = (0..25).map(|n| json!({"name": "n".repeat(20), "value": n})).collect();
                option
            })
            .collect();
        for (command, path) in [
            (json!({"name": "Acp", "description": "d"}), "/0/name/_errors"),
            (json!({"name": "a b", "description": "d"}), "/0/name/_errors"),
            (json!({"name": "x".repeat(33), "description": "d"}), "/0/name/_errors"),
            (json!({"name": "acp"}), "/0/description/_errors"),
            (json!({"name": "acp", "description": "d".repeat(101)}), "/0/description/_errors"),
            (json!({"name": "acp", "description": "d", "type": 2}), "/0/description/_errors"),
            (json!({"name": "acp", "description": "d", "type": 9}), "/0/type/_errors"),
            (with(&json!(many)), "/0/options/_errors"),
            (with(&json!([option(3, "a"), option(3, "a")])), "/0/options/1/name/_errors"),
            (with(&json!([option(99, "a")])), "/0/options/0/type/_errors"),
            (with(&json!([option(1, "a"), option(3, "b")])), "/0/options/_errors"),
            (with(&json!([option(3, "a"), required])), "/0/options/1/_errors"),
            (with(&json!([completed])), "/0/options/0/_errors"),
            (with(&json!([deep])), "/0/options/0/options/0/type/_errors"),
            (with(&json!([wordy])), "/0/options/0/choices/0/name/_errors"),
            (with(&json!(big)), "/0/_errors"),
        ] {
            let found = mistakes(&command).unwrap_or_else(|| panic!("accepted: {command}"));
            assert!(found.pointer(path).is_some(), "{found} has no {path}");
        }
    }
}
