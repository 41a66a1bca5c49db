//! `down`: ends the gateway and the supervisor that `up` started in this state directory, and nothing else.

use crate::cli::GlobalArgs;
use crate::cli::output::{CliError, CliResult, Out};
use crate::cli::serve::{supervisor_dir, supervisor_socket};
use crate::cli::service::unit_of;
use crate::cli::up::lock::{RunningUp, UpLock, own_supervisor_runs};
use crate::cli::up::{RunningSupervisor, end, running_supervisor_pid};
use acp_core::api::StatusView;
use acp_core::failure::Failure;
use acp_shared::codes::Code;
use serde::Serialize;
use std::path::Path;
use std::time::{Duration, Instant};

/// Maximum wait for the answer of a gateway that `up` did not start.
const STATUS_WAIT: Duration = Duration::from_secs(5);
/// Maximum wait for the lock of a supervisor that ends.
const LOCK_WAIT: Duration = Duration::from_secs(5);
/// Polling interval during that time.
const LOCK_POLL: Duration = Duration::from_millis(20);

pub(crate) const EXAMPLES: &str = "\
Ends the gateway that holds the lock of `up` in the state directory, in the foreground or in the background, then its supervisor
and all agents. After a kill of the gateway it ends the supervisor and the agents that were left. Sessions stay.

A gateway that `up` did not start is named and left alone, as is a supervisor that is a service, belongs to another state
directory, or is used by other gateways.

Exit codes: 0 if nothing is left that `up` started; 1 otherwise, also for a gateway that `up` did not start.";

#[derive(Debug, Default, Serialize)]
struct DownOutput {
    /// Pid of the ended gateway.
    gateway_pid: Option<i32>,
    /// Pid of the ended supervisor.
    supervisor_pid: Option<i32>,
    /// Supervisor that keeps running, and the reason.
    kept: Option<String>,
}

/// `down`
pub(crate) async fn run(global: &GlobalArgs, out: &mut Out) -> CliResult {
    let given = global.state_dir()?;
    let Ok(state_dir) = std::fs::canonicalize(&given) else {
        return out.show(&DownOutput::default(), |_| nothing(&given));
    };
    let running = RunningUp::find(&state_dir)?;
    let mut ended = DownOutput::default();
    if let Some(up) = &running {
        out.note(&format!("Ending the gateway (pid {}), its supervisor and all agents …", up.pid))?;
        let supervisor = supervisor_of(global).await;
        up.end().await?;
        (ended.gateway_pid, ended.supervisor_pid) = (Some(up.pid), supervisor);
    } else {
        refuse_other_gateway(global, &state_dir).await?;
    }
    // Held until the end, so that no `up` starts in the meantime.
    let lock = UpLock::take(&state_dir)?.ok_or_else(|| {
        let down = global.advise("down", None);
        let text = format!("another `up` was started in the meantime: call `{down}` again");
        Failure::new(Code::Runtime, text).origin("client")
    })?;
    let socket = lock.recorded().unwrap_or_else(|| supervisor_socket(&state_dir));
    let mut is_own = true;
    if let Some(pid) = running_supervisor_pid(&socket).await? {
        let mut supervisor = RunningSupervisor::found(pid, &socket);
        match end(&mut supervisor, &state_dir).await? {
            None => ended.supervisor_pid = Some(pid),
            Some(why) => {
                is_own = unit_of(pid).is_none() && own_supervisor_runs(&state_dir)?;
                ended.supervisor_pid = None;
                ended.kept = Some(format!("the supervisor (pid {pid}) keeps running: {why}"));
            }
        }
    }
    if ended.kept.is_none() {
        verify_supervisor_ended(global, &state_dir).await?;
    }
    out.show(&ended, |ended| text(ended, &state_dir))?;
    if ended.kept.is_some() && is_own { Err(CliError::Code(Code::Runtime.exit())) } else { Ok(()) }
}

/// Checks that no supervisor holds the lock of its state directory: one that does not answer may still run.
async fn verify_supervisor_ended(global: &GlobalArgs, state_dir: &Path) -> Result<(), Failure> {
    let until = Instant::now() + LOCK_WAIT;
    while own_supervisor_runs(state_dir)? {
        if Instant::now() >= until {
            let dir = supervisor_dir(state_dir);
            let text = format!(
                "a supervisor still holds the lock of {} and does not answer: look at {}, then call `{}` again",
                dir.display(),
                dir.join("supervisor.log").display(),
                global.advise("down", None)
            );
            return Err(Failure::new(Code::Runtime, text).origin("client"));
        }
        tokio::time::sleep(LOCK_POLL).await;
    }
    Ok(())
}

/// Returns the pid of the supervisor that the gateway is connected to.
async fn supervisor_of(global: &GlobalArgs) -> Option<i32> {
    let client = global.client().ok()?.until(Some(Instant::now() + STATUS_WAIT));
    client.get::<StatusView>("/v1/status").await.ok()?.supervisor.pid
}

/// Refuses to end a gateway that `up` did not start.
async fn refuse_other_gateway(global: &GlobalArgs, state_dir: &Path) -> Result<(), CliError> {
    let client = global.client()?.until(Some(Instant::now() + STATUS_WAIT));
    if !client.is_served().await {
        return Ok(());
    }
    let status = match client.get::<StatusView>("/v1/status").await {
        Ok(status) => status,
        Err(failure) if failure.code == Code::GatewayUnavailable => return Ok(()),
        Err(failure) => return Err(failure.into()),
    };
    let unit = i32::try_from(status.pid).ok().and_then(unit_of);
    let next = match unit {
        Some(unit) => format!("it is the service {}: `{}` stops it", unit.name, unit.stop()),
        None => "end it where it was started".to_owned(),
    };
    let text = format!(
        "the gateway in {}, pid {}, was not started by `up`: {next}",
        state_dir.display(),
        status.pid
    );
    Err(Failure::new(Code::Runtime, text).origin("client").into())
}

fn nothing(state_dir: &Path) -> String {
    format!("Nothing to end: no gateway and no supervisor of `up` run in {}.", state_dir.display())
}

fn text(ended: &DownOutput, state_dir: &Path) -> String {
    let pid = |what: &str, pid: Option<i32>| pid.map(|pid| format!("{what} (pid {pid})"));
    let parts = [pid("gateway", ended.gateway_pid), pid("supervisor with all agents", ended.supervisor_pid)];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    let kept = ended.kept.as_ref().map(|kept| format!("\nNot ended: {kept}.")).unwrap_or_default();
    match (parts.is_empty(), kept.is_empty()) {
        (true, true) => nothing(state_dir),
        (true, false) => kept.trim_start().to_owned(),
        (false, _) => format!("Ended: {}.{kept}", parts.join(", ")),
    }
}
