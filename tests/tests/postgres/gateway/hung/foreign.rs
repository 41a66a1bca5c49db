//! SIGTERM while a server is hung: at the start, and of a gateway that serves.

use super::super::{house, verb};
use acp_testkit::postgres::Postgres;
use acp_tests::cli::RunningCommand;
use acp_tests::house::GATEWAY;
use acp_tests::story::check_answer;
use acp_tests::wait::{LONG, SOON, until};
use rustix::process::Signal;
use std::time::{Duration, Instant};

/// Longest time until a start that waits has ended after SIGTERM, on a busy machine.
const START_ENDS: Duration = Duration::from_secs(5);
/// Longest time until a gateway has ended: it gives the cell up after 8 s, and waits 5 s for its orderly end.
const GATEWAY_ENDS: Duration = Duration::from_secs(25);

#[test]
#[ignore = "needs a PostgreSQL server: make test-postgres"]
fn signal_ends_a_gateway_whose_server_is_hung() {
    let Some(server) = Postgres::start() else { return };
    let (mut house, key) = house(&server, "hung").with_session();
    check_answer(&house.prompt(&key, "hello"), ["echo: hello"]);
    house.stop_gateway();

    let frozen = server.freeze();
    let mut start = verb(&house, GATEWAY, &["serve"]);
    let starting = RunningCommand::start(start.arg("--supervisor-socket").arg(house.socket()));
    let lock = house.world.path("gateway/gateway.lock");
    until(SOON, "the start waits", || {
        std::fs::read_to_string(&lock).is_ok_and(|text| text.starts_with(&format!("{}\n", starting.pid())))
    });
    let began = Instant::now();
    assert!(starting.signal(Signal::TERM));
    assert_eq!(starting.finish(LONG).code, Some(0));
    assert!(began.elapsed() < START_ENDS, "{:?}", began.elapsed());
    drop(frozen);

    house.start_gateway();
    check_answer(&house.prompt(&key, "again"), ["echo: again"]);
    let mut client = house.follow(&["prompt", &key, "chunks 2000 size=16 pace_ms=10"]);
    until(LONG, "a turn runs", || client.event(LONG).is_some_and(|event| event["type"] == "text_delta"));
    let frozen = server.freeze();
    let (pid, began) = (house.gateway().pid(), Instant::now());
    assert!(house.gateway().signal(Signal::TERM));
    until(LONG, "the gateway ends", || !acp_testkit::processes::is_alive(pid));
    println!("from SIGTERM to the end of a gateway whose server is hung: {:?}", began.elapsed());
    assert!(began.elapsed() < GATEWAY_ENDS, "{:?}", began.elapsed());
    assert!(house.gateway_log().contains("ownership of the cell given up"), "one deadline for all renewals");
    house.kill_gateway();
    client.kill9();
    drop(frozen);
    house.start_gateway();
    assert_eq!(house.verb(&["sessions", "show", &key])["state"], "running", "the turn goes on");
    house.stop_gateway();
}
