//! Bindings of OpenClaw in their three forms: records of Discord threads (file or plugin state), records of any channel
//! (file), rows of `current_conversation_bindings`.

use super::fields::{Fields, column, records};
use super::{MigrationLine, RecordKind};
use serde_json::{Map, Value, json};

/// Channel of thread bindings.
pub const DISCORD: &str = "discord";
/// Account of a record without one.
const DEFAULT_ACCOUNT: &str = "default";

/// Binding of a conversation at OpenClaw. A record's webhook id and token are never read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceBinding {
    /// File.
    pub source: String,
    /// Channel.
    pub channel: String,
    /// Account of the channel.
    pub account: String,
    /// Conversation, without the prefix `channel:`.
    pub conversation: String,
    /// Parent conversation.
    pub parent: Option<String>,
    /// True if the target is a subagent of OpenClaw itself.
    pub is_subagent: bool,
    /// Session key of the target.
    pub session_key: String,
    /// Name of the person who bound the conversation.
    pub bound_by: String,
    /// Time of the binding, milliseconds since the Unix epoch.
    pub bound_at_ms: Option<u64>,
    /// Time of the last activity.
    pub last_activity_at_ms: Option<u64>,
    /// Idle timeout; `None` for the configured one, 0 for none.
    pub idle_ms: Option<u64>,
    /// Maximum age; as the idle timeout.
    pub max_age_ms: Option<u64>,
    /// Time of the end in records that have no timeouts; zero or less for none.
    pub expires_at_ms: Option<i64>,
    /// True if the binding has ended.
    pub is_ended: bool,
}

impl SourceBinding {
    /// Identity of the conversation, also the key in the report.
    pub fn key(&self) -> String {
        format!("{}:{}:{}", self.channel, self.account, self.conversation)
    }
}

/// Result of reading a file: bindings, and lines about records that cannot be read.
pub type ReadBindings = (Vec<SourceBinding>, Vec<MigrationLine>);

/// Reads `discord/thread-bindings.json`.
pub fn thread_binding_file(file: &Value, source: &str) -> ReadBindings {
    let found = records(file, "bindings")
        .and_then(|bindings| Fields::of(bindings).map_err(|_why| "`bindings` is not an object".to_owned()));
    match found {
        Err(why) => (Vec::new(), vec![MigrationLine::refuse(RecordKind::File, source, source, why)]),
        Ok(map) => collect(
            map.0.iter().map(|(key, value)| (key.as_str(), thread_binding(key, value, source))),
            source,
        ),
    }
}

/// Reads `bindings/current-conversations.json`.
pub fn conversation_file(file: &Value, source: &str) -> ReadBindings {
    let refused =
        |why: String| (Vec::new(), vec![MigrationLine::refuse(RecordKind::File, source, source, why)]);
    let list = match records(file, "bindings") {
        Ok(Value::Array(list)) => list,
        Ok(_) => return refused("`bindings` is not an array".to_owned()),
        Err(why) => return refused(why),
    };
    collect(list.iter().map(|record| (record_key(record), conversation_record(record, source))), source)
}

/// Reads rows of `current_conversation_bindings`.
pub fn conversation_rows(rows: &[Value], source: &str) -> ReadBindings {
    let text = |row: &Value, column: &str| row.get(column).and_then(Value::as_str).unwrap_or("?").to_owned();
    let key = |row: &Value| {
        format!("{}:{}:{}", text(row, "channel"), text(row, "account_id"), text(row, "conversation_id"))
    };
    let read: Vec<_> = rows.iter().map(|row| (key(row), conversation_row(row, source))).collect();
    collect(read.iter().map(|(key, read)| (key.as_str(), read.clone())), source)
}

/// Reads thread bindings in the state of the Discord plugin: entry keys and values.
pub fn plugin_entries<'a>(entries: impl Iterator<Item = (&'a str, &'a Value)>, source: &str) -> ReadBindings {
    collect(entries.map(|(key, value)| (key, thread_binding(key, value, source))), source)
}

fn record_key(record: &Value) -> &str {
    record.get("bindingId").and_then(Value::as_str).unwrap_or("?")
}

fn collect<'a>(
    read: impl Iterator<Item = (&'a str, Result<SourceBinding, String>)>,
    source: &str,
) -> ReadBindings {
    let (mut bindings, mut lines) = (Vec::new(), Vec::new());
    for (key, read) in read {
        match read {
            Ok(binding) => bindings.push(binding),
            Err(why) => lines.push(MigrationLine::refuse(RecordKind::Binding, key, source, why)),
        }
    }
    (bindings, lines)
}

/// Removes the prefix `channel:` of an id.
fn bare_id(id: &str) -> &str {
    id.strip_prefix("channel:").unwrap_or(id)
}

/// Reads one record of a Discord thread. Its key is the thread, or account and thread.
fn thread_binding(key: &str, value: &Value, source: &str) -> Result<SourceBinding, String> {
    let fields = Fields::of(value)?;
    let (account, thread) =
        key.rsplit_once(':').map_or((None, key), |(account, thread)| (Some(account), thread));
    let account = fields.text("accountId")?.or(account).unwrap_or(DEFAULT_ACCOUNT).to_owned();
    let thread = fields.id("threadId")?.unwrap_or_else(|| thread.to_owned());
    let session_key = fields.first_text(&["targetSessionKey", "sessionKey"])?;
    let session_key = session_key.ok_or("`targetSessionKey` is missing")?.to_owned();
    let parent = fields.id("channelId")?.ok_or("`channelId` is missing")?;
    let is_subagent = match fields.text("targetKind")? {
        Some("acp") => false,
        Some("subagent") => true,
        Some(_) => return Err("`targetKind` is neither acp nor subagent".to_owned()),
        None => session_key.contains(":subagent:"),
    };
    let conversation = bare_id(&thread).to_owned();
    if conversation.is_empty() {
        return Err("`threadId` is missing".to_owned());
    }
    Ok(SourceBinding {
        source: source.to_owned(),
        channel: DISCORD.to_owned(),
        account,
        conversation,
        parent: Some(bare_id(&parent).to_owned()),
        is_subagent,
        session_key,
        bound_by: fields.id("boundBy")?.unwrap_or_else(|| "system".to_owned()),
        bound_at_ms: fields.time("boundAt")?,
        last_activity_at_ms: fields.time("lastActivityAt")?,
        idle_ms: fields.time("idleTimeoutMs")?,
        max_age_ms: fields.time("maxAgeMs")?,
        expires_at_ms: fields.number("expiresAt")?,
        is_ended: fields.number("endedAt")?.is_some(),
    })
}

/// Reads one record of any channel.
fn conversation_record(record: &Value, source: &str) -> Result<SourceBinding, String> {
    let fields = Fields::of(record)?;
    let at = fields.object("conversation")?.ok_or("`conversation` is missing")?;
    let empty = Map::new();
    let more = fields.object("metadata")?.unwrap_or(Fields(&empty));
    let session_key = fields.required("targetSessionKey")?;
    let is_subagent = match fields.text("targetKind")? {
        Some("subagent") => true,
        Some("session" | "acp") | None => session_key.contains(":subagent:"),
        Some(_) => return Err("the kind of the target is none of session, acp and subagent".to_owned()),
    };
    let is_ended = match fields.text("status")? {
        Some("active") | None => false,
        Some("ending" | "ended") => true,
        Some(_) => return Err("`status` is none of active, ending and ended".to_owned()),
    };
    let conversation = at.id("conversationId")?.ok_or("the id of the conversation is missing")?;
    let ended_at = more.number("endedAt")?;
    Ok(SourceBinding {
        source: source.to_owned(),
        channel: at.required("channel")?.to_ascii_lowercase(),
        account: at.text("accountId")?.unwrap_or(DEFAULT_ACCOUNT).to_owned(),
        conversation: bare_id(&conversation).to_owned(),
        parent: at.id("parentConversationId")?.map(|parent| bare_id(&parent).to_owned()),
        is_subagent,
        session_key: session_key.to_owned(),
        bound_by: more.id("boundBy")?.unwrap_or_else(|| "system".to_owned()),
        bound_at_ms: fields.time("boundAt")?,
        last_activity_at_ms: more.time("lastActivityAt")?,
        idle_ms: more.time("idleTimeoutMs")?,
        max_age_ms: more.time("maxAgeMs")?,
        expires_at_ms: fields.number("expiresAt")?,
        is_ended: is_ended || ended_at.is_some(),
    })
}

/// Reads one row of `current_conversation_bindings` as the record of the same binding.
fn conversation_row(row: &Value, source: &str) -> Result<SourceBinding, String> {
    let record = json!({
        "conversation": {
            "channel": row["channel"], "accountId": row["account_id"], "conversationId": row["conversation_id"],
            "parentConversationId": row["parent_conversation_id"],
        },
        "targetKind": row["target_kind"], "targetSessionKey": row["target_session_key"], "status": row["status"],
        "boundAt": row["bound_at"], "expiresAt": row["expires_at"],
        "metadata": column(Fields::of(row)?, "metadata_json")?,
    });
    conversation_record(&record, source)
}
