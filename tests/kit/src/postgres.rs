//! Temporary PostgreSQL servers for tests: real ones, of the distribution, in a directory of their own and reached through
//! a socket in it alone.

use crate::ability::FOREIGN_UID;
use crate::{processes, sys};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Signal, WaitId, WaitIdOptions, geteuid, pidfd_send_signal, waitid};
use std::fmt::Display;
use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Superuser of the servers.
const USER: &str = "acp";
/// Database that each server has.
const DATABASE: &str = "postgres";
const PROGRAMS: [&str; 4] = ["initdb", "postgres", "pg_basebackup", "psql"];
const DATA: &str = "data";
const LOG: &str = "server.log";
/// Deadline for a start or an end, recovery included.
const DEADLINE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(10);
/// Settings of each server. fsync is on, as it is by default.
const SETTINGS: [&str; 7] = [
    "listen_addresses=",
    "unix_socket_permissions=0700",
    "jit=off",
    "max_connections=200",
    "shared_buffers=32MB",
    "wal_keep_size=256MB",
    "log_min_messages=warning",
];

/// Programs of a server and what they need.
#[derive(Debug, Clone)]
struct Programs {
    bin: PathBuf,
    /// Directories of libraries that the machine lacks, for `LD_LIBRARY_PATH`.
    libraries: String,
}

impl Programs {
    /// Finds a server in PATH, in Debian's directories, and where `tests/postgres/install.sh` unpacks one.
    fn find() -> Result<Self, String> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let mut bins: Vec<PathBuf> = std::env::split_paths(&path).collect();
        bins.extend(newest_bin(Path::new("/")));
        let has_server = |bin: &PathBuf| PROGRAMS.iter().all(|name| bin.join(name).is_file());
        if let Some(bin) = bins.into_iter().find(has_server) {
            return Ok(Self { bin, libraries: String::new() });
        }
        let base = std::env::var_os("ACP_FOREIGN_DIR").ok_or(
            "none in PATH and /usr/lib/postgresql, and ACP_FOREIGN_DIR is not set: run `make test-postgres`",
        )?;
        let root = Path::new(&base).join("postgres");
        if let Ok(why) = fs::read_to_string(root.join("missing")) {
            return Err(why.trim().to_owned());
        }
        let none = || format!("no server in {}: run `make test-postgres`", root.display());
        let bin = newest_bin(&root).filter(has_server).ok_or_else(none)?;
        let libraries = fs::read_to_string(root.join("libraries")).unwrap_or_default();
        Ok(Self { bin, libraries: libraries.trim().to_owned() })
    }

    /// Command of a program of the server.
    fn command(&self, program: &str) -> Command {
        self.in_environment(Command::new(self.bin.join(program)))
    }

    /// Gives a command an environment without settings of the test's own.
    fn in_environment(&self, mut command: Command) -> Command {
        command.env_clear().stdin(Stdio::null());
        if let Some(path) = std::env::var_os("PATH") {
            command.env("PATH", path);
        }
        if !self.libraries.is_empty() {
            command.env("LD_LIBRARY_PATH", &self.libraries);
        }
        command
    }
}

/// Directory of the programs of the newest server below a root of Debian's.
fn newest_bin(root: &Path) -> Option<PathBuf> {
    let versions = fs::read_dir(root.join("usr/lib/postgresql")).ok()?.flatten();
    let newest =
        versions.max_by_key(|version| version.file_name().to_str().and_then(|v| v.parse::<u32>().ok()))?;
    Some(newest.path().join("bin"))
}

/// PostgreSQL server. Dropping the value ends it and removes its directory. It ends with the test's process too.
#[derive(Debug)]
pub struct Postgres {
    programs: Programs,
    dir: TempDir,
    server: Option<Server>,
    /// Address at which it listens with TLS, too.
    tls: Option<SocketAddr>,
}

impl Postgres {
    /// Starts an empty server; `None`, aloud, if none is installed on this machine.
    ///
    /// # Panics
    /// When there is none in CI, or it does not start.
    #[must_use]
    pub fn start() -> Option<Self> {
        match Programs::find() {
            Ok(programs) => {
                let mut made = Self { programs, dir: own_dir(), server: None, tls: None };
                let mut init = made.command("initdb");
                init.args(["--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync", "--username", USER]);
                run(init.arg(made.data()));
                made.run_server();
                Some(made)
            }
            Err(why) => {
                assert!(std::env::var_os("CI").is_none(), "no PostgreSQL: {why}");
                println!("SKIPPED: no PostgreSQL: {why}");
                None
            }
        }
    }

    /// Address of a database as a URL.
    #[must_use]
    pub fn address_of(&self, database: &str) -> String {
        let port = self.tls.map(|at| format!("&port={}", at.port())).unwrap_or_default();
        format!("postgresql:///{database}?host={}&user={USER}{port}", self.dir.path().display())
    }

    /// Address of the database that each server has.
    #[must_use]
    pub fn address(&self) -> String {
        self.address_of(DATABASE)
    }

    /// Creates a database and returns its address.
    ///
    /// # Panics
    /// When the server refuses it.
    #[must_use]
    pub fn create_database(&self, name: &str) -> String {
        must("create a database", self.query(&self.address(), &format!("CREATE DATABASE \"{name}\"")));
        self.address_of(name)
    }

    /// Runs statements at an address of this server, and returns the rows of the last, with `|` between columns.
    ///
    /// # Errors
    /// Message of the server.
    pub fn query(&self, address: &str, sql: &str) -> Result<String, String> {
        let mut psql = self.programs.command("psql");
        psql.args(["-XAtq", "-v", "ON_ERROR_STOP=1", "-v", "VERBOSITY=terse", "-d", address, "-c", sql]);
        let output = must("run psql", psql.output());
        let text =
            |bytes: &[u8]| String::from_utf8_lossy(bytes.strip_suffix(b"\n").unwrap_or(bytes)).into_owned();
        if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
    }

    /// Changes a setting in the configuration of the running server.
    ///
    /// # Panics
    /// When the server refuses it.
    pub fn set(&self, setting: &str, value: &str) {
        must("set", self.query(&self.address(), &format!("ALTER SYSTEM SET {setting} = '{value}'")));
        must("reload", self.query(&self.address(), "SELECT pg_reload_conf()"));
    }

    /// Restarts the server so that it listens on loopback with TLS, too. Returns the address.
    ///
    /// # Panics
    /// When it cannot.
    pub fn listen_with_tls(&mut self, certificate: &str, key: &str) -> SocketAddr {
        // An address of this process alone, so that its free port stays free.
        let [_, high, middle, low] = std::process::id().to_be_bytes();
        let own = Ipv4Addr::new(127, high | 64, middle, low | 1);
        let free = must("find a free port", TcpListener::bind((own, 0)).and_then(|free| free.local_addr()));
        let access = self.data().join("pg_hba.conf");
        let text = must("read the server's rules", fs::read_to_string(&access));
        must("write the server's rules", fs::write(&access, format!("{text}host all all {own}/32 trust\n")));
        self.write_private("server.key", key);
        self.tls = Some(free);
        self.set_certificate(certificate);
        free
    }

    /// Replaces the certificate of a server that listens with TLS, and restarts it.
    ///
    /// # Panics
    /// When it does not start.
    pub fn set_certificate(&mut self, certificate: &str) {
        self.write_private("server.crt", certificate);
        self.restart();
    }

    fn write_private(&self, name: &str, text: &str) {
        let path = self.data().join(name);
        must("write a file of the server", fs::write(&path, text));
        must("make a file private", fs::set_permissions(&path, fs::Permissions::from_mode(0o600)));
        if geteuid().is_root() {
            let owned = std::os::unix::fs::chown(&path, Some(FOREIGN_UID), Some(FOREIGN_UID));
            must("give a file away", owned);
        }
    }

    /// Stops all processes of the server with SIGSTOP: it takes connections and answers nothing. They go on when the value is
    /// dropped, or killed.
    ///
    /// # Panics
    /// When the server does not run.
    #[must_use]
    pub fn freeze(&self) -> Frozen {
        let server = self.server.as_ref().unwrap_or_else(|| panic!("the server does not run"));
        Frozen { processes: server.stop() }
    }

    /// Kills all processes of the server with SIGKILL.
    ///
    /// # Panics
    /// When one survives.
    pub fn kill(&mut self) {
        if let Some(server) = self.server.take() {
            server.kill();
        }
    }

    /// Starts the server again; a running one is shut down before.
    ///
    /// # Panics
    /// When it does not end or start.
    pub fn restart(&mut self) {
        if let Some(server) = self.server.take() {
            assert!(server.end(Signal::INT), "the server does not shut down: {}", self.log());
        }
        self.run_server();
    }

    /// Makes a synchronous standby: from now on a commit of this server is answered when the standby has it on disk.
    ///
    /// # Panics
    /// When the standby does not start or does not follow.
    #[must_use]
    pub fn standby(&self) -> Self {
        let mut made = Self { programs: self.programs.clone(), dir: own_dir(), server: None, tls: None };
        let name = "standby";
        let mut backup = made.command("pg_basebackup");
        backup.args(["--checkpoint=fast", "--write-recovery-conf", "--no-sync", "--pgdata"]).arg(made.data());
        let from = format!("host={} user={USER} application_name={name}", self.dir.path().display());
        run(backup.args(["--dbname", &from]));
        // Once promoted, it waits for no standby.
        let settings = made.data().join("postgresql.auto.conf");
        let text = must("read the standby's settings", fs::read_to_string(&settings));
        let text = format!("{text}\nsynchronous_standby_names = ''\n");
        must("write the standby's settings", fs::write(&settings, text));
        made.run_server();
        self.set("synchronous_standby_names", name);
        until("the standby is synchronous", || {
            let state = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'";
            self.query(&self.address(), state).is_ok_and(|found| found == "1")
        });
        made
    }

    /// Makes a standby a server of its own.
    ///
    /// # Panics
    /// When the server is no standby.
    pub fn promote(&mut self) {
        let done = must("promote", self.query(&self.address(), "SELECT pg_promote(true, 60)"));
        assert_eq!(done, "t", "the standby is not promoted: {}", self.log());
    }

    /// Log of the server.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join(LOG)).unwrap_or_default()
    }

    /// Directory of the server, which ends with it.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Pid of the server's first process; `None` if it does not run.
    #[must_use]
    pub fn pid(&self) -> Option<i32> {
        self.server.as_ref().map(Server::pid)
    }

    fn data(&self) -> PathBuf {
        self.dir.path().join(DATA)
    }

    /// Command of a program that writes into the directory, as its user: the programs refuse root.
    fn command(&self, program: &str) -> Command {
        as_user(self.programs.command(program), self.dir.path())
    }

    fn run_server(&mut self) {
        let log = self.dir.path().join(LOG);
        let log = must("open the server's log", File::options().create(true).append(true).open(log));
        let again = must("open the server's log twice", log.try_clone());
        // It ends with this process, at once and without a trace in the kernel.
        let mut command = as_user(self.programs.in_environment(Command::new("setpriv")), self.dir.path());
        command.args(["--pdeathsig", "QUIT", "--"]).arg(self.programs.bin.join("postgres"));
        command.arg("-D").arg(self.data()).arg("-k").arg(self.dir.path());
        command.args(SETTINGS.iter().flat_map(|setting| ["-c", setting]));
        if let Some(at) = self.tls {
            let (address, port) = (format!("listen_addresses={}", at.ip()), format!("port={}", at.port()));
            command.args(["-c", &address, "-c", &port, "-c", "ssl=on"]);
        }
        command.stdout(log).stderr(again);
        let server = self.server.insert(Server::spawn(command));
        let status = self.dir.path().join(DATA).join("postmaster.pid");
        let pid = server.pid().to_string();
        until("the server starts", || {
            assert!(!server.has_ended(), "the server ended at its start");
            let text = fs::read_to_string(&status).unwrap_or_default();
            let mut lines = text.lines();
            lines.next() == Some(pid.as_str())
                && lines.next_back().is_some_and(|last| last.trim_end() == "ready")
        });
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        let Some(server) = self.server.take() else {
            // Killed: a start without clients frees what the kernel still keeps for the server.
            let mut single = self.command("postgres");
            drop(single.args(["--single", "-D"]).arg(self.data()).arg(DATABASE).output());
            return;
        };
        let has_ended = server.end(Signal::QUIT);
        if std::thread::panicking() {
            eprintln!("log of the server:\n{}", self.log());
        } else {
            assert!(has_ended, "the server had to be killed: {}", self.log());
        }
    }
}

/// Server whose processes are stopped. Dropping the value lets them go on.
#[derive(Debug)]
pub struct Frozen {
    processes: Vec<OwnedFd>,
}

impl Drop for Frozen {
    fn drop(&mut self) {
        for process in &self.processes {
            // One that was killed is no fault.
            let _ = pidfd_send_signal(process, Signal::CONT);
        }
    }
}

/// First process of a running server.
#[derive(Debug)]
struct Server {
    child: Child,
    /// Thread that started the process: the kernel sends the signal of `--pdeathsig` when that thread ends.
    _parent: SyncSender<()>,
}

impl Server {
    fn spawn(mut command: Command) -> Self {
        let (started, child) = sync_channel(1);
        let (parent, ended) = sync_channel::<()>(0);
        std::thread::spawn(move || {
            // The receiver waits for it.
            let _ = started.send(command.spawn());
            // Fails when the server's value is dropped.
            let _ = ended.recv();
        });
        let child = must("start the server", must("start the server", child.recv()));
        Self { child, _parent: parent }
    }

    fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }

    /// Ends the server in order or at once, by this signal. Returns false if it had to be killed.
    fn end(mut self, signal: Signal) -> bool {
        if self.has_ended() {
            return true;
        }
        // Its own child, which is not reaped yet.
        let own = must("open the server's process", sys::open(self.pid()));
        must("signal the server", pidfd_send_signal(&own, signal));
        let end = Instant::now() + DEADLINE;
        while Instant::now() < end {
            if self.has_ended() {
                return true;
            }
            std::thread::sleep(POLL);
        }
        self.kill();
        false
    }

    fn has_ended(&mut self) -> bool {
        must("wait for the server", self.child.try_wait()).is_some()
    }

    /// Stops all processes, the first one before the others. Returns them, the first one at last.
    fn stop(&self) -> Vec<OwnedFd> {
        let pid = self.pid();
        let own = must("open the server's process", sys::open(pid));
        // Stopped, it starts no more processes.
        must("stop the server", pidfd_send_signal(&own, Signal::STOP));
        let stopped = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        must("wait for the server's stop", waitid(WaitId::PidFd(own.as_fd()), stopped));
        let parent = Some(pid.to_string());
        let others = processes::children(pid).into_iter().filter_map(|child| {
            let opened = sys::open(child).ok()?;
            // Opened before: not another process with the same number.
            (processes::status_field(child, "PPid") == parent).then_some(opened)
        });
        let all: Vec<OwnedFd> = others.chain([own]).collect();
        for process in &all {
            // One that has ended is no fault.
            let _ = pidfd_send_signal(process, Signal::STOP);
        }
        all
    }

    fn kill(mut self) {
        if self.has_ended() {
            return;
        }
        let all = self.stop();
        for process in &all {
            // One that has ended is no fault.
            let _ = pidfd_send_signal(process, Signal::KILL);
        }
        must("reap the server", self.child.wait());
        for process in &all[..all.len() - 1] {
            let timeout = must("convert a deadline", DEADLINE.try_into());
            let ended = poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&timeout));
            assert_eq!(must("wait for a process of the server", ended), 1, "a process of the server is left");
        }
    }
}

/// Makes a directory that the server's user owns.
fn own_dir() -> TempDir {
    let dir = must("make a directory", tempfile::Builder::new().prefix("acp-postgres-").tempdir());
    if geteuid().is_root() {
        let owned = std::os::unix::fs::chown(dir.path(), Some(FOREIGN_UID), Some(FOREIGN_UID));
        must("give a directory away", owned);
    }
    dir
}

fn as_user(mut command: Command, dir: &Path) -> Command {
    if geteuid().is_root() {
        command.uid(FOREIGN_UID).gid(FOREIGN_UID);
    }
    command.current_dir(dir);
    command
}

fn run(command: &mut Command) {
    let output = must(&format!("run {command:?}"), command.output());
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}: {}", output.status, stderr.trim());
}

fn until(what: &str, mut is: impl FnMut() -> bool) {
    let end = Instant::now() + DEADLINE;
    while !is() {
        assert!(Instant::now() < end, "not within {DEADLINE:?}: {what}");
        std::thread::sleep(POLL);
    }
}

fn must<T, E: Display>(what: &str, result: Result<T, E>) -> T {
    result.unwrap_or_else(|error| panic!("cannot {what}: {error}"))
}
