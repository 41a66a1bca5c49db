//! A service of this workspace that runs in the foreground until it is stopped.

use crate::processes::ProcessHandle;
use crate::wait::{SOON, until};
use rustix::process::Signal;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A supervisor or a gateway that runs in the foreground. Dropping it kills it with SIGKILL.
#[derive(Debug)]
pub struct Service {
    /// Its ready line; null for a program that prints none.
    pub ready: Value,
    child: Child,
    log: PathBuf,
}

impl Service {
    /// Starts a program that prints one JSON line when it accepts work. Its output goes to `log` with the
    /// endings `.stdout` and `.stderr`.
    ///
    /// # Panics
    /// When it exits or prints no such line in time.
    #[must_use]
    pub fn start(command: Command, log: &Path) -> Self {
        let mut ready = Value::Null;
        let mut service = Self::start_until(command, log, |text| {
            let Some((line, _)) = text.split_once('\n') else { return false };
            ready = serde_json::from_str(line).unwrap_or_else(|e| panic!("{e} in the ready line {line:?}"));
            true
        });
        assert_eq!(ready["event"], "ready", "{ready}");
        service.ready = ready;
        service
    }

    /// Starts a program and waits until `is_ready`, which is given its output so far.
    pub(crate) fn start_until(
        mut command: Command,
        log: &Path,
        mut is_ready: impl FnMut(&str) -> bool,
    ) -> Self {
        let out = log.with_extension("stdout");
        let log = log.with_extension("stderr");
        let file = |path: &Path| fs::File::create(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        command.stdin(Stdio::null()).stdout(file(&out)).stderr(file(&log));
        let child = command.spawn().unwrap_or_else(|e| panic!("cannot start {command:?}: {e}"));
        let mut service = Self { ready: Value::Null, child, log };
        until(SOON, &format!("{command:?} is ready"), || {
            let text = fs::read_to_string(&out).unwrap_or_default();
            if is_ready(&text) {
                return true;
            }
            if let Ok(Some(status)) = service.child.try_wait() {
                panic!("{command:?} ended with {status} instead of being ready: {text}{}", service.log());
            }
            false
        });
        service
    }

    /// Its pid.
    ///
    /// # Panics
    /// Never: a pid is no larger than an `i32`.
    #[must_use]
    pub fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).unwrap_or_else(|e| panic!("{e}"))
    }

    /// The socket path in its ready line.
    ///
    /// # Panics
    /// When the ready line has none.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        let socket = self.ready["socket"].as_str();
        PathBuf::from(socket.unwrap_or_else(|| panic!("no socket in the ready line {}", self.ready)))
    }

    /// Its standard error output so far.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// True if its standard output has this text.
    #[must_use]
    pub fn has_printed(&self, text: &str) -> bool {
        let out = fs::read_to_string(self.log.with_extension("stdout"));
        out.unwrap_or_default().contains(text)
    }

    /// Kills it with SIGKILL and reaps it.
    pub fn kill9(mut self) {
        self.end_now();
    }

    /// Sends a signal; returns `false` if the process no longer exists.
    #[must_use]
    pub fn signal(&self, signal: Signal) -> bool {
        ProcessHandle::open(self.pid()).is_some_and(|held| held.signal(signal))
    }

    /// Stops it with SIGTERM and returns its exit code (`None`: a signal ended it).
    ///
    /// # Panics
    /// When it does not exit within `deadline`.
    #[must_use]
    pub fn terminate(self, deadline: Duration) -> Option<i32> {
        assert!(self.signal(Signal::TERM), "the service had already exited: {}", self.log());
        self.wait(deadline)
    }

    /// Waits until it exits and returns its exit code (`None`: a signal ended it).
    ///
    /// # Panics
    /// When it does not exit within `deadline`.
    #[must_use]
    pub fn wait(mut self, deadline: Duration) -> Option<i32> {
        let mut code = None;
        until(deadline, "the service exits", || match self.child.try_wait() {
            Ok(Some(status)) => {
                code = status.code();
                true
            }
            Ok(None) => false,
            Err(e) => panic!("cannot wait: {e}"),
        });
        code
    }

    fn end_now(&mut self) {
        // An unreaped child of this process: its pid cannot have been reused.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.end_now();
    }
}
