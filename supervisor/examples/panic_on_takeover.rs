//! A supervisor for upgrade tests that passes all checks and panics when it takes over.

use std::process::ExitCode;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// Subscriber that panics at the log message of the takeover.
struct PanicOnTakeover;

/// Visitor that looks for a message.
struct HasMessage(&'static str, bool);

impl Visit for HasMessage {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.1 |= field.name() == "message" && format!("{value:?}") == self.0;
    }
}

impl Subscriber for PanicOnTakeover {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut visitor = HasMessage("taking over from previous program", false);
        event.record(&mut visitor);
        assert!(!visitor.1, "takeover fails");
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

fn main() -> ExitCode {
    if tracing::subscriber::set_global_default(PanicOnTakeover).is_err() {
        return ExitCode::FAILURE;
    }
    acp_supervisor::main()
}
