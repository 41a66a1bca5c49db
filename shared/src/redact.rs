//! Values that must not reach a log: environments and secrets.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Minimum length of a value that is replaced in what an agent writes, in bytes. Shorter ones are no secrets and
/// occur in ordinary text.
pub const SECRET_BYTES_MIN: usize = 8;
/// Variables that describe a login. Their values are not secrets and would hide most paths. A `*` at the end matches
/// any ending.
const PLAIN_VARIABLES: [&str; 12] =
    ["HOME", "PATH", "PWD", "USER", "LOGNAME", "SHELL", "LANG", "LC_*", "TERM", "TMPDIR", "TZ", "XDG_*"];

/// True for variables of a login, such as `HOME` and `LANG`: the values are never redacted.
#[must_use]
pub fn is_plain_variable(name: &str) -> bool {
    PLAIN_VARIABLES.iter().any(|pattern| match pattern.strip_suffix('*') {
        Some(head) => name.starts_with(head),
        None => name == *pattern,
    })
}

/// Secret text that prints as `***` in `Debug` output. Serialization contains the text itself.
#[derive(Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct Secret(String);

impl Secret {
    /// Wraps a secret.
    #[must_use]
    pub const fn new(value: String) -> Self {
        Self(value)
    }

    /// Returns the secret in clear text.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// Environment whose `Debug` output contains only the variable names.
pub struct EnvNames<'a>(pub &'a [(String, String)]);

impl fmt::Debug for EnvNames<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|(name, _)| name)).finish()
    }
}

/// Removes the quoted value from a serde type error: it may be a secret that was put in the wrong place.
#[must_use]
pub fn hide_value(error: &str) -> String {
    const BEGIN: &str = "invalid type: string \"";
    let Some((head, rest)) = error.split_once(BEGIN) else { return error.to_owned() };
    let mut is_escaped = false;
    let end = rest.find(|c| {
        let is_end = c == '"' && !is_escaped;
        is_escaped = c == '\\' && !is_escaped;
        is_end
    });
    let tail = end.and_then(|at| rest.get(at + 1..)).unwrap_or_default();
    format!("{head}invalid type: string{tail}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn type_error_omits_value() {
        for (error, want) in [
            (
                r#"invalid type: string "--token=x", expected a sequence"#,
                "invalid type: string, expected a sequence",
            ),
            (
                r#"a: invalid type: string "q\"x\\", expected a map"#,
                "a: invalid type: string, expected a map",
            ),
            ("invalid type: integer `5`, expected a string", "invalid type: integer `5`, expected a string"),
            (r#"invalid type: string "cut"#, "invalid type: string"),
        ] {
            assert_eq!(hide_value(error), want);
        }
    }

    #[test]
    fn secrets_are_not_printed() {
        let env = [("TOKEN".to_owned(), "hunter2".to_owned())];
        assert_eq!(format!("{:?} {:?}", Secret::new("hunter2".into()), EnvNames(&env)), r#"*** ["TOKEN"]"#);
    }
}
