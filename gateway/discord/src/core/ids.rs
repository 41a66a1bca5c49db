//! Ids of Discord.

use serde::de::{Error as _, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::str::FromStr;

/// Milliseconds from the Unix epoch to Discord's epoch (API reference, "Snowflakes").
const EPOCH_MS: u64 = 1_420_070_400_000;

/// Id of a user, channel, message, guild, application or interaction. Later ids are larger, so the messages
/// of a channel sort by id. Written to JSON as a string.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Snowflake(pub u64);

impl Snowflake {
    /// Time of creation, in milliseconds since the Unix epoch.
    #[must_use]
    pub const fn created_at_ms(self) -> u64 {
        (self.0 >> 22) + EPOCH_MS
    }

    /// Smallest possible id at a time: ids created at or after it are not smaller. 0 before Discord's own
    /// epoch.
    #[must_use]
    pub const fn from_ms(at_ms: u64) -> Self {
        Self(at_ms.saturating_sub(EPOCH_MS) << 22)
    }
}

impl fmt::Display for Snowflake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Snowflake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for Snowflake {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(Self)
    }
}

impl Serialize for Snowflake {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Snowflake {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct SnowflakeVisitor;
        impl Visitor<'_> for SnowflakeVisitor {
            type Value = Snowflake;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an id: digits, as a string or a number")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Snowflake, E> {
                text.parse().map_err(E::custom)
            }

            fn visit_u64<E: serde::de::Error>(self, id: u64) -> Result<Snowflake, E> {
                Ok(Snowflake(id))
            }

            fn visit_i64<E: serde::de::Error>(self, id: i64) -> Result<Snowflake, E> {
                u64::try_from(id).map(Snowflake).map_err(E::custom)
            }
        }
        deserializer.deserialize_any(SnowflakeVisitor).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::expect_used, reason = "a failed expectation is a failed test")]

    use super::*;

    #[test]
    fn snowflake_is_json_string_with_timestamp() {
        // Example of the API reference.
        let id = Snowflake(175_928_847_299_117_063);
        assert_eq!(id.created_at_ms(), 1_462_015_105_796);
        assert_eq!(serde_json::to_string(&id).expect("json"), "\"175928847299117063\"");
        for text in ["\"175928847299117063\"", "175928847299117063"] {
            assert_eq!(serde_json::from_str::<Snowflake>(text).expect("id"), id);
        }
        for text in ["\"\"", "\"x1\"", "-1", "1.5", "null", "\"99999999999999999999\""] {
            assert!(serde_json::from_str::<Snowflake>(text).is_err(), "{text}");
        }
        assert!(
            Snowflake::from_ms(id.created_at_ms()) <= id && id < Snowflake::from_ms(id.created_at_ms() + 1)
        );
        assert_eq!(Snowflake::from_ms(0), Snowflake(0));
    }
}
