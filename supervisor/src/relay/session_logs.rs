//! Session logs: standard error of agents on disk, one bounded log for each session, for operators.
//!
//! `<state>/logs/<gateway>/<hash of the session key>/<offset of the first byte>.log`. A full file is followed
//! by another; two are kept. Offsets count from the beginning of the log, so that a reader can resume at its
//! position.

use crate::sys::blocking_io::{self, Disk};
use crate::sys::launch_dir::private_dir;
use acp_shared::ids::{GatewayInstanceId, SessionKey};
use acp_shared::protocol::{LogFrom, LogPiece, OUTPUT_BYTES_MAX};
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use std::collections::{HashMap, HashSet};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::SystemTime;

/// Maximum size of unwritten text of one log, in bytes. Text beyond it is dropped, and the log records the
/// drop.
const PENDING_BYTES_MAX: usize = 512 * 1024;
/// Maximum number of files of one log.
const FILES_MAX: usize = 2;
/// Maximum number of logs of one gateway. The least recently written one is removed first.
const LOGS_MAX: usize = 1_000;
/// Maximum size of all logs of one gateway, in bytes, with the same order of removal.
const GATEWAY_BYTES_MAX: u64 = 256 * 1024 * 1024;
/// Growth of one log after which the sizes of all logs of its gateway are checked, in bytes.
const SIZE_CHECK_BYTES: u64 = 256 * 1024;

/// Size limits of logs, in bytes.
#[derive(Debug, Clone, Copy)]
struct LogLimits {
    file: u64,
    gateway: u64,
}

/// Number and size of a gateway's logs since the last scan of its directory, without what was removed in the meantime.
#[derive(Debug, Clone, Copy)]
struct LogUsage {
    logs: usize,
    bytes: u64,
}

/// Limits of logs, and the usage of each gateway, by the directory of its logs.
#[derive(Debug, Clone)]
struct LogQuota {
    limits: LogLimits,
    usage: Arc<Mutex<HashMap<PathBuf, LogUsage>>>,
}

/// Directory of all session logs.
#[derive(Debug, Clone)]
pub struct SessionLogs {
    dir: Arc<Path>,
    disk: Disk,
    quota: LogQuota,
    /// Open logs by directory: all writers of one log share its pending text, which keeps their order.
    open: Arc<Mutex<HashMap<PathBuf, Weak<Mutex<PendingLines>>>>>,
}

/// Writer for the log of one session. Clones write to the same log.
#[derive(Debug, Clone)]
pub struct SessionLog {
    dir: Arc<Path>,
    disk: Disk,
    quota: LogQuota,
    pending: Arc<Mutex<PendingLines>>,
}

#[derive(Debug, Default)]
struct PendingLines {
    text: String,
    left_out: u64,
    /// True while a task writes, or waits for a disk permit.
    is_written: bool,
    /// True if the last attempt to write failed.
    is_failing: bool,
}

/// Formats a line of the supervisor itself. It has `*` where lines of the agent have `|`.
#[must_use]
pub fn supervisor_line(text: &str) -> String {
    format!("{:.3} * {text}\n", jiff::Timestamp::now())
}

/// Formats a line of an agent.
#[must_use]
pub fn line(text: &str) -> String {
    format!("{:.3} | {text}\n", jiff::Timestamp::now())
}

impl SessionLogs {
    /// Creates the logs below `dir`. The directory is created with the first log.
    #[must_use]
    pub fn new(dir: &Path, file_bytes_max: u64) -> Self {
        let quota = LogQuota::new(LogLimits { file: file_bytes_max, gateway: GATEWAY_BYTES_MAX });
        Self { dir: dir.into(), disk: Disk::default(), quota, open: Arc::default() }
    }

    fn dir_of(&self, gateway: GatewayInstanceId, session: &SessionKey) -> PathBuf {
        let hash = format!("{:x}", Sha256::digest(session.as_str()));
        self.dir.join(gateway.to_string()).join(hash.get(..32).unwrap_or(&hash))
    }

    /// Returns the writer for the log of a session.
    #[must_use]
    pub fn log(&self, gateway: GatewayInstanceId, session: &SessionKey) -> SessionLog {
        let dir = self.dir_of(gateway, session);
        let mut open = self.open.lock();
        open.retain(|_, pending| pending.strong_count() > 0);
        let pending = open.get(&dir).and_then(Weak::upgrade).unwrap_or_default();
        open.insert(dir.clone(), Arc::downgrade(&pending));
        SessionLog { dir: dir.into(), disk: self.disk.clone(), quota: self.quota.clone(), pending }
    }

    /// Reads a piece of a log, in whole lines. A missing log counts as empty.
    ///
    /// # Errors
    /// The log cannot be read.
    pub async fn read(
        &self,
        gateway: GatewayInstanceId,
        session: &SessionKey,
        from: LogFrom,
        bytes_max: u64,
    ) -> io::Result<LogPiece> {
        let dir = self.dir_of(gateway, session);
        let bytes_max = crate::config::size(bytes_max).clamp(1, OUTPUT_BYTES_MAX);
        self.disk.run(move || read(&dir, from, bytes_max)).await?
    }

    /// Removes the log of a session in the background.
    pub fn remove(&self, gateway: GatewayInstanceId, session: &SessionKey) {
        let (dir, disk) = (self.dir_of(gateway, session), self.disk.clone());
        tokio::spawn(async move {
            drop(disk.run(move || remove_all(&dir)).await);
        });
    }

    /// Removes all logs except those of these sessions. Blocking. Must not run while logs are written: new
    /// logs would be removed.
    pub fn keep_only<'a>(&self, sessions: impl Iterator<Item = (GatewayInstanceId, &'a SessionKey)>) {
        let known: HashSet<PathBuf> = sessions.map(|(gateway, key)| self.dir_of(gateway, key)).collect();
        let logs = entries(&self.dir).into_iter().flat_map(|gateway| entries(&gateway));
        logs.filter(|log| !known.contains(log)).for_each(|log| remove_all(&log));
    }

    /// Returns the handle to the disk of the logs.
    #[must_use]
    pub const fn disk(&self) -> &Disk {
        &self.disk
    }
}

impl SessionLog {
    /// Appends lines in the background. Never blocks: text that exceeds the buffer is dropped and counted.
    pub fn write(&self, text: &str) {
        {
            let mut pending = self.pending.lock();
            let room = PENDING_BYTES_MAX.saturating_sub(pending.text.len());
            // Number of bytes of whole lines that fit.
            let lines = text.as_bytes().get(..room).and_then(|fits| memchr::memrchr(b'\n', fits));
            let fits = if text.len() <= room { text.len() } else { lines.map_or(0, |at| at + 1) };
            pending.left_out += (text.len() - fits) as u64;
            pending.text.push_str(text.get(..fits).unwrap_or_default());
            if fits == 0 {
                return;
            }
            if std::mem::replace(&mut pending.is_written, true) {
                return;
            }
        }
        let log = self.clone();
        // A free permit is taken at once, so that waiting for the disk includes these lines.
        let slot = self.disk.try_slot();
        tokio::spawn(async move {
            let slot = match slot {
                Some(slot) => Ok(slot),
                None => log.disk.slot().await,
            };
            if let Ok(slot) = slot {
                drop(blocking_io::run(slot, move || log.write_pending()).await);
            }
        });
    }

    /// Writes until nothing is pending. Blocking.
    fn write_pending(&self) {
        loop {
            let (text, left_out) = {
                let mut pending = self.pending.lock();
                if pending.text.is_empty() && pending.left_out == 0 {
                    pending.is_written = false;
                    return;
                }
                (std::mem::take(&mut pending.text), std::mem::take(&mut pending.left_out))
            };
            let mut text = text;
            if left_out > 0 {
                text.push_str(&supervisor_line(&format!(
                    "{left_out} bytes were left out: the disk is too slow"
                )));
            }
            let written = append(&self.dir, text.as_bytes(), &self.quota);
            let was_failing = std::mem::replace(&mut self.pending.lock().is_failing, written.is_err());
            if let Err(error) = written
                && !was_failing
            {
                tracing::warn!(%error, path = %self.dir.display(), "cannot write session log");
            }
        }
    }
}

impl LogQuota {
    fn new(limits: LogLimits) -> Self {
        Self { limits, usage: Arc::default() }
    }

    /// Counts text that is about to be written to a log. True if the gateway may have too many logs then, or too large ones.
    fn add(&self, log: &Path, is_new: bool, bytes: u64) -> bool {
        let mut usage = self.usage.lock();
        let Some(used) = log.parent().and_then(|gateway| usage.get_mut(gateway)) else { return true };
        used.logs += usize::from(is_new);
        used.bytes += bytes;
        used.logs > LOGS_MAX || used.bytes > self.limits.gateway
    }

    /// Sets the usage of a gateway, after a scan.
    fn set(&self, log: &Path, used: LogUsage) {
        if let Some(gateway) = log.parent() {
            self.usage.lock().insert(gateway.to_owned(), used);
        }
    }
}

/// Returns the entries of a directory; none if it cannot be read.
fn entries(dir: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

fn remove_all(dir: &Path) {
    match std::fs::remove_dir_all(dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::warn!(%error, path = %dir.display(), "cannot remove session log");
        }
        Ok(()) | Err(_) => {}
    }
}

/// File of a log.
#[derive(Debug)]
struct LogFile {
    path: PathBuf,
    start: u64,
    bytes: u64,
}

/// Returns the files of a log, oldest first.
fn log_files(dir: &Path) -> io::Result<Vec<LogFile>> {
    let listed = match std::fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        listed => listed?,
    };
    let mut parts = Vec::new();
    for entry in listed {
        let entry = entry?;
        let name = entry.file_name();
        let start = name.to_str().and_then(|name| name.strip_suffix(".log")?.parse().ok());
        let Some(start) = start else { continue };
        match entry.metadata() {
            Ok(meta) => parts.push(LogFile { path: entry.path(), start, bytes: meta.len() }),
            // A writer has removed it.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    parts.sort_by_key(|part| part.start);
    Ok(parts)
}

/// Appends lines; each line is completely in one file.
fn append(dir: &Path, mut lines: &[u8], quota: &LogQuota) -> io::Result<()> {
    while !lines.is_empty() {
        let most = lines.len().min(crate::config::size(quota.limits.file));
        let last = lines.get(..most).and_then(|fits| memchr::memrchr(b'\n', fits));
        // A line longer than the limit gets its own file.
        let end = last.or_else(|| memchr::memchr(b'\n', lines)).map_or(lines.len(), |at| at + 1);
        let (now, later) = lines.split_at(end);
        append_to_file(dir, now, quota)?;
        lines = later;
    }
    Ok(())
}

fn append_to_file(dir: &Path, text: &[u8], quota: &LogQuota) -> io::Result<()> {
    let limits = quota.limits;
    if !dir.is_dir() {
        for above in dir.ancestors().take(3).collect::<Vec<_>>().into_iter().rev() {
            private_dir(above)?;
        }
    }
    let mut parts = log_files(dir)?;
    let full = |part: &LogFile| part.bytes > 0 && part.bytes + text.len() as u64 > limits.file;
    let path = match parts.last() {
        Some(part) if !full(part) => part.path.clone(),
        last => dir.join(format!("{:020}.log", last.map_or(0, |part| part.start + part.bytes))),
    };
    let is_new = parts.last().is_none_or(|part| part.path != path);
    let looks =
        |part: &LogFile| part.bytes / SIZE_CHECK_BYTES < (part.bytes + text.len() as u64) / SIZE_CHECK_BYTES;
    let may_exceed = quota.add(dir, parts.is_empty(), text.len() as u64);
    if may_exceed && (is_new || parts.last().is_some_and(looks)) {
        quota.set(dir, make_room(dir, text.len() as u64, limits));
    }
    OpenOptions::new().append(true).create(true).mode(0o600).open(path)?.write_all(text)?;
    let kept = if is_new { FILES_MAX - 1 } else { FILES_MAX };
    let old = parts.len().saturating_sub(kept);
    parts.drain(..old).try_for_each(|part| std::fs::remove_file(part.path))
}

/// Removes the least recently written logs of a gateway if it has too many or they are too large, so that
/// `log` has room for `bytes` more bytes. Returns the usage of the gateway afterwards.
fn make_room(log: &Path, bytes: u64, limits: LogLimits) -> LogUsage {
    let mut logs: Vec<(SystemTime, u64, PathBuf)> = Vec::new();
    for dir in log.parent().into_iter().flat_map(entries).filter(|other| other != log) {
        let files = entries(&dir).into_iter().filter_map(|file| file.metadata().ok());
        let (mut written, mut size) = (None, 0);
        for file in files {
            (written, size) = (written.max(file.modified().ok()), size + file.len());
        }
        // A log that was just created and has no file yet stays.
        #[expect(clippy::disallowed_methods, reason = "compared with times of the file system")]
        logs.push((written.unwrap_or_else(SystemTime::now), size, dir));
    }
    logs.sort();
    let own: u64 =
        entries(log).into_iter().filter_map(|file| file.metadata().ok()).map(|file| file.len()).sum();
    // The oldest file of a log is removed when a new one is started.
    let own = (own + bytes).min(limits.file.saturating_mul(FILES_MAX as u64)).max(bytes);
    let mut size = own + logs.iter().map(|(_, size, _)| size).sum::<u64>();
    let mut count = logs.len() + 1;
    for (_, bytes, dir) in logs {
        if count <= LOGS_MAX && size <= limits.gateway {
            break;
        }
        remove_all(&dir);
        (size, count) = (size.saturating_sub(bytes), count - 1);
    }
    LogUsage { logs: count, bytes: size }
}

/// Opens the files of a log, oldest first. A writer may remove the oldest ones meanwhile: what is returned has no gap.
fn open_files(dir: &Path) -> io::Result<Vec<(LogFile, File)>> {
    let mut opened: Vec<(LogFile, File)> = Vec::new();
    for part in log_files(dir)? {
        let file = match File::open(&part.path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        let part = LogFile { bytes: file.metadata()?.len(), ..part };
        if opened.last().is_some_and(|(last, _)| last.start + last.bytes != part.start) {
            opened.clear();
        }
        opened.push((part, file));
    }
    Ok(opened)
}

fn read(dir: &Path, from: LogFrom, bytes_max: usize) -> io::Result<LogPiece> {
    let parts = open_files(dir)?;
    let base = parts.first().map_or(0, |(part, _)| part.start);
    let end = parts.last().map_or(0, |(part, _)| part.start + part.bytes);
    let (mut offset, whole) = match from {
        // An offset behind the end refers to a log that was removed in the meantime.
        LogFrom::Offset(offset) => (if offset > end { base } else { offset.max(base) }, true),
        LogFrom::End(bytes) => (end.saturating_sub(bytes).max(base), end.saturating_sub(bytes) <= base),
    };
    let mut bytes = Vec::new();
    for (part, file) in &parts {
        let skip = (offset + bytes.len() as u64).saturating_sub(part.start);
        let room = bytes_max - bytes.len();
        let count = crate::config::size(part.bytes.saturating_sub(skip)).min(room);
        if count > 0 {
            let mut piece = vec![0; count];
            file.read_exact_at(&mut piece, skip)?;
            bytes.append(&mut piece);
        }
    }
    if !whole {
        // The first line may be incomplete.
        let line = memchr::memchr(b'\n', &bytes).map_or(0, |at| at + 1);
        bytes.drain(..line);
        offset += line as u64;
    }
    // A line that is still being written, or does not fit, is left for the next piece.
    let lines = memchr::memrchr(b'\n', &bytes).map_or(bytes.len(), |at| at + 1);
    bytes.truncate(lines);
    Ok(LogPiece { offset, bytes, end })
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    /// Limits of three lines for a file and two full logs for a gateway.
    fn small() -> LogQuota {
        LogQuota::new(LogLimits { file: 21, gateway: 84 })
    }

    fn text(dir: &Path, from: LogFrom, bytes_max: usize) -> (u64, String, u64) {
        let piece = read(dir, from, bytes_max).unwrap();
        (piece.offset, String::from_utf8(piece.bytes).unwrap(), piece.end)
    }

    #[test]
    fn log_is_bounded_and_read_in_whole_lines() {
        let root = tempfile::tempdir().unwrap();
        let small = small();
        let dir = root.path().join("logs/gateway/session");
        assert_eq!(text(&dir, LogFrom::Offset(7), 99), (0, String::new(), 0));
        append(&dir, b"line 0\n", &small).unwrap();
        let many: String = (1..10).map(|n| format!("line {n}\n")).collect();
        append(&dir, many.as_bytes(), &small).unwrap();
        // A file holds three lines; two files are kept.
        let all = "line 4\nline 5\nline 6\nline 7\nline 8\nline 9\n";
        assert_eq!(text(&dir, LogFrom::Offset(0), 99), (28, all.into(), 70));
        assert_eq!(text(&dir, LogFrom::Offset(0), 16), (28, "line 4\nline 5\n".into(), 70));
        assert_eq!(text(&dir, LogFrom::Offset(56), 99), (56, "line 8\nline 9\n".into(), 70));
        assert_eq!(text(&dir, LogFrom::Offset(70), 99), (70, String::new(), 70));
        assert_eq!(text(&dir, LogFrom::Offset(71), 99), (28, all.into(), 70));
        assert_eq!(text(&dir, LogFrom::End(10), 99), (63, "line 9\n".into(), 70));
        assert_eq!(text(&dir, LogFrom::End(99), 99).0, 28);
        append(&dir, &[b'x'; 50], &small).unwrap();
        let modes =
            entries(&dir).into_iter().map(|file| file.metadata().unwrap().permissions().mode() & 0o777);
        assert_eq!(modes.collect::<Vec<_>>(), [0o600, 0o600]);
        for above in dir.ancestors().take(3) {
            assert_eq!(above.metadata().unwrap().permissions().mode() & 0o777, 0o700, "{above:?}");
        }
    }

    /// A reader between two looks at the directory finds files that the writer has removed.
    #[test]
    fn log_is_read_without_gap_while_it_is_written() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("logs/gateway/session");
        let (quota, written) = (small(), dir.clone());
        let writer = std::thread::spawn(move || {
            for n in 1_000..4_000 {
                append(&written, format!("l {n}\n").as_bytes(), &quota).unwrap();
            }
        });
        while !writer.is_finished() {
            let piece = read(&dir, LogFrom::Offset(0), 99).unwrap();
            let text = String::from_utf8(piece.bytes).unwrap();
            let numbers: Vec<u64> = text.lines().map(|line| line[2..].parse().unwrap()).collect();
            assert!(numbers.windows(2).all(|pair| pair[0] + 1 == pair[1]), "{text}");
            assert!(numbers.first().is_none_or(|first| piece.offset == (first - 1_000) * 7), "{text}");
        }
        writer.join().unwrap();
    }

    #[test]
    fn logs_of_gateway_share_one_limit() {
        let root = tempfile::tempdir().unwrap();
        let small = small();
        let log = |gateway: &str, name: &str| root.path().join("logs").join(gateway).join(name);
        let full: String = (0..6).map(|n| format!("line {n}\n")).collect();
        for (gateway, name) in [("a", "1"), ("b", "1"), ("a", "2"), ("a", "3"), ("a", "2")] {
            append(&log(gateway, name), full.as_bytes(), &small).unwrap();
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        let remaining = |gateway| {
            let mut names: Vec<_> = entries(&root.path().join("logs").join(gateway))
                .into_iter()
                .map(|log| log.file_name().unwrap().to_string_lossy().into_owned())
                .collect();
            names.sort();
            names
        };
        assert_eq!(
            (remaining("a"), remaining("b")),
            (vec!["2".to_owned(), "3".to_owned()], vec!["1".to_owned()])
        );
        append(&log("a", "4"), b"line 0\n", &small).unwrap();
        assert_eq!(remaining("a"), ["2", "4"], "the least recently written log is removed");
        append(&log("a", "5"), &[b'x'; 200], &small).unwrap();
        assert_eq!(remaining("a"), ["5"], "a single log above the limit is kept");
    }

    #[tokio::test]
    async fn foreign_logs_are_invisible_and_unknown_ones_removed() {
        let root = tempfile::tempdir().unwrap();
        let logs = SessionLogs::new(&root.path().join("logs"), 1_000);
        let (mine, other) = (GatewayInstanceId::mint(), GatewayInstanceId::mint());
        let (one, two) = (SessionKey::parse("one").unwrap(), SessionKey::parse("two").unwrap());
        for (gateway, key) in [(mine, &one), (mine, &two), (other, &one)] {
            let log = logs.log(gateway, key);
            log.write(&line(&format!("{gateway} {key}")));
            log.write(&supervisor_line("a second piece"));
        }
        logs.disk().wait_idle().await;
        let text_of = async |gateway, key| {
            let piece = logs.read(gateway, key, LogFrom::Offset(0), 1 << 20).await.unwrap();
            String::from_utf8(piece.bytes).unwrap()
        };
        let own_text = text_of(mine, &one).await;
        assert!(own_text.contains(&format!("| {mine} one\n")) && own_text.contains("* a second piece\n"));
        assert!(!own_text.contains(&other.to_string()));
        logs.keep_only([(mine, &one)].into_iter());
        assert_eq!((text_of(mine, &two).await, text_of(other, &one).await), (String::new(), String::new()));
        logs.remove(mine, &one);
        tokio::task::yield_now().await;
        logs.disk().wait_idle().await;
        assert_eq!(text_of(mine, &one).await, "");
    }

    #[tokio::test]
    async fn writers_of_one_log_keep_their_order() {
        let root = tempfile::tempdir().unwrap();
        let logs = SessionLogs::new(&root.path().join("logs"), 1 << 20);
        let (gateway, key) = (GatewayInstanceId::mint(), SessionKey::parse("one").unwrap());
        let lines: Vec<String> = (0..200).map(|n| format!("line {n}\n")).collect();
        lines.iter().for_each(|line| logs.log(gateway, &key).write(line));
        tokio::task::yield_now().await;
        logs.disk().wait_idle().await;
        let piece = logs.read(gateway, &key, LogFrom::Offset(0), 1 << 20).await.unwrap();
        assert_eq!(String::from_utf8(piece.bytes).unwrap(), lines.concat());
    }

    #[tokio::test]
    async fn hanging_disk_blocks_no_writer_and_bounds_pending_text() {
        let root = tempfile::tempdir().unwrap();
        let logs = SessionLogs::new(&root.path().join("logs"), 1 << 20);
        let mut held = Vec::new();
        while let Some(slot) = logs.disk().try_slot() {
            held.push(slot);
        }
        let (gateway, key) = (GatewayInstanceId::mint(), SessionKey::parse("one").unwrap());
        let log = logs.log(gateway, &key);
        for _ in 0..2_000 {
            log.write(&line(&"x".repeat(1_000)));
        }
        assert!(log.pending.lock().text.len() <= PENDING_BYTES_MAX);
        drop(held);
        tokio::task::yield_now().await;
        logs.disk().wait_idle().await;
        let piece = logs.read(gateway, &key, LogFrom::End(200), 1_000).await.unwrap();
        assert!(String::from_utf8(piece.bytes).unwrap().contains("bytes were left out"));
        assert!(piece.end < 2 * PENDING_BYTES_MAX as u64, "{}", piece.end);
    }
}
