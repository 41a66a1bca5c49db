//! Faults of Discord and of the network while turns run: every answer is there once, whole and in order.

use crate::stage::{CREATE, Stage, untagged};
use acp_tests::fake_discord::core::faults::{EventFate, RestFate, Scope, When};
use acp_tests::fake_discord::core::stage::SocketAct;

/// Posts three messages under a fault and checks that each is answered once.
fn check(break_it: impl Fn(&Stage, usize)) {
    let (stage, thread) = Stage::new(&[], "").with_thread();
    let texts = ["one", "two", "three"];
    for (number, text) in texts.iter().enumerate() {
        break_it(&stage, number);
        stage.exchange(thread, &format!("say {text}"), &texts[..=number]);
    }
    stage.fake.clear_faults();
    stage.exchange(thread, "say four", &[&texts[..], &["four"]].concat());
    for text in texts {
        assert_eq!(stage.house.prompts_received(&format!("say {text}")), 1, "{text}");
    }
    stage.end();
}

#[test]
fn answer_with_lost_receipt_appears_once() {
    check(|stage, number| {
        let fate = [RestFate::LostAfter, RestFate::ErrorAfter { status: 502 }, RestFate::LostBefore][number];
        stage.fake.rest_fault(CREATE, When::Next(1), fate);
    });
}

#[test]
fn rate_limits_and_errors_only_delay_answers() {
    check(|stage, number| {
        let fate = [
            RestFate::RateLimited { retry_after_ms: 700, scope: Scope::User },
            RestFate::RateLimited { retry_after_ms: 700, scope: Scope::Shared },
            RestFate::ErrorBefore { status: 503 },
        ][number];
        stage.fake.rest_fault(CREATE, When::Next(2), fate);
    });
}

#[test]
fn broken_gateway_session_loses_no_message() {
    check(|stage, number| match number {
        0 => drop(stage.fake.sockets(None, SocketAct::Reset)),
        1 => drop(stage.fake.sockets(None, SocketAct::InvalidSession { resumable: false })),
        _ => stage.fake.event_fault("MESSAGE_CREATE", When::Next(1), EventFate::Duplicate),
    });
}

/// A message event may be lost without notice. The next message triggers a backfill.
#[test]
fn message_without_event_is_found_by_next_message() {
    let (stage, thread) = Stage::new(&[], "").with_thread();
    stage.exchange(thread, "say one", &["one"]);
    stage.fake.event_fault("MESSAGE_CREATE", When::Next(1), EventFate::Drop);
    stage.fake.post(stage.ann, thread, "say two");
    assert_eq!(stage.fake.tally().event_faults.get("drop"), Some(&1));
    stage.exchange(thread, "say three", &["one", "three", "two"]);
    for text in ["say one", "say two", "say three"] {
        assert_eq!(stage.house.prompts_received(text), 1, "{text}");
    }
    stage.end();
}

/// H12: equal answers within a short time are told apart by tags.
#[test]
fn repeated_identical_answers_are_tagged_and_each_sent() {
    let (stage, thread) = Stage::new(&[], "").with_thread();
    for count in 1..=3 {
        stage.fake.rest_fault(CREATE, When::Next(1), RestFate::LostBefore);
        stage.exchange(thread, "say the same", &["the same"; 3][..count]);
    }
    let told = stage.told(thread);
    let tagged = told.iter().filter(|it| untagged(&it.content) != it.content);
    let tags: Vec<&str> = tagged.filter_map(|it| Some(it.content.rsplit_once("\n-# ")?.1)).collect();
    assert_eq!(tags.len(), 2, "the first needs none: {told:#?}");
    assert_ne!(tags[0], tags[1]);
    stage.end();
}

/// A command runs once although its event is duplicated.
#[test]
fn duplicate_interaction_event_runs_command_once() {
    let stage = Stage::new(&[], "");
    stage.fake.event_fault("INTERACTION_CREATE", When::Next(1), EventFate::Duplicate);
    let thread = stage.spawn();
    stage.exchange(thread, "say one", &["one"]);
    assert_eq!(stage.fake.tally().event_faults.get("duplicate"), Some(&1));
    assert_eq!(stage.fake.threads_of(stage.channel).len(), 1);
    stage.end();
}
