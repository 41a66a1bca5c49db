//! `agents install`, `agents login` and `agents test`: a session of its own that starts an agent, and is closed again.

use crate::api::client::{EventSelection, EventStream, GatewayClient, encode};
use crate::cli::GlobalArgs;
use crate::cli::follow::{EventHead, EventPrinter};
use crate::cli::given::{absolute, current_dir};
use crate::cli::output::{CliError, CliResult, Out};
use crate::cli::shell_completion;
use crate::cli::stop_signals::StopSignals;
use acp_core::api::{CloseBody, SpawnBody, SpawnedView};
use acp_core::config::SessionMode;
use acp_core::failure::Failure;
use acp_core::request::SessionStatus;
use acp_shared::codes::Code;
use acp_shared::ids::{AgentName, IdempotencyKey, SessionKey};
use clap::Args;
use serde::Serialize;
use serde_json::Value;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Exit code after Ctrl-C, by shell convention.
const INTERRUPTED: u8 = 130;
/// Time between reports of a start on a terminal.
const REPORT: Duration = Duration::from_secs(5);

/// `agents install`
#[derive(Debug, Args)]
#[command(
    after_help = "The agent is started by the gateway, as the user that agents run as, so that npx or uvx downloads its \
program into that user's cache. A start may take ten minutes for this."
)]
pub(crate) struct TrialArgs {
    /// Agent, as in `acp-gateway agents --all`
    #[arg(add = shell_completion::agents())]
    agent: AgentName,
    /// Working directory of the agent; the current one by default
    #[arg(long, value_name = "DIR")]
    cwd: Option<PathBuf>,
}

/// `agents login`
#[derive(Debug, Args)]
#[command(
    after_help = "Without --method, the agent is started and, if it is not signed in, its sign-in methods are printed: \
variables to set, commands to run, or methods for --method.\n\nTo sign in at each start, set \
agents.NAME.auth_method in gateway.toml."
)]
pub(crate) struct LoginArgs {
    #[command(flatten)]
    trial: TrialArgs,
    /// Sign-in method of the agent, by its id
    #[arg(long, value_name = "ID")]
    method: Option<String>,
}

/// `agents test`
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  acp-gateway agents test claude --cwd ~/src/project")]
pub(crate) struct TestArgs {
    #[command(flatten)]
    trial: TrialArgs,
    /// Prompt of the turn
    #[arg(long, value_name = "TEXT", default_value = "Answer with the single word: ready")]
    prompt: String,
}

/// Result of a trial, for `--json`.
#[derive(Debug, Serialize)]
struct TrialReport {
    agent: AgentName,
    /// Time until the agent had opened its session, in milliseconds.
    opened_ms: u64,
    /// Time from there to the end of the turn, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    answered_ms: Option<u64>,
}

/// `agents install`
pub(crate) async fn install(global: &GlobalArgs, args: &TrialArgs, out: &mut Out) -> CliResult {
    let report = try_agent(global, args, None, None, out).await?;
    out.show(&report, |report| {
        format!("{} is installed: it started in {}.", report.agent, seconds(report.opened_ms))
    })
}

/// `agents login`
pub(crate) async fn login(global: &GlobalArgs, args: &LoginArgs, out: &mut Out) -> CliResult {
    let report = try_agent(global, &args.trial, args.method.clone(), None, out).await?;
    out.show(&report, |report| match &args.method {
        Some(method) => format!("{} is signed in with {method}.", report.agent),
        None => format!("{} needs no sign-in: it opened a session.", report.agent),
    })
}

/// `agents test`
pub(crate) async fn test(global: &GlobalArgs, args: &TestArgs, out: &mut Out) -> CliResult {
    let report = try_agent(global, &args.trial, None, Some(args.prompt.clone()), out).await?;
    out.show(&report, |report| {
        format!(
            "{} works: it started in {} and answered in {}.",
            report.agent,
            seconds(report.opened_ms),
            seconds(report.answered_ms.unwrap_or_default())
        )
    })
}

/// Starts the agent in a session of its own, follows it until it is open or its turn has ended, and closes the
/// session. The events go to standard error, so that standard output has the result alone.
async fn try_agent(
    global: &GlobalArgs,
    args: &TrialArgs,
    auth_method: Option<String>,
    prompt: Option<String>,
    out: &mut Out,
) -> Result<TrialReport, CliError> {
    let client = global.client()?;
    let cwd = absolute(&args.cwd.clone().map_or_else(current_dir, Ok)?)?;
    let body = SpawnBody {
        agent: Some(args.agent.clone()),
        cwd: Some(cwd),
        label: Some(format!("trial of {}", args.agent)),
        mode: Some(SessionMode::Oneshot),
        prompt,
        auth_method,
        ..SpawnBody::default()
    };
    let mut stop = StopSignals::listen()?;
    let begun = Instant::now();
    let once = IdempotencyKey::mint();
    let spawning = client.post::<_, SpawnedView>("/v1/sessions", &body, &once);
    let view = tokio::select! {
        view = spawning => view?,
        // A gateway that hangs must not keep the person; a session that it starts later is in `sessions list`.
        () = stop.recv() => return Err(CliError::Code(INTERRUPTED)),
    };
    let key = view.spawned.session_key;
    let events = client.events(EventSelection {
        session: key.clone(),
        after: 0,
        run: None,
        replay: false,
        follow: true,
    });
    let mut trial =
        Trial { agent: args.agent.clone(), begun, opened: None, wants_answer: body.prompt.is_some() };
    let outcome = tokio::select! {
        outcome = trial.follow(events, out) => outcome,
        () = stop.recv() => Err(CliError::Code(INTERRUPTED)),
    };
    // A second signal ends the wait for a gateway that does not answer.
    let closed = tokio::select! {
        closed = close(&client, &key) => closed,
        () = stop.recv() => Err(CliError::Code(INTERRUPTED)),
    };
    let report = outcome?;
    closed?;
    Ok(report)
}

async fn close(client: &GatewayClient, key: &SessionKey) -> CliResult {
    let path = format!("/v1/sessions/{}/close", encode(key.as_str()));
    let body = CloseBody {
        reason: Some("the trial ended".to_owned()),
        discard: true,
        ..CloseBody::default()
    };
    let _: SessionStatus = client.post(&path, &body, &IdempotencyKey::mint()).await?;
    Ok(())
}

fn seconds(ms: u64) -> String {
    format!("{}.{} s", ms / 1_000, ms % 1_000 / 100)
}

/// A trial in progress.
struct Trial {
    agent: AgentName,
    begun: Instant,
    opened: Option<Instant>,
    wants_answer: bool,
}

impl Trial {
    async fn follow(&mut self, mut events: EventStream, out: &mut Out) -> Result<TrialReport, CliError> {
        let mut show = EventPrinter::reply();
        let mut ticks = tokio::time::interval(REPORT);
        ticks.tick().await;
        loop {
            let line = tokio::select! {
                line = events.next() => line?,
                _ = ticks.tick(), if self.opened.is_none() => {
                    self.report_start(out)?;
                    continue;
                }
            };
            let Some(line) = line else {
                return Err(Failure::of(Code::SessionClosed).origin("gateway").into());
            };
            let head = EventHead::of(&line)?;
            let is_over = self.is_over(&line, &head)?;
            if !out.json && head.kind != "prompt" {
                show.event(&line, &head, out)?;
                out.flush()?;
            }
            if is_over {
                return Ok(self.report());
            }
        }
    }

    /// Tells a person how long the start has taken so far.
    fn report_start(&self, out: &mut Out) -> CliResult {
        if out.json {
            return Ok(());
        }
        out.note(&format!("[starting {}: {} s]", self.agent, self.begun.elapsed().as_secs()))?;
        out.flush()
    }

    /// Returns true if the event ends the trial well.
    ///
    /// # Errors
    /// The failure that the event reports.
    fn is_over(&mut self, line: &str, head: &EventHead<'_>) -> Result<bool, Failure> {
        let failed = |text: &str| {
            let event: Value = serde_json::from_str(line).unwrap_or_default();
            let code = event["code"].as_str().and_then(Code::parse).unwrap_or(Code::Runtime);
            Failure::new(code, event[text].as_str().unwrap_or_default()).origin("agent")
        };
        match head.kind.as_ref() {
            "status" => {
                let event: Value = serde_json::from_str(line).unwrap_or_default();
                match event["status"].as_str() {
                    Some("agent_ready") => self.opened = Some(Instant::now()),
                    Some("agent_failed") if !self.wants_answer => return Err(failed("text")),
                    _ => {}
                }
                Ok(self.opened.is_some() && !self.wants_answer)
            }
            "error" => Err(failed("message")),
            "done" => Ok(self.wants_answer),
            _ => Ok(false),
        }
    }

    fn report(&self) -> TrialReport {
        let now = Instant::now();
        let opened = self.opened.unwrap_or(now);
        let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        TrialReport {
            agent: self.agent.clone(),
            opened_ms: ms(opened - self.begun),
            answered_ms: self.wants_answer.then(|| ms(now - opened)),
        }
    }
}
