//! The log of a service: standard error, text for people or JSON for programs.
//!
//! One JSON line holds `timestamp`, `level`, `target`, `message` and, on the same level, the fields of the
//! event and of the spans around it, so that all lines of a session are found by `session_key`.

use acp_core::config::{Log, LogFormat};
use acp_core::failure::Failure;
use acp_shared::codes::Code;
use acp_shared::log_file::LogFile;
use serde_json::{Map, Value};
use std::fmt;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt as fmt_layer;
use tracing_subscriber::fmt::format::{JsonFields, Writer};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormattedFields};
use tracing_subscriber::layer::{Filter, Layer, SubscriberExt as _};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, reload};

/// Applies a log level to the running log.
type SetLevelFn = Arc<dyn Fn(&str) -> Result<(), Failure> + Send + Sync>;

/// Handle to change the log level of this process.
#[derive(Clone, Default)]
pub(crate) struct LogHandle {
    change: Option<SetLevelFn>,
}

impl LogHandle {
    /// Changes the log level.
    ///
    /// # Errors
    /// `CONFIG_INVALID` for invalid directives; `RUNTIME` if the log cannot be changed.
    pub(crate) fn set(&self, level: &str) -> Result<(), Failure> {
        let Some(change) = &self.change else { return filter(level).map(drop) };
        change(level)
    }
}

/// Directive added after those of the configuration: records of the websocket library hold whole payloads,
/// with tokens and message texts.
const SILENCED: &str = "tungstenite=off";

fn filter(level: &str) -> Result<EnvFilter, Failure> {
    let invalid = |error: &dyn fmt::Display| Failure::new(Code::ConfigInvalid, format!("log.level: {error}"));
    let silenced = SILENCED.parse().map_err(|error| invalid(&error))?;
    EnvFilter::try_new(level).map(|filter| filter.add_directive(silenced)).map_err(|error| invalid(&error))
}

fn cannot_change(error: &dyn fmt::Display) -> Failure {
    Failure::new(Code::Runtime, format!("log.level: {error}"))
}

/// Starts logging. Does nothing if the process logs already.
///
/// # Errors
/// `CONFIG_INVALID` for invalid directives.
pub(crate) fn start(log: &Log) -> Result<LogHandle, Failure> {
    let builder = tracing_subscriber::fmt().with_env_filter(filter(&log.level)?).with_writer(io::stderr);
    // Starting fails only if logging is already active; then there is nothing to change either.
    let change: SetLevelFn = match log.format {
        LogFormat::Text => {
            let terminal = io::IsTerminal::is_terminal(&io::stderr());
            let builder = builder.with_ansi(terminal).with_filter_reloading();
            let handle = builder.reload_handle();
            if builder.try_init().is_err() {
                return Ok(LogHandle { change: None });
            }
            Arc::new(move |level| handle.reload(filter(level)?).map_err(|error| cannot_change(&error)))
        }
        LogFormat::Json => {
            let builder =
                builder.fmt_fields(JsonFields::new()).event_format(FlatJsonFormat).with_filter_reloading();
            let handle = builder.reload_handle();
            if builder.try_init().is_err() {
                return Ok(LogHandle { change: None });
            }
            Arc::new(move |level| handle.reload(filter(level)?).map_err(|error| cannot_change(&error)))
        }
    };
    Ok(LogHandle { change: Some(change) })
}

/// Creates the layer of standard error for people.
fn terminal_layer<S>(filter: impl Filter<S> + 'static) -> impl Layer<S>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    fmt_layer::layer()
        .with_writer(io::stderr)
        .with_target(false)
        .without_time()
        .with_ansi(io::IsTerminal::is_terminal(&io::stderr()))
        .with_filter(filter)
}

/// Starts logging to a file, and what people need to standard error, without time and origin: records of the level that
/// `shown` makes of the log's level.
///
/// # Errors
/// `CONFIG_INVALID` for invalid directives; `RUNTIME` if the file cannot be written.
pub(crate) fn start_with_file(log: &Log, shown: fn(&str) -> &str, file: &Path) -> Result<LogHandle, Failure> {
    let opened = LogFile::open(file).map_err(|error| {
        Failure::new(Code::Runtime, format!("cannot open the log {}: {error}", file.display()))
    })?;
    let writer = Mutex::new(opened);
    let (in_file, file_filter) = reload::Layer::new(filter(&log.level)?);
    let (on_terminal, terminal_filter) = reload::Layer::new(filter(shown(&log.level))?);
    // The file's layer comes first: layers share the formatted fields of spans, and the file has no colours.
    let layer = match log.format {
        LogFormat::Text => {
            fmt_layer::layer().with_writer(writer).with_ansi(false).with_filter(in_file).boxed()
        }
        LogFormat::Json => fmt_layer::layer()
            .with_writer(writer)
            .fmt_fields(JsonFields::new())
            .event_format(FlatJsonFormat)
            .with_filter(in_file)
            .boxed(),
    };
    let started = tracing_subscriber::registry().with(layer).with(terminal_layer(on_terminal)).try_init();
    // Fails only if logging is already active; then there is nothing to change either.
    if started.is_err() {
        return Ok(LogHandle::default());
    }
    let change: SetLevelFn = Arc::new(move |level| {
        let (in_file, on_terminal) = (filter(level)?, filter(shown(level))?);
        let changed = file_filter.reload(in_file).and_then(|()| terminal_filter.reload(on_terminal));
        changed.map_err(|error| cannot_change(&error))
    });
    Ok(LogHandle { change: Some(change) })
}

/// Formats each event as one flat JSON object.
struct FlatJsonFormat;

impl<S> FormatEvent<S, JsonFields> for FlatJsonFormat
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    fn format_event(
        &self,
        ctx: &FmtContext<'_, S, JsonFields>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut line = Map::new();
        line.insert("timestamp".to_owned(), jiff::Timestamp::now().to_string().into());
        line.insert("level".to_owned(), event.metadata().level().as_str().into());
        line.insert("target".to_owned(), event.metadata().target().into());
        // From the outermost span inwards: inner fields override outer ones.
        for span in ctx.event_scope().into_iter().flat_map(|scope| scope.from_root()) {
            let extensions = span.extensions();
            let fields = extensions.get::<FormattedFields<JsonFields>>();
            let fields = fields.and_then(|fields| serde_json::from_str::<Map<String, Value>>(fields).ok());
            line.extend(fields.into_iter().flatten());
        }
        event.record(&mut JsonFieldVisitor(&mut line));
        writeln!(writer, "{}", Value::Object(line))
    }
}

/// Methods that record values which JSON has itself.
macro_rules! record_as_is {
    ($($record:ident: $kind:ty),+) => {$(
        fn $record(&mut self, field: &Field, value: $kind) {
            self.0.insert(field.name().to_owned(), value.into());
        }
    )+};
}

/// Copies the fields of an event into a JSON object.
struct JsonFieldVisitor<'a>(&'a mut Map<String, Value>);

impl Visit for JsonFieldVisitor<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.insert(field.name().to_owned(), format!("{value:?}").into());
    }

    record_as_is! { record_str: &str, record_i64: i64, record_u64: u64, record_bool: bool, record_f64: f64 }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;
    use crate::tests::LogLines;

    #[test]
    fn websocket_payloads_are_never_logged() {
        for (level, is_logged) in [
            ("trace", true),
            ("error", true),
            ("", false),
            ("tungstenite=trace", false),
            ("info,tungstenite=debug,acp=trace", true),
        ] {
            let lines = LogLines::default();
            let subscriber = tracing_subscriber::fmt()
                .with_env_filter(filter(level).unwrap())
                .with_writer(lines.writer())
                .finish();
            tracing::subscriber::with_default(subscriber, || {
                tracing::error!(target: "tungstenite::protocol", "hunter2");
                tracing::error!(target: "acp", "other");
            });
            let text = lines.text();
            assert!(!text.contains("hunter2"), "{level}: {text}");
            assert_eq!(text.contains("other"), is_logged, "{level}: {text}");
        }
    }

    #[test]
    fn json_log_line_is_flat_with_span_fields() {
        let lines = LogLines::default();
        let subscriber = tracing_subscriber::fmt()
            .fmt_fields(JsonFields::new())
            .event_format(FlatJsonFormat)
            .with_writer(lines.writer())
            .finish();
        tracing::subscriber::with_default(subscriber, || {
            let _outer = tracing::info_span!("session", session_key = "k", backend = "direct").entered();
            let _inner = tracing::info_span!("run", run_id = "r", backend = "other").entered();
            tracing::info!(n = 3_u64, ok = true, what = ?Some("x\"y"), "done");
        });
        let mut line: Value = serde_json::from_str(lines.text().trim()).unwrap();
        assert!(line["timestamp"].as_str().is_some_and(|at| at.ends_with('Z')), "{line}");
        line.as_object_mut().unwrap().remove("timestamp");
        let want = serde_json::json!({
            "level": "INFO", "target": "acp_gateway::cli::logging::tests", "message": "done",
            "session_key": "k", "run_id": "r", "backend": "other",
            "n": 3, "ok": true, "what": "Some(\"x\\\"y\")",
        });
        assert_eq!(line, want);
    }
}
