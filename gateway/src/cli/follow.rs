//! Event streams on a terminal and for programs.

use crate::api::client::{EventSelection, EventStream, GatewayClient, encode};
use crate::cli::inside;
use crate::cli::output::{CliResult, NAME_CHARS_MAX, Out, TextStyle, name};
use acp_core::api::SessionView;
use acp_core::elicitation::form_of_event;
use acp_core::event_json::pruned_text;
use acp_core::failure::Failure;
use acp_core::render::{delta_text, form_lines, host_effect_text, subject, unreadable_text, whole_tool_call};
use acp_core::sanitize;
use acp_shared::codes::Code;
use serde::Deserialize;
use serde_json::Value;
use std::borrow::Cow;
use std::collections::VecDeque;

/// Fields of an event line that every reader needs; the rest is parsed when the event is shown.
#[derive(Debug, Deserialize)]
pub(crate) struct EventHead<'a> {
    /// Type of the event.
    #[serde(rename = "type", borrow)]
    pub(crate) kind: Cow<'a, str>,
    /// Id of the run.
    #[serde(borrow)]
    pub(crate) run_id: Option<Cow<'a, str>>,
    /// Number of the event in its session.
    #[serde(default)]
    pub(crate) session_seq: u64,
}

impl<'a> EventHead<'a> {
    /// Reads the head of a line.
    ///
    /// # Errors
    /// The line is not an event: the versions of gateway and client do not match.
    pub(crate) fn of(line: &'a str) -> Result<Self, Failure> {
        serde_json::from_str(line).map_err(|error| inside("cannot parse an event", &error))
    }
}

/// Shows events: JSON lines for programs, text for people.
pub(crate) struct EventPrinter {
    /// True while a line of the agent's thoughts is open.
    thinking: bool,
    /// True if everything is shown that the journal has for people.
    is_history: bool,
}

impl EventPrinter {
    /// Creates the printer of a history, which has the prompts of users and the whole of permission requests.
    pub(crate) const fn history() -> Self {
        Self { thinking: false, is_history: true }
    }

    /// Creates the printer of the reply to a prompt.
    pub(crate) const fn reply() -> Self {
        Self { thinking: false, is_history: false }
    }

    /// Shows one event.
    pub(crate) fn event(&mut self, line: &str, head: &EventHead<'_>, out: &mut Out) -> CliResult {
        if out.json {
            return out.line(line);
        }
        let event: Value = match serde_json::from_str(line) {
            Ok(event) => event,
            Err(error) => return out.note(&format!("[an event cannot be shown: {error}]")),
        };
        let text = |name: &str| event.get(name).and_then(Value::as_str).unwrap_or_default();
        let word = |key: &str| name(text(key));
        let unreadable = unreadable_text(&event);
        if head.kind == "text_delta" && unreadable.is_none() {
            return self.delta(text("stream") == "thought", &delta_text(&event), out);
        }
        self.end_thought(out)?;
        if let Some(notice) = unreadable {
            return out.note(&notice);
        }
        match head.kind.as_ref() {
            // Prompts are half of a history, so they go to the same output as the replies.
            "prompt" if self.is_history => out.line(&format!("> {}", text("text"))),
            "tool_call" => {
                let what = if word("title").is_empty() { word("name") } else { word("title") };
                out.note(&format!("[tool] {what}{}", status(&word("status"))))
            }
            "tool_call_update" => match text("status") {
                "completed" | "failed" => {
                    let what = if word("title").is_empty() { word("tool_call_id") } else { word("title") };
                    out.note(&format!("[tool] {what}{}", status(&word("status"))))
                }
                _ => Ok(()),
            },
            "plan" => plan_lines(&event).try_for_each(|line| out.note(&line)),
            "permission" => out.note(&self.permission(&event)),
            "host_request" => out.note(&format!("[host] {}", host_effect_text(&event, self.chars_max()))),
            "permission_settled" => {
                let by = if word("by").is_empty() { word("without") } else { word("by") };
                let by = if by.is_empty() { by } else { format!(" by {by}") };
                let choice = if word("option_id").is_empty() { word("outcome") } else { word("option_id") };
                if !event["action"].is_null() {
                    let choice = if word("option_name").is_empty() { choice } else { word("option_name") };
                    return out.note(&format!("[question] {choice}{by}"));
                }
                out.note(&format!("[permission] {choice}{by}"))
            }
            "status" | "gap" => out.note(&format!("[{}] {}", head.kind, text("text"))),
            "error" => {
                out.end_line()?;
                out.flush()?;
                crate::cli::output::print_message(&format!("error: {} ({})", text("message"), text("code")));
                Ok(())
            }
            "done" => match text("stop_reason") {
                "end_turn" => out.end_line(),
                "steered" => out.note("[sent into the running turn]"),
                _ => out.note(&format!("[ended: {}]", word("stop_reason"))),
            },
            "closed" => out.note(&format!("[closed] {}", word("reason"))),
            // Commands, modes, usage and extensions are for programs.
            _ => Ok(()),
        }
    }

    /// Maximum length of a line about an effect.
    const fn chars_max(&self) -> usize {
        if self.is_history { usize::MAX } else { NAME_CHARS_MAX }
    }

    /// Formats a permission request: one line, and in a history the whole tool call below.
    fn permission(&self, event: &Value) -> String {
        let (title, call) = (event["title"].as_str().unwrap_or_default(), &event["tool_call"]);
        if let Some(form) = form_of_event(event) {
            let line = format!("[question] {}", sanitize::line(title.trim(), self.chars_max()));
            return if self.is_history { line + &form_lines(&form, false) } else { line };
        }
        let line = format!("[permission] {}", sanitize::line(title.trim(), self.chars_max()));
        if self.is_history {
            return whole_tool_call(call).map_or(line.clone(), |whole| format!("{line}\n{whole}"));
        }
        let about = subject(call).filter(|about| about != title);
        about.map_or(line.clone(), |about| format!("{line}: {about}"))
    }

    fn delta(&mut self, thought: bool, text: &str, out: &mut Out) -> CliResult {
        if !thought {
            self.end_thought(out)?;
            return out.text(text);
        }
        // Thoughts are shown on a terminal only, so that a file holds just the answer.
        if out.terminal {
            if !std::mem::replace(&mut self.thinking, true) {
                out.end_line()?;
                out.style(TextStyle::DimItalic)?;
            }
            return out.text(text);
        }
        Ok(())
    }

    fn end_thought(&mut self, out: &mut Out) -> CliResult {
        if std::mem::take(&mut self.thinking) {
            out.style(TextStyle::Plain)?;
            out.text("\n")?;
        }
        Ok(())
    }
}

fn status(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!(" ({text})") }
}

/// Formats the entries of a plan, one line each.
pub(crate) fn plan_lines(event: &Value) -> impl Iterator<Item = String> {
    event["entries"].as_array().into_iter().flatten().map(|entry| {
        let mark = match entry["status"].as_str() {
            Some("completed") => "x",
            Some("in_progress") => "~",
            _ => " ",
        };
        format!("[{mark}] {}", name(entry["content"].as_str().unwrap_or_default()))
    })
}

/// Returns the exit code for an `error` line.
pub(crate) fn exit_of(line: &str) -> u8 {
    #[derive(Deserialize)]
    struct Coded<'a> {
        #[serde(borrow)]
        code: Option<Cow<'a, str>>,
    }
    let coded: Option<Coded<'_>> = serde_json::from_str(line).ok();
    let code = coded.and_then(|coded| Code::parse(coded.code?.as_ref()));
    code.unwrap_or(Code::Runtime).exit()
}

/// Tells people that the first events of a history are gone. Programs find it in the session.
pub(crate) fn note_pruned(view: &SessionView, out: &mut Out) -> CliResult {
    if view.pruned_seq == 0 || out.json { Ok(()) } else { out.note(&pruned_text(view.pruned_seq)) }
}

/// Prints the last events of a session, this many, and then new ones if the selection follows.
pub(crate) async fn print_last(
    client: &GatewayClient,
    mut wanted: EventSelection,
    limit: u64,
    out: &mut Out,
) -> CliResult {
    let view: SessionView = client.get(&format!("/v1/sessions/{}", encode(wanted.session.as_str()))).await?;
    let (last, mut rows) = (view.last_session_seq, limit);
    loop {
        // The selection may leave out rows, so that more of them are searched.
        let after = last.saturating_sub(rows).max(view.pruned_seq);
        let mut events = client.events(EventSelection { after, follow: false, ..wanted.clone() });
        let mut numbers = VecDeque::new();
        while let Some(line) = events.next().await? {
            numbers.push_back(EventHead::of(&line)?.session_seq);
            if numbers.len() as u64 > limit {
                numbers.pop_front();
            }
        }
        if numbers.len() as u64 == limit || after <= view.pruned_seq {
            if (numbers.len() as u64) < limit {
                note_pruned(&view, out)?;
            }
            wanted.after = numbers.front().map_or(last, |first| first.saturating_sub(1));
            break;
        }
        rows = rows.saturating_mul(8).max(256);
    }
    let limit = if wanted.follow { u64::MAX } else { limit };
    print_events(client.events(wanted), limit, out).await
}

/// Prints a stream until it ends or `limit` events are printed.
pub(crate) async fn print_events(mut events: EventStream, limit: u64, out: &mut Out) -> CliResult {
    let mut show = EventPrinter::history();
    let mut left = limit;
    while left > 0 {
        let ready = match events.ready() {
            Some(ready) => ready?,
            None => {
                out.flush()?;
                events.next().await?
            }
        };
        let Some(line) = ready else { break };
        show.event(&line, &EventHead::of(&line)?, out)?;
        left -= 1;
    }
    show.end_thought(out)?;
    out.end_line()?;
    out.flush()
}
