//! Lines of a turn and of `sessions watch`, from the rows of the journal.

use super::cursor::WatchCursor;
use super::errors::{AcpxCode, ContractError, Envelope};
use super::messages::{JournalLine, RowMessage, TurnIds};
use crate::event::EventKind;
use crate::jsonrpc::{ObjectMembers, quoted, string};
use crate::time_format::format_utc;
use serde_json::{Value, json};
use std::collections::HashMap;

/// Permission requests of a turn.
#[derive(Debug, Clone, Default)]
pub(super) struct PermissionCounts {
    /// Ids of the options that grant, by permission id.
    granting: HashMap<String, Vec<String>>,
    granted: usize,
    refused: usize,
}

impl PermissionCounts {
    fn count(&mut self, kind: EventKind, row: &JournalLine<'_>) {
        let Some(id) = row.text("permission_id") else { return };
        if kind == EventKind::Permission {
            let params: Value =
                row.member("params").and_then(|raw| serde_json::from_str(raw).ok()).unwrap_or_default();
            let options = params.get("options").and_then(Value::as_array).into_iter().flatten();
            let granting = options
                .filter(|option| option["kind"].as_str().is_some_and(|kind| kind.starts_with("allow")));
            let granting =
                granting.filter_map(|option| option["optionId"].as_str()).map(str::to_owned).collect();
            self.granting.insert(id.into_owned(), granting);
        } else if let Some(granting) = self.granting.remove(id.as_ref()) {
            let chosen = row.text("option_id");
            match chosen.is_some_and(|chosen| granting.iter().any(|option| *option == chosen)) {
                true => self.granted += 1,
                false => self.refused += 1,
            }
        }
    }

    /// True if requests were refused, and none was granted.
    const fn is_refused(&self) -> bool {
        self.refused > 0 && self.granted == 0
    }
}

/// Lines of one turn: `accepted`, what the agent sends, then `done` and `result`, or `error`.
#[derive(Debug, Clone)]
pub struct TurnLines {
    ids: TurnIds,
    request: String,
    seq: u64,
    permissions: PermissionCounts,
    /// Error that ends the turn in place of the result.
    failure: Option<ContractError>,
    /// True if refused permissions end the turn with an error.
    fails_if_refused: bool,
    exit: Option<u8>,
}

impl TurnLines {
    /// Creates the lines of a run. `agent_session` is the agent's id of the session, if known.
    pub fn new(session: &str, agent_session: Option<&str>, request: &str) -> Self {
        let agent_session = agent_session.unwrap_or(session).to_owned();
        Self {
            ids: TurnIds { session: session.to_owned(), agent_session },
            request: request.to_owned(),
            seq: 0,
            permissions: PermissionCounts::default(),
            failure: None,
            fails_if_refused: false,
            exit: None,
        }
    }

    /// Ends the turn with `PERMISSION_DENIED` if permissions were refused and none was granted.
    pub fn failing_if_refused(mut self) -> Self {
        self.fails_if_refused = true;
        self
    }

    /// Ends the turn with this error instead of its result, e.g. after a time limit. The first one counts.
    pub fn fail_with(&mut self, error: ContractError) {
        self.failure.get_or_insert(error);
    }

    /// Returns the exit code, once the turn has ended.
    pub const fn exit(&self) -> Option<u8> {
        self.exit
    }

    /// Returns the error in place of the result, once the turn has ended with one.
    pub const fn error(&self) -> Option<&ContractError> {
        match self.exit {
            None => None,
            Some(_) => self.failure.as_ref(),
        }
    }

    /// Takes a row of the run, and appends its lines, each with a line break. Rows of other runs, and rows after the end, have
    /// none.
    pub fn push(&mut self, row: &JournalLine<'_>, out: &mut String) {
        if row.run_id.as_deref() != Some(self.request.as_str()) || self.exit.is_some() {
            return;
        }
        let Some(kind) = row.kind() else { return };
        if matches!(kind, EventKind::Permission | EventKind::PermissionSettled) {
            self.permissions.count(kind, row);
        }
        match kind {
            EventKind::Done => self.end(row, out),
            EventKind::Error => {
                let error: Value = serde_json::from_str(row.payload()).unwrap_or_default();
                self.failure.get_or_insert_with(|| ContractError::read(&error));
                self.fail(row.created_at_ms, out);
            }
            _ => {
                let message = self.ids.message(row);
                if kind == EventKind::Prompt {
                    let rpc = format!(
                        r#""method":"acpx/accepted","params":{{"sessionId":{}}}"#,
                        quoted(&self.ids.agent_session)
                    );
                    self.line(&RowMessage { kind: "accepted", rpc, beside: String::new() }, out);
                }
                if let Some(message) = message {
                    self.line(&message, out);
                }
            }
        }
    }

    /// Ends the turn with an error of the command itself, unless it has ended.
    pub fn abort(&mut self, error: ContractError, now_ms: u64, out: &mut String) {
        if self.exit.is_none() {
            self.failure = Some(error);
            self.fail(now_ms, out);
        }
    }

    fn end(&mut self, row: &JournalLine<'_>, out: &mut String) {
        if self.failure.is_none() && self.fails_if_refused && self.permissions.is_refused() {
            let text = "Permission requests of the agent were denied, and none was granted.";
            self.failure = Some(ContractError::new(AcpxCode::PermissionDenied, text).origin("runtime"));
        }
        if self.failure.is_some() {
            self.fail(row.created_at_ms, out);
            return;
        }
        let stop = stop_reason(row);
        let params = format!(r#"{{"sessionId":{},"stopReason":{stop}}}"#, quoted(&self.ids.agent_session));
        let beside = format!(r#","stopReason":{stop}"#);
        let rpc = format!(r#""method":"acpx/done","params":{params}"#);
        self.line(&RowMessage { kind: "done", rpc, beside: beside.clone() }, out);
        let rpc = format!(r#""id":{},"result":{}"#, quoted(&self.request), result(row));
        self.line(&RowMessage { kind: "result", rpc, beside }, out);
        self.exit = Some(0);
    }

    fn fail(&mut self, at_ms: u64, out: &mut String) {
        let Some(error) = &self.failure else { return };
        self.seq += 1;
        let envelope = Envelope::of_turn(&self.ids.session, &self.request, self.seq);
        out.push_str(&one_line(error.line(&envelope, &format_utc(at_ms))));
        self.exit = Some(error.code.exit());
    }

    fn line(&mut self, message: &RowMessage, out: &mut String) {
        self.seq += 1;
        let mut line = format!(r#"{{"jsonrpc":"2.0",{}"#, message.rpc);
        Envelope::of_turn(&self.ids.session, &self.request, self.seq).write(&mut line);
        line.push_str(&format!(r#","type":"{}"{}}}"#, message.kind, message.beside));
        out.push_str(&one_line(line));
    }
}

/// Returns the stop reason of a `done` row, JSON text.
fn stop_reason<'a>(row: &JournalLine<'a>) -> &'a str {
    row.member("stop_reason").filter(|raw| raw.starts_with('"')).unwrap_or("\"end_turn\"")
}

/// Returns the result of a `done` row: the agent's own, or one with the stop reason.
fn result(row: &JournalLine<'_>) -> String {
    match row.member("result").filter(|raw| raw.starts_with('{')) {
        Some(result) => result.to_owned(),
        None => format!(r#"{{"stopReason":{}}}"#, stop_reason(row)),
    }
}

/// Ends a line. Valid JSON has raw line breaks only between tokens.
fn one_line(mut line: String) -> String {
    if line.contains(['\n', '\r']) {
        line = line.replace(['\n', '\r'], " ");
    }
    line.push('\n');
    line
}

/// Lines of `sessions watch`.
#[derive(Debug, Clone)]
pub struct WatchLines {
    ids: TurnIds,
    /// Position after which the first line follows.
    from: Option<WatchCursor>,
}

impl WatchLines {
    /// Creates the lines of a session after a cursor.
    pub fn new(session: &str, agent_session: Option<&str>, from: Option<WatchCursor>) -> Self {
        let agent_session = agent_session.unwrap_or(session).to_owned();
        Self { ids: TurnIds { session: session.to_owned(), agent_session }, from }
    }

    /// Appends the lines of a row. Rows without a run have none.
    pub fn push(&mut self, row: &JournalLine<'_>, out: &mut String) {
        let from = self.from.take();
        let told = from.filter(|from| from.seq + 1 == row.session_seq).map_or(0, |from| from.part);
        let bodies = self.bodies(row);
        let count = bodies.len();
        let run = quoted(row.run_id.as_deref().unwrap_or_default());
        for (number, (kind, body)) in bodies.into_iter().enumerate().skip(told) {
            let session = self.ids.session.clone();
            let cursor = match number + 1 == count {
                true => WatchCursor { session, seq: row.session_seq, part: 0 },
                false => WatchCursor { session, seq: row.session_seq.saturating_sub(1), part: number + 1 },
            };
            let head = format!(r#"{{"cursor":"{}","type":"{kind}","requestId":{run}"#, cursor.encode());
            out.push_str(&one_line(format!("{head}{body}}}")));
        }
    }

    /// Returns the lines of a row: the type, and the members after the head.
    fn bodies(&self, row: &JournalLine<'_>) -> Vec<(&'static str, String)> {
        let (Some(kind), Some(run)) = (row.kind(), row.run_id.as_deref()) else { return Vec::new() };
        let message = |rpc: &str| ("message", format!(r#","message":{{"jsonrpc":"2.0",{rpc}}}"#));
        let turn_result = |result: Value| ("turn_result", format!(r#","result":{result}"#));
        match kind {
            EventKind::Done => {
                let stop = string(stop_reason(row)).unwrap_or_default();
                let status = if stop == "cancelled" { "cancelled" } else { "completed" };
                let rpc = format!(r#""id":{},"result":{}"#, quoted(run), result(row));
                vec![message(&rpc), turn_result(json!({ "status": status, "stopReason": stop }))]
            }
            EventKind::Error => {
                let error: Value = serde_json::from_str(row.payload()).unwrap_or_default();
                vec![turn_result(ContractError::read(&error).watch_result())]
            }
            _ => {
                let told = self.ids.message(row).map(|told| message(&told.rpc));
                let start = (kind == EventKind::Prompt).then(|| ("turn_started", String::new()));
                start.into_iter().chain(told).collect()
            }
        }
    }
}

/// Returns the text of a chunk; `None` for another row.
pub(super) fn chunk_text(row: &JournalLine<'_>) -> Option<String> {
    let block = ObjectMembers::parse(row.member("content")?).ok()?;
    block.string("type").filter(|kind| kind == "text")?;
    block.string("text").map(std::borrow::Cow::into_owned)
}
