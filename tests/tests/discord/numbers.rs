//! Metrics of a Discord account, compared with the fake's own counts.

use crate::stage::{CREATE, Stage};
use acp_tests::fake_discord::core::faults::{EventFate, RestFate, Scope, When};
use acp_tests::fake_discord::core::stage::SocketAct;
use acp_tests::scrape::Scrape;
use acp_tests::wait::{SOON, until};

fn value(stage: &Stage, name: &str, more: &str) -> f64 {
    let of_account = "channel=\"discord\",account=\"main\"";
    Scrape::fetch(&stage.house.gateway().socket()).value(&format!("acp_channel_{name}{{{of_account}{more}}}"))
}

fn moves(stage: &Stage, name: &str, more: &str, from: f64) {
    until(SOON, name, || value(stage, name, more) > from);
}

#[test]
fn metrics_count_discord_events_and_requests() {
    let stage = Stage::new(&[], "");
    assert_eq!(value(&stage, "connected", ""), 1.0);
    assert_eq!(value(&stage, "authorized", ""), 1.0);
    assert_eq!(value(&stage, "sessions_total", ",what=\"begun\""), 1.0);
    let thread = stage.spawn();
    let limited = RestFate::RateLimited { retry_after_ms: 300, scope: Scope::Shared };
    stage.fake.rest_fault(CREATE, When::Next(1), limited);
    stage.exchange(thread, "say one", &["one"]);
    assert_eq!(value(&stage, "rate_limits_total", ",scope=\"shared\""), 1.0);
    // Messages: the starter and the answer.
    let made = || value(&stage, "requests_total", ",kind=\"create_message\",outcome=\"done\"");
    until(SOON, "both messages counted", || made() >= 2.0);
    assert_eq!(made(), 2.0);
    assert!(value(&stage, "request_turns_total", ",priority=\"final\"") >= 2.0);
    assert!(value(&stage, "request_wait_seconds_total", ",priority=\"final\"") >= 0.3);
    assert!(value(&stage, "request_retries_total", ",kind=\"create_message\"") >= 1.0);
    // An unreadable event is a gap, and its message is read by backfill.
    stage.fake.event_fault("MESSAGE_CREATE", When::Next(1), EventFate::Odd);
    stage.exchange(thread, "say two", &["one", "two"]);
    moves(&stage, "gaps_total", "", 0.0);
    moves(&stage, "events_strange_total", "", 0.0);
    stage.fake.sockets(None, SocketAct::Reset);
    moves(&stage, "sessions_total", ",what=\"resumed\"", 0.0);
    stage.fake.deny(stage.bot.user, stage.channel, &["ADD_REACTIONS"]);
    stage.exchange(thread, "say three", &["one", "two", "three"]);
    moves(&stage, "requests_total", ",kind=\"add_reaction\",outcome=\"forbidden\"", 0.0);
    let doctor = stage.house.cli(&["doctor"]).stdout;
    assert!(doctor.contains("for a missing permission") && doctor.contains("add_reaction"), "{doctor}");
    // Discord is unavailable: `connected` is 0.
    stage.fake.set_unavailable(true);
    until(SOON, "account disconnected", || value(&stage, "connected", "") == 0.0);
    stage.fake.set_unavailable(false);
    moves(&stage, "connected", "", 0.0);
    stage.fake.set_token(stage.bot.user, "another-token");
    stage.fake.post(stage.ann, thread, "say four");
    until(SOON, "token refused", || value(&stage, "authorized", "") == 0.0);
    stage.write_token("another-token");
    stage.reload();
    moves(&stage, "authorized", "", 0.0);
    stage.answers(thread, &["one", "two", "three", "four"]);
    stage.end();
}
