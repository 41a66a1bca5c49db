//! One supervisor, one gateway and the scripted agent: the environment of most system tests.

use crate::cli::{Output, RunningCommand};
use crate::lease::Lease;
use crate::scrape::say;
use crate::service::Service;
use crate::wait::{LONG, SOON, eventually, until};
use crate::world::{Agent, World, bin};
use rustix::process::Signal;
use serde_json::Value;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Name of the gateway of a house, of its state directory and of its configuration file.
pub const GATEWAY: &str = "gateway";
/// Name of the scripted agent in the gateway's configuration.
pub const AGENT: &str = "scripted";
/// From end of file to SIGTERM, and from SIGTERM to SIGKILL, in milliseconds.
pub const GRACE_MS: u64 = 300;

/// Configuration of a house.
#[derive(Debug, Clone, Default)]
pub struct Plan {
    flags: Vec<String>,
    permission: Option<&'static str>,
    mode: Option<&'static str>,
    init_ms: Option<u64>,
    gateway: String,
    supervisor: String,
}

impl Plan {
    /// Plans a house whose agent gets these flags in addition to `--log` and `--state`.
    #[must_use]
    pub fn flags(flags: &[&str]) -> Self {
        Self { flags: flags.iter().map(|flag| (*flag).to_owned()).collect(), ..Self::default() }
    }

    /// Sets the permission mode of the agent; the default is `ask`.
    #[must_use]
    pub const fn permission(mut self, mode: &'static str) -> Self {
        self.permission = Some(mode);
        self
    }

    /// Sets the session mode that the gateway selects when a session opens; the default is none.
    #[must_use]
    pub const fn mode(mut self, mode: &'static str) -> Self {
        self.mode = Some(mode);
        self
    }

    /// Sets the time limit for opening a session, in milliseconds.
    #[must_use]
    pub const fn init_ms(mut self, init_ms: u64) -> Self {
        self.init_ms = Some(init_ms);
        self
    }

    /// Sets the TOML that precedes the agents in the gateway's configuration.
    #[must_use]
    pub fn gateway(mut self, toml: &str) -> Self {
        self.gateway = toml.to_owned();
        self
    }

    /// Sets the TOML of the supervisor's configuration.
    #[must_use]
    pub fn supervisor(mut self, toml: &str) -> Self {
        self.supervisor = toml.to_owned();
        self
    }

    /// Starts both services and returns the house.
    ///
    /// # Panics
    /// When they do not become ready.
    #[must_use]
    pub fn build(&self) -> House {
        let world = World::new();
        let mut agent = scripted(&world, &self.flags, self.permission.unwrap_or("ask"));
        agent.settings.extend(self.mode.map(|mode| ("mode".to_owned(), mode.into())));
        if let Some(init_ms) = self.init_ms {
            agent = agent.set("init_ms", init_ms);
        }
        self.build_in(world, &BTreeMap::from([(AGENT, agent)]))
    }

    /// Starts both services in an existing world, with these agents instead of the scripted one.
    ///
    /// # Panics
    /// When the services do not become ready.
    #[must_use]
    pub fn build_in(&self, world: World, agents: &BTreeMap<&str, Agent>) -> House {
        world.configure(GATEWAY, &self.gateway, agents);
        if !self.supervisor.is_empty() {
            world.write("supervisor.toml", &self.supervisor);
        }
        let supervisor = world.supervisor();
        let socket = supervisor.socket();
        let gateway = world.gateway(GATEWAY, &socket);
        House { gateway: Some(gateway), supervisor: Some(supervisor), socket, world }
    }
}

/// Configuration of the scripted agent, with its log and its sessions in this world and short graces.
#[must_use]
pub fn scripted(world: &World, flags: &[String], permission: &'static str) -> Agent {
    let text = |path: PathBuf| path.to_string_lossy().into_owned();
    let mut agent = Agent::new(&[]).set("eof_ms", GRACE_MS).set("term_ms", GRACE_MS);
    agent.command = vec![
        text(bin("fake-agent")),
        "--log".to_owned(),
        text(world.path("agent.log")),
        "--state".to_owned(),
        text(world.path("agent-state")),
    ];
    agent.command.extend(flags.iter().cloned());
    agent.permission = permission;
    agent
}

/// A supervisor, a gateway under it, and the scripted agent. Either service can be killed and started again.
#[derive(Debug)]
pub struct House {
    // In drop order: the gateway before the supervisor, the world last.
    gateway: Option<Service>,
    supervisor: Option<Service>,
    socket: PathBuf,
    /// Temporary directory of the house.
    pub world: World,
}

impl House {
    /// A house whose agent has these flags and asks for every permission.
    ///
    /// # Panics
    /// When a service does not become ready.
    #[must_use]
    pub fn new(flags: &[&str]) -> Self {
        Plan::flags(flags).build()
    }

    /// A house whose agent's permission requests are all approved.
    ///
    /// # Panics
    /// When its services do not become ready.
    #[must_use]
    pub fn with_approve_all(flags: &[&str]) -> Self {
        Plan::flags(flags).permission("approve-all").build()
    }

    /// Starts a session, and returns the house with the session's key.
    ///
    /// # Panics
    /// When the gateway refuses.
    #[must_use]
    pub fn with_session(self) -> (Self, String) {
        let key = self.spawn();
        (self, key)
    }

    /// The supervisor's socket.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// The running gateway.
    ///
    /// # Panics
    /// When it was stopped and not started again.
    #[must_use]
    pub const fn gateway(&self) -> &Service {
        match &self.gateway {
            Some(gateway) => gateway,
            None => panic!("the gateway is not running"),
        }
    }

    /// The running supervisor.
    ///
    /// # Panics
    /// When it was stopped and not started again.
    #[must_use]
    pub const fn supervisor(&self) -> &Service {
        match &self.supervisor {
            Some(supervisor) => supervisor,
            None => panic!("the supervisor is not running"),
        }
    }

    /// Kills the gateway with SIGKILL, if it is running.
    pub fn kill_gateway(&mut self) {
        if let Some(gateway) = self.gateway.take() {
            gateway.kill9();
        }
    }

    /// Stops the gateway with SIGTERM, as a service manager does.
    ///
    /// # Panics
    /// When it is not running, or does not exit with code 0.
    pub fn stop_gateway(&mut self) {
        let gateway = self.gateway.take().unwrap_or_else(|| panic!("the gateway is not running"));
        assert_eq!(gateway.terminate(LONG), Some(0), "the gateway exits with code 0");
    }

    /// Starts the gateway and waits until it is ready.
    ///
    /// # Panics
    /// When it does not become ready.
    pub fn start_gateway(&mut self) {
        assert!(self.gateway.is_none(), "the gateway is already running");
        self.gateway = Some(self.world.gateway(GATEWAY, &self.socket));
    }

    /// Kills the gateway with SIGKILL and starts another one.
    ///
    /// # Panics
    /// When it does not become ready.
    pub fn restart_gateway(&mut self) {
        self.kill_gateway();
        self.start_gateway();
    }

    /// Kills the supervisor with SIGKILL, if it is running.
    pub fn kill_supervisor(&mut self) {
        if let Some(supervisor) = self.supervisor.take() {
            supervisor.kill9();
        }
    }

    /// Log of the running gateway since its start.
    ///
    /// # Panics
    /// When it is not running.
    #[must_use]
    pub fn gateway_log(&self) -> String {
        self.gateway.as_ref().unwrap_or_else(|| panic!("the gateway is not running")).log()
    }

    /// Sends the supervisor a signal.
    ///
    /// # Panics
    /// When it is not running.
    pub fn signal_supervisor(&self, signal: Signal) {
        let supervisor = self.supervisor.as_ref().unwrap_or_else(|| panic!("the supervisor is not running"));
        assert!(supervisor.signal(signal), "the supervisor no longer exists");
    }

    /// Starts the supervisor and waits until it is ready.
    ///
    /// # Panics
    /// When it does not become ready.
    pub fn start_supervisor(&mut self) {
        assert!(self.supervisor.is_none(), "the supervisor is already running");
        self.supervisor = Some(self.world.supervisor());
    }

    /// Working directory of the sessions that [`House::spawn`] starts.
    #[must_use]
    pub fn cwd(&self) -> PathBuf {
        self.world.path("work/project")
    }

    /// Starts a session in [`House::cwd`].
    ///
    /// # Panics
    /// When the gateway refuses.
    #[must_use]
    pub fn spawn(&self) -> String {
        self.world.spawn(GATEWAY, AGENT, "work/project")
    }

    /// Runs a verb of the gateway to its end.
    ///
    /// # Panics
    /// When it takes too long.
    #[must_use]
    pub fn cli(&self, args: &[&str]) -> Output {
        self.world.cli(GATEWAY, args)
    }

    /// Command line of a verb of the gateway, without `--json`.
    #[must_use]
    pub fn plain(&self, args: &[&str]) -> Command {
        let mut command = self.world.command("acp-gateway");
        command.arg("--state-dir").arg(self.world.path(GATEWAY)).args(args);
        command
    }

    /// Command line of a verb of the gateway, without `--json`, in a terminal that `script` creates.
    #[must_use]
    pub fn in_terminal(&self, args: &[&str]) -> Command {
        let plain = self.plain(args);
        let words = std::iter::once(plain.get_program()).chain(plain.get_args());
        let quoted = |word: &OsStr| format!("'{}'", word.to_string_lossy().replace('\'', r"'\''"));
        let line: Vec<String> = words.map(quoted).collect();
        let mut command = Command::new("script");
        command.env_clear().envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
        command.env("TERM", "xterm").env("SHELL", "/bin/sh").current_dir(self.world.path("work"));
        // `exec`: Ctrl-C between two lines signals every process of the terminal and would end a shell.
        command.args(["-q", "-e", "-c", &format!("exec {}", line.join(" ")), "/dev/null"]);
        command
    }

    /// Posts a person's message in a conversation of the console, and returns the response.
    ///
    /// # Panics
    /// When the response is not JSON.
    #[must_use]
    pub fn say(&self, conversation: &str, id: &str, text: &str) -> Value {
        say(&self.world.path(GATEWAY).join("gateway.sock"), conversation, id, text)
    }

    /// Runs a verb that must succeed and print one JSON value.
    ///
    /// # Panics
    /// When it fails.
    #[must_use]
    pub fn verb(&self, args: &[&str]) -> Value {
        self.cli(args).ok().json()
    }

    /// Address of the gateway's TCP listener, as `doctor` reports it.
    ///
    /// # Panics
    /// When there is none.
    #[must_use]
    pub fn tcp_address(&self) -> SocketAddr {
        eventually(SOON, "a listener", || {
            let checks: Value = self.cli(&["doctor"]).lines().into_iter().next()?;
            let line = checks.as_array()?.iter().find(|check| check["name"] == "listener")?;
            assert_eq!(line["verdict"], "ok", "{line}");
            line["detail"].as_str()?.split(": ").nth(1)?.parse().ok()
        })
    }

    /// Starts a verb whose output is read line by line.
    ///
    /// # Panics
    /// When it cannot be started.
    #[must_use]
    pub fn follow(&self, args: &[&str]) -> RunningCommand {
        self.world.follow(GATEWAY, args)
    }

    /// Runs a prompt that must succeed, and returns its events.
    ///
    /// # Panics
    /// When it fails.
    #[must_use]
    pub fn prompt(&self, key: &str, text: &str) -> Vec<Value> {
        self.world.prompt(GATEWAY, key, text)
    }

    /// All journal events of a session.
    ///
    /// # Panics
    /// When the gateway refuses.
    #[must_use]
    pub fn history(&self, key: &str) -> Vec<Value> {
        self.world.history(GATEWAY, key)
    }

    /// All leases that the supervisor lists.
    ///
    /// # Panics
    /// When the supervisor refuses.
    #[must_use]
    pub fn leases(&self) -> Vec<Lease> {
        self.world.leases(&self.socket)
    }

    /// Waits for the agent lease of a session and for its process to run, and returns the lease.
    ///
    /// # Panics
    /// When there is no such lease in time.
    #[must_use]
    pub fn lease(&self, key: &str) -> Lease {
        eventually(SOON, "the session has a running agent", || {
            self.world.living_lease(&self.socket, key).filter(|lease| lease.state() == "open")
        })
    }

    /// The current state of a lease.
    ///
    /// # Panics
    /// When the supervisor no longer lists it.
    #[must_use]
    pub fn lease_by_id(&self, id: &str) -> Lease {
        let found = self.leases().into_iter().find(|lease| lease.id() == id);
        found.unwrap_or_else(|| panic!("lease {id} is not in the list"))
    }

    /// Waits until a lease has ended, and checks that none of its processes is alive.
    ///
    /// # Panics
    /// When that takes too long, or a process outlives the lease.
    pub fn wait_for_lease_end(&self, lease: &Lease) {
        until(LONG, "the lease has ended", || {
            matches!(self.lease_by_id(lease.id()).state(), "closed" | "lost")
        });
        assert_eq!(lease.processes(), [], "a process outlives its lease");
    }

    /// Entries of the agent's own log, from all its processes: the messages it received and what it did.
    ///
    /// # Panics
    /// When a line is not JSON.
    #[must_use]
    pub fn agent_log(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(self.world.path("agent.log")).unwrap_or_default();
        // The last line may be incomplete.
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        whole
            .lines()
            .map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}")))
            .collect()
    }

    /// Entries of the agent's log of one kind.
    #[must_use]
    pub fn agent_events(&self, event: &str) -> Vec<Value> {
        self.agent_log().into_iter().filter(|entry| entry["event"] == event).collect()
    }

    /// Number of times that the agent received this prompt.
    #[must_use]
    pub fn prompts_received(&self, text: &str) -> usize {
        self.agent_events("prompt").iter().filter(|entry| entry["text"] == text).count()
    }

    /// The messages with this method that the agent received.
    #[must_use]
    pub fn received(&self, method: &str) -> Vec<Value> {
        let all = self.agent_events("received").into_iter().map(|mut entry| entry["message"].take());
        all.filter(|message| message["method"] == method).collect()
    }

    /// Checks that the agent's log records no violation of ACP by the gateway and no failure of the agent
    /// itself.
    ///
    /// # Panics
    /// When the log has a `violation` or `trouble` entry.
    pub fn check_agent(&self) {
        let bad: Vec<Value> = self
            .agent_log()
            .into_iter()
            .filter(|e| e["event"] == "violation" || e["event"] == "trouble")
            .collect();
        assert_eq!(bad, [] as [Value; 0], "the agent logged violations or failures");
    }

    /// Checks the database's invariants and the agent's log, stops both services with SIGTERM, and checks
    /// that no process of this world is left.
    ///
    /// # Panics
    /// When a check fails.
    pub fn end(mut self) {
        crate::invariants::check(&self.world.journal(GATEWAY));
        self.check_agent();
        self.stop_gateway();
        let supervisor = self.supervisor.take().unwrap_or_else(|| panic!("the supervisor is not running"));
        assert_eq!(supervisor.terminate(LONG), Some(0), "the supervisor exits with code 0");
        assert_eq!(self.world.processes(), [], "no process is left");
    }
}
