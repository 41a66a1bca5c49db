//! Notifications of a message: the mentions in its content that `allowed_mentions` permits.
//!
//! Of the documentation's "Allowed Mentions Object". Without one a plain message notifies everybody it
//! mentions; messages of webhooks and interactions notify people only.

use super::super::error::FormErrors;
use super::super::model::{Id, Pings};
use super::super::rest::snowflake;
use super::{at, list};
use serde_json::Value;
use std::collections::BTreeSet;

/// Ids in one list.
const IDS_MAX: usize = 100;

/// Default for messages without `allowed_mentions`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Default {
    /// Everything: plain messages.
    Everything,
    /// People: webhooks and interactions.
    People,
}

/// All mentions in the content, allowed or not.
#[must_use]
pub fn written(content: &str) -> Pings {
    let mut found = Pings { everyone: false, ..Pings::default() };
    found.everyone = content.contains("@everyone") || content.contains("@here");
    for piece in content.split('<').skip(1) {
        let Some((inside, _)) = piece.split_once('>') else { continue };
        if let Some(role) = inside.strip_prefix("@&").and_then(snowflake) {
            found.roles.insert(role);
        } else if let Some(user) =
            inside.strip_prefix('@').map(|rest| rest.trim_start_matches('!')).and_then(snowflake)
        {
            found.users.insert(user);
        }
    }
    found
}

/// The allowed mentions.
#[must_use]
pub fn allowed(content: &str, allowed: Option<&Value>, default: Default) -> Pings {
    let mut pings = written(content);
    let Some(allowed) = allowed.filter(|allowed| allowed.is_object()) else {
        if default == Default::People {
            pings.everyone = false;
            pings.roles.clear();
        }
        return pings;
    };
    let parse: BTreeSet<&str> = allowed
        .get("parse")
        .and_then(Value::as_array)
        .map(|parse| parse.iter().filter_map(Value::as_str).collect())
        .unwrap_or_default();
    let named = |key: &str| -> BTreeSet<Id> {
        let ids = allowed.get(key).and_then(Value::as_array);
        ids.map(|ids| ids.iter().filter_map(id_of).collect()).unwrap_or_default()
    };
    pings.everyone &= parse.contains("everyone");
    if !parse.contains("users") {
        let users = named("users");
        pings.users.retain(|id| users.contains(id));
    }
    if !parse.contains("roles") {
        let roles = named("roles");
        pings.roles.retain(|id| roles.contains(id));
    }
    pings
}

/// An id in JSON: a string, or a number.
#[must_use]
pub fn id_of(value: &Value) -> Option<Id> {
    value.as_str().and_then(snowflake).or_else(|| value.as_u64())
}

/// Checks the object itself.
pub fn check(allowed: &Value, errors: &mut FormErrors) {
    let path = "allowed_mentions";
    if !allowed.is_object() {
        errors.add(path, "DICT_TYPE_CONVERT", "Only dictionaries may be used in a DictType");
        return;
    }
    let parse = list(allowed, "parse", &at(path, "parse"), errors).map_or(&[][..], Vec::as_slice);
    for (n, name) in parse.iter().enumerate() {
        if !matches!(name.as_str(), Some("users" | "roles" | "everyone")) {
            errors.choice(&format!("{path}.parse.{n}"), "('users', 'roles', 'everyone')");
        }
    }
    for key in ["users", "roles"] {
        let path = at(path, key);
        let ids = list(allowed, key, &path, errors).map_or(&[][..], Vec::as_slice);
        if ids.len() > IDS_MAX {
            errors.too_long(&path, IDS_MAX);
        }
        if !ids.is_empty() && parse.iter().any(|name| name.as_str() == Some(key)) {
            let message = format!("parse:[\"{key}\"] and {key}: [ids...] are mutually exclusive.");
            errors.add("allowed_mentions", "MESSAGE_ALLOWED_MENTIONS_PARSE_EXCLUSIVE", &message);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pings(everyone: bool, users: &[Id], roles: &[Id]) -> Pings {
        Pings { everyone, users: users.iter().copied().collect(), roles: roles.iter().copied().collect() }
    }

    #[test]
    fn who_is_notified() {
        let text = "@everyone <@1> <@!2> <@&3> <#4> <@x>";
        let everything = Default::Everything;
        for (rule, default, expected) in [
            (None, everything, pings(true, &[1, 2], &[3])),
            (None, Default::People, pings(false, &[1, 2], &[])),
            (Some(json!({"parse": []})), everything, pings(false, &[], &[])),
            (Some(json!({"parse": ["users"]})), everything, pings(false, &[1, 2], &[])),
            (Some(json!({"parse": ["everyone"], "users": ["2"]})), everything, pings(true, &[2], &[])),
            (Some(json!({"roles": ["3", "8"]})), everything, pings(false, &[], &[3])),
        ] {
            assert_eq!(allowed(text, rule.as_ref(), default), expected, "{rule:?}");
        }
    }

    #[test]
    fn the_object_is_checked() {
        let mistakes = |allowed: &Value| {
            let mut errors = FormErrors::default();
            check(allowed, &mut errors);
            errors.finish().err().and_then(|error| error.errors)
        };
        assert_eq!(mistakes(&json!({"parse": ["users"], "roles": ["1"], "replied_user": false})), None);
        for wrong in [
            json!([]),
            json!({"parse": ["people"]}),
            json!({"parse": ["users"], "users": ["1"]}),
            json!({"users": vec!["1"; 101]}),
        ] {
            assert!(mistakes(&wrong).is_some(), "accepted: {wrong}");
        }
    }
}
