//! Houses whose agent is run by npm's acpx.

use acp_tests::foreign;
use acp_tests::house::{AGENT, House, Plan, scripted};
use acp_tests::lease::Lease;
use acp_tests::processes::Process;
use acp_tests::wait::{LONG, until};
use acp_tests::world::World;
use std::collections::BTreeMap;

/// Configuration of a gateway that uses acpx.
///
/// # Panics
/// When acpx is not installed.
pub(crate) fn backend() -> String {
    let acpx = foreign::install_dir().join("clients/acpx/bin/acpx");
    assert!(acpx.is_file(), "no {}: run `make test-foreign`", acpx.display());
    format!("[acp]\nbackend = \"acpx\"\n[backends.acpx]\ncommand = [\"{}\"]\n", acpx.display())
}

/// House whose scripted agent is run by acpx, with this configuration of its supervisor.
pub(crate) fn house(supervisor: &str) -> House {
    house_with("", supervisor)
}

/// The same with more of the gateway's configuration.
pub(crate) fn house_with(gateway: &str, supervisor: &str) -> House {
    let world = World::new();
    let agent = scripted(&world, &[], "approve-all");
    let plan = Plan::default().gateway(&format!("{}{gateway}", backend())).supervisor(supervisor);
    plan.build_in(world, &BTreeMap::from([(AGENT, agent)]))
}

/// True for the scripted agent. The command `env` and acpx name it in their arguments, too.
pub(crate) fn is_agent(process: &Process) -> bool {
    process.argv.first().is_some_and(|program| program.ends_with("fake-agent"))
}

/// Closes a session and checks that nothing of it is left.
pub(crate) fn close(house: &House, key: &str, lease: &Lease) {
    let _ = house.verb(&["sessions", "close", key]);
    until(LONG, "nothing is left of the session", || {
        lease.processes().is_empty() && !house.world.processes().iter().any(is_agent)
    });
}
