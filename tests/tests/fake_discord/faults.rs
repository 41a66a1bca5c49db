//! Each fault has its documented effect and no other.

use super::ground::{Ground, id};
use super::wire::{Got, INTENTS, Wire};
use acp_tests::fake_discord::core::faults::{EventFate, RestFate, When};
use acp_tests::wait::{SOON, until};
use serde_json::{Value, json};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

const POST: &str = "POST /channels/{}/messages";

fn post(ground: &Ground, content: &str) -> Option<u16> {
    let path = ground.posts();
    let answer = ground.fake.rest("TOKEN", "POST", &path, Some(&json!({"content": content})));
    answer.ok().map(|answer| answer.status)
}

fn said(ground: &Ground) -> Vec<String> {
    ground.fake.transcript(ground.channel).into_iter().map(|message| message.content).collect()
}

#[test]
fn responses_can_be_lost_before_or_after_processing() {
    let ground = Ground::new();
    for (fate, answered, kept) in [
        (RestFate::LostBefore, None, false),
        (RestFate::LostAfter, None, true),
        (RestFate::ErrorBefore { status: 503 }, Some(503), false),
        (RestFate::ErrorAfter { status: 502 }, Some(502), true),
        (RestFate::StallBefore { ms: Some(100) }, Some(200), true),
        (RestFate::StallAfter { ms: Some(100) }, Some(200), true),
    ] {
        ground.fake.rest_fault(POST, When::Next(1), fate);
        let text = format!("{fate:?}");
        let begun = Instant::now();
        assert_eq!(post(&ground, &text), answered, "{text}");
        assert_eq!(said(&ground).contains(&text), kept, "{text}");
        if matches!(fate, RestFate::StallBefore { .. } | RestFate::StallAfter { .. }) {
            assert!(begun.elapsed() >= Duration::from_millis(100), "{text}");
        }
    }
    assert_eq!(post(&ground, "fine"), Some(200), "each struck once");
    let counted = ground.fake.tally().rest_faults;
    assert_eq!(counted.values().sum::<u64>(), 6, "{counted:?}");
}

#[test]
fn repeated_request_with_nonce_returns_first_message() {
    let ground = Ground::new();
    let path = ground.posts();
    let body = json!({"content": "once", "nonce": "n", "enforce_nonce": true});
    ground.fake.rest_fault(POST, When::Next(1), RestFate::LostAfter);
    assert!(ground.fake.rest("TOKEN", "POST", &path, Some(&body)).is_err());
    let found = id(&ground.done("POST", &path, &body));
    let ids: Vec<_> = ground.fake.transcript(ground.channel).iter().map(|message| message.id).collect();
    assert_eq!(ids, [found]);
}

#[test]
fn endless_stall_sends_no_response() {
    let ground = Ground::new();
    ground.fake.rest_fault("*", When::Next(1), RestFate::StallAfter { ms: None });
    let mut stream = send_and_wait(&ground, &json!({"content": "kept"}));
    stream.set_read_timeout(Some(Duration::from_millis(500))).unwrap_or_else(|e| panic!("{e}"));
    assert!(stream.read(&mut [0]).is_err(), "nothing comes");
    assert_eq!(said(&ground), ["kept"]);
}

/// Sends a message and returns the connection without reading the response.
fn send_and_wait(ground: &Ground, body: &Value) -> TcpStream {
    let mut stream = TcpStream::connect(ground.fake.address()).unwrap_or_else(|e| panic!("{e}"));
    let body = body.to_string();
    let request = format!(
        "POST /api/v10/channels/{}/messages HTTP/1.1\r\nhost: x\r\nauthorization: Bot TOKEN\r\nuser-agent: x\r\n\
         connection: close\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        ground.channel,
        body.len()
    );
    stream.write_all(request.as_bytes()).unwrap_or_else(|e| panic!("{e}"));
    stream
}

#[test]
fn held_response_waits_for_release_or_disconnect() {
    let ground = Ground::new();
    let body = |nonce: &str| json!({"content": nonce, "nonce": nonce, "enforce_nonce": true});
    let held = || ground.fake.underway().held.first().copied();
    ground.fake.hold_answer(true);
    let stream = send_and_wait(&ground, &body("gone"));
    until(SOON, "response held", || held().is_some());
    let gone = held().unwrap_or_default();
    assert_eq!(said(&ground), ["gone"], "it is kept");
    assert_eq!(ground.fake.underway().unreceived, [].into());
    drop(stream);
    until(SOON, "client disconnected", || ground.fake.underway().unreceived.contains(&gone));
    // Only responses to new messages are held, and only one.
    ground.fake.hold_answer(true);
    assert_eq!(id(&ground.done("POST", &ground.posts(), &body("gone"))), gone);
    let mut stream = send_and_wait(&ground, &body("heard"));
    until(SOON, "response held", || held().is_some());
    assert_eq!(post(&ground, "another one"), Some(200));
    ground.fake.hold_answer(false);
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap_or_else(|e| panic!("{e}"));
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    let underway = ground.fake.underway();
    assert_eq!((underway.held, underway.unreceived), ([].into(), [gone].into()));
}

#[test]
fn late_request_takes_effect_and_forgotten_one_does_not() {
    let ground = Ground::new();
    ground.fake.rest_fault(POST, When::Next(1), RestFate::Late { ms: 200 });
    assert_eq!(post(&ground, "late"), None);
    assert_eq!((said(&ground), ground.fake.underway().late), (vec![], 1));
    until(SOON, "message stored", || said(&ground) == ["late"]);
    assert_eq!(ground.fake.underway().late, 0);
    ground.fake.rest_fault(POST, When::Next(1), RestFate::Forgotten);
    assert_eq!(post(&ground, "forgotten"), Some(200));
    assert_eq!(said(&ground), ["late"]);
}

#[test]
fn faults_match_route_and_seeded_chance() {
    let ground = Ground::new();
    ground.fake.rest_fault("GET /channels/{}", When::Next(1), RestFate::ErrorBefore { status: 500 });
    assert_eq!(post(&ground, "another route"), Some(200));
    assert_eq!(ground.get(&format!("/channels/{}", ground.channel)).status, 500);
    let drawn = |seed: u64| {
        ground.fake.clear_faults();
        ground.fake.configure(json!({"seed": seed}));
        ground.fake.rest_fault("GET /users/@me", When::Chance(0.5), RestFate::ErrorBefore { status: 500 });
        (0..20).map(|_| ground.get("/users/@me").status).collect::<Vec<_>>()
    };
    let (first, other) = (drawn(7), drawn(8));
    assert_ne!(first, other);
    assert!(first.contains(&200) && first.contains(&500), "{first:?}");
    assert_eq!(drawn(7), first, "the same seed");
}

#[test]
fn events_can_be_dropped_duplicated_and_reordered() {
    let ground = Ground::new();
    let mut wire = Wire::ready(&ground);
    let fault = |fate| ground.fake.event_fault("MESSAGE_CREATE", When::Next(1), fate);
    let mut contents = |count: usize| {
        (0..count).map(|_| wire.event("MESSAGE_CREATE")["content"].clone()).collect::<Vec<Value>>()
    };
    fault(EventFate::Drop);
    let _ = (post(&ground, "dropped"), post(&ground, "after"));
    assert_eq!(contents(1), ["after"]);
    fault(EventFate::Duplicate);
    post(&ground, "twice");
    assert_eq!(contents(2), ["twice", "twice"]);
    fault(EventFate::Overtaken);
    let _ = (post(&ground, "first"), post(&ground, "second"));
    assert_eq!(contents(2), ["second", "first"]);
    fault(EventFate::Overtaken);
    post(&ground, "alone");
    assert_eq!(contents(1), ["alone"], "it comes a little later");
    let (session, seq) = wire.drop_it();
    let mut wire = Wire::resumed(&ground, &session, seq);
    wire.event("RESUMED");
    assert_eq!(ground.fake.tally().event_faults.len(), 3);
    assert_eq!(said(&ground).len(), 6, "what was dropped is there all the same");
}

#[test]
fn odd_event_lacks_required_members() {
    let ground = Ground::new();
    let mut wire = Wire::ready(&ground);
    ground.fake.event_fault("*", When::Next(1), EventFate::Odd);
    post(&ground, "odd");
    let event = wire.event("MESSAGE_CREATE");
    assert!(event.get("id").is_none() && event.get("something_new").is_some(), "{event}");
    post(&ground, "plain");
    assert_eq!(wire.event("MESSAGE_CREATE")["content"], "plain");
}

#[test]
fn connections_are_reset_around_an_event() {
    let ground = Ground::new();
    let mut wire = Wire::ready(&ground);
    let (session, seq) = (wire.session.clone(), wire.seq);
    ground.fake.event_fault("MESSAGE_CREATE", When::Next(1), EventFate::ResetInstead);
    post(&ground, "waits for resume");
    assert_eq!(wire.next(), Got::Gone);
    let mut wire = Wire::resumed(&ground, &session, seq);
    assert_eq!(wire.event("MESSAGE_CREATE")["content"], "waits for resume");
    wire.event("RESUMED");
    let seq = wire.seq;
    ground.fake.event_fault("MESSAGE_CREATE", When::Next(1), EventFate::ResetAfter);
    post(&ground, "comes again");
    assert_eq!(wire.end(), None);
    let mut wire = Wire::resumed(&ground, &session, seq);
    assert_eq!(wire.event("MESSAGE_CREATE")["content"], "comes again");
}

#[test]
fn invalid_sessions_are_sent_as_often_as_configured() {
    let ground = Ground::new();
    ground.fake.refuse_sessions(1);
    let mut wire = Wire::identified(&ground, INTENTS);
    assert_eq!((wire.payload()["op"].clone(), ground.fake.is_connected(ground.bot.user)), (json!(9), false));
    wire.identify("TOKEN", INTENTS);
    wire.event("READY");
}

#[test]
fn the_whole_service_goes_away_and_comes_back() {
    let ground = Ground::new();
    let mut wire = Wire::ready(&ground);
    let session = (wire.session.clone(), wire.seq);
    ground.fake.set_unavailable(true);
    assert_eq!(wire.end(), None);
    assert_eq!(post(&ground, "nobody hears"), Some(503));
    assert!(TcpStream::connect(ground.fake.address()).is_ok(), "the port answers");
    until(SOON, "bot disconnected", || !ground.fake.is_connected(ground.bot.user));
    ground.fake.set_unavailable(false);
    assert_eq!(post(&ground, "back"), Some(200));
    let mut wire = Wire::resumed(&ground, &session.0, session.1);
    assert_eq!(wire.event("MESSAGE_CREATE")["content"], "back");
}
