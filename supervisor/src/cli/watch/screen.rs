//! The terminal of the live view: taken when it begins, and given back however it ends.

use super::view::{Next, View};
use super::{Feed, Signals, WatchArgs};
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

/// Keys that wait to be taken; who types faster waits.
const KEYS_QUEUED_MAX: usize = 64;

/// The terminal while the view has it. Dropping it gives it back.
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
    // A terminal that is gone needs nothing any more.
    drop(disable_raw_mode());
    drop(execute!(io::stdout(), LeaveAlternateScreen, Show));
}

/// A panic gives the terminal back before it is printed, so that it can be read.
fn restore_on_panic() {
    let next = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        restore();
        next(info);
    }));
}

/// What the terminal says, from a thread of its own: reading it cannot be interrupted.
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
    feed: &mut Feed,
    args: &WatchArgs,
    mut signals: Signals,
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
                view.take(looked.map_err(|error| error.message()), crate::context::wall_ms());
            }
            key = keys.recv() => match key {
                Some(Ok(Event::Key(key))) if key.kind != KeyEventKind::Release => match view.key(key) {
                    Next::Stay => {}
                    Next::Leave => return Ok(()),
                    Next::Interrupted => return Err(CliError::Ended(130)),
                },
                // Another size is seen when it is drawn.
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(CliError::Output(error)),
                None => return Ok(()),
            }
        }
        screen.terminal.draw(|frame| view.draw(frame.buffer_mut()))?;
    }
}
