//! Checks that event lists are complete: numbered without gaps, ended once, without duplicates.

use crate::cli::stop_reason;
use serde_json::Value;

/// Returns a numeric member that an event must have.
///
/// # Panics
/// When it is missing.
#[must_use]
pub fn number(event: &Value, name: &str) -> u64 {
    event[name].as_u64().unwrap_or_else(|| panic!("no {name}: {event}"))
}

/// Checks the events of one run: all each belongs to that run or to no run, numbers have no gaps within the
/// run and follow the order of the session, and the last event is `done` with this stop reason.
///
/// # Panics
/// When a check fails.
pub fn check_turn(events: &[Value], stop: &str) {
    check_run(events);
    assert_eq!(stop_reason(events).as_deref(), Some(stop), "{:#?}", events.last());
    assert!(events.last().is_some_and(|event| event["type"] == "done"), "an event follows `done`");
}

/// Checks the events of one run that ended with `end_turn`, and the texts of the agent's chunks in it.
///
/// # Panics
/// When a check fails.
#[track_caller]
pub fn check_answer<T: std::fmt::Debug>(events: &[Value], want: T)
where
    for<'a> Vec<&'a str>: PartialEq<T>,
{
    check_turn(events, "end_turn");
    assert_eq!(chunks(events), want);
}

/// Checks the events of one run that failed, and returns its `error` event.
///
/// # Panics
/// When a check fails.
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

/// Checks a complete history: the numbers of the session and of each run start at 1 and have no gaps or
/// duplicates.
///
/// # Panics
/// When a number is missing or occurs twice.
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

/// Checks that the texts are the output of the prompt `chunks N` with chunks of `size` bytes: each once, in
/// order.
///
/// # Panics
/// When a chunk is missing, duplicated or out of order; the message names it.
pub fn check_chunks(said: &[&str], count: u64, size: usize) {
    for (at, text) in said.iter().enumerate() {
        let want = crate::fake_agent::chunk_text(at as u64 + 1, size);
        assert_eq!(**text, want, "chunk {} of {} received", at + 1, said.len());
    }
    assert_eq!(said.len() as u64, count, "number of chunks received");
}
