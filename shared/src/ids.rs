//! Typed ids. Text becomes an id only through `parse`, at the edge where the text arrives; after that, the
//! compiler rejects an id of the wrong kind.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Maximum length of any id, in bytes.
pub const ID_BYTES_MAX: usize = 200;

/// Error for a text that is not a valid id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdError {
    /// The text is empty.
    #[error("{kind} is empty")]
    Empty {
        /// Kind of id that was expected.
        kind: &'static str,
    },
    /// The text is longer than [`ID_BYTES_MAX`].
    #[error("{kind} is longer than {ID_BYTES_MAX} bytes")]
    TooLong {
        /// Kind of id that was expected.
        kind: &'static str,
    },
    /// The text has a character that is not allowed in ids.
    #[error("{kind} may contain only letters, digits and -_.:/@")]
    Character {
        /// Kind of id that was expected.
        kind: &'static str,
    },
    /// The text is not a UUID.
    #[error("{kind} is not a UUID")]
    Uuid {
        /// Kind of id that was expected.
        kind: &'static str,
    },
}

fn check_text(kind: &'static str, text: &str) -> Result<(), IdError> {
    if text.is_empty() {
        return Err(IdError::Empty { kind });
    }
    if text.len() > ID_BYTES_MAX {
        return Err(IdError::TooLong { kind });
    }
    let fits = |b: u8| b.is_ascii_alphanumeric() || b"-_.:/@".contains(&b);
    if text.bytes().all(fits) { Ok(()) } else { Err(IdError::Character { kind }) }
}

/// Implements the conversions between an id and its text. `parse` is the only way from text to id.
macro_rules! id_text {
    ($name:ident) => {
        impl TryFrom<String> for $name {
            type Error = IdError;
            fn try_from(text: String) -> Result<Self, IdError> {
                Self::parse(&text)
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> String {
                id.to_string()
            }
        }

        impl FromStr for $name {
            type Err = IdError;
            fn from_str(text: &str) -> Result<Self, IdError> {
                Self::parse(text)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}", self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({self})", stringify!($name))
            }
        }
    };
}

macro_rules! text_ids {
    ($($(#[$doc:meta])+ $name:ident, $kind:literal;)+) => {$(
        $(#[$doc])+
        #[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            /// Parses the id.
            ///
            /// # Errors
            /// [`IdError`] if the text is empty, too long or has a character that is not allowed.
            pub fn parse(text: &str) -> Result<Self, IdError> {
                check_text($kind, text)?;
                Ok(Self(text.to_owned()))
            }

            /// Returns the id as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        id_text!($name);
    )+};
}

macro_rules! uuid_ids {
    ($($(#[$doc:meta])+ $name:ident, $kind:literal;)+) => {$(
        $(#[$doc])+
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(uuid::Uuid);

        impl $name {
            /// Creates a new id: a UUID of version 7, so ids sort by creation time.
            #[must_use]
            pub fn mint() -> Self {
                Self(uuid::Uuid::now_v7())
            }

            /// Parses the id.
            ///
            /// # Errors
            /// [`IdError::Uuid`] if the text is not a hyphenated UUID in lower case.
            pub fn parse(text: &str) -> Result<Self, IdError> {
                let id = uuid::Uuid::try_parse(text).map_err(|_| IdError::Uuid { kind: $kind })?;
                if id.hyphenated().to_string() == text { Ok(Self(id)) } else { Err(IdError::Uuid { kind: $kind }) }
            }
        }

        id_text!($name);
    )+};
}

uuid_ids! {
    /// Process tree managed by the supervisor. The gateway creates and commits the id before its first use
    /// (H5).
    LeaseId, "lease id";
    /// Installation of a gateway: created once and kept in its state directory. A discriminator, not a
    /// secret.
    GatewayInstanceId, "gateway instance id";
    /// Turn of a session.
    RunId, "run id";
    /// Binding of a conversation to a session.
    BindingId, "binding id";
    /// Start of a gateway process.
    StartId, "start id";
    /// Token of the gateway's API.
    TokenId, "token id";
}

text_ids! {
    /// Session with an agent, for its whole lifetime. Users and scripts refer to a session by this key.
    SessionKey, "session key";
    /// Key chosen by a client so that a repeated command has one effect (H24).
    IdempotencyKey, "idempotency key";
    /// Name of a configured or built-in agent.
    AgentName, "agent name";
}

impl SessionKey {
    /// Creates a new key for a session of `agent`.
    #[must_use]
    pub fn mint(agent: &AgentName) -> Self {
        let tail = uuid::Uuid::now_v7().simple().to_string();
        let head: String = agent.as_str().chars().take(ID_BYTES_MAX - 48).collect();
        Self(format!("agent:{head}:acp:{tail}"))
    }
}

/// Returns 128 random bits as 32 hexadecimal digits, for ids that must not be guessed.
#[must_use]
pub fn random_hex() -> String {
    // A UUID of version 4 has six fixed bits; the other one, rotated, has random bits there.
    let random = || uuid::Uuid::new_v4().as_u128();
    format!("{:032x}", random() ^ random().rotate_left(64))
}

impl IdempotencyKey {
    /// Creates a new key, for a caller that has none.
    #[must_use]
    pub fn mint() -> Self {
        Self(uuid::Uuid::now_v7().to_string())
    }
}

impl LeaseId {
    /// Derives another id from a newly created one, for code that must not create ids: `number` is XORed into
    /// the random bits, and 0 gives the id itself.
    #[must_use]
    pub const fn sibling(self, number: u32) -> Self {
        Self(uuid::Uuid::from_u128(self.0.as_u128() ^ number as u128))
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;

    #[test]
    fn invalid_text_ids_are_refused() {
        let long = "a".repeat(ID_BYTES_MAX + 1);
        let kind = "session key";
        for (text, want) in [
            ("agent:demo:acp:1", Ok(())),
            ("", Err(IdError::Empty { kind })),
            ("a b", Err(IdError::Character { kind })),
            ("a\n", Err(IdError::Character { kind })),
            ("é", Err(IdError::Character { kind })),
            (long.as_str(), Err(IdError::TooLong { kind })),
        ] {
            assert_eq!(SessionKey::parse(text).map(|_| ()), want, "{text:?}");
        }
    }

    #[test]
    fn uuid_ids_have_one_spelling() {
        let id = LeaseId::mint();
        assert_eq!(LeaseId::parse(&id.to_string()).unwrap(), id);
        for bad in ["", "x", &id.to_string().to_uppercase(), &id.to_string().replace('-', "")] {
            assert_eq!(LeaseId::parse(bad), Err(IdError::Uuid { kind: "lease id" }), "{bad}");
        }
    }

    #[test]
    fn minted_keys_parse() {
        let agent = AgentName::parse(&"x".repeat(ID_BYTES_MAX)).unwrap();
        let key = SessionKey::mint(&agent);
        assert_eq!(SessionKey::parse(key.as_str()).unwrap(), key);
    }
}
