//! Lines of styled text, and their wrapping at a width. Pure.

use acp_core::sanitize::escape_hidden;
use anstyle::{AnsiColor, Style};
use unicode_segmentation::UnicodeSegmentation;
use unicode_width::UnicodeWidthStr;

/// Width of a tab, in columns.
const TAB: &str = "    ";

/// Default style.
pub(crate) const PLAIN: Style = Style::new();
/// Style of notes.
pub(crate) const DIM: Style = Style::new().dimmed();
/// Style of headings and of the prompts of people.
pub(crate) const BOLD: Style = Style::new().bold();
/// Style of the agent's thoughts.
pub(crate) const THOUGHT: Style = Style::new().dimmed().italic();
/// Style of success and of added lines.
pub(crate) const GOOD: Style = AnsiColor::Green.on_default();
/// Style of failures and of removed lines.
pub(crate) const BAD: Style = AnsiColor::Red.on_default();
/// Style of what waits for a person.
pub(crate) const WARN: Style = AnsiColor::Yellow.on_default();
/// Style of code, and of the positions in a diff.
pub(crate) const CODE: Style = AnsiColor::Cyan.on_default();

/// Returns `base` with the colour and the effects of `added`.
pub(crate) fn merge(base: Style, added: Style) -> Style {
    let colour = added.get_fg_color().or(base.get_fg_color());
    base.fg_color(colour).effects(base.get_effects() | added.get_effects())
}

/// Returns the style of a line of a diff.
pub(crate) fn diff_style(line: &str) -> Style {
    match line.trim_start().chars().next() {
        Some('+') => GOOD,
        Some('-') => BAD,
        Some('@') => CODE,
        Some(_) | None => PLAIN,
    }
}

/// Piece of a line with one style.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Span {
    text: String,
    style: Style,
}

/// Line of text with styles.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct StyledLine {
    spans: Vec<Span>,
}

impl StyledLine {
    /// Creates a line of one style.
    pub(crate) fn new(text: &str, style: Style) -> Self {
        let mut line = Self::default();
        line.push(text, style);
        line
    }

    /// Appends text. Control characters become visible escapes: parsers of Markdown decode `&#27;` after the text was
    /// sanitized.
    pub(crate) fn push(&mut self, text: &str, style: Style) {
        if text.is_empty() {
            return;
        }
        let text = escape_hidden(text).replace('\t', TAB);
        match self.spans.last_mut().filter(|last| last.style == style) {
            Some(last) => last.text.push_str(&text),
            None => self.spans.push(Span { text, style }),
        }
    }

    /// Appends another line.
    pub(crate) fn append(&mut self, other: Self) {
        for span in other.spans {
            self.push(&span.text, span.style);
        }
    }

    /// Appends text and returns the line.
    pub(crate) fn with(mut self, text: &str, style: Style) -> Self {
        self.push(text, style);
        self
    }

    /// True if the line has no text.
    pub(crate) fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// Returns the text without styles.
    pub(crate) fn text(&self) -> String {
        self.spans.iter().map(|span| span.text.as_str()).collect()
    }

    /// Returns the number of columns that the line takes.
    pub(crate) fn width(&self) -> usize {
        self.spans.iter().map(|span| span.text.width()).sum()
    }

    /// Returns the text for a terminal.
    pub(crate) fn render(&self, is_coloured: bool) -> String {
        let span = |span: &Span| match is_coloured && span.style != PLAIN {
            true => format!("{}{}{:#}", span.style, span.text, span.style),
            false => span.text.clone(),
        };
        self.spans.iter().map(span).collect()
    }

    fn graphemes(&self) -> Vec<(&str, Style)> {
        let of = |span: &'_ Span| span.style;
        self.spans
            .iter()
            .flat_map(|span| span.text.graphemes(true).map(move |grapheme| (grapheme, of(span))))
            .collect()
    }

    /// Breaks the line after words into lines of at most `width` columns; a longer word is broken inside.
    pub(crate) fn wrap(&self, width: usize) -> Vec<Self> {
        let width = width.max(2);
        if self.width() <= width {
            return vec![self.clone()];
        }
        let (mut lines, mut line, mut used) = (Vec::new(), Vec::<(&str, Style)>::new(), 0);
        for (grapheme, style) in self.graphemes() {
            let columns = grapheme.width();
            if used + columns > width {
                // A blank at the end of a line is not shown.
                if grapheme == " " {
                    lines.push(Self::of(&line));
                    (line, used) = (Vec::new(), 0);
                    continue;
                }
                let after = line.iter().rposition(|(text, _)| *text == " ").map_or(line.len(), |at| at + 1);
                // Indentation alone is no line.
                let is_indent = line.iter().take(after).all(|(text, _)| *text == " ");
                let rest = line.split_off(if is_indent { line.len() } else { after });
                lines.push(Self::of(&line));
                used = rest.iter().map(|(text, _)| text.width()).sum();
                line = rest;
            }
            line.push((grapheme, style));
            used += columns;
        }
        if !line.is_empty() {
            lines.push(Self::of(&line));
        }
        lines
    }

    /// Breaks the line at `width` columns, wherever that is.
    pub(crate) fn chop(&self, width: usize) -> Vec<Self> {
        let (mut lines, mut line, mut used) = (Vec::new(), Vec::new(), 0);
        for (grapheme, style) in self.graphemes() {
            let columns = grapheme.width();
            if used + columns > width.max(2) {
                lines.push(Self::of(&std::mem::take(&mut line)));
                used = 0;
            }
            line.push((grapheme, style));
            used += columns;
        }
        lines.push(Self::of(&line));
        lines
    }

    /// Shortens the line to `width` columns, with `…` where text was cut.
    pub(crate) fn cut(&self, width: usize) -> Self {
        if self.width() <= width {
            return self.clone();
        }
        let mut first = self.chop(width.saturating_sub(1)).into_iter().next().unwrap_or_default();
        first.push("…", DIM);
        first
    }

    fn of(pieces: &[(&str, Style)]) -> Self {
        let end = pieces.iter().rposition(|(text, _)| *text != " ").map_or(0, |at| at + 1);
        let mut line = Self::default();
        for (text, style) in pieces.iter().take(end) {
            line.push(text, *style);
        }
        line
    }
}

/// Wraps a line, and begins the first row with `first` and all others with `rest`.
pub(crate) fn wrap_with(
    line: &StyledLine,
    width: usize,
    first: &StyledLine,
    rest: &StyledLine,
) -> Vec<StyledLine> {
    let room = width.saturating_sub(first.width().max(rest.width()));
    let prefixed = |(at, row): (usize, StyledLine)| {
        let mut whole = if at == 0 { first.clone() } else { rest.clone() };
        whole.append(row);
        whole
    };
    line.wrap(room).into_iter().enumerate().map(prefixed).collect()
}

/// Splits text into lines of one style, wrapped at `width`, each begun with `indent`.
pub(crate) fn paragraphs(text: &str, style: Style, width: usize, indent: &str) -> Vec<StyledLine> {
    let indent = StyledLine::new(indent, style);
    text.lines().flat_map(|line| wrap_with(&StyledLine::new(line, style), width, &indent, &indent)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(lines: &[StyledLine]) -> Vec<String> {
        lines.iter().map(StyledLine::text).collect()
    }

    #[test]
    fn lines_are_wrapped_after_words() {
        for (text, width, want) in [
            ("", 5, &[""][..]),
            ("ab cd", 5, &["ab cd"]),
            ("ab cd ef", 5, &["ab cd", "ef"]),
            ("ab cde f", 5, &["ab", "cde f"]),
            ("abcdefgh", 3, &["abc", "def", "gh"]),
            ("  abcdef", 4, &["  ab", "cdef"]),
            ("漢字漢字", 4, &["漢字", "漢字"]),
            ("a\tb", 10, &["a    b"]),
        ] {
            assert_eq!(texts(&StyledLine::new(text, PLAIN).wrap(width)), want, "{text:?} at {width}");
        }
    }

    #[test]
    fn styles_survive_wrapping() {
        let line = StyledLine::new("one two", BOLD).with(" three", DIM);
        let rows = line.wrap(8);
        assert_eq!(rows, [StyledLine::new("one two", BOLD), StyledLine::new("three", DIM)]);
        assert_eq!(rows[0].render(false), "one two");
        assert_eq!(rows[0].render(true), "\u{1b}[1mone two\u{1b}[0m");
    }

    #[test]
    fn chopped_and_cut_lines_fit() {
        let line = StyledLine::new("abc def", PLAIN);
        assert_eq!(texts(&line.chop(3)), ["abc", " de", "f"]);
        assert_eq!(line.cut(5).text(), "abc…");
        assert_eq!(line.cut(7).text(), "abc def");
    }
}
