//! Reads the parameters of `elicitation/create`. The error names the parameter that cannot be used.

use super::url::host_of;
use super::{Elicitation, ElicitationMode, FieldChoice, FieldKind, FormField, TextFormat};
use crate::jsonrpc::ObjectMembers;
use serde_json::{Number, Value};
use std::collections::BTreeSet;

/// Maximum number of fields of a form.
const FIELDS_MAX: usize = 50;
/// Maximum number of choices of a field.
const CHOICES_MAX: usize = 100;
/// Maximum size of the parameters, in bytes: they are part of a row and of a message.
const PARAMS_BYTES_MAX: usize = 64 * 1024;

type Parsed<T> = Result<T, String>;

/// Reads the parameters.
///
/// # Errors
/// The name of a parameter that is missing, invalid or not supported.
pub fn parse(params: &str) -> Parsed<Elicitation> {
    if params.len() > PARAMS_BYTES_MAX {
        return Err("params (too long)".to_owned());
    }
    let members = ObjectMembers::parse(params).map_err(|_| "params".to_owned())?;
    let text = |name: &str| members.string(name).map(String::from).ok_or_else(|| name.to_owned());
    let message = text("message")?;
    let mode = match text("mode")?.as_str() {
        "form" => ElicitationMode::Form { fields: form(members.get("requestedSchema"))? },
        "url" => {
            let url = text("url")?;
            let host = host_of(&url).ok_or("url")?.to_owned();
            ElicitationMode::Url { url, host, elicitation_id: text("elicitationId")? }
        }
        _ => return Err("mode".to_owned()),
    };
    let asked = Elicitation { message, mode };
    // A default that does not fit would be submitted unseen.
    let invalid = asked.fields().iter().find(|field| !has_valid_default(field));
    invalid.map_or(Ok(()), |field| Err(format!("requestedSchema.properties.{}.default", field.name)))?;
    Ok(asked)
}

fn has_valid_default(field: &FormField) -> bool {
    field.default.as_ref().is_none_or(|value| field.check(value).is_ok())
}

fn form(schema: Option<&str>) -> Parsed<Vec<FormField>> {
    let schema = schema.and_then(|raw| ObjectMembers::parse(raw).ok()).ok_or("requestedSchema")?;
    let required: Vec<String> = match present(schema.get("required")) {
        None => Vec::new(),
        Some(raw) => serde_json::from_str(raw).map_err(|_| "requestedSchema.required".to_owned())?,
    };
    let at = "requestedSchema.properties";
    let properties = match schema.get("properties") {
        None => ObjectMembers::default(),
        Some(raw) => ObjectMembers::parse(raw).map_err(|_| at.to_owned())?,
    };
    let mut fields = Vec::new();
    let mut names = BTreeSet::new();
    for (name, raw) in properties.iter() {
        let at = format!("{at}.{name}");
        let is_usable =
            !name.trim().is_empty() && !name.contains(char::is_control) && names.insert(name.to_owned());
        if !is_usable || fields.len() >= FIELDS_MAX {
            return Err(at);
        }
        let schema: Value = serde_json::from_str(raw).map_err(|_| at.clone())?;
        let is_required = required.iter().any(|required| required == name);
        match kind(&schema, &at)? {
            Some(kind) => fields.push(field(name, is_required, kind, &schema)),
            // A type that this program does not know is left out, unless an answer would need it.
            None if is_required => return Err(format!("{at}.type")),
            None => {}
        }
    }
    if required.iter().all(|name| names.contains(name)) {
        Ok(fields)
    } else {
        Err("requestedSchema.required".to_owned())
    }
}

fn present(raw: Option<&str>) -> Option<&str> {
    raw.filter(|raw| *raw != "null")
}

fn field(name: &str, required: bool, kind: FieldKind, schema: &Value) -> FormField {
    let text = |name: &str| text_of(schema, name);
    // A default of another type means none.
    let default = schema.get("default").filter(|value| match kind {
        FieldKind::String { .. } | FieldKind::Choice { .. } => value.is_string(),
        FieldKind::Number { .. } | FieldKind::Integer { .. } => value.is_number(),
        FieldKind::Boolean => value.is_boolean(),
        FieldKind::Choices { .. } => value.is_array(),
    });
    let (title, description) = (text("title"), text("description"));
    FormField { name: name.to_owned(), title, description, required, default: default.cloned(), kind }
}

fn text_of(value: &Value, name: &str) -> Option<String> {
    let text = value.get(name).and_then(Value::as_str);
    text.filter(|text| !text.trim().is_empty()).map(str::to_owned)
}

/// Reads the type of a field; `None` for a type that is unknown.
fn kind(schema: &Value, at: &str) -> Parsed<Option<FieldKind>> {
    let given = |name: &str| schema.get(name).filter(|value| !value.is_null());
    let bad = |name: &str| format!("{at}.{name}");
    let count = |name: &str| match given(name) {
        None => Ok(None),
        Some(value) => value.as_u64().map(Some).ok_or_else(|| bad(name)),
    };
    let number = |name: &str| match given(name) {
        None => Ok(None),
        Some(Value::Number(number)) => Ok(Some(number.clone())),
        Some(_) => Err(bad(name)),
    };
    let whole = |name: &str| match number(name)? {
        None => Ok(None),
        Some(number) => as_whole(&number).map(Some).ok_or_else(|| bad(name)),
    };
    Ok(Some(match schema.get("type").and_then(Value::as_str) {
        Some("string") if given("enum").is_some() || given("oneOf").is_some() => {
            FieldKind::Choice { choices: choices(given("enum"), given("oneOf"), at)? }
        }
        Some("string") => FieldKind::String {
            min_length: count("minLength")?,
            max_length: count("maxLength")?,
            pattern: text_of(schema, "pattern"),
            format: given("format").and_then(Value::as_str).and_then(format),
        },
        Some("number") => FieldKind::Number { minimum: number("minimum")?, maximum: number("maximum")? },
        Some("integer") => FieldKind::Integer { minimum: whole("minimum")?, maximum: whole("maximum")? },
        Some("boolean") => FieldKind::Boolean,
        Some("array") => {
            let items = given("items").ok_or_else(|| bad("items"))?;
            let is_known = items.get("type").is_none_or(|kind| kind == "string");
            if !is_known {
                return Ok(None);
            }
            FieldKind::Choices {
                choices: choices(items.get("enum"), items.get("anyOf"), &bad("items"))?,
                min_items: count("minItems")?,
                max_items: count("maxItems")?,
            }
        }
        Some(_) => return Ok(None),
        None => return Err(bad("type")),
    }))
}

/// Reads a format; an unknown one is no limit, as in JSON Schema.
fn format(word: &str) -> Option<TextFormat> {
    TextFormat::ALL.into_iter().find(|format| format.as_str() == word)
}

/// Returns a whole number, also one written with a fraction of zero.
pub(super) fn as_whole(number: &Number) -> Option<i64> {
    #[expect(clippy::cast_possible_truncation, reason = "the range is checked: these numbers are exact")]
    let of_float = |value: f64| (value.fract() == 0.0 && value.abs() < 9e15).then_some(value as i64);
    number.as_i64().or_else(|| number.as_f64().filter(|_| number.is_f64()).and_then(of_float))
}

fn choices(plain: Option<&Value>, titled: Option<&Value>, at: &str) -> Parsed<Vec<FieldChoice>> {
    let (name, list) = match (titled, plain) {
        (Some(list), _) => ("oneOf", list),
        (None, Some(list)) => ("enum", list),
        (None, None) => return Err(at.to_owned()),
    };
    let at = || format!("{at}.{name}");
    let list = list.as_array().filter(|list| !list.is_empty() && list.len() <= CHOICES_MAX).ok_or_else(at)?;
    let read = |one: &Value| {
        let value = one.as_str().or_else(|| one.get("const")?.as_str())?.to_owned();
        Some(FieldChoice { value, title: text_of(one, "title"), description: text_of(one, "description") })
    };
    list.iter().map(read).collect::<Option<Vec<_>>>().ok_or_else(at)
}
