//! Record of an agent's calls for the manual. `ACP_WRITE_TRANSCRIPTS=1` writes it.

use acp_tests::world::repository;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::path::Path;

/// Members that differ from run to run, and the value that is shown.
const STEADY: [(&str, u64); 3] =
    [("created_at_ms", 1_764_300_000_000), ("last_activity_at_ms", 1_764_300_000_000), ("next_after", 9)];
/// Lengths of a UUID, with and without hyphens.
const UUID_CHARS: [usize; 2] = [36, 32];

/// Page of the manual.
pub(crate) struct Transcript {
    text: String,
    /// Directory that is shown as the home directory.
    home: String,
    /// Ids in the order of their appearance.
    ids: Vec<String>,
}

impl Transcript {
    pub(crate) fn begin(home: &Path, name: &str, other: &str) -> Self {
        let text = format!(
            "# {name} uses the session tools\n\nA record of a test with {name} and {other}, both in permission mode `ask`. A \
             script instead of a language model\ndecides what they do: text in double brackets is for it. Ids, times and row \
             numbers are shortened.\nSee [session tools](../session-tools.md).\n"
        );
        Self { text, home: home.display().to_string(), ids: Vec::new() }
    }

    pub(crate) fn prompt(&mut self, said: &str) {
        let _ = writeln!(self.text, "\n## {said}\n\nSo the person asks. The agent calls tools:");
    }

    pub(crate) fn call(&mut self, tool: &str, arguments: &Value, result: &Value) {
        let (arguments, result) = (self.json(arguments), self.json(result));
        let _ = writeln!(
            self.text,
            "\n`{tool}`\n\n```json\n{arguments}\n```\n\nResult:\n\n```json\n{result}\n```"
        );
    }

    /// Records questions: session and title of each.
    pub(crate) fn asked(&mut self, questions: &[(String, String)]) {
        if questions.is_empty() {
            return;
        }
        let _ = writeln!(
            self.text,
            "\nMeanwhile these permission requests were in the list of all sessions (`GET /v1/permissions`, the web console).\n\
             A person allowed each once:\n"
        );
        for (session, title) in questions {
            let (session, title) = (self.plain(session), self.plain(title));
            let _ = writeln!(self.text, "- of `{session}`: `{title}`");
        }
    }

    pub(crate) fn answer(&mut self, text: &str) {
        let text = self.plain(text);
        let _ = writeln!(self.text, "\nThen it answers:\n\n> {text}");
    }

    fn json(&mut self, value: &Value) -> String {
        let mut value = value.clone();
        steady(&mut value);
        self.plain(&serde_json::to_string_pretty(&value).unwrap_or_default())
    }

    /// Replaces directories and ids.
    fn plain(&mut self, text: &str) -> String {
        let text = text.replace(&self.home, "~");
        let (mut out, mut rest) = (String::new(), text.as_str());
        let find = |text: &str| text.char_indices().find_map(|(at, _)| Some((at, uuid_chars(&text[at..])?)));
        while let Some((at, chars)) = find(rest) {
            let (before, id) = rest.split_at(at);
            let (id, after) = id.split_at(chars);
            let bare = id.replace('-', "");
            let known = self.ids.iter().position(|have| *have == bare).unwrap_or_else(|| {
                self.ids.push(bare);
                self.ids.len() - 1
            });
            let _ = write!(out, "{before}{}", known + 1);
            rest = after;
        }
        out + rest
    }

    /// Compares the page with the file, or writes it.
    pub(crate) fn check(&self, page: &str) {
        let path = repository().join(page);
        if std::env::var_os("ACP_WRITE_TRANSCRIPTS").is_some() {
            std::fs::write(&path, &self.text).unwrap_or_else(|error| panic!("{page}: {error}"));
        }
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            text == self.text,
            "{page} differs from the run; write it with ACP_WRITE_TRANSCRIPTS=1 make test-foreign:\n{}",
            self.text
        );
    }
}

/// Returns the length of the UUID at the beginning of a text.
fn uuid_chars(text: &str) -> Option<usize> {
    let is_uuid = |chars: &usize| text.get(..*chars).is_some_and(|id| uuid::Uuid::try_parse(id).is_ok());
    UUID_CHARS.into_iter().find(is_uuid)
}

fn steady(value: &mut Value) {
    match value {
        Value::Array(list) => {
            for (at, item) in list.iter_mut().enumerate() {
                if item["seq"].is_u64() {
                    item["seq"] = json!(at + 1);
                }
                steady(item);
            }
        }
        Value::Object(members) => {
            for (name, member) in members {
                match STEADY.iter().find(|(steady, _)| steady == name) {
                    Some((_, shown)) => *member = json!(shown),
                    None => steady(member),
                }
            }
        }
        _ => {}
    }
}

#[test]
fn ids_and_times_of_a_run_are_not_recorded() {
    let mut page = Transcript::begin(Path::new("/tmp/x/work"), "a", "b");
    let id = "0190a000-0000-7000-8000-00000000000f";
    let result = json!({"session": format!("agent:a:acp:{id}"), "created_at_ms": 5, "cwd": "/tmp/x/work/project",
        "messages": [{"seq": 17, "text": id.replace('-', "")}]});
    page.call("list", &json!({}), &result);
    for (want, is) in [
        ("agent:a:acp:1\"", true),
        ("~/project", true),
        ("\"seq\": 1,", true),
        ("0190a", false),
        (": 5", false),
    ] {
        assert_eq!(page.text.contains(want), is, "{want}: {}", page.text);
    }
}
