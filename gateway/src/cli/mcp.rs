//! `mcp`: connects an agent with the session tools of its gateway, on standard input and output. Each message is a request of
//! its own; one that gets no answer because the gateway restarts is sent again under the same key. A request that the agent
//! cancels is not waited for.

use crate::api::client::GatewayClient;
use crate::cli::acp::{Line, print, read_lines};
use crate::cli::output::CliResult;
use crate::cli::usage;
use acp_core::failure::Failure;
use acp_core::jsonrpc::RpcMessage;
use acp_core::northbound::message::{INVALID_REQUEST, ReplyError, error_frame, parse};
use acp_core::session_tools::{ENV_SOCKET, ENV_TOKEN};
use acp_shared::ids::IdempotencyKey;
use serde_json::Value;
use std::collections::{HashMap, VecDeque};
use std::path::PathBuf;
use std::time::Duration;
use tokio::task::{AbortHandle, JoinSet};

/// Maximum length of a line of the agent, in bytes.
const LINE_BYTES_MAX: u64 = 4 * 1024 * 1024;
/// Maximum number of messages that wait for their answer.
const WAITING_MAX: usize = 16;
/// Maximum number of messages that wait to be sent. With more, nothing is read.
const HELD_MAX: usize = 64;
/// Time for open messages to be answered after the end of the input.
const LAST_ANSWERS: Duration = Duration::from_secs(2);
/// Notification of an agent that no longer waits for the answer to a request.
const CANCELLED: &str = "notifications/cancelled";

/// Requests of the agent: a limited number waits for answers, the others for their turn.
struct Calls {
    client: GatewayClient,
    waiting: JoinSet<Option<String>>,
    /// Tasks of requests that wait for answers, by request id.
    open: HashMap<String, AbortHandle>,
    /// Lines to send, with the ids of requests.
    held: VecDeque<(Option<String>, String)>,
}

impl Calls {
    fn receive(&mut self, line: String) {
        match read(&line) {
            Read::Request(id) => self.held.push_back((Some(id), line)),
            Read::Unreadable => self.held.push_back((None, line)),
            Read::Cancelled(id) => match self.open.remove(&id) {
                Some(request) => request.abort(),
                None => self.held.retain(|(held, _)| held.as_ref() != Some(&id)),
            },
            Read::Other => {}
        }
        self.send();
    }

    /// Sends held lines while there is room.
    fn send(&mut self) {
        self.open.retain(|_, request| !request.is_finished());
        while self.waiting.len() < WAITING_MAX {
            let Some((id, line)) = self.held.pop_front() else { return };
            let request = self.waiting.spawn(answer(self.client.clone(), line, id.clone()));
            self.open.extend(id.map(|id| (id, request)));
        }
    }
}

/// `mcp`
pub(crate) async fn run() -> CliResult {
    let client = GatewayClient::of_agent(PathBuf::from(given(ENV_SOCKET)?), given(ENV_TOKEN)?);
    let mut calls = Calls { client, waiting: JoinSet::new(), open: HashMap::new(), held: VecDeque::new() };
    let mut lines = read_lines(LINE_BYTES_MAX);
    loop {
        tokio::select! {
            biased;
            Some(answered) = calls.waiting.join_next() => {
                show(answered.ok().flatten())?;
                calls.send();
            }
            line = lines.recv(), if calls.held.len() < HELD_MAX => match line {
                None => break,
                Some(Line::Text(line)) if line.trim().is_empty() => {}
                Some(Line::Text(line)) => calls.receive(line),
                Some(Line::TooLong) => {
                    let text = format!("a message may have {LINE_BYTES_MAX} bytes at most");
                    print(&error_frame("null", &ReplyError::new(INVALID_REQUEST, text)))?;
                }
            },
        }
    }
    let rest = async {
        while let Some(answered) = calls.waiting.join_next().await {
            show(answered.ok().flatten())?;
            calls.send();
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

/// Message of the agent, as far as the bridge needs it.
#[derive(Debug, PartialEq)]
enum Read {
    /// Request with this id, JSON text.
    Request(String),
    /// The request with this id is cancelled.
    Cancelled(String),
    /// Invalid message: the gateway answers with the error.
    Unreadable,
    /// No answer.
    Other,
}

fn read(line: &str) -> Read {
    match parse(line.as_bytes()) {
        Ok(RpcMessage::Request { id, .. }) => Read::Request(id.to_owned()),
        Ok(RpcMessage::Notification { method, params }) if method == CANCELLED => {
            let params =
                params.and_then(|params| serde_json::from_str::<Value>(params).ok()).unwrap_or_default();
            params.get("requestId").map_or(Read::Other, |id| Read::Cancelled(id.to_string()))
        }
        Ok(RpcMessage::Notification { .. } | RpcMessage::Response { .. }) => Read::Other,
        Err(_) => Read::Unreadable,
    }
}

/// Returns the answer to a message; `None` if it has none.
async fn answer(client: GatewayClient, line: String, id: Option<String>) -> Option<String> {
    match client.post_message(line.into(), &IdempotencyKey::mint()).await {
        Ok(answer) => answer,
        Err(failure) => Some(error_frame(id.as_deref().unwrap_or("null"), &ReplyError::from(&failure))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_cancels_have_the_id_in_the_same_form() {
        for id in ["7", r#""a""#] {
            let request = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"ping"}}"#);
            let cancel =
                format!(r#"{{"jsonrpc":"2.0","method":"{CANCELLED}","params":{{"requestId":{id}}}}}"#);
            assert_eq!(read(&request), Read::Request(id.to_owned()));
            assert_eq!(read(&cancel), Read::Cancelled(id.to_owned()));
        }
        for (line, want) in [
            (r#"{"jsonrpc":"2.0","method":"notifications/cancelled"}"#, Read::Other),
            (r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#, Read::Other),
            ("no json", Read::Unreadable),
        ] {
            assert_eq!(read(line), want, "{line}");
        }
    }
}
