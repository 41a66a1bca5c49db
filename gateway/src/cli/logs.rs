//! `logs`: standard error of the agents of a session; with `--service` the logs of gateway and supervisor.

use crate::api::client::{GatewayClient, encode};
use crate::cli::GlobalArgs;
use crate::cli::output::{CliResult, Out};
use crate::cli::service_logs::{self, LoggedService};
use crate::cli::session_arg::SessionArg;
use acp_core::api::LogPage;
use acp_core::failure::Failure;
use acp_shared::codes::Code;
use clap::Args;
use serde::Serialize;
use std::time::{Duration, Instant};

/// Polling interval while following.
const PAUSE: Duration = Duration::from_millis(500);
/// Maximum wait for a gateway or supervisor that is being restarted, while following.
const RESTART_WAIT: Duration = Duration::from_secs(60);

const EXAMPLES: &str = "\
Examples:
  acp-gateway logs KEY                    the last 100 lines
  acp-gateway logs KEY -f                 keep printing new lines until Ctrl-C
  acp-gateway logs KEY --lines 5 --json   one JSON object for each line
  acp-gateway logs --service -f           gateway and supervisor of `up`
  acp-gateway logs --service=gateway      only the gateway

Lines of the agent begin with `|`, notes of the supervisor (starts, ends) with `*`. Values of the agent's environment
variables are replaced by [redacted:NAME]. The log is kept as long as the supervisor has a record of a
lease of the session (retention_ms); its size is bounded (stderr_bytes_max).";

/// `logs`
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct LogsArgs {
    #[command(flatten)]
    session: SessionArg,
    /// Show the log of gateway and supervisor instead, or of one of them
    #[arg(
        long,
        value_enum,
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "all",
        value_name = "WHICH",
        conflicts_with_all = ["session", "last"]
    )]
    service: Option<LoggedService>,
    /// Keep printing new lines until Ctrl-C
    #[arg(short, long)]
    follow: bool,
    /// Start with this many of the last lines
    #[arg(short = 'n', long, default_value_t = 100, value_name = "N")]
    lines: u32,
}

/// A line of a log for programs.
#[derive(Debug, Serialize)]
struct LogLine<'a> {
    /// Time of writing, in UTC.
    at: &'a str,
    /// `agent` or `supervisor`.
    from: &'static str,
    text: &'a str,
}

/// `logs`
pub(crate) async fn run(global: &GlobalArgs, args: LogsArgs, out: &mut Out) -> CliResult {
    if let Some(which) = args.service {
        return service_logs::run(global, which, args.follow, args.lines as usize, out).await;
    }
    let client = global.client()?;
    let session = args.session.resolve(&client).await.map_err(|failure| with_hint(failure, global, &args))?;
    let path = format!("/v1/sessions/{}/log", encode(session.as_str()));
    let page: LogPage = client.get(&format!("{path}?lines={}", args.lines)).await?;
    if page.next_offset == 0 && !args.follow {
        return out.note("The log is empty: no agent of this session was started, or its log was removed.");
    }
    print(&page, out)?;
    if !args.follow {
        return Ok(());
    }
    tokio::select! {
        followed = follow(&client, &path, page.next_offset, out) => followed,
        interrupted = tokio::signal::ctrl_c() => {
            interrupted.map_err(|error| super::inside("cannot wait for Ctrl-C", &error).into())
        }
    }
}

/// Names the logs of the services to a person who named no session.
fn with_hint(mut failure: Failure, global: &GlobalArgs, args: &LogsArgs) -> Failure {
    if !args.session.is_given() {
        let command = global.advise("logs --service", None);
        failure.message = format!("{} `{command}` shows the log of gateway and supervisor.", failure.message);
    }
    failure
}

async fn follow(client: &GatewayClient, path: &str, from: u64, out: &mut Out) -> CliResult {
    let (mut offset, mut heard) = (from, Instant::now());
    loop {
        match client.get::<LogPage>(&format!("{path}?offset={offset}")).await {
            Ok(page) => {
                print(&page, out)?;
                (offset, heard) = (page.next_offset, Instant::now());
                if page.more {
                    continue;
                }
            }
            Err(failure) if is_restarting(&failure) && heard.elapsed() < RESTART_WAIT => {}
            Err(failure) => return Err(failure.into()),
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// True for failures of a gateway or supervisor that is being restarted.
const fn is_restarting(failure: &Failure) -> bool {
    matches!(failure.code, Code::GatewayUnavailable | Code::BackendUnavailable)
}

fn print(page: &LogPage, out: &mut Out) -> CliResult {
    for line in page.text.lines() {
        if out.json {
            out.json(&parse(line))?;
        } else {
            out.line(line)?;
        }
    }
    out.flush()
}

/// Splits a line into its columns. A line in another format, which no supervisor writes, becomes the text.
fn parse(line: &str) -> LogLine<'_> {
    let parts = line.split_once(' ').map(|(at, rest)| (at, rest.split_once(' ').unwrap_or((rest, ""))));
    match parts {
        Some((at, ("|", text))) => LogLine { at, from: "agent", text },
        Some((at, ("*", text))) => LogLine { at, from: "supervisor", text },
        Some(_) | None => LogLine { at: "", from: "agent", text: line },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_lines_are_split_into_columns() {
        for (line, want) in [
            ("2026-01-01T00:00:00.000Z | a  b", ("2026-01-01T00:00:00.000Z", "agent", "a  b")),
            (
                "2026-01-01T00:00:00.000Z * agent started",
                ("2026-01-01T00:00:00.000Z", "supervisor", "agent started"),
            ),
            ("2026-01-01T00:00:00.000Z |", ("2026-01-01T00:00:00.000Z", "agent", "")),
            ("something", ("", "agent", "something")),
            ("something else", ("", "agent", "something else")),
        ] {
            let LogLine { at, from, text } = parse(line);
            assert_eq!((at, from, text), want, "{line}");
        }
    }
}
