//! A supervisor that fails at the last moment: it proves that it can take over, and panics when it says that it does.
//! For the tests of upgrades.

use std::process::ExitCode;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// A log that cannot be written.
struct Panics;

/// Whether an event has this message.
struct Is(&'static str, bool);

impl Visit for Is {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.1 |= field.name() == "message" && format!("{value:?}") == self.0;
    }
}

impl Subscriber for Panics {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut is = Is("taking over from previous program", false);
        event.record(&mut is);
        assert!(!is.1, "it fails late");
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

fn main() -> ExitCode {
    if tracing::subscriber::set_global_default(Panics).is_err() {
        return ExitCode::FAILURE;
    }
    acp_supervisor::main()
}
