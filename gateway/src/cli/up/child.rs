//! An `up` that another command starts: for `up --detach`, and for a test of an agent by `init`.

use crate::cli::inside;
use acp_core::api::ErrorBody;
use acp_core::failure::Failure;
use acp_shared::codes::Code;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde_json::Value;
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};

/// Deadline for the ready line.
const READY_WAIT: Duration = Duration::from_secs(60);
/// Deadline for the end: the gateway, then its supervisor with all agents.
const END_WAIT: Duration = Duration::from_secs(90);

/// Started `up`.
#[derive(Debug)]
pub(crate) struct UpChild(Child);

impl UpChild {
    /// Starts `up --json`, whose standard output is read.
    ///
    /// # Errors
    /// `RUNTIME`
    pub(crate) fn start(command: &mut Command) -> Result<Self, Failure> {
        let spawned = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
        spawned.map(Self).map_err(|error| inside("cannot start the gateway", &error))
    }

    /// Waits for the ready line, and returns it.
    ///
    /// # Errors
    /// The failure that `up` reports; `TIMEOUT`; `GATEWAY_UNAVAILABLE` if it ends without a report.
    pub(crate) async fn wait_until_ready(&mut self) -> Result<Value, Failure> {
        let ended =
            || Failure::new(Code::GatewayUnavailable, "the gateway ended during its start").origin("client");
        let stdout = self.0.stdout.take().ok_or_else(ended)?;
        let mut lines = BufReader::new(stdout).lines();
        let line = match tokio::time::timeout(READY_WAIT, lines.next_line()).await {
            Ok(Ok(Some(line))) => line,
            Ok(_) => return Err(ended()),
            Err(_) => {
                let text = format!("the gateway was not ready within {} s", READY_WAIT.as_secs());
                return Err(Failure::new(Code::Timeout, text).origin("client"));
            }
        };
        if let Ok(body) = serde_json::from_str::<ErrorBody>(&line) {
            return Err(body.failure);
        }
        let line: Value = serde_json::from_str(&line).unwrap_or_default();
        if line["event"] != "ready" {
            return Err(ended());
        }
        // Further output must not block the gateway.
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        Ok(line)
    }

    /// Ends the gateway, its supervisor and all agents.
    ///
    /// # Errors
    /// `TIMEOUT`; `RUNTIME` if it cannot be signalled.
    pub(crate) async fn end(&mut self) -> Result<(), Failure> {
        let pid = self.0.id().and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw);
        // The child is not reaped yet, so the pid is its own.
        if let Some(pid) = pid {
            let signalled =
                pidfd_open(pid, PidfdFlags::empty()).and_then(|it| pidfd_send_signal(it, Signal::TERM));
            match signalled {
                Ok(()) | Err(rustix::io::Errno::SRCH) => {}
                Err(error) => return Err(inside("cannot end the gateway", &error)),
            }
        }
        match tokio::time::timeout(END_WAIT, self.0.wait()).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(inside("cannot wait for the gateway", &error)),
            Err(_) => {
                let text = format!("the gateway did not end within {} s", END_WAIT.as_secs());
                Err(Failure::new(Code::Timeout, text).origin("client"))
            }
        }
    }
}
