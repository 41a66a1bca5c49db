//! Help of command lines on narrow terminals.

use std::os::fd::AsFd;

/// Terminals with fewer columns are narrow: help stands below its option, and a table that is too wide becomes a list.
pub const NARROW_COLUMNS: usize = 60;

/// Length of the heading that continuation lines of a usage line are indented by.
const USAGE: usize = "Usage: ".len();

/// Returns the columns of a terminal; `None` if the stream is none.
pub fn columns(stream: impl AsFd) -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(stream).ok()?;
    Some(usize::from(size.ws_col)).filter(|columns| *columns > 0)
}

/// True if standard output is a narrow terminal.
#[must_use]
pub fn is_narrow() -> bool {
    columns(std::io::stdout()).is_some_and(|columns| columns < NARROW_COLUMNS)
}

/// Wraps the lines of a text that are wider than a terminal, between words. Continuation lines are indented as the line, those
/// of a usage line by its heading. Escape sequences of colours have no width.
#[must_use]
pub fn wrap(text: &str, columns: usize) -> String {
    text.split('\n').map(|line| wrap_line(line, columns)).collect::<Vec<_>>().join("\n")
}

fn wrap_line(line: &str, columns: usize) -> String {
    if width(line) <= columns {
        return line.to_owned();
    }
    let own = line.len() - line.trim_start().len();
    let is_usage = plain(line).trim_start().starts_with("Usage: ");
    let indent = own + if is_usage { USAGE } else { 0 };
    let mut out = line.get(..own).unwrap_or_default().to_owned();
    let mut used = own;
    for (at, word) in line.trim_start().split(' ').enumerate() {
        let needed = width(word);
        if at > 0 && used + 1 + needed > columns && used > indent {
            out.push('\n');
            out.push_str(&" ".repeat(indent));
            used = indent;
        } else if at > 0 {
            out.push(' ');
            used += 1;
        }
        out.push_str(word);
        used += needed;
    }
    out
}

/// Returns the number of columns of a text.
fn width(text: &str) -> usize {
    plain(text).chars().count()
}

/// Removes escape sequences of colours.
fn plain(text: &str) -> String {
    let mut parts = text.split("\u{1b}[");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |plain, part| plain + part.split_once('m').map_or(part, |(_, rest)| rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wide_lines_are_wrapped_between_words() {
        assert_eq!(wrap("as it is\n  two", 8), "as it is\n  two");
        assert_eq!(wrap("  one two three four", 10), "  one two\n  three\n  four");
        assert_eq!(
            wrap("Usage: prog --name <NAME>\nnext", 16),
            "Usage: prog\n       --name\n       <NAME>\nnext"
        );
        assert_eq!(wrap("a word-that-is-too-long b", 8), "a\nword-that-is-too-long\nb");
    }

    #[test]
    fn colours_have_no_width() {
        let coloured = "\u{1b}[1mUsage:\u{1b}[0m \u{1b}[1mprog\u{1b}[0m [OPTIONS] <TEXT>";
        assert_eq!(wrap(coloured, 30), coloured);
        let wrapped = wrap(coloured, 22);
        assert_eq!(plain(&wrapped), "Usage: prog [OPTIONS]\n       <TEXT>");
    }
}
