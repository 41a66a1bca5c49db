//! Execution of the calls of an agent, on the operations of the API. What it may not see is answered like what does not
//! exist.

use crate::api::session_tools::replies;
use crate::session::manager::spawnable_agents;
use crate::session::service::Service;
use acp_core::api::PageCursor;
use acp_core::event::EventRow;
use acp_core::failure::Failure;
use acp_core::request::{PromptRequest, SpawnRequest};
use acp_core::rows::{SessionQuery, SessionRow};
use acp_core::run::RunState;
use acp_core::session_tools::{
    AnswerText, CURRENT, HistoryArguments, ListArguments, OldestRow, SendArguments, SpawnArguments, ToolCall,
    bounded_rows, bounded_text, message_rows, prompt_text,
};
use acp_core::visibility::{Action, AgentRequester};
use acp_shared::clock::Clock;
use acp_shared::codes::Code;
use acp_shared::ids::{AgentName, IdempotencyKey, RunId, SessionKey};
use serde_json::{Map, Value, json};
use std::collections::VecDeque;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Number of rows of a page that is read from the database.
const PAGE_ROWS: u32 = 500;
/// Size of a page of the journal, in bytes.
const PAGE_BYTES: usize = 1024 * 1024;
/// Maximum number of sessions read by one call; `next_cursor` continues after them.
const LISTED_ROWS_MAX: usize = 5_000;
/// Maximum number of journal rows that one call reads.
const HISTORY_ROWS_MAX: u64 = 2_000;
/// Maximum size of the journal rows that one call keeps, in bytes.
const HISTORY_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Milliseconds of a minute.
const MINUTE_MS: u64 = 60_000;

/// Calls of one session's agent.
pub(super) struct AgentCalls<'a> {
    service: &'a dyn Service,
    clock: Clock,
    ending: CancellationToken,
    own: SessionRow,
    requester: AgentRequester,
}

impl<'a> AgentCalls<'a> {
    /// Creates the calls of the agent of the session `own`.
    pub(super) fn new(
        service: &'a dyn Service,
        clock: Clock,
        ending: CancellationToken,
        own: SessionRow,
        requester: AgentRequester,
    ) -> Self {
        Self { service, clock, ending, own, requester }
    }

    /// Returns the names of the agents that the requester may spawn.
    pub(super) fn spawn_agents(&self) -> Vec<String> {
        let agents = spawnable_agents(&self.service.config().config, &self.own.agent);
        agents.iter().map(AgentName::to_string).collect()
    }

    /// Executes a call. A repeated key has no second effect.
    ///
    /// # Errors
    /// Those of the service; `NO_SESSION` for what the requester may not see.
    pub(super) async fn execute(&self, call: &ToolCall, once: IdempotencyKey) -> Result<Value, Failure> {
        match call {
            ToolCall::List(arguments) => self.list(arguments).await,
            ToolCall::History(arguments) => self.history(arguments).await,
            ToolCall::Send(arguments) => self.send(arguments, once).await,
            ToolCall::Spawn(arguments) => self.spawn(arguments, once).await,
            ToolCall::Status(arguments) => self.status(&arguments.session).await,
        }
    }

    /// Returns a session for an action.
    async fn session(&self, named: &str, action: Action) -> Result<SessionRow, Failure> {
        let found = match SessionKey::parse(named) {
            Err(_) => None,
            Ok(key) => match self.service.session(&key).await {
                Ok(row) => Some(row),
                Err(failure) if failure.code == Code::NoSession => None,
                Err(failure) => return Err(failure),
            },
        };
        let visible = found.filter(|row| self.requester.sees(Some(row), action));
        visible.ok_or_else(|| Failure::of(Code::NoSession))
    }

    async fn list(&self, arguments: &ListArguments) -> Result<Value, Failure> {
        let text = arguments.cursor.as_deref().unwrap_or_default();
        let invalid =
            || Failure::new(Code::Usage, "The cursor is not valid: take next_cursor of the page before.");
        let mut before = PageCursor::decode(text).ok_or_else(invalid)?.0;
        let states = arguments.states.as_deref();
        let since_ms = arguments
            .active_minutes
            .map(|minutes| self.clock.wall_ms().saturating_sub(minutes.saturating_mul(MINUTE_MS)));
        let agent = match arguments.agent.as_deref().map(AgentName::parse).transpose() {
            Ok(agent) => agent,
            Err(_) => return Ok(json!({ "sessions": [] })),
        };
        let limit = usize::try_from(arguments.limit).unwrap_or(usize::MAX);
        let (mut rows, mut looked_at, mut has_more) = (Vec::new(), 0, true);
        // True once a row is found that belongs on the next page: others must not be told by a cursor.
        let mut is_full = false;
        let secrets = self.service.secrets(&self.own);
        while has_more && !is_full && looked_at < LISTED_ROWS_MAX {
            let query = SessionQuery {
                closed_too: replies::includes_closed(states),
                agent: agent.clone(),
                before: Some(before),
                limit: u64::from(PAGE_ROWS),
                ..SessionQuery::default()
            };
            let page = self.service.find_sessions(query).await?;
            has_more = page.len() as u64 >= u64::from(PAGE_ROWS);
            for (place, row) in page {
                looked_at += 1;
                let is_wanted = replies::is_in(states, row.state)
                    && since_ms.is_none_or(|since| row.last_activity_at_ms >= since)
                    && self.requester.sees(Some(&row), Action::List);
                if !is_wanted {
                    before = place;
                } else if rows.len() < limit {
                    before = place;
                    let mut row = replies::listed(&row, &self.own);
                    secrets.redact_value(&mut row);
                    rows.push(row);
                } else {
                    is_full = true;
                    break;
                }
            }
        }
        let mut result = Map::new();
        if has_more || is_full {
            result.insert("next_cursor".to_owned(), PageCursor(before).encode().into());
        }
        Ok(bounded_rows(result, "sessions", rows, OldestRow::Last))
    }

    async fn history(&self, arguments: &HistoryArguments) -> Result<Value, Failure> {
        let row = self.session(&arguments.session, Action::History).await?;
        let (rows, has_more) = self.journal(&row, arguments.after).await?;
        let last_read = rows.back().map_or(arguments.after.unwrap_or_default(), |row| row.session_seq);
        let mut messages = message_rows(&Vec::from(rows), arguments.include_tools);
        let limit = usize::try_from(arguments.limit).unwrap_or(usize::MAX);
        let mut next_after = last_read;
        let mut is_cut = has_more;
        if arguments.after.is_none() {
            let over = messages.len().saturating_sub(limit);
            drop(messages.drain(..over));
        } else if messages.len() > limit {
            messages.truncate(limit);
            next_after = messages.last().and_then(|last| last.get("seq")?.as_u64()).unwrap_or(next_after);
            is_cut = true;
        }
        let secrets = self.service.secrets(&row);
        for message in &mut messages {
            secrets.redact_value(message);
        }
        let mut result = Map::new();
        result.insert("session".to_owned(), json!(row.session_key));
        result.insert("next_after".to_owned(), next_after.into());
        result.insert("has_more".to_owned(), is_cut.into());
        Ok(bounded_rows(result, "messages", messages, OldestRow::First))
    }

    /// Reads the journal of a session: the rows after a number, or the newest ones. Tells if there are more after them.
    async fn journal(
        &self,
        row: &SessionRow,
        after: Option<u64>,
    ) -> Result<(VecDeque<EventRow>, bool), Failure> {
        let newest = row.last_session_seq.saturating_sub(HISTORY_ROWS_MAX).max(row.pruned_seq);
        let (mut at, mut bytes) = (after.unwrap_or(newest), 0);
        let (mut rows, mut read) = (VecDeque::new(), 0);
        loop {
            let page = self.service.events_after(&row.session_key, Some(at), PAGE_ROWS, PAGE_BYTES).await?;
            if page.rows.is_empty() {
                return Ok((rows, false));
            }
            for row in page.rows {
                at = row.session_seq;
                bytes += row.payload.len();
                read += 1;
                rows.push_back(row);
                while after.is_none() && bytes > HISTORY_BYTES_MAX && rows.len() > 1 {
                    bytes -= rows.pop_front().map_or(0, |row| row.payload.len());
                }
            }
            if read >= HISTORY_ROWS_MAX || (after.is_some() && bytes > HISTORY_BYTES_MAX) {
                return Ok((rows, after.is_some()));
            }
        }
    }

    async fn status(&self, named: &str) -> Result<Value, Failure> {
        let row =
            if named == CURRENT { self.own.clone() } else { self.session(named, Action::Status).await? };
        let runs = self.service.runs(&row.session_key, PAGE_ROWS).await?;
        let questions = self.service.pending_permissions(&row.session_key).await?.len();
        let mut status = replies::status(&row, &self.own, &runs, questions);
        self.service.secrets(&row).redact_value(&mut status);
        Ok(status)
    }

    async fn send(&self, arguments: &SendArguments, once: IdempotencyKey) -> Result<Value, Failure> {
        let row = self.session(&arguments.session, Action::Send).await?;
        let request = PromptRequest {
            text: self.prompt(&arguments.text),
            author: self.author(),
            sender: Some(self.own.session_key.clone()),
            ..PromptRequest::default()
        };
        let accepted = self.service.prompt(&row.session_key, request, once).await?;
        self.outcome(&row, accepted.run_id, accepted.after_seq, arguments.wait_s).await
    }

    async fn spawn(&self, arguments: &SpawnArguments, once: IdempotencyKey) -> Result<Value, Failure> {
        let agent = match arguments.agent.as_deref().map(AgentName::parse).transpose() {
            Ok(agent) => agent.unwrap_or_else(|| self.own.agent.clone()),
            Err(_) => return Err(Failure::of(Code::AgentNotAllowed)),
        };
        let request = SpawnRequest {
            agent: Some(agent),
            cwd: arguments.cwd.clone(),
            label: arguments.label.clone(),
            mode: arguments.mode,
            prompt: Some(self.prompt(&arguments.task)),
            author: self.author(),
            spawned_by: Some(self.own.session_key.clone()),
            by_agent: true,
            ..SpawnRequest::default()
        };
        let turn = self.service.runs(&self.own.session_key, PAGE_ROWS).await?;
        let turn = turn.iter().find(|run| run.state == RunState::Running).map(|run| run.run_id);
        let spawned = self.service.spawn(request, once).await?;
        let row = self.service.session(&spawned.session_key).await?;
        let run = spawned.run_id.ok_or_else(|| Failure::of(Code::Runtime))?;
        let mut outcome = self.outcome(&row, run, 0, arguments.wait_s).await?;
        // The end of the session reaches the requester once: here, or as a prompt.
        if let Some(result) = outcome.as_object_mut().filter(|result| result.contains_key("text"))
            && !self.is_told_here(run, turn).await?
        {
            result.remove("text");
            result.remove("dropped");
            result.insert("note".to_owned(), "A prompt of this session has or will have the reply.".into());
        }
        Ok(outcome)
    }

    /// True if the requester, which waits in `turn`, gets the end of a session that it spawned as a result.
    async fn is_told_here(&self, run: RunId, turn: Option<RunId>) -> Result<bool, Failure> {
        match turn {
            Some(turn) => self.service.take_completion(run, turn).await,
            None => Ok(false),
        }
    }

    fn prompt(&self, text: &str) -> String {
        prompt_text(self.own.session_key.as_str(), self.own.agent.as_str(), text)
    }

    fn author(&self) -> String {
        format!("agent {}", self.own.agent)
    }

    /// Waits for the end of a run, and returns its state, and the reply once it has ended.
    async fn outcome(&self, row: &SessionRow, run: RunId, after: u64, wait_s: u64) -> Result<Value, Failure> {
        let key = &row.session_key;
        let until = tokio::time::Instant::now() + Duration::from_secs(wait_s);
        let mut changes = self.service.watch(key);
        let (mut answer, mut at) = (AnswerText::new(run), after);
        let found = loop {
            let found = self.service.run(key, run).await?.ok_or_else(|| Failure::of(Code::Runtime))?;
            if wait_s == 0 || found.state.is_ended() {
                break found;
            }
            tokio::select! {
                changed = changes.changed() => if changed.is_err() { return Err(restarting()) },
                () = self.ending.cancelled() => return Err(restarting()),
                () = tokio::time::sleep_until(until) => break found,
            }
        };
        while wait_s > 0 && found.state.is_ended() && !answer.has_ended() {
            let page = match self.service.events_after(key, Some(at), PAGE_ROWS, PAGE_BYTES).await {
                // Retention was faster.
                Err(failure) if failure.code == Code::CursorPruned => break,
                page => page?,
            };
            let Some(last) = page.rows.last() else { break };
            at = last.session_seq;
            page.rows.iter().for_each(|row| answer.add(row));
        }
        let mut result = replies::run(key, &found);
        let secrets = self.service.secrets(row);
        secrets.redact_value(&mut result);
        let result = match result {
            Value::Object(result) => result,
            other => return Ok(other),
        };
        let mut text = answer.into_text();
        secrets.redact_text(&mut text);
        if wait_s == 0 || !found.state.is_ended() {
            return Ok(Value::Object(result));
        }
        Ok(bounded_text(result, "text", &text))
    }
}

fn restarting() -> Failure {
    let text = "The gateway ends while the call waits. The turn continues.";
    Failure::new(Code::GatewayUnavailable, text).origin("gateway").retryable()
}
