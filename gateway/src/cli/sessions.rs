//! `sessions spawn | list | show | history | cancel | close | reset`.

use crate::api::{CancelBody, CloseBody, ResetBody, SessionView, SpawnBody};
use crate::cli::follow::print_events;
use crate::cli::output::{Out, Outcome, age, now_ms, table};
use crate::cli::{Global, Once, usage};
use crate::client::{Wanted, encode};
use crate::config::{NonInteractive, PermissionMode};
use crate::core::request::{Cancelled, SessionNow, Spawned};
use crate::core::rows::{BindingStatus, SessionMode};
use acp_shared::ids::{AgentName, RunId, SessionKey};
use clap::{Args, Subcommand, ValueEnum};
use std::path::PathBuf;

/// `sessions …`
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Start a session with an agent; prints its key
    #[command(
        after_help = "Example: acp-gateway sessions spawn --agent demo --cwd ~/project --label 'try it'"
    )]
    Spawn(SpawnArgs),
    /// Sessions, the newest first
    List {
        /// Closed ones too
        #[arg(long)]
        all: bool,
    },
    /// Everything about one session
    Show {
        /// The session
        session: SessionKey,
    },
    /// What was said in a session, from its journal
    History(HistoryArgs),
    /// Stop the running turn, or else the next one in the queue; the agent's process goes on
    Cancel {
        /// The session
        session: SessionKey,
        /// This run rather than the running one
        #[arg(long)]
        run: Option<RunId>,
        #[command(flatten)]
        once: Once,
    },
    /// Close a session for good, and end its agent
    Close {
        /// The session
        session: SessionKey,
        /// Why, for the record
        #[arg(long)]
        reason: Option<String>,
        #[command(flatten)]
        once: Once,
    },
    /// Begin a new conversation with the next prompt; the journal stays
    Reset {
        /// The session
        session: SessionKey,
        #[command(flatten)]
        once: Once,
    },
}

/// `sessions spawn`
#[derive(Debug, Args)]
pub(crate) struct SpawnArgs {
    /// Which agent [default: acp.default_agent]
    #[arg(long)]
    agent: Option<AgentName>,
    /// Working directory of the agent [default: the current one]
    #[arg(long, value_name = "DIR")]
    cwd: Option<PathBuf>,
    /// What you call it
    #[arg(long)]
    label: Option<String>,
    /// How long it is meant to live
    #[arg(long, value_enum, default_value_t = Mode::Persistent)]
    mode: Mode,
    /// What happens when the agent asks for a permission [default: the agent's]
    #[arg(long, value_enum, value_name = "MODE")]
    permission: Option<Permission>,
    /// What happens when nobody can be asked [default: the agent's]
    #[arg(long, value_enum, value_name = "POLICY")]
    non_interactive_permissions: Option<Policy>,
    /// First prompt; follow it with `sessions history KEY --follow`
    #[arg(long, value_name = "TEXT")]
    prompt: Option<String>,
    /// Somebody answers the first prompt's questions elsewhere (`permissions answer`, `chat`)
    #[arg(long, requires = "prompt")]
    interactive: bool,
    #[command(flatten)]
    once: Once,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Mode {
    Persistent,
    Oneshot,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Permission {
    Ask,
    ApproveReads,
    ApproveAll,
    DenyAll,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Policy {
    Deny,
    Fail,
}

/// `sessions history`
#[derive(Debug, Args)]
pub(crate) struct HistoryArgs {
    /// The session
    session: SessionKey,
    /// Only what came after this number (`session_seq`)
    #[arg(long, default_value_t = 0, value_name = "SEQ")]
    after: u64,
    /// Only this run, up to its end
    #[arg(long)]
    run: Option<RunId>,
    /// At most so many events
    #[arg(long)]
    limit: Option<u64>,
    /// Also what agents repeated when they loaded old conversations
    #[arg(long)]
    replay: bool,
    /// Go on with what comes, until the session is closed
    #[arg(long)]
    follow: bool,
}

/// `sessions …`
pub(crate) async fn run(global: &Global, verb: Verb, out: &mut Out) -> Outcome {
    let client = global.client()?;
    let path = |session: &SessionKey, verb: &str| format!("/v1/sessions/{}{verb}", encode(session.as_str()));
    match verb {
        Verb::Spawn(args) => spawn(global, args, out).await,
        Verb::List { all } => {
            let views: Vec<SessionView> = client.get(&format!("/v1/sessions?all={all}")).await?;
            out.show(&views, |views| list(views))
        }
        Verb::Show { session } => {
            let view: SessionView = client.get(&path(&session, "")).await?;
            out.show(&view, show)
        }
        Verb::History(args) => {
            let wanted = Wanted {
                session: args.session,
                after: args.after,
                run: args.run,
                replay: args.replay,
                follow: args.follow,
            };
            print_events(client.events(wanted), args.limit.unwrap_or(u64::MAX), out).await
        }
        Verb::Cancel { session, run, once } => {
            let body = CancelBody { run_id: run };
            let done: Cancelled = client.post(&path(&session, "/cancel"), &body, &once.key()).await?;
            out.show(&done, |done| match done.run_id {
                Some(run) => format!("Run {run} was asked to stop."),
                None => "Nothing ran or waited.".to_owned(),
            })
        }
        Verb::Close { session, reason, once } => {
            let body = CloseBody { reason };
            let now: SessionNow = client.post(&path(&session, "/close"), &body, &once.key()).await?;
            out.show(&now, |now| format!("{} is {}.", now.session_key, now.state.as_str()))
        }
        Verb::Reset { session, once } => {
            let now: SessionNow = client.post(&path(&session, "/reset"), &ResetBody {}, &once.key()).await?;
            out.show(&now, |now| format!("{} begins anew with the next prompt.", now.session_key))
        }
    }
}

async fn spawn(global: &Global, args: SpawnArgs, out: &mut Out) -> Outcome {
    let here = || std::env::current_dir().map_err(|error| usage(format!("the current directory: {error}")));
    let asked = match args.cwd {
        Some(dir) => {
            std::path::absolute(&dir).map_err(|error| usage(format!("{}: {error}", dir.display())))?
        }
        None => here()?,
    };
    let cwd = asked.to_str().ok_or_else(|| usage(format!("{} is not UTF-8", asked.display())))?;
    let body = SpawnBody {
        agent: args.agent,
        cwd: Some(cwd.to_owned()),
        label: args.label,
        mode: Some(match args.mode {
            Mode::Persistent => SessionMode::Persistent,
            Mode::Oneshot => SessionMode::Oneshot,
        }),
        permission: args.permission.map(|permission| match permission {
            Permission::Ask => PermissionMode::Ask,
            Permission::ApproveReads => PermissionMode::ApproveReads,
            Permission::ApproveAll => PermissionMode::ApproveAll,
            Permission::DenyAll => PermissionMode::DenyAll,
        }),
        non_interactive_permissions: args.non_interactive_permissions.map(|policy| match policy {
            Policy::Deny => NonInteractive::Deny,
            Policy::Fail => NonInteractive::Fail,
        }),
        prompt: args.prompt,
        author: None,
        interactive: args.interactive,
    };
    let spawned: Spawned = global.client()?.post("/v1/sessions", &body, &args.once.key()).await?;
    let terminal = out.terminal;
    out.show(&spawned, |spawned| match terminal {
        true => format!("{}\n\nNext: acp-gateway prompt {0} 'help'", spawned.session_key),
        false => spawned.session_key.to_string(),
    })
}

fn list(views: &[SessionView]) -> String {
    if views.is_empty() {
        return "No sessions. Start one: acp-gateway sessions spawn --agent demo".to_owned();
    }
    let now = now_ms();
    let rows = views.iter().map(|view| {
        vec![
            view.session_key.to_string(),
            view.agent.to_string(),
            view.state.as_str().to_owned(),
            doing(view),
            bound(view),
            view.label.clone().unwrap_or_default(),
            view.cwd.clone(),
            age(view.last_activity_at_ms, now),
            view.last_error.as_ref().map_or(String::new(), |failure| failure.code.to_string()),
        ]
    });
    table(&["SESSION", "AGENT", "STATE", "RUN", "BOUND", "LABEL", "CWD", "ACTIVE", "LAST ERROR"], rows)
}

/// The turn that runs, and how many wait behind it.
fn doing(view: &SessionView) -> String {
    let run = view.active_run.map_or("-".to_owned(), |run| run.to_string());
    if view.queued_runs == 0 { run } else { format!("{run} +{}", view.queued_runs) }
}

/// Where it is bound; a binding that is not active says so.
fn bound(view: &SessionView) -> String {
    let places = view.bindings.iter().map(|at| match at.status {
        BindingStatus::Active => format!("{}:{}", at.channel, at.conversation_id),
        BindingStatus::Pending | BindingStatus::Ending | BindingStatus::Ended => {
            format!("{}:{} ({})", at.channel, at.conversation_id, format!("{:?}", at.status).to_lowercase())
        }
    });
    let places: Vec<String> = places.collect();
    if places.is_empty() { "-".to_owned() } else { places.join(" ") }
}

fn show(view: &SessionView) -> String {
    let now = now_ms();
    let none = || "-".to_owned();
    let word = |value: Result<serde_json::Value, _>| match value {
        Ok(serde_json::Value::String(text)) => text,
        Ok(_) | Err::<_, serde_json::Error>(_) => none(),
    };
    let mut facts = vec![
        ("session", view.session_key.to_string()),
        ("agent", view.agent.to_string()),
        ("state", view.state.as_str().to_owned()),
        ("label", view.label.clone().unwrap_or_else(none)),
        ("cwd", view.cwd.clone()),
        ("mode", word(serde_json::to_value(view.mode))),
        ("backend", view.backend.clone()),
        ("permission", word(serde_json::to_value(view.permission))),
        ("agent session", view.agent_session_id.clone().unwrap_or_else(none)),
        ("resumable", view.resumable.to_string()),
        ("lease", view.lease_id.clone().unwrap_or_else(none)),
        ("active run", doing(view)),
        ("bound to", bound(view)),
        ("events", view.last_session_seq.to_string()),
        ("created", format!("{} ago", age(view.created_at_ms, now))),
        ("active", format!("{} ago", age(view.last_activity_at_ms, now))),
    ];
    if let Some(failure) = &view.last_error {
        facts.push(("last error", failure.to_string()));
    }
    let mut text: String = facts.iter().map(|(name, value)| format!("{name:<14} {value}\n")).collect();
    let runs = view.runs.as_deref().unwrap_or_default();
    if !runs.is_empty() {
        let rows = runs.iter().map(|run| {
            let said: String =
                run.text.chars().take(48).map(|c| if c.is_control() { ' ' } else { c }).collect();
            let how = run.error.as_ref().map(|failure| failure.code.to_string());
            let how = how.or_else(|| run.stop_reason.clone()).unwrap_or_default();
            vec![run.run_id.to_string(), run.state.as_str().to_owned(), how, said]
        });
        text.push('\n');
        text.push_str(&table(&["RUN", "STATE", "END", "PROMPT"], rows));
    }
    for question in view.permissions.as_deref().unwrap_or_default() {
        text.push_str(&format!("\nwaits for an answer: {} ({})", question.title, question.permission_id));
    }
    text
}
