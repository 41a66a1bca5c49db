//! `migrate openclaw`: imports sessions and bindings of OpenClaw into the database of a stopped gateway.

mod sources;
mod usage;

use crate::cli::agents::agents_of;
use crate::cli::config::{ConfigArgs, read};
use crate::cli::output::{CliError, CliResult, Out, now_ms};
use crate::cli::{GlobalArgs, cell, usage as usage_error};
use crate::runtime::agents::Agents;
use crate::runtime::local_lookup;
use crate::runtime::profiles::Profiles as _;
use acp_core::config::load::LoadedConfig;
use acp_core::failure::Failure;
use acp_core::migrate::config_review::ConfigReview;
use acp_core::migrate::plan::{AgentDefaults, ImportPlan, ImportSettings, SourceRecords, plan};
use acp_core::migrate::{MigrationLine, MigrationTotals};
use acp_core::policy::{BindingTimeouts, PolicyScope, effective_policy};
use acp_shared::ids::{AgentName, BindingId, GatewayInstanceId};
use acp_store::StoreError;
use acp_store::openclaw_import::{CompletedImport, OpenclawImport, OpenclawSource};
use clap::{Args, Subcommand};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Directory of OpenClaw in a home directory.
const OPENCLAW_DIR: &str = ".openclaw";

/// `migrate …`
#[derive(Debug, Subcommand)]
pub(crate) enum MigrateCommand {
    /// Import sessions and bindings of OpenClaw; the gateway and OpenClaw must be stopped
    Openclaw(OpenclawArgs),
}

/// `migrate openclaw`
#[derive(Debug, Args)]
pub(crate) struct OpenclawArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// State directory of OpenClaw; only read [default: ~/.openclaw]
    #[arg(long, value_name = "DIR", env = "OPENCLAW_STATE_DIR")]
    from: Option<PathBuf>,
    /// Report what would be imported, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Import only these records
    #[arg(long, value_name = "KINDS", value_delimiter = ',', value_parser = ["sessions", "bindings"])]
    only: Vec<String>,
    /// Import sessions of agent OLD as sessions of agent NEW; may be repeated
    #[arg(long = "agent", value_name = "OLD=NEW", value_parser = renaming)]
    agents: Vec<(String, String)>,
    /// Import bindings of account OLD into account NEW; may be repeated
    #[arg(long = "account", value_name = "OLD=NEW", value_parser = renaming)]
    accounts: Vec<(String, String)>,
    /// Import closed and archived sessions, too
    #[arg(long)]
    include_closed: bool,
}

/// Parses `OLD=NEW`.
fn renaming(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((old, new)) if !old.is_empty() && !new.is_empty() => Ok((old.to_owned(), new.to_owned())),
        _ => Err("expected OLD=NEW".to_owned()),
    }
}

impl OpenclawArgs {
    fn wants(&self, kind: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|wanted| wanted == kind)
    }

    /// Absolute path of the source.
    fn source_dir(&self) -> Result<PathBuf, Failure> {
        let home = || std::env::var_os("HOME").map(|home| Path::new(&home).join(OPENCLAW_DIR));
        let given = self.from.clone().filter(|dir| !dir.as_os_str().is_empty()).or_else(home);
        let dir = given
            .ok_or_else(|| usage_error("HOME is not set: name OpenClaw's state directory with --from"))?;
        let found = std::fs::canonicalize(&dir);
        found.map_err(|error| {
            usage_error(format!("{}: {error}. Name OpenClaw's state directory with --from", dir.display()))
        })
    }
}

/// `migrate …`
pub(crate) fn run(global: &GlobalArgs, verb: &MigrateCommand, out: &mut Out) -> CliResult {
    let MigrateCommand::Openclaw(args) = verb;
    let state_dir = global.state_dir()?;
    let from = args.source_dir()?;
    let (loaded, _) = read(&state_dir, &args.config, None)?;
    cell::refuse(
        &state_dir,
        &args.config,
        "Import into a new state directory with SQLite, and move that: `store move`.",
    )?;
    let import = OpenclawImport::open(&state_dir, args.dry_run).map_err(store_failed)?;
    usage::refuse_used_source(&from)?;
    let read = sources::read_sources(&from, &state_dir, now_ms());
    let source = OpenclawSource { dir: from, sha256: read.sha256, imported_at_ms: now_ms() };
    let agents = agents_of(loaded.clone(), &state_dir);
    let planned =
        make_plan(&read.records, args, &loaded, &agents, (import.instance_id(), source.imported_at_ms));
    let done = if args.dry_run {
        let lines = import.rehearse(&planned, source.imported_at_ms).map_err(store_failed)?;
        CompletedImport { lines, backup: None }
    } else {
        import.run(&planned, &source, &mut |_| {}).map_err(store_failed)?
    };
    import.close().map_err(store_failed)?;
    report(&done, &read.review, &source, args.dry_run, out)
}

/// Keeps the full error text: the person at the command line has to act on it.
fn store_failed(error: StoreError) -> CliError {
    let whole = error.whole();
    let mut failure = Failure::from(error).origin("client");
    failure.message = whole;
    CliError::Failed(failure)
}

fn make_plan(
    records: &SourceRecords,
    args: &OpenclawArgs,
    loaded: &LoadedConfig,
    agents: &Agents,
    (gateway_instance_id, now_ms): (GatewayInstanceId, u64),
) -> ImportPlan {
    let check_agent = |agent: &AgentName, cwd: &str| check_agent(agents, agent, cwd);
    let timeouts = |account: &str| configured_timeouts(loaded, account);
    let names = |renamings: &[(String, String)]| renamings.iter().cloned().collect::<BTreeMap<_, _>>();
    let settings = ImportSettings {
        sessions: args.wants("sessions"),
        bindings: args.wants("bindings"),
        include_closed: args.include_closed,
        agents: names(&args.agents),
        accounts: names(&args.accounts),
        now_ms,
        gateway_instance_id,
        check_agent: &check_agent,
        timeouts: &timeouts,
        new_binding_id: &BindingId::mint,
    };
    plan(records, &settings)
}

fn check_agent(agents: &Agents, agent: &AgentName, cwd: &str) -> Result<AgentDefaults, String> {
    let profile = agents
        .configured(agent)
        .map_err(|failure| format!("{} To use another agent, add --agent {agent}=NAME.", failure.message))?;
    let found = local_lookup::look_up(&agents.lookup(agent, Some(cwd), &[]));
    let cwd = agents.cwd(agent, Some(cwd), &found).map_err(|failure| failure.message)?;
    Ok(AgentDefaults { cwd, permission: profile.permission, non_interactive: profile.non_interactive })
}

/// Timeouts of bindings of an account of Discord, as configured.
fn configured_timeouts(loaded: &LoadedConfig, account: &str) -> BindingTimeouts {
    let scope =
        PolicyScope { channel: Some("discord".to_owned()), account: Some(account.to_owned()), agent: None };
    let policy = effective_policy(loaded, &scope);
    BindingTimeouts { idle_ms: policy.bindings.idle_ms.value, max_age_ms: policy.bindings.max_age_ms.value }
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum JsonLine<'a> {
    Record {
        #[serde(flatten)]
        line: &'a MigrationLine,
    },
    Config {
        toml: &'a str,
        notes: &'a [String],
    },
    Totals {
        dry_run: bool,
        #[serde(flatten)]
        totals: MigrationTotals,
        source: &'a OpenclawSource,
        backup: Option<&'a Path>,
    },
}

fn report(
    done: &CompletedImport,
    review: &ConfigReview,
    source: &OpenclawSource,
    dry_run: bool,
    out: &mut Out,
) -> CliResult {
    let totals = MigrationTotals::of(&done.lines);
    let backup = done.backup.as_deref();
    if out.json {
        for line in &done.lines {
            out.json(&JsonLine::Record { line })?;
        }
        out.json(&JsonLine::Config { toml: &review.toml, notes: &review.notes })?;
        out.json(&JsonLine::Totals { dry_run, totals, source, backup })?;
    } else {
        for line in &done.lines {
            out.line(&line.text())?;
        }
        out.line(&format!("\n{}", totals.text()))?;
        out.line(&outcome(&totals, backup, dry_run))?;
        print_review(review, out)?;
        out.flush()?;
    }
    if totals.is_complete() { Ok(()) } else { Err(CliError::Code(1)) }
}

fn outcome(totals: &MigrationTotals, backup: Option<&Path>, dry_run: bool) -> String {
    match backup {
        _ if dry_run => "Dry run: nothing was changed.".to_owned(),
        Some(backup) => format!(
            "Imported. `acp-gateway store restore {}` restores the database of before.",
            backup.display()
        ),
        None if totals.already > 0 => "Nothing to import that is not in the database.".to_owned(),
        None => "Nothing to import.".to_owned(),
    }
}

fn print_review(review: &ConfigReview, out: &mut Out) -> CliResult {
    if review.toml.is_empty() && review.notes.is_empty() {
        return Ok(());
    }
    out.line("\n# Settings of openclaw.json for gateway.toml, to review; nothing was written.")?;
    for note in &review.notes {
        out.line(&format!("# {note}"))?;
    }
    out.line(review.toml.trim_end())
}
