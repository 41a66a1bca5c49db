//! Messages on their way out. Whatever they say, nobody is notified by a mention: that is in every body that is made
//! here, of edits too, for Discord reads an edit without it as if everything were allowed.

use crate::core::component::{self, Modal, Row};
use crate::core::embed::{self, Embed};
use crate::core::ids::Snowflake;
use crate::core::units::{Limit, Refused};
use bytes::Bytes;
use serde_json::{Map, Value, json};
use std::fmt;

/// Addresses in the text make no preview.
pub const NO_PREVIEWS: u64 = 1 << 2;
/// Only who caused it sees it: first answers to interactions only.
pub const EPHEMERAL: u64 = 1 << 6;
/// It makes no sound.
pub const SILENT: u64 = 1 << 12;

/// A file that goes with a message.
#[derive(Clone, PartialEq, Eq)]
pub struct File {
    /// Its name, without a path.
    pub name: String,
    /// What it is, e.g. `text/markdown`.
    pub content_type: String,
    /// What it shows, for those who cannot see it.
    pub description: String,
    /// What is in it.
    pub bytes: Bytes,
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "File({}, {} bytes)", self.name, self.bytes.len())
    }
}

/// All that a message shows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Body {
    /// Its text.
    pub content: String,
    /// Boxes below it.
    pub embeds: Vec<Embed>,
    /// Buttons and menus.
    pub rows: Vec<Row>,
    /// Files. An edit without any leaves those that are there.
    pub files: Vec<File>,
    /// [`NO_PREVIEWS`], [`EPHEMERAL`], [`SILENT`].
    pub flags: u64,
}

impl Body {
    /// A message of text only.
    #[must_use]
    pub fn text(content: impl Into<String>) -> Self {
        Self { content: content.into(), ..Self::default() }
    }
}

/// A new message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewMessage {
    /// Names it for ever: another message with it, within some minutes, is not made.
    pub nonce: String,
    /// What it shows.
    pub body: Body,
    /// The message that it answers, which is not notified and need not be there any more.
    pub reply_to: Option<Snowflake>,
}

/// As whom a webhook speaks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Persona {
    /// A name, where it is not the webhook's.
    pub name: Option<String>,
    /// The address of a picture, where it is not the webhook's.
    pub avatar_url: Option<String>,
}

/// What a request carries.
#[derive(Debug, Clone, PartialEq)]
pub struct Payload {
    /// The body, as JSON.
    pub json: Value,
    /// Files beside it.
    pub files: Vec<File>,
}

impl Payload {
    /// A body without files.
    #[must_use]
    pub const fn json(json: Value) -> Self {
        Self { json, files: Vec::new() }
    }
}

/// Nobody is notified.
fn no_mentions() -> Value {
    json!({"parse": [], "replied_user": false})
}

fn check_file(file: &File) -> Result<(), Refused> {
    Limit::FileName.text(&file.name)?;
    Limit::FileDescription.text(&file.description)?;
    Limit::FileBytes.number(file.bytes.len())?;
    if file.name.chars().any(|c| c.is_control() || matches!(c, '/' | '\\' | '"')) {
        return Err(Refused::Form("a file's name has no path and no control characters"));
    }
    let plain =
        |c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | '-' | '+' | '.' | ';' | '=' | ' ' | '_');
    if !file.content_type.contains('/') || !file.content_type.chars().all(plain) {
        return Err(Refused::Form("a file's type is one of MIME, such as text/plain"));
    }
    Ok(())
}

impl Body {
    fn check(&self) -> Result<(), Refused> {
        Limit::Content.text(&self.content)?;
        embed::check(&self.embeds)?;
        component::check(&self.rows)?;
        Limit::Files.number(self.files.len())?;
        self.files.iter().try_for_each(check_file)?;
        if self.content.trim().is_empty() && self.embeds.is_empty() && self.files.is_empty() {
            return Err(Refused::Empty);
        }
        Ok(())
    }

    /// What all bodies have.
    fn fields(&self) -> Map<String, Value> {
        let mut fields = Map::new();
        fields.insert("content".to_owned(), json!(self.content));
        fields.insert("embeds".to_owned(), json!(self.embeds));
        fields.insert("components".to_owned(), component::to_json(&self.rows));
        fields.insert("allowed_mentions".to_owned(), no_mentions());
        if self.flags != 0 {
            fields.insert("flags".to_owned(), json!(self.flags));
        }
        if !self.files.is_empty() {
            let describe = |(id, file): (usize, &File)| {
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

    fn payload(&self, fields: Map<String, Value>) -> Result<Payload, Refused> {
        let payload = Payload { json: Value::Object(fields), files: self.files.clone() };
        let files: usize = payload.files.iter().map(|file| file.bytes.len()).sum();
        Limit::RequestBytes.number(payload.json.to_string().len() + files)?;
        Ok(payload)
    }

    /// The body of an edit: the message shows this and nothing else.
    ///
    /// # Errors
    /// Discord would refuse it.
    pub fn edit(&self) -> Result<Payload, Refused> {
        self.check()?;
        self.payload(self.fields())
    }

    /// The body of a message of a webhook.
    ///
    /// # Errors
    /// Discord would refuse it.
    pub fn webhook(&self, persona: &Persona) -> Result<Payload, Refused> {
        self.check()?;
        let mut fields = self.fields();
        if let Some(name) = &persona.name {
            webhook_name(name)?;
            fields.insert("username".to_owned(), json!(name));
        }
        if let Some(url) = &persona.avatar_url {
            fields.insert("avatar_url".to_owned(), json!(url));
        }
        self.payload(fields)
    }
}

/// Checks the name of a webhook.
///
/// # Errors
/// Discord would refuse it.
pub fn webhook_name(name: &str) -> Result<(), Refused> {
    Limit::WebhookName.text(name)?;
    let lower = name.to_lowercase();
    if ["clyde", "discord"].iter().any(|word| lower.contains(word)) {
        return Err(Refused::Form("the name of a webhook holds neither \"clyde\" nor \"discord\""));
    }
    Ok(())
}

impl NewMessage {
    /// The body of the request.
    ///
    /// # Errors
    /// Discord would refuse it.
    pub fn payload(&self) -> Result<Payload, Refused> {
        self.body.check()?;
        Limit::Nonce.text(&self.nonce)?;
        let mut fields = self.body.fields();
        fields.insert("nonce".to_owned(), json!(self.nonce));
        fields.insert("enforce_nonce".to_owned(), json!(true));
        if let Some(message) = self.reply_to {
            // Or a message that somebody deleted would take its answer along.
            let reference = json!({"message_id": message, "fail_if_not_exists": false});
            fields.insert("message_reference".to_owned(), reference);
        }
        self.body.payload(fields)
    }
}

/// The first answer to an interaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Callback {
    /// A message.
    Message(Body),
    /// A message comes later. With [`EPHEMERAL`] among the flags only who asked sees it.
    Later {
        /// Flags of the message.
        flags: u64,
    },
    /// The message of the button changes later, or does not.
    UpdateLater,
    /// The message of the button changes to this.
    Update(Body),
    /// Suggestions while somebody types: what is shown, and what is sent.
    Choices(Vec<(String, String)>),
    /// A form.
    Modal(Modal),
}

impl Callback {
    /// The body of the request.
    ///
    /// # Errors
    /// Discord would refuse it.
    pub fn payload(&self) -> Result<Payload, Refused> {
        let (kind, data, files) = match self {
            Self::Message(body) => {
                let Payload { json, files } = body.edit()?;
                (4, json, files)
            }
            Self::Later { flags } => (5, json!({"flags": flags}), Vec::new()),
            Self::UpdateLater => return Ok(Payload::json(json!({"type": 6}))),
            Self::Update(body) => {
                let Payload { json, files } = body.edit()?;
                (7, json, files)
            }
            Self::Choices(choices) => (8, choices_json(choices)?, Vec::new()),
            Self::Modal(modal) => {
                modal.check()?;
                (9, modal.to_json(), Vec::new())
            }
        };
        Ok(Payload { json: json!({"type": kind, "data": data}), files })
    }
}

fn choices_json(choices: &[(String, String)]) -> Result<Value, Refused> {
    Limit::Choices.number(choices.len())?;
    for (name, value) in choices {
        Limit::ChoiceName.text(name)?;
        Limit::ChoiceValue.text(value)?;
    }
    let choice = |(name, value): &(String, String)| json!({"name": name, "value": value});
    Ok(json!({"choices": choices.iter().map(choice).collect::<Vec<_>>()}))
}

#[cfg(test)]
mod tests;
