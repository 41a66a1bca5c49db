//! `logs --service`: the log files of the gateway and the supervisor that `up` started.

use crate::cli::output::{CliResult, Out};
use crate::cli::serve::{LOG_FILE, supervisor_dir};
use crate::cli::service::unit_of;
use crate::cli::up::lock::RunningUp;
use crate::cli::{GlobalArgs, inside};
use acp_core::api::StatusView;
use acp_core::failure::Failure;
use acp_shared::codes::Code;
use clap::ValueEnum;
use serde::Serialize;
use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Polling interval while following.
const POLL: Duration = Duration::from_millis(250);
/// Number of older files, as in `acp_shared::log_file`.
const OLDER_FILES: usize = 3;
/// Number of polls for which a rotation may be incomplete: the copy exists, and the file is not yet empty.
const ROTATION_POLLS_MAX: u32 = 8;
/// Maximum wait for the answer of a gateway.
const STATUS_WAIT: Duration = Duration::from_secs(5);

/// Services with a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LoggedService {
    /// Gateway and supervisor
    All,
    /// The gateway
    Gateway,
    /// The supervisor
    Supervisor,
}

/// Line of a log for programs.
#[derive(Debug, Serialize)]
struct ServiceLine<'a> {
    from: &'a str,
    text: &'a str,
}

/// Log file that is read.
struct Source {
    name: &'static str,
    tail: LogTail,
}

/// `logs --service`
pub(super) async fn run(
    global: &GlobalArgs,
    which: LoggedService,
    follow: bool,
    lines: usize,
    out: &mut Out,
) -> CliResult {
    let state_dir = global.state_dir()?;
    let files = [
        ("gateway", LoggedService::Gateway, state_dir.join(LOG_FILE)),
        ("supervisor", LoggedService::Supervisor, supervisor_dir(&state_dir).join("supervisor.log")),
    ];
    let wanted = files.into_iter().filter(|(_, service, _)| which == LoggedService::All || which == *service);
    let mut sources: Vec<Source> =
        wanted.map(|(name, _, path)| Source { name, tail: LogTail::new(path) }).collect();
    if let Some(failure) = kept_elsewhere(global, &state_dir).await? {
        return Err(failure.into());
    }
    sources.retain(|source| follow || source.tail.path.exists());
    if sources.is_empty() {
        let text = format!(
            "there is no log in {}: `{}` starts gateway and supervisor, which write it",
            state_dir.display(),
            global.advise("up -d", None)
        );
        return Err(Failure::new(Code::Runtime, text).origin("client").into());
    }
    let width = if sources.len() > 1 { "supervisor".len() } else { 0 };
    for source in &mut sources {
        let last = source.tail.last(lines).map_err(|error| cannot_read(source, &error))?;
        print(source.name, &last, width, out)?;
    }
    out.flush()?;
    if !follow {
        return Ok(());
    }
    tokio::select! {
        followed = follow_all(&mut sources, width, out) => followed,
        interrupted = tokio::signal::ctrl_c() => {
            interrupted.map_err(|error| inside("cannot wait for Ctrl-C", &error).into())
        }
    }
}

async fn follow_all(sources: &mut [Source], width: usize, out: &mut Out) -> CliResult {
    loop {
        for source in &mut *sources {
            let new = source.tail.next().map_err(|error| cannot_read(source, &error))?;
            print(source.name, &new, width, out)?;
        }
        out.flush()?;
        tokio::time::sleep(POLL).await;
    }
}

fn cannot_read(source: &Source, error: &io::Error) -> Failure {
    inside(&format!("cannot read {}", source.tail.path.display()), error)
}

/// Prints whole lines; with a width, each after the name of its service.
fn print(name: &str, bytes: &[u8], width: usize, out: &mut Out) -> CliResult {
    for line in String::from_utf8_lossy(bytes).lines() {
        match (out.json, width) {
            (true, _) => out.json(&ServiceLine { from: name, text: line })?,
            (false, 0) => out.line(line)?,
            (false, width) => out.line(&format!("{name:<width$} | {line}"))?,
        }
    }
    Ok(())
}

/// Returns the failure for a gateway whose log is not in the state directory, with the command that shows the log.
async fn kept_elsewhere(global: &GlobalArgs, state_dir: &Path) -> Result<Option<Failure>, Failure> {
    if RunningUp::find(state_dir)?.is_some() {
        return Ok(None);
    }
    let client = global.client()?.until(Some(Instant::now() + STATUS_WAIT));
    let Ok(status) = client.get::<StatusView>("/v1/status").await else { return Ok(None) };
    let (gateway, supervisor) = (i32::try_from(status.pid).ok(), status.supervisor.pid);
    let journals: Vec<String> = [gateway, supervisor]
        .into_iter()
        .flatten()
        .filter_map(unit_of)
        .map(|unit| format!("`{} -f`", unit.journal()))
        .collect();
    let text = match journals.is_empty() {
        true => format!(
            "the gateway, pid {}, was not started by `up`: its log is where it was started",
            status.pid
        ),
        false => format!("the journal of systemd has the log: {}", journals.join(", ")),
    };
    Ok(Some(Failure::new(Code::Runtime, text).origin("client")))
}

/// Reader of a log file that its service copies to `NAME.1` and then empties when it is full.
struct LogTail {
    path: PathBuf,
    /// Number of bytes read of the file.
    offset: u64,
    /// Inode of `NAME.1` at the last read; it changes with each rotation.
    newest_copy: Option<u64>,
    /// Number of polls that found a rotation incomplete.
    incomplete: u32,
    /// Start of a line whose end is not yet written.
    partial: Vec<u8>,
}

impl LogTail {
    const fn new(path: PathBuf) -> Self {
        Self { path, offset: 0, newest_copy: None, incomplete: 0, partial: Vec::new() }
    }

    fn copy(&self, number: usize) -> PathBuf {
        let mut name = self.path.clone().into_os_string();
        name.push(format!(".{number}"));
        name.into()
    }

    /// Returns the last lines, also of older files, and continues behind them.
    fn last(&mut self, lines: usize) -> io::Result<Vec<u8>> {
        self.newest_copy = inode(&self.copy(1));
        let mut text = read_from(&self.path, 0)?;
        self.offset = text.len() as u64;
        for number in 1..=OLDER_FILES {
            if count_lines(&text) > lines {
                break;
            }
            let mut older = read_from(&self.copy(number), 0)?;
            older.append(&mut text);
            text = older;
        }
        let surplus = count_lines(&text).saturating_sub(lines);
        let mut starts = text.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at + 1);
        let from = match surplus {
            0 => 0,
            _ => starts.nth(surplus - 1).unwrap_or(text.len()),
        };
        Ok(self.whole_lines(text.split_off(from)))
    }

    /// Returns the lines that were written since the last call.
    fn next(&mut self) -> io::Result<Vec<u8>> {
        let newest_copy = inode(&self.copy(1));
        let size = match std::fs::metadata(&self.path) {
            Ok(meta) => meta.len(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
            Err(error) => return Err(error),
        };
        let mut text = Vec::new();
        if newest_copy != self.newest_copy {
            let copied = std::fs::metadata(self.copy(1)).map_or(0, |meta| meta.len());
            if size >= copied && self.incomplete < ROTATION_POLLS_MAX {
                self.incomplete += 1;
                return Ok(Vec::new());
            }
            text = self.read_copies()?;
            (self.newest_copy, self.offset) = (newest_copy, 0);
        } else if size < self.offset {
            // Emptied by hand.
            self.offset = 0;
        }
        self.incomplete = 0;
        let new = read_from(&self.path, self.offset)?;
        self.offset += new.len() as u64;
        text.extend(new);
        Ok(self.whole_lines(text))
    }

    /// Reads the rest of the file that was read before the last rotations, and all newer copies.
    fn read_copies(&self) -> io::Result<Vec<u8>> {
        // The newest copy of the last read has become an older one: the file read since then is the next newer one.
        let known = (2..=OLDER_FILES).find(|number| inode(&self.copy(*number)) == self.newest_copy);
        let oldest = match (self.newest_copy, known) {
            (Some(_), Some(known)) => known - 1,
            (Some(_), None) => OLDER_FILES,
            (None, _) => {
                (1..=OLDER_FILES).take_while(|number| self.copy(*number).exists()).last().unwrap_or(0)
            }
        };
        let mut text = Vec::new();
        for number in (1..=oldest).rev() {
            let from = if number == oldest { self.offset } else { 0 };
            text.extend(read_from(&self.copy(number), from)?);
        }
        Ok(text)
    }

    /// Keeps an incomplete last line for the next call.
    fn whole_lines(&mut self, text: Vec<u8>) -> Vec<u8> {
        let mut all = std::mem::take(&mut self.partial);
        all.extend(text);
        let end = all.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        self.partial = all.split_off(end);
        all
    }
}

fn count_lines(text: &[u8]) -> usize {
    text.iter().filter(|byte| **byte == b'\n').count()
}

fn inode(path: &Path) -> Option<u64> {
    std::fs::metadata(path).ok().map(|meta| meta.ino())
}

/// Reads a file from an offset; a missing file is empty.
fn read_from(path: &Path, offset: u64) -> io::Result<Vec<u8>> {
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    file.seek(SeekFrom::Start(offset))?;
    let mut text = Vec::new();
    file.read_to_end(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;
    use std::io::Write as _;

    fn append(path: &Path, text: &str) {
        let mut file = std::fs::OpenOptions::new().create(true).append(true).open(path).unwrap();
        file.write_all(text.as_bytes()).unwrap();
    }

    /// Rotates as `acp_shared::log_file` does, in two steps.
    fn copy(dir: &Path) {
        for number in (1..OLDER_FILES).rev() {
            let name = |number| dir.join(format!("a.log.{number}"));
            drop(std::fs::rename(name(number), name(number + 1)));
        }
        std::fs::copy(dir.join("a.log"), dir.join("a.log.1")).unwrap();
    }

    fn empty(path: &Path) {
        std::fs::OpenOptions::new().write(true).open(path).unwrap().set_len(0).unwrap();
    }

    fn next(tail: &mut LogTail) -> String {
        String::from_utf8(tail.next().unwrap()).unwrap()
    }

    #[test]
    fn followed_log_loses_and_repeats_nothing_when_it_rotates() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.log");
        let mut tail = LogTail::new(path.clone());
        assert_eq!(tail.last(10).unwrap(), b"", "not written yet");
        append(&path, "one\ntwo");
        assert_eq!(next(&mut tail), "one\n", "an incomplete line waits");
        append(&path, "\nthree\n");
        copy(dir.path());
        assert_eq!(next(&mut tail), "", "not emptied yet");
        empty(&path);
        append(&path, "four\n");
        assert_eq!(next(&mut tail), "two\nthree\nfour\n");
        append(&path, "five\n");
        copy(dir.path());
        empty(&path);
        append(&path, "six\n");
        copy(dir.path());
        empty(&path);
        append(&path, "7\n");
        assert_eq!(next(&mut tail), "five\nsix\n7\n", "two rotations between reads");
        assert_eq!(next(&mut tail), "");
    }

    #[test]
    fn last_lines_reach_into_older_files() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.log");
        append(&dir.path().join("a.log.2"), "1\n2\n");
        append(&dir.path().join("a.log.1"), "3\n4\n");
        append(&path, "5\n6\n");
        let last = |lines| String::from_utf8(LogTail::new(path.clone()).last(lines).unwrap()).unwrap();
        assert_eq!(last(0), "");
        assert_eq!(last(2), "5\n6\n");
        assert_eq!(last(3), "4\n5\n6\n");
        assert_eq!(last(100), "1\n2\n3\n4\n5\n6\n");
    }
}
