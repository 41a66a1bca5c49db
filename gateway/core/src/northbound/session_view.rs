//! One session as one connection sees it: a cursor over the journal that turns rows into frames. The answer to a prompt is
//! a frame of the row that ended its run, so it cannot overtake an update.

use super::frames::{Frame, FrameId, FrameQueue, QueueFull};
use super::message::result_frame;
use super::projection::{self, PromptText};
use super::voting::{Ballot, QuestionKind};
use crate::event::{EventKind, EventRow};
use crate::permission::{Voter, Voters};
use acp_shared::ids::{RunId, SessionKey};
use serde_json::json;
use std::collections::{HashMap, HashSet, VecDeque};

/// Maximum number of ended runs whose request is remembered, to repeat the answer.
const ENDED_MAX: usize = 256;

/// Maximum number of requests of a connection in a session that wait for the end of their runs.
const WAITING_MAX: usize = 256;

/// Capabilities of a client, as declared in `initialize`, that change its frames.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ClientTraits {
    /// True if it shows notices.
    pub has_notices: bool,
    /// True if it shows forms of elicitations.
    pub has_forms: bool,
    /// True if it opens pages of elicitations.
    pub has_pages: bool,
}

impl ClientTraits {
    /// True if the client can show a question.
    pub const fn shows(self, kind: QuestionKind) -> bool {
        match kind {
            QuestionKind::Permission => true,
            QuestionKind::Form => self.has_forms,
            QuestionKind::Page => self.has_pages,
        }
    }
}

/// Rights and capabilities of a connection that change its frames.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ViewerTraits {
    /// The principal, if it may answer questions.
    pub voter: Option<Voter>,
    /// Capabilities of the client.
    pub declared: ClientTraits,
}

/// Pending permission request or elicitation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PendingQuestion {
    /// Id of the permission request.
    pub permission_id: String,
    /// Run that waits for the answer.
    pub run_id: Option<RunId>,
    /// Kind of the question.
    pub kind: QuestionKind,
    /// Params of the agent, JSON text.
    pub params: String,
    /// Time at which the configured outcome applies, milliseconds since the Unix epoch.
    pub deadline_at_ms: Option<u64>,
    /// Who may answer.
    pub voters: Voters,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Phase {
    /// Rows are new.
    Live,
    /// Rows up to `until` are history; then the call with this raw id is answered.
    Loading { until: u64, call: String },
}

/// Result of [`SessionView::take_rows`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowsTaken {
    /// All rows were taken.
    All,
    /// A prompt of this connection is being accepted; its row cannot be told from others before.
    Blocked,
    /// The history of a load is complete; [`SessionView::finish_load`] comes next.
    Loaded,
}

/// Prompts of the connection in one session.
#[derive(Debug, Clone, Default)]
struct OwnRuns {
    /// Number of prompts that are being accepted.
    in_flight: u32,
    /// Raw ids of the requests of each run.
    requests: HashMap<RunId, Vec<String>>,
    /// Ended runs, the oldest first.
    ended: VecDeque<RunId>,
    answered: HashSet<RunId>,
}

/// Prompt whose run has not ended.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Turn {
    run_id: RunId,
    author: String,
}

/// See the module.
#[derive(Debug, Clone)]
pub struct SessionView {
    session: SessionKey,
    traits: ViewerTraits,
    cursor: u64,
    phase: Phase,
    own: OwnRuns,
    /// Unfinished turns that the rows have shown, in order of acceptance.
    turns: VecDeque<Turn>,
    ballot: Ballot,
    /// Questions of own runs that the client cannot show.
    skipped: Vec<String>,
    queue: FrameQueue,
}

impl SessionView {
    /// Creates the view of a session, live after row `cursor`.
    pub fn new(session: SessionKey, traits: ViewerTraits, cursor: u64) -> Self {
        Self {
            session,
            traits,
            cursor,
            phase: Phase::Live,
            own: OwnRuns::default(),
            turns: VecDeque::new(),
            ballot: Ballot::default(),
            skipped: Vec::new(),
            queue: FrameQueue::default(),
        }
    }

    /// Starts to load the rows after `after`; the call with this raw id is answered behind row `until`.
    pub fn load(&mut self, after: u64, until: u64, call: &str) {
        self.cursor = after;
        self.turns.clear();
        self.phase = Phase::Loading { until: until.max(after), call: call.to_owned() };
    }

    /// Number of the last row that was taken.
    pub const fn cursor(&self) -> u64 {
        self.cursor
    }

    /// True while a load is not answered.
    pub const fn is_loading(&self) -> bool {
        matches!(self.phase, Phase::Loading { .. })
    }

    /// Votes of the connection.
    pub const fn ballot(&mut self) -> &mut Ballot {
        &mut self.ballot
    }

    /// True if the connection can answer this question of this kind.
    pub fn has_vote(&self, permission_id: &str, kind: QuestionKind, voters: &Voters) -> bool {
        self.is_voter(voters) && self.traits.declared.shows(kind) && self.ballot.has_vote(permission_id)
    }

    fn is_voter(&self, voters: &Voters) -> bool {
        self.traits.voter.as_ref().is_some_and(|voter| voters.admit(voter))
    }

    /// Adds a frame that is no row.
    ///
    /// # Errors
    /// [`QueueFull`].
    pub fn push(&mut self, json: String) -> Result<(), QueueFull> {
        self.queue.push(self.cursor, json)
    }

    /// Size of the frames that wait, in bytes.
    pub const fn unsent_bytes(&self) -> usize {
        self.queue.unsent_bytes()
    }

    /// True if no more prompts of the connection can wait for their answers.
    pub fn is_full(&self) -> bool {
        let waiting = self.own.requests.iter().filter(|(run, _)| !self.own.answered.contains(run));
        waiting.map(|(_, ids)| ids.len()).sum::<usize>() >= WAITING_MAX
    }

    /// Notes that a prompt of the connection is being accepted.
    pub const fn begin_prompt(&mut self) {
        self.own.in_flight += 1;
    }

    /// Notes the run of an accepted prompt, or that none was accepted. Returns the number of the last row taken: rows
    /// up to it are not answers to this prompt.
    pub fn end_prompt(&mut self, accepted: Option<(RunId, &str)>) -> u64 {
        self.own.in_flight = self.own.in_flight.saturating_sub(1);
        if let Some((run_id, id)) = accepted {
            let ids = self.own.requests.entry(run_id).or_default();
            if !ids.iter().any(|have| have == id) {
                ids.push(id.to_owned());
            }
        }
        self.cursor
    }

    /// Notes that a run of the connection has ended and is answered.
    pub fn end_run(&mut self, run_id: RunId) {
        if !self.own.requests.contains_key(&run_id) || !self.own.answered.insert(run_id) {
            return;
        }
        self.own.ended.push_back(run_id);
        if self.own.ended.len() > ENDED_MAX
            && let Some(oldest) = self.own.ended.pop_front()
        {
            self.own.requests.remove(&oldest);
            self.own.answered.remove(&oldest);
        }
    }

    /// Returns the run that a request of the connection started, if its end was not seen.
    pub fn run_of(&self, id: &str) -> Option<RunId> {
        let mut runs = self.own.requests.iter();
        runs.find(|(run, ids)| !self.own.answered.contains(run) && ids.iter().any(|have| have == id))
            .map(|(run, _)| *run)
    }

    /// Returns the runs of the connection whose end was not seen, the newest first: to cancel them in this order starts none
    /// of them.
    pub fn own_runs(&self) -> Vec<RunId> {
        let runs = self.own.requests.keys().filter(|run| !self.own.answered.contains(*run));
        let mut runs: Vec<_> = runs.copied().collect();
        runs.sort_unstable_by(|one, other| other.cmp(one));
        runs
    }

    /// Returns the raw ids of the requests that wait for an answer: a load, and prompts.
    pub fn unanswered(&self) -> Vec<String> {
        let mut ids: Vec<_> =
            self.own_runs().iter().filter_map(|run| self.own.requests.get(run)).flatten().cloned().collect();
        if let Phase::Loading { call, .. } = &self.phase {
            ids.push(call.clone());
        }
        ids
    }

    /// Continues after a place that the client has received.
    pub fn rewind(&mut self, to: FrameId) {
        if to.seq <= self.cursor {
            self.cursor = to.seq;
            self.queue.rewind(to);
            self.ballot.rewind(to.seq);
        }
    }

    /// Takes rows behind the cursor, and appends the frames that the client gets.
    pub fn take_rows(&mut self, rows: &[EventRow], out: &mut Vec<Frame>) -> RowsTaken {
        let start = self.cursor;
        for row in rows.iter().filter(|row| row.session_seq > start) {
            if self.is_loaded() {
                return RowsTaken::Loaded;
            }
            if self.is_unclear(row) {
                return RowsTaken::Blocked;
            }
            self.queue.take(self.cursor, out);
            let frames = self.project(row);
            self.cursor = row.session_seq;
            let last = frames.len();
            out.extend((1..).zip(frames).map(|(n, json)| Frame {
                id: (n == last).then_some(FrameId { seq: row.session_seq, n: 0 }),
                json,
            }));
        }
        self.queue.take(self.cursor, out);
        if self.is_loaded() { RowsTaken::Loaded } else { RowsTaken::All }
    }

    fn is_loaded(&self) -> bool {
        matches!(self.phase, Phase::Loading { until, .. } if self.cursor >= until)
    }

    /// True for a prompt that may be the one which the connection is sending.
    fn is_unclear(&self, row: &EventRow) -> bool {
        let is_known = row.run_id.is_some_and(|run| self.own.requests.contains_key(&run));
        row.kind == EventKind::Prompt && self.own.in_flight > 0 && !is_known
    }

    /// Answers a load with this result, JSON text, and asks the pending questions again.
    ///
    /// # Errors
    /// [`QueueFull`].
    pub fn finish_load(&mut self, result: &str, pending: &[PendingQuestion]) -> Result<(), QueueFull> {
        let Phase::Loading { call, .. } = &self.phase else { return Ok(()) };
        let answer = result_frame(call, result);
        self.phase = Phase::Live;
        self.push(answer)?;
        self.ballot.ask_all_again();
        for question in pending {
            self.ask(question)?;
        }
        Ok(())
    }

    /// Sends a question, unless it was sent or the connection has no vote.
    ///
    /// # Errors
    /// [`QueueFull`].
    pub fn ask(&mut self, question: &PendingQuestion) -> Result<(), QueueFull> {
        match self.request_of(question, None) {
            Some(frame) => self.push(frame),
            None => Ok(()),
        }
    }

    /// Returns the questions of the connection's own runs that its client cannot show, once each.
    pub fn take_skipped(&mut self) -> Vec<String> {
        std::mem::take(&mut self.skipped)
    }

    /// Returns the request for a vote, unless it was sent, or the client has no vote or cannot show the question.
    fn request_of(&mut self, question: &PendingQuestion, seq: Option<u64>) -> Option<String> {
        if !self.is_voter(&question.voters) {
            return None;
        }
        if !self.traits.declared.shows(question.kind) {
            let is_own = question.run_id.is_some_and(|run| self.own.requests.contains_key(&run));
            if self.ballot.skip(&question.permission_id) && is_own {
                self.skipped.push(question.permission_id.clone());
            }
            return None;
        }
        let is_asked = self.ballot.ask(&question.permission_id, seq);
        is_asked.then(|| projection::permission_request(&self.session, question))
    }

    /// Returns the frames of a row.
    fn project(&mut self, row: &EventRow) -> Vec<String> {
        match row.kind {
            EventKind::Prompt => self.project_prompt(row),
            EventKind::AgentMessage
            | EventKind::AgentThought
            | EventKind::ToolCall
            | EventKind::ToolCallUpdate
            | EventKind::Plan
            | EventKind::Update => vec![projection::agent_update(row)],
            EventKind::Extension => projection::extension(row).into_iter().collect(),
            EventKind::Permission => self.project_permission(row),
            EventKind::PermissionSettled => self.project_settled(row),
            EventKind::Gap if self.traits.declared.has_notices => vec![projection::gap_notice(row)],
            EventKind::Status if self.traits.declared.has_pages => {
                projection::page_completion(row).into_iter().collect()
            }
            EventKind::Done | EventKind::Error => self.project_end(row),
            EventKind::Closed => vec![projection::closed_update(row)],
            EventKind::Gap | EventKind::Replay | EventKind::HostRequest | EventKind::Status => Vec::new(),
        }
    }

    fn project_prompt(&mut self, row: &EventRow) -> Vec<String> {
        let prompt = projection::prompt_of(row);
        let is_own = row.run_id.is_some_and(|run| self.own.requests.contains_key(&run));
        let mut frames = Vec::new();
        if !is_own || self.is_loading() {
            frames.push(projection::user_message(row, &prompt));
        }
        let PromptText { author, is_steer, .. } = prompt;
        let Some(run_id) = row.run_id.filter(|_| !is_steer) else { return frames };
        if !self.turns.iter().any(|turn| turn.run_id == run_id) {
            self.turns.push_back(Turn { run_id, author });
            if self.turns.len() == 1 {
                frames.extend(self.start_of_turn(row));
            }
        }
        frames
    }

    /// Returns the update about the turn that is next, for clients that did not send it.
    fn start_of_turn(&self, row: &EventRow) -> Option<String> {
        let turn = self.turns.front()?;
        if self.is_loading() || self.own.requests.contains_key(&turn.run_id) {
            return None;
        }
        let turn = json!({ "runId": turn.run_id, "state": "running", "author": turn.author });
        Some(projection::turn_update(row, &turn))
    }

    fn project_permission(&mut self, row: &EventRow) -> Vec<String> {
        if self.is_loading() {
            return Vec::new();
        }
        let question = projection::question_of(row);
        question.and_then(|question| self.request_of(&question, Some(row.session_seq))).into_iter().collect()
    }

    fn project_settled(&mut self, row: &EventRow) -> Vec<String> {
        let Some((id, frame)) = projection::settled_of(row) else { return Vec::new() };
        let withdrawal = self.ballot.settle(&id).then(|| projection::permission_withdrawal(&id));
        let told = (withdrawal.is_some() || !self.is_loading()).then_some(frame);
        withdrawal.into_iter().chain(told).collect()
    }

    fn project_end(&mut self, row: &EventRow) -> Vec<String> {
        let Some(run_id) = row.run_id else { return Vec::new() };
        let was_first = self.turns.front().is_some_and(|turn| turn.run_id == run_id);
        self.turns.retain(|turn| turn.run_id != run_id);
        let mut frames = match self.own.requests.get(&run_id) {
            Some(_) if self.is_loading() && self.own.answered.contains(&run_id) => Vec::new(),
            Some(ids) => ids.iter().map(|id| projection::prompt_answer(id, row)).collect(),
            None => vec![projection::turn_update(row, &projection::ended_turn(row))],
        };
        self.end_run(run_id);
        if was_first {
            frames.extend(self.start_of_turn(row));
        }
        frames
    }
}

#[cfg(test)]
#[path = "session_view_tests.rs"]
mod tests;
