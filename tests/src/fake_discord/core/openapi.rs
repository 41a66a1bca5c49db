//! Validation of requests against Discord's published OpenAPI description (`../openapi/`), reduced to the requests of the
//! product's client. Independent of the other checks, which follow the prose of the documentation.

use super::rest::Call;
use crate::schema::{UnknownMembers, validate_members};
use serde_json::Value;
use std::sync::OnceLock;

const REQUESTS: &str = include_str!("../openapi/requests.json");

fn document() -> &'static Value {
    static DOCUMENT: OnceLock<Value> = OnceLock::new();
    DOCUMENT.get_or_init(|| serde_json::from_str(REQUESTS).unwrap_or_else(|e| panic!("requests.json: {e}")))
}

/// Returns the first violation of the description by a request.
#[must_use]
pub fn violation(call: &Call) -> Option<String> {
    check(call).err().map(|why| format!("{} /{}: {why}", call.method, call.path.join("/")))
}

fn check(call: &Call) -> Result<(), String> {
    let (pattern, entry) = entry(&call.path).ok_or("no such path")?;
    let operation = &entry[call.method.to_ascii_lowercase()];
    if operation.is_null() {
        return Err("no such method".to_owned());
    }
    let parameters: Vec<&Value> = [&entry["parameters"], &operation["parameters"]]
        .into_iter()
        .filter_map(Value::as_array)
        .flatten()
        .collect();
    for (part, given) in pattern.split('/').skip(1).zip(&call.path) {
        let Some(name) = part.strip_prefix('{').and_then(|part| part.strip_suffix('}')) else { continue };
        let parameter = parameters.iter().find(|it| it["in"] == "path" && it["name"] == name);
        let schema =
            &parameter.ok_or_else(|| format!("the path parameter {name} is not described"))?["schema"];
        valid(schema, &Value::from(given.as_str()), name)?;
    }
    for (name, given) in &call.query {
        let parameter = parameters.iter().find(|it| it["in"] == "query" && it["name"] == name.as_str());
        let schema =
            &parameter.ok_or_else(|| format!("the query parameter {name} does not exist"))?["schema"];
        // The text of a number or a truth value is JSON itself.
        let is_text = schema["type"].as_str().is_none_or(|kind| kind == "string");
        let value = if is_text { None } else { serde_json::from_str(given).ok() };
        valid(schema, &value.unwrap_or_else(|| Value::from(given.as_str())), name)?;
    }
    let body = &operation["requestBody"];
    match &call.body.json {
        None if body["required"] == true => Err("the body is missing".to_owned()),
        Some(_) if body.is_null() => Err("a body is not described".to_owned()),
        None => Ok(()),
        Some(json) => valid(&body["content"]["application/json"]["schema"], json, "body"),
    }
}

fn valid(schema: &Value, value: &Value, at: &str) -> Result<(), String> {
    validate_members(document(), schema, value, at, UnknownMembers::Refused)
}

/// Returns the path of the description that a path matches, the one with the fewest parameters first.
fn entry(path: &[String]) -> Option<(&'static str, &'static Value)> {
    let all = document()["paths"].as_object().into_iter().flatten();
    let matches = |pattern: &str| {
        let parts: Vec<&str> = pattern.split('/').skip(1).collect();
        parts.len() == path.len()
            && parts.iter().zip(path).all(|(part, given)| part.starts_with('{') || part == given)
    };
    all.filter(|(pattern, _)| matches(pattern))
        .min_by_key(|(pattern, _)| pattern.matches('{').count())
        .map(|(pattern, entry)| (pattern.as_str(), entry))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_discord::core::rest::Body;
    use serde_json::json;

    fn call(method: &str, path: &str, query: &[(&str, &str)], body: Value) -> Call {
        Call {
            method: method.to_owned(),
            path: path.split('/').skip(1).map(str::to_owned).collect(),
            query: query.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
            body: Body { json: (!body.is_null()).then_some(body), ..Body::default() },
            ..Call::default()
        }
    }

    #[test]
    fn requests_are_compared_with_the_description() {
        let text = json!({"content": "x", "nonce": "n", "allowed_mentions": {"parse": []}});
        for (method, path, query, body, want) in [
            ("GET", "/gateway/bot", &[][..], Value::Null, None),
            ("POST", "/channels/1/messages", &[], text.clone(), None),
            ("POST", "/channels/1/messages", &[], Value::Null, Some("the body is missing")),
            ("POST", "/channels/one/messages", &[], text.clone(), Some("channel_id")),
            ("POST", "/channels/1/messages", &[("wait", "true")], text.clone(), Some("wait does not exist")),
            ("POST", "/channels/1/messages", &[], json!({"contents": "x"}), Some("contents is not in")),
            ("POST", "/channels/1/messages", &[], json!({"nonce": "n".repeat(26)}), Some("body/nonce")),
            ("GET", "/channels/1/messages", &[("limit", "100"), ("after", "5")], Value::Null, None),
            ("GET", "/channels/1/messages", &[("limit", "101")], Value::Null, Some("limit")),
            ("GET", "/channels/1/messages", &[("limit", "many")], Value::Null, Some("limit")),
            ("DELETE", "/channels/1/messages", &[], Value::Null, Some("no such method")),
            ("GET", "/channels/1/pins/2/3", &[], Value::Null, Some("no such path")),
            ("POST", "/channels/1/typing", &[], json!({}), Some("a body is not described")),
            ("PATCH", "/webhooks/1/token/messages/@original", &[], json!({"content": "x"}), None),
            ("POST", "/interactions/1/token/callback", &[], json!({"type": 5, "data": {"flags": 64}}), None),
            ("POST", "/interactions/1/token/callback", &[], json!({"type": 99}), Some("none of")),
        ] {
            let found = violation(&call(method, path, query, body));
            let is_as_wanted = match (&found, want) {
                (None, None) => true,
                (Some(found), Some(want)) => found.contains(want),
                _ => false,
            };
            assert!(is_as_wanted, "{method} {path}: {found:?}, not {want:?}");
        }
    }

    /// Every schema of the file has only keywords that the validator knows.
    #[test]
    fn description_has_no_unknown_keyword() {
        for schema in document()["components"]["schemas"].as_object().into_iter().flatten() {
            for value in [json!({}), json!([]), json!("x"), json!(1)] {
                let _ = valid(schema.1, &value, schema.0);
            }
        }
    }
}
