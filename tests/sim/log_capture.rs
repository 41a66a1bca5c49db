//! Captures the log: each transition of a session or run is one line, and so is each fault that the gateway
//! detects in itself.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt::{Debug, Write as _};
use std::sync::Once;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::Interest;
use tracing::{Event, Level, Metadata, Subscriber};

/// Log captured on this thread.
#[derive(Debug, Default)]
pub(super) struct CapturedLog {
    /// Transitions, such as `session idle turn_started running`.
    pub(super) moves: BTreeSet<String>,
    pub(super) errors: Vec<String>,
    /// All lines, if requested.
    pub(super) lines: Option<Vec<String>>,
}

thread_local! {
    static HEARD: RefCell<CapturedLog> = RefCell::default();
}

/// Starts a new capture and returns the previous one.
pub(super) fn listen(every_line: bool) -> CapturedLog {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // Another test of the same process may have set a subscriber; then nothing is captured here.
        drop(tracing::subscriber::set_global_default(LogCapture));
    });
    HEARD.replace(CapturedLog { lines: every_line.then(Vec::new), ..CapturedLog::default() })
}

/// Returns and clears the captured errors; the capture continues.
pub(super) fn errors() -> Vec<String> {
    HEARD.with_borrow_mut(|heard| std::mem::take(&mut heard.errors))
}

/// Adds a line of the simulation itself to the captured log.
pub(super) fn note(line: impl FnOnce() -> String) {
    HEARD.with_borrow_mut(|heard| {
        if let Some(lines) = &mut heard.lines {
            lines.push(line());
        }
    });
}

struct LogCapture;

const MOVES: &str = "acp_gateway::metrics::transitions";

impl Subscriber for LogCapture {
    fn register_callsite(&self, meta: &'static Metadata<'static>) -> Interest {
        if meta.is_span() { Interest::never() } else { Interest::sometimes() }
    }

    fn enabled(&self, meta: &Metadata<'_>) -> bool {
        let wanted = || HEARD.with_borrow(|heard| heard.lines.is_some());
        *meta.level() == Level::ERROR
            || meta.target() == MOVES
            || (meta.target().starts_with("acp_") && wanted())
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut fields = LogFields::default();
        event.record(&mut fields);
        let meta = event.metadata();
        HEARD.with_borrow_mut(|heard| {
            if meta.target() == MOVES && !fields.event.is_empty() {
                let LogFields { message, from, event, to, .. } = &fields;
                let of = message.trim_end_matches(" state changed");
                heard.moves.insert(format!("{of} {from} {event} {to}"));
            }
            if *meta.level() == Level::ERROR {
                heard.errors.push(format!("{} {}", fields.message, fields.rest));
            }
            if let Some(lines) = &mut heard.lines {
                let LogFields { message, from, event, to, rest } = &fields;
                lines.push(format!("    {} {message} {from} {event} {to} {rest}", meta.level()));
            }
        });
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[derive(Default)]
struct LogFields {
    message: String,
    from: String,
    event: String,
    to: String,
    rest: String,
}

impl Visit for LogFields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let text = format!("{value:?}");
        match field.name() {
            "message" => self.message = text,
            "from" => self.from = text.trim_matches('"').to_owned(),
            "event" => self.event = text.trim_matches('"').to_owned(),
            "to" => self.to = text.trim_matches('"').to_owned(),
            // Writing into a String cannot fail.
            name => drop(write!(self.rest, "{name}={text} ")),
        }
    }
}
