//! Terminal of the live view: configured at the start, and restored at every exit.

use super::view::{KeyOutcome, View};
use super::{LeaseFeed, WatchArgs, WatchSignals};
use crate::cli::CliError;
use ratatui_core::terminal::Terminal;
use ratatui_crossterm::CrosstermBackend;
use ratatui_crossterm::crossterm::cursor::{Hide, Show};
use ratatui_crossterm::crossterm::event::{self, Event, KeyEventKind};
use ratatui_crossterm::crossterm::execute;
use ratatui_crossterm::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use std::io::{self, Stdout};
use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;

/// Capacity of the key event queue; the reader waits while it is full.
const KEYS_QUEUED_MAX: usize = 64;

/// Terminal in the mode of the live view. Dropping it restores the terminal.
struct Screen {
    terminal: Terminal<CrosstermBackend<Stdout>>,
}

impl Screen {
    fn enter() -> io::Result<Self> {
        enable_raw_mode()?;
        let entered = execute!(io::stdout(), EnterAlternateScreen, Hide)
            .and_then(|()| Terminal::new(CrosstermBackend::new(io::stdout())));
        match entered {
            Ok(terminal) => Ok(Self { terminal }),
            Err(error) => {
                restore();
                Err(error)
            }
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore();
    }
}

fn restore() {
    // Errors are ignored: a terminal that is gone needs no restoration.
    drop(disable_raw_mode());
    drop(execute!(io::stdout(), LeaveAlternateScreen, Show));
}

/// Installs a panic hook that restores the terminal before the message is printed.
fn restore_on_panic() {
    let next = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        restore();
        next(info);
    }));
}

/// Reads terminal events in a thread of its own, because the read cannot be interrupted.
fn keys() -> mpsc::Receiver<io::Result<Event>> {
    let (sender, keys) = mpsc::channel(KEYS_QUEUED_MAX);
    std::thread::spawn(move || {
        loop {
            let event = event::read();
            let over = event.is_err();
            if sender.blocking_send(event).is_err() || over {
                return;
            }
        }
    });
    keys
}

pub(super) async fn run(
    feed: &mut LeaseFeed,
    args: &WatchArgs,
    mut signals: WatchSignals,
    colour: bool,
) -> Result<(), CliError> {
    let mut view = View::new(args, colour);
    restore_on_panic();
    let mut screen = Screen::enter()?;
    let mut keys = keys();
    let mut ticks = tokio::time::interval(args.interval());
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            code = signals.exit() => return Err(CliError::Ended(code)),
            _ = ticks.tick() => {
                let looked = tokio::select! {
                    looked = feed.next(true) => looked,
                    code = signals.exit() => return Err(CliError::Ended(code)),
                };
                view.update(looked.map_err(|error| error.message()), crate::context::wall_ms());
            }
            key = keys.recv() => match key {
                Some(Ok(Event::Key(key))) if key.kind != KeyEventKind::Release => match view.key(key) {
                    KeyOutcome::Stay => {}
                    KeyOutcome::Leave => return Ok(()),
                    KeyOutcome::Interrupted => return Err(CliError::Ended(130)),
                },
                // A resize is handled by the next draw.
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(CliError::Output(error)),
                None => return Ok(()),
            }
        }
        screen.terminal.draw(|frame| view.draw(frame.buffer_mut()))?;
    }
}
