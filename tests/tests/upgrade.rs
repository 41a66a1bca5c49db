//! In-place upgrade of the supervisor: the gateway reconnects, the agent keeps running, and no output is lost.

use acp_tests::cli::RunningCommand;
use acp_tests::house::House;
use acp_tests::story::{check_chunks, check_history, check_turn, chunks};
use acp_tests::wait::LONG;
use acp_tests::world::bin;
use std::os::unix::fs::PermissionsExt;

const CHUNKS: u64 = 10_000;
const SIZE: usize = 16;

fn upgrade(house: &House, more: &[&str]) -> acp_tests::cli::Output {
    let state_dir = house.world.path("supervisor");
    let state_dir = state_dir.to_string_lossy();
    let args = [&["upgrade", "--state-dir", state_dir.as_ref()], more].concat();
    house.world.supervisor_cli(house.socket(), &args)
}

fn said_until(turn: &mut RunningCommand, number: u64) -> Vec<serde_json::Value> {
    let begins = format!("{number:06}");
    turn.events_until(LONG, |event| event["text"].as_str().is_some_and(|text| text.starts_with(&begins)))
}

/// Acceptance point 5.
#[test]
fn heavy_turn_of_ten_thousand_chunks_continues_across_upgrades() {
    let (house, key) = House::new(&[]).with_session();
    let (lease, supervisor) = (house.lease(&key), house.supervisor().pid());
    let mut turn = house.follow(&["prompt", &key, &format!("chunks {CHUNKS} pace_ms=1 size={SIZE}")]);
    let mut events = Vec::new();
    for at in [1_000, 3_000, 5_000] {
        events.extend(said_until(&mut turn, at));
        let done = upgrade(&house, &[]).ok().json();
        assert_eq!(done["leases"], 1, "{done}");
        eprintln!("at chunk {at}: {done}");
    }
    // A failed handover changes nothing.
    let broken = house.world.write("broken", "#!/bin/sh\nexit 1\n");
    std::fs::set_permissions(&broken, std::fs::Permissions::from_mode(0o755))
        .unwrap_or_else(|e| panic!("{e}"));
    let refused = upgrade(&house, &["--program", &broken.to_string_lossy()]);
    assert_eq!((refused.code, refused.error_code().as_str()), (Some(1), "UPGRADE_FAILED"));
    events.extend(said_until(&mut turn, 7_000));
    let named = bin("acp-supervisor");
    let _ = upgrade(&house, &["--program", &named.to_string_lossy()]).ok();
    events.extend(turn.finish(LONG).ok().lines());
    check_turn(&events, "end_turn");
    check_chunks(&chunks(&events), CHUNKS, SIZE);

    let now = house.lease(&key);
    assert_eq!(
        (now.id(), now.adapter_pid(), now.wrapper_pid()),
        (lease.id(), lease.adapter_pid(), lease.wrapper_pid()),
        "the agent's process must not change"
    );
    assert_eq!(house.supervisor().pid(), supervisor);
    check_history(&house.history(&key));
    check_turn(&house.prompt(&key, "and on"), "end_turn");
    house.check_agent();
    house.end();
}
