//! File changes of a run, as one unified diff. Source: ACP, "Tool calls", content of the type `diff`.
//!
//! Only completed tool calls count: a proposed edit that was refused is no change. Agents send whole files or
//! excerpts of them without saying which, and the second of two excerpts may look like a revert of the first.
//! So edits are merged only if they follow a write of the whole file; all others are listed separately, in
//! order.

use crate::sanitize;
use serde_json::Value;
use similar::{DiffableStr as _, TextDiff};
use std::collections::BTreeMap;

/// Maximum total size of the stored texts of a run's edits, in bytes.
const KEPT_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Maximum length of a path, in characters.
const PATH_CHARS_MAX: usize = 400;
/// Number of context lines around a change.
const CONTEXT: usize = 3;
/// Maximum number of steps for comparing the changes of a run, see [`FileEdit::steps`]: some tenths of a
/// second.
const STEPS_MAX: usize = 16_000_000;

/// Edit as reported by the agent.
#[derive(Debug, Clone, PartialEq, Eq)]
struct FileEdit {
    path: String,
    /// Text before the edit; `None` if the file did not exist.
    old: Option<String>,
    new: String,
}

/// Edits of a tool call.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct ToolCallEdits {
    edits: Vec<FileEdit>,
    is_done: bool,
    /// Number of edits that were too large to store.
    left_out: usize,
}

/// Edits of a run, collected row by row.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FileChanges {
    /// Tool calls in the order of their first update.
    calls: Vec<ToolCallEdits>,
    by_id: BTreeMap<String, usize>,
    kept: usize,
}

impl FileChanges {
    /// Adds a `tool_call` or `tool_call_update`.
    pub fn add(&mut self, update: &Value) {
        let Some(id) = update["toolCallId"].as_str() else { return };
        let blocks = update["content"].as_array().map(Vec::as_slice).unwrap_or_default();
        let diffs: Vec<&Value> = blocks.iter().filter(|block| block["type"] == "diff").collect();
        let status = update["status"].as_str();
        // The status of a call without edits does not matter here.
        if diffs.is_empty() && (status.is_none() || !self.by_id.contains_key(id)) {
            return;
        }
        let at = *self.by_id.entry(id.to_owned()).or_insert(self.calls.len());
        if at == self.calls.len() {
            self.calls.push(ToolCallEdits::default());
        }
        let Some(call) = self.calls.get_mut(at) else { return };
        if let Some(status) = status {
            call.is_done = status == "completed";
        }
        // Later diffs replace earlier ones; an update without a diff removes none.
        if !diffs.is_empty() {
            self.kept -= call.edits.iter().map(FileEdit::bytes).sum::<usize>();
            *call = ToolCallEdits { is_done: call.is_done, ..ToolCallEdits::default() };
            for edit in diffs.into_iter().filter_map(|diff| FileEdit::read(diff, PATH_CHARS_MAX)) {
                if self.kept + edit.bytes() > KEPT_BYTES_MAX {
                    call.left_out += 1;
                } else {
                    self.kept += edit.bytes();
                    call.edits.push(edit);
                }
            }
        }
    }

    /// Total size of the stored texts, in bytes.
    pub(super) const fn bytes(&self) -> usize {
        self.kept
    }

    /// Formats all changes as one diff of at most `bytes_max` bytes; `None` without changes. Omitted changes
    /// are counted in a comment line, which tools that apply the diff skip.
    pub fn unified(&self, bytes_max: usize) -> Option<String> {
        let done = || self.calls.iter().filter(|call| call.is_done);
        let mut out = String::new();
        let mut left_out: usize = done().map(|call| call.left_out).sum();
        let mut steps_left = STEPS_MAX;
        for net in merge_edits(done().flat_map(|call| &call.edits)) {
            let Some(left) = steps_left.checked_sub(net.steps()) else {
                left_out += 1;
                continue;
            };
            steps_left = left;
            let text = net.unified();
            // Leaves room for the line below.
            if out.len() + text.len() + 80 <= bytes_max {
                out.push_str(&text);
            } else {
                left_out += 1;
            }
        }
        if left_out > 0 {
            let files = if left_out == 1 { "change is" } else { "changes are" };
            out.push_str(&format!("# {left_out} {files} too large to be shown here\n"));
        }
        (!out.is_empty()).then_some(out)
    }
}

/// Formats the changes that a tool call proposes, all of them.
pub(super) fn proposed_diff<'a>(blocks: impl Iterator<Item = &'a Value>, path_chars_max: usize) -> String {
    let edits: Vec<FileEdit> = blocks.filter_map(|block| FileEdit::read(block, path_chars_max)).collect();
    let mut steps_left = STEPS_MAX;
    let format = |edit: &FileEdit| match steps_left.checked_sub(edit.steps()) {
        Some(left) => {
            steps_left = left;
            edit.unified()
        }
        None => edit.replaced(),
    };
    merge_edits(edits.iter()).iter().map(format).collect()
}

/// Merges the write of a whole file with later edits that replace its entire content. Edits without an effect
/// are dropped.
fn merge_edits<'a>(edits: impl Iterator<Item = &'a FileEdit>) -> Vec<FileEdit> {
    let mut all: Vec<FileEdit> = Vec::new();
    // Index of the last change that holds a file's whole current text, by path.
    let mut whole: BTreeMap<&str, usize> = BTreeMap::new();
    for edit in edits.filter(|edit| edit.old.as_ref() != Some(&edit.new)) {
        let before = whole.get(edit.path.as_str()).and_then(|at| all.get_mut(*at));
        match before.filter(|before| edit.old.as_ref() == Some(&before.new)) {
            Some(before) => before.new.clone_from(&edit.new),
            None => {
                if edit.old.is_none() {
                    whole.insert(&edit.path, all.len());
                } else {
                    whole.remove(edit.path.as_str());
                }
                all.push(edit.clone());
            }
        }
    }
    all
}

impl FileEdit {
    fn read(block: &Value, path_chars_max: usize) -> Option<Self> {
        let path = sanitize::path(block["path"].as_str()?, path_chars_max);
        let text = |key: &str| block[key].as_str().map(str::to_owned);
        Some(Self { path, old: text("oldText"), new: text("newText")? })
    }

    fn bytes(&self) -> usize {
        self.path.len() + self.old.as_ref().map_or(0, String::len) + self.new.len()
    }

    /// Upper bound of the comparison steps: Myers' algorithm visits up to as many diagonals as both sides
    /// have lines, for half as many rounds, even if one side is short.
    fn steps(&self) -> usize {
        match differing(self.old.as_deref().unwrap_or_default(), &self.new) {
            (_, 0, _) | (_, _, 0) => 0,
            (_, old, new) => (old + new).saturating_mul(old + new) / 2,
        }
    }

    /// Names of the file before and after the edit, as in a unified diff.
    fn names(&self) -> (String, String) {
        let path = self.path.trim_start_matches('/');
        let before = if self.old.is_some() { format!("a/{path}") } else { "/dev/null".to_owned() };
        (before, format!("b/{path}"))
    }

    /// Formats this edit as a unified diff.
    fn unified(&self) -> String {
        let (before, after) = self.names();
        let diff = TextDiff::from_lines(self.old.as_deref().unwrap_or_default(), self.new.as_str());
        diff.unified_diff().context_radius(CONTEXT).header(&before, &after).to_string()
    }

    /// Formats this edit without a comparison: everything between the common lines at both ends is replaced.
    fn replaced(&self) -> String {
        let (before, after) = self.names();
        let old = self.old.as_deref().unwrap_or_default();
        let (same, removed, added) = differing(old, &self.new);
        let start = same + 1;
        let mut out = format!("--- {before}\n+++ {after}\n@@ -{start},{removed} +{start},{added} @@\n");
        for (mark, text, count) in [('-', old, removed), ('+', &self.new, added)] {
            for line in text.tokenize_lines().into_iter().skip(same).take(count) {
                out.push(mark);
                out.push_str(line.strip_suffix('\n').unwrap_or(line));
                out.push('\n');
            }
        }
        out
    }
}

/// Number of common lines at the beginning, and of the lines of each side that remain to be compared without
/// the common beginning and end. Lines are split as in the comparison, which also ends a line at a lone
/// carriage return.
fn differing(old: &str, new: &str) -> (usize, usize, usize) {
    let (old, new) = (old.tokenize_lines(), new.tokenize_lines());
    let before = old.iter().zip(&new).take_while(|(one, other)| one == other).count();
    let rest = old.len().min(new.len()) - before;
    let ends = old.iter().rev().zip(new.iter().rev()).take(rest);
    let after = ends.take_while(|(one, other)| one == other).count();
    (before, old.len() - before - after, new.len() - before - after)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn diff(path: &str, old: Option<&str>, new: &str) -> Value {
        json!({"type": "diff", "path": path, "oldText": old, "newText": new})
    }

    fn call(id: &str, status: &str, diffs: &[Value]) -> Value {
        json!({"toolCallId": id, "status": status, "content": diffs})
    }

    fn unified_diff(updates: &[Value]) -> Option<String> {
        let mut changes = FileChanges::default();
        updates.iter().for_each(|update| changes.add(update));
        changes.unified(10_000)
    }

    #[test]
    fn completed_edits_are_listed_once_per_file() {
        let new = || diff("/src/a.rs", None, "one\n");
        let made = "--- /dev/null\n+++ b/src/a.rs\n@@ -0,0 +1 @@\n+one\n";
        let apply_edit = json!({"toolCallId": "1", "status": "completed"});
        let text = json!({"type": "content", "content": {"type": "text", "text": "Done."}});
        for (case, updates, want) in [
            ("no updates", vec![], None),
            ("a call without edits", vec![call("1", "completed", std::slice::from_ref(&text))], None),
            ("a file that is made", vec![call("1", "completed", &[new()])], Some(made)),
            ("done later", vec![call("1", "pending", &[new()]), apply_edit.clone()], Some(made)),
            (
                "final update without the diff",
                vec![call("1", "pending", &[new()]), call("1", "completed", &[text])],
                Some(made),
            ),
            (
                "reported twice",
                vec![call("1", "pending", &[new()]), call("1", "completed", &[new()])],
                Some(made),
            ),
            ("refused", vec![call("1", "pending", &[new()]), call("1", "failed", &[])], None),
            ("unfinished", vec![call("1", "in_progress", &[new()])], None),
            (
                "changed again",
                vec![
                    call("1", "completed", &[new()]),
                    call("2", "completed", &[diff("/src/a.rs", Some("one\n"), "two\n")]),
                ],
                Some("--- /dev/null\n+++ b/src/a.rs\n@@ -0,0 +1 @@\n+two\n"),
            ),
            (
                "two sections that look like a revert",
                vec![
                    call("1", "completed", &[diff("b", Some("x\n"), "y\n")]),
                    call("2", "completed", &[diff("b", Some("y\n"), "x\n")]),
                ],
                Some("--- a/b\n+++ b/b\n@@ -1 +1 @@\n-x\n+y\n--- a/b\n+++ b/b\n@@ -1 +1 @@\n-y\n+x\n"),
            ),
            ("no change", vec![call("1", "completed", &[diff("b", Some("x\n"), "x\n")])], None),
            (
                "sections of a written file",
                vec![
                    call("1", "completed", &[diff("b", None, "x\ny\n"), diff("b", Some("y\n"), "z\n")]),
                    call("2", "completed", &[diff("b", Some("z\n"), "y\n")]),
                ],
                Some(
                    "--- /dev/null\n+++ b/b\n@@ -0,0 +1,2 @@\n+x\n+y\n--- a/b\n+++ b/b\n@@ -1 +1 @@\n-y\n+z\n\
                     --- a/b\n+++ b/b\n@@ -1 +1 @@\n-z\n+y\n",
                ),
            ),
            (
                "two sections of a file",
                vec![call("1", "completed", &[diff("b", Some("x"), "y"), diff("b", Some("p\n"), "q\n")])],
                Some(
                    "--- a/b\n+++ b/b\n@@ -1 +1 @@\n-x\n\\ No newline at end of file\n+y\n\\ No newline at end of file\n\
                     --- a/b\n+++ b/b\n@@ -1 +1 @@\n-p\n+q\n",
                ),
            ),
        ] {
            assert_eq!(unified_diff(&updates).as_deref(), want, "{case}");
        }
    }

    #[test]
    fn omitted_changes_are_counted() {
        let mut changes = FileChanges::default();
        changes.add(&call(
            "1",
            "completed",
            &[diff("a", None, "one\n"), diff("b", None, &"x\n".repeat(5_000))],
        ));
        let text = changes.unified(300).unwrap();
        assert!(text.starts_with("--- /dev/null\n+++ b/a\n"), "{text}");
        assert!(
            text.ends_with("# 1 change is too large to be shown here\n") && !text.contains("+++ b/b"),
            "{text}"
        );
        // Changes that are too large to store, and changes that take too long to compare.
        let huge = "y".repeat(KEPT_BYTES_MAX);
        let lines = |c: char| (0..3_000).map(|n| format!("{c}{n}\n")).collect::<String>();
        let text = unified_diff(&[call(
            "1",
            "completed",
            &[diff("a", None, &huge), diff("b", Some(&lines('p')), &lines('q'))],
        )]);
        assert_eq!(text.as_deref(), Some("# 2 changes are too large to be shown here\n"));
        // Also with few lines on one side, and with any line ending.
        for (old, new) in [
            ("todo\n".to_owned(), lines('q')),
            ("todo\n".to_owned(), "\n".repeat(1_000_000)),
            ("x\n".repeat(100_000), "x\r\n".repeat(100_000)),
            ("x\n".repeat(100_000), "y\r".repeat(100_000)),
        ] {
            let edit = FileEdit { path: "a".to_owned(), old: Some(old), new };
            assert_eq!(edit.steps() > STEPS_MAX, edit.new.len() > 100_000, "{}", edit.steps());
        }
        let many = vec![diff("b", Some(&lines('p')), &(lines('q') + "end\n")); 3];
        let diff_of = |edits: &[Value]| {
            let mut changes = FileChanges::default();
            changes.add(&call("1", "completed", edits));
            changes.unified(1 << 20).unwrap()
        };
        assert!(diff_of(&many).ends_with("# 3 changes are too large to be shown here\n"));
        let half = |c: char| (0..1_000).map(|n| format!("{c}{n}\n")).collect::<String>();
        let some: Vec<Value> =
            (0..20).map(|n| diff(&format!("f{n}"), Some(&half('p')), &half('q'))).collect();
        assert!(diff_of(&some).ends_with("# 12 changes are too large to be shown here\n"), "together");
        // A small change of a large file is shown.
        let text =
            unified_diff(&[call("1", "completed", &[diff("b", Some(&lines('p')), &(lines('p') + "end\n"))])]);
        assert!(text.unwrap().contains("@@ -2998,3 +2998,4 @@"));
    }

    #[derive(Debug, Clone)]
    enum Edit {
        /// Writes the whole file, without the old text.
        Write(String),
        /// Replaces the whole file, with the old text.
        Replace(String),
        /// Replaces some lines, with their old text.
        Section(prop::sample::Index, prop::sample::Index, String),
    }

    fn any_edits() -> impl Strategy<Value = Vec<(usize, Edit)>> {
        let lines = || "([xy]\n){1,4}";
        let edit = prop_oneof![
            lines().prop_map(Edit::Write),
            lines().prop_map(Edit::Replace),
            (any::<prop::sample::Index>(), any::<prop::sample::Index>(), lines())
                .prop_map(|(from, to, new)| Edit::Section(from, to, new)),
            (any::<prop::sample::Index>(), any::<prop::sample::Index>(), "[xy]\n")
                .prop_map(|(from, to, new)| Edit::Section(from, to, new)),
        ];
        prop::collection::vec((0usize..2, edit), 0..8)
    }

    /// Applies an edit. Returns it as reported by the agent, and its byte offset in the file.
    fn apply_edit(path: &str, file: &mut String, edit: Edit) -> (FileEdit, usize) {
        let lines: Vec<&str> = file.split_inclusive('\n').collect();
        let (at, old, new) = match edit {
            Edit::Write(new) => (0, None, new),
            Edit::Replace(new) => (0, Some(file.clone()), new),
            Edit::Section(from, to, new) => {
                let from = from.index(lines.len());
                let to = from + 1 + to.index(lines.len() - from);
                (lines[..from].concat().len(), Some(lines[from..to].concat()), new)
            }
        };
        let len = old.as_ref().map_or(file.len(), String::len);
        file.replace_range(at..at + len, &new);
        (FileEdit { path: path.to_owned(), old, new }, at)
    }

    /// A proposed change that takes too long to compare is formatted as a replacement.
    #[test]
    fn a_proposed_change_is_never_left_out() {
        let lines = |mark: &str| (0..6_000).map(|n| format!("{mark}{n}\n")).collect::<String>();
        let (old, new) = (format!("same\n{}end", lines("x")), format!("same\n{}end", lines("y")));
        let blocks = [diff("/w/a", Some(&old), &new), diff("/w/b", None, "z\n")];
        let text = proposed_diff(blocks.iter(), 100);
        let want = format!(
            "--- a/w/a\n+++ b/w/a\n@@ -2,6000 +2,6000 @@\n{}{}--- /dev/null\n+++ b/w/b\n@@ -0,0 +1 @@\n+z\n",
            lines("-x"),
            lines("+y")
        );
        assert!(text == want, "{}", text.get(..300).unwrap_or_default());
    }

    proptest! {
        /// Applying the changes in order at their known positions turns the initial files into the final
        /// ones.
        #[test]
        fn merged_changes_reproduce_the_files(begin in "([xy]\n){1,4}", any_edits in any_edits()) {
            let mut files = [begin.clone(), begin.clone()];
            let (mut edits, mut offsets) = (Vec::new(), Vec::new());
            // True for a file known from a write and since replaced only as a whole.
            let mut known = [false; 2];
            for (index, edit) in any_edits {
                let before = files[index].clone();
                let (edit, at) = apply_edit(["a", "b"][index], &mut files[index], edit);
                let is_again = known[index] && edit.old.as_ref() == Some(&before);
                if edit.old.as_ref() != Some(&edit.new) {
                    known[index] = edit.old.is_none() || is_again;
                    offsets.extend((!is_again).then_some(at));
                }
                edits.push(edit);
            }
            let mut read = [begin.clone(), begin];
            let changes = merge_edits(edits.iter());
            prop_assert_eq!(changes.len(), offsets.len());
            for (change, at) in changes.into_iter().zip(offsets) {
                let file = &mut read[usize::from(change.path == "b")];
                let len = change.old.as_ref().map_or(file.len(), String::len);
                prop_assert_eq!(change.old.as_deref().unwrap_or(file.as_str()), &file[at..at + len]);
                file.replace_range(at..at + len, &change.new);
            }
            prop_assert_eq!(read, files);
        }

        #[test]
        fn diff_is_bounded(
            edits in prop::collection::vec(("[ab]", prop::option::of("[xy\n]{0,30}"), "[xy\n]{0,30}", any::<bool>()), 0..8),
            max in 100usize..600,
        ) {
            let mut changes = FileChanges::default();
            for (number, (path, old, new, apply_edit)) in edits.iter().enumerate() {
                let status = if *apply_edit { "completed" } else { "failed" };
                changes.add(&call(&number.to_string(), status, &[diff(path, old.as_deref(), new)]));
            }
            let text = changes.unified(max);
            prop_assert!(text.as_ref().is_none_or(|text| text.len() <= max));
            prop_assert_eq!(text, changes.clone().unified(max));
        }
    }
}
