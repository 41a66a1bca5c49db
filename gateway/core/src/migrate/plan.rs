//! Plan of an import: rows to insert, and a line about each record that is left out.

use super::acpx_record::AcpxRecord;
use super::source_bindings::{DISCORD, SourceBinding};
use super::source_sessions::{AcpMeta, AcpSessionRow, SessionEntry, SourceState};
use super::{MigrationAction, MigrationLine, RecordKind};
use crate::config::PermissionMode;
use crate::event::EventKind;
use crate::failure::Failure;
use crate::policy::BindingTimeouts;
use crate::rows::{
    BindingRow, BindingStatus, ConversationRef, NonInteractive, SessionMode, SessionOptions, SessionRow,
    TargetKind,
};
use crate::runtime::direct;
use crate::session::{Ending, SessionState};
use acp_shared::codes::Code;
use acp_shared::ids::{AgentName, BindingId, GatewayInstanceId, SessionKey};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};

/// Start of Discord's ids, milliseconds since the Unix epoch.
const DISCORD_EPOCH_MS: u64 = 1_420_070_400_000;
/// Bits of a Discord id below its time.
const DISCORD_TIME_SHIFT: u32 = 22;
/// Stands for a conversation's id that OpenClaw did not record: the next prompt says that it cannot be resumed.
const UNKNOWN_CONVERSATION: &str = "unknown";

/// Records of all sources.
#[derive(Debug, Default)]
pub struct SourceRecords {
    /// Rows of `acp_sessions`.
    pub rows: Vec<AcpSessionRow>,
    /// Entries of `sessions.json`.
    pub entries: Vec<SessionEntry>,
    /// Bindings by source, the one that wins first.
    pub bindings: Vec<Vec<SourceBinding>>,
    /// Records of acpx.
    pub acpx: Vec<AcpxRecord>,
    /// Lines about files and records that cannot be read, and about leases.
    pub lines: Vec<MigrationLine>,
    /// Sources that cannot be read: where they would win, older records may be stale.
    pub unread: UnreadSources,
}

/// Names of sources that cannot be read.
#[derive(Debug, Default)]
pub struct UnreadSources {
    /// Source of `acp_sessions`: no entry is imported without it.
    pub rows: Option<String>,
    /// A file of entries: no row without an entry is imported.
    pub entries: Option<String>,
    /// Source of bindings, with the number of sources before it: no later source is imported.
    pub bindings: Option<(usize, String)>,
}

/// Settings of an agent for imported sessions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentDefaults {
    /// Canonical path of the session's working directory.
    pub cwd: String,
    /// Permission mode.
    pub permission: PermissionMode,
    /// Policy for permission requests without a person.
    pub non_interactive: NonInteractive,
}

/// Checks an agent and a working directory.
pub type AgentCheck<'a> = &'a dyn Fn(&AgentName, &str) -> Result<AgentDefaults, String>;

/// Choices of the operator, and the configuration of this gateway.
pub struct ImportSettings<'a> {
    /// True to import sessions.
    pub sessions: bool,
    /// True to import bindings.
    pub bindings: bool,
    /// True to import closed and archived sessions, too.
    pub include_closed: bool,
    /// Names of agents here, by their names at OpenClaw.
    pub agents: BTreeMap<String, String>,
    /// Accounts here, by their names at OpenClaw.
    pub accounts: BTreeMap<String, String>,
    /// Time of the import, milliseconds since the Unix epoch.
    pub now_ms: u64,
    /// Identity of this gateway.
    pub gateway_instance_id: GatewayInstanceId,
    /// Check of agent and working directory.
    pub check_agent: AgentCheck<'a>,
    /// Configured timeouts of bindings in an account of Discord.
    pub timeouts: &'a dyn Fn(&str) -> BindingTimeouts,
    /// Source of ids.
    pub new_binding_id: &'a dyn Fn() -> BindingId,
}

/// Session to import.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedSession {
    /// The row.
    pub row: SessionRow,
    /// File of the record.
    pub source: String,
    /// Remarks for the report.
    pub why: String,
    /// First rows of the journal.
    pub events: Vec<(EventKind, String)>,
}

/// Binding to import.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedBinding {
    /// The row.
    pub row: BindingRow,
    /// Key in the report.
    pub key: String,
    /// File of the record.
    pub source: String,
    /// Remarks for the report.
    pub why: String,
}

/// Rows to insert, and lines about all other records.
#[derive(Debug, Default)]
pub struct ImportPlan {
    /// Sessions.
    pub sessions: Vec<PlannedSession>,
    /// Bindings.
    pub bindings: Vec<PlannedBinding>,
    /// Lines about records that are not imported.
    pub lines: Vec<MigrationLine>,
}

/// Session of the source, put together from the row and the entry.
struct Candidate<'a> {
    key: &'a str,
    source: &'a str,
    meta: &'a AcpMeta,
    entry: Option<&'a SessionEntry>,
}

/// Reason why a record is not imported.
enum LeftOut {
    Skip(String),
    Refuse(String),
}

impl From<String> for LeftOut {
    fn from(why: String) -> Self {
        Self::Refuse(why)
    }
}

impl LeftOut {
    fn line(self, kind: RecordKind, key: &str, source: &str) -> MigrationLine {
        match self {
            Self::Skip(why) => MigrationLine::new(kind, key, source, MigrationAction::Skip, why),
            Self::Refuse(why) => MigrationLine::refuse(kind, key, source, why),
        }
    }
}

/// Plans the import of all records.
pub fn plan(records: &SourceRecords, settings: &ImportSettings<'_>) -> ImportPlan {
    let mut plan = ImportPlan { lines: records.lines.clone(), ..ImportPlan::default() };
    if settings.sessions {
        plan_sessions(records, settings, &mut plan);
    }
    if settings.bindings {
        plan_bindings(records, settings, &mut plan);
    }
    plan.lines.sort_by(|one, other| (one.kind, &one.key).cmp(&(other.kind, &other.key)));
    plan
}

fn plan_sessions(records: &SourceRecords, settings: &ImportSettings<'_>, plan: &mut ImportPlan) {
    for found in candidates(records).into_values() {
        // Two keys that differ in case only name one session at OpenClaw, and two sessions here.
        if let [one] = &found[..] {
            match session_row(one, records, settings) {
                Ok(planned) => plan.sessions.push(planned),
                Err(left_out) => plan.lines.push(left_out.line(RecordKind::Session, one.key, one.source)),
            }
            continue;
        }
        for one in &found {
            let others: Vec<&str> =
                found.iter().filter(|other| !std::ptr::eq(*other, one)).map(|other| other.source).collect();
            let why = format!(
                "another record has the same key, or one that differs in case only ({})",
                others.join(", ")
            );
            plan.lines.push(MigrationLine::refuse(RecordKind::Session, one.key, one.source, why));
        }
    }
}

/// Sessions by key in lower case. A row of the database hides the metadata of entries with its key.
fn candidates(records: &SourceRecords) -> BTreeMap<String, Vec<Candidate<'_>>> {
    let mut entries: BTreeMap<String, Vec<&SessionEntry>> = BTreeMap::new();
    for entry in &records.entries {
        entries.entry(entry.key.to_ascii_lowercase()).or_default().push(entry);
    }
    let mut found: BTreeMap<String, Vec<Candidate<'_>>> = BTreeMap::new();
    for row in &records.rows {
        let folded = row.key.to_ascii_lowercase();
        let near = entries.get(&folded).map(Vec::as_slice).unwrap_or_default();
        let entry = near.iter().find(|entry| entry.key == row.key).or(near.first()).copied();
        let (key, source, meta) = (row.key.as_str(), row.source.as_str(), &row.meta);
        found.entry(folded).or_default().push(Candidate { key, source, meta, entry });
    }
    for (folded, near) in entries {
        if found.contains_key(&folded) {
            continue;
        }
        let with_meta = near.iter().filter_map(|entry| {
            let (key, source) = (entry.key.as_str(), entry.source.as_str());
            Some(Candidate { key, source, meta: entry.meta.as_ref()?, entry: Some(entry) })
        });
        let of_key: Vec<_> = with_meta.collect();
        if !of_key.is_empty() {
            found.insert(folded, of_key);
        }
    }
    found
}

/// Fence of a candidate's row, if the candidate is a row.
fn fence_of<'a>(one: &Candidate<'_>, records: &'a SourceRecords) -> Option<&'a str> {
    let row = records.rows.iter().find(|row| row.key == one.key && row.source == one.source)?;
    row.fence.as_deref()
}

/// Refuses a session whose other records cannot be read: it may have been closed, or replaced.
fn check_readable(one: &Candidate<'_>, records: &SourceRecords) -> Result<(), String> {
    let is_other = |line: &&MigrationLine| {
        line.kind == RecordKind::Session && line.action.is_failure() && line.key.eq_ignore_ascii_case(one.key)
    };
    if let Some(line) = records.lines.iter().find(is_other) {
        return Err(format!("another record of it, in {}, cannot be read", line.source));
    }
    let is_row = records.rows.iter().any(|row| row.key == one.key && row.source == one.source);
    let unread = if is_row { &records.unread.entries } else { &records.unread.rows };
    match unread {
        Some(name) if !is_row => Err(format!("{name}, which wins, cannot be read")),
        Some(name) if one.entry.is_none() => Err(format!("its entry may be in {name}, which cannot be read")),
        _ => Ok(()),
    }
}

fn check_wanted(
    one: &Candidate<'_>,
    records: &SourceRecords,
    settings: &ImportSettings<'_>,
) -> Result<Option<Ending>, LeftOut> {
    let skip = |why: &str| Err(LeftOut::Skip(why.to_owned()));
    check_readable(one, records)?;
    if let Some(fence) = fence_of(one, records)
        && !one.entry.is_some_and(|entry| entry.fences.iter().any(|known| known == fence))
    {
        return skip("the row is stale: its session_id fits no entry of sessions.json");
    }
    if one.meta.is_oneshot {
        return skip("it is a oneshot session");
    }
    let is_archived = one.entry.is_some_and(|entry| entry.is_archived);
    let ending = match (one.meta.state == SourceState::Closed, is_archived) {
        (_, true) => Some(Ending::Archived),
        (true, false) => Some(Ending::Closed),
        (false, false) => None,
    };
    if ending.is_some() && !settings.include_closed {
        return skip(if is_archived {
            "it is archived; --include-closed imports it"
        } else {
            "it is closed; --include-closed imports it"
        });
    }
    Ok(ending)
}

/// Returns the session that a record names as owner, of which the import finds the root. A name that is no key leads nowhere.
fn owner_of(one: &Candidate<'_>, own: SessionKey, above: [Option<&SessionKey>; 2]) -> Option<SessionKey> {
    let is_readable = one.entry.is_none_or(|entry| {
        [entry.spawned_by.is_some(), entry.parent.is_some()] == above.map(|key| key.is_some())
    });
    is_readable.then(|| above[0].or(above[1]).cloned().unwrap_or(own))
}

fn session_row(
    one: &Candidate<'_>,
    records: &SourceRecords,
    settings: &ImportSettings<'_>,
) -> Result<PlannedSession, LeftOut> {
    let ending = check_wanted(one, records, settings)?;
    let meta = one.meta;
    let session_key = SessionKey::parse(one.key).map_err(|error| error.to_string())?;
    let name = settings.agents.get(&meta.agent).unwrap_or(&meta.agent);
    let agent = AgentName::parse(name).map_err(|error| error.to_string())?;
    let cwd = meta.options.cwd.as_deref().or(meta.cwd.as_deref());
    let cwd = cwd
        .or(meta.handle.as_ref().map(|handle| handle.cwd.as_str()))
        .ok_or("it has no working directory".to_owned())?;
    let defaults = (settings.check_agent)(&agent, cwd)?;
    let mut notes = Vec::new();
    if defaults.cwd != cwd {
        notes.push("its directory is reached through a link".to_owned());
    }
    if meta.state == SourceState::Running {
        notes.push("a turn was running".to_owned());
    }
    let options = options_of(meta, &defaults, &mut notes);
    let (conversation, resumable) = conversation_of(one, records)?;
    if !resumable {
        notes.push("resuming may fail with ACP_RESUME_UNAVAILABLE".to_owned());
    }
    let related = |text: Option<&String>| text.and_then(|key| SessionKey::parse(key).ok());
    let spawned_by = related(one.entry.and_then(|entry| entry.spawned_by.as_ref()));
    let parent = related(one.entry.and_then(|entry| entry.parent.as_ref()));
    let state = match (ending, meta.state) {
        (Some(_), _) => SessionState::Closed,
        (None, SourceState::Error) => SessionState::Error,
        (None, _) => SessionState::Idle,
    };
    let active_ms = meta.last_activity_at_ms.min(settings.now_ms);
    let at_ms = if active_ms == 0 { settings.now_ms } else { active_ms };
    let row = SessionRow {
        session_key: session_key.clone(),
        backend: direct::ID.to_owned(),
        agent,
        mode: SessionMode::Persistent,
        cwd: defaults.cwd,
        label: one.entry.and_then(|entry| entry.label.clone()),
        state,
        ending,
        last_error: (state == SessionState::Error).then(failed_at_source),
        owner_session_key: owner_of(one, session_key, [spawned_by.as_ref(), parent.as_ref()]),
        asked_by: String::new(),
        spawned_by,
        parent_session_key: parent,
        gateway_instance_id: settings.gateway_instance_id,
        agent_session_id: Some(conversation),
        resumable,
        agent_info: None,
        lease_id: None,
        options,
        last_session_seq: 0,
        pruned_seq: 0,
        created_at_ms: at_ms,
        updated_at_ms: settings.now_ms,
        last_activity_at_ms: at_ms,
    };
    let events = first_events(meta.state, ending);
    Ok(PlannedSession { row, source: one.source.to_owned(), why: notes.join("; "), events })
}

/// Cause of the state `error`. The text of OpenClaw is not imported, since it may hold secrets.
fn failed_at_source() -> Failure {
    Failure::new(Code::TurnFailed, "The session had failed when it was imported from OpenClaw.")
        .origin("gateway")
}

fn first_events(state: SourceState, ending: Option<Ending>) -> Vec<(EventKind, String)> {
    let text = match state {
        SourceState::Running => {
            "Imported from OpenClaw. A turn was running there; its outcome is unknown. Earlier turns are not imported."
        }
        _ => "Imported from OpenClaw. Earlier turns are not imported.",
    };
    let mut events = vec![(EventKind::Status, json!({ "status": "imported", "text": text }).to_string())];
    if let Some(ending) = ending {
        let closed = json!({ "reason": "closed at OpenClaw", "ending": ending });
        events.push((EventKind::Closed, closed.to_string()));
    }
    events
}

fn options_of(meta: &AcpMeta, defaults: &AgentDefaults, notes: &mut Vec<String>) -> SessionOptions {
    let source = &meta.options;
    let mut rest = source.rest.clone();
    let permission = match source.permission.as_deref() {
        None => defaults.permission,
        Some("approve-all") => PermissionMode::ApproveAll,
        Some("approve-reads") => PermissionMode::ApproveReads,
        Some("deny-all") => PermissionMode::DenyAll,
        Some("ask") => PermissionMode::Ask,
        Some(_) => {
            rest.push("permissionProfile".to_owned());
            defaults.permission
        }
    };
    if permission == PermissionMode::ApproveAll && source.permission.is_some() {
        notes.push("permission approve-all".to_owned());
    }
    if !rest.is_empty() {
        notes.push(format!("not imported: {}", rest.join(", ")));
    }
    SessionOptions {
        mode_id: source.mode_id.clone(),
        model: source.model.clone(),
        timeout_s: source.timeout_s,
        config: source.extras.clone(),
        ..SessionOptions::new(permission, defaults.non_interactive)
    }
}

/// Returns the id of a session's conversation at its agent, and true if the agent can resume it.
fn conversation_of(one: &Candidate<'_>, records: &SourceRecords) -> Result<(String, bool), LeftOut> {
    let meta = one.meta;
    if meta.backend != "acpx" {
        return Err(LeftOut::Refuse(format!("its backend {:?} is unknown; only acpx is read", meta.backend)));
    }
    let name = meta.handle.as_ref().map_or(one.key, |handle| handle.name.as_str());
    let by_id = meta
        .acpx_record_id
        .as_ref()
        .and_then(|id| records.acpx.iter().find(|record| record.record_id == *id));
    let record = by_id.or_else(|| records.acpx.iter().find(|record| record.name.as_deref() == Some(name)));
    let id = record.and_then(|record| record.acp_session_id.clone()).or_else(|| meta.acpx_session_id.clone());
    let can_resume = record.and_then(|record| record.can_resume).unwrap_or(false);
    let resumable = can_resume && id.is_some();
    Ok((id.unwrap_or_else(|| UNKNOWN_CONVERSATION.to_owned()), resumable))
}

fn plan_bindings(records: &SourceRecords, settings: &ImportSettings<'_>, plan: &mut ImportPlan) {
    let mut found: BTreeMap<String, Vec<&SourceBinding>> = BTreeMap::new();
    let mut decided = BTreeSet::new();
    for (number, level) in records.bindings.iter().enumerate() {
        let keys: BTreeSet<String> = level.iter().map(SourceBinding::key).collect();
        for binding in level {
            let key = binding.key();
            match check_newest(binding, number, &decided, records) {
                Ok(()) => found.entry(key).or_default().push(binding),
                Err(left_out) => plan.lines.push(left_out.line(RecordKind::Binding, &key, &binding.source)),
            }
        }
        decided.extend(keys);
    }
    for (key, of_key) in found {
        if let [binding] = &of_key[..] {
            match binding_row(binding, settings, plan) {
                Ok((row, why)) => {
                    plan.bindings.push(PlannedBinding { row, key, source: binding.source.clone(), why });
                }
                Err(left_out) => plan.lines.push(left_out.line(RecordKind::Binding, &key, &binding.source)),
            }
            continue;
        }
        for binding in of_key {
            let why = "the file has two records of this conversation";
            plan.lines.push(MigrationLine::refuse(RecordKind::Binding, &key, &binding.source, why));
        }
    }
}

/// Leaves out a binding of which a newer source has a record, or may have one that cannot be read.
fn check_newest(
    binding: &SourceBinding,
    number: usize,
    decided: &BTreeSet<String>,
    records: &SourceRecords,
) -> Result<(), LeftOut> {
    let key = binding.key();
    if decided.contains(&key) {
        return Err(LeftOut::Skip("a newer source has this conversation".to_owned()));
    }
    if let Some((first, name)) = &records.unread.bindings
        && number >= *first
    {
        return Err(LeftOut::Refuse(format!("{name}, which wins, cannot be read")));
    }
    let is_other = |line: &&MigrationLine| {
        line.kind == RecordKind::Binding && line.source != binding.source && key.ends_with(&line.key)
    };
    match records.lines.iter().find(|line| line.action.is_failure() && is_other(line)) {
        Some(line) => {
            Err(LeftOut::Refuse(format!("another record of it, in {}, cannot be read", line.source)))
        }
        None => Ok(()),
    }
}

fn binding_row(
    binding: &SourceBinding,
    settings: &ImportSettings<'_>,
    plan: &ImportPlan,
) -> Result<(BindingRow, String), LeftOut> {
    let skip = |why: &str| Err(LeftOut::Skip(why.to_owned()));
    if binding.channel != DISCORD {
        return skip("only conversations of Discord are imported");
    }
    if binding.is_ended {
        return skip("it has ended");
    }
    if binding.is_subagent {
        return skip("its target is a subagent of OpenClaw");
    }
    if !binding.conversation.bytes().all(|b| b.is_ascii_digit()) || binding.conversation.len() > 20 {
        return Err(LeftOut::Refuse("its conversation is no id of Discord".to_owned()));
    }
    let account = settings.accounts.get(&binding.account).unwrap_or(&binding.account).clone();
    let session_key = target_of(binding, plan)?;
    let bound_at_ms = binding.bound_at_ms.unwrap_or(settings.now_ms).min(settings.now_ms);
    let last_activity_at_ms = binding.last_activity_at_ms.unwrap_or(bound_at_ms).min(settings.now_ms);
    let timeouts = timeouts_of(binding, bound_at_ms, (settings.timeouts)(&account));
    let ends = [
        timeouts.idle_ms.map(|idle| last_activity_at_ms.saturating_add(idle)),
        timeouts.max_age_ms.map(|age| bound_at_ms.saturating_add(age)),
    ];
    if ends.into_iter().flatten().any(|end_ms| end_ms <= settings.now_ms) {
        return skip("its time is over");
    }
    let why = if account == binding.account { String::new() } else { format!("in account {account}") };
    // Messages before the import are not read: OpenClaw may have answered them.
    let since = settings.now_ms.saturating_sub(DISCORD_EPOCH_MS) << DISCORD_TIME_SHIFT;
    let row = BindingRow {
        binding_id: (settings.new_binding_id)(),
        conversation: ConversationRef {
            channel: DISCORD.to_owned(),
            account_id: account,
            conversation_id: binding.conversation.clone(),
            parent_conversation_id: binding.parent.clone(),
        },
        session_key,
        target_kind: TargetKind::Session,
        status: BindingStatus::Active,
        bound_by: binding.bound_by.clone(),
        bound_at_ms,
        last_activity_at_ms,
        idle_ms: timeouts.idle_ms,
        max_age_ms: timeouts.max_age_ms,
        verbosity: None,
        metadata: json!({ "imported": "openclaw", "since": since.to_string() }).to_string(),
        end_reason: None,
    };
    Ok((row, why))
}

/// Key of the target session, in the spelling of the imported session.
fn target_of(binding: &SourceBinding, plan: &ImportPlan) -> Result<SessionKey, LeftOut> {
    let is_target = |key: &str| key.eq_ignore_ascii_case(&binding.session_key);
    if let Some(planned) = plan.sessions.iter().find(|planned| is_target(planned.row.session_key.as_str())) {
        if planned.row.state == SessionState::Closed {
            return Err(LeftOut::Skip(format!("its session {} is closed", planned.row.session_key)));
        }
        return Ok(planned.row.session_key.clone());
    }
    let of_session = |line: &&MigrationLine| line.kind == RecordKind::Session && is_target(&line.key);
    match plan.lines.iter().find(of_session).map(|line| line.action) {
        Some(MigrationAction::Skip) => {
            Err(LeftOut::Skip(format!("its session {} is skipped", binding.session_key)))
        }
        Some(_) => Err(LeftOut::Refuse(format!("its session {} is refused", binding.session_key))),
        None => Ok(SessionKey::parse(&binding.session_key).map_err(|error| error.to_string())?),
    }
}

/// Timeouts of a binding; `configured` for absent ones.
pub(super) fn timeouts_of(
    binding: &SourceBinding,
    bound_at_ms: u64,
    configured: BindingTimeouts,
) -> BindingTimeouts {
    let on = |window: u64| Some(window).filter(|ms| *ms > 0);
    match (binding.idle_ms, binding.max_age_ms, binding.expires_at_ms) {
        (None, None, Some(end)) => {
            let age = u64::try_from(end)
                .ok()
                .filter(|end| *end > 0)
                .map(|end| end.saturating_sub(bound_at_ms).max(1));
            BindingTimeouts { idle_ms: None, max_age_ms: age }
        }
        (idle, age, _) => BindingTimeouts {
            idle_ms: idle.map_or(configured.idle_ms, on),
            max_age_ms: age.map_or(configured.max_age_ms, on),
        },
    }
}
