//! Validator of values against the schemas of an OpenAPI document. It refuses keywords that it does not know.

use serde_json::Value;

/// Rules for members that an object's schema does not name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnknownMembers {
    /// Permitted unless the schema forbids them.
    Allowed,
    /// Violations unless the schema permits them.
    Refused,
}

fn has_type(name: &str, value: &Value) -> bool {
    match name {
        "string" => value.is_string(),
        "integer" => value.is_u64() || value.is_i64(),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "object" => value.is_object(),
        "array" => value.is_array(),
        "null" => value.is_null(),
        other => panic!("unknown schema type {other}"),
    }
}

/// Follows a reference of the document.
///
/// # Panics
/// When it leads nowhere.
#[must_use]
pub fn resolve<'a>(document: &'a Value, schema: &'a Value) -> &'a Value {
    match schema["$ref"].as_str() {
        Some(to) => document.pointer(to.trim_start_matches('#')).unwrap_or_else(|| panic!("nothing at {to}")),
        None => schema,
    }
}

/// Validates a value.
///
/// # Errors
/// The first violation.
///
/// # Panics
/// When a schema has an unknown keyword or an invalid one.
pub fn validate(document: &Value, schema: &Value, value: &Value, at: &str) -> Result<(), String> {
    validate_members(document, schema, value, at, UnknownMembers::Allowed)
}

/// Like `validate`, with a rule for members that no schema names.
///
/// # Errors
/// The first violation.
///
/// # Panics
/// As [`validate`].
pub fn validate_members(
    document: &Value,
    schema: &Value,
    value: &Value,
    at: &str,
    unknown: UnknownMembers,
) -> Result<(), String> {
    let Some(rules) = schema.as_object() else { return Ok(()) };
    for (keyword, rule) in rules {
        let check =
            |schema: &Value, value: &Value, at: &str| validate_members(document, schema, value, at, unknown);
        match keyword.as_str() {
            "description" | "title" | "default" | "format" | "propertyNames" | "example" | "examples"
            | "contentEncoding" | "x-discord-union" => {}
            "$ref" => check(resolve(document, schema), value, at)?,
            "const" if rule == value => {}
            "enum" if list(rule).contains(value) => {}
            "const" | "enum" => return Err(format!("{at}: {value} is not {rule}")),
            "type" => {
                let names = rule.as_array().cloned().unwrap_or_else(|| vec![rule.clone()]);
                if !names.iter().any(|name| has_type(name.as_str().unwrap_or_default(), value)) {
                    return Err(format!("{at}: {value} is no {rule}"));
                }
            }
            "properties" => {
                for (name, schema) in rule.as_object().into_iter().flatten() {
                    if let Some(member) = value.get(name) {
                        check(schema, member, &format!("{at}/{name}"))?;
                    }
                }
                if unknown == UnknownMembers::Refused && !rules.contains_key("additionalProperties") {
                    let mut members = value.as_object().into_iter().flatten();
                    if let Some((name, _)) = members.find(|(name, _)| rule.get(name.as_str()).is_none()) {
                        return Err(format!("{at}: {name} is not in the document"));
                    }
                }
            }
            "additionalProperties" => {
                let others = value.as_object().into_iter().flatten();
                for (name, member) in others.filter(|(name, _)| schema["properties"].get(name).is_none()) {
                    if *rule == Value::Bool(false) {
                        return Err(format!("{at}: {name} is not in the document"));
                    }
                    check(rule, member, &format!("{at}/{name}"))?;
                }
            }
            "items" => {
                for (n, item) in value.as_array().into_iter().flatten().enumerate() {
                    check(rule, item, &format!("{at}/{n}"))?;
                }
            }
            "allOf" => list(rule).iter().try_for_each(|one| check(one, value, at))?,
            "anyOf" | "oneOf" => {
                let errors: Vec<String> =
                    list(rule).iter().map_while(|one| check(one, value, at).err()).collect();
                if errors.len() == list(rule).len() {
                    return Err(format!("{at}: none of\n  {}", errors.join("\n  ")));
                }
            }
            _ => check_limit(keyword, rule, value, at)?,
        }
    }
    Ok(())
}

fn list(rule: &Value) -> &[Value] {
    rule.as_array().map_or(&[], Vec::as_slice)
}

/// Checks a keyword about a size, a number or a form. A keyword for another type than the value's has no effect.
fn check_limit(keyword: &str, rule: &Value, value: &Value, at: &str) -> Result<(), String> {
    let limit = rule.as_f64().unwrap_or_default();
    let (number, chars) = (value.as_f64(), value.as_str().map(|text| text.chars().count()));
    let (items, members) = (value.as_array().map(Vec::len), value.as_object().map(serde_json::Map::len));
    #[expect(clippy::cast_precision_loss, reason = "sizes of requests are small")]
    let size = |size: Option<usize>| size.map(|size| size as f64);
    let holds = match keyword {
        "minimum" => number.is_none_or(|number| number >= limit),
        "maximum" => number.is_none_or(|number| number <= limit),
        "minLength" => size(chars).is_none_or(|chars| chars >= limit),
        "maxLength" => size(chars).is_none_or(|chars| chars <= limit),
        "minItems" => size(items).is_none_or(|items| items >= limit),
        "maxItems" => size(items).is_none_or(|items| items <= limit),
        "maxProperties" => size(members).is_none_or(|members| members <= limit),
        "uniqueItems" => {
            let items = list(value);
            *rule != Value::Bool(true) || items.iter().enumerate().all(|(n, one)| !items[..n].contains(one))
        }
        "required" => {
            let has = |name: &Value| value.get(name.as_str().unwrap_or_default()).is_some();
            !value.is_object() || list(rule).iter().all(has)
        }
        // The only pattern of the documents in use: a decimal number.
        "pattern" if rule == "^(0|[1-9][0-9]*)$" => {
            let is_number = |text: &str| text.bytes().all(|c| c.is_ascii_digit());
            value.as_str().is_none_or(|text| {
                is_number(text) && (text == "0" || !text.starts_with(['0']) && !text.is_empty())
            })
        }
        other => panic!("unknown schema keyword {other}: {rule}"),
    };
    if holds { Ok(()) } else { Err(format!("{at}: {value} violates {keyword} {rule}")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn schema_violations_are_detected() {
        let document = json!({ "s": { "type": ["string", "null"], "minLength": 1, "maxLength": 3 } });
        let schema = json!({
            "type": "object", "required": ["a"], "additionalProperties": false,
            "properties": {
                "a": { "$ref": "#/s" }, "b": { "type": "integer", "minimum": 0, "maximum": 2 },
                "c": { "enum": ["x"] }, "d": { "type": "array", "minItems": 1, "maxItems": 2, "uniqueItems": true },
                "e": { "type": "string", "pattern": "^(0|[1-9][0-9]*)$" }, "f": { "properties": { "g": {} } },
            },
        });
        for (value, good) in [
            (json!({ "a": null }), true),
            (json!({ "a": "äöü", "b": 1, "c": "x", "d": [1, 2], "e": "10" }), true),
            (json!({}), false),
            (json!({ "a": "" }), false),
            (json!({ "a": "four" }), false),
            (json!({ "a": null, "b": -1 }), false),
            (json!({ "a": null, "b": 3 }), false),
            (json!({ "a": null, "c": "y" }), false),
            (json!({ "a": null, "d": [] }), false),
            (json!({ "a": null, "d": [1, 1] }), false),
            (json!({ "a": null, "d": [1, 2, 3] }), false),
            (json!({ "a": null, "e": "01" }), false),
            (json!({ "a": null, "e": "x" }), false),
            (json!({ "a": null, "z": 1 }), false),
        ] {
            assert_eq!(validate(&document, &schema, &value, "").is_ok(), good, "{value}");
        }
        let inner = json!({ "a": null, "f": { "h": 1 } });
        assert!(validate(&document, &schema, &inner, "").is_ok());
        let refused = validate_members(&document, &schema, &inner, "", UnknownMembers::Refused);
        assert!(refused.is_err_and(|why| why.contains("/f: h is not in the document")));
    }
}
