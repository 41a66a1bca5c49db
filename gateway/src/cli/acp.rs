//! `acp`: connects an editor that speaks ACP on standard input and output with the gateway, over a WebSocket on the local
//! socket. A gateway that restarts is reconnected.

use crate::api::client::encode;
use crate::cli::output::CliResult;
use crate::cli::{GlobalArgs, inside, shell_completion, usage};
use acp_core::api::SOCKET;
use acp_core::failure::Failure;
use acp_core::northbound::bridge::{Bridge, BridgeOptions, BridgeOutput};
use acp_shared::backoff::Backoff;
use acp_shared::codes::Code;
use acp_shared::ids::{AgentName, IdempotencyKey, SessionKey};
use clap::Args;
use futures_util::{SinkExt as _, StreamExt as _};
use std::io::{self, BufRead as _, Read as _, Write as _};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;

/// Maximum length of a line of the editor, in bytes.
const LINE_BYTES_MAX: u64 = 32 * 1024 * 1024;
/// Maximum wait for a gateway that answered before and is gone, in milliseconds.
const RESTART_WAIT_MS: u64 = 120_000;
/// Maximum wait for the first connection where a socket exists, in milliseconds.
const FIRST_WAIT_MS: u64 = 15_000;
/// Pauses between attempts to connect.
const RETRY_BACKOFF: Backoff = Backoff::new(50, 1_000);
/// Time without a message of the gateway, pings included, after which it counts as gone, in milliseconds.
const SILENT_MS: u64 = 45_000;

/// `acp`
#[derive(Debug, Args)]
#[command(
    after_help = "Example, as the command of an agent in an editor:\n  acp-gateway acp --agent claude\n\nSessions belong to the gateway: they go on when the editor is closed."
)]
pub(crate) struct AcpArgs {
    /// Agent of new sessions [default: acp.default_agent]
    #[arg(long, value_name = "NAME", add = shell_completion::agents())]
    agent: Option<AgentName>,
    /// Open this session instead of a new one
    #[arg(long, value_name = "KEY", conflicts_with = "agent", add = shell_completion::sessions())]
    session: Option<SessionKey>,
    /// Working directory of new sessions [default: the editor's]
    #[arg(long, value_name = "DIR")]
    cwd: Option<PathBuf>,
}

type Socket = WebSocketStream<UnixStream>;

/// Line of standard input.
pub(super) enum Line {
    Text(String),
    TooLong,
}

/// `acp`
pub(crate) async fn run(global: &GlobalArgs, args: AcpArgs) -> CliResult {
    let socket = global.state_dir()?.join(SOCKET);
    let cwd = match &args.cwd {
        None => None,
        Some(dir) => {
            let absolute = std::path::absolute(dir).map_err(|error| usage(format!("--cwd: {error}")))?;
            let text = absolute.into_os_string().into_string();
            Some(text.map_err(|_| usage("--cwd must be UTF-8"))?)
        }
    };
    let url = match &args.agent {
        None => "ws://gateway/acp".to_owned(),
        Some(agent) => format!("ws://gateway/acp/{}", encode(agent.as_str())),
    };
    let options = BridgeOptions {
        session: args.session.map(|key| key.as_str().to_owned()),
        cwd,
        key: format!("acp-bridge:{}", IdempotencyKey::mint()),
    };
    let mut lines = read_lines(LINE_BYTES_MAX);
    let mut bridge = Bridge::new(options);
    let mut wait_ms = FIRST_WAIT_MS;
    loop {
        let mut gateway = connect(&socket, &url, wait_ms).await?;
        wait_ms = RESTART_WAIT_MS;
        let first = bridge.connected();
        if deliver(first, &mut gateway).await?
            && carry(&mut bridge, &mut gateway, &mut lines).await? == CarryEnd::EndOfInput
        {
            drop(gateway.close(None).await);
            return Ok(());
        }
        bridge.disconnected();
    }
}

/// Connects to the gateway, and waits for one that is being restarted.
async fn connect(socket: &std::path::Path, url: &str, wait_ms: u64) -> Result<Socket, Failure> {
    let config =
        WebSocketConfig { max_message_size: None, max_frame_size: None, ..WebSocketConfig::default() };
    let until = Instant::now() + Duration::from_millis(wait_ms);
    let mut backoff = RETRY_BACKOFF;
    loop {
        let attempt = async {
            let stream = UnixStream::connect(socket).await.map_err(|error| error.to_string())?;
            let upgraded = tokio_tungstenite::client_async_with_config(url, stream, Some(config)).await;
            upgraded.map(|(socket, _)| socket).map_err(|error| error.to_string())
        };
        let why = match attempt.await {
            Ok(socket) => return Ok(socket),
            Err(why) => why,
        };
        if Instant::now() >= until || (wait_ms == FIRST_WAIT_MS && !socket.exists()) {
            let text = format!(
                "No gateway answers at {} ({why}). Start one with `acp-gateway up`, or name its state directory with \
                 --state-dir.",
                socket.display()
            );
            return Err(Failure::new(Code::GatewayUnavailable, text).origin("client").retryable());
        }
        tokio::time::sleep(backoff.next_pause()).await;
    }
}

#[derive(Debug, PartialEq, Eq)]
enum CarryEnd {
    /// The editor has closed standard input.
    EndOfInput,
    /// The gateway is gone.
    GatewayLost,
}

/// Carries messages in both directions until one side ends.
async fn carry(
    bridge: &mut Bridge,
    gateway: &mut Socket,
    lines: &mut mpsc::Receiver<Line>,
) -> Result<CarryEnd, Failure> {
    loop {
        let out = tokio::select! {
            biased;
            message = tokio::time::timeout(Duration::from_millis(SILENT_MS), gateway.next()) => match message {
                Ok(Some(Ok(Message::Text(text)))) => bridge.from_gateway(&text),
                Ok(Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Binary(_) | Message::Frame(_)))) => {
                    // Sends the answer to a ping.
                    if gateway.flush().await.is_err() {
                        return Ok(CarryEnd::GatewayLost);
                    }
                    Vec::new()
                }
                Ok(Some(Ok(Message::Close(_)) | Err(_)) | None) | Err(_) => return Ok(CarryEnd::GatewayLost),
            },
            line = lines.recv(), if bridge.is_ready() => match line {
                None => return Ok(CarryEnd::EndOfInput),
                Some(Line::Text(line)) if line.trim().is_empty() => Vec::new(),
                Some(Line::Text(line)) => bridge.from_editor(&line),
                Some(Line::TooLong) => bridge.from_editor("[\"a line that is too long\"]"),
            },
        };
        if !deliver(out, gateway).await? {
            return Ok(CarryEnd::GatewayLost);
        }
    }
}

/// Delivers messages. Returns false if the gateway is gone; those for the editor are written in any case.
async fn deliver(out: Vec<BridgeOutput>, gateway: &mut Socket) -> Result<bool, Failure> {
    let mut is_there = true;
    for message in out {
        match message {
            BridgeOutput::Editor(line) => print(&line)?,
            BridgeOutput::Gateway(text) => {
                is_there = is_there && gateway.send(Message::Text(text)).await.is_ok();
            }
        }
    }
    Ok(is_there)
}

pub(super) fn print(line: &str) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    let written = writeln!(stdout, "{line}").and_then(|()| stdout.flush());
    written.map_err(|error| inside("cannot write to standard output", &error))
}

/// Reads lines of standard input on a thread of its own, one at a time: a read cannot be interrupted.
pub(super) fn read_lines(bytes_max: u64) -> mpsc::Receiver<Line> {
    let (send, lines) = mpsc::channel(1);
    std::thread::spawn(move || {
        let mut stdin = io::stdin().lock();
        loop {
            let mut bytes = Vec::new();
            match stdin.by_ref().take(bytes_max + 1).read_until(b'\n', &mut bytes) {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
            let is_whole = bytes.last() == Some(&b'\n');
            if !is_whole && bytes.len() as u64 > bytes_max {
                // The rest of the line is skipped, piece by piece.
                while !matches!(bytes.last(), Some(b'\n')) {
                    bytes.clear();
                    match stdin.by_ref().take(bytes_max).read_until(b'\n', &mut bytes) {
                        Ok(0) | Err(_) => return,
                        Ok(_) => {}
                    }
                }
                if send.blocking_send(Line::TooLong).is_err() {
                    return;
                }
                continue;
            }
            // Text that is not UTF-8 is refused as a message.
            let line = String::from_utf8(bytes).unwrap_or_else(|_| "\u{fffd}".to_owned());
            if send.blocking_send(Line::Text(line.trim_end_matches(['\n', '\r']).to_owned())).is_err() {
                return;
            }
        }
    });
    lines
}
