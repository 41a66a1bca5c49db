//! Gateways whose control plane is in a cell: kills of the gateway and of the server, a second gateway that takes over, moves.

use super::{configuration, configure, house, verb};
use acp_testkit::postgres::Postgres;
use acp_testkit::processes::is_alive;
use acp_tests::cli::{RunningCommand, run};
use acp_tests::house::{GATEWAY, House};
use acp_tests::story::{check_answer, check_chunks, check_history, chunks};
use acp_tests::wait::{LONG, SOON, until};
use acp_tests::world::{GATEWAY_DB, World};
use std::os::unix::fs::PermissionsExt as _;
use std::time::{Duration, Instant};

/// Chunks of a long turn, and the bytes of each.
const CHUNKS: u64 = 300;
const SIZE: usize = 16;
/// Longest time from the kill of an owner to the answer of its successor.
const TAKE_OVER_MAX: Duration = Duration::from_secs(15);

fn long_prompt() -> String {
    format!("chunks {CHUNKS} size={SIZE} pace_ms=10")
}

/// Number of rows of a session's journal.
fn journal(server: &Postgres, database: &str, key: &str) -> u64 {
    let sql = format!("SELECT count(*) FROM acp_main.acp_events WHERE session_key = '{key}'");
    server.query(&server.address_of(database), &sql).map_or(0, |count| count.parse().unwrap())
}

#[test]
#[ignore = "needs a PostgreSQL server: make test-postgres"]
fn turn_goes_on_after_kills_of_the_gateway_and_of_the_server() {
    let Some(mut server) = Postgres::start() else { return };
    let (mut house, key) = house(&server, "kills").with_session();
    check_answer(&house.prompt(&key, "hello"), ["echo: hello"]);
    let text = long_prompt();
    let args = ["prompt", &key, &text, "--idempotency-key", "long"];
    let mut client = house.follow(&args);
    let before = journal(&server, "kills", &key);
    until(SOON, "the turn is journaled", || journal(&server, "kills", &key) > before + 20);
    house.restart_gateway();
    until(LONG, "the turn goes on", || journal(&server, "kills", &key) > before + 80);

    server.kill();
    let pid = house.gateway().pid();
    until(LONG, "the gateway ends without its server", || !is_alive(pid));
    house.kill_gateway();
    server.restart();
    house.start_gateway();
    client.kill9();
    let events = house.follow(&args).finish(LONG).ok().lines();
    check_chunks(&chunks(&events), CHUNKS, SIZE);
    check_history(&house.history(&key));
    check_answer(&house.prompt(&key, "again"), ["echo: again"]);
    let doctor = run(&mut verb(&house, GATEWAY, &["doctor"]), LONG).lines();
    let checks = doctor[0].as_array().unwrap();
    let found: Vec<_> = checks.iter().filter(|check| check["name"] == "store server").collect();
    assert!(found.iter().all(|check| check["verdict"] != "failed") && found.len() == 2, "{found:#?}");
    assert!(found[0]["detail"].as_str().is_some_and(|detail| detail.contains("served by")), "{found:#?}");
    house.stop_gateway();
}

#[test]
#[ignore = "needs a PostgreSQL server: make test-postgres"]
fn second_gateway_takes_the_cell_over_after_a_kill() {
    let Some(server) = Postgres::start() else { return };
    let (mut house, key) = house(&server, "pair").with_session();
    check_answer(&house.prompt(&key, "hello"), ["echo: hello"]);
    std::fs::copy(house.world.path("gateway.toml"), house.world.path("second.toml")).unwrap();
    let socket = house.socket().to_string_lossy().into_owned();
    let start = ["serve", "--supervisor-socket", &socket];
    let mut second = RunningCommand::start(&mut verb(&house, "second", &start));
    let local = house.world.path("second/gateway.sock");
    until(SOON, "the second gateway stands by", || local.exists());
    let refused = house.world.cli("second", &["prompt", &key, "not here"]).error();
    assert_eq!(refused["detail_code"], "STANDING_BY", "it serves nobody: {refused}");
    check_answer(&house.prompt(&key, "still the first"), ["echo: still the first"]);

    let killed = Instant::now();
    house.kill_gateway();
    let ready = second.event(LONG).unwrap();
    assert_eq!(ready["event"], "ready", "{ready}");
    check_answer(&house.world.prompt("second", &key, "now the second"), ["echo: now the second"]);
    let took = killed.elapsed();
    println!("from the kill of the owner to an answer of its successor: {took:?}");
    assert!(took < TAKE_OVER_MAX, "{took:?}");
    check_history(&house.world.history("second", &key));
    assert!(second.signal(rustix::process::Signal::TERM));
    let _ = second.finish(LONG).ok();
}

#[test]
#[ignore = "needs a PostgreSQL server: make test-postgres"]
fn server_without_standby_is_refused_unless_its_loss_is_allowed() {
    let Some(server) = Postgres::start() else { return };
    let world = World::new();
    let address = server.create_database("standby");
    configure(&world, GATEWAY, &configuration(&world, &address, false));
    let supervisor = world.supervisor();
    let socket = supervisor.socket();
    let mut start = world.gateway_verb(GATEWAY, &["serve"]);
    start.arg("--supervisor-socket").arg(&socket).arg("--config").arg(world.path("gateway.toml"));
    let refused = run(&mut start, LONG).error();
    assert_eq!(refused["detail_code"], "STORE_SERVER", "{refused}");
    assert!(refused["message"].as_str().is_some_and(|text| text.contains("allow_loss")), "{refused}");
    let file = world.path("address");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o640)).unwrap();
    let open = run(&mut start, LONG).error();
    assert_eq!(open["code"], "CONFIG_INVALID", "{open}");
    assert!(open["message"].as_str().is_some_and(|text| text.contains("chmod 600")), "{open}");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    let standby = server.standby();
    let gateway = world.gateway(GATEWAY, &socket);
    assert_eq!(gateway.terminate(LONG), Some(0));
    drop(standby);
}

#[test]
#[ignore = "needs a PostgreSQL server: make test-postgres"]
fn control_plane_is_moved_to_the_server_and_back_with_its_sessions() {
    let Some(server) = Postgres::start() else { return };
    let (mut house, key) = House::new(&[]).with_session();
    check_answer(&house.prompt(&key, "in a file"), ["echo: in a file"]);
    let lease = house.lease(&key);
    let cell = configuration(&house.world, &server.create_database("moved"), true);
    let file = cell.replace("store = \"postgres\"\n", "");
    configure(&house.world, GATEWAY, &file);
    let move_to = |house: &House, to: &str| verb(house, GATEWAY, &["store", "move", "--to", to]);
    let running = run(&mut move_to(&house, "postgres"), LONG).error();
    assert_eq!(running["detail_code"], "STORE_LOCKED", "{running}");
    house.stop_gateway();
    let planned = run(move_to(&house, "postgres").arg("--dry-run"), LONG).ok().json();
    assert_eq!(planned["dry_run"], true, "{planned}");
    let moved = run(&mut move_to(&house, "postgres"), LONG).ok().json();
    assert_eq!(moved["tables"], planned["tables"]);
    assert!(!house.world.path(GATEWAY).join(GATEWAY_DB).exists());
    let socket = house.socket().to_string_lossy().into_owned();
    let start = ["serve", "--supervisor-socket", &socket];
    let refused = run(&mut verb(&house, GATEWAY, &start), LONG).error();
    assert_eq!(refused["detail_code"], "STORE_ELSEWHERE", "{refused}");
    configure(&house.world, GATEWAY, &cell);
    house.start_gateway();
    check_answer(&house.prompt(&key, "on the server"), ["echo: on the server"]);
    assert_eq!(house.lease(&key).id(), lease.id(), "the agent lived on");
    assert_eq!(house.cli(&["store", "check"]).error_code(), "USAGE");
    house.stop_gateway();

    let _ = run(&mut move_to(&house, "sqlite"), LONG).ok();
    let refused = run(&mut verb(&house, GATEWAY, &start), LONG).error();
    assert_eq!(refused["detail_code"], "STORE_ELSEWHERE", "{refused}");
    configure(&house.world, GATEWAY, &file);
    house.start_gateway();
    check_answer(&house.prompt(&key, "in a file again"), ["echo: in a file again"]);
    assert_eq!(house.lease(&key).id(), lease.id(), "the agent lived on");
    check_history(&house.history(&key));
    assert_eq!(house.verb(&["store", "check"])["ok"], true);
    house.stop_gateway();
}
