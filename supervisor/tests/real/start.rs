//! Steps that most tests begin or end with: a host with its gateway, a lease that runs, the end of a lease.

use crate::common::{Client, DEADLINE, DEFAULTS, Host, Identity, eventually, kill, marked, script};
use acp_shared::conn::ConnError;
use acp_shared::ids::LeaseId;
use acp_shared::protocol::{LeaseInfo, LeaseState, Refusal, Reply, Request, Spawn, Tail};
use rustix::process::Signal;
use std::process::Command;
use std::time::Instant;

/// Ignores SIGTERM and end of file, and so does a grandchild in a session of its own.
pub(crate) const STUBBORN: &str = "trap '' TERM; setsid sh -c 'trap \"\" TERM; while :; do sleep 1; done' & echo up; while :; do sleep 1; done";

/// Makes tests of functions that take a rung: on the best one there is under the name of the test, and on the others.
macro_rules! on_each_rung {
    ($(#[tokio::test] async fn $test:ident = $name:ident,)+) => {
        $(#[tokio::test] async fn $test() { $name("auto").await; })+
        $crate::common::on_lower_rungs! { $($name,)+ }
    };
}
pub(crate) use on_each_rung;

impl Host {
    /// A supervisor with defaults, and the connection of a gateway.
    pub(crate) async fn with_gateway() -> (Self, Client) {
        Self::serving(DEFAULTS).await
    }

    /// The same with this configuration.
    pub(crate) async fn serving(config: &str) -> (Self, Client) {
        let host = Self::with_config(config);
        let gateway = host.gateway().connect().await;
        (host, gateway)
    }

    /// The same on this rung, where this machine has it.
    pub(crate) async fn serving_on(rung: &str) -> Option<(Self, Client)> {
        let host = Self::on(rung)?;
        let gateway = host.gateway().connect().await;
        Some((host, gateway))
    }

    /// A command of the admin CLI for this supervisor.
    pub(crate) fn cli_command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_acp-supervisor"));
        command.args(args).arg("--state-dir").arg(self.state_dir());
        if self.before.is_some() {
            command.arg("--socket").arg(self.socket());
        }
        command
    }

    /// A gateway of its own that can connect again, and its connection.
    pub(crate) async fn connect_gateway(&self) -> (Identity, Client) {
        let identity = self.gateway();
        let gateway = identity.connect().await;
        (identity, gateway)
    }

    /// A supervisor with defaults and [`Host::connect_gateway`].
    pub(crate) async fn with_identity() -> (Self, Identity, Client) {
        Self::serving_identity(DEFAULTS).await
    }

    /// The same with this configuration.
    pub(crate) async fn serving_identity(config: &str) -> (Self, Identity, Client) {
        let host = Self::with_config(config);
        let (identity, gateway) = host.connect_gateway().await;
        (host, identity, gateway)
    }

    /// SIGKILL, and the next supervisor on the same state directory.
    pub(crate) fn restart_after_crash(&mut self) {
        self.crash();
        self.start();
    }

    /// SIGKILL to the supervisor while a wrapper is held still, and then to that: nobody has cleaned up.
    pub(crate) fn crash_with_wrapper(&mut self, info: &LeaseInfo) {
        let wrapper = info.wrapper_pid.unwrap();
        kill(wrapper, Signal::STOP);
        self.crash();
        kill(wrapper, Signal::KILL);
    }

    /// As [`Host::launch`], of a supervisor that must become ready.
    pub(crate) fn launch_ready(&mut self, command: Command) -> serde_json::Value {
        let ready = self.launch(command);
        assert_eq!(ready["event"], "ready", "{ready}");
        ready
    }

    /// The report of `leases verify` with this verdict.
    pub(crate) fn verified(&self, lease_id: LeaseId, verdict: &str) -> serde_json::Value {
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

    /// Spawns several leases, one after another.
    pub(crate) async fn spawn_all(&mut self, specs: impl IntoIterator<Item = &Spawn>) {
        for spec in specs {
            self.spawn(spec).await;
        }
    }

    /// Asks for several leases at once and returns the numbers of the requests.
    pub(crate) async fn send_spawns(&mut self, specs: &[Spawn]) -> Vec<u64> {
        let mut sent = Vec::new();
        for spec in specs {
            sent.push(self.send(Request::Spawn(spec.clone())).await);
        }
        sent
    }

    /// The same as [`Client::start`], with what the supervisor answered.
    pub(crate) async fn start_known(&mut self, spec: Spawn) -> (Spawn, LeaseInfo) {
        let info = self.spawn(&spec).await;
        (spec, info)
    }

    /// The same as [`Client::start`], attached from its first byte on.
    pub(crate) async fn start_attached(&mut self, spec: Spawn) -> Spawn {
        self.spawn(&spec).await;
        self.attach(spec.lease_id, 0).await;
        spec
    }

    /// The last bytes that a terminal printed.
    pub(crate) async fn tail(&mut self, lease_id: LeaseId) -> Tail {
        match self.call(Request::Tail { lease_id }).await.unwrap() {
            Reply::Tail(tail) => tail,
            other => panic!("{other:?}"),
        }
    }

    /// Spawns [`STUBBORN`] and waits for its grandchild.
    pub(crate) async fn spawn_stubborn(&mut self) -> (Spawn, LeaseInfo) {
        let (spec, info) = self.start_known(script(STUBBORN)).await;
        eventually("the grandchild is there", || marked(spec.lease_id).len() >= 4);
        (spec, info)
    }

    /// Waits until every lease of the gateway has ended.
    pub(crate) async fn all_ended(&mut self) {
        let until = Instant::now() + 2 * DEADLINE;
        while self.leases().await.iter().any(|lease| !lease.state.is_ended()) {
            assert!(Instant::now() < until, "{:?}", self.leases().await);
        }
    }

    /// Closes a lease and waits until it is closed.
    pub(crate) async fn end(&mut self, lease_id: LeaseId) {
        self.close(lease_id).await;
        self.state(lease_id, LeaseState::Closed).await;
    }
}

/// Everything that a gateway may ask about a lease that it has.
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

/// Waits until nothing runs of several leases.
pub(crate) fn await_gone(specs: &[Spawn]) {
    for spec in specs {
        eventually("no process of the tree runs", || marked(spec.lease_id).is_empty());
    }
}

/// How a connection was refused; it must have been.
#[track_caller]
pub(crate) fn refused<T>(result: Result<T, ConnError>) -> Refusal {
    match result.map(drop) {
        Err(ConnError::Refused(refusal)) => refusal,
        other => panic!("{other:?}"),
    }
}
