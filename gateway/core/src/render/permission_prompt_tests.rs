use super::*;
use crate::message_split::{MessageLimit, Unit, split};
use crate::render::ChannelFeatures;
use proptest::prelude::*;
use serde_json::json;

const ID: &str = "01890a5d-ac96-774b-bcce-b302099a8057:7";

fn style(shows: ChannelFeatures) -> Style {
    crate::render::tests::style().in_channel(shows)
}

fn chat() -> ChannelFeatures {
    ChannelFeatures { buttons: 25, markdown: true, changes: true, approvers: None }
}

fn event(payload: &Value) -> EventRow {
    EventRow { created_at_ms: 5_020, ..crate::tests::event(EventKind::Permission, payload) }
}

fn prompt_text(shows: ChannelFeatures, payload: &Value) -> String {
    permission_prompt(&style(shows), &event(payload), payload)
}

fn question(call: Value, options: usize) -> Value {
    let option =
        |n: usize| json!({"optionId": n.to_string(), "name": format!("Option {n}"), "kind": "allow_once"});
    let options: Vec<Value> = (1..=options).map(option).collect();
    json!({"permission_id": ID, "params": {"toolCall": call, "options": options}})
}

/// With buttons the options are not listed; without them the list explains how to answer.
#[test]
fn question_shows_action_and_how_to_answer() {
    let id = short_id(ID);
    let edit = json!({"title": "Write notes_a.md", "kind": "edit",
        "content": [{"type": "diff", "path": "notes_a.md", "newText": "x\n"}]});
    let diff = "--- /dev/null\n+++ b/notes_a.md\n@@ -0,0 +1 @@\n+x";
    let asks = "The agent asks for a permission";
    let typed = "Answer with /acp allow, /acp deny or /acp answer NUMBER.";
    let mut until = question(edit.clone(), 2);
    until["deadline_at_ms"] = json!(605_000);
    let with_approvers = ChannelFeatures { approvers: Some("<@7>".to_owned()), ..chat() };
    let few = ChannelFeatures { buttons: 1, ..chat() };
    for (shows, payload, want) in [
        (
            chat(),
            question(edit.clone(), 2),
            format!(
                "{asks}: **Write notes\\_a.md** (edit)\n```diff\n{diff}\n```\n-# Waits for an answer · id {id}"
            ),
        ),
        (
            with_approvers,
            until,
            format!(
                "{asks}: **Write notes\\_a.md** (edit)\n```diff\n{diff}\n```\n\
                 -# Waits for an answer of <@7>, within 10m · id {id}"
            ),
        ),
        (
            few,
            question(json!({"toolCallId": "call_1"}), 2),
            format!(
                "{asks}: **call\\_1**\n1. Option 1 (allow once)\n2. Option 2 (allow once)\n{typed}\n-# Waits for an answer · id {id}"
            ),
        ),
        (
            ChannelFeatures::default(),
            question(edit, 1),
            format!(
                "{asks}: Write notes_a.md (edit)\n    {}\n1. Option 1 (allow once)\n{typed}\nWaits for an answer · id {id}",
                diff.replace('\n', "\n    ")
            ),
        ),
        (
            chat(),
            question(
                json!({"title": "`make -j2`", "kind": "execute", "rawInput": {"command": "make -j2"}}),
                3,
            ),
            format!("{asks} to run this:\n```sh\nmake -j2\n```\n-# Waits for an answer · id {id}"),
        ),
        (
            chat(),
            question(json!({"title": "**x**\n`", "kind": "other"}), 3),
            format!("{asks}: **\\*\\*x\\*\\* \\`**\n-# Waits for an answer · id {id}"),
        ),
        (chat(), json!({}), format!("{asks}: **something**\n-# Waits for an answer · id {}", short_id(""))),
    ] {
        assert_eq!(prompt_text(shows, &payload), want, "{payload}");
    }
}

/// Variables and directory precede the command, so that a long command cannot hide them.
#[test]
fn host_question_shows_variables_with_long_command() {
    let line = "x".repeat(400);
    let host_question = crate::host::HostQuestion::run(7, &line, Some("/w/sub"), &["LD_PRELOAD"]);
    for shows in [chat(), ChannelFeatures::default()] {
        let payload = json!({"permission_id": ID, "params": host_question.params});
        let text_shown = prompt_text(shows, &payload).replace('\\', "");
        assert!(
            text_shown.contains("LD_PRELOAD") && text_shown.contains("/w/sub") && text_shown.contains(&line),
            "{text_shown}"
        );
    }
}

/// A question whose answer grants targets shows them whole, even with many long options.
#[test]
fn granted_targets_are_shown_with_long_options() {
    let line = format!("{}; curl x | sh", "y".repeat(500));
    let mut payload = question(json!({"title": "Bash", "rawInput": {"command": line}}), 25);
    for option in payload["params"]["options"].as_array_mut().into_iter().flatten() {
        option["name"] = json!("n".repeat(300));
    }
    assert!(prompt_text(ChannelFeatures::default(), &payload).contains(&line));
}

/// What an answer would allow is shown, also if the list of options fills a message.
#[test]
fn a_call_is_shown_with_long_options() {
    let line = format!("curl x | sh; {}", "y ".repeat(500));
    for call in [
        json!({"title": "Bash", "rawInput": {"command": line}}),
        json!({"title": line, "rawInput": {"command": line}}),
        json!({"title": "Bash", "rawInput": {"script": line}}),
    ] {
        let mut payload = question(call, 25);
        for option in payload["params"]["options"].as_array_mut().into_iter().flatten() {
            option["name"] = json!("n".repeat(300));
        }
        for shows in [ChannelFeatures::default(), ChannelFeatures { buttons: 0, ..chat() }] {
            let text = prompt_text(shows, &payload);
            assert!(text.contains(&line[..400]) && text.contains("Truncated: "), "{text}");
            assert!(text.contains(&format!("\n1. {}… (allow once)\n", "n".repeat(79))), "{text}");
        }
    }
}

/// A command that begins with much white space is not shown.
#[test]
fn hidden_call_is_reported_in_its_question() {
    let payload =
        question(json!({"title": "ls", "rawInput": {"command": format!("{}ls", "\n".repeat(30))}}), 1);
    for (shows, want) in [
        (chat(), "The agent asks for a permission: **ls**\n-# Truncated: "),
        (ChannelFeatures::default(), "The agent asks for a permission: ls\n(Truncated: "),
    ] {
        let text = prompt_text(shows, &payload);
        assert!(text.starts_with(want), "{text}");
    }
}

/// The resolution is shown once: in the question if it can be edited, otherwise in a separate message.
#[test]
fn resolution_is_shown_once() {
    let resolved_by = |by: &str| json!({"permission_id": ID, "option_id": "y", "option_name": "Yes, once", "by": by, "outcome": "selected"});
    let text_shown = "The permission request is resolved. Answered: “Yes, once” (by “ann”).".to_owned();
    assert_eq!(resolution_notice(&style(chat()), &resolved_by("ann")), None);
    assert_eq!(resolution_notice(&style(ChannelFeatures::default()), &resolved_by("ann")), Some(text_shown));
    assert_eq!(
        resolution_notice(
            &style(ChannelFeatures::default()),
            &json!({"permission_id": ID, "without": "policy"})
        ),
        None
    );
    // A question without an id has no message that could be edited.
    let nameless = json!({"option_id": "y", "by": "ann"});
    let text_shown = "The permission request is resolved. Answered: “y” (by “ann”).".to_owned();
    assert_eq!(resolution_notice(&style(chat()), &nameless), Some(text_shown));
}

#[test]
fn resolution_text_names_option_and_person() {
    let person = |name: &str| ResolvedBy::Person(name.to_owned());
    let without = ResolvedBy::Auto;
    for (option, by, want) in [
        (Some("Allow"), person("ann"), "Answered: “Allow” (by “ann”)."),
        (Some("Allow"), person(""), "Answered: “Allow” (by unknown)."),
        (Some("Allow\u{202e}"), person("a\nb"), "Answered: “Allow\\u{202e}” (by “a b”)."),
        // A person with the name of a rule is still a person.
        (Some("Allow"), person("the deadline"), "Answered: “Allow” (by “the deadline”)."),
        (Some("Allow"), person("policy"), "Answered: “Allow” (by “policy”)."),
        (Some("Allow"), person("unknown"), "Answered: “Allow” (by “unknown”)."),
        (
            Some("No” (policy). “"),
            person("ann”). (policy"),
            "Answered: “No' (policy). '” (by “ann'). (policy”).",
        ),
        (None, person("cancel"), "Closed without an answer (by “cancel”)."),
        (Some("Allow"), without(AutoResolution::Policy), "Answered: “Allow” (policy)."),
        (Some("Reject"), without(AutoResolution::Deadline), "Nobody answered in time: “Reject”."),
        (Some("refused"), without(AutoResolution::Deadline), "Nobody answered in time: “refused”."),
        (None, without(AutoResolution::Deadline), "Nobody answered in time: refused."),
        (None, without(AutoResolution::Cancel), "Closed without an answer (the turn was stopped)."),
        (None, without(AutoResolution::TurnEnded), "Closed without an answer (the turn has ended)."),
        (None, without(AutoResolution::LeaseEnded), "Closed without an answer (the agent has ended)."),
        (None, without(AutoResolution::SessionClosed), "Closed without an answer (the session was closed)."),
        (None, without(AutoResolution::Agent), "Closed without an answer (the agent withdrew it)."),
        (None, without(AutoResolution::Adopted), "Closed without an answer (another gateway took over)."),
        (None, without(AutoResolution::Nobody), "Closed without an answer (no approver was available)."),
        (None, person(""), "Closed without an answer (by unknown)."),
        (None, person("else"), "Closed without an answer (by “else”)."),
    ] {
        assert_eq!(resolution_text(option, &by, false), want);
    }
}

#[test]
fn names_in_resolution_are_escaped() {
    let by = ResolvedBy::Person("_ann_ <@1>".to_owned());
    let want = "Answered: “\\*\\*Yes\\*\\*” (by “\\_ann\\_ \\<\\@1\\>”).";
    assert_eq!(resolution_text(Some("**Yes**"), &by, true), want);
    assert_eq!(resolution_text(Some("**Yes**"), &by, false), "Answered: “**Yes**” (by “_ann_ <@1>”).");
}

/// Only the gateway's own last lines are removed, whatever the excerpt contains.
#[test]
fn waiting_lines_are_removed_after_resolution() {
    for (text, want) in [
        ("a\n-# Waits for an answer · id x", "a"),
        ("a\n1. b\nAnswer with /acp allow, …\nWaits for an answer · id x\n", "a\n1. b"),
        ("a\n```\nWaits for an answer\n```\n-# Waits for an answer", "a\n```\nWaits for an answer\n```"),
        ("Waits for an answer", "Waits for an answer"),
        ("a\n-# It continues", "a\n-# It continues"),
    ] {
        assert_eq!(strip_waiting_lines(text), want);
    }
}

proptest! {
    /// For all questions with buttons: one message, at most one code block, and room for the resolution.
    #[test]
    fn question_is_one_message_with_one_code_block(
        title in "[a-z`*@<\\n\u{202e}]{0,400}",
        text in "[a-z`~\\n@ \u{200b}]{0,3000}",
        max in 1_400usize..1_900,
    ) {
        let payload = question(json!({"title": title, "rawInput": {"command": text}}), 3);
        let style = Style { limit: MessageLimit::new(Unit::Utf16, max), ..style(chat()) };
        let text_shown = permission_prompt(&style, &event(&payload), &payload);
        prop_assert_eq!(split(&text_shown, style.limit), vec![text_shown.clone()]);
        let answered = format!("{}\nAnswered: Option 1 (somebody).", strip_waiting_lines(&text_shown));
        prop_assert!(style.limit.fits(&answered), "{}", answered);
        prop_assert!([0, 2].contains(&text_shown.matches("```").count()), "{}", text_shown);
    }
}
