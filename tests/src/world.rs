//! The environment of one test: a temporary directory with supervisors and gateways, all of them real
//! processes.

use crate::cli::{Output, RunningCommand, run};
use crate::lease::Lease;
use crate::processes::{self, Process, ProcessHandle};
use crate::service::Service;
use crate::wait::{LONG, SOON};
use serde_json::Value;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tempfile::TempDir;

/// Environment variable of every process of a world, used to find processes that were left over.
pub const ENV_WORLD: &str = "ACP_TEST_WORLD";
/// File name of a gateway's database in its state directory.
pub const GATEWAY_DB: &str = "gateway.db";
/// File name of a supervisor's database in its state directory.
pub const SUPERVISOR_DB: &str = "supervisor.db";

/// Path of a program of this workspace, in the running test's directory or its parent.
///
/// # Panics
/// When it is not built; `make test` builds all of them first.
#[must_use]
pub fn bin(name: &str) -> PathBuf {
    let here = std::env::current_exe().unwrap_or_else(|e| panic!("path of the test program is unknown: {e}"));
    let found = here.ancestors().skip(1).take(2).map(|dir| dir.join(name)).find(|path| path.is_file());
    found.unwrap_or_else(|| panic!("{name} is not built; run `cargo build --workspace --bins` first"))
}

/// The root of the repository.
///
/// # Panics
/// Never: this package is one level below it.
#[must_use]
pub fn repository() -> &'static Path {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or_else(|| panic!("the package has no parent directory"))
}

/// The directory of one test and everything that runs in it.
#[derive(Debug)]
pub struct World {
    id: String,
    dir: TempDir,
    started: AtomicU32,
}

impl Default for World {
    fn default() -> Self {
        Self::new()
    }
}

impl World {
    /// An empty world.
    ///
    /// # Panics
    /// When no temporary directory can be created.
    #[must_use]
    pub fn new() -> Self {
        let dir =
            tempfile::Builder::new().prefix("acp-").tempdir().unwrap_or_else(|e| panic!("no directory: {e}"));
        let world = Self { id: uuid::Uuid::now_v7().to_string(), dir, started: AtomicU32::new(0) };
        for part in ["home", "log", "work"] {
            let _ = world.dir(part);
        }
        world
    }

    /// A path in this world.
    #[must_use]
    pub fn path(&self, relative: &str) -> PathBuf {
        self.dir.path().join(relative)
    }

    /// A directory in this world, created if missing.
    ///
    /// # Panics
    /// When it cannot be created.
    #[must_use]
    pub fn dir(&self, relative: &str) -> PathBuf {
        let path = self.path(relative);
        fs::create_dir_all(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        path
    }

    /// Writes a file in this world, creates its parent directories and returns its path.
    ///
    /// # Panics
    /// When it cannot be written.
    pub fn write(&self, relative: &str, text: &str) -> PathBuf {
        let path = self.path(relative);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).unwrap_or_else(|e| panic!("{}: {e}", parent.display()));
        }
        fs::write(&path, text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        path
    }

    /// Command of a program of the workspace with a clean environment, free of the machine's configuration. Programs in
    /// the world's directory `programs`, if there is one, are found before those of the machine.
    #[must_use]
    pub fn command(&self, name: &str) -> Command {
        let mut command = Command::new(bin(name));
        let mut path = std::env::var_os("PATH").unwrap_or_default();
        let own = self.path("programs");
        if own.is_dir() {
            path = [own.as_os_str(), &path].join(OsStr::new(":"));
        }
        command
            .env_clear()
            .env("PATH", path)
            .env("HOME", self.path("home"))
            .env("LANG", "C.UTF-8")
            .env(ENV_WORLD, &self.id)
            .env("RUST_BACKTRACE", "1")
            .current_dir(self.path("work"));
        command
    }

    /// The environment variable that marks an agent as a process of this world, for its configuration.
    #[must_use]
    pub fn env_mark(&self) -> (String, String) {
        (ENV_WORLD.to_owned(), self.id.clone())
    }

    /// Writes the configuration of the gateway `name` and returns its path. `agents` maps a name to its command
    /// and environment; each may work below this world's directory. `extra` is TOML that comes first.
    ///
    /// # Panics
    /// When the file cannot be written.
    pub fn configure(&self, name: &str, extra: &str, agents: &BTreeMap<&str, Agent>) -> PathBuf {
        let mut text = format!("{extra}\n");
        for (agent, what) in agents {
            let mut env = what.env.clone();
            env.extend([self.env_mark()]);
            let mut table = toml::Table::from_iter([
                ("command".to_owned(), toml::Value::from(what.command.clone())),
                ("env".to_owned(), toml::Value::Table(env.into_iter().map(|(k, v)| (k, v.into())).collect())),
                (
                    "cwd_roots".to_owned(),
                    toml::Value::from(vec![self.path("").to_string_lossy().into_owned()]),
                ),
                ("permission".to_owned(), toml::Value::from(what.permission)),
            ]);
            table.extend(what.settings.clone());
            let one = toml::Table::from_iter([(
                "agents".to_owned(),
                toml::Value::Table(toml::Table::from_iter([(
                    (*agent).to_owned(),
                    toml::Value::Table(table),
                )])),
            )]);
            let _ = writeln!(text, "{one}");
        }
        self.write(&format!("{name}.toml"), &text)
    }

    /// Starts the supervisor on the state directory `supervisor` of this world, with `supervisor.toml` if there
    /// is one.
    ///
    /// # Panics
    /// When it does not become ready.
    #[must_use]
    pub fn supervisor(&self) -> Service {
        let (dir, config) = (self.path_string("supervisor"), self.path_string("supervisor.toml"));
        let mut args = vec!["serve", "--state-dir", &dir, "--json"];
        if Path::new(&config).exists() {
            args.extend(["--config", config.as_str()]);
        }
        self.start_service("acp-supervisor", &args)
    }

    /// Starts the gateway `name` under a supervisor. `name` is also the name of its state directory and of
    /// the configuration file, if [`World::configure`] wrote one.
    ///
    /// # Panics
    /// When it does not become ready.
    #[must_use]
    pub fn gateway(&self, name: &str, supervisor_socket: &Path) -> Service {
        let socket = supervisor_socket.to_string_lossy();
        self.start_with_config(
            name,
            &["serve", "--state-dir", &self.path_string(name), "--supervisor-socket", &socket, "--json"],
        )
    }

    /// Starts the gateway `name` under a supervisor, as [`World::gateway`], while another one serves its cell.
    ///
    /// # Panics
    /// When it ends, or does not answer that it stands by.
    #[must_use]
    pub fn standby(&self, name: &str, supervisor_socket: &Path) -> Service {
        let (dir, local) = (self.path(name), self.path(name).join("gateway.sock"));
        let mut command = self.command("acp-gateway");
        command.arg("serve").arg("--json").arg("--state-dir").arg(dir).arg("--supervisor-socket");
        command.arg(supervisor_socket).arg("--config").arg(self.path(&format!("{name}.toml")));
        let _ = fs::remove_file(&local);
        Service::start_until(command, &self.next_log(), |_| local.exists())
    }

    fn next_log(&self) -> PathBuf {
        let n = self.started.fetch_add(1, Ordering::Relaxed);
        self.path(&format!("log/{n:02}"))
    }

    /// Starts `acp-gateway up` on the state directory `name`. Its supervisor outlives it unless it is stopped
    /// in order.
    ///
    /// # Panics
    /// When it does not become ready.
    #[must_use]
    pub fn up(&self, name: &str) -> Service {
        self.start_with_config(name, &["up", "--state-dir", &self.path_string(name), "--json"])
    }

    fn start_with_config(&self, name: &str, args: &[&str]) -> Service {
        let config = self.path_string(&format!("{name}.toml"));
        let mut args = args.to_vec();
        if Path::new(&config).exists() {
            args.extend(["--config", config.as_str()]);
        }
        self.start_service("acp-gateway", &args)
    }

    fn path_string(&self, relative: &str) -> String {
        self.path(relative).to_string_lossy().into_owned()
    }

    /// Starts a program that prints one JSON line when it accepts work.
    ///
    /// # Panics
    /// When it ends or stays silent instead.
    #[must_use]
    pub fn start_service(&self, program: &str, args: &[&str]) -> Service {
        let mut command = self.command(program);
        command.args(args);
        self.start_command(command)
    }

    /// Starts a command that prints one JSON line when it accepts work.
    ///
    /// # Panics
    /// When it ends or stays silent instead.
    #[must_use]
    pub fn start_command(&self, command: Command) -> Service {
        Service::start(command, &self.next_log())
    }

    /// Starts a command that listens on this address when it accepts work.
    ///
    /// # Panics
    /// When it ends or does not listen instead.
    #[must_use]
    pub fn start_listener(&self, command: Command, address: SocketAddr) -> Service {
        Service::start_until(command, &self.next_log(), |_| TcpStream::connect(address).is_ok())
    }

    /// Command line of a verb of the gateway `name`, with `--json`.
    #[must_use]
    pub fn gateway_verb(&self, name: &str, args: &[&str]) -> Command {
        let mut command = self.command("acp-gateway");
        command.arg("--state-dir").arg(self.path(name)).args(args).arg("--json");
        command
    }

    /// Runs a verb of the gateway `name` to its end, with `--json`.
    ///
    /// # Panics
    /// When it takes too long.
    #[must_use]
    pub fn cli(&self, name: &str, args: &[&str]) -> Output {
        run(&mut self.gateway_verb(name, args), LONG)
    }

    /// Starts a verb of the gateway `name`, with `--json`, whose output is read line by line.
    ///
    /// # Panics
    /// When it cannot be started.
    #[must_use]
    pub fn follow(&self, name: &str, args: &[&str]) -> RunningCommand {
        RunningCommand::start(&mut self.gateway_verb(name, args))
    }

    /// Starts a session and returns its key; its working directory is created in this world.
    ///
    /// # Panics
    /// When the gateway refuses.
    #[must_use]
    pub fn spawn(&self, name: &str, agent: &str, cwd: &str) -> String {
        let cwd = self.dir(cwd).to_string_lossy().into_owned();
        let output =
            self.cli(name, &["sessions", "spawn", "--agent", agent, "--cwd", &cwd, "--wait", "0"]).ok();
        let answer = output.json();
        answer["session_key"].as_str().unwrap_or_else(|| panic!("no session_key: {output:?}")).to_owned()
    }

    /// Runs a prompt to its end and returns its events.
    ///
    /// # Panics
    /// When it fails.
    #[must_use]
    pub fn prompt(&self, name: &str, key: &str, text: &str) -> Vec<Value> {
        self.cli(name, &["prompt", key, text]).ok().lines()
    }

    /// All journal events of a session.
    ///
    /// # Panics
    /// When the gateway refuses.
    #[must_use]
    pub fn history(&self, name: &str, key: &str) -> Vec<Value> {
        self.cli(name, &["sessions", "history", key]).ok().lines()
    }

    /// Runs a verb of the supervisor behind `socket` to its end, with `--json`.
    ///
    /// # Panics
    /// When it takes too long.
    #[must_use]
    pub fn supervisor_cli(&self, socket: &Path, args: &[&str]) -> Output {
        let mut command = self.command("acp-supervisor");
        command.arg("--socket").arg(socket).args(args).arg("--json");
        run(&mut command, SOON)
    }

    /// The leases of the supervisor behind `socket`.
    ///
    /// # Panics
    /// When the supervisor refuses.
    #[must_use]
    pub fn leases(&self, socket: &Path) -> Vec<Lease> {
        let list = self.supervisor_cli(socket, &["leases", "list"]).ok().json();
        list.as_array().unwrap_or_else(|| panic!("not an array: {list}")).iter().cloned().map(Lease).collect()
    }

    /// The newest agent lease of a session that has not ended.
    #[must_use]
    pub fn living_lease(&self, socket: &Path, key: &str) -> Option<Lease> {
        let ours = |lease: &Lease| {
            lease.text("session_key") == key
                && !matches!(lease.state(), "closed" | "lost")
                && lease.0["parent_lease_id"].is_null()
        };
        self.leases(socket).into_iter().rfind(ours)
    }

    /// Opens the database of the gateway `name` for reading; the gateway may be running.
    ///
    /// # Panics
    /// When it cannot be opened.
    #[must_use]
    pub fn journal(&self, name: &str) -> rusqlite::Connection {
        open_read_only(&self.path(name).join(GATEWAY_DB))
    }

    /// All living processes of this world.
    #[must_use]
    pub fn processes(&self) -> Vec<Process> {
        processes::list_under_or_with_env(self.dir.path(), ENV_WORLD, &self.id)
    }

    /// The running agents and their wrappers.
    #[must_use]
    pub fn agents(&self) -> Vec<Process> {
        let mut found = self.processes();
        let program = |process: &Process| process.argv.first().cloned().unwrap_or_default();
        found.retain(|process| program(process).ends_with("fake-agent") || is_wrapper(process));
        found
    }

    /// Opens a process that was listed before; `None` if it no longer exists or its pid was reused outside of
    /// this world.
    #[must_use]
    pub fn open_process(&self, process: &Process) -> Option<ProcessHandle> {
        // Open it first, then check it: the check is then about the process that is signalled.
        let held = ProcessHandle::open(process.pid)?;
        let is_ours = processes::has_env(held.pid, ENV_WORLD, &self.id)
            || processes::belongs_to_dir(held.pid, self.dir.path());
        is_ours.then_some(held)
    }

    /// Kills all processes of this world and waits for their end; returns `false` after a timeout.
    fn kill_all(&self) -> bool {
        for _ in 0..500 {
            let left = self.processes();
            if left.is_empty() {
                return true;
            }
            for held in left.iter().filter_map(|process| self.open_process(process)) {
                let _ = held.kill();
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        false
    }
}

/// Whether a process is the wrapper of an agent. Wrappers of file helpers differ only in their child.
#[must_use]
pub fn is_wrapper(process: &Process) -> bool {
    let is_helper = |pid: &str| {
        let argv = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        argv.split(|byte| *byte == 0).any(|arg| arg == b"files-helper")
    };
    let children = format!("/proc/{0}/task/{0}/children", process.pid);
    let children = fs::read_to_string(children).unwrap_or_default();
    process.argv.first().is_some_and(|program| program.contains("wrapper"))
        && !children.split_ascii_whitespace().any(is_helper)
}

/// Removes the control groups that killed supervisors left behind, as the next supervisor on the same state
/// directory would.
fn remove_cgroups(dir: &Path) {
    let sys = acp_supervisor::sys::linux::Linux::new();
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.join(SUPERVISOR_DB).exists()
            && let Some(tree) = sys.groups()
            && let Ok(subtree) = acp_supervisor::app::environment::cgroup_subtree(
                &sys,
                &acp_supervisor::config::Config::default(),
                &path,
            )
        {
            tree.remove_subtree(&subtree);
        } else if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_cgroups(&path);
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let ended = self.kill_all();
        remove_cgroups(&self.path(""));
        if std::thread::panicking() {
            let mut logs: Vec<PathBuf> =
                fs::read_dir(self.path("log")).into_iter().flatten().flatten().map(|e| e.path()).collect();
            logs.sort();
            for log in logs {
                let text = fs::read_to_string(&log).unwrap_or_default();
                let tail: Vec<&str> = text.lines().rev().take(60).collect();
                let tail: Vec<&str> = tail.into_iter().rev().collect();
                eprintln!("--- {}\n{}", log.display(), tail.join("\n"));
            }
        } else {
            assert!(ended, "processes of this world cannot be ended: {:#?}", self.processes());
        }
    }
}

/// An agent in a gateway's configuration.
#[derive(Debug, Clone)]
pub struct Agent {
    /// Program and arguments.
    pub command: Vec<String>,
    /// Environment variables in addition to those of the gateway.
    pub env: BTreeMap<String, String>,
    /// `approve-all`, `approve-reads`, `deny-all` or `ask`.
    pub permission: &'static str,
    /// Other keys of its table.
    pub settings: toml::Table,
}

impl Agent {
    /// An agent in permission mode `ask`, declared as one that asks.
    #[must_use]
    pub fn new(command: &[&str]) -> Self {
        let command = command.iter().map(|part| (*part).to_owned()).collect();
        let settings = toml::Table::from_iter([("asks".to_owned(), true.into())]);
        Self { command, env: BTreeMap::new(), permission: "ask", settings }
    }

    /// Removes the declaration that the agent asks.
    #[must_use]
    pub fn without_asks(mut self) -> Self {
        self.settings.remove("asks");
        self
    }

    /// Sets a key of its table to a number.
    ///
    /// # Panics
    /// Never: no setting is that large.
    #[must_use]
    pub fn set(mut self, key: &str, value: u64) -> Self {
        let value = i64::try_from(value).unwrap_or_else(|e| panic!("{e}"));
        self.settings.insert(key.to_owned(), value.into());
        self
    }

    /// Adds an environment variable.
    #[must_use]
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.env.insert(name.to_owned(), value.to_owned());
        self
    }
}

/// Opens a SQLite database for reading.
///
/// # Panics
/// When it cannot be opened.
#[must_use]
#[expect(clippy::disallowed_methods, reason = "tests read the database directly, and never write")]
pub fn open_read_only(path: &Path) -> rusqlite::Connection {
    let flags = rusqlite::OpenFlags::SQLITE_OPEN_READ_ONLY | rusqlite::OpenFlags::SQLITE_OPEN_NO_MUTEX;
    rusqlite::Connection::open_with_flags(path, flags).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}
