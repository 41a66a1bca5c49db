//! The view of a balancer and of people on two gateways with one cell, one of which stands by.

use super::super::{configuration, configure, verb};
use acp_testkit::postgres::Postgres;
use acp_tests::cli::run;
use acp_tests::house::{GATEWAY, House, Plan};
use acp_tests::service::Service;
use acp_tests::story::check_answer;
use acp_tests::wait::{LONG, SOON, eventually, until};
use acp_tests::world::World;
use serde_json::Value;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// Name of the second gateway.
const SECOND: &str = "second";
/// Longest time from SIGTERM of an owner until another gateway serves, on a busy machine. Planned is one second.
const HAND_OVER_MAX: Duration = Duration::from_secs(5);
const LISTEN: &str = "[northbound]\nlisten = [\"unix\", \"127.0.0.1:0\"]\n";

/// Status and body of a request without a token; `None` if nothing listens.
fn ask(at: SocketAddr, path: &str) -> Option<(u16, Value)> {
    let mut stream = TcpStream::connect(at).ok()?;
    stream.set_read_timeout(Some(SOON)).unwrap();
    write!(stream, "GET {path} HTTP/1.0\r\nhost: {at}\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    Some((head.split(' ').nth(1)?.parse().ok()?, serde_json::from_str(body).ok()?))
}

fn owner(at: SocketAddr) -> Option<(u16, Value)> {
    ask(at, "/v1/owner")
}

fn serves(at: SocketAddr) -> bool {
    owner(at).is_some_and(|(status, _)| status == 200)
}

/// Address of a gateway's TCP listener, from its log.
fn address(gateway: &Service) -> SocketAddr {
    eventually(SOON, "a listener", || {
        let log = gateway.log();
        let ports = log.split("127.0.0.1:").skip(1).filter_map(|rest| {
            let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
            digits.parse::<u16>().ok().filter(|port| *port > 0)
        });
        ports.last().map(|port| SocketAddr::from(([127, 0, 0, 1], port)))
    })
}

/// Two gateways on one cell, with a TCP listener each. The second one stands by.
fn pair(server: &Postgres, database: &str) -> (House, String, Service) {
    let world = World::new();
    let cell = configuration(&world, &server.create_database(database), true);
    let toml = format!("{LISTEN}{cell}");
    configure(&world, SECOND, &toml);
    let agents = super::super::agents(&world);
    let (house, key) = Plan::default().gateway(&toml).build_in(world, &agents).with_session();
    let second = house.world.standby(SECOND, house.socket());
    (house, key, second)
}

#[test]
#[ignore = "needs a PostgreSQL server: make test-postgres"]
fn balancer_sees_one_owner_before_during_and_after_a_take_over() {
    let Some(server) = Postgres::start() else { return };
    let (mut house, key, second) = pair(&server, "owners");
    let (first_at, second_at) = (address(house.gateway()), address(&second));
    let (status, first) = owner(first_at).unwrap();
    assert_eq!((status, &first["serves"], &first["cell"]), (200, &true.into(), &"main".into()), "{first}");
    assert_eq!(first["owner"]["pid"], house.gateway().pid(), "{first}");
    assert_eq!(first["owner"]["addresses"][0], first_at.to_string(), "{first}");
    let (status, other) = owner(second_at).unwrap();
    assert_eq!((status, &other["serves"], &other["owner"]), (503, &false.into(), &first["owner"]), "{other}");
    assert_eq!(other["detail_code"], "STANDING_BY", "{other}");
    assert_eq!(ask(second_at, "/health").unwrap().0, 200, "it lives");
    assert_eq!(ask(second_at, "/v1/sessions").unwrap().1["detail_code"], "STANDING_BY");
    assert_eq!(ask(first_at, "/v1/sessions").unwrap().0, 401, "others need a token");

    let shown = run(&mut house.world.gateway_verb(SECOND, &["status"]), LONG);
    assert_eq!(shown.code, Some(1), "{shown:?}");
    let shown = shown.json();
    let text = shown["detail"].as_str().unwrap();
    assert_eq!(shown["standing_by"], true, "{shown}");
    assert!(text.contains("stands by for the cell main") && text.contains(&first_at.to_string()), "{text}");

    let checks = run(&mut verb(&house, SECOND, &["doctor"]), LONG).lines().swap_remove(0);
    let found = checks.as_array().unwrap().iter().find(|check| check["name"] == "gateway").unwrap();
    assert_eq!(found["verdict"], "note", "standing by is no fault: {found}");

    // No moment in which the second refuses a connection: its sockets are handed over.
    house.kill_gateway();
    let mut refused = 0;
    until(LONG, "the second serves", || {
        let answer = owner(second_at);
        refused += u32::from(answer.is_none());
        answer.is_some_and(|(status, _)| status == 200)
    });
    assert_eq!((refused, owner(first_at)), (0, None));
    let (_, taken) = owner(second_at).unwrap();
    assert_eq!(taken["owner"]["epoch"], first["owner"]["epoch"].as_u64().unwrap() + 1, "{taken}");
    assert_eq!(taken["owner"]["pid"], second.pid(), "{taken}");
    until(LONG, "the second is ready", || second.has_printed("ready"));
    check_answer(&house.world.prompt(SECOND, &key, "now the second"), ["echo: now the second"]);

    // An orderly end of the second, for which the first stands by.
    let first = house.world.standby(GATEWAY, house.socket());
    let first_at = address(&first);
    assert_eq!(owner(first_at).unwrap().1["owner"], taken["owner"]);
    let began = Instant::now();
    assert_eq!(second.terminate(LONG), Some(0));
    until(LONG, "the first serves", || serves(first_at));
    let took = began.elapsed();
    println!("from SIGTERM of the owner until another gateway serves: {took:?}");
    assert!(took < HAND_OVER_MAX, "{took:?}");
    until(LONG, "the first is ready", || first.has_printed("ready"));
    check_answer(&house.prompt(&key, "the first again"), ["echo: the first again"]);

    // A gateway that stands by ends at once, and leaves no socket.
    let second = house.world.standby(SECOND, house.socket());
    assert_eq!(second.terminate(LONG), Some(0));
    assert!(!house.world.path("second/gateway.sock").exists());
    let locked = run(verb(&house, GATEWAY, &["serve"]).arg("--supervisor-socket").arg(house.socket()), LONG);
    assert_eq!(locked.error()["detail_code"], "STORE_LOCKED");
    assert_eq!(first.terminate(LONG), Some(0));
}
