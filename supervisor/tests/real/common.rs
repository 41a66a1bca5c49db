//! A supervisor process in its own directory, and clients of its protocol.

pub(crate) use crate::probe::{is_possible, report};
use crate::test_cgroup::TestGroup;
use acp_shared::conn::{self, Conn, ConnError};
use acp_shared::ids::{GatewayInstanceId, LeaseId, SessionKey};
use acp_shared::launch::{ENV_LEASE_ID, ExitStatus};
use acp_shared::protocol::{
    Attached, Graces, Hello, Home, LeaseInfo, LeaseKind, LeaseState, Notice, Refusal, RefusalCode, Reply,
    Request, Role, Spawn, ToClient, ToSupervisor, VERSION_MIN, Welcome,
};
use acp_shared::redact::Secret;
pub(crate) use acp_testkit::processes::is_alive;
use acp_testkit::processes::{KillOnDrop, all_pids, has_env, has_stopped};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::collections::VecDeque;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Makes tests for the lower containment levels from functions that take a level.
macro_rules! at_lower_levels {
    ($(#[tokio::test] async fn $test:ident = $check:ident,)+) => {
        mod r2 {
            $(#[tokio::test] async fn $test() { super::$check("R2").await; })+
        }
        mod r3 {
            $(#[tokio::test] async fn $test() { super::$check("R3").await; })+
        }
    };
}
pub(crate) use at_lower_levels;

/// Maximum wait for any state; the machine may be busy.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(30);

/// Short graces.
pub(crate) const SHORT_GRACES: Graces = Graces { eof_ms: 300, term_ms: 400, kill_ms: 5_000 };

/// Polls until a condition holds.
pub(crate) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + TIMEOUT;
    while !holds() {
        assert!(Instant::now() < until, "timeout after {TIMEOUT:?}: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Path of the wrapper; builds it if only this package was built.
pub(crate) fn wrapper() -> &'static Path {
    static WRAPPER: OnceLock<PathBuf> = OnceLock::new();
    WRAPPER.get_or_init(|| program("acp-wrapper", "acp-wrapper"))
}

/// Path of another package's program in the build directory.
pub(crate) fn program(package: &str, name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_BIN_EXE_acp-supervisor")).with_file_name(name);
    if !path.exists() {
        let built = Command::new(env!("CARGO"))
            .args(["build", "-q", "-p", package, "--bin", name])
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .status()
            .unwrap();
        assert!(built.success() && path.exists(), "cannot build {name} at {}", path.display());
    }
    path
}

/// Running processes whose environment names this lease.
pub(crate) fn pids_of(lease_id: LeaseId) -> Vec<i32> {
    let is_marked = |pid: &i32| has_env(*pid, ENV_LEASE_ID, &lease_id.to_string()) && is_alive(*pid);
    all_pids().into_iter().filter(is_marked).collect()
}

/// Sends a signal to a process of the test; returns after SIGSTOP when no thread of the process runs any more.
pub(crate) fn kill(pid: i32, signal: Signal) {
    let pidfd = pidfd_open(Pid::from_raw(pid).unwrap(), PidfdFlags::empty()).unwrap();
    assert!(is_alive(pid));
    pidfd_send_signal(&pidfd, signal).unwrap();
    if signal == Signal::STOP {
        eventually("all threads are stopped", || has_stopped(pid));
    }
}

/// A supervisor process; dropping the value kills it and its trees.
pub(crate) struct Host {
    /// First field: dropped before directory and cgroup.
    child: Option<KillOnDrop>,
    pub(crate) dir: tempfile::TempDir,
    pub(crate) config: String,
    /// Parent cgroup of its leases, if the machine allows one.
    pub(crate) group: Option<TestGroup>,
    /// Shell commands that run before the supervisor in its own mount namespace.
    pub(crate) mount_script: Option<String>,
    pub(crate) wrapper: Option<PathBuf>,
    /// Other users can reach its socket; its log is kept.
    public: bool,
}

/// Configuration of most tests.
pub(crate) const DEFAULTS: &str = "reap_term_ms = 300";

/// Configuration without crash limits.
const NO_CRASH_LIMITS: &str = "crash_backoff_ms = 0\ncrashes_max = 0\n";

impl Host {
    pub(crate) fn new() -> Self {
        Self::with_config(DEFAULTS)
    }

    pub(crate) fn with_config(config: &str) -> Self {
        let mut host = Self::prepare(config);
        host.start();
        host
    }

    /// Starts a supervisor with this containment level. Returns `None` and prints the reason if the machine lacks it.
    pub(crate) fn at_level(rung: &str) -> Option<Self> {
        let mut host = Self::prepare(&format!("{NO_CRASH_LIMITS}reap_term_ms = 300\nrung = \"{rung}\""));
        if rung == "R1" && host.group.is_none() {
            return None;
        }
        host.start();
        assert!(rung == "auto" || host.json(&["status"])["rung"] == rung);
        Some(host)
    }

    /// Prepares a supervisor without starting it.
    pub(crate) fn prepare(config: &str) -> Self {
        let group = TestGroup::new();
        let root =
            group.as_ref().map(|group| format!("cgroup_root = {:?}\n", group.dir())).unwrap_or_default();
        let (dir, config) = (tempfile::tempdir().unwrap(), format!("{root}{config}"));
        Self { child: None, dir, config, group, mount_script: None, wrapper: None, public: false }
    }

    /// Starts a supervisor that other users can reach.
    pub(crate) fn public(config: &str) -> Self {
        let mut host = Self::prepare(config);
        host.public = true;
        for path in [host.dir.path().to_owned(), host.dir.path().join("pub")] {
            std::fs::create_dir_all(&path).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        }
        std::fs::copy(env!("CARGO_BIN_EXE_acp-supervisor"), host.program()).unwrap();
        std::fs::set_permissions(host.program(), std::fs::Permissions::from_mode(0o755)).unwrap();
        host.start();
        host
    }

    /// The supervisor's program, or a copy of it that other users can run.
    pub(crate) fn program(&self) -> PathBuf {
        let built = PathBuf::from(env!("CARGO_BIN_EXE_acp-supervisor"));
        if self.public { self.dir.path().join("pub/acp-supervisor") } else { built }
    }

    /// Its log so far.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap()
    }

    /// Secret of its state directory, inside its mount namespace if it has one.
    fn secret(&self) -> PathBuf {
        let path = self.state_dir().join("secret");
        let seen = || PathBuf::from(format!("/proc/{}/root{}", self.pid(), path.display()));
        if self.mount_script.is_some() { seen() } else { path }
    }

    pub(crate) fn state_dir(&self) -> PathBuf {
        self.dir.path().join("state")
    }

    pub(crate) fn socket(&self) -> PathBuf {
        if self.public {
            return self.dir.path().join("pub/s.sock");
        }
        // Mounts of the supervisor's namespace are not visible to the test.
        let dir = if self.mount_script.is_some() { self.dir.path().to_owned() } else { self.state_dir() };
        dir.join("supervisor.sock")
    }

    pub(crate) fn command(&self) -> Command {
        let config = self.dir.path().join("supervisor.toml");
        std::fs::write(&config, &self.config).unwrap();
        let program = self.program();
        let mut command =
            Command::new(if self.mount_script.is_some() { Path::new("unshare") } else { &program });
        if let Some(before) = &self.mount_script {
            command.args(["-m", "sh", "-ec", &format!("{before}; exec \"$@\""), "sh"]).arg(&program);
        }
        command.arg("serve").arg("--json").arg("--state-dir").arg(self.state_dir());
        command.arg("--socket").arg(self.socket());
        command.arg("--wrapper").arg(self.wrapper.as_deref().unwrap_or_else(|| wrapper()));
        command.arg("--config").arg(config);
        command.env("RUST_LOG", std::env::var("RUST_LOG").unwrap_or_else(|_| "warn".into()));
        if self.public {
            let log = std::fs::File::create(self.dir.path().join("log")).unwrap();
            command.env("RUST_LOG", "info").stderr(log);
        }
        command
    }

    /// Starts the supervisor with a log that [`Host::log`] reads.
    pub(crate) fn start_logged(&mut self) {
        let mut command = self.command();
        let log = std::fs::File::options().create(true).append(true).open(self.dir.path().join("log"));
        command.env("RUST_LOG", "info").stderr(log.unwrap());
        self.start_as(command);
    }

    /// Starts the supervisor and waits until it is ready.
    pub(crate) fn start(&mut self) {
        self.start_as(self.command());
    }

    /// Starts the supervisor by this command and waits until it is ready.
    pub(crate) fn start_as(&mut self, command: Command) {
        let ready = self.launch(command);
        assert_eq!(ready["event"], "ready", "{ready}");
        assert_eq!(ready["pid"], self.pid());
        assert_eq!(ready["socket"], self.socket().canonicalize().unwrap().to_str().unwrap());
    }

    /// Starts a supervisor by this command and returns the first line of its output; null without output.
    pub(crate) fn launch(&mut self, mut command: Command) -> serde_json::Value {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let stdout = child.stdout.take().unwrap();
        self.adopt(child);
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_default()
    }

    /// Takes over a process that was started otherwise.
    pub(crate) fn adopt(&mut self, child: Child) {
        self.child = Some(KillOnDrop(child));
    }

    pub(crate) fn pid(&self) -> i32 {
        self.child.as_ref().unwrap().pid()
    }

    /// Kills the supervisor with SIGKILL.
    pub(crate) fn crash(&mut self) {
        drop(self.child.take().unwrap());
    }

    /// Sends SIGTERM and returns the exit code.
    pub(crate) fn stop(&mut self) -> Option<i32> {
        kill(self.pid(), Signal::TERM);
        self.wait()
    }

    pub(crate) fn wait(&mut self) -> Option<i32> {
        let mut child = self.child.take().unwrap();
        let mut code = None;
        eventually("the supervisor ends", || {
            code = child.try_wait().unwrap();
            code.is_some()
        });
        code.unwrap().code()
    }

    /// Runs an admin command.
    pub(crate) fn cli(&self, args: &[&str]) -> Output {
        self.cli_command(args).output().unwrap()
    }

    /// Runs an admin command with `--json` and returns the data in the envelope.
    pub(crate) fn json(&self, args: &[&str]) -> serde_json::Value {
        let output = self.cli(&[args, &["--json"]].concat());
        assert!(output.status.success(), "{args:?}: {output:?}");
        let mut envelope: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(envelope["schema"], 1, "{envelope}");
        envelope["data"].take()
    }

    /// Warnings in `status`.
    pub(crate) fn warnings(&self) -> String {
        self.json(&["status"])["warnings"].to_string()
    }

    /// Identity of a new gateway.
    pub(crate) fn gateway(&self) -> Identity {
        Identity {
            socket: self.socket(),
            secret: self.secret(),
            id: GatewayInstanceId::mint(),
            epoch: 1,
            home: Home { machine_id: "m".into(), dev: 1, ino: 2 },
        }
    }
}

/// One gateway installation.
#[derive(Debug, Clone)]
pub(crate) struct Identity {
    pub(crate) socket: PathBuf,
    pub(crate) secret: PathBuf,
    pub(crate) id: GatewayInstanceId,
    pub(crate) epoch: u64,
    pub(crate) home: Home,
}

impl Identity {
    /// Hello of a gateway of protocol 1.
    pub(crate) fn hello(&self) -> Hello {
        Hello {
            version_min: VERSION_MIN,
            version_max: VERSION_MIN,
            features: vec![],
            role: Role::Gateway { instance_id: self.id, epoch: self.epoch, home: self.home.clone() },
            secret: std::fs::read_to_string(&self.secret)
                .ok()
                .map(|text| Secret::new(text.trim().to_owned())),
        }
    }

    pub(crate) async fn try_connect(&self) -> Result<Client, ConnError> {
        let (conn, welcome) = conn::open(&self.socket, self.hello(), TIMEOUT).await?;
        Ok(Client::new(conn, welcome, None))
    }

    pub(crate) async fn connect(&self) -> Client {
        // The supervisor may not have noticed the end of an earlier connection.
        loop {
            match self.try_connect().await {
                Err(ConnError::Refused(refusal)) if refusal.code == RefusalCode::InstanceBusy => {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                other => return other.unwrap(),
            }
        }
    }
}

/// An open connection of a gateway.
pub(crate) struct Client {
    pub(crate) conn: Conn<ToClient, ToSupervisor>,
    pub(crate) welcome: Welcome,
    /// Epoch sent with acting requests (protocol 2).
    pub(crate) epoch: Option<u64>,
    next: u64,
    pub(crate) notices: VecDeque<Notice>,
    replies: VecDeque<(u64, Result<Reply, Refusal>)>,
}

impl Client {
    pub(crate) fn new(conn: Conn<ToClient, ToSupervisor>, welcome: Welcome, epoch: Option<u64>) -> Self {
        Self { conn, welcome, epoch, next: 1, notices: VecDeque::new(), replies: VecDeque::new() }
    }

    pub(crate) async fn send(&mut self, body: Request) -> u64 {
        self.try_send(body).await.expect("the connection is open")
    }

    /// Sends a request and returns its id; `None` if the connection has ended.
    pub(crate) async fn try_send(&mut self, body: Request) -> Option<u64> {
        let id = self.next;
        self.next += 1;
        let message = match self.epoch {
            Some(epoch) if body.changes_lease() => ToSupervisor::Act { id, epoch, body },
            Some(_) | None => ToSupervisor::Request { id, body },
        };
        self.conn.sender.send(&message).await.ok().map(|()| id)
    }

    pub(crate) async fn reply(&mut self, id: u64) -> Result<Reply, Refusal> {
        self.try_reply(id).await.expect("the connection is open")
    }

    /// Waits for the reply to a request; `None` if the connection ends first.
    async fn try_reply(&mut self, id: u64) -> Option<Result<Reply, Refusal>> {
        loop {
            if let Some(at) = self.replies.iter().position(|(got, _)| *got == id) {
                return self.replies.remove(at).map(|(_, result)| result);
            }
            self.try_recv().await?;
        }
    }

    pub(crate) async fn call(&mut self, body: Request) -> Result<Reply, Refusal> {
        let id = self.send(body).await;
        self.reply(id).await
    }

    pub(crate) async fn notice(&mut self) -> Notice {
        self.try_notice().await.expect("the connection is open")
    }

    /// Waits for the next notice; `None` if the connection has ended.
    pub(crate) async fn try_notice(&mut self) -> Option<Notice> {
        loop {
            if let Some(notice) = self.notices.pop_front() {
                return Some(notice);
            }
            self.try_recv().await?;
        }
    }

    /// Receives one message; `None` if the connection has ended.
    async fn try_recv(&mut self) -> Option<()> {
        let message =
            tokio::time::timeout(TIMEOUT, self.conn.receiver.recv()).await.expect("timeout: no message");
        match message {
            Ok(Some(ToClient::Reply { id, result })) => self.replies.push_back((id, result)),
            Ok(Some(ToClient::Notice(notice))) => self.notices.push_back(notice),
            Ok(Some(ToClient::Welcome(_) | ToClient::Refused(_) | ToClient::RolledBack(_)) | None)
            | Err(_) => return None,
        }
        Some(())
    }

    /// Sends a request and waits for its reply; `None` if the connection ends first.
    pub(crate) async fn try_call(&mut self, body: Request) -> Option<Result<Reply, Refusal>> {
        let id = self.try_send(body).await?;
        self.try_reply(id).await
    }

    pub(crate) async fn spawn(&mut self, spec: &Spawn) -> LeaseInfo {
        match self.call(Request::Spawn(spec.clone())).await.unwrap() {
            Reply::Spawned(info) => info,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) async fn attach(&mut self, lease_id: LeaseId, from_offset: u64) -> Attached {
        match self.call(Request::Attach { lease_id, from_offset }).await.unwrap() {
            Reply::Attached(attached) => attached,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) async fn input(
        &mut self,
        lease_id: LeaseId,
        seq: u64,
        bytes: &[u8],
    ) -> Result<Reply, Refusal> {
        self.call(Request::Input { lease_id, seq, bytes: bytes.to_vec() }).await
    }

    pub(crate) async fn ack(&mut self, lease_id: LeaseId, offset: u64) {
        assert_eq!(self.call(Request::Ack { lease_id, offset }).await, Ok(Reply::Done));
    }

    pub(crate) async fn close(&mut self, lease_id: LeaseId) {
        let reply = self.call(Request::CloseLease { lease_id, reason: "test".into() }).await;
        assert!(matches!(reply, Ok(Reply::Closing { .. })), "{reply:?}");
    }

    /// Waits for the next output of a lease and drops other notices.
    pub(crate) async fn output(&mut self, lease: LeaseId) -> (u64, Vec<u8>) {
        loop {
            if let Notice::Output { lease_id, offset, bytes } = self.notice().await
                && lease_id == lease
            {
                return (offset, bytes);
            }
        }
    }

    /// Reads `count` bytes of output from `offset`; asserts that none is missing or repeated.
    pub(crate) async fn read(&mut self, lease: LeaseId, offset: u64, count: usize) -> Vec<u8> {
        let mut all = Vec::new();
        while all.len() < count {
            let (at, bytes) = self.output(lease).await;
            assert_eq!(at, offset + all.len() as u64, "output out of order");
            all.extend(bytes);
        }
        all
    }

    /// Reads and acknowledges output piece by piece; asserts that no piece exceeds the credit.
    pub(crate) async fn read_and_ack(&mut self, lease: LeaseId, offset: u64, count: usize) -> Vec<u8> {
        let mut all = Vec::new();
        while all.len() < count {
            let (at, bytes) = self.output(lease).await;
            assert_eq!(at, offset + all.len() as u64, "output out of order");
            assert!(bytes.len() as u64 <= self.welcome.credit_bytes, "piece larger than the credit");
            all.extend(bytes);
            self.ack(lease, offset + all.len() as u64).await;
        }
        all
    }

    /// Reads the output of a lease until its adapter has exited.
    pub(crate) async fn read_to_exit(&mut self, lease: LeaseId) -> (ExitStatus, String) {
        let mut all = Vec::new();
        loop {
            match self.notice().await {
                Notice::Output { lease_id, bytes, .. } if lease_id == lease => all.extend(bytes),
                Notice::Exited { lease_id, status, .. } if lease_id == lease => {
                    return (status, String::from_utf8(all).unwrap());
                }
                Notice::Output { .. } | Notice::Exited { .. } | Notice::LeaseChanged { .. } => {}
            }
        }
    }

    /// Waits for the exit notice of a lease.
    pub(crate) async fn await_exit(&mut self, lease: LeaseId) -> (ExitStatus, u64) {
        loop {
            if let Notice::Exited { lease_id, status, end_offset, stderr_tail, .. } = self.notice().await
                && lease_id == lease
            {
                assert_eq!(stderr_tail, "", "standard error is sent on request only");
                return (status, end_offset);
            }
        }
    }

    /// Waits until a lease has this state and returns the reason.
    pub(crate) async fn state(&mut self, lease: LeaseId, want: LeaseState) -> String {
        loop {
            if let Notice::LeaseChanged { lease_id, state, reason } = self.notice().await
                && lease_id == lease
                && state == want
            {
                return reason;
            }
        }
    }

    pub(crate) async fn leases(&mut self) -> Vec<LeaseInfo> {
        match self.call(Request::ListLeases { detail: false }).await.unwrap() {
            Reply::Leases(leases) => leases,
            other => panic!("{other:?}"),
        }
    }
}

/// Spawn request of an agent that runs `argv` in `/`.
pub(crate) fn agent(argv: &[&str]) -> Spawn {
    Spawn {
        lease_id: LeaseId::mint(),
        session_key: SessionKey::parse(&format!("agent:test:acp:{}", LeaseId::mint())).unwrap(),
        kind: LeaseKind::Agent,
        argv: argv.iter().map(|s| (*s).to_owned()).collect(),
        env: vec![("PATH".into(), std::env::var("PATH").unwrap())],
        cwd: "/".into(),
        roots: Vec::new(),
        graces: SHORT_GRACES,
    }
}

/// Spawn request of an agent that runs a shell script.
pub(crate) fn script(text: &str) -> Spawn {
    agent(&["/bin/sh", "-c", text])
}

/// Spawn request of an agent's terminal that runs a shell script.
pub(crate) fn terminal(parent: &Spawn, text: &str, output_bytes_max: u64) -> Spawn {
    let kind = LeaseKind::Terminal { parent_lease_id: parent.lease_id, output_bytes_max };
    Spawn { kind, session_key: parent.session_key.clone(), ..script(text) }
}
