//! Lock of `up` in its state directory. The kernel names the process that holds it, and releases it when that process ends in
//! any way, so `down` and `status` never rely on a process id that was written to a file.

use crate::api::peer_ancestry::has_ended;
use crate::cli::serve::{supervisor_dir, supervisor_socket};
use crate::cli::{inside, usage};
use acp_core::failure::Failure;
use acp_shared::codes::Code;
use acp_store::lock::private_file;
use rustix::fs::{FlockOperation, fcntl_lock, flock};
use rustix::process::{
    Flock, FlockType, Pid, PidfdFlags, Signal, fcntl_getlk, pidfd_open, pidfd_send_signal,
};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Name of the lock file. It contains the socket of the supervisor that the last `up` used.
const UP_LOCK_FILE: &str = "up.lock";
/// Maximum length of a path in the lock file, in bytes.
const PATH_BYTES_MAX: usize = 4_096;
/// Maximum number of attempts to find a holder that changes in the meantime.
const TRIES_MAX: u32 = 5;
/// Maximum time for the end of `up`: the gateway, then its supervisor with all agents.
const END_WAIT: Duration = Duration::from_secs(150);
/// Polling interval during that time.
const END_POLL: Duration = Duration::from_millis(20);

/// Held lock.
#[derive(Debug)]
pub(crate) struct UpLock {
    // Closing any descriptor of the file releases the lock.
    file: File,
}

impl UpLock {
    /// Takes the lock; `None` if an `up` holds it.
    ///
    /// # Errors
    /// `USAGE` if the file cannot be opened; `RUNTIME` if it cannot be locked.
    pub(crate) fn take(state_dir: &Path) -> Result<Option<Self>, Failure> {
        let file = private_file(&state_dir.join(UP_LOCK_FILE)).map_err(|error| usage(error.whole()))?;
        match fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(Self { file })),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::ACCESS) => Ok(None),
            Err(error) => Err(cannot_lock(&error.into())),
        }
    }

    /// Records the socket of the supervisor, for a `down` after the gateway was killed.
    ///
    /// # Errors
    /// `RUNTIME` if it cannot be written.
    pub(crate) fn record(&self, supervisor_socket: &Path) -> Result<(), Failure> {
        // Written before the rest of an old path is cut off, so that a kill leaves no empty file.
        let path = supervisor_socket.as_os_str().as_bytes();
        let written = self.file.write_all_at(path, 0).and_then(|()| self.file.set_len(path.len() as u64));
        written.map_err(|error| cannot_lock(&error))
    }

    /// Returns the recorded socket.
    pub(crate) fn recorded(&self) -> Option<PathBuf> {
        read_socket(&self.file)
    }
}

fn read_socket(file: &File) -> Option<PathBuf> {
    let mut path = vec![0; PATH_BYTES_MAX];
    let bytes = file.read_at(&mut path, 0).ok()?;
    path.truncate(bytes);
    (!path.is_empty()).then(|| PathBuf::from(std::ffi::OsString::from_vec(path)))
}

/// Returns the socket of the supervisor that the last `up` used. Not for the holder of the lock: closing the file releases it.
pub(crate) fn recorded_socket(state_dir: &Path) -> PathBuf {
    let file = File::open(state_dir.join(UP_LOCK_FILE)).ok();
    file.and_then(|file| read_socket(&file)).unwrap_or_else(|| supervisor_socket(state_dir))
}

/// True if a supervisor that `up` started runs: the lock of its state directory is held, even if it does not answer.
///
/// # Errors
/// `RUNTIME` if the lock file cannot be opened.
pub(crate) fn own_supervisor_runs(state_dir: &Path) -> Result<bool, Failure> {
    let path = supervisor_dir(state_dir).join("lock");
    match File::open(&path) {
        Ok(file) => Ok(flock(&file, FlockOperation::NonBlockingLockShared).is_err()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(inside(&format!("cannot open {}", path.display()), &error)),
    }
}

fn cannot_lock(error: &io::Error) -> Failure {
    inside(&format!("cannot lock {UP_LOCK_FILE} in the state directory"), error)
}

/// Running `up`.
#[derive(Debug)]
pub(crate) struct RunningUp {
    pub(crate) pid: i32,
    process: OwnedFd,
}

impl RunningUp {
    /// Finds the `up` that holds the lock of a state directory.
    ///
    /// # Errors
    /// `RUNTIME` if the holder cannot be identified with certainty.
    pub(crate) fn find(state_dir: &Path) -> Result<Option<Self>, Failure> {
        let file = match File::open(state_dir.join(UP_LOCK_FILE)) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(cannot_lock(&error)),
        };
        for _ in 0..TRIES_MAX {
            let Some(pid) = holder(&file)? else { return Ok(None) };
            let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else { continue };
            // A pid that still holds the lock was not reused before the pidfd was opened, or the pidfd is of an ended process.
            if holder(&file)? == Some(pid) {
                return Ok(Some(Self { pid: pid.as_raw_nonzero().get(), process }));
            }
        }
        let text = "cannot identify the process that holds up.lock (pidfds need Linux 5.3): end it where it was started";
        Err(Failure::new(Code::Runtime, text).origin("client"))
    }

    pub(crate) fn has_ended(&self) -> bool {
        has_ended(&self.process)
    }

    /// Ends it with SIGTERM and waits.
    ///
    /// # Errors
    /// `TIMEOUT`; `RUNTIME` if it cannot be signalled.
    pub(crate) async fn end(&self) -> Result<(), Failure> {
        match pidfd_send_signal(&self.process, Signal::TERM) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => {}
            Err(error) => return Err(inside(&format!("cannot end the gateway, pid {}", self.pid), &error)),
        }
        let until = Instant::now() + END_WAIT;
        while !self.has_ended() {
            if Instant::now() >= until {
                let text = format!(
                    "the gateway, pid {}, has not ended within {} s; see its log: `acp-gateway logs --service`",
                    self.pid,
                    END_WAIT.as_secs()
                );
                return Err(Failure::new(Code::Timeout, text).origin("client"));
            }
            tokio::time::sleep(END_POLL).await;
        }
        Ok(())
    }
}

/// Returns the process that holds the lock.
fn holder(file: &File) -> Result<Option<Pid>, Failure> {
    let held =
        fcntl_getlk(file, &Flock::from(FlockType::WriteLock)).map_err(|error| cannot_lock(&error.into()))?;
    match held {
        None => Ok(None),
        Some(Flock { pid: Some(pid), .. }) => Ok(Some(pid)),
        Some(Flock { pid: None, .. }) => {
            let text = "`up` runs in another pid namespace (a container): end it there";
            Err(Failure::new(Code::Runtime, text).origin("client"))
        }
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;

    #[test]
    fn free_lock_has_no_holder_and_keeps_the_recorded_socket() {
        let dir = tempfile::tempdir().unwrap();
        assert!(RunningUp::find(dir.path()).unwrap().is_none(), "no file");
        let lock = UpLock::take(dir.path()).unwrap().unwrap();
        assert_eq!(lock.recorded(), None);
        lock.record(Path::new("/run/a.sock")).unwrap();
        drop(lock);
        assert!(RunningUp::find(dir.path()).unwrap().is_none(), "released");
        let lock = UpLock::take(dir.path()).unwrap().unwrap();
        assert_eq!(lock.recorded(), Some(PathBuf::from("/run/a.sock")));
        drop(lock);
        assert_eq!(recorded_socket(dir.path()), Path::new("/run/a.sock"));
    }
}
