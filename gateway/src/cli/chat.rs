//! `chat`: a conversation in the terminal. Input goes through the console channel, so it has the same
//! commands and guarantees as any other conversation; the output is the session's journal, live.
//!
//! [`script`] serves pipes and `--json`; [`interactive`] serves a person at a terminal. The parts of the latter that decide
//! (`editor`, `completion`, `markdown`, `transcript`, `state`, `live_area`) do no I/O.

mod completion;
mod connection;
mod editor;
mod input;
mod interactive;
mod live_area;
mod markdown;
mod notification;
pub(super) mod screen;
mod script;
mod state;
mod styled;
mod terminal;
mod transcript;

use crate::api::client::{GatewayClient, encode};
use crate::api::console::ConversationView;
use crate::cli::given::{GivenArgs, absolute, current_dir};
use crate::cli::output::{CliResult, Out};
use crate::cli::session_arg::resolve_name;
use crate::cli::{GlobalArgs, shell_completion, usage};
use acp_core::api::SpawnBody;
use acp_core::failure::Failure;
use acp_core::request::SpawnResult;
use acp_shared::ids::{AgentName, IdempotencyKey, SessionKey};
use clap::Args;
use notification::NotificationKind;
use std::io::{self, IsTerminal};

/// Conversation if none is named.
const CONVERSATION: &str = "chat";
/// File of the input's history in the state directory.
const HISTORY: &str = "chat_history";

const EXAMPLES: &str = "\
Examples:
  acp-gateway chat --agent demo
  acp-gateway chat KEY
  echo 'what is here?' | acp-gateway chat --agent demo

Input is sent to the agent; /acp help lists the commands. Keys at a terminal:
  Enter                 send; queue while a turn runs
  Alt-Enter, \\ Enter    new line
  Tab                   complete commands, agents, sessions and options
  1 to 9, arrows        answer a permission request
  Ctrl-S                send into the running turn (steer)
  Ctrl-C                cancel the running turn; twice, or without a turn and without text, leave
  Ctrl-T                show or hide the agent's thoughts
  Ctrl-R                search the history for the text typed so far; again: an older entry
  Ctrl-Z                suspend the chat; `fg` continues it
  Ctrl-D, /exit         leave; the session and a running turn go on";

/// `chat`
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ChatArgs {
    /// Continue this session, by key, id or label
    #[arg(value_name = "KEY", add = shell_completion::sessions())]
    session: Option<String>,
    /// Name of the conversation [default: chat; a new one if standard input is not a terminal]
    #[arg(long, value_name = "NAME")]
    conversation: Option<String>,
    /// Start a session of this agent
    #[arg(long, value_name = "AGENT", conflicts_with = "session", add = shell_completion::agents())]
    agent: Option<AgentName>,
    /// Working directory of the session [default: the current one]
    #[arg(long, value_name = "DIR", conflicts_with = "session")]
    cwd: Option<std::path::PathBuf>,
    /// Notify when the agent waits for an answer, or a turn of more than 10 s has ended
    #[arg(long, value_name = "HOW", value_enum, default_value_t, env = "ACP_GATEWAY_NOTIFY")]
    notify: NotificationKind,
    /// Same as `--notify bell`
    #[arg(long)]
    bell: bool,
    #[command(flatten)]
    given: GivenArgs,
}

/// `chat`
pub(crate) async fn run(global: &GlobalArgs, args: ChatArgs, out: &mut Out) -> CliResult {
    let is_terminal = io::stdin().is_terminal() && io::stdout().is_terminal();
    let fallback = || match is_terminal {
        true => CONVERSATION.to_owned(),
        false => format!("{CONVERSATION}-{}", IdempotencyKey::mint().as_str()),
    };
    let conversation = args.conversation.clone().unwrap_or_else(fallback);
    let client = global.client()?;
    if is_terminal && !out.json {
        let history = global.state_dir()?.join(HISTORY);
        return interactive::run(client, conversation, &args, &history, out).await;
    }
    script::run(client, conversation, &args, is_terminal, out).await
}

/// First step of a chat.
#[derive(Debug, Clone, PartialEq, Eq)]
enum ChatOpening {
    /// The conversation is bound to this session.
    Follow(SessionKey),
    /// These commands bind the conversation to a session.
    Commands(Vec<String>),
}

/// Decides how the conversation gets its session.
async fn plan_opening(
    client: &GatewayClient,
    conversation: &str,
    args: &ChatArgs,
) -> Result<ChatOpening, Failure> {
    if args.session.is_some() && !args.given.is_empty() {
        return Err(usage("--mcp-config and --add-dir start a new session: remove KEY"));
    }
    let path = format!("/v1/console/conversations/{}", encode(conversation));
    let view: ConversationView = client.get(&path).await?;
    if let Some(session) = &args.session {
        let key = resolve_name(session, client).await?;
        return Ok(ChatOpening::Commands(vec![format!("/focus {}", quote_word(key.as_str()))]));
    }
    if !args.given.is_empty() {
        let session = spawn(client, args).await?;
        return Ok(ChatOpening::Commands(vec![format!("/focus {}", quote_word(session.as_str()))]));
    }
    match view.session_key {
        Some(session) if args.agent.is_none() && args.cwd.is_none() => Ok(ChatOpening::Follow(session)),
        bound => {
            let agent = args.agent.as_ref().map(|agent| format!(" {agent}")).unwrap_or_default();
            let spawn = format!("/acp spawn{agent} --cwd {}", quote_word(&cwd_of(args)?));
            let unbind = bound.map(|_| "/unfocus".to_owned());
            Ok(ChatOpening::Commands(unbind.into_iter().chain([spawn]).collect()))
        }
    }
}

/// Returns the working directory of sessions that the chat starts.
fn cwd_of(args: &ChatArgs) -> Result<String, Failure> {
    absolute(&args.cwd.clone().map_or_else(current_dir, Ok)?)
}

/// Starts a session through the API, for parameters that `/acp spawn` does not take.
async fn spawn(client: &GatewayClient, args: &ChatArgs) -> Result<SessionKey, Failure> {
    let (mcp_servers, additional_directories) = args.given.read()?;
    let body = SpawnBody {
        agent: args.agent.clone(),
        cwd: Some(cwd_of(args)?),
        interactive: true,
        mcp_servers,
        additional_directories,
        ..SpawnBody::default()
    };
    let spawned: SpawnResult = client.post("/v1/sessions", &body, &IdempotencyKey::mint()).await?;
    Ok(spawned.session_key)
}

/// Quotes a word for a command line, so that the command parser returns it unchanged.
fn quote_word(word: &str) -> String {
    format!("\"{}\"", word.replace('\\', "\\\\").replace('"', "\\\""))
}
