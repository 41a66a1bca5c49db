use super::*;
use crate::tests::event;
use proptest::prelude::*;
use serde_json::Value;

fn run(n: u64) -> RunId {
    RunId::parse(&format!("0190a000-0000-7000-8000-{n:012}")).unwrap()
}

fn key() -> SessionKey {
    SessionKey::parse("agent:demo:acp:1").unwrap()
}

fn view() -> SessionView {
    SessionView::new(key(), ViewerTraits { votes: true, declared: ClientTraits::default() }, 0)
}

/// Numbers rows from 1.
fn journal(rows: &[(u64, EventKind, Value)]) -> Vec<EventRow> {
    let row = |(seq, (of, kind, payload)): (u64, &(u64, EventKind, Value))| EventRow {
        session_key: key(),
        session_seq: seq,
        run_id: Some(run(*of)),
        seq: Some(seq),
        payload: payload.to_string(),
        ..event(*kind, &Value::Null)
    };
    (1..).zip(rows).map(row).collect()
}

fn prompt(author: &str) -> Value {
    json!({"text": format!("hi from {author}"), "mode": "prompt", "author": author})
}

fn chunk(text: &str) -> Value {
    json!({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}})
}

fn done() -> Value {
    json!({"stop_reason": "end_turn"})
}

/// A frame in a few words.
fn brief(frame: &Frame) -> String {
    let json: Value = serde_json::from_str(&frame.json).unwrap();
    let id = frame.id.map(|id| format!("{id} ")).unwrap_or_default();
    let what = match (json["method"].as_str(), &json["id"]) {
        (Some("session/update"), _) => {
            let turn = &json["params"]["_meta"]["acphost"]["turn"]["state"];
            let update = &json["params"]["update"];
            match (turn.as_str(), update["sessionUpdate"].as_str().unwrap()) {
                (Some(state), _) => state.to_owned(),
                (None, "user_message_chunk") => {
                    format!("user {}", update["content"]["text"].as_str().unwrap())
                }
                (None, kind) => format!("{kind} {}", update["content"]["text"].as_str().unwrap_or_default()),
            }
        }
        (Some(method), Value::Null) => method.to_owned(),
        (Some(method), id) => format!("{method} {id}"),
        (None, id) if json.get("error").is_some() => format!("error {id}"),
        (None, id) => format!("answer {id}"),
    };
    format!("{id}{what}")
}

fn take(view: &mut SessionView, rows: &[EventRow]) -> Vec<String> {
    let mut out = Vec::new();
    view.take_rows(rows, &mut out);
    out.iter().map(brief).collect()
}

#[test]
fn sender_gets_its_answer_behind_the_last_update_and_no_echo() {
    let rows = journal(&[
        (1, EventKind::Prompt, prompt("ann")),
        (1, EventKind::AgentMessage, chunk("a")),
        (1, EventKind::Done, done()),
    ]);
    let mut sender = view();
    sender.begin_prompt();
    sender.end_prompt(Some((run(1), "7")));
    assert_eq!(take(&mut sender, &rows), ["2-0 agent_message_chunk a", "3-0 answer 7"]);
    let mut observer = view();
    let want = ["user hi from ann", "1-0 running", "2-0 agent_message_chunk a", "3-0 idle"];
    assert_eq!(take(&mut observer, &rows), want);
}

#[test]
fn prompt_row_waits_until_its_sender_is_known() {
    let rows = journal(&[(1, EventKind::Prompt, prompt("ann")), (1, EventKind::Done, done())]);
    let mut sender = view();
    sender.begin_prompt();
    let mut out = Vec::new();
    assert_eq!(sender.take_rows(&rows, &mut out), RowsTaken::Blocked);
    assert_eq!((out.len(), sender.cursor()), (0, 0));
    sender.end_prompt(Some((run(1), "\"x\"")));
    assert_eq!(take(&mut sender, &rows), ["2-0 answer \"x\""]);
    let mut refused = view();
    refused.begin_prompt();
    refused.end_prompt(None);
    assert_eq!(take(&mut refused, &rows), ["user hi from ann", "1-0 running", "2-0 idle"]);
}

#[test]
fn queued_prompts_start_in_order_and_are_answered_when_their_own_run_ends() {
    let rows = journal(&[
        (1, EventKind::Prompt, prompt("ann")),
        (2, EventKind::Prompt, prompt("bob")),
        (3, EventKind::Prompt, prompt("cat")),
        (2, EventKind::Done, json!({"stop_reason": "cancelled"})),
        (1, EventKind::Done, done()),
        (3, EventKind::Error, json!({"code": "ACP_TURN_FAILED", "message": "m", "retryable": false})),
    ]);
    let mut bob = view();
    bob.end_prompt(Some((run(2), "2")));
    let want = [
        "user hi from ann",
        "1-0 running",
        "3-0 user hi from cat",
        "4-0 answer 2",
        "idle",
        "5-0 running",
        "6-0 idle",
    ];
    assert_eq!(take(&mut bob, &rows), want);
    let mut cat = view();
    cat.end_prompt(Some((run(3), "3")));
    assert_eq!(take(&mut cat, &rows).last().unwrap(), "6-0 error 3");
}

#[test]
fn load_shows_all_history_then_its_answer_then_open_questions() {
    let permission = |id: &str| json!({"permission_id": id, "params": {"options": []}});
    let rows = journal(&[
        (1, EventKind::Prompt, prompt("ann")),
        (1, EventKind::Permission, permission("l:1")),
        (1, EventKind::PermissionSettled, json!({"permission_id": "l:1", "option_id": "a", "by": "ann"})),
        (1, EventKind::Replay, chunk("old")),
        (1, EventKind::Permission, permission("l:2")),
        (1, EventKind::AgentMessage, chunk("live")),
        (1, EventKind::Permission, permission("l:3")),
    ]);
    let mut view = view();
    view.end_prompt(Some((run(1), "1")));
    view.load(0, 5, "\"load\"");
    let mut out = Vec::new();
    assert_eq!(view.take_rows(&rows, &mut out), RowsTaken::Loaded);
    assert_eq!(out.iter().map(brief).collect::<Vec<_>>(), ["1-0 user hi from ann"], "the own prompt too");
    let question = |id: &str| PendingQuestion {
        permission_id: id.to_owned(),
        run_id: Some(run(1)),
        kind: QuestionKind::Permission,
        params: "{}".to_owned(),
        deadline_at_ms: None,
    };
    // The third question came meanwhile: it is asked once.
    view.finish_load("{}", &[question("l:2"), question("l:3")]).unwrap();
    let want = [
        "5-1 answer \"load\"",
        "5-2 session/request_permission \"perm:l:2\"",
        "5-3 session/request_permission \"perm:l:3\"",
        "6-0 agent_message_chunk live",
    ];
    assert_eq!(take(&mut view, &rows), want);
}

#[test]
fn empty_or_complete_history_is_loaded_at_once() {
    for (after, until) in [(0, 0), (9, 9), (9, 3)] {
        let mut view = view();
        view.load(after, until, "1");
        assert_eq!(view.take_rows(&[], &mut Vec::new()), RowsTaken::Loaded);
        view.finish_load("{}", &[]).unwrap();
        assert_eq!(take(&mut view, &[]), [format!("{after}-1 answer 1")]);
    }
}

#[test]
fn settled_question_is_withdrawn_where_it_is_open() {
    let rows = journal(&[
        (1, EventKind::Permission, json!({"permission_id": "l:1", "params": {}})),
        (1, EventKind::PermissionSettled, json!({"permission_id": "l:1", "option_id": "a", "by": "ann"})),
    ]);
    let mut asked = view();
    let want = [
        "1-0 session/request_permission \"perm:l:1\"",
        "$/cancel_request",
        "2-0 _acphost/permission/settled",
    ];
    assert_eq!(take(&mut asked, &rows), want);
    let mut reader = SessionView::new(key(), ViewerTraits::default(), 0);
    assert_eq!(take(&mut reader, &rows), ["2-0 _acphost/permission/settled"], "a reader is not asked");
}

#[test]
fn elicitation_is_asked_where_the_client_shows_it_and_skipped_elsewhere() {
    let form = json!({"permission_id": "l:1", "params": {}, "form": {"mode": "form"}});
    let page = json!({"permission_id": "l:2", "params": {}, "form": {"mode": "url"}});
    let complete = json!({"status": "page_complete", "elicitation_id": "p"});
    let rows = journal(&[
        (1, EventKind::Permission, form),
        (1, EventKind::Permission, page),
        (1, EventKind::Status, complete),
    ]);
    let of = |has_forms, has_pages| {
        let declared = ClientTraits { has_forms, has_pages, ..ClientTraits::default() };
        let mut view = SessionView::new(key(), ViewerTraits { votes: true, declared }, 0);
        view.end_prompt(Some((run(1), "1")));
        view
    };
    let (form, page) = ("1-0 elicitation/create \"perm:l:1\"", "2-0 elicitation/create \"perm:l:2\"");
    for (has_forms, has_pages, frames, skipped) in [
        (true, true, vec![form, page, "3-0 elicitation/complete"], vec![]),
        (true, false, vec![form], vec!["l:2"]),
        (false, true, vec![page, "3-0 elicitation/complete"], vec!["l:1"]),
        (false, false, vec![], vec!["l:1", "l:2"]),
    ] {
        let mut view = of(has_forms, has_pages);
        assert_eq!(take(&mut view, &rows), frames);
        assert_eq!(view.take_skipped(), skipped);
        assert_eq!(view.take_skipped(), Vec::<String>::new(), "once");
        assert_eq!(view.has_vote("l:1", QuestionKind::Form), has_forms);
        // Also before the row was read.
        assert_eq!(of(has_forms, has_pages).has_vote("l:2", QuestionKind::Page), has_pages);
    }
    let mut observer = SessionView::new(key(), ViewerTraits { votes: true, ..ViewerTraits::default() }, 0);
    assert_eq!(take(&mut observer, &rows), Vec::<String>::new());
    assert_eq!(observer.take_skipped(), Vec::<String>::new(), "the run is another client's");
}

#[test]
fn closed_session_ends_its_stream_behind_the_last_frame() {
    let rows = journal(&[(1, EventKind::Closed, json!({"reason": "by hand"}))]);
    let mut view = view();
    assert_eq!(take(&mut view, &rows), ["1-0 session_info_update "]);
    assert!(view.has_ended());
    view.push("{\"id\":1,\"result\":{}}".to_owned()).unwrap();
    assert!(!view.has_ended());
    assert_eq!(take(&mut view, &[]), ["1-1 answer 1"]);
    assert!(view.has_ended());
}

proptest! {
    /// Whatever place a client resumes from, and however rows are batched, it gets the frames behind that place once.
    #[test]
    fn resume_repeats_exactly_what_follows(
        kinds in proptest::collection::vec(0_u8..5, 1..30),
        batch in 1_usize..7,
        pick in any::<prop::sample::Index>(),
    ) {
        let rows: Vec<(u64, EventKind, Value)> = (1_u64..).zip(&kinds).map(|(n, kind)| match kind {
            0 => (n, EventKind::Prompt, prompt("ann")),
            1 => (n / 2, EventKind::Done, done()),
            2 => (1, EventKind::Status, json!({})),
            3 => (1, EventKind::Permission, json!({"permission_id": format!("l:{n}"), "params": {}})),
            _ => (1, EventKind::AgentMessage, chunk(&n.to_string())),
        }).collect();
        let rows = journal(&rows);
        let mut view = SessionView::new(key(), ViewerTraits { votes: true, declared: ClientTraits { has_notices: true, ..ClientTraits::default() } }, 0);
        view.end_prompt(Some((run(1), "1")));
        let mut all = Vec::new();
        for (n, rows) in rows.chunks(batch).enumerate() {
            view.take_rows(rows, &mut all);
            view.push(format!("{{\"id\":\"{n}\",\"result\":{{}}}}")).unwrap();
        }
        view.take_rows(&[], &mut all);
        let with_id: Vec<usize> = all.iter().enumerate().filter(|(_, frame)| frame.id.is_some()).map(|(at, _)| at).collect();
        let at = with_id[pick.index(with_id.len())];
        view.rewind(all[at].id.unwrap());
        let mut again = Vec::new();
        view.take_rows(&rows, &mut again);
        let ids = |frames: &[Frame]| frames.iter().map(|frame| frame.id).collect::<Vec<_>>();
        // Updates about starts of turns depend on the turns seen, so that only places are compared.
        let rest: Vec<_> = ids(&all[at + 1..]).into_iter().flatten().collect();
        let got: Vec<_> = ids(&again).into_iter().flatten().collect();
        prop_assert_eq!(got, rest);
        let ids_ascend = all.iter().filter_map(|frame| frame.id).is_sorted();
        prop_assert!(ids_ascend);
    }
}

#[test]
fn repeated_requests_of_an_unfinished_run_are_capped() {
    let rows = journal(&[(1, EventKind::Prompt, prompt("ann")), (1, EventKind::Done, done())]);
    let mut view = view();
    for id in 0..WAITING_MAX {
        assert!(!view.is_full());
        view.begin_prompt();
        view.end_prompt(Some((run(1), &id.to_string())));
    }
    assert!(view.is_full());
    assert_eq!(take(&mut view, &rows).len(), WAITING_MAX, "each has its answer");
    assert!(!view.is_full());
}
