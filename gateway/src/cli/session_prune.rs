//! `sessions prune`: closes idle sessions. The gateway closes a session only if it is still idle: a prompt after the listing
//! keeps its session open.

use crate::api::client::{GatewayClient, encode};
use crate::cli::output::{CliError, CliResult, Out, age, name, now_ms, table};
use crate::cli::questions::Questions;
use crate::cli::{shell_completion, usage};
use acp_core::api::{CloseBody, PendingPermissionView, SessionView};
use acp_core::command::duration;
use acp_core::failure::Failure;
use acp_core::request::SessionStatus;
use acp_core::session::SessionState;
use acp_core::timeouts::format_duration;
use acp_shared::ids::{AgentName, IdempotencyKey, SessionKey};
use clap::Args;
use serde::Serialize;
use std::io::{self, IsTerminal as _};

/// Maximum number of sessions of one call, as returned by the gateway.
const SESSIONS_MAX: usize = 1_000;
/// Detail of the failure for a session that is in use.
const IN_USE: &str = "SESSION_IN_USE";

/// `sessions prune`
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  acp-gateway sessions prune --older-than 7d --dry-run\n  acp-gateway sessions prune --agent demo --yes\n\nA session \
with a turn, a question to a person or a bound conversation is never closed. The journal of a closed session stays: \
`acp-gateway sessions list --all` shows it."
)]
pub(crate) struct PruneArgs {
    /// Minimum time since the last activity: 90m, 12h, 30d
    #[arg(long, value_name = "TIME", default_value = "30d", value_parser = parse_time)]
    older_than: u64,
    /// Close only sessions of this agent
    #[arg(long, add = shell_completion::agents())]
    agent: Option<AgentName>,
    /// Hide the sessions from every list too, like `sessions delete`
    #[arg(long)]
    delete: bool,
    /// Print the sessions and close none
    #[arg(long)]
    dry_run: bool,
    /// Do not ask before closing
    #[arg(long, short)]
    yes: bool,
}

/// Result of `sessions prune`, for `--json`.
#[derive(Debug, Default, Serialize)]
struct PruneOutput {
    dry_run: bool,
    /// True if the list of idle sessions was cut.
    more: bool,
    /// Closed sessions; with `dry_run`, the sessions to close.
    closed: Vec<SessionKey>,
    /// Sessions that were in use again, with the reason.
    kept: Vec<KeptSession>,
}

#[derive(Debug, Serialize)]
struct KeptSession {
    session_key: SessionKey,
    reason: String,
}

/// Parses a time to milliseconds. A number alone is refused: hours elsewhere, and days for most people here.
fn parse_time(text: &str) -> Result<u64, String> {
    match duration::parse(text) {
        Ok(Some(ms)) if text.ends_with(|last: char| last.is_ascii_alphabetic()) => Ok(ms),
        _ => Err("use at most 365 days, with a unit: 90m, 12h, 30d".to_owned()),
    }
}

/// `sessions prune`
pub(crate) async fn prune(client: &GatewayClient, args: &PruneArgs, out: &mut Out) -> CliResult {
    let since_ms = now_ms().saturating_sub(args.older_than);
    let (found, more) = idle_sessions(client, args, since_ms).await?;
    let mut done = PruneOutput { dry_run: args.dry_run, more, ..PruneOutput::default() };
    if args.dry_run {
        done.closed = found.iter().map(|view| view.session_key.clone()).collect();
    } else if !found.is_empty() && (args.yes || confirmed(&found, args, out).await?) {
        for view in &found {
            match close(client, args, view, since_ms).await {
                Ok(()) => done.closed.push(view.session_key.clone()),
                Err(failure) if failure.detail_code.as_deref() == Some(IN_USE) => {
                    let (session_key, reason) = (view.session_key.clone(), failure.message);
                    done.kept.push(KeptSession { session_key, reason });
                }
                Err(failure) => return Err(failure.into()),
            }
        }
    }
    out.show(&done, |done| report(done, &found, args))
}

/// Returns the sessions to close, the most recently used first, and whether more may be that old.
async fn idle_sessions(
    client: &GatewayClient,
    args: &PruneArgs,
    since_ms: u64,
) -> Result<(Vec<SessionView>, bool), Failure> {
    let agent = args.agent.as_ref().map(|agent| format!("&agent={}", encode(agent.as_str())));
    let path = format!("/v1/sessions?idle_since_ms={since_ms}{}", agent.unwrap_or_default());
    let mut found: Vec<SessionView> = client.get(&path).await?;
    let more = found.len() >= SESSIONS_MAX;
    let questions: Vec<PendingPermissionView> = client.get("/v1/permissions").await?;
    found.retain(|view| {
        matches!(view.state, SessionState::Idle | SessionState::Error)
            && view.active_run.is_none()
            && view.queued_runs == 0
            && view.bindings.is_empty()
            && !questions.iter().any(|question| question.session_key == view.session_key)
    });
    Ok((found, more))
}

/// Lists the sessions and asks for confirmation.
async fn confirmed(found: &[SessionView], args: &PruneArgs, out: &mut Out) -> Result<bool, CliError> {
    if out.json || !io::stdin().is_terminal() {
        let text = format!("{} would be closed: add --yes to close them, or --dry-run", count(found.len()));
        return Err(usage(text).into());
    }
    out.line(&format_sessions(found))?;
    out.flush()?;
    let verb = if args.delete { "Close and hide" } else { "Close" };
    let question = format!("{verb} {}? (yes, no)", count(found.len()));
    let answer = |text: &str| match text.to_ascii_lowercase().as_str() {
        "y" | "yes" => Ok(true),
        "n" | "no" => Ok(false),
        _ => Err(usage("answer yes or no")),
    };
    Questions::new(false)?.ask(&question, "no", answer).await
}

async fn close(
    client: &GatewayClient,
    args: &PruneArgs,
    view: &SessionView,
    since_ms: u64,
) -> Result<(), Failure> {
    let verb = if args.delete { "delete" } else { "close" };
    let path = format!("/v1/sessions/{}/{verb}", encode(view.session_key.as_str()));
    let reason = format!("idle for more than {}", format_duration(args.older_than));
    let body = CloseBody { reason: Some(reason), if_idle_since_ms: Some(since_ms), ..CloseBody::default() };
    let _: SessionStatus = client.post(&path, &body, &IdempotencyKey::mint()).await?;
    Ok(())
}

fn report(done: &PruneOutput, found: &[SessionView], args: &PruneArgs) -> String {
    let time = format_duration(args.older_than);
    if found.is_empty() && !done.more {
        return format!("No session is unused for {time}.");
    }
    if done.dry_run {
        return format!(
            "{}\n\n{} would be closed. Nothing was changed.",
            format_sessions(found),
            count(found.len())
        );
    }
    let kept = done.kept.iter().map(|kept| format!("\nNot closed: {}. {}", kept.session_key, kept.reason));
    let more = if done.more { "\nMore sessions may be that old: repeat the command." } else { "" };
    format!("Closed: {}.{}{more}", count(done.closed.len()), kept.collect::<String>())
}

fn count(sessions: usize) -> String {
    if sessions == 1 { "1 session".to_owned() } else { format!("{sessions} sessions") }
}

fn format_sessions(found: &[SessionView]) -> String {
    let rows = found.iter().map(|view| {
        let label = view.label.as_deref().map(name).unwrap_or_default();
        let unused = age(view.last_activity_at_ms);
        vec![view.session_key.to_string(), view.agent.to_string(), unused, label, view.cwd.clone()]
    });
    table(&["SESSION", "AGENT", "UNUSED", "LABEL", "CWD"], rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_needs_a_unit() {
        assert_eq!(parse_time("30d"), Ok(30 * 86_400_000));
        assert_eq!(parse_time("1h30m"), Ok(5_400_000));
        for wrong in ["", "30", "0", "off", "0d", "366d", "a week"] {
            assert!(parse_time(wrong).is_err(), "{wrong}");
        }
    }
}
