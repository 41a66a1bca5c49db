//! Terminal of a chat: raw mode, keys, and the drawing of lines above a live area. The terminal is restored at every exit.
//!
//! The live area is drawn at the end of the normal screen, so that everything above it stays in the terminal's history. No
//! question is asked of the terminal: a position is always relative to the last drawing.

use crate::cli::chat::live_area::LiveArea;
use crate::cli::chat::styled::StyledLine;
use crossterm::cursor::{Hide, MoveToColumn, MoveUp, Show};
use crossterm::event::{self, DisableBracketedPaste, EnableBracketedPaste, Event};
use crossterm::style::Print;
use crossterm::terminal::{
    BeginSynchronizedUpdate, Clear, ClearType, EndSynchronizedUpdate, disable_raw_mode, enable_raw_mode, size,
};
use crossterm::{execute, queue};
use std::io::{self, Write};
use tokio::sync::mpsc;

/// Capacity of the queue of keys; the reader waits while it is full.
const KEYS_QUEUED_MAX: usize = 256;
/// Assumed size of a terminal that reports none.
const DEFAULT_SIZE: (u16, u16) = (80, 24);

/// Terminal in raw mode.
pub(crate) struct ChatTerminal {
    output: io::Stdout,
    is_coloured: bool,
    /// Columns and rows.
    size: (usize, usize),
    /// Widths of the lines of the live area, and the row of the cursor, as drawn last.
    drawn: (Vec<usize>, usize),
    /// Live area as drawn last.
    area: LiveArea,
}

impl ChatTerminal {
    /// Enters raw mode.
    ///
    /// # Errors
    /// The terminal does not allow it.
    pub(crate) fn enter(is_coloured: bool) -> io::Result<Self> {
        enable_raw_mode()?;
        restore_on_panic();
        let mut terminal = Self {
            output: io::stdout(),
            is_coloured,
            size: (0, 0),
            drawn: (Vec::new(), 0),
            area: LiveArea::default(),
        };
        terminal.measure();
        execute!(terminal.output, EnableBracketedPaste)?;
        Ok(terminal)
    }

    /// Returns columns and rows.
    pub(crate) const fn size(&self) -> (usize, usize) {
        self.size
    }

    /// Reads the size again.
    pub(crate) fn measure(&mut self) {
        let (columns, rows) =
            size().ok().filter(|(columns, rows)| *columns > 0 && *rows > 0).unwrap_or(DEFAULT_SIZE);
        self.size = (usize::from(columns), usize::from(rows));
    }

    /// Rows between the first row of the live area and the cursor. A terminal that became narrower has wrapped lines.
    fn rows_above_cursor(&self) -> usize {
        let rows = |width: &usize| width.saturating_sub(1) / self.size.0.max(1) + 1;
        self.drawn.0.iter().take(self.drawn.1).map(rows).sum()
    }

    /// Prints lines above the live area, and draws the live area.
    ///
    /// # Errors
    /// The terminal is gone.
    pub(crate) fn draw(&mut self, printed: &[StyledLine], area: LiveArea) -> io::Result<()> {
        if printed.is_empty() && area == self.area {
            return Ok(());
        }
        self.erase()?;
        for line in printed {
            queue!(self.output, Print(line.render(self.is_coloured)), Print("\r\n"))?;
        }
        for (at, line) in area.lines.iter().enumerate() {
            let end = if at == 0 { "" } else { "\r\n" };
            queue!(self.output, Print(end), Print(line.render(self.is_coloured)))?;
        }
        let below = area.lines.len().saturating_sub(area.cursor.0 + 1);
        if below > 0 {
            queue!(self.output, MoveUp(u16::try_from(below).unwrap_or(u16::MAX)))?;
        }
        let column = u16::try_from(area.cursor.1).unwrap_or(u16::MAX);
        queue!(self.output, MoveToColumn(column), Show, EndSynchronizedUpdate)?;
        self.drawn = (area.lines.iter().map(StyledLine::width).collect(), area.cursor.0);
        self.area = area;
        self.output.flush()
    }

    /// Removes the live area.
    fn erase(&mut self) -> io::Result<()> {
        let above = u16::try_from(self.rows_above_cursor()).unwrap_or(u16::MAX);
        queue!(self.output, BeginSynchronizedUpdate, Hide)?;
        if above > 0 {
            queue!(self.output, MoveUp(above))?;
        }
        queue!(self.output, MoveToColumn(0), Clear(ClearType::FromCursorDown))?;
        self.drawn = (Vec::new(), 0);
        Ok(())
    }

    /// Draws the live area on an empty screen next time.
    ///
    /// # Errors
    /// The terminal is gone.
    pub(crate) fn clear(&mut self) -> io::Result<()> {
        self.drawn = (Vec::new(), 0);
        self.area = LiveArea::default();
        execute!(self.output, Clear(ClearType::All), crossterm::cursor::MoveTo(0, 0))
    }

    /// Writes the sequence of a notification.
    ///
    /// # Errors
    /// The terminal is gone.
    pub(crate) fn notify(&mut self, sequence: &str) -> io::Result<()> {
        execute!(self.output, Print(sequence))
    }

    /// Restores the terminal, stops this process as Ctrl-Z does, and draws again when it continues. The kernel does not stop
    /// a process that no shell could continue.
    ///
    /// # Errors
    /// The terminal is gone.
    pub(crate) fn suspend(&mut self) -> io::Result<()> {
        self.erase()?;
        self.output.flush()?;
        restore();
        // To this process itself.
        nix::sys::signal::raise(nix::sys::signal::Signal::SIGTSTP)?;
        self.resume()
    }

    /// Enters raw mode again, and draws the live area below everything else: after a stop, the screen is a shell's.
    ///
    /// # Errors
    /// The terminal does not allow it.
    pub(crate) fn resume(&mut self) -> io::Result<()> {
        // The modes that crossterm believes to be set may be those of the shell.
        disable_raw_mode()?;
        enable_raw_mode()?;
        self.measure();
        self.drawn = (Vec::new(), 0);
        self.area = LiveArea::default();
        execute!(self.output, EnableBracketedPaste, MoveToColumn(0), Clear(ClearType::FromCursorDown))
    }

    /// Removes the live area, prints the last lines, and leaves raw mode.
    ///
    /// # Errors
    /// The terminal is gone.
    pub(crate) fn leave(mut self, printed: &[StyledLine]) -> io::Result<()> {
        self.erase()?;
        for line in printed {
            queue!(self.output, Print(line.render(self.is_coloured)), Print("\r\n"))?;
        }
        queue!(self.output, Show, EndSynchronizedUpdate)?;
        self.output.flush()
    }
}

impl Drop for ChatTerminal {
    fn drop(&mut self) {
        restore();
    }
}

fn restore() {
    // Errors are ignored: a terminal that is gone needs no restoration.
    drop(execute!(io::stdout(), DisableBracketedPaste, Show, EndSynchronizedUpdate));
    drop(disable_raw_mode());
}

/// Installs a panic hook that restores the terminal before the message is printed.
fn restore_on_panic() {
    let next = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        restore();
        next(info);
    }));
}

/// Reads keys in a thread of its own, because the read cannot be interrupted. It ends with the process.
pub(crate) fn keys() -> mpsc::Receiver<io::Result<Event>> {
    let (sender, keys) = mpsc::channel(KEYS_QUEUED_MAX);
    std::thread::spawn(move || {
        loop {
            let event = event::read();
            let is_over = event.is_err();
            if sender.blocking_send(event).is_err() || is_over {
                return;
            }
        }
    });
    keys
}
