//! `service install | check | remove`: the gateway as a service of systemd.

use crate::api::client::GatewayClient;
use crate::cli::agents::exe;
use crate::cli::output::{CliError, CliResult, Out};
use crate::cli::{GlobalArgs, usage};
use acp_core::api::StatusView;
use acp_core::failure::Failure;
use acp_shared::codes::Code;
use acp_shared::report::with_causes;
use acp_shared::service::{Service, ServiceCheck, ServiceError, ServiceReport, ServiceScope, ServiceUpdate};
use clap::{Args, Subcommand};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Parent of the state directories in the system's unit.
const SYSTEM_STATE_DIRS: &str = "/var/lib/acp-gateway";
const SYSTEM_UNIT: &str = include_str!("../../../packaging/systemd/acp-gateway@.service");
const USER_UNIT: &str = include_str!("../../../packaging/systemd/user/acp-gateway.service");

/// Maximum time until a started gateway answers and its supervisor accepts it, in milliseconds.
const ANSWER_MS: u64 = 30_000;
/// Polling interval during that time, in milliseconds.
const ASK_MS: u64 = 100;

/// Selects a service.
#[derive(Debug, Args)]
pub(crate) struct ServiceArgs {
    /// User who the gateway runs as: acp-gateway@NAME
    #[arg(required_unless_present = "user", conflicts_with = "user")]
    name: Option<String>,
    /// Use the services of the calling user instead of those of the system; needs no root
    #[arg(long)]
    user: bool,
}

/// `service …`
#[derive(Debug, Subcommand)]
pub(crate) enum ServiceCommand {
    /// Write the unit, enable and start it, and check that gateway and supervisor answer
    Install(ServiceArgs),
    /// Check that the service is enabled and active, and that gateway and supervisor answer
    Check(ServiceArgs),
    /// Stop and disable the service and remove its unit; agents run on, and the state directory stays
    Remove(ServiceArgs),
}

/// Service of systemd that a process belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ServiceUnit {
    pub(crate) name: String,
    /// True for a service of one user.
    is_user: bool,
}

impl ServiceUnit {
    /// Finds the unit of acp-host in the text of `/proc/PID/cgroup`.
    fn parse(cgroups: &str) -> Option<Self> {
        let is_unit = |part: &&str| part.starts_with("acp-") && part.ends_with(".service");
        let path = cgroups.lines().filter_map(|line| line.splitn(3, ':').nth(2));
        path.flat_map(|path| path.split('/').map(move |part| (path, part)))
            .find(|(_, part)| is_unit(part))
            .map(|(path, part)| Self { name: part.to_owned(), is_user: path.contains("/user@") })
    }

    const fn user_flag(&self) -> &'static str {
        if self.is_user { " --user" } else { "" }
    }

    /// Returns the command that stops the service.
    pub(crate) fn stop(&self) -> String {
        format!("systemctl{} stop {}", self.user_flag(), self.name)
    }

    /// Returns the command that shows the log.
    pub(crate) fn journal(&self) -> String {
        format!("journalctl{} -u {}", self.user_flag(), self.name)
    }
}

/// Returns the service of acp-host that a process belongs to.
pub(crate) fn unit_of(pid: i32) -> Option<ServiceUnit> {
    ServiceUnit::parse(&std::fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?)
}

/// `service …`
pub(crate) async fn run(global: &GlobalArgs, verb: &ServiceCommand, out: &mut Out) -> CliResult {
    let (ServiceCommand::Install(args) | ServiceCommand::Check(args) | ServiceCommand::Remove(args)) = verb;
    let (service, state_dir) = service(global, args)?;
    let report = match verb {
        ServiceCommand::Install(_) => {
            with_answer(service.install().map_err(failure)?, &state_dir, args).await
        }
        ServiceCommand::Check(_) => with_answer(service.check().map_err(failure)?, &state_dir, args).await,
        ServiceCommand::Remove(_) => service.remove().map_err(failure)?,
    };
    out.show(&report, |report| {
        let kept = format!("\nIts state stays in {}.", state_dir.display());
        report.text() + if report.action == "removed" { &kept } else { "" }
    })?;
    if report.is_ok() { Ok(()) } else { Err(CliError::Code(Code::Runtime.exit())) }
}

fn failure(error: ServiceError) -> Failure {
    Failure::new(Code::Runtime, with_causes(&error)).origin("client")
}

/// Returns the service, and the state directory of its gateway.
fn service(global: &GlobalArgs, args: &ServiceArgs) -> Result<(Service, PathBuf), Failure> {
    let common = Service {
        scope: ServiceScope::User,
        name: "acp-gateway",
        file: "acp-gateway.service",
        template: USER_UNIT,
        instance: None,
        program: exe(),
        arguments: Vec::new(),
        environment: Vec::new(),
        update: ServiceUpdate::Restart,
    };
    let Some(name) = &args.name else {
        let state_dir = global.state_dir()?;
        // Agents are searched on the gateway's PATH, and that of the service manager has no directory of the user.
        let path = std::env::var_os("PATH").map(|path| ("PATH", path.into()));
        let arguments = vec!["--state-dir".into(), state_dir.clone()];
        return Ok((Service { arguments, environment: path.into_iter().collect(), ..common }, state_dir));
    };
    if global.state_dir.is_some() {
        return Err(usage(format!(
            "the service of the system uses {SYSTEM_STATE_DIRS}/{name}; for another state directory use --user, or \
             `systemctl edit acp-gateway@{name}`"
        )));
    }
    if !matches!(nix::unistd::User::from_name(name), Ok(Some(_))) {
        return Err(usage(format!("there is no user {name:?}: create it, or name another")));
    }
    let system = Service {
        scope: ServiceScope::System,
        file: "acp-gateway@.service",
        template: SYSTEM_UNIT,
        instance: Some(name.clone()),
        ..common
    };
    Ok((system, Path::new(SYSTEM_STATE_DIRS).join(name)))
}

/// Adds checks of the gateway's answer and of its connection to the supervisor.
async fn with_answer(mut report: ServiceReport, state_dir: &Path, args: &ServiceArgs) -> ServiceReport {
    let until = Instant::now() + Duration::from_millis(ANSWER_MS);
    let is_active = report.is_ok();
    let mut answer = None;
    let answer = loop {
        let asked = GatewayClient::new(state_dir).until(Some(until)).get::<StatusView>("/v1/status").await;
        // An answer before the deadline says more than a request that the deadline cut off.
        if asked.is_ok() || !matches!(answer, Some(Ok(_))) {
            answer = Some(asked);
        }
        let is_ready = matches!(&answer, Some(Ok(status)) if status.supervisor.connected);
        if is_ready || !is_active || Instant::now() >= until {
            break answer;
        }
        tokio::time::sleep(Duration::from_millis(ASK_MS)).await;
    };
    match answer {
        None => {}
        Some(Err(failure)) => report.checks.push(ServiceCheck::new("gateway", false, failure.message)),
        Some(Ok(status)) => {
            let detail = format!("pid {} answers in {}", status.pid, state_dir.display());
            report.checks.push(ServiceCheck::new("gateway", true, detail));
            let connected = status.supervisor.connected;
            let detail = if connected {
                format!("connected at {}", status.supervisor.socket)
            } else {
                not_connected(&status, args)
            };
            report.checks.push(ServiceCheck::new("supervisor", connected, detail));
        }
    }
    report
}

/// Explains why the supervisor does not serve the gateway, with the next step.
fn not_connected(status: &StatusView, args: &ServiceArgs) -> String {
    let next = match &args.name {
        None => "install one: `acp-supervisor service install --user`".to_owned(),
        Some(name) => format!(
            "install one (`acp-supervisor service install`), and allow {name} in /etc/acp-host/supervisor.toml: a \
             [[tenant]] with user = {name:?}, then `systemctl reload acp-supervisor`. Only if it allowed no other user before: \
             `systemctl restart acp-supervisor`, which ends all agents"
        ),
    };
    format!("{}: {}; {next}", status.supervisor.socket, status.supervisor.detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unit_of_a_process_is_read_from_its_control_group() {
        let unit = |cgroups: &str| ServiceUnit::parse(cgroups).map(|unit| (unit.stop(), unit.journal()));
        let commands = |stop: &str, journal: &str| Some((stop.to_owned(), journal.to_owned()));
        assert_eq!(
            unit("0::/system.slice/system-acp\\x2dgateway.slice/acp-gateway@alice.service\n"),
            commands("systemctl stop acp-gateway@alice.service", "journalctl -u acp-gateway@alice.service")
        );
        assert_eq!(
            unit(
                "1:name=systemd:/\n0::/user.slice/user-1.slice/user@1.service/app.slice/acp-supervisor.service/leases\n"
            ),
            commands(
                "systemctl --user stop acp-supervisor.service",
                "journalctl --user -u acp-supervisor.service"
            )
        );
        assert_eq!(unit("0::/user.slice/user-1.slice/session-3.scope\n"), None);
        assert_eq!(unit("0::/system.slice/cron.service\n"), None);
    }
}
