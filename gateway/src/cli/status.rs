//! `status`: what runs on a state directory, however it was started.

use crate::cli::GlobalArgs;
use crate::cli::output::{CliError, CliResult, Out, age, now_ms};
use crate::cli::serve::{LOG_FILE, supervisor_dir};
use crate::cli::service::unit_of;
use crate::cli::up::lock::{RunningUp, recorded_socket};
use crate::cli::up::running_supervisor_pid;
use acp_core::api::{AccountView, HostView, ListenerView, STANDING_BY, SessionView, StatusView};
use acp_core::session::SessionState;
use acp_shared::codes::Code;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Maximum wait for the answers of the gateway.
const ANSWER_WAIT: Duration = Duration::from_secs(10);

pub(crate) const EXAMPLES: &str = "\
Works for `up`, in the foreground or in the background, and for services of systemd.

Exit codes: 0 if the gateway answers and its supervisor is connected, 1 otherwise.";

#[derive(Debug, Serialize)]
struct StatusOutput {
    /// True if the gateway answers and its supervisor is connected.
    ok: bool,
    state_dir: PathBuf,
    /// Absent if the gateway does not answer.
    gateway: Option<GatewayOutput>,
    /// Reason for a missing gateway, or for one on standby.
    detail: Option<String>,
    /// True if a gateway runs that does not serve because another one serves its cell.
    standing_by: bool,
    supervisor: SupervisorOutput,
    /// Number of sessions by state; closed ones are not counted.
    sessions: BTreeMap<&'static str, usize>,
    channels: Vec<AccountView>,
    listeners: Vec<ListenerView>,
    /// Machines that run agents; empty if only this one does.
    hosts: Vec<HostView>,
    /// Files, or commands that show a log.
    logs: Vec<String>,
}

#[derive(Debug, Serialize)]
struct GatewayOutput {
    pid: u32,
    version: String,
    started_at_ms: u64,
    uptime_s: u64,
    /// `up`, the name of a service, or `serve`.
    started_by: String,
}

#[derive(Debug, Default, Serialize)]
struct SupervisorOutput {
    connected: bool,
    pid: Option<i32>,
    socket: String,
    detail: String,
}

/// `status`
pub(crate) async fn run(global: &GlobalArgs, out: &mut Out) -> CliResult {
    let given = global.state_dir()?;
    let state_dir = std::fs::canonicalize(&given).unwrap_or(given);
    let up = RunningUp::find(&state_dir)?.map(|up| up.pid);
    let client = global.client()?.until(Some(Instant::now() + ANSWER_WAIT));
    // What does not listen and is no `up` does not answer later either.
    let status = match up.is_some() || client.is_served().await {
        true => Some(client.get::<StatusView>("/v1/status").await),
        false => None,
    };
    let shown = match status {
        None => stopped("not running".to_owned(), state_dir).await,
        Some(Ok(status)) => {
            let sessions: Vec<SessionView> = client.get("/v1/sessions?all=false").await?;
            running(status, &sessions, up, state_dir)
        }
        Some(Err(failure)) => {
            let stands_by = failure.detail_code.as_deref() == Some(STANDING_BY);
            let detail = match (up, failure.code) {
                (Some(pid), _) => {
                    format!("`up` runs, pid {pid}, but does not answer: it is starting or ending")
                }
                (None, Code::GatewayUnavailable) => "not running".to_owned(),
                (None, _) => failure.message,
            };
            StatusOutput { standing_by: stands_by, ..stopped(detail, state_dir).await }
        }
    };
    out.show(&shown, |shown| text(shown, global))?;
    if shown.ok { Ok(()) } else { Err(CliError::Code(Code::GatewayUnavailable.exit())) }
}

fn running(
    status: StatusView,
    sessions: &[SessionView],
    up: Option<i32>,
    state_dir: PathBuf,
) -> StatusOutput {
    let pid = i32::try_from(status.pid).ok();
    let unit = pid.and_then(unit_of);
    let is_up = up.is_some() && up == pid;
    let started_by = match (is_up, &unit) {
        (true, _) => "up".to_owned(),
        (false, Some(unit)) => unit.name.clone(),
        (false, None) => "serve".to_owned(),
    };
    let mut logs = Vec::new();
    match (is_up, &unit) {
        (true, _) => logs.push(state_dir.join(LOG_FILE).display().to_string()),
        (false, Some(unit)) => logs.push(unit.journal()),
        (false, None) => {}
    }
    logs.extend(supervisor_log(status.supervisor.pid, Path::new(&status.supervisor.socket), &state_dir));
    let mut counts = BTreeMap::new();
    for session in sessions.iter().filter(|session| session.state != SessionState::Closed) {
        *counts.entry(session.state.as_str()).or_default() += 1;
    }
    StatusOutput {
        ok: status.supervisor.connected,
        state_dir,
        gateway: Some(GatewayOutput {
            pid: status.pid,
            version: status.version,
            started_at_ms: status.started_at_ms,
            uptime_s: now_ms().saturating_sub(status.started_at_ms) / 1_000,
            started_by,
        }),
        detail: None,
        standing_by: false,
        supervisor: SupervisorOutput {
            connected: status.supervisor.connected,
            pid: status.supervisor.pid,
            socket: status.supervisor.socket,
            detail: status.supervisor.detail,
        },
        sessions: counts,
        channels: status.accounts,
        listeners: status.listeners,
        hosts: status.hosts,
        logs,
    }
}

/// Describes a state directory whose gateway does not answer. Its supervisor may run, with agents.
async fn stopped(detail: String, state_dir: PathBuf) -> StatusOutput {
    let socket = recorded_socket(&state_dir);
    let asked = running_supervisor_pid(&socket).await;
    let (pid, supervisor) = match asked {
        Ok(Some(pid)) => (Some(pid), format!("running without a gateway, pid {pid}: its agents go on")),
        Ok(None) => (None, "not running".to_owned()),
        Err(failure) => (None, failure.message),
    };
    let log = state_dir.join(LOG_FILE);
    let mut logs: Vec<String> = log.exists().then(|| log.display().to_string()).into_iter().collect();
    logs.extend(supervisor_log(pid, &socket, &state_dir));
    StatusOutput {
        ok: false,
        state_dir,
        gateway: None,
        detail: Some(detail),
        standing_by: false,
        supervisor: SupervisorOutput {
            connected: false,
            pid,
            socket: socket.display().to_string(),
            detail: supervisor,
        },
        sessions: BTreeMap::new(),
        channels: Vec::new(),
        listeners: Vec::new(),
        hosts: Vec::new(),
        logs,
    }
}

/// Returns the log of the supervisor: the journal of its service, or the file of `up`.
fn supervisor_log(pid: Option<i32>, socket: &Path, state_dir: &Path) -> Option<String> {
    if let Some(unit) = pid.and_then(unit_of) {
        return Some(unit.journal());
    }
    let own = supervisor_dir(state_dir);
    let file = own.join("supervisor.log");
    (socket.starts_with(&own) && file.exists()).then(|| file.display().to_string())
}

fn text(shown: &StatusOutput, global: &GlobalArgs) -> String {
    let mut lines = Vec::new();
    match &shown.gateway {
        Some(gateway) => {
            let by = match gateway.started_by.as_str() {
                "up" | "serve" => format!("`{}`", gateway.started_by),
                unit => unit.to_owned(),
            };
            let (pid, version, up) = (gateway.pid, &gateway.version, age(gateway.started_at_ms));
            lines.push((
                "gateway",
                format!("running, pid {pid}, version {version}, for {up}, started by {by}"),
            ));
        }
        None => lines.push(("gateway", shown.detail.clone().unwrap_or_default())),
    }
    let supervisor = &shown.supervisor;
    let pid = supervisor.pid.map(|pid| format!(", pid {pid}")).unwrap_or_default();
    lines.push(match supervisor.connected {
        true => ("supervisor", format!("connected{pid}, at {}", supervisor.socket)),
        false => ("supervisor", format!("{}, at {}", supervisor.detail, supervisor.socket)),
    });
    if shown.gateway.is_some() {
        let counts: Vec<String> =
            shown.sessions.iter().map(|(state, count)| format!("{count} {state}")).collect();
        let counts = if counts.is_empty() { "none open".to_owned() } else { counts.join(", ") };
        lines.push(("sessions", counts));
    }
    for account in &shown.channels {
        let state = if account.ok { "ok" } else { "not ok" };
        lines.push((
            "channel",
            format!("{} {}: {state}, {}", account.channel, account.account, account.details),
        ));
    }
    for listener in &shown.listeners {
        let state = if listener.ok { "ok" } else { "not ok" };
        lines.push(("listener", format!("{}: {state}, {}", listener.address, listener.details)));
    }
    for host in &shown.hosts {
        let state = if host.connected { "connected" } else { host.detail.as_str() };
        lines.push(("host", format!("{}: {state}, at {}", host.name, host.address)));
    }
    lines.push(("state", shown.state_dir.display().to_string()));
    lines.extend(shown.logs.iter().map(|log| ("log", log.clone())));
    let mut text: String = lines.iter().map(|(name, value)| format!("{name:<12} {value}\n")).collect();
    if shown.gateway.is_none() && !shown.standing_by {
        text.push_str(&format!("\nStart: {}", global.advise("up -d", None)));
        if shown.supervisor.pid.is_some() {
            text.push_str(&format!("\nEnd the supervisor and its agents: {}", global.advise("down", None)));
        }
    }
    text
}
