//! Moves of sessions to other hosts: one agent for one session, on one host.

use super::{Manager, session_now};
use crate::runtime::hosts::Host;
use crate::supervisor::SupervisorClient;
use acp_core::actor::ActorCommand;
use acp_core::failure::Failure;
use acp_core::options::Setting;
use acp_core::timeouts::format_duration;
use acp_shared::codes::Code;
use acp_shared::ids::{IdempotencyKey, SessionKey};
use acp_shared::protocol::{LeaseInfo, LeaseState, Reply, Request};
use std::time::Duration;

/// Maximum time for the end of an agent's processes before its session is moved.
const GONE_WAIT: Duration = Duration::from_secs(30);
/// Interval of its checks.
const GONE_EVERY: Duration = Duration::from_millis(100);
/// Verdicts of a supervisor about a lost lease without a process.
const GONE: [&str; 2] = ["gone", "not_ours"];

impl Manager {
    /// Ends the agent of a session before it is moved to the host `to`, and waits until the supervisor of its present host has
    /// proved that the whole process tree is gone. If that host is away, its agents must have ended by its promise.
    ///
    /// # Errors
    /// As [`Manager::release`]; `USAGE` for an unknown host, or one without the agent's labels; `ACP_BACKEND_MISSING` if it does not
    /// have the session's backend; `ACP_BACKEND_UNAVAILABLE` if the present host does not answer; `TIMEOUT` if processes are left.
    pub(super) async fn prepare_move(&self, session: &SessionKey, to: &str) -> Result<(), Failure> {
        let row = self.row(session).await?;
        self.deps.hosts.check(to, &row.agent)?;
        self.deps.hosts.get(to).registry.require(&row.backend)?;
        if row.options.is_on(to) {
            return Ok(());
        }
        let from = self.deps.hosts.get(row.options.host_name());
        if let Some(outage) = from.supervisor.outage() {
            return self.check_promise(&from, &outage);
        }
        if row.lease_id.is_some() {
            self.release(session, "a move to another host".to_owned(), IdempotencyKey::mint()).await?;
        }
        tokio::time::timeout(GONE_WAIT, self.wait_until_gone(session, &from)).await.unwrap_or_else(|_| {
            let (host, seconds) = (&from.name, GONE_WAIT.as_secs());
            let text = format!(
                "The agent's processes on {host} have not ended within {seconds} s; the session stays there. Try again."
            );
            Err(Failure::new(Code::Timeout, text).detail("AGENT_RUNS").origin("gateway").retryable())
        })
    }

    /// Moves a session with shared directories to another host when its host is away and all agents there have ended by its
    /// promise. Its task then treats the agent as lost, as after a move by a person. Returns the new host; `None` if the session is
    /// no longer on that host, or the host is back.
    ///
    /// # Errors
    /// `ACP_BACKEND_UNAVAILABLE` if no other host is connected; as [`Manager::set`].
    pub(crate) async fn move_from_lost_host(
        &self,
        session: &SessionKey,
        lost: &str,
    ) -> Result<Option<String>, Failure> {
        let row = self.row(session).await?;
        let has_ended = self.deps.hosts.agents_end_in(lost, Duration::ZERO) == Some(Duration::ZERO);
        if !row.options.is_on(lost) || !has_ended {
            return Ok(None);
        }
        let Some(to) = self.deps.hosts.place_elsewhere(lost, &row.agent, &row.backend) else {
            let text = "No other host with the labels of the agent and the session's backend is connected.";
            return Err(host_away(text.to_owned()));
        };
        let command = ActorCommand::Set(Setting::Host(to.clone()));
        session_now(self.ask(session, command, None).await)?;
        Ok(Some(to))
    }

    /// Checks the promised end of the agents of a disconnected host. The session's task checks it again with the graces of its agent,
    /// and then treats the agent as lost.
    fn check_promise(&self, from: &Host, outage: &str) -> Result<(), Failure> {
        let when = match self.deps.hosts.agents_end_in(&from.name, Duration::ZERO) {
            Some(Duration::ZERO) => return Ok(()),
            Some(left) => {
                let minutes = left.as_secs().div_ceil(60);
                format!("Its agents end within {}: move the session then", format_duration(minutes * 60_000))
            }
            None => "Move the session when that host is back, or close it".to_owned(),
        };
        let text = format!("The agent's processes on {} cannot be ended: {outage}. {when}.", from.name);
        Err(host_away(text))
    }

    async fn wait_until_gone(&self, session: &SessionKey, from: &Host) -> Result<(), Failure> {
        while self.row(session).await?.lease_id.is_some() || has_processes(&from.supervisor, session).await? {
            tokio::time::sleep(GONE_EVERY).await;
        }
        Ok(())
    }
}

fn host_away(text: String) -> Failure {
    Failure::new(Code::BackendUnavailable, text).detail("HOST_AWAY").origin("gateway").retryable()
}

/// True if a host has a lease of the session whose processes are not proved gone.
async fn has_processes(supervisor: &SupervisorClient, session: &SessionKey) -> Result<bool, Failure> {
    let away =
        || Err(host_away("The host of the session stopped answering; the session stays there.".to_owned()));
    let Ok(Reply::Leases(leases)) = supervisor.call(Request::ListLeases { detail: false }).await else {
        return away();
    };
    for LeaseInfo { lease_id, state, .. } in
        leases.iter().filter(|lease| lease.session_key == *session).cloned()
    {
        match state {
            LeaseState::Closed => {}
            LeaseState::Lost => match supervisor.call(Request::Verify { lease_id }).await {
                Ok(Reply::Evidence(report)) if GONE.contains(&report.verdict.as_str()) => {}
                Ok(Reply::Evidence(_)) => return Ok(true),
                _ => return away(),
            },
            LeaseState::Reserved | LeaseState::Bound | LeaseState::Open | LeaseState::Closing => {
                return Ok(true);
            }
        }
    }
    Ok(false)
}
