//! Keys and replies of a chat.
#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use super::*;
use acp_shared::codes::Code;
use acp_shared::ids::{RunId, SessionKey};
use serde_json::json;

fn chat() -> (tempfile::TempDir, ChatState) {
    let dir = tempfile::tempdir().unwrap();
    let editor = Editor::new(&dir.path().join("history"));
    (dir, ChatState::new(Transcript::new("chat", 80), editor, "/work".to_owned()))
}

fn control(c: char) -> KeyEvent {
    KeyEvent::new(KeyCode::Char(c), KeyModifiers::CONTROL)
}

fn press(chat: &mut ChatState, code: KeyCode) -> Option<ChatEffect> {
    chat.key(KeyEvent::new(code, KeyModifiers::NONE))
}

fn type_text(chat: &mut ChatState, text: &str) {
    for c in text.chars() {
        assert_eq!(press(chat, KeyCode::Char(c)), None);
    }
}

fn sent(effect: Option<ChatEffect>) -> String {
    match effect {
        Some(ChatEffect::Send(message)) => message.text,
        other => panic!("{other:?}"),
    }
}

fn start_turn(chat: &mut ChatState) {
    chat.transcript.event(&json!({"type": "prompt", "run_id": "r", "text": "go", "mode": "prompt"}));
}

fn ask(chat: &mut ChatState, id: &str) {
    let options = json!([{"option_id": "y", "name": "Yes"}, {"option_id": "n", "name": "No"}]);
    chat.transcript
        .event(&json!({"type": "permission", "permission_id": id, "title": "t", "options": options}));
}

#[test]
fn text_is_sent_once_and_kept_until_answered() {
    let (_dir, mut chat) = chat();
    type_text(&mut chat, "help");
    assert_eq!(sent(press(&mut chat, KeyCode::Enter)), "help");
    let key = chat.outgoing[0].key.clone();
    let prompted = Outcome::Prompted {
        session_key: SessionKey::parse("agent:demo:acp:1").unwrap(),
        run_id: RunId::mint(),
        after_seq: 0,
        queued_behind: 0,
        text: String::new(),
        asks: None,
    };
    chat.answered(&key, Ok(&prompted));
    chat.answered(&key, Ok(&prompted));
    assert!(chat.outgoing.is_empty() && chat.transcript.take_printed().is_empty());
    type_text(&mut chat, "again");
    press(&mut chat, KeyCode::Enter);
    let key = chat.outgoing[0].key.clone();
    chat.answered(&key, Err(&Failure::of(Code::NotBound)));
    let lines = chat.transcript.take_printed();
    assert_eq!(lines[0].text(), "> again");
}

#[test]
fn ctrl_c_cancels_then_leaves() {
    let (_dir, mut chat) = chat();
    type_text(&mut chat, "draft");
    assert_eq!((chat.key(control('c')), chat.editor.text()), (None, ""));
    assert_eq!(chat.key(control('c')), Some(ChatEffect::Leave));
    start_turn(&mut chat);
    type_text(&mut chat, "draft");
    assert_eq!((chat.key(control('c')), chat.editor.text()), (Some(ChatEffect::Cancel), "draft"));
    assert_eq!(chat.key(control('c')), Some(ChatEffect::Leave));
}

#[test]
fn ctrl_d_leaves_only_at_an_empty_prompt() {
    let (_dir, mut chat) = chat();
    type_text(&mut chat, "ab");
    assert_eq!(chat.key(control('d')), None);
    chat.editor.set("");
    assert_eq!(chat.key(control('d')), Some(ChatEffect::Leave));
    type_text(&mut chat, "/exit");
    assert_eq!(press(&mut chat, KeyCode::Enter), Some(ChatEffect::Leave));
}

#[test]
fn question_is_answered_by_number_or_selection() {
    let (_dir, mut chat) = chat();
    start_turn(&mut chat);
    ask(&mut chat, "l:1");
    // Enter alone allows nothing.
    assert_eq!(press(&mut chat, KeyCode::Enter), None);
    assert_eq!(press(&mut chat, KeyCode::Char('7')), None);
    assert_eq!(chat.hint.as_deref(), Some("choose a number from 1 to 2"));
    assert_eq!(sent(press(&mut chat, KeyCode::Char('2'))), "/acp answer l:1 2");
    // The same question is not answered twice.
    assert_eq!(press(&mut chat, KeyCode::Char('1')), None);
    chat.transcript.event(&json!({"type": "permission_settled", "permission_id": "l:1"}));
    ask(&mut chat, "l:2");
    press(&mut chat, KeyCode::Up);
    assert_eq!(chat.selected, Some(1));
    press(&mut chat, KeyCode::Down);
    assert_eq!(sent(press(&mut chat, KeyCode::Enter)), "/acp answer l:2 1");
    // Text that begins otherwise is a message.
    ask(&mut chat, "l:3");
    type_text(&mut chat, "a1");
    assert_eq!(sent(press(&mut chat, KeyCode::Enter)), "a1");
}

#[test]
fn ctrl_s_steers_a_running_turn() {
    let (_dir, mut chat) = chat();
    type_text(&mut chat, "stop that");
    assert_eq!(sent(chat.key(control('s'))), "stop that");
    start_turn(&mut chat);
    type_text(&mut chat, "--hurry");
    assert_eq!(sent(chat.key(control('s'))), "/acp steer -- --hurry");
}

#[test]
fn full_queue_keeps_the_text() {
    let (_dir, mut chat) = chat();
    for _ in 0..OUTGOING_MAX {
        type_text(&mut chat, "x");
        press(&mut chat, KeyCode::Enter);
    }
    type_text(&mut chat, "kept");
    assert_eq!((press(&mut chat, KeyCode::Enter), chat.editor.text()), (None, "kept"));
    assert!(chat.hint.is_some());
}

#[test]
fn spawned_session_works_in_the_directory_of_the_chat() {
    for (text, want) in [
        ("hello", "hello"),
        ("/acp spawn", "/acp spawn --cwd \"/work\""),
        ("/acp SPAWN demo --label x", "/acp SPAWN demo --label x --cwd \"/work\""),
        ("/acp spawn demo --cwd /a", "/acp spawn demo --cwd /a"),
        ("/acp spawn demo \u{2014}cwd=/a", "/acp spawn demo \u{2014}cwd=/a"),
        ("/acp spawn -- demo", "/acp spawn -- demo"),
        ("/acp status", "/acp status"),
    ] {
        assert_eq!(with_cwd(text, "/work"), want, "{text}");
    }
}
