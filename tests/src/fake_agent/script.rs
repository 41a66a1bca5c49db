//! Parses the text of a prompt into directives.

use super::messages::OPTIONS;
use super::outlet::char_of_unit;
use serde_json::Value;
use std::fmt;

/// Content of a prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Script {
    /// Plain text to answer.
    Plain(String),
    /// A script.
    Steps(Vec<Directive>),
}

/// One line of a script. See the parent module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Directive {
    Say(String),
    Chunks { count: u64, pace_ms: u64, size: usize },
    Stamps { count: u64, pace_ms: u64 },
    Thought(String),
    Plan(Vec<String>),
    Mode(String),
    ToolWrite { path: String, text: String },
    ToolRun { command: String },
    AskWrite { path: String, text: String },
    AskRun { command: String },
    Permission { title: String, announced: bool },
    Elicit(Value),
    PageComplete(String),
    SessionTool { name: String, arguments: Value },
    FsRead { path: String },
    FsWrite { path: String, text: String },
    Terminal { command: String, kill: bool },
    Terminals { count: usize, command: String },
    ExtRequest(String),
    ExtNotify(String),
    LongLine { bytes: usize },
    EndlessLine { bytes: u64 },
    Titles { count: u64, bytes: usize },
    Reads { count: usize, deaf_ms: u64, path: String },
    Writes { count: usize, bytes: usize, path: String },
    UnknownUpdate,
    BadJson,
    OrphanReply,
    LateUpdate,
    Stderr(String),
    Sleep { ms: u64 },
    WaitCancel,
    NoReply,
    Stop(String),
    OptionName { kind: String, name: String },
    BadUtf8,
    Raw(String),
    Error { code: i64, message: String },
    ErrorData { code: i64, data: Value },
    Exit(u8),
    Crash,
    IgnoreTerm,
    IgnoreEof,
    ForkChild,
    SpawnSetsid,
}

/// Minimum length of the line of `long_line`.
pub(crate) const LONG_LINE_BYTES_MIN: usize = 400;

/// Beginning of the heading of another session's message.
const MESSAGE_HEADING: &str = "Message from the session ";

/// The first words of all directives, and the one of a remark.
const NAMES: &str = "say chunks stamps thought plan mode tool permission missing_tool_call elicit session_tool page_complete fs_read fs_write \
    terminal terminal_kill terminals ext_request ext_notify long_line endless_line titles reads writes unknown_update bad_json \
    orphan_reply late_update stderr sleep wait_cancel no_reply refuse stop error error_data option_name bad_utf8 raw \
    exit crash ignore_term ignore_eof fork_child spawn_setsid #";

fn is_name(word: &str) -> bool {
    NAMES.split(' ').any(|name| name == word)
}

/// Reason why a script is invalid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ScriptError {
    /// Counted from 1.
    line: usize,
    what: String,
}

impl fmt::Display for ScriptError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.what)
    }
}

/// Parses a prompt.
pub(crate) fn parse(text: &str) -> Result<Script, ScriptError> {
    let is_message = text.starts_with(MESSAGE_HEADING);
    let text = text.split_once("\n\n").filter(|_| is_message).map_or(text, |(_, text)| text);
    let first = text.split_whitespace().next().unwrap_or_default();
    if !is_name(first) {
        return Ok(Script::Plain(text.to_owned()));
    }
    let mut steps = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        steps.push(directive(line).map_err(|what| ScriptError { line: index + 1, what })?);
    }
    Ok(Script::Steps(steps))
}

fn directive(line: &str) -> Result<Directive, String> {
    let (name, rest) = word(line);
    let bare = |directive| if rest.is_empty() { Ok(directive) } else { Err(format!("{name} takes nothing")) };
    match name {
        "say" => Ok(Directive::Say(unescape(rest))),
        "chunks" => chunks(rest),
        "stamps" => {
            let (count, pace_ms) = word(rest);
            Ok(Directive::Stamps { count: number(count)?, pace_ms: number(pace_ms)? })
        }
        "thought" => Ok(Directive::Thought(unescape(rest))),
        "plan" => Ok(Directive::Plan(rest.split(';').map(|entry| entry.trim().to_owned()).collect())),
        "mode" => Ok(Directive::Mode(required(name, rest)?)),
        "tool" => tool(rest),
        "permission" => Ok(Directive::Permission { title: title(rest), announced: true }),
        "missing_tool_call" => Ok(Directive::Permission { title: title(rest), announced: false }),
        "elicit" => serde_json::from_str(rest).map(Directive::Elicit).map_err(|e| format!("no JSON: {e}")),
        "session_tool" => {
            let (name, arguments) = word(rest);
            let arguments = serde_json::from_str(arguments).map_err(|e| format!("no JSON: {e}"))?;
            Ok(Directive::SessionTool { name: name.to_owned(), arguments })
        }
        "page_complete" => Ok(Directive::PageComplete(required(name, rest)?)),
        "fs_read" => Ok(Directive::FsRead { path: required(name, rest)? }),
        "fs_write" => path_and_text(name, rest).map(|(path, text)| Directive::FsWrite { path, text }),
        "terminal" => Ok(Directive::Terminal { command: required(name, rest)?, kill: false }),
        "terminal_kill" => Ok(Directive::Terminal { command: required(name, rest)?, kill: true }),
        "terminals" => {
            let (count, command) = word(rest);
            Ok(Directive::Terminals { count: number(count)?, command: required(name, command)? })
        }
        "ext_request" => Ok(Directive::ExtRequest(required(name, rest)?)),
        "ext_notify" => Ok(Directive::ExtNotify(required(name, rest)?)),
        "long_line" => match number(rest)? {
            bytes if bytes >= LONG_LINE_BYTES_MIN => Ok(Directive::LongLine { bytes }),
            bytes => Err(format!("{bytes} bytes are fewer than {LONG_LINE_BYTES_MIN}")),
        },
        "endless_line" => Ok(Directive::EndlessLine { bytes: number(rest)? }),
        "titles" => {
            let (count, bytes) = word(rest);
            Ok(Directive::Titles { count: number(count)?, bytes: number(bytes)? })
        }
        "reads" => {
            counted(name, rest).map(|(count, deaf_ms, path)| Directive::Reads { count, deaf_ms, path })
        }
        "writes" => counted(name, rest).map(|(count, bytes, path)| Directive::Writes { count, bytes, path }),
        "unknown_update" => bare(Directive::UnknownUpdate),
        "bad_json" => bare(Directive::BadJson),
        "orphan_reply" => bare(Directive::OrphanReply),
        "late_update" => bare(Directive::LateUpdate),
        "stderr" => Ok(Directive::Stderr(unescape(rest))),
        "sleep" => Ok(Directive::Sleep { ms: number(rest)? }),
        "wait_cancel" => bare(Directive::WaitCancel),
        "no_reply" => bare(Directive::NoReply),
        "refuse" => bare(Directive::Stop("refusal".to_owned())),
        "stop" => Ok(Directive::Stop(required(name, rest)?)),
        "error" => {
            let (code, message) = word(rest);
            Ok(Directive::Error { code: number(code)?, message: unescape(message) })
        }
        "error_data" => {
            let (code, data) = word(rest);
            let data = serde_json::from_str(data).map_err(|e| format!("no JSON: {e}"))?;
            Ok(Directive::ErrorData { code: number(code)?, data })
        }
        "option_name" => {
            let (kind, name) = word(rest);
            if !OPTIONS.contains(&kind) {
                return Err(format!("{kind} is no option of a permission"));
            }
            Ok(Directive::OptionName { kind: kind.to_owned(), name: unescape(name) })
        }
        "bad_utf8" => bare(Directive::BadUtf8),
        "raw" => Ok(Directive::Raw(required(name, rest)?)),
        "exit" => Ok(Directive::Exit(number(rest)?)),
        "crash" => bare(Directive::Crash),
        "ignore_term" => bare(Directive::IgnoreTerm),
        "ignore_eof" => bare(Directive::IgnoreEof),
        "fork_child" => bare(Directive::ForkChild),
        "spawn_setsid" => bare(Directive::SpawnSetsid),
        other => Err(format!("{other} is no directive")),
    }
}

fn chunks(rest: &str) -> Result<Directive, String> {
    let (count, mut rest) = word(rest);
    let count = number(count)?;
    let (mut pace_ms, mut size) = (0, 16);
    while !rest.is_empty() {
        let (option, more) = word(rest);
        match option.split_once('=') {
            Some(("pace_ms", value)) => pace_ms = number(value)?,
            Some(("size", value)) => size = number(value)?,
            _ => return Err(format!("{option} is no option of chunks")),
        }
        rest = more;
    }
    Ok(Directive::Chunks { count, pace_ms, size })
}

fn tool(rest: &str) -> Result<Directive, String> {
    let (kind, rest) = word(rest);
    match kind {
        "write" => path_and_text("tool write", rest).map(|(path, text)| Directive::ToolWrite { path, text }),
        "run" => Ok(Directive::ToolRun { command: required("tool run", rest)? }),
        "ask_write" => {
            path_and_text("tool ask_write", rest).map(|(path, text)| Directive::AskWrite { path, text })
        }
        "ask_run" => Ok(Directive::AskRun { command: required("tool ask_run", rest)? }),
        other => Err(format!("{other} is no tool: write, run, ask_write, ask_run")),
    }
}

/// Splits off the first word and the blanks after it.
fn word(text: &str) -> (&str, &str) {
    match text.split_once(char::is_whitespace) {
        Some((first, rest)) => (first, rest.trim_start()),
        None => (text, ""),
    }
}

fn required(name: &str, rest: &str) -> Result<String, String> {
    if rest.is_empty() { Err(format!("{name} wants more")) } else { Ok(rest.to_owned()) }
}

fn path_and_text(name: &str, rest: &str) -> Result<(String, String), String> {
    let (path, text) = word(rest);
    Ok((required(name, path)?, unescape(text)))
}

fn counted<T: std::str::FromStr>(name: &str, rest: &str) -> Result<(usize, T, String), String> {
    let (count, rest) = word(rest);
    let (value, path) = word(rest);
    Ok((number(count)?, number(value)?, required(name, path)?))
}

fn title(rest: &str) -> String {
    if rest.is_empty() { "Do something".to_owned() } else { unescape(rest) }
}

fn number<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("{text:?} is no such number"))
}

fn unescape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if c != '\\' {
            out.push(c);
            continue;
        }
        match chars.next() {
            Some('n') => out.push('\n'),
            Some('t') => out.push('\t'),
            Some('\\') => out.push('\\'),
            Some('u') => {
                let digits = chars.as_str().get(..4);
                let unit = digits.and_then(|digits| u32::from_str_radix(digits, 16).ok());
                match unit.and_then(char_of_unit) {
                    Some(c) => {
                        out.push(c);
                        chars = chars.as_str().get(4..).unwrap_or_default().chars();
                    }
                    None => out.push_str("\\u"),
                }
            }
            Some(other) => out.extend(['\\', other]),
            None => out.push('\\'),
        }
    }
    out
}

#[cfg(all(test, feature = "proptest"))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_directive() {
        use Directive as D;
        let text = String::from;
        for (line, want) in [
            ("say hello  world\\n\\\\\\x", D::Say(text("hello  world\n\\\\x"))),
            ("say", D::Say(String::new())),
            ("chunks 3", D::Chunks { count: 3, pace_ms: 0, size: 16 }),
            ("chunks 2000 pace_ms=2 size=80", D::Chunks { count: 2000, pace_ms: 2, size: 80 }),
            ("stamps 3 5", D::Stamps { count: 3, pace_ms: 5 }),
            ("thought hm", D::Thought(text("hm"))),
            ("plan a b; c", D::Plan(vec![text("a b"), text("c")])),
            ("mode ask", D::Mode(text("ask"))),
            ("tool write a.txt x y", D::ToolWrite { path: text("a.txt"), text: text("x y") }),
            ("tool run ls -l", D::ToolRun { command: text("ls -l") }),
            ("tool ask_write a.txt x y", D::AskWrite { path: text("a.txt"), text: text("x y") }),
            ("tool ask_run ls -l", D::AskRun { command: text("ls -l") }),
            ("permission", D::Permission { title: text("Do something"), announced: true }),
            ("permission rm -rf", D::Permission { title: text("rm -rf"), announced: true }),
            ("missing_tool_call", D::Permission { title: text("Do something"), announced: false }),
            ("elicit {\"mode\":\"url\"}", D::Elicit(serde_json::json!({"mode": "url"}))),
            ("page_complete p1", D::PageComplete(text("p1"))),
            ("fs_read /a b", D::FsRead { path: text("/a b") }),
            ("fs_write a b c", D::FsWrite { path: text("a"), text: text("b c") }),
            ("terminal echo 'a  b'", D::Terminal { command: text("echo 'a  b'"), kill: false }),
            ("terminal_kill sleep 9", D::Terminal { command: text("sleep 9"), kill: true }),
            ("terminals 17 sleep 9", D::Terminals { count: 17, command: text("sleep 9") }),
            ("ext_request craft/x", D::ExtRequest(text("craft/x"))),
            ("ext_notify _x", D::ExtNotify(text("_x"))),
            ("long_line 573440", D::LongLine { bytes: 573_440 }),
            ("endless_line 99", D::EndlessLine { bytes: 99 }),
            ("titles 3 4000000", D::Titles { count: 3, bytes: 4_000_000 }),
            ("reads 9 500 a b", D::Reads { count: 9, deaf_ms: 500, path: text("a b") }),
            ("writes 3 12 a", D::Writes { count: 3, bytes: 12, path: text("a") }),
            ("unknown_update", D::UnknownUpdate),
            ("bad_json", D::BadJson),
            ("orphan_reply", D::OrphanReply),
            ("late_update", D::LateUpdate),
            ("stderr oh", D::Stderr(text("oh"))),
            ("sleep 5", D::Sleep { ms: 5 }),
            ("wait_cancel", D::WaitCancel),
            ("no_reply", D::NoReply),
            ("refuse", D::Stop(text("refusal"))),
            ("stop max_tokens", D::Stop(text("max_tokens"))),
            ("error -32603 it broke", D::Error { code: -32603, message: text("it broke") }),
            (
                "error_data -32603 {\"a\":[1]}",
                D::ErrorData { code: -32603, data: serde_json::json!({"a": [1]}) },
            ),
            (
                "option_name allow_once Yes\\n2. No",
                D::OptionName { kind: text("allow_once"), name: text("Yes\n2. No") },
            ),
            ("bad_utf8", D::BadUtf8),
            ("raw {}", D::Raw(text("{}"))),
            ("say \\u001b[2J\\ud83d\\u00e9\\ux", D::Say(text("\u{1b}[2J\u{10f83d}é\\ux"))),
            ("exit 3", D::Exit(3)),
            ("crash", D::Crash),
            ("ignore_term", D::IgnoreTerm),
            ("ignore_eof", D::IgnoreEof),
            ("fork_child", D::ForkChild),
            ("spawn_setsid", D::SpawnSetsid),
        ] {
            assert_eq!(parse(line), Ok(Script::Steps(vec![want])), "{line}");
            assert!(is_name(word(line).0), "{line}");
        }
    }

    #[test]
    fn scripts_and_plain_text() {
        let say = |text: &str| Directive::Say(text.to_owned());
        for (text, want) in [
            ("", Script::Plain(String::new())),
            ("Please say hello", Script::Plain("Please say hello".to_owned())),
            ("\n\n  say a\n\n# no\n\tsay b\n", Script::Steps(vec![say("a"), say("b")])),
            ("# only a remark", Script::Steps(Vec::new())),
        ] {
            assert_eq!(parse(text), Ok(want), "{text:?}");
        }
    }

    #[test]
    fn wrong_lines_name_their_number() {
        for (text, line) in [
            ("say a\n\nnonsense", 3),
            ("chunks", 1),
            ("chunks x", 1),
            ("chunks 3 speed=4", 1),
            ("chunks 3 size=-1", 1),
            ("stamps 3", 1),
            ("say a\ntool dig x", 2),
            ("tool write", 1),
            ("fs_read", 1),
            ("mode", 1),
            ("reads 1 x a", 1),
            ("writes 1 1", 1),
            ("long_line 10", 1),
            ("exit 300", 1),
            ("error x y", 1),
            ("error_data -1 {", 1),
            ("option_name maybe x", 1),
            ("crash now", 1),
            ("sleep", 1),
        ] {
            assert_eq!(parse(text).map_err(|e| e.line), Err(line), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_without_harm(text in "\\PC{0,200}") {
            let first = text.split_whitespace().next().unwrap_or_default();
            if is_name(first) {
                let _ = parse(&text);
            } else {
                prop_assert_eq!(parse(&text), Ok(Script::Plain(text)));
            }
        }

        #[test]
        fn said_text_survives_escaping(text in "[^\r\\s][^\r]{0,50}[^\r\\s]") {
            let line = text.replace('\\', "\\\\").replace('\n', "\\n").replace('\t', "\\t");
            prop_assume!(line.trim_end() == line && line.lines().count() == 1);
            prop_assert_eq!(parse(&format!("say {line}")), Ok(Script::Steps(vec![Directive::Say(text)])));
        }
    }
}
