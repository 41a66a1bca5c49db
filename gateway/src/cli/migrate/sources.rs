//! Reads the files of OpenClaw, and only reads them.

use acp_core::migrate::acpx_record::acpx_record;
use acp_core::migrate::config_review::{ConfigReview, config_review};
use acp_core::migrate::leases::{lease_file, lease_line};
use acp_core::migrate::plan::SourceRecords;
use acp_core::migrate::source_bindings::{
    ReadBindings, conversation_file, conversation_rows, plugin_entries, thread_binding_file,
};
use acp_core::migrate::source_sessions::{acp_session_row, session_entries};
use acp_core::migrate::{MigrationAction, MigrationLine, RecordKind};
use acp_store::openclaw_source::read_openclaw;
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use std::fs::Metadata;
use std::io::{ErrorKind, Read as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

/// Maximum size of a JSON file, in bytes.
const FILE_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// Maximum number of opening brackets in `openclaw.json`.
const CONFIG_BRACKETS_MAX: usize = 2_000;
/// Maximum number of files in a directory that are read.
const FILES_MAX: usize = 20_000;
/// Database of OpenClaw, with its sessions.
const DATABASE: &str = "state/openclaw.sqlite";
/// Suffix of files that OpenClaw has migrated itself.
const MIGRATED: &str = ".migrated";

/// Everything that was read.
pub(super) struct ReadSources {
    /// Records.
    pub(super) records: SourceRecords,
    /// Settings to review.
    pub(super) review: ConfigReview,
    /// SHA-256 of all files, in hex.
    pub(super) sha256: String,
}

/// Reader of one source directory.
struct SourceReader<'a> {
    from: &'a Path,
    state_dir: &'a Path,
    now_ms: u64,
    hash: Sha256,
    records: SourceRecords,
}

/// Reads all sources below `from`; `state_dir` is for copies of databases.
pub(super) fn read_sources(from: &Path, state_dir: &Path, now_ms: u64) -> ReadSources {
    let mut reader =
        SourceReader { from, state_dir, now_ms, hash: Sha256::new(), records: SourceRecords::default() };
    let config = reader.config();
    reader.database(DATABASE);
    reader.database("plugin-state/state.sqlite");
    for file in reader.session_files(config.as_ref().ok()) {
        reader.sessions(&file);
    }
    reader.bindings("discord/thread-bindings.json", thread_binding_file);
    reader.bindings("bindings/current-conversations.json", conversation_file);
    if let Some(file) = reader.json(&from.join("acpx/process-leases.json")) {
        reader.records.lines.extend(lease_file(&file, "acpx/process-leases.json"));
    }
    reader.acpx_records();
    reader.mention_migrated();
    let review = match config {
        Ok(config) => config_review(&config),
        Err(note) => ConfigReview { notes: note.into_iter().collect(), ..ConfigReview::default() },
    };
    let sha256 = data_encoding::HEXLOWER.encode(&reader.hash.finalize());
    ReadSources { records: reader.records, review, sha256 }
}

impl SourceReader<'_> {
    /// Name of a file in the report: below the source, or whole.
    fn shown(&self, path: &Path) -> String {
        path.strip_prefix(self.from).unwrap_or(path).display().to_string()
    }

    fn refuse(&mut self, path: &Path, why: String) {
        let name = self.shown(path);
        self.records.lines.push(MigrationLine::refuse(RecordKind::File, &name, &name, why));
    }

    /// Content of a regular file; `None` if there is none.
    fn bytes(&mut self, path: &Path) -> Result<Option<Vec<u8>>, String> {
        let Some(bytes) = read_regular(path)? else { return Ok(None) };
        self.hash.update(self.shown(path).as_bytes());
        self.hash.update(Sha256::digest(&bytes));
        Ok(Some(bytes))
    }

    /// Content of a JSON file; `None` if there is none, or if it is refused.
    fn json(&mut self, path: &Path) -> Option<Value> {
        let read = self.bytes(path).and_then(|bytes| {
            let parse = |bytes: Vec<u8>| serde_json::from_slice(&bytes).map_err(|error| not_json(&error));
            bytes.map(parse).transpose()
        });
        read.unwrap_or_else(|why| {
            self.refuse(path, why);
            None
        })
    }

    /// `openclaw.json`, which is JSON5, or a remark why its settings are not shown.
    fn config(&mut self) -> Result<Value, Option<String>> {
        let read = self.bytes(&self.from.join("openclaw.json"));
        let bytes = read.map_err(|why| Some(format!("openclaw.json: {why}")))?.ok_or(None)?;
        let why = |error: json5::Error| {
            let at = error.position().map(|at| format!(" (line {}, column {})", at.line + 1, at.column + 1));
            format!("openclaw.json: it is not JSON5{}; its settings are not shown", at.unwrap_or_default())
        };
        // The parser calls itself for each of them, without a limit.
        let brackets = bytes.iter().filter(|byte| matches!(byte, b'[' | b'{')).count();
        if brackets > CONFIG_BRACKETS_MAX {
            let why = format!("it has more than {CONFIG_BRACKETS_MAX} brackets");
            return Err(Some(format!("openclaw.json: {why}; its settings are not shown")));
        }
        let text = std::str::from_utf8(&bytes)
            .map_err(|_| Some("openclaw.json: it is not UTF-8; its settings are not shown".to_owned()))?;
        json5::from_str(text).map_err(|error| Some(why(error)))
    }

    fn database(&mut self, name: &str) {
        let path = self.from.join(name);
        if std::fs::symlink_metadata(&path).is_err_and(|error| error.kind() == ErrorKind::NotFound) {
            return;
        }
        let tables = match read_openclaw(&path, self.state_dir) {
            Ok(tables) => tables,
            Err(why) => {
                if name == DATABASE {
                    self.records.unread.rows = Some(name.to_owned());
                }
                self.mark_unread_bindings(name);
                return self.refuse(&path, why);
            }
        };
        for row in tables.sessions.iter().chain(&tables.bindings).chain(&tables.plugin) {
            self.hash.update(row.to_string().as_bytes());
        }
        for row in &tables.sessions {
            match acp_session_row(row, name) {
                Ok(row) => self.records.rows.push(row),
                Err(line) => self.records.lines.push(line),
            }
        }
        self.add_bindings(conversation_rows(&tables.bindings, name));
        let entries = self.plugin_values(&tables.plugin, ("discord", "thread-bindings"), name);
        self.add_bindings(plugin_entries(entries.iter().map(|(key, value)| (key.as_str(), value)), name));
        for (_, lease) in self.plugin_values(&tables.plugin, ("acpx", "process-leases"), name) {
            self.records.lines.push(lease_line(&lease, name));
        }
    }

    /// Entries of a plugin's state, by key.
    fn plugin_values(
        &mut self,
        rows: &[Value],
        (plugin, namespace): (&str, &str),
        source: &str,
    ) -> Vec<(String, Value)> {
        let kind = if plugin == "acpx" { RecordKind::Lease } else { RecordKind::Binding };
        let is =
            |row: &Value, column: &str, text: &str| row.get(column).and_then(Value::as_str) == Some(text);
        let mut found = Vec::new();
        for row in rows.iter().filter(|row| is(row, "plugin_id", plugin) && is(row, "namespace", namespace)) {
            let key = row.get("entry_key").and_then(Value::as_str).unwrap_or("?");
            if row.get("expires_at").and_then(Value::as_u64).is_some_and(|end| end <= self.now_ms) {
                let why = "its entry in the plugin's state has expired";
                self.records.lines.push(MigrationLine::new(kind, key, source, MigrationAction::Skip, why));
                continue;
            }
            let text = row.get("value_json").and_then(Value::as_str).unwrap_or_default();
            match serde_json::from_str(text) {
                Ok(value) => found.push((key.to_owned(), value)),
                Err(_) => self.records.lines.push(MigrationLine::refuse(
                    kind,
                    key,
                    source,
                    "`value_json` is not JSON",
                )),
            }
        }
        found
    }

    fn add_bindings(&mut self, (bindings, lines): ReadBindings) {
        self.records.bindings.push(bindings);
        self.records.lines.extend(lines);
    }

    /// Marks a source of bindings that cannot be read: later ones may be stale.
    fn mark_unread_bindings(&mut self, name: &str) {
        let before = self.records.bindings.len();
        self.records.unread.bindings.get_or_insert_with(|| (before, name.to_owned()));
    }

    /// Number of files that were refused.
    fn refused_files(&self) -> usize {
        let is_file = |line: &&MigrationLine| line.kind == RecordKind::File && line.action.is_failure();
        self.records.lines.iter().filter(is_file).count()
    }

    fn bindings(&mut self, name: &str, parse: fn(&Value, &str) -> ReadBindings) {
        let before = self.refused_files();
        if let Some(file) = self.json(&self.from.join(name)) {
            self.add_bindings(parse(&file, name));
        }
        if self.refused_files() > before {
            self.mark_unread_bindings(name);
        }
    }

    fn sessions(&mut self, path: &Path) {
        let (before, name) = (self.refused_files(), self.shown(path));
        if let Some(file) = self.json(path) {
            let (entries, lines) = session_entries(&file, &name);
            self.records.entries.extend(entries);
            self.records.lines.extend(lines);
        }
        if self.refused_files() > before {
            self.records.unread.entries.get_or_insert(name);
        }
    }

    /// Files of sessions: below each agent, and the configured ones.
    fn session_files(&mut self, config: Option<&Value>) -> Vec<PathBuf> {
        let before = self.refused_files();
        let agents = self.list(&self.from.join("agents"));
        if self.refused_files() > before {
            self.records.unread.entries.get_or_insert("agents".to_owned());
        }
        let mut files: Vec<PathBuf> =
            agents.iter().map(|agent| agent.join("sessions/sessions.json")).collect();
        let store = config.and_then(|config| config.pointer("/session/store")).and_then(Value::as_str);
        if let Some(store) = store {
            let home = std::env::var("HOME").unwrap_or_default();
            let store =
                store.strip_prefix("~/").map_or_else(|| store.to_owned(), |rest| format!("{home}/{rest}"));
            let names = agents.iter().filter_map(|agent| agent.file_name()?.to_str());
            files.extend(names.map(|name| self.from.join(store.replace("{agentId}", name))));
        }
        files.sort();
        files.dedup();
        files
    }

    /// Entries of a directory, sorted; none if there is no directory, or if it is refused.
    fn list(&mut self, dir: &Path) -> Vec<PathBuf> {
        let read = std::fs::read_dir(dir).and_then(|entries| {
            entries.take(FILES_MAX + 1).map(|entry| entry.map(|entry| entry.path())).collect()
        });
        let mut found: Vec<PathBuf> = match read {
            Ok(found) => found,
            Err(error) if is_missing(&error) => Vec::new(),
            Err(error) => {
                self.refuse(dir, format!("it cannot be read: {error}"));
                Vec::new()
            }
        };
        if found.len() > FILES_MAX {
            self.refuse(dir, format!("it has more than {FILES_MAX} entries"));
            found.clear();
        }
        found.sort();
        found
    }

    /// Records of acpx: of the home directory, next to the source, and of the plugin.
    fn acpx_records(&mut self) {
        let home = std::env::var_os("HOME").map(PathBuf::from);
        let beside = self.from.parent().map(Path::to_path_buf);
        let homes = [home, beside].into_iter().flatten().map(|home| home.join(".acpx/sessions"));
        let own = ["acpx/sessions", "workspace/state/sessions"].map(|dir| self.from.join(dir));
        let mut dirs: Vec<PathBuf> =
            homes.chain(own).map(|dir| std::fs::canonicalize(&dir).unwrap_or(dir)).collect();
        dirs.sort();
        dirs.dedup();
        for path in dirs.iter().flat_map(|dir| self.list(dir)).collect::<Vec<_>>() {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if !name.ends_with(".json") || name == "index.json" || name == "sessions.json" {
                continue;
            }
            let Some(file) = self.json(&path) else { continue };
            match acpx_record(&file) {
                Ok(record) => self.records.acpx.push(record),
                Err(why) => self.refuse(&path, why),
            }
        }
    }

    /// Lists files that OpenClaw has moved into its database itself.
    fn mention_migrated(&mut self) {
        for dir in ["", "discord", "bindings", "acpx"] {
            for path in self.list(&self.from.join(dir)) {
                if path.to_string_lossy().ends_with(MIGRATED) {
                    let name = self.shown(&path);
                    let why = "OpenClaw has moved it into its database";
                    let line = MigrationLine::new(RecordKind::File, &name, &name, MigrationAction::Skip, why);
                    self.records.lines.push(line);
                }
            }
        }
    }
}

/// Content of a regular file that does not change meanwhile; `None` if there is none. Links are followed.
fn read_regular(path: &Path) -> Result<Option<Vec<u8>>, String> {
    let unread = |error: std::io::Error| format!("it cannot be read: {error}");
    // Another kind of file could wait for ever, in `open` or in `read`.
    let mut options = std::fs::OpenOptions::new();
    let file = match options.read(true).custom_flags(nix::libc::O_NONBLOCK).open(path) {
        Err(error) if is_missing(&error) => return Ok(None),
        opened => opened.map_err(unread)?,
    };
    let before = file.metadata().map_err(unread)?;
    if !before.is_file() {
        return Err("it is not a regular file".to_owned());
    }
    if before.len() > FILE_BYTES_MAX {
        return Err(format!("it is larger than {FILE_BYTES_MAX} bytes"));
    }
    let mut bytes = Vec::new();
    (&file).take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(unread)?;
    let mark = |meta: &Metadata| (meta.len(), meta.mtime(), meta.mtime_nsec());
    let after = file.metadata().map_err(unread)?;
    if mark(&before) != mark(&after) || bytes.len() as u64 != before.len() {
        return Err("it changed while it was read: stop OpenClaw and repeat the command".to_owned());
    }
    Ok(Some(bytes))
}

/// True if there is no such file. A file in place of a directory above it counts as none.
fn is_missing(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

/// Reason of a parse error, without the content.
fn not_json(error: &serde_json::Error) -> String {
    format!("it is not JSON (line {}, column {})", error.line(), error.column())
}
