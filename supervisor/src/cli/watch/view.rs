//! Live view: its content and key handling. Draws into a buffer, without access to a terminal.

use super::WatchArgs;
use crate::cli::leases::select::{Filter, SortKey, sort};
use crate::cli::leases::{id_abbreviations, rows, show};
use crate::cli::table::{Cell, GAP, TableFormat, Tone, widths};
use crate::cli::text;
use acp_shared::ids::LeaseId;
use acp_shared::protocol::LeaseInfo;
use acp_shared::sanitize;
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::{Color, Modifier, Style};
use ratatui_crossterm::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

const KEYS: &str = "↑↓ select  ⏎ details  / filter  s sort  r reverse  a ended too  q quit";

/// Result of a key press.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KeyOutcome {
    Stay,
    Leave,
    Interrupted,
}

/// Order of the rows.
#[derive(Debug, Clone, Copy)]
struct RowOrder {
    key: SortKey,
    reverse: bool,
}

/// Search text for sessions, ids and states.
#[derive(Debug, Default)]
struct SearchField {
    text: String,
    /// True while the text is being edited.
    is_edited: bool,
}

/// State of the live view.
#[derive(Debug)]
pub(super) struct View {
    filter: Filter,
    order: RowOrder,
    /// True if ended leases are shown.
    ended: bool,
    search: SearchField,
    details: bool,
    selected: Option<LeaseId>,
    /// Index of the first visible row.
    top: usize,
    /// Number of rows that fitted on the last draw.
    page: usize,
    leases: Vec<LeaseInfo>,
    failure: Option<String>,
    now_ms: u64,
    colour: bool,
}

impl View {
    pub(super) fn new(args: &WatchArgs, colour: bool) -> Self {
        Self {
            filter: args.filter.clone(),
            order: RowOrder { key: args.sort, reverse: false },
            // A filter by state includes ended leases.
            ended: !args.filter.state.is_empty(),
            search: SearchField::default(),
            details: false,
            selected: None,
            top: 0,
            page: 1,
            leases: Vec::new(),
            failure: None,
            now_ms: 0,
            colour,
        }
    }

    /// Takes the result of a poll: the leases, or the error text.
    pub(super) fn update(&mut self, polled: Result<Vec<LeaseInfo>, String>, now_ms: u64) {
        self.now_ms = now_ms;
        match polled {
            Ok(leases) => (self.leases, self.failure) = (leases, None),
            Err(why) => self.failure = Some(why),
        }
    }

    /// Returns the leases that pass all filters, sorted.
    fn filtered_leases(&self) -> Vec<LeaseInfo> {
        let contains = |text: &str| text.to_lowercase().contains(&self.search.text.to_lowercase());
        let fits = |l: &&LeaseInfo| {
            (self.ended || !l.state.is_ended())
                && self.filter.fits(l, self.now_ms)
                && (contains(l.session_key.as_str())
                    || contains(&l.lease_id.to_string())
                    || contains(&l.gateway_instance_id.to_string())
                    || contains(l.state.as_str()))
        };
        let mut shown: Vec<LeaseInfo> = self.leases.iter().filter(fits).cloned().collect();
        sort(&mut shown, self.order.key, self.order.reverse);
        shown
    }

    /// Handles a key press.
    pub(super) fn key(&mut self, key: KeyEvent) -> KeyOutcome {
        if key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c') {
            return KeyOutcome::Interrupted;
        }
        if self.search.is_edited {
            self.edit_filter(key.code);
            return KeyOutcome::Stay;
        }
        match key.code {
            KeyCode::Char('q') => return KeyOutcome::Leave,
            // Esc goes one step back; from the first step it leaves the view.
            KeyCode::Esc if self.details => self.details = false,
            KeyCode::Esc if !self.search.text.is_empty() => self.search.text.clear(),
            KeyCode::Esc => return KeyOutcome::Leave,
            KeyCode::Char('/') => self.search.is_edited = true,
            KeyCode::Char('s') => self.order.key = self.order.key.next(),
            KeyCode::Char('r') => self.order.reverse = !self.order.reverse,
            KeyCode::Char('a') => self.ended = !self.ended,
            KeyCode::Enter => self.details = !self.details,
            KeyCode::Down | KeyCode::Char('j') => self.move_selection(|at, _| at.map_or(0, |at| at + 1)),
            KeyCode::Up | KeyCode::Char('k') => {
                self.move_selection(|at, _| at.map_or(0, |at| at.saturating_sub(1)))
            }
            KeyCode::PageDown => self.move_selection(|at, page| at.unwrap_or(0) + page),
            KeyCode::PageUp => self.move_selection(|at, page| at.unwrap_or(0).saturating_sub(page)),
            KeyCode::Home | KeyCode::Char('g') => self.move_selection(|_, _| 0),
            KeyCode::End | KeyCode::Char('G') => self.move_selection(|_, _| usize::MAX),
            _ => {}
        }
        KeyOutcome::Stay
    }

    fn edit_filter(&mut self, code: KeyCode) {
        match code {
            KeyCode::Enter => self.search.is_edited = false,
            KeyCode::Esc => {
                self.search.is_edited = false;
                self.search.text.clear();
            }
            KeyCode::Backspace => {
                self.search.text.pop();
            }
            KeyCode::Char(c) if !sanitize::is_hidden(c) => self.search.text.push(c),
            _ => {}
        }
    }

    fn move_selection(&mut self, to: impl FnOnce(Option<usize>, usize) -> usize) {
        let shown = self.filtered_leases();
        let at = shown.iter().position(|l| Some(l.lease_id) == self.selected);
        let to = to(at, self.page).min(shown.len().saturating_sub(1));
        self.selected = shown.get(to).map(|l| l.lease_id);
    }

    /// Draws the view.
    pub(super) fn draw(&mut self, buffer: &mut Buffer) {
        let area = buffer.area;
        let shown = self.filtered_leases();
        if self.selected.is_some_and(|id| shown.iter().all(|l| l.lease_id != id)) {
            self.selected = None;
        }
        let details = self.detail_lines(&shown);
        let height = usize::from(area.height);
        // Header, footer and column names are always shown; details take at most half of the other lines.
        let room = height.saturating_sub(3);
        let below = if details.is_empty() { 0 } else { (details.len() + 1).min(room / 2) };
        self.page = (room - below).max(1);
        self.put(buffer, 0, &[(self.head(&shown), self.style(Tone::Bold))]);
        let failure = self.failure.clone();
        self.table(buffer, &shown);
        for (n, line) in details.iter().take(below.saturating_sub(1)).enumerate() {
            self.put(buffer, height - 1 - below + 1 + n, &[(line.clone(), Style::new())]);
        }
        let foot = match (failure, self.search.is_edited) {
            (Some(why), _) => (format!("no answer, retrying: {}", text::plain(&why)), self.style(Tone::Bad)),
            (None, true) => (format!("filter: {}▏", self.search.text), Style::new()),
            (None, false) => (KEYS.to_owned(), self.style(Tone::Dim)),
        };
        self.put(buffer, height.saturating_sub(1), &[foot]);
    }

    fn head(&self, shown: &[LeaseInfo]) -> String {
        let living = self.leases.iter().filter(|l| !l.state.is_ended()).count();
        let arrow = if self.order.reverse { "↑" } else { "↓" };
        let filter = if self.search.text.is_empty() {
            String::new()
        } else {
            format!("  filter: {}", self.search.text)
        };
        format!(
            "{living} living, {} ended  shown: {}  sort: {}{arrow}{filter}  {}",
            self.leases.len() - living,
            shown.len(),
            self.order.key.name(),
            text::time(self.now_ms),
        )
    }

    fn detail_lines(&self, shown: &[LeaseInfo]) -> Vec<String> {
        let selected = shown.iter().find(|l| self.details && Some(l.lease_id) == self.selected);
        let Some(lease) = selected else { return Vec::new() };
        let rows = show::sections(lease, self.now_ms).into_iter().flat_map(|(_, rows)| rows);
        rows.map(|(name, value)| format!("  {name:<13} {}", value.text())).collect()
    }

    fn table(&mut self, buffer: &mut Buffer, shown: &[LeaseInfo]) {
        let short = id_abbreviations(&self.leases);
        let cells: Vec<Vec<Cell>> = shown.iter().map(|l| rows::narrow(l, short, self.now_ms)).collect();
        let look = TableFormat { width: Some(usize::from(buffer.area.width)), headers: true, colour: false };
        let fitted = widths(&rows::NARROW, &cells, look);
        let part = |at: usize, w: usize, cell: &Cell, style: Style| {
            let text = text::cut(cell.text(), w);
            let rest = " ".repeat(w.saturating_sub(text::width(&text)));
            let right = rows::NARROW.get(at).is_some_and(|column| column.right);
            let text = if right { format!("{rest}{text}") } else { format!("{text}{rest}") };
            (format!("{text}{}", " ".repeat(GAP)), style)
        };
        let titles: Vec<(String, Style)> = fitted
            .iter()
            .map(|(at, w)| {
                let title = rows::NARROW.get(*at).map_or("", |column| column.title);
                part(*at, *w, &Cell::new(title), self.style(Tone::Bold))
            })
            .collect();
        self.put(buffer, 1, &titles);
        let at = shown.iter().position(|l| Some(l.lease_id) == self.selected);
        let last = shown.len().saturating_sub(self.page);
        self.top = self.top.min(last);
        if let Some(at) = at {
            self.top = self.top.min(at).max((at + 1).saturating_sub(self.page));
        }
        if shown.is_empty() {
            self.put(buffer, 2, &[("no leases".to_owned(), self.style(Tone::Dim))]);
        }
        let rows = cells.iter().zip(shown).skip(self.top).take(self.page);
        for (n, (row, lease)) in rows.enumerate() {
            let chosen = Some(lease.lease_id) == self.selected;
            let parts: Vec<(String, Style)> = fitted
                .iter()
                .filter_map(|(at, w)| {
                    let cell = row.get(*at)?;
                    let style = self.style(cell.is());
                    let style = if chosen { style.add_modifier(Modifier::REVERSED) } else { style };
                    Some(part(*at, *w, cell, style))
                })
                .collect();
            self.put(buffer, 2 + n, &parts);
        }
    }

    /// Writes texts one after the other into a line, up to its width.
    fn put(&self, buffer: &mut Buffer, line: usize, parts: &[(String, Style)]) {
        let Rect { width, height, .. } = buffer.area;
        let Some(y) = u16::try_from(line).ok().filter(|y| *y < height) else { return };
        let mut x = 0;
        for (text, style) in parts {
            if x < width {
                (x, _) = buffer.set_stringn(x, y, text, usize::from(width - x), *style);
            }
        }
    }

    fn style(&self, tone: Tone) -> Style {
        let style = Style::new();
        if !self.colour {
            return style;
        }
        match tone {
            Tone::Plain => style,
            Tone::Dim => style.add_modifier(Modifier::DIM),
            Tone::Bold => style.add_modifier(Modifier::BOLD),
            Tone::Good => style.fg(Color::Green),
            Tone::Warn => style.fg(Color::Yellow),
            Tone::Bad => style.fg(Color::Red),
        }
    }
}

#[cfg(test)]
#[path = "view_tests.rs"]
mod tests;
