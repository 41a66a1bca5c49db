//! Input line of `chat`: several lines, history, completion. No I/O besides the history's file. The buffer and the history
//! are those of rustyline.

use crate::cli::chat::completion::{Completion, CompletionData, common_start, complete};
use crate::cli::chat::styled::{BOLD, DIM, PLAIN, StyledLine};
use acp_core::sanitize::is_hidden;
use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use rustyline::history::{FileHistory, History, SearchDirection};
use rustyline::line_buffer::{ChangeListener, DeleteListener, Direction, LineBuffer};
use rustyline::{At, Word};
use std::path::{Path, PathBuf};
use unicode_segmentation::UnicodeSegmentation;
use unicode_width::UnicodeWidthStr;

/// Maximum size of the input, in bytes.
const INPUT_BYTES_MAX: usize = 1024 * 1024;
/// Maximum number of entries in the history.
const HISTORY_ENTRIES_MAX: usize = 1_000;
/// Maximum number of candidates in the list below the input.
const CANDIDATES_SHOWN: usize = 6;

/// Ignores changes of the buffer.
struct NoListener;

impl DeleteListener for NoListener {
    fn delete(&mut self, _: usize, _: &str, _: Direction) {}
}

impl ChangeListener for NoListener {
    fn insert_char(&mut self, _: usize, _: char) {}
    fn insert_str(&mut self, _: usize, _: &str) {}
    fn replace(&mut self, _: usize, _: &str, _: &str) {}
}

/// Open list of candidates.
#[derive(Debug)]
struct Menu {
    completion: Completion,
    selected: Option<usize>,
}

/// Result of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum EditorOutcome {
    /// The text changed, or the key has no meaning.
    Edited,
    /// The text is complete.
    Submitted(String),
}

/// Input of a person.
pub(crate) struct Editor {
    buffer: LineBuffer,
    history: FileHistory,
    path: PathBuf,
    /// Entry of the history that is shown, and the text before it was.
    recalled: Option<(usize, String)>,
    /// Text that Ctrl-R searches, and the entry found last.
    search: Option<(String, usize)>,
    killed: String,
    menu: Option<Menu>,
}

impl Editor {
    /// Creates an editor with the history of a file.
    pub(crate) fn new(path: &Path) -> Self {
        let mut history = FileHistory::new();
        // Neither fails for a history in memory; without a file it is empty.
        let _ = history.set_max_len(HISTORY_ENTRIES_MAX).and_then(|()| history.ignore_dups(true));
        let _ = history.load(path);
        Self {
            buffer: LineBuffer::with_capacity(INPUT_BYTES_MAX),
            history,
            path: path.to_owned(),
            recalled: None,
            search: None,
            killed: String::new(),
            menu: None,
        }
    }

    /// Returns the text.
    pub(crate) fn text(&self) -> &str {
        self.buffer.as_str()
    }

    /// True without text.
    pub(crate) fn is_empty(&self) -> bool {
        self.buffer.is_empty()
    }

    /// Replaces the text.
    pub(crate) fn set(&mut self, text: &str) {
        let end = text.len().min(INPUT_BYTES_MAX);
        let text = text.get(..end).unwrap_or_default();
        self.buffer.update(text, text.len(), &mut NoListener);
        self.menu = None;
    }

    /// Returns the text, adds it to the history, and empties the input.
    pub(crate) fn take(&mut self) -> String {
        let text = self.text().to_owned();
        self.set("");
        self.recalled = None;
        if !text.trim().is_empty() && self.history.add(&text).unwrap_or(false) {
            // A history that cannot be saved does not end the chat.
            let _ = self.history.append(&self.path);
        }
        text
    }

    /// Inserts pasted text, without control characters other than line feeds and tabs.
    pub(crate) fn paste(&mut self, text: &str) {
        let text = text.replace("\r\n", "\n").replace('\r', "\n");
        let text: String = text.chars().filter(|c| *c == '\n' || !is_hidden(*c)).collect();
        self.menu = None;
        // A text that does not fit is not inserted.
        let _ = self.buffer.yank(&text, 1, &mut NoListener);
    }

    /// Handles a key.
    pub(crate) fn key(&mut self, key: KeyEvent, data: &CompletionData) -> EditorOutcome {
        let is_tab = matches!(key.code, KeyCode::Tab | KeyCode::BackTab);
        if is_tab {
            self.tab(key.code == KeyCode::BackTab, data);
            return EditorOutcome::Edited;
        }
        let had_menu = self.menu.take().is_some();
        let search = self.search.take();
        let (alt, control) =
            (key.modifiers.contains(KeyModifiers::ALT), key.modifiers.contains(KeyModifiers::CONTROL));
        let is_newline = alt || key.modifiers.contains(KeyModifiers::SHIFT);
        match key.code {
            KeyCode::Enter if is_newline => self.paste("\n"),
            KeyCode::Enter => return self.enter(),
            // A line that was typed before the terminal was in raw mode ends so.
            KeyCode::Char('j') if control => return self.enter(),
            KeyCode::Esc if had_menu => {}
            KeyCode::Esc => {
                if let Some((text, _)) = search {
                    self.set(&text);
                }
            }
            KeyCode::Char('r') if control => self.search_back(search),
            KeyCode::Char(c) if control || alt => self.chord(c.to_ascii_lowercase(), control),
            KeyCode::Char(c) => self.paste(c.encode_utf8(&mut [0; 4])),
            code => self.motion(code, alt || control),
        }
        EditorOutcome::Edited
    }

    /// Ends the text; after a backslash at its end, begins another line.
    fn enter(&mut self) -> EditorOutcome {
        if self.text().trim().is_empty() {
            return EditorOutcome::Edited;
        }
        if self.buffer.is_cursor_at_end() && self.text().ends_with('\\') {
            self.buffer.backspace(1, &mut NoListener);
            self.paste("\n");
            return EditorOutcome::Edited;
        }
        EditorOutcome::Submitted(self.take())
    }

    fn motion(&mut self, code: KeyCode, by_word: bool) {
        match code {
            KeyCode::Backspace if by_word => self.kill_word_before(),
            KeyCode::Backspace => {
                self.buffer.backspace(1, &mut NoListener);
            }
            KeyCode::Delete => {
                self.buffer.delete(1, &mut NoListener);
            }
            KeyCode::Left if by_word => {
                self.buffer.move_to_prev_word(Word::Emacs, 1);
            }
            KeyCode::Right if by_word => {
                self.buffer.move_to_next_word(At::AfterEnd, Word::Emacs, 1);
            }
            KeyCode::Left => {
                self.buffer.move_backward(1);
            }
            KeyCode::Right => {
                self.buffer.move_forward(1);
            }
            KeyCode::Home => {
                self.buffer.move_home();
            }
            KeyCode::End => {
                self.buffer.move_end();
            }
            KeyCode::Up if !self.move_line(true) => self.recall(true),
            KeyCode::Down if !self.move_line(false) => self.recall(false),
            _ => {}
        }
    }

    fn chord(&mut self, c: char, control: bool) {
        match (c, control) {
            ('a', true) => self.motion(KeyCode::Home, false),
            ('e', true) => self.motion(KeyCode::End, false),
            ('b', _) => self.motion(KeyCode::Left, !control),
            ('f', _) => self.motion(KeyCode::Right, !control),
            ('d', true) => self.motion(KeyCode::Delete, false),
            ('h', true) => self.motion(KeyCode::Backspace, false),
            ('p', true) => self.recall(true),
            ('n', true) => self.recall(false),
            ('w', true) => self.kill_word_before(),
            ('u', true) => {
                let (text, end) = (self.text().to_owned(), self.buffer.pos());
                let start = text.get(..end).and_then(|before| before.rfind('\n')).map_or(0, |at| at + 1);
                self.kill(start, end);
            }
            ('k', true) => {
                let (text, start) = (self.text().to_owned(), self.buffer.pos());
                let end =
                    text.get(start..).and_then(|rest| rest.find('\n')).map_or(text.len(), |at| start + at);
                self.kill(start, end);
            }
            ('d', false) => {
                let start = self.buffer.pos();
                self.buffer.move_to_next_word(At::AfterEnd, Word::Emacs, 1);
                self.kill(start, self.buffer.pos());
            }
            ('y', true) => {
                let killed = self.killed.clone();
                self.paste(&killed);
            }
            _ => {}
        }
    }

    fn kill_word_before(&mut self) {
        let end = self.buffer.pos();
        self.buffer.move_to_prev_word(Word::Big, 1);
        self.kill(self.buffer.pos(), end);
    }

    fn kill(&mut self, start: usize, end: usize) {
        if start < end {
            self.killed = self.text().get(start..end).unwrap_or_default().to_owned();
            self.buffer.delete_range(start..end, &mut NoListener);
            self.buffer.set_pos(start);
        }
    }

    /// Moves the cursor to the line above or below; false if there is none.
    fn move_line(&mut self, is_up: bool) -> bool {
        let (text, pos) = (self.text().to_owned(), self.buffer.pos());
        let start = text.get(..pos).and_then(|before| before.rfind('\n')).map_or(0, |at| at + 1);
        let column = text.get(start..pos).map_or(0, |before| before.graphemes(true).count());
        let line = if is_up {
            let Some(end) = start.checked_sub(1) else { return false };
            let from = text.get(..end).and_then(|before| before.rfind('\n')).map_or(0, |at| at + 1);
            (from, end)
        } else {
            let Some(next) = text.get(pos..).and_then(|rest| rest.find('\n')) else { return false };
            let from = pos + next + 1;
            let end = text.get(from..).and_then(|rest| rest.find('\n')).map_or(text.len(), |at| from + at);
            (from, end)
        };
        let target = text.get(line.0..line.1).unwrap_or_default();
        let offset = target.grapheme_indices(true).nth(column).map_or(target.len(), |(at, _)| at);
        self.buffer.set_pos(line.0 + offset);
        true
    }

    /// Shows the entry of the history before or after the one that is shown.
    fn recall(&mut self, is_back: bool) {
        let count = self.history.len();
        let (at, draft) = match (self.recalled.take(), is_back) {
            (None, true) if count > 0 => (count - 1, self.text().to_owned()),
            (None, _) => return,
            (Some((at, draft)), true) => (at.saturating_sub(1), draft),
            (Some((at, draft)), false) if at + 1 < count => (at + 1, draft),
            (Some((_, draft)), false) => {
                self.set(&draft);
                return;
            }
        };
        let direction = if is_back { SearchDirection::Reverse } else { SearchDirection::Forward };
        if let Ok(Some(found)) = self.history.get(at, direction) {
            let text = found.entry.into_owned();
            self.set(&text);
        }
        self.recalled = Some((at, draft));
    }

    /// Shows the newest entry of the history that contains the text, or the next older one than the one found last.
    fn search_back(&mut self, last: Option<(String, usize)>) {
        if last.is_none() && self.is_empty() {
            return self.recall(true);
        }
        let (text, before) = last.unwrap_or_else(|| (self.text().to_owned(), self.history.len()));
        let found = before
            .checked_sub(1)
            .and_then(|start| self.history.search(&text, start, SearchDirection::Reverse).ok().flatten());
        let at = match found {
            Some(found) => {
                let (entry, at) = (found.entry.into_owned(), found.idx);
                self.set(&entry);
                at
            }
            // The oldest one stays.
            None => before,
        };
        self.search = Some((text, at));
    }

    fn tab(&mut self, is_back: bool, data: &CompletionData) {
        if let Some(menu) = &mut self.menu {
            let count = menu.completion.candidates.len();
            let next = match (menu.selected, is_back) {
                (None, false) => 0,
                (None, true) => count - 1,
                (Some(at), false) => (at + 1) % count,
                (Some(at), true) => (at + count - 1) % count,
            };
            menu.selected = Some(next);
            let (start, candidate) = (menu.completion.start, menu.completion.candidates.get(next));
            let word = candidate.map(|candidate| candidate.word.clone()).unwrap_or_default();
            self.replace_from(start, &word);
            return;
        }
        let before = self.text().get(..self.buffer.pos()).unwrap_or_default();
        let Some(completion) = complete(before, data) else { return };
        match completion.candidates.as_slice() {
            [only] => {
                let word = format!("{} ", only.word);
                self.replace_from(completion.start, &word);
            }
            several => {
                let shared = common_start(several);
                if shared.len() > before.len() - completion.start {
                    self.replace_from(completion.start, &shared);
                }
                self.menu = Some(Menu { completion, selected: None });
            }
        }
    }

    fn replace_from(&mut self, start: usize, word: &str) {
        let end = self.buffer.pos();
        self.buffer.delete_range(start..end, &mut NoListener);
        self.buffer.set_pos(start);
        let _ = self.buffer.yank(word, 1, &mut NoListener);
    }

    /// Lays out the input at a width: its rows, and row and column of the cursor. Shows at most `rows_max` rows, among them
    /// that of the cursor.
    pub(crate) fn layout(&self, width: usize, rows_max: usize) -> (Vec<StyledLine>, (usize, usize)) {
        let room = width.saturating_sub(3).max(4);
        let (mut rows, mut cursor, mut at) = (Vec::new(), (0, 2), 0);
        for line in self.text().split('\n') {
            let (mut row, mut used) = (String::new(), 0);
            for grapheme in line.graphemes(true) {
                let shown = if grapheme == "\t" { "  " } else { grapheme };
                if used + shown.width() > room {
                    rows.push(std::mem::take(&mut row));
                    used = 0;
                }
                if at == self.buffer.pos() {
                    cursor = (rows.len(), used + 2);
                }
                row.push_str(shown);
                used += shown.width();
                at += grapheme.len();
            }
            if at == self.buffer.pos() {
                cursor = (rows.len(), used + 2);
            }
            rows.push(row);
            at += 1;
        }
        let first = (cursor.0 + 1).saturating_sub(rows_max.max(1));
        let shown = rows.iter().enumerate().skip(first).take(rows_max.max(1)).map(|(at, row)| {
            let mark = if at == 0 { StyledLine::new("> ", BOLD) } else { StyledLine::new("  ", PLAIN) };
            mark.with(row, PLAIN)
        });
        (shown.collect(), (cursor.0 - first, cursor.1))
    }

    /// Returns the list of candidates below the input.
    pub(crate) fn menu_lines(&self) -> Vec<StyledLine> {
        let Some(menu) = &self.menu else { return Vec::new() };
        let count = menu.completion.candidates.len();
        let first = menu.selected.map_or(0, |at| (at + 1).saturating_sub(CANDIDATES_SHOWN));
        let candidates = menu.completion.candidates.iter().enumerate().skip(first).take(CANDIDATES_SHOWN);
        let mut lines: Vec<StyledLine> = candidates
            .map(|(at, candidate)| {
                let is_selected = menu.selected == Some(at);
                let mark = if is_selected { "› " } else { "  " };
                let line =
                    StyledLine::new(mark, BOLD).with(&candidate.word, if is_selected { BOLD } else { PLAIN });
                if candidate.note.is_empty() {
                    line
                } else {
                    line.with(&format!("  {}", candidate.note), DIM)
                }
            })
            .collect();
        if count > CANDIDATES_SHOWN {
            lines.push(StyledLine::new(&format!("  {count} candidates; Tab selects the next"), DIM));
        }
        lines
    }
}

#[cfg(test)]
mod tests;
