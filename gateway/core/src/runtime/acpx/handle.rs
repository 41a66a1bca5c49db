//! Handle of a session of acpx: `acpx:v1:` and base64url of a JSON object. Version 1 is written, 1 and 2 are read; any
//! other text is refused.

use crate::rows::SessionMode;
use data_encoding::BASE64URL_NOPAD;
use serde::{Deserialize, Serialize};

/// Prefix of every handle.
const SCHEME: &str = "acpx:";
/// Prefix of the version that is written.
const V1: &str = "acpx:v1:";
/// Prefixes of the versions that are read. Version 2 has more keys, which have no use here.
const READ: [&str; 2] = [V1, "acpx:v2:"];
/// Maximum length of a handle, in bytes.
const HANDLE_BYTES_MAX: usize = 64 * 1024;

/// Name of a session at acpx, with the settings that are part of its identity there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AcpxHandle {
    /// Name of the session: the session key.
    pub name: String,
    /// Agent: a name or a command.
    pub agent: String,
    /// Absolute working directory.
    pub cwd: String,
    /// Lifetime of the session.
    pub mode: SessionMode,
}

/// Error of a text that is no handle.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AcpxHandleError {
    /// The text does not begin with the prefix of a handle.
    #[error("a handle of acpx begins with `acpx:v1:` or `acpx:v2:`")]
    Scheme,
    /// The handle has another version.
    #[error("a handle of acpx of another version than 1 or 2 cannot be read")]
    Version,
    /// The handle is longer than the maximum.
    #[error("a handle of acpx has at most {HANDLE_BYTES_MAX} bytes, not {0}")]
    TooLong(usize),
    /// The text behind the prefix is not base64url without padding.
    #[error("a handle of acpx is base64url without padding behind its prefix")]
    Encoding,
    /// The content is not the expected object.
    #[error("a handle of acpx holds a JSON object with name, agent, cwd and mode: {0}")]
    Content(String),
    /// A member is empty, holds control characters, or the directory is relative.
    #[error("`{0}` in a handle of acpx is empty, relative or has control characters")]
    Member(&'static str),
}

impl AcpxHandle {
    /// Returns the handle as text, in version 1.
    pub fn encode(&self) -> String {
        // A struct of three strings and an enum has no value that JSON cannot hold.
        let json = serde_json::to_vec(self).unwrap_or_default();
        format!("{V1}{}", BASE64URL_NOPAD.encode(&json))
    }

    /// Reads a handle of version 1 or 2.
    ///
    /// # Errors
    /// [`AcpxHandleError`] for any other text; nothing is guessed.
    pub fn parse(text: &str) -> Result<Self, AcpxHandleError> {
        use AcpxHandleError as E;
        if text.len() > HANDLE_BYTES_MAX {
            return Err(E::TooLong(text.len()));
        }
        let Some(encoded) = READ.iter().find_map(|prefix| text.strip_prefix(prefix)) else {
            return Err(if text.starts_with(SCHEME) { E::Version } else { E::Scheme });
        };
        let json = BASE64URL_NOPAD.decode(encoded.as_bytes()).map_err(|_error| E::Encoding)?;
        // serde reads a struct from an array, too.
        if json.first() != Some(&b'{') {
            return Err(E::Content("it is not an object".to_owned()));
        }
        let handle: Self = serde_json::from_slice(&json).map_err(|error| E::Content(error.to_string()))?;
        for (member, text) in [("name", &handle.name), ("agent", &handle.agent), ("cwd", &handle.cwd)] {
            if text.is_empty() || text.chars().any(char::is_control) {
                return Err(E::Member(member));
            }
        }
        if !handle.cwd.starts_with('/') {
            return Err(E::Member("cwd"));
        }
        Ok(handle)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn handle() -> AcpxHandle {
        AcpxHandle {
            name: "agent:codex:acp:1".to_owned(),
            agent: "codex".to_owned(),
            cwd: "/home/u/p".to_owned(),
            mode: SessionMode::Persistent,
        }
    }

    fn encoded(version: u8, json: &str) -> String {
        format!("acpx:v{version}:{}", BASE64URL_NOPAD.encode(json.as_bytes()))
    }

    #[test]
    fn handle_has_one_spelling() {
        let json = r#"{"name":"agent:codex:acp:1","agent":"codex","cwd":"/home/u/p","mode":"persistent"}"#;
        assert_eq!(handle().encode(), encoded(1, json));
        assert_eq!(AcpxHandle::parse(&handle().encode()), Ok(handle()));
    }

    #[test]
    fn version_2_and_unknown_keys_are_read() {
        let json = r#"{"name":"agent:codex:acp:1","agent":"codex","cwd":"/home/u/p","mode":"persistent",
            "acpxRecordId":"r","backendSessionId":"b","agentSessionId":"a"}"#;
        assert_eq!(AcpxHandle::parse(&encoded(2, json)), Ok(handle()));
        assert_eq!(AcpxHandle::parse(&encoded(1, json)), Ok(handle()));
    }

    #[test]
    fn anything_else_is_refused() {
        use AcpxHandleError as E;
        let good = r#"{"name":"n","agent":"a","cwd":"/c","mode":"oneshot"}"#;
        assert!(AcpxHandle::parse(&encoded(1, good)).is_ok());
        let cases = [
            (String::new(), E::Scheme),
            ("agent:codex:acp:1".to_owned(), E::Scheme),
            (format!(" {}", encoded(1, good)), E::Scheme),
            ("acpx:v1".to_owned(), E::Version),
            (encoded(3, good), E::Version),
            (format!("{}=", encoded(1, good)), E::Encoding),
            (format!("{}\n", encoded(1, good)), E::Encoding),
            (encoded(1, &good.replace("\"/c\"", "\"c\"")), E::Member("cwd")),
            (encoded(1, &good.replace("\"n\"", "\"\"")), E::Member("name")),
            (encoded(1, &good.replace("\"a\"", r#""a\n""#)), E::Member("agent")),
            ("x".repeat(HANDLE_BYTES_MAX + 1), E::TooLong(HANDLE_BYTES_MAX + 1)),
        ];
        for (text, want) in cases {
            assert_eq!(AcpxHandle::parse(&text), Err(want), "{text}");
        }
        let contents = [
            "",
            "[\"n\",\"a\",\"/c\",\"oneshot\"]",
            "{\"name\":\"n\"}",
            "{\"name\":\"n\",\"name\":\"m\",\"agent\":\"a\",\"cwd\":\"/c\",\"mode\":\"oneshot\"}",
            "{\"name\":\"n\",\"agent\":\"a\",\"cwd\":\"/c\",\"mode\":\"forever\"}",
            "{\"name\":1,\"agent\":\"a\",\"cwd\":\"/c\",\"mode\":\"oneshot\"}",
            "{\"name\":\"n\",\"agent\":\"a\",\"cwd\":\"/c\",\"mode\":\"oneshot\"} 1",
        ];
        for json in contents {
            let parsed = AcpxHandle::parse(&encoded(1, json));
            assert!(matches!(parsed, Err(E::Content(_))), "{json}: {parsed:?}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(name in "\\PC{1,40}", agent in "\\PC{1,40}", cwd in "/\\PC{0,40}", oneshot: bool) {
            let mode = if oneshot { SessionMode::Oneshot } else { SessionMode::Persistent };
            let handle = AcpxHandle { name, agent, cwd, mode };
            prop_assert_eq!(AcpxHandle::parse(&handle.encode()), Ok(handle));
        }

        #[test]
        fn no_text_panics(version in 0_u8..4, json in ".{0,80}", text in ".{0,80}") {
            let _ = AcpxHandle::parse(&encoded(version, &json));
            let _ = AcpxHandle::parse(&text);
        }

        #[test]
        fn what_is_read_is_valid(json in r#"\{"name":"[a\\nu0]{0,3}","agent":"a","cwd":"/?[a-z]{0,2}","mode":"(oneshot|persistent|x)"\}"#) {
            if let Ok(handle) = AcpxHandle::parse(&encoded(1, &json)) {
                prop_assert!(!handle.name.is_empty() && handle.cwd.starts_with('/'));
                prop_assert_eq!(AcpxHandle::parse(&handle.encode()), Ok(handle));
            }
        }
    }
}
