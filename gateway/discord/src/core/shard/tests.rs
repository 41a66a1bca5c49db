//! Protocol tables: inputs of a shard and its outputs.

#![expect(clippy::expect_used, reason = "a failed expectation is a failed test")]

use super::*;
use crate::core::event::Event;
use serde_json::json;

const READY_TIMEOUT_MS: u64 = 30_000;
const INTERVAL: u64 = 40_000;

fn shard() -> Shard {
    shard_that(false)
}

fn shard_that(needs_slot: bool) -> Shard {
    Shard::new(0, BaseUrl::parse("http://127.0.0.1:1").expect("base"), READY_TIMEOUT_MS, needs_slot)
}

fn hello() -> Frame {
    Frame::Hello { interval_ms: INTERVAL }
}

fn event(seq: u64, kind: &str, data: Json) -> Frame {
    Frame::Dispatch { seq: Some(seq), kind: kind.to_owned(), data }
}

fn ready(url: &str) -> Frame {
    let user = json!({ "id": "1", "username": "bot" });
    let data =
        json!({ "session_id": "s", "resume_gateway_url": url, "user": user, "application": { "id": "2" } });
    event(1, "READY", data)
}

fn deleted(seq: u64) -> Frame {
    event(seq, "CHANNEL_DELETE", json!({ "id": "5" }))
}

fn resume(seq: u64) -> Vec<Output> {
    vec![Output::Send(OutgoingPayload::Resume { session: "s".to_owned(), seq })]
}

fn identify() -> Vec<Output> {
    vec![Output::Send(OutgoingPayload::Identify)]
}

fn heartbeat(seq: Option<u64>) -> Vec<Output> {
    vec![Output::Send(OutgoingPayload::Heartbeat(seq))]
}

fn reconnect(close: Option<u16>, why: &str, after_ms: u64, resume: bool, needs_url: bool) -> Reconnect {
    Reconnect { close, why: why.to_owned(), after_ms, resume, needs_url, keeps_permit: false }
}

/// Shard with a session from its first connection, made at 0 ms; the first heartbeat is due at 20 s.
fn ready_shard() -> Shard {
    let mut shard = shard();
    shard.begin_connection(0);
    assert_eq!(shard.frame(0, hello(), 0.5), identify());
    assert_eq!(shard.frame(0, ready("ws://127.0.0.1:2"), 0.0).len(), 1);
    shard
}

/// The same shard on its second connection, after sending RESUME.
fn resuming_shard() -> Shard {
    let mut shard = ready_shard();
    assert_eq!(
        shard.connection_ended(1, Disconnect::Broken),
        Ok(reconnect(None, "the connection broke", 0, true, false))
    );
    shard.begin_connection(1);
    assert_eq!(shard.frame(1, hello(), 0.5), resume(1));
    shard
}

#[test]
fn connection_sends_nothing_before_hello() {
    for mut shard in [shard(), { ready_shard() }] {
        shard.begin_connection(0);
        for frame in [Frame::Heartbeat, Frame::Ack, Frame::Unreadable, deleted(2)] {
            assert_eq!(shard.frame(1, frame.clone(), 0.5), [], "{frame:?}");
        }
        assert_eq!(shard.tick(14_999), []);
    }
}

#[test]
fn hello_is_answered_by_identify_or_resume() {
    let mut first = shard();
    first.begin_connection(0);
    assert_eq!(first.frame(0, hello(), 0.5), identify());
    // A second HELLO changes nothing.
    assert_eq!((first.frame(0, hello(), 0.9), first.deadline()), (Vec::new(), Some(20_000)));
    let mut second = ready_shard();
    assert_eq!(second.frame(5, deleted(7), 0.5).len(), 2);
    assert!(second.connection_ended(6, Disconnect::Broken).is_ok_and(|lost| lost.resume));
    second.begin_connection(6);
    assert_eq!(second.frame(7, hello(), 0.5), resume(7));
}

#[test]
fn resume_uses_a_permitted_resume_url() {
    for (url, used) in [
        ("ws://127.0.0.1:2/", Some("ws://127.0.0.1:2")),
        ("wss://gateway.discord.gg", None),
        ("ws://127.0.0.1:2/?token=x", None),
        ("", None),
    ] {
        let mut shard = ready_shard();
        shard.frame(1, ready(url), 0.0);
        assert_eq!(shard.resume_url(), used, "{url}");
    }
    let mut lost = ready_shard();
    let refused = lost.connection_ended(1, Disconnect::NotConnected("refused".to_owned()));
    let expected = reconnect(None, "connection failed: refused", 1_000, true, true);
    assert_eq!((refused, lost.resume_url()), (Ok(expected), None), "the first address is tried next");
}

#[test]
fn heartbeats_keep_interval_and_missing_ack_reconnects() {
    let mut shard = ready_shard();
    assert_eq!((shard.deadline(), shard.tick(19_999)), (Some(20_000), Vec::new()));
    assert_eq!((shard.tick(20_000), shard.deadline()), (heartbeat(Some(1)), Some(60_000)));
    assert_eq!(shard.frame(20_010, Frame::Ack, 0.5), []);
    assert_eq!(shard.tick(60_000), heartbeat(Some(1)));
    let why = "Discord did not answer a heartbeat in time";
    let lost = Output::Reconnect(reconnect(Some(CLOSE_RESUMABLE), why, 0, true, false));
    assert_eq!((shard.tick(100_000), shard.deadline()), (vec![lost], None));
    assert_eq!((shard.tick(200_000), shard.frame(200_000, deleted(2), 0.5)), (Vec::new(), Vec::new()));
}

#[test]
fn first_heartbeat_has_jitter() {
    for (interval_ms, chance, due) in [
        (INTERVAL, 0.0, 0),
        (INTERVAL, 0.25, 10_000),
        (INTERVAL, 7.0, READY_TIMEOUT_MS),
        (20_000, 7.0, 20_000),
        (0, 0.999, 99),
        (u64::MAX, 0.999, READY_TIMEOUT_MS),
    ] {
        let mut shard = shard();
        shard.begin_connection(0);
        shard.frame(0, Frame::Hello { interval_ms }, chance);
        assert_eq!(shard.deadline(), Some(due), "{interval_ms} {chance}");
    }
}

#[test]
fn requested_heartbeat_is_immediate_and_keeps_schedule() {
    let mut shard = ready_shard();
    assert_eq!((shard.frame(5, Frame::Heartbeat, 0.5), shard.deadline()), (heartbeat(Some(1)), Some(20_000)));
    // At most one per second: Discord permits 120 payloads a minute.
    assert_eq!(shard.frame(1_004, Frame::Heartbeat, 0.5), []);
    assert_eq!(shard.frame(1_005, Frame::Heartbeat, 0.5), heartbeat(Some(1)));
    // None of them was acknowledged.
    assert_eq!(shard.tick(20_000), heartbeat(Some(1)));
}

#[test]
fn missing_hello_reconnects_and_keeps_the_session() {
    let mut shard = resuming_shard();
    assert_eq!(shard.connection_ended(2, Disconnect::Broken).map(|lost| lost.resume), Ok(true));
    shard.begin_connection(10);
    assert_eq!((shard.deadline(), shard.tick(15_009)), (Some(15_010), Vec::new()));
    let why = "shard 0 got no HELLO within 15 s of connecting";
    let lost = Output::Reconnect(reconnect(None, why, 1_000, true, true));
    assert_eq!(shard.tick(15_010), [lost]);
}

#[test]
fn wait_for_a_slot_does_not_shorten_the_time_to_ready() {
    let mut shard = shard_that(true);
    shard.begin_connection(0);
    assert_eq!(shard.frame(0, hello(), 1.0), [Output::WaitForSlot]);
    assert_eq!(shard.slot_ended(29_000, Ok(())), identify());
    assert_eq!((shard.tick(58_999).len(), shard.deadline()), (1, Some(59_000)), "a heartbeat");
    let why = "shard 0 got neither READY nor RESUMED within 30 s of IDENTIFY";
    let lost = Output::Reconnect(reconnect(Some(CLOSE_NORMAL), why, 1_000, false, true));
    assert_eq!(shard.tick(59_000), [lost]);
    // The wait itself is bounded, too.
    shard.begin_connection(60_000);
    assert_eq!(shard.frame(60_000, hello(), 1.0), [Output::WaitForSlot]);
    let lost = Reconnect { keeps_permit: true, ..reconnect(Some(CLOSE_NORMAL), "none", 7, false, false) };
    assert_eq!(shard.slot_ended(61_000, Err(("none".to_owned(), 7))), [Output::Reconnect(lost)]);
    assert_eq!(shard.slot_ended(61_000, Ok(())), [], "the connection has ended");
    shard.begin_connection(70_000);
    shard.frame(70_000, hello(), 1.0);
    let why = "shard 0 got neither READY nor RESUMED within 30 s of connecting";
    let lost = Output::Reconnect(reconnect(Some(CLOSE_NORMAL), why, 2_000, false, true));
    assert_eq!(shard.tick(100_000), [lost], "a slot that was given up is no failure");
}

/// A session that is resumed needs no slot.
#[test]
fn resume_needs_no_slot() {
    let mut shard = shard_that(true);
    shard.begin_connection(0);
    assert_eq!(shard.frame(0, hello(), 1.0), [Output::WaitForSlot]);
    assert_eq!(shard.slot_ended(1, Ok(())), identify());
    shard.frame(2, ready("ws://127.0.0.1:2"), 0.0);
    assert!(shard.connection_ended(3, Disconnect::Broken).is_ok_and(|lost| lost.resume));
    shard.begin_connection(4);
    assert_eq!(shard.frame(4, hello(), 0.5), resume(1));
}

#[test]
fn missing_ready_or_resumed_starts_a_new_session() {
    for mut shard in [shard(), resuming_shard()] {
        shard.begin_connection(100);
        shard.frame(100, hello(), 0.5);
        // Neither events nor acknowledged heartbeats count as READY or RESUMED.
        assert_eq!(shard.tick(20_100).len(), 1);
        shard.frame(20_200, Frame::Ack, 0.5);
        shard.frame(20_200, deleted(2), 0.5);
        let why = "shard 0 got neither READY nor RESUMED within 30 s of connecting";
        let lost = Output::Reconnect(reconnect(Some(CLOSE_NORMAL), why, 1_000, false, true));
        assert_eq!((shard.deadline(), shard.tick(30_100)), (Some(30_100), vec![lost]));
        shard.begin_connection(31_100);
        assert_eq!(shard.frame(31_100, hello(), 0.5), identify());
    }
}

#[test]
fn unreadable_ready_starts_no_session() {
    let mut shard = shard();
    shard.begin_connection(0);
    shard.frame(0, hello(), 1.0);
    let outputs = shard.frame(0, event(1, "READY", json!({})), 0.5);
    assert!(matches!(outputs.as_slice(), [Output::Event { read: Err(_), .. }]), "{outputs:?}");
    assert_eq!((shard.can_resume(), shard.deadline()), (false, Some(30_000)));
}

#[test]
fn reconnect_and_invalid_session_are_obeyed() {
    let asked = "Discord asked for a reconnect";
    let again = "Discord asked to resume the session";
    let over = "Discord ended the session";
    let invalid = |resumable| Frame::InvalidSession { resumable };
    for (frame, chance, expected) in [
        (Frame::Reconnect, 0.5, reconnect(Some(CLOSE_RESUMABLE), asked, 0, true, false)),
        (invalid(true), 0.0, reconnect(Some(CLOSE_RESUMABLE), again, 1_000, true, false)),
        (invalid(true), 1.0, reconnect(Some(CLOSE_RESUMABLE), again, 5_000, true, false)),
        (invalid(false), 0.5, reconnect(Some(CLOSE_NORMAL), over, 3_000, false, true)),
    ] {
        assert_eq!(ready_shard().frame(1, frame.clone(), chance), [Output::Reconnect(expected)], "{frame:?}");
    }
    // There is no session to resume.
    let mut first = shard();
    first.begin_connection(0);
    let expected = reconnect(Some(CLOSE_RESUMABLE), again, 1_000, false, true);
    assert_eq!(first.frame(0, invalid(true), 0.0), [Output::Reconnect(expected)]);
}

#[test]
fn close_code_decides_resume_identify_or_stop() {
    for (end, resume) in [
        (Disconnect::Broken, Some(true)),
        (Disconnect::Closed(1000), Some(true)),
        (Disconnect::Closed(1001), Some(true)),
        (Disconnect::Closed(1006), Some(true)),
        (Disconnect::Closed(4000), Some(true)),
        (Disconnect::Closed(4001), Some(true)),
        (Disconnect::Closed(4002), Some(true)),
        (Disconnect::Closed(4003), Some(false)),
        (Disconnect::Closed(4004), None),
        (Disconnect::Closed(4005), Some(true)),
        (Disconnect::Closed(4007), Some(false)),
        (Disconnect::Closed(4008), Some(true)),
        (Disconnect::Closed(4009), Some(false)),
        (Disconnect::Closed(4010), None),
        (Disconnect::Closed(4011), None),
        (Disconnect::Closed(4012), None),
        (Disconnect::Closed(4013), None),
        (Disconnect::Closed(4014), None),
        (Disconnect::TooLarge, Some(false)),
    ] {
        let ended = ready_shard().connection_ended(1, end.clone());
        assert_eq!(
            ended.as_ref().ok().map(|lost| (lost.resume, lost.after_ms)),
            resume.map(|r| (r, 0)),
            "{end:?}"
        );
    }
    let lost = reconnect(None, "the session timed out (code 4009)", 0, false, true);
    assert_eq!(ready_shard().connection_ended(1, Disconnect::Closed(4009)), Ok(lost));
    assert_eq!(
        ready_shard().connection_ended(1, Disconnect::Closed(4014)).err(),
        close_codes::fatal_error(4014)
    );
}

#[test]
fn session_is_dropped_after_unanswered_resumes() {
    let mut shard = resuming_shard();
    for resume in [true, true, false] {
        let lost = shard.connection_ended(2, Disconnect::Closed(4000));
        assert_eq!(lost.map(|lost| lost.resume), Ok(resume));
        shard.begin_connection(3);
        shard.frame(3, hello(), 0.5);
    }
}

#[test]
fn short_connections_back_off() {
    let mut shard = ready_shard();
    let pauses: Vec<u64> = (0..8)
        .map(|at| {
            shard.begin_connection(at);
            shard.connection_ended(at, Disconnect::Broken).expect("no failure").after_ms
        })
        .collect();
    assert_eq!(pauses, [0, 0, 0, 0, 0, 1_000, 2_000, 4_000]);
}

#[test]
fn skipped_sequence_numbers_report_gap_before_event() {
    let mut shard = ready_shard();
    let gaps = |outputs: &[Output]| -> Vec<u64> {
        let gap = |output: &Output| if let Output::Gap(lost) = output { Some(*lost) } else { None };
        outputs.iter().filter_map(gap).collect()
    };
    for (frame, lost) in [
        (deleted(2), vec![]),
        (deleted(5), vec![2]),
        // A repeated event is passed on.
        (deleted(4), vec![]),
        (deleted(6), vec![]),
        (Frame::Unreadable, vec![0]),
        (deleted(u64::MAX), vec![u64::MAX - 7]),
    ] {
        let outputs = shard.frame(1, frame.clone(), 0.5);
        assert_eq!(gaps(&outputs), lost, "{frame:?}");
        let passed = outputs.iter().any(|output| matches!(output, Output::Event { read: Ok(_), .. }));
        assert_eq!(passed, frame != Frame::Unreadable);
    }
}

#[test]
fn resumed_session_passes_events() {
    let mut shard = resuming_shard();
    assert_eq!(shard.frame(2, deleted(2), 0.5).len(), 1);
    let resumed =
        Output::Event { kind: "RESUMED".to_owned(), read: Ok(DecodedEvent::Events(vec![Event::Resumed])) };
    assert_eq!(shard.frame(3, event(3, "RESUMED", json!({})), 0.5), [resumed]);
    assert_eq!((shard.deadline(), shard.can_resume()), (Some(20_001), true));
}

#[test]
fn new_session_resets_the_sequence() {
    let mut shard = resuming_shard();
    shard.frame(2, deleted(900), 0.5);
    shard.frame(3, Frame::InvalidSession { resumable: false }, 0.5);
    shard.begin_connection(4);
    assert_eq!(shard.frame(4, hello(), 0.0), identify());
    assert_eq!(shard.tick(4), heartbeat(None));
    shard.frame(5, Frame::Ack, 0.5);
    assert_eq!(shard.frame(6, ready("ws://127.0.0.1:2"), 0.5).len(), 1);
    assert_eq!(shard.tick(INTERVAL + 4), heartbeat(Some(1)));
}
