//! The form of a message to create or edit, of bots, webhooks and interaction responses.

use super::super::error::{ApiError, FormErrors};
use super::super::model::{Attachment, Id, message_flag};
use super::super::rest::{Body, Upload};
use super::super::settings::{Rule, Settings};
use super::mentions::id_of;
use super::{components, list, mentions, text};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Characters of a nonce.
const NONCE_MAX: usize = 25;
/// Files of a message.
const FILES_MAX: usize = 10;
/// Characters of a file's description.
const DESCRIPTION_MAX: usize = 1024;
/// Flags that may be sent.
const FLAGS: u64 = message_flag::EPHEMERAL;

/// An attachment to keep, or the description of an uploaded one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Listed {
    /// Its new name.
    pub filename: Option<String>,
    /// Its description.
    pub description: Option<String>,
}

/// The requested message. `None` is a missing member; an inner `None` is `null`.
#[derive(Debug, Clone, Default)]
pub struct MessageForm {
    /// The text.
    pub content: Option<Option<String>>,
    /// Components.
    pub components: Option<Vec<Value>>,
    /// Flags.
    pub flags: Option<u64>,
    /// The nonce.
    pub nonce: Option<Value>,
    /// Whether the nonce is enforced.
    pub enforce_nonce: bool,
    /// The `allowed_mentions` object.
    pub allowed_mentions: Option<Value>,
    /// Listed attachments, by id or by the `n` of `files[n]`.
    pub listed: Option<BTreeMap<Id, Listed>>,
    /// Uploaded files.
    pub uploads: Vec<Upload>,
}

impl MessageForm {
    /// Reads and checks a form. `object` is the body, or its `data` for interactions.
    ///
    /// # Errors
    /// 40005, 50035.
    pub fn read(object: &Value, body: &Body, settings: &Settings) -> Result<Self, ApiError> {
        let mut errors = FormErrors::default();
        let mut form = Self { uploads: body.files.clone(), ..Self::default() };
        form.read_content(object, settings, &mut errors);
        form.read_nonce(object, settings, &mut errors);
        form.components = list(object, "components", "components", &mut errors).cloned();
        form.flags = object.get("flags").and_then(Value::as_u64);
        if form.flags.is_some_and(|flags| flags & !FLAGS != 0) {
            errors.add("flags", "MESSAGE_FLAGS_INVALID", "Invalid flags");
        }
        if settings.holds(Rule::ComponentLimits) {
            components::of_message(form.components.as_deref().unwrap_or_default(), &mut errors);
        }
        form.allowed_mentions = object.get("allowed_mentions").filter(|allowed| !allowed.is_null()).cloned();
        if let Some(allowed) = &form.allowed_mentions {
            mentions::check(allowed, &mut errors);
        }
        for member in ["embeds", "message_reference"] {
            let found = object.get(member).filter(|found| !found.is_null() && **found != json!([]));
            if found.is_some() {
                errors.add(member, "NOT_MODELLED", "The fake does not know this member");
            }
        }
        form.read_files(object, settings, &mut errors)?;
        errors.finish()?;
        Ok(form)
    }

    fn read_content(&mut self, object: &Value, settings: &Settings, errors: &mut FormErrors) {
        if let Some(content) = object.get("content") {
            // Numbers are accepted as text.
            let found = content
                .as_str()
                .map(str::to_owned)
                .or_else(|| content.is_number().then(|| content.to_string()));
            if found.is_none() && !content.is_null() {
                errors.wrong_type("content", "a string");
            }
            let too_long = |text: &String| text.encode_utf16().count() > settings.content_max;
            if settings.holds(Rule::ContentLength) && found.as_ref().is_some_and(too_long) {
                errors.too_long("content", settings.content_max);
            }
            // Surrounding white space is removed.
            self.content = Some(found.map(|text| text.trim().to_owned()));
        }
    }

    fn read_nonce(&mut self, object: &Value, settings: &Settings, errors: &mut FormErrors) {
        self.enforce_nonce = object.get("enforce_nonce").and_then(Value::as_bool).unwrap_or(false);
        match object.get("nonce").filter(|nonce| !nonce.is_null()) {
            None => {}
            Some(nonce) if nonce.is_i64() || nonce.is_u64() => self.nonce = Some(nonce.clone()),
            Some(nonce) => {
                let found = text(object, "nonce", "nonce", errors);
                if found.is_some_and(|text| text.chars().count() > NONCE_MAX)
                    && settings.holds(Rule::NonceLength)
                {
                    errors.too_long("nonce", NONCE_MAX);
                }
                self.nonce = Some(nonce.clone());
            }
        }
    }

    fn read_files(
        &mut self,
        object: &Value,
        settings: &Settings,
        errors: &mut FormErrors,
    ) -> Result<(), ApiError> {
        if settings.holds(Rule::FileSize)
            && self.uploads.iter().any(|file| file.bytes.len() as u64 > settings.file_max)
        {
            return Err(ApiError::too_large());
        }
        if let Some(attachments) = list(object, "attachments", "attachments", errors) {
            let mut listed = BTreeMap::new();
            for (n, attachment) in attachments.iter().enumerate() {
                let Some(id) = attachment.get("id").and_then(id_of) else {
                    errors.required(&format!("attachments.{n}.id"));
                    continue;
                };
                let named = |key: &str| attachment.get(key).and_then(Value::as_str).map(str::to_owned);
                let description = named("description");
                if description.as_ref().is_some_and(|text| super::chars(text) > DESCRIPTION_MAX) {
                    errors.too_long(&format!("attachments.{n}.description"), DESCRIPTION_MAX);
                }
                listed.insert(id, Listed { filename: named("filename"), description });
            }
            self.listed = Some(listed);
        }
        if settings.holds(Rule::FileCount) && self.uploads.len() > FILES_MAX {
            errors.too_long("attachments", FILES_MAX);
        }
        Ok(())
    }

    /// Whether the message has no content.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let content = self.content.as_ref().and_then(Option::as_deref).unwrap_or_default();
        content.is_empty() && self.components.as_ref().is_none_or(Vec::is_empty) && self.uploads.is_empty()
    }

    /// The text; empty if missing.
    #[must_use]
    pub fn text(&self) -> String {
        self.content.clone().flatten().unwrap_or_default()
    }

    /// Removes the uploaded files and assigns ids to them.
    pub fn take_uploads(&mut self, mut mint: impl FnMut() -> Id) -> Vec<(Attachment, Vec<u8>)> {
        let listed = self.listed.clone().unwrap_or_default();
        let uploads = std::mem::take(&mut self.uploads);
        let attach = |upload: Upload| {
            let of = listed.get(&upload.n).cloned().unwrap_or_default();
            let file = Attachment {
                id: mint(),
                filename: of.filename.unwrap_or(upload.filename),
                content_type: upload.content_type,
                description: of.description,
                size: upload.bytes.len() as u64,
            };
            (file, upload.bytes)
        };
        uploads.into_iter().map(attach).collect()
    }
}
