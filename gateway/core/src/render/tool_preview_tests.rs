use super::*;
use crate::message_split::{Unit, split};
use proptest::prelude::*;
use serde_json::json;

const ROOM: MessageLimit = MessageLimit::new(Unit::Utf16, 1_900);

fn shown(call: &Value, is_markdown: bool) -> Option<String> {
    ToolPreview::of(call)?.render(ROOM, is_markdown)
}

/// Excerpts prefer changes, then a command, text, input and locations.
#[test]
fn preview_shows_the_effect_of_a_tool_call() {
    let diff = json!({"type": "diff", "path": "/src/a.rs", "oldText": "one\ntwo\n", "newText": "one\n2\n"});
    let text = json!({"type": "content", "content": {"type": "text", "text": "# A plan\n1. Look"}});
    let place = json!({"path": "/src/b.rs", "line": 7});
    let fenced = |language: &str, text: &str| Some(format!("```{language}\n{text}\n```"));
    for (call, want) in [
        (json!({}), None),
        (json!({"title": "x", "rawInput": {}, "content": [], "locations": []}), None),
        (
            json!({"content": [text, diff], "rawInput": {"command": "str_replace"}}),
            fenced("diff", "--- a/src/a.rs\n+++ b/src/a.rs\n@@ -1,2 +1,2 @@\n one\n-two\n+2"),
        ),
        (
            json!({"content": [{"type": "diff", "path": "n", "oldText": null, "newText": "new\n"}]}),
            fenced("diff", "--- /dev/null\n+++ b/n\n@@ -0,0 +1 @@\n+new"),
        ),
        (json!({"content": [text], "rawInput": {"command": "make -j2\n"}}), fenced("sh", "make -j2")),
        (
            json!({"rawInput": {"command": ["bash", "-lc", "rm 'a b'; ls", ""]}}),
            fenced("sh", r"bash -lc 'rm '\''a b'\''; ls' ''"),
        ),
        (json!({"rawInput": {"cmd": "ls"}}), fenced("sh", "ls")),
        (json!({"content": [text], "rawInput": {"plan": "x"}}), fenced("", "# A plan\n1. Look")),
        (
            json!({"rawInput": {"command": ["ls", 1], "url": "https://x.y"}, "locations": [place]}),
            fenced("json", "{\n  \"command\": [\n    \"ls\",\n    1\n  ],\n  \"url\": \"https://x.y\"\n}"),
        ),
        (json!({"rawInput": "plain text"}), fenced("", "plain text")),
        // Several files are listed before their changes, and so is a file without a visible change.
        (
            json!({"content": [{"type": "diff", "path": "/a", "newText": "x\n"}, {"type": "diff", "path": "/b", "newText": ""}]}),
            fenced("diff", "# /a\n# /b\n--- /dev/null\n+++ b/a\n@@ -0,0 +1 @@\n+x"),
        ),
        (
            json!({"content": [{"type": "diff", "path": "/a", "newText": ""}], "rawInput": {"command": "ls"}}),
            fenced("diff", "# /a"),
        ),
        // Notes of an excerpt.
        (
            json!({"content": [{"type": "diff", "path": "/a", "newText": "x\n"}, "… (2 entries\nleft out)"]}),
            fenced("diff", "# /a\n# … (2 entries left out)\n--- /dev/null\n+++ b/a\n@@ -0,0 +1 @@\n+x"),
        ),
        (json!({"content": [text, "… (cut)"]}), fenced("", "# A plan\n1. Look\n… (cut)")),
        (
            json!({"rawInput": null, "locations": [place, {"path": "/c"}, {"line": 3}]}),
            fenced("", "/src/b.rs:7\n/c"),
        ),
    ] {
        assert_eq!(shown(&call, true), want, "{call}");
    }
}

/// No text ends the code block, and characters that hide or reorder text are visible.
#[test]
fn preview_text_stays_in_its_code_block() {
    let of =
        |command: &str, is_markdown| shown(&json!({"rawInput": {"command": command}}), is_markdown).unwrap();
    for (command, inside) in [
        ("echo `id` ``x``", "echo `id` ``x``"),
        ("a\n```\n@everyone <@1>", "a\n``\u{200b}`\n@everyone <@1>"),
        ("``````", "``\u{200b}``\u{200b}``"),
        ("~~~", "~~~"),
        ("ls \u{202e}cod.exe", r"ls \u{202e}cod.exe"),
        ("ls\u{200b}`\u{200b}``", r"ls\u{200b}`\u{200b}``"),
        ("\u{1b}[2Jrm\tx\ry", "\\u{1b}[2Jrm\tx\\u{d}y"),
        ("שלום 👩\u{200d}💻", "שלום 👩\u{200d}💻"),
    ] {
        assert_eq!(of(command, true), format!("```sh\n{inside}\n```"), "{command:?}");
    }
    assert_eq!(of("a\n```\n\u{202e}b", false), "    a\n    ```\n    \\u{202e}b");
}

#[test]
fn long_preview_is_truncated_with_a_note() {
    let of = |command: &str, room, is_markdown| {
        let preview = ToolPreview::of(&json!({"rawInput": {"command": command}})).unwrap();
        preview.render(room, is_markdown)
    };
    let lines = "line\n".repeat(40);
    let more = "`acp-gateway sessions history` shows all of it.";
    let want = format!("```sh\n{}\n```\n-# Truncated: {more}", "line\n".repeat(24).trim_end());
    assert_eq!(of(&lines, ROOM, true), Some(want));
    let want = format!("{}\n(Truncated: {more})", "    line\n".repeat(24).trim_end());
    assert_eq!(of(&lines, ROOM, false), Some(want));
    let wide = of(&"é".repeat(5_000), ROOM, true).unwrap();
    assert_eq!(wide, format!("```sh\n{}\n```\n-# Truncated: {more}", "é".repeat(1_000)));
    assert_eq!(of("ls", MessageLimit::new(Unit::Bytes, 90), true), None, "no room");
    assert_eq!(of(&"line\n".repeat(24), ROOM, true).unwrap().matches("Truncated").count(), 0);
}

/// What a truncated excerpt refers to has all of it.
#[test]
fn a_whole_call_leaves_nothing_out() {
    let long = format!("/w/{}/name.txt", "d".repeat(500));
    let lines = "line\n".repeat(3_000);
    let place = json!({"path": long, "line": 7});
    for (call, parts) in [
        (json!({}), None),
        (json!({"rawInput": {"command": format!("{lines}end\u{202e}")}}), Some((3_001, "    end\\u{202e}"))),
        (
            json!({"content": [{"type": "diff", "path": long, "newText": lines}]}),
            Some((3_003, long.as_str())),
        ),
        (json!({"locations": vec![&place; 40]}), Some((40, "/name.txt:7"))),
        (
            json!({"content": [{"type": "diff", "path": "/a", "newText": "x"}, "… (2 entries left out)"]}),
            Some((7, "    # … (2 entries left out)")),
        ),
    ] {
        let whole = whole_tool_call(&call);
        let found = whole
            .as_deref()
            .zip(parts)
            .map(|(whole, (count, part))| whole.lines().count() == count && whole.contains(part));
        assert_eq!((whole.is_some(), found.unwrap_or(true)), (parts.is_some(), true), "{whole:?}");
    }
}

/// The end of a path names the file.
#[test]
fn a_long_path_is_cut_in_the_middle() {
    let long = format!("/w/{}/name.txt", "d".repeat(900));
    for call in [
        json!({"content": [{"type": "diff", "path": long, "newText": "x\n"}]}),
        json!({"content": [{"type": "diff", "path": long, "newText": ""}]}),
        json!({"locations": [{"path": long}]}),
    ] {
        let told = [shown(&call, true), shown(&call, false), subject(&call)];
        assert!(told.iter().flatten().all(|text| text.contains("dd/name.txt")), "{told:?}");
        assert_eq!(shown_targets(&call), [], "what is not shown whole is not granted");
    }
}

#[test]
fn titles_are_escaped() {
    for (text, marked, bare) in [
        ("Write notes_a.md", r"Write notes\_a.md", "Write notes_a.md"),
        ("**x** `y` ~~z~~ ||s||", r"\*\*x\*\* \`y\` \~\~z\~\~ \|\|s\|\|", "**x** `y` ~~z~~ ||s||"),
        ("<@1> @here [a](https://b)", r"\<\@1\> \@here \[a\](https\://b)", "<@1> @here [a](https://b)"),
        (" a\nb\\ \u{202e}c ", r"a b\\ \\u{202e}c", r"a b\ \u{202e}c"),
    ] {
        let long = escape_text(&text.repeat(9), 20, true);
        assert!(long.ends_with('…') && long.chars().count() <= 20, "{long}");
        let want = (marked, bare);
        assert_eq!((escape_text(text, 60, true).as_str(), escape_text(text, 60, false).as_str()), want);
    }
}

fn harmful() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        3 => "[`~]{1,7}",
        2 => "\\PC{0,12}",
        2 => prop::sample::select(vec![
            "\n", "\r\n", "\r", "```\n", "\n```", "```sh\n", "@everyone", "<@1>", "<@&2>", "\u{200b}", "`\u{200b}`",
            "\u{202e}", "\u{2066}", "\u{feff}", "\u{200d}", "שלום", "مرحبا", "👩\u{200d}💻", "\u{1b}[2J", "\0", "\\`", "-# ",
        ]).prop_map(str::to_owned),
        1 => any::<char>().prop_map(String::from),
        1 => (1usize..400, any::<char>()).prop_map(|(n, c)| c.to_string().repeat(n)),
    ];
    prop::collection::vec(piece, 0..30).prop_map(|pieces| pieces.concat())
}

fn any_call() -> impl Strategy<Value = Value> {
    let path = || prop_oneof!["/[a-c]{1,3}(/[a-c.]{1,3}){0,3}", "[/.a ]{0,6}", "/[a-z]{1,400}"];
    let text = || prop_oneof!["[a-z' ]{0,30}", "(cd [a-z]{1,9}\\n){0,20}", "[a-z]{0,900}"];
    let diff = (path(), prop::option::of(text()), text())
        .prop_map(|(path, old, new)| json!({"type": "diff", "path": path, "oldText": old, "newText": new}));
    let content =
        text().prop_map(|text| json!({"type": "content", "content": {"type": "text", "text": text}}));
    let line = prop_oneof![
        text().prop_map(Value::from),
        prop::collection::vec(text(), 0..4).prop_map(Value::from),
        text().prop_map(|text| json!(["bash", "-lc", text])),
        Just(Value::Null),
    ];
    let blocks = prop::collection::vec(prop_oneof![3 => diff, 1 => content], 0..8);
    let places = prop::collection::vec(path().prop_map(|path| json!({"path": path, "line": 3})), 0..8);
    (blocks, line.clone(), line, places).prop_map(|(content, command, cmd, locations)| {
        json!({"kind": "edit", "content": content, "locations": locations,
               "rawInput": {"command": command, "cmd": cmd}})
    })
}

proptest! {
    /// For all tool calls: the targets that an answer grants are shown whole in every question, however small
    /// its room.
    #[test]
    fn granted_targets_are_shown_in_full(call in any_call(), max in 32usize..2_000, is_markdown in any::<bool>()) {
        let preview = ToolPreview::of(&call);
        let room = Some(MessageLimit::new(Unit::Utf16, max));
        let shown = preview.map(|preview| preview.render_in(room, is_markdown)).unwrap_or_default();
        let terminal = tool_preview(&call, false).unwrap_or_default();
        for target in shown_targets(&call) {
            let (GrantTarget::File(text) | GrantTarget::Command(text)) = target;
            // A shell line may appear quoted there, as one word.
            let spellings = [text.clone(), text.replace('\'', r"'\''")];
            for shown in [&shown, &terminal] {
                let shown = shown.replace("\n    ", "\n");
                let is_shown = spellings.iter().any(|text| shown.contains(text.trim_end()));
                prop_assert!(is_shown, "{:?} is not in {}", text, shown);
            }
        }
    }

    /// For all texts: the excerpt is one code block within its limits, in one message, and nothing in it ends
    /// the block, controls a terminal or is invisible.
    #[test]
    fn excerpt_stays_in_its_block_and_limits(
        text in harmful(),
        variant in 0usize..4,
        max in 32usize..2_200,
        unit in prop::sample::select(vec![Unit::Utf16, Unit::Bytes]),
        is_markdown in any::<bool>(),
    ) {
        let call = match variant {
            0 => json!({"rawInput": {"command": text}}),
            1 => json!({"content": [{"type": "diff", "path": text, "oldText": "a", "newText": text}]}),
            2 => json!({"content": [{"type": "content", "content": {"type": "text", "text": text}}]}),
            _ => json!({"rawInput": {"x": text}}),
        };
        let limit = MessageLimit::new(unit, max);
        let Some(shown) = ToolPreview::of(&call).and_then(|preview| preview.render(limit, is_markdown)) else { return Ok(()) };
        prop_assert!(limit.fits(&shown), "{:?}", shown);
        prop_assert!(shown.lines().count() <= LINES_MAX + 3);
        let is_seen = |c: char| c == '\n' || c == ZERO_WIDTH_SPACE || !is_hidden(c);
        prop_assert!(shown.chars().all(is_seen), "{:?}", shown);
        prop_assert_eq!(split(&shown, limit), vec![shown.trim_end().to_owned()]);
        if is_markdown {
            prop_assert_eq!(shown.matches("```").count(), 2, "{:?}", shown);
            let (before, rest) = shown.split_once("```").unwrap();
            let (_, after) = rest.split_once("\n```").unwrap();
            let more = format!("\n-# {MORE}");
            prop_assert!(before.is_empty() && (after.is_empty() || after == more));
        } else {
            let more = format!("({MORE})");
            let is_framed = |line: &str| line.starts_with("    ") || line == more;
            prop_assert!(shown.lines().all(is_framed), "{:?}", shown);
        }
    }

    #[test]
    fn titles_are_one_line_without_markup(text in harmful()) {
        let shown = escape_text(&text, 300, true);
        prop_assert!(!shown.contains('\n') && shown.chars().all(|c| !is_hidden(c)));
        prop_assert!(shown.chars().count() <= 300, "{}", shown);
        let mut chars = shown.chars();
        while let Some(c) = chars.next() {
            prop_assert!(!"`*_~|<>@[]:".contains(c), "{}", shown);
            if c == '\\' {
                chars.next();
            }
        }
    }
}
