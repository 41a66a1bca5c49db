//! What events tell must be a whole story: numbered without gaps, ended once, nothing twice.

use crate::cli::stop_reason;
use serde_json::Value;

/// A number that an event must have.
///
/// # Panics
/// When it has none.
#[must_use]
pub fn number(event: &Value, name: &str) -> u64 {
    event[name].as_u64().unwrap_or_else(|| panic!("no {name}: {event}"))
}

/// Checks the events of one run: all of that run or of none, numbered without gaps within the run, in the order
/// of the session, and ended by `done` with this stop reason.
///
/// # Panics
/// When the story is not whole.
pub fn check_turn(events: &[Value], stop: &str) {
    check_run(events);
    assert_eq!(stop_reason(events).as_deref(), Some(stop), "{:#?}", events.last());
    assert!(events.last().is_some_and(|event| event["type"] == "done"), "something follows the result");
}

/// Checks the events of one run that failed, and returns its `error` event.
///
/// # Panics
/// When the story is not whole.
#[must_use]
pub fn check_failed<'a>(events: &'a [Value], code: &str) -> &'a Value {
    check_run(events);
    let last = events.last().unwrap_or_else(|| panic!("no events"));
    assert_eq!((&last["type"], &last["code"]), (&"error".into(), &code.into()), "{last}");
    last
}

fn check_run(events: &[Value]) {
    let of_run: Vec<&Value> = events.iter().filter(|event| !event["run_id"].is_null()).collect();
    let run = &of_run.first().unwrap_or_else(|| panic!("no event of a run: {events:?}"))["run_id"];
    assert!(of_run.iter().all(|event| event["run_id"] == *run), "events of several runs: {events:#?}");
    assert!(events.iter().all(|event| event["event_version"] == 1), "{events:#?}");
    for pair in events.windows(2) {
        assert!(number(&pair[0], "session_seq") < number(&pair[1], "session_seq"), "{pair:#?}");
    }
    for pair in of_run.windows(2) {
        assert_eq!(number(pair[0], "seq") + 1, number(pair[1], "seq"), "{pair:#?}");
    }
}

/// Checks a whole history: every row of the session once, from 1, and every run's rows once, from 1.
///
/// # Panics
/// When a number is missing or comes twice.
pub fn check_history(events: &[Value]) {
    let mut runs: std::collections::BTreeMap<String, u64> = std::collections::BTreeMap::new();
    for (at, event) in events.iter().enumerate() {
        assert_eq!(number(event, "session_seq"), at as u64 + 1, "{event}");
        if let Some(run) = event["run_id"].as_str() {
            let last = runs.entry(run.to_owned()).or_insert(0);
            *last += 1;
            assert_eq!(number(event, "seq"), *last, "{event}");
        }
    }
}

/// The texts of the agent's chunks in these events, one for each event.
#[must_use]
pub fn chunks(events: &[Value]) -> Vec<&str> {
    let output = events.iter().filter(|e| e["type"] == "text_delta" && e["stream"] == "output");
    output.filter_map(|e| e["text"].as_str()).collect()
}

/// Checks that what was said is `chunks N` of the scripted agent with chunks of `size` bytes: each once, in order.
///
/// # Panics
/// When one is missing, doubled or out of place; the message says which.
pub fn check_chunks(said: &[&str], count: u64, size: usize) {
    for (at, text) in said.iter().enumerate() {
        let want = crate::fake_agent::chunk_text(at as u64 + 1, size);
        assert_eq!(**text, want, "chunk {} of {} that came", at + 1, said.len());
    }
    assert_eq!(said.len() as u64, count, "chunks that came");
}
