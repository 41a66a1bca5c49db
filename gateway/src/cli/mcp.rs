//! `mcp`: connects an agent with the session tools of its gateway, on standard input and output. Each message is a request of
//! its own; one that gets no answer because the gateway restarts is sent again under the same key.

use crate::api::client::GatewayClient;
use crate::cli::acp::{Line, print, read_lines};
use crate::cli::output::CliResult;
use crate::cli::usage;
use acp_core::failure::Failure;
use acp_core::jsonrpc::RpcMessage;
use acp_core::northbound::message::{INVALID_REQUEST, ReplyError, error_frame, parse};
use acp_core::session_tools::{ENV_SOCKET, ENV_TOKEN};
use acp_shared::ids::IdempotencyKey;
use std::path::PathBuf;
use std::time::Duration;
use tokio::task::JoinSet;

/// Maximum length of a line of the agent, in bytes.
const LINE_BYTES_MAX: u64 = 4 * 1024 * 1024;
/// Maximum number of messages that wait for their answer.
const WAITING_MAX: usize = 16;
/// Time for open messages to be answered after the end of the input.
const LAST_ANSWERS: Duration = Duration::from_secs(2);

/// `mcp`
pub(crate) async fn run() -> CliResult {
    let client = GatewayClient::of_agent(PathBuf::from(given(ENV_SOCKET)?), given(ENV_TOKEN)?);
    let mut lines = read_lines(LINE_BYTES_MAX);
    let mut waiting: JoinSet<Option<String>> = JoinSet::new();
    loop {
        tokio::select! {
            biased;
            Some(answered) = waiting.join_next() => show(answered.ok().flatten())?,
            line = lines.recv(), if waiting.len() < WAITING_MAX => match line {
                None => break,
                Some(Line::Text(line)) if line.trim().is_empty() => {}
                Some(Line::Text(line)) => drop(waiting.spawn(answer(client.clone(), line))),
                Some(Line::TooLong) => {
                    let text = format!("a message may have {LINE_BYTES_MAX} bytes at most");
                    print(&error_frame("null", &ReplyError::new(INVALID_REQUEST, text)))?;
                }
            },
        }
    }
    let rest = async {
        while let Some(answered) = waiting.join_next().await {
            show(answered.ok().flatten())?;
        }
        Ok::<_, Failure>(())
    };
    tokio::time::timeout(LAST_ANSWERS, rest).await.unwrap_or(Ok(()))?;
    Ok(())
}

fn given(name: &str) -> Result<String, Failure> {
    std::env::var(name).ok().filter(|value| !value.is_empty()).ok_or_else(|| {
        usage(format!(
            "{name} is not set: agents with session tools start this command, with an environment of the gateway"
        ))
    })
}

fn show(answer: Option<String>) -> Result<(), Failure> {
    answer.map_or(Ok(()), |answer| print(&answer))
}

/// Returns the answer to a message; `None` if it has none.
async fn answer(client: GatewayClient, line: String) -> Option<String> {
    // Only a request has an answer, and only its id is needed here.
    let id = match parse(line.as_bytes()) {
        Ok(RpcMessage::Request { id, .. }) => Some(id.to_owned()),
        Ok(RpcMessage::Notification { .. } | RpcMessage::Response { .. }) => return None,
        Err(_) => None,
    };
    match client.post_message(line.into(), &IdempotencyKey::mint()).await {
        Ok(answer) => answer,
        Err(failure) => Some(error_frame(id.as_deref().unwrap_or("null"), &ReplyError::from(&failure))),
    }
}
