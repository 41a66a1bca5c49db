//! Proof of an agent: one turn in the gateway of the state directory, which is started for it unless one runs. The
//! turn is made by this program's own verbs, as a person would make it, and nothing that needs a permission is allowed.

use super::{Answers, untested};
use crate::api::client::GatewayClient;
use crate::cli::agents::exe;
use crate::cli::output::CliError;
use crate::cli::questions::Questions;
use crate::cli::up::child::UpChild;
use crate::cli::up::lock::recorded_socket;
use acp_core::failure::Failure;
use serde_json::Value;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};
use tokio::net::UnixStream;
use tokio::process::Command;

/// Text of the turn.
const PROMPT: &str = "Reply with the single word ready. Use no tools.";
/// Deadline of the turn, in seconds: an agent that is fetched first takes long.
const TURN_S: &str = "180";
/// Maximum length of the reply that is shown, in characters.
const REPLY_CHARS_MAX: usize = 200;
/// Maximum wait for the answer of a gateway that may be running.
const STATUS_WAIT: Duration = Duration::from_secs(15);

/// A turn to make.
pub(super) struct Proof<'a> {
    pub(super) state_dir: &'a Path,
    pub(super) config: &'a Path,
    pub(super) answers: &'a Answers,
}

impl Proof<'_> {
    /// Makes the turn and returns the reply of the agent.
    ///
    /// # Errors
    /// The failure of the turn; `RUNTIME` if the gateway could not be started.
    pub(super) async fn run(&self, questions: &mut Questions) -> Result<String, CliError> {
        let client = GatewayClient::new(self.state_dir).until(Some(Instant::now() + STATUS_WAIT));
        let is_running = async {
            match client.is_served().await {
                true => client.get::<Value>("/v1/status").await.map(|_| true),
                false => Ok(false),
            }
        };
        match questions.wait(is_running).await? {
            Ok(true) => Ok(questions.wait(self.turn()).await??),
            Ok(false) => {
                // The end of `up` would end the agents of that supervisor.
                if UnixStream::connect(recorded_socket(self.state_dir)).await.is_ok() {
                    let why = "its supervisor runs without a gateway: start the gateway, then run `acp-gateway agents test`";
                    return Err(untested(why).into());
                }
                let mut gateway =
                    UpChild::start(&mut self.up()).map_err(|failure| untested(&failure.message))?;
                let turn = async {
                    gateway.wait_until_ready().await.map_err(|failure| untested(&failure.message))?;
                    self.turn().await
                };
                let replied = questions.wait(turn).await;
                // After Ctrl-C too: the gateway ends its supervisor and the agent.
                let ended = gateway.end().await.map_err(|failure| untested(&failure.message));
                let reply = replied??;
                ended?;
                Ok(reply)
            }
            Err(failure) => Err(failure.into()),
        }
    }

    fn verb(&self, args: &[&str]) -> Command {
        let mut command = Command::new(exe());
        command.args(args).arg("--json").arg("--state-dir").arg(self.state_dir);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).kill_on_drop(true);
        // A group of its own: Ctrl-C reaches this process, which then ends the others in order.
        command.process_group(0);
        command
    }

    /// Builds the command that starts gateway and supervisor, and ends both if this process is killed.
    fn up(&self) -> Command {
        let mut up = self.verb(&["up"]);
        up.arg("--config").arg(self.config).arg("--parent").arg(std::process::id().to_string());
        up.kill_on_drop(false);
        up
    }

    async fn turn(&self) -> Result<String, Failure> {
        let Answers { cwd, agent, .. } = self.answers;
        let spawn =
            ["sessions", "spawn", "--agent", agent.as_str(), "--cwd", cwd, "--permission", "deny-all"];
        let spawned = self.lines(&spawn).await?;
        let key = spawned.iter().find_map(|line| line["session_key"].as_str());
        let key = key.ok_or_else(|| untested("the gateway named no session"))?.to_owned();
        let turn = ["prompt", &key, PROMPT, "--timeout", TURN_S, "--non-interactive"];
        let replied = self.lines(&turn).await;
        let deleted = self.lines(&["sessions", "delete", &key, "--reason", "test by init"]).await;
        let text: String = replied?.iter().filter_map(message_text).collect();
        deleted?;
        match text.trim() {
            "" => Err(untested("the agent ended its turn without a text")),
            text => Ok(text.chars().take(REPLY_CHARS_MAX).collect()),
        }
    }

    /// Runs a verb and returns its lines.
    async fn lines(&self, args: &[&str]) -> Result<Vec<Value>, Failure> {
        let output = self.verb(args).output().await.map_err(|error| untested(&error.to_string()))?;
        let text = String::from_utf8_lossy(&output.stdout);
        let lines: Vec<Value> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        if output.status.success() {
            return Ok(lines);
        }
        let message = lines.iter().rev().find_map(|line| line["message"].as_str());
        Err(untested(message.unwrap_or("the turn failed")))
    }
}

/// Returns the text of a line with a part of the reply.
fn message_text(line: &Value) -> Option<&str> {
    if line["type"] != "text_delta" || line["stream"] != "output" {
        return None;
    }
    line["text"].as_str()
}
