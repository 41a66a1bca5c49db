//! Tables for people: without frames, cut to the terminal width, optionally coloured.

use super::text::{cut, plain, width};
use anstyle::{AnsiColor, Style};

/// Meaning of a colour. The text always carries the same information.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tone {
    Plain,
    Dim,
    Bold,
    Good,
    Warn,
    Bad,
}

impl Tone {
    const fn style(self) -> Style {
        match self {
            Self::Plain => Style::new(),
            Self::Dim => Style::new().dimmed(),
            Self::Bold => Style::new().bold(),
            Self::Good => AnsiColor::Green.on_default(),
            Self::Warn => AnsiColor::Yellow.on_default(),
            Self::Bad => AnsiColor::Red.on_default().bold(),
        }
    }

    /// Returns the text with this tone's escape sequences.
    pub(crate) fn paint(self, text: &str, colour: bool) -> String {
        let style = self.style();
        if colour && self != Self::Plain { format!("{style}{text}{style:#}") } else { text.to_owned() }
    }
}

/// Table cell. Unsafe characters are escaped on construction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Cell {
    text: String,
    tone: Tone,
}

impl Cell {
    pub(crate) fn new(text: impl AsRef<str>) -> Self {
        Self { text: plain(text.as_ref()), tone: Tone::Plain }
    }

    pub(crate) fn tone(mut self, tone: Tone) -> Self {
        self.tone = tone;
        self
    }

    /// Returns the tone of the cell.
    pub(crate) const fn is(&self) -> Tone {
        self.tone
    }

    /// Returns the text of the cell.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }
}

impl<T: AsRef<str>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self::new(text)
    }
}

/// Table column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Column {
    pub(crate) title: &'static str,
    /// True for right-aligned columns, such as numbers.
    pub(crate) right: bool,
    /// Minimum width to which the column can be cut; `None` if it must not be cut.
    pub(crate) least: Option<usize>,
    /// Order of removal on a narrow terminal: higher numbers are dropped first, 0 is never dropped.
    pub(crate) drop: u8,
}

impl Column {
    pub(crate) const fn new(title: &'static str) -> Self {
        Self { title, right: false, least: None, drop: 0 }
    }

    pub(crate) const fn right(mut self) -> Self {
        self.right = true;
        self
    }

    pub(crate) const fn min_width(mut self, columns: usize) -> Self {
        self.least = Some(columns);
        self
    }

    pub(crate) const fn drop(mut self, drop: u8) -> Self {
        self.drop = drop;
        self
    }
}

/// Format options of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TableFormat {
    /// Width of the terminal; `None` if nothing is cut.
    pub(crate) width: Option<usize>,
    pub(crate) headers: bool,
    pub(crate) colour: bool,
}

pub(crate) const GAP: usize = 2;

/// Computes [`widths`] from the natural width of each column.
fn fit(columns: &[Column], natural: &[usize], limit: Option<usize>) -> Vec<(usize, usize)> {
    let mut kept: Vec<(usize, usize)> = natural.iter().copied().enumerate().collect();
    let Some(limit) = limit else { return kept };
    let column = |at: usize| columns.get(at).copied().unwrap_or(Column::new(""));
    let total =
        |kept: &[(usize, usize)]| kept.iter().map(|(_, w)| w + GAP).sum::<usize>().saturating_sub(GAP);
    let least = |at: usize, w: usize| column(at).least.map_or(w, |least| least.min(w));
    loop {
        let narrowest: Vec<(usize, usize)> = kept.iter().map(|(at, w)| (*at, least(*at, *w))).collect();
        if total(&narrowest) <= limit {
            break;
        }
        let droppable = kept.iter().enumerate().filter(|(_, (at, _))| column(*at).drop > 0);
        let Some((first, _)) = droppable.max_by_key(|(_, (at, _))| column(*at).drop) else {
            return narrowest;
        };
        kept.remove(first);
    }
    while total(&kept) > limit {
        let shrinkable = kept.iter_mut().filter(|(at, w)| *w > least(*at, *w));
        let Some((_, widest)) = shrinkable.max_by_key(|(_, w)| *w) else { break };
        *widest -= 1;
    }
    kept
}

fn line(cells: impl Iterator<Item = (Cell, usize, bool)>, colour: bool) -> String {
    let mut line = String::new();
    // Padding is written before a cell, never after the last one.
    let mut blanks = 0;
    for (cell, columns, right) in cells {
        let text = cut(&cell.text, columns);
        let rest = columns.saturating_sub(width(&text));
        let (before, after) = if right { (rest, 0) } else { (0, rest) };
        if !text.is_empty() {
            line.push_str(&" ".repeat(blanks + before));
            line.push_str(&cell.tone.paint(&text, colour));
            blanks = after + GAP;
        } else {
            blanks += columns + GAP;
        }
    }
    line
}

/// Returns index and width of each visible column.
pub(crate) fn widths(columns: &[Column], rows: &[Vec<Cell>], look: TableFormat) -> Vec<(usize, usize)> {
    let natural: Vec<usize> = columns
        .iter()
        .enumerate()
        .map(|(at, column)| {
            let title = if look.headers { width(column.title) } else { 0 };
            rows.iter()
                .filter_map(|row| row.get(at))
                .map(|cell| width(&cell.text))
                .max()
                .unwrap_or(0)
                .max(title)
        })
        .collect();
    fit(columns, &natural, look.width)
}

/// Formats a table, without a trailing newline.
pub(crate) fn render(columns: &[Column], rows: &[Vec<Cell>], look: TableFormat) -> String {
    let fitted = widths(columns, rows, look);
    let one = |cell: &dyn Fn(usize) -> Cell| {
        let cells = fitted.iter().map(|(at, w)| (cell(*at), *w, columns.get(*at).is_some_and(|c| c.right)));
        line(cells, look.colour)
    };
    let header =
        look.headers.then(|| one(&|at| Cell::new(columns.get(at).map_or("", |c| c.title)).tone(Tone::Bold)));
    let body = rows.iter().map(|row| one(&|at| row.get(at).cloned().unwrap_or_else(|| Cell::new(""))));
    header.into_iter().chain(body).collect::<Vec<_>>().join("\n")
}

/// Formats names and values under a heading.
pub(crate) fn section(title: &str, rows: &[(&str, Cell)], look: TableFormat) -> String {
    let columns = [Column::new(""), Column::new("").min_width(20)];
    let rows: Vec<Vec<Cell>> = rows
        .iter()
        .map(|(name, value)| vec![Cell::new(format!("  {name}")).tone(Tone::Dim), value.clone()])
        .collect();
    let body = render(&columns, &rows, TableFormat { headers: false, ..look });
    format!("{}\n{body}", Tone::Bold.paint(title, look.colour))
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: [Column; 4] = [
        Column::new("ID"),
        Column::new("WHO").min_width(4),
        Column::new("SIZE").right(),
        Column::new("WHY").min_width(4).drop(1),
    ];

    fn rows() -> Vec<Vec<Cell>> {
        vec![
            vec!["1".into(), "somebody".into(), "12K".into(), "because of that".into()],
            vec!["22".into(), "漢字".into(), "3".into(), "".into()],
        ]
    }

    fn render_at(width: Option<usize>, headers: bool) -> String {
        render(&COLUMNS, &rows(), TableFormat { width, headers, colour: false })
    }

    #[test]
    fn tables_fit_terminal() {
        let whole = "ID  WHO       SIZE  WHY\n1   somebody   12K  because of that\n22  漢字         3";
        assert_eq!(render_at(None, true), whole);
        assert_eq!(render_at(Some(35), true), whole);
        assert_eq!(
            render_at(Some(28), true).lines().collect::<Vec<_>>(),
            ["ID  WHO       SIZE  WHY", "1   somebody   12K  because…", "22  漢字         3"]
        );
        assert_eq!(render_at(Some(20), true), "ID  WHO   SIZE  WHY\n1   som…   12K  bec…\n22  漢字     3");
        assert_eq!(render_at(Some(14), true), "ID  WHO   SIZE\n1   som…   12K\n22  漢字     3");
        assert_eq!(render_at(Some(3), false), "1   som…  12K\n22  漢字    3");
    }

    #[test]
    fn foreign_escape_sequences_are_escaped_in_colour() {
        let row = vec![vec![Cell::new("\u{1b}[2J").tone(Tone::Bad), "x".into()]];
        let format = TableFormat { width: None, headers: false, colour: true };
        let text = render(&[Column::new("A"), Column::new("B")], &row, format);
        assert_eq!(text, "\u{1b}[1m\u{1b}[31m\\u{1b}[2J\u{1b}[0m  x");
        let text =
            render(&[Column::new("A"), Column::new("B")], &row, TableFormat { colour: false, ..format });
        assert_eq!(text, "\\u{1b}[2J  x");
    }
}
