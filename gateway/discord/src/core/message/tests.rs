use super::{Callback, EPHEMERAL, FileUpload, MessageBody, NewMessage};
use crate::core::payload_limits::{OutOfBounds, PayloadLimit, ValidationError};
use bytes::Bytes;
use proptest::prelude::*;
use serde_json::json;

fn file(name: &str, bytes: usize) -> FileUpload {
    FileUpload {
        name: name.to_owned(),
        content_type: "text/plain".to_owned(),
        description: String::new(),
        bytes: Bytes::from(vec![b'x'; bytes]),
    }
}

fn new_message(body: MessageBody) -> NewMessage {
    NewMessage { nonce: "n".to_owned(), body }
}

#[test]
fn new_message_payload_matches_documentation() {
    let files = vec![file("a.md", 3)];
    let message =
        new_message(MessageBody { files, flags: EPHEMERAL, ..MessageBody::text("hello @everyone") });
    let expected = json!({
        "content": "hello @everyone",
        "embeds": [],
        "components": [],
        "allowed_mentions": {"parse": [], "replied_user": false},
        "flags": 64,
        "attachments": [{"id": "0", "filename": "a.md"}],
        "nonce": "n",
        "enforce_nonce": true,
    });
    assert_eq!(message.payload().map(|payload| payload.json), Ok(expected));
}

#[test]
fn edit_payload_replaces_all_content() {
    let expected = json!({
        "content": "x",
        "embeds": [],
        "components": [],
        "allowed_mentions": {"parse": [], "replied_user": false},
    });
    assert_eq!(MessageBody::text("x").edit().map(|payload| payload.json), Ok(expected));
}

#[test]
fn out_of_bounds_payloads_are_rejected() {
    let over = |limit, actual| Err(ValidationError::OutOfBounds(OutOfBounds { limit, actual }));
    let with = |files: Vec<FileUpload>| MessageBody { files, ..MessageBody::text("x") };
    let mib = 1024 * 1024;
    for (row, body, expected) in [
        ("text", MessageBody::text("x".repeat(2000)), Ok(())),
        ("long", MessageBody::text("x".repeat(2001)), over(PayloadLimit::Content, 2001)),
        ("empty", MessageBody::text(" \n"), Err(ValidationError::Empty)),
        ("file only", MessageBody { files: vec![file("a", 1)], ..MessageBody::default() }, Ok(())),
        ("files", with(vec![file("a", 1); 11]), over(PayloadLimit::Files, 11)),
        ("large", with(vec![file("a", 10 * mib)]), Ok(())),
        ("too large", with(vec![file("a", 10 * mib + 1)]), over(PayloadLimit::FileBytes, 10 * mib + 1)),
        ("no name", with(vec![file("", 1)]), over(PayloadLimit::FileName, 0)),
        (
            "a path",
            with(vec![file("../a", 1)]),
            Err(ValidationError::Form(
                "a file's name must not contain path separators, quotes or control characters",
            )),
        ),
    ] {
        assert_eq!(new_message(body.clone()).payload().map(|_| ()), expected, "{row}");
        assert_eq!(body.edit().map(|_| ()), expected, "{row}");
        assert_eq!(body.webhook(None).map(|_| ()), expected, "{row}");
    }
    assert!(with(vec![file("a", 9 * mib); 3]).edit().is_err());
    for nonce in ["", &"n".repeat(26)] {
        assert!(
            NewMessage { nonce: nonce.to_owned(), ..new_message(MessageBody::text("x")) }.payload().is_err()
        );
    }
    for name in ["", "Clyde", "my discord bot", &"n".repeat(81)] {
        assert!(MessageBody::text("x").webhook(Some(name)).is_err(), "{name}");
    }
}

#[test]
fn callback_payloads_match_documentation() {
    let text = MessageBody::text("x").edit().map(|payload| payload.json).unwrap_or_default();
    let choice = |name: &str| (name.to_owned(), "v".to_owned());
    for (callback, expected) in [
        (Callback::Message(MessageBody::text("x")), json!({"type": 4, "data": text})),
        (Callback::Deferred { flags: 64 }, json!({"type": 5, "data": {"flags": 64}})),
        (Callback::DeferredUpdate, json!({"type": 6})),
        (
            Callback::Choices(vec![choice("a")]),
            json!({"type": 8, "data": {"choices": [{"name": "a", "value": "v"}]}}),
        ),
    ] {
        assert_eq!(callback.payload().map(|payload| payload.json), Ok(expected));
    }
    assert!(Callback::Choices(vec![choice("a"); 26]).payload().is_err());
    assert!(Callback::Choices(vec![choice(&"a".repeat(101))]).payload().is_err());
}

proptest! {
    #[test]
    fn payloads_disable_mentions(content in "\\PC{1,60}", flags in 0_u64..8192) {
        let body = MessageBody { flags, ..MessageBody::text(format!("@everyone {content}")) };
        let callback = Callback::Message(body.clone()).payload().map(|payload| payload.json["data"].clone());
        let bodies = [
            new_message(body.clone()).payload().map(|payload| payload.json),
            body.edit().map(|payload| payload.json),
            body.webhook(None).map(|payload| payload.json),
            callback,
        ];
        for body in bodies {
            let mentions = body.map(|body| body["allowed_mentions"].clone());
            prop_assert_eq!(mentions, Ok(json!({"parse": [], "replied_user": false})));
        }
    }
}
