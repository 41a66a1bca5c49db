//! Markdown as lines for a terminal. Pure. The text is sanitized before.

use crate::cli::chat::styled::{BOLD, CODE, DIM, PLAIN, StyledLine, diff_style, merge, wrap_with};
use anstyle::{Effects, Style};
use pulldown_cmark::{Alignment, CodeBlockKind, Event, Options, Parser, Tag, TagEnd};

/// Length of the text whose blocks are not complete, in bytes, from which it is printed nevertheless.
const PENDING_BYTES_MAX: usize = 4 * 1024;
/// Maximum length of a rule, in columns.
const RULE_COLUMNS_MAX: usize = 40;

/// Streamed Markdown: complete blocks are printed, the last one may still grow.
#[derive(Debug, Default)]
pub(crate) struct MarkdownStream {
    pending: String,
}

impl MarkdownStream {
    /// Adds a piece of text. Returns the blocks that are complete, if any.
    pub(crate) fn push(&mut self, text: &str) -> Option<String> {
        self.pending.push_str(text);
        let (end, fence) = self.split_point()?;
        let rest = self.pending.split_off(end);
        let done = std::mem::replace(&mut self.pending, rest);
        if let Some(fence) = fence {
            // The rest of a code block that is printed in pieces is a code block too.
            self.pending.insert_str(0, &format!("{fence}\n"));
        }
        Some(done)
    }

    /// Returns the block that may still grow.
    pub(crate) fn pending(&self) -> &str {
        &self.pending
    }

    /// Returns the last block.
    pub(crate) fn finish(&mut self) -> Option<String> {
        Some(std::mem::take(&mut self.pending)).filter(|text| !text.trim().is_empty())
    }

    /// Returns the end of the complete blocks, and the first line of the code block that is open there: after the last
    /// empty line that is followed by an unindented one, or after the last line of a text that is too long.
    fn split_point(&self) -> Option<(usize, Option<String>)> {
        let (mut at, mut fence, mut last) = (0, None::<&str>, None);
        let (mut last_line, mut is_after_blank) = (None, false);
        for line in self.pending.split_inclusive('\n') {
            let is_complete = line.ends_with('\n');
            let marker = line.trim_start();
            let starts_block = !line.starts_with([' ', '\t']) && !line.trim().is_empty();
            if fence.is_none() && is_after_blank && starts_block {
                last = Some(at);
            }
            at += line.len();
            if !is_complete {
                break;
            }
            match fence {
                Some(open) if marker.trim_end().starts_with(fence_mark(open)) => {
                    let is_end = marker.trim().chars().all(|c| fence_mark(open).starts_with(c));
                    if is_end {
                        fence = None;
                    }
                }
                None if marker.starts_with("```") || marker.starts_with("~~~") => {
                    fence = Some(line.trim_end())
                }
                Some(_) | None => {}
            }
            is_after_blank = fence.is_none() && line.trim().is_empty();
            last_line = Some((at, fence.map(str::to_owned)));
        }
        let unfinished = self.pending.len() - last_line.as_ref().map_or(0, |(end, _)| *end);
        if last.is_none() && unfinished > PENDING_BYTES_MAX {
            return Some((self.pending.len(), fence.map(str::to_owned)));
        }
        match last {
            Some(end) => Some((end, None)),
            None if self.pending.len() > PENDING_BYTES_MAX => last_line.filter(|(end, _)| *end > 0),
            None => None,
        }
    }
}

/// Returns the characters that end a code block which `open` begins.
fn fence_mark(open: &str) -> &'static str {
    if open.trim_start().starts_with('~') { "~~~" } else { "```" }
}

/// Renders Markdown at a width, without an empty line at the end.
pub(crate) fn render(text: &str, width: usize) -> Vec<StyledLine> {
    let options = Options::ENABLE_TABLES | Options::ENABLE_STRIKETHROUGH | Options::ENABLE_TASKLISTS;
    let mut renderer = Renderer { width: width.max(10), ..Renderer::default() };
    for event in Parser::new_ext(text, options) {
        renderer.event(event);
    }
    renderer.flush();
    renderer.lines
}

/// Start of the lines of a list item or a quote.
#[derive(Debug, Clone)]
struct Prefix {
    /// Start of the first line; taken when it is printed.
    first: Option<StyledLine>,
    rest: StyledLine,
}

/// Table that is being read.
#[derive(Debug, Default)]
struct Table {
    alignments: Vec<Alignment>,
    rows: Vec<Vec<StyledLine>>,
}

#[derive(Debug, Default)]
struct Renderer {
    width: usize,
    lines: Vec<StyledLine>,
    inline: StyledLine,
    styles: Vec<Style>,
    prefixes: Vec<Prefix>,
    /// Number of the next item of each open list; `None` for a list without numbers.
    lists: Vec<Option<u64>>,
    table: Option<Table>,
    /// Language and text of the open code block.
    code: Option<(String, String)>,
    links: Vec<(String, usize)>,
    /// True if the next block begins after an empty line.
    needs_gap: bool,
}

impl Renderer {
    fn event(&mut self, event: Event<'_>) {
        match event {
            Event::Start(tag) => self.start(tag),
            Event::End(tag) => self.end(tag),
            Event::Text(text) => match &mut self.code {
                Some((_, code)) => code.push_str(&text),
                None => self.push(&text),
            },
            Event::Code(text) => self.inline.push(&text, merge(self.style(), CODE)),
            Event::Html(text) | Event::InlineHtml(text) => self.push_lines(&text),
            Event::SoftBreak | Event::HardBreak if self.table.is_none() => self.flush(),
            Event::SoftBreak | Event::HardBreak => self.push(" "),
            Event::Rule => {
                self.block();
                self.inline.push(&"─".repeat(self.room().min(RULE_COLUMNS_MAX)), DIM);
                self.flush();
                self.needs_gap = true;
            }
            Event::TaskListMarker(is_done) => self.push(if is_done { "[x] " } else { "[ ] " }),
            Event::FootnoteReference(name) => self.push(&format!("[^{name}]")),
            Event::InlineMath(text) | Event::DisplayMath(text) => self.push(&text),
        }
    }

    fn start(&mut self, tag: Tag<'_>) {
        match tag {
            Tag::Paragraph | Tag::HtmlBlock => self.block(),
            Tag::Heading { .. } => {
                self.block();
                self.styles.push(merge(self.style(), BOLD) | Effects::UNDERLINE);
            }
            Tag::BlockQuote(_) => {
                self.block();
                let bar = StyledLine::new("│ ", DIM);
                self.prefixes.push(Prefix { first: None, rest: bar });
                self.needs_gap = false;
            }
            Tag::CodeBlock(kind) => {
                self.block();
                let language = match kind {
                    CodeBlockKind::Fenced(language) => language.into_string(),
                    CodeBlockKind::Indented => String::new(),
                };
                self.code = Some((language, String::new()));
            }
            Tag::List(first) => {
                if self.lists.is_empty() {
                    self.block();
                } else {
                    self.flush();
                }
                self.lists.push(first);
            }
            Tag::Item => self.start_item(),
            Tag::Emphasis => self.styles.push(self.style() | Effects::ITALIC),
            Tag::Strong => self.styles.push(self.style() | Effects::BOLD),
            Tag::Strikethrough => self.styles.push(self.style() | Effects::STRIKETHROUGH),
            Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. } => {
                self.links.push((dest_url.into_string(), self.inline.text().len()));
                self.styles.push(self.style() | Effects::UNDERLINE);
            }
            Tag::Table(alignments) => {
                self.block();
                self.table = Some(Table { alignments, rows: Vec::new() });
            }
            Tag::TableHead | Tag::TableRow => {
                if let Some(table) = &mut self.table {
                    table.rows.push(Vec::new());
                }
            }
            _ => {}
        }
    }

    fn end(&mut self, tag: TagEnd) {
        match tag {
            TagEnd::Paragraph | TagEnd::HtmlBlock => self.end_block(),
            TagEnd::Heading(_) => {
                self.styles.pop();
                self.end_block();
            }
            TagEnd::BlockQuote(_) => {
                self.flush();
                self.prefixes.pop();
                self.needs_gap = true;
            }
            TagEnd::CodeBlock => self.end_code(),
            TagEnd::List(_) => {
                self.flush();
                self.lists.pop();
                self.needs_gap = self.lists.is_empty();
            }
            TagEnd::Item => {
                self.flush();
                self.prefixes.pop();
            }
            TagEnd::Emphasis | TagEnd::Strong | TagEnd::Strikethrough => {
                self.styles.pop();
            }
            TagEnd::Link | TagEnd::Image => self.end_link(),
            TagEnd::TableCell => {
                let cell = std::mem::take(&mut self.inline);
                if let Some(row) = self.table.as_mut().and_then(|table| table.rows.last_mut()) {
                    row.push(cell);
                }
            }
            TagEnd::Table => {
                if let Some(table) = self.table.take() {
                    let rows = table.render(self.room());
                    self.emit(rows);
                    self.needs_gap = true;
                }
            }
            _ => {}
        }
    }

    fn start_item(&mut self) {
        self.flush();
        let mark = match self.lists.last_mut() {
            Some(Some(number)) => {
                *number += 1;
                format!("{}. ", *number - 1)
            }
            Some(None) | None => "• ".to_owned(),
        };
        let first = StyledLine::new(&mark, DIM);
        let rest = StyledLine::new(&" ".repeat(first.width()), PLAIN);
        self.prefixes.push(Prefix { first: Some(first), rest });
    }

    fn end_code(&mut self) {
        let Some((language, code)) = self.code.take() else { return };
        let is_diff = language == "diff";
        let rows = code.lines().map(|line| {
            let style = if is_diff { diff_style(line) } else { CODE };
            StyledLine::new("  ", PLAIN).with(line, style)
        });
        let rows: Vec<StyledLine> = rows.collect();
        self.emit(rows);
        self.needs_gap = self.lists.is_empty();
    }

    fn end_link(&mut self) {
        self.styles.pop();
        let Some((address, from)) = self.links.pop() else { return };
        let shown = self.inline.text().get(from..).unwrap_or_default().to_owned();
        if shown != address && !address.is_empty() {
            self.inline.push(&format!(" ({address})"), merge(self.style(), DIM));
        }
    }

    fn style(&self) -> Style {
        self.styles.last().copied().unwrap_or(PLAIN)
    }

    fn push(&mut self, text: &str) {
        self.inline.push(text, self.style());
    }

    fn push_lines(&mut self, text: &str) {
        for piece in text.split_inclusive('\n') {
            self.push(piece.trim_end_matches('\n'));
            if piece.ends_with('\n') {
                self.flush();
            }
        }
    }

    /// Begins a block: ends the open line, and leaves an empty one before the block.
    fn block(&mut self) {
        self.flush();
        if std::mem::take(&mut self.needs_gap) && self.lists.is_empty() {
            let bars: String = self.prefixes.iter().map(|prefix| prefix.rest.text()).collect();
            self.lines.push(StyledLine::new(bars.trim_end(), DIM));
        }
    }

    fn end_block(&mut self) {
        self.flush();
        self.needs_gap = self.lists.is_empty();
    }

    /// Returns the columns after the prefixes.
    fn room(&self) -> usize {
        let taken: usize = self.prefixes.iter().map(|prefix| prefix.rest.width()).sum();
        self.width.saturating_sub(taken).max(8)
    }

    /// Ends the open line.
    fn flush(&mut self) {
        if !self.inline.is_empty() {
            let line = std::mem::take(&mut self.inline);
            let rows = line.wrap(self.room());
            self.emit(rows);
        }
    }

    fn emit(&mut self, rows: Vec<StyledLine>) {
        let none = StyledLine::default();
        for row in rows {
            let mut line = StyledLine::default();
            for prefix in &mut self.prefixes {
                line.append(prefix.first.take().unwrap_or_else(|| prefix.rest.clone()));
            }
            self.lines.extend(wrap_with(&row, usize::MAX, &line, &none));
        }
    }
}

impl Table {
    /// Renders the rows with a line below the head; wide columns are wrapped.
    fn render(&self, width: usize) -> Vec<StyledLine> {
        let count = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let natural = |at: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(at));
            cells.map(StyledLine::width).max().unwrap_or(0).max(1)
        };
        let mut widths: Vec<usize> = (0..count).map(natural).collect();
        let gaps = 3 * count.saturating_sub(1);
        while widths.iter().sum::<usize>() + gaps > width {
            let Some(widest) = widths.iter_mut().max().filter(|widest| **widest > 4) else { break };
            *widest -= 1;
        }
        let mut lines = Vec::new();
        for (at, row) in self.rows.iter().enumerate() {
            lines.extend(self.row(row, &widths, at == 0));
            if at == 0 {
                let rule: Vec<String> = widths.iter().map(|columns| "─".repeat(*columns)).collect();
                lines.push(StyledLine::new(&rule.join("─┼─"), DIM));
            }
        }
        lines
    }

    fn row(&self, row: &[StyledLine], widths: &[usize], is_head: bool) -> Vec<StyledLine> {
        let none = StyledLine::default();
        let cells: Vec<Vec<StyledLine>> = widths
            .iter()
            .enumerate()
            .map(|(at, columns)| row.get(at).unwrap_or(&none).wrap(*columns))
            .collect();
        let height = cells.iter().map(Vec::len).max().unwrap_or(0);
        let line = |y: usize| {
            let mut line = StyledLine::default();
            for (at, (cell, columns)) in cells.iter().zip(widths).enumerate() {
                let text = cell.get(y).cloned().unwrap_or_default();
                let blank = columns.saturating_sub(text.width());
                let before = match self.alignments.get(at) {
                    Some(Alignment::Right) => blank,
                    Some(Alignment::Center) => blank / 2,
                    Some(Alignment::Left | Alignment::None) | None => 0,
                };
                if at > 0 {
                    line.push(" │ ", DIM);
                }
                line.push(&" ".repeat(before), PLAIN);
                if is_head {
                    line.push(&text.text(), BOLD)
                } else {
                    line.append(text)
                }
                if at + 1 < widths.len() {
                    line.push(&" ".repeat(blank - before), PLAIN);
                }
            }
            line
        };
        (0..height).map(line).collect()
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;

    fn texts(text: &str, width: usize) -> Vec<String> {
        render(text, width).iter().map(StyledLine::text).collect()
    }

    #[test]
    fn markdown_is_laid_out() {
        for (text, want) in [
            ("one\ntwo", &["one", "two"][..]),
            ("one two three four", &["one two three", "four"]),
            ("# Title\n\ntext", &["Title", "", "text"]),
            ("- a\n- b\n  - c\n\ntext", &["• a", "• b", "  • c", "", "text"]),
            ("3. a\n4. b long long long", &["3. a", "4. b long long", "   long"]),
            ("> quoted\n\nafter", &["│ quoted", "", "after"]),
            ("```sh\nls   -l\n\nx\n```\nafter", &["  ls   -l", "  ", "  x", "", "after"]),
            ("[name](http://a.b)", &["name", "(http://a.b)"]),
            ("<http://a.b>", &["http://a.b"]),
            ("- [x] done", &["• [x] done"]),
            ("a <b> c", &["a <b> c"]),
            ("---", &["────────────────"]),
            ("|a|b|\n|-|-:|\n|x|10|\n|y|2|", &["a │  b", "──┼───", "x │ 10", "y │  2"]),
        ] {
            assert_eq!(texts(text, 16), want, "{text:?}");
        }
    }

    /// References and links are decoded after the text of the agent was sanitized.
    #[test]
    fn decoded_references_bring_no_control_characters() {
        let text = "&#27;[2J &#x202e; [a](http://x/&#27;c) `&#27;`\n\n|&#7;|\n|-|\n|&#27;|";
        let shown = texts(text, 40).join("\n");
        assert!(!shown.chars().any(|c| c != '\n' && acp_core::sanitize::is_hidden(c)), "{shown:?}");
        assert!(shown.contains("\\u{1b}[2J"), "{shown:?}");
    }

    #[test]
    fn endless_line_is_shown_in_pieces() {
        for start in ["", "```\n"] {
            let mut stream = MarkdownStream::default();
            let mut shown = stream.push(start).map_or(0, |done| done.len());
            for _ in 0..100 {
                shown += stream.push(&"x".repeat(1_000)).map_or(0, |done| done.len());
                assert!(stream.pending().len() <= 2 * PENDING_BYTES_MAX, "{}", stream.pending().len());
            }
            assert!(shown > 90_000, "{shown}");
        }
    }

    #[test]
    fn wide_table_is_wrapped_not_cut() {
        let rows = texts("|name|text|\n|-|-|\n|a|one two three four|", 16);
        assert_eq!(
            rows,
            ["name │ text", "─────┼──────────", "a    │ one two", "     │ three", "     │ four"]
        );
    }

    #[test]
    fn emphasis_and_code_have_styles() {
        let lines = render("a **b** `c` *d*", 40);
        let want = StyledLine::new("a ", PLAIN)
            .with("b", Style::new().bold())
            .with(" ", PLAIN)
            .with("c", CODE)
            .with(" ", PLAIN)
            .with("d", Style::new().italic());
        assert_eq!(lines, [want]);
    }

    #[test]
    fn stream_returns_complete_blocks() {
        let mut stream = MarkdownStream::default();
        assert_eq!(stream.push("one\n"), None);
        assert_eq!(stream.push("\n"), None);
        assert_eq!(stream.push("two").as_deref(), Some("one\n\n"));
        // Neither inside of a code block nor between the parts of a list item.
        assert_eq!(stream.push("\n```\na\n\nb\n").as_deref(), None);
        assert_eq!(stream.push("```\n\n- item\n\n  more\n").as_deref(), Some("two\n```\na\n\nb\n```\n\n"));
        assert_eq!(stream.pending(), "- item\n\n  more\n");
        assert_eq!(stream.finish().unwrap(), "- item\n\n  more\n");
        assert_eq!(stream.finish(), None);
    }

    #[test]
    fn long_block_is_printed_in_pieces() {
        let mut stream = MarkdownStream::default();
        let done = stream.push(&format!("```diff\n{}end", "+line\n".repeat(1_000))).unwrap();
        assert!(done.ends_with("+line\n"));
        assert_eq!(stream.pending(), "```diff\nend");
        let mut whole = String::new();
        let mut stream = MarkdownStream::default();
        for n in 0..2_000 {
            whole.extend(stream.push(&format!("line {n}\n")));
        }
        whole.extend(stream.finish());
        assert_eq!(whole.lines().count(), 2_000);
    }
}
