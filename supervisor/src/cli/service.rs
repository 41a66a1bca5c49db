//! `service install | check | remove`: the supervisor as a service of systemd.

use super::error::FAILED;
use super::{Address, CliError, GlobalArgs, Output, client_within, status};
use crate::sys::program;
use acp_shared::service::{Service, ServiceCheck, ServiceReport, ServiceScope, ServiceUpdate};
use clap::{Args, Subcommand};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::time::Instant;

/// Configuration file of the system's unit.
const CONFIG_FILE: &str = "/etc/acp-host/supervisor.toml";
const CONFIG: &str = include_str!("../../../packaging/supervisor.example.toml");
/// Paths in the system's unit.
const SYSTEM_STATE_DIR: &str = "/var/lib/acp-supervisor";
const SYSTEM_SOCKET: &str = "/run/acp-supervisor/supervisor.sock";
const SYSTEM_UNIT: &str = include_str!("../../../packaging/systemd/acp-supervisor.service");
const USER_UNIT: &str = include_str!("../../../packaging/systemd/user/acp-supervisor.service");

/// Maximum time until a started supervisor answers.
const ANSWERS: Duration = Duration::from_secs(30);
const ASK_AGAIN: Duration = Duration::from_millis(100);

#[derive(Debug, Args)]
pub(super) struct ServiceArgs {
    /// Use the services of this user instead of those of the system; needs no root
    #[arg(long)]
    user: bool,
}

#[derive(Debug, Subcommand)]
pub(super) enum ServiceCommand {
    /// Write the unit, enable and start it, and check that the supervisor answers; an active one is upgraded
    Install(ServiceArgs),
    /// Check that the service is enabled and active, and that the supervisor answers
    Check(ServiceArgs),
    /// Stop and disable the service, which ends its agents, and remove its unit; the state directory stays
    Remove(ServiceArgs),
}

pub(super) async fn run(
    global: &GlobalArgs,
    verb: &ServiceCommand,
    out: &mut Output,
) -> Result<(), CliError> {
    let (ServiceCommand::Install(args) | ServiceCommand::Check(args) | ServiceCommand::Remove(args)) = verb;
    let (service, address) = if args.user { user_service(global)? } else { system_service(global)? };
    let report = match verb {
        ServiceCommand::Install(args) => {
            if !args.user {
                service.check_access()?;
                prepare_system(&service.program)?;
            }
            with_answer(service.install()?, &address).await
        }
        ServiceCommand::Check(_) => with_answer(service.check()?, &address).await,
        ServiceCommand::Remove(_) => service.remove()?,
    };
    if out.is_json() {
        out.data("service", &report)?
    } else {
        out.line(&report.text())?
    }
    if report.is_ok() { Ok(()) } else { Err(CliError::Ended(FAILED)) }
}

/// Returns the service of this user, and the address of its supervisor.
fn user_service(global: &GlobalArgs) -> Result<(Service, Address), CliError> {
    let absolute = |path: PathBuf| Ok::<_, CliError>(std::path::absolute(path)?);
    let mut arguments = vec!["--state-dir".into(), absolute(global.state_dir()?)?];
    if let Some(socket) = &global.socket {
        arguments.extend(["--socket".into(), absolute(socket.clone())?]);
    }
    Ok((service(ServiceScope::User, USER_UNIT, arguments), global.address()?))
}

/// Returns the service of the system, and the address of its supervisor.
fn system_service(global: &GlobalArgs) -> Result<(Service, Address), CliError> {
    if global.state_dir.is_some() || global.socket.is_some() {
        return Err(CliError::usage(format!(
            "the service of the system uses {SYSTEM_STATE_DIR} and {SYSTEM_SOCKET}; for other paths use --user, or \
             `systemctl edit acp-supervisor`"
        )));
    }
    let address = Address {
        socket: SYSTEM_SOCKET.into(),
        own: Some(Path::new(SYSTEM_STATE_DIR).join(crate::app::SOCKET_FILE)),
    };
    Ok((service(ServiceScope::System, SYSTEM_UNIT, Vec::new()), address))
}

fn service(scope: ServiceScope, template: &'static str, arguments: Vec<PathBuf>) -> Service {
    Service {
        scope,
        name: "acp-supervisor",
        file: "acp-supervisor.service",
        template,
        instance: None,
        program: program::own(),
        arguments,
        environment: Vec::new(),
        update: ServiceUpdate::Reload,
    }
}

/// Checks that only root can replace the program, and writes the configuration file that the unit names.
fn prepare_system(own: &Path) -> Result<(), CliError> {
    program::check(own).map_err(|why| CliError::ServiceProgram(own.to_owned(), why))?;
    let path = Path::new(CONFIG_FILE);
    if path.exists() {
        return Ok(());
    }
    let made = path.parent().map_or(Ok(()), std::fs::create_dir_all);
    let written = made.and_then(|()| std::fs::write(path, CONFIG));
    written.map_err(|source| CliError::File { path: path.to_owned(), source })
}

/// Adds the check whether the supervisor answers.
async fn with_answer(mut report: ServiceReport, address: &Address) -> ServiceReport {
    let until = Instant::now() + ANSWERS;
    let is_active = report.is_ok();
    let answer = loop {
        let asked = async { status::ask(&mut client_within(address, ANSWERS).await?).await };
        match asked.await {
            Err(_) if is_active && Instant::now() < until => tokio::time::sleep(ASK_AGAIN).await,
            answer => break answer,
        }
    };
    report.checks.push(match answer {
        Ok(status) => {
            let detail = format!("pid {} answers at {}", status.pid, address.socket.display());
            ServiceCheck::new("supervisor", true, detail)
        }
        Err(error) => ServiceCheck::new("supervisor", false, error.message()),
    });
    report
}
