//! Sessions with shared directories: they go on at another host when theirs is lost.

use crate::gateway::{adapter, shown, spawn, wait_until_connected};
use crate::plane::Plane;
use acp_tests::house::{AGENT, Plan, scripted};
use acp_tests::story::{check_answer, check_history, check_turn};
use acp_tests::wait::{LONG, SOON, until};
use acp_tests::world::World;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Longest time until a lost session goes on: the promise of a host with the times below, a tenth, the reserve of a minute,
/// and a busy machine.
const MOVED: Duration = Duration::from_secs(240);
/// Shortest time: the reserve, which no host can report away.
const MOVED_MIN: Duration = Duration::from_secs(60);

#[test]
fn heavy_shared_session_goes_on_elsewhere_after_the_promise() {
    let world = World::new();
    let plane = Plane::new(&world);
    let times = "detached_grace_ms = 1000\nremote_silence_ms = 12000";
    let hosts = ["one", "two"].map(|name| plane.host(&world, name, times));
    let [one, two] = &hosts;
    let (root, other) = (world.dir("work/shared"), world.dir("work/own").display().to_string());
    let below = world.dir("work/shared/project").display().to_string();
    let roots = format!("[remote]\nshared_roots = [{:?}]\n", root.display().to_string());
    let toml = plane.configuration(&[(one, ""), (two, "")]).replace("[remote]\n", &roots);
    let agents = BTreeMap::from([(AGENT, scripted(&world, &[], "approve-all"))]);
    let mut house = Plan::default().gateway(&toml).build_in(world, &agents);
    for host in ["one", "two"] {
        wait_until_connected(&house, host);
    }
    let shared = spawn(&house, &["--host", "one", "--cwd", &below]);
    let pinned = spawn(&house, &["--host", "one", "--cwd", &other]);
    for key in [&shared, &pinned] {
        check_turn(&house.prompt(key, "first"), "end_turn");
    }
    let _ = adapter(&house, one, &shared);
    let lease = house.world.living_lease(&one.socket(), &shared).unwrap();
    // The report of the host is recorded within its interval.
    until(SOON, "the host's report is in the database", || {
        let recorded = house.world.journal("gateway").query_row(
            "SELECT value FROM acp_meta WHERE key = 'host_report:one'",
            [],
            |row| row.get::<_, String>(0),
        );
        recorded.is_ok_and(|text| !text.contains("null"))
    });

    let long = "chunks 4000 pace_ms=100";
    let running = house.follow(&["prompt", &shared, long]);
    until(SOON, "the turn runs", || house.prompts_received(long) == 1);
    one.cable.cut();
    let cut = Instant::now();
    // A restarted gateway has never seen the host, and counts from its own start.
    house.restart_gateway();
    drop(running);
    let waiting = house.follow(&["prompt", &shared, "say there", "--no-wait"]);
    until(SOON, "the prompt is queued", || shown(&house, &shared)["queued_runs"] == 1);

    until(MOVED, "the session is elsewhere", || shown(&house, &shared)["host"] == "two");
    println!("from the cut to the move: {:?}", cut.elapsed());
    assert_eq!(lease.processes(), [], "its agent had ended before");
    assert!(cut.elapsed() >= MOVED_MIN, "{:?}", cut.elapsed());
    until(LONG, "the queued prompt is answered", || {
        let now = shown(&house, &shared);
        now["state"] == "idle" && now["queued_runs"] == 0
    });
    drop(waiting);
    for text in [long, "say there"] {
        assert_eq!(house.prompts_received(text), 1, "{text}");
    }
    let history = house.history(&shared);
    check_history(&history);
    let ends = history.iter().filter(|event| event["code"] == "ACP_UNCERTAIN").count();
    assert_eq!(ends, 1, "the interrupted turn is uncertain: {history:#?}");
    check_answer(&house.prompt(&shared, "say again"), ["again"]);
    let _ = adapter(&house, two, &shared);
    assert_eq!(shown(&house, &pinned)["host"], "one", "another directory stays with its host");

    one.cable.mend();
    wait_until_connected(&house, "one");
    check_turn(&house.prompt(&pinned, "back"), "end_turn");
    assert_eq!(shown(&house, &shared)["host"], "two");
    assert!(house.world.living_lease(&one.socket(), &shared).is_none(), "one agent for one session");
    for (key, host) in [(&shared, two), (&pinned, one)] {
        drop(house.verb(&["sessions", "close", key]));
        until(LONG, "the agent has ended", || house.world.living_lease(&host.socket(), key).is_none());
    }
    let [one, two] = hosts;
    one.end();
    two.end();
    house.end();
}
