//! `up --detach`: starts `up` in a Unix session of its own and waits until it is ready. `acp-gateway down` ends it.

use super::child::UpChild;
use super::lock::RunningUp;
use super::{UpArgs, last_lines, welcome};
use crate::cli::agents::{agents_of, exe};
use crate::cli::config::read;
use crate::cli::output::{CliError, CliResult, Out};
use crate::cli::serve::{LOG_FILE, make_private, supervisor_dir};
use crate::cli::stop_signals::StopSignals;
use crate::cli::{GlobalArgs, inside, usage};
use acp_core::api::StatusView;
use acp_core::failure::Failure;
use acp_shared::codes::Code;
use serde::Serialize;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tokio::process::Command;

/// Maximum wait for the answer of a running `up`, which may be starting.
const ANSWER_WAIT: Duration = Duration::from_secs(60);
/// Maximum wait for the connection of an answering gateway to its supervisor.
const SUPERVISOR_WAIT: Duration = Duration::from_secs(5);
/// Polling interval during these times.
const POLL: Duration = Duration::from_millis(50);

#[derive(Debug, Serialize)]
struct DetachedOutput {
    event: &'static str,
    /// True if it was running before.
    already_running: bool,
    gateway_pid: i64,
    supervisor_pid: Option<i64>,
    state_dir: PathBuf,
    logs: [PathBuf; 2],
}

/// `up --detach`
pub(super) async fn run(global: &GlobalArgs, args: &UpArgs, out: &mut Out) -> CliResult {
    let mut stop = StopSignals::listen()?;
    let state_dir = global.state_dir()?;
    make_private(&state_dir)?;
    let state_dir = std::fs::canonicalize(&state_dir)
        .map_err(|error| usage(format!("{}: {error}", state_dir.display())))?;
    let (loaded, _) = read(&state_dir, &args.serve.config, args.serve.supervisor_socket.as_deref())?;
    let agents = agents_of(loaded, &state_dir);
    let (already_running, pids) = find_or_start(global, args, &state_dir, &mut stop).await?;
    let (gateway_pid, supervisor_pid) = pids;
    let logs = [state_dir.join(LOG_FILE), supervisor_dir(&state_dir).join("supervisor.log")];
    let shown =
        DetachedOutput { event: "ready", already_running, gateway_pid, supervisor_pid, state_dir, logs };
    out.show(&shown, |shown| {
        let state = if shown.already_running { "was up already" } else { "is up in the background" };
        let pids = (shown.gateway_pid, shown.supervisor_pid);
        let say = |verb: &str| global.advise(verb, None);
        let end = format!(
            "Status: {}\nLogs:   {}\nEnd:    {}, which ends all agents too\nLog files: {}, {}",
            say("status"),
            say("logs --service -f"),
            say("down"),
            shown.logs[0].display(),
            shown.logs[1].display(),
        );
        welcome((state, "Next:"), pids, &agents, global, &shown.state_dir, &end)
    })
}

/// Pids of a gateway and its supervisor.
type Pids = (i64, Option<i64>);

/// Returns the pids, and true if the gateway ran before.
async fn find_or_start(
    global: &GlobalArgs,
    args: &UpArgs,
    state_dir: &Path,
    stop: &mut StopSignals,
) -> Result<(bool, Pids), CliError> {
    loop {
        if let Some(running) = RunningUp::find(state_dir)? {
            let ready = tokio::select! {
                ready = wait_until_ready(global, &running) => ready?,
                () = stop.recv() => return Err(interrupted().into()),
            };
            if let Some(pids) = ready {
                return Ok((true, pids));
            }
        }
        match start(global, args, state_dir, stop).await {
            Ok(pids) => return Ok((false, pids)),
            // Another `up` was faster.
            Err(CliError::Failed(failure))
                if failure.detail_code.as_deref() == Some("STORE_LOCKED")
                    && RunningUp::find(state_dir)?.is_some() => {}
            Err(error) => return Err(error),
        }
    }
}

fn interrupted() -> Failure {
    Failure::new(Code::Runtime, "interrupted before the gateway was ready").origin("client")
}

/// Waits until a running gateway is ready. Returns `None` if it has ended.
async fn wait_until_ready(global: &GlobalArgs, running: &RunningUp) -> Result<Option<Pids>, Failure> {
    let mut until = Instant::now() + ANSWER_WAIT;
    while !running.has_ended() {
        let client = global.client()?.until(Some(Instant::now() + SUPERVISOR_WAIT));
        let failure = match client.get::<StatusView>("/v1/status").await {
            Ok(status) if status.supervisor.connected => {
                return Ok(Some((status.pid.into(), status.supervisor.pid.map(i64::from))));
            }
            Ok(status) => {
                until = until.min(Instant::now() + SUPERVISOR_WAIT);
                let text = format!(
                    "`up` runs already, pid {}, but is not connected to its supervisor ({}): restart it, `{}`, then `{}`",
                    running.pid,
                    status.supervisor.detail,
                    global.advise("down", None),
                    global.advise("up -d", None)
                );
                Failure::new(Code::BackendUnavailable, text)
            }
            Err(failure) => {
                let text = format!(
                    "`up` runs already, pid {}, but does not answer: it is starting or ending ({})",
                    running.pid, failure.message
                );
                Failure::new(Code::GatewayUnavailable, text)
            }
        };
        if Instant::now() >= until {
            return Err(failure.origin("client"));
        }
        tokio::time::sleep(POLL).await;
    }
    Ok(None)
}

async fn start(
    global: &GlobalArgs,
    args: &UpArgs,
    state_dir: &Path,
    stop: &mut StopSignals,
) -> Result<Pids, CliError> {
    let log = state_dir.join(LOG_FILE);
    let before = std::fs::metadata(&log).map_or(0, |meta| meta.len());
    let file = OpenOptions::new().create(true).append(true).mode(0o600).open(&log);
    let file = file.map_err(|error| inside(&format!("cannot open {}", log.display()), &error))?;
    let mut up = UpChild::start(&mut command(args, state_dir, file)?)?;
    let ready = tokio::select! {
        ready = up.wait_until_ready() => ready,
        () = stop.recv() => Err(interrupted()),
    };
    match ready {
        Ok(line) => Ok((line["gateway_pid"].as_i64().unwrap_or_default(), line["supervisor_pid"].as_i64())),
        Err(mut failure) => {
            // Nothing is left behind by a start that failed.
            up.end().await?;
            if failure.code == Code::GatewayUnavailable {
                let end = last_lines(&log, before);
                failure.message = format!("{}; end of {}: {end}", failure.message, log.display());
            }
            if failure.code == Code::Timeout {
                let logs = global.advise("logs --service", None);
                failure.message = format!("{}, and was ended; see `{logs}`", failure.message);
            }
            Err(failure.into())
        }
    }
}

/// Builds the command line of the gateway in the background. Standard error, for what is not logged, is the log.
fn command(args: &UpArgs, state_dir: &Path, log: File) -> Result<Command, Failure> {
    let mut command = Command::new(exe());
    command.arg("detached").arg(exe()).args(["up", "--json", "--background", "--state-dir"]).arg(state_dir);
    let files =
        [("--config", &args.serve.config.config), ("--supervisor-socket", &args.serve.supervisor_socket)];
    for (flag, path) in files {
        if let Some(path) = path {
            command.arg(flag).arg(std::path::absolute(path).map_err(|error| usage(error.to_string()))?);
        }
    }
    command.current_dir("/").stderr(log);
    Ok(command)
}
