//! The live card of a turn on the console, with real processes and a gateway that is killed in the turn.

use acp_tests::house::{GATEWAY, House, Plan};
use acp_tests::invariants;
use acp_tests::wait::{LONG, until};

const LIVE: &str = "[acp.stream]\ndelivery_mode = \"live\"\nmin_interval_ms = 50\n";

/// Kind and text of each message of a conversation that the gateway sent, in order.
fn told(house: &House) -> Vec<(String, String)> {
    let db = house.world.journal(GATEWAY);
    let sql = "SELECT kind, text FROM console_message WHERE conversation_id = 'room' \
               AND kind IN ('card','permission','final') ORDER BY id";
    let mut rows = db.prepare(sql).unwrap_or_else(|e| panic!("{e}"));
    let rows = rows.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap_or_else(|e| panic!("{e}"));
    rows.map(|row| row.unwrap_or_else(|e| panic!("{e}"))).collect()
}

/// C7, C9: the status card is edited in place, continued by the next gateway after a kill, and folded above the answer,
/// which comes once.
#[test]
fn card_continues_after_kill_and_answer_comes_once() {
    let (mut house, key) = Plan::flags(&[]).gateway(LIVE).build().with_session();
    let focused = house.say("room", "1", &format!("/focus {key}"));
    assert_eq!(focused["outcome"], "command", "{focused}");
    let asked = house.say("room", "2", "say One. \nsleep 2000\nsay Two. \npermission Write\nsay Three.");
    assert_eq!(asked["outcome"], "prompted", "{asked}");
    until(LONG, "card shown", || told(&house).first().is_some_and(|(_, text)| text.ends_with("One.")));
    house.restart_gateway();
    until(LONG, "card continued", || {
        let told = told(&house);
        told.len() == 2 && told[0].1.starts_with("Waiting for a permission") && told[0].1.ends_with("Two.")
    });
    house.restart_gateway();
    let answered = house.say("room", "3", "/acp allow");
    assert_eq!(answered["outcome"], "command", "{answered}");
    until(LONG, "card folded", || told(&house).first().is_some_and(|(_, text)| text.starts_with("Done")));
    let told = told(&house);
    let kinds: Vec<&str> = told.iter().map(|(kind, _)| kind.as_str()).collect();
    assert_eq!(kinds, ["card", "permission", "final"], "{told:?}");
    let answer = &told[2].1;
    let order = ["One.", "Two.", "permission: selected", "Three."].map(|word| answer.find(word));
    assert!(order.iter().all(Option::is_some) && order.is_sorted(), "{answer}");
    invariants::check(&house.world.journal(GATEWAY));
    house.end();
}
