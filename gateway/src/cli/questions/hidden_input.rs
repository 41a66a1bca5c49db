//! Input that a terminal does not show.

use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use std::io::{self, IsTerminal as _, Write as _};

/// Terminal without echo; the mode is restored on drop.
pub(super) struct HiddenInput(Option<Termios>);

impl HiddenInput {
    /// Switches the echo off, if standard input is a terminal.
    pub(super) fn start() -> Self {
        let stdin = io::stdin();
        if !stdin.is_terminal() {
            return Self(None);
        }
        let before = tcgetattr(&stdin).ok();
        if let Some(mut hidden) = before.clone() {
            hidden.local_modes.remove(LocalModes::ECHO);
            let _ = tcsetattr(&stdin, OptionalActions::Flush, &hidden);
        }
        Self(before)
    }
}

impl Drop for HiddenInput {
    fn drop(&mut self) {
        if let Some(before) = &self.0 {
            let _ = tcsetattr(io::stdin(), OptionalActions::Now, before);
            // The line end of the answer was not shown.
            let _ = io::stderr().write_all(b"\n");
        }
    }
}
