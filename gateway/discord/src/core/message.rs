//! Outgoing messages. Every body suppresses notifications by mentions, also in edits: Discord treats an edit
//! without `allowed_mentions` as permission for all.

use crate::core::component::{self, Button};
use crate::core::modal::Modal;
use crate::core::payload_limits::{PayloadLimit, ValidationError};
use bytes::Bytes;
use serde_json::{Map, Value, json};
use std::fmt;

/// Flag: visible only to the user who caused the interaction. Valid only in its first response.
pub const EPHEMERAL: u64 = 1 << 6;

/// File attached to a message.
#[derive(Clone, PartialEq, Eq)]
pub struct FileUpload {
    /// File name without a path.
    pub name: String,
    /// Media type, e.g. `text/markdown`.
    pub content_type: String,
    /// Alternative text for people who cannot see the file.
    pub description: String,
    /// Content.
    pub bytes: Bytes,
}

impl fmt::Debug for FileUpload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "File({}, {} bytes)", self.name, self.bytes.len())
    }
}

/// Complete content of a message.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MessageBody {
    /// Text.
    pub content: String,
    /// Rows of buttons.
    pub rows: Vec<Vec<Button>>,
    /// Files. An edit without files keeps the existing ones.
    pub files: Vec<FileUpload>,
    /// Flags: [`EPHEMERAL`] or none.
    pub flags: u64,
}

impl MessageBody {
    /// Creates a message with text only.
    #[must_use]
    pub fn text(content: impl Into<String>) -> Self {
        Self { content: content.into(), ..Self::default() }
    }
}

/// New message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewMessage {
    /// Unique nonce: within some minutes, Discord does not create a second message with it.
    pub nonce: String,
    /// Content.
    pub body: MessageBody,
}

/// Content of a request.
#[derive(Debug, Clone, PartialEq)]
pub struct RequestPayload {
    /// JSON body.
    pub json: Value,
    /// Files, sent as multipart.
    pub files: Vec<FileUpload>,
}

impl RequestPayload {
    /// Creates a payload without files.
    #[must_use]
    pub const fn json(json: Value) -> Self {
        Self { json, files: Vec::new() }
    }
}

/// Value of `allowed_mentions` that notifies nobody.
fn no_mentions() -> Value {
    json!({"parse": [], "replied_user": false})
}

fn check_file(file: &FileUpload) -> Result<(), ValidationError> {
    PayloadLimit::FileName.text(&file.name)?;
    PayloadLimit::FileDescription.text(&file.description)?;
    PayloadLimit::FileBytes.number(file.bytes.len())?;
    if file.name.chars().any(|c| c.is_control() || matches!(c, '/' | '\\' | '"')) {
        return Err(ValidationError::Form(
            "a file's name must not contain path separators, quotes or control characters",
        ));
    }
    let plain =
        |c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | '-' | '+' | '.' | ';' | '=' | ' ' | '_');
    if !file.content_type.contains('/') || !file.content_type.chars().all(plain) {
        return Err(ValidationError::Form("a file's type must be a MIME type, such as text/plain"));
    }
    Ok(())
}

impl MessageBody {
    fn check(&self) -> Result<(), ValidationError> {
        PayloadLimit::Content.text(&self.content)?;
        component::check(&self.rows)?;
        PayloadLimit::Files.number(self.files.len())?;
        self.files.iter().try_for_each(check_file)?;
        if self.content.trim().is_empty() && self.files.is_empty() {
            return Err(ValidationError::Empty);
        }
        Ok(())
    }

    /// JSON fields that all message bodies have.
    fn fields(&self) -> Map<String, Value> {
        let mut fields = Map::new();
        fields.insert("content".to_owned(), json!(self.content));
        fields.insert("embeds".to_owned(), json!([]));
        fields.insert("components".to_owned(), component::to_json(&self.rows));
        fields.insert("allowed_mentions".to_owned(), no_mentions());
        if self.flags != 0 {
            fields.insert("flags".to_owned(), json!(self.flags));
        }
        if !self.files.is_empty() {
            let describe = |(id, file): (usize, &FileUpload)| {
                let mut value = json!({"id": id.to_string(), "filename": file.name});
                if !file.description.is_empty() {
                    value["description"] = json!(file.description);
                }
                value
            };
            let files: Vec<Value> = self.files.iter().enumerate().map(describe).collect();
            fields.insert("attachments".to_owned(), Value::Array(files));
        }
        fields
    }

    fn payload(&self, fields: Map<String, Value>) -> Result<RequestPayload, ValidationError> {
        let payload = RequestPayload { json: Value::Object(fields), files: self.files.clone() };
        let files: usize = payload.files.iter().map(|file| file.bytes.len()).sum();
        PayloadLimit::RequestBytes.number(payload.json.to_string().len() + files)?;
        Ok(payload)
    }

    /// Builds the body of an edit, which replaces the content of the message.
    ///
    /// # Errors
    /// [`ValidationError`] if the message exceeds Discord's limits.
    pub fn edit(&self) -> Result<RequestPayload, ValidationError> {
        self.check()?;
        self.payload(self.fields())
    }

    /// Builds the body of a webhook message, under this name or the webhook's own.
    ///
    /// # Errors
    /// [`ValidationError`] if the message or the name exceeds Discord's limits.
    pub fn webhook(&self, name: Option<&str>) -> Result<RequestPayload, ValidationError> {
        self.check()?;
        let mut fields = self.fields();
        if let Some(name) = name {
            webhook_name(name)?;
            fields.insert("username".to_owned(), json!(name));
        }
        self.payload(fields)
    }
}

/// Checks the name of a webhook.
///
/// # Errors
/// [`ValidationError`] if Discord would reject the name.
pub fn webhook_name(name: &str) -> Result<(), ValidationError> {
    PayloadLimit::WebhookName.text(name)?;
    let lower = name.to_lowercase();
    if ["clyde", "discord"].iter().any(|word| lower.contains(word)) {
        return Err(ValidationError::Form("the name of a webhook must not contain \"clyde\" or \"discord\""));
    }
    Ok(())
}

impl NewMessage {
    /// Builds the body of the request.
    ///
    /// # Errors
    /// [`ValidationError`] if the message exceeds Discord's limits.
    pub fn payload(&self) -> Result<RequestPayload, ValidationError> {
        self.body.check()?;
        PayloadLimit::Nonce.text(&self.nonce)?;
        let mut fields = self.body.fields();
        fields.insert("nonce".to_owned(), json!(self.nonce));
        fields.insert("enforce_nonce".to_owned(), json!(true));
        self.body.payload(fields)
    }
}

/// First response to an interaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Callback {
    /// Sends a message.
    Message(MessageBody),
    /// Announces a message. With [`EPHEMERAL`] in the flags, only the user of the interaction sees it.
    Deferred {
        /// Message flags.
        flags: u64,
    },
    /// Announces an edit of the message with the button; the edit may be omitted.
    DeferredUpdate,
    /// Opens a modal.
    Modal(Modal),
    /// Suggestions during input: the displayed name and the value of each.
    Choices(Vec<(String, String)>),
}

impl Callback {
    /// Builds the body of the request.
    ///
    /// # Errors
    /// [`ValidationError`] if the response exceeds Discord's limits.
    pub fn payload(&self) -> Result<RequestPayload, ValidationError> {
        let (kind, data, files) = match self {
            Self::Message(body) => {
                let RequestPayload { json, files } = body.edit()?;
                (4, json, files)
            }
            Self::Deferred { flags } => (5, json!({"flags": flags}), Vec::new()),
            Self::DeferredUpdate => return Ok(RequestPayload::json(json!({"type": 6}))),
            Self::Modal(modal) => (9, modal.to_json()?, Vec::new()),
            Self::Choices(choices) => (8, choices_json(choices)?, Vec::new()),
        };
        Ok(RequestPayload { json: json!({"type": kind, "data": data}), files })
    }
}

fn choices_json(choices: &[(String, String)]) -> Result<Value, ValidationError> {
    PayloadLimit::Choices.number(choices.len())?;
    for (name, value) in choices {
        PayloadLimit::ChoiceName.text(name)?;
        PayloadLimit::ChoiceValue.text(value)?;
    }
    let choice = |(name, value): &(String, String)| json!({"name": name, "value": value});
    Ok(json!({"choices": choices.iter().map(choice).collect::<Vec<_>>()}))
}

#[cfg(test)]
mod tests;
