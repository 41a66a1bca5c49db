//! Files attached to a message: stored with the run, and converted to content blocks for the agent.
//!
//! An ACP agent declares the content types it accepts (`promptCapabilities`). A text that names the file
//! replaces other content, so that the agent can report the omission; no file is dropped silently. Source:
//! ACP "Content", `discord.md` §3 "Files".

use crate::api::FileBody;
use data_encoding::BASE64;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::sync::Arc;

/// Maximum number of files of one message.
pub const FILES_MAX: usize = 10;
/// Maximum total size of the files of one message, in bytes. Files beyond the limit are omitted.
pub const FILES_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Maximum size of a text file inlined into the prompt of an agent without embedded files, in bytes.
const INLINE_BYTES_MAX: usize = 64 * 1024;
/// Maximum length of a file name and of a media type, in characters.
const NAME_CHARS_MAX: usize = 200;

/// File attached to a message, as received from a channel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attachment {
    /// Name of the file.
    pub name: String,
    /// Media type, e.g. `image/png`; empty if unknown.
    pub mime: String,
    /// Content of the file.
    pub content: AttachmentContent,
}

/// Content of an attached file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AttachmentContent {
    /// Fetched content.
    Bytes(Vec<u8>),
    /// Content not fetched.
    LeftOut {
        /// Size in bytes, as far as known.
        bytes: u64,
        /// Reason, for the agent and for people.
        why: String,
    },
}

/// Attached file, as stored with a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PromptFile {
    name: String,
    mime: String,
    data: FileData,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum FileData {
    Text(String),
    Base64 {
        bytes: u64,
        base64: String,
    },
    LeftOut(String),
    /// Content block of an ACP client as received, JSON text.
    Block(String),
}

impl PromptFile {
    /// Creates the entry for a content block of an ACP client, JSON text.
    pub fn block(raw: &str) -> Self {
        Self { name: String::new(), mime: String::new(), data: FileData::Block(raw.to_owned()) }
    }
}

/// Returns a content block as received, or a text that says what the agent does not take.
fn client_block(raw: &str, takes: AcceptedContent) -> Value {
    let block: Value = serde_json::from_str(raw).unwrap_or_default();
    let kind = block.get("type").and_then(Value::as_str).unwrap_or_default();
    let is_taken = match kind {
        "image" => takes.image,
        "audio" => takes.audio,
        "resource" => takes.embedded,
        _ => block.is_object(),
    };
    if is_taken {
        return block;
    }
    let resource = block.pointer("/resource/text").and_then(Value::as_str);
    match resource.filter(|text| text.len() <= INLINE_BYTES_MAX) {
        Some(text) => json!({ "type": "text", "text": text }),
        None => {
            json!({ "type": "text", "text": format!("[Left out: this agent does not take content of the type {kind:?}.]") })
        }
    }
}

/// Converts the files of a message, within the limits of one message.
pub fn from_attachments(attachments: &[Attachment]) -> Vec<PromptFile> {
    let mut room = FILES_BYTES_MAX;
    let mut out: Vec<PromptFile> = Vec::new();
    for attachment in attachments.iter().take(FILES_MAX) {
        let data = match &attachment.content {
            AttachmentContent::LeftOut { bytes, why } => FileData::LeftOut(format!("{bytes} bytes: {why}")),
            AttachmentContent::Bytes(bytes) if bytes.len() > room => FileData::LeftOut(format!(
                "{} bytes: all files of a message may have {FILES_BYTES_MAX}",
                bytes.len()
            )),
            AttachmentContent::Bytes(bytes) => {
                room -= bytes.len();
                match std::str::from_utf8(bytes)
                    .ok()
                    .filter(|text| !is_media(&attachment.mime) && !text.contains('\0'))
                {
                    Some(text) => FileData::Text(text.to_owned()),
                    None => FileData::Base64 { bytes: bytes.len() as u64, base64: BASE64.encode(bytes) },
                }
            }
        };
        out.push(PromptFile { name: clean_name(&attachment.name), mime: clean_name(&attachment.mime), data });
    }
    let more = attachments.len().saturating_sub(FILES_MAX);
    if more > 0 {
        let why = format!("a message may bring {FILES_MAX} files");
        out.push(PromptFile {
            name: format!("{more} more"),
            mime: String::new(),
            data: FileData::LeftOut(why),
        });
    }
    out
}

/// Converts the files of a request.
///
/// # Errors
/// A text for people: a file is not base64, or the files exceed the limits of one message.
pub fn from_request(files: Vec<FileBody>) -> Result<Vec<PromptFile>, String> {
    if files.len() > FILES_MAX {
        return Err(format!("{} files: a prompt may have {FILES_MAX}", files.len()));
    }
    let mut total = 0;
    let mut attachments = Vec::new();
    for FileBody { name, mime, base64 } in files {
        let bytes = BASE64
            .decode(base64.as_bytes())
            .map_err(|error| format!("file {name:?} is not base64: {error}"))?;
        total += bytes.len();
        attachments.push(Attachment { name, mime, content: AttachmentContent::Bytes(bytes) });
    }
    if total > FILES_BYTES_MAX {
        return Err(format!("{total} bytes of files: a prompt may have {FILES_BYTES_MAX}"));
    }
    Ok(from_attachments(&attachments))
}

/// Serializes files for the row of a run; `None` if empty.
pub fn serialize_files(files: &[PromptFile]) -> Option<Arc<str>> {
    if files.is_empty() { None } else { serde_json::to_string(files).ok().map(Arc::from) }
}

fn is_media(mime: &str) -> bool {
    ["image/", "audio/", "video/"].iter().any(|kind| mime.starts_with(kind))
}

fn clean_name(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(NAME_CHARS_MAX).collect()
}

/// Content types accepted by an agent besides text.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AcceptedContent {
    /// Images.
    pub image: bool,
    /// Audio.
    pub audio: bool,
    /// Files embedded in the prompt.
    pub embedded: bool,
}

/// Returns the content blocks of a prompt with these files, as parameters of `session/prompt`.
pub fn content_blocks(text: &str, kept: Option<&str>, takes: AcceptedContent) -> Value {
    let files: Vec<PromptFile> = kept.and_then(|kept| serde_json::from_str(kept).ok()).unwrap_or_default();
    let has_text = !text.is_empty() || files.is_empty();
    let mut out: Vec<Value> = has_text.then(|| json!({ "type": "text", "text": text })).into_iter().collect();
    out.extend((1..).zip(files).map(|(number, file)| content_block(number, file, takes)));
    Value::Array(out)
}

fn content_block(number: usize, file: PromptFile, takes: AcceptedContent) -> Value {
    let PromptFile { name, mime, data } = file;
    let uri = format!("attachment:///{number}/{}", percent_encode(&name));
    let said =
        |what: &str| json!({ "type": "text", "text": format!("[The file {name} was left out: {what}.]") });
    match data {
        FileData::LeftOut(why) => said(&why),
        FileData::Block(raw) => client_block(&raw, takes),
        FileData::Text(text) if takes.embedded => {
            let mime = if mime.is_empty() { "text/plain" } else { &mime };
            json!({ "type": "resource", "resource": { "uri": uri, "mimeType": mime, "text": text } })
        }
        FileData::Text(text) if text.len() <= INLINE_BYTES_MAX => {
            json!({ "type": "text", "text": format!("[The file {name}:]\n{text}\n[The end of {name}.]") })
        }
        FileData::Text(text) => said(&format!("{} bytes, and this agent takes no files", text.len())),
        FileData::Base64 { base64, .. } if takes.image && mime.starts_with("image/") => {
            json!({ "type": "image", "mimeType": mime, "data": base64, "uri": uri })
        }
        FileData::Base64 { base64, .. } if takes.audio && mime.starts_with("audio/") => {
            json!({ "type": "audio", "mimeType": mime, "data": base64 })
        }
        FileData::Base64 { base64, .. } if takes.embedded && !is_media(&mime) => {
            json!({ "type": "resource", "resource": { "uri": uri, "mimeType": mime, "blob": base64 } })
        }
        FileData::Base64 { bytes, .. } => {
            let kind = if mime.is_empty() { "such files" } else { &mime };
            said(&format!("{bytes} bytes, and this agent does not take {kind}"))
        }
    }
}

/// Percent-encodes a name for a URI.
fn percent_encode(name: &str) -> String {
    let mut out = String::new();
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            // Writing into a String cannot fail.
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str, mime: &str, bytes: &[u8]) -> Attachment {
        let content = AttachmentContent::Bytes(bytes.to_vec());
        Attachment { name: name.to_owned(), mime: mime.to_owned(), content }
    }

    const ALL: AcceptedContent = AcceptedContent { image: true, audio: true, embedded: true };

    #[test]
    fn files_of_a_request_are_refused_beyond_the_limits() {
        let body = |base64: &str| FileBody {
            name: "a.txt".to_owned(),
            mime: String::new(),
            base64: base64.to_owned(),
        };
        let half = BASE64.encode(&vec![b'x'; FILES_BYTES_MAX / 2 + 1]);
        for (files, want) in [
            (vec![body("aGk=")], Ok(1)),
            (Vec::new(), Ok(0)),
            (vec![body("aGk=?")], Err("file \"a.txt\" is not base64")),
            (vec![body("aGk="); 11], Err("11 files: a prompt may have 10")),
            (vec![body(&half), body(&half)], Err("8388610 bytes of files: a prompt may have 8388608")),
        ] {
            let got = from_request(files).map(|files| files.len());
            match (&got, want) {
                (Err(got), Err(want)) => assert!(got.starts_with(want), "{got}"),
                (got, want) => assert_eq!(got.as_ref().ok(), want.as_ref().ok()),
            }
        }
    }

    #[test]
    fn unsupported_files_are_replaced_by_notes() {
        let png = file("a b.png", "image/png", &[0x89, 0, 0xff]);
        let source = file("x.rs", "", b"fn main() {}");
        let zip = file("z.zip", "application/zip", &[0x50, 0x4b, 0xff]);
        let omitted = Attachment {
            name: "big".to_owned(),
            mime: String::new(),
            content: AttachmentContent::LeftOut { bytes: 99, why: "too long".to_owned() },
        };
        let kept = serialize_files(&from_attachments(&[png, source, zip, omitted])).unwrap();
        assert_eq!(
            content_blocks("hi", Some(&kept), ALL),
            json!([
                {"type": "text", "text": "hi"},
                {"type": "image", "mimeType": "image/png", "data": "iQD/", "uri": "attachment:///1/a%20b.png"},
                {"type": "resource", "resource": {"uri": "attachment:///2/x.rs", "mimeType": "text/plain",
                    "text": "fn main() {}"}},
                {"type": "resource", "resource": {"uri": "attachment:///3/z.zip", "mimeType": "application/zip",
                    "blob": "UEv/"}},
                {"type": "text", "text": "[The file big was left out: 99 bytes: too long.]"},
            ])
        );
        assert_eq!(
            content_blocks("hi", Some(&kept), AcceptedContent::default()),
            json!([
                {"type": "text", "text": "hi"},
                {"type": "text", "text": "[The file a b.png was left out: 3 bytes, and this agent does not take image/png.]"},
                {"type": "text", "text": "[The file x.rs:]\nfn main() {}\n[The end of x.rs.]"},
                {"type": "text", "text": "[The file z.zip was left out: 3 bytes, and this agent does not take application/zip.]"},
                {"type": "text", "text": "[The file big was left out: 99 bytes: too long.]"},
            ])
        );
        assert_eq!(content_blocks("hi", None, ALL), json!([{"type": "text", "text": "hi"}]));
    }

    #[test]
    fn files_over_the_limit_are_omitted_with_a_note() {
        let half = FILES_BYTES_MAX / 2;
        let files =
            [file("a", "", &vec![b'x'; half]), file("b", "", &vec![b'x'; half + 1]), file("c", "", b"y")];
        let blocks = content_blocks("t", serialize_files(&from_attachments(&files)).as_deref(), ALL);
        let left_out =
            |at: usize| blocks[at]["text"].as_str().is_some_and(|text| text.contains("was left out"));
        assert!(!left_out(1) && left_out(2) && !left_out(3), "{:?}", blocks[2]);
        let many: Vec<Attachment> = (0..FILES_MAX + 2).map(|at| file(&at.to_string(), "", b"x")).collect();
        let blocks = content_blocks("t", serialize_files(&from_attachments(&many)).as_deref(), ALL);
        assert_eq!(blocks.as_array().map(Vec::len), Some(FILES_MAX + 2));
        assert!(blocks[FILES_MAX + 1]["text"].as_str().unwrap().contains("2 more"), "{blocks}");
    }
}
