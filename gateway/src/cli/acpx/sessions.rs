//! `sessions …` and `status`.

use super::args::{Format, SessionName, SessionsVerb};
use super::{AcpxEnd, AcpxResult, Command, ids};
use crate::api::client::{EventSelection, encode};
use crate::cli::output::now_ms;
use acp_core::acpx_contract::{AcpxCode, AcpxNaming, ContractError, JournalLine, TurnText};
use acp_core::api::{AcpxSessionView, CloseBody, Opening, SessionView, SpawnBody, SpawnedView};
use acp_core::event::EventKind;
use acp_core::failure::Failure;
use acp_core::request::SessionStatus;
use acp_core::rows::SessionMode;
use acp_core::session::SessionState;
use acp_core::time_format::format_utc;
use acp_shared::codes::Code;
use acp_shared::ids::IdempotencyKey;
use serde_json::{Map, Value, json};
use std::collections::VecDeque;

/// Maximum time to wait for an agent to open its session, in seconds.
const OPENING_WAIT_S: u64 = 120;
/// Maximum length of a preview, in characters.
const PREVIEW_CHARS_MAX: usize = 120;
/// Size of an answer from which on its rest is not read for the preview, in bytes.
const ANSWER_BYTES_MAX: usize = 64 * 1024;
const DAY_MS: u64 = 86_400_000;

impl Command {
    pub(super) async fn sessions(&mut self, verb: SessionsVerb) -> AcpxResult {
        match verb {
            SessionsVerb::List { filter_cwd, .. } => self.list(filter_cwd).await,
            SessionsVerb::Ensure { name } => self.ensure(name).await,
            SessionsVerb::New { name } => self.create(name).await,
            SessionsVerb::Show { name } => self.show(name).await,
            SessionsVerb::History { name, limit } => self.history(name, limit).await,
            SessionsVerb::Close { name } => self.close(name).await,
            SessionsVerb::Watch { name, cursor } => self.watch(name, cursor).await,
            SessionsVerb::Prune { older_than, dry_run } => self.prune(older_than, dry_run).await,
        }
    }

    async fn ensure(&mut self, name: String) -> AcpxResult {
        let naming = self.naming(Some(name));
        let (spawned, session) = self.spawn_named(naming.clone()).await?;
        let created = !spawned.spawned.existing;
        let key = session.session_key.to_string();
        if created {
            self.created_banner(&naming, &session)?;
        }
        let mut members = ids(&session);
        members.insert("created".to_owned(), created.into());
        members.insert("name".to_owned(), named(&naming.name));
        let word = if created { "created" } else { "existing" };
        self.answer("session_ensured", members.into(), Some(&format!("{key}\t({word})")), Some(&key))
    }

    async fn create(&mut self, name: String) -> AcpxResult {
        let naming = AcpxNaming { replace: true, root: None, ..self.naming(Some(name)) };
        let (spawned, session) = self.spawn_named(naming.clone()).await?;
        let key = session.session_key.to_string();
        self.created_banner(&naming, &session)?;
        let mut members = ids(&session);
        members.insert("created".to_owned(), true.into());
        members.insert("name".to_owned(), named(&naming.name));
        let replaced = spawned.spawned.replaced.map(|replaced| replaced.to_string());
        members.insert("replacedSessionId".to_owned(), json!(replaced));
        let text = replaced.map_or_else(|| key.clone(), |replaced| format!("{key}\t(replaced {replaced})"));
        self.answer("session_ensured", members.into(), Some(&text), Some(&key))
    }

    fn created_banner(&mut self, naming: &AcpxNaming, session: &SessionView) -> AcpxResult {
        let label = if naming.name.is_empty() { "cwd" } else { &naming.name };
        self.note(&format!("[acpx] created session {label} ({})", session.session_key))?;
        self.note(&format!("[acpx] agent: {}", session.agent))?;
        Ok(self.note(&format!("[acpx] cwd: {}", session.cwd))?)
    }

    /// Creates or finds the session with a name, and waits until the agent has opened the session.
    async fn spawn_named(&mut self, naming: AcpxNaming) -> Result<(SpawnedView, SessionView), AcpxEnd> {
        let body = SpawnBody {
            wait_s: Some(OPENING_WAIT_S),
            acpx: Some(naming),
            ..self.spawn_body(SessionMode::Persistent)
        };
        let mut spawned: SpawnedView =
            self.client.post("/v1/sessions", &body, &IdempotencyKey::mint()).await?;
        let key = spawned.spawned.session_key.to_string();
        opened(&spawned).map_err(|end| end.of(&key))?;
        let model = self.options.model.clone().filter(|_| !spawned.spawned.existing);
        if let Some(model) = &model {
            self.set_model(&key, model).await.map_err(|end| end.of(&key))?;
        }
        let session = match spawned.session.take() {
            Some(session) if model.is_none() => *session,
            _ => self.view(&key).await?,
        };
        Ok((spawned, session))
    }

    /// Returns a session by its key.
    pub(super) async fn view(&self, key: &str) -> Result<SessionView, AcpxEnd> {
        Ok(self.client.get(&format!("/v1/sessions/{}", encode(key))).await?)
    }

    /// Returns the sessions of the agent, the open ones first.
    async fn all(&self) -> Result<Vec<AcpxSessionView>, AcpxEnd> {
        let agent = self.agent.as_ref().map(|agent| format!("&agent={}", encode(agent.as_str())));
        let path = format!("/v1/acpx/sessions?all=true{}", agent.unwrap_or_default());
        Ok(self.client.get(&path).await?)
    }

    /// Returns the session of exactly this directory: the open one, or else the last one.
    pub(super) async fn find_here(&self, name: Option<String>) -> Result<AcpxSessionView, AcpxEnd> {
        let naming = AcpxNaming { root: None, ..self.naming(name) };
        self.look_up(&naming, true).await?.ok_or_else(|| {
            let name = &naming.name;
            let what =
                if name.is_empty() { "cwd session".to_owned() } else { format!("session named {name:?}") };
            let text = format!("There is no {what} in {}; `acpx sessions list` shows them.", self.cwd);
            ContractError::new(AcpxCode::NoSession, text).into()
        })
    }

    async fn list(&mut self, filter: Option<std::path::PathBuf>) -> AcpxResult {
        let filter = filter.map(|dir| std::fs::canonicalize(&dir).unwrap_or(dir));
        let mut found = self.all().await?;
        found.retain(|named| {
            filter.as_ref().is_none_or(|dir| dir.as_path() == std::path::Path::new(&named.cwd))
        });
        if self.format == Format::Json {
            let records: Vec<Value> = found.iter().map(|named| record(named).into()).collect();
            return Ok(self.out.json(&records)?);
        }
        if found.is_empty() && self.format == Format::Text {
            self.out.line("No sessions")?;
        }
        for named in &found {
            let closed = if named.session.state == SessionState::Closed { " [closed]" } else { "" };
            let key = &named.session.session_key;
            let name = if named.name.is_empty() { "-" } else { &named.name };
            let used = format_utc(named.session.last_activity_at_ms);
            match self.format {
                Format::Quiet => self.out.line(&format!("{key}{closed}"))?,
                _ => self.out.line(&format!("{key}{closed}\t{name}\t{}\t{used}", named.cwd))?,
            }
        }
        Ok(self.out.flush()?)
    }

    async fn show(&mut self, name: Option<String>) -> AcpxResult {
        let named = self.find_here(name).await?;
        let record = record(&named);
        match self.format {
            Format::Json => self.out.json(&record)?,
            Format::Quiet => self.out.line(named.session.session_key.as_str())?,
            Format::Text => {
                for (label, member) in [
                    ("id", "id"),
                    ("sessionId", "acpxSessionId"),
                    ("agent", "agent"),
                    ("cwd", "cwd"),
                    ("name", "name"),
                    ("created", "createdAt"),
                    ("lastActivity", "lastUsedAt"),
                    ("state", "state"),
                ] {
                    let value = record.get(member).and_then(Value::as_str).unwrap_or("-");
                    self.out.line(&format!("{label}: {value}"))?;
                }
                let closed = if named.session.state == SessionState::Closed { "yes" } else { "no" };
                self.out.line(&format!("closed: {closed}"))?;
            }
        }
        Ok(self.out.flush()?)
    }

    async fn history(&mut self, name: Option<String>, limit: usize) -> AcpxResult {
        let named = self.find_here(name).await?;
        let session = named.session.session_key.clone();
        let selection = EventSelection { session, after: 0, run: None, replay: false, follow: false };
        let mut events = self.client.journal(selection);
        let mut history = History::new(limit);
        while let Some(line) = events.next().await? {
            let row = JournalLine::parse(&line)
                .map_err(|error| crate::cli::inside("cannot parse a row", &error))?;
            history.push(&row);
        }
        self.print_history(&named, &history)
    }

    fn print_history(&mut self, named: &AcpxSessionView, history: &History) -> AcpxResult {
        let key = named.session.session_key.as_str();
        if self.format == Format::Json {
            let entries: Vec<Value> = history
                .entries
                .iter()
                .map(|(role, at, text)| json!({ "role": role, "timestamp": at, "textPreview": text }))
                .collect();
            let mut members = ids(&named.session);
            members.extend([
                ("limit".to_owned(), history.limit.into()),
                ("count".to_owned(), entries.len().into()),
                ("entries".to_owned(), entries.into()),
            ]);
            return Ok(self.out.json(&members)?);
        }
        if self.format == Format::Text {
            let shown = history.entries.len();
            self.out.line(&format!("session: {key} ({shown}/{} shown)", history.count))?;
            if shown == 0 {
                self.out.line("No history")?;
            }
        }
        for (role, at, text) in &history.entries {
            match self.format {
                Format::Quiet => self.out.line(text)?,
                _ => self.out.line(&format!("{at}\t{role}\t{text}"))?,
            }
        }
        Ok(self.out.flush()?)
    }

    async fn close(&mut self, name: Option<String>) -> AcpxResult {
        let named = self.find_here(name).await?;
        let key = named.session.session_key.to_string();
        self.close_session(&key, "closed with acpx").await?;
        self.answer("session_closed", ids(&named.session).into(), Some(&key), None)
    }

    async fn close_session(&self, key: &str, reason: &str) -> AcpxResult {
        let body = CloseBody { reason: Some(reason.to_owned()), ..CloseBody::default() };
        let path = format!("/v1/sessions/{}/close", encode(key));
        let closing = self.client.post(&path, &body, &IdempotencyKey::mint()).await;
        let _: SessionStatus = closing.map_err(|failure| AcpxEnd::from(failure).of(key))?;
        Ok(())
    }

    async fn prune(&mut self, older_than: Option<u64>, dry_run: bool) -> AcpxResult {
        let before = now_ms().saturating_sub(older_than.unwrap_or(0).saturating_mul(DAY_MS));
        let mut found = self.all().await?;
        found.retain(|named| {
            let session = &named.session;
            session.state == SessionState::Closed && session.last_activity_at_ms <= before
        });
        for named in found.iter().filter(|_| !dry_run) {
            let path = format!("/v1/sessions/{}/delete", encode(named.session.session_key.as_str()));
            let _: SessionStatus =
                self.client.post(&path, &CloseBody::default(), &IdempotencyKey::mint()).await?;
        }
        let keys: Vec<String> = found.iter().map(|named| named.session.session_key.to_string()).collect();
        let action = if dry_run { "sessions_prune_dry_run" } else { "sessions_pruned" };
        let members = json!({ "dryRun": dry_run, "count": keys.len(), "bytesFreed": 0, "pruned": keys });
        let plural = if keys.len() == 1 { "" } else { "s" };
        let mut text = match (keys.len(), dry_run) {
            (0, true) => "[DRY RUN] No sessions to prune".to_owned(),
            (0, false) => "No sessions pruned".to_owned(),
            (count, true) => format!("[DRY RUN] Would prune {count} session{plural}"),
            (count, false) => format!("Pruned {count} session{plural}"),
        };
        for named in &found {
            let name = if named.name.is_empty() { String::new() } else { format!(" ({})", named.name) };
            let used = format_utc(named.session.last_activity_at_ms);
            text.push_str(&format!("\n  {}{name}\t{used}", named.session.session_key));
        }
        let quiet = keys.join("\n");
        self.answer(
            action,
            members,
            Some(&text),
            Some(&quiet).filter(|keys| !keys.is_empty()).map(String::as_str),
        )
    }

    pub(super) async fn status(&mut self, name: SessionName) -> AcpxResult {
        let Some(found) = self.find(name.session).await? else {
            let members = json!({ "status": "no-session", "summary": "no active session" });
            let text = "session: -\nstatus: no-session";
            return self.answer("status_snapshot", members, Some(text), Some("no-session"));
        };
        let session = self.view(found.session.session_key.as_str()).await?;
        let (status, summary) = match (session.state, &session.lease_id) {
            (SessionState::Error, _) => ("dead", "the agent has failed; the next prompt starts it again"),
            (_, Some(_)) => ("alive", "the agent is running"),
            (_, None) => ("idle", "the next prompt starts the agent"),
        };
        let settings = &session.agent_settings;
        let models = settings.models.clone().unwrap_or_default();
        let mode = session.mode_id.clone().or_else(|| settings.modes.clone().unwrap_or_default().current);
        let model = session.model.clone().or(models.current);
        let last =
            session.runs.as_deref().unwrap_or_default().last().map(|run| format_utc(run.created_at_ms));
        let mut members = ids(&session);
        members.extend([
            ("status".to_owned(), status.into()),
            ("summary".to_owned(), summary.into()),
            ("model".to_owned(), json!(model)),
            ("mode".to_owned(), json!(mode)),
            ("availableModels".to_owned(), json!(Some(models.values).filter(|values| !values.is_empty()))),
            ("activeRequestId".to_owned(), json!(session.active_run.map(|run| run.to_string()))),
            ("queued".to_owned(), session.queued_runs.into()),
            ("lastPromptTime".to_owned(), json!(last)),
        ]);
        let or_none = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
        let text = format!(
            "session: {}\nagent: {}\nstatus: {}\nmodel: {}\nmode: {}\nlastPromptTime: {}",
            session.session_key,
            session.agent,
            if status == "alive" { "running" } else { status },
            or_none(model),
            or_none(mode),
            or_none(last)
        );
        self.answer("status_snapshot", members.into(), Some(&text), Some(status))
    }
}

/// Fails unless the agent has opened the session of a spawn that waits for it.
fn opened(spawned: &SpawnedView) -> AcpxResult {
    match spawned.opening {
        Some(Opening::Failed) => {
            let failure = spawned.error.clone().unwrap_or_else(|| Failure::of(Code::SessionInitFailed));
            Err(failure.into())
        }
        Some(Opening::Pending) => {
            let text = format!("The agent has not opened its session within {OPENING_WAIT_S} s.");
            Err(ContractError::new(AcpxCode::Timeout, text).detail("NOT_OPEN").origin("runtime").into())
        }
        Some(Opening::Open) | None => Ok(()),
    }
}

/// Returns the name of a session; null for the one without.
fn named(name: &str) -> Value {
    if name.is_empty() { Value::Null } else { name.into() }
}

/// Returns what `sessions list` and `show` tell of a session.
fn record(named_session: &AcpxSessionView) -> Map<String, Value> {
    let session = &named_session.session;
    let mut record = ids(session);
    record.extend([
        ("agent".to_owned(), session.agent.as_str().into()),
        ("cwd".to_owned(), named_session.cwd.as_str().into()),
        ("name".to_owned(), named(&named_session.name)),
        ("state".to_owned(), session.state.as_str().into()),
        ("closed".to_owned(), (session.state == SessionState::Closed).into()),
        ("createdAt".to_owned(), format_utc(session.created_at_ms).into()),
        ("lastUsedAt".to_owned(), format_utc(session.last_activity_at_ms).into()),
    ]);
    record.retain(|_, value| !value.is_null());
    record
}

/// The last prompts and answers of a session.
struct History {
    /// Maximum number of entries; 0 keeps all.
    limit: usize,
    /// Role, time and preview.
    entries: VecDeque<(&'static str, String, String)>,
    /// Number of all prompts and answers.
    count: usize,
    answer: String,
}

impl History {
    const fn new(limit: usize) -> Self {
        Self { limit, entries: VecDeque::new(), count: 0, answer: String::new() }
    }

    fn push(&mut self, row: &JournalLine<'_>) {
        match row.kind() {
            Some(EventKind::Prompt) => self.add("user", row, &row.prompt_text().unwrap_or_default()),
            Some(EventKind::AgentMessage) if self.answer.len() < ANSWER_BYTES_MAX => {
                TurnText::quiet().push(row, &mut self.answer);
            }
            Some(EventKind::Done | EventKind::Error) => {
                let answer = std::mem::take(&mut self.answer);
                if !answer.trim().is_empty() {
                    self.add("assistant", row, &answer);
                }
            }
            _ => {}
        }
    }

    fn add(&mut self, role: &'static str, row: &JournalLine<'_>, text: &str) {
        self.count += 1;
        if self.limit > 0 && self.entries.len() == self.limit {
            self.entries.pop_front();
        }
        self.entries.push_back((role, format_utc(row.created_at_ms), preview(text)));
    }
}

fn preview(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.chars().count() > PREVIEW_CHARS_MAX {
        true => line.chars().take(PREVIEW_CHARS_MAX - 3).chain("...".chars()).collect(),
        false => line,
    }
}
