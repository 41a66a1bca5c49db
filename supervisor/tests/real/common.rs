//! A supervisor process in a directory of its own, and clients that speak its protocol.

pub(crate) use crate::probe::{can, say};
use crate::rig_groups::TestGroup;
use acp_shared::conn::{self, Conn, ConnError};
use acp_shared::ids::{GatewayInstanceId, LeaseId, SessionKey};
use acp_shared::launch::{ENV_LEASE_ID, ExitStatus};
use acp_shared::protocol::{
    Attached, Graces, Hello, Home, LeaseInfo, LeaseKind, LeaseState, Notice, Refusal, RefusalCode, Reply,
    Request, Role, Spawn, ToClient, ToSupervisor, VERSION_MIN, Welcome,
};
use acp_shared::redact::Secret;
pub(crate) use acp_testkit::processes::is_alive as runs;
use acp_testkit::processes::{Killed, all_pids, has_env};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::collections::VecDeque;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Makes tests of functions that take a rung, for the rungs that are not the best one.
macro_rules! on_lower_rungs {
    ($($name:ident,)+) => {
        mod r2 {
            $(#[tokio::test] async fn $name() { super::$name("R2").await; })+
        }
        mod r3 {
            $(#[tokio::test] async fn $name() { super::$name("R3").await; })+
        }
    };
}
pub(crate) use on_lower_rungs;

/// How long anything may take: the machine may be busy.
pub(crate) const DEADLINE: Duration = Duration::from_secs(30);

/// Graces that make tests quick.
pub(crate) const QUICK: Graces = Graces { eof_ms: 300, term_ms: 400, kill_ms: 5_000 };

/// Waits until something holds.
pub(crate) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + DEADLINE;
    while !holds() {
        assert!(Instant::now() < until, "not within {DEADLINE:?}: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The wrapper beside the supervisor under test, built if this package was built alone.
pub(crate) fn wrapper() -> &'static Path {
    static WRAPPER: OnceLock<PathBuf> = OnceLock::new();
    WRAPPER.get_or_init(|| program("acp-wrapper", "acp-wrapper"))
}

/// A program of another package, beside the supervisor under test.
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

/// Every running process whose environment names this lease.
pub(crate) fn marked(lease_id: LeaseId) -> Vec<i32> {
    let is_marked = |pid: &i32| has_env(*pid, ENV_LEASE_ID, &lease_id.to_string()) && runs(*pid);
    all_pids().into_iter().filter(is_marked).collect()
}

/// Sends a signal to a process that the test knows to be its own.
pub(crate) fn kill(pid: i32, signal: Signal) {
    let pidfd = pidfd_open(Pid::from_raw(pid).unwrap(), PidfdFlags::empty()).unwrap();
    assert!(runs(pid));
    pidfd_send_signal(&pidfd, signal).unwrap();
}

/// A supervisor process. It is killed with the value, and its trees with it.
pub(crate) struct Host {
    /// The first field: it ends before its directory and its group do.
    child: Option<Killed>,
    pub(crate) dir: tempfile::TempDir,
    pub(crate) config: String,
    /// The group that its leases have their groups in, where this machine gives one.
    pub(crate) group: Option<TestGroup>,
    /// A shell line that is run in a mount namespace of its own before the supervisor, in place of it.
    pub(crate) before: Option<String>,
    /// Another wrapper.
    pub(crate) wrapper: Option<PathBuf>,
    /// Its socket lies where every user gets, and its log is kept.
    public: bool,
}

/// What most tests are content with.
pub(crate) const DEFAULTS: &str = "reap_term_ms = 300";

/// Agents of tests may crash as often as they like.
const PATIENT: &str = "crash_backoff_ms = 0\ncrashes_max = 0\n";

impl Host {
    pub(crate) fn new() -> Self {
        Self::with_config(DEFAULTS)
    }

    pub(crate) fn with_config(config: &str) -> Self {
        let mut host = Self::idle(config);
        host.start();
        host
    }

    /// One that holds its trees as this rung does. `None`, with the reason printed, when this machine has not got it.
    pub(crate) fn on(rung: &str) -> Option<Self> {
        let mut host = Self::idle(&format!("{PATIENT}reap_term_ms = 300\nrung = \"{rung}\""));
        if rung == "R1" && host.group.is_none() {
            return None;
        }
        host.start();
        assert!(rung == "auto" || host.json(&["status"])["rung"] == rung);
        Some(host)
    }

    /// One that does not run yet.
    pub(crate) fn idle(config: &str) -> Self {
        let group = TestGroup::new();
        let root =
            group.as_ref().map(|group| format!("cgroup_root = {:?}\n", group.dir())).unwrap_or_default();
        let (dir, config) = (tempfile::tempdir().unwrap(), format!("{root}{config}"));
        Self { child: None, dir, config, group, before: None, wrapper: None, public: false }
    }

    /// One that other users reach.
    pub(crate) fn public(config: &str) -> Self {
        let mut host = Self::idle(config);
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

    /// The supervisor's program: where other users reach the host, a copy that they can run.
    pub(crate) fn program(&self) -> PathBuf {
        let built = PathBuf::from(env!("CARGO_BIN_EXE_acp-supervisor"));
        if self.public { self.dir.path().join("pub/acp-supervisor") } else { built }
    }

    /// What it logged so far.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap()
    }

    /// The secret of its state directory, mounted for it alone or not.
    fn secret(&self) -> PathBuf {
        let path = self.state_dir().join("secret");
        let seen = || PathBuf::from(format!("/proc/{}/root{}", self.pid(), path.display()));
        if self.before.is_some() { seen() } else { path }
    }

    pub(crate) fn state_dir(&self) -> PathBuf {
        self.dir.path().join("state")
    }

    pub(crate) fn socket(&self) -> PathBuf {
        if self.public {
            return self.dir.path().join("pub/s.sock");
        }
        // What is mounted for the supervisor alone is not seen here.
        let dir = if self.before.is_some() { self.dir.path().to_owned() } else { self.state_dir() };
        dir.join("supervisor.sock")
    }

    pub(crate) fn command(&self) -> Command {
        let config = self.dir.path().join("supervisor.toml");
        std::fs::write(&config, &self.config).unwrap();
        let program = self.program();
        let mut command = Command::new(if self.before.is_some() { Path::new("unshare") } else { &program });
        if let Some(before) = &self.before {
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

    /// Starts the supervisor and waits until it says that it is ready.
    pub(crate) fn start(&mut self) {
        self.start_as(self.command());
    }

    /// The same, with a command that was changed before.
    pub(crate) fn start_as(&mut self, command: Command) {
        let ready = self.launch(command);
        assert_eq!(ready["event"], "ready", "{ready}");
        assert_eq!(ready["pid"], self.pid());
        assert_eq!(ready["socket"], self.socket().canonicalize().unwrap().to_str().unwrap());
    }

    /// Starts a supervisor by this command and returns its first line: that it is ready, or why it is not; null when
    /// it said nothing.
    pub(crate) fn launch(&mut self, mut command: Command) -> serde_json::Value {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let stdout = child.stdout.take().unwrap();
        self.hold(child);
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_default()
    }

    /// Takes a process that starts the supervisor in another way.
    pub(crate) fn hold(&mut self, child: Child) {
        self.child = Some(Killed(child));
    }

    pub(crate) fn pid(&self) -> i32 {
        self.child.as_ref().unwrap().pid()
    }

    /// SIGKILL, as a crash would be.
    pub(crate) fn crash(&mut self) {
        drop(self.child.take().unwrap());
    }

    /// SIGTERM, and the exit code.
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

    /// Runs an admin command with `--json`, and takes the data out of its envelope.
    pub(crate) fn json(&self, args: &[&str]) -> serde_json::Value {
        let output = self.cli(&[args, &["--json"]].concat());
        assert!(output.status.success(), "{args:?}: {output:?}");
        let mut envelope: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(envelope["schema"], 1, "{envelope}");
        envelope["data"].take()
    }

    /// What `status` warns of.
    pub(crate) fn warnings(&self) -> String {
        self.json(&["status"])["warnings"].to_string()
    }

    /// A gateway's state as it would keep it.
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
    /// As a gateway of protocol 1, which every supervisor serves.
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
        let (conn, welcome) = conn::open(&self.socket, self.hello(), DEADLINE).await?;
        Ok(Client::over(conn, welcome, None))
    }

    pub(crate) async fn connect(&self) -> Client {
        // A connection that was just dropped may still be living in the supervisor's eyes.
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
    /// With protocol 2: what acts is sent with it.
    pub(crate) epoch: Option<u64>,
    next: u64,
    pub(crate) notices: VecDeque<Notice>,
    replies: VecDeque<(u64, Result<Reply, Refusal>)>,
}

impl Client {
    pub(crate) fn over(conn: Conn<ToClient, ToSupervisor>, welcome: Welcome, epoch: Option<u64>) -> Self {
        Self { conn, welcome, epoch, next: 1, notices: VecDeque::new(), replies: VecDeque::new() }
    }

    pub(crate) async fn send(&mut self, body: Request) -> u64 {
        self.try_send(body).await.expect("the connection is open")
    }

    /// Sends a request, and returns its number; a connection that has ended takes nothing.
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
        self.try_reply(id).await.expect("the connection is open, and its peer answers in turn")
    }

    /// The answer to a request; `None` when the connection ends before that.
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
        self.try_notice().await.expect("the connection is open, and its peer answers in turn")
    }

    /// The next piece of news; `None` when the connection has ended.
    pub(crate) async fn try_notice(&mut self) -> Option<Notice> {
        loop {
            if let Some(notice) = self.notices.pop_front() {
                return Some(notice);
            }
            self.try_recv().await?;
        }
    }

    /// Takes in what comes next; `None` when the connection has ended.
    async fn try_recv(&mut self) -> Option<()> {
        let message = tokio::time::timeout(DEADLINE, self.conn.receiver.recv())
            .await
            .expect("the notification arrives in time");
        match message {
            Ok(Some(ToClient::Reply { id, result })) => self.replies.push_back((id, result)),
            Ok(Some(ToClient::Notice(notice))) => self.notices.push_back(notice),
            Ok(Some(ToClient::Welcome(_) | ToClient::Refused(_) | ToClient::RolledBack(_)) | None)
            | Err(_) => return None,
        }
        Some(())
    }

    /// What becomes of a request; `None` when the connection ends before that is known.
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

    /// The next piece of output of a lease; other news is dropped.
    pub(crate) async fn output(&mut self, lease: LeaseId) -> (u64, Vec<u8>) {
        loop {
            if let Notice::Output { lease_id, offset, bytes } = self.notice().await
                && lease_id == lease
            {
                return (offset, bytes);
            }
        }
    }

    /// Output from `offset` on until `count` bytes are there; asserts that nothing is missing or repeated.
    pub(crate) async fn read(&mut self, lease: LeaseId, offset: u64, count: usize) -> Vec<u8> {
        let mut all = Vec::new();
        while all.len() < count {
            let (at, bytes) = self.output(lease).await;
            assert_eq!(at, offset + all.len() as u64, "output out of order");
            all.extend(bytes);
        }
        all
    }

    /// The same, acknowledged piece by piece; no piece is larger than the credit.
    pub(crate) async fn read_and_ack(&mut self, lease: LeaseId, offset: u64, count: usize) -> Vec<u8> {
        let mut all = Vec::new();
        while all.len() < count {
            let (at, bytes) = self.output(lease).await;
            assert_eq!(at, offset + all.len() as u64, "output out of order");
            assert!(bytes.len() as u64 <= self.welcome.credit_bytes, "more than the credit came at once");
            all.extend(bytes);
            self.ack(lease, offset + all.len() as u64).await;
        }
        all
    }

    /// Everything that a lease printed until its adapter ended.
    pub(crate) async fn all(&mut self, lease: LeaseId) -> (ExitStatus, String) {
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

    /// Waits for the end of the adapter's output.
    pub(crate) async fn exited(&mut self, lease: LeaseId) -> (ExitStatus, u64) {
        loop {
            if let Notice::Exited { lease_id, status, end_offset, stderr_tail, .. } = self.notice().await
                && lease_id == lease
            {
                assert_eq!(stderr_tail, "", "standard error is sent on request only");
                return (status, end_offset);
            }
        }
    }

    /// Waits until a lease is in this state and returns why.
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

/// An agent that runs `argv` in `/`.
pub(crate) fn agent(argv: &[&str]) -> Spawn {
    Spawn {
        lease_id: LeaseId::mint(),
        session_key: SessionKey::parse(&format!("agent:test:acp:{}", LeaseId::mint())).unwrap(),
        kind: LeaseKind::Agent,
        argv: argv.iter().map(|s| (*s).to_owned()).collect(),
        env: vec![("PATH".into(), std::env::var("PATH").unwrap())],
        cwd: "/".into(),
        roots: Vec::new(),
        graces: QUICK,
    }
}

/// An agent that runs a shell script.
pub(crate) fn script(text: &str) -> Spawn {
    agent(&["/bin/sh", "-c", text])
}

/// A terminal of an agent that runs a shell script.
pub(crate) fn terminal(parent: &Spawn, text: &str, output_bytes_max: u64) -> Spawn {
    let kind = LeaseKind::Terminal { parent_lease_id: parent.lease_id, output_bytes_max };
    Spawn { kind, session_key: parent.session_key.clone(), ..script(text) }
}
