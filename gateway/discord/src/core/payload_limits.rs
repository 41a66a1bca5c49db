//! Table of Discord's limits, and checks that refuse what Discord would refuse. Source: Discord's reference,
//! "Message", "Components", "Webhook". Those of slash commands are in [`crate::core::commands`].

use crate::core::modal;
use std::fmt;

/// Length in UTF-16 units. Discord does not document its unit; this is never less than the number of
/// characters.
#[must_use]
pub fn utf16_len(text: &str) -> usize {
    text.encode_utf16().count()
}

/// Limit of Discord.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PayloadLimit {
    /// Text of a message.
    Content,
    /// Nonce.
    Nonce,
    /// Files per message.
    Files,
    /// Bytes per file.
    FileBytes,
    /// Name of a file.
    FileName,
    /// Description of a file.
    FileDescription,
    /// Bytes per request.
    RequestBytes,
    /// Rows of components per message.
    Rows,
    /// Buttons per row.
    Buttons,
    /// Label of a button.
    ButtonLabel,
    /// Custom id of a component.
    CustomId,
    /// Name of a thread.
    ThreadName,
    /// Name of a webhook.
    WebhookName,
    /// Suggestions during command input.
    Choices,
    /// Name of a suggestion.
    ChoiceName,
    /// Value of a suggestion.
    ChoiceValue,
    /// Inputs of a modal.
    ModalInputs,
    /// Title of a modal, or label of an input.
    ModalLabel,
    /// Hint in an input of a modal.
    ModalPlaceholder,
    /// Value in an input of a modal.
    ModalValue,
}

impl PayloadLimit {
    /// Minimum and maximum. Texts are counted in UTF-16 units.
    #[must_use]
    pub const fn bounds(self) -> (usize, usize) {
        match self {
            Self::Content => (0, 2000),
            Self::Nonce => (1, 25),
            Self::Files => (0, 10),
            Self::FileBytes => (0, 10 * 1024 * 1024),
            Self::FileName => (1, 255),
            Self::FileDescription => (0, 1024),
            Self::RequestBytes => (0, 25 * 1024 * 1024),
            Self::Rows => (0, 5),
            Self::Buttons => (1, 5),
            Self::ButtonLabel => (1, 80),
            Self::CustomId => (1, 100),
            Self::ThreadName => (1, 100),
            Self::WebhookName => (1, 80),
            Self::Choices => (0, 25),
            Self::ChoiceName | Self::ChoiceValue => (1, 100),
            Self::ModalInputs => (1, modal::INPUTS_MAX),
            Self::ModalLabel => (1, modal::LABEL_MAX),
            Self::ModalPlaceholder => (0, modal::PLACEHOLDER_MAX),
            Self::ModalValue => (0, modal::VALUE_MAX),
        }
    }
}

/// Reason why a request is not sent: Discord would refuse it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ValidationError {
    /// A size or a number is out of bounds.
    #[error("{0}")]
    OutOfBounds(OutOfBounds),
    /// The message has no content.
    #[error("the message has neither text nor file")]
    Empty,
    /// Two components have the same custom id.
    #[error("two components of one message have the custom id {0:?}")]
    DuplicateCustomId(String),
    /// A value has an invalid format.
    #[error("{0}")]
    Form(&'static str),
}

/// Value out of its bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutOfBounds {
    /// Limit that is violated.
    pub limit: PayloadLimit,
    /// Actual size or number.
    pub actual: usize,
}

impl fmt::Display for OutOfBounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (least, most) = self.limit.bounds();
        write!(f, "{:?} is {}, but Discord accepts {least} to {most}", self.limit, self.actual)
    }
}

impl PayloadLimit {
    /// Checks a number.
    ///
    /// # Errors
    /// [`ValidationError`] if the number is out of bounds.
    pub fn number(self, actual: usize) -> Result<(), ValidationError> {
        let (least, most) = self.bounds();
        if (least..=most).contains(&actual) {
            Ok(())
        } else {
            Err(ValidationError::OutOfBounds(OutOfBounds { limit: self, actual }))
        }
    }

    /// Checks a text.
    ///
    /// # Errors
    /// [`ValidationError`] if the length is out of bounds; white space alone counts as empty.
    pub fn text(self, text: &str) -> Result<(), ValidationError> {
        let actual = if text.trim().is_empty() { 0 } else { utf16_len(text) };
        self.number(actual)
    }
}

#[cfg(test)]
mod tests {
    use super::{OutOfBounds, PayloadLimit, ValidationError, utf16_len};

    #[test]
    fn text_length_is_counted_in_utf16() {
        for (text, units) in [("", 0), ("abc", 3), ("äö", 2), ("😀", 2), ("👩‍💻", 5)] {
            assert_eq!(utf16_len(text), units, "{text}");
        }
        assert_eq!(PayloadLimit::Content.text(&"😀".repeat(1000)), Ok(()));
        let actual = 2002;
        let over = ValidationError::OutOfBounds(OutOfBounds { limit: PayloadLimit::Content, actual });
        assert_eq!(PayloadLimit::Content.text(&"😀".repeat(1001)), Err(over.clone()));
        assert_eq!(over.to_string(), "Content is 2002, but Discord accepts 0 to 2000");
        assert_eq!(PayloadLimit::ButtonLabel.text("  "), PayloadLimit::ButtonLabel.number(0));
        assert!(PayloadLimit::ButtonLabel.text("  ").is_err());
    }
}
