//! Table of Discord's limits, and checks that refuse what Discord would refuse. Source: Discord's reference,
//! "Message", "Components", "Application Commands", "Webhook".

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
    /// Embeds per message.
    Embeds,
    /// Total text of all embeds of a message.
    EmbedTexts,
    /// Title of an embed.
    EmbedTitle,
    /// Text of an embed.
    EmbedDescription,
    /// Fields per embed.
    EmbedFields,
    /// Name of a field.
    FieldName,
    /// Value of a field.
    FieldValue,
    /// Footer of an embed.
    EmbedFooter,
    /// Author of an embed.
    EmbedAuthor,
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
    /// URL of a button.
    ButtonUrl,
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
    /// Slash commands of an application, global or per guild.
    Commands,
    /// Total text of one slash command.
    CommandTexts,
}

impl PayloadLimit {
    /// Minimum and maximum. Texts are counted in UTF-16 units.
    #[must_use]
    pub const fn bounds(self) -> (usize, usize) {
        match self {
            Self::Content => (0, 2000),
            Self::Nonce => (1, 25),
            Self::Embeds => (0, 10),
            Self::EmbedTexts => (0, 6000),
            Self::EmbedTitle | Self::EmbedAuthor => (0, 256),
            Self::EmbedDescription => (0, 4096),
            Self::EmbedFields => (0, 25),
            Self::FieldName => (1, 256),
            Self::FieldValue => (1, 1024),
            Self::EmbedFooter => (0, 2048),
            Self::Files => (0, 10),
            Self::FileBytes => (0, 10 * 1024 * 1024),
            Self::FileName => (1, 255),
            Self::FileDescription => (0, 1024),
            Self::RequestBytes => (0, 25 * 1024 * 1024),
            Self::Rows => (0, 5),
            Self::Buttons => (1, 5),
            Self::ButtonLabel => (1, 80),
            Self::CustomId => (1, 100),
            Self::ButtonUrl => (1, 512),
            Self::ThreadName => (1, 100),
            Self::WebhookName => (1, 80),
            Self::Choices => (0, 25),
            Self::ChoiceName | Self::ChoiceValue => (1, 100),
            Self::Commands => (0, 100),
            Self::CommandTexts => (0, 8000),
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
    #[error("the message has neither text nor embed nor file")]
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

/// Checks the slash commands of an application, in Discord's JSON.
///
/// # Errors
/// [`ValidationError`] for the first invalid command: Discord would refuse the whole list.
pub fn commands(commands: &[serde_json::Value]) -> Result<(), ValidationError> {
    PayloadLimit::Commands.number(commands.len())?;
    for command in commands {
        PayloadLimit::CommandTexts.number(command_text_len(command))?;
        let name = command.get("name").and_then(|name| name.as_str()).unwrap_or_default();
        let slash = command.get("type").and_then(serde_json::Value::as_u64).is_none_or(|kind| kind == 1);
        let fits = |c: char| c == '-' || c == '_' || c.is_alphanumeric();
        let form = name.chars().all(fits) && name.to_lowercase() == name && !name.is_empty();
        if slash && !(form && utf16_len(name) <= 32) {
            return Err(ValidationError::Form(
                "a command's name has 1 to 32 lower-case letters, digits, - and _",
            ));
        }
    }
    Ok(())
}

/// Total length of names, descriptions and values, including options and choices.
fn command_text_len(value: &serde_json::Value) -> usize {
    let own =
        ["name", "description", "value"].iter().filter_map(|key| value.get(key)?.as_str()).map(utf16_len);
    let inner = ["options", "choices"].iter().filter_map(|key| value.get(key)?.as_array()).flatten();
    own.sum::<usize>() + inner.map(command_text_len).sum::<usize>()
}

#[cfg(test)]
mod tests {
    use super::{OutOfBounds, PayloadLimit, ValidationError, commands, utf16_len};
    use serde_json::json;

    #[test]
    fn texts_are_counted_in_utf16() {
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

    #[test]
    fn one_wrong_command_is_refused_before_all_are() {
        let command = |name: &str| json!({"name": name, "description": "d", "type": 1});
        assert_eq!(commands(&[command("acp"), command("acp-2_x"), command("über")]), Ok(()));
        for name in ["", "Acp", "a b", "a/b", &"a".repeat(33)] {
            assert!(commands(&[command("acp"), command(name)]).is_err(), "{name}");
        }
        // Commands in a menu have any name.
        assert_eq!(commands(&[json!({"name": "Send to agent", "type": 3})]), Ok(()));
        assert!(commands(&vec![command("acp"); 101]).is_err());
        let choices: Vec<_> =
            (0..25).map(|_| json!({"name": "n".repeat(100), "value": "v".repeat(100)})).collect();
        let wide = json!({"name": "acp", "options": [{"name": "o", "choices": choices}, {"name": "p", "choices": choices}]});
        assert!(commands(&[wide]).is_err());
    }
}
