//! Values that must not reach a log: environments and secrets.

use serde::{Deserialize, Serialize};
use std::fmt;

/// A text that prints as `***` wherever it is shown. Sent and stored it is the text itself.
#[derive(Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct Secret(String);

impl Secret {
    /// Wraps a secret.
    #[must_use]
    pub const fn new(value: String) -> Self {
        Self(value)
    }

    /// The secret itself, for the one place that needs it.
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

/// Shows an environment by its names alone.
pub struct EnvNames<'a>(pub &'a [(String, String)]);

impl fmt::Debug for EnvNames<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|(name, _)| name)).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_do_not_print() {
        let env = [("TOKEN".to_owned(), "hunter2".to_owned())];
        assert_eq!(format!("{:?} {:?}", Secret::new("hunter2".into()), EnvNames(&env)), r#"*** ["TOKEN"]"#);
    }
}
