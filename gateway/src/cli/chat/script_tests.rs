//! Chats that come to a session with a pending permission request.
#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use super::*;
use crate::api::tests::{LIMITS, start_server};
use crate::cli::readers_tests::Sink;
use crate::tests::permission_row;
use acp_core::event::EventKind;
use serde_json::json;

/// Number of the last row of the journal; the permission request is row 2.
const END: u64 = 3;

/// Returns the permission requests that a chat with JSON output prints, which follows the session from `after` on.
async fn printed_requests(after: Option<u64>) -> Vec<Value> {
    let (dir, fake, server) = start_server(LIMITS);
    let row = permission_row(&fake.key, 7);
    let options = json!([{"optionId": "y", "name": "Yes", "kind": "allow_once"}]);
    let payload = json!({"permission_id": row.permission_id(), "params": {"options": options}});
    fake.append_message("before");
    fake.append(EventKind::Permission, &payload.to_string());
    fake.append_message("after");
    fake.pending.lock().unwrap().push(row.clone());
    let sink = Sink::default();
    let mut out = Out::writing_to(Box::new(sink.clone()), true, false);
    let mut chat = Chat {
        client: GatewayClient::new(dir.path()),
        conversation: "chat".to_owned(),
        screen: ChatScreen::new(&mut out),
        session: None,
        open_runs: BTreeSet::new(),
        questions: VecDeque::new(),
        cancelling: false,
        is_terminal: false,
        exit_code: 0,
    };
    assert!(chat.follow(Some(fake.key.clone()), after).await.is_ok());
    for _ in after.unwrap_or(END)..END {
        let line = chat.session.as_mut().unwrap().events.next().await.unwrap();
        assert!(chat.show(line).is_ok());
    }
    assert_eq!(chat.questions, [(row.permission_id(), 1)]);
    server.end().await;
    let lines: Vec<Value> = sink.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    lines.into_iter().filter(|line| line["type"] == "permission").collect()
}

#[tokio::test]
async fn json_chat_prints_the_row_of_a_pending_permission_request_once() {
    for after in [None, Some(0), Some(1), Some(2)] {
        let printed = printed_requests(after).await;
        assert_eq!(printed.len(), 1, "{after:?}: {printed:#?}");
        assert_eq!((&printed[0]["event_version"], &printed[0]["session_seq"]), (&json!(1), &json!(2)));
    }
}
