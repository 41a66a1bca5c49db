//! Certificates of a server, in front of a real gateway and of `doctor`.

use crate::gateway::{agents, configuration, configure};
use acp_testkit::postgres::Postgres;
use acp_tests::cli::run;
use acp_tests::house::{GATEWAY, Plan};
use acp_tests::story::check_answer;
use acp_tests::wait::LONG;
use acp_tests::world::World;
use serde_json::Value;
use std::net::SocketAddr;
use std::process::Command;

const SERVER: &str = include_str!("server.pem");
const KEY: &str = include_str!("server.key");
const EXPIRED: &str = include_str!("expired.pem");
const AUTHORITY: &str = include_str!("ca.pem");
const OTHER_AUTHORITY: &str = include_str!("other.pem");

/// Configuration of a gateway that connects to a host with this name.
fn with_name(world: &World, at: SocketAddr, name: &str, authority: &str) -> String {
    let address = format!("postgresql://acp@{name}:{}/postgres?hostaddr={}", at.port(), at.ip());
    let file = world.write("authority.pem", authority);
    format!("{}\nca_file = \"{}\"\n", configuration(world, &address, true), file.display())
}

fn verb(world: &World, args: &[&str]) -> Command {
    let mut command = world.gateway_verb(GATEWAY, args);
    command.arg("--config").arg(world.path("gateway.toml"));
    command
}

/// Verdict and detail of the check of the server.
fn checked(world: &World) -> (String, String) {
    let checks: Value = run(&mut verb(world, &["doctor"]), LONG).lines().swap_remove(0);
    let found = checks.as_array().unwrap().iter().find(|check| check["name"] == "store server").unwrap();
    let text = |name: &str| found[name].as_str().unwrap().to_owned();
    (text("verdict"), text("detail"))
}

#[test]
#[ignore = "needs a PostgreSQL server: make test-postgres"]
fn certificate_of_the_server_is_checked_and_its_fault_is_named() {
    let Some(mut server) = Postgres::start() else { return };
    let at = server.listen_with_tls(SERVER, KEY);
    let world = World::new();
    let (toml, agents) = (with_name(&world, at, "db.test", AUTHORITY), agents(&world));
    let (house, key) = Plan::default().gateway(&toml).build_in(world, &agents).with_session();
    check_answer(&house.prompt(&key, "encrypted"), ["echo: encrypted"]);
    let encrypted = "SELECT count(*) FILTER (WHERE ssl), count(*) FILTER (WHERE NOT ssl) FROM pg_stat_ssl \
        JOIN pg_stat_activity USING (pid) WHERE application_name LIKE 'acp-host %'";
    let found = server.query(&server.address(), encrypted).unwrap();
    let (with, without) = found.split_once('|').unwrap();
    assert!(with.parse::<u32>().unwrap() >= 2 && without == "0", "{found}");
    let world = &house.world;
    let faults = [
        ("db.test", AUTHORITY, None),
        ("db.test", OTHER_AUTHORITY, Some("its authority is unknown")),
        ("other.test", AUTHORITY, Some("another host name")),
    ];
    for (name, authority, fault) in faults {
        configure(world, GATEWAY, &with_name(world, at, name, authority));
        let (verdict, detail) = checked(world);
        assert_eq!(verdict == "failed", fault.is_some(), "{name}: {detail}");
        assert!(fault.is_none_or(|fault| detail.contains(fault)), "{name}: {detail}");
    }
    drop(house);

    server.set_certificate(EXPIRED);
    let world = World::new();
    configure(&world, GATEWAY, &with_name(&world, at, "db.test", AUTHORITY));
    let (verdict, detail) = checked(&world);
    assert!(verdict == "failed" && detail.contains("has expired"), "{detail}");
    // A start waits for a server that is out of reach, but not for another certificate.
    let mut start = verb(&world, &["serve"]);
    let refused = run(start.arg("--supervisor-socket").arg(world.path("none.sock")), LONG).error();
    assert_eq!(refused["detail_code"], "STORE_SERVER", "{refused}");
    assert!(refused["message"].as_str().is_some_and(|text| text.contains("has expired")), "{refused}");
}
