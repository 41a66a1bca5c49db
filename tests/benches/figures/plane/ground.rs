//! Environment of the control plane's figures: a supervisor, a gateway and the scripted agent, with the
//! default configuration except for higher limits on sessions and connections.

use crate::pipe::Pipe;
use crate::proc::written_bytes;
use acp_tests::house::{AGENT, GATEWAY};
use acp_tests::scrape::Scrape;
use acp_tests::service::Service;
use acp_tests::wait::{LONG, SOON, until};
use acp_tests::world::{Agent, World, bin};
use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

/// Twice the time after which the gateway considers itself idle, in milliseconds.
const QUIET_MS: u64 = 500;
/// Configuration of the limits.
const CAPS: &str = "[limits]\nconnections_max = 3000\n[acp]\nmax_concurrent_sessions = 10000\n";

/// Configuration of the supervisor's limits: by default a gateway has at most 512 agents.
const LEASES: &str = "leases_max = 20000\nleases_per_gateway_max = 20000\nleases_per_user_max = 20000\n";

/// The running services.
#[derive(Debug)]
pub(crate) struct Ground {
    /// The gateway.
    pub(crate) gateway: Service,
    /// The supervisor.
    pub(crate) supervisor: Service,
    /// Their directory. The last field, so that it is dropped last.
    pub(crate) world: World,
}

impl Ground {
    /// Starts a supervisor and a gateway.
    ///
    /// # Panics
    /// When they do not become ready.
    pub(crate) fn build() -> Self {
        Self::build_in(world())
    }

    /// Starts a supervisor and a gateway in a configured world.
    ///
    /// # Panics
    /// When they do not become ready.
    pub(crate) fn build_in(world: World) -> Self {
        let _ = world.write("supervisor.toml", LEASES);
        let supervisor = world.supervisor();
        let gateway = world.gateway(GATEWAY, &supervisor.socket());
        Self { gateway, supervisor, world }
    }

    /// Number of commits so far, from the gateway's metrics.
    pub(crate) fn commits(&self) -> f64 {
        self.count("acp_store_commits_total")
    }

    /// Waits until the gateway has checkpointed its write-ahead log, as it does when idle, and stops writing:
    /// the next measurement then has the disk to itself.
    pub(crate) fn settle(&self) {
        let mut last = None;
        until(SOON, "the gateway stops writing", || {
            std::thread::sleep(Duration::from_millis(QUIET_MS));
            let now = written_bytes(self.gateway.pid());
            last.replace(now) == Some(now)
        });
    }

    /// Value of a series of the gateway's metrics.
    pub(crate) fn count(&self, series: &str) -> f64 {
        let scrape = Scrape::fetch(&self.gateway.socket());
        *scrape.series.get(series).unwrap_or_else(|| panic!("no {series}: {}", scrape.text))
    }

    /// Stops both services with SIGTERM.
    pub(crate) fn end(self) {
        let _ = self.gateway.terminate(LONG);
        let _ = self.supervisor.terminate(LONG);
    }
}

/// A world with a configuration for the scripted agent.
pub(crate) fn world() -> World {
    let world = World::new();
    configure(&world, "");
    world
}

/// Writes the configuration; `more` adds keys of `acp`.
pub(crate) fn configure(world: &World, more: &str) {
    let program = bin("fake-agent").to_string_lossy().into_owned();
    let state = world.path("agent-state").to_string_lossy().into_owned();
    let mut agent = Agent::new(&[&program, "--state", &state]);
    agent.permission = "approve-all";
    world.configure(GATEWAY, &format!("{CAPS}{more}"), &BTreeMap::from([(AGENT, agent)]));
}

/// Tables of a gateway's configuration for a store in a cell of the database at this address.
pub(crate) fn in_cell(world: &World, address: &str) -> String {
    let file = world.write("address", address);
    let private = std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600));
    private.unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    format!(
        "[acp.control_plane]\nstore = \"postgres\"\n[acp.control_plane.postgres]\naddress_file = \"{}\"\nallow_loss = true\n",
        file.display()
    )
}

/// Starts scripted agents without a gateway, each with a session.
pub(crate) fn bare_agents(world: &World, number: usize) -> Vec<Pipe> {
    let start = |_| {
        let mut command = world.command("fake-agent");
        command.arg("--state").arg(world.path("bare-state"));
        Pipe::of(command, &world.dir("work/bare"))
    };
    (0..number).map(start).collect()
}
