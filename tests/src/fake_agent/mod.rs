//! A scripted agent: ACP version 1 over stdio, deterministic, with the quirks of real agents.
//!
//! # The script
//!
//! The script is the prompt: the text blocks of `session/prompt`, joined by newlines, with one directive per
//! line. Empty lines are skipped. A prompt whose first word is not a directive is plain text and is answered
//! with `echo: TEXT`. In a script every line must be a directive: any other line fails the prompt with
//! -32602, before any directive runs. `TEXT` is the rest of the line, with `\n`, `\t`, `\\` and `\uXXXX` as
//! escapes; a lone UTF-16 surrogate is sent as that escape. A relative `PATH` is relative to the session's
//! `cwd`. *Says* means: sends in an `agent_message_chunk`. A turn that completes its script ends with
//! `end_turn`.
//!
//! | directive | effect |
//! |---|---|
//! | `say TEXT` | says the text |
//! | `chunks N [pace_ms=M] [size=BYTES]` | says [`chunk_text`]`(1..=N, BYTES)`, M milliseconds apart (defaults 0 and 16) |
//! | `stamps N M` | says [`now_ns`] N times, each after a pause of M milliseconds |
//! | `thought TEXT` | one `agent_thought_chunk` |
//! | `plan A; B; …` | one `plan` with these entries |
//! | `mode MODE` | one `current_mode_update` |
//! | `tool write PATH TEXT` | a tool call that writes the file itself, with a diff |
//! | `tool run CMD…` | a tool call that runs `sh -c CMD` itself; a cancel kills its process group |
//! | `tool ask_write PATH TEXT` | a tool call, `session/request_permission` with its diff, and, if allowed, `fs/write_text_file`; says the outcome of both |
//! | `tool ask_run CMD…` | a tool call with the command, `session/request_permission` with only the title `Bash`, and, if allowed, the same as `terminal CMD…`; says the outcome of both |
//! | `permission [TITLE]` | a tool call, `session/request_permission`, the outcome: says `permission: selected ID`, `permission: cancelled`, `permission: error CODE` or, in mode `auto`, `permission: auto` |
//! | `missing_tool_call [TITLE]` | the same without a preceding `tool_call`: only a `tool_call_update` after it |
//! | `elicit JSON` | `elicitation/create` with these parameters and the session; says `elicit: accept CONTENT`, `elicit: decline`, `elicit: cancel` or `elicit: error CODE` |
//! | `session_tool NAME JSON` | calls this session tool over the MCP server `acp-host` with these arguments; says `NAME: RESULT` |
//! | `page_complete ID` | `elicitation/complete` for this id |
//! | `fs_read PATH` | `fs/read_text_file`; says `fs_read: CONTENT` or `fs_read: error CODE` |
//! | `fs_write PATH TEXT` | `fs/write_text_file`; says `fs_write: ok` or `fs_write: error CODE` |
//! | `terminal CMD…` | `terminal/create` of `sh -c CMD`, `wait_for_exit`, `output`, `release`; says `terminal: exit=E signal=S truncated=T output=TEXT` or `terminal: METHOD error CODE` |
//! | `terminal_kill CMD…` | the same with `terminal/kill` before the wait |
//! | `terminals COUNT CMD…` | that many `terminal/create`, then a `terminal/release` of each; says `terminals: created N of COUNT` and `terminal: terminal/create error CODE` for each failed one |
//! | `ext_request NAME` | a request of that name, prefixed or not; says `ext_request NAME: RESULT` or `… error CODE` |
//! | `ext_notify NAME` | a notification of that name |
//! | `long_line BYTES` | one `available_commands_update` whose line has exactly that many bytes, at least 400 |
//! | `endless_line BYTES` | that many bytes without a line end |
//! | `titles COUNT BYTES` | that many tool calls, each with a title of that many bytes |
//! | `reads COUNT MS PATH` | that many `fs/read_text_file` at once; reads no answer for MS milliseconds; says `reads: N of COUNT` |
//! | `writes COUNT BYTES PATH` | that many `fs/write_text_file` at once, each of that many bytes; says `writes: N of COUNT` |
//! | `unknown_update` | a `session/update` of an unknown kind |
//! | `bad_json` | a line that is not JSON |
//! | `orphan_reply` | an error -32700 with id null |
//! | `late_update` | a `usage_update` after the answer to this prompt |
//! | `stderr TEXT` | a line on stderr |
//! | `sleep MS` | a pause; a cancel ends it |
//! | `wait_cancel` | waits for `session/cancel` |
//! | `no_reply` | never answers the prompt, even when cancelled; other requests are answered |
//! | `refuse` | ends the turn with `refusal` |
//! | `stop REASON` | ends the turn with this stop reason |
//! | `error CODE TEXT` | answers the prompt with this error |
//! | `error_data CODE JSON` | answers the prompt with the error `Internal error` and this data |
//! | `option_name KIND TEXT` | the option of that kind has this name in later permissions of the turn |
//! | `bad_utf8` | says `cut ` and three of the four bytes of an emoji |
//! | `raw JSON` | a `session/update` with this update, verbatim |
//! | `exit CODE` | exits at once |
//! | `crash` | kills itself with SIGKILL |
//! | `ignore_term` | SIGTERM has no effect from now on |
//! | `ignore_eof` | end of file on stdin has no effect from now on |
//! | `fork_child` | starts a child in the agent's process group and says `child PID` |
//! | `spawn_setsid` | starts a grandchild in its own process session, which ignores SIGTERM, and says `escaped PID` |
//!
//! The heading of a message of another session (`Message from the session …`) is no part of a script.
//!
//! `session/cancel` ends a running turn before its next directive (unless that is `no_reply`), or in a wait, with
//! `cancelled`.
//!
//! # Flags
//!
//! On the command line, or separated by blanks in `FAKE_AGENT_ARGS` (they come first):
//!
//! | flag | effect |
//! |---|---|
//! | `--ids int0\|string` | ids of its own requests: 0, 1, 2 … (default) or UUIDs |
//! | `--no-load`, `--no-resume`, `--no-list` | disables `session/load`, `session/resume` or `session/list` |
//! | `--load-replays N` | `session/load` replays N chunks `replay K` after the real history |
//! | `--auth-required` | sessions are refused with -32000 until `authenticate` with `fake-key` |
//! | `--delete` | `session/delete` is offered |
//! | `--directories` | offers `additionalDirectories` for `session/new` and similar requests |
//! | `--steer` | `_session/steering` is offered: injects a text into the running turn, or answers `promptRequired` without one |
//! | `--modes` | sessions have the modes `ask` and `auto`, and start in `auto` |
//! | `--options` | sessions have the config options `model` (`small`, `big`) and, for clients that support booleans, `web` |
//! | `--cancel-request` | withdraws an open permission request with `$/cancel_request` on a cancel |
//! | `--protocol-version N` | answers `initialize` with this version |
//! | `--slow-init MS` | delays the answer to `initialize` |
//! | `--usage N` | reports N tokens read and 7 written with the result of each turn |
//! | `--log FILE` | appends JSON lines, see below |
//! | `--state DIR` | sessions persist there |
//!
//! # The log
//!
//! One JSON object a line, each with `pid`, `event` and: `start` (`args`); `received` (`message`, or `raw` if
//! it is not JSON); `prompt` (`session`, `text`: once for each receipt); `steer` (the same, for text injected
//! into a turn); `turn_end` (`session`, `outcome`); `violation` (`what`: the client violated ACP); `trouble`
//! (`what`: something failed in the agent); `eof`. Every line is one `write` in append mode, so several
//! processes can share a file.
//!
//! With `--state` a session is one file: its directory, mode and history. The prompt is stored when it
//! arrives and the answer when its turn ends; so the partial answer of a killed agent is lost, as with real
//! ones.

mod agent;
mod dispatch;
mod flags;
mod log;
mod messages;
mod outlet;
mod process;
mod requests;
mod script;
mod session;
mod session_tools;
mod turn;

use flags::Flags;
use std::process::ExitCode;

/// The text of one chunk of `chunks`: its number, counted from 1, padded to `size` bytes. At least the number
/// and a blank.
#[must_use]
pub fn chunk_text(number: u64, size: usize) -> String {
    let mut text = format!("{number:06} ");
    while text.len() < size {
        text.push(if text.len() + 1 == size { ' ' } else { '.' });
    }
    text
}

/// The monotonic clock, in nanoseconds. All processes of a machine share it, so their timestamps can be
/// compared.
#[must_use]
pub fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let part = |number: i64| u64::try_from(number).unwrap_or(0);
    part(now.tv_sec) * 1_000_000_000 + part(now.tv_nsec)
}

/// Main function of the binary.
#[must_use]
pub fn main() -> ExitCode {
    match Flags::read(std::env::var("FAKE_AGENT_ARGS").ok(), std::env::args().skip(1)) {
        Ok(flags) => match agent::Agent::start(flags) {
            Ok(agent) => ExitCode::from(agent.run()),
            Err(e) => report_usage_error(&format!("cannot start: {e}")),
        },
        Err(what) => report_usage_error(&what),
    }
}

fn report_usage_error(what: &str) -> ExitCode {
    outlet::stderr_line(&format!("fake-agent: {what}"));
    ExitCode::from(64)
}

#[cfg(test)]
mod tests {
    use super::chunk_text;

    #[test]
    fn chunks_have_their_number_and_size() {
        assert_eq!(chunk_text(1, 0), "000001 ");
        assert_eq!(chunk_text(12, 10), "000012 .. ");
        assert_eq!(chunk_text(1_234_567, 16).len(), 16);
    }
}
