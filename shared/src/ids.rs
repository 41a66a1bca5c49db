//! One list of typed ids. Text becomes an id only through `parse`, at the edge where it arrives; inside, a
//! wrong kind of id does not compile.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// The longest text that any id may have, in bytes.
pub const ID_BYTES_MAX: usize = 200;

/// Why a text is not an id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdError {
    /// The text is empty.
    #[error("{kind} is empty")]
    Empty {
        /// Which id was expected.
        kind: &'static str,
    },
    /// The text is longer than [`ID_BYTES_MAX`].
    #[error("{kind} is longer than {ID_BYTES_MAX} bytes")]
    TooLong {
        /// Which id was expected.
        kind: &'static str,
    },
    /// The text holds a character that ids do not have.
    #[error("{kind} may hold letters, digits and -_.:/@ only")]
    Character {
        /// Which id was expected.
        kind: &'static str,
    },
    /// The text is not a UUID.
    #[error("{kind} is not a UUID")]
    Uuid {
        /// Which id was expected.
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

macro_rules! text_ids {
    ($($(#[$doc:meta])+ $name:ident, $kind:literal;)+) => {$(
        $(#[$doc])+
        #[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            /// Reads the id from text.
            ///
            /// # Errors
            /// [`IdError`] when the text is empty, too long or holds a foreign character.
            pub fn parse(text: &str) -> Result<Self, IdError> {
                check_text($kind, text)?;
                Ok(Self(text.to_owned()))
            }

            /// The id as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl TryFrom<String> for $name {
            type Error = IdError;
            fn try_from(text: String) -> Result<Self, IdError> {
                check_text($kind, &text)?;
                Ok(Self(text))
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> String {
                id.0
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
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({})", stringify!($name), self.0)
            }
        }
    )+};
}

macro_rules! uuid_ids {
    ($($(#[$doc:meta])+ $name:ident, $kind:literal;)+) => {$(
        $(#[$doc])+
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(uuid::Uuid);

        impl $name {
            /// Makes a new id: a UUID of version 7, so that ids sort by the time they were made.
            #[must_use]
            pub fn mint() -> Self {
                Self(uuid::Uuid::now_v7())
            }

            /// Reads the id from text.
            ///
            /// # Errors
            /// [`IdError::Uuid`] when the text is not a hyphenated UUID in lower case.
            pub fn parse(text: &str) -> Result<Self, IdError> {
                let id = uuid::Uuid::try_parse(text).map_err(|_| IdError::Uuid { kind: $kind })?;
                if id.hyphenated().to_string() == text { Ok(Self(id)) } else { Err(IdError::Uuid { kind: $kind }) }
            }
        }

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
                write!(f, "{}", self.0.hyphenated())
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({})", stringify!($name), self.0.hyphenated())
            }
        }
    )+};
}

uuid_ids! {
    /// One process tree under the supervisor's care. Minted and committed by the gateway before it is used (H5).
    LeaseId, "lease id";
    /// One installation of a gateway: made once, kept in its state directory. A discriminator, not a secret.
    GatewayInstanceId, "gateway instance id";
    /// One turn of a session.
    RunId, "run id";
    /// One conversation bound to a session.
    BindingId, "binding id";
    /// One start of a gateway.
    StartId, "start id";
}

text_ids! {
    /// One conversation with an agent, for as long as it lives. The name that people and scripts use.
    SessionKey, "session key";
    /// Chosen by a client so that a repeated command has one effect (design §9, H24).
    IdempotencyKey, "idempotency key";
    /// A configured or built-in agent.
    AgentName, "agent name";
}

impl SessionKey {
    /// Makes a new key for a session of `agent`.
    #[must_use]
    pub fn mint(agent: &AgentName) -> Self {
        let tail = uuid::Uuid::now_v7().simple().to_string();
        let head: String = agent.as_str().chars().take(ID_BYTES_MAX - 48).collect();
        Self(format!("agent:{head}:acp:{tail}"))
    }
}

impl IdempotencyKey {
    /// Makes a new key, for a caller that was not given one.
    #[must_use]
    pub fn mint() -> Self {
        Self(uuid::Uuid::now_v7().to_string())
    }
}

impl LeaseId {
    /// Another id made from a newly minted one, for those who may not mint: the number goes into its random
    /// bits, and 0 is the id itself.
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
    fn text_ids_are_parsed_at_the_edge() {
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
