//! Questions of the host before an effect, shaped like `session/request_permission`: every client shows and
//! answers them like questions of the agent.

use super::{FileContent, Inspection};
use crate::backend::{AgentRequestKind, PermissionOption};
use crate::sanitize;
use serde_json::{Value, json};

/// Maximum length of either side of a difference that is stored whole, in bytes.
const DIFF_BYTES_MAX: usize = 64 * 1024;
/// Number of lines stored of either side of a longer difference.
const EXCERPT_LINES_MAX: usize = 20;
/// Maximum length of such a line, in characters.
const EXCERPT_CHARS_MAX: usize = 200;
/// Maximum length of a title, in characters.
const TITLE_CHARS_MAX: usize = 300;
/// Maximum length of the path in a title, in characters.
const PATH_CHARS_MAX: usize = 250;
/// Maximum length of the variables and of the directory in a title: both are shown whole before the command
/// is cut.
const NOTE_CHARS_MAX: usize = 100;
/// Programs whose `-c` takes a command line.
const SHELLS: [&str; 6] = ["sh", "bash", "dash", "zsh", "ksh", "fish"];

/// Question of the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostQuestion {
    /// Parameters in the shape of `session/request_permission`.
    pub params: Value,
    /// Title, kind and options.
    pub what: AgentRequestKind,
}

impl HostQuestion {
    /// Builds the question about a write to the inspected file.
    pub fn write(at: u64, found: &Inspection, content: &str) -> Self {
        let path = &found.path;
        let call = json!({
            "toolCallId": call_id(at),
            "title": format!("Write {}", sanitize::path(path, PATH_CHARS_MAX)),
            "kind": "edit",
            "content": [change(path, &found.old, content)],
            "locations": [{ "path": path }],
        });
        Self::new(&call, "Allow every file in this session")
    }

    /// Builds the question about a command, with the arguments of [`command_title`].
    pub fn run(at: u64, line: &str, cwd: Option<&str>, env: &[&str]) -> Self {
        let call = json!({
            "toolCallId": call_id(at),
            "title": command_title(line, cwd, env),
            "kind": "execute",
            "rawInput": { "command": line, "cwd": cwd, "env": env },
        });
        Self::new(&call, "Allow every command in this session")
    }

    fn new(call: &Value, always: &str) -> Self {
        let options = [("allow_once", "Allow once"), ("allow_always", always), ("reject_once", "Reject")];
        let listed: Vec<Value> = options
            .iter()
            .map(|(kind, name)| json!({ "optionId": kind, "name": name, "kind": kind }))
            .collect();
        let option = |(kind, name): (&str, &str)| PermissionOption {
            id: kind.to_owned(),
            name: name.to_owned(),
            kind: kind.to_owned(),
        };
        let title = call["title"].as_str().unwrap_or_default();
        Self {
            params: json!({ "toolCall": call, "options": listed }),
            what: AgentRequestKind::Permission {
                title: sanitize::line(title, TITLE_CHARS_MAX),
                tool_kind: call["kind"].as_str().map(str::to_owned),
                options: options.map(option).to_vec(),
            },
        }
    }
}

/// Returns a command line after the notes about it, which a cut of its end must not hide: `cwd` is the directory
/// if different from the session's, `env` the names of variables set for the command.
pub fn command_title(line: &str, cwd: Option<&str>, env: &[&str]) -> String {
    let names = env.join(", ");
    let shown = sanitize::line(&names, NOTE_CHARS_MAX);
    let set = match env.len() {
        0 => None,
        count if shown != names => Some(format!("sets {count} variables: {shown}")),
        _ => Some(format!("sets {names}")),
    };
    let place = cwd.map(|cwd| format!("in {}", sanitize::path(cwd, NOTE_CHARS_MAX)));
    let notes: Vec<String> = set.into_iter().chain(place).collect();
    if notes.is_empty() { line.to_owned() } else { format!("({}) {line}", notes.join("; ")) }
}

fn call_id(at: u64) -> String {
    format!("host-{at}")
}

/// Command as a shell line: the argument of `-c` for a known shell, otherwise program and quoted arguments. A
/// program without arguments is taken as a line.
pub fn command_line(program: &str, args: &[String]) -> String {
    let name =
        ["/usr/bin/", "/bin/"].into_iter().find_map(|dir| program.strip_prefix(dir)).unwrap_or(program);
    match args {
        [] => program.to_owned(),
        [flag, line] if SHELLS.contains(&name) && matches!(flag.as_str(), "-c" | "-lc") => line.clone(),
        _ => shell_words(std::iter::once(program).chain(args.iter().map(String::as_str))),
    }
}

/// Joins words with shell quoting, so that a shell splits the line into the same words.
pub fn shell_words<'a>(words: impl Iterator<Item = &'a str>) -> String {
    words.map(quoted).collect::<Vec<_>>().join(" ")
}

fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "-_./=:,+@%".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Change of a file: the whole difference of small texts, otherwise sizes and the first differing lines.
fn change(path: &str, old: &FileContent, new: &str) -> Value {
    let diff = |old: Option<&str>| json!({ "type": "diff", "path": path, "oldText": old, "newText": new });
    match old {
        FileContent::Absent if new.len() <= DIFF_BYTES_MAX => diff(None),
        FileContent::Text(old) if old.len() <= DIFF_BYTES_MAX && new.len() <= DIFF_BYTES_MAX => {
            diff(Some(old))
        }
        FileContent::Absent => {
            text_block(&format!("{path}: new file of {} bytes:\n{}", new.len(), excerpt("", new)))
        }
        FileContent::Text(old) => {
            text_block(&format!("{path}: {} bytes become {}:\n{}", old.len(), new.len(), excerpt(old, new)))
        }
        FileContent::Opaque(bytes) => {
            text_block(&format!("{path}: {bytes} bytes become {}:\n{}", new.len(), excerpt("", new)))
        }
    }
}

fn text_block(text: &str) -> Value {
    json!({ "type": "content", "content": { "type": "text", "text": text } })
}

/// First differing lines, marked as in a unified diff.
fn excerpt(old: &str, new: &str) -> String {
    let same = old.lines().zip(new.lines()).take_while(|(old, new)| old == new).count();
    let marked = |text: &str, mark: char| -> Vec<String> {
        let line = |line: &str| format!("{mark}{}", line.chars().take(EXCERPT_CHARS_MAX).collect::<String>());
        text.lines().skip(same).take(EXCERPT_LINES_MAX).map(line).collect()
    };
    let mut lines = vec![format!("from line {}", same + 1)];
    lines.extend(marked(old, '-'));
    lines.extend(marked(new, '+'));
    lines.join("\n")
}
