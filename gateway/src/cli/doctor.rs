//! `doctor`: checks the installation and reports problems and notes.

mod accounts;
mod acpx;
mod northbound;
mod remote;
mod server;

use crate::cli::GlobalArgs;
use crate::cli::agents::{LOCAL, agents_found_here, agents_of, exe};
use crate::cli::config::{ConfigArgs, environment, file_of, read};
use crate::cli::output::{CliResult, Out, table};
use crate::cli::serve::sibling;
use crate::cli::up::lock::recorded_socket;
use crate::runtime::agents::Agents;
use crate::supervisor::hello_at;
use acp_core::api::{ConfigView, HealthView, SOCKET, STANDING_BY, StatusView, StoreView};
use acp_core::config::load::LoadedFile;
use acp_core::config::{ControlPlane, PostgresStore, StoreKind};
use acp_core::failure::Failure;
use acp_shared::codes::Code;
use acp_shared::conn::{Client as SupervisorClient, ConnError};
use acp_shared::protocol::{RefusalCode, Reply, Request, Role, Status};
use acp_store::check as store_check;
use acp_store::lock::LOCK_FILE;
use acp_store::schema::{CHECKED_FIRST_BYTES, DB_FILE};
use clap::Args;
use serde::Serialize;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Deadline for a response of a service, in milliseconds.
const ANSWER_MS: u64 = 5_000;
/// Deadline for a list of agents, in milliseconds: the gateway waits for its supervisor.
const AGENTS_MS: u64 = 8_000;

/// `doctor`
#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    #[command(flatten)]
    config: ConfigArgs,
}

/// Result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum CheckStatus {
    Ok,
    /// Worth knowing; nothing is broken.
    Note,
    Failed,
}

#[derive(Debug, Serialize)]
struct Check {
    name: &'static str,
    verdict: CheckStatus,
    detail: String,
}

fn check(name: &'static str, verdict: CheckStatus, detail: impl Into<String>) -> Check {
    Check { name, verdict, detail: detail.into() }
}

fn passed(name: &'static str, detail: impl Into<String>) -> Check {
    check(name, CheckStatus::Ok, detail)
}

fn noted(name: &'static str, detail: impl Into<String>) -> Check {
    check(name, CheckStatus::Note, detail)
}

fn failed(name: &'static str, detail: impl Into<String>) -> Check {
    check(name, CheckStatus::Failed, detail)
}

/// `doctor`
pub(crate) async fn run(global: &GlobalArgs, args: &DoctorArgs, out: &mut Out) -> CliResult {
    let state_dir = global.state_dir()?;
    let mut checks = Vec::new();
    let mut supervisor_socket = recorded_socket(&state_dir);
    let (mut config, mut known) = (None, None);
    match read(&state_dir, &args.config, None) {
        Err(failure) => checks.push(failed("configuration", failure.message)),
        Ok((loaded, file)) => {
            let where_ = file.as_ref().map_or("defaults".to_owned(), |file| file.display().to_string());
            checks.push(passed("configuration", where_));
            if let Some(socket) = &loaded.config.supervisor.socket {
                supervisor_socket.clone_from(socket);
            }
            let place = file_of(&state_dir, file.as_deref());
            checks.extend(accounts::spawning(&loaded, &place));
            config = Some(loaded.config.clone());
            known = Some(agents_of(loaded, &state_dir));
        }
    }
    checks.push(programs());
    checks.push(directory(&state_dir));
    let (answers, found) = gateway(global, &state_dir).await;
    checks.extend(found);
    checks.extend(agents(global, known.as_ref(), &answers).await);
    let served = match &answers {
        GatewayProbe::Status(status) => Some(status.accounts.as_slice()),
        GatewayProbe::Nothing | GatewayProbe::Health => None,
    };
    checks.extend(accounts::check_accounts(config.as_ref(), served, &environment().into_iter().collect()));
    if let Some(config) = &config {
        checks.extend(acpx::check(config).await.into_iter().chain(remote::check(config)));
        checks.extend(northbound::check(global, &config.northbound, &answers).await);
    }
    checks.extend(match config.as_ref().map(|config| &config.acp.control_plane) {
        Some(ControlPlane { store: StoreKind::Postgres, postgres, .. }) => {
            server_checks(postgres.clone()).await
        }
        _ => database(&state_dir, !matches!(answers, GatewayProbe::Nothing)),
    });
    if let GatewayProbe::Status(status) = answers {
        checks.extend(status.config.as_ref().and_then(|loaded| edited(loaded, &state_dir)));
        supervisor_socket = status.supervisor.socket.into();
    }
    checks.extend(supervisor(&supervisor_socket).await);
    checks.push(noted(
        "isolation",
        "agents run as this user and can access everything that it can, including this API: run untrusted \
         agents as another user",
    ));
    for check in &mut checks {
        check.detail = global.repeat_paths(&check.detail, args.config.config.as_deref());
    }
    out.show(&checks, |checks| {
        let rows = checks.iter().map(|check| {
            let verdict = match check.verdict {
                CheckStatus::Ok => "ok",
                CheckStatus::Note => "note",
                CheckStatus::Failed => "FAILED",
            };
            vec![verdict.to_owned(), check.name.to_owned(), check.detail.clone()]
        });
        table(&["", "CHECK", "FOUND"], rows)
    })?;
    let names: Vec<&str> =
        checks.iter().filter(|check| check.verdict == CheckStatus::Failed).map(|check| check.name).collect();
    if names.is_empty() {
        return Ok(());
    }
    Err(Failure::new(Code::Runtime, format!("checks failed: {}", names.join(", "))).origin("client").into())
}

fn programs() -> Check {
    let wrapper = acp_shared::service::wrapper_of(&exe());
    let mut missing: Vec<String> = sibling("acp-supervisor").err().map(|f| f.message).into_iter().collect();
    if !wrapper.is_file() {
        missing.push(format!("{} is missing: install it there, or in ../lib/acp-host", wrapper.display()));
    }
    match missing.is_empty() {
        true => passed("programs", format!("acp-supervisor, and {}", wrapper.display())),
        false => failed("programs", missing.join("; ")),
    }
}

/// Lists the installed agents, from the gateway, or from this process if no gateway answers.
async fn agents(global: &GlobalArgs, known: Option<&Agents>, answers: &GatewayProbe) -> Option<Check> {
    let (views, note) = match (answers, known) {
        (GatewayProbe::Nothing, known) => (agents_found_here(known?), format!(" ({LOCAL})")),
        (GatewayProbe::Health | GatewayProbe::Status(_), _) => {
            let deadline = Instant::now() + Duration::from_millis(AGENTS_MS);
            let asked = async { global.client()?.until(Some(deadline)).get("/v1/agents").await };
            match asked.await {
                Ok(views) => (views, String::new()),
                Err(failure) => return Some(noted("agents", failure.message)),
            }
        }
    };
    let installed = views.iter().filter(|view| view.installed);
    let names: Vec<&str> = installed.map(|view| view.name.as_str()).collect();
    Some(passed("agents", format!("installed: {}{note}", names.join(" "))))
}

fn directory(dir: &Path) -> Check {
    let name = "state directory";
    let shown = dir.display();
    match std::fs::metadata(dir) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            noted(name, format!("{shown} does not exist yet: `acp-gateway up` creates it"))
        }
        Err(error) => failed(name, format!("{shown}: {error}")),
        Ok(meta) if meta.uid() != rustix::process::geteuid().as_raw() => {
            failed(name, format!("{shown} belongs to uid {}", meta.uid()))
        }
        Ok(meta) if meta.mode() & 0o077 != 0 => {
            failed(name, format!("other users may enter {shown}: run chmod 700 on it"))
        }
        Ok(_) => match rustix::fs::access(dir, rustix::fs::Access::WRITE_OK) {
            Ok(()) => passed(name, shown.to_string()),
            Err(error) => failed(name, format!("{shown} cannot be written: {error}")),
        },
    }
}

/// Level of detail that the gateway answers with.
enum GatewayProbe {
    Nothing,
    /// Only the health endpoint.
    Health,
    Status(Box<StatusView>),
}

/// Queries the gateway.
async fn gateway(global: &GlobalArgs, state_dir: &Path) -> (GatewayProbe, Vec<Check>) {
    let name = "gateway";
    let deadline = Instant::now() + Duration::from_millis(ANSWER_MS);
    let refused = |failure: Failure| vec![failed(name, failure.message)];
    let client = match global.client() {
        Ok(client) => client.until(Some(deadline)),
        Err(failure) => return (GatewayProbe::Nothing, refused(failure)),
    };
    let health = match client.get::<HealthView>("/v1/health").await {
        Ok(health) => health,
        Err(_) if !state_dir.join(SOCKET).exists() => {
            let text = "not running: start it with `acp-gateway up`";
            return (GatewayProbe::Nothing, vec![noted(name, text)]);
        }
        Err(failure) if failure.detail_code.as_deref() == Some(STANDING_BY) => {
            return (GatewayProbe::Nothing, vec![noted(name, failure.message)]);
        }
        Err(failure) => return (GatewayProbe::Nothing, refused(failure)),
    };
    match client.get::<StatusView>("/v1/status").await {
        Err(failure) => (GatewayProbe::Health, refused(failure)),
        Ok(status) => {
            let checks = serving(&health, &status);
            (GatewayProbe::Status(Box::new(status)), checks)
        }
    }
}

fn serving(health: &HealthView, status: &StatusView) -> Vec<Check> {
    let mut checks = vec![if status.supervisor.connected {
        let detail =
            format!("pid {}, version {}, durability {}", health.pid, status.version, status.durability);
        passed("gateway", detail)
    } else {
        let detail =
            format!("pid {}, not connected to its supervisor: {}", health.pid, status.supervisor.detail);
        failed("gateway", detail)
    }];
    checks.extend(status.backends.iter().map(|backend| {
        let verdict = if backend.ok { CheckStatus::Ok } else { CheckStatus::Failed };
        check("backend", verdict, format!("{}: {}", backend.id, backend.details))
    }));
    checks.extend(status.hosts.iter().map(|host| {
        let verdict = if host.connected { CheckStatus::Ok } else { CheckStatus::Failed };
        check("host", verdict, format!("{} at {}: {}", host.name, host.address, host.detail))
    }));
    checks.extend(status.listeners.iter().map(|listener| {
        let verdict = match (listener.ok, listener.plaintext) {
            (false, _) => CheckStatus::Failed,
            (true, true) => CheckStatus::Note,
            (true, false) => CheckStatus::Ok,
        };
        check("listener", verdict, format!("{}: {}", listener.address, listener.details))
    }));
    if status.backends.is_empty() {
        checks.push(failed("backend", "no backend is registered: no session can be started"));
    }
    if !status.dispatch_enabled {
        let text = "acp.dispatch.enabled is false: prompts are refused";
        checks.push(noted("dispatch", text));
    }
    match &status.store {
        None => checks.push(failed("store", "the control plane cannot be read; see the log")),
        Some(store) => checks.extend(stored(store)),
    }
    checks
}

/// Notes a configuration file that differs from the loaded one.
fn edited(loaded: &ConfigView, state_dir: &Path) -> Option<Check> {
    let path = loaded.file.as_ref().map_or_else(|| file_of(state_dir, None), PathBuf::from);
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => Some(LoadedFile::new(&path, &text).sha256),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        Err(error) => Some(error.to_string()),
    };
    if text == loaded.sha256 {
        return None;
    }
    let change = match (&loaded.sha256, &text) {
        (None, _) => "was added",
        (_, None) => "was removed",
        (Some(_), Some(_)) => "was edited",
    };
    let shown = path.display();
    let text =
        format!("{shown} {change} after the gateway had loaded its configuration: send SIGHUP to load it");
    Some(noted("configuration", text))
}

fn stored(store: &StoreView) -> Vec<Check> {
    let detail = format!(
        "{}; {} bytes, {} bytes of log; {} sessions open, {} prompts queued, {} messages waiting",
        store.health,
        store.bytes,
        store.log_bytes,
        store.sessions_open,
        store.runs_queued,
        store.inbox_waiting
    );
    let well = store.health == "well";
    let mut checks = vec![check("store", if well { CheckStatus::Ok } else { CheckStatus::Failed }, detail)];
    checks.push(match store.stale_bindings {
        0 => passed("bindings", "no stale bindings"),
        count => {
            let text = format!(
                "{count} stale: send `/unfocus` in the conversation, or bind it again. {}",
                store.stale.join("; ")
            );
            failed("bindings", text)
        }
    });
    if store.actors_stuck > 0 {
        let text = format!("{} sessions are stuck; the log names them", store.actors_stuck);
        checks.push(failed("actors", text));
    }
    if !store.still.is_empty() {
        let text = format!(
            "the database records of these cannot be read, and they are blocked: {}. `acp-gateway store \
             check` shows details; with the gateway stopped, `acp-gateway store restore FILE` restores a backup",
            store.still.join("; ")
        );
        checks.push(failed("records", text));
    }
    checks
}

/// Checks the server of a PostgreSQL store.
async fn server_checks(settings: PostgresStore) -> Vec<Check> {
    let checked = tokio::task::spawn_blocking(move || server::check(&settings)).await;
    checked.unwrap_or_else(|_| vec![failed("store server", "the check panicked")])
}

/// Checks the database file. Read-only, so also valid while a gateway runs.
fn database(dir: &Path, answers: bool) -> Vec<Check> {
    let path = dir.join(DB_FILE);
    let name = "database";
    match std::fs::metadata(&path) {
        Err(_) if !answers && !dir.join(LOCK_FILE).exists() => return Vec::new(),
        Ok(meta) if meta.len() > CHECKED_FIRST_BYTES => {
            let text = "not checked because it is large: `acp-gateway store check` checks every page";
            return vec![noted(name, text)];
        }
        _ => {}
    }
    match store_check::check_database(dir, true) {
        Ok(report) if report.ok => {
            let text = format!("schema {}, {} checks passed", report.schema_version, report.checks.len());
            vec![passed(name, text)]
        }
        Ok(report) => {
            let broken = report.checks.iter().filter_map(store_check::CheckFinding::violation);
            let text = |found| format!("{found}; see `acp-gateway store check`");
            broken.map(|found| failed(name, text(found))).collect()
        }
        Err(error) => vec![failed(name, error.whole())],
    }
}

async fn supervisor(socket: &Path) -> Vec<Check> {
    let name = "supervisor";
    if !socket.exists() {
        return vec![noted(name, format!("not running: there is no socket {}", socket.display()))];
    }
    let hello = hello_at(socket, Role::Admin);
    let deadline = Duration::from_millis(ANSWER_MS);
    let asked = async { SupervisorClient::open(socket, hello, deadline).await?.call(Request::Status).await };
    match asked.await {
        Err(ConnError::Refused(refusal)) if is_tenant_only(refusal.code, socket) => {
            let text = "running; only root, its own user and its admin group can read its status";
            vec![passed(name, text)]
        }
        Err(error) => vec![failed(name, format!("{}: {error}", socket.display()))],
        Ok(Reply::Status(status)) => supervised(&status),
        Ok(_) => vec![failed(name, "unexpected response")],
    }
}

/// True for the refusal that a tenant gets: the supervisor runs as another user, and the tenant is no admin.
fn is_tenant_only(code: RefusalCode, socket: &Path) -> bool {
    let own = rustix::process::geteuid().as_raw();
    let owner = std::fs::metadata(socket).map(|meta| meta.uid());
    code == RefusalCode::NotAuthorised && owner.is_ok_and(|owner| owner != own)
}

fn supervised(status: &Status) -> Vec<Check> {
    let living: u64 =
        status.leases.iter().filter(|(state, _)| !state.is_ended()).map(|(_, count)| count).sum();
    let detail = format!(
        "pid {}, version {}, containment level {}, {living} leases",
        status.pid, status.version, status.rung
    );
    let mut checks = vec![passed("supervisor", detail)];
    checks.extend(status.warnings.iter().map(|warning| noted("supervisor", warning.clone())));
    checks
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;
    use serde_json::{Value, json};

    fn status() -> Value {
        json!({
            "pid": 7, "version": "1", "gateway_instance_id": "g", "state_dir": "/s", "started_at_ms": 1,
            "supervisor": { "socket": "/s/sup.sock", "connected": true, "pid": 8, "detail": "" },
            "dispatch_enabled": true, "durability": "full",
            "backends": [{ "id": "direct", "ok": true, "details": "ready" }],
            "listeners": [{ "address": "127.0.0.1:1", "ok": true, "plaintext": false, "details": "TLS" }],
            "store": {
                "health": "well", "bytes": 1, "log_bytes": 0, "sessions_open": 1, "runs_queued": 0,
                "inbox_waiting": 0, "stale_bindings": 0, "actors_stuck": 0, "still": [],
            },
        })
    }

    /// Returns the names of the checks that are not ok if the value at `path` is replaced.
    fn failed_checks(path: &str, value: Value) -> Vec<(&'static str, CheckStatus)> {
        let mut status = status();
        *status.pointer_mut(path).unwrap() = value;
        let health: HealthView =
            serde_json::from_value(json!({ "ok": true, "pid": 7, "version": "1" })).unwrap();
        let status: StatusView = serde_json::from_value(status).unwrap();
        let checks = serving(&health, &status).into_iter();
        checks
            .filter(|check| check.verdict != CheckStatus::Ok)
            .map(|check| (check.name, check.verdict))
            .collect()
    }

    #[test]
    fn edited_configuration_file_is_reported() {
        let dir = tempfile::tempdir().unwrap();
        let own = dir.path().join("gateway.toml");
        let other = dir.path().join("other.toml");
        std::fs::write(&other, "a = 1").unwrap();
        let loaded = |path: &Path, text: &str| {
            let file = LoadedFile::new(path, text);
            ConfigView { file: Some(file.path.display().to_string()), sha256: Some(file.sha256) }
        };
        let found =
            |view: &ConfigView| edited(view, dir.path()).map(|check| check.detail).unwrap_or_default();
        assert_eq!(found(&loaded(&other, "a = 1")), "");
        assert!(found(&loaded(&other, "a = 2")).contains("other.toml was edited"));
        assert!(found(&loaded(&own, "a = 1")).contains("gateway.toml was removed"));
        assert_eq!(found(&ConfigView::default()), "", "no file was loaded, and none exists");
        std::fs::write(&own, "a = 1").unwrap();
        assert!(found(&ConfigView::default()).contains("gateway.toml was added"));
    }

    #[test]
    fn each_status_problem_has_its_check() {
        use CheckStatus::{Failed, Note};
        for (path, value, want) in [
            ("/pid", json!(9), vec![]),
            ("/supervisor/connected", json!(false), vec![("gateway", Failed)]),
            ("/backends", json!([]), vec![("backend", Failed)]),
            ("/backends/0/ok", json!(false), vec![("backend", Failed)]),
            ("/dispatch_enabled", json!(false), vec![("dispatch", Note)]),
            ("/listeners/0/ok", json!(false), vec![("listener", Failed)]),
            ("/listeners/0/plaintext", json!(true), vec![("listener", Note)]),
            ("/store", Value::Null, vec![("store", Failed)]),
            ("/store/health", json!("full"), vec![("store", Failed)]),
            ("/store/stale_bindings", json!(2), vec![("bindings", Failed)]),
            ("/store/actors_stuck", json!(1), vec![("actors", Failed)]),
            ("/store/still", json!(["session k: no"]), vec![("records", Failed)]),
        ] {
            assert_eq!(failed_checks(path, value.clone()), want, "{path} {value}");
        }
    }
}
