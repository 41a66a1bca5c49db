//! Commands that report sessions, agents and health. Replies contain no secrets and no internals: those are
//! in the log and in `acp-gateway doctor`.

use super::permissions::{self, Detail};
use super::{CommandContext, Commands, options};
use acp_core::api::{AgentView, StatusView};
use acp_core::command::authorization::RequesterRole;
use acp_core::failure::Failure;
use acp_core::policy::EffectivePolicy;
use acp_core::render::escape_name;
use acp_core::rows::SessionActivity;
use acp_core::rows::{BindingRow, BindingStatus, ConversationRef, SessionRow};
use acp_core::run::RunState;
use acp_core::runtime::{acpx, direct};
use acp_core::time_format::format_utc;
use acp_core::timeouts::Expiry;
use acp_shared::ids::SessionKey;
use acp_store::codec::SqlEnum as _;
use acp_store::{command_queries, gauges};
use serde_json::Value;
use std::fmt::Write as _;

/// Maximum number of sessions in a list.
const LIST_MAX: usize = 20;
/// Maximum number of sessions searched for those of one person.
const SEARCHED_MAX: u32 = 1_000;
/// Maximum number of runs counted in a session's status.
const RUNS_MAX: u32 = 100;
/// Maximum number of agent capabilities in a status.
const CAPABILITIES_MAX: usize = 16;

impl Commands {
    /// Returns the open sessions that the person may see, last used first.
    async fn visible_sessions(&self, context: CommandContext<'_>) -> Result<Vec<SessionRow>, Failure> {
        if context.by.role == RequesterRole::Operator {
            return self.service.sessions(false, u32::try_from(LIST_MAX).unwrap_or(u32::MAX)).await;
        }
        let mut own = Vec::new();
        for row in self.service.sessions(false, SEARCHED_MAX).await? {
            let key = row.session_key.clone();
            let owners =
                self.store.read("session_owners", move |db| command_queries::owners(db, &key)).await?;
            if context.by.owns(&owners) {
                own.push(row);
            }
            if own.len() == LIST_MAX {
                break;
            }
        }
        Ok(own)
    }

    async fn activity_of(&self, rows: &[SessionRow]) -> Result<SessionActivity, Failure> {
        self.service.session_activity(rows.iter().map(|row| row.session_key.clone()).collect()).await
    }

    /// `/acp sessions`
    pub(super) async fn sessions(&self, context: CommandContext<'_>) -> Result<String, Failure> {
        let current = self.bound_session(context.inbound).await?;
        let rows = self.visible_sessions(context).await?;
        if rows.is_empty() {
            return Ok("There are no sessions. /acp spawn starts one.".to_owned());
        }
        let around = self.activity_of(&rows).await?;
        let is_markdown = self.router.renders_markdown(&context.inbound.conversation);
        let mut text = String::from("Sessions, most recently used first (* is this conversation's):");
        for row in &rows {
            let mark = if current.as_ref() == Some(&row.session_key) { '*' } else { '-' };
            text.push_str(&format!("\n{mark} {}", session_line(row, &around, is_markdown)));
        }
        Ok(text)
    }

    /// `/acp status`
    pub(super) async fn status(&self, at: &ConversationRef, session: &SessionKey) -> Result<String, Failure> {
        let row = self.service.session(session).await?;
        let runs = self.service.runs(session, RUNS_MAX).await?;
        let expiry = self.service.expiry(session).await?;
        let key = session.clone();
        let bindings = self.store.read("status", move |db| acp_store::bindings::of_session(db, &key));
        let is_markdown = self.router.renders_markdown(at);
        let mut text = status_text(&row, &bindings.await?, expiry.as_ref(), is_markdown);
        let waiting = runs.iter().filter(|run| run.state == RunState::Queued).count();
        let running = runs.iter().find(|run| run.state == RunState::Running);
        let turn = running.map_or_else(|| "none".to_owned(), |run| run.run_id.to_string());
        let _ = write!(text, "\nrunning turn: {turn}; {waiting} queued");
        let pending = self.service.pending_permissions(session).await?;
        if !pending.is_empty() {
            text.push('\n');
            text.push_str(&permissions::pending_text(&pending, Detail::Subject, is_markdown));
        }
        Ok(text)
    }

    /// `/agents`
    pub(super) async fn agents(&self, context: CommandContext<'_>) -> Result<String, Failure> {
        let rows = self.visible_sessions(context).await?;
        let around = self.activity_of(&rows).await?;
        let views = self.service.agents().await?;
        let is_markdown = self.router.renders_markdown(&context.inbound.conversation);
        Ok(agents_text(&rows, &around, &views, is_markdown))
    }

    /// `/acp doctor`
    pub(super) async fn doctor(&self, context: CommandContext<'_>) -> Result<String, Failure> {
        let status = self.service.status().await?;
        let runs = self.store.read("doctor", gauges::unfinished_runs).await?;
        let policy = self.service.policy(&context.inbound.conversation);
        Ok(doctor_text(&status, runs, &policy))
    }

    /// `/acp install`
    pub(super) async fn install(&self, context: CommandContext<'_>) -> Result<String, Failure> {
        let status = self.service.status().await?;
        let views = self.service.agents().await?;
        let policy = self.service.policy(&context.inbound.conversation);
        let is_markdown = self.router.renders_markdown(&context.inbound.conversation);
        Ok(install_text(&status, &views, &policy, is_markdown))
    }
}

fn binding_text(binding: &BindingRow) -> String {
    let at = &binding.conversation;
    let status = if binding.status == BindingStatus::Active { "" } else { binding.status.word() };
    format!("{}/{} {status}", at.channel, at.conversation_id).trim_end().to_owned()
}

fn bindings_text(bindings: &[BindingRow]) -> String {
    let all: Vec<String> = bindings.iter().map(binding_text).collect();
    if all.is_empty() { "unbound".to_owned() } else { format!("bound to {}", all.join(", ")) }
}

fn session_name(row: &SessionRow, is_markdown: bool) -> String {
    row.label.as_deref().map_or_else(|| row.agent.to_string(), |label| escape_name(label, is_markdown))
}

fn session_line(row: &SessionRow, around: &SessionActivity, is_markdown: bool) -> String {
    let mut text = format!(
        "{} ({}, {}, {}, {}) {}",
        session_name(row, is_markdown),
        row.mode.word(),
        row.state,
        row.backend,
        bindings_text(around.bindings.get(&row.session_key).map_or(&[], Vec::as_slice)),
        row.session_key
    );
    if let Some(run_id) = around.running.get(&row.session_key) {
        let _ = write!(text, "; turn {run_id} is running");
    }
    if let Some(count) = around.queued.get(&row.session_key) {
        let _ = write!(text, "; {count} queued");
    }
    if let Some(failure) = &row.last_error {
        let _ = write!(text, "; last error {}", failure.code);
    }
    text
}

fn status_text(
    row: &SessionRow,
    bindings: &[BindingRow],
    expiry: Option<&Expiry>,
    is_markdown: bool,
) -> String {
    let mut text = format!("{} ({}) in {}", row.session_key, row.agent, row.cwd);
    if let Some(label) = &row.label {
        let _ = write!(text, ", label {}", escape_name(label, is_markdown));
    }
    let _ = write!(text, "\nstate: {}, {}, backend {}", row.state, row.mode.word(), row.backend);
    if let Some(host) = &row.options.host {
        let _ = write!(text, ", host {host}");
    }
    let _ = write!(text, "\n{}", bindings_text(bindings));
    let escape = |text: &str| escape_name(text, is_markdown);
    let agent_session = row.agent_session_id.as_deref().map(escape);
    let agent_session = agent_session.unwrap_or_else(|| "pending until its first answer".to_owned());
    let resumable = if row.agent_session_id.is_none() || row.resumable { "" } else { " (cannot be resumed)" };
    let _ = write!(text, "\nagent's conversation: {agent_session}{resumable}");
    if let Some(agent) = row.agent_info.as_deref().and_then(|info| agent_text(info, is_markdown)) {
        let _ = write!(text, "\nagent: {agent}");
    }
    let _ = write!(text, "\nsettings: {}", options::settings_text(row, is_markdown));
    for (name, values) in row.options.agent.lines() {
        let _ = write!(text, "\nagent's {}: {}", escape(&name), escape(&values));
    }
    let _ = write!(text, "\nlast used: {}", format_utc(row.last_activity_at_ms));
    if let Some(expiry) = expiry {
        let _ = write!(text, "\ntimeout: {}", expiry.describe(&format!("at {}", format_utc(expiry.at_ms))));
    }
    if let Some(failure) = &row.last_error {
        let _ =
            write!(text, "\nlast error: {} ({})", escape(&failure.text_for_conversations()), failure.code);
    }
    text
}

/// Describes an agent by its own `initialize` response: name, version, capabilities.
fn agent_text(info: &str, is_markdown: bool) -> Option<String> {
    let info: Value = serde_json::from_str(info).ok()?;
    let escape = |text: &str| escape_name(text, is_markdown);
    let words = ["name", "version"].map(|it| info["agentInfo"][it].as_str().map(escape).unwrap_or_default());
    let mut abilities = Vec::new();
    collect_capabilities("", &info["agentCapabilities"], &mut abilities);
    let abilities: Vec<String> = abilities.iter().take(CAPABILITIES_MAX).map(|path| escape(path)).collect();
    let named = words.join(" ");
    let can = if abilities.is_empty() { String::new() } else { format!("can {}", abilities.join(", ")) };
    let parts: Vec<&str> = [named.trim(), can.as_str()].into_iter().filter(|part| !part.is_empty()).collect();
    (!parts.is_empty()).then(|| parts.join("; "))
}

/// Collects the paths of enabled capabilities: `true`, or an object without members.
fn collect_capabilities(path: &str, value: &Value, found: &mut Vec<String>) {
    let is_on = value.as_bool() == Some(true) || value.as_object().is_some_and(serde_json::Map::is_empty);
    if is_on && !path.is_empty() {
        found.push(path.to_owned());
        return;
    }
    for (key, value) in value.as_object().into_iter().flatten().filter(|(key, _)| *key != "_meta") {
        let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
        collect_capabilities(&path, value, found);
    }
}

fn agents_text(
    rows: &[SessionRow],
    around: &SessionActivity,
    views: &[AgentView],
    is_markdown: bool,
) -> String {
    let (busy, rest): (Vec<_>, Vec<_>) = rows.iter().partition(|row| {
        around.running.contains_key(&row.session_key) || around.queued.contains_key(&row.session_key)
    });
    let bound = rest.into_iter().filter(|row| around.bindings.contains_key(&row.session_key));
    let mut text = String::from(if busy.is_empty() { "No agent is busy." } else { "Busy:" });
    for row in busy {
        text.push_str(&format!("\n- {}", session_line(row, around, is_markdown)));
    }
    let bound: Vec<String> =
        bound.map(|row| format!("\n- {}", session_line(row, around, is_markdown))).collect();
    if !bound.is_empty() {
        let _ = write!(text, "\nBound and idle:{}", bound.concat());
    }
    let startable = views.iter().filter(|view| view.installed && view.allowed);
    let names: Vec<String> = startable
        .map(|view| format!("{}{}", view.name, if view.default { " (default)" } else { "" }))
        .collect();
    match names.is_empty() {
        true => text.push_str("\nNo agent can be started here. /acp install shows what is missing."),
        false => {
            let _ = write!(text, "\nCan be started with /acp spawn: {}.", names.join(", "));
        }
    }
    text
}

fn doctor_text(status: &StatusView, (running, queued): (u64, u64), policy: &EffectivePolicy) -> String {
    let mut checks: Vec<(bool, String)> = Vec::new();
    let mut next: Vec<&str> = Vec::new();
    let mut check = |ok: bool, text: String, step: &'static str| {
        checks.push((ok, text));
        if !ok {
            next.push(step);
        }
    };
    let gate = policy
        .may_prompt()
        .map_or_else(|failure| failure.text_for_conversations(), |()| "prompts are permitted".to_owned());
    check(policy.may_prompt().is_ok(), format!("policy: {gate}"), "ask the operator to change that key");
    let wanted = &policy.backend.value;
    let backend = status.backends.iter().find(|backend| backend.id == *wanted);
    let ids: Vec<&str> = status.backends.iter().map(|backend| backend.id.as_str()).collect();
    let how = match backend {
        Some(backend) if backend.ok => "works".to_owned(),
        Some(_) => "does not work".to_owned(),
        None if ids.is_empty() => "does not exist; this gateway has none".to_owned(),
        None => format!("does not exist; this gateway has {}", ids.join(", ")),
    };
    let step = match backend {
        Some(_) => "ask the operator to run `acp-gateway doctor`",
        None => "/acp install shows what to change",
    };
    check(backend.is_some_and(|it| it.ok), format!("backend {wanted} {how}"), step);
    let connected = status.supervisor.connected;
    let link = if connected { "answers" } else { "does not answer" };
    check(connected, format!("supervisor {link}"), "ask the operator to start the supervisor");
    match &status.store {
        None => {
            check(false, "store cannot be read".to_owned(), "ask the operator to run `acp-gateway doctor`")
        }
        Some(store) => {
            let well = store.health == "well";
            let text = format!("store is {}, {} sessions open", store.health, store.sessions_open);
            check(well, text, "ask the operator to check the disk and to run `acp-gateway store check`");
            let stale = store.stale_bindings;
            let text =
                if stale == 0 { "no bindings are".to_owned() } else { format!("{stale} bindings are") };
            check(stale == 0, text + " stale", "/unfocus in those conversations");
            let stuck = store.actors_stuck;
            let text = if stuck == 0 { "no session is".to_owned() } else { format!("{stuck} sessions are") };
            check(stuck == 0, text + " stuck", "ask the operator to read the log, which names them");
            let still = store.still.len();
            if still > 0 {
                let text = format!("{still} sessions or conversations cannot be read");
                check(false, text, "ask the operator to run `acp-gateway doctor`, which names them");
            }
        }
    }
    let healthy = if checks.iter().all(|(ok, _)| *ok) { "healthy" } else { "not healthy" };
    let mut text = format!("acp-gateway {} is {healthy}.", status.version);
    for (ok, what) in &checks {
        let _ = write!(text, "\n- {} {what}", if *ok { "ok:" } else { "WRONG:" });
    }
    let _ = write!(text, "\n- {running} turns running, {queued} queued");
    for step in next {
        let _ = write!(text, "\nNext: {step}.");
    }
    text
}

fn install_text(
    status: &StatusView,
    views: &[AgentView],
    policy: &EffectivePolicy,
    is_markdown: bool,
) -> String {
    let wanted = &policy.backend.value;
    let backend = status.backends.iter().find(|backend| backend.id == *wanted);
    let (is_there, lacks_acpx) = (backend.is_some(), backend.is_some_and(|it| it.id == acpx::ID && !it.ok));
    let mut steps = Vec::new();
    match (is_there, policy.usable_install_command()) {
        (true, None) if lacks_acpx => {
            steps.push(format!(
                "The backend {wanted} does not work. On the gateway's machine: {}",
                acpx::INSTALL
            ));
        }
        (true, Some(command)) if lacks_acpx => {
            steps.push(format!("On the gateway's machine run: {}", escape_name(command, is_markdown)))
        }
        (true, _) => {
            steps.push(format!("The backend {wanted} is part of this gateway: there is nothing to install."))
        }
        (false, Some(command)) => {
            steps.push(format!("On the gateway's machine run: {}", escape_name(command, is_markdown)))
        }
        (false, None) => {
            steps.push(format!(
                "This gateway has no backend {wanted}: set {} = \"{}\".",
                policy.backend.key,
                direct::ID
            ));
        }
    }
    let missing = views.iter().filter(|view| !view.installed && view.allowed);
    let notes: Vec<String> = missing
        .map(|view| {
            let note = escape_name(view.note.as_deref().unwrap_or_default(), is_markdown);
            format!("\n   - {}: {note}", view.name)
        })
        .collect();
    if notes.is_empty() {
        steps.push("All known and allowed agents are installed.".to_owned());
    } else {
        steps.push(format!("Agents that are not installed (optional):{}", notes.concat()));
    }
    steps.push("/acp doctor checks the gateway, /agents lists the agents that can be started.".to_owned());
    let lines: Vec<String> = (1..).zip(&steps).map(|(number, step)| format!("{number}. {step}")).collect();
    lines.join("\n")
}

#[cfg(test)]
#[path = "diagnostics_tests.rs"]
mod tests;
