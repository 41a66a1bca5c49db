//! Listens to the library's log, on its own thread.
//!
//! Two reasons. Much is said nowhere else ([`crate::core::overheard`]). And its lines and spans hold what people wrote
//! and the tokens of interactions; so none of them goes on to the program's own log, which says the same in words of
//! its own.

use crate::core::overheard::{Heard, heard};
use std::fmt::Debug;
use std::sync::Arc;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::Interest;
use tracing::{Dispatch, Event, Level, Metadata, Subscriber};

/// What is said in the log of the library goes to `hear`; all else where it went before.
pub(super) struct Ear {
    before: Dispatch,
    hear: Arc<dyn Fn(Heard) + Send + Sync>,
    level: LevelFilter,
}

impl Ear {
    pub(super) fn new(before: Dispatch, hear: Arc<dyn Fn(Heard) + Send + Sync>) -> Self {
        Self { before, hear, level: LevelFilter::current().max(LevelFilter::DEBUG) }
    }
}

/// Whether a line is the library's.
fn is_theirs(metadata: &Metadata<'_>) -> bool {
    metadata.target().split("::").next() == Some("serenity")
}

/// Whether a line of theirs may say something of use.
fn is_heard(metadata: &Metadata<'_>) -> bool {
    metadata.is_event()
        && *metadata.level() <= Level::DEBUG
        && metadata.target().starts_with("serenity::gateway")
}

impl Subscriber for Ear {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        match (is_theirs(metadata), is_heard(metadata)) {
            (true, true) => Interest::always(),
            (true, false) => Interest::never(),
            (false, _) => self.before.register_callsite(metadata),
        }
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        if is_theirs(metadata) { is_heard(metadata) } else { self.before.enabled(metadata) }
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(self.level)
    }

    fn event(&self, event: &Event<'_>) {
        if !is_theirs(event.metadata()) {
            self.before.event(event);
            return;
        }
        let mut line = Line(String::new());
        event.record(&mut line);
        if let Some(heard) = heard(&line.0) {
            (self.hear)(heard);
        }
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        self.before.new_span(span)
    }

    fn record(&self, span: &Id, values: &Record<'_>) {
        self.before.record(span, values);
    }

    fn record_follows_from(&self, span: &Id, follows: &Id) {
        self.before.record_follows_from(span, follows);
    }

    fn enter(&self, span: &Id) {
        self.before.enter(span);
    }

    fn exit(&self, span: &Id) {
        self.before.exit(span);
    }

    fn clone_span(&self, id: &Id) -> Id {
        self.before.clone_span(id)
    }

    fn try_close(&self, id: Id) -> bool {
        self.before.try_close(id)
    }
}

/// The text of a line.
struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" {
            self.0 = format!("{value:?}");
        }
    }
}
