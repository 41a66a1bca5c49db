//! The picture of a thread: it is the one of its transcript, well formed whatever people write, and whole.

use acp_tests::fake_discord::core::model::message_flag::EPHEMERAL;
use acp_tests::fake_discord::core::model::message_kind::{CHAT_INPUT_COMMAND, THREAD_STARTER};
use acp_tests::fake_discord::core::model::{Attachment, Message, Origin, User};
use acp_tests::fake_discord::core::world::World;
use acp_tests::picture::{Transcript, page};
use acp_tests::world::repository;
use proptest::prelude::*;
use serde_json::json;
use std::collections::BTreeSet;

const PICTURE: &str = "docs/manual/discord-thread.svg";
const TRANSCRIPT: &str = "tests/pictures/thread.json";
/// What a page that shows it has to load, in bytes.
const SIZE_MAX: usize = 30_000;
/// Whatever else came in would be somebody's text.
const ELEMENTS: [&str; 8] = ["svg", "title", "style", "rect", "circle", "text", "g", "path"];
const HOSTILE: &str = "</text><script>alert('1')</script>]]> &amp; \"&lt;\u{0}\u{1b}[2J\u{202e} onload=\"x";

/// What an escaped text says.
fn decoded(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('&') {
        let (name, after) = after.split_once(';').unwrap_or_else(|| panic!("an open entity: {text}"));
        let c = match name {
            "amp" => '&',
            "lt" => '<',
            "gt" => '>',
            "quot" => '"',
            "apos" => '\'',
            other => panic!("an unknown entity {other}: {text}"),
        };
        out.extend(before.chars().chain([c]));
        rest = after;
    }
    out + rest
}

/// Reads an XML file strictly: names and decoded texts of its elements with text, in order.
fn read(xml: &str) -> Vec<(String, String)> {
    assert!(!xml.chars().any(|c| c.is_control() && c != '\n'), "a character that XML may not hold");
    let (mut open, mut found): (Vec<&str>, Vec<_>) = (Vec::new(), Vec::new());
    let mut rest = xml;
    while let Some((text, after)) = rest.split_once('<') {
        assert!(
            !text.contains('>') && (open.last().is_some() || text.trim().is_empty()),
            "loose text: {text}"
        );
        if let Some(name) = open.last().filter(|_| !text.trim().is_empty()) {
            found.push(((*name).to_owned(), decoded(text)));
        }
        let (tag, after) = after.split_once('>').unwrap_or_else(|| panic!("an open tag: {after}"));
        rest = after;
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name), "closed in order");
            continue;
        }
        let body = tag.trim_end_matches('/');
        let (name, attributes) = body.split_once(' ').unwrap_or((body, ""));
        assert!(ELEMENTS.contains(&name) || name == "ellipse", "an element {name}");
        attributes_hold(attributes);
        if !tag.ends_with('/') {
            open.push(name);
        }
    }
    assert!(open.is_empty() && rest.trim().is_empty(), "{open:?} is open");
    found
}

fn attributes_hold(text: &str) {
    let mut rest = text.trim();
    while !rest.is_empty() {
        let (name, after) = rest.split_once("=\"").unwrap_or_else(|| panic!("no attribute: {rest}"));
        assert!(name.chars().all(|c| c.is_ascii_alphanumeric() || "-:".contains(c)), "a name {name}");
        assert!(!name.starts_with("on") && name != "href", "an attribute that acts: {name}");
        let (value, after) = after.split_once('"').unwrap_or_else(|| panic!("an open value: {after}"));
        let _ = decoded(value);
        rest = after.trim_start();
    }
}

fn user(id: u64, name: &str, bot: bool) -> User {
    User { id, name: name.to_owned(), bot }
}

fn said(id: u64, content: &str) -> Message {
    Message {
        id,
        channel_id: 2,
        author_id: 7,
        content: content.to_owned(),
        created_ms: id,
        ..Message::default()
    }
}

fn transcript(messages: Vec<Message>) -> Transcript {
    let users = vec![user(7, "ann", false), user(8, "bot", true)];
    Transcript { channel: "general".to_owned(), thread: "demo".to_owned(), users, messages }
}

fn dense(text: &str) -> String {
    text.chars().filter(|c| !c.is_whitespace()).collect()
}

/// All text that is drawn, without white space.
fn shown(drawn: &str) -> String {
    read(drawn).iter().filter(|(element, _)| element == "text").map(|(_, text)| dense(text)).collect()
}

#[test]
fn the_picture_in_the_readme_is_the_one_of_its_transcript() {
    let read = |path: &str| {
        std::fs::read_to_string(repository().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
    };
    let kept: Transcript = serde_json::from_str(&read(TRANSCRIPT)).unwrap_or_else(|e| panic!("{e}"));
    let drawn = page::draw(&kept);
    assert!(read(PICTURE) == drawn, "{PICTURE} is another one: run `make picture`");
    assert!(drawn.len() < SIZE_MAX, "{} bytes", drawn.len());
    let shown = shown(&drawn);
    for part in ["general", "APP", "Stop", "Reject", "Drop", "demo·", "println!"] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    assert!(readme().contains(PICTURE), "the README shows it");
}

fn readme() -> String {
    std::fs::read_to_string(repository().join("README.md")).unwrap_or_else(|e| panic!("README.md: {e}"))
}

/// Whoever named themselves, a thread, a file or a button: it is shown as text.
#[test]
fn hostile_text_is_text_wherever_it_stands() {
    let button = json!({"type": 2, "style": 1, "label": HOSTILE, "custom_id": HOSTILE});
    let odd = json!({"type": 2, "style": HOSTILE});
    let embed = json!({
        "title": HOSTILE, "description": HOSTILE, "author": {"name": HOSTILE}, "footer": {"text": HOSTILE},
        "fields": [{"name": HOSTILE, "value": HOSTILE}, HOSTILE],
    });
    let file =
        Attachment { id: 1, filename: HOSTILE.to_owned(), content_type: None, description: None, size: 12 };
    let origin = Origin { interaction_id: 1, kind: 2, user_id: 7, name: Some(HOSTILE.to_owned()) };
    let message = Message {
        content: format!("{HOSTILE}\n```\n{HOSTILE}\n```\n> {HOSTILE}\n-# {HOSTILE}\n`{HOSTILE}`"),
        components: vec![json!({"type": 1, "components": [button, odd]}), json!(HOSTILE)],
        embeds: vec![embed],
        attachments: vec![file],
        reactions: [(HOSTILE.to_owned(), BTreeSet::from([7]))].into(),
        kind: CHAT_INPUT_COMMAND,
        origin: Some(origin),
        username: Some(HOSTILE.to_owned()),
        edited_ms: Some(1),
        ..said(1, "")
    };
    let notice = Message { kind: 4, ..said(2, HOSTILE) };
    let mut transcript = transcript(vec![message, notice]);
    transcript.channel = HOSTILE.to_owned();
    transcript.thread = HOSTILE.to_owned();
    transcript.users = vec![user(7, HOSTILE, false)];
    let drawn = page::draw(&transcript);
    let whole = shown(&drawn);
    let bad = dense("</text><script>alert('1')</script>]]>");
    assert!(whole.matches(&bad).count() >= 14, "{} of it: {whole}", whole.matches(&bad).count());
    assert!(!drawn.contains("<script"), "{drawn}");
}

/// What one person alone saw, and what was deleted, is not in the transcript; the message above a thread is.
#[test]
fn a_transcript_is_what_everybody_sees() {
    let channel = |id: u64, parent: Option<u64>| {
        let thread = parent.map(|_| {
            json!({"owner_id": 8, "archived": false, "locked": false, "auto_archive_minutes": 60, "archive_ms": 0,
                "active_ms": 0, "invitable": true, "total_sent": 0, "message_count": 0, "members": {}})
        });
        json!({"id": id, "guild_id": 1, "kind": 0, "name": format!("c{id}"), "topic": null, "parent_id": parent,
            "position": 0, "slowmode_s": 0, "last_message_id": null, "thread": thread, "alive": true})
    };
    let mut world = World::default();
    let mut load = |kind: &str, id: u64, row: serde_json::Value| {
        world.load(kind, id, &row.to_string()).unwrap_or_else(|e| panic!("{kind}: {e}"));
    };
    load("channel", 1, channel(1, None));
    load("channel", 2, channel(2, Some(1)));
    for (id, name) in [(7, "ann"), (8, "bot"), (9, "eve")] {
        load("user", id, json!({"id": id, "name": name, "bot": id == 8}));
    }
    let starter = Message { channel_id: 1, author_id: 8, ..said(2, "works here") };
    let mark = Message { kind: THREAD_STARTER, replied_to: Some(2), ..said(3, "") };
    let secret = Message { flags: EPHEMERAL, author_id: 9, ..said(5, "you alone") };
    let gone = Message { deleted_ms: Some(1), ..said(6, "gone") };
    for message in [starter, mark, said(4, "hello"), secret, gone] {
        load("message", message.id, json!(message));
    }
    let taken = Transcript::of(&world, 2).unwrap_or_else(|| panic!("there is a thread"));
    let contents: Vec<&str> = taken.messages.iter().map(|message| message.content.as_str()).collect();
    assert_eq!(contents, ["works here", "hello"]);
    assert_eq!((taken.channel.as_str(), taken.thread.as_str()), ("c1", "c2"));
    let names: Vec<&str> = taken.users.iter().map(|user| user.name.as_str()).collect();
    assert_eq!(names, ["ann", "bot"], "eve is not seen");
    assert!(Transcript::of(&world, 1).is_none() && Transcript::of(&world, 99).is_none());
}

proptest! {
    #[test]
    fn whatever_is_written_the_picture_is_well_formed(content in any::<String>(), name in any::<String>()) {
        let mut transcript = transcript(vec![said(1, &content), Message { author_id: 8, ..said(2, &content) }]);
        transcript.users[0].name = name;
        let _ = read(&page::draw(&transcript));
    }

    #[test]
    fn nothing_of_what_was_said_is_left_away(content in "[a-zA-Z0-9 <&\"'.,;äöü好]{1,400}") {
        let drawn = page::draw(&transcript(vec![said(1, &content)]));
        prop_assert!(shown(&drawn).contains(&dense(&content)), "{}", drawn);
    }
}
