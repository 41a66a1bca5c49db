//! A model on loopback, so that real agents can run without any other network: the OpenAI chat interface and
//! Google's GenerateContent (`generate.rs`), streaming or not, with tool calls. The prompt contains the
//! answers ([`script`]). The requests, and whether the agent disconnected early, are available to the test
//! (`GET /log`).

mod generate;
pub mod probe;
mod reply;
pub mod request;
pub mod script;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use reply::AnswerEnd;
use request::Request;
use script::Step;
use serde_json::{Value, json};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::net::TcpListener;

/// Maximum number of logged requests; later ones are answered but not logged.
const LOG_LINES_MAX: usize = 10_000;
/// Maximum length of a logged script, in characters.
const SCRIPT_CHARS_MAX: usize = 400;
/// Maximum length of a logged tool result, in characters.
const RESULT_CHARS_MAX: usize = 10_000;

/// Log of requests, shared by all connections.
#[derive(Debug, Default, Clone)]
pub(crate) struct Log(Arc<Mutex<Vec<Value>>>);

impl Log {
    fn add(&self, line: Value) -> usize {
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.len() < LOG_LINES_MAX {
            lines.push(line);
        }
        lines.len() - 1
    }

    /// Changes one member of a line.
    pub(crate) fn set(&self, line: usize, member: &str, value: Value) {
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(line) = lines.get_mut(line) {
            line[member] = value;
        }
    }

    /// Logs a request and returns the steps of its answer and the index of its log line.
    fn begin(&self, request: &Request) -> Result<(Vec<Step>, usize), Refusal> {
        let steps = if request.is_side_call() {
            vec![Step::Say("a title".to_owned())]
        } else {
            script::answer(&script::steps(&request.prompt), request.tool_results)
        };
        let result =
            request.results.last().map(|text| text.chars().take(RESULT_CHARS_MAX).collect::<String>());
        let line = self.add(json!({
            "side_call": request.is_side_call(),
            "script": request.script().chars().take(SCRIPT_CHARS_MAX).collect::<String>(),
            "scripts_before": request.scripts_before,
            "tool_results": request.tool_results,
            "last_result": result,
            "calls": steps.iter().filter_map(|step| request.call(step)).collect::<Vec<_>>(),
            "tools": request.tool_names(),
            "stream": request.stream,
            // `open` while it is answered, `done` at its end, `aborted` if the agent disconnected early.
            "state": "open",
            "pieces_sent": 0,
        }));
        if let Some(Step::Error(status)) = steps.iter().find(|step| matches!(step, Step::Error(_))) {
            self.set(line, "state", json!("done"));
            let status = StatusCode::from_u16(*status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
            return Err(Refusal { status, message: "the script wants an error" });
        }
        Ok((steps, line))
    }

    fn all(&self) -> Vec<Value> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// HTTP error that a script requests instead of an answer.
struct Refusal {
    status: StatusCode,
    message: &'static str,
}

/// Serves until the process ends.
///
/// # Errors
/// When the listener fails.
pub async fn serve(listener: TcpListener) -> std::io::Result<()> {
    let app = Router::new()
        .route("/log", get(async |State(log): State<Log>| Json(log.all())))
        .route("/v1/models", get(models))
        .route("/v1/chat/completions", post(completions))
        .route("/v1beta/models/{call}", post(generate::call))
        .with_state(Log::default());
    axum::serve(listener, app).await
}

async fn models() -> Json<Value> {
    Json(
        json!({"object": "list", "data": [{"id": "fake", "object": "model", "created": 0, "owned_by": "tests"}]}),
    )
}

async fn completions(State(log): State<Log>, Json(body): Json<Value>) -> Response {
    let request = Request::parse(&body);
    match log.begin(&request) {
        Err(Refusal { status, message }) => {
            let error = json!({"error": {"message": message, "type": "scripted", "code": null}});
            (status, Json(error)).into_response()
        }
        Ok((steps, line)) if request.stream => reply::streamed(&request, steps, AnswerEnd::new(log, line)),
        Ok((steps, line)) => reply::whole(&request, steps, AnswerEnd::new(log, line)).await,
    }
}
