//! Answers to a form: typed words become values, and values are checked before they are sent. Errors name the field.

use super::parse::as_whole;
use super::url::host_of;
use super::{Elicitation, ElicitationMode, FieldChoice, FieldKind, FormField, TextFormat};
use crate::sanitize;
use serde_json::{Map, Number, Value};
use std::fmt::Display;

/// Maximum length of a text in an answer, in bytes.
const TEXT_BYTES_MAX: usize = 64 * 1024;
/// Maximum length of an answer, in bytes of JSON.
const CONTENT_BYTES_MAX: usize = 256 * 1024;
/// Maximum length of the name of a field in an error, in characters.
const NAME_CHARS_MAX: usize = 60;

/// Returns a field's name in quotes.
fn quoted(name: &str) -> String {
    format!("{:?}", sanitize::line(name, NAME_CHARS_MAX))
}

impl Elicitation {
    /// Checks the values of an answer.
    ///
    /// # Errors
    /// A sentence that names the field.
    pub fn check(&self, content: &Map<String, Value>) -> Result<(), String> {
        let is_page = matches!(self.mode, ElicitationMode::Url { .. });
        if let Some(name) =
            content.keys().find(|name| !self.fields().iter().any(|field| field.name == **name))
        {
            let why = if is_page { "a page takes no values" } else { "the form has no such field" };
            return Err(format!("Field {}: {why}.", quoted(name)));
        }
        if Value::from(content.clone()).to_string().len() > CONTENT_BYTES_MAX {
            return Err(format!("The answer is longer than {CONTENT_BYTES_MAX} bytes of JSON."));
        }
        for field in self.fields() {
            let checked = match content.get(&field.name) {
                Some(value) => field.check(value),
                None if field.required => Err("a value is required".to_owned()),
                None => Ok(()),
            };
            checked.map_err(|why| format!("Field {}: {why}.", quoted(&field.name)))?;
        }
        Ok(())
    }
}

impl FormField {
    /// Checks a value.
    ///
    /// # Errors
    /// What the value must be.
    pub(super) fn check(&self, value: &Value) -> Result<(), String> {
        match &self.kind {
            FieldKind::String { min_length, max_length, format, .. } => {
                let text = value.as_str().ok_or("must be a text")?;
                if text.len() > TEXT_BYTES_MAX {
                    return Err(format!("must have at most {TEXT_BYTES_MAX} bytes"));
                }
                let chars = text.chars().count() as u64;
                within(chars, min_length.as_ref(), max_length.as_ref())
                    .map_err(|limit| format!("must have {limit} characters"))?;
                format.map_or(Ok(()), |format| check_format(format, text))
            }
            FieldKind::Number { minimum, maximum } => {
                let number = value.as_f64().filter(|number| number.is_finite()).ok_or("must be a number")?;
                let float = |limit: &Option<Number>| limit.as_ref().and_then(Number::as_f64);
                within(number, float(minimum).as_ref(), float(maximum).as_ref())
                    .map_err(|limit| format!("must be {limit}"))
            }
            FieldKind::Integer { minimum, maximum } => {
                let number = value.as_number().and_then(as_whole).ok_or("must be a whole number")?;
                within(number, minimum.as_ref(), maximum.as_ref()).map_err(|limit| format!("must be {limit}"))
            }
            FieldKind::Boolean => {
                value.as_bool().map(|_| ()).ok_or_else(|| "must be true or false".to_owned())
            }
            FieldKind::Choice { choices } => {
                let is_known = value.as_str().is_some_and(|value| choices.iter().any(|it| it.value == value));
                is_known.then_some(()).ok_or_else(|| format!("must be {}", listed("one of", choices)))
            }
            FieldKind::Choices { choices, min_items, max_items } => {
                let values = value.as_array().ok_or("must be a list")?;
                let is_new = |at: usize, value: &Value| values.iter().position(|it| it == value) == Some(at);
                let is_known = |value: &Value| {
                    value.as_str().is_some_and(|value| choices.iter().any(|it| it.value == value))
                };
                if !values.iter().enumerate().all(|(at, value)| is_known(value) && is_new(at, value)) {
                    return Err(format!("must be {}, each once", listed("any of", choices)));
                }
                within(values.len() as u64, min_items.as_ref(), max_items.as_ref())
                    .map_err(|limit| format!("must have {limit} values"))
            }
        }
    }

    /// Reads a typed value.
    fn read(&self, typed: &str) -> Result<Value, String> {
        let value = match &self.kind {
            FieldKind::String { .. } => Value::from(typed),
            FieldKind::Number { .. } => {
                let whole = typed.parse::<i64>().ok().map(Number::from);
                let number = whole.or_else(|| Number::from_f64(typed.parse().ok()?));
                Value::Number(number.ok_or("must be a number")?)
            }
            FieldKind::Integer { .. } => {
                Value::from(typed.parse::<i64>().map_err(|_| "must be a whole number")?)
            }
            FieldKind::Boolean => match typed.to_ascii_lowercase().as_str() {
                "true" | "yes" | "on" => Value::from(true),
                "false" | "no" | "off" => Value::from(false),
                _ => return Err("must be yes or no".to_owned()),
            },
            FieldKind::Choice { choices } => Value::from(pick(typed, choices)),
            FieldKind::Choices { choices, .. } => {
                let words = typed.split(',').map(str::trim).filter(|word| !word.is_empty());
                words.map(|word| pick(word, choices)).collect()
            }
        };
        self.check(&value)?;
        Ok(value)
    }
}

/// Returns the choice with this number, value or label; the word itself if there is none. A number is a position first,
/// as in lists.
fn pick<'a>(word: &'a str, choices: &'a [FieldChoice]) -> &'a str {
    let position = word.parse::<usize>().ok().and_then(|number| choices.get(number.checked_sub(1)?));
    let by_value = || choices.iter().find(|choice| choice.value == word);
    let by_label = || choices.iter().find(|choice| choice.label().eq_ignore_ascii_case(word));
    position.or_else(by_value).or_else(by_label).map_or(word, |choice| choice.value.as_str())
}

/// Reads the words `FIELD=VALUE` of a command; a form with one field takes its value alone. Fields that are left out
/// get their default.
///
/// # Errors
/// A sentence that names the field.
pub fn parse_fields(asked: &Elicitation, words: &[String]) -> Result<Map<String, Value>, String> {
    let fields = asked.fields();
    let mut content = Map::new();
    for word in words {
        let named =
            fields.iter().find_map(|field| Some((field, word.strip_prefix(&field.name)?.strip_prefix('=')?)));
        let (field, typed) = match (named, fields, words) {
            (Some(named), ..) => named,
            (None, [only], [_]) => (only, word.as_str()),
            (None, ..) => {
                let names: Vec<String> = fields.iter().map(|field| quoted(&field.name)).collect();
                let name = word.split_once('=').map_or(word.as_str(), |(name, _)| name);
                let text = "the form has no such field; use FIELD=VALUE with";
                return Err(format!("Field {}: {text} {}.", quoted(name), names.join(", ")));
            }
        };
        let value = field.read(typed).map_err(|why| format!("Field {}: {why}.", quoted(&field.name)))?;
        if content.insert(field.name.clone(), value).is_some() {
            return Err(format!("Field {}: it is given twice.", quoted(&field.name)));
        }
    }
    for field in fields {
        if let Some(default) = &field.default {
            content.entry(field.name.clone()).or_insert_with(|| default.clone());
        }
    }
    asked.check(&content).map(|()| content)
}

fn listed(words: &str, choices: &[FieldChoice]) -> String {
    let names: Vec<String> = choices.iter().map(|choice| quoted(&choice.value)).collect();
    format!("{words} {}", names.join(", "))
}

/// Checks a value against limits, both inclusive; the error states them.
fn within<T: PartialOrd + Display>(value: T, least: Option<&T>, most: Option<&T>) -> Result<(), String> {
    let fits = least.is_none_or(|least| value >= *least) && most.is_none_or(|most| value <= *most);
    if fits { Ok(()) } else { Err(limits(least, most).unwrap_or_default()) }
}

/// States limits, if there are any.
fn limits<T: PartialOrd + Display>(least: Option<&T>, most: Option<&T>) -> Option<String> {
    match (least, most) {
        (Some(least), Some(most)) if least == most => Some(format!("exactly {least}")),
        (Some(least), Some(most)) => Some(format!("{least} to {most}")),
        (Some(least), None) => Some(format!("at least {least}")),
        (None, Some(most)) => Some(format!("at most {most}")),
        (None, None) => None,
    }
}

fn check_format(format: TextFormat, text: &str) -> Result<(), String> {
    let (is_valid, what) = match format {
        TextFormat::Email => (is_email(text), "an e-mail address"),
        TextFormat::Uri => (is_uri(text), "an address with a scheme, like https://example.org/"),
        TextFormat::Date => (is_date(text), "a date like 2026-11-23"),
        TextFormat::DateTime => (is_date_time(text), "a time like 2026-11-23T10:00:00Z"),
    };
    if is_valid { Ok(()) } else { Err(format!("must be {what}")) }
}

fn is_email(text: &str) -> bool {
    let Some((local, domain)) = text.rsplit_once('@') else { return false };
    let is_plain =
        |text: &str| !text.is_empty() && !text.contains(|c: char| c.is_whitespace() || c.is_control());
    is_plain(local)
        && !local.contains('@')
        && is_plain(domain)
        && domain.split('.').all(|label| !label.is_empty())
}

fn is_uri(text: &str) -> bool {
    let Some((scheme, rest)) = text.split_once(':') else { return false };
    let is_scheme = scheme.starts_with(|c: char| c.is_ascii_alphabetic())
        && scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c));
    let is_web = matches!(scheme.to_ascii_lowercase().as_str(), "http" | "https");
    let is_plain = !rest.is_empty() && !rest.contains(|c: char| c.is_whitespace() || c.is_control());
    is_scheme && is_plain && (!is_web || host_of(text).is_some())
}

/// Returns numbers of fixed width separated as in the pattern, in which each `0` is a digit.
fn digits(text: &str, pattern: &str) -> Option<Vec<u32>> {
    let fits = text.len() == pattern.len()
        && text
            .bytes()
            .zip(pattern.bytes())
            .all(|(have, want)| if want == b'0' { have.is_ascii_digit() } else { have == want });
    let numbers = text.split(|c: char| !c.is_ascii_digit()).map(|number| number.parse().ok());
    numbers.collect::<Option<Vec<u32>>>().filter(|_| fits)
}

fn is_date(text: &str) -> bool {
    let Some([year, month, day]) = digits(text, "0000-00-00").and_then(|it| <[u32; 3]>::try_from(it).ok())
    else {
        return false;
    };
    let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let days = match month {
        2 => 28 + u32::from(is_leap),
        4 | 6 | 9 | 11 => 30,
        1..=12 => 31,
        _ => 0,
    };
    (1..=days).contains(&day)
}

/// True for RFC 3339: date, time, and `Z` or an offset.
fn is_date_time(text: &str) -> bool {
    let Some((date, time)) = text.split_once(['T', 't', ' ']) else { return false };
    let (time, offset) = match time.find(['Z', 'z', '+', '-']) {
        Some(at) => time.split_at(at),
        None => return false,
    };
    let is_clock = |text: &str, pattern: &str, second_max: u32| {
        digits(text, pattern).is_some_and(|parts| {
            let most = [23, 59, second_max];
            parts.iter().zip(most).all(|(part, most)| *part <= most)
        })
    };
    let (whole, fraction) = time.split_once('.').unwrap_or((time, "0"));
    let has_offset = match offset.strip_prefix(['+', '-']) {
        Some(offset) => is_clock(offset, "00:00", 59),
        None => matches!(offset, "Z" | "z"),
    };
    let is_fraction = !fraction.is_empty() && fraction.bytes().all(|digit| digit.is_ascii_digit());
    is_date(date) && is_clock(whole, "00:00:00", 60) && is_fraction && has_offset
}

/// Describes the type and the limits of a field for people; choices are listed elsewhere.
pub fn describe(field: &FormField) -> String {
    let with = |what: &str, limits: Option<String>, unit: &str| {
        limits.map_or_else(|| what.to_owned(), |limits| format!("{what}, {limits}{unit}"))
    };
    let mut text = match &field.kind {
        FieldKind::String { min_length, max_length, format, pattern } => {
            let what = format.map_or("text", TextFormat::as_str);
            let text = with(what, limits(min_length.as_ref(), max_length.as_ref()), " characters");
            let pattern = pattern.as_ref().map(|pattern| format!(", like {pattern}"));
            text + &pattern.unwrap_or_default()
        }
        FieldKind::Number { minimum, maximum } => {
            let float = |limit: &Option<Number>| limit.as_ref().and_then(Number::as_f64);
            with("number", limits(float(minimum).as_ref(), float(maximum).as_ref()), "")
        }
        FieldKind::Integer { minimum, maximum } => {
            with("whole number", limits(minimum.as_ref(), maximum.as_ref()), "")
        }
        FieldKind::Boolean => "yes or no".to_owned(),
        FieldKind::Choice { .. } => "one of".to_owned(),
        FieldKind::Choices { min_items, max_items, .. } => {
            with("any of, separated by commas", limits(min_items.as_ref(), max_items.as_ref()), " of them")
        }
    };
    if let Some(default) = &field.default {
        let shown = match default {
            Value::String(text) => text.clone(),
            Value::Array(values) => values.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(", "),
            other => other.to_string(),
        };
        text.push_str(&format!(", default {shown}"));
    } else if !field.required {
        text.push_str(", optional");
    }
    text
}
