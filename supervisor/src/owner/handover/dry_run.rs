//! Trial of a new program: a short parallel run in which the program reads the handover and proves it.

use super::image::{HANDOVER_VERSION, Summary};
use crate::context::Context;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Time limit of the trial.
const WITHIN: Duration = Duration::from_secs(10);
/// Time limit for a killed child to be reaped.
const KILLED: Duration = Duration::from_secs(1);
const POLL: Duration = Duration::from_millis(5);
const ANSWER_BYTES_MAX: usize = 4_096;
/// Maximum number of bytes of a wrong answer in an error message.
const SHOWN_BYTES: usize = 200;

/// Answer of a program that has read a handover.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TrialAnswer {
    /// Handover version that the program reads.
    pub(crate) handover: u32,
    /// Number of leases that the program found.
    pub(crate) leases: u32,
    /// Checksum that the program computed.
    pub(crate) checksum: String,
    /// Version of the program.
    pub(crate) version: String,
}

impl TrialAnswer {
    /// Creates this program's answer about a handover.
    pub(crate) fn of(summary: Summary) -> Self {
        Self {
            handover: HANDOVER_VERSION,
            leases: summary.leases,
            checksum: summary.checksum,
            version: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }
}

/// Has `program` prove that it can read the handover in `image` and would start with `args`. Returns its
/// version. Blocks.
///
/// # Errors
/// The reason why the program cannot take over, as text.
pub(crate) fn try_program(
    context: &Context,
    program: &Path,
    args: &[OsString],
    image: &File,
    want: &Summary,
) -> Result<String, String> {
    let shown = program.display();
    let read = image.try_clone().map_err(|e| format!("cannot duplicate a descriptor: {e}"))?;
    let mut command = Command::new(program);
    command.args(["--json", "handover-check", "--"]).args(args);
    command.stdin(Stdio::from(read)).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut started = None;
    let pid = context.start_child(|| {
        let child = command.spawn()?;
        let pid = i32::try_from(child.id()).map_err(io::Error::other)?;
        started = Some(child);
        Ok(pid)
    });
    let pid = pid.map_err(|e| format!("{shown} cannot be started: {e}"))?;
    let answer =
        started.map_or_else(|| Err("was not started".to_owned()), |mut child| read_answer(&mut child));
    // From here on a child that does not die is reaped as an orphan.
    context.release_child(pid);
    check_answer(&answer.map_err(|why| format!("{shown} {why}"))?, want)
        .map_err(|why| format!("{shown} {why}"))
}

/// Verifies a program's answer about a handover. Returns the program's version.
fn check_answer(answer: &[u8], want: &Summary) -> Result<String, String> {
    let proof: TrialAnswer = serde_json::from_slice(answer)
        .map_err(|_| format!("does not understand the handover: {}", shown(answer)))?;
    let read = Summary { leases: proof.leases, checksum: proof.checksum };
    if proof.handover != HANDOVER_VERSION || read != *want {
        return Err(format!("has read a different handover: {}", shown(answer)));
    }
    Ok(proof.version)
}

/// Returns the beginning of an answer, for error messages.
fn shown(answer: &[u8]) -> String {
    let text = String::from_utf8_lossy(answer);
    format!("{:?}", crate::core::tail_buffer::head(text.trim(), SHOWN_BYTES))
}

/// Reads a child's output until the child exits successfully.
fn read_answer(child: &mut Child) -> Result<Vec<u8>, String> {
    let until = Instant::now() + WITHIN;
    let heard = read_until(child, until).and_then(|answer| match end(child, until) {
        Ok(()) => Ok(answer),
        Err(why) => Err(format!("{why}: {}", shown(&answer))),
    });
    if heard.is_err() {
        // The child is not reaped yet, so its pid cannot have been reused.
        drop(child.kill());
        drop(end(child, Instant::now() + KILLED));
    }
    heard
}

fn read_until(child: &mut Child, until: Instant) -> Result<Vec<u8>, String> {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::io::Errno;
    let mut pipe = child.stdout.take().ok_or("has no output")?;
    let mut answer = Vec::new();
    let mut piece = [0; 1024];
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).map_err(|e| e.to_string())?;
        match poll(&mut [PollFd::new(&pipe, PollFlags::IN)], Some(&left)) {
            Ok(0) => return Err(format!("does not answer within {WITHIN:?}")),
            Ok(_) => {}
            // A child of this process can exit at any time and interrupt the call with SIGCHLD.
            Err(Errno::INTR) => continue,
            Err(errno) => return Err(format!("has unreadable output: {errno}")),
        }
        match pipe.read(&mut piece) {
            Ok(0) => return Ok(answer),
            Ok(count) => answer.extend_from_slice(piece.get(..count).unwrap_or_default()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(format!("has unreadable output: {error}")),
        }
        if answer.len() > ANSWER_BYTES_MAX {
            return Err("prints too much output".to_owned());
        }
    }
}

fn end(child: &mut Child, until: Instant) -> Result<(), String> {
    loop {
        match child.try_wait().map_err(|e| format!("cannot be waited for: {e}"))? {
            Some(status) if status.success() => return Ok(()),
            Some(status) => return Err(format!("cannot take over: it ended with {status}")),
            None if Instant::now() >= until => return Err(format!("does not end within {WITHIN:?}")),
            None => std::thread::sleep(POLL),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_matching_handover_answer_is_accepted() {
        let want = Summary { leases: 2, checksum: "ab".into() };
        let answer = |handover, leases, checksum: &str| {
            format!(
                r#"{{"handover":{handover},"leases":{leases},"checksum":"{checksum}","version":"9"}}{}"#,
                "\n"
            )
        };
        assert_eq!(check_answer(answer(HANDOVER_VERSION, 2, "ab").as_bytes(), &want), Ok("9".to_owned()));
        for wrong in [
            answer(HANDOVER_VERSION + 1, 2, "ab"),
            answer(HANDOVER_VERSION, 3, "ab"),
            answer(HANDOVER_VERSION, 2, "ac"),
            String::new(),
            "ok".to_owned(),
        ] {
            assert!(check_answer(wrong.as_bytes(), &want).is_err(), "{wrong}");
        }
    }
}
