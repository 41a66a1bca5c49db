//! Answers in the format of the chat interface: one document, or a stream of events.

use super::Log;
use super::request::Request;
use super::script::Step;
use axum::Json;
use axum::body::Body;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse as _, Response};
use futures_util::stream;
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::Duration;

/// One event of the stream, with the delay before it.
pub(super) type Timed = (Duration, String);

/// Logs the end of an answer when dropped: `aborted` unless [`AnswerEnd::done`] was called before.
pub(super) struct AnswerEnd {
    log: Log,
    line: usize,
    state: &'static str,
}

impl AnswerEnd {
    /// Creates the end marker for the request of a log line.
    pub(super) const fn new(log: Log, line: usize) -> Self {
        Self { log, line, state: "aborted" }
    }

    /// Marks the answer as complete.
    pub(super) const fn done(&mut self) {
        self.state = "done";
    }
}

impl Drop for AnswerEnd {
    fn drop(&mut self) {
        self.log.set(self.line, "state", json!(self.state));
    }
}

/// A piece of the answer, independent of the interface.
pub(super) enum Piece {
    Text(String),
    Call { name: String, arguments: Value },
    Hang,
}

/// Converts steps to pieces, each with the delay before it, and the finish reason.
pub(super) fn pieces(request: &Request, steps: Vec<Step>) -> (Vec<(Duration, Piece)>, &'static str) {
    let mut pieces = Vec::new();
    let mut finish = "stop";
    for step in steps {
        match step {
            Step::Say(text) => pieces.push((Duration::ZERO, Piece::Text(text))),
            Step::Chunks { count, pace } => {
                pieces.extend((1..=count).map(|n| (pace, Piece::Text(format!("w{n} ")))));
            }
            Step::Hang => pieces.push((Duration::ZERO, Piece::Hang)),
            Step::Repeat(member) => {
                let value = request.result_member(&member).unwrap_or_default();
                let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                pieces.push((Duration::ZERO, Piece::Text(text)));
            }
            Step::Write { .. } | Step::Run { .. } | Step::Tool { .. } => match request.call(&step) {
                Some((name, arguments)) => {
                    finish = "tool_calls";
                    pieces.push((Duration::ZERO, Piece::Call { name, arguments }));
                }
                None => {
                    let text = format!("no tool for {step:?} among {:?}", request.tool_names());
                    pieces.push((Duration::ZERO, Piece::Text(text)));
                }
            },
            Step::Error(_) => {}
        }
    }
    (pieces, finish)
}

fn usage() -> Value {
    json!({"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15})
}

fn event(request: &Request, delta: &Value, finish: Option<&str>) -> String {
    let choice = json!({"index": 0, "delta": delta, "finish_reason": finish});
    let chunk = json!({
        "id": "chatcmpl-fake", "object": "chat.completion.chunk", "created": 0, "model": request.model,
        "choices": [choice],
    });
    format!("data: {chunk}\n\n")
}

fn events(request: &Request, steps: Vec<Step>) -> VecDeque<Option<Timed>> {
    let (pieces, finish) = pieces(request, steps);
    let now = |text: String| Some((Duration::ZERO, text));
    let mut events =
        VecDeque::from([now(event(request, &json!({"role": "assistant", "content": ""}), None))]);
    for (wait, piece) in pieces {
        let delta = match piece {
            Piece::Text(text) => json!({"content": text}),
            Piece::Call { name, arguments } => json!({"tool_calls": [{
                "index": 0, "id": request.call_id(), "type": "function",
                "function": {"name": name, "arguments": arguments.to_string()},
            }]}),
            Piece::Hang => {
                events.push_back(None);
                return events;
            }
        };
        events.push_back(Some((wait, event(request, &delta, None))));
    }
    events.push_back(now(event(request, &json!({}), Some(finish))));
    if request.usage {
        let chunk = json!({
            "id": "chatcmpl-fake", "object": "chat.completion.chunk", "created": 0, "model": request.model,
            "choices": [], "usage": usage(),
        });
        events.push_back(now(format!("data: {chunk}\n\n")));
    }
    events.push_back(now("data: [DONE]\n\n".to_owned()));
    events
}

/// The answer as a stream of server-sent events, at the pace of the script.
pub(super) fn streamed(request: &Request, steps: Vec<Step>, ending: AnswerEnd) -> Response {
    stream(events(request, steps), ending)
}

/// Sends events, each after its delay; `None` stalls the stream until the agent disconnects.
pub(super) fn stream(events: VecDeque<Option<Timed>>, ending: AnswerEnd) -> Response {
    let body = stream::unfold((events, ending, 0_u64), async |(mut events, mut ending, sent)| {
        let next = events.pop_front()?;
        let Some((wait, text)) = next else { return std::future::pending().await };
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
        ending.log.set(ending.line, "pieces_sent", json!(sent + 1));
        if events.is_empty() {
            ending.done();
        }
        Some((Ok::<_, Infallible>(text), (events, ending, sent + 1)))
    });
    ([(CONTENT_TYPE, "text/event-stream")], Body::from_stream(body)).into_response()
}

/// The answer as one document.
pub(super) async fn whole(request: &Request, steps: Vec<Step>, mut ending: AnswerEnd) -> Response {
    let (pieces, finish) = pieces(request, steps);
    let mut text = String::new();
    let mut calls = Vec::new();
    for (wait, piece) in pieces {
        tokio::time::sleep(wait).await;
        match piece {
            Piece::Text(more) => text.push_str(&more),
            Piece::Call { name, arguments } => calls.push(json!({
                "id": request.call_id(), "type": "function", "function": {"name": name, "arguments": arguments.to_string()},
            })),
            Piece::Hang => std::future::pending().await,
        }
    }
    ending.done();
    let mut message = json!({"role": "assistant", "content": text});
    if !calls.is_empty() {
        message["tool_calls"] = json!(calls);
    }
    Json(json!({
        "id": "chatcmpl-fake", "object": "chat.completion", "created": 0, "model": request.model,
        "choices": [{"index": 0, "message": message, "finish_reason": finish}], "usage": usage(),
    }))
    .into_response()
}
