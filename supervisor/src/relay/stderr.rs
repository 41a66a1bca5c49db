//! Standard error of an agent: line by line and redacted into the session log, and at a limited rate into the
//! supervisor's own log. A gateway gets it only if it requests the log.

use crate::core::redact::Redactor;
use crate::core::tail_buffer::head;
use crate::relay::session_logs::{self, SessionLog};
use crate::relay::snapshot::StderrState;
use acp_shared::ids::LeaseId;
use acp_shared::launch::ExitStatus;
use tokio::time::{Duration, Instant};

const WINDOW: Duration = Duration::from_secs(1);
/// Maximum number of lines in the supervisor's log per [`WINDOW`]; further lines are only counted.
const LINES_MAX: u32 = 20;
/// Maximum length of a line in the supervisor's log, in bytes.
const LINE_SHOWN_MAX: usize = 2_000;
/// Maximum length of a line in the session log, in bytes; the rest of the line is left out.
const LINE_BYTES_MAX: usize = 16 * 1024;
/// Maximum number of bytes in the session log per [`WINDOW`], including timestamps; further lines are only
/// counted.
const LOGGED_BYTES_MAX: usize = 256 * 1024;
/// Maximum number of lines in the session log per [`WINDOW`]; further lines are only counted.
const LOGGED_LINES_MAX: u32 = 2_000;

/// Reader of one agent's standard error.
#[derive(Debug)]
pub(crate) struct Stderr {
    lease_id: LeaseId,
    log: SessionLog,
    /// `None` if the agent's environment is unknown here; then its stderr is not recorded.
    redactor: Option<Redactor>,
    /// Beginning of the unfinished line.
    line: Vec<u8>,
    /// Number of further bytes of the line, which are dropped.
    cut: u64,
    window: Instant,
    lines: u32,
    suppressed: u64,
    logged: usize,
    logged_lines: u32,
    /// True if the last line was empty: further empty lines are left out.
    was_empty: bool,
    left_out: u64,
}

impl Stderr {
    /// Creates the reader for a newly started agent.
    pub(crate) fn new(lease_id: LeaseId, log: SessionLog, redactor: Redactor) -> Self {
        log.write(&session_logs::supervisor_line(&format!("agent started, lease {lease_id}")));
        Self::with(lease_id, log, Some(redactor))
    }

    /// Creates the reader for an ended agent.
    pub(super) fn ended(lease_id: LeaseId, log: SessionLog) -> Self {
        Self::with(lease_id, log, None)
    }

    fn with(lease_id: LeaseId, log: SessionLog, redactor: Option<Redactor>) -> Self {
        Self {
            lease_id,
            log,
            redactor,
            line: Vec::new(),
            cut: 0,
            window: Instant::now(),
            lines: 0,
            suppressed: 0,
            logged: 0,
            logged_lines: 0,
            was_empty: false,
            left_out: 0,
        }
    }

    /// Exports the state.
    pub(super) fn export(self) -> StderrState {
        StderrState { truncated: self.cut > 0, line: self.line, tail: Vec::new(), redactor: self.redactor }
    }

    /// Imports an exported state. Images of earlier versions do not contain the secrets.
    pub(super) fn import(lease_id: LeaseId, log: SessionLog, frozen: StderrState) -> Self {
        let StderrState { truncated, line, redactor, .. } = frozen;
        if redactor.is_none() {
            let why = "standard error is not recorded until this agent is started again: an earlier version of the \
                       supervisor started it";
            log.write(&session_logs::supervisor_line(why));
        }
        Self { line, cut: u64::from(truncated), ..Self::with(lease_id, log, redactor) }
    }

    /// Processes bytes read from the pipe.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        let Some(redactor) = &self.redactor else { return };
        // Number of bytes needed to recognise a value that begins where the line is cut.
        let most = LINE_BYTES_MAX + redactor.longest();
        let mut out = String::new();
        let mut rest = bytes;
        while !rest.is_empty() {
            let end = memchr::memchr(b'\n', rest);
            let (piece, after) = rest.split_at(end.map_or(rest.len(), |at| at + 1));
            let piece = piece.strip_suffix(b"\n").unwrap_or(piece);
            let room = piece.len().min(most.saturating_sub(self.line.len()));
            self.line.extend_from_slice(piece.get(..room).unwrap_or_default());
            self.cut += (piece.len() - room) as u64;
            if end.is_some() {
                self.end_line(false, &mut out);
            }
            rest = after;
        }
        self.write(&out);
    }

    /// Handles the end of the stream: an unfinished line counts as a line.
    pub(super) fn end(&mut self) {
        let mut out = String::new();
        if !self.line.is_empty() {
            self.end_line(true, &mut out);
        }
        self.count_left_out(&mut out);
        self.write(&out);
    }

    /// Records the end of the agent in the session log.
    pub(super) fn exited(&mut self, status: ExitStatus) {
        self.end();
        self.log.write(&session_logs::supervisor_line(&format!("agent ended: {status}")));
    }

    fn write(&self, text: &str) {
        if !text.is_empty() {
            self.log.write(text);
        }
    }

    fn end_line(&mut self, ended: bool, out: &mut String) {
        let (line, cut) = (std::mem::take(&mut self.line), std::mem::take(&mut self.cut));
        if Instant::now().duration_since(self.window) >= WINDOW {
            self.next_window(out);
        }
        let is_empty = line.trim_ascii().is_empty();
        let is_another = std::mem::replace(&mut self.was_empty, is_empty) && is_empty;
        if is_another || self.logged >= LOGGED_BYTES_MAX || self.logged_lines >= LOGGED_LINES_MAX {
            self.left_out += 1;
            return;
        }
        let Some(redactor) = &self.redactor else { return };
        let cut = cut + (line.len().saturating_sub(LINE_BYTES_MAX)) as u64;
        let line = redactor.line(&line, LINE_BYTES_MAX, ended && cut == 0);
        let mut text = String::from_utf8_lossy(&line).trim_end().to_owned();
        if cut > 0 {
            text.push_str(" […]");
        }
        let logged = session_logs::line(&text);
        (self.logged, self.logged_lines) = (self.logged + logged.len(), self.logged_lines + 1);
        out.push_str(&logged);
        if self.lines >= LINES_MAX {
            self.suppressed += 1;
            return;
        }
        self.lines += 1;
        tracing::info!(lease_id = %self.lease_id, stderr = head(&text, LINE_SHOWN_MAX), "agent stderr");
    }

    fn next_window(&mut self, out: &mut String) {
        if self.suppressed > 0 {
            tracing::info!(
                lease_id = %self.lease_id,
                lines = self.suppressed,
                "agent stderr lines suppressed"
            );
        }
        self.count_left_out(out);
        (self.window, self.lines, self.suppressed) = (Instant::now(), 0, 0);
        (self.logged, self.logged_lines) = (0, 0);
    }

    fn count_left_out(&mut self, out: &mut String) {
        let lines = std::mem::take(&mut self.left_out);
        if lines > 0 {
            out.push_str(&session_logs::supervisor_line(&format!(
                "{lines} lines were left out: empty, or too many in a second"
            )));
        }
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;
    use crate::relay::session_logs::SessionLogs;
    use acp_shared::ids::{GatewayInstanceId, SessionKey};
    use acp_shared::protocol::LogFrom;

    const KEY: &str = "sk-configured-0123456789";

    struct Logged {
        logs: SessionLogs,
        gateway: GatewayInstanceId,
        session: SessionKey,
        _dir: tempfile::TempDir,
    }

    impl Logged {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let logs = SessionLogs::new(&dir.path().join("logs"), 1 << 20);
            let session = SessionKey::parse("s").unwrap();
            Self { logs, gateway: GatewayInstanceId::mint(), session, _dir: dir }
        }

        /// Returns a log and a stream that writes to it.
        fn stderr() -> (Self, Stderr) {
            let (logged, env) = (Self::new(), [("API_KEY".to_owned(), KEY.to_owned())]);
            let log = logged.logs.log(logged.gateway, &logged.session);
            (logged, Stderr::new(LeaseId::mint(), log, Redactor::of_env(&env)))
        }

        /// Text of the log without timestamps.
        async fn text(&self) -> String {
            self.logs.disk().wait_idle().await;
            let (mut bytes, mut end) = (Vec::new(), 1);
            while (bytes.len() as u64) < end {
                let from = LogFrom::Offset(bytes.len() as u64);
                let piece = self.logs.read(self.gateway, &self.session, from, u64::MAX).await.unwrap();
                bytes.extend(piece.bytes);
                end = piece.end;
            }
            let text = String::from_utf8(bytes).unwrap();
            text.lines().map(|line| format!("{}\n", line.split_once(' ').unwrap().1)).collect()
        }
    }

    #[tokio::test]
    async fn secret_is_redacted_at_any_split() {
        for cut in 0..=KEY.len() + 8 {
            let (logged, mut stderr) = Logged::stderr();
            let all = format!("key is {KEY}\n");
            let (one, two) = all.as_bytes().split_at(cut.min(all.len()));
            stderr.push(one);
            // The stream survives an upgrade in the middle of a line.
            let exported = serde_json::to_vec(&stderr.export()).unwrap();
            let exported = serde_json::from_slice(&exported).unwrap();
            let mut stderr =
                Stderr::import(LeaseId::mint(), logged.logs.log(logged.gateway, &logged.session), exported);
            stderr.push(two);
            stderr.exited(ExitStatus::Exited(3));
            let text = logged.text().await;
            let want = "| key is [redacted:API_KEY]\n* agent ended: exit code 3\n";
            assert!(text.contains(want), "{cut}: {text}");
            assert!(!text.contains("sk-conf"), "{text}");
        }
    }

    #[tokio::test]
    async fn long_lines_and_floods_are_truncated() {
        let (logged, mut stderr) = Logged::stderr();
        // The cut is inside of the secret.
        stderr.push("x".repeat(LINE_BYTES_MAX - 4).as_bytes());
        stderr.push(KEY.as_bytes());
        stderr.push(&[b'y'; 100_000]);
        stderr.push(b"\nan unfinished sk-configured-01");
        stderr.exited(ExitStatus::Signaled(9));
        let text = logged.text().await;
        assert!(text.contains("xxxx[redacted:API_KEY] […]\n"), "{}", head(&text, 400));
        assert!(
            text.contains("| an unfinished [redacted:API_KEY]\n")
                && !text.contains("yyyy")
                && !text.contains("sk-")
        );

        let (logged, mut stderr) = Logged::stderr();
        for _ in 0..2_000 {
            stderr.push(format!("{}\n", "z".repeat(999)).as_bytes());
        }
        stderr.end();
        let text = logged.text().await;
        assert!(text.len() < 2 * LOGGED_BYTES_MAX && text.contains("lines were left out"), "{}", text.len());
    }

    /// Timestamps multiply the size of short lines.
    #[tokio::test]
    async fn empty_lines_hide_no_error() {
        let (logged, mut stderr) = Logged::stderr();
        stderr.push(&[b'\n'; 65_535]);
        stderr.push(b"real error\n");
        stderr.end();
        let text = logged.text().await;
        assert!(text.contains("| real error\n") && text.contains("65534 lines were left out"), "{text}");

        let (logged, mut stderr) = Logged::stderr();
        stderr.push("x\n".repeat(30_000).as_bytes());
        stderr.end();
        let text = logged.text().await;
        let lines = text.matches("| x\n").count();
        // The rate limit may begin another second meanwhile.
        assert!((2_000..=6_000).contains(&lines), "{lines}");
        assert!(text.contains("lines were left out"));
    }

    #[tokio::test]
    async fn stderr_is_not_recorded_with_unknown_secrets() {
        let logged = Logged::new();
        let old = serde_json::json!({ "truncated": false, "line": b"half of " });
        let log = logged.logs.log(logged.gateway, &logged.session);
        let mut stderr = Stderr::import(LeaseId::mint(), log, serde_json::from_value(old).unwrap());
        stderr.push(format!("{KEY}\n").as_bytes());
        stderr.exited(ExitStatus::Exited(0));
        let text = logged.text().await;
        assert!(
            !text.contains("sk-") && text.contains("not recorded") && text.contains("agent ended"),
            "{text}"
        );
    }
}
