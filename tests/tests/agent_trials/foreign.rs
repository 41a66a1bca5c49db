//! A real agent that npx downloads from the registry of npm, into an empty cache.

use acp_tests::cli::output_text;
use acp_tests::fake_model::probe::FakeModel;
use acp_tests::foreign::qwen_by_npx;
use acp_tests::held_proxy::HeldProxy;
use acp_tests::house::{GATEWAY, House, Plan};
use acp_tests::lease::Lease;
use acp_tests::pty::Pty;
use acp_tests::story::check_turn;
use acp_tests::wait::{LONG, eventually, until};
use acp_tests::world::World;
use serde_json::json;
use std::collections::BTreeMap;
use std::time::Duration;

/// Name of the agent in presets and configuration.
const QWEN: &str = "qwen";
/// Deadline of a download.
const DOWNLOAD: Duration = Duration::from_secs(600);
/// Time limit for opening a session, in milliseconds: shorter than the download takes here.
const INIT_MS: u64 = 9_000;
/// Bytes that pass before the download is held: all that npm asks for first, and a part of the package of more than 20 MB.
const PART: u64 = 4_000_000;

/// A house whose agent is downloaded through the proxy.
fn house(model: &FakeModel, world: World, proxy: &HeldProxy) -> House {
    let agent = qwen_by_npx(&world, model.url(), &proxy.url()).set("init_ms", INIT_MS);
    Plan::default().build_in(world, &BTreeMap::from([(QWEN, agent)]))
}

fn install(house: &House) -> Pty {
    let mut command = house.plain(&["agents", "install", QWEN]);
    Pty::start(command.current_dir(house.world.dir("work/project")), 160, 40)
}

/// Waits until no process of an agent is left.
fn wait_for_no_agent(house: &House) {
    until(LONG, "no lease is open", || {
        house.leases().iter().all(|lease| matches!(lease.state(), "closed" | "lost"))
    });
    let services = [house.gateway().pid(), house.supervisor().pid()];
    let mut left = house.world.processes();
    left.retain(|process| !services.contains(&process.pid) && !process.argv[0].ends_with("/fake-model"));
    assert_eq!(left, [], "a process outlives its lease");
}

/// Texts of the journal about downloads.
fn reports(house: &House) -> Vec<String> {
    let db = house.world.journal(GATEWAY);
    let sql = "SELECT json_extract(payload_json, '$.text') FROM acp_events \
        WHERE json_extract(payload_json, '$.status') = 'agent_fetched' ORDER BY session_seq";
    let mut rows = db.prepare(sql).unwrap_or_else(|e| panic!("{e}"));
    let texts = rows.query_map([], |row| row.get(0)).unwrap_or_else(|e| panic!("{e}"));
    texts.collect::<Result<_, _>>().unwrap_or_else(|e| panic!("{e}"))
}

/// Checks that a text names the download, and in seconds how long it has taken.
fn check_report(text: &str) {
    let (_, rest) = text
        .split_once("npx is starting the agent's program, and downloads it first if it is new: ")
        .unwrap_or_else(|| panic!("no download: {text}"));
    let (took, rest) = rest.split_once(" so far").unwrap_or_else(|| panic!("no duration: {text}"));
    assert!(took.ends_with('s') && !took.ends_with("ms") && rest.starts_with(", at most 10m"), "{text}");
}

#[test]
#[ignore = "needs npm and its registry: make test-foreign"]
fn download_is_shown_interrupted_and_repeated() {
    let (world, proxy) = (World::new(), HeldProxy::start(PART));
    let model = FakeModel::start(&world);
    let house = house(&model, world, &proxy);
    let cached = house.world.path("npm-cache/_npx");
    let mut first = install(&house);
    until(DOWNLOAD, "the download is held", || proxy.holds());
    // Longer than a start may take without a download.
    let later = ["[starting qwen: 10 s]", "[starting qwen: 11 s]", "[starting qwen: 15 s]"];
    let screen = first.screen_with("progress after `init_ms`", |screen| {
        screen.contains("so far") && later.iter().any(|line| screen.contains(line))
    });
    check_report(&screen);
    assert!(!screen.contains("error"), "{screen}");
    assert!(!house.leases().is_empty(), "the agent's process runs");
    first.interrupt();
    assert_eq!(first.exit_code(), Some(130), "{}", first.screen());
    let lease = house.leases().pop();
    assert_eq!(
        lease.as_ref().map(Lease::state),
        Some("closed"),
        "the command waits for the end of the agent"
    );
    wait_for_no_agent(&house);
    assert_eq!(house.verb(&["sessions", "list"]), json!([]));

    proxy.open();
    let mut second = install(&house);
    eventually(DOWNLOAD, "the agent is installed", || {
        let screen = second.screen();
        assert!(!screen.contains("error"), "{screen}");
        screen.contains("qwen is installed: it started in").then_some(())
    });
    assert_eq!(second.exit_code(), Some(0), "{}", second.screen());
    let packages = std::fs::read_dir(&cached).unwrap_or_else(|e| panic!("{}: {e}", cached.display()));
    assert_eq!(packages.count(), 1, "npx has fetched the package into the empty cache");
    wait_for_no_agent(&house);
    drop(model);
    house.end();
}

#[test]
#[ignore = "needs npm and its registry: make test-foreign-nightly"]
fn nightly_spawn_that_downloads_says_so_and_then_answers() {
    let (world, proxy) = (World::new(), HeldProxy::start(PART));
    let model = FakeModel::start(&world);
    let house = house(&model, world, &proxy);
    let key = house.world.spawn(GATEWAY, QWEN, "work/project");
    let mut turn = house.follow(&["prompt", &key, "[[say fetched]]"]);
    until(DOWNLOAD, "the download is held", || proxy.holds());
    // Conversations and `chat` show it; the events of a turn begin with its start.
    check_report(&eventually(LONG, "a report of the download", || reports(&house).pop()));
    proxy.open();
    let events = turn.events_until(DOWNLOAD, |event| event["type"] == "done");
    check_turn(&events, "end_turn");
    assert_eq!(output_text(&events).trim(), "fetched");
    let _ = house.verb(&["sessions", "close", &key]);
    wait_for_no_agent(&house);
    drop(model);
    house.end();
}
