//! State of a followed session in the terminal: journal events become lines above the input, and what still changes (the
//! open block of the answer, running tools, the plan, the queue, pending questions) stays in the state. Pure.

use crate::cli::chat::markdown::{self, MarkdownStream};
use crate::cli::chat::screen::{numbered_options, option_lines};
use crate::cli::chat::styled::{
    BAD, BOLD, DIM, GOOD, PLAIN, StyledLine, THOUGHT, WARN, diff_style, paragraphs, wrap_with,
};
use crate::cli::output::{NAME_CHARS_MAX, name};
use acp_core::elicitation::form_of_event;
use acp_core::permission::short_id;
use acp_core::render::{
    HIDDEN_STATUSES, answer_hint, delta_text, form_lines, host_effect_text, subject, tool_preview,
    unreadable_text,
};
use acp_core::sanitize;
use serde_json::{Map, Value, json};
use std::collections::{HashMap, VecDeque};

/// Maximum size of the thoughts that are kept for Ctrl-T, in bytes.
const THOUGHT_BYTES_MAX: usize = 256 * 1024;
/// Mark of thoughts whose beginning is not kept.
const CUT_MARK: &str = "[earlier thoughts are not kept]\n";

/// Kind of the lines printed last; an empty line separates two kinds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BlockKind {
    Start,
    Prompt,
    Text,
    Thought,
    Tool,
    Plan,
    Note,
}

/// Tool call of the running turn.
#[derive(Debug)]
pub(crate) struct ToolCall {
    id: String,
    /// Members as in ACP, merged from all updates.
    call: Map<String, Value>,
}

impl ToolCall {
    fn text(&self, key: &str) -> &str {
        self.call.get(key).and_then(Value::as_str).unwrap_or_default()
    }

    /// Returns the title for people.
    pub(crate) fn title(&self) -> String {
        let found =
            ["title", "name", "kind"].into_iter().map(|key| self.text(key)).find(|text| !text.is_empty());
        name(found.unwrap_or(&self.id))
    }

    /// Returns the status, `pending` if the agent gave none.
    pub(crate) fn status(&self) -> &str {
        match self.text("status") {
            "" => "pending",
            status => status,
        }
    }
}

/// Turn that runs or is queued.
#[derive(Debug)]
pub(crate) struct Turn {
    /// Run id.
    pub(crate) run_id: String,
    /// Text of the prompt.
    pub(crate) text: String,
    author: Option<String>,
    /// Time at which the turn began, milliseconds since the Unix epoch.
    pub(crate) started_ms: u64,
    is_started: bool,
    stream: MarkdownStream,
    /// Tool calls that have not ended.
    pub(crate) tools: Vec<ToolCall>,
    tool_count: usize,
    /// Changes printed with the permission request of a tool call that has not ended, by the call's id.
    asked_previews: HashMap<String, String>,
    /// Entries of the plan.
    pub(crate) plan: Option<Value>,
    /// True while the last output was a thought.
    pub(crate) is_thinking: bool,
}

/// Permission request or question that waits for a person.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Question {
    /// Permission id.
    pub(crate) id: String,
    /// Number of the options that a number chooses; 0 for a form with fields.
    pub(crate) options: usize,
    /// Lines with the numbered options, or with the command that answers.
    pub(crate) lines: Vec<String>,
}

/// Followed session.
#[derive(Debug)]
pub(crate) struct Transcript {
    /// Columns of the terminal.
    pub(crate) width: usize,
    /// Name of the conversation of this chat.
    conversation: String,
    printed: Vec<StyledLine>,
    last: BlockKind,
    /// True if the next text begins a new block of Markdown.
    is_new_block: bool,
    /// Turns, the running one first.
    pub(crate) turns: VecDeque<Turn>,
    /// Pending questions, the oldest first.
    pub(crate) questions: VecDeque<Question>,
    /// True if thoughts are printed.
    pub(crate) shows_thoughts: bool,
    /// Thoughts of the last turn that are not printed; long ones without their beginning.
    thoughts: String,
}

impl Transcript {
    /// Creates the transcript of a chat in a conversation.
    pub(crate) fn new(conversation: &str, width: usize) -> Self {
        Self {
            width,
            conversation: conversation.to_owned(),
            printed: Vec::new(),
            last: BlockKind::Start,
            is_new_block: false,
            turns: VecDeque::new(),
            questions: VecDeque::new(),
            shows_thoughts: false,
            thoughts: String::new(),
        }
    }

    /// Removes the lines to print.
    pub(crate) fn take_printed(&mut self) -> Vec<StyledLine> {
        std::mem::take(&mut self.printed)
    }

    /// Returns the running turn.
    pub(crate) fn running(&self) -> Option<&Turn> {
        self.turns.front().filter(|turn| turn.is_started)
    }

    /// Returns the text of the answer that may still grow.
    pub(crate) fn pending_text(&self) -> &str {
        self.turns.front().map_or("", |turn| turn.stream.pending())
    }

    /// Forgets turns and questions: another session is followed.
    pub(crate) fn reset(&mut self) {
        self.turns.clear();
        self.questions.clear();
        self.thoughts.clear();
    }

    /// Prints a note of the chat.
    pub(crate) fn note(&mut self, text: &str) {
        let lines = paragraphs(&sanitize::text(text), DIM, self.width, "");
        self.block(BlockKind::Note, lines);
    }

    /// Prints a command of the person, and its reply.
    pub(crate) fn reply(&mut self, command: &str, reply: &str) {
        self.prompt_lines(command, None);
        let lines = paragraphs(&sanitize::text(reply), PLAIN, self.width, "");
        self.block(BlockKind::Note, lines);
    }

    /// Prints lines as they are, after an empty one.
    pub(crate) fn print(&mut self, lines: Vec<StyledLine>) {
        self.last = if self.last == BlockKind::Start { BlockKind::Start } else { BlockKind::Prompt };
        self.block(BlockKind::Note, lines);
    }

    /// Prints thoughts from now on, beginning with those of the last turn, or ends that.
    pub(crate) fn toggle_thoughts(&mut self) {
        self.shows_thoughts = !self.shows_thoughts;
        if self.shows_thoughts {
            self.flush_thoughts();
        } else {
            self.note("[thoughts are hidden; Ctrl-T shows them]");
        }
    }

    fn flush_thoughts(&mut self) {
        let thoughts = std::mem::take(&mut self.thoughts);
        if !thoughts.trim().is_empty() {
            let lines = paragraphs(thoughts.trim_end(), THOUGHT, self.width, "  ");
            self.block(BlockKind::Thought, lines);
        }
    }

    fn block(&mut self, kind: BlockKind, lines: Vec<StyledLine>) {
        if lines.is_empty() {
            return;
        }
        let is_gap = match (self.last, kind) {
            (BlockKind::Start, _) => false,
            (BlockKind::Text, BlockKind::Text) => self.is_new_block,
            (last, kind) => last != kind || kind == BlockKind::Prompt,
        };
        if is_gap {
            self.printed.push(StyledLine::default());
        }
        self.printed.extend(lines);
        self.last = kind;
    }

    fn prompt_lines(&mut self, text: &str, author: Option<&str>) {
        let text = sanitize::text(text);
        let (mut mark, rest) = (StyledLine::new("> ", BOLD), StyledLine::new("  ", PLAIN));
        if let Some(author) = author {
            mark = StyledLine::new(&format!("{}> ", name(author)), DIM);
        }
        let mut lines = Vec::new();
        for (at, line) in text.lines().enumerate() {
            let first = if at == 0 { &mark } else { &rest };
            lines.extend(wrap_with(&StyledLine::new(line, BOLD), self.width, first, &rest));
        }
        self.block(BlockKind::Prompt, lines);
    }

    fn markdown(&mut self, text: &str) {
        let lines = markdown::render(text, self.width);
        self.block(BlockKind::Text, lines);
        self.is_new_block = text.ends_with("\n\n") || text.ends_with("\n \n");
    }

    /// Prints the open block of the answer, and the thoughts if they are shown.
    fn flush_text(&mut self) {
        if self.shows_thoughts {
            self.flush_thoughts();
        }
        if let Some(text) = self.turns.front_mut().and_then(|turn| turn.stream.finish()) {
            self.markdown(&text);
        }
    }

    /// Prints the prompt of the first turn, unless it is printed.
    fn start_first(&mut self, now_ms: u64) {
        let Some(turn) = self.turns.front_mut().filter(|turn| !turn.is_started) else { return };
        turn.is_started = true;
        turn.started_ms = now_ms;
        let (text, author) = (turn.text.clone(), turn.author.clone());
        self.thoughts.clear();
        self.prompt_lines(&text, author.as_deref());
    }

    /// Shows an event of the session.
    pub(crate) fn event(&mut self, event: &Value) {
        let text = |key: &str| event[key].as_str().unwrap_or_default();
        let at_ms = event["created_at_ms"].as_u64().unwrap_or_default();
        if let Some(notice) = unreadable_text(event) {
            return self.note(&notice);
        }
        let is_known = |run: &str| self.turns.iter().any(|turn| turn.run_id == run);
        // Rest of a turn that began before the first event of this transcript.
        if matches!(text("type"), "text_delta" | "tool_call" | "tool_call_update" | "plan")
            && event["run_id"].as_str().is_some_and(|run| !is_known(run))
        {
            return;
        }
        match text("type") {
            "prompt" => self.prompt(event, at_ms),
            "text_delta" => self.delta(text("stream") == "thought", &delta_text(event)),
            "tool_call" | "tool_call_update" => self.tool(event),
            "plan" => {
                self.flush_text();
                if let Some(turn) = self.turns.front_mut() {
                    turn.plan = Some(event["entries"].clone());
                }
            }
            "permission" => self.permission(event),
            "permission_settled" => self.settled(event),
            "host_request" => {
                self.flush_text();
                self.note(&format!("[host: {}]", host_effect_text(event, NAME_CHARS_MAX)));
            }
            "status" if text("status") == "prompt_steered" => {
                self.turns.retain(|turn| turn.is_started || turn.run_id != text("run_id"));
            }
            "status" if HIDDEN_STATUSES.contains(&text("status")) => {}
            "status" => {
                self.flush_text();
                self.note(&format!("[{}]", text("text")));
            }
            "gap" => {
                self.flush_text();
                self.note(&format!("[output is missing here: {}]", text("text")));
            }
            "done" | "error" => self.ended(event, at_ms),
            "closed" => {
                self.flush_text();
                self.note(&format!("[session closed: {}]", name(text("reason"))));
                self.reset();
            }
            _ => {}
        }
    }

    /// Adds a running turn whose prompt is not among the events.
    pub(crate) fn resume(&mut self, run_id: &str, text: &str, started_ms: u64) {
        let run = json!({ "run_id": run_id, "text": text, "mode": "prompt", "author": "" });
        self.prompt(&run, started_ms);
    }

    fn prompt(&mut self, event: &Value, at_ms: u64) {
        let text = event["text"].as_str().unwrap_or_default();
        let asked_in = &event["asked_in"];
        let is_own =
            asked_in["channel"] == "console" && asked_in["conversation_id"] == self.conversation.as_str();
        let author =
            event["author"].as_str().filter(|author| !is_own && !author.is_empty()).map(str::to_owned);
        if event["mode"] == "steer" && self.running().is_some() {
            self.flush_text();
            self.prompt_lines(&format!("(into the running turn) {text}"), author.as_deref());
            return;
        }
        self.turns.push_back(Turn {
            run_id: event["run_id"].as_str().unwrap_or_default().to_owned(),
            text: text.to_owned(),
            author,
            started_ms: at_ms,
            is_started: false,
            stream: MarkdownStream::default(),
            tools: Vec::new(),
            tool_count: 0,
            asked_previews: HashMap::new(),
            plan: None,
            is_thinking: false,
        });
        self.start_first(at_ms);
    }

    fn delta(&mut self, is_thought: bool, text: &str) {
        let text = sanitize::text(text).into_owned();
        if is_thought {
            if let Some(turn) = self.turns.front_mut() {
                turn.is_thinking = true;
            }
            self.thoughts.push_str(&text);
            keep_end(&mut self.thoughts, THOUGHT_BYTES_MAX);
            if self.shows_thoughts && self.thoughts.ends_with('\n') {
                self.flush_thoughts();
            }
            return;
        }
        if self.shows_thoughts {
            self.flush_thoughts();
        }
        let done = match self.turns.front_mut() {
            Some(turn) => {
                turn.is_thinking = false;
                turn.stream.push(&text)
            }
            // Between two turns, an agent may say something too.
            None => Some(text),
        };
        if let Some(done) = done {
            self.markdown(&done);
        }
    }

    fn tool(&mut self, event: &Value) {
        self.flush_text();
        let id = event["tool_call_id"].as_str().unwrap_or_default().to_owned();
        let width = self.width;
        let Some(turn) = self.turns.front_mut() else { return };
        let at = match turn.tools.iter().position(|tool| tool.id == id) {
            Some(at) => at,
            None => {
                turn.tool_count += usize::from(event["type"] == "tool_call");
                turn.tools.push(ToolCall { id, call: Map::new() });
                turn.tools.len() - 1
            }
        };
        let Some(tool) = turn.tools.get_mut(at) else { return };
        for (theirs, ours) in [
            ("title", "title"),
            ("name", "name"),
            ("kind", "kind"),
            ("status", "status"),
            ("content", "content"),
            ("locations", "locations"),
            ("rawInput", "raw_input"),
        ] {
            if let Some(value) = event.get(ours).filter(|value| !value.is_null()) {
                tool.call.insert(theirs.to_owned(), value.clone());
            }
        }
        if let Some(input) = event["arguments_text"].as_str().filter(|text| !text.is_empty()) {
            let input = serde_json::from_str(input).unwrap_or_else(|_| json!(input));
            tool.call.insert("rawInput".to_owned(), input);
        }
        if matches!(tool.status(), "completed" | "failed") {
            let asked = turn.asked_previews.remove(&tool.id);
            let lines = tool_lines(tool, width, asked.as_deref());
            turn.tools.remove(at);
            self.block(BlockKind::Tool, lines);
        }
    }

    fn permission(&mut self, event: &Value) {
        let id = event["permission_id"].as_str().unwrap_or_default().to_owned();
        if self.questions.iter().any(|question| question.id == id) {
            return;
        }
        self.flush_text();
        let (title, form) = (event["title"].as_str().unwrap_or_default(), form_of_event(event));
        let title = if title.trim().is_empty() { "a tool call" } else { title };
        let line = StyledLine::new(&format!("[the agent asks: {}]", name(title)), WARN);
        let mut lines = wrap_with(&line, self.width, &StyledLine::default(), &StyledLine::default());
        let about = match &form {
            Some(form) => Some(form_lines(form, false)),
            None => tool_preview(&event["tool_call"], false),
        };
        for line in about.iter().flat_map(|about| about.lines()).filter(|line| !line.trim().is_empty()) {
            let line = StyledLine::new(line, diff_style(line));
            lines.extend(wrap_with(
                &line,
                self.width,
                &StyledLine::default(),
                &StyledLine::new("    ", PLAIN),
            ));
        }
        self.block(BlockKind::Note, lines);
        let call = event["tool_call"]["toolCallId"].as_str();
        if let (Some(turn), Some(call), Some(about)) = (self.turns.front_mut(), call, about) {
            turn.asked_previews.insert(call.to_owned(), about);
        }
        let (options, short) = (numbered_options(event), short_id(&id));
        let lines = match form.filter(|_| options == 0) {
            Some(form) => vec![answer_hint(&form, Some(&short))],
            None => option_lines(event),
        };
        self.questions.push_back(Question { id, options, lines });
    }

    fn settled(&mut self, event: &Value) {
        let word = |key: &str| name(event[key].as_str().unwrap_or_default());
        let first = |keys: &[&str]| {
            keys.iter().map(|key| word(key)).find(|word| !word.is_empty()).unwrap_or_default()
        };
        self.questions.retain(|question| Some(question.id.as_str()) != event["permission_id"].as_str());
        self.flush_text();
        let (what, choice) = match event["action"].is_null() {
            true => ("permission", first(&["option_id", "outcome"])),
            false => ("question", first(&["option_name", "option_id", "outcome"])),
        };
        self.note(&format!("[{what}: {choice} ({})]", first(&["by", "without"])));
    }

    fn ended(&mut self, event: &Value, at_ms: u64) {
        let text = |key: &str| event[key].as_str().unwrap_or_default();
        let is_first = self.turns.front().is_some_and(|turn| turn.run_id == text("run_id"));
        if is_first {
            self.flush_text();
            self.thoughts.truncate(if self.shows_thoughts { 0 } else { self.thoughts.len() });
        }
        let position = self.turns.iter().position(|turn| turn.run_id == text("run_id"));
        let turn = position.and_then(|at| self.turns.remove(at));
        if let Some(plan) = turn.as_ref().and_then(|turn| turn.plan.as_ref()) {
            let lines = plan_lines(plan, usize::MAX);
            self.block(BlockKind::Plan, lines);
        }
        match (text("type"), text("stop_reason")) {
            ("error", _) => {
                let text = format!("[failed: {} ({})]", text("message"), text("code"));
                let lines = paragraphs(&sanitize::text(&text), BAD, self.width, "");
                self.block(BlockKind::Note, lines);
            }
            (_, "end_turn") => {
                if let Some(turn) = turn.filter(|turn| turn.is_started) {
                    let took = elapsed(at_ms.saturating_sub(turn.started_ms));
                    let tools = match turn.tool_count {
                        0 => String::new(),
                        1 => " · 1 tool".to_owned(),
                        count => format!(" · {count} tools"),
                    };
                    self.note(&format!("─ {took}{tools}"));
                }
            }
            (_, "steered") => {}
            (_, reason) => self.note(&format!("[ended: {}]", name(reason))),
        }
        self.start_first(at_ms);
    }
}

/// Formats a duration in whole seconds.
pub(crate) fn elapsed(ms: u64) -> String {
    match ms / 1_000 {
        seconds @ 0..60 => format!("{seconds} s"),
        seconds @ 60..3_600 => format!("{} min {} s", seconds / 60, seconds % 60),
        seconds => format!("{} h {} min", seconds / 3_600, seconds / 60 % 60),
    }
}

/// Returns the lines of a tool call that has ended: title, and the changes or the command. Changes that its permission request
/// has shown are left out.
fn tool_lines(tool: &ToolCall, width: usize, asked: Option<&str>) -> Vec<StyledLine> {
    let (mark, style) = if tool.status() == "failed" { ("✗ ", BAD) } else { ("✓ ", GOOD) };
    let title = tool.title();
    let mut line = StyledLine::new(&title, PLAIN);
    if tool.status() == "failed" {
        line.push(" (failed)", BAD);
    }
    let indent = StyledLine::new("  ", PLAIN);
    let mut lines = wrap_with(&line, width, &StyledLine::new(mark, style), &indent);
    let call = Value::Object(tool.call.clone());
    let blocks = call["content"].as_array().map(Vec::as_slice).unwrap_or_default();
    if blocks.iter().any(|block| block["type"] == "diff") {
        let diff = tool_preview(&call, false).filter(|diff| asked != Some(diff)).unwrap_or_default();
        lines.extend(diff.lines().map(|line| StyledLine::new(line, diff_style(line))));
    } else if call["rawInput"]["command"].is_string() || call["rawInput"]["command"].is_array() {
        let about = subject(&call).filter(|about| !title.contains(about.as_str()));
        lines.extend(about.map(|about| StyledLine::new(&format!("  {about}"), DIM).cut(width)));
    }
    lines
}

/// Returns the lines of a plan: at most `max`, the first open entries.
pub(crate) fn plan_lines(entries: &Value, max: usize) -> Vec<StyledLine> {
    let entries = entries.as_array().map(Vec::as_slice).unwrap_or_default();
    let is_done = |entry: &&Value| entry["status"] == "completed";
    let skipped = entries.iter().take_while(is_done).count();
    let first = skipped.min(entries.len().saturating_sub(max));
    let line = |entry: &Value| {
        let content = name(entry["content"].as_str().unwrap_or_default());
        match entry["status"].as_str() {
            Some("completed") => StyledLine::new("✓ ", GOOD).with(&content, DIM),
            Some("in_progress") => StyledLine::new("▸ ", WARN).with(&content, BOLD),
            _ => StyledLine::new("○ ", DIM).with(&content, PLAIN),
        }
    };
    entries.iter().skip(first).take(max).map(line).collect()
}

/// Removes the beginning of a text that is longer than this. Removes more than needed, so that it is not done for each piece.
fn keep_end(text: &mut String, bytes_max: usize) {
    if text.len() > bytes_max {
        let from = text.len() - bytes_max / 2;
        let from = (from..=text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(text.len());
        text.replace_range(..from, CUT_MARK);
    }
}

#[cfg(test)]
mod tests;
