//! Secrets of an agent: the values of its environment and of its MCP servers. Redacted in errors, lines
//! that are not ACP, results of turns and standard error; not in answers.

use crate::bearer::redact_tokens;
use crate::config::McpServer;
use crate::failure::Failure;
use crate::sanitize;
use acp_shared::redact::{SECRET_BYTES_MIN, Secret, is_plain_variable};
use serde_json::Value;
use std::borrow::Cow;

/// Placeholder for a secret of an MCP server.
const OF_SERVER: &str = "***";
/// Character at which the gateway cuts a text of an agent.
const CUT: char = '…';

/// Secrets and their placeholders, longest first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Secrets(Vec<(Secret, String)>);

impl Secrets {
    /// Collects the secrets of an environment and of MCP servers. Short values are left out, since they would
    /// match ordinary words.
    pub fn new<'a>(env: impl IntoIterator<Item = &'a (String, String)>, servers: &[McpServer]) -> Self {
        let of_env = env.into_iter().filter(|(name, _)| !is_plain_variable(name));
        let mut found: Vec<(Secret, String)> =
            of_env.flat_map(|(name, value)| forms(value, &format!("[redacted:{name}]"))).collect();
        for server in servers {
            let values = server.args.iter().chain(server.env.values()).chain(server.headers.values());
            found.extend(values.chain(&server.url).flat_map(|secret| forms(&secret.0, OF_SERVER)));
        }
        found.retain(|(secret, _)| secret.expose().len() >= SECRET_BYTES_MIN);
        found.sort_by_key(|(secret, _)| std::cmp::Reverse(secret.expose().len()));
        found.dedup();
        Self(found)
    }

    /// Replaces the secrets in a text, also the beginning of one where the text was cut.
    pub fn redact_text(&self, text: &mut String) {
        if let Cow::Owned(without) = redact_tokens(text) {
            *text = without;
        }
        for (secret, placeholder) in &self.0 {
            if text.contains(secret.expose()) {
                *text = text.replace(secret.expose(), placeholder);
            }
        }
        if text.split(CUT).any(|part| self.find_cut_off(part).is_some()) {
            let parts: Vec<String> = text.split(CUT).map(|part| self.without_cut_off(part)).collect();
            *text = parts.join(&CUT.to_string());
        }
    }

    fn without_cut_off(&self, part: &str) -> String {
        let found = self.find_cut_off(part);
        let whole = |(kept, placeholder)| format!("{kept}{placeholder}");
        found.map_or_else(|| part.to_owned(), whole)
    }

    /// Finds the beginning of a secret at the end of a text. Returns the text before it, and its placeholder.
    fn find_cut_off<'a>(&'a self, text: &'a str) -> Option<(&'a str, &'a str)> {
        let last = text.len().checked_sub(SECRET_BYTES_MIN)?;
        self.0.iter().find_map(|(secret, placeholder)| {
            let secret = secret.expose();
            // A longer end of the text is not the beginning of this secret.
            let first = text.len().saturating_sub(secret.len() - 1);
            let is_head = |at: &usize| text.get(*at..).is_some_and(|end| secret.starts_with(end));
            Some((text.get(..(first..=last).find(is_head)?)?, placeholder.as_str()))
        })
    }

    /// Replaces the secrets in the texts of JSON. JSON without a secret stays as received.
    pub fn redact_json(&self, json: &mut String) {
        match serde_json::from_str::<Value>(json) {
            Ok(mut value) => {
                if self.redact_value(&mut value) {
                    *json = value.to_string();
                }
            }
            Err(_) => self.redact_text(json),
        }
    }

    /// Replaces the secrets in an error of an agent.
    pub fn redact_failure(&self, failure: &mut Failure) {
        for text in std::iter::once(&mut failure.message).chain(&mut failure.conversation_text) {
            self.redact_text(text);
        }
        if let Some(error) = &mut failure.acp {
            self.redact_value(error);
        }
    }

    /// Replaces the secrets in the texts of a value. Returns true if there was one.
    pub fn redact_value(&self, value: &mut Value) -> bool {
        match value {
            Value::String(text) => {
                let before = text.clone();
                self.redact_text(text);
                *text != before
            }
            Value::Array(list) => {
                list.iter_mut().fold(false, |found, inner| self.redact_value(inner) | found)
            }
            Value::Object(map) => {
                map.values_mut().fold(false, |found, inner| self.redact_value(inner) | found)
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => false,
        }
    }
}

/// Returns the forms in which a secret appears: as it is, on one line, and each of its lines.
fn forms(value: &str, placeholder: &str) -> Vec<(Secret, String)> {
    let lines = value.lines().map(|line| line.trim().to_owned());
    let all = [value.to_owned(), sanitize::line(value, usize::MAX)].into_iter().chain(lines);
    all.map(|form| (Secret::new(form), placeholder.to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn of_env(env: &[(&str, &str)]) -> Secrets {
        let env: Vec<_> = env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Secrets::new(&env, &[])
    }

    fn server(env: Value) -> McpServer {
        serde_json::from_value(json!({ "name": "n", "command": "mcp", "env": env })).unwrap()
    }

    #[test]
    fn values_of_variables_are_replaced_by_their_name() {
        let secrets = of_env(&[
            ("API_KEY", "sk-hunter2"),
            ("OTHER", "sk-hunter2-and-more"),
            ("SHORT", "seven77"),
            ("HOME", "/home/somebody"),
            ("PEM", "-----BEGIN KEY-----\nAAAABBBBCCCC\nshort\n"),
        ]);
        for (text, want) in [
            ("sk-hunter2, sk-hunter2-and-more", "[redacted:API_KEY], [redacted:OTHER]"),
            ("seven77 in /home/somebody", "seven77 in /home/somebody"),
            ("AAAABBBBCCCC", "[redacted:PEM]"),
            ("-----BEGIN KEY----- AAAABBBBCCCC short ", "[redacted:PEM]"),
            ("cut at sk-hunter", "cut at [redacted:OTHER]"),
            ("cut at sk-hunter… (-32603)", "cut at [redacted:OTHER]… (-32603)"),
            ("cut at sk-hunt…", "cut at sk-hunt…"),
            ("sk-hunter was here", "sk-hunter was here"),
            ("", ""),
        ] {
            let mut got = text.to_owned();
            secrets.redact_text(&mut got);
            assert_eq!(got, want, "{text}");
        }
        assert!(!format!("{secrets:?}").contains("hunter"));
    }

    #[test]
    fn secrets_of_servers_are_replaced_in_json() {
        let secrets = Secrets::new(&[], &[server(json!({ "A": "se\"cret\n1", "B": "short" }))]);
        let received =
            json!({ "code": -32602, "message": "no short se\"cret\n1", "data": { "env": ["se\"cret\n1"] } });
        let want = json!({ "code": -32602, "message": "no short ***", "data": { "env": ["***"] } });
        let mut got = received.to_string();
        secrets.redact_json(&mut got);
        assert_eq!(serde_json::from_str::<Value>(&got).unwrap(), want);
        for same in ["{\"n\":1e2}", "no json", ""] {
            let mut got = same.to_owned();
            secrets.redact_json(&mut got);
            assert_eq!(got, same);
        }
    }

    #[test]
    fn hostile_texts_are_redacted_in_linear_time() {
        const BYTES: usize = 12 * 1024 * 1024;
        let secret = |first: &str| (0..230).fold(first.to_owned(), |all, n| format!("{all}-{n:09}"));
        let values = ["sk-one", "sk-two", "sk-three"].map(secret);
        let env: Vec<_> = values.iter().map(|value| ("X".to_owned(), value.clone())).collect();
        let secrets = Secrets::new(&env, &[]);
        let almost = format!("{}#", &values[0][..2_290]);
        for (part, want) in
            [("", ""), ("sk-two", "sk-two"), ("sk-two-00", "[redacted:X]"), (&almost, &almost)]
        {
            let count = BYTES / (part.len() + CUT.len_utf8());
            let mut got = format!("{part}{CUT}").repeat(count);
            secrets.redact_text(&mut got);
            assert!(got == format!("{want}{CUT}").repeat(count), "{part}");
        }
    }

    proptest! {
        /// No value stays in a text, for any surroundings and any cut.
        #[test]
        fn no_value_remains_in_any_text(
            values in prop::collection::vec("[ab]{8,12}", 1..4),
            parts in prop::collection::vec(("[ab ]{0,9}", 0usize..4), 0..6),
            cut in 0usize..80,
        ) {
            let env: Vec<_> = values.iter().map(|value| ("X".to_owned(), value.clone())).collect();
            let mut text: String = parts
                .iter()
                .map(|(text, at)| format!("{text}{}", values.get(*at).map_or("", String::as_str)))
                .collect();
            text.truncate(cut);
            Secrets::new(&env, &[]).redact_text(&mut text);
            prop_assert!(!values.iter().any(|value| text.contains(value.as_str())), "{text}");
            prop_assert!(!values.iter().any(|value| text.ends_with(&value[..8])), "{text}");
        }
    }
}
