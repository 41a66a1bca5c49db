//! Machines of a test: network namespaces, each at the end of a cable that can be pulled.

use std::net::Ipv4Addr;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// Prefix of the names of namespaces and network devices, followed by the test's pid and a number.
const PREFIX: &str = "acp";
/// First address of the machines, each with four of its own.
const FIRST: Ipv4Addr = Ipv4Addr::new(10, 213, 0, 0);
/// Number of machines with addresses of their own.
const MACHINES: u32 = 16_384;
/// Machines of one test program that do not share addresses with those of the next pid.
const PER_PROCESS: u32 = 16;

/// A machine: a network namespace with one cable to this one.
#[derive(Debug)]
pub struct Machine {
    /// Name of the namespace, and of the device at this end of the cable.
    name: String,
    address: Ipv4Addr,
}

impl Machine {
    /// Creates a machine, with [`crate::ability::Ability::NetworkNamespaces`].
    ///
    /// # Panics
    /// When a command of iproute2 fails.
    #[must_use]
    pub fn create() -> Self {
        static CREATED: AtomicU32 = AtomicU32::new(0);
        remove_left_over();
        let (pid, number) = (std::process::id(), CREATED.fetch_add(1, Ordering::Relaxed));
        let subnet = u32::from(FIRST) + 4 * ((pid.wrapping_mul(PER_PROCESS) + number) % MACHINES);
        let [near, far] = [1, 2].map(|host| Ipv4Addr::from(subnet + host));
        let name = format!("{PREFIX}{pid}x{number}");
        let machine = Self { name: name.clone(), address: far };
        // Of a killed program with the same pid.
        remove(&name);
        ip(&["netns", "add", &name]);
        ip(&["link", "add", &name, "type", "veth", "peer", "name", "eth0", "netns", &name]);
        ip(&["addr", "add", &format!("{near}/30"), "dev", &name]);
        ip(&["link", "set", &name, "up"]);
        ip(&["-n", &name, "addr", "add", &format!("{far}/30"), "dev", "eth0"]);
        machine.mend();
        machine
    }

    /// Address of the machine.
    #[must_use]
    pub const fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// Returns the command for a program on this machine. Its process keeps the pid of the command; only its network differs.
    #[must_use]
    pub fn run(&self, command: &Command) -> Command {
        let mut inside = Command::new("nsenter");
        inside.arg(format!("--net=/run/netns/{}", self.name)).arg(command.get_program());
        inside.args(command.get_args()).env_clear();
        inside.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        if let Some(dir) = command.get_current_dir() {
            inside.current_dir(dir);
        }
        inside
    }

    /// Pulls the cable: packets are lost without an error on either side.
    pub fn cut(&self) {
        ip(&["-n", &self.name, "link", "set", "eth0", "down"]);
    }

    /// Plugs the cable in.
    pub fn mend(&self) {
        ip(&["-n", &self.name, "link", "set", "eth0", "up"]);
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        remove(&self.name);
    }
}

/// Removes a machine. Processes in a namespace keep it, but not its cable.
fn remove(name: &str) {
    for args in [["link", "del", name], ["netns", "del", name]] {
        let _ = Command::new("ip").args(args).stderr(Stdio::null()).status();
    }
}

/// Removes the machines of test programs that were killed.
fn remove_left_over() {
    let listed = Command::new("ip").args(["netns", "list"]).output();
    let listed =
        listed.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    for name in listed.lines().filter_map(|line| line.split_whitespace().next()) {
        let pid = name.strip_prefix(PREFIX).and_then(|rest| rest.split_once('x')?.0.parse::<u32>().ok());
        if pid.is_some_and(|pid| !std::path::Path::new(&format!("/proc/{pid}")).exists()) {
            remove(name);
        }
    }
}

fn ip(args: &[&str]) {
    let output = Command::new("ip").args(args).output().unwrap_or_else(|e| panic!("ip {args:?}: {e}"));
    assert!(output.status.success(), "ip {args:?}: {}", String::from_utf8_lossy(&output.stderr));
}
