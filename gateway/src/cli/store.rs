//! `store`: checks, reads, backs up and restores the control plane's database. Works without a running
//! gateway, and stops none.

use crate::app::store::{Cell, read_cell};
use crate::cli::config::{self, ConfigArgs};
use crate::cli::output::{CliError, CliResult, Out, age, now_ms, table};
use crate::cli::{GlobalArgs, cell};
use crate::ops::retention;
use acp_core::failure::Failure;
use acp_shared::codes::Code;
use acp_store::backup::{BackupProgress, Progress};
use acp_store::check::{self, CheckReport};
use acp_store::compact::{self, CompactReport};
use acp_store::move_rows::{self, MoveCell, MoveReport};
use acp_store::retention::PruneRule;
use acp_store::salvage::{self, Salvage};
use acp_store::{StoreError, backup, offline, restore};
use clap::{Args, Subcommand, ValueEnum};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Interval of progress reports.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);

/// `store …`
#[derive(Debug, Subcommand)]
pub(crate) enum StoreCommand {
    /// Check the database and its invariants; read-only, may run while the gateway runs
    Check {
        /// Check only the pages, not every index entry
        #[arg(long)]
        quick: bool,
    },
    /// List the sessions in the database, also in a damaged one as far as it can be read; read-only
    Sessions {
        /// Include closed sessions
        #[arg(long)]
        all: bool,
    },
    /// Write a copy of the database as it is now; may run while the gateway runs
    Backup {
        /// File to write; visible under this name only once complete
        file: PathBuf,
        /// Replace an existing file
        #[arg(long)]
        replace: bool,
    },
    /// Replace the database by a backup, and keep the old file; the gateway must be stopped
    Restore {
        /// File written by `store backup`
        file: PathBuf,
    },
    /// Prune the journal by its retention, and give free pages back to the disk; the gateway must be stopped
    Compact(CompactArgs),
    /// Move the control plane into a cell of a PostgreSQL server, or back into a file; the gateway must be stopped
    Move(MoveArgs),
    /// Continue with a database that was rolled back to an older state, and accept the loss of newer data;
    /// the gateway must be stopped
    AcceptLoss,
}

/// `store compact`
#[derive(Debug, Args)]
pub(crate) struct CompactArgs {
    /// Show only the rows that would be pruned and the space that would be needed; may run while the gateway runs
    #[arg(long)]
    dry_run: bool,
    /// Prune rows older than this, instead of `journal.retention_days`; 0 prunes rows of any age
    #[arg(long, value_name = "DAYS")]
    retention_days: Option<u64>,
    /// Keep this number of turns of each session, instead of `journal.keep_turns`
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    keep_turns: Option<u64>,
    #[command(flatten)]
    config: ConfigArgs,
}

/// `store move`
#[derive(Debug, Args)]
pub(crate) struct MoveArgs {
    /// Target of the move
    #[arg(long, value_enum, value_name = "STORE")]
    to: MoveTarget,
    /// Show only what would be moved; changes nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    config: ConfigArgs,
}

/// Target of `store move`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum MoveTarget {
    /// The server and cell of `acp.control_plane.postgres`
    Postgres,
    /// `gateway.db` in the state directory
    Sqlite,
}

impl CompactArgs {
    /// Returns the rule of these flags and of the configuration; `None` prunes nothing.
    fn rule(&self, dir: &Path) -> Result<Option<PruneRule>, Failure> {
        let (loaded, _) = config::read(dir, &self.config, None)?;
        let (mut config, now_ms) = (loaded.config, now_ms());
        config.journal.keep_turns = self.keep_turns.unwrap_or(config.journal.keep_turns);
        let Some(days) = self.retention_days else { return Ok(retention::prune_rule(&config, now_ms)) };
        let policy = config.journal.policy_of_days(days, now_ms);
        let webhooks = config.notify.into_iter().map(|target| target.name).collect();
        Ok(Some(PruneRule { policy, webhooks }))
    }
}

#[derive(Debug, Serialize)]
struct RestoreOutput {
    kept: Option<PathBuf>,
    uncertain: u64,
    adopt: Option<String>,
}

#[derive(Debug, Serialize)]
struct AcceptLossOutput {
    epoch: u64,
    event_id: u64,
    known_epoch: u64,
    known_event_id: u64,
    uncertain: u64,
}

/// `store …`
pub(crate) fn run(global: &GlobalArgs, verb: &StoreCommand, out: &mut Out) -> CliResult {
    let dir = global.state_dir()?;
    if !dir.is_dir() && !matches!(verb, StoreCommand::Restore { .. }) {
        return Err(super::usage(format!("{} is not a directory", dir.display())).into());
    }
    let default = ConfigArgs::of_environment();
    if let Some((config, instead)) = instead(verb, &default) {
        cell::refuse(&dir, config, instead)?;
    }
    match verb {
        StoreCommand::Check { quick } => check_store(&dir, *quick, out),
        StoreCommand::Sessions { all } => listed(&dir, *all, out),
        StoreCommand::Backup { file, replace } => run_backup(&dir, file, *replace, out),
        StoreCommand::Restore { file } => run_restore(&dir, file, out),
        StoreCommand::Compact(args) => run_compact(&dir, args, out),
        StoreCommand::Move(args) => run_move(&dir, args, out),
        StoreCommand::AcceptLoss => run_accept_loss(&dir, out),
    }
}

/// What to do instead of a command on the database file where the control plane is in PostgreSQL, and where the command finds
/// the configuration.
fn instead<'a>(verb: &'a StoreCommand, default: &'a ConfigArgs) -> Option<(&'a ConfigArgs, &'static str)> {
    let text = match verb {
        StoreCommand::Check { .. } => {
            "`acp-gateway doctor` checks the server and the rules of the rows; the server checks its pages (pg_amcheck)."
        }
        StoreCommand::Sessions { .. } => "`acp-gateway sessions list --all` lists the sessions.",
        StoreCommand::Backup { .. } => "Use `pg_dump -n SCHEMA`, or the backups of the server.",
        StoreCommand::Restore { .. } => {
            "Stop the gateway, and restore a backup of the server: `pg_restore`, or its point-in-time recovery."
        }
        StoreCommand::Compact(_) => {
            "The gateway prunes the journal by its retention, and the server reuses the space (autovacuum)."
        }
        StoreCommand::Move(_) | StoreCommand::AcceptLoss => return None,
    };
    match verb {
        StoreCommand::Compact(args) => Some((&args.config, text)),
        _ => Some((default, text)),
    }
}

/// Keeps the full error text: the person at the command line has to act on it.
fn failed(error: StoreError) -> CliError {
    let whole = error.whole();
    let mut failure = Failure::from(error).origin("client");
    failure.message = whole;
    CliError::Failed(failure)
}

fn check_store(dir: &Path, quick: bool, out: &mut Out) -> CliResult {
    let report = check::check_database(dir, quick).map_err(failed)?;
    out.show(&report, format_report)?;
    if report.ok {
        return Ok(());
    }
    let broken = report.checks.iter().filter(|check| !check.broken.is_empty());
    let names: Vec<&str> = broken.map(|check| check.name).collect();
    let text = format!(
        "Checks failed: {}. With the gateway stopped, `acp-gateway store restore FILE` restores a backup \
         and keeps this database under another name.",
        names.join(", ")
    );
    Err(damaged(&text))
}

fn damaged(text: &str) -> CliError {
    Failure::new(Code::StoreUnavailable, text).detail("STORE_DAMAGED").origin("client").into()
}

fn format_report(report: &CheckReport) -> String {
    let rows = report.checks.iter().map(|check| {
        let found = if check.broken.is_empty() { String::new() } else { check.broken.join("; ") };
        let verdict = if check.broken.is_empty() { "ok" } else { "BROKEN" };
        vec![verdict.to_owned(), check.name.to_owned(), check.rule.to_owned(), found]
    });
    let head = format!("Schema version {}, {} bytes.", report.schema_version, report.bytes);
    format!("{head}\n{}", table(&["", "CHECK", "RULE", "FOUND"], rows))
}

fn listed(dir: &Path, all: bool, out: &mut Out) -> CliResult {
    let mut found = salvage::salvage(dir).map_err(failed)?;
    found.sessions.retain(|saved| all || saved.state != "closed");
    out.show(&found, format_salvage)?;
    if found.unread.is_empty() {
        return Ok(());
    }
    let text = "Not everything could be read. `acp-gateway store check` shows where the database is damaged; with \
                the gateway stopped, `acp-gateway store restore FILE` restores a backup and keeps this \
                database under another name.";
    Err(damaged(text))
}

fn format_salvage(found: &Salvage) -> String {
    let rows = found.sessions.iter().map(|saved| {
        let (label, bound) = (saved.label.clone().unwrap_or_default(), saved.bound.join(", "));
        let active = age(saved.last_activity_at_ms);
        let (key, agent, state) = (saved.session_key.clone(), saved.agent.clone(), saved.state.clone());
        vec![key, agent, state, bound, label, saved.cwd.clone(), active]
    });
    let mut text = table(&["SESSION", "AGENT", "STATE", "BOUND", "LABEL", "CWD", "ACTIVE"], rows);
    for what in &found.unread {
        text.push_str(&format!("\nNot read: {what}."));
    }
    text
}

fn run_backup(dir: &Path, file: &Path, replace: bool, out: &mut Out) -> CliResult {
    let file = std::path::absolute(file).map_err(|error| super::usage(error.to_string()))?;
    let made = with_progress(out, |progress| backup::backup(dir, &file, replace, progress))?;
    out.show(&made, |made| {
        let mut text = format!("Backup written to {}, {} bytes.", made.path.display(), made.bytes);
        for rule in &made.broken {
            text.push_str(&format!("\nThe backup violates an invariant, as the original does: {rule}"));
        }
        text
    })
}

fn run_restore(dir: &Path, file: &Path, out: &mut Out) -> CliResult {
    let file = std::path::absolute(file).map_err(|error| super::usage(error.to_string()))?;
    let done = with_progress(out, |progress| restore::restore(dir, &file, now_ms(), progress))?;
    let adopt = done.moved.map(|why| format!("acp-gateway adopt --state-dir {} ({why})", dir.display()));
    let view = RestoreOutput { kept: done.kept, uncertain: done.uncertain, adopt };
    out.show(&view, |view| {
        let mut text = "The backup was restored.".to_owned();
        if let Some(kept) = &view.kept {
            text.push_str(&format!(" The previous database is kept as {}.", kept.display()));
        }
        if view.uncertain > 0 {
            let count = view.uncertain;
            text.push_str(&format!(
                " {count} prompts and messages that were pending in it are ended as uncertain."
            ));
        }
        match &view.adopt {
            Some(adopt) => text.push_str(&format!(
                " It comes from another location: run {adopt} before you start the gateway."
            )),
            None => text.push_str(" Start the gateway."),
        }
        text
    })
}

fn run_compact(dir: &Path, args: &CompactArgs, out: &mut Out) -> CliResult {
    let rule = args.rule(dir)?;
    let report = if args.dry_run {
        compact::preview(dir, rule.as_ref()).map_err(failed)?
    } else {
        with_progress(out, |progress| compact::compact(dir, rule.as_ref(), now_ms(), progress))?
    };
    out.show(&report, |report| format_compact(report, rule.is_some()))
}

fn format_compact(report: &CompactReport, prunes: bool) -> String {
    let CompactReport { sessions, rows, row_bytes, needed_bytes, free_bytes, .. } = report;
    let pruned = match (prunes, report.dry_run) {
        (false, _) => "Nothing is pruned: journal.retention_days is 0.".to_owned(),
        (true, true) => format!("{rows} rows of {sessions} sessions would be pruned, {row_bytes} bytes."),
        (true, false) => format!("{rows} rows of {sessions} sessions pruned, {row_bytes} bytes."),
    };
    let space = if report.dry_run {
        format!(
            "The database has {} bytes. The compacted copy needs at most {needed_bytes} bytes of free space; \
             {free_bytes} are free.",
            report.bytes_before
        )
    } else if report.compacted {
        format!("The database had {} bytes and has {}.", report.bytes_before, report.bytes_after)
    } else {
        format!(
            "The database was not compacted: the copy needs {needed_bytes} bytes of free space, {free_bytes} are \
             free. Free some space and repeat this; new rows use the free pages meanwhile."
        )
    };
    format!("{pruned} {space}")
}

fn run_move(dir: &Path, args: &MoveArgs, out: &mut Out) -> CliResult {
    let (loaded, _) = config::read(dir, &args.config, None)?;
    let Cell { address, allow_loss } = read_cell(&loaded.config.acp.control_plane.postgres)?;
    let with = MoveCell { address: &address, allow_loss };
    let report = match (args.to, args.dry_run) {
        (to, true) => move_rows::preview(dir, with, to == MoveTarget::Postgres).map_err(failed)?,
        (MoveTarget::Postgres, false) => {
            with_progress(out, |progress| move_rows::to_cell(dir, with, progress))?
        }
        (MoveTarget::Sqlite, false) => {
            with_progress(out, |progress| move_rows::to_file(dir, with, progress))?
        }
    };
    out.show(&report, |report| format_move(report, args.to))
}

fn format_move(report: &MoveReport, target: MoveTarget) -> String {
    let MoveReport { to, dry_run, finished_earlier, tables, kept } = report;
    let rows: u64 = tables.iter().map(|table| table.rows).sum();
    if *dry_run {
        return format!(
            "{rows} rows of {} tables would be moved to {to}. Nothing was changed.",
            tables.len()
        );
    }
    let mut text = if *finished_earlier {
        format!("The earlier move to {to} is finished.")
    } else {
        format!("{rows} rows of {} tables were moved to {to}.", tables.len())
    };
    if let Some(kept) = kept {
        text.push_str(&format!(" The database file is kept as {}.", kept.display()));
    }
    let store = match target {
        MoveTarget::Postgres => "postgres",
        MoveTarget::Sqlite => "sqlite",
    };
    text.push_str(&format!(
        "\nSet in gateway.toml, then start the gateway:\n\n[acp.control_plane]\nstore = \"{store}\""
    ));
    text
}

fn run_accept_loss(dir: &Path, out: &mut Out) -> CliResult {
    let accepted = match cell::read_configured(dir, &ConfigArgs::of_environment())? {
        None => offline::accept_loss(dir, now_ms()),
        Some(Cell { address, allow_loss }) => {
            offline::accept_loss_in_cell(dir, &address, allow_loss, now_ms())
        }
    };
    let offline::AcceptedLoss { note, uncertain } = accepted.map_err(failed)?;
    let view = AcceptLossOutput {
        epoch: note.epoch,
        event_id: note.event_id,
        known_epoch: note.known_epoch,
        known_event_id: note.known_event_id,
        uncertain,
    };
    out.show(&view, |view| {
        format!(
            "Loss accepted: the database continues from event {} (event {} was acknowledged to the \
             supervisor). {} pending prompts and messages are ended as uncertain. Agents that it does not \
             know are ended. Start the gateway.",
            view.event_id, view.known_event_id, view.uncertain
        )
    })
}

/// Runs a long operation and reports its progress once per second.
fn with_progress<T>(
    out: &mut Out,
    work: impl FnOnce(BackupProgress<'_>) -> Result<T, StoreError>,
) -> Result<T, CliError> {
    #[derive(Serialize)]
    struct ProgressLine {
        event: &'static str,
        #[serde(flatten)]
        progress: Progress,
    }
    let mut said = Instant::now();
    let mut unread = None;
    let worked = work(&mut |progress| {
        if said.elapsed() < PROGRESS_INTERVAL || unread.is_some() {
            return;
        }
        said = Instant::now();
        let told = if out.json {
            out.json(&ProgressLine { event: "progress", progress })
        } else {
            out.note(&match progress {
                Progress::Copied { pages, pages_total } => format!("{pages} of {pages_total} pages"),
                Progress::Moved { rows_copied, rows_total } => format!("{rows_copied} of {rows_total} rows"),
                Progress::Pruned { rows } => format!("{rows} rows pruned"),
            })
        };
        unread = told.err();
    });
    match unread {
        Some(stop) if worked.is_ok() => Err(stop),
        _ => worked.map_err(failed),
    }
}
