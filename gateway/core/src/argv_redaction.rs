//! Redacts command lines for logs.
#![deny(clippy::indexing_slicing)]

/// Placeholder for a redacted value.
const HIDDEN: &str = "***";
/// Parts of flag and variable names that mark a value as secret.
const SECRET_NAMES: [&str; 9] =
    ["token", "secret", "password", "passwd", "key", "auth", "credential", "cookie", "bearer"];
/// Minimum length of an environment value treated as secret, in bytes. Shorter values would redact ordinary
/// words.
const SECRET_BYTES_MIN: usize = 6;
/// Minimum length of an unbroken word treated as an API key, in bytes.
const KEY_BYTES_MIN: usize = 24;

/// Returns the words of a command line with possible secrets redacted: values of flags and variables with a
/// secret name, words that contain one of `secrets` (values of the environment), and words that look like API
/// keys.
pub fn redact_argv(argv: &[String], secrets: &[&str]) -> Vec<String> {
    let mut redacted = Vec::with_capacity(argv.len());
    let mut hide_next = false;
    for (at, word) in argv.iter().enumerate() {
        let hidden = std::mem::take(&mut hide_next);
        if at == 0 {
            redacted.push(word.clone());
        } else if hidden && !word.starts_with('-') {
            redacted.push(HIDDEN.to_owned());
        } else if let Some((name, value)) = word.split_once('=') {
            let hide = has_secret_name(name) || is_secret(value, secrets);
            redacted.push(if hide { format!("{name}={HIDDEN}") } else { word.clone() });
        } else if is_secret(word, secrets) {
            redacted.push(HIDDEN.to_owned());
        } else {
            hide_next = word.starts_with('-') && has_secret_name(word);
            redacted.push(word.clone());
        }
    }
    redacted
}

fn has_secret_name(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    SECRET_NAMES.iter().any(|part| name.contains(part))
}

fn is_secret(word: &str, secrets: &[&str]) -> bool {
    let known = |secret: &&str| secret.len() >= SECRET_BYTES_MIN && word.contains(*secret);
    let like_a_key = word.len() >= KEY_BYTES_MIN
        && word.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.+=:".contains(&byte))
        && word.bytes().any(|byte| byte.is_ascii_digit())
        && word.bytes().any(|byte| byte.is_ascii_alphabetic());
    secrets.iter().any(known) || like_a_key || word.to_ascii_lowercase().contains("bearer ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_secrets_are_redacted() {
        let env = ["hunter2-and-more", "C.UTF"];
        for (line, want) in [
            ("claude --acp", "claude --acp"),
            ("codex --api-key abc --model o3", "codex --api-key *** --model o3"),
            ("codex --api-key=abc -v", "codex --api-key=*** -v"),
            ("x --token --verbose", "x --token --verbose"),
            ("env A_TOKEN=abc LANG=C.UTF-8 run", "env A_TOKEN=*** LANG=C.UTF-8 run"),
            ("x http://user:hunter2-and-more@host", "x ***"),
            ("x sk-01-abcdefghij-2345678-klm", "x ***"),
            (
                "x --dir /home/somebody/very/long/path/0123456789",
                "x --dir /home/somebody/very/long/path/0123456789",
            ),
            (
                "/opt/0123456789/abcdefghijklmnopqrstuvwxyz/agent acp",
                "/opt/0123456789/abcdefghijklmnopqrstuvwxyz/agent acp",
            ),
            ("", ""),
        ] {
            let argv: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
            assert_eq!(redact_argv(&argv, &env).join(" "), want, "{line}");
        }
    }
}
