//! Content sent as files: deterministic, complete, and sent again as messages where refused.

use super::*;
use crate::render::files::FileSettings;

fn with_files(limit: usize, parts: usize) -> Style {
    let files = FileSettings { long_final_parts: parts, bytes_max: 1_000_000, diff: true, refused: false };
    Style { limit: MessageLimit::new(Unit::Utf16, limit), files: Some(files), ..style() }
}

fn turn(text: &str) -> Journal {
    let mut journal = Journal::default();
    journal.append_text(run_id(1), text).done(run_id(1), "end_turn");
    journal
}

/// Returns the parts of the last row with the content of their files.
fn parts_of(journal: &Journal, style: &Style) -> Vec<(MessagePart, Vec<MessageFile>)> {
    let (event, before) = journal.rows.split_last().unwrap();
    let mut digest = RunDigest::new(RunMode::Prompt, true, style.clone());
    before.iter().for_each(|row| digest.add(row.kind, &row.payload));
    let of = |part: MessagePart| {
        let files = part_files(binding(), style, event, RenderData::Run(&digest), part.part_no);
        (part, files)
    };
    render_row(binding(), style, event, RenderData::Run(&digest)).into_iter().map(of).collect()
}

fn edit(journal: &mut Journal, id: &str, old: Option<&str>, new: &str) {
    let diff = json!({"type": "diff", "path": "src/a.rs", "oldText": old, "newText": new});
    let call =
        json!({"toolCallId": id, "title": "Edit", "kind": "edit", "status": "completed", "content": [diff]});
    journal.push(Some(run_id(1)), K::ToolCall, call);
}

#[test]
fn long_answer_is_its_beginning_and_a_file() {
    let line = "A line of an answer that fills the page.\n";
    let text = line.repeat(100);
    let parts = parts_of(&turn(&text), &with_files(500, 3));
    let [(part, files)] = parts.as_slice() else { panic!("{parts:?}") };
    assert!(text.starts_with(part.text.split("\n\n(").next().unwrap()), "{}", part.text);
    assert!(part.text.ends_with("(Truncated: answer.md has the whole answer.)"), "{}", part.text);
    assert!(part.text.len() > 400, "the beginning fills the message: {}", part.text);
    let want = [("answer.md", text.trim_end())];
    assert_eq!(files.iter().map(|file| (file.name, file.text.as_str())).collect::<Vec<_>>(), want);
    assert_eq!(part.files, [FileRef { name: "answer.md".to_owned(), bytes: text.trim_end().len() as u64 }]);
    // Up to the maximum, all parts are messages; also if files are disabled or not supported.
    let whole = |style: &Style| {
        let parts = parts_of(&turn(&text), style);
        assert!(parts.iter().all(|(part, files)| part.files.is_empty() && files.is_empty()));
        assert_eq!(parts.iter().map(|(part, _)| part.text.as_str()).collect::<String>(), text.trim_end());
        parts.len()
    };
    let count = whole(&Style { files: None, ..with_files(500, 3) });
    assert_eq!(count, whole(&with_files(500, count)));
    assert_eq!(count, whole(&with_files(500, 0)));
    assert_eq!(parts_of(&turn(&text), &with_files(500, count - 1)).len(), 1);
}

#[test]
fn file_has_output_beyond_the_message_limit() {
    let text = "word ".repeat(10_000);
    let short = Style { output_chars_max: 200, ..with_files(500, 3) };
    let parts = parts_of(&turn(&text), &short);
    assert_eq!((parts.len(), parts[0].1[0].text.as_str()), (1, text.trim_end()));
    assert!(!parts[0].1[0].text.contains("Output truncated"));
    // If even a file is too small, it holds the beginning, and the message states this.
    let tight = FileSettings { bytes_max: 1_000, ..short.files.clone().unwrap() };
    let parts = parts_of(&turn(&text), &Style { files: Some(tight), ..short });
    assert_eq!(parts[0].1[0].text, text[..1_000].trim_end());
    let text = &parts[0].0.text;
    assert!(text.contains("answer.md has the first 999 bytes of the answer"), "{text}");
}

#[test]
fn turn_diff_is_on_the_last_part() {
    let want = "--- a/src/a.rs\n+++ b/src/a.rs\n@@ -1 +1 @@\n-one\n+two\n";
    let mut journal = Journal::default();
    edit(&mut journal, "1", Some("one\n"), "two\n");
    let mut long = journal.clone();
    journal.append_text(run_id(1), &"word ".repeat(150)).done(run_id(1), "end_turn");
    let parts = parts_of(&journal, &with_files(500, 3));
    let names = |parts: &[(MessagePart, Vec<MessageFile>)]| -> Vec<Vec<String>> {
        let of = |files: &Vec<FileRef>| files.iter().map(|file| file.name.clone()).collect();
        parts.iter().map(|(part, _)| of(&part.files)).collect()
    };
    assert_eq!(names(&parts), [vec![], vec!["turn.diff".to_owned()]]);
    assert_eq!(parts[1].1[0].text, want);
    long.append_text(run_id(1), &"word ".repeat(1_000)).done(run_id(1), "end_turn");
    let parts = parts_of(&long, &with_files(500, 3));
    assert_eq!(names(&parts), [["answer.md", "turn.diff"].map(str::to_owned)]);
    let off = FileSettings { diff: false, ..with_files(500, 3).files.unwrap() };
    let off = Style { files: Some(off), ..with_files(500, 3) };
    assert_eq!(names(&parts_of(&journal, &off)), [Vec::<String>::new(), Vec::new()]);
    assert_eq!(names(&parts_of(&journal, &Style { files: None, ..off })), [Vec::<String>::new(), Vec::new()]);
}

/// If the channel refused the files, the content is sent as messages, with new numbers.
#[test]
fn refused_file_becomes_messages() {
    let text = "word ".repeat(1_000);
    let style = with_files(500, 3);
    let messages = |parts: &[(MessagePart, Vec<MessageFile>)]| {
        parts.iter().map(|(part, _)| part.text.clone()).collect::<Vec<_>>()
    };
    let plain = parts_of(&turn(&text), &Style { files: None, ..style.clone() });
    let before = parts_of(&turn(&text), &style);
    let after = parts_of(&turn(&text), &style.clone().with_files_refused());
    assert_eq!(after[..1], before[..], "planned parts stay unchanged");
    assert_eq!(messages(&after[1..]), messages(&plain));
    let mut changed = Journal::default();
    edit(&mut changed, "1", None, "two\n");
    changed.append_text(run_id(1), &"word ".repeat(150)).done(run_id(1), "end_turn");
    let before = parts_of(&changed, &style);
    let after = parts_of(&changed, &style.with_files_refused());
    assert_eq!((before.len(), &after[..2]), (2, &before[..]));
    assert_eq!(messages(&after[2..]).len(), 1, "only the rejected content is sent again");
    assert!(after[2].0.text.starts_with(&before[1].0.text) && after[2].0.text.contains("are not attached"));
    let nonces: std::collections::BTreeSet<&String> = after.iter().map(|(part, _)| &part.nonce).collect();
    assert_eq!(nonces.len(), after.len());
}

proptest! {
    /// For all outputs: no text is lost, every message fits, and the result is deterministic.
    #[test]
    fn files_and_messages_hold_the_whole_text(
        chunks in prop::collection::vec("[a-z `\n]{0,200}", 1..20),
        limit in 60usize..400,
        parts in 0usize..6,
        refused in any::<bool>(),
    ) {
        let mut journal = Journal::default();
        for chunk in &chunks {
            journal.append_text(run_id(1), chunk);
        }
        journal.done(run_id(1), "max_tokens");
        let style = with_files(limit, parts);
        let style = if refused { style.with_files_refused() } else { style };
        let parts = parts_of(&journal, &style);
        prop_assert_eq!(&parts, &parts_of(&journal, &style));
        let text = chunks.concat();
        for (part, files) in &parts {
            prop_assert!(style.limit.fits(&part.text), "{:?}", part.text);
            prop_assert_eq!(&part.files, &files.iter().map(MessageFile::named).collect::<Vec<_>>());
            if let [file] = files.as_slice() {
                prop_assert_eq!(&file.text, text.trim_end());
            }
        }
        let with = parts.iter().filter(|(part, _)| !part.files.is_empty()).count();
        let plain = parts_of(&journal, &Style { files: None, ..style.clone() });
        match (with, refused) {
            (0, _) => prop_assert_eq!(parts.len(), plain.len()),
            (1, false) => prop_assert_eq!(parts.len(), 1),
            (1, true) => prop_assert_eq!(parts.len(), plain.len() + 1),
            _ => prop_assert!(false, "{} parts with files", with),
        }
    }
}
