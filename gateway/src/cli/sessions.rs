//! `sessions spawn | list | show | history | set | cancel | unbind | label | rename | release | export | new | close | archive |
//! delete | reset | prune`.

use crate::api::client::{EventSelection, GatewayClient, encode};
use crate::cli::follow::{note_pruned, print_events, print_last};
use crate::cli::given::{GivenArgs, absolute, current_dir};
use crate::cli::output::{CliResult, Out, name};
use crate::cli::session_arg::{ActsForArgs, SessionArg, resolve_name};
use crate::cli::session_changes::EndArgs;
use crate::cli::session_prune::{self, PruneArgs};
use crate::cli::{GlobalArgs, IdempotencyArgs, session_changes, session_views, shell_completion, usage};
use acp_core::api::{
    BoundView, CancelBody, ConfigChoice, NewBody, Opening, OptionBody, SessionView, SpawnBody, SpawnedView,
    UnbindBody,
};
use acp_core::config::remote::LOCAL;
use acp_core::config::{NonInteractive, PermissionMode};
use acp_core::failure::Failure;
use acp_core::permission::Voting;
use acp_core::request::{CancelResult, SessionStatus};
use acp_core::rows::SessionMode;
use acp_core::timeouts::format_duration;
use acp_shared::codes::Code;
use acp_shared::ids::{AgentName, BindingId, RunId, SessionKey};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand};
use serde::de::DeserializeOwned;
use std::path::PathBuf;

/// `sessions …`
#[derive(Debug, Subcommand)]
pub(crate) enum SessionsCommand {
    /// Start a session with an agent; prints its key
    #[command(
        after_help = "Example: acp-gateway sessions spawn --agent demo --cwd ~/project --label 'try it'"
    )]
    Spawn(SpawnArgs),
    /// List sessions, newest first
    List {
        /// Include closed sessions
        #[arg(long)]
        all: bool,
        #[command(flatten)]
        acts_for: ActsForArgs,
    },
    /// Show everything about one session
    Show {
        #[command(flatten)]
        session: SessionArg,
        #[command(flatten)]
        acts_for: ActsForArgs,
    },
    /// Print the history of a session from its journal
    History(HistoryArgs),
    /// Stop the running turn, or else the next one in the queue; the agent's process keeps running
    Cancel {
        #[command(flatten)]
        session: SessionArg,
        /// Stop this run instead of the running one
        #[arg(long)]
        run: Option<RunId>,
        #[command(flatten)]
        once: IdempotencyArgs,
    },
    /// Change one setting of a session, now and for every later start of its agent
    #[command(after_help = "Example: acp-gateway sessions set KEY --mode plan")]
    Set(SetArgs),
    /// Unbind conversations from a session; the session stays open
    Unbind {
        #[command(flatten)]
        session: SessionArg,
        /// Unbind only the binding with this id [default: all of them]
        #[arg(long, value_name = "ID")]
        binding: Option<BindingId>,
        #[command(flatten)]
        once: IdempotencyArgs,
    },
    /// Give a session another label
    #[command(
        after_help = "Example: acp-gateway sessions rename --last 'fix the build'",
        allow_missing_positional = true
    )]
    Rename {
        #[command(flatten)]
        session: SessionArg,
        /// New label
        label: String,
        #[command(flatten)]
        once: IdempotencyArgs,
    },
    /// Set the label of a session, or remove it
    #[command(after_help = "Example: acp-gateway sessions label KEY 'fix the build'")]
    Label {
        /// Key, id or its first characters, or label
        #[arg(value_name = "SESSION", add = shell_completion::sessions())]
        session: String,
        /// New label
        #[arg(required_unless_present = "remove", conflicts_with = "remove")]
        label: Option<String>,
        /// Remove the label
        #[arg(long)]
        remove: bool,
        #[command(flatten)]
        once: IdempotencyArgs,
    },
    /// End the agent's process; the session stays, and its next prompt starts the agent again
    Release {
        #[command(flatten)]
        session: SessionArg,
        #[command(flatten)]
        once: IdempotencyArgs,
    },
    /// Print the whole journal of a session
    #[command(after_help = "Example: acp-gateway sessions export KEY --format md >session.md")]
    Export {
        #[command(flatten)]
        session: SessionArg,
        /// Format: event lines, or text for people
        #[arg(long, default_value = "jsonl", value_parser = PossibleValuesParser::new(["jsonl", "md"]))]
        format: String,
        /// Same as `--format md`
        #[arg(long, conflicts_with_all = ["format", "jsonl"])]
        md: bool,
        /// Same as `--format jsonl`
        #[arg(long, conflicts_with = "format")]
        jsonl: bool,
    },
    /// Begin a new conversation with the next prompt; the session and its journal stay
    New {
        #[command(flatten)]
        session: SessionArg,
        #[command(flatten)]
        once: IdempotencyArgs,
    },
    /// Close a session for good, and end its agent
    Close(EndArgs),
    /// Close a session and keep it for later reading
    Archive(EndArgs),
    /// Close a session and hide it from every list; its journal stays
    Delete(EndArgs),
    /// Close a session to begin again with another one
    Reset(EndArgs),
    /// Close the sessions without activity for a given time
    Prune(PruneArgs),
}

/// `sessions set`
#[derive(Debug, Args)]
pub(crate) struct SetArgs {
    #[command(flatten)]
    session: SessionArg,
    #[command(flatten)]
    one: SettingArgs,
    #[command(flatten)]
    once: IdempotencyArgs,
}

#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct SettingArgs {
    /// The agent's mode
    #[arg(long, add = shell_completion::session_modes())]
    mode: Option<String>,
    /// The agent's model
    #[arg(long, add = shell_completion::session_models())]
    model: Option<String>,
    /// Change the working directory; restarts the agent in it
    #[arg(long, value_name = "DIR")]
    cwd: Option<PathBuf>,
    /// Set the handling of permission requests
    #[arg(long, value_name = "MODE", value_parser = word_parser::<PermissionMode>(PERMISSION_MODES))]
    permission: Option<PermissionMode>,
    /// Set the handling of permission requests that no person can answer
    #[arg(long, value_name = "POLICY", value_parser = word_parser::<NonInteractive>(UNATTENDED))]
    non_interactive_permissions: Option<NonInteractive>,
    /// Set who may answer the agent's questions
    #[arg(long, value_name = "WHO", value_parser = word_parser::<Voting>(VOTING))]
    voting: Option<Voting>,
    /// Set the session's turn time limit, 1 to 86400 seconds; 0 uses only the gateway's limit
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<u64>,
    /// Set one of the agent's config options
    #[arg(long, value_name = "ID=VALUE", add = shell_completion::session_options())]
    option: Option<String>,
    /// Reset all settings to the configuration; restarts the agent
    #[arg(long)]
    defaults: bool,
    /// Continue on this host, `local` for the gateway's machine; ends the agent there first
    #[arg(long, value_name = "HOST")]
    host: Option<String>,
}

/// `sessions spawn`
#[derive(Debug, Args)]
pub(crate) struct SpawnArgs {
    /// Agent to start [default: acp.default_agent]
    #[arg(long, add = shell_completion::agents())]
    agent: Option<AgentName>,
    /// Runtime backend, direct or acpx [default: the agent's, or acp.backend]
    #[arg(long, value_name = "NAME")]
    backend: Option<String>,
    /// Host that runs the agent, see `hosts list` [default: chosen by the labels of the agent]
    #[arg(long, value_name = "NAME")]
    host: Option<String>,
    /// Working directory of the agent [default: the current one; on another host the configured one]
    #[arg(long, value_name = "DIR")]
    cwd: Option<PathBuf>,
    /// Label of the session
    #[arg(long)]
    label: Option<String>,
    /// Lifetime of the session
    #[arg(long, default_value = "persistent", value_parser = word_parser::<SessionMode>(SESSION_MODES))]
    mode: SessionMode,
    /// Handling of permission requests [default: the agent's]
    #[arg(long, value_name = "MODE", value_parser = word_parser::<PermissionMode>(PERMISSION_MODES))]
    permission: Option<PermissionMode>,
    /// Handling of permission requests that no person can answer [default: the agent's]
    #[arg(long, value_name = "POLICY", value_parser = word_parser::<NonInteractive>(UNATTENDED))]
    non_interactive_permissions: Option<NonInteractive>,
    /// Who may answer the agent's questions [default: first]
    #[arg(long, value_name = "WHO", value_parser = word_parser::<Voting>(VOTING))]
    voting: Option<Voting>,
    /// Continue a conversation that the agent has stored, by its id in `agents sessions NAME`
    #[arg(long, value_name = "ID")]
    resume: Option<String>,
    /// First prompt; follow it with `sessions history KEY --follow`
    #[arg(long, value_name = "TEXT")]
    prompt: Option<String>,
    /// Parent session, which then owns the new one
    #[arg(long, value_name = "SESSION", add = shell_completion::sessions())]
    spawned_by: Option<SessionKey>,
    #[command(flatten)]
    given: GivenArgs,
    /// A person answers permission requests of the first prompt elsewhere (`permissions answer`, `chat`)
    #[arg(long, requires = "prompt")]
    interactive: bool,
    /// Wait this long for the agent to open its session, at most 120; 0 does not wait
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(..=120))]
    wait: u64,
    #[command(flatten)]
    once: IdempotencyArgs,
}

const SESSION_MODES: &[&str] = &["persistent", "oneshot"];
const UNATTENDED: &[&str] = &["deny", "fail"];
const VOTING: &[&str] = &["first", "local", "owner"];
const PERMISSION_MODES: &[&str] = &["ask", "approve-reads", "approve-all", "deny-all"];

/// Parser of a flag whose values are these words of the configuration.
fn word_parser<T: DeserializeOwned + Clone + Send + Sync + 'static>(
    words: &'static [&'static str],
) -> impl TypedValueParser<Value = T> {
    PossibleValuesParser::new(words).try_map(|word| serde_json::from_value(word.into()))
}

/// `sessions history`
#[derive(Debug, Args)]
pub(crate) struct HistoryArgs {
    #[command(flatten)]
    session: SessionArg,
    /// Print only events after this number (`session_seq`)
    #[arg(long, value_name = "SEQ")]
    after: Option<u64>,
    /// Print only this run, up to its end
    #[arg(long)]
    run: Option<RunId>,
    /// Print only the last events, this many; with --after, the first ones after it
    #[arg(long, value_name = "N")]
    limit: Option<u64>,
    /// Include old events replayed by agents
    #[arg(long)]
    replay: bool,
    /// Keep printing new events until the session is closed
    #[arg(long)]
    follow: bool,
    #[command(flatten)]
    acts_for: ActsForArgs,
}

/// `sessions …`
pub(crate) async fn run(global: &GlobalArgs, verb: SessionsCommand, out: &mut Out) -> CliResult {
    let client = global.client()?;
    let path = |session: &SessionKey, verb: &str| format!("/v1/sessions/{}{verb}", encode(session.as_str()));
    match verb {
        SessionsCommand::Spawn(args) => spawn(global, args, out).await,
        SessionsCommand::List { all, acts_for } => {
            let client = acts_for.client(client).await?;
            let views: Vec<SessionView> = client.get(&format!("/v1/sessions?all={all}")).await?;
            out.show(&views, |views| session_views::list(views))
        }
        SessionsCommand::Show { session, acts_for } => {
            let client = acts_for.client(client).await?;
            let session = session.resolve(&client).await?;
            let view: SessionView = client.get(&path(&session, "")).await?;
            out.show(&view, session_views::show)
        }
        SessionsCommand::History(args) => {
            let client = args.acts_for.client(client).await?;
            let wanted = EventSelection {
                session: args.session.resolve(&client).await?,
                after: args.after.unwrap_or(0),
                run: args.run,
                replay: args.replay,
                follow: args.follow,
            };
            match (args.after, args.limit) {
                (None, Some(limit)) => print_last(&client, wanted, limit, out).await,
                (after, limit) => {
                    if after.is_none() && !out.json {
                        note_pruned(&client.get(&path(&wanted.session, "")).await?, out)?;
                    }
                    print_events(client.events(wanted), limit.unwrap_or(u64::MAX), out).await
                }
            }
        }
        SessionsCommand::Export { session, format, md, jsonl: _ } => {
            let session = session.resolve(&client).await?;
            let format = if md { "md" } else { format.as_str() };
            client
                .download(&path(&session, &format!("/export?format={format}")), |piece| out.text(piece))
                .await
        }
        other => change(&client, other, out).await,
    }
}

/// Verbs that change a session.
async fn change(client: &GatewayClient, verb: SessionsCommand, out: &mut Out) -> CliResult {
    let path = |session: &SessionKey, verb: &str| format!("/v1/sessions/{}{verb}", encode(session.as_str()));
    match verb {
        SessionsCommand::Cancel { session, run, once } => {
            let session = session.resolve(client).await?;
            let body = CancelBody { run_id: run };
            let done: CancelResult = client.post(&path(&session, "/cancel"), &body, &once.key()).await?;
            out.show(&done, |done| match done.run_id {
                Some(run) => format!("Cancellation of run {run} requested."),
                None => "No run is running or queued.".to_owned(),
            })
        }
        SessionsCommand::Set(SetArgs { session, one, once }) => {
            let (session, body) = (session.resolve(client).await?, one.body()?);
            let now: SessionStatus = client.post(&path(&session, "/options"), &body, &once.key()).await?;
            out.show(&now, |now| match &now.setting {
                Some(result) => format!("{}: {}", now.session_key, result.text),
                None => {
                    format!("Setting of {} changed, also for later starts of its agent.", now.session_key)
                }
            })
        }
        SessionsCommand::Unbind { session, binding, once } => {
            let session = session.resolve(client).await?;
            let body = UnbindBody { binding_id: binding, reason: None };
            let ended: Vec<BoundView> = client.post(&path(&session, "/unbind"), &body, &once.key()).await?;
            out.show(&ended, |ended| {
                let places = ended.iter().map(|at| format!("{}:{}", at.channel, name(&at.conversation_id)));
                format!("Unbound: {}.", places.collect::<Vec<_>>().join(", "))
            })
        }
        SessionsCommand::Label { session, label, once, .. } => {
            let session = resolve_name(&session, client).await?;
            session_changes::label(client, &session, label, &once, out).await
        }
        SessionsCommand::Rename { session, label, once } => {
            let session = session.resolve(client).await?;
            session_changes::label(client, &session, Some(label), &once, out).await
        }
        SessionsCommand::Release { session, once } => {
            let session = session.resolve(client).await?;
            session_changes::release(client, &session, &once, out).await
        }
        SessionsCommand::New { session, once } => {
            let session = session.resolve(client).await?;
            let now: SessionStatus = client.post(&path(&session, "/new"), &NewBody {}, &once.key()).await?;
            out.show(&now, |now| format!("The next prompt to {} starts a new conversation.", now.session_key))
        }
        SessionsCommand::Close(args) => session_changes::end(client, "/close", args, out).await,
        SessionsCommand::Archive(args) => session_changes::end(client, "/archive", args, out).await,
        SessionsCommand::Delete(args) => session_changes::end(client, "/delete", args, out).await,
        SessionsCommand::Reset(args) => session_changes::end(client, "/reset", args, out).await,
        SessionsCommand::Prune(args) => session_prune::prune(client, &args, out).await,
        // Handled by `run`.
        SessionsCommand::Spawn(_)
        | SessionsCommand::List { .. }
        | SessionsCommand::Show { .. }
        | SessionsCommand::History(_)
        | SessionsCommand::Export { .. } => Ok(()),
    }
}

impl SettingArgs {
    fn body(self) -> Result<OptionBody, Failure> {
        let cwd = self.cwd.map(|dir| absolute(&dir)).transpose()?;
        let config = self.option.map(|given| {
            let (id, value) = given
                .split_once('=')
                .ok_or_else(|| usage("--option must have the form ID=VALUE".to_owned()))?;
            Ok::<_, Failure>(ConfigChoice { id: id.to_owned(), value: value.to_owned() })
        });
        Ok(OptionBody {
            mode: self.mode,
            model: self.model,
            cwd,
            permission: self.permission,
            non_interactive_permissions: self.non_interactive_permissions,
            voting: self.voting,
            timeout_s: self.timeout,
            defaults: self.defaults.then_some(true),
            host: self.host,
            config: config.transpose()?,
        })
    }
}

async fn spawn(global: &GlobalArgs, args: SpawnArgs, out: &mut Out) -> CliResult {
    let is_remote = args.host.as_deref().is_some_and(|host| host != LOCAL);
    let cwd = match args.cwd {
        None if is_remote => None,
        cwd => Some(absolute(&cwd.map_or_else(current_dir, Ok)?)?),
    };
    let (mcp_servers, additional_directories) = args.given.read()?;
    let body = SpawnBody {
        agent: args.agent,
        cwd,
        label: args.label,
        mode: Some(args.mode),
        permission: args.permission,
        non_interactive_permissions: args.non_interactive_permissions,
        voting: args.voting,
        prompt: args.prompt,
        interactive: args.interactive,
        spawned_by: args.spawned_by,
        wait_s: (args.wait > 0).then_some(args.wait),
        mcp_servers,
        additional_directories,
        backend: args.backend,
        host: args.host,
        resume: args.resume,
        ..SpawnBody::default()
    };
    let view: SpawnedView = global.client()?.post("/v1/sessions", &body, &args.once.key()).await?;
    let terminal = out.terminal;
    let key = view.spawned.session_key.clone();
    let is_open = view.opening == Some(Opening::Open);
    out.show(&view, |view| match terminal && is_open {
        true => format!("{}\n\nNext: acp-gateway prompt {0} 'help'", view.spawned.session_key),
        false => view.spawned.session_key.to_string(),
    })?;
    match view.opening {
        None | Some(Opening::Open) => Ok(()),
        Some(Opening::Failed) => {
            Err(view.error.unwrap_or_else(|| Failure::of(Code::SessionInitFailed)).into())
        }
        Some(Opening::Pending) => {
            let text = format!(
                "The agent has not opened its session within {}; it is still starting. \
                 `acp-gateway sessions show {key}` shows its state.",
                format_duration(args.wait * 1_000)
            );
            Err(Failure::new(Code::Timeout, text).detail("NOT_OPEN").into())
        }
    }
}
