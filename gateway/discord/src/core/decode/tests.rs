#![expect(clippy::expect_used, reason = "a failed expectation is a failed test")]

use super::*;
use serde_json::json;

fn decode_one(kind: &str, data: &Json) -> Event {
    match event(kind, data) {
        Ok(DecodedEvent::Events(mut events)) if events.len() == 1 => events.remove(0),
        other => panic!("{kind}: {other:?}"),
    }
}

fn user(id: u64, name: &str) -> User {
    User { id: Snowflake(id), name: name.to_owned(), display_name: None, bot: false }
}

fn message_json() -> Json {
    json!({
        "id": "100", "channel_id": "10", "guild_id": "5", "type": 19, "content": "look", "flags": 4,
        "author": { "id": "9", "username": "ann", "global_name": "Ann", "bot": false },
        "member": { "nick": "A.", "roles": ["31", "32"] },
        "attachments": [
            { "id": "71", "filename": "a.png", "url": "https://cdn/a.png", "size": 12, "content_type": "image/png" },
            { "id": "72", "filename": "b", "url": "https://cdn/b", "size": 0 },
        ],
        "mentions": [{ "id": "1", "username": "bot" }], "mention_roles": ["33"], "nonce": 77,
        "message_reference": { "message_id": "99", "channel_id": "10" },
        "timestamp": "2026-11-22T09:00:00+00:00", "tts": false, "pinned": false, "embeds": [],
        "components": [
            { "type": 1, "components": [{ "type": 2, "custom_id": "acp1:/acp help" }, { "type": 2, "url": "https://a" }] },
            { "type": 10, "content": "x" }, 7,
        ],
    })
}

#[test]
fn message_with_all_fields_is_decoded() {
    let author = User { display_name: Some("A.".to_owned()), ..user(9, "ann") };
    let file = |name: &str, url: &str, size, mime: Option<&str>| Attachment {
        name: name.to_owned(),
        url: url.to_owned(),
        size,
        mime: mime.map(str::to_owned),
    };
    let expected = Message {
        id: Snowflake(100),
        channel: Snowflake(10),
        guild: Some(Snowflake(5)),
        author: Member { user: author, roles: vec![Snowflake(31), Snowflake(32)] },
        webhook: None,
        application: None,
        kind: 19,
        text: "look".to_owned(),
        attachments: vec![
            file("a.png", "https://cdn/a.png", 12, Some("image/png")),
            file("b", "https://cdn/b", 0, None),
        ],
        mentions: vec![Snowflake(1)],
        nonce: Some("77".to_owned()),
        buttons: vec!["acp1:/acp help".to_owned()],
    };
    assert!(expected.mentions(Snowflake(1)) && !expected.mentions(Snowflake(9)));
    assert_eq!(decode_one("MESSAGE_CREATE", &message_json()), Event::Message(Box::new(expected)));
}

#[test]
fn only_used_fields_are_required() {
    let whole = message(&message_json()).expect("whole");
    for field in message_json().as_object().expect("object").keys() {
        for gone in [true, false] {
            let mut data = message_json();
            if gone {
                data.as_object_mut().expect("object").remove(field);
            } else {
                data[field] = Json::Null;
            }
            let needed = ["id", "channel_id", "author"].contains(&field.as_str());
            match message(&data) {
                Ok(read) => assert!(!needed && read.id == whole.id, "{field}"),
                Err(why) => assert!(needed, "{field}: {why:?}"),
            }
        }
    }
}

#[test]
fn decode_errors_do_not_repeat_content() {
    let mut data = message_json();
    data["content"] = json!({ "secret": "hunter2" });
    let mut other = message_json();
    other["attachments"] = json!("hunter2, expected");
    let mut third = message_json();
    third["channel_id"] = json!("hunter2");
    for data in [data, other, third] {
        let DecodeError(why) = message(&data).expect_err("unreadable");
        assert!(!why.contains("hunter2") && !why.is_empty(), "{why}");
    }
}

#[test]
fn edits_by_author_are_distinguished_from_previews() {
    let edit = decode_one(
        "MESSAGE_UPDATE",
        &json!({ "id": "1", "channel_id": "2", "content": "x", "edited_timestamp": "2026-11-22T09:00:00Z",
                 "author": { "id": "9", "username": "ann" } }),
    );
    let expected = MessageEdit {
        id: Snowflake(1),
        channel: Snowflake(2),
        author: Some(user(9, "ann")),
        webhook: None,
        text: Some("x".to_owned()),
        attachments: None,
        by_author: true,
    };
    assert_eq!(edit, Event::MessageEdited(expected));
    let preview = decode_one("MESSAGE_UPDATE", &json!({ "id": "1", "channel_id": "2", "embeds": [{}] }));
    let Event::MessageEdited(edit) = preview else { panic!("{preview:?}") };
    assert_eq!((edit.text, edit.by_author), (None, false));
}

#[test]
fn events_of_threads_channels_and_guilds_are_decoded() {
    let thread = json!({
        "id": "40", "guild_id": "5", "parent_id": "10", "name": "t", "owner_id": "9", "type": 12,
        "thread_metadata": { "archived": true, "locked": false, "auto_archive_duration": 1440,
                             "archive_timestamp": "2026-11-22T09:00:00+00:00" },
    });
    let read = Thread {
        id: Snowflake(40),
        guild: Some(Snowflake(5)),
        parent: Some(Snowflake(10)),
        archived: true,
        auto_archive_minutes: 1440,
        archived_at: Some("2026-11-22T09:00:00+00:00".to_owned()),
    };
    let ids = |ids: &[u64]| ids.iter().copied().map(Snowflake).collect();
    for (kind, data, expected) in [
        ("THREAD_CREATE", thread.clone(), Event::ThreadCreated(read.clone())),
        ("THREAD_UPDATE", thread.clone(), Event::ThreadChanged(read.clone())),
        (
            "THREAD_LIST_SYNC",
            json!({ "guild_id": "5", "threads": [thread], "members": [] }),
            Event::ThreadChanged(read),
        ),
        (
            "THREAD_DELETE",
            json!({ "id": "40", "guild_id": "5", "parent_id": "10", "type": 11 }),
            Event::ThreadDeleted(Snowflake(40)),
        ),
        (
            "MESSAGE_DELETE",
            json!({ "id": "1", "channel_id": "2" }),
            Event::MessagesDeleted { channel: Snowflake(2), ids: ids(&[1]) },
        ),
        (
            "MESSAGE_DELETE_BULK",
            json!({ "ids": ["1", "3"], "channel_id": "2" }),
            Event::MessagesDeleted { channel: Snowflake(2), ids: ids(&[1, 3]) },
        ),
        ("CHANNEL_DELETE", json!({ "id": "10", "type": 0 }), Event::ChannelDeleted(Snowflake(10))),
        ("CHANNEL_UPDATE", json!({ "id": "10", "type": 0 }), Event::ChannelChanged(Snowflake(10))),
        ("GUILD_CREATE", json!({ "id": "5", "name": "g" }), Event::GuildBack(Snowflake(5))),
        (
            "GUILD_ROLE_UPDATE",
            json!({ "guild_id": "5", "role": { "id": "7" } }),
            Event::RightsChanged(Snowflake(5)),
        ),
        ("GUILD_ROLE_DELETE", json!({ "guild_id": "5", "role_id": "7" }), Event::RightsChanged(Snowflake(5))),
        (
            "GUILD_DELETE",
            json!({ "id": "5", "unavailable": true }),
            Event::GuildGone { id: Snowflake(5), outage: true },
        ),
        ("GUILD_DELETE", json!({ "id": "5" }), Event::GuildGone { id: Snowflake(5), outage: false }),
        ("RESUMED", json!({ "_trace": [] }), Event::Resumed),
    ] {
        assert_eq!(decode_one(kind, &data), expected, "{kind}");
    }
    // The archive state is too important to be guessed.
    assert!(event("THREAD_UPDATE", &json!({ "id": "40", "name": "t" })).is_err());
}

#[test]
fn ready_event_is_decoded() {
    let data = json!({
        "v": 10, "session_id": "s1", "resume_gateway_url": "wss://x", "shard": [1, 2],
        "user": { "id": "1", "username": "bot", "bot": true }, "application": { "id": "2", "flags": 0 },
        "guilds": [{ "id": "5", "unavailable": true }],
    });
    let me = User { bot: true, ..user(1, "bot") };
    let expected = ReadyEvent {
        me,
        application: Snowflake(2),
        session: "s1".to_owned(),
        shard: ShardId { number: 1, count: 2 },
        guilds: vec![Snowflake(5)],
    };
    assert_eq!(decode_one("READY", &data), Event::Ready(expected));
}

fn interaction(kind: u64, data: Json) -> Json {
    json!({
        "id": "200", "application_id": "2", "type": kind, "token": "hunter2", "version": 1, "guild_id": "5",
        "channel_id": "40", "channel": { "id": "40", "parent_id": "10", "type": 11 }, "locale": "de",
        "app_permissions": "2048", "attachment_size_limit": 10_485_760, "entitlements": [],
        "member": { "user": { "id": "9", "username": "ann" }, "roles": ["31"], "permissions": "8" },
        "message": { "id": "100" }, "data": data,
    })
}

fn expected_interaction() -> Interaction {
    Interaction {
        id: Snowflake(200),
        application: Snowflake(2),
        token: Secret::new("hunter2".to_owned()),
        guild: Some(Snowflake(5)),
        channel: Snowflake(40),
        parent: Some(Snowflake(10)),
        is_thread: Some(true),
        member: Member { user: user(9, "ann"), roles: vec![Snowflake(31)] },
    }
}

#[test]
fn channel_in_category_is_not_a_thread() {
    for (channel, parent, is_thread) in [
        (json!({ "id": "40", "type": 11, "parent_id": "10" }), Some(10), Some(true)),
        (json!({ "id": "40", "type": 12, "parent_id": "10" }), Some(10), Some(true)),
        (json!({ "id": "40", "type": 0, "parent_id": "10" }), None, Some(false)),
        (json!({ "id": "40", "type": 5, "parent_id": null }), None, Some(false)),
        (json!({ "id": "40", "parent_id": "10" }), None, None),
        (Json::Null, None, None),
    ] {
        let mut data = interaction(2, json!({ "id": "300", "name": "acp", "type": 1 }));
        data["channel"] = channel.clone();
        let Event::Command(command) = decode_one("INTERACTION_CREATE", &data) else { panic!("{channel}") };
        assert_eq!(
            (command.interaction.parent, command.interaction.is_thread),
            (parent.map(Snowflake), is_thread),
            "{channel}"
        );
    }
}

#[test]
fn slash_command_options_are_decoded_as_tree() {
    let data = json!({
        "id": "300", "name": "acp", "type": 1,
        "options": [{ "name": "spawn", "type": 1, "options": [
            { "name": "agent", "type": 3, "value": "claude" },
            { "name": "count", "type": 4, "value": 3 },
            { "name": "discard", "type": 5, "value": true },
            { "name": "who", "type": 6, "value": "9" },
        ] }],
    });
    let option = |name: &str, value| GivenOption { name: name.to_owned(), value, focused: false };
    let below = vec![
        option("agent", Value::Text("claude".to_owned())),
        option("count", Value::Integer(3)),
        option("discard", Value::Bool(true)),
        option("who", Value::Other),
    ];
    let expected = SlashCommand {
        interaction: expected_interaction(),
        name: "acp".to_owned(),
        options: vec![option("spawn", Value::Sub(below))],
    };
    assert_eq!(decode_one("INTERACTION_CREATE", &interaction(2, data)), Event::Command(Box::new(expected)));
}

#[test]
fn focused_option_is_text_for_any_kind() {
    for (kind, value, text) in
        [(3, json!("cl"), "cl"), (4, json!("1"), "1"), (4, json!(12), "12"), (10, json!(""), "")]
    {
        let typed = json!({ "name": "x", "type": kind, "value": value, "focused": true });
        let event =
            decode_one("INTERACTION_CREATE", &interaction(4, json!({ "name": "acp", "options": [typed] })));
        let Event::Autocomplete(command) = event else { panic!("{event:?}") };
        let expected =
            GivenOption { name: "x".to_owned(), value: Value::Text(text.to_owned()), focused: true };
        assert_eq!(command.options, [expected], "{kind}");
    }
}

#[test]
fn click_has_custom_id_and_message() {
    let click = interaction(3, json!({ "custom_id": "acp1:/acp cancel", "component_type": 2 }));
    let expected = Click {
        interaction: expected_interaction(),
        custom_id: "acp1:/acp cancel".to_owned(),
        message: Snowflake(100),
    };
    assert_eq!(decode_one("INTERACTION_CREATE", &click), Event::Click(Box::new(expected)));
}

#[test]
fn submission_has_the_values_of_all_inputs() {
    let data = json!({"custom_id": "acp1:/acp form 1", "components": [
        {"type": 1, "components": [{"type": 4, "custom_id": "0", "value": "Ann"}]},
        {"type": 18, "component": {"type": 4, "custom_id": "1", "value": ""}},
        {"type": 10, "content": "text"},
    ]});
    let decoded = decode_one("INTERACTION_CREATE", &interaction(5, data));
    let Event::Submit(submission) = decoded else { panic!("no submission") };
    assert_eq!(submission.custom_id, "acp1:/acp form 1");
    let values = [("0", "Ann"), ("1", "")].map(|(id, value)| (id.to_owned(), value.to_owned()));
    assert_eq!(submission.values, values, "in rows and in labels");
}

#[test]
fn interaction_requires_only_fields_of_its_response() {
    let whole = || interaction(3, json!({ "custom_id": "x" }));
    for field in whole().as_object().expect("object").keys() {
        let mut data = whole();
        data.as_object_mut().expect("object").remove(field);
        let read = event("INTERACTION_CREATE", &data);
        let needed = ["id", "application_id", "type", "token", "member", "message", "data"];
        // `channel_id` is not needed, since the id is also in `channel`.
        assert_eq!(read.is_err(), needed.contains(&field.as_str()), "{field}: {read:?}");
    }
    let mut direct = whole();
    direct["member"] = Json::Null;
    direct["user"] = json!({ "id": "9", "username": "ann" });
    let Event::Click(click) = decode_one("INTERACTION_CREATE", &direct) else { panic!("no click") };
    assert_eq!(click.interaction.member.user.id, Snowflake(9));
    // A kind of a future API version.
    for kind in [6, 7] {
        assert_eq!(event("INTERACTION_CREATE", &interaction(kind, json!({}))), Ok(DecodedEvent::Ignored));
    }
}

#[test]
fn event_kinds_are_handled_ignored_or_unknown() {
    for kind in IGNORED {
        assert_eq!(event(kind, &Json::Null), Ok(DecodedEvent::Ignored), "{kind}");
    }
    assert_eq!(event("SUBSCRIPTION_CREATE", &json!({})), Ok(DecodedEvent::Unknown));
    for kind in ["READY", "MESSAGE_CREATE", "INTERACTION_CREATE", "THREAD_LIST_SYNC", "GUILD_DELETE"] {
        assert!(event(kind, &Json::Null).is_err(), "{kind}");
    }
}
