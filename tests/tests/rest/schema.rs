//! Validator of values against the schemas of the OpenAPI document. It refuses keywords that it does not know.

use serde_json::Value;

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
pub(crate) fn resolve<'a>(document: &'a Value, schema: &'a Value) -> &'a Value {
    match schema["$ref"].as_str() {
        Some(to) => document.pointer(to.trim_start_matches('#')).unwrap_or_else(|| panic!("nothing at {to}")),
        None => schema,
    }
}

/// Validates a value.
///
/// # Errors
/// The first violation.
pub(crate) fn validate(document: &Value, schema: &Value, value: &Value, at: &str) -> Result<(), String> {
    let Some(rules) = schema.as_object() else { return Ok(()) };
    for (keyword, rule) in rules {
        let each = || rule.as_array().unwrap().iter().map(|one| validate(document, one, value, at));
        match keyword.as_str() {
            "description" | "title" | "default" | "format" | "propertyNames" | "maxLength" | "example"
            | "examples" => {}
            "$ref" => validate(document, resolve(document, schema), value, at)?,
            "const" if rule == value => {}
            "enum" if rule.as_array().unwrap().contains(value) => {}
            "type" => {
                let names = rule.as_array().cloned().unwrap_or_else(|| vec![rule.clone()]);
                if !names.iter().any(|name| has_type(name.as_str().unwrap(), value)) {
                    return Err(format!("{at}: {value} is no {rule}"));
                }
            }
            "minimum" => {
                if value.as_f64().is_some_and(|number| number < rule.as_f64().unwrap()) {
                    return Err(format!("{at}: {value} is below {rule}"));
                }
            }
            "minLength" => {
                if value.as_str().is_some_and(|text| (text.len() as u64) < rule.as_u64().unwrap()) {
                    return Err(format!("{at}: {value} is too short"));
                }
            }
            "required" => {
                for name in rule.as_array().unwrap() {
                    if value.is_object() && value.get(name.as_str().unwrap()).is_none() {
                        return Err(format!("{at}: {name} is missing"));
                    }
                }
            }
            "properties" => {
                for (name, schema) in rule.as_object().unwrap() {
                    if let Some(member) = value.get(name) {
                        validate(document, schema, member, &format!("{at}/{name}"))?;
                    }
                }
            }
            "additionalProperties" => {
                let named = schema["properties"].as_object();
                let others = value.as_object().into_iter().flatten();
                for (name, member) in
                    others.filter(|(name, _)| named.is_none_or(|named| !named.contains_key(*name)))
                {
                    if *rule == Value::Bool(false) {
                        return Err(format!("{at}: {name} is not in the document"));
                    }
                    validate(document, rule, member, &format!("{at}/{name}"))?;
                }
            }
            "items" => {
                for (n, item) in value.as_array().into_iter().flatten().enumerate() {
                    validate(document, rule, item, &format!("{at}/{n}"))?;
                }
            }
            "allOf" => each().collect::<Result<(), String>>()?,
            "anyOf" | "oneOf" => {
                let errors: Vec<String> = each().map_while(Result::err).collect();
                if errors.len() == rule.as_array().unwrap().len() {
                    return Err(format!("{at}: none of\n  {}", errors.join("\n  ")));
                }
            }
            "const" | "enum" => return Err(format!("{at}: {value} is not {rule}")),
            other => panic!("unknown schema keyword {other}"),
        }
    }
    Ok(())
}

#[test]
fn schema_violations_are_detected() {
    let document = serde_json::json!({ "s": { "type": ["string", "null"], "minLength": 1 } });
    let schema = serde_json::json!({
        "type": "object", "required": ["a"], "additionalProperties": false,
        "properties": { "a": { "$ref": "#/s" }, "b": { "type": "integer", "minimum": 0 }, "c": { "enum": ["x"] } },
    });
    for (value, good) in [
        (serde_json::json!({ "a": null }), true),
        (serde_json::json!({ "a": "x", "b": 1, "c": "x" }), true),
        (serde_json::json!({}), false),
        (serde_json::json!({ "a": "" }), false),
        (serde_json::json!({ "a": null, "b": -1 }), false),
        (serde_json::json!({ "a": null, "c": "y" }), false),
        (serde_json::json!({ "a": null, "d": 1 }), false),
    ] {
        assert_eq!(validate(&document, &schema, &value, "").is_ok(), good, "{value}");
    }
}
