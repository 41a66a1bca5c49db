//! Sessions as text: the table of `sessions list`, and `sessions show`.

use crate::cli::output::{age, name, now_ms, table};
use acp_core::api::{PermissionView, SessionView};
use acp_core::rows::BindingStatus;
use acp_core::sanitize;
use acp_core::timeouts::{Expiry, format_duration};
use std::collections::HashSet;
use std::io::{self, IsTerminal as _};

/// Maximum length of a prompt in `sessions show`, in characters.
const PROMPT_CHARS_MAX: usize = 48;

/// Columns of the list of sessions.
const COLUMNS: [&str; 9] =
    ["SESSION", "AGENT", "STATE", "RUN", "BOUND", "LABEL", "CWD", "ACTIVE", "LAST ERROR"];
/// Minimum length of a shortened id; an id begins with the time in milliseconds.
const ID_CHARS_MIN: usize = 12;
/// Length of an id.
const ID_CHARS: usize = 32;

/// Formats the list of sessions.
pub(crate) fn list(views: &[SessionView]) -> String {
    if views.is_empty() {
        return "No sessions. Start one: acp-gateway sessions spawn --agent demo".to_owned();
    }
    list_for(views, io::stdout().is_terminal())
}

/// Formats a list that is not empty. On a terminal, ids are shortened and columns without values are left out, so that most
/// lists fit; pipes get whole keys and all columns.
fn list_for(views: &[SessionView], is_terminal: bool) -> String {
    let length = if is_terminal { short_id_length(views) } else { usize::MAX };
    let row = |view: &SessionView| {
        let id = session_id(view);
        let key = id.get(..length).map_or_else(|| view.session_key.to_string(), str::to_owned);
        [
            key,
            view.agent.to_string(),
            view.state.as_str().to_owned(),
            format_turns(view),
            format_bindings(view),
            view.label.clone().unwrap_or_default(),
            view.cwd.clone(),
            age(view.last_activity_at_ms),
            view.last_error.as_ref().map_or(String::new(), |failure| failure.code.to_string()),
        ]
    };
    let rows: Vec<[String; COLUMNS.len()]> = views.iter().map(row).collect();
    let has_value = |column: usize| rows.iter().any(|row| !matches!(row[column].as_str(), "" | "-"));
    let shown: Vec<usize> = (0..COLUMNS.len()).filter(|at| !is_terminal || has_value(*at)).collect();
    let head: Vec<&str> = shown.iter().map(|at| COLUMNS[*at]).collect();
    table(&head, rows.iter().map(|row| shown.iter().map(|at| row[*at].clone()).collect()))
}

fn session_id(view: &SessionView) -> &str {
    view.session_key.as_str().rsplit(':').next().unwrap_or_default()
}

/// Returns the number of characters after which the ids of the listed sessions differ.
fn short_id_length(views: &[SessionView]) -> usize {
    let is_distinct = |length: &usize| {
        let starts: HashSet<Option<&str>> =
            views.iter().map(|view| session_id(view).get(..*length)).collect();
        starts.len() == views.len()
    };
    (ID_CHARS_MIN..ID_CHARS).find(is_distinct).unwrap_or(usize::MAX)
}

/// Formats the running turn and the number of queued ones.
fn format_turns(view: &SessionView) -> String {
    let run = view.active_run.map_or("-".to_owned(), |run| run.to_string());
    if view.queued_runs == 0 { run } else { format!("{run} +{}", view.queued_runs) }
}

/// Formats the bindings of a session; the status of inactive ones is added.
fn format_bindings(view: &SessionView) -> String {
    let places = view.bindings.iter().map(|at| match at.status {
        BindingStatus::Active => format!("{}:{}", at.channel, at.conversation_id),
        BindingStatus::Pending | BindingStatus::Parked | BindingStatus::Ending | BindingStatus::Ended => {
            format!("{}:{} ({})", at.channel, at.conversation_id, format!("{:?}", at.status).to_lowercase())
        }
    });
    let places: Vec<String> = places.collect();
    if places.is_empty() { "-".to_owned() } else { places.join(" ") }
}

/// Formats the MCP servers and additional directories of a session.
fn format_environment(view: &SessionView) -> Vec<(&'static str, String)> {
    let mut facts = Vec::new();
    if !view.mcp_servers.is_empty() {
        let servers = view
            .mcp_servers
            .iter()
            .map(|it| format!("{} ({} {})", name(&it.name), it.transport.as_str(), name(&it.target)));
        facts.push(("MCP servers", servers.collect::<Vec<_>>().join(", ")));
    }
    if !view.additional_directories.is_empty() {
        facts.push(("directories", sanitize::line(&view.additional_directories.join(", "), usize::MAX)));
    }
    facts
}

/// Formats the timeout that ends first.
fn time_left(expiry: &Expiry) -> String {
    let left = format_duration(expiry.at_ms.saturating_sub(now_ms()) / 1_000 * 1_000);
    expiry.describe(&format!("in {left}"))
}

/// Formats everything about one session.
pub(crate) fn show(view: &SessionView) -> String {
    let none = || "-".to_owned();
    let word = |value: Result<serde_json::Value, _>| match value {
        Ok(serde_json::Value::String(text)) => text,
        Ok(_) | Err::<_, serde_json::Error>(_) => none(),
    };
    let mut facts = vec![
        ("session", view.session_key.to_string()),
        ("agent", view.agent.to_string()),
        ("state", view.state.as_str().to_owned()),
        ("label", view.label.as_deref().map_or_else(none, name)),
        ("cwd", sanitize::line(&view.cwd, usize::MAX)),
        ("mode", word(serde_json::to_value(view.mode))),
        ("backend", view.backend.clone()),
        ("permission", word(serde_json::to_value(view.permission))),
        ("agent asks", word(serde_json::to_value(view.asking))),
        ("agent session", view.agent_session_id.as_deref().map_or_else(none, name)),
        ("resumable", view.resumable.to_string()),
        ("lease", view.lease_id.clone().unwrap_or_else(none)),
        ("active run", format_turns(view)),
        ("bound to", format_bindings(view)),
        ("events", view.last_session_seq.to_string()),
        ("created", format!("{} ago", age(view.created_at_ms))),
        ("active", format!("{} ago", age(view.last_activity_at_ms))),
    ];
    facts.extend(view.host.iter().map(|host| ("host", host.clone())));
    facts.extend(format_environment(view));
    if view.owner_session_key.as_ref() != Some(&view.session_key) {
        let owner = view.owner_session_key.as_ref();
        facts.push(("owner", owner.map_or("unknown".to_owned(), ToString::to_string)));
    }
    if let Some(ending) = view.ending {
        facts.push(("ended as", ending.as_str().to_owned()));
    }
    facts.extend(view.expiry.as_ref().map(|expiry| ("timeout", time_left(expiry))));
    let settings = view.agent_settings.lines();
    let settings: Vec<(String, String)> =
        settings.into_iter().map(|(name, values)| (format!("agent {name}"), values)).collect();
    facts.extend(settings.iter().map(|(name, values)| (name.as_str(), values.clone())));
    if let Some(failure) = &view.last_error {
        facts.push(("last error", failure.to_string()));
    }
    let mut text: String = facts.iter().map(|(name, value)| format!("{name:<14} {value}\n")).collect();
    let runs = view.runs.as_deref().unwrap_or_default();
    if !runs.is_empty() {
        let rows = runs.iter().map(|run| {
            let said = sanitize::line(&run.text, PROMPT_CHARS_MAX);
            let how = run.error.as_ref().map(|failure| failure.code.to_string());
            let how = how.or_else(|| run.stop_reason.clone()).unwrap_or_default();
            let state = match run.position {
                Some(place) => format!("{} ({place})", run.state.as_str()),
                None => run.state.as_str().to_owned(),
            };
            vec![run.run_id.to_string(), state, how, said]
        });
        text.push('\n');
        text.push_str(&table(&["RUN", "STATE", "END", "PROMPT"], rows));
    }
    for at in &view.bindings {
        text.push_str(&format!(
            "\nbinding {} of {}:{}",
            at.binding_id,
            at.channel,
            name(&at.conversation_id)
        ));
    }
    text.push_str(&questions(view));
    text
}

/// Formats the pending permission requests, one line each, with the subject if the title does not name it.
fn questions(view: &SessionView) -> String {
    let waiting = view.permissions.as_deref().unwrap_or_default().iter();
    let line = |question: &PermissionView| {
        let subject = question.subject.as_ref().filter(|subject| **subject != question.title);
        let subject = subject.map(|subject| format!(": {}", name(subject))).unwrap_or_default();
        format!(
            "\npending permission request: {}{subject} ({})",
            name(&question.title),
            question.permission_id
        )
    };
    waiting.map(line).collect()
}

#[cfg(test)]
#[path = "session_views_tests.rs"]
mod tests;
