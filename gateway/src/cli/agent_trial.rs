//! `agents install`, `agents login`, `agents test` and `agents sessions`: a session of its own that starts an agent, and is
//! closed again.

use crate::api::client::{EventSelection, EventStream, GatewayClient, encode};
use crate::cli::GlobalArgs;
use crate::cli::follow::{EventHead, EventPrinter};
use crate::cli::given::{absolute, current_dir};
use crate::cli::output::{CliError, CliResult, Out, table};
use crate::cli::shell_completion;
use crate::cli::stop_signals::StopSignals;
use acp_core::api::{CloseBody, LeaseView, SessionView, SpawnBody, SpawnedView};
use acp_core::backend::SessionListing;
use acp_core::config::SessionMode;
use acp_core::failure::Failure;
use acp_core::request::SessionStatus;
use acp_shared::codes::Code;
use acp_shared::ids::{AgentName, IdempotencyKey, SessionKey};
use clap::Args;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Exit code after Ctrl-C, by shell convention.
const INTERRUPTED: u8 = 130;
/// Time in which a repeated signal is the same one.
const REPEATED_SIGNAL: Duration = Duration::from_secs(1);
/// Maximum wait for the end of an interrupted agent's processes.
const END_WAIT: Duration = Duration::from_secs(30);
/// Polling interval during that time.
const END_POLL: Duration = Duration::from_millis(100);
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

/// `agents sessions`
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  acp-gateway agents sessions qwen --cwd ~/src/project\n  acp-gateway sessions spawn --agent qwen --cwd \
~/src/project --resume ID\n\nThe agent is started for the list and ended again. Agents without the method session/list \
cannot be asked."
)]
pub(crate) struct StoredArgs {
    /// Agent, as in `acp-gateway agents --all`
    #[arg(add = shell_completion::agents())]
    agent: AgentName,
    /// List only the sessions of this directory
    #[arg(long, value_name = "DIR")]
    cwd: Option<PathBuf>,
}

/// Result of `agents sessions`, for `--json`.
#[derive(Debug, Serialize)]
struct StoredSessions {
    agent: AgentName,
    sessions: Vec<StoredSession>,
    /// True if the agent has more sessions than were read.
    more: bool,
}

/// Session that an agent has stored.
#[derive(Debug, Serialize, Deserialize)]
struct StoredSession {
    /// The agent's id.
    session_id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cwd: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    title: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    updated_at: Option<String>,
    /// Open session of the gateway that continues the stored one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    session_key: Option<SessionKey>,
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
    let report = try_agent(global, args, SpawnBody::default(), out).await?.report();
    out.show(&report, |report| {
        format!("{} is installed: it started in {}.", report.agent, seconds(report.opened_ms))
    })
}

/// `agents login`
pub(crate) async fn login(global: &GlobalArgs, args: &LoginArgs, out: &mut Out) -> CliResult {
    let body = SpawnBody { auth_method: args.method.clone(), ..SpawnBody::default() };
    let report = try_agent(global, &args.trial, body, out).await?.report();
    out.show(&report, |report| match &args.method {
        Some(method) => format!("{} is signed in with {method}.", report.agent),
        None => format!("{} needs no sign-in: it opened a session.", report.agent),
    })
}

/// `agents test`
pub(crate) async fn test(global: &GlobalArgs, args: &TestArgs, out: &mut Out) -> CliResult {
    let body = SpawnBody { prompt: Some(args.prompt.clone()), ..SpawnBody::default() };
    let report = try_agent(global, &args.trial, body, out).await?.report();
    out.show(&report, |report| {
        format!(
            "{} works: it started in {} and answered in {}.",
            report.agent,
            seconds(report.opened_ms),
            seconds(report.answered_ms.unwrap_or_default())
        )
    })
}

/// `agents sessions`
pub(crate) async fn sessions(global: &GlobalArgs, args: &StoredArgs, out: &mut Out) -> CliResult {
    let cwd = args.cwd.as_deref().map(absolute).transpose()?;
    let listing = if cwd.is_some() { SessionListing::Directory } else { SessionListing::All };
    let trial = TrialArgs { agent: args.agent.clone(), cwd: args.cwd.clone() };
    let body = SpawnBody { listing: Some(listing), ..SpawnBody::default() };
    let mut stored = try_agent(global, &trial, body, out).await?.stored;
    // Some agents ignore the directory. The gateway starts them in its canonical path.
    let canonical = cwd.map(|cwd| std::fs::canonicalize(&cwd).unwrap_or_else(|_| cwd.into()));
    stored.sessions.retain(|stored| match (&canonical, &stored.cwd) {
        (Some(wanted), Some(cwd)) => wanted.as_path() == Path::new(cwd),
        _ => true,
    });
    let path = format!("/v1/sessions?agent={}", encode(args.agent.as_str()));
    let open: Vec<SessionView> = global.client()?.get(&path).await?;
    for stored in &mut stored.sessions {
        let same = open.iter().find(|view| view.agent_session_id.as_ref() == Some(&stored.session_id));
        stored.session_key = same.map(|view| view.session_key.clone());
    }
    out.show(&stored, format_stored)
}

fn format_stored(stored: &StoredSessions) -> String {
    let is_free = |stored: &&StoredSession| stored.session_key.is_none();
    let Some(next) = stored.sessions.iter().find(is_free).or(stored.sessions.first()) else {
        return format!("{} has stored no such sessions.", stored.agent);
    };
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let rows = stored.sessions.iter().map(|stored| {
        let open = stored.session_key.as_ref().map(SessionKey::to_string).unwrap_or_default();
        vec![
            stored.session_id.clone(),
            text(&stored.updated_at),
            text(&stored.title),
            text(&stored.cwd),
            open,
        ]
    });
    let more =
        if stored.more { "\nThe agent has more sessions; --cwd DIR lists those of a directory." } else { "" };
    format!(
        "{}\n{more}\nNext: acp-gateway sessions spawn --agent {} --cwd {} --resume {}",
        table(&["ID", "UPDATED", "TITLE", "CWD", "OPEN AS"], rows),
        stored.agent,
        next.cwd.as_deref().unwrap_or("DIR"),
        next.session_id
    )
}

/// Starts the agent in a temporary session, follows the session until it is open, its turn has ended or its list is
/// complete, and closes it. The events go to standard error, so that standard output has the result alone.
async fn try_agent(
    global: &GlobalArgs,
    args: &TrialArgs,
    asked: SpawnBody,
    out: &mut Out,
) -> Result<Trial, CliError> {
    let client = global.client()?;
    let cwd = absolute(&args.cwd.clone().map_or_else(current_dir, Ok)?)?;
    let body = SpawnBody {
        agent: Some(args.agent.clone()),
        cwd: Some(cwd),
        label: asked.listing.is_none().then(|| format!("trial of {}", args.agent)),
        mode: Some(SessionMode::Oneshot),
        ..asked
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
    let agent = args.agent.clone();
    let mut trial = Trial {
        stored: StoredSessions { agent: agent.clone(), sessions: Vec::new(), more: false },
        agent,
        begun,
        opened: None,
        ended: None,
        wants_answer: body.prompt.is_some(),
        lists: body.listing.is_some(),
    };
    let outcome = tokio::select! {
        outcome = trial.follow(events, out) => outcome,
        () = stop.recv() => Err(CliError::Code(INTERRUPTED)),
    };
    let is_interrupted = matches!(outcome, Err(CliError::Code(INTERRUPTED)));
    let ending = async {
        close(&client, &key, if trial.lists { "delete" } else { "close" }).await?;
        if is_interrupted { wait_for_end(&client, &key).await } else { Ok(()) }
    };
    // A later signal ends the wait for a gateway that does not answer.
    let closed = tokio::select! {
        closed = ending => closed,
        () = next_signal(&mut stop, is_interrupted) => Err(CliError::Code(INTERRUPTED)),
    };
    outcome?;
    closed?;
    Ok(trial)
}

async fn close(client: &GatewayClient, key: &SessionKey, verb: &str) -> CliResult {
    let path = format!("/v1/sessions/{}/{verb}", encode(key.as_str()));
    let body =
        CloseBody { reason: Some("the trial ended".to_owned()), discard: true, ..CloseBody::default() };
    let _: SessionStatus = client.post(&path, &body, &IdempotencyKey::mint()).await?;
    Ok(())
}

/// Waits until the processes of a session have ended. Two downloads of one package at the same time disturb each other.
async fn wait_for_end(client: &GatewayClient, key: &SessionKey) -> CliResult {
    let until = Instant::now() + END_WAIT;
    while Instant::now() < until {
        let leases: Vec<LeaseView> = client.get("/v1/leases").await?;
        let is_open = |lease: &LeaseView| !matches!(lease.state.as_str(), "closed" | "lost");
        if !leases.iter().any(|lease| lease.session_key == *key && is_open(lease)) {
            break;
        }
        tokio::time::sleep(END_POLL).await;
    }
    Ok(())
}

/// Waits for a signal. After an interruption, one that repeats it does not count: some senders signal a process and its
/// group, and people press Ctrl-C twice.
async fn next_signal(stop: &mut StopSignals, is_interrupted: bool) {
    if is_interrupted {
        let repeated = async {
            loop {
                stop.recv().await;
            }
        };
        let _: Result<(), _> = tokio::time::timeout(REPEATED_SIGNAL, repeated).await;
    }
    stop.recv().await;
}

fn seconds(ms: u64) -> String {
    format!("{}.{} s", ms / 1_000, ms % 1_000 / 100)
}

/// A trial in progress.
struct Trial {
    agent: AgentName,
    begun: Instant,
    opened: Option<Instant>,
    ended: Option<Instant>,
    wants_answer: bool,
    /// True if the agent lists its stored sessions.
    lists: bool,
    stored: StoredSessions,
}

impl Trial {
    async fn follow(&mut self, mut events: EventStream, out: &mut Out) -> CliResult {
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
            if !out.json && !self.lists && head.kind != "prompt" {
                show.event(&line, &head, out)?;
                out.flush()?;
            }
            if is_over {
                self.ended = Some(Instant::now());
                return Ok(());
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
                    Some("agent_sessions") => {
                        let page: Vec<StoredSession> =
                            serde_json::from_value(event["sessions"].clone()).unwrap_or_default();
                        self.stored.sessions.extend(page);
                        self.stored.more = event["more"] == true;
                    }
                    _ => {}
                }
                Ok(self.opened.is_some() && !self.wants_answer)
            }
            "error" => Err(failed("message")),
            "done" => Ok(self.wants_answer),
            // The gateway hides the session once its list is complete.
            "closed" if self.lists => {
                let event: Value = serde_json::from_str(line).unwrap_or_default();
                Ok(event["ending"] == "deleted")
            }
            _ => Ok(false),
        }
    }

    fn report(&self) -> TrialReport {
        let now = self.ended.unwrap_or_else(Instant::now);
        let opened = self.opened.unwrap_or(now);
        let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        TrialReport {
            agent: self.agent.clone(),
            opened_ms: ms(opened - self.begun),
            answered_ms: self.wants_answer.then(|| ms(now - opened)),
        }
    }
}
