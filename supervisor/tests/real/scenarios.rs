//! Common scenarios: a host with a gateway, a running lease, the end of a lease.

use crate::common::{Client, DEFAULTS, Host, Identity, TIMEOUT, eventually, kill, pids_of, script};
use acp_shared::conn::ConnError;
use acp_shared::ids::LeaseId;
use acp_shared::protocol::{LeaseInfo, LeaseState, Refusal, Reply, Request, Spawn, Tail};
use rustix::process::Signal;
use std::process::Command;
use std::time::Instant;

/// Ignores SIGTERM and EOF, with a grandchild that does so in its own session.
pub(crate) const UNRESPONSIVE: &str = "trap '' TERM; setsid sh -c 'trap \"\" TERM; while :; do sleep 1; done' & echo up; while :; do sleep 1; done";

/// Waits until a tree of [`UNRESPONSIVE`] is complete: wrapper, two shells, and the `sleep` of each. A shell that has
/// not written yet would be ended by SIGPIPE when its supervisor dies.
pub(crate) fn await_unresponsive(lease_id: LeaseId) {
    eventually("both shells run their loops", || pids_of(lease_id).len() >= 5);
}

/// Makes tests from functions that take a level: on the best level under the test's name, and on the lower ones.
macro_rules! at_each_level {
    ($(#[tokio::test] async fn $test:ident = $check:ident,)+) => {
        $(#[tokio::test] async fn $test() { $check("auto").await; })+
        $crate::common::at_lower_levels! { $(#[tokio::test] async fn $test = $check,)+ }
    };
}
pub(crate) use at_each_level;

impl Host {
    /// Starts a supervisor with defaults and connects a gateway.
    pub(crate) async fn with_gateway() -> (Self, Client) {
        Self::serving(DEFAULTS).await
    }

    /// Starts a supervisor with this configuration and connects a gateway.
    pub(crate) async fn serving(config: &str) -> (Self, Client) {
        let host = Self::with_config(config);
        let gateway = host.gateway().connect().await;
        (host, gateway)
    }

    /// Starts a supervisor on this level, if the machine has it, and connects a gateway.
    pub(crate) async fn serving_at_level(rung: &str) -> Option<(Self, Client)> {
        let host = Self::at_level(rung)?;
        let gateway = host.gateway().connect().await;
        Some((host, gateway))
    }

    /// Command of the admin CLI for this supervisor.
    pub(crate) fn cli_command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_acp-supervisor"));
        command.args(args).arg("--state-dir").arg(self.state_dir());
        if self.mount_script.is_some() {
            command.arg("--socket").arg(self.socket());
        }
        command
    }

    /// Connects a new gateway; its identity can connect again.
    pub(crate) async fn connect_gateway(&self) -> (Identity, Client) {
        let identity = self.gateway();
        let gateway = identity.connect().await;
        (identity, gateway)
    }

    /// Starts a supervisor with defaults and calls [`Host::connect_gateway`].
    pub(crate) async fn with_identity() -> (Self, Identity, Client) {
        Self::serving_identity(DEFAULTS).await
    }

    /// Starts a supervisor with this configuration and calls [`Host::connect_gateway`].
    pub(crate) async fn serving_identity(config: &str) -> (Self, Identity, Client) {
        let host = Self::with_config(config);
        let (identity, gateway) = host.connect_gateway().await;
        (host, identity, gateway)
    }

    /// Kills the supervisor and starts the next one on the same state directory.
    pub(crate) fn restart_after_crash(&mut self) {
        self.crash();
        self.start();
    }

    /// Kills the supervisor and then a stopped wrapper, so that nothing ends the tree.
    pub(crate) fn crash_with_wrapper(&mut self, info: &LeaseInfo) {
        let wrapper = info.wrapper_pid.unwrap();
        kill(wrapper, Signal::STOP);
        self.crash();
        kill(wrapper, Signal::KILL);
    }

    /// Like [`Host::launch`], and asserts that the supervisor is ready.
    pub(crate) fn launch_ready(&mut self, command: Command) -> serde_json::Value {
        let ready = self.launch(command);
        assert_eq!(ready["event"], "ready", "{ready}");
        ready
    }

    /// Runs `leases verify` and asserts the verdict.
    pub(crate) fn assert_verdict(&self, lease_id: LeaseId, verdict: &str) -> serde_json::Value {
        let report = self.json(&["leases", "verify", &lease_id.to_string()]);
        assert_eq!(report["verdict"], verdict, "{report}");
        report
    }
}

impl Client {
    /// Spawns a lease and returns its specification.
    pub(crate) async fn start(&mut self, spec: Spawn) -> Spawn {
        self.spawn(&spec).await;
        spec
    }

    /// Spawns leases one by one.
    pub(crate) async fn spawn_all(&mut self, specs: impl IntoIterator<Item = &Spawn>) {
        for spec in specs {
            self.spawn(spec).await;
        }
    }

    /// Sends spawn requests and returns their ids.
    pub(crate) async fn send_spawns(&mut self, specs: &[Spawn]) -> Vec<u64> {
        let mut sent = Vec::new();
        for spec in specs {
            sent.push(self.send(Request::Spawn(spec.clone())).await);
        }
        sent
    }

    /// Spawns a lease and returns its specification and the reply.
    pub(crate) async fn spawn_with_info(&mut self, spec: Spawn) -> (Spawn, LeaseInfo) {
        let info = self.spawn(&spec).await;
        (spec, info)
    }

    /// Spawns a lease and attaches to it from offset 0.
    pub(crate) async fn spawn_attached(&mut self, spec: Spawn) -> Spawn {
        self.spawn(&spec).await;
        self.attach(spec.lease_id, 0).await;
        spec
    }

    /// Requests the last output of a terminal.
    pub(crate) async fn tail(&mut self, lease_id: LeaseId) -> Tail {
        match self.call(Request::Tail { lease_id }).await.unwrap() {
            Reply::Tail(tail) => tail,
            other => panic!("{other:?}"),
        }
    }

    /// Spawns [`UNRESPONSIVE`] and waits for its whole tree.
    pub(crate) async fn spawn_unresponsive(&mut self) -> (Spawn, LeaseInfo) {
        let (spec, info) = self.spawn_with_info(script(UNRESPONSIVE)).await;
        await_unresponsive(spec.lease_id);
        (spec, info)
    }

    /// Waits until every lease of the gateway has ended.
    pub(crate) async fn await_all_ended(&mut self) {
        let until = Instant::now() + 2 * TIMEOUT;
        while self.leases().await.iter().any(|lease| !lease.state.is_ended()) {
            assert!(Instant::now() < until, "{:?}", self.leases().await);
        }
    }

    /// Closes a lease and waits until it is closed.
    pub(crate) async fn close_and_wait(&mut self, lease_id: LeaseId) {
        self.close(lease_id).await;
        self.state(lease_id, LeaseState::Closed).await;
    }
}

/// Every request about a single lease.
pub(crate) fn requests_about(lease_id: LeaseId) -> [Request; 7] {
    [
        Request::Attach { lease_id, from_offset: 0 },
        Request::Input { lease_id, seq: 1, bytes: b"x".to_vec() },
        Request::Ack { lease_id, offset: 0 },
        Request::Tail { lease_id },
        Request::CloseLease { lease_id, reason: "x".into() },
        Request::Release { lease_id },
        Request::Verify { lease_id },
    ]
}

/// Waits until no process of the leases runs.
pub(crate) fn await_gone(specs: &[Spawn]) {
    for spec in specs {
        eventually("no process of the tree runs", || pids_of(spec.lease_id).is_empty());
    }
}

/// Returns the refusal of a connection; panics without one.
#[track_caller]
pub(crate) fn refusal_of<T>(result: Result<T, ConnError>) -> Refusal {
    match result.map(drop) {
        Err(ConnError::Refused(refusal)) => refusal,
        other => panic!("{other:?}"),
    }
}
