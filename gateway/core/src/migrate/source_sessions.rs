//! Sessions of OpenClaw: rows of `acp_sessions` and entries of `sessions.json`.

use super::fields::{Fields, column};
use super::{MigrationLine, RecordKind};
use crate::runtime::acpx::handle::AcpxHandle;
use data_encoding::BASE64URL_NOPAD;
use serde_json::Value;

/// Prefix of a key with the agent in base64url of JSON.
const SCOPED_V1: &str = "@acp:v1:";
/// Prefix of a key of another version of that form.
const SCOPED: &str = "@acp:";
/// Prefix of a key with the agent as text.
const OF_AGENT: &str = "@agent:";
/// Prefix of the fence of a closed session.
const CLOSED_FENCE: &str = "closed:";
/// Limits of OpenClaw for options.
const EXTRAS_MAX: usize = 32;

/// Options of a session. `rest` names those without a place here.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SourceOptions {
    /// Mode of the agent.
    pub mode_id: Option<String>,
    /// Model of the agent.
    pub model: Option<String>,
    /// Permission profile.
    pub permission: Option<String>,
    /// Timeout of a turn, in seconds.
    pub timeout_s: Option<u64>,
    /// Working directory.
    pub cwd: Option<String>,
    /// Options of the backend, by key.
    pub extras: Vec<(String, String)>,
    /// Names of options without a place here.
    pub rest: Vec<String>,
}

/// State of a session at OpenClaw.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SourceState {
    /// No turn was running.
    Idle,
    /// A turn was running.
    Running,
    /// The session had failed.
    Error,
    /// The session was closed.
    Closed,
}

/// Metadata of an ACP session, the same in both sources.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AcpMeta {
    /// Name of the backend.
    pub backend: String,
    /// Name of the agent.
    pub agent: String,
    /// Handle of acpx; `None` if the session has another backend or no handle.
    pub handle: Option<AcpxHandle>,
    /// Id of the record of acpx.
    pub acpx_record_id: Option<String>,
    /// Id of the conversation at the agent.
    pub acpx_session_id: Option<String>,
    /// True if the session is for one turn.
    pub is_oneshot: bool,
    /// Options.
    pub options: SourceOptions,
    /// Working directory; the one of the options wins.
    pub cwd: Option<String>,
    /// State.
    pub state: SourceState,
    /// Time of the last activity, milliseconds since the Unix epoch.
    pub last_activity_at_ms: u64,
    /// True if the row has an error; the text is not kept, since it may hold secrets.
    pub has_error: bool,
}

/// Entry of `sessions.json`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionEntry {
    /// Session key.
    pub key: String,
    /// File.
    pub source: String,
    /// Values that a fence may have: the id of the entry and its lifecycle revision.
    pub fences: Vec<String>,
    /// Metadata of the ACP session, unless it is in `acp_sessions`.
    pub meta: Option<AcpMeta>,
    /// Label.
    pub label: Option<String>,
    /// Session that spawned this one.
    pub spawned_by: Option<String>,
    /// Parent session.
    pub parent: Option<String>,
    /// True if the entry is archived.
    pub is_archived: bool,
}

/// Row of `acp_sessions`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AcpSessionRow {
    /// Session key, without its scope.
    pub key: String,
    /// File.
    pub source: String,
    /// Fence: the entry that the row belongs to.
    pub fence: Option<String>,
    /// Metadata.
    pub meta: AcpMeta,
}

/// Removes the scope of a key in `acp_sessions`.
///
/// # Errors
/// The scope has another version or shape.
pub fn unscoped_key(text: &str) -> Result<String, String> {
    if let Some(encoded) = text.strip_prefix(SCOPED_V1) {
        let unreadable =
            || format!("the key is not `{SCOPED_V1}` and base64url of an array of agent and key");
        let json = BASE64URL_NOPAD.decode(encoded.as_bytes()).map_err(|_error| unreadable())?;
        let (_, key): (Option<String>, String) =
            serde_json::from_slice(&json).map_err(|_error| unreadable())?;
        return Ok(key);
    }
    if text.starts_with(SCOPED) {
        return Err(format!("the key has another version than `{SCOPED_V1}`"));
    }
    if let Some(rest) = text.strip_prefix(OF_AGENT) {
        let key = rest.split_once(':').map(|(_, key)| key).filter(|key| !key.is_empty());
        return key.map(str::to_owned).ok_or_else(|| format!("the key has no key behind `{OF_AGENT}ID:`"));
    }
    Ok(text.to_owned())
}

/// Reads a row of `acp_sessions`.
///
/// # Errors
/// A line about the row.
pub fn acp_session_row(row: &Value, source: &str) -> Result<AcpSessionRow, MigrationLine> {
    let stored = row.get("session_key").and_then(Value::as_str).unwrap_or("?");
    let shown = unscoped_key(stored).unwrap_or_else(|_why| stored.to_owned());
    parse_row(row, source).map_err(|why| MigrationLine::refuse(RecordKind::Session, &shown, source, why))
}

fn parse_row(row: &Value, source: &str) -> Result<AcpSessionRow, String> {
    let fields = Fields::of(row)?;
    let key = unscoped_key(fields.required("session_key")?)?;
    let identity = column(fields, "identity_json")?;
    let options = column(fields, "runtime_options_json")?;
    let identity = identity.as_ref().map(Fields::of).transpose()?;
    let options = options.as_ref().map(Fields::of).transpose()?;
    let mut meta =
        parse_meta(fields, fields.text("runtime_session_name")?, identity, options, "last_activity_at")?;
    meta.has_error = fields.text("last_error").unwrap_or(Some("")).is_some();
    let fence = fields.text("session_id")?.map(str::to_owned);
    if fence.as_ref().is_some_and(|fence| fence.starts_with(CLOSED_FENCE)) {
        meta.state = SourceState::Closed;
    }
    let fence = fence.map(|fence| fence.strip_prefix(CLOSED_FENCE).unwrap_or(&fence).to_owned());
    Ok(AcpSessionRow { key, source: source.to_owned(), fence, meta })
}

/// Reads a file `sessions.json`: entries of ACP sessions, and relations of others, by key.
pub fn session_entries(file: &Value, source: &str) -> (Vec<SessionEntry>, Vec<MigrationLine>) {
    let refused =
        |why: String| (Vec::new(), vec![MigrationLine::refuse(RecordKind::File, source, source, why)]);
    let fields = match Fields::of(file) {
        Ok(fields) => fields,
        Err(why) => return refused(why),
    };
    if let Some(version) = fields.0.get("version").filter(|version| !version.is_object()) {
        let version =
            version.as_i64().map_or_else(|| "another version".to_owned(), |it| format!("version {it}"));
        return refused(format!("it has {version}; this file has no version in the form that is read"));
    }
    let (mut entries, mut lines) = (Vec::new(), Vec::new());
    for (key, value) in fields.0 {
        match parse_entry(key, value, source) {
            Ok(entry) => entries.push(entry),
            Err(why) => lines.push(MigrationLine::refuse(RecordKind::Session, key, source, why)),
        }
    }
    (entries, lines)
}

fn parse_entry(key: &str, value: &Value, source: &str) -> Result<SessionEntry, String> {
    let fields = Fields::of(value)?;
    let meta = match fields.object("acp")? {
        None => None,
        Some(acp) => {
            let name = acp.text("runtimeSessionName")?;
            let (identity, options) = (acp.object("identity")?, acp.object("runtimeOptions")?);
            let mut meta = parse_meta(acp, name, identity, options, "lastActivityAt")?;
            meta.has_error = acp.0.get("lastError").is_some_and(|error| !error.is_null());
            Some(meta)
        }
    };
    let own = |text: Option<&str>| text.map(str::to_owned);
    let fences = [fields.id("sessionId")?, fields.id("lifecycleRevision")?];
    Ok(SessionEntry {
        key: key.to_owned(),
        source: source.to_owned(),
        fences: fences.into_iter().flatten().collect(),
        meta,
        label: own(fields.text("label")?),
        spawned_by: own(fields.text("spawnedBy")?),
        parent: own(fields.text("parentSessionKey")?),
        is_archived: fields.0.get("archivedAt").is_some_and(|at| !at.is_null()),
    })
}

fn parse_meta(
    fields: Fields<'_>,
    name: Option<&str>,
    identity: Option<Fields<'_>>,
    options: Option<Fields<'_>>,
    activity: &str,
) -> Result<AcpMeta, String> {
    let own = |text: Option<&str>| text.map(str::to_owned);
    let is_oneshot = match fields.text("mode")? {
        None | Some("persistent") => false,
        Some("oneshot") => true,
        Some(_) => return Err("`mode` is neither persistent nor oneshot".to_owned()),
    };
    let state = match fields.text("state")? {
        None | Some("idle") => SourceState::Idle,
        Some("running") => SourceState::Running,
        Some("error") => SourceState::Error,
        Some("closed") => SourceState::Closed,
        Some(_) => return Err("`state` is none of idle, running, error and closed".to_owned()),
    };
    let backend = fields.required("backend")?.to_owned();
    let handle = match name.filter(|name| backend == "acpx" && name.starts_with("acpx:")) {
        Some(name) => Some(AcpxHandle::parse(name).map_err(|error| error.to_string())?),
        None => None,
    };
    let of_identity = |name: &str| match identity {
        Some(identity) => identity.text(name).map(own),
        None => Ok(None),
    };
    Ok(AcpMeta {
        backend,
        agent: fields.required("agent")?.to_owned(),
        handle,
        acpx_record_id: of_identity("acpxRecordId")?,
        acpx_session_id: of_identity("acpxSessionId")?,
        is_oneshot,
        options: options.map(parse_options).transpose()?.unwrap_or_default(),
        cwd: own(fields.text("cwd")?),
        state,
        last_activity_at_ms: fields.time(activity)?.unwrap_or(0),
        has_error: false,
    })
}

fn parse_options(fields: Fields<'_>) -> Result<SourceOptions, String> {
    const KNOWN: [&str; 6] =
        ["runtimeMode", "model", "permissionProfile", "timeoutSeconds", "cwd", "backendExtras"];
    let own = |text: Option<&str>| text.map(str::to_owned);
    let mut extras = Vec::new();
    if let Some(map) = fields.object("backendExtras")? {
        if map.0.len() > EXTRAS_MAX {
            return Err(format!("`backendExtras` has more than {EXTRAS_MAX} options"));
        }
        for key in map.0.keys() {
            if !key.bytes().all(|b| b.is_ascii_alphanumeric() || b"._:-".contains(&b)) || key.len() > 64 {
                return Err("`backendExtras` has a key that is no option".to_owned());
            }
            extras.extend(map.text(key)?.map(|value| (key.clone(), value.to_owned())));
        }
    }
    let is_rest = |name: &&String| !KNOWN.contains(&name.as_str());
    let timeout_s = match fields.number("timeoutSeconds")? {
        None => None,
        Some(seconds) if (1..=86_400).contains(&seconds) => u64::try_from(seconds).ok(),
        Some(_) => return Err("`timeoutSeconds` is not between 1 and 86400".to_owned()),
    };
    Ok(SourceOptions {
        mode_id: own(fields.text("runtimeMode")?),
        model: own(fields.text("model")?),
        permission: own(fields.text("permissionProfile")?),
        timeout_s,
        cwd: own(fields.text("cwd")?),
        extras,
        rest: fields
            .0
            .iter()
            .filter(|(_, value)| !value.is_null())
            .map(|(name, _)| name)
            .filter(is_rest)
            .cloned()
            .collect(),
    })
}
