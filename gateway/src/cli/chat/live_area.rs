//! Lines below the conversation that change in place: open answer, running tools, plan, status, queue, questions, input.
//! Pure.

use crate::cli::chat::markdown;
use crate::cli::chat::state::ChatState;
use crate::cli::chat::styled::{BOLD, DIM, PLAIN, StyledLine, WARN};
use crate::cli::chat::transcript::{elapsed, plan_lines};
use crate::cli::output::name;

/// Frames of the spinner.
const SPINNER: [&str; 10] = ["⠋", "⠙", "⠹", "⠸", "⠼", "⠴", "⠦", "⠧", "⠇", "⠏"];
/// Duration of a frame, in milliseconds.
pub(crate) const FRAME_MS: u64 = 100;
/// Maximum number of rows of the input.
const INPUT_ROWS_MAX: usize = 8;
/// Maximum number of entries of the plan.
const PLAN_ROWS_MAX: usize = 6;
/// Maximum number of running tools and of queued messages.
const LIST_ROWS_MAX: usize = 4;

/// Lines with the position of the cursor.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct LiveArea {
    /// Lines, each no wider than the terminal.
    pub(crate) lines: Vec<StyledLine>,
    /// Row and column of the cursor.
    pub(crate) cursor: (usize, usize),
}

/// Lays out the live area for a terminal of this size.
pub(crate) fn live_area(state: &ChatState, now_ms: u64, width: usize, rows: usize) -> LiveArea {
    let width = width.saturating_sub(1).max(10);
    let room = rows.saturating_sub(1).max(3);
    let (input, cursor) = state.editor.layout(width, INPUT_ROWS_MAX.min(room.saturating_sub(1)).max(1));
    let mut below = state.editor.menu_lines();
    if below.is_empty() {
        below.push(StyledLine::new(&hint(state), DIM));
    }
    let mut above = questions(state);
    let mut lines = status(state, now_ms);
    lines.append(&mut above);
    // The newest rows are kept if the terminal is too small for all of them.
    below.truncate(room.saturating_sub(input.len()));
    let left = room.saturating_sub(input.len() + below.len());
    lines.drain(..lines.len().saturating_sub(left));
    let left = left - lines.len();
    let mut whole = open_text(state, width, left);
    whole.append(&mut lines);
    let cursor = (whole.len() + cursor.0, cursor.1);
    whole.extend(input);
    whole.extend(below);
    LiveArea { lines: whole.into_iter().map(|line| line.cut(width)).collect(), cursor }
}

/// Returns the end of the open block of the answer.
fn open_text(state: &ChatState, width: usize, rows: usize) -> Vec<StyledLine> {
    let text = state.transcript.pending_text();
    if text.trim().is_empty() || rows < 2 {
        return Vec::new();
    }
    let rendered = markdown::render(text, width);
    let mut lines: Vec<StyledLine> = rendered.iter().flat_map(|line| line.chop(width)).collect();
    lines.drain(..lines.len().saturating_sub(rows - 1));
    lines.insert(0, StyledLine::default());
    lines
}

/// Returns running tools, plan, spinner, queue, and the state of the connection.
fn status(state: &ChatState, now_ms: u64) -> Vec<StyledLine> {
    let mut lines = vec![StyledLine::default()];
    let frame = usize::try_from(now_ms / FRAME_MS).unwrap_or_default() % SPINNER.len();
    let spinner = SPINNER.get(frame).copied().unwrap_or("·");
    let transcript = &state.transcript;
    if let Some(turn) = transcript.running() {
        let hidden = turn.tools.len().saturating_sub(LIST_ROWS_MAX);
        for tool in turn.tools.iter().skip(hidden) {
            let mark = if tool.status() == "pending" { "○ " } else { "◐ " };
            let line = StyledLine::new(mark, WARN).with(&tool.title(), PLAIN);
            lines.push(line.with(&format!(" ({})", name(tool.status())), DIM));
        }
        lines.extend(turn.plan.as_ref().map(|plan| plan_lines(plan, PLAN_ROWS_MAX)).unwrap_or_default());
        let doing = match (state.is_cancelling, transcript.questions.is_empty(), turn.is_thinking) {
            (true, _, _) => "cancelling; Ctrl-C again leaves",
            (_, false, _) => "waiting for your answer",
            (_, _, true) => "thinking; Ctrl-T shows it",
            (_, _, false) => "working",
        };
        let took = elapsed(now_ms.saturating_sub(turn.started_ms));
        lines.push(StyledLine::new(&format!("{spinner} "), WARN).with(&format!("{doing} · {took}"), DIM));
    }
    let queued: Vec<&str> =
        transcript.turns.iter().skip(1).map(|turn| turn.text.as_str()).take(LIST_ROWS_MAX).collect();
    for text in queued {
        lines.push(StyledLine::new("queued: ", DIM).with(&name(text), PLAIN));
    }
    if transcript.turns.len() > LIST_ROWS_MAX + 1 {
        let more = transcript.turns.len() - LIST_ROWS_MAX - 1;
        lines.push(StyledLine::new(&format!("and {more} more in the queue"), DIM));
    }
    if let Some(since) = state.away_since_ms {
        let took = elapsed(now_ms.saturating_sub(since));
        let text = format!("{spinner} reconnecting to the gateway · {took}");
        lines.push(StyledLine::new(&text, WARN));
        for message in state.outgoing.iter().take(LIST_ROWS_MAX) {
            lines.push(StyledLine::new("kept, sent once: ", DIM).with(&name(&message.text), PLAIN));
        }
    } else if let Some(message) = state.outgoing.front() {
        lines.push(StyledLine::new(&format!("{spinner} sending: "), DIM).with(&name(&message.text), PLAIN));
    }
    lines
}

/// Returns the options of the first question.
fn questions(state: &ChatState) -> Vec<StyledLine> {
    let Some(question) = state.transcript.questions.front() else { return Vec::new() };
    let mut lines: Vec<StyledLine> = question
        .lines
        .iter()
        .enumerate()
        .map(|(at, line)| {
            let is_selected = state.selected == Some(at);
            let style = if is_selected { BOLD } else { PLAIN };
            StyledLine::new(if is_selected { "› " } else { "  " }, BOLD).with(line, style)
        })
        .collect();
    if question.options > 0 {
        let more = match state.transcript.questions.len() - 1 {
            0 => String::new(),
            count => format!(" · {count} more wait"),
        };
        let text = format!("  Answer with a number, or with arrows and Enter{more}");
        lines.push(StyledLine::new(&text, DIM));
    }
    lines
}

/// Returns the line below the input.
fn hint(state: &ChatState) -> String {
    if let Some(hint) = &state.hint {
        return hint.clone();
    }
    match state.transcript.running() {
        Some(_) => "Enter queues · Ctrl-S sends into the turn · Ctrl-C cancels · Ctrl-T thoughts".to_owned(),
        None => "Enter sends · Alt-Enter new line · Tab completes · /acp help · Ctrl-D leaves".to_owned(),
    }
}

#[cfg(test)]
mod tests;
