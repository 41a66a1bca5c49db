//! Custom ids of buttons. They hold the command that a click stands for, so buttons keep their meaning across
//! restarts.
//!
//! Format: `acp1:` and the text of the command. The number is the version of the format.
#![deny(clippy::indexing_slicing)]

use std::fmt;

/// Maximum length of a custom id (documentation, "Custom ID"), in UTF-16 units, which are never fewer than
/// what Discord counts.
pub const CUSTOM_ID_MAX: usize = 100;

const NAME: &str = "acp";
const VERSION: u32 = 1;

/// Reason why a text does not fit into a custom id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CustomIdError {
    /// The text is too long.
    TooLong {
        /// Excess length, in UTF-16 units.
        by: usize,
    },
    /// The text is empty, or begins or ends with white space, which might not come back.
    NotExact,
}

impl fmt::Display for CustomIdError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong { by } => write!(f, "{by} UTF-16 units too long for a button"),
            Self::NotExact => f.write_str(
                "the text of a button command must not be empty, or begin or end with white space",
            ),
        }
    }
}

impl std::error::Error for CustomIdError {}

/// Decoded custom id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DecodedCustomId<'a> {
    /// Command text.
    Text(&'a str),
    /// Format version of another release of this program. Refuse the click, do not guess.
    OtherVersion(u32),
    /// Not a custom id of this program.
    Foreign,
}

/// Encodes a command as a custom id.
///
/// # Errors
/// [`CustomIdError`] if decoding could not restore the exact text.
pub fn encode(text: &str) -> Result<String, CustomIdError> {
    if text.is_empty() || text.trim() != text {
        return Err(CustomIdError::NotExact);
    }
    let id = format!("{NAME}{VERSION}:{text}");
    match id.encode_utf16().count().checked_sub(CUSTOM_ID_MAX) {
        None | Some(0) => Ok(id),
        Some(by) => Err(CustomIdError::TooLong { by }),
    }
}

/// Decodes the custom id of a click.
#[must_use]
pub fn decode(custom_id: &str) -> DecodedCustomId<'_> {
    let Some((head, text)) = custom_id.split_once(':') else { return DecodedCustomId::Foreign };
    let Some(version) = head.strip_prefix(NAME).filter(|digits| digits.bytes().all(|b| b.is_ascii_digit()))
    else {
        return DecodedCustomId::Foreign;
    };
    match version.parse() {
        Ok(VERSION) if !text.is_empty() => DecodedCustomId::Text(text),
        Ok(VERSION) | Err(_) => DecodedCustomId::Foreign,
        Ok(other) => DecodedCustomId::OtherVersion(other),
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::expect_used, reason = "a failed expectation is a failed test")]

    use super::*;
    use proptest::prelude::*;

    #[test]
    fn encode_accepts_exact_text_within_limit() {
        assert_eq!(encode("/acp answer 7 2").expect("fits"), "acp1:/acp answer 7 2");
        assert_eq!(encode(&"x".repeat(95)).map(|id| id.len()), Ok(100));
        assert_eq!(encode(&"x".repeat(97)), Err(CustomIdError::TooLong { by: 2 }));
        // Two UTF-16 units each.
        assert_eq!(encode(&"🦀".repeat(48)), Err(CustomIdError::TooLong { by: 1 }));
        for text in ["", " x", "x\n"] {
            assert_eq!(encode(text), Err(CustomIdError::NotExact), "{text:?}");
        }
    }

    #[test]
    fn decode_classifies_custom_ids() {
        for (id, decoded) in [
            ("acp1:/acp cancel", DecodedCustomId::Text("/acp cancel")),
            ("acp1:a:b", DecodedCustomId::Text("a:b")),
            ("acp2:/acp cancel", DecodedCustomId::OtherVersion(2)),
            ("acp1:", DecodedCustomId::Foreign),
            ("acp:x", DecodedCustomId::Foreign),
            ("acp+1:x", DecodedCustomId::Foreign),
            ("acp99999999999:x", DecodedCustomId::Foreign),
            ("perm:1", DecodedCustomId::Foreign),
            ("", DecodedCustomId::Foreign),
        ] {
            assert_eq!(decode(id), decoded, "{id}");
        }
    }

    proptest! {
        #[test]
        fn encoded_text_round_trips(text in "\\PC{0,110}") {
            if let Ok(id) = encode(&text) {
                prop_assert!(id.chars().count() <= CUSTOM_ID_MAX);
                prop_assert_eq!(decode(&id), DecodedCustomId::Text(text.as_str()));
            }
        }

        #[test]
        fn decode_accepts_any_input(id in "(acp)?[0-9]{0,12}:?\\PC{0,20}") {
            let _ = decode(&id);
        }
    }
}
