//! Validates `--json` output against `docs/manual/acp-supervisor.schema.json`.
//!
//! The validator knows the keywords of JSON Schema that the document uses and refuses others. It is stricter in one
//! point: a property that the document does not name is an error.

use serde_json::{Map, Value};

/// The schema document.
pub(crate) fn document() -> Value {
    serde_json::from_str(include_str!("../../../docs/manual/acp-supervisor.schema.json")).unwrap()
}

/// Panics unless the document describes this line.
pub(crate) fn check(line: &Value) {
    let document = document();
    if let Err(why) = validate(&document, &document, line, "") {
        panic!("{why}\n{line:#}");
    }
}

fn has_type(name: &str, value: &Value) -> bool {
    match name {
        "string" => value.is_string(),
        "integer" => value.is_u64() || value.is_i64(),
        "boolean" => value.is_boolean(),
        "object" => value.is_object(),
        "array" => value.is_array(),
        "null" => value.is_null(),
        other => panic!("unknown schema type {other}"),
    }
}

fn validate(document: &Value, schema: &Value, value: &Value, at: &str) -> Result<(), String> {
    let schema = schema.as_object().unwrap();
    for (keyword, rule) in schema {
        match keyword.as_str() {
            "$schema" | "$defs" | "title" | "description" | "properties" | "additionalProperties" => {}
            "$ref" => {
                let path = rule.as_str().unwrap().strip_prefix('#').expect("a reference within the document");
                let to = document.pointer(path).unwrap_or_else(|| panic!("nothing at {path}"));
                validate(document, to, value, at)?;
            }
            "const" if rule == value => {}
            "enum" if rule.as_array().unwrap().contains(value) => {}
            "type" => {
                let names = rule.as_array().cloned().unwrap_or_else(|| vec![rule.clone()]);
                if !names.iter().any(|name| has_type(name.as_str().unwrap(), value)) {
                    return Err(format!("{at}: {value} is no {rule}"));
                }
            }
            "required" => {
                for name in rule.as_array().unwrap() {
                    if value.get(name.as_str().unwrap()).is_none() {
                        return Err(format!("{at}: {name} is missing"));
                    }
                }
            }
            "items" => {
                for (n, item) in value.as_array().into_iter().flatten().enumerate() {
                    validate(document, rule, item, &format!("{at}/{n}"))?;
                }
            }
            "anyOf" => {
                let each: Vec<String> = rule
                    .as_array()
                    .unwrap()
                    .iter()
                    .map_while(|one| validate(document, one, value, at).err())
                    .collect();
                if each.len() == rule.as_array().unwrap().len() {
                    return Err(format!("{at}: none of\n  {}", each.join("\n  ")));
                }
            }
            "const" | "enum" => return Err(format!("{at}: {value} is not {rule}")),
            other => panic!("unknown schema keyword {other}"),
        }
    }
    let named = schema.get("properties").and_then(Value::as_object);
    let other = schema.get("additionalProperties");
    match value.as_object() {
        Some(object) if named.is_some() || other.is_some() => {
            validate_members(document, (named, other), object, at)
        }
        _ => Ok(()),
    }
}

fn validate_members(
    document: &Value,
    (named, other): (Option<&Map<String, Value>>, Option<&Value>),
    object: &Map<String, Value>,
    at: &str,
) -> Result<(), String> {
    for (name, value) in object {
        match named.and_then(|named| named.get(name)).or(other) {
            Some(schema) => validate(document, schema, value, &format!("{at}/{name}"))?,
            None => return Err(format!("{at}: {name} is not in the document")),
        }
    }
    Ok(())
}

#[test]
fn schema_violations_are_detected() {
    let good = serde_json::json!({ "schema": 1, "type": "error", "code": "X", "message": "m" });
    check(&good);
    let with = |name: &str, value: Value| {
        let mut line = good.clone();
        line[name] = value;
        line
    };
    for bad in [
        with("schema", 2.into()),
        with("type", "errors".into()),
        with("code", 7.into()),
        with("more", 1.into()),
        serde_json::json!({ "schema": 1, "type": "error", "code": "X" }),
        serde_json::json!({ "schema": 1, "type": "leases", "data": [{}] }),
        Value::Null,
    ] {
        let document = document();
        assert!(validate(&document, &document, &bad, "").is_err(), "{bad}");
    }
}
