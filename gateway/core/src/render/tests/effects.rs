//! Effects for an agent that nobody was asked about: requests to the host, and permissions settled by policy.

use super::*;

const VERBOSITIES: [Option<Verbosity>; 4] =
    [None, Some(Verbosity::Full), Some(Verbosity::Compact), Some(Verbosity::None)];

fn host(effect: &str, outcome: &str, reason: &str) -> Value {
    let subject = if effect == "run" { ("command", "make") } else { ("path", "/w/a_b") };
    json!({"effect": effect, subject.0: subject.1, "outcome": outcome, "reason": reason})
}

/// Verbosities at which a line is shown, as one letter each: default, full, compact, none.
fn shown_at(line: &str, build: impl Fn(&mut Journal)) -> String {
    let mut journal = Journal::default();
    build(&mut journal);
    let is_told = |verbosity: &Option<Verbosity>| {
        let texts = journal.texts_in(&style().with_verbosity(*verbosity));
        texts.iter().any(|(_, text)| text.lines().any(|told| told == line))
    };
    VERBOSITIES.iter().zip("dfcn".chars()).filter(|(it, _)| is_told(it)).map(|(_, letter)| letter).collect()
}

#[test]
fn writes_and_commands_are_shown_and_refusals_everywhere() {
    let run = run_id(1);
    for (event, line, in_turn, between) in [
        (host("write", "allowed", "mode"), "[host] write /w/a_b: allowed", "df", "dfc"),
        (host("run", "allowed", "granted"), "[host] run make: allowed", "df", "dfc"),
        // The question and its answer are told.
        (host("write", "allowed", "answer"), "[host] write /w/a_b: allowed", "f", "f"),
        (host("write", "allowed", "unchanged"), "[host] write /w/a_b: allowed", "", ""),
        (host("read", "allowed", "mode"), "[host] read /w/a_b: allowed", "", ""),
        (host("read", "refused", "mode"), "[host] read /w/a_b: refused", "dfcn", "dfcn"),
        (host("write", "refused", "stopped"), "[host] write /w/a_b: refused", "dfcn", "dfcn"),
        (host("run", "failed", ""), "[host] run make: failed", "df", "dfc"),
    ] {
        let in_a_turn = shown_at(line, |journal| {
            journal.push(Some(run), K::HostRequest, event.clone()).done(run, "end_turn");
        });
        let between_turns = shown_at(line, |journal| {
            journal.push(None, K::HostRequest, event.clone());
        });
        assert_eq!((in_a_turn.as_str(), between_turns.as_str()), (in_turn, between), "{event}");
    }
}

#[test]
fn refusals_are_shown_at_any_verbosity() {
    let mut hidden = style();
    hidden.tags.extend(["host_request", "permission"].map(|tag| (tag.to_owned(), false)));
    let mut journal = Journal::default();
    journal.push(None, K::HostRequest, host("write", "allowed", "mode"));
    journal.push(None, K::HostRequest, host("write", "refused", "mode"));
    assert_eq!(journal.texts_in(&hidden), [(PartKind::Notice, "[host] write /w/a_b: refused".to_owned())]);
}

#[test]
fn refusals_are_shown_beyond_the_maximum_output() {
    let run = run_id(1);
    let mut journal = Journal::default();
    let text = "x".repeat(45);
    journal.append_text(run, &text);
    for n in 0..30 {
        let mut event = host("write", "refused", "mode");
        event["path"] = json!(format!("/w/{n}"));
        journal.push(Some(run), K::HostRequest, event);
        journal.push(Some(run), K::HostRequest, host("run", "allowed", "mode"));
        journal.append_text(run, "more");
    }
    journal.done(run, "end_turn");
    let refusals = |count: usize| {
        (0..count).map(|n| format!("[host] write /w/{n}: refused")).collect::<Vec<_>>().join("\n")
    };
    let more = "(Output truncated; `acp-gateway sessions history` shows all of it.)";
    let rest = "(10 more refusals; `acp-gateway sessions history` shows them.)";
    let short = Style { output_chars_max: 50, ..style() };
    let want = format!("{text}\n\n{more}\n\n{}\n{rest}", refusals(20));
    assert_eq!(journal.texts_in(&short), [(PartKind::Final, want)]);
    // Output that a file holds is not repeated there.
    let files = crate::render::files::FileSettings {
        long_final_parts: 9,
        bytes_max: 9_000,
        diff: false,
        refused: false,
    };
    let with_file = Style { files: Some(files), ..short };
    let mut digest = RunDigest::new(RunMode::Prompt, true, with_file);
    journal.rows.iter().for_each(|row| digest.add(row.kind, &row.payload));
    let whole = digest.full_output();
    assert_eq!(
        (whole.matches(": refused").count(), whole.matches("more refusals").count()),
        (30, 0),
        "{whole}"
    );
}

#[test]
fn command_is_shown_with_directory_and_variables() {
    let mut event = host("run", "allowed", "mode");
    (event["cwd"], event["env"]) = (json!("/x"), json!(["LD_PRELOAD"]));
    let got = texts_of(|journal| {
        journal.push(None, K::HostRequest, event.clone());
    });
    let line = "[host] run (sets LD_PRELOAD; in /x) make: allowed";
    assert_eq!(got, [(PartKind::Notice, line.to_owned())]);
}

#[test]
fn subject_is_escaped_and_never_hides_file_or_outcome() {
    let markdown = style().in_channel(ChannelFeatures { markdown: true, ..ChannelFeatures::default() });
    let mut journal = Journal::default();
    journal.push(None, K::HostRequest, host("write", "refused", "mode"));
    let mut long = host("write", "refused", "mode");
    long["path"] = json!(format!("/w/{}/evil.sh", "d".repeat(500)));
    journal.push(None, K::HostRequest, long);
    let texts: Vec<String> = journal.texts_in(&markdown).into_iter().map(|(_, text)| text).collect();
    assert_eq!(texts[0], r"[host] write /w/a\_b\: refused");
    assert!(texts[1].ends_with(r"dd/evil.sh\: refused"), "{}", texts[1]);
}

fn asked(call: Value) -> Value {
    let options = [("y", "allow_once"), ("n", "reject_once")];
    let options = options.map(|(id, kind)| json!({"optionId": id, "name": id, "kind": kind}));
    json!({"permission_id": "l:1", "params": {"toolCall": call, "options": options}})
}

fn by_policy(option_id: Option<&str>) -> Value {
    json!({"permission_id": "l:1", "option_id": option_id, "without": "policy"})
}

#[test]
fn permissions_settled_by_policy_are_shown() {
    let run = run_id(1);
    let bash = json!({"title": "Bash", "kind": "execute", "rawInput": {"command": "rm -rf build"}});
    let read = json!({"title": "Read a", "kind": "read"});
    for (call, option, line, in_turn, between) in [
        (&bash, Some("y"), "[permission] Bash (rm -rf build): allowed by policy", "df", "dfc"),
        (&bash, Some("n"), "[permission] Bash (rm -rf build): refused by policy", "dfcn", "dfcn"),
        (&bash, None, "[permission] Bash (rm -rf build): refused by policy", "dfcn", "dfcn"),
        (&read, Some("y"), "[permission] Read a: allowed by policy", "f", "f"),
        (&read, Some("n"), "[permission] Read a: refused by policy", "dfcn", "dfcn"),
    ] {
        let ask = |run: Option<RunId>, journal: &mut Journal| {
            journal.push(run, K::Permission, asked(call.clone()));
            journal.push(run, K::PermissionSettled, by_policy(option));
        };
        let in_a_turn = shown_at(line, |journal| {
            ask(Some(run), journal);
            journal.done(run, "end_turn");
        });
        let between_turns = shown_at(line, |journal| ask(None, journal));
        assert_eq!((in_a_turn.as_str(), between_turns.as_str()), (in_turn, between), "{line}");
    }
}

/// A change of the mode settles a question that people saw.
#[test]
fn permission_settled_by_a_new_mode_is_shown_in_the_answer() {
    let run = run_id(1);
    let got = texts_of(|journal| {
        journal.push(Some(run), K::AgentThought, json!({"content": {"type": "text", "text": "hm"}}));
        journal.push(Some(run), K::Permission, asked(json!({"title": "Write"})));
        journal.push(Some(run), K::Status, json!({"status": "decided_again", "text": "The mode changed."}));
        journal.push(Some(run), K::PermissionSettled, by_policy(Some("y")));
        journal.done(run, "end_turn");
    });
    let texts: Vec<&str> = got.iter().map(|(_, text)| text.as_str()).collect();
    assert!(texts[0].starts_with("The agent asks for a permission: Write"), "{texts:?}");
    assert_eq!(texts[1..], ["The mode changed.", "[permission] Write: allowed by policy"]);
}
