//! Validation of forms. Each check reports all errors that it finds, with the path that the service would
//! name.

pub mod commands;
pub mod components;
pub mod mentions;
pub mod message;

use super::error::FormErrors;
use serde_json::Value;

/// The length of a text in characters, the unit of all limits except that of content.
#[must_use]
pub fn chars(text: &str) -> usize {
    text.chars().count()
}

/// A string member: `None` if absent or null; another type is an error.
pub(super) fn text<'a>(object: &'a Value, key: &str, path: &str, errors: &mut FormErrors) -> Option<&'a str> {
    match object.get(key) {
        None | Some(Value::Null) => None,
        Some(Value::String(text)) => Some(text),
        Some(_) => {
            errors.wrong_type(path, "a string");
            None
        }
    }
}

/// A list member: `None` if absent or null; another type is an error.
pub(super) fn list<'a>(
    object: &'a Value,
    key: &str,
    path: &str,
    errors: &mut FormErrors,
) -> Option<&'a Vec<Value>> {
    match object.get(key) {
        None | Some(Value::Null) => None,
        Some(Value::Array(list)) => Some(list),
        Some(_) => {
            errors.add(path, "LIST_TYPE_CONVERT", "Only iterables may be used in a ListType");
            None
        }
    }
}

/// Appends a key to a path.
pub(super) fn at(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}

/// Requires a string of `min` to `max` characters.
pub(super) fn bounded<'a>(
    object: &'a Value,
    key: &str,
    path: &str,
    (min, max): (usize, usize),
    errors: &mut FormErrors,
) -> Option<&'a str> {
    let path = at(path, key);
    let found = text(object, key, &path, errors);
    match found {
        None if min > 0 && object.get(key).is_none_or(Value::is_null) => errors.required(&path),
        Some(text) if !(min..=max).contains(&chars(text)) => errors.length(&path, min, max),
        _ => {}
    }
    found
}
