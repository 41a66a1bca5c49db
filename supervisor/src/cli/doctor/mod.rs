//! `doctor`: checks the installation, with or without a running supervisor. Reports for each check the
//! finding, its meaning, and the next step.

mod files;
mod live;
mod machine;
mod remote;
mod rungs;

use super::output::Output;
use super::table::{Cell, Column, TableFormat, Tone, render};
use super::{CliError, GlobalArgs, text};
use crate::cli::error::FAILED;
use clap::Args;
use serde::Serialize;

#[derive(Debug, Args)]
pub(super) struct DoctorArgs {
    /// Path of the acp-wrapper binary [default: in the directory of acp-supervisor]
    #[arg(long, value_name = "PATH")]
    wrapper: Option<std::path::PathBuf>,
    /// Configuration file of the supervisor to check
    #[arg(long, value_name = "FILE")]
    config: Option<std::path::PathBuf>,
    /// Explain passed checks too
    #[arg(long, short = 'v')]
    verbose: bool,
}

/// Result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
enum CheckStatus {
    Ok,
    /// Works with reduced coverage, or needs attention.
    Warn,
    /// Does not work.
    Fail,
}

/// One check of the installation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Check {
    name: &'static str,
    verdict: CheckStatus,
    /// Finding.
    found: String,
    /// Meaning of the finding.
    means: String,
    /// Next step; empty if none is needed.
    next: String,
}

impl Check {
    fn ok(name: &'static str, found: impl Into<String>, means: impl Into<String>) -> Self {
        Self { name, verdict: CheckStatus::Ok, found: found.into(), means: means.into(), next: String::new() }
    }

    fn warn(
        name: &'static str,
        found: impl Into<String>,
        means: impl Into<String>,
        next: impl Into<String>,
    ) -> Self {
        Self { verdict: CheckStatus::Warn, next: next.into(), ..Self::ok(name, found, means) }
    }

    fn fail(
        name: &'static str,
        found: impl Into<String>,
        means: impl Into<String>,
        next: impl Into<String>,
    ) -> Self {
        Self { verdict: CheckStatus::Fail, next: next.into(), ..Self::ok(name, found, means) }
    }
}

pub(super) async fn run(global: &GlobalArgs, args: &DoctorArgs, out: &mut Output) -> Result<(), CliError> {
    let state_dir = global.state_dir()?;
    let config = crate::config::Config::load(args.config.as_deref());
    let mut checks = vec![files::configuration(args.config.as_deref(), &config)];
    let config = config.unwrap_or_default();
    let address = global.address()?;
    let (service, seen) = live::service(&address).await;
    checks.push(service);
    checks.extend(files::files(&state_dir, seen.is_some()));
    checks.extend(remote::checks(&config, seen.is_some()));
    let wrapper = args.wrapper.clone().unwrap_or_else(crate::app::default_wrapper);
    checks.extend(files::wrapper(&wrapper, &config, &state_dir));
    let ladder = match &seen {
        Some(seen) => Ok(rungs::ContainmentLevels::from_status(&seen.status)),
        None => rungs::ContainmentLevels::probe(&config, &wrapper),
    };
    match &ladder {
        Ok(ladder) => checks.extend(ladder.checks(&config)),
        Err(error) => checks.push(rungs::not_tried(error)),
    }
    checks.extend(machine::kernel());
    checks.extend(machine::limits(&config));
    checks.push(machine::systemd(seen.as_ref().map(|seen| seen.status.pid)));
    checks.extend(seen.iter().flat_map(live::leases));
    checks.push(machine::isolation());
    let worst = checks.iter().map(|check| check.verdict).max().unwrap_or(CheckStatus::Ok);
    if out.is_json() {
        let reports = ladder.map(|ladder| ladder.reports).unwrap_or_default();
        out.data("doctor", &serde_json::json!({ "verdict": worst, "checks": checks, "ladder": reports }))?;
    } else {
        out.line(&text(&checks, args.verbose, out.look()))?;
    }
    if worst == CheckStatus::Fail { Err(CliError::Ended(FAILED)) } else { Ok(()) }
}

/// Formats the checks for people: one line for each, with meaning and next step for those that did not pass.
fn text(checks: &[Check], verbose: bool, look: TableFormat) -> String {
    let columns = [Column::new(""), Column::new(""), Column::new("").min_width(20)];
    let mut rows: Vec<Vec<Cell>> = Vec::new();
    for check in checks {
        let (mark, tone) = match check.verdict {
            CheckStatus::Ok => ("ok", Tone::Good),
            CheckStatus::Warn => ("warn", Tone::Warn),
            CheckStatus::Fail => ("FAIL", Tone::Bad),
        };
        rows.push(vec![Cell::new(mark).tone(tone), check.name.into(), Cell::new(&check.found)]);
        let more = verbose || check.verdict != CheckStatus::Ok;
        for (label, words) in [("meaning", &check.means), ("next step", &check.next)] {
            if more && !words.is_empty() {
                for (n, line) in
                    wrap(words, look.width.unwrap_or(100).saturating_sub(40).max(40)).into_iter().enumerate()
                {
                    let label = if n == 0 { format!("  {label}") } else { String::new() };
                    let dim = |text: String| Cell::new(text).tone(Tone::Dim);
                    rows.push(vec!["".into(), dim(label), dim(line)]);
                }
            }
        }
    }
    let count = |verdict| checks.iter().filter(|check| check.verdict == verdict).count();
    format!(
        "{}\n\n{}: {} ok, {} with warnings, {} failed",
        render(&columns, &rows, TableFormat { headers: false, ..look }),
        text::count(checks.len(), "check"),
        count(CheckStatus::Ok),
        count(CheckStatus::Warn),
        count(CheckStatus::Fail),
    )
}

/// Wraps text into lines of at most `columns` columns; longer words are not split.
fn wrap(words: &str, columns: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in words.split_whitespace() {
        match lines.last_mut() {
            Some(line) if text::width(line) + 1 + text::width(word) <= columns => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_checks_show_meaning_and_next_step() {
        let checks = [
            Check::ok("state directory", "/s", "mode 700"),
            Check::warn("lost leases", "2", "unknown \u{1b}[2J", "verify them"),
            Check::fail("wrapper", "none", "no agent can start", "install it"),
        ];
        let format = TableFormat { width: Some(100), headers: true, colour: false };
        assert_eq!(
            text(&checks, false, format).lines().collect::<Vec<_>>(),
            [
                "ok    state directory  /s",
                "warn  lost leases      2",
                "        meaning        unknown \\u{1b}[2J",
                "        next step      verify them",
                "FAIL  wrapper          none",
                "        meaning        no agent can start",
                "        next step      install it",
                "",
                "3 checks: 1 ok, 1 with warnings, 1 failed"
            ]
        );
        assert!(text(&checks, true, format).contains("mode 700"));
        assert_eq!(wrap("aa bb cc", 5), ["aa bb", "cc"]);
    }
}
