//! `sessions watch`: replays and follows the journal of a session. It never affects a turn.

use super::args::{Format, SessionName};
use super::{AcpxResult, Command};
use crate::api::client::EventSelection;
use crate::cli::inside;
use crate::cli::stop_signals::StopSignals;
use acp_core::acpx_contract::{AcpxCode, ContractError, JournalLine, TurnText, WatchCursor, WatchLines};
use acp_core::event::EventKind;

impl Command {
    pub(super) async fn watch(&mut self, name: SessionName, cursor: Option<String>) -> AcpxResult {
        let session = self.find_here(name.session).await?.session;
        let key = session.session_key.clone();
        let from = cursor.as_deref().map(|text| read_cursor(text, key.as_str())).transpose()?;
        let after = from.as_ref().map_or(0, |from| from.seq);
        let mut stop = StopSignals::listen()?;
        let selection =
            EventSelection { session: key.clone(), after, run: None, replay: false, follow: true };
        let mut events = self.client.journal(selection);
        let mut lines = WatchLines::new(key.as_str(), session.agent_session_id.as_deref(), from);
        let mut text = self.new_text();
        let mut shown = String::new();
        loop {
            let next = match events.ready() {
                Some(ready) => ready?,
                None => {
                    self.out.text(&shown)?;
                    shown.clear();
                    self.out.flush()?;
                    tokio::select! {
                        line = events.next() => line?,
                        () = stop.recv() => return Ok(()),
                    }
                }
            };
            let Some(line) = next else { break };
            let row = JournalLine::parse(&line).map_err(|error| inside("cannot parse a row", &error))?;
            if self.format == Format::Json {
                lines.push(&row, &mut shown);
                continue;
            }
            let is_end = matches!(row.kind(), Some(EventKind::Done | EventKind::Error));
            let run = row.run_id.as_deref().unwrap_or_default();
            let cursor = WatchCursor { session: key.to_string(), seq: row.session_seq, part: 0 }.encode();
            if row.kind() == Some(EventKind::Prompt) {
                text = self.new_text();
                self.lifecycle(&format!("\n[{run}] started cursor={cursor}\n"), &mut shown);
            }
            text.push(&row, &mut shown);
            if is_end {
                text.flush(&mut shown);
                self.lifecycle(&format!("\n[{run}] ended cursor={cursor}\n"), &mut shown);
            }
        }
        self.out.text(&shown)?;
        Ok(self.out.flush()?)
    }

    fn new_text(&self) -> TurnText {
        if self.format == Format::Quiet { TurnText::quiet() } else { TurnText::full() }
    }

    fn lifecycle(&self, line: &str, shown: &mut String) {
        if self.format == Format::Text {
            shown.push_str(line);
        }
    }
}

/// Reads a cursor, which must be one of the session.
fn read_cursor(text: &str, key: &str) -> Result<WatchCursor, ContractError> {
    let invalid = |why: &str| ContractError::new(AcpxCode::Usage, format!("--cursor {text:?}: {why}"));
    let cursor = WatchCursor::decode(text).ok_or_else(|| invalid("not a cursor of `sessions watch`"))?;
    match cursor.session == key {
        true => Ok(cursor),
        false => Err(invalid(&format!("a cursor of {}, but the session is {key}", cursor.session))),
    }
}
