//! List of the agent's stored sessions (`session/list`), page by page. No session is opened.

use super::open::is_session_id;
use super::state::HandshakePhase;
use super::{DirectMachine, control, lens};
use crate::backend::{BackendStep, SessionListing};
use crate::failure::Failure;
use crate::{jsonrpc, sanitize};
use acp_shared::codes::Code;
use serde_json::{Map, Value, json};

/// Maximum number of sessions in a list.
const SESSIONS_MAX: usize = 1_000;
/// Maximum number of pages; an agent may send empty ones.
const PAGES_MAX: u64 = 100;
/// Maximum length of a cursor, in bytes.
const CURSOR_BYTES_MAX: usize = 4_096;
/// Maximum length of a directory, in bytes.
const CWD_BYTES_MAX: usize = 4_096;
/// Maximum length of a title or a time, in characters.
const TEXT_CHARS_MAX: usize = 200;

impl DirectMachine {
    /// Asks for the first page, or for the one at a cursor.
    pub(super) fn list_sessions(&mut self, cursor: Option<&str>) -> Vec<BackendStep> {
        if !self.state.abilities.list {
            let text = "The agent cannot list its sessions: it does not offer session/list.";
            return self.fail(
                Failure::new(Code::SessionInitFailed, text).detail("LIST_NOT_SUPPORTED").origin("agent"),
            );
        }
        self.state.phase = HandshakePhase::Listing;
        let mut params = Map::new();
        if let Some(wanted) = &self.state.wanted
            && wanted.listing == Some(SessionListing::Directory)
        {
            params.insert("cwd".to_owned(), json!(wanted.cwd));
        }
        params.extend(cursor.map(|cursor| ("cursor".to_owned(), json!(cursor))));
        let (_, id) = self.state.numbered("list");
        vec![control(jsonrpc::request(&id, "session/list", &Value::from(params).to_string()))]
    }

    /// Handles a page: reports its sessions, and asks for the next one.
    pub(super) fn listed(&mut self, outcome: Result<&str, &str>) -> Vec<BackendStep> {
        let raw = match outcome {
            Ok(raw) => raw,
            Err(error) => return self.fail_opening(error, "It refused to list its sessions."),
        };
        let result = lens::value(raw);
        let cursor = result.get("nextCursor").and_then(Value::as_str).filter(|cursor| !cursor.is_empty());
        let room = SESSIONS_MAX - self.state.listed;
        let all = result.get("sessions").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        let sessions: Vec<Value> = all.iter().filter_map(session).take(room).collect();
        self.state.listed += sessions.len();
        let is_full = self.state.listed >= SESSIONS_MAX || self.state.counter >= PAGES_MAX;
        let next = cursor.filter(|cursor| !is_full && cursor.len() <= CURSOR_BYTES_MAX);
        let more = next.is_none() && (cursor.is_some() || all.len() > room);
        let text = format!("The agent has listed {} stored sessions.", self.state.listed);
        let page = [("sessions", Value::from(sessions)), ("more", more.into())];
        let mut steps = vec![self.status("agent_sessions", &text, &page)];
        match next {
            Some(cursor) => steps.extend(self.list_sessions(Some(cursor))),
            None => {
                self.state.phase = HandshakePhase::Failed;
                steps.push(BackendStep::Listed);
            }
        }
        steps
    }
}

/// Reads a session of a page; `None` without a usable id.
fn session(entry: &Value) -> Option<Value> {
    let text = |name: &str| entry.get(name).and_then(Value::as_str);
    let id = text("sessionId").filter(|id| is_session_id(id))?;
    let mut session = Map::new();
    session.insert("session_id".to_owned(), id.into());
    let cwd = text("cwd").filter(|cwd| cwd.len() <= CWD_BYTES_MAX);
    session.extend(cwd.map(|cwd| ("cwd".to_owned(), cwd.into())));
    for (name, from) in [("title", "title"), ("updated_at", "updatedAt")] {
        let text = text(from).map(|text| sanitize::line(text, TEXT_CHARS_MAX));
        session.extend(text.filter(|text| !text.is_empty()).map(|text| (name.to_owned(), text.into())));
    }
    Some(session.into())
}
