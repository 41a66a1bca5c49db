use super::*;
use crate::config::Separator;
use crate::event::EventKind as K;
use crate::message_split::{MessageLimit, Unit};
use crate::rows::Verbosity;
use proptest::prelude::*;
use serde_json::json;
use std::collections::BTreeMap;

mod effects;
mod files;
mod other_conversations;
mod projection;
mod untrusted;

pub(crate) fn style() -> Style {
    let hidden = ["agent_thought_chunk", "plan", "tool_call", "tool_call_update", "usage_update"];
    Style {
        limit: MessageLimit::new(Unit::Utf16, 1_900),
        output_chars_max: 24_000,
        line_chars_max: 320,
        separator: Separator::Paragraph,
        repeat_suppression: true,
        tags: hidden.iter().map(|&tag| (tag.to_owned(), false)).collect(),
        footer: false,
        files: None,
        verbosity: None,
        shows: ChannelFeatures::default(),
    }
}

fn binding() -> BindingId {
    BindingId::parse("01890a5d-ac96-774b-bcce-b302099a8057").unwrap()
}

fn run_id(number: u8) -> RunId {
    RunId::parse(&format!("01890a5d-ac96-774b-bcce-b3020000{number:04}")).unwrap()
}

#[derive(Debug, Default, Clone)]
struct Journal {
    rows: Vec<EventRow>,
}

impl Journal {
    fn push(&mut self, run: Option<RunId>, kind: EventKind, payload: Value) -> &mut Self {
        let seq = run.map(|run| 1 + self.rows.iter().filter(|row| row.run_id == Some(run)).count());
        let seq = seq.map(|seq| u64::try_from(seq).unwrap());
        let session_seq = 1 + u64::try_from(self.rows.len()).unwrap();
        self.rows.push(EventRow { session_seq, run_id: run, seq, ..crate::tests::event(kind, &payload) });
        self
    }

    fn append_text(&mut self, run: RunId, text: &str) -> &mut Self {
        self.push(Some(run), K::AgentMessage, json!({"content": {"type": "text", "text": text}}))
    }

    fn tool(&mut self, run: RunId, id: &str, kind: &str, status: &str) -> &mut Self {
        self.push(Some(run), K::ToolCall, json!({"toolCallId": id, "title": "t", "kind": kind}));
        self.push(Some(run), K::ToolCallUpdate, json!({"toolCallId": id, "status": status}))
    }

    fn done(&mut self, run: RunId, stop_reason: &str) -> &mut Self {
        self.push(Some(run), K::Done, json!({"stop_reason": stop_reason}))
    }

    fn update(&mut self, run: RunId, payload: Value) -> &mut Self {
        self.push(Some(run), K::Update, payload)
    }

    fn parts_of(&self, at: usize, mode: RunMode, started: bool) -> Vec<MessagePart> {
        self.parts_in(&style(), at, mode, started)
    }

    /// Returns the parts of the row at `at` for a reader with only the rows committed by then.
    fn parts_in(&self, style: &Style, at: usize, mode: RunMode, started: bool) -> Vec<MessagePart> {
        let event = &self.rows[at];
        match required_data(event) {
            RequiredData::Nothing => render_row(binding(), style, event, RenderData::Nothing),
            RequiredData::Next => {
                let next = self.rows.get(at + 1).map_or(RenderData::Nothing, RenderData::Next);
                render_row(binding(), style, event, next)
            }
            RequiredData::Run(run) => {
                let mut digest = RunDigest::new(mode, started, style.clone());
                for row in self.rows[..at].iter().filter(|row| row.run_id == Some(run)) {
                    digest.add(row.kind, &row.payload);
                }
                render_row(binding(), style, event, RenderData::Run(&digest))
            }
        }
    }

    fn texts(&self) -> Vec<(PartKind, String)> {
        self.texts_in(&style())
    }

    fn texts_in(&self, style: &Style) -> Vec<(PartKind, String)> {
        (0..self.rows.len())
            .flat_map(|at| self.parts_in(style, at, RunMode::Prompt, true))
            .map(|part| (part.kind, part.text))
            .collect()
    }

    fn parts_for(&self, styles: &StyleHistory, rows: std::ops::Range<usize>) -> Vec<MessagePart> {
        rows.flat_map(|at| {
            let style = styles.at(self.rows[at].session_seq).unwrap();
            self.parts_in(style, at, RunMode::Prompt, true)
        })
        .collect()
    }
}

fn texts_of(build: impl FnOnce(&mut Journal)) -> Vec<(PartKind, String)> {
    let mut journal = Journal::default();
    build(&mut journal);
    journal.texts()
}

#[test]
fn run_ends_in_one_final_message() {
    let run = run_id(1);
    let finals = [
        ("end_turn", "Hello world"),
        ("cancelled", "Hello world\n\nThe turn was cancelled. Send a message to continue."),
        ("max_tokens", "Hello world\n\nThe agent stopped at its length limit. Ask it to continue."),
        ("made_up", "Hello world\n\nThe turn ended: made_up."),
    ];
    for (stop_reason, want) in finals {
        let got = texts_of(|journal| {
            journal.push(Some(run), K::Prompt, json!({"text": "hi", "mode": "prompt"}));
            journal.append_text(run, "Hello ").append_text(run, "world").done(run, stop_reason);
        });
        assert_eq!(got, vec![(PartKind::Final, want.to_owned())], "{stop_reason}");
    }
    let got = texts_of(|journal| {
        journal.done(run, "end_turn");
    });
    assert_eq!(got, vec![(PartKind::Final, "The turn ended without an answer.".to_owned())]);
}

#[test]
fn tool_calls_are_counted_and_separate_paragraphs() {
    let run = run_id(1);
    let got = texts_of(|journal| {
        journal
            .append_text(run, "Looking.")
            .tool(run, "a", "read", "completed")
            .tool(run, "b", "edit", "failed");
        journal.append_text(run, "Done.").done(run, "end_turn");
    });
    let want = "Looking.\n\nDone.\n\n[2 tool calls (1 edit, 1 read), 1 failed]";
    assert_eq!(got, vec![(PartKind::Final, want.to_owned())]);
}

#[test]
fn failed_turn_shows_its_text_and_next_step() {
    let run = run_id(1);
    let got = texts_of(|journal| {
        journal.append_text(run, "Half an ans");
        let payload = json!({"code": "ACP_UNCERTAIN", "message": "The agent exited.", "retryable": false});
        journal.push(Some(run), K::Error, payload);
    });
    let want = format!(
        "Half an ans\n\nThe turn failed (ACP_UNCERTAIN): The agent exited. {}\nNext: {}",
        Code::Uncertain.text(),
        next_step_for(Code::Uncertain, None)
    );
    assert_eq!(got, vec![(PartKind::Final, want)]);
}

#[test]
fn failures_hide_server_paths() {
    let run = run_id(1);
    let got = texts_of(|journal| {
        let text = "The agent could not be started: /opt/bin/agent could not be started (exec: ENOENT)";
        journal.push(None, K::Status, json!({"status": "agent_failed", "text": text}));
        journal.append_text(run, "I read /etc/hosts/x.");
        let payload = json!({"code": "ACP_RUNTIME", "message": "cannot use /srv/a/b", "retryable": false});
        journal.push(Some(run), K::Error, payload);
    });
    assert!(got[0].1.contains("started: [path] could not be started (exec: ENOENT)"), "{got:?}");
    assert!(got[1].1.starts_with("I read /etc/hosts/x.\n\n"), "the agent's text is not changed: {got:?}");
    assert!(got[1].1.contains("cannot use [path]") && !got[1].1.contains("/srv"), "{got:?}");
}

#[test]
fn conversation_text_replaces_operator_text() {
    let run = run_id(1);
    let got = texts_of(|journal| {
        let payload = json!({"status": "agent_failed", "text": "in /srv", "conversation_text": "in [path]"});
        journal.push(None, K::Status, payload);
        let payload = json!({"code": "ACP_RUNTIME", "message": "The directory /srv/my work/x is gone.",
            "conversation_text": "The directory is gone.", "retryable": false});
        journal.push(Some(run), K::Error, payload);
    });
    assert_eq!(got[0].1, "in [path]");
    assert!(got[1].1.starts_with("The turn failed (ACP_RUNTIME): The directory is gone."), "{got:?}");
    assert!(!got[1].1.contains("my work"), "{got:?}");
}

#[test]
fn failure_of_session_and_run_is_shown_once() {
    let run = run_id(1);
    for (failed_runs, shown) in [(json!(null), 2), (json!(0), 2), (json!(1), 1), (json!(2), 1)] {
        let got = texts_of(|journal| {
            let payload = json!({"code": "ACP_AUTH_REQUIRED", "message": "Sign in.", "retryable": false});
            journal.push(Some(run), K::Error, payload);
            let payload = json!({"status": "agent_failed", "text": "Sign in.", "failed_runs": failed_runs});
            journal.push(None, K::Status, payload);
        });
        assert_eq!(got.len(), shown, "{failed_runs}: {got:?}");
    }
}

#[test]
fn steers_and_unstarted_runs_have_no_final() {
    let run = run_id(1);
    let mut journal = Journal::default();
    journal.done(run, "steered").done(run, "cancelled");
    assert_eq!(journal.parts_of(0, RunMode::Prompt, true), vec![]);
    assert_eq!(journal.parts_of(1, RunMode::Steer, true), vec![]);
    let notice = journal.parts_of(1, RunMode::Prompt, false);
    assert_eq!(notice.iter().map(|part| part.kind).collect::<Vec<_>>(), vec![PartKind::Notice]);
}

#[test]
fn only_rendered_kinds_are_shown() {
    let payload = json!({"content": {"type": "text", "text": "x"}, "text": "x", "status": "x"});
    for kind in K::ALL {
        let mut journal = Journal::default();
        journal.push(None, kind, payload.clone());
        let shown = !journal.texts().is_empty();
        assert_eq!(shown, RENDERED_KINDS.contains(&kind), "{kind:?}");
    }
}

#[test]
fn replay_is_not_run_output() {
    let run = run_id(1);
    let got = texts_of(|journal| {
        let old = json!({"content": {"type": "text", "text": "old "}});
        journal.push(Some(run), K::Replay, old);
        journal.append_text(run, "new").done(run, "end_turn");
    });
    assert_eq!(got, vec![(PartKind::Final, "new".to_owned())]);
}

#[test]
fn permission_requests_are_parts_unless_policy_answers() {
    let run = run_id(1);
    let request = json!({"permission_id": "p:1", "params": {
        "toolCall": {"toolCallId": "c", "title": "Write\nnotes.txt"},
        "options": [{"optionId": "a", "name": "Allow once", "kind": "allow_once"}, {"optionId": "r"}],
    }});
    let settle = |how: &str, by: &str| json!({"permission_id": "p:1", "outcome": "selected", "option_id": "a", how: by});
    let got = texts_of(|journal| {
        journal.push(Some(run), K::Permission, request.clone());
        journal.push(Some(run), K::PermissionSettled, settle("by", "ann"));
    });
    let want = "The agent asks for a permission: Write notes.txt\n1. Allow once\n2. r\n\
        Answer with /acp allow, /acp deny or /acp answer NUMBER.\nWaits for an answer · id 2GKu";
    let shown = "The permission request is resolved. Answered: “a” (by “ann”).";
    assert_eq!(got, vec![(PartKind::Permission, want.to_owned()), (PartKind::Notice, shown.to_owned())]);
    let got = texts_of(|journal| {
        journal.push(Some(run), K::Permission, request.clone());
        journal.push(Some(run), K::PermissionSettled, settle("without", "policy"));
    });
    // Without a question, its outcome is part of the answer.
    assert_eq!(got, vec![]);
    // A person with the name of a policy is still a person.
    let got = texts_of(|journal| {
        journal.push(Some(run), K::Permission, request.clone());
        journal.push(Some(run), K::PermissionSettled, settle("by", "policy"));
    });
    let shown = "The permission request is resolved. Answered: “a” (by “policy”).";
    assert_eq!(got, vec![(PartKind::Permission, want.to_owned()), (PartKind::Notice, shown.to_owned())]);
}

#[test]
fn notices_are_rendered() {
    let got = texts_of(|journal| {
        journal.push(None, K::Status, json!({"status": "agent_ready", "text": "The agent is ready."}));
        journal.push(None, K::Status, json!({"status": "lost", "text": "The agent exited."}));
        journal.push(None, K::Gap, json!({"text": "About 20 bytes."}));
        journal.push(None, K::Closed, json!({"reason": "asked by ann"}));
    });
    let want = [
        (PartKind::Notice, "The agent exited."),
        (PartKind::Error, "Output of the agent is missing here. About 20 bytes."),
        (PartKind::Notice, "The session is closed (asked by ann). Start a new one with /acp spawn."),
    ];
    assert_eq!(got, want.map(|(kind, text)| (kind, text.to_owned())));
}

#[test]
fn delay_notices_are_shown_at_any_verbosity() {
    let quiet = style().with_verbosity(Some(Verbosity::None));
    let mut journal = Journal::default();
    for status in ["agent_failed", "agent_waits", "unbound", "new_conversation", "agent_ready"] {
        journal.push(None, K::Status, json!({"status": status, "text": status}));
    }
    let texts = |style: &Style| journal.texts_in(style).into_iter().map(|(_, text)| text).collect::<Vec<_>>();
    assert_eq!(texts(&quiet), ["agent_failed", "agent_waits", "unbound"]);
    assert_eq!(texts(&style()), ["agent_failed", "agent_waits", "unbound", "new_conversation"]);
}

#[test]
fn long_output_is_split_without_loss() {
    let run = run_id(1);
    let mut journal = Journal::default();
    journal.append_text(run, &"word ".repeat(1_000)).done(run, "end_turn");
    let parts = journal.parts_of(1, RunMode::Prompt, true);
    assert_eq!(parts.iter().map(|part| part.part_no).collect::<Vec<_>>(), vec![0, 1, 2]);
    assert!(parts.iter().all(|part| part.nonce == nonce(binding(), 2, part.part_no)));
    let whole: String = parts.iter().map(|part| part.text.as_str()).collect();
    assert_eq!(whole, "word ".repeat(1_000).trim_end());
}

#[test]
fn nonces_are_unique_and_bounded() {
    let mut seen = std::collections::BTreeSet::new();
    for seq in 0..50 {
        for part_no in 0..10 {
            let nonce = nonce(binding(), seq, part_no);
            assert_eq!(nonce.len(), 24);
            assert!(seen.insert(nonce));
        }
    }
    assert_ne!(nonce_of(&["a", "bc"]), nonce_of(&["ab", "c"]));
}

fn journals() -> impl Strategy<Value = Journal> {
    let step = (0u8..3, 0u8..10, "[a-z `\n]{0,12}");
    prop::collection::vec(step, 0..40).prop_map(|steps| {
        let mut journal = Journal::default();
        for (run, step, text) in steps {
            let run = run_id(run);
            match step {
                0..=2 => journal.append_text(run, &text),
                3 => journal.tool(run, &text, "edit", "completed"),
                4 => journal.done(run, "end_turn"),
                5 => journal.push(Some(run), K::Permission, json!({"permission_id": text})),
                6 => journal.push(None, K::Status, json!({"status": "x", "text": text})),
                7 => journal.update(run, json!({"sessionUpdate": "notice", "message": text})),
                8 => journal.push(
                    Some(run),
                    K::AgentThought,
                    json!({"content": {"type": "text", "text": text}}),
                ),
                _ => journal.push(Some(run), K::Replay, json!({"content": {"type": "text", "text": text}})),
            };
        }
        journal
    })
}

fn styles_of() -> impl Strategy<Value = Style> {
    let separator = prop::sample::select(vec![
        Separator::None,
        Separator::Space,
        Separator::Newline,
        Separator::Paragraph,
    ]);
    let tags = ["tool_call", "tool_call_update", "agent_thought_chunk", "agent_message_chunk", "notice"];
    let tags = prop::collection::btree_map(prop::sample::select(tags.to_vec()), any::<bool>(), 0..5);
    let files = prop::option::of((0usize..4, 1usize..500, any::<(bool, bool)>()).prop_map(
        |(long_final_parts, bytes_max, (diff, refused))| crate::render::files::FileSettings {
            long_final_parts,
            bytes_max,
            diff,
            refused,
        },
    ));
    let shows = (0usize..3, any::<(bool, bool)>()).prop_map(|(buttons, (markdown, changes))| {
        ChannelFeatures { buttons, markdown, changes, approvers: None }
    });
    let numbers = (32usize..200, 1usize..200, 64usize..100);
    let verbosity = prop::option::of(prop::sample::select(Verbosity::ALL.to_vec()));
    (numbers, separator, any::<(bool, bool)>(), tags, files, (verbosity, shows)).prop_map(
        |(numbers, separator, (repeat_suppression, footer), tags, files, (verbosity, shows))| Style {
            limit: MessageLimit::new(Unit::Bytes, 16_384).within_chars(numbers.0),
            output_chars_max: numbers.1,
            line_chars_max: numbers.2,
            separator,
            repeat_suppression,
            tags: tags.into_iter().map(|(tag, shown)| (tag.to_owned(), shown)).collect(),
            footer,
            files,
            verbosity,
            shows,
        },
    )
}

proptest! {
    /// Readers at any position of a growing journal, with restarts and configuration changes in between,
    /// produce the same parts as a single later pass.
    #[test]
    fn parts_do_not_depend_on_read_positions(
        journal in journals(),
        cuts in prop::collection::vec((0usize..60, styles_of()), 1..6),
    ) {
        let end = journal.rows.len();
        let mut cuts: Vec<(usize, Style)> = cuts.into_iter().map(|(cut, style)| (cut.min(end), style)).collect();
        cuts.sort_by_key(|(cut, _)| *cut);
        let last = cuts.last().unwrap().1.clone();
        cuts.push((end, last));
        let mut records: Vec<(u64, Style)> = Vec::new();
        let (mut checkpoint, mut got) = (0, Vec::new());
        for (committed, style) in cuts {
            // As in the store: from the next row on, or from the start.
            let from = if records.is_empty() { 0 } else { u64::try_from(committed).unwrap() + 1 };
            if records.last().is_none_or(|(_, known)| *known != style) {
                records.retain(|(at, _)| *at != from);
                records.push((from, style));
            }
            let view = Journal { rows: journal.rows[..committed].to_vec() };
            got.extend(view.parts_for(&StyleHistory::new(records.clone()), checkpoint..committed));
            checkpoint = committed;
        }
        let whole = journal.parts_for(&StyleHistory::new(records), 0..end);
        prop_assert_eq!(&got, &whole);
        let numbers: Vec<(u64, u32)> = whole.iter().map(|part| (part.session_seq, part.part_no)).collect();
        prop_assert!(numbers.is_sorted_by(|texts_of, next| texts_of < next), "{:?}", numbers);
    }

    /// All parts fit the limit, and a turn has at most one note about omitted output.
    #[test]
    fn parts_fit_the_limit(journal in journals(), style in styles_of()) {
        for (kind, text) in journal.texts_in(&style) {
            prop_assert!(style.limit.fits(&text), "{:?}", text);
            prop_assert!(kind != PartKind::Card);
        }
        for at in 0..journal.rows.len() {
            let parts = journal.parts_in(&style, at, RunMode::Prompt, true);
            let whole: String = parts.iter().map(|part| part.text.as_str()).collect();
            prop_assert!(whole.matches("Output truncated").count() <= 1, "{}", whole);
        }
    }

    #[test]
    fn any_payload_is_rendered(kind in prop::sample::select(K::ALL.to_vec()), payload in "\\PC{0,60}") {
        let mut journal = Journal::default();
        journal.push(Some(run_id(1)), kind, Value::Null);
        journal.rows[0].payload = payload;
        for part in journal.parts_of(0, RunMode::Prompt, true) {
            prop_assert!(!part.text.trim().is_empty());
        }
    }
}

/// D2: the timeout of one binding is reported in its own conversation only.
#[test]
fn binding_end_is_reported_in_its_conversation_only() {
    let text = "This conversation was unbound.";
    for (of, parts) in [(binding(), 1), (BindingId::mint(), 0)] {
        let mut journal = Journal::default();
        let payload = json!({"status": "unbound", "text": text, "binding_id": of});
        journal.push(None, K::Status, payload);
        let shown = journal.parts_of(0, RunMode::Prompt, true);
        assert_eq!(shown.len(), parts);
        assert!(shown.iter().all(|part| part.text == text && part.kind == PartKind::Notice));
    }
}
