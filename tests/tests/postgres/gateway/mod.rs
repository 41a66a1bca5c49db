//! Gateways whose control plane is in a cell.

mod discord;
mod foreign;
mod hung;
mod moves;
mod shards;
mod standby;

use acp_testkit::postgres::Postgres;
use acp_tests::house::{AGENT, House, Plan, scripted};
use acp_tests::world::{Agent, World};
use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

/// Configuration of a gateway with its store in a cell; writes the file with the address.
pub(crate) fn configuration(world: &World, address: &str, allow_loss: bool) -> String {
    let file = world.write("address", &format!("{address}\n"));
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    format!(
        "[acp.control_plane]\nstore = \"postgres\"\n[acp.control_plane.postgres]\naddress_file = \"{}\"\nallow_loss = {allow_loss}",
        file.display()
    )
}

pub(crate) fn agents(world: &World) -> BTreeMap<&'static str, Agent> {
    BTreeMap::from([(AGENT, scripted(world, &[], "ask"))])
}

pub(crate) fn configure(world: &World, name: &str, toml: &str) {
    let _ = world.configure(name, toml, &agents(world));
}

/// Services whose gateway's store is in a database of its own.
fn house(server: &Postgres, database: &str) -> House {
    let world = World::new();
    let toml = configuration(&world, &server.create_database(database), true);
    let agents = agents(&world);
    Plan::default().gateway(&toml).build_in(world, &agents)
}

/// Command line of a gateway's verb with its configuration.
fn verb(house: &House, name: &str, args: &[&str]) -> Command {
    let mut command = house.world.gateway_verb(name, args);
    command.arg("--config").arg(house.world.path(&format!("{name}.toml")));
    command
}
