//! `doctor`: looks at the installation, with or without a running supervisor, and says of each thing what is found,
//! what it means, and what to do.

mod live;
mod machine;
mod place;

use super::output::Output;
use super::table::{Cell, Column, Look, Tone, render};
use super::{CliError, Global, text};
use crate::cli::error::FAILED;
use clap::Args;
use serde::Serialize;

#[derive(Debug, Args)]
pub(super) struct DoctorArgs {
    /// The acp-wrapper binary [default: beside acp-supervisor]
    #[arg(long, value_name = "PATH")]
    wrapper: Option<std::path::PathBuf>,
    /// The configuration file that `serve` is given
    #[arg(long, value_name = "FILE")]
    config: Option<std::path::PathBuf>,
    /// Say of the good ones, too, what they mean
    #[arg(long, short = 'v')]
    verbose: bool,
}

/// How a check came out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
enum Verdict {
    Ok,
    /// It works; less is caught, or somebody should know.
    Warn,
    /// It does not work.
    Fail,
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Check {
    name: &'static str,
    verdict: Verdict,
    /// What was found.
    found: String,
    /// What that means.
    means: String,
    /// What to do about it; empty where nothing is to be done.
    next: String,
}

impl Check {
    fn ok(name: &'static str, found: impl Into<String>, means: impl Into<String>) -> Self {
        Self { name, verdict: Verdict::Ok, found: found.into(), means: means.into(), next: String::new() }
    }

    fn warn(
        name: &'static str,
        found: impl Into<String>,
        means: impl Into<String>,
        next: impl Into<String>,
    ) -> Self {
        Self { verdict: Verdict::Warn, next: next.into(), ..Self::ok(name, found, means) }
    }

    fn fail(
        name: &'static str,
        found: impl Into<String>,
        means: impl Into<String>,
        next: impl Into<String>,
    ) -> Self {
        Self { verdict: Verdict::Fail, next: next.into(), ..Self::ok(name, found, means) }
    }
}

pub(super) async fn run(global: &Global, args: &DoctorArgs, out: &mut Output) -> Result<(), CliError> {
    let state_dir = global.state_dir()?;
    let config = crate::config::Config::load(args.config.as_deref());
    let mut checks = vec![place::configuration(args.config.as_deref(), &config)];
    let config = config.unwrap_or_default();
    let address = global.address()?;
    let (service, seen) = live::service(&address).await;
    checks.push(service);
    checks.extend(place::files(&state_dir, seen.is_some()));
    checks.extend(place::wrapper(args.wrapper.clone(), &config, &state_dir));
    checks.extend(machine::ladder(seen.as_ref().map(|seen| &seen.status), &config));
    checks.extend(machine::kernel());
    checks.extend(machine::limits(&config));
    checks.push(machine::systemd(seen.as_ref().map(|seen| seen.status.pid)));
    checks.extend(seen.iter().flat_map(live::leases));
    checks.push(machine::isolation());
    let worst = checks.iter().map(|check| check.verdict).max().unwrap_or(Verdict::Ok);
    if out.is_json() {
        out.data("doctor", &serde_json::json!({ "verdict": worst, "checks": checks }))?;
    } else {
        out.line(&text(&checks, args.verbose, out.look()))?;
    }
    if worst == Verdict::Fail { Err(CliError::Ended(FAILED)) } else { Ok(()) }
}

/// What people read: one line for each check, and what to do about those that are not well.
fn text(checks: &[Check], verbose: bool, look: Look) -> String {
    let columns = [Column::new(""), Column::new(""), Column::new("").least(20)];
    let mut rows: Vec<Vec<Cell>> = Vec::new();
    for check in checks {
        let (mark, tone) = match check.verdict {
            Verdict::Ok => ("ok", Tone::Good),
            Verdict::Warn => ("warn", Tone::Warn),
            Verdict::Fail => ("FAIL", Tone::Bad),
        };
        rows.push(vec![Cell::new(mark).tone(tone), check.name.into(), Cell::new(&check.found)]);
        let more = verbose || check.verdict != Verdict::Ok;
        for (label, words) in [("it means", &check.means), ("do", &check.next)] {
            if more && !words.is_empty() {
                for (n, line) in
                    wrap(words, look.width.unwrap_or(100).saturating_sub(40).max(40)).into_iter().enumerate()
                {
                    let label = if n == 0 { format!("  {label}") } else { String::new() };
                    rows.push(vec![
                        "".into(),
                        Cell::new(label).tone(Tone::Dim),
                        Cell::new(line).tone(Tone::Dim),
                    ]);
                }
            }
        }
    }
    let count = |verdict| checks.iter().filter(|check| check.verdict == verdict).count();
    format!(
        "{}\n\n{}: {} ok, {} to know, {} failed",
        render(&columns, &rows, Look { headers: false, ..look }),
        text::count(checks.len(), "check"),
        count(Verdict::Ok),
        count(Verdict::Warn),
        count(Verdict::Fail),
    )
}

/// Words in lines of at most `columns` columns, as far as words allow.
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
    fn what_is_wrong_comes_with_what_to_do() {
        let checks = [
            Check::ok("state directory", "/s", "it is private"),
            Check::warn("lost leases", "2", "nobody knows \u{1b}[2J", "look at them"),
            Check::fail("wrapper", "none", "nothing can be started", "install it"),
        ];
        let look = Look { width: Some(100), headers: true, colour: false };
        assert_eq!(
            text(&checks, false, look).lines().collect::<Vec<_>>(),
            [
                "ok    state directory  /s",
                "warn  lost leases      2",
                "        it means       nobody knows \\u{1b}[2J",
                "        do             look at them",
                "FAIL  wrapper          none",
                "        it means       nothing can be started",
                "        do             install it",
                "",
                "3 checks: 1 ok, 1 to know, 1 failed"
            ]
        );
        assert!(text(&checks, true, look).contains("it is private"));
        assert_eq!(wrap("aa bb cc", 5), ["aa bb", "cc"]);
    }
}
