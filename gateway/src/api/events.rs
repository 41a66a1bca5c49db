//! Journal rows of one session as pages, and of one or all sessions as a stream of server-sent events. A stream is a cursor over the journal:
//! wake-ups are hints, rows are read in bounded batches, and no row is read before the socket can take it.

use crate::api::Api;
use crate::api::access::{VisibleSessions, visible_session};
use crate::api::cursor::{self, Cursor};
use crate::api::extract::{ApiError, Caller, Json, SessionKeyPath};
use acp_core::api::{EventsPage, NamedPromptView, STREAM_END, STREAM_START};
use acp_core::event::{EventKind, EventRow};
use acp_core::event_json::{wire_type, write_event, write_journal_row};
use acp_core::failure::Failure;
use acp_core::session::SessionState;
use acp_core::visibility::Action;
use acp_shared::codes::Code;
use acp_shared::ids::{RunId, SessionKey};
use acp_store::events::{self, EventBounds, JournalRows};
use axum::body::Bytes;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::HeaderMap;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use futures_util::{Stream, StreamExt, stream};
use serde::Deserialize;
use serde_json::value::RawValue;
use std::fmt::Write as _;
use std::future::ready;
use std::io;
use std::time::Duration;
use tokio::sync::watch;
use utoipa::IntoParams;

/// Maximum number of rows in a batch.
const BATCH_ROWS: u32 = 512;
/// Approximate maximum payload of a batch, in bytes.
const BATCH_BYTES: usize = 256 * 1024;
/// Maximum number of rows in a page.
const PAGE_ROWS_MAX: u32 = 1_000;
/// Approximate maximum payload of a page, in bytes.
const PAGE_BYTES: usize = 4 * 1024 * 1024;

/// Query of `GET /v1/sessions/{key}/events`.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct EventsQuery {
    /// Returns only rows after this number.
    #[param(value_type = Option<u64>)]
    after: Option<Cursor>,
    /// Maximum number of rows in a page.
    limit: Option<u32>,
    /// Returns only rows of this run.
    #[param(value_type = Option<String>)]
    run: Option<RunId>,
    /// Includes history replayed by the agent while loading the conversation.
    replay: bool,
    /// Returns rows as they are in the journal: kind and payload as stored, with what the agent sent.
    raw: bool,
    /// Streams only: ends the stream after the run's `done` or `error`.
    until_done: bool,
    /// Streams only: `false` ends the stream after the current rows; default `true`.
    follow: Option<bool>,
}

/// `GET /v1/sessions/{key}/events`: a page, or a stream if the client accepts `text/event-stream`.
pub(crate) async fn events(
    State(api): State<Api>,
    SessionKeyPath(key): SessionKeyPath,
    headers: HeaderMap,
    query: Result<Query<EventsQuery>, QueryRejection>,
) -> Result<Response, ApiError> {
    let Query(query) = query.map_err(|error| ApiError::usage(error.body_text()))?;
    let pruned = api.service.session(&key).await?.pruned_seq;
    if !cursor::accepts_stream(&headers) {
        return Ok(Json(page(&api, &key, &query).await?).into_response());
    }
    let cursor = cursor::start(cursor::resume(&headers, query.after)?, pruned)?;
    let keep_alive = Duration::from_millis(api.limits.keep_alive_ms);
    let reader = JournalReader {
        wake: api.service.watch(&key),
        filter: EventFilter { run: query.run, replay: query.replay, ..EventFilter::default() },
        write: row_writer(query.raw),
        until_done: query.until_done,
        follow: query.follow.unwrap_or(true),
        cursor,
        keep_alive,
        state: StreamPhase::Reading,
        api,
        source: JournalSource::Session(key),
    };
    let mut response = cursor::event_stream(reader.pieces());
    cursor::tell_pruned(&mut response, pruned);
    Ok(response)
}

/// Returns the stream of a run from its acceptance to its end, as journal rows. The first event tells of the acceptance; so
/// does the response if there is no place for a stream.
///
/// # Errors
/// `RUNTIME` if the view cannot be written.
pub(super) fn turn(api: Api, key: SessionKey, view: &NamedPromptView) -> Result<Response, ApiError> {
    let data = serde_json::to_string(view).map_err(|error| {
        tracing::error!(%error, session_key = %key, "accepted prompt cannot be written as JSON");
        Failure::of(Code::Runtime).origin("gateway")
    })?;
    let reader = JournalReader {
        wake: api.service.watch(&key),
        filter: EventFilter { run: Some(view.accepted.run_id), ..EventFilter::default() },
        write: write_journal_row,
        until_done: true,
        follow: true,
        cursor: view.accepted.after_seq,
        keep_alive: Duration::from_millis(api.limits.keep_alive_ms),
        state: StreamPhase::Reading,
        api,
        source: JournalSource::Session(key),
    };
    let first = Bytes::from(format!("event: {STREAM_START}\ndata: {data}\n\n"));
    let mut response = cursor::event_stream(stream::once(ready(Ok(first))).chain(reader.pieces()));
    response.extensions_mut().insert(WithoutStream(data));
    Ok(response)
}

/// JSON of the response in place of a stream for which there is no place: its request had an effect.
#[derive(Debug, Clone)]
pub(super) struct WithoutStream(String);

impl IntoResponse for WithoutStream {
    fn into_response(self) -> Response {
        ([(CONTENT_TYPE, "application/json")], self.0).into_response()
    }
}

/// Query of `GET /v1/stream`.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct StreamQuery {
    /// Returns only events after this id; absent begins with the next one.
    #[param(value_type = Option<u64>)]
    after: Option<Cursor>,
    /// Returns only events of this session.
    #[param(value_type = Option<String>)]
    session: Option<SessionKey>,
    /// Returns only events of these types, separated by commas.
    kind: Option<String>,
    /// Includes history replayed by agents while loading a conversation.
    replay: bool,
    /// `false` ends the stream after the current events; default `true`.
    follow: Option<bool>,
}

/// `GET /v1/stream`: events of all sessions in the order of their commits. The id of an event is its number in the
/// journal of the gateway, and the position for `Last-Event-ID`.
pub(crate) async fn stream_all(
    State(api): State<Api>,
    Caller(caller): Caller,
    headers: HeaderMap,
    query: Result<Query<StreamQuery>, QueryRejection>,
) -> Result<Response, ApiError> {
    let Query(query) = query.map_err(|error| ApiError::usage(error.body_text()))?;
    if let Some(key) = &query.session {
        visible_session(api.service.as_ref(), &caller, key, Action::History).await?;
    }
    let kinds = query.kind.as_deref().map(parse_kinds).transpose()?;
    // Subscribed before the position is read, so that no wake-up is missed.
    let wake = api.service.watch_all();
    let EventBounds { pruned, last } = api.service.event_bounds().await?;
    let start = cursor::resume_optional(&headers, query.after)?.unwrap_or(last);
    cursor::start(start, pruned)?;
    let reader = JournalReader {
        wake,
        filter: EventFilter { run: None, replay: query.replay, session: query.session, kinds },
        write: write_event,
        until_done: false,
        follow: query.follow.unwrap_or(true),
        cursor: start,
        keep_alive: Duration::from_millis(api.limits.keep_alive_ms),
        state: StreamPhase::Reading,
        source: JournalSource::All(VisibleSessions::new(&api.service, caller, Action::History), pruned),
        api,
    };
    let data = if start < pruned { format!("{{\"pruned_event_id\":{pruned}}}") } else { "{}".to_owned() };
    let first = Bytes::from(format!("id: {start}\nevent: {STREAM_START}\ndata: {data}\n\n"));
    Ok(cursor::event_stream(stream::once(ready(Ok(first))).chain(reader.pieces())))
}

/// Parses a list of types of events, as in event lines or in the journal.
fn parse_kinds(list: &str) -> Result<Vec<EventKind>, ApiError> {
    let mut kinds = Vec::new();
    for name in list.split(',').map(str::trim) {
        let before = kinds.len();
        kinds.extend(
            EventKind::ALL.into_iter().filter(|kind| [kind.as_str(), wire_type(*kind)].contains(&name)),
        );
        if kinds.len() == before {
            return Err(ApiError::usage(format!(
                "unknown type of events {name:?}; GET /v1/capabilities lists all"
            )));
        }
    }
    Ok(kinds)
}

#[derive(Debug, Clone, Default)]
struct EventFilter {
    run: Option<RunId>,
    replay: bool,
    session: Option<SessionKey>,
    kinds: Option<Vec<EventKind>>,
}

impl EventFilter {
    fn matches(&self, row: &EventRow) -> bool {
        (self.replay || row.kind != EventKind::Replay)
            && (self.run.is_none() || row.run_id == self.run)
            && self.session.as_ref().is_none_or(|key| *key == row.session_key)
            && self.kinds.as_ref().is_none_or(|kinds| kinds.contains(&row.kind))
    }
}

/// Returns the function that writes the line of a row.
fn row_writer(is_raw: bool) -> fn(&EventRow, &mut String) {
    if is_raw { write_journal_row } else { write_event }
}

async fn page(api: &Api, key: &SessionKey, query: &EventsQuery) -> Result<EventsPage, ApiError> {
    let limit = query.limit.unwrap_or(PAGE_ROWS_MAX).clamp(1, PAGE_ROWS_MAX);
    let after = query.after.unwrap_or_default().0;
    let filter = EventFilter { run: query.run, replay: query.replay, ..EventFilter::default() };
    let mut page = EventsPage { events: Vec::new(), next_after: after, more: true, pruned_seq: 0 };
    let mut bytes = 0;
    let room = |page: &EventsPage| limit.saturating_sub(u32::try_from(page.events.len()).unwrap_or(u32::MAX));
    while room(&page) > 0 && bytes < PAGE_BYTES {
        let position = events::position(page.next_after);
        let JournalRows { pruned_seq, rows } =
            api.service.events_after(key, position, room(&page), PAGE_BYTES).await?;
        page.pruned_seq = pruned_seq;
        if rows.is_empty() {
            page.more = false;
            break;
        }
        for row in rows {
            page.next_after = row.session_seq;
            if filter.matches(&row) {
                let mut line = String::with_capacity(row.payload.len() + 256);
                row_writer(query.raw)(&row, &mut line);
                bytes += line.len();
                let line = RawValue::from_string(line).map_err(|error| {
                    tracing::error!(
                        %error,
                        session_key = %key,
                        session_seq = row.session_seq,
                        "journal event is not valid JSON"
                    );
                    Failure::of(Code::Runtime).origin("gateway")
                })?;
                page.events.push(line);
            }
        }
    }
    Ok(page)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StreamPhase {
    /// More rows may follow.
    Reading,
    /// The last batch was sent.
    Ended,
}

/// Rows that a stream reads, and the numbers that are its cursor.
enum JournalSource {
    /// Rows of one session, by `session_seq`. Ends with the session.
    Session(SessionKey),
    /// Rows of all sessions that the client may see, by event id, and the highest id of a pruned row at the start.
    All(VisibleSessions, u64),
}

/// Cursor over the journal.
struct JournalReader {
    api: Api,
    source: JournalSource,
    wake: watch::Receiver<u64>,
    filter: EventFilter,
    write: fn(&EventRow, &mut String),
    until_done: bool,
    follow: bool,
    cursor: u64,
    keep_alive: Duration,
    state: StreamPhase,
}

impl JournalReader {
    /// Returns the chunks of the stream.
    fn pieces(self) -> impl Stream<Item = io::Result<Bytes>> + Send + 'static {
        stream::unfold(self, |mut reader| async move {
            let batch = reader.next().await?;
            Some((batch, reader))
        })
    }

    /// Returns the rows after the cursor, each with its number.
    async fn rows(&self) -> Result<Vec<(u64, EventRow)>, Failure> {
        let service = &self.api.service;
        match &self.source {
            JournalSource::Session(key) => {
                let found = service.events_after(key, Some(self.cursor), BATCH_ROWS, BATCH_BYTES).await?;
                Ok(found.rows.into_iter().map(|row| (row.session_seq, row)).collect())
            }
            JournalSource::All(_, pruned) => {
                service.all_events_after(self.cursor, *pruned, BATCH_ROWS, BATCH_BYTES).await
            }
        }
    }

    /// Returns the next chunk of the stream; `None` at its end.
    async fn next(&mut self) -> Option<io::Result<Bytes>> {
        if self.state == StreamPhase::Ended {
            return None;
        }
        match self.step().await {
            Ok(batch) => batch.map(Ok),
            Err(failure) => {
                // Breaks the connection, so that the client reconnects instead of taking this for the end.
                let session_key = match &self.source {
                    JournalSource::Session(key) => key.as_str(),
                    JournalSource::All(..) => "all",
                };
                tracing::warn!(session_key, %failure, "event stream failed");
                self.state = StreamPhase::Ended;
                Some(Err(io::Error::other(failure)))
            }
        }
    }

    async fn step(&mut self) -> Result<Option<Bytes>, Failure> {
        let mut last_look = false;
        loop {
            self.wake.borrow_and_update();
            let rows = self.rows().await?;
            let mut out = String::new();
            let found = !rows.is_empty();
            for (number, row) in rows {
                let is_visible = match &mut self.source {
                    JournalSource::Session(_) => true,
                    JournalSource::All(visible, _) => visible.sees(&row.session_key).await?,
                };
                self.take(number, &row, is_visible, &mut out);
                if self.state == StreamPhase::Ended {
                    break;
                }
            }
            if !out.is_empty() {
                return Ok(Some(Bytes::from(out)));
            }
            if found {
                continue;
            }
            if last_look {
                self.end(&mut out);
                return Ok(Some(Bytes::from(out)));
            }
            if self.is_exhausted().await? {
                // Read rows that were committed between the read above and this check.
                last_look = true;
                continue;
            }
            match self.wait().await {
                StreamWake::Rows => {}
                StreamWake::Silence => return Ok(Some(self.keep_alive())),
                StreamWake::GatewayEnds => return Ok(None),
            }
        }
    }

    fn take(&mut self, number: u64, row: &EventRow, is_visible: bool, out: &mut String) {
        self.cursor = number;
        if is_visible && self.filter.matches(row) {
            // Writing into a String cannot fail.
            let _ = write!(out, "id: {number}\ndata: ");
            (self.write)(row, out);
            out.push_str("\n\n");
        }
        let of_run = self.filter.run.is_some() && row.run_id == self.filter.run;
        let run_ended = of_run && matches!(row.kind, EventKind::Done | EventKind::Error);
        let session_ended = matches!(self.source, JournalSource::Session(_)) && row.kind == EventKind::Closed;
        if (self.until_done && run_ended) || session_ended {
            self.end(out);
        }
    }

    fn end(&mut self, out: &mut String) {
        let _ = write!(out, "event: {STREAM_END}\ndata: {{}}\n\n");
        self.state = StreamPhase::Ended;
    }

    /// Returns a comment. In a stream of all sessions it moves the client's position past rows that the filter left out.
    fn keep_alive(&self) -> Bytes {
        match self.source {
            JournalSource::Session(_) => Bytes::from_static(b":\n\n"),
            JournalSource::All(..) => Bytes::from(format!(":\nid: {}\n\n", self.cursor)),
        }
    }

    async fn is_exhausted(&self) -> Result<bool, Failure> {
        if !self.follow {
            return Ok(true);
        }
        let JournalSource::Session(key) = &self.source else { return Ok(false) };
        if self.until_done
            && let Some(run) = self.filter.run
        {
            let run = self.api.service.run(key, run).await?;
            if run.is_none_or(|run| run.state.is_ended()) {
                return Ok(true);
            }
        }
        Ok(self.api.service.session(key).await?.state == SessionState::Closed)
    }

    async fn wait(&mut self) -> StreamWake {
        tokio::select! {
            () = self.api.ending.cancelled() => StreamWake::GatewayEnds,
            changed = self.wake.changed() => if changed.is_ok() { StreamWake::Rows } else { StreamWake::GatewayEnds },
            () = tokio::time::sleep(self.keep_alive) => StreamWake::Silence,
        }
    }
}

enum StreamWake {
    Rows,
    Silence,
    GatewayEnds,
}
