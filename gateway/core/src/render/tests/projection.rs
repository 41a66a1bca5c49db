//! Projection of journal rows to final messages: lines, separators, limits, buttons and footers.

use super::*;

fn with_tags(tags: &[(&str, bool)]) -> Style {
    let mut style = style();
    style.tags.extend(tags.iter().map(|&(tag, with_tags)| (tag.to_owned(), with_tags)));
    style
}

fn with_tools() -> Style {
    with_tags(&[("tool_call", true), ("tool_call_update", true)])
}

fn final_text(style: &Style, build: impl FnOnce(&mut Journal)) -> String {
    let mut journal = Journal::default();
    build(&mut journal);
    let texts = journal.texts_in(style);
    assert!(texts.iter().all(|(kind, _)| *kind == PartKind::Final), "{texts:?}");
    texts.into_iter().map(|(_, text)| text).collect()
}

fn call(id: &str, status: &str) -> Value {
    json!({"toolCallId": id, "title": format!("Read {id}"), "kind": "read", "status": status})
}

#[test]
fn tool_call_is_shown_at_start_and_end() {
    let run = run_id(1);
    let build = |journal: &mut Journal| {
        journal.push(Some(run), K::ToolCall, call("a", "pending"));
        journal.push(Some(run), K::ToolCall, call("a", "pending"));
        journal.push(Some(run), K::ToolCallUpdate, json!({"toolCallId": "a", "status": "in_progress"}));
        journal.push(Some(run), K::ToolCallUpdate, call("b", "in_progress"));
        journal.push(Some(run), K::ToolCallUpdate, call("a", "completed"));
        journal.push(Some(run), K::ToolCallUpdate, call("a", "completed"));
        journal.push(Some(run), K::ToolCallUpdate, call("b", "failed"));
        // An ended call does not start again.
        journal.push(Some(run), K::ToolCallUpdate, json!({"toolCallId": "b", "status": "in_progress"}));
        journal.done(run, "end_turn");
    };
    let summary = "[2 tool calls (2 read)]";
    let once =
        format!("[read] Read a\n[read] Read b\n[read] Read a: done\n[read] Read b: failed\n\n{summary}");
    assert_eq!(final_text(&with_tools(), build), once);
    let each = Style { repeat_suppression: false, ..with_tools() };
    let all = format!(
        "[read] Read a\n[read] Read a\n[read] Read a\n[read] Read b\n[read] Read a: done\n[read] Read a: done\n\
         [read] Read b: failed\n[read] Read b\n\n{summary}"
    );
    assert_eq!(final_text(&each, build), all);
}

#[test]
fn repeated_lines_are_suppressed() {
    let run = run_id(1);
    let style = with_tags(&[("plan", true)]);
    let plan = |status: &str| json!({"entries": [{"content": "Look", "status": status}, {"content": "Write", "status": "pending"}]});
    let build = |journal: &mut Journal| {
        for status in ["in_progress", "in_progress", "completed"] {
            journal.push(Some(run), K::Plan, plan(status));
        }
        journal.done(run, "end_turn");
    };
    assert_eq!(final_text(&style, build), "Plan, 0 of 2 done: Look\nPlan, 1 of 2 done");
    let each = Style { repeat_suppression: false, ..style };
    assert_eq!(final_text(&each, build).matches("0 of 2").count(), 2);
}

#[test]
fn truncation_is_noted_once() {
    let run = run_id(1);
    let style = Style { output_chars_max: 10, ..with_tools() };
    let text = final_text(&style, |journal| {
        journal.append_text(run, "12345678").append_text(run, "9e\u{301}abc").append_text(run, "more");
        journal.tool(run, "a", "read", "completed").append_text(run, "and more").done(run, "end_turn");
    });
    let notice = "(Output truncated; `acp-gateway sessions history` shows all of it.)";
    let want = format!("123456789\n\n{notice}\n\n[1 tool call (1 read)]");
    assert_eq!(text, want, "a combining accent is not split off");
    let style = Style { output_chars_max: 16, ..style };
    let text = final_text(&style, |journal| {
        journal.append_text(run, "12345678").append_text(run, "12345678").done(run, "end_turn");
    });
    assert_eq!(text, "1234567812345678", "complete output gets no notice");
}

#[test]
fn hidden_tool_call_leaves_a_separator() {
    let run = run_id(1);
    for (separator, want) in [
        (Separator::None, "Looking.Done."),
        (Separator::Space, "Looking. Done."),
        (Separator::Newline, "Looking.\nDone."),
        (Separator::Paragraph, "Looking.\n\nDone."),
    ] {
        let style = Style { separator, ..style() };
        let text = final_text(&style, |journal| {
            journal.tool(run, "0", "read", "completed").append_text(run, "Looking.");
            journal.tool(run, "a", "read", "completed").tool(run, "b", "read", "completed");
            journal.append_text(run, "Done.").done(run, "end_turn");
        });
        assert_eq!(text, format!("{want}\n\n[3 tool calls (3 read)]"), "{separator:?}");
        // Existing separation is not extended, and hidden thoughts separate nothing.
        let text = final_text(&style, |journal| {
            journal.append_text(run, "One\n\n").tool(run, "a", "read", "completed").append_text(run, "Two");
            journal.push(Some(run), K::AgentThought, json!({"content": {"type": "text", "text": "hm"}}));
            journal.append_text(run, "Three").done(run, "end_turn");
        });
        assert_eq!(text, "One\n\nTwoThree\n\n[1 tool call (1 read)]", "{separator:?}");
    }
}

#[test]
fn only_agent_text_is_shown_by_default() {
    let run = run_id(1);
    let text = |text: &str| json!({"content": {"type": "text", "text": text}});
    let build = |journal: &mut Journal| {
        journal.push(Some(run), K::AgentThought, text("Let me "));
        journal.push(Some(run), K::AgentThought, text("think"));
        journal.append_text(run, "Text.").tool(run, "a", "read", "completed");
        journal.push(Some(run), K::Plan, json!({"entries": [{"content": "x", "status": "completed"}]}));
        journal.update(run, json!({"sessionUpdate": "usage_update", "used": 5, "size": 10}));
        journal.update(run, json!({"sessionUpdate": "made_up", "text": "new"}));
        journal.done(run, "end_turn");
    };
    let summary = "[1 tool call (1 read)]";
    assert_eq!(final_text(&style(), build), format!("Text.\n\nmade_up: new\n\n{summary}"));
    for (tag, is_shown, want) in [
        ("made_up", false, "Text."),
        ("agent_thought_chunk", true, "> Let me think\n\nText.\n\nmade_up: new"),
        ("tool_call", true, "Text.\n\n[read] t\nmade_up: new"),
        ("tool_call_update", true, "Text.\n\n[read] t: done\nmade_up: new"),
        ("plan", true, "Text.\n\nPlan, 1 of 1 done\nmade_up: new"),
        ("usage_update", true, "Text.\n\nContext: 5 of 10 tokens\nmade_up: new"),
        (
            "agent_message_chunk",
            false,
            "made_up: new\n\n(Text is not shown here; `acp-gateway sessions history` shows it.)",
        ),
    ] {
        assert_eq!(
            final_text(&with_tags(&[(tag, is_shown)]), build),
            format!("{want}\n\n{summary}"),
            "{tag}"
        );
    }
}

#[test]
fn update_lines_are_short() {
    let run = run_id(1);
    let style = Style { line_chars_max: 64, ..style() };
    let long = "x".repeat(200);
    let commands: Vec<Value> = (0..30).map(|n| json!({"name": format!("c{n}")})).collect();
    for (update, want) in [
        (json!({"sessionUpdate": "current_mode_update", "currentModeId": "plan"}), "Mode: plan"),
        (
            json!({"sessionUpdate": "config_option_update", "configOptions": [{"id": "model", "currentValue": "m"},
                   {"id": "fast", "currentValue": true}]}),
            "Options: model = m, fast = true",
        ),
        (
            json!({"sessionUpdate": "available_commands_update", "availableCommands": commands}),
            "Commands: /c0, /c1, /c2, /c3, /c4, /c5, /c6, /c7, /c8, /c9, /c1…",
        ),
        (json!({"sessionUpdate": "session_info_update", "title": "A\ntitle"}), "Title: A title"),
        (json!({"sessionUpdate": "notice", "message": "Look out"}), "notice: Look out"),
        (json!({"sessionUpdate": "odd", "content": {"type": "text", "text": "t"}}), "odd: t"),
        (json!({"sessionUpdate": "odd"}), "odd"),
        (json!({"sessionUpdate": "usage_update"}), "The turn ended without an answer."),
        (json!({"sessionUpdate": "notice", "message": long}), &format!("notice: {}…", "x".repeat(55))),
    ] {
        let style = Style { tags: BTreeMap::new(), ..style.clone() };
        let text = final_text(&style, |journal| {
            journal.update(run, update.clone()).done(run, "end_turn");
        });
        assert_eq!(text, want, "{update}");
    }
}

/// C8: the end of a turn is journaled last and contains the whole turn, whatever was delivered before.
#[test]
fn final_message_has_the_whole_turn() {
    let run = run_id(1);
    let text = final_text(&style(), |journal| {
        for n in 0..500 {
            journal.append_text(run, &format!("{n} "));
        }
        journal.done(run, "end_turn");
    });
    let want: String = (0..500).map(|n| format!("{n} ")).collect();
    assert_eq!(text, want.trim_end());
}

#[test]
fn question_buttons_are_on_the_last_part() {
    let options: Vec<Value> = (0..3)
        .map(|n| json!({"optionId": n.to_string(), "name": "x".repeat(299), "kind": "allow_once"}))
        .collect();
    let params = json!({"toolCall": {"title": "t".repeat(299)}, "options": options});
    let mut journal = Journal::default();
    journal.push(Some(run_id(1)), K::Permission, json!({"permission_id": "p:1", "params": params}));
    let shows = ChannelFeatures { buttons: 2, ..ChannelFeatures::default() };
    let small = Style { limit: MessageLimit::new(Unit::Utf16, 600), ..style() }.in_channel(shows);
    let parts = journal.parts_in(&small, 0, RunMode::Prompt, true);
    let buttons: Vec<usize> =
        parts.iter().map(|part| part.asks.as_ref().map_or(0, |asks| asks.actions.len())).collect();
    assert_eq!(buttons, [0, 2], "{parts:?}");
}

/// With a footer, the footer is the last line, and the tool summary is omitted.
#[test]
fn answer_ends_with_the_footer() {
    let final_text = |stop: &str, kind: EventKind, markdown: bool| {
        let style =
            style().with_footer(true).in_channel(ChannelFeatures { markdown, ..ChannelFeatures::default() });
        let mut journal = Journal::default();
        journal
            .append_text(run_id(1), "Hello.")
            .tool(run_id(1), "a", "read", "completed")
            .update(run_id(1), json!({"sessionUpdate": "usage_update", "used": 38, "size": 100}));
        let mut digest =
            RunDigest::new(RunMode::Prompt, true, style.clone()).with_turn("demo".to_owned(), Some(1_000));
        journal.rows.iter().for_each(|row| digest.add(row.kind, &row.payload));
        journal.push(Some(run_id(1)), kind, json!({"stop_reason": stop, "message": "No."}));
        let mut end = journal.rows.pop().unwrap();
        end.created_at_ms = 3_500;
        render_row(binding(), &style, &end, RenderData::Run(&digest)).remove(0).text
    };
    assert_eq!(final_text("end_turn", K::Done, false), "Hello.\n\ndemo · 2s · 1 tool · ctx 38%");
    // Small print needs no empty line as separation.
    assert_eq!(final_text("end_turn", K::Done, true), "Hello.\n-# demo · 2s · 1 tool · ctx 38%");
    let small = final_text("cancelled", K::Done, true);
    assert!(
        small.ends_with(
            "The turn was cancelled. Send a message to continue.\n-# demo · 2s · 1 tool · ctx 38%"
        ),
        "{small}"
    );
    let cancelled = final_text("cancelled", K::Done, false);
    assert!(cancelled.starts_with("Hello.\n\nThe turn was cancelled."), "{cancelled}");
    assert!(cancelled.ends_with("\n\ndemo · 2s · 1 tool · ctx 38%"), "{cancelled}");
    let failed = final_text("", K::Error, false);
    let is_complete =
        failed.contains("The turn failed") && failed.ends_with("\n\ndemo · 2s · 1 tool · ctx 38%");
    assert!(is_complete, "{failed}");
}
