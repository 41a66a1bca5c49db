//! Digest of an ended run for the final message, built from rows committed before the final row.

use crate::event::EventKind;
use crate::render::diff::FileChanges;
use crate::render::escape::quote_name;
use crate::render::files::FileSettings;
use crate::render::footer::Footer;
use crate::render::{RunOutput, Style, parse};
use crate::rows::{ConversationRef, RunMode};
use crate::usage::Tokens;

/// Digest of an ended run, for its final message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunDigest {
    pub(super) mode: RunMode,
    pub(super) started: bool,
    has_footer: bool,
    files: Option<FileSettings>,
    /// Author of the prompt in another conversation.
    author_elsewhere: Option<String>,
    footer: Footer,
    body: RunOutput,
    /// Output for a file, which holds more than messages.
    file_body: Option<RunOutput>,
    changes: FileChanges,
}

impl RunDigest {
    /// Creates a digest. `started` is false for a run that never left the queue; `style` is the one in effect
    /// at the run's final row.
    pub fn new(mode: RunMode, started: bool, style: Style) -> Self {
        let kept = style.files.as_ref().filter(|files| files.long_final_parts > 0);
        let kept = kept.map(|files| files.bytes_max).filter(|kept| *kept > style.output_chars_max);
        let body_within = |chars_max| RunOutput::new(Style { output_chars_max: chars_max, ..style.clone() });
        Self {
            mode,
            started,
            has_footer: style.footer,
            files: style.files.clone(),
            author_elsewhere: None,
            footer: Footer::default(),
            body: body_within(style.output_chars_max),
            file_body: kept.map(body_within),
            changes: FileChanges::default(),
        }
    }

    /// Adds the agent's name and the start of the turn, in milliseconds since the Unix epoch.
    pub fn with_turn(self, agent: String, started_at_ms: Option<u64>) -> Self {
        Self { footer: Footer::of(agent, started_at_ms), ..self }
    }

    /// Adapts the digest to one conversation. `prompt` is the payload of the run's first row.
    pub fn for_conversation(self, at: &ConversationRef, prompt: &str) -> Self {
        let prompt = parse(prompt);
        let asked_in = &prompt["asked_in"];
        let here = [&at.channel, &at.account_id, &at.conversation_id];
        let names = ["channel", "account_id", "conversation_id"];
        let is_here = names.iter().zip(here).all(|(name, here)| asked_in[name] == here.as_str());
        let author = prompt["author"].as_str().unwrap_or_default();
        let author_elsewhere = (asked_in.is_object() && !is_here).then(|| author.to_owned());
        Self { author_elsewhere, ..self }
    }

    /// Heading of an answer to a prompt from another conversation.
    pub(super) fn heading(&self, is_markdown: bool) -> Option<String> {
        let author = self.author_elsewhere.as_ref()?;
        Some(match author.is_empty() {
            true => "Asked in another conversation:".to_owned(),
            false => format!("Asked by {} in another conversation:", quote_name(author, is_markdown)),
        })
    }

    /// Adds the next row of the run, in order; other kinds than [`OUTPUT_KINDS`](super::OUTPUT_KINDS) may be
    /// left out.
    pub fn add(&mut self, kind: EventKind, payload: &str) {
        let update = parse(payload);
        if self.has_footer && kind == EventKind::Update {
            self.footer.add(&update);
        }
        let is_tool = matches!(kind, EventKind::ToolCall | EventKind::ToolCallUpdate);
        if is_tool && self.files.as_ref().is_some_and(|files| files.diff) {
            self.changes.add(&update);
        }
        for body in std::iter::once(&mut self.body).chain(&mut self.file_body) {
            body.add_parsed(kind, &update);
        }
    }

    /// Approximate memory use, in bytes.
    pub fn bytes(&self) -> usize {
        let file = self.file_body.as_ref().map_or(0, |body| body.text().len());
        self.body.text().len() + file + self.changes.bytes()
    }

    /// Settings for files; `None` if the channel supports none.
    pub(super) const fn files(&self) -> Option<&FileSettings> {
        self.files.as_ref()
    }

    /// File changes of the run.
    pub(super) const fn changes(&self) -> &FileChanges {
        &self.changes
    }

    /// True if the output may exceed what messages can hold.
    pub(super) const fn exceeds_messages(&self) -> bool {
        self.body.is_cut()
    }

    /// True if the output exceeds even what a file can hold.
    pub(super) fn is_cut(&self) -> bool {
        self.file_body.as_ref().unwrap_or(&self.body).is_cut()
    }

    /// Output of the run without its ending, up to the maximum length for messages.
    pub(super) fn output_text(&self) -> String {
        let more = "(Output truncated; `acp-gateway sessions history` shows all of it.)";
        self.render_output(&self.body, more)
    }

    /// Output of the run for a file; the caller reports any truncation.
    pub(super) fn full_output(&self) -> String {
        self.render_output(self.file_body.as_ref().unwrap_or(&self.body), "")
    }

    fn render_output(&self, body: &RunOutput, more: &str) -> String {
        let mut body = body.clone();
        body.end_thought();
        let mut lines = vec![body.text().trim_end().to_owned()];
        if body.is_cut() {
            lines.push(more.to_owned());
        }
        lines.extend(body.refusals());
        if body.is_text_hidden() {
            lines.push("(Text is not shown here; `acp-gateway sessions history` shows it.)".to_owned());
        }
        lines.extend(body.summary().filter(|_| !self.has_footer).map(|line| format!("[{line}]")));
        lines.retain(|line| !line.is_empty());
        lines.join("\n\n")
    }

    /// Footer line about the turn, if enabled and not empty.
    pub(super) fn footer(&self, ended_at_ms: u64, tokens: Option<Tokens>) -> Option<String> {
        let line = self.footer.line(ended_at_ms, self.body.tools(), tokens);
        (self.has_footer && !line.is_empty()).then_some(line)
    }
}
