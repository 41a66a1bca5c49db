//! State of one client's connection: its streams, the sessions that it has opened, and the stream on which each frame
//! goes.

use super::frames::{Frame, FrameId, FrameQueue, QueueFull, UNSENT_BYTES_MAX};
use super::message::{ReplyError, error_frame};
use super::session_view::{ClientTraits, PendingQuestion, RowsTaken, SessionView, ViewerTraits};
use super::voting::QuestionKind;
use crate::event::EventRow;
use crate::permission::Voters;
use crate::principal::{Principal, Scope};
use acp_shared::ids::{RunId, SessionKey};
use std::collections::HashMap;

/// Maximum number of session streams for sessions that the connection has not opened.
pub const EARLY_STREAMS_MAX: usize = 16;

/// Maximum number of sessions that a connection has open.
pub const SESSIONS_MAX: usize = 1_024;

/// Stream of a connection.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum StreamScope {
    /// Everything, on one socket.
    All,
    /// Everything that has no open session stream.
    Connection,
    /// Traffic of this session.
    Session(SessionKey),
}

/// Open stream: the newest one of its scope. The number tells it from the ones that it replaced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamTicket {
    /// The stream.
    pub scope: StreamScope,
    number: u64,
}

/// State of a session while the client may still open a stream for it (decision 0123). Its frames go on the connection's
/// stream until then; a client reads both concurrently, so that only the frame that names the session is sent ahead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LateStream {
    /// No frame of the session was sent yet.
    Unnamed,
    /// The client knows the session; the other frames wait for its stream.
    Awaited,
}

/// Error for a session stream too many.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("too many session streams are open for sessions that are not loaded")]
pub struct TooManyStreams;

/// See the module.
#[derive(Debug, Clone)]
pub struct ConnectionState {
    principal: Principal,
    declared: ClientTraits,
    sessions: HashMap<SessionKey, SessionView>,
    queue: FrameQueue,
    streams: HashMap<StreamScope, u64>,
    last_stream: u64,
    /// Stream of each session that is being loaded.
    pins: HashMap<SessionKey, StreamScope>,
    /// Sessions whose own streams may still open.
    late: HashMap<SessionKey, LateStream>,
}

impl ConnectionState {
    /// Creates the state of a new connection.
    pub fn new(principal: Principal) -> Self {
        Self {
            principal,
            declared: ClientTraits::default(),
            sessions: HashMap::new(),
            queue: FrameQueue::default(),
            streams: HashMap::new(),
            last_stream: 0,
            pins: HashMap::new(),
            late: HashMap::new(),
        }
    }

    /// The client.
    pub const fn principal(&self) -> &Principal {
        &self.principal
    }

    fn traits(&self) -> ViewerTraits {
        let voter = self.principal.may(Scope::Approve).then(|| self.principal.voter());
        ViewerTraits { voter, declared: self.declared }
    }

    /// Opens a stream; it replaces an open one of the same scope.
    ///
    /// # Errors
    /// [`TooManyStreams`].
    pub fn open_stream(&mut self, scope: StreamScope) -> Result<StreamTicket, TooManyStreams> {
        if let StreamScope::Session(key) = &scope
            && !self.sessions.contains_key(key)
            && !self.streams.contains_key(&scope)
        {
            let is_early = |scope: &&StreamScope| matches!(scope, StreamScope::Session(key) if !self.sessions.contains_key(key));
            if self.streams.keys().filter(is_early).count() >= EARLY_STREAMS_MAX {
                return Err(TooManyStreams);
            }
        }
        if let StreamScope::Session(key) = &scope
            && self.late.remove(key).is_some()
            && let Some(pin) = self.pins.get_mut(key)
        {
            *pin = scope.clone();
        }
        self.last_stream += 1;
        self.streams.insert(scope.clone(), self.last_stream);
        Ok(StreamTicket { scope, number: self.last_stream })
    }

    /// True while no newer stream has replaced this one.
    pub fn is_open(&self, ticket: &StreamTicket) -> bool {
        self.streams.get(&ticket.scope) == Some(&ticket.number)
    }

    /// Closes a stream, unless a newer one has replaced it.
    pub fn close_stream(&mut self, ticket: &StreamTicket) {
        if self.is_open(ticket) {
            self.streams.remove(&ticket.scope);
            self.pins.retain(|_, scope| *scope != ticket.scope);
            if let StreamScope::Session(key) = &ticket.scope
                && self.has_session(key)
            {
                self.expect_stream(key, LateStream::Unnamed);
            }
        }
    }

    /// True if a stream is open.
    pub fn has_streams(&self) -> bool {
        !self.streams.is_empty()
    }

    /// Number of open streams.
    pub fn streams(&self) -> usize {
        self.streams.len()
    }

    /// Returns the stream of a session's frames.
    pub fn route(&self, session: &SessionKey) -> StreamScope {
        if let Some(pinned) = self.pins.get(session) {
            return pinned.clone();
        }
        let own = StreamScope::Session(session.clone());
        if self.streams.contains_key(&StreamScope::All) {
            StreamScope::All
        } else if self.streams.contains_key(&own) {
            own
        } else {
            StreamScope::Connection
        }
    }

    /// True if the connection has opened the session.
    pub fn has_session(&self, session: &SessionKey) -> bool {
        self.sessions.contains_key(session)
    }

    /// True if the connection can open no session more.
    pub fn is_full(&self) -> bool {
        self.sessions.len() >= SESSIONS_MAX
    }

    /// Returns the sessions that the connection has opened.
    pub fn sessions(&self) -> Vec<SessionKey> {
        self.sessions.keys().cloned().collect()
    }

    /// Returns the view of a session.
    pub fn session(&mut self, session: &SessionKey) -> Option<&mut SessionView> {
        self.sessions.get_mut(session)
    }

    /// Opens a session that the client has just created, before its first row. The frames behind the answer wait for the
    /// session's stream. A session that is open already does not change.
    pub fn attach(&mut self, session: &SessionKey) {
        if !self.has_session(session) {
            self.open_session(session, 0);
            self.expect_stream(session, LateStream::Awaited);
        }
    }

    fn open_session(&mut self, session: &SessionKey, cursor: u64) {
        let traits = self.traits();
        let view = || SessionView::new(session.clone(), traits, cursor);
        self.sessions.entry(session.clone()).or_insert_with(view);
    }

    fn expect_stream(&mut self, session: &SessionKey, late: LateStream) {
        if self.route(session) == StreamScope::Connection {
            self.late.insert(session.clone(), late);
        }
    }

    /// Returns the sessions whose frames wait until the client opens their streams, or
    /// [`stop_waiting`](Self::stop_waiting).
    pub fn waiting_sessions(&self) -> Vec<SessionKey> {
        self.late.keys().filter(|key| self.is_waiting(key)).cloned().collect()
    }

    /// True if the frames of the session wait for its stream.
    pub fn is_waiting(&self, session: &SessionKey) -> bool {
        self.late.get(session) == Some(&LateStream::Awaited)
    }

    /// Continues a session on the connection's stream: its own one was not opened in time.
    pub fn stop_waiting(&mut self, session: &SessionKey) {
        self.late.remove(session);
    }

    /// Opens a session and loads its rows after `after`, up to `until`, on the stream that is open now.
    pub fn load(&mut self, session: &SessionKey, after: u64, until: u64, call: &str) {
        self.pins.remove(session);
        let pin = self.route(session);
        self.open_session(session, after);
        self.expect_stream(session, LateStream::Unnamed);
        if let Some(view) = self.sessions.get_mut(session) {
            view.load(after, until, call);
        }
        if self.streams.contains_key(&pin) {
            self.pins.insert(session.clone(), pin);
        }
    }

    /// Closes a session on this connection. Frames that wait go to the connection's own stream, and requests that wait get
    /// an error there.
    ///
    /// # Errors
    /// [`QueueFull`].
    pub fn detach(&mut self, session: &SessionKey) -> Result<(), QueueFull> {
        self.pins.remove(session);
        self.late.remove(session);
        let Some(mut view) = self.sessions.remove(session) else { return Ok(()) };
        let mut left = Vec::new();
        view.take_rows(&[], &mut left);
        let error = ReplyError::closed_before_answer();
        let errors = view.unanswered().into_iter().map(|id| error_frame(&id, &error));
        left.into_iter().map(|frame| frame.json).chain(errors).try_for_each(|json| self.queue.push(0, json))
    }

    /// Adds a frame that is no row: behind the rows of this session if it is open, else to the connection.
    ///
    /// # Errors
    /// [`QueueFull`].
    pub fn push(&mut self, session: Option<&SessionKey>, json: String) -> Result<(), QueueFull> {
        if self.unsent_bytes() > UNSENT_BYTES_MAX {
            return Err(QueueFull);
        }
        match session.and_then(|key| self.sessions.get_mut(key)) {
            Some(view) => view.push(json),
            None => self.queue.push(0, json),
        }
    }

    /// Size of the frames of all queues that wait, in bytes.
    pub fn unsent_bytes(&self) -> usize {
        self.queue.unsent_bytes() + self.sessions.values().map(SessionView::unsent_bytes).sum::<usize>()
    }

    /// Continues a stream after a place that the client has received.
    pub fn rewind(&mut self, scope: &StreamScope, to: FrameId) {
        match scope {
            StreamScope::Session(key) => {
                if let Some(view) = self.sessions.get_mut(key) {
                    view.rewind(to);
                }
            }
            StreamScope::Connection | StreamScope::All => self.queue.rewind(FrameId { seq: 0, n: to.n }),
        }
    }

    /// Takes the frames of the connection itself, if they go on this stream.
    pub fn take_own(&mut self, scope: &StreamScope, out: &mut Vec<Frame>) {
        if !matches!(scope, StreamScope::Session(_)) {
            self.queue.take(u64::MAX, out);
        }
    }

    /// Returns the sessions whose frames go on this stream, with the number of the last row taken.
    pub fn routed_to(&self, scope: &StreamScope) -> Vec<(SessionKey, u64)> {
        let routed =
            self.sessions.iter().filter(|(key, _)| self.route(key) == *scope && !self.is_waiting(key));
        let mut routed: Vec<_> = routed.map(|(key, view)| (key.clone(), view.cursor())).collect();
        routed.sort();
        routed
    }

    /// Takes rows of a session for a stream. Nothing is taken if a newer stream has replaced this one or the session moved to
    /// another stream meanwhile, or if the rows do not follow its cursor `after`.
    pub fn take_rows(
        &mut self,
        ticket: &StreamTicket,
        session: &SessionKey,
        after: u64,
        rows: &[EventRow],
        out: &mut Vec<Frame>,
    ) -> RowsTaken {
        let scope = &ticket.scope;
        if !self.is_open(ticket) || self.route(session) != *scope || self.is_waiting(session) {
            return RowsTaken::All;
        }
        match self.sessions.get_mut(session).filter(|view| view.cursor() == after) {
            Some(view) => {
                let start = out.len();
                let taken = match self.late.get_mut(session) {
                    Some(late) => take_first(view, rows, late, out),
                    None => view.take_rows(rows, out),
                };
                if !matches!(scope, StreamScope::Session(_)) {
                    // Places of several sessions on one stream would be confused.
                    out.iter_mut().skip(start).for_each(|frame| frame.id = None);
                }
                taken
            }
            None => RowsTaken::All,
        }
    }

    /// Answers a load on this stream, see [`SessionView::finish_load`]. Does nothing if a newer stream has replaced this one or
    /// the session moved to another stream meanwhile, which then answers.
    ///
    /// # Errors
    /// [`QueueFull`].
    pub fn finish_load(
        &mut self,
        ticket: &StreamTicket,
        session: &SessionKey,
        result: &str,
        pending: &[PendingQuestion],
        out: &mut Vec<Frame>,
    ) -> Result<(), QueueFull> {
        let scope = &ticket.scope;
        if !self.is_open(ticket) || self.route(session) != *scope {
            return Ok(());
        }
        let Some(view) = self.sessions.get_mut(session) else { return Ok(()) };
        view.finish_load(result, pending)?;
        let start = out.len();
        view.take_rows(&[], out);
        if let Some(late) = self.late.get_mut(session) {
            *late = LateStream::Awaited;
        }
        self.pins.remove(session);
        if !matches!(scope, StreamScope::Session(_)) {
            out.iter_mut().skip(start).for_each(|frame| frame.id = None);
        }
        Ok(())
    }

    /// Returns the session and the run of a request whose run has not ended.
    pub fn run_of(&self, id: &str) -> Option<(SessionKey, RunId)> {
        self.sessions.iter().find_map(|(key, view)| Some((key.clone(), view.run_of(id)?)))
    }

    /// Returns the session of a permission request that was sent to the client and is not settled.
    pub fn session_of_question(&mut self, permission_id: &str) -> Option<SessionKey> {
        let mut sessions = self.sessions.iter_mut();
        sessions.find_map(|(key, view)| view.ballot().has_question(permission_id).then(|| key.clone()))
    }

    /// Notes what the client declared.
    pub const fn declare(&mut self, declared: ClientTraits) {
        self.declared = declared;
    }

    /// True if the connection can answer this question of this session now.
    pub fn has_vote(
        &self,
        session: &SessionKey,
        permission_id: &str,
        kind: QuestionKind,
        voters: &Voters,
    ) -> bool {
        self.has_streams()
            && self.sessions.get(session).is_some_and(|view| view.has_vote(permission_id, kind, voters))
    }
}

/// Takes rows up to the first one that the client gets.
fn take_first(
    view: &mut SessionView,
    rows: &[EventRow],
    late: &mut LateStream,
    out: &mut Vec<Frame>,
) -> RowsTaken {
    let start = out.len();
    let mut taken = view.take_rows(&[], out);
    for row in rows {
        if out.len() > start || taken != RowsTaken::All {
            break;
        }
        taken = view.take_rows(std::slice::from_ref(row), out);
    }
    if out.len() > start {
        *late = LateStream::Awaited;
    }
    taken
}

#[cfg(test)]
#[path = "connection_tests.rs"]
mod tests;
