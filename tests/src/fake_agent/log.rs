//! The log that tests read: JSON lines, one `write` in append mode for each.

use serde_json::{Value, json};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;

/// The agent's log; without a file, events are dropped.
#[derive(Debug)]
pub(crate) struct Log {
    file: Option<File>,
}

impl Log {
    /// Opens the file for appending.
    pub(crate) fn open(path: Option<&Path>) -> std::io::Result<Self> {
        let open = |path| OpenOptions::new().create(true).append(true).open(path);
        Ok(Self { file: path.map(open).transpose()? })
    }

    /// Appends one event; `detail` is an object.
    pub(crate) fn event(&mut self, event: &str, detail: Value) {
        let Some(file) = &mut self.file else { return };
        let mut entry = json!({"pid": std::process::id(), "event": event});
        if let (Value::Object(entry), Value::Object(detail)) = (&mut entry, detail) {
            entry.extend(detail);
        }
        if let Err(e) = file.write_all(format!("{entry}\n").as_bytes()) {
            super::outlet::stderr_line(&format!("fake-agent: cannot write the log: {e}"));
        }
    }

    /// Records a violation of ACP by the client.
    pub(crate) fn violation(&mut self, what: &str) {
        self.event("violation", json!({"what": what}));
    }
}
