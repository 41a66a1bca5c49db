use super::*;
use crate::event::EventKind;
use crate::tests::event;
use proptest::prelude::*;
use serde_json::json;

fn key(n: usize) -> SessionKey {
    SessionKey::parse(&format!("s{n}")).unwrap()
}

fn state() -> ConnectionState {
    ConnectionState::new(Principal::of_local_user("ann".to_owned()))
}

fn row(session: &SessionKey, seq: u64) -> EventRow {
    let payload = json!({"sessionUpdate": "plan", "entries": []});
    EventRow { session_key: session.clone(), session_seq: seq, ..event(EventKind::Plan, &payload) }
}

#[test]
fn traffic_goes_to_the_session_stream_if_open_and_else_to_the_connection() {
    let (mut state, own) = (state(), StreamScope::Session(key(1)));
    state.attach(&key(1));
    assert_eq!(state.route(&key(1)), StreamScope::Connection);
    let ticket = state.open_stream(own.clone()).unwrap();
    assert_eq!(state.route(&key(1)), own);
    assert_eq!(state.routed_to(&own), [(key(1), 0)]);
    assert_eq!(state.routed_to(&StreamScope::Connection), []);
    state.close_stream(&ticket);
    assert_eq!(state.route(&key(1)), StreamScope::Connection);
    let _ = state.open_stream(StreamScope::All).unwrap();
    assert_eq!(state.route(&key(1)), StreamScope::All);
}

#[test]
fn newest_stream_wins_and_the_old_one_does_not_close_it() {
    let mut state = state();
    let old = state.open_stream(StreamScope::Connection).unwrap();
    let new = state.open_stream(StreamScope::Connection).unwrap();
    assert!(!state.is_open(&old) && state.is_open(&new));
    state.close_stream(&old);
    assert!(state.is_open(&new) && state.has_streams());
    state.close_stream(&new);
    assert!(!state.has_streams());
}

#[test]
fn stream_that_opens_late_carries_all_but_the_first_frame() {
    let (mut state, own) = (state(), StreamScope::Session(key(1)));
    let connection = state.open_stream(StreamScope::Connection).unwrap();
    state.load(&key(1), 0, 2, "1");
    let rows = [row(&key(1), 1), row(&key(1), 2)];
    let mut out = Vec::new();
    assert_eq!(state.take_rows(&connection, &key(1), 0, &rows, &mut out), RowsTaken::All);
    assert_eq!((out.len(), state.waiting_sessions()), (1, vec![key(1)]));
    assert_eq!(state.routed_to(&connection.scope), []);
    assert_eq!(state.take_rows(&connection, &key(1), 1, &rows, &mut out), RowsTaken::All);
    assert_eq!(out.len(), 1, "the rest waits");
    let ticket = state.open_stream(own.clone()).unwrap();
    assert_eq!((state.routed_to(&own), state.waiting_sessions()), (vec![(key(1), 1)], vec![]));
    assert_eq!(state.take_rows(&ticket, &key(1), 1, &rows[1..], &mut out), RowsTaken::Loaded);
    // The other stream has asked for the answer before; it belongs to the new one.
    state.finish_load(&connection, &key(1), "{}", &[], &mut out).unwrap();
    assert_eq!(out.len(), 2);
    state.finish_load(&ticket, &key(1), "{}", &[], &mut out).unwrap();
    assert!(out.len() == 3 && out[2].id.is_some(), "{out:?}");
    // It ends, and is opened again when the client sees a frame of the session.
    state.close_stream(&ticket);
    let more = [row(&key(1), 3), row(&key(1), 4)];
    state.take_rows(&connection, &key(1), 2, &more, &mut out);
    assert_eq!((out.len(), state.waiting_sessions()), (4, vec![key(1)]));
}

#[test]
fn frames_of_a_new_session_wait_for_its_stream() {
    let mut state = state();
    let connection = state.open_stream(StreamScope::Connection).unwrap().scope;
    state.attach(&key(1));
    assert_eq!((state.routed_to(&connection), state.waiting_sessions()), (vec![], vec![key(1)]));
    state.stop_waiting(&key(1));
    assert_eq!((state.routed_to(&connection), state.waiting_sessions()), (vec![(key(1), 0)], vec![]));
    // One socket carries everything.
    let _ = state.open_stream(StreamScope::All).unwrap();
    state.attach(&key(2));
    assert_eq!(state.waiting_sessions(), []);
}

#[test]
fn load_stays_on_its_stream_until_it_is_answered() {
    let (mut state, own) = (state(), StreamScope::Session(key(1)));
    let connection = state.open_stream(StreamScope::Connection).unwrap();
    state.load(&key(1), 0, 2, "1");
    state.stop_waiting(&key(1));
    // The client opens the other stream in the middle of the replay.
    let other = state.open_stream(own.clone()).unwrap();
    assert_eq!(state.route(&key(1)), StreamScope::Connection);
    let mut out = Vec::new();
    let rows = [row(&key(1), 1), row(&key(1), 2)];
    assert_eq!(state.take_rows(&other, &key(1), 0, &rows, &mut out), RowsTaken::All);
    assert!(out.is_empty(), "nothing on the other stream");
    let taken = state.take_rows(&connection, &key(1), 0, &rows, &mut out);
    assert_eq!((taken, out.len()), (RowsTaken::Loaded, 2));
    state.finish_load(&connection, &key(1), "{}", &[], &mut out).unwrap();
    assert_eq!(out.len(), 3);
    assert!(out.iter().all(|frame| frame.id.is_none()), "no places on a shared stream");
    assert_eq!(state.route(&key(1)), own, "then the stream of the session");
}

/// A client that lost its stream opens it again while the old one still reads.
#[test]
fn replaced_stream_takes_no_rows_that_the_new_one_repeats() {
    let (mut state, own) = (state(), StreamScope::Session(key(1)));
    state.attach(&key(1));
    let old = state.open_stream(own.clone()).unwrap();
    let (mut out, first) = (Vec::new(), [row(&key(1), 1)]);
    assert_eq!(state.take_rows(&old, &key(1), 0, &first, &mut out), RowsTaken::All);
    let last = out[0].id.unwrap();
    let new = state.open_stream(own.clone()).unwrap();
    state.rewind(&own, last);
    let rows = [row(&key(1), 2)];
    assert_eq!(state.take_rows(&old, &key(1), 1, &rows, &mut out), RowsTaken::All);
    assert_eq!((out.len(), state.routed_to(&own)), (1, vec![(key(1), 1)]));
    state.take_rows(&new, &key(1), 1, &rows, &mut out);
    assert_eq!((out.len(), state.routed_to(&own)), (2, vec![(key(1), 2)]));
}

#[test]
fn pin_ends_with_its_stream() {
    let mut state = state();
    let own = state.open_stream(StreamScope::Session(key(1))).unwrap();
    state.load(&key(1), 0, 2, "1");
    assert_eq!(state.route(&key(1)), own.scope);
    state.close_stream(&own);
    assert_eq!(state.route(&key(1)), StreamScope::Connection);
}

#[test]
fn early_streams_are_capped_and_loaded_sessions_do_not_count() {
    let mut state = state();
    for n in 0..EARLY_STREAMS_MAX {
        state.open_stream(StreamScope::Session(key(n))).unwrap();
    }
    let one_more = StreamScope::Session(key(99));
    assert_eq!(state.open_stream(one_more.clone()), Err(TooManyStreams));
    assert!(state.open_stream(StreamScope::Session(key(0))).is_ok(), "a replacement is no stream more");
    state.attach(&key(0));
    assert!(state.open_stream(one_more).is_ok());
}

#[test]
fn open_sessions_are_capped() {
    let mut state = state();
    (0..SESSIONS_MAX).for_each(|n| state.attach(&key(n)));
    assert!(state.is_full());
    state.detach(&key(0)).unwrap();
    assert!(!state.is_full());
}

#[test]
fn unread_frames_of_all_sessions_together_are_bounded() {
    let mut state = state();
    let connection = state.open_stream(StreamScope::Connection).unwrap();
    for n in 0..5 {
        state.attach(&key(n));
        state.stop_waiting(&key(n));
        let pushed = state.push(Some(&key(n)), "x".repeat(UNSENT_BYTES_MAX / 3));
        assert_eq!(pushed.is_ok(), n < 4, "{n}");
    }
    // What is read makes room.
    let mut out = Vec::new();
    state.take_rows(&connection, &key(0), 0, &[], &mut out);
    assert_eq!((out.len(), state.push(None, "{}".to_owned())), (1, Ok(())));
}

#[test]
fn frames_of_a_session_that_is_detached_reach_the_connection() {
    let mut state = state();
    state.attach(&key(1));
    state.push(Some(&key(1)), "{}".to_owned()).unwrap();
    state.detach(&key(1)).unwrap();
    assert!(!state.has_session(&key(1)));
    let mut out = Vec::new();
    state.take_own(&StreamScope::Connection, &mut out);
    assert_eq!(out.len(), 1);
    // A load and a prompt that wait get an error.
    state.load(&key(2), 0, 2, "7");
    let _ = state.session(&key(2)).unwrap().end_prompt(Some((RunId::mint(), "8")));
    state.detach(&key(2)).unwrap();
    state.take_own(&StreamScope::Connection, &mut out);
    let errors = out.drain(1..).map(|frame| serde_json::from_str::<serde_json::Value>(&frame.json).unwrap());
    let ids: Vec<_> = errors.map(|error| (error["id"].clone(), error["error"]["code"].clone())).collect();
    assert_eq!(ids, [(json!(8), json!(-32002)), (json!(7), json!(-32002))]);
    let connection = state.open_stream(StreamScope::Connection).unwrap();
    // Late rows of a detached session create no state.
    for seq in 1..10_000 {
        let rows = [row(&key(1), seq)];
        state.take_rows(&connection, &key(1), seq - 1, &rows, &mut out);
    }
    assert_eq!((out.len(), state.sessions().len()), (1, 0));
}

proptest! {
    /// Each session is routed to exactly one stream, whatever is opened and closed.
    #[test]
    fn each_session_has_one_stream(steps in proptest::collection::vec((0_u8..5, 0_usize..3), 0..40)) {
        let mut state = state();
        let mut tickets = Vec::new();
        for (step, n) in steps {
            match step {
                0 => tickets.extend(state.open_stream(StreamScope::Connection)),
                1 => tickets.extend(state.open_stream(StreamScope::Session(key(n)))),
                2 => state.load(&key(n), 0, 1, "1"),
                3 => drop(state.detach(&key(n))),
                _ => if !tickets.is_empty() { state.close_stream(&tickets.remove(n % tickets.len())) },
            }
            let scopes = [StreamScope::Connection].into_iter().chain((0..3).map(|n| StreamScope::Session(key(n))));
            let routed: usize = scopes.map(|scope| state.routed_to(&scope).len()).sum();
            prop_assert_eq!(routed + state.waiting_sessions().len(), state.sessions().len());
        }
    }
}
